"""Reads Galvatron's model profiles (github.com/PKU-DAIR/Hetu-Galvatron): compute time and memory of a layer.

* ``computation_profiling_<precision>_<model>.json``: ``layertype_0[_bsz<B>][_seq<S>]`` in milliseconds, the
  forward pass of one layer and one sample on one GPU; ``layernum[<L>]_bsz<B>...`` are the times of whole
  models of L layers that it was derived from, as the difference of two depths.
* ``memory_profiling_<precision>_<model>.json``: ``layertype_0[_sp]``: ``parameter_size`` (MiB of fp32
  parameters, unsharded) and ``tp_activation_per_bsz_dict`` (MiB that one layer keeps per sample, by tp).

A name or key with ``_attention`` or ``_mlp`` is a block instead of a layer (one expert, for a mixture of
experts). Where no key says the batch, it is the one whose depths give the time, if there is one.

Left out: differences that are not above zero, and batches whose whole models took longer than larger batches
of the same depth (something else used the GPU); ``layertype_other`` (embedding, LM head and loss in one
figure); memory of whole models; activations at tp > 1 without sequence parallelism, and under recomputation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tangram.errors import InputError
from tangram.job import Precision
from tangram.model.atoms import Part, layer_parts
from tangram.model.json_file import parse_json_object
from tangram.model.params import feed_forward_params, part_params
from tangram.model.spec import MoeSpec
from tangram.profiles.importers.harvest import Given, Harvest, file_name, json_number, json_object, read_text
from tangram.profiles.importers.layer_rows import Run
from tangram.profiles.peers import ProfiledModel
from tangram.profiles.shapes import LayerKind, LayerShape, layer_shape
from tangram.units import MIB

STACK = "galvatron"
PATTERN = re.compile(
    r"(?P<what>computation|memory)_profiling_(?P<precision>bf16|fp16|fp32)_(?P<model>.+?)"
    r"(?:_(?:head\d+_)?seqlen(?P<seq>\d{1,9}))?(?:_(?P<block>all|attention|mlp))?\.json"
)

_WHOLE = re.compile(
    r"layernum\[(?P<depth>\d{1,6})\]_bsz(?P<batch>\d{1,6})(?:_seq(?P<seq>\d{1,9}))?(?P<block>_attention|_mlp)?"
)
_LAYER = re.compile(
    r"layertype_\d{1,3}(?:_bsz(?P<batch>\d{1,6}))?(?:_seq(?P<seq>\d{1,9}))?(?P<block>_attention|_mlp)?"
)
_MEMORY_LAYER = re.compile(r"layertype_\d{1,3}(?P<sp>_sp)?")
_GROUP = re.compile(r"(?:\d+_){2}\d+(?:_vtp)?(?:_c)?(?:_sp)?")
_BLOCKS = {"attention": LayerKind.ATTENTION, "mlp": LayerKind.FEED_FORWARD}

_LONGER = 1.02
_NOT_POSITIVE = "differences of two depths that are not above zero"
_DISTURBED = "batches that took longer than larger ones of the same depth"
_NO_BATCH = "times that do not say for which batch"
_RAW = "memory of whole models, and of embedding and LM head in one figure"
_OTHER = "times of embedding and LM head in one figure"
_NO_SP = "activations at tp > 1 without sequence parallelism"
_RECOMPUTED = "activations under recomputation"
_SIZE_TOLERANCE = 0.03  # Galvatron's parameter sizes are differences of memory, up to 2 % off


@dataclass(frozen=True, slots=True)
class _File:
    """What the name and the user say of a file."""

    path: Path
    where: str
    gpu: str
    stack: str
    precision: Precision
    model: ProfiledModel
    seq_len: int | None
    block: str | None

    def run(self, seq_len: int, tp: int, micro_batch: int) -> Run:
        """Returns what records of a point have in common."""
        source = f"Galvatron, {self.path.name}"
        return Run(
            self.gpu, self.stack, self.precision, self.model, seq_len, tp, micro_batch, source, self.where
        )

    def shape(self, seq_len: int, block: str | None) -> LayerShape:
        """Returns the shape of a layer or block."""
        layer = self.model.spec.layers[0]
        kind = _BLOCKS.get(block or "", LayerKind.LAYER)
        if kind is LayerKind.FEED_FORWARD and layer.moe is not None:
            kind = LayerKind.EXPERT
        return layer_shape(self.model.spec, layer, seq_len, kind)


def read(path: Path, given: Given, harvest: Harvest) -> None:
    """Reads one file.

    Raises:
        InputError: It is not such a file, it contradicts the model, or it does not say which model, GPU or
            sequence length ran.
    """
    where = file_name(path)
    match = PATTERN.fullmatch(path.name)
    if match is None:
        raise InputError(
            "the name is none of Galvatron's model profiles",
            where=where,
            hint="computation_profiling_<precision>_<model>.json, memory_profiling_...",
        )
    named = None if match["model"].startswith("hidden") else match["model"]
    model = given.profiled_model(named, where, harvest)
    seq = match["seq"]
    file = _File(
        path=path,
        where=where,
        gpu=given.gpu_name(None, where, harvest),
        stack=given.stack or STACK,
        precision=given.precision or Precision(match["precision"]),
        model=model,
        seq_len=given.seq_len or (int(seq) if seq else model.seq_len),
        block=match["block"] if match["block"] != "all" else None,
    )
    data = parse_json_object(read_text(path), where=where)
    _check_hidden(match["model"], file)
    if match["what"] == "computation":
        _read_times(data, file, harvest)
    else:
        _read_memory(data, file, harvest)


def _read_times(data: Mapping[str, object], file: _File, harvest: Harvest) -> None:
    wholes, layers = _Wholes({}), []
    for key, value in data.items():
        place = f"{file.where}: {key[:80]}"
        if match := _WHOLE.fullmatch(key):
            point = (match["block"], match["seq"], int(match["depth"]))
            wholes.times.setdefault(point, {})[int(match["batch"])] = json_number(value, place)
        elif match := _LAYER.fullmatch(key):
            layers.append((match, json_number(value, place, least=-1e12), place))
        elif key.startswith("layertype_other"):
            harvest.leave_out(_OTHER)
        else:
            raise InputError("is an unknown key", where=place, hint="expected: layertype_0_bsz<B>_seq<S>")
    for match, time_ms, place in layers:
        block = (match["block"] or "").removeprefix("_") or file.block
        if time_ms <= 0:
            harvest.leave_out(_NOT_POSITIVE)
            continue
        batch = int(match["batch"]) if match["batch"] else wholes.batch_of(time_ms)
        if batch is None or batch < 1:
            harvest.leave_out(_NO_BATCH)
            continue
        if wholes.is_disturbed(match["block"], match["seq"], batch):
            harvest.leave_out(_DISTURBED)
            continue
        seq_len = _seq_len(match["seq"], file, place)
        # Per sample in the file; a micro-batch of as many samples took that often.
        record = file.run(seq_len, 1, batch).record(
            file.shape(seq_len, block), forward_s=time_ms / 1e3 * batch
        )
        harvest.records.append(record)


@dataclass(frozen=True, slots=True)
class _Wholes:
    """Milliseconds of whole models: (block, sequence, depth) -> batch -> time."""

    times: dict[tuple[str | None, str | None, int], dict[int, float]]

    def batch_of(self, layer_ms: float) -> int | None:
        """Returns the batch at which two depths differ by this time per layer and sample."""
        for (block, seq, low), shallow in sorted(self.times.items(), key=str):
            for depth, deep in self._deeper(block, seq, low):
                for batch in sorted(shallow.keys() & deep.keys()):
                    found = (deep[batch] - shallow[batch]) / (depth - low) / batch
                    if abs(found - layer_ms) <= 1e-6 * layer_ms:
                        return batch
        return None

    def is_disturbed(self, block: str | None, seq: str | None, batch: int) -> bool:
        """Whether a depth took longer with this batch than with a larger one."""
        for (of_block, of_seq, _), times in self.times.items():
            if (of_block, of_seq) == (block, seq) and batch in times:
                larger = [time for other, time in times.items() if other > batch]
                if larger and times[batch] > _LONGER * min(larger):
                    return True
        return False

    def _deeper(
        self, block: str | None, seq: str | None, depth: int
    ) -> Iterator[tuple[int, dict[int, float]]]:
        for (of_block, of_seq, of_depth), times in self.times.items():
            if (of_block, of_seq) == (block, seq) and of_depth > depth:
                yield of_depth, times


def _read_memory(data: Mapping[str, object], file: _File, harvest: Harvest) -> None:
    layers = {key: match for key in data if (match := _MEMORY_LAYER.fullmatch(key))}
    for key in data:
        known = key in layers or _GROUP.fullmatch(key) or key.startswith("other_memory_")
        if not known:
            raise InputError("is an unknown key", where=f"{file.where}: {key[:80]}")
        if key not in layers:
            harvest.leave_out(_RAW)
    has_sharded = any(match["sp"] for match in layers.values())
    for key, match in layers.items():
        place = f"{file.where}: {key}"
        entry = json_object(data[key], place)
        by_seq = {"": entry} if "tp_activation_per_bsz_dict" in entry else entry
        for seq, sizes in by_seq.items():
            seq_len = _seq_len(seq or None, file, place)
            sizes_of = json_object(sizes, f"{place}.{seq}")
            _check_params(sizes_of, file, place)
            activations = json_object(
                sizes_of.get("tp_activation_per_bsz_dict"), f"{place}.tp_activation_per_bsz_dict"
            )
            for degree, value in activations.items():
                spot = f"{place}.tp_activation_per_bsz_dict.{degree}"
                size = json_number(value, spot) * MIB
                if degree == "checkpoint":
                    harvest.leave_out(_RECOMPUTED)
                elif not degree.isdecimal() or int(degree) < 1:
                    raise InputError("is neither a degree nor 'checkpoint'", where=spot)
                elif match["sp"]:
                    _add_size(size, int(degree), seq_len, file, harvest)
                elif degree != "1":
                    harvest.leave_out(_NO_SP)
                elif not has_sharded:
                    _add_size(size, 1, seq_len, file, harvest)


def _add_size(size: float, tp: int, seq_len: int, file: _File, harvest: Harvest) -> None:
    """The files give it per sample."""
    run = file.run(seq_len, tp, 1)
    harvest.records.append(run.record(file.shape(seq_len, file.block), activation_bytes=round(size)))


def _seq_len(text: str | None, file: _File, where: str) -> int:
    seq_len = int(text) if text and text.isdecimal() and len(text) < 10 else file.seq_len
    if not seq_len:
        raise InputError("does not say how long sequences are", where=where, hint="give --seq-len")
    return seq_len


def _check_hidden(name: str, file: _File) -> None:
    """Names such as ``hidden4096_head32`` say the width and the heads."""
    hidden = re.match(r"hidden(\d{1,9})", name)
    heads = re.search(r"_head(\d{1,9})", file.path.name)
    spec = file.model.spec
    for found, wanted, what in (
        (hidden, spec.hidden_size, "width"),
        (heads, spec.layers[0].attention.num_heads, "number of heads"),
    ):
        if found is not None and int(found[1]) != wanted:
            raise InputError(
                f"the name says a {what} of {found[1]}, but {spec.name} has {wanted}",
                where=file.where,
                hint="give --model",
            )


def _check_params(sizes: Mapping[str, object], file: _File, where: str) -> None:
    spec, layer = file.model.spec, file.model.spec.layers[0]
    spot = f"{where}.parameter_size"
    found = json_number(sizes.get("parameter_size"), spot) * MIB / 4
    if file.block == "mlp" and isinstance(layer.feed_forward, MoeSpec):
        wanted = feed_forward_params(layer.feed_forward.expert, spec.hidden_size)
    else:
        attention = {Part.QKV, Part.CORE, Part.OUT}
        parts = [
            part
            for part in layer_parts(layer)
            if file.block is None or (part in attention) == (file.block == "attention")
        ]
        wanted = sum(part_params(spec, 0, part).total for part in parts)
    if abs(found / wanted - 1) > _SIZE_TOLERANCE:
        raise InputError(
            f"a layer has {found:,.0f} parameters, but {spec.name} has {wanted:,}",
            where=spot,
            hint="this is the profile of another model: give --model",
        )
