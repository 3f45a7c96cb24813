"""The basis in a plan document: absent where nothing is in it, and complete where there is."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from samples import dense_plan

from tangram.basis import CostBasis, FactorKey, MeasuredFactor, MeasuredTable, Override
from tangram.errors import InputError
from tangram.job import Job, Precision
from tangram.plan.json_io import json_schema, parse_plan, to_json
from tangram.plan.schema import JobSection

JOB = Job(8, 512, Precision.FP16)
BASIS = CostBasis(
    stack="mine",
    cluster="rack",
    overrides=(
        Override("cluster", "rack", "nic_efficiency", 0.1 + 0.2),
        Override("stack", "mine", "launch_s", 1e-5),
    ),
    measured=MeasuredTable(
        "fp16",
        512,
        (
            MeasuredFactor(FactorKey("0a", "T4", 1, 2), 1 / 3, 2 / 3, False, "measured"),
            MeasuredFactor(FactorKey("0a", "T4", 2, 2), 1.25, 1.5, True, "scaled formula"),
        ),
    ),
)


def test_a_shipped_basis_is_not_written() -> None:
    section = JobSection.of(JOB)
    assert "basis" not in section.model_dump(mode="json")
    assert section.to_job() == JOB
    assert '"basis"' not in to_json(dense_plan())[: to_json(dense_plan()).index('"pipelines"')]


def test_a_basis_of_ones_own_is_written_exactly() -> None:
    job = replace(JOB, basis=BASIS)
    text = json.dumps(JobSection.of(job).model_dump(mode="json"))
    again = JobSection.model_validate_json(text, strict=True).to_job()
    assert again == job
    for factor in BASIS.measured.factors:
        assert again.basis.measured.find(factor.key) == factor


def with_basis(basis: Any) -> str:
    data = dense_plan().model_dump(mode="json")
    data["job"]["basis"] = basis
    return json.dumps(data)


def test_a_plan_with_a_basis_is_read_and_written_again() -> None:
    section = JobSection.of(replace(JOB, basis=BASIS)).model_dump(mode="json")["basis"]
    doc = parse_plan(with_basis(section), where="plan.json")
    assert doc.job.to_job().basis.overrides == BASIS.overrides
    text = to_json(doc)
    assert '"value": 0.30000000000000004' in text  # given, not computed: all its digits
    assert parse_plan(text, where="plan.json").job == doc.job
    assert parse_plan(with_basis(None), where="plan.json") == dense_plan()


@pytest.mark.parametrize(
    ("basis", "where"),
    [
        ({"cluster": "rack"}, "plan.json: job.basis"),
        ({"stack": "a", "cluster": "b", "more": 1}, "plan.json: job.basis"),
        ({"stack": "", "cluster": "b"}, "plan.json: job.basis.stack"),
        (
            {
                "stack": "a",
                "cluster": "b",
                "overrides": [{"shelf": "gpu", "owner": "x", "constant": "y", "value": 1.0}],
            },
            "plan.json: job.basis.overrides[0].shelf",
        ),
    ],
)
def test_a_broken_basis_is_refused(basis: Any, where: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_plan(with_basis(basis), where="plan.json")
    assert re.sub(r"json:\d+:", "json:", caught.value.where or "") == where


def test_the_schema_describes_it() -> None:
    schema = json_schema()
    assert "basis" in schema["$defs"]["JobSection"]["properties"]
    assert "basis" not in schema["$defs"]["JobSection"]["required"]
    for name in ("BasisSection", "OverrideSection", "FactorSection"):
        fields = schema["$defs"][name]["properties"]
        assert all(field.get("description") for field in fields.values()), name
