"""Plans survive the way through JSON, and files that are no plans are refused with one clear message."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import dense_plan, edited, moe_plan, operator_plan

from tangram.errors import InputError, UnknownNameError
from tangram.plan.check import check_plan
from tangram.plan.json_io import json_schema, parse_plan, read_plan, to_json
from tangram.plan.json_layout import WIDTH, layout
from tangram.plan.schema import PlanDocument

SAMPLES = [dense_plan, moe_plan, operator_plan]


@pytest.fixture(params=SAMPLES, ids=lambda build: build.__name__)
def doc(request: pytest.FixtureRequest) -> PlanDocument:
    build: Callable[[], PlanDocument] = request.param
    return build()


def test_a_plan_survives_writing_and_reading(doc: PlanDocument, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(to_json(doc), encoding="utf-8")
    again = read_plan(path)
    assert to_json(again) == to_json(doc)
    assert check_plan(again) == []


def test_what_was_given_survives_exactly(doc: PlanDocument) -> None:
    """A link of 1e9/3 bytes per second keeps all of its digits, and fingerprints their value."""
    again = parse_plan(to_json(doc), where="x")
    assert again.model == doc.model
    assert again.cluster == doc.cluster
    assert again.job == doc.job
    assert again.pipelines[0].stages[0].ranks == doc.pipelines[0].stages[0].ranks
    assert again.cluster.links[0].bandwidth_bytes_per_s == 1e9 / 3


def test_computed_numbers_have_nine_digits() -> None:
    data = json.loads(to_json(dense_plan()))
    assert data["pipelines"][0]["stages"][0]["predicted"]["send_forward_s"] == 0.000333333333
    assert data["prediction"]["model_flop_per_step"] == 214285714000000.0


def test_the_text_is_laid_out_for_people() -> None:
    text = to_json(dense_plan())
    assert text.startswith('{\n  "format": "tangram-plan",\n  "version": 1,\n')
    assert text.endswith("}\n")
    assert (
        '          {"rank": 4, "node": "slow-0", "gpu_idx": 1, "gpu": "SLOW-16GB", "gpu_uuid": null}\n'
        in text
    )
    assert '"atoms": [0, 4],\n' in text
    assert '"mesh": {"axes": ["dp", "cp", "tp"], "sizes": [2, 1, 2]},\n' in text
    assert list(json.loads(text)) == list(PlanDocument.model_fields)


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=6), inner, max_size=6),
    max_leaves=40,
)


@given(PLAIN)
def test_layout_keeps_every_value_and_its_order(value: Any) -> None:
    text = layout(value)
    assert json.loads(text) == value
    assert json.dumps(json.loads(text)) == json.dumps(value)


@given(st.lists(st.integers(-(10**12), 10**12), max_size=200), st.integers(0, 8))
def test_long_lists_fill_lines_and_no_more(values: list[int], depth: int) -> None:
    text = layout(values, depth)
    assert json.loads(text) == values
    assert all(len(line) <= WIDTH + 2 * depth for line in text.splitlines())
    assert len(text.splitlines()) <= 3 + len(text) // 60


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(SAMPLES),
    st.floats(1e-300, 1e300),
    st.integers(-(2**63), 2**63 - 1),
    st.text(max_size=30).filter(lambda text: text.isprintable()),
    PLAIN,
)
def test_any_values_survive_the_way_through_json(
    build: Callable[[], PlanDocument], number: float, integer: int, text: str, plain: Any
) -> None:
    changes = {
        "prediction.iteration_time_s": number,
        "cluster.default_latency_s": number,
        "pipelines[0].stages[0].predicted.headroom_bytes": integer,
        "pipelines[0].stages[0].reason": text,
        "extensions.anything": plain,
    }
    doc = edited(build(), changes)
    again = parse_plan(to_json(doc), where="x")
    assert to_json(again) == to_json(doc)
    assert again.cluster == doc.cluster
    assert again.stages[0].reason == text
    assert again.stages[0].predicted.headroom_bytes == integer
    assert again.extensions == doc.extensions
    assert again.prediction.iteration_time_s == pytest.approx(number, rel=1e-8)


def test_equal_documents_give_equal_bytes_whatever_the_hash_seed() -> None:
    """Dictionaries keep the order in which they were filled; sections that were built alike print alike."""
    data = dense_plan().model_dump(mode="json")
    assert to_json(PlanDocument.model_validate(data)) == to_json(dense_plan())


def refused(text: str) -> InputError:
    with pytest.raises(InputError) as caught:
        parse_plan(text, where="plan.json")
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400
    # Which line it is, is the subject of tests/model/test_json_lines.py.
    caught.value.where = re.sub(r"^plan\.json:\d+(: |$)", r"plan.json\1", caught.value.where or "")
    return caught.value


def changed(path: str, value: Any) -> str:
    data = dense_plan().model_dump(mode="json")
    target: Any = data
    steps = [int(s) if s.isdigit() else s for s in path.replace("[", ".").replace("]", "").split(".")]
    for step in steps[:-1]:
        target = target[step]
    if value is KeyError:
        del target[steps[-1]]
    else:
        target[steps[-1]] = value
    return json.dumps(data)


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        (
            "pipelines[0].stages[1].dp",
            "2",
            "plan.json: pipelines[0].stages[1].dp: is the text '2', but must be a whole number",
        ),
        (
            "pipelines[0].stages[1].dp",
            2.0,
            "plan.json: pipelines[0].stages[1].dp: is 2.0, but must be a whole number",
        ),
        (
            "pipelines[0].stages[1].dp",
            True,
            "plan.json: pipelines[0].stages[1].dp: is true, but must be a whole number",
        ),
        (
            "pipelines[0].stages[1].dp",
            0,
            "plan.json: pipelines[0].stages[1].dp: is 0, but must be at least 1",
        ),
        ("pipelines[0].stages[1].atoms", [1], "plan.json: pipelines[0].stages[1].atoms[1]: is missing"),
        (
            "pipelines[0].stages[1].ranks",
            {},
            "plan.json: pipelines[0].stages[1].ranks: is an object, but must be a list",
        ),
        (
            "pipelines[0].stages[1].zero",
            4,
            "plan.json: pipelines[0].stages[1].zero: is 4; legal: 0, 1, 2 or 3",
        ),
        (
            "pipelines[0].stages[0].recompute[1].mode",
            "all",
            "plan.json: pipelines[0].stages[0].recompute[1].mode: is the text 'all'; legal: 'none', ",
        ),
        (
            "job.precision",
            "bf17",
            "plan.json: job.precision: is the text 'bf17'; legal: 'fp32', 'tf32', 'fp16', 'bf16' or 'fp8'",
        ),
        (
            "job.global_batch",
            10**30,
            "plan.json: job.global_batch: is 1000000000000000000000000000000, but must be a",
        ),
        ("bound", KeyError, "plan.json: the key 'bound' is missing"),
        (
            "pipelines[0].stages[1].mesh",
            KeyError,
            "plan.json: pipelines[0].stages[1]: the key 'mesh' is missing",
        ),
        (
            "cluster.nodes[0].num_gpu",
            4,
            "plan.json: cluster.nodes[0]: unknown key 'num_gpu' (did you mean 'num_gpus'",
        ),
        ("pipelines[0].stages[1].pp", 4, "plan.json: pipelines[0].stages[1]: unknown key 'pp' ("),
        (
            "model.layer_kinds[0].feed_forward.gate",
            4,
            "plan.json: model.layer_kinds[0].feed_forward: unknown key 'gate' (did you mean 'gated'?)",
        ),
        (
            "predictions",
            {},
            "plan.json: unknown key 'predictions' (did you mean 'prediction' or 'extensions'?)",
        ),
        (
            "format",
            "megatron",
            'plan.json: this is no Tangram plan: it has format "megatron" (a plan file says',
        ),
        ("format", KeyError, "plan.json: this is no Tangram plan: it has no 'format'"),
        ("version", 2, "plan.json: version: the version is 2 (this release reads version 1"),
        ("version", True, "plan.json: version: the version is true"),
        ("version", KeyError, "plan.json: version: the version is missing"),
    ],
)
def test_a_wrong_field_is_named(path: str, value: Any, expected: str) -> None:
    assert str(refused(changed(path, value))).startswith(expected)


def test_an_unknown_key_is_an_unknown_name() -> None:
    error = refused(changed("predictions", {}))
    assert isinstance(error, UnknownNameError)
    assert error.nearest[0] == "prediction"


def test_a_misspelled_key_is_told_rather_than_the_missing_one() -> None:
    text = changed("bound", KeyError).replace('"prediction":', '"prediktion":')
    assert str(refused(text)).startswith("plan.json: unknown key 'prediktion' (did you mean 'prediction'")


@given(st.text(max_size=60) | PLAIN.map(json.dumps))
def test_no_text_crashes_the_reader(text: str) -> None:
    for content in (text, '{"format": "tangram-plan", "version": 1, "model": ' + text + "}"):
        with pytest.raises(InputError):
            parse_plan(content, where="plan.json")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"format": "tangram-plan",\n  "version" 1}', "plan.json:2:13: broken JSON"),
        ("", "plan.json: is empty"),
        ("[]", "plan.json: is not a JSON object"),
        ('{"a": 1, "a": 2}', "plan.json: the key 'a' occurs twice"),
        ('{"a": NaN}', "plan.json: a: NaN is not a finite number"),
        ('{"a": 1e999}', "plan.json: a: 1e999 is not a finite number"),
        ("[" * 100_000, "plan.json: nests too deeply"),
        ('{"a": ' + "9" * 5000 + "}", "plan.json: a: " + "9" * 40 + " is the beginning of a number of"),
    ],
)
def test_broken_json_is_refused_with_its_place(text: str, expected: str) -> None:
    assert str(refused(text)).startswith(expected)


@pytest.mark.parametrize("depth", [10, 100])
def test_nested_extensions_are_kept(depth: int) -> None:
    doc = parse_plan(nested_extensions(depth), where="x")
    assert to_json(parse_plan(to_json(doc), where="x")) == to_json(doc)


@pytest.mark.parametrize("depth", [500, 5_000, 50_000])
def test_absurdly_nested_extensions_are_refused(depth: int) -> None:
    assert "plan.json" in str(refused(nested_extensions(depth)))


def nested_extensions(depth: int) -> str:
    return changed("extensions", {"deep": 0}).replace('"deep": 0', '"deep": ' + "[" * depth + "]" * depth)


def test_a_lone_surrogate_is_refused() -> None:
    assert "plan.json" in str(refused(changed("prediction.basis_note", "HERE").replace("HERE", "\\ud800")))


@pytest.mark.parametrize("kind", ["missing", "folder", "pipe", "device", "binary", "huge"])
def test_files_that_are_no_plans(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path = Path("/dev/zero")
    elif kind == "binary":
        path.write_bytes(b"\xff\xfe\x00\x01")
    elif kind == "huge":
        with path.open("wb") as file:
            file.truncate(64 * 1024**2 + 1)
    with pytest.raises(InputError) as caught:
        read_plan(path)
    assert str(path) in str(caught.value)


def test_the_json_schema_describes_every_field() -> None:
    schema = json_schema()
    assert schema["$schema"].endswith("2020-12/schema")
    assert schema["properties"]["version"]["const"] == 1
    stage = schema["$defs"]["StageSection"]["properties"]
    assert stage["micro_batch_per_dp_rank"]["description"].startswith("Samples of a micro-batch")
    assert stage["ep"]["description"] == stage["dp"]["description"]
    refers = {
        "AttentionSection",
        "GpuSection",
        "NodeSection",
        "LinkSection",
        "OptimizerSection",
        "PinsSection",
    }
    for name, definition in schema["$defs"].items():
        if "properties" in definition and name not in refers:
            assert all("description" in field for field in definition["properties"].values()), name
    assert json.loads(json.dumps(schema)) == schema
