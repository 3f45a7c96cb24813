from __future__ import annotations

from pathlib import Path

import pytest
from row_samples import reason_of, run_of

from tangram.validation.run import Basis

MIXED = {"precision": "fp16", "gpu": "mixed: 12xV100-16GB-SXM2 + 4xT4", "peak_mem_GiB": ""}


def test_equal_nodes_come_from_the_catalogue(tmp_path: Path) -> None:
    hardware = run_of(tmp_path).hardware
    host = hardware.host(stage=1, replica=3)
    assert (host.gpu.name, host.gpus_per_node, host.link_domain) == ("A100-80GB-SXM", 8, 8)
    assert (host.link_bytes_per_s, host.nic_bytes_per_s) == (300e9, 12.5e9)
    assert (hardware.link_basis, hardware.nic_basis) == (Basis.CATALOGUE, Basis.CATALOGUE)
    assert not hardware.is_mixed


def test_a_row_may_state_its_nodes(tmp_path: Path) -> None:
    hardware = run_of(tmp_path, gpus_per_node=4, nic_gbit_per_s=200, link_gb_per_s=150).hardware
    host = hardware.host()
    assert (host.gpus_per_node, host.link_domain) == (4, 4)
    assert (host.link_bytes_per_s, host.nic_bytes_per_s) == (150e9, 25e9)
    assert (hardware.link_basis, hardware.nic_basis) == (Basis.ROW, Basis.ROW)


def names(folder: Path, **cells: object) -> list[list[str]]:
    run = run_of(folder, **MIXED, **cells)
    assert run.is_mixed
    return [[host.gpu.name for host in row] for row in run.hardware.hosts]


def test_parts_hold_ranks_in_the_order_of_the_cell(tmp_path: Path) -> None:
    v100, t4 = "V100-16GB-SXM2", "T4"
    assert names(tmp_path, tp=2, pp=2, dp=4) == [[v100] * 4, [v100, v100, t4, t4]]
    assert names(tmp_path, tp=4, pp=4, dp=1) == [[v100], [v100], [v100], [t4]]
    assert names(tmp_path, tp=1, pp=1, dp=16) == [[v100] * 12 + [t4] * 4]


def test_a_placement_names_every_group(tmp_path: Path) -> None:
    v100, t4 = "V100-16GB-SXM2", "T4"
    for text in (f"{t4}+{v100} | {v100}+{v100}", f"{t4}x4,{v100}x4 | {v100}x4,{v100}x4"):
        assert names(tmp_path, tp=4, pp=2, dp=2, placement=text) == [[t4, v100], [v100, v100]]


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"gpu": "A100"}, "unknown-gpu: row 1, column gpu: GPU 'A100' does not say which variant"),
        ({"gpu": "B9000"}, "unknown GPU 'B9000'"),
        ({"gpu": ""}, "column gpu: is empty"),
        (MIXED | {"tp": 8, "pp": 2, "dp": 1}, "a tensor-parallel group of 8 would hold different parts"),
        (MIXED | {"gpu": "mixed: 4xT4"}, "lists 4 GPUs, the degrees use 16"),
        (MIXED | {"placement": "T4 | T4"}, "does not place 2 stages of 4 replicas"),
        (MIXED | {"gpu": "mixed: 8xT4 + 8xT5"}, "unknown GPU 'T5'"),
    ],
)
def test_hardware_that_cannot_be(tmp_path: Path, cells: dict[str, object], reason: str) -> None:
    assert reason in reason_of(tmp_path, **cells)
