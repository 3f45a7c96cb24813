from __future__ import annotations

from dataclasses import replace

import pytest

from tangram.errors import InputError
from tangram.model.atoms import Granularity, Part, cut_atoms
from tangram.model.flops import model_forward_flop, part_forward_flop
from tangram.model.presets import load_preset, preset_names
from tangram.model.spec import AttentionSpec, FeedForwardSpec, LatentSpec, LayerSpec, ModelSpec, MoeSpec
from tangram.profiles.shape_pieces import forward_flop, shape_model, shard_of
from tangram.profiles.shapes import LayerKind, LayerShape, atom_shapes, head_shape, layer_shape

K = LayerKind


def kinds(model_name: str, granularity: Granularity) -> list[list[LayerKind]]:
    model = load_preset(model_name)
    return [[s.kind for s in atom_shapes(model, atom, 128)] for atom in cut_atoms(model, granularity)]


def test_layers_ends_and_runs_of_layers() -> None:
    layer = kinds("gpt3-1.3b", Granularity())
    assert layer == [[K.EMBEDDING], *[[K.LAYER]] * 24, [K.HEAD]]
    assert kinds("gpt3-1.3b", Granularity("layer", 4)) == [[K.EMBEDDING], *[[K.LAYER] * 4] * 6, [K.HEAD]]


def test_blocks_and_operators() -> None:
    blocks = kinds("gpt3-1.3b", Granularity("block"))
    assert blocks[1:3] == [[K.ATTENTION], [K.FEED_FORWARD]]
    operators = kinds("gpt3-1.3b", Granularity("operator"))
    assert operators[1:6] == [[K.QKV], [K.CORE], [K.OUT], [K.UP], [K.DOWN]]
    assert kinds("mixtral-8x7b", Granularity("operator"))[1:5] == [
        [K.QKV],
        [K.CORE],
        [K.OUT],
        [K.FEED_FORWARD],
    ]
    assert kinds("mixtral-8x7b", Granularity("block"))[1:3] == [[K.ATTENTION], [K.FEED_FORWARD]]


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_has_shapes(name: str) -> None:
    model = load_preset(name)
    for kind in ("layer", "block", "operator"):
        for atom in cut_atoms(model, Granularity(kind)):
            assert atom_shapes(model, atom, 2048)


def test_only_what_matters_is_in_a_shape() -> None:
    model = load_preset("mixtral-8x7b")
    layer = model.layers[0]
    whole = layer_shape(model, layer, 4096)
    assert (whole.num_experts, whole.top_k, whole.intermediate_size) == (8, 2, 14336)
    assert (whole.num_heads, whole.num_kv_heads, whole.head_dim) == (32, 8, 128)
    assert str(whole) == "layer h4096 s4096 a32/8x128 f14336g e8k2"
    core = layer_shape(model, layer, 4096, K.CORE)
    assert (core.intermediate_size, core.num_experts, core.gated) == (0, 0, False)
    expert = layer_shape(model, layer, 4096, K.EXPERT)
    assert (expert.intermediate_size, expert.num_experts, expert.num_heads) == (14336, 0, 0)


def test_the_vocabulary_counts_as_padded() -> None:
    model = load_preset("gpt3-1.3b")
    assert head_shape(model, 1).vocab_size % 128 == 0
    assert head_shape(model, 1).vocab_size - model.vocab_size in range(128)


def latent_model() -> ModelSpec:
    """Widths of DeepSeek-V2-Lite: latent attention without a latent vector of queries, two shared experts."""
    base = load_preset("mixtral-8x7b")
    latent = LatentSpec(None, 512, 128, 64, 128)
    attention = AttentionSpec(16, 16, 192, latent=latent)
    moe = MoeSpec(64, 6, FeedForwardSpec(1408, gated=True), FeedForwardSpec(2816, gated=True))
    return replace(base, hidden_size=2048, layers=(LayerSpec(attention, moe, base.norm),))


def test_latent_attention_and_shared_experts_are_part_of_a_shape() -> None:
    model = latent_model()
    shape = layer_shape(model, model.layers[0], 4096)
    assert str(shape) == "layer h2048 s4096 a16/16x192 q0 kv512 r64 w128 f1408g e64k6+2816"
    plain = replace(model.layers[0], attention=AttentionSpec(16, 16, 192))
    assert layer_shape(model, plain, 4096) != shape
    block = layer_shape(model, model.layers[0], 4096, K.FEED_FORWARD)
    assert (block.shared_size, block.kv_rank) == (2816, 0)
    expert = layer_shape(model, model.layers[0], 4096, K.EXPERT)
    assert expert.shared_size == 0
    rebuilt, layer = shape_model(shape)
    assert layer is not None
    assert layer_shape(rebuilt, layer, 4096) == shape
    assert forward_flop(shape, 2) == model_forward_flop(model, 8192, 4096, causal=True) - part_forward_flop(
        model, None, Part.HEAD, 8192, 4096
    )
    share = shard_of(shape, 2)
    assert share is not None
    assert (share.num_heads, share.kv_rank, share.intermediate_size, share.shared_size) == (8, 512, 704, 1408)


@pytest.mark.parametrize(
    ("values", "wrong"),
    [
        ({"kind": K.LAYER}, "num_heads is 0"),
        ({"kind": K.HEAD, "vocab_size": 0}, "vocab_size is 0"),
        ({"kind": K.FINAL_NORM, "vocab_size": 128}, "vocab_size is 128"),
        ({"kind": K.CORE, "num_heads": 1, "num_kv_heads": 1, "head_dim": 8, "gated": True}, "gated is True"),
        ({"kind": K.FEED_FORWARD, "intermediate_size": 4, "num_experts": 8}, "top_k is 0"),
        ({"kind": K.EXPERT, "intermediate_size": 4, "num_experts": 8, "top_k": 2}, "num_experts is 8"),
        ({"kind": K.UP, "intermediate_size": 4, "seq_len": 0}, "seq_len is 0"),
        ({"kind": K.UP, "intermediate_size": 4, "kv_rank": 8}, "kv_rank is 8"),
        ({"kind": K.UP, "intermediate_size": 4, "shared_size": 8}, "shared_size is 8"),
        ({"kind": K.CORE, "num_heads": 1, "num_kv_heads": 1, "head_dim": 8, "kv_rank": 8}, "value_dim is 0"),
        ({"kind": K.CORE, "num_heads": 1, "num_kv_heads": 1, "head_dim": 8, "rope_dim": 8}, "rope_dim is 8"),
    ],
)
def test_impossible_shapes_are_refused(values: dict[str, object], wrong: str) -> None:
    with pytest.raises(InputError, match=wrong):
        LayerShape(**{"seq_len": 16, "hidden_size": 8, **values})  # type: ignore[arg-type]
