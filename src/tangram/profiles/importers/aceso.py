"""Reads Aceso's profiles of GPT operators (github.com/microsoft/SuperScaler, Aceso branch).

Two kinds of file, told apart by name; Aceso's collectives have a module of their own:

* ``<model>_mbs<b>_tp<t>_algo<a>.csv``: one row per operator on one rank, in microseconds, the operator's own
  tensor-parallel collective included. Sizes in MiB.
* ``ops_<GPU>_<precision>.csv``: the same numbers put together, one table per GPU.

Operators become the parts of a layer, its blocks, the layer and the ends of the model, by adding up: each
operator was timed alone. The sizes of the weights are compared with the model and the precision.

Left out: memory (growth per operator does not add up to what a layer keeps); the swapped partition (algo 1);
what holds an operator that ran out of memory (1e7).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tangram.errors import InputError
from tangram.job import Precision
from tangram.model.spec import FeedForwardSpec
from tangram.model.vocabulary import padded_vocab_size
from tangram.profiles.importers.csv_file import csv_rows
from tangram.profiles.importers.harvest import Given, Harvest, file_name, text_count, text_number
from tangram.profiles.importers.layer_rows import Run
from tangram.profiles.shapes import LayerKind, LayerShape, final_norm_shape, layer_shape
from tangram.units import MIB

STACK = "aceso"

_OPS = re.compile(r"(?P<model>.+)_mbs(?P<micro_batch>\d{1,6})_tp(?P<tp>\d{1,6})_algo(?P<algo>\d)\.csv")
_OP_TABLE = re.compile(r"ops_(?P<gpu>.+)_(?P<precision>fp16|fp32)\.csv")
PATTERNS = (_OPS, _OP_TABLE)

OUT_OF_MEMORY_US = 1e7

_PARTS: Mapping[LayerKind, tuple[str, ...]] = {
    LayerKind.QKV: ("enc-1st-layernorm", "enc-attention-qkv"),
    LayerKind.CORE: (
        "enc-attention-score",
        "enc-attention-softmax",
        "enc-attention-dropout",
        "enc-attention-context",
    ),
    LayerKind.OUT: ("enc-attention-dense", "enc-post-attention-dropout"),
    LayerKind.UP: ("enc-2nd-layernorm", "enc-MLP-GEMM-1"),
    LayerKind.DOWN: ("enc-MLP-gelu", "enc-MLP-GEMM-2", "enc-post-MLP-dropout"),
}
_ATTENTION = _PARTS[LayerKind.QKV] + _PARTS[LayerKind.CORE] + _PARTS[LayerKind.OUT]
_FEED_FORWARD = _PARTS[LayerKind.UP] + _PARTS[LayerKind.DOWN]
_EMBEDDING, _NORM, _HEAD = "encoder-embedding", "final-layernorm", "gpt-post-process"
OPERATORS: Mapping[LayerKind, tuple[str, ...]] = {
    LayerKind.EMBEDDING: (_EMBEDDING,),
    LayerKind.LAYER: _ATTENTION + _FEED_FORWARD,
    LayerKind.ATTENTION: _ATTENTION,
    LayerKind.FEED_FORWARD: _FEED_FORWARD,
    **_PARTS,
    LayerKind.FINAL_NORM: (_NORM,),
    LayerKind.HEAD: (_NORM, _HEAD),
}
"""Aceso's operators of every kind of shape, in the order in which they run."""

_NAMES = (_EMBEDDING, *_ATTENTION, *_FEED_FORWARD, _NORM, _HEAD)

_OOM = "operators, or sums of them, that ran out of memory"
_SIZE_TOLERANCE = 0.02
_SWAPPED = "operators in the swapped partition"


@dataclass(frozen=True, slots=True)
class _Row:
    forward_us: float
    backward_us: float
    weights_bytes: float


def read(path: Path, given: Given, harvest: Harvest) -> None:
    """Reads one file of either kind.

    Raises:
        InputError: The name or the content is neither of them, or it contradicts the model.
    """
    if match := _OPS.fullmatch(path.name):
        _read_ops(path, match, given, harvest)
    elif match := _OP_TABLE.fullmatch(path.name):
        _read_opcsv_rows(path, match, given, harvest)
    else:
        raise InputError(
            "the name is none of Aceso's", where=file_name(path), hint="<model>_mbs<b>_tp<t>_algo<a>.csv"
        )


def _read_ops(path: Path, match: re.Match[str], given: Given, harvest: Harvest) -> None:
    where = file_name(path)
    lines = csv_rows(path, ("op_name", "forward-compute", "backward-compute", "weights"))
    rows = {
        line["op_name"]: _row(line, ("forward-compute", "backward-compute", "weights"), place)
        for place, line in lines
    }
    if match["algo"] != "0":
        harvest.leave_out(_SWAPPED, len(rows))
        return
    point = (match["model"], int(match["micro_batch"]), int(match["tp"]))
    _add_point(
        rows, point, given.gpu_name(None, where, harvest), given.precision, path.name, where, given, harvest
    )


def _read_opcsv_rows(path: Path, match: re.Match[str], given: Given, harvest: Harvest) -> None:
    where = file_name(path)
    columns = ("model", "micro_batch", "tp", "algo", "op_name", "fwd_us", "bwd_us", "weights_mb")
    points: dict[tuple[str, int, int], dict[str, _Row]] = {}
    for place, line in csv_rows(path, columns):
        row = _row(line, ("fwd_us", "bwd_us", "weights_mb"), place)
        if line["algo"] != "0":
            harvest.leave_out(_SWAPPED)
            continue
        point = (line["model"], text_count(line["micro_batch"], place), text_count(line["tp"], place))
        points.setdefault(point, {})[line["op_name"]] = row
    gpu = given.gpu_name(match["gpu"], where, harvest)
    precision = given.precision or Precision(match["precision"])
    for point, rows in points.items():
        place = f"{where}: {point[0]}, micro-batch {point[1]}, tp {point[2]}"
        _add_point(rows, point, gpu, precision, path.name, place, given, harvest)


def _add_point(
    rows: Mapping[str, _Row],
    point: tuple[str, int, int],
    gpu: str,
    precision: Precision | None,
    file: str,
    where: str,
    given: Given,
    harvest: Harvest,
) -> None:
    """Adds the records of one model, micro-batch and tp."""
    unknown = [name for name in rows if name not in _NAMES]
    missing = [name for name in _NAMES if name not in rows]
    if unknown or missing:
        problem = f"unknown operator {unknown[0]!r}" if unknown else f"the operator {missing[0]!r} is missing"
        raise InputError(problem, where=where, hint="only GPT profiles are read")
    name, micro_batch, tp = point
    model = given.profiled_model(name, where, harvest)
    known = precision if precision is not None else _stored_precision(rows, model.spec.hidden_size, tp)
    precision = given.precision_or(known, where, "Aceso's own files are fp16")
    run = Run(
        gpu,
        given.stack or STACK,
        precision,
        model,
        given.seq_len_of(model, where),
        tp,
        micro_batch,
        f"Aceso, {file}: sums of single operators",
        where,
    )
    vocab_size = _check_weights(rows, run, where)
    for kind, names in OPERATORS.items():
        if any(max(rows[n].forward_us, rows[n].backward_us) >= OUT_OF_MEMORY_US for n in names):
            harvest.leave_out(_OOM)
            continue
        harvest.records.append(
            run.record(
                _shape(kind, run, vocab_size),
                forward_s=sum(rows[n].forward_us for n in names) / 1e6,
                backward_s=sum(rows[n].backward_us for n in names) / 1e6,
            )
        )


def _shape(kind: LayerKind, run: Run, vocab_size: int) -> LayerShape:
    spec = run.model.spec
    if kind in (LayerKind.EMBEDDING, LayerKind.HEAD):
        return LayerShape(kind, run.seq_len, spec.hidden_size, vocab_size=vocab_size)
    if kind is LayerKind.FINAL_NORM:
        return final_norm_shape(spec, run.seq_len)
    return layer_shape(spec, spec.layers[0], run.seq_len, kind)


def _stored_precision(rows: Mapping[str, _Row], hidden: int, tp: int) -> Precision | None:
    """Four bytes per weight may be fp32 or tf32; anything else can only be fp16 (Aceso has no bf16)."""
    size = rows["enc-attention-dense"].weights_bytes / (hidden * hidden / tp)
    return None if abs(size / 4 - 1) < _SIZE_TOLERANCE else Precision.FP16


def _check_weights(rows: Mapping[str, _Row], run: Run, where: str) -> int:
    """Compares sizes with the model; returns the rows of the vocabulary as they were run."""
    spec, size = run.model.spec, run.precision.element_bytes
    layer = spec.layers[0]
    block = layer.feed_forward
    if not isinstance(block, FeedForwardSpec):
        raise InputError(f"{spec.name} has experts; Aceso's profiles have none", where=where, hint="--model")
    hidden, attention = spec.hidden_size, layer.attention
    columns = attention.query_width + 2 * attention.kv_width
    wanted = {
        "enc-attention-qkv": hidden * columns,
        "enc-attention-dense": hidden * attention.query_width,
        "enc-MLP-GEMM-1": hidden * block.intermediate_size * block.num_up_matrices,
        "enc-MLP-GEMM-2": hidden * block.intermediate_size,
    }
    for name, elements in wanted.items():
        found, expected = rows[name].weights_bytes, elements * size / run.tp
        if abs(found - expected) > _SIZE_TOLERANCE * expected + 0.001 * MIB:
            raise InputError(
                f"{name} has {found / MIB:.3f} MiB of weights, but {spec.name} at tp {run.tp} in "
                f"{run.precision.value} has {expected / MIB:.3f}",
                where=where,
                hint="this is the profile of another model or precision: give --model, --precision",
            )
    found = rows[_HEAD].weights_bytes * run.tp / size / hidden
    return padded_vocab_size(max(1, round(found)), tp=1)


def _row(line: Mapping[str, str], names: tuple[str, str, str], where: str) -> _Row:
    forward, backward, weights = (text_number(line[name], f"{where}: {name}") for name in names)
    return _Row(forward, backward, weights * MIB)
