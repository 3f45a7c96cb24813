"""Each broken rule is found, and no other; nothing makes the check raise."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from broken_plans import CASES, S0, Case, P
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from samples import dense_plan, edited, mixed_plan, moe_plan, operator_plan

from tangram import plan as plan_room
from tangram.plan.check import check_plan
from tangram.plan.schema import PlanDocument

BASES: dict[str, Callable[[], PlanDocument]] = {
    "dense": dense_plan,
    "moe": moe_plan,
    "operator": operator_plan,
    "mixed": mixed_plan,
}


@pytest.mark.parametrize("base", list(BASES))
def test_the_samples_are_valid(base: str) -> None:
    assert [str(v) for v in check_plan(BASES[base]())] == []


@pytest.mark.parametrize("case", CASES, ids=[f"{i}-{c[0].split()[0]}" for i, c in enumerate(CASES)])
def test_a_broken_rule_is_found_and_no_other(case: Case) -> None:
    expected, base, changes = case[0].split(), case[1], case[2]
    where = case[3] if len(case) == 4 else next(iter(changes))
    violations = check_plan(edited(BASES[base](), changes))
    assert {v.code for v in violations} == set(expected), [str(v) for v in violations]
    first = next(v for v in violations if v.code == expected[0])
    assert first.where == where
    assert first.message.strip() == first.message
    assert str(first) == f"{where}: {first.message} [{expected[0]}]"


def codes_in_source() -> set[str]:
    """Codes that the checks can give: literals in calls of Violation, meshes, and divisibility."""
    text = "".join(path.read_text() for path in sorted(Path(plan_room.__file__).parent.glob("*.py")))
    meshes = {f"{mesh}-{what}" for mesh in ("mesh", "expert-mesh") for what in ("axes", "sizes")}
    divisible = set(re.findall(r'"([a-z-]+-not-divisible)"', text))
    return set(re.findall(r'Violation\(\s*"([a-z-]+)"', text)) | meshes | divisible


def test_every_code_has_a_case_and_a_line_in_the_docs() -> None:
    codes = codes_in_source()
    assert len(codes) > 60
    assert codes - {c[0].split()[0] for c in CASES} == set()
    docs = Path(__file__).parents[2] / "docs" / "plan-format.md"
    rules = docs.read_text(encoding="utf-8").partition("\n## Rules\n")[2]
    assert sorted(re.findall(r"^\| `([a-z-]+)` \|", rules, flags=re.MULTILINE)) == sorted(codes)


def test_messages_give_numbers_and_legal_values() -> None:
    doc = edited(dense_plan(), {"model.layer_kinds[0].attention.num_kv_heads": 1})
    assert [str(v) for v in check_plan(doc)] == [
        f"{S0}.tp: tp 2 does not divide 1 key/value heads; legal: 1 [kv-heads-not-divisible]"
    ]


def test_cross_node_tp_is_legal_when_the_job_allows_it() -> None:
    case = next(c for c in CASES if c[0] == "tp-crosses-nodes")
    doc = edited(dense_plan(), case[2] | {"job.pins.allow_cross_node_tp": True})
    assert check_plan(doc) == []


def test_fewer_micro_batches_than_stages_are_all_that_is_held() -> None:
    changes: dict[str, Any] = {
        "job.global_batch": 4,
        f"{P}.global_batch": 4,
        f"{P}.num_micro_batches": 1,
        f"{S0}.predicted.in_flight": 1,
        f"{S0}.predicted.activation_bytes": lambda old: 2 * old,
        "prediction.tokens_per_s": lambda old: old / 6,
        "prediction.samples_per_s": lambda old: old / 6,
    }
    assert check_plan(edited(moe_plan(), changes)) == []


def test_an_island_may_be_uneven_within_its_tolerances() -> None:
    doc = dense_plan()
    other = doc.cluster.gpus[0].model_dump(mode="json") | {"name": "FAST-44GB"}
    other["usable_memory_bytes"] = round(other["usable_memory_bytes"] * 1.1)
    changes = {
        "cluster.gpus": lambda old: [old[0], other, old[1]],
        "cluster.nodes": lambda old: [*old, old[0] | {"name": "fast-1", "gpu": "FAST-44GB"}],
        "islands[0].nodes": ["fast-0", "fast-1"],
        "idle": lambda old: [
            *old,
            {
                "island": "FAST-40GB",
                "count": 4,
                "gpus": [{"node": "fast-1", "gpu_idx": i} for i in range(4)],
                "reason": "",
            },
        ],
    }
    assert [v.code for v in check_plan(edited(doc, changes))] == ["island-uneven"]
    assert check_plan(edited(doc, changes | {"tolerances.memory": 0.1})) == []
    assert check_plan(edited(doc, changes | {"tolerances.memory": None})) == []


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(value, dict):
        return [found for key, item in value.items() for found in leaves(item, (*path, key))] + [path]
    if isinstance(value, list):
        return [found for idx, item in enumerate(value) for found in leaves(item, (*path, idx))] + [path]
    return [path]


DATA = {name: base().model_dump(mode="json") for name, base in BASES.items()}
LEAVES = {name: [path for path in leaves(data) if path] for name, data in DATA.items()}
NASTY = [
    0,
    1,
    -1,
    2,
    7,
    2**63 - 1,
    0.0,
    1e308,
    5e-324,
    -1.0,
    "",
    "fast-0",
    "dp",
    None,
    True,
    [],
    {},
    [0, 2**62],
    [2],
]


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_the_check_never_raises_on_what_fits_the_schema(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(BASES)))
    changed = copy.deepcopy(DATA[name])
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(LEAVES[name]))
        value = data.draw(st.sampled_from(NASTY))
        target: Any = changed
        try:
            for step in path[:-1]:
                target = target[step]
            target[path[-1]] = copy.deepcopy(value)
        except (KeyError, IndexError, TypeError, AttributeError):
            continue  # an earlier change took the place away
    try:
        doc = PlanDocument.model_validate(changed)
    except ValidationError:
        return
    for violation in check_plan(doc):
        assert violation.code
        assert violation.where
        assert violation.message


@pytest.mark.parametrize("name", list(BASES))
def test_the_check_never_raises_on_any_single_nasty_value(name: str) -> None:
    """All leaves x a few values that fit many types."""
    for path in LEAVES[name]:
        for value in (0, 2**63 - 1, 1e308, []):
            changed = copy.deepcopy(DATA[name])
            target: Any = changed
            for step in path[:-1]:
                target = target[step]
            target[path[-1]] = value
            try:
                doc = PlanDocument.model_validate(changed)
            except ValidationError:
                continue
            assert isinstance(check_plan(doc), list)
