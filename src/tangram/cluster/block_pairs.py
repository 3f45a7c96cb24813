"""Which pairs of blocks form an island together: the conditions on islands, for all pairs at once.

The conditions are those of :mod:`tangram.cluster.islands`; :mod:`tangram.cluster.grouping` uses this to
join blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tangram.cluster.classes import ClassNetwork, NodeClass, bridge_kind
from tangram.cluster.tolerances import BoolArray, FloatArray, Tolerances, all_alike


@dataclass(frozen=True, slots=True)
class BlockPairs:
    """All pairs of blocks; arrays have the shape ``(blocks, blocks)`` and are symmetric.

    Attributes:
        possible: Whether the two blocks satisfy all conditions as one island.
        slowest_bytes_per_s: The slowest link between a node of the one and a node of the other.
        latency_s: The largest latency between them.

    The diagonals of the last two describe links within a block.
    """

    possible: BoolArray
    slowest_bytes_per_s: FloatArray
    latency_s: FloatArray


def pair_up(
    blocks: Sequence[Sequence[int]],
    classes: Sequence[NodeClass],
    network: ClassNetwork,
    tolerances: Tolerances,
) -> BlockPairs:
    """Judges all pairs of blocks.

    Args:
        blocks: Indices of the classes of each block; together they are all classes, each once. The nodes of
            one block are alike.
        classes: The classes.
        network: The links between them.
        tolerances: How unequal an island may be.
    """
    order = np.concatenate([np.asarray(block, dtype=np.intp) for block in blocks])
    starts = np.cumsum([0, *(len(block) for block in blocks[:-1])])
    by_block = np.ix_(order, order)
    exists, rate = network.exists[by_block], network.bandwidth_bytes_per_s[by_block]
    # From each class to each block: shape (classes, blocks).
    slowest = np.minimum.reduceat(np.where(exists, rate, np.inf), starts, axis=1)
    fastest = np.maximum.reduceat(np.where(exists, rate, 0.0), starts, axis=1)
    latency = np.maximum.reduceat(np.where(exists, network.latency_s[by_block], 0.0), starts, axis=1)
    home = np.repeat(np.arange(len(blocks)), [len(block) for block in blocks])
    near = np.logical_and.reduceat(_near(slowest, fastest, home), starts, axis=0)
    low, high = np.minimum.reduceat(slowest, starts, axis=0), np.maximum.reduceat(fastest, starts, axis=0)
    even = all_alike(_as_one(np.minimum, low), _as_one(np.maximum, high), tolerances.network)
    alike = _nodes_alike([classes[idx] for idx in order], starts, tolerances)
    possible = near & near.T & even & alike
    np.fill_diagonal(possible, False)
    return BlockPairs(possible, low, np.maximum.reduceat(latency, starts, axis=0))


def _near(slowest: FloatArray, fastest: FloatArray, home: np.ndarray) -> BoolArray:
    """Condition (3), seen from each class towards each block that its own may be joined with."""
    rows = np.arange(len(home))
    inside = np.minimum(slowest, slowest[rows, home][:, None])
    outside = fastest.copy()
    outside[rows, home] = 0.0
    # The fastest link to any third block: the fastest of all, or the next where that is the partner.
    best = outside.argmax(axis=1)
    first = outside[rows, best]
    outside[rows, best] = 0.0
    third = np.repeat(first[:, None], slowest.shape[1], axis=1)
    third[rows, best] = outside.max(axis=1)
    near: BoolArray = inside >= third
    return near


def _as_one(extreme: np.ufunc, between: FloatArray) -> FloatArray:
    """The extreme link of a pair as one island: between the two blocks, or within either."""
    within = np.diagonal(between)
    found: FloatArray = extreme(between, extreme.outer(within, within))
    return found


def _nodes_alike(classes: Sequence[NodeClass], starts: np.ndarray, tolerances: Tolerances) -> BoolArray:
    """Conditions (1) and (2)."""
    nodes = [node_class.first for node_class in classes]
    bridges = [bridge_kind(node) for node in nodes]
    kinds: dict[tuple[int, str, int], int] = {}
    keys = [(n.num_gpus, n.gpu.vendor, size) for n, (size, *_) in zip(nodes, bridges, strict=True)]
    kind = np.array([kinds.setdefault(key, len(kinds)) for key in keys])[starts]
    same: BoolArray = kind[:, None] == kind[None, :]
    for values, limit in (
        ([node_class.rate_flop_per_s for node_class in classes], tolerances.compute),
        ([float(n.gpu.usable_memory_bytes) for n in nodes], tolerances.memory),
        ([n.intra_bandwidth_bytes_per_s for n in nodes], tolerances.intra),
        ([rate for _, rate, *_ in bridges], tolerances.intra),
    ):
        low = np.minimum.reduceat(np.array(values), starts)
        high = np.maximum.reduceat(np.array(values), starts)
        same &= all_alike(np.minimum.outer(low, low), np.maximum.outer(high, high), limit)
    return same
