"""Reads the files that Sailor itself plans from (github.com/eth-easl/sailor), as parsed JSON.

A layer profile has seconds per (micro-batch, tp, layer): forward, backward, update (one figure for all
layers). ``llm_info.json`` has element counts per (tp, layer). ``multizone_bandwidths_het.json`` has, for
sender (zone, type, GPUs at once) and receiver, a fitted rate and the largest one. Training is in fp32: 4
bytes an element, and per parameter 24: weight 4, gradient 4, Adam's moments 8, buffers of the all-reduce 4,
DeepSpeed's copy at the start 4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tangram.baselines.sailor.profile import (
    Curve,
    Endpoint,
    GpuProfile,
    LayerSizes,
    LayerTimes,
    Link,
    SailorProblem,
    Zone,
)
from tangram.baselines.sailor.rules import PUBLISHED_FIXED_BYTES, PUBLISHED_TPS, STATE_BYTES_PER_PARAM
from tangram.profiles.importers.harvest import json_list, json_number, json_object
from tangram.profiles.importers.sailor import profile_rows
from tangram.units import GIB

FLOAT_BYTES = 4
_STEEPEST = 1e6

MEASURED_BYTES = (float(2**16), float(2**30))
"""Smallest and largest message that the rates were fitted to."""

PREDICTED_FIXED_BYTES = 5.06e9
"""The same in the prediction that the paper validates (fused kernels 4.76e9, 0.3e9 more)."""


@dataclass(frozen=True, slots=True)
class SailorFiles:
    """The parsed files for one model.

    Attributes:
        layer_profiles: By type of GPU, ``profile.json``.
        llm_info: The model's part of ``llm_info.json``.
        network: ``multizone_bandwidths_het.json``.
        memory_gib: By type of GPU.
    """

    layer_profiles: Mapping[str, Mapping[str, object]]
    llm_info: Mapping[str, object]
    network: Mapping[str, object]
    memory_gib: Mapping[str, float]


@dataclass(slots=True)
class FittedNetwork:
    """Sailor's table of fitted rates; entries are read when they are asked for."""

    table: Mapping[str, object]
    zones: Sequence[str]
    gpus: Sequence[str]
    defects: bool
    _links: dict[tuple[Endpoint, Endpoint], Link]

    def link(self, sender: Endpoint, receiver: Endpoint) -> Link:
        """Returns a fit.

        Raises:
            InputError: The table has none.
        """
        key = sender, receiver
        if key not in self._links:
            entry: object = self.table
            path = "network"
            for end in key:
                for part in (self.zones[end.zone], self.gpus[end.gpu], str(end.lanes)):
                    entry = json_object(entry, path).get(part)
                    path += f".{part}"
            fit, peak = json_list(entry, path)
            coefficients = tuple(json_number(value, path, least=-_STEEPEST) for value in json_list(fit, path))
            limits = None if self.defects else MEASURED_BYTES
            self._links[key] = Curve(coefficients, json_number(peak, path), limits)
        return self._links[key]


def published_problem(
    files: SailorFiles, zones: Mapping[str, Mapping[str, int]], global_batch: int, *, defects: bool
) -> SailorProblem:
    """Returns the question as Sailor's own program reads it.

    Args:
        files: Of the model.
        zones: GPUs per zone and type; a zone ``us-west1-b`` is in the region ``us-west1``.
        global_batch: Samples per step.
        defects: Whether memory and rates are taken as in the published program.

    Raises:
        InputError: A file is not as expected, or lacks what is asked.
    """
    names = sorted({gpu for counts in zones.values() for gpu in counts})
    sizes = {tp: _sizes(files, tp, defects=defects) for tp in PUBLISHED_TPS}
    whole = _column(files, 1, "params_floats")
    return SailorProblem(
        gpus=tuple(_gpu(files, name, sizes) for name in names),
        network=FittedNetwork(files.network, list(zones), names, defects, {}),
        gradient_bytes=tuple(FLOAT_BYTES * count for count in whole),
        output_bytes=tuple(FLOAT_BYTES * count for count in _column(files, 1, "act_output_floats")),
        zones=tuple(
            Zone(zone, "-".join(zone.split("-")[:2]), tuple(counts.get(name, 0) for name in names))
            for zone, counts in zones.items()
        ),
        global_batch=global_batch,
    )


def _gpu(files: SailorFiles, name: str, sizes: Mapping[int, LayerSizes]) -> GpuProfile:
    times = {}
    for micro_batch, tp, rows in profile_rows(files.layer_profiles[name], name):
        forward_s, backward_s, update_s = zip(*rows, strict=True)
        times[micro_batch, tp] = LayerTimes(forward_s, backward_s, (max(update_s),) * len(rows))
    capacity_bytes = files.memory_gib[name] * GIB
    return GpuProfile(name, capacity_bytes, STATE_BYTES_PER_PARAM, times, sizes)


def _sizes(files: SailorFiles, tp: int, *, defects: bool) -> LayerSizes:
    return LayerSizes(
        params=_column(files, tp, "params_floats"),
        activation_bytes=tuple(FLOAT_BYTES * count for count in _column(files, tp, "act_mem_floats")),
        fixed_bytes=PUBLISHED_FIXED_BYTES[tp] if defects else PREDICTED_FIXED_BYTES,
    )


def _column(files: SailorFiles, tp: int, name: str) -> tuple[float, ...]:
    layers = json_object(files.llm_info.get(str(tp)), f"llm_info.{tp}")
    rows = [json_object(layers.get(str(idx)), f"llm_info.{tp}.{idx}") for idx in range(len(layers))]
    return tuple(json_number(row.get(name), f"llm_info.{tp}.{idx}.{name}") for idx, row in enumerate(rows))
