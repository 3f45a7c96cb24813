"""Reads Metis's layer profiles: ``DeviceType.A100_tp1_bs1.json``; Sailor's: ``A100-40/mbs1_tmp1.json``.

``execution_time.layer_compute_total_ms``: milliseconds per layer, forward and backward together, of one
micro-batch on one rank, tensor-parallel collectives included. The embedding and the head count as layers.

``model.parameters.parameters_per_layer_bytes`` is compared with the model, so that times are not kept under
the shape of another one. It is of one rank or of the whole layer, at 2 or 4 bytes per parameter.

Left out: memory, which is an estimate of the profiler (the same on almost every GPU); the whole model's
optimizer time; the embedding in files that were converted from Sailor's profiles, where it lacks its backward
pass (they are known by layer times that add up to ``forward_backward_time_ms`` exactly). A last entry
without the LM head's product is a final norm.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path

from tangram.errors import InputError
from tangram.model.atoms import layer_parts
from tangram.model.json_file import parse_json_object
from tangram.model.params import part_params
from tangram.profiles.importers.harvest import (
    Given,
    Harvest,
    file_name,
    json_list,
    json_number,
    json_object,
    read_text,
)
from tangram.profiles.importers.layer_rows import Run, entry_shapes, sort_entries

STACK = "metis"
UPSTREAM = re.compile(r"DeviceType\.(?P<gpu>.+)_tp(?P<tp>\d{1,6})_bs(?P<micro_batch>\d{1,6})\.json")
SAILOR = re.compile(r"mbs(?P<micro_batch>\d{1,6})_tmp(?P<tp>\d{1,6})\.json")

_TOLERANCE = 0.02
_PRECISION_HINT = (
    "arithmetic says tf32 on A100 and GH200, and fp32 on V100, for the files that Sailor published"
)
_CONVERTED = "embeddings without their backward pass"


def read(path: Path, given: Given, harvest: Harvest) -> None:
    """Reads one file; its name says tp and micro-batch.

    Raises:
        InputError: It is not such a file, it contradicts the model, or it does not say which model, GPU or
            precision ran.
    """
    where = file_name(path)
    match = UPSTREAM.fullmatch(path.name) or SAILOR.fullmatch(path.name)
    if match is None:
        raise InputError(
            "the name does not say tp and micro-batch", where=where, hint="DeviceType.<GPU>_tp<T>_bs<B>.json"
        )
    tp, micro_batch = int(match["tp"]), int(match["micro_batch"])
    if min(tp, micro_batch) < 1:
        raise InputError("tp and micro-batch are 1 or more", where=where)
    named = match.groupdict().get("gpu") or path.absolute().parent.name
    data = parse_json_object(read_text(path), where=where)
    about = json_object(_at(data, "model", where), f"{where}: model")
    model_name = about.get("model_name")
    model = given.profiled_model(model_name if isinstance(model_name, str) else None, where, harvest)
    run = Run(
        given.gpu_name(named, where, harvest),
        given.stack or STACK,
        given.precision_or(None, where, _PRECISION_HINT),
        model,
        given.seq_len_of(model, where),
        tp,
        micro_batch,
        f"Metis format, {model_name or model.spec.name}/{named}/{path.name}",
        where,
    )
    _check_params(run, about, where)
    _read_times(run, data, where, harvest)


def _read_times(run: Run, data: Mapping[str, object], where: str, harvest: Harvest) -> None:
    place = f"{where}: execution_time"
    timing = json_object(_at(data, "execution_time", where), place)
    listed = json_list(_at(timing, "layer_compute_total_ms", place), f"{place}.layer_compute_total_ms")
    rows = [
        (json_number(value, f"{place}.layer_compute_total_ms[{idx}]") / 1e3,)
        for idx, value in enumerate(listed)
    ]
    whole_s = (
        json_number(_at(timing, "forward_backward_time_ms", place), f"{place}.forward_backward_time_ms") / 1e3
    )
    entries = sort_entries(rows, run.model, f"{place}.layer_compute_total_ms", harvest)
    embedding, layer, final_norm, head = entry_shapes(run)
    if math.isclose(whole_s, math.fsum(row[0] for row in rows), rel_tol=1e-6):
        harvest.leave_out(_CONVERTED)
    else:
        harvest.records.append(run.record(embedding, forward_backward_s=entries.embedding[0]))
    for shape, times in ((layer, entries.layer), (final_norm, entries.final_norm), (head, entries.head)):
        if times is not None:
            harvest.records.append(run.record(shape, forward_backward_s=times[0]))


def _check_params(run: Run, about: Mapping[str, object], where: str) -> None:
    """Compares the parameters of the first transformer layer."""
    place = f"{where}: model.parameters"
    params = json_object(_at(about, "parameters", f"{where}: model"), place)
    listed = json_list(
        _at(params, "parameters_per_layer_bytes", place), f"{place}.parameters_per_layer_bytes"
    )
    if len(listed) < 2:
        raise InputError(f"has {len(listed)} entries", where=f"{place}.parameters_per_layer_bytes")
    found = json_number(listed[1], f"{place}.parameters_per_layer_bytes[1]")
    spec = run.model.spec
    wanted = sum(part_params(spec, 0, part).total for part in layer_parts(spec.layers[0]))
    legal = [size * wanted / share for size in (2, 4) for share in (1, run.tp)]
    if all(abs(found / size - 1) > _TOLERANCE for size in legal):
        raise InputError(
            f"a layer has {found:,.0f} bytes of parameters, but {spec.name} has {wanted:,} parameters "
            f"per layer (tp {run.tp})",
            where=f"{place}.parameters_per_layer_bytes[1]",
            hint="this is the profile of another model: give --model",
        )


def _at(data: Mapping[str, object], key: str, where: str) -> object:
    if key not in data:
        raise InputError(
            f"the key {key!r} is missing", where=where, hint="this is no profile in Metis's format"
        )
    return data[key]
