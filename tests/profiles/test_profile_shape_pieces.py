from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_cases import as_shapes_see_it, layer

from tangram.model.flops import model_forward_flop
from tangram.model.presets import load_preset, preset_names
from tangram.profiles.shape_pieces import forward_flop, shape_model, shape_parts, shard_of, sub_shapes
from tangram.profiles.shapes import LayerKind, embedding_shape, head_shape, layer_shape

K = LayerKind


@pytest.mark.parametrize("name", preset_names())
def test_flop_of_shapes_add_up_to_the_models(name: str) -> None:
    model = as_shapes_see_it(load_preset(name))
    shapes = [embedding_shape(model, 512), *(layer_shape(model, one, 512) for one in model.layers)]
    head = head_shape(model, 512)
    padding = 2 * 3 * 512 * model.hidden_size * (head.vocab_size - model.vocab_size)
    total = sum(forward_flop(shape, 3) for shape in [*shapes, head]) - padding
    assert total == model_forward_flop(model, 3 * 512, 512, causal=True)


@pytest.mark.parametrize("name", preset_names())
def test_pieces_have_the_flop_of_the_whole(name: str) -> None:
    model = load_preset(name)
    for one in model.distinct_layers:
        shape = layer_shape(model, one, 256)
        pieces = sub_shapes(shape)
        assert [piece.kind for piece in pieces] == [K.ATTENTION, K.FEED_FORWARD]
        assert sum(forward_flop(piece, 2) for piece in pieces) == forward_flop(shape, 2)
        for piece in pieces:
            smaller = sub_shapes(piece)
            if smaller:
                assert sum(forward_flop(small, 2) for small in smaller) == forward_flop(piece, 2)
            assert all(not sub_shapes(small) for small in smaller)


@given(tp=st.sampled_from([1, 2, 4]), kind=st.sampled_from([K.QKV, K.CORE, K.OUT, K.UP, K.DOWN, K.LAYER]))
def test_shares_have_their_share_of_the_flop(tp: int, kind: LayerKind) -> None:
    share = shard_of(layer(kind), tp)
    assert share is not None
    assert forward_flop(share, 1) * tp == forward_flop(layer(kind), 1)


def test_what_does_not_split() -> None:
    assert shard_of(layer(), 8) is None  # four heads
    head = shard_of(layer(K.HEAD), 3)
    assert head is not None
    assert head.vocab_size == 384  # 1,024 rows padded to 1,152
    model = load_preset("mixtral-8x7b")  # 8 heads for keys and values
    share = shard_of(layer_shape(model, model.layers[0], 64), 16)
    assert share is not None
    assert (share.num_heads, share.num_kv_heads, share.num_experts) == (2, 1, 8)


@pytest.mark.parametrize("kind", list(K))
def test_a_shape_is_its_models_shape(kind: LayerKind) -> None:
    model, one = shape_model(layer(kind))
    if one is None:
        assert kind in (K.EMBEDDING, K.HEAD, K.FINAL_NORM)
    else:
        assert layer_shape(model, one, 128, kind) == layer(kind)
    assert (shape_parts(layer(kind)) == ()) is (kind in (K.FINAL_NORM, K.EXPERT))
    assert (forward_flop(layer(kind), 1) > 0) is (kind not in (K.FINAL_NORM, K.EMBEDDING))
