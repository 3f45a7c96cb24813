from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_strategies import models

from tangram.model.atoms import Part
from tangram.model.flops import model_flop_per_token, model_forward_flop, part_forward_flop
from tangram.model.params import model_parts
from tangram.model.presets import load_preset
from tangram.model.spec import ModelSpec


@pytest.mark.parametrize("name", ["gpt3-1.3b", "gpt3-2.6b", "gpt3-6.7b", "gpt3-13b"])
@pytest.mark.parametrize("seq_len", [1024, 2048])
def test_gpt_by_megatrons_formula(name: str, seq_len: int) -> None:
    """96 B s L h^2 (1 + s/6h) + 6 B s h V: only the layers are recomputed, not the head."""
    model = load_preset(name)
    batch, s, num_layers, h, vocab = 8, seq_len, model.num_layers, model.hidden_size, model.vocab_size
    with_recompute = 96 * batch * s * num_layers * h * h * (1 + s / (6 * h)) + 6 * batch * s * h * vocab
    head = 3 * part_forward_flop(model, None, Part.HEAD, batch * s, s)
    layers = batch * s * model_flop_per_token(model, s) - head
    assert layers * 4 / 3 + head == pytest.approx(with_recompute, rel=1e-12)
    without = 72 * batch * s * num_layers * h * h * (1 + s / (6 * h)) + 6 * batch * s * h * vocab
    assert batch * s * model_flop_per_token(model, s) == pytest.approx(without, rel=1e-12)


@pytest.mark.parametrize("name", ["gshard-moe-2.4b", "gshard-moe-7.1b", "gshard-moe-10b"])
def test_gshard_by_alpas_formula_without_the_dispatch(name: str) -> None:
    """Alpa also charges a dense dispatch einsum, 4 T S + 8 T h S; dispatch by index has none."""
    model = load_preset(name)
    moe = model.layers[0].moe
    assert moe is not None
    h, f, tokens, s = model.hidden_size, 8, 4096, 1024
    dense_block = tokens * h * h * (8 + 4 * f) + 4 * tokens * s * h
    moe_block = (
        8 * tokens * h * h + 4 * tokens * s * h + 8 * tokens * h * h * f + 2 * tokens * h * moe.num_experts
    )
    expected = 8 * dense_block + 8 * moe_block + 2 * tokens * h * 32000
    assert model_forward_flop(model, tokens, s) == expected


def test_grouped_query_and_gated_parts() -> None:
    model = load_preset("llama-3-8b")
    flop = {part: part_forward_flop(model, 0, part, 10, 100) for part in (Part.QKV, Part.CORE, Part.OUT)}
    assert flop == {
        Part.QKV: 2 * 10 * 4096 * (4096 + 2 * 1024),
        Part.CORE: 2 * 2 * 10 * 100 * 4096,
        Part.OUT: 2 * 10 * 4096 * 4096,
    }
    assert part_forward_flop(model, 0, Part.UP, 10, 100) == 2 * 10 * 4096 * 14336 * 2
    assert part_forward_flop(model, 0, Part.DOWN, 10, 100) == 2 * 10 * 4096 * 14336
    assert part_forward_flop(model, None, Part.EMBEDDING, 10, 100) == 0
    assert part_forward_flop(model, None, Part.HEAD, 10, 100) == 2 * 10 * 4096 * 128256
    assert part_forward_flop(model, None, Part.HEAD, 10, 100, vocab_size=128512) == 2 * 10 * 4096 * 128512


def test_experts_cost_what_their_tokens_cost() -> None:
    model = load_preset("mixtral-8x7b")
    expert = 3 * 4096 * 14336
    assert part_forward_flop(model, 0, Part.MOE, 10, 100) == 2 * 10 * (2 * expert + 4096 * 8)


@given(models(), st.integers(1, 64), st.integers(1, 64))
def test_properties(model: ModelSpec, num_tokens: int, seq_len: int) -> None:
    for idx, part in model_parts(model):
        full = part_forward_flop(model, idx, part, num_tokens, seq_len)
        causal = part_forward_flop(model, idx, part, num_tokens, seq_len, causal=True)
        assert full == num_tokens * part_forward_flop(model, idx, part, 1, seq_len)
        assert causal * 2 == full if part is Part.CORE else causal == full
    assert model_flop_per_token(model, seq_len) == 3 * model_forward_flop(model, 1, seq_len)
    assert model_flop_per_token(model, seq_len, causal=True) <= model_flop_per_token(model, seq_len)
