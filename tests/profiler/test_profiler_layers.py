"""Layers against parameter counts and FLOP of the model; they train, and are always the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_strategies import models
from profiler_cases import KINDS, model_of, shard_of, torch, untied
from torch.utils.flop_counter import FlopCounterMode

from tangram.model.atoms import Part, layer_parts
from tangram.model.flops import part_forward_flop
from tangram.model.params import part_params
from tangram.model.presets import load_preset, preset_names
from tangram.model.spec import LayerSpec, ModelSpec
from tangram.model.vocabulary import padded_vocab_size
from tangram.profiler.ends import Embedding, Head
from tangram.profiler.layers import TransformerLayer
from tangram.profiler.piece import Piece
from tangram.profiler.request import tensor_parallel_degrees
from tangram.profiler.shard import Shard


def built(shard: Shard, layer: LayerSpec) -> TransformerLayer:
    return TransformerLayer(shard, shard.generator(), layer)


def whole(piece: Piece) -> int:
    """Parameters of the unsharded piece, from one rank's."""
    return piece.num_params(sharded=True) * piece.shard.tp + piece.num_params(sharded=False)


def layer_total(model: ModelSpec, idx: int) -> int:
    return sum(part_params(model, idx, part).total for part in layer_parts(model.layers[idx]))


def check_counts(model: ModelSpec, shard: Shard) -> None:
    for idx, layer in enumerate(model.layers):
        if layer in model.layers[:idx]:
            continue
        assert whole(built(shard, layer)) == layer_total(model, idx)
    rows = padded_vocab_size(model.vocab_size, shard.tp)
    embedding, head = Embedding(shard, shard.generator()), Head(shard, shard.generator())
    assert whole(embedding) == part_params(model, None, Part.EMBEDDING, vocab_size=rows).total
    assert whole(head) == part_params(untied(model), None, Part.HEAD, vocab_size=rows).total


@settings(max_examples=40, deadline=None)
@given(models(), st.data())
def test_parameters_are_those_of_the_model(model: ModelSpec, data: st.DataObject) -> None:
    tp = data.draw(st.sampled_from(tensor_parallel_degrees(model, 240)))
    # Layers for prediction are timed like others; their projections are not.
    check_counts(model.main, shard_of(model.main, tp, 1, 240))


@pytest.mark.parametrize("name", preset_names())
def test_parameters_of_presets(name: str) -> None:
    """Without memory: of the largest models, too."""
    model = load_preset(name)
    shard = Shard(model, 2, 1, 2, shard_of(model).precision, torch.device("meta"))
    for layer in model.distinct_layers:
        piece = MetaShard(shard).layer(layer)
        assert whole(piece) == layer_total(model, model.layers.index(layer))


class MetaShard:
    """Builds layers on the meta device, which has no generator."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard

    def layer(self, layer: LayerSpec) -> TransformerLayer:
        return TransformerLayer(self.shard, None, layer)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_every_layer_trains(name: str, tp: int, precision: str) -> None:
    layer = KINDS[name]
    shard = shard_of(model_of(layer), tp, precision=precision)
    piece = built(shard, layer)
    x = piece.sample()
    y = piece(x)
    assert y.shape == (shard.shard_tokens, 32)
    assert y.dtype == shard.dtype
    y.backward(torch.ones_like(y))
    for tensor in (x, *piece.parameters()):
        assert tensor.grad is not None
        assert tensor.grad.isfinite().all()
        assert tensor.grad.count_nonzero() > 0


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("tp", [1, 2])
def test_products_are_those_of_the_model(name: str, tp: int) -> None:
    """Matrix products of one rank, without attention's: the model's FLOP over tp."""
    layer = KINDS[name]
    model = model_of(layer)
    shard = shard_of(model, tp)
    piece = built(shard, layer)
    x = piece.sample()
    with FlopCounterMode(display=False) as counter:
        y = piece(x)
    parts = [part for part in layer_parts(layer) if part is not Part.CORE]
    expected = sum(part_forward_flop(model, 0, part, shard.tokens, shard.seq_len) for part in parts)
    assert products(counter) * tp == expected
    with FlopCounterMode(display=False) as counter:
        y.backward(torch.ones_like(y))
    assert products(counter) * tp == 2 * expected


def products(counter: Any) -> int:
    counts = counter.get_flop_counts()["Global"]
    return sum(count for op, count in counts.items() if str(op) in ("aten.mm", "aten.addmm"))


@pytest.mark.parametrize("name", KINDS)
def test_weights_and_inputs_are_always_the_same(name: str) -> None:
    layer = KINDS[name]
    first, second = (built(shard_of(model_of(layer), 2), layer) for _ in range(2))
    assert torch.equal(first(first.sample()), second(second.sample()))


RARE_ENDS: dict[str, dict[str, Any]] = {
    "narrow": {"embedding_size": 12, "final_norm": False, "position_offset": 2},
    "normed": {"embedding_norm": True},
}


@pytest.mark.parametrize("name", RARE_ENDS)
@pytest.mark.parametrize("tp", [1, 2])
def test_ends_that_few_models_have_train(name: str, tp: int) -> None:
    model = replace(model_of(KINDS["gpt"], learned=True), **RARE_ENDS[name])
    shard = shard_of(model, tp)
    embedding, head = Embedding(shard, shard.generator()), Head(shard, shard.generator())
    x = embedding(embedding.sample())
    assert x.shape == (shard.shard_tokens, 32)
    rows = head.sample()
    with FlopCounterMode(display=False) as counter:
        loss = head(rows)
    padded = padded_vocab_size(model.vocab_size, tp)
    expected = part_forward_flop(model, None, Part.HEAD, shard.tokens, shard.seq_len, vocab_size=padded)
    assert products(counter) * tp == expected
    x.backward(torch.ones_like(x))
    loss.backward()
    for tensor in (rows, *embedding.parameters(), *head.parameters()):
        assert tensor.grad is not None
        assert tensor.grad.isfinite().all()
        assert tensor.grad.count_nonzero() > 0
