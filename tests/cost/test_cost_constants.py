from __future__ import annotations

import json
from dataclasses import replace
from importlib import resources

import pytest
from cost_cases import A100, V100

from tangram.cluster.catalog import load_catalog
from tangram.cost.constants import (
    DEFAULT_CLUSTER,
    DEFAULT_STACK,
    Shelf,
    basis_note,
    cluster_constants,
    constants_fingerprint,
    definition,
    family_shelf,
    gpu_constants,
    matmul_flop_per_s,
    shelf_of,
    stack_constants,
)
from tangram.errors import InputError
from tangram.job import Precision

DEFAULTS = (DEFAULT_STACK, DEFAULT_CLUSTER)
DOCUMENT = json.loads(resources.files("tangram.cost").joinpath("constants.json").read_text(encoding="utf-8"))


def test_every_constant_has_a_unit_a_meaning_and_a_source() -> None:
    by_shelf = {shelf: {n for n in DOCUMENT["definitions"] if shelf_of(n) is shelf} for shelf in Shelf}
    assert all(d["unit"] and d["meaning"] for d in DOCUMENT["definitions"].values())
    for shelf in Shelf:
        for owner, entries in DOCUMENT[shelf.value].items():
            assert all(entry["source"] for entry in entries.values())
            if owner in DEFAULTS or shelf is Shelf.GPU:
                assert entries.keys() == by_shelf[shelf], owner
            else:
                assert entries.keys() <= by_shelf[shelf], owner


def test_values_lie_within_their_physical_bounds() -> None:
    for shelf in Shelf:
        for entries in DOCUMENT[shelf.value].values():
            for name, entry in entries.items():
                known = definition(name)
                assert known.low <= entry["value"] <= known.high or entry["value"] == 0, name
                assert known.spread > 0


def test_efficiencies_are_physical_and_on_no_bound() -> None:
    for entries in DOCUMENT["gpu_family"].values():
        assert all(0.1 < v["value"] < 1 for name, v in entries.items() if name.endswith("efficiency"))
        assert 32 <= entries["gemm_overhead_rows"]["value"] <= 512
    for name, entry in DOCUMENT["cluster"]["default"].items():
        assert 0.1 < entry["value"] < 1, name
    stack = stack_constants()
    # Above 1, compute would hide more than itself, and a faster GPU could make a step longer.
    assert 0 < stack.compute_hides_frac < 1
    assert 0 < stack.exposed_floor_frac < 1
    assert stack.expert_imbalance >= 1


def test_every_part_of_the_catalogue_has_a_shelf_of_its_own_kind() -> None:
    shelves = {part.family: family_shelf(part) for part in load_catalog().values()}
    assert "generic" not in shelves.values()
    assert shelves["volta"] == "volta"
    assert {shelves[f] for f in shelves if f.startswith("cdna")} == {"cdna"}


def test_an_unknown_family_reads_the_generic_shelf_and_says_so() -> None:
    part = replace(A100, name="X1", family="xpu")
    assert family_shelf(part) == "generic"
    assert gpu_constants(part) == gpu_constants(replace(part, family="generic"))
    assert "'xpu' is unknown" in basis_note(part)


def test_the_basis_names_the_constants_and_whether_they_were_fitted() -> None:
    assert constants_fingerprint() in basis_note(A100)
    assert "not fitted to measurements" not in basis_note(A100)
    t4 = load_catalog()["T4"]
    assert "estimates for this family, not fitted to measurements" in basis_note(t4)
    assert len(constants_fingerprint()) == 16


def test_a_precision_that_the_part_lacks_is_refused() -> None:
    assert matmul_flop_per_s(A100, Precision.BF16) == A100.achieved_flop_per_s[Precision.BF16]
    with pytest.raises(InputError, match=r"V100-16GB-SXM2 has no bf16 arithmetic \(supported: fp32, fp16\)"):
        matmul_flop_per_s(V100, Precision.BF16)


@pytest.mark.parametrize(
    ("kind", "name"),
    [("nvlink", "nvlink"), ("NVSwitch", "nvlink"), ("xgmi", "xgmi"), ("pcie", "pcie"), ("cable", "other")],
)
def test_links_inside_a_node_by_kind(kind: str, name: str) -> None:
    constants = cluster_constants()
    assert constants.intra_efficiency(kind) == getattr(constants, f"{name}_efficiency")
