"""What every answer of a parallelizer must obey, checked from outside.

The checks trust nothing but the request and the cost model: who made the answer does not matter. Each returns
sentences, one per broken invariant, and an empty list for an answer in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from tangram.cluster.spec import Portion, portions
from tangram.cost.types import BoolArray, IntArray, StageConfig, StageCost
from tangram.job import Recompute
from tangram.model.spec import MoeSpec
from tangram.parallelizers.book import Request, stage_book
from tangram.parallelizers.protocols import (
    OptionTable,
    SlicePlan,
    SliceRequest,
    StageChoice,
    StageTable,
    TableRequest,
)
from tangram.parallelizers.totals import nanoseconds
from tangram.units import format_bytes

TABLE_COLUMNS = (
    "start",
    "stop",
    "max_in_flight",
    "forward_ns",
    "backward_ns",
    "step_ns",
    "config",
    "num_recomputed",
)
"""The arrays of an option table; one row is one option."""


def plan_faults(request: SliceRequest, plan: SlicePlan) -> list[str]:
    """Returns how a slice plan breaks an invariant: coverage, GPUs, degrees, what the user dictates, memory.

    Memory is checked at ``request.in_flight`` on the last stage and one more on each stage in front of it.
    """
    faults = _coverage_faults(request, plan) + _gpu_faults(request, plan)
    book, check = stage_book(request), partial(choice_faults, request)
    for idx, stage in enumerate(plan.stages):
        where = f"stage {idx}: "
        stage_faults = list(book.faults(request.portion, stage, check))
        if not faults and not stage_faults:
            in_flight = request.in_flight + len(plan.stages) - 1 - idx
            stage_faults = _memory_faults(request, stage, in_flight)
        faults += [where + fault for fault in stage_faults]
    return faults


def choice_faults(request: Request, stage: StageChoice) -> list[str]:
    """Returns how one stage breaks an invariant by itself: GPUs, degrees, what the user dictates."""
    faults = _mixture_faults(request, stage)
    if faults:
        return faults
    faults = _portion_faults(request, stage)
    for config in dict.fromkeys(stage.configs):
        own = [*_degree_faults(request, stage, config), *_shape_faults(request, stage, config)]
        own += _pin_faults(request, config)
        faults += [fault for fault in own if fault not in faults]
    return faults + _recompute_faults(request, stage)


def table_faults(
    request: TableRequest, table: OptionTable, planner: StageTable, max_recosted: int | None = None
) -> list[str]:
    """Returns how an option table breaks an invariant.

    Args:
        request: What was asked.
        table: The answer.
        planner: Who answered; turns options into stages.
        max_recosted: Re-cost at most so many options, spread evenly over the table; None re-costs all.
    """
    faults = _column_faults(request, table)
    if faults:
        return faults
    num = len(table.start)
    number = num if max_recosted is None else min(num, max_recosted)
    for idx in np.unique(np.linspace(0, num - 1, number).astype(np.int64)) if number else ():
        faults += [f"option {idx}: {fault}" for fault in _option_faults(request, table, planner, int(idx))]
    return faults


def recost(request: Request, stage: StageChoice, in_flight: int) -> StageCost:
    """Returns what the cost model says of a stage of an answer."""
    return stage_book(request).cost(stage, in_flight)


def _coverage_faults(request: SliceRequest, plan: SlicePlan) -> list[str]:
    if not plan.stages:
        return ["the plan has no stages"]
    faults = []
    position = request.start
    for idx, stage in enumerate(plan.stages):
        if stage.start != position:
            faults.append(f"stage {idx} starts at atom {stage.start} instead of {position}")
        if stage.stop <= stage.start:
            faults.append(f"stage {idx} holds no atoms ({stage.start} to {stage.stop})")
        position = stage.stop
    if position != request.stop:
        faults.append(f"the stages end at atom {position}, the slice at {request.stop}")
    return faults


def _gpu_faults(request: SliceRequest, plan: SlicePlan) -> list[str]:
    used = sum(stage.portion.num_gpus for stage in plan.stages)
    if used > request.portion.num_gpus:
        return [f"the stages use {used} GPUs, the portion has {request.portion.num_gpus}"]
    return []


def _mixture_faults(request: Request, stage: StageChoice) -> list[str]:
    """Returns what is wrong with a stage whose atoms have configurations of their own."""
    configs = stage.atom_configs
    if not configs:
        return []
    if len(configs) != stage.stop - stage.start:
        return [f"{len(configs)} configurations for {stage.stop - stage.start} atoms"]
    faults = []
    if configs[0] != stage.config:
        faults.append(f"its configuration is {stage.config}, that of its first atom {configs[0]}")
    if len({(c.offload_optimizer, c.offload_activations) for c in configs}) > 1:
        faults.append("its atoms differ in what is offloaded")
    atoms = request.atoms[stage.start : stage.stop]
    both_ends = any(atom.is_embedding for atom in atoms) and any(atom.is_head for atom in atoms)
    if request.model.shares_embedding and both_ends and configs[0] != configs[-1]:
        faults.append("embedding and head share a matrix, but not their configuration")
    return faults


def _portion_faults(request: Request, stage: StageChoice) -> list[str]:
    island = request.portion.island
    if stage.portion.island != island:
        return [f"it is on island {stage.portion.island.name}, the portion on {island.name}"]
    if stage.portion not in _legal(request.portion):
        size = f"{stage.portion.num_nodes} x {stage.portion.gpus_per_node}"
        return [f"{size} GPUs are no legal part of the portion"]
    return []


def _degree_faults(request: Request, stage: StageChoice, c: StageConfig) -> list[str]:
    gpus = stage.portion.num_gpus
    faults = []
    if min(c.dp, c.tp, c.cp, c.ep, c.expert_tp) < 1:
        return [f"a degree is below 1: {c}"]
    if c.num_gpus != gpus:
        faults.append(f"dp {c.dp} x tp {c.tp} x cp {c.cp} = {c.num_gpus}, but it has {gpus} GPUs")
    if c.expert_tp not in (1, c.tp) or gpus % (c.ep * c.expert_tp):
        faults.append(f"ep {c.ep} x expert tp {c.expert_tp} does not divide {gpus} GPUs")
    if not 0 <= c.zero <= 3:
        faults.append(f"zero {c.zero} is not 0 to 3")
    if request.micro_batch % c.dp:
        faults.append(f"dp {c.dp} does not divide the micro-batch of {request.micro_batch} samples")
    if c.tp > stage.portion.joined_gpus and not request.job.pins.allow_cross_node_tp:
        faults.append(f"tp {c.tp} spans nodes of {stage.portion.gpus_per_node} GPUs")
    return faults


def _legal(portion: Portion) -> list[Portion]:
    """Returns the legal portions that lie within another one."""
    return [
        p
        for p in portions(portion.island)
        if p.num_nodes <= portion.num_nodes and p.gpus_per_node <= portion.gpus_per_node
    ]


def _shape_faults(request: Request, stage: StageChoice, c: StageConfig) -> list[str]:
    """Returns which widths of the model the degrees of those atoms that have them do not divide."""
    atoms = request.atoms[stage.start : stage.stop]
    held = {i for atom, own in zip(atoms, stage.configs, strict=False) if own == c for i in atom.layer_idxs}
    widths: dict[tuple[str, int, str, int], None] = {}
    for layer in (request.model.layers[i] for i in sorted(held)):
        widths["attention heads", layer.attention.num_heads, "tp", c.tp] = None
        widths["key-value heads", layer.attention.num_kv_heads, "tp", c.tp] = None
        if isinstance(layer.feed_forward, MoeSpec):
            widths["experts", layer.feed_forward.num_experts, "ep", c.ep] = None
            expert_width = layer.feed_forward.expert.intermediate_size
            widths["columns of an expert", expert_width, "expert tp", c.expert_tp] = None
        else:
            widths["feed-forward columns", layer.feed_forward.intermediate_size, "tp", c.tp] = None
    widths["tokens of a sample", request.job.seq_len, "tp x cp", c.tp * c.cp] = None
    return [
        f"{name} {degree} does not divide {width} {what}"
        for (what, width, name, degree) in widths
        if degree < 1 or width % degree
    ]


def _pin_faults(request: Request, c: StageConfig) -> list[str]:
    pins = request.job.pins
    dictated = {"tp": pins.tp, "dp": pins.dp, "cp": pins.cp, "ep": pins.ep, "zero": pins.zero}
    return [
        f"{name} is {getattr(c, name)}, the user dictates {value}"
        for name, value in dictated.items()
        if value is not None and getattr(c, name) != value
    ]


def _recompute_faults(request: Request, stage: StageChoice) -> list[str]:
    atoms = request.atoms[stage.start : stage.stop]
    if len(stage.recomputed) != len(atoms):
        return [f"{len(stage.recomputed)} recompute marks for {len(atoms)} atoms"]
    inner = [m for m, atom in zip(stage.recomputed, atoms, strict=True) if atom.layer_idxs]
    selective = [c.selective for c, atom in zip(stage.configs, atoms, strict=False) if atom.layer_idxs]
    faults = []
    if sum(stage.recomputed) > sum(inner):
        faults.append("the embedding or the head is marked for recomputation")
    pinned = request.job.pins.recompute
    agrees = {
        None: True,
        Recompute.NONE: not any(inner) and not any(selective),
        Recompute.SELECTIVE: not any(inner) and all(selective),
        Recompute.FULL: all(inner),
    }
    if not agrees[pinned]:
        faults.append(f"its recomputation is not {pinned}, as the user dictates")
    return faults


def _memory_faults(request: Request, stage: StageChoice, in_flight: int) -> list[str]:
    cost = recost(request, stage, in_flight)
    if cost.peak_bytes <= cost.capacity_bytes:
        return []
    over = format_bytes(cost.peak_bytes - cost.capacity_bytes)
    percent = f"{100 * (cost.upper_ratio - 1):.3g} %"
    margin = f" and a margin of {percent} on all but model states" if cost.upper_ratio > 1 else ""
    return [f"it needs {over} more than a GPU has with {in_flight} micro-batches in flight{margin}"]


def _column_faults(request: TableRequest, table: OptionTable) -> list[str]:
    lengths = {name: len(getattr(table, name)) for name in TABLE_COLUMNS}
    if len(set(lengths.values())) > 1:
        return [f"the columns differ in length: {lengths}"]
    if not lengths["start"]:
        return []
    time_ns = table.forward_ns + table.backward_ns
    rules: tuple[tuple[str, BoolArray], ...] = (
        ("the slice was not asked for", ~_asked_for(request, table.start, table.stop)),
        (
            "a time is below 1 ns",
            np.minimum(np.minimum(table.forward_ns, table.backward_ns), table.step_ns) < 1,
        ),
        ("it fits no micro-batch in flight", table.max_in_flight < 1),
        ("it is slower than the request allows", time_ns > np.ceil(request.max_time_s * 1e9)),
        ("it names no configuration", (table.config < 0) | (table.config >= len(table.configs))),
    )
    return [f"option {int(np.argmax(bad))}: {what}" for what, bad in rules if np.any(bad)]


def _asked_for(request: TableRequest, start: IntArray, stop: IntArray) -> BoolArray:
    """Returns per option whether its slice was asked for."""
    num = len(request.atoms)
    asked: BoolArray = (start >= 0) & (start < stop) & (stop <= num)
    if request.slices is not None:
        keys = np.array([a * (num + 1) + b for a, b in request.slices], dtype=np.int64)
        asked &= np.isin(start * (num + 1) + stop, keys)
    return asked


def _option_faults(request: TableRequest, table: OptionTable, planner: StageTable, idx: int) -> list[str]:
    stage = planner.choice(request, table, idx)
    faults = choice_faults(request, stage)
    slice_ = (int(table.start[idx]), int(table.stop[idx]))
    if (stage.start, stage.stop) != slice_:
        faults.append(f"its stage is {stage.start} to {stage.stop}, not {slice_[0]} to {slice_[1]}")
    if stage.portion != request.portion:
        faults.append("its stage is not on the portion that was asked about")
    if faults:
        return faults
    in_flight = int(table.max_in_flight[idx])
    cost = recost(request, stage, in_flight)
    said = np.array([table.forward_ns[idx], table.backward_ns[idx], table.step_ns[idx]])
    recosted = nanoseconds(np.array([cost.forward_s, cost.backward_s, cost.step_s]))
    if np.abs(said - recosted).max() > 1:  # The last nanosecond depends on the order of the sums.
        faults.append(f"its times are {said.tolist()} ns, re-costed {recosted.tolist()} ns")
    return faults + _memory_faults(request, stage, in_flight)


def request_text(request: Request) -> str:
    """Returns a request in a few words, for messages."""
    portion = request.portion
    where = f"{portion.num_nodes} x {portion.gpus_per_node} {portion.island.name}"
    what = "all slices"
    if isinstance(request, SliceRequest):
        what = f"atoms {request.start} to {request.stop}, {request.in_flight} in flight"
    return f"{request.model.name}, {what}, on {where}, micro-batch {request.micro_batch}"


def faults_text(faults: Sequence[str], most: int = 3) -> str:
    """Returns the first faults in one line."""
    more = f"; and {len(faults) - most} more" if len(faults) > most else ""
    return "; ".join(faults[:most]) + more
