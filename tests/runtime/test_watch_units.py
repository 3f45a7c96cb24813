"""Marks between the units of a stage: every atom's own time, in both passes, and passes made longer."""

from __future__ import annotations

import time
from typing import Any

import pytest
from torch_or_skip import torch

from tangram.runtime.hooks import TaskKind
from tangram.runtime.watch.clock import Stamps
from tangram.runtime.watch.units import UnitClock

SLEEPS_S = {3: (0.01, 0.03), 4: (0.02, 0.01), 5: (0.005, 0.02)}


class Sleeping(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Any, seconds: tuple[float, float]) -> Any:
        ctx.seconds = seconds
        time.sleep(seconds[0])
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        time.sleep(ctx.seconds[1])
        return gradient * 2, None


class Unit(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, seconds: tuple[float, float]) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2))
        self.seconds = seconds

    def forward(self, x: Any, context: object) -> Any:
        assert context == "context"
        return Sleeping.apply(x + self.weight, self.seconds)


class Recomputing(Unit):
    def forward(self, x: Any, context: object) -> Any:
        from torch.utils.checkpoint import checkpoint

        def inner(x: Any) -> Any:
            return Unit.forward(self, x, context).square()  # backward of a square needs what went in

        return checkpoint(inner, x, use_reentrant=False)


def run(clock: UnitClock, units: dict[int, Any], first: bool, count: int = 3) -> Any:
    """Runs micro-batches as a stage would; returns the last gradient of the input."""
    clock.begin_step(0)
    for k in range(count):
        hidden = torch.ones(2, requires_grad=not first)
        x = hidden
        clock.begin(TaskKind.FORWARD, k)
        for unit in units.values():
            x = unit(x, "context")
        clock.end(TaskKind.FORWARD, k)
        clock.begin(TaskKind.BACKWARD, k)
        x.sum().backward()
        clock.end(TaskKind.BACKWARD, k)
    clock.end_step(0)
    return hidden.grad


@pytest.mark.parametrize("first", [True, False])
def test_every_unit_has_its_own_times(first: bool) -> None:
    """Whether the stage's input has a gradient or, like that of an embedding, has none."""
    units = {atom: Unit(seconds) for atom, seconds in SLEEPS_S.items()}
    clock = UnitClock(units, Stamps())
    gradient = run(clock, units, first)
    assert first or gradient.tolist() == [8.0, 8.0]  # marks change nothing
    assert units[3].weight.grad.tolist() == [24.0, 24.0]
    found = clock.times()
    assert set(found) == set(SLEEPS_S)
    for atom, (forward_s, backward_s) in SLEEPS_S.items():
        assert found[atom].count == 3
        assert forward_s <= found[atom].forward_s < forward_s + 0.02
        assert backward_s <= found[atom].backward_s < backward_s + 0.02
    clock.forget()
    assert clock.times() == {}


def test_passes_made_longer() -> None:
    units = {atom: Unit((0.0, 0.0)) for atom in SLEEPS_S}

    def pad(atom: int, kind: TaskKind, start: int) -> None:
        target_s = SLEEPS_S[atom][kind is TaskKind.BACKWARD]
        time.sleep(max(target_s - (time.perf_counter_ns() - start) / 1e9, 0))

    clock = UnitClock(units, Stamps(), pad)
    run(clock, units, first=True)
    for atom, (forward_s, backward_s) in SLEEPS_S.items():
        assert clock.times()[atom].forward_s == pytest.approx(forward_s, abs=0.01)
        assert clock.times()[atom].backward_s == pytest.approx(backward_s, abs=0.01)


def test_what_is_recomputed_counts_in_the_backward() -> None:
    units = {0: Recomputing((0.02, 0.0)), 1: Unit((0.0, 0.0))}
    clock = UnitClock(units, Stamps())
    run(clock, units, first=False)
    assert clock.times()[0].backward_s >= 0.02
    assert clock.times()[1].backward_s < 0.02


def test_no_gradient_no_backward() -> None:
    units = {0: Unit((0.0, 0.0))}
    clock = UnitClock(units, Stamps())
    with torch.no_grad():
        units[0](torch.ones(2), "context")
    assert clock.times() == {}
