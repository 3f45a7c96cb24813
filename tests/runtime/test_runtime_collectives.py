"""Collectives and their ways back, against one process that holds the tensors of all ranks."""

from __future__ import annotations

from typing import Any

import pytest
from ranks import RankPool
from torch_or_skip import torch

from tangram.runtime import collectives
from tangram.runtime.groups import Group, GroupMaker, group_of_one

SIZE = 3


def inputs() -> list[Any]:
    """One per rank, (6, 9) so that three ranks divide both."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(6, 9, generator=generator, dtype=torch.float64) for _ in range(SIZE)]


def weights(name: str, dim: int) -> list[Any]:
    """What each rank multiplies its output with before it sums it up: gradients of different ranks differ."""
    generator = torch.Generator().manual_seed(2)
    shapes = {
        "gather_along": (18, 9) if dim == 0 else (6, 27),
        "scatter_sum": (2, 9) if dim == 0 else (6, 3),
    }
    shape = shapes.get(name, (6, 9))
    return [torch.randn(*shape, generator=generator, dtype=torch.float64) for _ in range(SIZE)]


def on_rank(rank: int, name: str, dim: int) -> tuple[Any, Any]:
    """Output and gradient of the input, where the loss is the sum over all ranks."""
    group = GroupMaker(rank).make(range(SIZE))
    assert group is not None
    x = inputs()[0 if name == "copy_to" else rank].requires_grad_()
    args = (group,) if name in ("copy_to", "reduce_from") else (dim, group)
    y = getattr(collectives, name)(x, *args)
    (y * weights(name, dim)[0 if name == "reduce_from" else rank]).sum().backward()
    return y.detach(), x.grad


def at_once(name: str, dim: int) -> tuple[list[Any], list[Any]]:
    """Outputs and gradients of all ranks, by one process."""
    xs = [x.requires_grad_() for x in inputs()]
    factors = weights(name, dim)
    if name == "copy_to":  # one tensor, which all ranks hold
        xs = ys = [xs[0]] * SIZE
    elif name == "reduce_from":
        ys = [sum(xs)] * SIZE
        factors = [factors[0], factors[0] * 0, factors[0] * 0]  # one loss, which all ranks hold
    elif name == "gather_along":
        ys = [torch.cat(xs, dim)] * SIZE
    else:
        ys = list(sum(xs).chunk(SIZE, dim))
    sum((y * factor).sum() for y, factor in zip(ys, factors, strict=True)).backward()  # type: ignore[union-attr]
    return [y.detach() for y in ys], [x.grad for x in xs]


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("name", ["copy_to", "reduce_from", "gather_along", "scatter_sum"])
def test_as_one_process(ranks: RankPool, name: str, dim: int) -> None:
    outputs, gradients = at_once(name, dim)
    for rank, (y, grad) in enumerate(ranks.run(SIZE, on_rank, name, dim)):
        torch.testing.assert_close(y, outputs[rank])
        torch.testing.assert_close(grad, gradients[rank])


SENT = [[2, 0, 3], [1, 1, 0], [0, 4, 2]]
"""Rows from each rank to each."""


def exchanging_rank(rank: int) -> tuple[Any, Any]:
    group = GroupMaker(rank).make(range(SIZE))
    assert group is not None
    rows = torch.arange(sum(SENT[rank]), dtype=torch.float64)[:, None] + 100 * rank
    rows.requires_grad_()
    came = collectives.all_to_all(rows, SENT[rank], [SENT[other][rank] for other in range(SIZE)], group)
    (came * (rank + 1)).sum().backward()
    return came.detach(), rows.grad


def test_uneven_exchange(ranks: RankPool) -> None:
    found = ranks.run(SIZE, exchanging_rank)
    assert found[0][0].flatten().tolist() == [0, 1, 100]
    assert found[1][0].flatten().tolist() == [101, 200, 201, 202, 203]
    assert found[2][0].flatten().tolist() == [2, 3, 4, 204, 205]
    # A row's gradient is the number of the rank that it was sent to, plus one.
    for rank in range(SIZE):
        expected = [to + 1 for to in range(SIZE) for _ in range(SENT[rank][to])]
        assert found[rank][1].flatten().tolist() == expected


def bf16_sum(rank: int) -> Any:
    group = GroupMaker(rank).make([0, 1])
    assert group is not None
    return collectives.scatter_sum(torch.full((4, 2), rank + 1.0, dtype=torch.bfloat16), 0, group)


def test_half_precision(ranks: RankPool) -> None:
    for found in ranks.run(2, bf16_sum):
        assert found.dtype == torch.bfloat16
        assert found.tolist() == [[3.0, 3.0], [3.0, 3.0]]


def test_nothing_happens_alone() -> None:
    alone: Group = group_of_one()
    x = torch.ones(2, 2)
    assert collectives.copy_to(x, alone) is collectives.reduce_from(x, alone) is x
    assert collectives.gather_along(x, 0, alone) is collectives.scatter_sum(x, 1, alone) is x
    assert collectives.all_to_all(x, [2], [2], alone) is x


def failing_rank(rank: int) -> None:
    torch.distributed.barrier()  # all are there before one of them leaves
    assert rank == 0, "not I"


def test_a_failing_rank_fails_its_case_only(ranks: RankPool) -> None:
    with pytest.raises(AssertionError, match="not I"):
        ranks.run(2, failing_rank)
    assert ranks.run(1, failing_rank) == [None]
