"""Malformed plan files: what cannot be read, and what can be read and breaks a rule."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from malformed import Malformed, nested, to_text
from samples import dense_plan

from tangram.plan.json_io import to_json

STAGE = "pipelines[0].stages[1]"


@cache
def text() -> str:
    return to_json(dense_plan())


@cache
def data() -> dict[str, Any]:
    return dense_plan().model_dump(mode="json")


def edited(changes: Mapping[str, Any]) -> str:
    """The sample with some fields changed, each named by its path; a change to ... takes it away."""
    changed = copy.deepcopy(data())
    for path, value in changes.items():
        target: Any = changed
        *steps, last = [int(part) if part.isdigit() else part for part in re.findall(r"[^.\[\]]+", path)]
        for step in steps:
            target = target[step]
        if value is ...:
            del target[last]
        else:
            target[last] = value
    return to_text(changed)


def file(name: str, content: str | bytes, *says: str, command: str = "check") -> Malformed:
    return Malformed(f"plan: {name}", (command, "plan.json"), says, {"plan.json": content})


def field(name: str, changes: Mapping[str, Any], *says: str, command: str = "check") -> Malformed:
    return file(name, edited(changes), *says, command=command)


FILES = (
    file("empty", "", "plan.json: is empty", "a JSON object starts with '{'"),
    file(
        "a text",
        "plan",
        "plan.json:1:",
        "is not JSON: it begins with 'plan'",
        "a JSON object starts with '{'",
    ),
    file("a cluster", "nodes:\n- gpu: T4\n", "plan.json:1: is not JSON: it begins with 'nodes:'"),
    file("a list", "[]", "plan.json: is not a JSON object", "it must start with '{'"),
    file(
        "of another kind",
        '{"format": "tangram-profiles", "version": 1}',
        'plan.json: this is no Tangram plan: it has format "tangram-profiles"',
        'a plan file says "format": "tangram-plan"',
    ),
    file(
        "a model's configuration",
        '{"model_type": "llama"}',
        "plan.json: this is no Tangram plan: it has no 'format'",
        'a plan file says "format": "tangram-plan"',
    ),
    file(
        "cut off",
        text()[: len(text()) // 2],
        "plan.json:183:",
        "broken JSON",
        "keys stand in double quotes; no comment, and no comma before a bracket",
    ),
    file(
        "a version of the future",
        edited({"version": 2}),
        "plan.json: version: the version is 2",
        "this release reads version 1; for a newer one, use a newer Tangram",
    ),
    file(
        "a version in quotes",
        edited({"version": "1"}),
        'plan.json: version: the version is "1"',
        "this release reads version 1; for a newer one, use a newer Tangram",
    ),
    file(
        "nothing but its name",
        '{"format": "tangram-plan", "version": 1}',
        "plan.json: the key 'tangram_version' is missing, and 11 more problems",
    ),
    file(
        "a key twice",
        text().replace('"version"', '"format": "tangram-plan", "version"', 1),
        "plan.json: the key 'format' occurs twice",
        "remove one of them",
    ),
    file(
        "NaN",
        text().replace('"version"', '"num_atoms": NaN, "version"', 1),
        "plan.json: num_atoms: NaN is not a finite number",
    ),
    file("UTF-16", text().encode("utf-16"), "plan.json:1: is not UTF-8", "save it as UTF-8"),
    file(
        "NUL",
        b"\0" * 10,
        "plan.json:1:",
        "broken JSON",
        "texts stand in double quotes; no comment, and no comma before a bracket",
    ),
    file(
        "nested too deeply",
        edited({"extensions": {}}).replace('"extensions": {}', '"extensions": {"a": ' + nested(50_000) + "}"),
        "plan.json: nests too deeply",
    ),
    Malformed(
        "plan: no such file",
        ("show", "plna.json"),
        (
            "plna.json: cannot be read: No such file or directory",
            "did you mean plan.json?",
        ),
        {"plan.json": "{}"},
    ),
    Malformed("plan: a folder", ("simulate", "."), (".: is a folder, not a regular file",)),
    Malformed("plan: a device", ("check", "/dev/zero"), ("/dev/zero: is a device, not a regular file",)),
)

FIELDS = (
    field(
        "stages empty",
        {"pipelines[0].stages": []},
        "cluster.nodes[0]: 4 of 4 GPUs of 'fast-0' are unaccounted for; the first is GPU 0",
    ),
    field("pipelines missing", {"pipelines": ...}, "plan.json: the key 'pipelines' is missing"),
    field(
        "degree a text",
        {f"{STAGE}.tp": "2"},
        "plan.json: pipelines[0].stages[1].tp: is the text '2', but must be a whole number",
    ),
    field(
        "degree 0", {f"{STAGE}.tp": 0}, "plan.json: pipelines[0].stages[1].tp: is 0, but must be at least 1"
    ),
    field(
        "degree of a hundred digits",
        {f"{STAGE}.tp": 10**100},
        "plan.json: pipelines[0].stages[1].tp: is a number of 101 digits, but must be at most",
    ),
    field(
        "degree null",
        {f"{STAGE}.dp": None},
        "plan.json: pipelines[0].stages[1].dp: is null, but must be a whole number",
    ),
    field(
        "atoms of three",
        {f"{STAGE}.atoms": [1, 2, 3]},
        "plan.json: pipelines[0].stages[1].atoms: has 3 entries, but must have at most 2",
    ),
    field("atoms of one", {f"{STAGE}.atoms": [1]}, "plan.json: pipelines[0].stages[1].atoms[1]: is missing"),
    field(
        "atoms negative",
        {f"{STAGE}.atoms": [-1, 2]},
        "plan.json: pipelines[0].stages[1].atoms[0]: is -1, but must be at least 0",
    ),
    field(
        "zero 4", {f"{STAGE}.zero": 4}, "plan.json: pipelines[0].stages[1].zero: is 4; legal: 0, 1, 2 or 3"
    ),
    field(
        "recompute of an unknown mode",
        {f"{STAGE}.recompute[0].mode": "some"},
        "plan.json: pipelines[0].stages[1].recompute[0].mode: is the text 'some'; legal: 'none',",
    ),
    field(
        "ranks an object",
        {f"{STAGE}.ranks": {}},
        "plan.json: pipelines[0].stages[1].ranks: is an object, but must be a list",
    ),
    field(
        "a rank is null",
        {f"{STAGE}.ranks[0]": None},
        "plan.json: pipelines[0].stages[1].ranks[0]: is null, but must be an object",
    ),
    field("unknown key", {f"{STAGE}.pp": 2}, "plan.json: pipelines[0].stages[1]: unknown key 'pp'"),
    field(
        "misspelled key",
        {f"{STAGE}.mesh": ..., f"{STAGE}.msh": {}},
        "plan.json: pipelines[0].stages[1]: unknown key 'msh'",
        "did you mean 'mesh'?",
    ),
    field(
        "precision unknown",
        {"job.precision": "fp4"},
        "plan.json: job.precision: is the text 'fp4'; legal: 'fp32', 'tf32', 'fp16', 'bf16' or 'fp8'",
    ),
    field(
        "precision of a rate unknown",
        {"cluster.gpus[0].peak_flop_per_s": {"fp4": 1.0}},
        "plan.json: cluster.gpus[0].peak_flop_per_s.fp4.[key]: is the text 'fp4'; legal: 'fp32', 'tf32',",
    ),
    field(
        "memory negative",
        {"cluster.gpus[0].memory_bytes": -1},
        "plan.json: cluster.gpus[0].memory_bytes: is -1, but must be at least 1",
    ),
    field(
        "bandwidth 0",
        {"cluster.default_bandwidth_bytes_per_s": 0},
        "plan.json: cluster.default_bandwidth_bytes_per_s: is 0, but must be above 0.0",
    ),
    field(
        "a time is a text",
        {"prediction.iteration_time_s": "1 s"},
        "plan.json: prediction.iteration_time_s: is the text '1 s', but must be a number",
    ),
    field(
        "schedule unknown",
        {"pipelines[0].schedule.kind": "gpipe"},
        "plan.json: pipelines[0].schedule.kind: is the text 'gpipe'; legal: '1f1b'",
    ),
    field(
        "interleaved",
        {"pipelines[0].schedule.virtual_stages_per_rank": 2},
        "plan.json: pipelines[0].schedule.virtual_stages_per_rank: is 2; legal: 1",
    ),
    field("tolerances a list", {"tolerances": []}, "plan.json: tolerances: is a list, but must be an object"),
    field(
        "overlap a number",
        {"pipelines[0].schedule.overlap_p2p": 1},
        "plan.json: pipelines[0].schedule.overlap_p2p: is 1, but must be true or false",
    ),
    field("model null", {"model": None}, "plan.json: model: is null, but must be an object"),
)

RULES = (
    field(
        "a layer is dropped",
        {f"{STAGE}.atoms": [5, 6]},
        "pipelines[0].stages[1].atoms: atoms 4 to 4 are in no stage [layers-missing]",
    ),
    field(
        "a rule is broken, for the simulator",
        {f"{STAGE}.atoms": [5, 6]},
        "plan.json: the plan breaks 3 rules",
        "tangram check plan.json lists them",
        command="simulate",
    ),
    field(
        "degrees do not multiply to the ranks",
        {f"{STAGE}.dp": 2},
        "pipelines[0].stages[1].dp: dp 2 x cp 1 x tp 1 = 2; the stage has 1 ranks [degrees-product]",
    ),
    field(
        "a node that is not there",
        {f"{STAGE}.ranks[0].node": "nowhere"},
        "pipelines[0].stages[1].ranks[0].node: node 'nowhere' is not in the cluster, whose nodes are",
    ),
    field(
        "a GPU that is not there",
        {f"{STAGE}.ranks[0].gpu_idx": 99},
        "pipelines[0].stages[1].ranks[0].gpu_idx: is 99; node 'slow-0' has GPUs 0 to 1",
    ),
    field(
        "a micro-batch that does not divide",
        {"pipelines[0].micro_batch": 5},
        "pipelines[0].num_micro_batches: 6 micro-batches of 5 are 30 samples; the pipeline takes 24",
    ),
    field(
        "a million million micro-batches",
        {"pipelines[0].num_micro_batches": 10**12},
        "pipelines[0].num_micro_batches: 1000000000000 micro-batches of 4 are 4000000000000 samples; the",
    ),
    field(
        "batch beyond all jobs",
        {"job.global_batch": 2**62, "pipelines[0].global_batch": 2**62},
        "job (--global-batch): global batch 4611686018427387904 is out of range; legal: 1 to 10000000",
    ),
    field(
        "a layer of a kind that is not there",
        {"model.layers[0]": 9},
        "model: layers[0]: 9 is out of range; legal: 0 to 0 [model-invalid]",
    ),
    field(
        "granularity unknown",
        {"granularity": "halves"},
        "granularity: 'halves' is no granularity of atoms; legal: operator, block, layer, or a number of",
    ),
    field(
        "memory that does not fit",
        {f"{STAGE}.predicted.capacity_bytes": 1},
        "pipelines[0].stages[1].predicted.headroom_bytes: is 8554143199; capacity minus peak is",
    ),
    field(
        "a fingerprint of something else",
        {"cluster.fingerprint": "0" * 16},
        "cluster.fingerprint: is '0000000000000000', and the cluster's content gives '740d82e4b48341b1'",
    ),
    field(
        "a prediction that is too good",
        {"prediction.iteration_time_s": 1e-9},
        "prediction.samples_per_s: is 114.426; batch and iteration time give 2.4e+10 [throughput]",
    ),
    field(
        "in flight of another number of stages",
        {"pipelines[0].schedule.in_flight": [1]},
        "pipelines[0].schedule.in_flight: has 1 entries for 2 stages [in-flight-length]",
    ),
)

CASES = (*FILES, *FIELDS, *RULES)
