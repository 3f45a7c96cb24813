"""Malformed measurements: tables of runs, profiles of Tangram and of other tools, calibrations, stores."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

from layer_cases import record
from malformed import Malformed, nested, to_text
from row_samples import row
from test_profile_metis import NAME as METIS_NAME
from test_profile_metis import document as metis_document
from test_profile_nccl_tests import HEAD as NCCL_HEAD
from test_profile_nccl_tests import ROWS as NCCL_ROWS
from test_profile_sailor import SMALL as SAILOR_LAYERS
from test_profile_vtrain import HEADER as VTRAIN_HEADER
from test_profile_vtrain import ROW as VTRAIN_ROW

from tangram.profiles.exchange import to_json
from tangram.profiles.store import Profiles

CONFIG = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 4,
    "vocab_size": 1000,
    "max_position_embeddings": 512,
}
EXCHANGE = to_json(Profiles((record(),)))
LAYER: dict[str, Any] = json.loads(EXCHANGE)["layers"][0]


def rows_text(*rows: dict[str, str]) -> str:
    """A table of rows of one header."""
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def table(name: str, content: str | bytes, *says: str, command: str = "validate rows.csv") -> Malformed:
    return Malformed(f"runs: {name}", tuple(command.split()), says, {"rows.csv": content})


def cells(name: str, changes: dict[str, Any], *says: str) -> Malformed:
    """One row that cannot be used: the table says why, and a calibration of nothing else is refused."""
    content = rows_text(row(**changes))
    return Malformed(f"runs: {name}", ("validate", "rows.csv", "--json"), says, {"rows.csv": content}, code=0)


def profile(name: str, form: str, file: str, content: str | bytes, *says: str, given: str = "") -> Malformed:
    """A file of profiles, imported with what is needed beside it."""
    argv = ("profiles", "import", form, file, "--store", "store.sqlite", *given.split())
    return Malformed(f"profiles: {form}: {name}", argv, says, {file: content, "config.json": to_text(CONFIG)})


def layer(name: str, changes: dict[str, Any], *says: str) -> Malformed:
    """A layer of Tangram's own form, with some fields changed."""
    fields = {key: value for key, value in (LAYER | changes).items() if value is not ...}
    document = {"format": "tangram-profiles", "version": 1, "layers": [fields]}
    return profile(name, "tangram", "p.json", to_text(document), *says)


def calibration(name: str, content: Any, *says: str, options: str = "") -> Malformed:
    text = content if isinstance(content, str | bytes) else to_text(content)
    argv = ("estimate", "gpt3-1.3b", "1x2xT4", "--calibration", "cal.json", *options.split())
    return Malformed(f"calibration: {name}", argv, says, {"cal.json": text})


def constants(name: str, shelves: dict[str, Any], *says: str, options: str = "") -> Malformed:
    document = {"format": "tangram-calibration", "version": 1, **shelves}
    return calibration(name, document, *says, options=options)


def store(name: str, command: str, content: bytes, *says: str) -> Malformed:
    return Malformed(f"store: {name}", tuple(command.split()), says, {"store.sqlite": content})


SAILOR = "--model config.json --gpu T4 --seq-len 8 --precision fp32"

RUNS = (
    table("empty", "", "rows.csv: has no header", "the first line names the columns"),
    table(
        "a header alone",
        rows_text(row()).splitlines()[0] + "\n",
        "rows.csv: no row can be used",
        "tangram validate says why",
        command="calibrate rows.csv -o c",
    ),
    table(
        "a column twice",
        "gpu,gpu\nT4,T4\n",
        "rows.csv: has the column 'gpu' twice",
        "rename or remove one of them",
    ),
    table("JSON", '{\n "gpu": 1\n}\n', "rows.csv:1: is JSON, not a table", "their names in the first line"),
    table("UTF-16", rows_text(row()).encode("utf-16"), "rows.csv:1: is not UTF-8", "save it as UTF-8"),
    table(
        "a thousand columns",
        ",".join(map(str, range(1000))) + "\n",
        "rows.csv: has 1000 columns",
        "legal: up to 500",
    ),
    table("too many rows", "gpu\n" + "x\n" * 100_001, "rows.csv: has 100001 rows", "legal: up to 100000"),
    table("too large", b"x" * (8 * 1024**2 + 1), "rows.csv: is larger than 8 MiB"),
    table("a quote left open", 'gpu,n_gpus\n"T4,8\n', "rows.csv:2: is no CSV: unexpected end of data"),
    table(
        "a cell of a million letters",
        "gpu,n_gpus\n" + "x" * 1_000_000 + ",8\n",
        "rows.csv:2: is no CSV: field larger than field limit (131072)",
    ),
    table(
        "no rows that count",
        rows_text(row(tp=3)),
        "rows.csv: no row can be used",
        "tangram validate says why",
        command="calibrate rows.csv -o cal.json",
    ),
    table(
        "no splits",
        rows_text(row()),
        "--splits: 0 is out of range",
        "legal: 1 or more",
        command="calibrate rows.csv -o cal.json --splits 0",
    ),
    table(
        "no rows to calibrate on",
        rows_text(row()),
        "--calibrate-on: 0 is out of range",
        "legal: 1 or more",
        command="validate rows.csv --calibrate-on 0",
    ),
    table(
        "a stack without profiles",
        rows_text(row()),
        "--stack: says whose measured layers count",
        "give --profiles, too",
        command="validate rows.csv --stack mine",
    ),
    Malformed(
        "runs: no such file",
        ("validate", "nowhere.csv"),
        ("nowhere.csv: cannot be read: No such file or directory",),
    ),
    Malformed("runs: a folder", ("validate", "."), (".: is a folder, not a regular file",)),
    Malformed("runs: a device", ("validate", "/dev/zero"), ("/dev/zero: is a device, not a regular file",)),
    cells("GPU unknown", {"gpu": "T5"}, "unknown-gpu: row 1, column gpu: unknown GPU 'T5'"),
    cells(
        "GPUs a text",
        {"n_gpus": "many"},
        "not-a-number: row 1, column n_gpus: 'many' is no whole number above 0",
    ),
    cells("GPUs 0", {"n_gpus": "0"}, "not-a-number: row 1, column n_gpus: '0' is no whole number above 0"),
    cells(
        "GPUs a fraction",
        {"n_gpus": "8.5"},
        "not-a-number: row 1, column n_gpus: '8.5' is no whole number above 0",
    ),
    cells(
        "GPUs of thirty digits",
        {"n_gpus": "9" * 30},
        "not-a-number: row 1, column n_gpus: '999999999999999999999999999999' is no whole number above 0",
    ),
    cells(
        "degrees beyond the GPUs",
        {"tp": "64"},
        "impossible: row 1, column n_gpus: tp 64 x pp 2 x cp 1 x dp 4 is 512, not 16 GPUs",
    ),
    cells(
        "tp missing",
        {"tp": ""},
        "missing: row 1, column tp: is empty, and the configuration is incomplete without it",
    ),
    cells("time negative", {"iter_s": "-1"}, "not-a-number: row 1, column iter_s: '-1' is no number above 0"),
    cells("time NaN", {"iter_s": "nan"}, "not-a-number: row 1, column iter_s: 'nan' is no number above 0"),
    cells(
        "time infinite",
        {"iter_s": "1e999"},
        "not-a-number: row 1, column iter_s: '1e999' is no number above 0",
    ),
    cells(
        "faster than light",
        {"iter_s": "1e-9"},
        "implausible: row 1, column iter_s: 1e-09 s would be 2.66e+07 times what the GPUs can do; is it",
    ),
    cells(
        "precision unknown",
        {"precision": "fp3"},
        "unknown-word: row 1, column precision: 'fp3' names no precision; legal: fp32, tf32, fp16, bf16,",
    ),
    cells(
        "heads that do not divide",
        {"heads": "7"},
        "impossible: row 1, column kv_heads: 16 does not divide 7 heads",
    ),
    cells(
        "batch that does not divide",
        {"global_batch": "63"},
        "impossible: row 1, column global_batch: micro-batch 2 x dp 4 does not divide 63",
    ),
    cells(
        "sharding unknown",
        {"zero_or_fsdp": "ZeRO-9"},
        "unknown-word: row 1, column zero_or_fsdp: 'ZeRO-9' names no sharding; legal: DDP, ZeRO-0 to",
    ),
    cells(
        "recompute unknown",
        {"recompute": "sometimes"},
        "unknown-word: row 1, column recompute: 'sometimes' is no recomputation; legal: none, full,",
    ),
)

PROFILES = (
    profile(
        "unknown format",
        "tangramm",
        "p.json",
        EXCHANGE,
        "unknown format 'tangramm'",
        "did you mean 'tangram'?",
    ),
    profile(
        "no format",
        "tangram",
        "p.json",
        "{}",
        "p.json: is no export of profiles: its format is not 'tangram-profiles'",
        "tangram profiles export writes one",
    ),
    profile("empty", "tangram", "p.json", "", "p.json: is empty", "a JSON object starts with '{'"),
    profile(
        "not JSON",
        "tangram",
        "p.json",
        "layers: []",
        "p.json:1:",
        "is not JSON: it begins with 'layers:'",
        "a JSON object starts with '{'",
    ),
    profile("a list", "tangram", "p.json", "[]", "p.json: is not a JSON object", "it must start with '{'"),
    profile("nested too deeply", "tangram", "p.json", nested(100_000), "p.json: nests too deeply"),
    profile("not UTF-8", "tangram", "p.json", b"\xff\xfe{}", "p.json:1: is not UTF-8", "save it as UTF-8"),
    profile(
        "a version of the future",
        "tangram",
        "p.json",
        EXCHANGE.replace(": 1,", ": 2,", 1),
        "p.json: has version 2",
        "this Tangram reads 1",
    ),
    profile(
        "nothing in it",
        "tangram",
        "p.json",
        '{"format": "tangram-profiles", "version": 1}',
        "p.json: nothing in these files can be used",
    ),
    layer(
        "time negative",
        {"forward_s": -1.0},
        "p.json: layers[0].forward_s: -1.0 was not measured",
        "legal: above zero, below 1e+15",
    ),
    layer(
        "time a text",
        {"forward_s": "1"},
        "p.json: layers[0].forward_s: is the text '1', but must be a number",
    ),
    layer(
        "time infinite",
        {"forward_s": 1e308},
        "p.json: layers[0].forward_s: 1e+308 was not measured",
        "legal: above zero, below 1e+15",
    ),
    layer("tp 0", {"tp": 0}, "p.json: layers[0].tp: 0 is out of range", "legal: 1 to 1e+15"),
    layer("no GPU", {"gpu": ...}, "p.json: layers[0].gpu: is missing"),
    layer("GPU blank", {"gpu": " "}, "p.json: layers[0].gpu: is empty", "give a name"),
    layer("unknown key", {"speed": 1}, "p.json: layers[0].speed: is no key here"),
    layer(
        "precision unknown",
        {"precision": "fp3"},
        "p.json: layers[0].precision: is the text 'fp3'; legal: 'fp32', 'tf32', 'fp16', 'bf16' or 'fp8'",
    ),
    layer(
        "shape a text",
        {"shape": "large"},
        "p.json: layers[0].shape: is the text 'large', but must be an object",
    ),
    layer(
        "width 0",
        {"shape": LAYER["shape"] | {"hidden_size": 0}},
        "p.json: layers[0].shape: hidden_size is 0 for a shape of kind layer",
        "1 to 1,000,000,000",
    ),
    layer(
        "heads negative",
        {"shape": LAYER["shape"] | {"num_heads": -4}},
        "p.json: layers[0].shape: num_heads is -4 for a shape of kind layer",
        "1 to 1,000,000,000",
    ),
    layer(
        "kind unknown",
        {"shape": LAYER["shape"] | {"kind": "block"}},
        "p.json: layers[0].shape.kind: is the text 'block'; legal: 'embedding', 'layer', 'attention',",
    ),
    layer(
        "no time at all",
        {"forward_s": None, "backward_s": None},
        "p.json: layers[0]: a record of layer h64 s128 a4/4x16 f256 has no figure",
        "give a time or a size",
    ),
    layer(
        "memory of a thousand digits",
        {"activation_bytes": 10**1000},
        "p.json: layers[0].activation_bytes: a number of 1001 digits was not measured",
        "legal: 0 or more, below 1e+15",
    ),
    profile(
        "empty",
        "sailor",
        "profile.json",
        "{}",
        "profile.json: nothing in these files can be used",
        given=SAILOR,
    ),
    profile(
        "a list",
        "sailor",
        "profile.json",
        '{"1": {"1": []}}',
        "profile.json: 1.1: is a list, but must be an object",
        given=SAILOR,
    ),
    profile(
        "tp a word",
        "sailor",
        "profile.json",
        json.dumps({"1": {"two": SAILOR_LAYERS}}),
        "profile.json: 1.two: the key 'two' is no positive whole number",
        given=SAILOR,
    ),
    profile(
        "no model",
        "sailor",
        "profile.json",
        json.dumps({"1": {"1": SAILOR_LAYERS}}),
        "names no known model",
        "give --model: a preset, a config.json, or a name of docs/profiles.md",
    ),
    profile(
        "no GPU",
        "sailor",
        "profile.json",
        json.dumps({"1": {"1": SAILOR_LAYERS}}),
        "names no GPU of the catalogue",
        "give --gpu, for example --gpu A100-80GB-SXM",
        given="--model config.json --seq-len 8 --precision fp32",
    ),
    profile(
        "length 0",
        "sailor",
        "profile.json",
        json.dumps({"1": {"1": SAILOR_LAYERS}}),
        "--seq-len: sequence length 0 is out of range",
        "legal: 1 or more",
        given="--model config.json --gpu T4 --seq-len 0",
    ),
    profile(
        "of another name",
        "metis",
        "metis.json",
        json.dumps(metis_document()),
        "metis.json: the name is none of the format metis",
        "see docs/profiles.md",
    ),
    profile(
        "times of another length",
        "metis",
        METIS_NAME,
        json.dumps(metis_document(times=[1.0])),
        "DeviceType.A100-40_tp2_bs4.json: execution_time.layer_compute_total_ms: has 1 entries, but",
        "this is the profile of another model, or --model is wrong",
        given="--model config.json --seq-len 8 --precision fp32",
    ),
    profile(
        "a time is a text",
        "metis",
        METIS_NAME,
        json.dumps(metis_document(times=[1, "x", 3, 4])),
        "DeviceType.A100-40_tp2_bs4.json: execution_time.layer_compute_total_ms[1]: is text, but must be",
        given="--model config.json --seq-len 8 --precision fp32",
    ),
    profile(
        "a header alone",
        "vtrain",
        "AR_GPU4_1M_1024M_LUT",
        VTRAIN_HEADER + "\n",
        "AR_GPU4_1M_1024M_LUT: nothing in these files can be used",
        given="--gpu T4",
    ),
    profile(
        "a word",
        "vtrain",
        "AR_GPU4_1M_1024M_LUT",
        f"{VTRAIN_HEADER}\n{VTRAIN_ROW.replace(VTRAIN_ROW.split(',')[-1], 'fast')}\n",
        "AR_GPU4_1M_1024M_LUT:2: busbw(GB/s): 'fast' is not a number",
        given="--gpu T4",
    ),
    profile(
        "empty",
        "nccl-tests",
        "run.log",
        "",
        "run.log: holds no results of nccl-tests",
        "give the whole output of a test",
        given="--gpu T4",
    ),
    profile(
        "a bandwidth that is a word",
        "nccl-tests",
        "run.log",
        NCCL_HEAD + NCCL_ROWS.replace(".", "x"),
        "run.log:15: time: '0x20' is not a number",
        given="--gpu T4",
    ),
    profile(
        "op unknown",
        "nccl-tests",
        "run.log",
        NCCL_HEAD + NCCL_ROWS,
        "--op: unknown collective 'gossip'",
        given="--gpu T4 --op gossip",
    ),
    profile(
        "negative",
        "galvatron",
        "p2p_bandwidth_1nodes_8gpus_per_node.json",
        '{"pp_size_2": -1}',
        "p2p_bandwidth_1nodes_8gpus_per_node.json: pp_size_2: -1 is out of range",
        "legal: 0 to 1e+12",
        given="--gpu T4",
    ),
    profile(
        "empty",
        "aceso",
        "p2p_intra_node.csv",
        "",
        "p2p_intra_node.csv: is not one line of MiB and one line of GB/s of the same length",
        given="--gpu T4",
    ),
    Malformed(
        "profiles: no such file",
        ("profiles", "import", "tangram", "nowhere.json"),
        ("nowhere.json: no such file or folder",),
    ),
    Malformed(
        "profiles: a folder of others",
        ("profiles", "import", "metis", "."),
        (
            ".: holds no file of the format metis",
            "see docs/profiles.md",
        ),
        {"a.txt": ""},
    ),
    store(
        "not a database",
        "profiles list --store store.sqlite",
        b"x" * 4096,
        "store.sqlite: is no profile store: file is not a database",
        "give another --store; a damaged store has to be made again",
    ),
    store(
        "empty",
        "profiles list --store store.sqlite",
        b"",
        "store.sqlite: is a database, but no profile store",
        "give another --store",
    ),
    store(
        "cut off",
        "profiles list --store store.sqlite",
        b"SQLite format 3\0" + b"\0" * 84,
        "store.sqlite: is no profile store: file is not a database",
        "give another --store; a damaged store has to be made again",
    ),
    store(
        "of layers, for a plan",
        "plan gpt3-1.3b 1x2xT4 --profiles store.sqlite",
        b"x" * 100,
        "store.sqlite: is no profile store: file is not a database",
        "give another --store; a damaged store has to be made again",
    ),
    Malformed(
        "store: no such file",
        ("profiles", "list", "--store", "nowhere.sqlite"),
        (
            "nowhere.sqlite: there is no such profile store",
            "tangram profiles import makes one",
        ),
    ),
    Malformed("store: a folder", ("profiles", "list", "--store", "."), (".: is a folder, not a file",)),
    Malformed(
        "store: export of a kind that is not there",
        ("profiles", "export", "--kind", "layer"),
        (
            "--kind: unknown kind 'layer'",
            "did you mean 'layers'?",
        ),
    ),
    Malformed(
        "store: export to a form that is not there",
        ("profiles", "export", "--format", "xml"),
        ("--format: unknown format 'xml'",),
    ),
)

CALIBRATIONS = (
    calibration("empty", "", "cal.json: is empty", "a JSON object starts with '{'"),
    calibration("a list", "[]", "cal.json: is not a JSON object", "it must start with '{'"),
    calibration(
        "of another kind",
        {"format": "tangram-plan", "version": 1},
        "cal.json: this is no calibration: it has format the text 'tangram-plan'",
        'tangram calibrate -o FILE writes one; it says "format": "tangram-calibration"',
    ),
    calibration(
        "a version of the future",
        {"format": "tangram-calibration", "version": 2},
        "cal.json: version: the version is 2",
        "this release reads version 1; for a newer one, use a newer Tangram",
    ),
    calibration("not UTF-8", b"\xff\xfe{}", "cal.json:1: is not UTF-8", "save it as UTF-8"),
    constants(
        "nothing in it",
        {},
        "cal.json: holds no constants",
        "it must have one of the keys gpu_family, stack, cluster",
    ),
    constants("a shelf is a list", {"stack": []}, "cal.json: stack: is a list, but must be an object"),
    constants(
        "constants of a stack are a number",
        {"stack": {"mine": 1}},
        "cal.json: stack.mine: is 1, but must be an object",
    ),
    constants(
        "a bare number",
        {"stack": {"mine": {"launch_s": 1e-5}}},
        "cal.json: stack.mine.launch_s: is 1e-05, but must be an object",
    ),
    constants(
        "a value in quotes",
        {"stack": {"mine": {"launch_s": {"value": "5us"}}}},
        "cal.json: stack.mine.launch_s: value is the text '5us'",
        'write for example {"value": 0.8}',
    ),
    constants(
        "a value that cannot be",
        {"stack": {"mine": {"launch_s": {"value": -1}}}},
        "cal.json: stack.mine.launch_s: launch_s of -1 is out of range",
        "legal: 1e-06 to 0.001 (s per layer and pass)",
    ),
    constants(
        "a value of a thousand digits",
        {"stack": {"mine": {"launch_s": {"value": 10**1000}}}},
        "cal.json: stack.mine.launch_s: launch_s of inf is out of range",
        "legal: 1e-06 to 0.001 (s per layer and pass)",
    ),
    constants(
        "an unknown constant",
        {"stack": {"mine": {"lunch_s": {"value": 1}}}},
        "cal.json: stack.mine.lunch_s: unknown constant of the shelf stack 'lunch_s'",
        "did you mean 'launch_s'?",
    ),
    constants(
        "an unknown family",
        {"gpu_family": {"kepler": {"gemm_efficiency": {"value": 0.5}}}},
        "cal.json: gpu_family: unknown GPU family 'kepler'",
    ),
    constants(
        "a blank name",
        {"stack": {" ": {"launch_s": {"value": 1e-5}}}},
        "cal.json: stack: a name is empty",
        "name whose constants these are",
    ),
    constants(
        "two stacks, none chosen",
        {"stack": {"a": {"launch_s": {"value": 1e-5}}, "b": {"launch_s": {"value": 1e-5}}}},
        "cal.json: holds constants of 2 stacks, and none is chosen",
        "choose with --stack: a, b, tangram-runtime",
    ),
    constants(
        "a stack that is not in it",
        {"stack": {"a": {"launch_s": {"value": 1e-5}}}},
        "--stack: unknown software stack 'b'",
        options="--stack b",
    ),
)

CASES = (*RUNS, *PROFILES, *CALIBRATIONS)
