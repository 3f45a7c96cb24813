"""When nothing fits: which part, by how many GiB, and what would help, ranked by what it costs.

Repairs are not guessed: each one is planned (quick search), and only those that fit are named, fastest first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tangram.cluster.islands import build_islands
from tangram.cluster.spec import Cluster, Island, Node
from tangram.cost.constants import upper_memory_ratio
from tangram.errors import InfeasibleError
from tangram.job import Job, OptimizerSpec, Pins, Precision
from tangram.planner.search import Search
from tangram.planner.space import search_space
from tangram.units import NS_PER_S, format_bytes, format_duration

_MAX_REPAIRS = 3
_REPAIR_LATTICE = 1500

# What a user can pin and do without, in words.
_PINS = {
    "micro_batch": "micro-batch",
    **{name: name for name in ("tp", "pp", "dp", "cp", "ep", "zero", "recompute")},
    "layers_per_stage": "layers per stage",
}


@dataclass(frozen=True, slots=True)
class Repair:
    """A change that makes the job fit, and the time it then takes; repairs rank by time per token."""

    text: str
    iteration_ns: int
    ns_per_token: float


def infeasible(search: Search) -> InfeasibleError:
    """Builds the refusal for a search that found nothing."""
    message, details = _binding(search)
    repairs = sorted(_repairs(search), key=lambda r: (r.ns_per_token, r.text))[:_MAX_REPAIRS]
    lines = [f"{r.text}: {format_duration(r.iteration_ns / NS_PER_S)} per step (predicted)" for r in repairs]
    if not lines:
        details += ["no single change tried here is enough: more GPUs, or GPUs with more memory, are needed"]
    return InfeasibleError(message, details=details, repairs=lines)


def _binding(search: Search) -> tuple[str, list[str]]:
    """The constraint that rules plans out: states in all, else the largest atom, else what comes on top of
    states.
    """
    smallest = min(search.sizes, key=lambda s: s.size)
    ref = smallest.reference
    states = ref.total_state_bytes
    ratio = upper_memory_ratio(search.job.basis)
    islands = search.space.islands
    usable = sum(float(i.gpu.usable_memory_bytes) * i.num_gpus for i in islands)
    beside = ref.num_gpus * ref.usable_bytes  # What the least reserve leaves to states.
    job, model = search.job, search.model
    kept = job.precision.element_bytes + job.optimizer.gradient_bytes + job.optimizer.state_bytes
    if not job.precision.is_mixed:
        kept = 2 * job.precision.element_bytes + job.optimizer.moment_bytes
    details = [
        f"model states of {model.name}: {format_bytes(states)} ({kept} bytes per parameter)",
        f"usable memory: {format_bytes(usable)} on {search.space.num_gpus} GPUs",
        f"least reserve: {format_bytes(usable - float(beside.sum()))}{_counting(ratio)}",
    ]
    details += [f"{island.gpu.name} is not counted: {reason}" for island, reason in search.space.excluded]
    if states > usable:
        return f"model states alone exceed the memory of all GPUs by {format_bytes(states - usable)}", details
    if states > float(beside.sum()):
        over = format_bytes(states - float(beside.sum()))
        return f"model states exceed what all GPUs have beside their reserve by {over}", details
    largest_idx = int(ref.state_bytes.argmax())
    atom_bytes = float(ref.state_bytes[largest_idx])
    if atom_bytes > beside.max():
        message = (
            f"atom {largest_idx} alone needs {format_bytes(atom_bytes)} of model states; the largest island "
            f"has {format_bytes(float(beside.max()))} beside its reserve"
        )
        return message, details
    covered, short = search.coverage(smallest)
    total = len(search.atoms)
    details.append(
        f"counted at micro-batch {smallest.size}, the smallest, with the most recomputation allowed"
    )
    details += search.rejections[:3]
    pins = _pins_text(job.pins)
    if pins:
        details.append(f"pinned: {pins}")
    what = "with what is pinned, " if pins else ""
    others = "activations, workspace and reserve"
    if ratio > 1:
        others = f"activations, workspace, reserve and a margin of {_percent(ratio)} on these"
    message = f"{what}model states fit, but not together with {others}"
    if not pins:
        message += (
            f": {total - covered} of {total} atoms (layers and ends of the model) with "
            f"{format_bytes(short)} of states find no room"
        )
    return message, details


def _counting(ratio: float) -> str:
    return f", with a margin of {_percent(ratio)} (--memory-margin)" if ratio > 1 else ""


def _percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):.3g} %"


def _repairs(search: Search) -> Iterator[Repair]:
    job = search.job
    yield from _without_pins(search)
    several_nodes = any(island.num_nodes > 1 for island in search.space.islands)
    for text, changed in _job_changes(job, several_nodes=several_nodes):
        yield from _planned(search, text, search.cluster, changed, search.space.islands)
    for other in _other_precisions(search):
        able = build_islands(search.cluster, other, search.options.tolerances)
        left_out = ", ".join(dict.fromkeys(island.gpu.name for island, _ in search.space.excluded))
        text = f"with --precision {other}, which {left_out} can take part in"
        yield from _planned(search, text, search.cluster, replace(job, precision=other), able)
    for text, cluster, islands in _more_nodes(search):
        yield from _planned(search, text, cluster, job, islands)


def _other_precisions(search: Search) -> list[Precision]:
    """Those of 16 bit that all GPUs have, where the job's leaves some of them out."""
    if not search.space.excluded or not search.job.precision.is_mixed:
        return []
    every = [node.gpu for node in search.cluster.nodes]
    others = (Precision.BF16, Precision.FP16)
    return [p for p in others if p is not search.job.precision and all(gpu.supports(p) for gpu in every)]


def _without_pins(search: Search) -> Iterator[Repair]:
    """The job without one of what is pinned; only where none of that is enough, without all of it."""
    job = search.job
    named = [name for name in _PINS if getattr(job.pins, name) is not None]
    found: list[Repair] = []
    for name in named:
        without: dict[str, Any] = {name: None}
        alone: dict[str, Any] = {name: getattr(job.pins, name)}
        found += _freed(search, _pins_text(Pins(**alone)), replace(job.pins, **without))
    if not found and len(named) > 1:
        left = Pins(allow_cross_node_tp=job.pins.allow_cross_node_tp, offload=job.pins.offload)
        found += _freed(search, _pins_text(job.pins), left)
    yield from found


def _freed(search: Search, text: str, left: Pins) -> Iterator[Repair]:
    freed = replace(search.job, pins=left)
    return _planned(search, f"without the pinned {text}", search.cluster, freed, search.space.islands)


def _job_changes(job: Job, *, several_nodes: bool) -> Iterator[tuple[str, Job]]:
    pins, optimizer = job.pins, job.optimizer
    if pins.offload == "none":
        yield (
            "with --offload optimizer (states in host memory)",
            replace(job, pins=replace(pins, offload="optimizer")),
        )
        yield (
            "with --offload both (states and activations in host memory)",
            replace(job, pins=replace(pins, offload="both")),
        )
    if optimizer.gradient_bytes > 2 and job.precision.is_mixed:
        smaller = OptimizerSpec(optimizer.name, 2, optimizer.master_bytes, optimizer.moment_bytes)
        yield "with --gradient-bytes 2 (16-bit gradients)", replace(job, optimizer=smaller)
    if several_nodes and not pins.allow_cross_node_tp:
        yield "with --allow-cross-node-tp", replace(job, pins=replace(pins, allow_cross_node_tp=True))
    if job.seq_len % 2 == 0 and job.seq_len >= 2048:
        yield f"with --seq-len {job.seq_len // 2}, half the tokens", replace(job, seq_len=job.seq_len // 2)


def _more_nodes(search: Search) -> Iterator[tuple[str, Cluster, list[Island]]]:
    """One or several more nodes of each kind, until model states fit with a quarter to spare."""
    ref = search.sizes[0].reference
    need = 1.25 * ref.total_state_bytes - float((ref.num_gpus * ref.usable_bytes).sum())
    for idx, island in enumerate(search.space.islands):
        per_node = island.gpus_per_node * float(ref.usable_bytes[idx])
        count = max(1, int(-(-need // per_node)))
        if count > 64:
            continue
        nodes = tuple(_copy(island.nodes[-1], number) for number in range(count))
        cluster = replace(search.cluster, nodes=search.cluster.nodes + nodes)
        larger = _grown(island, nodes)
        islands = [larger if k == idx else other for k, other in enumerate(search.space.islands)]
        plural = "" if count == 1 else "s"
        text = f"with {count} more node{plural} of {island.gpus_per_node}x {island.gpu.name}"
        yield text, cluster, islands


def _copy(node: Node, number: int) -> Node:
    name = f"{node.name}+{number + 1}"
    return replace(node, name=name, host=name)


def _grown(island: Island, nodes: tuple[Node, ...]) -> Island:
    between = island.inter_bandwidth_bytes_per_s
    return replace(island, nodes=island.nodes + nodes, inter_bandwidth_bytes_per_s=between)


def _planned(
    search: Search, text: str, cluster: Cluster, job: Job, islands: Sequence[Island]
) -> Iterator[Repair]:
    """Plans a change quickly, on GPUs counted in coarse units; yields it if it fits."""
    space = search_space(islands, job.precision, lattice_limit=_REPAIR_LATTICE)
    options = replace(search.options, effort=search.options.effort.hurried())
    asked = Search(search.model, search.atoms, cluster, job, space, options, queries=search.queries)
    found = asked.run()
    if found is not None:
        tokens = job.global_batch * job.seq_len
        yield Repair(text, found.iteration_ns, found.iteration_ns / tokens)


def _pins_text(pins: Pins) -> str:
    named = []
    for name in _PINS:
        value = getattr(pins, name)
        if value is not None:
            shown = "/".join(map(str, value)) if isinstance(value, tuple) else value
            named.append(f"{_PINS[name]} {shown}")
    return ", ".join(named)
