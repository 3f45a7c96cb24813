"""Reads Sailor's layer profiles (github.com/eth-easl/sailor, ``profile.json``).

``micro-batch -> tp -> layer -> [forward s, backward s, optimizer update s]``: seconds on one rank, with the
tensor-parallel all-reduces inside one node. The simulator's file has ``model -> GPU`` around that, and
what is given of both chooses among them. Model and GPU of a single file are the names of its two folders.

Left out: the update time, which is the same figure for all layers of a model, whatever their size, and so is
no layer's own; the embedding's backward pass (0 to 4 microseconds: its input needs no gradient and it was not
run). A last entry that lacks the LM head's product is a final norm.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tangram.errors import InputError
from tangram.model.json_file import parse_json_object
from tangram.profiles.importers.harvest import (
    OTHERS,
    Given,
    Harvest,
    file_name,
    json_list,
    json_number,
    json_object,
    read_text,
)
from tangram.profiles.importers.layer_rows import Run, entry_shapes, sort_entries
from tangram.profiles.peers import profiled_gpu

STACK = "sailor"
PRECISION_HINT = (
    "arithmetic says tf32 on A100 and GH200, except OPT-30 and LLAMA-3-8 on A100 (fp32), and fp32 on V100"
)

LayerRow = tuple[float, float, float]
"""Seconds of a layer: forward, backward, optimizer update."""

_NOT_RUN_S = 1e-5
_NO_BACKWARD = "backward passes of the embedding, which were not run"
_UPDATES = "optimizer times, which are not those of single layers"


def read(path: Path, given: Given, harvest: Harvest) -> None:
    """Reads one file.

    Raises:
        InputError: It is not such a file, or does not say which model, GPU or precision ran.
    """
    where = file_name(path)
    data = parse_json_object(read_text(path), where=where)
    if all(key.isdecimal() for key in data):
        _read_profile(data, path.absolute().parts[-3:-1], where, given, harvest, path.name)
        return
    _read_all(data, where, given, harvest, path.name)


def _read_all(data: Mapping[str, object], where: str, given: Given, harvest: Harvest, file: str) -> None:
    """Reads the simulator's file: of many models and GPUs, the given ones."""
    wanted_gpu = None if given.gpu is None else profiled_gpu(given.gpu)
    if given.model is not None and given.model not in data:
        raise InputError(f"has no model {given.model!r}", where=where, hint="it has: " + ", ".join(data))
    taken = replace(given, gpu=None, model=None)
    before = len(harvest.records)
    for model, gpus in data.items():
        for gpu, profile in json_object(gpus, f"{where}: {model}").items():
            place = f"{where}: {model}.{gpu}"
            chosen = given.model in (None, model) and wanted_gpu in (None, profiled_gpu(gpu))
            if chosen:
                _read_profile(json_object(profile, place), (model, gpu), place, taken, harvest, file)
            else:
                harvest.leave_out(OTHERS)
    if len(harvest.records) == before:
        raise InputError(
            f"has no profile of {given.gpu}", where=where, hint="give --gpu as the file calls it"
        )


def _read_profile(
    data: Mapping[str, object],
    names: tuple[str, ...],
    where: str,
    given: Given,
    harvest: Harvest,
    file: str,
) -> None:
    model_name, gpu_name = names if len(names) == 2 else (None, None)
    model = given.profiled_model(model_name, where, harvest)
    gpu = given.gpu_name(gpu_name, where, harvest)
    precision = given.precision_or(None, where, PRECISION_HINT)
    source = f"Sailor, {'/'.join((*names, file))}"
    for micro_batch, tp, rows in profile_rows(data, where):
        place = f"{where}: {micro_batch}.{tp}"
        run = Run(
            gpu,
            given.stack or STACK,
            precision,
            model,
            given.seq_len_of(model, where),
            tp,
            micro_batch,
            source,
            place,
        )
        _read_layers(run, [row[:2] for row in rows], place, harvest)


def profile_rows(data: Mapping[str, object], where: str) -> Iterator[tuple[int, int, list[LayerRow]]]:
    """Yields micro-batch, tp and the layers of every part of a ``profile.json``, in the order of the file.

    Args:
        data: The parsed file.
        where: Its name, for messages.

    Raises:
        InputError: A key is no degree, a layer is missing, or its entry is not three numbers.
    """
    for micro_batch, degrees in data.items():
        for tp, layers in json_object(degrees, f"{where}: {micro_batch}").items():
            place = f"{where}: {micro_batch}.{tp}"
            size, degree = _degree(micro_batch, place), _degree(tp, place)
            yield size, degree, _rows(json_object(layers, place), place)


def _rows(layers: Mapping[str, object], where: str) -> list[LayerRow]:
    missing = [idx for idx in range(len(layers)) if str(idx) not in layers]
    if missing or not layers:
        raise InputError(f"layer {missing[0] if missing else 0} is missing", where=where)
    return [_times(layers[str(idx)], f"{where}.{idx}") for idx in range(len(layers))]


def _read_layers(run: Run, rows: Sequence[tuple[float, ...]], where: str, harvest: Harvest) -> None:
    entries = sort_entries(rows, run.model, where, harvest)
    embedding, layer, final_norm, head = entry_shapes(run)
    backward_s: float | None = entries.embedding[1]
    if entries.embedding[1] < _NOT_RUN_S:
        backward_s = None
        harvest.leave_out(_NO_BACKWARD)
    harvest.leave_out(_UPDATES, len(rows))
    found = [run.record(embedding, forward_s=entries.embedding[0], backward_s=backward_s)]
    for shape, times in ((layer, entries.layer), (final_norm, entries.final_norm), (head, entries.head)):
        if times is not None:
            found.append(run.record(shape, forward_s=times[0], backward_s=times[1]))
    harvest.records += found


def _times(value: object, where: str) -> LayerRow:
    times = json_list(value, where)
    if len(times) != 3:
        raise InputError(f"has {len(times)} numbers, not 3", where=where, hint="forward, backward, update")
    forward_s, backward_s, update_s = (json_number(time, where) for time in times)
    return forward_s, backward_s, update_s


def _degree(text: str, where: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 7 and int(text) > 0):
        raise InputError(f"the key {text[:40]!r} is no positive whole number", where=where)
    return int(text)
