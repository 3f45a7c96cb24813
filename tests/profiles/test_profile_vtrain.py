from __future__ import annotations

from pathlib import Path

import pytest
from profile_files import collectives, needs_shared, read, shared_profiles

from tangram.errors import InputError
from tangram.profiles.records import Op, Scope
from tangram.units import MIB

HEADER = "size(B),count,type,time(ns),busbw(GB/s),time(ns),busbw(GB/s)"
# 1 MiB over 4 ranks: 1.5 MiB over the bus; out of place 60 us, in place 52.74 us.
ROW = "1048576,262144,float,60000,26.21,52740,29.82"


def table(tmp_path: Path, *rows: str, header: str = HEADER) -> Path:
    path = tmp_path / "AR_GPU4_1M_1024M_LUT"
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


def test_a_table(tmp_path: Path) -> None:
    (found,) = collectives(read("vtrain", table(tmp_path, ROW), gpu="a100-40gb-sxm", link="nvlink"))
    assert (found.gpu, found.link, found.stack) == ("A100-40GB-SXM", "nvlink", "nccl")
    assert (found.op, found.scope, found.ranks, found.ranks_per_node) == (
        Op.ALL_REDUCE,
        Scope.INTRA_NODE,
        4,
        4,
    )
    assert (found.num_bytes, found.seconds) == (MIB, 52740e-9)


@pytest.mark.parametrize(
    ("row", "wrong"),
    [
        ("1048576,262144,float,60000,26.21,52740", ":2: has 6 cells, not 7"),
        ("1048576,262144,float,60000,26.21,fast,29.82", r":2: time\(ns\): 'fast' is not a number"),
        ("1048576,262144,float,60000,26.21,0,29.82", r":2: time\(ns\): 0 is out of range"),
        (
            "1048576,262144,float,60,26.21,52.74,29.82",
            r":2: 52\.74 ns for .* are 29822\.98 GB/s, but the line says 29\.82",
        ),
        ("1048576,262144,float,60000,26.21,nan,29.82", "out of range"),
    ],
)
def test_broken_rows_name_the_line(tmp_path: Path, row: str, wrong: str) -> None:
    with pytest.raises(InputError, match=wrong):
        read("vtrain", table(tmp_path, row), gpu="T4")


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is no all-reduce table"):
        read("vtrain", table(tmp_path, ROW, header="size(B),time(us)"), gpu="T4")
    with pytest.raises(InputError, match="names no GPU"):
        read("vtrain", table(tmp_path, ROW))
    one = tmp_path / "AR_GPU1_1M_1024M_LUT"
    one.write_text(HEADER, encoding="utf-8")
    with pytest.raises(InputError, match="how many GPUs"):
        read("vtrain", one, gpu="T4")


@needs_shared
@pytest.mark.parametrize("gpu", ["a100", "v100"])
def test_all_published_tables_import(gpu: str) -> None:
    name = {"a100": "A100-40GB-SXM", "v100": "V100-32GB-SXM2"}[gpu]
    found = read("vtrain", shared_profiles() / "vtrain" / "trace" / gpu, gpu=name)
    assert (found.num_files, len(found.records), found.num_repeated) == (7, 7 * 1024, 0)
    by_point = {(record.ranks, record.num_bytes): record for record in collectives(found)}
    if gpu == "a100":
        assert by_point[8, MIB].seconds == 92150e-9
        assert by_point[2, 4 * MIB].seconds == 60260e-9
        # 8 GPUs of a DGX A100 reach some 230 GB/s with NVLink 3 (600 GB/s both ways per GPU).
        assert by_point[8, 1024 * MIB].bus_bytes_per_s == pytest.approx(230e9, rel=0.02)
