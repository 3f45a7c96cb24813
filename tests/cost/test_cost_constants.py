from __future__ import annotations

import json
from dataclasses import replace
from importlib import resources

import pytest
from cost_cases import A100, V100

from tangram.basis import SHIPPED_BASIS, CostBasis, Override
from tangram.cluster.catalog import load_catalog
from tangram.cost.constants import (
    DEFAULT_CLUSTER,
    DEFAULT_STACK,
    Shelf,
    basis_note,
    cluster_constants,
    constants_fingerprint,
    constants_of,
    definition,
    family_shelf,
    gpu_constants,
    matmul_flop_per_s,
    own_basis_note,
    shelf_of,
    stack_constants,
)
from tangram.errors import InputError, UnknownNameError
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


def override(shelf: str, owner: str, constant: str, value: float) -> Override:
    return Override(shelf, owner, constant, value)


def test_overrides_take_the_place_of_one_owner_only() -> None:
    faster = (override("gpu_family", "ampere", "gemm_efficiency", 0.5),)
    assert gpu_constants(A100, faster) == replace(gpu_constants(A100), gemm_efficiency=0.5)
    assert gpu_constants(V100, faster) == gpu_constants(V100)
    assert stack_constants("tangram-runtime", faster) == stack_constants()


def test_a_stack_has_what_it_does_not_say_from_the_users_default() -> None:
    own = override("stack", "tangram-runtime", "launch_s", 2e-4)
    other = override("stack", "mine", "kernel_ratio", 0.9)
    both = (own, other)
    assert stack_constants("tangram-runtime", both) == replace(stack_constants(), launch_s=2e-4)
    assert stack_constants("mine", both) == replace(stack_constants(), launch_s=2e-4, kernel_ratio=0.9)
    assert stack_constants("mine") == stack_constants()


def test_constants_of_a_basis() -> None:
    basis = CostBasis("mine", "rack", (override("cluster", "rack", "nic_efficiency", 0.4),))
    found = constants_of(A100, basis)
    assert found.gpu == gpu_constants(A100)
    assert found.stack == stack_constants()
    assert found.cluster == replace(cluster_constants(), nic_efficiency=0.4)


def test_overrides_are_checked_wherever_they_come_from() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'launch_s'"):
        stack_constants("mine", (override("stack", "mine", "lunch_s", 1e-4),))
    with pytest.raises(InputError, match=r"legal: 0\.1 to 1"):
        cluster_constants("rack", (override("cluster", "rack", "nic_efficiency", 0.0),))
    with pytest.raises(UnknownNameError, match="unknown shelf"):
        cluster_constants("rack", (override("clusters", "rack", "nic_efficiency", 0.5),))


def test_a_basis_of_ones_own_has_a_fingerprint_and_a_note_of_its_own() -> None:
    basis = CostBasis("mine", "rack", (override("cluster", "rack", "nic_efficiency", 0.4),))
    prints = {constants_fingerprint(b) for b in (SHIPPED_BASIS, basis, replace(basis, cluster="default"))}
    assert len(prints) == 3
    note = own_basis_note([V100, A100, A100], basis)
    assert "ampere and volta GPUs, stack mine, cluster rack, recalibrated: 1 of cluster rack (" in note
