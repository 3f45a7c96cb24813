"""The GPU catalogue: consistent in itself, and equal to the shared hardware table where that is at hand."""

from __future__ import annotations

import csv
import json
import os
import pickle
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from tangram.cluster import catalog
from tangram.cluster.catalog import domain_gpus, gpu, gpu_link, has_peer_access, host_path_frac, load_catalog
from tangram.errors import InputError, UnknownNameError
from tangram.job import Precision
from tangram.units import GB, GIB

NVIDIA_FAMILIES = (
    "turing",
    "volta",
    "ampere",
    "ampere_consumer",
    "ada",
    "hopper",
    "blackwell",
    "blackwell_consumer",
)


def _shared_table() -> Path:
    shared = os.environ.get("TANGRAM_SHARED", Path(__file__).parents[3] / "shared")
    return Path(shared) / "data" / "hardware.csv"


@pytest.fixture(scope="module")
def rows() -> list[Mapping[str, str]]:
    table = _shared_table()
    if not table.is_file():
        pytest.skip(f"the shared hardware table is not at {table}")
    with table.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def _data() -> Mapping[str, Any]:
    text = resources.files("tangram.cluster").joinpath("catalog.json").read_text(encoding="utf-8")
    data: Mapping[str, Any] = json.loads(text)
    return data


def test_every_part_of_the_shared_table_is_in_the_catalogue(rows: list[Mapping[str, str]]) -> None:
    names = {row["gpu"].replace(" ", "-") for row in rows}
    assert names - {"MI250X"} | {"MI250X-GCD"} == set(load_catalog())


def test_figures_equal_the_shared_table(rows: list[Mapping[str, str]]) -> None:
    entries = {entry["name"]: entry for entry in _data()["gpus"]}
    for row in rows:
        name = row["gpu"].replace(" ", "-")
        # The table lists the MI250X module; the catalogue lists what a process sees, one of its two devices.
        devices = 2 if name == "MI250X" else 1
        part = gpu("MI250X-GCD" if name == "MI250X" else name)
        entry = entries[part.name]
        assert part.vendor == row["vendor"]
        assert part.architecture == row["arch"].split()[-1]
        assert part.memory_bytes == pytest.approx(float(row["memory_GiB"]) / devices * GIB)
        assert part.memory_bandwidth_bytes_per_s == pytest.approx(float(row["mem_BW_GBps"]) / devices * GB)
        assert part.link_bytes_per_s == pytest.approx(float(row["nvlink_or_xgmi_GBps_per_dir"]) * GB)
        assert part.pcie_bytes_per_s == pytest.approx(float(row["pcie_GBps_per_dir"]) * GB)
        for precision, column in (
            (Precision.FP32, "fp32_TFLOPs"),
            (Precision.TF32, "tf32_dense_TFLOPs"),
            (Precision.FP16, "fp16_dense_TFLOPs"),
            (Precision.BF16, "bf16_dense_TFLOPs"),
            (Precision.FP8, "fp8_dense_TFLOPs"),
        ):
            stated = float(row[column]) / devices * 1e12 if row[column] else None
            assert part.peak_flop_per_s.get(precision) == (None if stated is None else pytest.approx(stated))
        if row["measured_max_matmul_bf16_TFLOPs"]:
            assert part.achieved_basis == "measured"
            measured = float(row["measured_max_matmul_bf16_TFLOPs"]) * 1e12
            assert part.achieved_flop_per_s[Precision.BF16] == pytest.approx(measured, rel=1e-5)
        assert row["source"] in part.source
        assert entry["cross_checked"] is not row["cross_check"].startswith("NOT")


@pytest.mark.parametrize("name", list(load_catalog()))
def test_parts_are_consistent(name: str) -> None:
    part = gpu(name)
    assert part.name == name
    assert 0.9 * part.memory_bytes < part.usable_memory_bytes < part.memory_bytes
    assert part.peak_flop_per_s.keys() == part.achieved_flop_per_s.keys()
    assert {Precision.FP32, Precision.FP16} <= part.peak_flop_per_s.keys()
    for precision, peak in part.peak_flop_per_s.items():
        assert 0.3 * peak < part.achieved_flop_per_s[precision] <= peak
    assert part.achieved_basis in ("measured", "estimated")
    assert part.source
    assert "2026" in part.source
    assert part.memory_bandwidth_bytes_per_s > part.link_bytes_per_s
    link = gpu_link(part)
    assert (link is None) == (part.link_bytes_per_s == 0)
    assert pickle.loads(pickle.dumps(part)) == part


def test_precisions_and_kernels_follow_the_architecture() -> None:
    for part in load_catalog().values():
        old = part.family in ("turing", "volta")
        assert part.supports(Precision.BF16) is not old
        assert part.attention_kernel == ("unfused" if old else "flash")
        if part.vendor == "NVIDIA":
            assert part.supports(Precision.TF32) is not old
            assert part.family in NVIDIA_FAMILIES
        else:
            assert part.family in ("cdna2", "cdna3", "cdna4")


def test_selected_figures() -> None:
    assert gpu("T4").usable_memory_bytes == 15 * GIB
    assert gpu("A100-80GB-SXM").achieved_flop_per_s[Precision.BF16] == 271.2e12
    assert gpu("A100-80GB-SXM").achieved_flop_per_s[Precision.FP16] == 271.2e12
    assert gpu("A800-80GB-SXM").achieved_basis == "estimated"
    assert "estimated" in gpu("A800-80GB-SXM").source
    # Measured above its rated peak, by boost clock: the peak is all a plan may count on.
    rtx = gpu("RTX-4090")
    assert rtx.achieved_flop_per_s[Precision.BF16] == rtx.peak_flop_per_s[Precision.BF16]


def test_rules_of_the_file_are_used_and_have_a_basis() -> None:
    data = _data()
    used = {entry["family"] for entry in data["gpus"]}
    assert used == set(data["families"])
    assert {entry["memory_rule"] for entry in data["gpus"]} == set(data["memory_rules"])
    assert {e["measured_by"] for e in data["gpus"] if "measured_by" in e} == set(data["measurements"])
    assert all(rule["basis"] for rule in (*data["families"].values(), *data["memory_rules"].values()))


def test_only_bridges_join_pairs() -> None:
    pairs = {p.name for p in load_catalog().values() if (link := gpu_link(p)) and not link.joins_all}
    boards = {"A100-40GB-PCIe", "A100-80GB-PCIe", "H100-80GB-PCIe", "H100-NVL"}
    assert pairs == {"A40", "RTX-A6000", "RTX-3090", *boards}


def test_geforce_cards_have_no_peer_access() -> None:
    without = {part.name for part in load_catalog().values() if not has_peer_access(part)}
    assert without == {"RTX-3090", "RTX-4090", "RTX-5090"}
    assert 0 < host_path_frac() < 1


def test_racks_are_domains() -> None:
    assert {p.name: d for p in load_catalog().values() if (d := domain_gpus(p))} == {"GB200": 72, "GB300": 72}


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("a100-80gb-sxm", "A100-80GB-SXM"),
        ("NVIDIA A100-SXM4-80GB", "A100-80GB-SXM"),
        ("Tesla V100-SXM2-16GB", "V100-16GB-SXM2"),
        ("NVIDIA GeForce RTX 3090", "RTX-3090"),
        ("RTX 3090", "RTX-3090"),
        ("NVIDIA H100 80GB HBM3", "H100-80GB-SXM"),
        ("AMD Instinct MI300X", "MI300X"),
        (" T4 ", "T4"),
    ],
)
def test_spellings_of_vendors_tools(spelling: str, name: str) -> None:
    assert gpu(spelling).name == name


def test_spellings_name_one_part_each() -> None:
    spellings = [s for entry in _data()["gpus"] for s in (entry["name"], *entry.get("aliases", ()))]
    plain = [catalog._plain(spelling) for spelling in spellings]
    assert len(plain) == len(set(plain))


@pytest.mark.parametrize(
    ("name", "variants"),
    [
        ("A100", {"A100-40GB-SXM", "A100-80GB-SXM", "A100-40GB-PCIe", "A100-80GB-PCIe"}),
        ("A100-80GB", {"A100-80GB-SXM", "A100-80GB-PCIe"}),
        ("V100-32GB", {"V100-32GB-SXM2", "V100-32GB-PCIe"}),
        ("H200", {"H200-141GB-SXM"}),
    ],
)
def test_a_name_that_leaves_the_variant_open_is_refused(name: str, variants: set[str]) -> None:
    with pytest.raises(InputError, match="does not say which variant") as caught:
        gpu(name, where="here")
    assert caught.value.where == "here"
    assert set((caught.value.hint or "").removeprefix("write ").split(" or ")) == variants


def test_a_module_of_two_devices_is_refused() -> None:
    with pytest.raises(InputError, match="MI250X-GCD"):
        gpu("MI250X")


def test_unknown_parts_come_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError) as caught:
        gpu("H100-80GB-SMX", where="c.yaml:3: nodes[0].gpu")
    assert "H100-80GB-SXM" in caught.value.nearest
    with pytest.raises(UnknownNameError, match="are known"):
        gpu("abacus")
    with pytest.raises(UnknownNameError):
        gpu("")


def test_the_catalogue_cannot_be_changed_through_a_copy() -> None:
    parts = load_catalog()
    parts.clear()
    assert load_catalog()
    with pytest.raises(TypeError):
        gpu("T4").peak_flop_per_s[Precision.BF16] = 1.0  # type: ignore[index]
