"""What backward keeps: counted by hand, and the arithmetic of the allocator's watermarks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from profiler_cases import GPT, LLAMA, MIXTRAL, model_of, shard_of, torch

from tangram.profiler import memory
from tangram.profiler.ends import Embedding, Head
from tangram.profiler.experts import Experts
from tangram.profiler.layers import TransformerLayer
from tangram.profiler.memory import (
    PassMemory,
    SavedTensors,
    Watermarks,
    from_watermarks,
    pass_memory,
    saved_tensors,
)


@pytest.mark.parametrize("tp", [1, 2])
def test_a_gpt_layer_by_hand(tp: int) -> None:
    """Korthikanti et al. 2022 without masks, in units of tokens x width, everything divided by tp.

    Norm in and out; queries, keys, values and their mix; norm in and out; GELU in and out (4 each): 16. And
    two statistics per norm, one per head of the softmax.
    """
    shard = shard_of(model_of(GPT, learned=True), tp)
    saved = saved_tensors(TransformerLayer(shard, shard.generator(), GPT))
    unit = shard.tokens * 32 * 4 // tp
    statistics = (2 * 2 * shard.tokens + 4 * shard.tokens) * 4 // tp
    assert saved == SavedTensors(16 * unit + statistics, 0, holds_output=False)


def test_sharing_a_storage_counts_once() -> None:
    """Queries, keys and values are views of one product."""
    shard = shard_of(model_of(GPT, learned=True))
    piece = TransformerLayer(shard, shard.generator(), GPT)
    separate: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: separate.append(t.nbytes) or t, lambda t: t):
        piece(piece.sample())
    assert saved_tensors(piece).kept_bytes < sum(separate)


def test_logits_are_workspace() -> None:
    shard = shard_of(model_of(LLAMA))
    piece = Head(shard, shard.generator())
    saved = saved_tensors(piece)
    assert saved.transient_bytes >= piece.num_logits * 4
    assert saved.kept_bytes < piece.num_logits * 4


def test_an_embedding_keeps_its_tokens() -> None:
    shard = shard_of(model_of(LLAMA))
    assert saved_tensors(Embedding(shard, shard.generator())) == SavedTensors(32 * 8, 0, holds_output=False)


def test_twice_the_samples_keep_twice_as_much() -> None:
    sizes = []
    for micro_batch in (1, 2, 4):
        shard = shard_of(model_of(LLAMA), micro_batch=micro_batch)
        sizes.append(saved_tensors(TransformerLayer(shard, shard.generator(), LLAMA)).kept_bytes)
    assert sizes[1] == 2 * sizes[0]
    assert sizes[2] == 4 * sizes[0]


def test_gathered_expert_inputs_count() -> None:
    shard = shard_of(model_of(MIXTRAL), tp=2)
    piece = Experts(shard, shard.generator(), MIXTRAL)
    found = pass_memory(piece, lambda output: output.sum().backward())
    assert found == PassMemory(saved_tensors(piece).kept_bytes + piece.gathered_bytes, None)


def test_what_a_gpu_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """An allocator that is read before the input, between the passes, and at the peak."""
    shard = shard_of(model_of(LLAMA))
    piece = TransformerLayer(shard, shard.generator(), LLAMA)
    current = iter([1000, 61_000])
    stats = {"allocated_bytes.all.peak": 90_000}
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: None)
    monkeypatch.setattr(
        torch.cuda, "memory_stats", lambda: stats | {"allocated_bytes.all.current": next(current, None)}
    )
    ran: list[str] = []
    marks = memory._watermarks(piece, lambda output: ran.append("backward"))
    assert ran == ["backward"]
    output_bytes = shard.tokens * 32 * 4
    assert marks == Watermarks(1000, 61_000, 90_000, output_bytes)
    assert from_watermarks(marks, SavedTensors(5, 0, False)) == PassMemory(
        60_000 - output_bytes, 29_000 + output_bytes
    )


sizes = st.integers(0, 10**9)


@given(sizes, sizes, sizes, sizes, sizes, st.booleans())
def test_watermarks(before: int, kept: int, logits: int, output: int, more: int, holds_output: bool) -> None:
    """An allocator that holds what we put into it gives it back: what is kept, and the largest rest."""
    between = before + kept + logits + (0 if holds_output else output)
    peak = max(between, before + kept + more)
    found = from_watermarks(
        Watermarks(before, between, peak, output), SavedTensors(kept, logits, holds_output)
    )
    assert found == PassMemory(kept, peak - before - kept)
