"""Groups of GPUs: how many GPUs each stage of a pipeline gets.

Sizes are powers of two. Two prunings keep them few (section 3 of the paper): no group is smaller than a share
of the average (``variance``), and only so many blocks of groups are permuted (``max_blocks``): where there
are more, pairs of equal neighbours among the smallest are joined to blocks that stay together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

Block = tuple[int, ...]


def device_groups(num_stages: int, num_gpus: int, variance: float, max_blocks: int) -> Iterator[Block]:
    """Yields the group sizes of all stages, in a fixed order; some come several times.

    Args:
        num_stages: Of the pipeline.
        num_gpus: Of the cluster; all of them are used.
        variance: Least size of a group, as a share of ``num_gpus // num_stages``.
        max_blocks: Blocks that are permuted, where that many pairs can be joined.
    """
    least = max(num_gpus // num_stages, num_stages // num_gpus) * variance
    sizes = [size for size in (1 << i for i in range(num_gpus.bit_length())) if least <= size <= num_gpus]
    for ascending in _multisets(num_stages, num_gpus, sizes):
        for blocks in _permutations(_joined([(size,) for size in ascending], max_blocks)):
            yield tuple(size for block in blocks for size in block)


def _multisets(count: int, total: int, sizes: Sequence[int]) -> Iterator[Block]:
    """Yields all ascending tuples of ``count`` sizes that add up to ``total``."""
    if count == 0:
        if total == 0:
            yield ()
        return
    for at, size in enumerate(sizes):
        if size * count > total:
            return
        if sizes[-1] * (count - 1) + size >= total:
            for rest in _multisets(count - 1, total - size, sizes[at:]):
                yield (size, *rest)


def _joined(blocks: list[Block], max_blocks: int) -> list[Block]:
    """Joins neighbours of the smallest size, pass by pass, until few enough blocks are left or none can be
    joined.

    A pass looks at the pairs (0, 1), (2, 3), ... and joins as many as there are blocks too many, but at least
    half of those that begin the list with equal content.
    """
    excess = len(blocks) - max_blocks
    while excess > 0:
        same = next((i + 1 for i, block in enumerate(blocks) if block != blocks[0]), len(blocks))
        pairs = max(excess, same // 2)
        least = sum(blocks[0])
        joined: list[Block] = []
        for at in range(0, len(blocks), 2):
            pair = blocks[at : at + 2]
            if at // 2 >= pairs:
                joined += blocks[at:]
                break
            if len(pair) == 2 and sum(pair[0]) == sum(pair[1]) == least:
                pair = [pair[0] + pair[1]]
            joined += pair
        blocks = joined
        excess = len(blocks) - max_blocks
        if excess == pairs:  # Nothing left to join, or as many too many as this pass was to join.
            break
    return blocks


def _permutations(blocks: Sequence[Block]) -> Iterator[list[Block]]:
    """Yields the different orders of a multiset of blocks, ascending."""
    current = sorted(blocks)
    while True:
        yield list(current)
        pivot = next((i for i in range(len(current) - 2, -1, -1) if current[i] < current[i + 1]), None)
        if pivot is None:
            return
        other = next(i for i in range(len(current) - 1, pivot, -1) if current[i] > current[pivot])
        current[pivot], current[other] = current[other], current[pivot]
        current[pivot + 1 :] = reversed(current[pivot + 1 :])
