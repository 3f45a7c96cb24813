"""Timings: positive, complete, and of what they say they are."""

from __future__ import annotations

from typing import Any

import pytest
from profiler_cases import GPT, LLAMA, MIXTRAL, model_of, shard_of, torch

from tangram.profiler import timing
from tangram.profiler.clock import HostClock
from tangram.profiler.ends import Embedding, Head
from tangram.profiler.layers import TransformerLayer
from tangram.profiler.piece import Piece
from tangram.profiler.timing import Effort, time_piece

QUICK = Effort(warmup=1, repeats=3)


def pieces(precision: str) -> list[Piece]:
    shard = shard_of(model_of(LLAMA), precision=precision)
    generator = shard.generator()
    mixture = shard_of(model_of(MIXTRAL), 2, precision=precision)
    return [
        Embedding(shard, generator),
        TransformerLayer(shard, generator, LLAMA),
        TransformerLayer(mixture, generator, MIXTRAL),
        Head(shard, generator),
    ]


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_everything_is_timed(precision: str) -> None:
    for piece in pieces(precision):
        found = time_piece(piece, QUICK)
        assert list(found.spreads) == ["forward_s", "backward_s", "recompute_s", "optimizer_s"]
        for spread in found.spreads.values():
            assert 0 < spread.low_s <= spread.median_s <= spread.high_s
            assert spread.count == 3
        assert found.memory.activation_bytes > 0
        assert found.memory.workspace_bytes is None
        assert len(found.notes) == 1


def test_more_work_takes_longer() -> None:
    """Eight times the tokens: more than twice the time, whatever the noise."""
    low = []
    for micro_batch in (1, 8):
        shard = shard_of(model_of(LLAMA, hidden=512), micro_batch=micro_batch, seq_len=128)
        found = time_piece(TransformerLayer(shard, shard.generator(), LLAMA), Effort(1, 6))
        low.append(found.spreads["forward_s"].low_s + found.spreads["backward_s"].low_s)
    assert low[1] > 2 * low[0]


class CountingClock(HostClock):
    """A clock that only moves when a forward pass runs: one second each."""

    def __init__(self) -> None:
        self.now = 0.0

    def mark(self) -> float:
        return self.now


def test_what_lies_between_the_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward holds one forward pass, backward none, and recomputation one more."""
    clock = CountingClock()
    shard = shard_of(model_of(GPT))
    piece = TransformerLayer(shard, shard.generator(), GPT)
    run = piece.forward

    def counted(x: Any) -> Any:
        clock.now += 1
        return run(x)

    piece.forward = counted
    monkeypatch.setattr(timing, "clock_of", lambda device: clock)
    seconds = {name: spread.median_s for name, spread in time_piece(piece, QUICK).spreads.items()}
    assert seconds == {"forward_s": 1.0, "backward_s": 0.0, "recompute_s": 1.0, "optimizer_s": 0.0}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_optimizer_updates_the_weights_from_accumulated_gradients(precision: str) -> None:
    shard = shard_of(model_of(GPT), precision=precision)
    piece = TransformerLayer(shard, shard.generator(), GPT)
    before = [parameter.detach().clone() for parameter in piece.parameters()]
    gradients = timing._Gradients(piece)
    backward = timing._backward(piece)
    backward(piece(piece.sample()))
    once = [gradient.clone() for gradient in gradients.of]
    backward(piece(piece.sample()))
    for total, single in zip(gradients.of, once, strict=True):
        assert total.dtype == torch.float32
        torch.testing.assert_close(total, 2 * single)
    timing._optimizer(piece, gradients, HostClock(), Effort(0, 100))
    for parameter, old in zip(piece.parameters(), before, strict=True):
        assert parameter.dtype == shard.dtype
        assert not torch.equal(parameter.detach(), old)


def test_an_optimizer_that_does_not_fit_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(timing, "_optimizer", full)
    found = time_piece(pieces("fp32")[1], QUICK)
    assert "optimizer_s" not in found.spreads
    assert any("optimizer" in text for text in found.notes)
