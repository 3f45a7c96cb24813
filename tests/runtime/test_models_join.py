"""Layouts that change inside of a stage: every element arrives, and gradients find the way back."""

from __future__ import annotations

from typing import Any

from ranks import RankPool
from torch_or_skip import torch

from tangram.runtime.boundary import Layout
from tangram.runtime.groups import GroupMaker
from tangram.runtime.models.join import Join

WIDTH, SEQ_LEN, ROWS = 3, 16, 4
LAYOUTS = {
    "dp4": ((1, 1, 1, 1), 1, 1, True),
    "dp2 (3,1) cp2": ((3, 1), 2, 1, True),
    "dp2 tp2": ((1, 3), 1, 2, True),
    "dp2 tp2 replicated": ((2, 2), 1, 2, False),
    "cp2 tp2": ((4,), 2, 2, True),
    "tp4 replicated": ((4,), 1, 4, False),
}


def layout_of(name: str) -> Layout:
    rows, cp, tp, sequence_parallel = LAYOUTS[name]
    return Layout((0, 1, 2, 3), rows, cp, tp, SEQ_LEN, True, sequence_parallel and tp > 1)


def part(whole: Any, layout: Layout, rank: int) -> Any:
    held = layout.holdings[rank]
    return torch.cat([whole[slice(*held.rows), start:stop] for start, stop in held.tokens], dim=1)


def tensors() -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(0)
    shape = (ROWS, SEQ_LEN, WIDTH)
    return tuple(torch.randn(shape, generator=generator) for _ in range(2))


def joining_rank(rank: int) -> list[tuple[str, str, bool, bool]]:
    """For all pairs: whether the rank got its part, and the gradient of what it held."""
    group = GroupMaker(rank).make(range(4))
    assert group is not None
    values, gradients = tensors()
    found = []
    for before in LAYOUTS:
        for after in LAYOUTS:
            src, dst = layout_of(before), layout_of(after)
            x = part(values, src, rank).requires_grad_()
            y = Join(src, dst, group)(x)
            y.backward(part(gradients, dst, rank))  # replicas of the next run have equal gradients
            right = torch.equal(y, part(values, dst, rank))
            found.append((before, after, right, torch.equal(x.grad, part(gradients, src, rank))))
    return found


def test_all_pairs_of_layouts(ranks: RankPool) -> None:
    for rank, found in enumerate(ranks.run(4, joining_rank)):
        assert len(found) == len(LAYOUTS) ** 2
        for before, after, there, back in found:
            assert there, f"rank {rank}: {before} to {after}"
            assert back, f"rank {rank}: gradients of {before} to {after}"
