"""Says in words why an island ends where it ends."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tangram.cluster.classes import bridge_kind
from tangram.cluster.grouping import Block, Grouping
from tangram.cluster.tolerances import alike
from tangram.job import Precision
from tangram.units import format_bandwidth

MAX_REASONS = 8
"""Sentences per island; the boundaries to further islands are only counted."""


def reasons(
    grouping: Grouping, blocks: Sequence[Block], at: int, labels: Sequence[str], precision: Precision
) -> tuple[str, ...]:
    """Returns one sentence per boundary of a block; none when it is the whole cluster.

    Args:
        grouping: Classes, network and tolerances.
        blocks: All blocks.
        at: Index of the block.
        labels: A name for each block: of its only island, or of the first of its islands.
        precision: The job's.
    """
    block = blocks[at]
    found: list[str] = []
    if grouping.classes[block.members[0]].rate_flop_per_s == 0:
        parts = dict.fromkeys(grouping.classes[idx].first.gpu.name for idx in block.members)
        found.append(f"without {precision} arithmetic, so of no use to the job: {', '.join(parts)}")
    if not block.whole:
        found.append(_alone(grouping, block))
    others = [other for other in range(len(blocks)) if other != at]
    for position, other in enumerate(others):
        if len(found) >= MAX_REASONS:
            found.append(f"and so on for {len(others) - position} more islands")
            break
        sentence = _boundary(grouping, blocks, at, other, labels)
        if sentence not in found:
            found.append(sentence)
    return tuple(found)


def _boundary(grouping: Grouping, blocks: Sequence[Block], at: int, other: int, labels: Sequence[str]) -> str:
    here, there = labels[at], labels[other]
    differences = _differences(grouping, blocks[at], blocks[other])
    if differences:
        return f"{here} differs from {there}: {', '.join(differences)}"
    union = [*blocks[at].members, *blocks[other].members]
    between = _links(grouping, blocks[at], blocks[other])
    if between.size == 0:
        return f"{here} and {there} are one host, which no network link joins"
    slow = f"links to {there} reach {format_bandwidth(float(between.min()))}"
    if not grouping.links_even(union):
        fastest = float(grouping.inner_links(union).max())
        if fastest > between.min():
            factor = fastest / float(between.min())
            return f"{slow}, {_ratio(factor)}x slower than the {format_bandwidth(fastest)} inside"
        return f"{slow}, faster than the links inside"
    rival = _nearer(grouping, blocks, at, other)
    if rival is not None:
        who, rate = rival
        return f"{slow}, less than the {format_bandwidth(rate)} to {labels[who]}"
    return f"{there} is linked no slower to others than to {here}"


def _differences(grouping: Grouping, block: Block, other: Block) -> list[str]:
    """What keeps the nodes of two blocks apart, each with its ratio (the larger over the smaller)."""
    ours = [grouping.classes[idx] for idx in block.members]
    theirs = [grouping.classes[idx] for idx in other.members]
    a, b = ours[0].first, theirs[0].first
    found = []
    if a.num_gpus != b.num_gpus:
        found.append(f"{a.num_gpus} against {b.num_gpus} GPUs per node")
    if a.gpu.vendor != b.gpu.vendor:
        found.append(f"{a.gpu.vendor} against {b.gpu.vendor}")
    bridged, others = bridge_kind(a)[0], bridge_kind(b)[0]
    if bridged != others:
        found.append(f"{_groups(bridged)} against {_groups(others)}")
    limits = grouping.tolerances
    both = [*ours, *theirs]
    for what, values, limit in (
        ("compute", [c.rate_flop_per_s for c in both], limits.compute),
        ("memory", [float(c.first.gpu.usable_memory_bytes) for c in both], limits.memory),
        ("intra-node links", [c.first.intra_bandwidth_bytes_per_s for c in both], limits.intra),
        ("bridges", [bridge_kind(c.first)[1] for c in both if bridged == others], limits.intra),
    ):
        if not values:
            continue
        low, high = min(values), max(values)
        if low == 0 and high > 0:
            found.append("the job's precision")
        elif not alike(low, high, limit):
            found.append(f"{what} {_ratio(high / low)}x")
    return found


def _groups(size: int) -> str:
    return {1: "no bridges", 2: "bridges over pairs"}.get(size, f"bridges over {size} GPUs")


def _ratio(ratio: float) -> str:
    """One digit after the point where it says something, or as many as tell the ratio from 1."""
    if ratio >= 100:
        return f"{ratio:.0f}"
    return f"{ratio:.1f}" if ratio >= 1.15 else f"{ratio:.3g}"


def _links(grouping: Grouping, block: Block, other: Block) -> np.ndarray:
    across = np.ix_(block.members, other.members)
    links: np.ndarray = grouping.network.bandwidth_bytes_per_s[across][grouping.network.exists[across]]
    return links


def _nearer(grouping: Grouping, blocks: Sequence[Block], at: int, other: int) -> tuple[int, float] | None:
    """The third block that this one is linked to fastest, if faster than to ``other``, and the bandwidth."""
    rows = list(blocks[at].members)
    rates = np.where(grouping.network.exists[rows], grouping.network.bandwidth_bytes_per_s[rows], 0.0).max(
        axis=0
    )
    rates[[*rows, *blocks[other].members]] = 0.0
    fastest = int(rates.argmax())
    if rates[fastest] <= _links(grouping, blocks[at], blocks[other]).min():
        return None
    third = next(idx for idx, block in enumerate(blocks) if fastest in block.members)
    return third, float(rates[fastest])


def _alone(grouping: Grouping, block: Block) -> str:
    """Why the nodes of one class each stand alone: they are nearer to others than to each other."""
    idx = block.members[0]
    name = grouping.classes[idx].first.gpu.name
    network = grouping.network
    among = float(network.bandwidth_bytes_per_s[idx, idx])
    out = np.where(network.exists[idx], network.bandwidth_bytes_per_s[idx], 0.0)
    out[idx] = 0.0
    return (
        f"its nodes of {name} stand alone: {format_bandwidth(among)} among them, "
        f"{format_bandwidth(float(out.max()))} to others"
    )
