"""Islands, ranks and idle GPUs of a plan: is every GPU real, in its place, and counted once?"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from tangram.plan.schema import GpuSlot, IslandSection, RankSlot
from tangram.plan.violation import Facts, StageFacts, Violation, Violations

Slot = tuple[str, int]


def check_gpus(facts: Facts) -> Violations:
    """Checks that islands are disjoint and even, ranks bijective, and every GPU used or idle exactly once."""
    yield from _islands(facts)
    used: dict[Slot, str] = {}
    next_rank = 0
    for item in facts.stages:
        yield from _ranks(facts, item, next_rank, used)
        next_rank += len(item.stage.ranks)
    yield from _bridges(facts)
    idle: dict[Slot, str] = {}
    yield from _idle(facts, used, idle)
    yield from _unaccounted(facts, used.keys() | idle.keys())


def _bridges(facts: Facts) -> Violations:
    """Bridges join all GPUs of a node, each once, in groups of one size."""
    for idx, node in enumerate(facts.doc.cluster.nodes):
        if node.bridge is None:
            continue
        joined = sorted(gpu_idx for group in node.bridge.groups for gpu_idx in group)
        sizes = {len(group) for group in node.bridge.groups}
        if joined != list(range(node.num_gpus)) or len(sizes) != 1:
            yield Violation(
                "bridge-groups",
                f"cluster.nodes[{idx}].bridge.groups",
                f"must hold the GPUs 0 to {node.num_gpus - 1} once each, in groups of one size",
            )


def _islands(facts: Facts) -> Violations:
    home: dict[str, str] = {}
    for idx, island in enumerate(facts.doc.islands):
        where = f"islands[{idx}]"
        if island is not facts.islands[island.name]:
            yield Violation("island-twice", f"{where}.name", f"{island.name!r} is defined twice")
        if not island.nodes:
            yield Violation("island-empty", f"{where}.nodes", f"{island.name!r} has no nodes")
        for node_idx, name in enumerate(island.nodes):
            place = f"{where}.nodes[{node_idx}]"
            if name in home:
                yield Violation(
                    "island-node-twice", place, f"node {name!r} is already in island {home[name]!r}"
                )
            home.setdefault(name, island.name)
            node = facts.nodes.get(name)
            if node is None:
                yield Violation("node-unknown", place, _unknown_node(name, facts))
            elif node.num_gpus != island.gpus_per_node:
                yield Violation(
                    "island-node-size",
                    place,
                    f"node {name!r} has {node.num_gpus} GPUs, and the island {island.gpus_per_node} per node",
                )
        yield from _evenness(facts, island, where)


def _evenness(facts: Facts, island: IslandSection, where: str) -> Violations:
    """Compute, memory and intra-node links may differ by the plan's tolerances."""
    nodes = [facts.nodes[name] for name in island.nodes if name in facts.nodes]
    parts = [facts.parts[name] for name in dict.fromkeys(n.gpu for n in nodes) if name in facts.parts]
    if not parts:
        return
    if island.gpu not in {part.name for part in parts}:
        legal = " or ".join(part.name for part in parts)
        yield Violation("island-gpu", f"{where}.gpu", f"is {island.gpu!r}; its nodes have {legal}")
    precision = facts.doc.job.precision
    quantities = {
        "compute": [part.achieved_flop_per_s.get(precision, 0.0) for part in parts],
        "memory": [float(part.usable_memory_bytes) for part in parts],
        "intra": [node.intra_bandwidth_bytes_per_s for node in nodes],
    }
    for name, values in quantities.items():
        tolerance = facts.doc.tolerances.get(name, 0.0)
        tolerance = inf if tolerance is None else tolerance
        # Equal values (above all: none at all in this precision) are even whatever the tolerance.
        if max(values) > min(values) * (1 + tolerance) * (1 + 1e-9):
            yield Violation(
                "island-uneven",
                f"{where}.nodes",
                f"{name} of island {island.name!r} lies between {min(values):g} and {max(values):g}; "
                f"its tolerance of {tolerance:g} does not allow that",
            )


def _ranks(facts: Facts, item: StageFacts, first_rank: int, used: dict[Slot, str]) -> Violations:
    island = facts.islands.get(item.stage.island)
    if island is None:
        known = ", ".join(facts.islands) or "none"
        yield Violation(
            "stage-island-unknown",
            f"{item.where}.island",
            f"{item.stage.island!r} is not defined; known: {known}",
        )
    home = set(island.nodes) if island else None
    for idx, slot in enumerate(item.stage.ranks):
        where = f"{item.where}.ranks[{idx}]"
        if slot.rank != first_rank + idx:
            yield Violation(
                "ranks-not-consecutive",
                f"{where}.rank",
                f"is {slot.rank}; ranks count on over the stages, so {first_rank + idx} is due",
            )
        yield from _slot(facts, slot, where)
        if home is not None and slot.node in facts.nodes and slot.node not in home:
            yield Violation(
                "stage-outside-island",
                f"{where}.node",
                f"node {slot.node!r} is not in island {item.stage.island!r}: {_few(sorted(home))}",
            )
        key = (slot.node, slot.gpu_idx)
        if key in used:
            yield Violation(
                "gpu-used-twice",
                where,
                f"GPU {slot.gpu_idx} of node {slot.node!r} is already used by {used[key]}",
            )
        used.setdefault(key, where)


def _slot(facts: Facts, slot: RankSlot | GpuSlot, where: str) -> Violations:
    node = facts.nodes.get(slot.node)
    if node is None:
        yield Violation("node-unknown", f"{where}.node", _unknown_node(slot.node, facts))
        return
    if slot.gpu_idx >= node.num_gpus:
        yield Violation(
            "gpu-idx-out-of-range",
            f"{where}.gpu_idx",
            f"is {slot.gpu_idx}; node {slot.node!r} has GPUs 0 to {node.num_gpus - 1}",
        )
    if isinstance(slot, RankSlot) and slot.gpu != node.gpu:
        yield Violation(
            "gpu-part-differs",
            f"{where}.gpu",
            f"is {slot.gpu!r}; the GPUs of node {slot.node!r} are {node.gpu!r}",
        )


def _idle(facts: Facts, used: dict[Slot, str], idle: dict[Slot, str]) -> Violations:
    for idx, group in enumerate(facts.doc.idle):
        where = f"idle[{idx}]"
        if group.count != len(group.gpus):
            yield Violation(
                "idle-count", f"{where}.count", f"is {group.count}; {len(group.gpus)} GPUs are listed"
            )
        island = facts.islands.get(group.island)
        if island is None:
            known = ", ".join(facts.islands) or "none"
            yield Violation(
                "idle-island", f"{where}.island", f"{group.island!r} is not defined; known: {known}"
            )
        home = set(island.nodes) if island else None
        for slot_idx, slot in enumerate(group.gpus):
            place = f"{where}.gpus[{slot_idx}]"
            yield from _slot(facts, slot, place)
            key = (slot.node, slot.gpu_idx)
            if home is not None and slot.node in facts.nodes and slot.node not in home:
                yield Violation(
                    "idle-island", f"{place}.node", f"node {slot.node!r} is not in island {group.island!r}"
                )
            if key in used:
                yield Violation(
                    "idle-gpu-used", place, f"GPU {slot.gpu_idx} of node {slot.node!r} is used by {used[key]}"
                )
            if key in idle:
                yield Violation(
                    "idle-gpu-twice",
                    place,
                    f"GPU {slot.gpu_idx} of node {slot.node!r} is already listed at {idle[key]}",
                )
            idle.setdefault(key, place)


def _unaccounted(facts: Facts, known: Iterable[Slot]) -> Violations:
    by_node: dict[str, set[int]] = {}
    for name, gpu_idx in known:
        by_node.setdefault(name, set()).add(gpu_idx)
    for idx, node in enumerate(facts.doc.cluster.nodes):
        found = {g for g in by_node.get(node.name, ()) if g < node.num_gpus}
        if len(found) < node.num_gpus:
            first = next(g for g in range(node.num_gpus) if g not in found)
            yield Violation(
                "gpus-unaccounted",
                f"cluster.nodes[{idx}]",
                f"{node.num_gpus - len(found)} of {node.num_gpus} GPUs of {node.name!r} are unaccounted for; "
                f"the first is GPU {first}",
            )


def _unknown_node(name: str, facts: Facts) -> str:
    return f"node {name!r} is not in the cluster, whose nodes are {_few(list(facts.nodes))}"


def _few(names: list[str]) -> str:
    shown = ", ".join(names[:8])
    return f"{shown} and {len(names) - 8} more" if len(names) > 8 else shown or "none"
