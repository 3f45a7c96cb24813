"""Calibration files: what is read, chosen and refused, with the place and the legal values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangram.basis import SHIPPED_BASIS, Override
from tangram.cost.calibration import Calibration, calibration_of, choose_basis, read_calibration
from tangram.cost.constants import Shelf, constant_names, definition
from tangram.errors import InputError, UnknownNameError


def content(**shelves: Any) -> dict[str, Any]:
    return {"format": "tangram-calibration", "version": 1, **shelves}


def of(**owners: float) -> dict[str, Any]:
    """One constant of each owner of a stack or cluster."""
    return {owner: {"launch_s": {"value": value}} for owner, value in owners.items()}


FULL = content(
    gpu_family={"ampere": {"gemm_efficiency": {"value": 0.9, "low": 0.8, "note": "x"}}},
    stack={"mine": {"launch_s": {"value": 5e-05}}},
    cluster={"rack": {"nic_efficiency": {"value": 1}}},
    rows=[1, 2],
    error={"median": 0.1},
)


def test_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "cal.json"
    path.write_text(json.dumps(FULL), encoding="utf-8")
    found = read_calibration(path)
    assert found.overrides == (
        Override("cluster", "rack", "nic_efficiency", 1.0),
        Override("gpu_family", "ampere", "gemm_efficiency", 0.9),
        Override("stack", "mine", "launch_s", 5e-05),
    )
    basis, notes = choose_basis(found)
    assert (basis.stack, basis.cluster, basis.overrides) == ("mine", "rack", found.overrides)
    assert [note.what for note in notes] == ["software stack mine", "constants of cluster rack"]
    assert all("cal.json" in note.why for note in notes)


@pytest.mark.parametrize(
    ("data", "where", "message"),
    [
        ({}, "f", "has no 'format'"),
        ({"format": "tangram-plan", "version": 1}, "f", "has format the text 'tangram-plan'"),
        ({"format": "tangram-calibration"}, "f: version", "the version is missing"),
        (content() | {"version": 2}, "f: version", "the version is 2"),
        (content() | {"version": 1.0}, "f: version", "the version is 1.0"),
        (content() | {"version": True}, "f: version", "the version is true"),
        (content(), "f", "holds no constants"),
        (content(stack={"mine": {}}), "f", "holds no constants"),
        (content(stack=[]), "f: stack", "is a list, but must be an object"),
        (content(stack={"mine": 3}), "f: stack.mine", "is 3, but must be an object"),
        (content(stack={" ": {}}), "f: stack", "a name is empty"),
        (content(stack={"mine": {"launch_s": 1}}), "f: stack.mine.launch_s", "is 1, but must be an object"),
        (content(stack={"mine": {"launch_s": {}}}), "f: stack.mine.launch_s", "the key 'value' is missing"),
        (
            content(stack={"mine": {"launch_s": {"value": "5us"}}}),
            "f: stack.mine.launch_s",
            "value is the text '5us'",
        ),
        (content(stack={"mine": {"launch_s": {"value": True}}}), "f: stack.mine.launch_s", "value is true"),
        (content(stack={"mine": {"launch_s": {"value": 2}}}), "f: stack.mine.launch_s", "out of range"),
        (
            content(cluster={"rack": {"nic_efficiency": {"value": 0}}}),
            "f: cluster.rack.nic_efficiency",
            "out of range",
        ),
        (
            content(stack={"mine": {"nic_efficiency": {"value": 0.5}}}),
            "f: stack.mine.nic_efficiency",
            "no constant of the shelf stack",
        ),
    ],
)
def test_what_is_refused(data: dict[str, Any], where: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        calibration_of(data, "f")
    assert caught.value.where == where
    assert message in caught.value.message
    assert caught.value.hint or "but must be" in message
    assert caught.value.exit_code == 2


def test_names_are_corrected() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'nic_efficiency'") as caught:
        calibration_of(content(cluster={"rack": {"nic_eficiency": {"value": 0.5}}}), "f")
    assert caught.value.where == "f: cluster.rack.nic_eficiency"
    with pytest.raises(UnknownNameError, match="did you mean 'ampere'"):
        calibration_of(content(gpu_family={"amper": {"gemm_efficiency": {"value": 0.5}}}), "f")


def test_the_legal_range_is_told() -> None:
    with pytest.raises(InputError, match=r"legal: 0.1 to 1 \(fraction of the stated bandwidth\)"):
        calibration_of(content(cluster={"rack": {"nic_efficiency": {"value": 1.5}}}), "f")


@given(st.data())
def test_every_constant_is_read_within_its_bounds(data: st.DataObject) -> None:
    shelf = data.draw(st.sampled_from(Shelf))
    name = data.draw(st.sampled_from(constant_names(shelf)))
    known = definition(name)
    value = data.draw(st.floats(known.low, known.high))
    owner = "ampere" if shelf is Shelf.GPU else "x"
    found = calibration_of(content(**{shelf.value: {owner: {name: {"value": value}}}}), "f")
    assert found.overrides == (Override(shelf.value, owner, name, value),)
    beyond = data.draw(st.sampled_from([known.low * 0.99 - 1e-6, known.high * 1.01]))
    if beyond != 0:
        with pytest.raises(InputError, match="legal: "):
            calibration_of(content(**{shelf.value: {owner: {name: {"value": beyond}}}}), "f")


def test_a_shipped_value_is_legal_even_outside_of_the_bounds() -> None:
    """Tangram's own runtime waits for no transfer: a share of exactly 0, which no fit can find."""
    assert definition("p2p_exposed_frac").low > 0
    found = calibration_of(content(stack={"mine": {"p2p_exposed_frac": {"value": 0}}}), "f")
    assert found.overrides[0].value == 0


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 1, "format": 2}', '{"version": NaN}'])
def test_broken_json_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "cal.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        read_calibration(path)
    assert str(path) in (caught.value.where or "")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_calibration(tmp_path / "none.json")
    with pytest.raises(InputError, match="is a folder"):
        read_calibration(tmp_path)


def fitted(**shelves: Any) -> Calibration:
    return calibration_of(content(**shelves), "cal.json")


def test_without_a_file_the_shipped_constants_count() -> None:
    assert choose_basis() == (SHIPPED_BASIS, ())
    with pytest.raises(UnknownNameError, match="tangram-runtime") as caught:
        choose_basis(stack="tangram-runtim")
    assert caught.value.where == "--stack"
    with pytest.raises(UnknownNameError, match="unknown cluster 'rack'"):
        choose_basis(cluster="rack")


def test_of_several_stacks_the_user_chooses() -> None:
    file = fitted(stack=of(a=1e-5, b=2e-5))
    with pytest.raises(InputError, match="holds constants of 2 stacks, and none is chosen") as caught:
        choose_basis(file)
    assert caught.value.hint == "choose with --stack: a, b, tangram-runtime"
    basis, notes = choose_basis(file, stack="b")
    assert (basis.stack, [o.owner for o in basis.overrides], notes) == ("b", ["b"], ())
    basis, _ = choose_basis(file, stack="tangram-runtime")
    assert basis == SHIPPED_BASIS


def test_of_several_clusters_the_user_chooses() -> None:
    racks = {name: {"nic_efficiency": {"value": 0.5}} for name in ("r1", "r2")}
    with pytest.raises(InputError, match="2 clusters") as caught:
        choose_basis(fitted(cluster=racks))
    assert caught.value.hint == "choose with --cluster-constants: r1, r2, default"
    basis, _ = choose_basis(fitted(cluster=racks), cluster="r2")
    assert [(o.owner, o.value) for o in basis.overrides] == [("r2", 0.5)]
    assert choose_basis(fitted(cluster=racks), cluster="default").basis == SHIPPED_BASIS


def test_tangrams_own_runtime_beside_one_other() -> None:
    """What the other does not say of itself is as in Tangram's runtime, as the user fitted that."""
    file = fitted(stack=of(**{"tangram-runtime": 1e-5, "a": 2e-5}))
    basis, _ = choose_basis(file)
    assert basis.stack == "a"
    assert [o.owner for o in basis.overrides] == ["a", "tangram-runtime"]
    basis, notes = choose_basis(fitted(stack=of(**{"tangram-runtime": 1e-5})))
    assert (basis.stack, len(basis.overrides), notes) == ("tangram-runtime", 1, ())


def test_a_stack_that_was_only_profiled_may_be_chosen() -> None:
    assert choose_basis(stack="sailor", other_stacks={"sailor"}).basis.stack == "sailor"
