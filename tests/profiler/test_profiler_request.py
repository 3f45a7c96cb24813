"""What may be asked, and the one error for what may not. Without torch."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tangram.errors import InputError
from tangram.job import Precision
from tangram.model.presets import load_preset
from tangram.model.spec import AttentionSpec, FeedForwardSpec, LatentSpec, LayerSpec, PositionKind
from tangram.profiler.request import (
    LayerRequest,
    PieceSpec,
    all_pieces,
    choose_pieces,
    tensor_parallel_degrees,
)

GSHARD = load_preset("gshard-moe-2.4b")  # dense and MoE layers in turn
LLAMA = load_preset("llama-3-8b")


def request_of(**changes: object) -> LayerRequest:
    values: dict[str, object] = {
        "model": LLAMA,
        "seq_len": 64,
        "precision": Precision.BF16,
        "tp": (1, 2),
        "micro_batch": (1, 4),
        "pieces": all_pieces(LLAMA, 64),
    }
    return LayerRequest(**values | changes)


def kinds(pieces: tuple[PieceSpec, ...]) -> list[str]:
    return [f"{piece.kind}{piece.shape.num_experts or ''}" for piece in pieces]


def test_pieces_that_differ_in_the_order_in_which_they_run() -> None:
    assert kinds(all_pieces(LLAMA, 64)) == ["embedding", "layer", "head"]
    assert sorted(kinds(all_pieces(GSHARD, 64))) == ["embedding", "head", "layer", "layer16"]


def test_layers_that_differ_in_biases_only_are_one_piece() -> None:
    layer = LLAMA.layers[0]
    other = replace(layer, attention=replace(layer.attention, qkv_bias=True))
    pieces = all_pieces(replace(LLAMA, layers=(layer, other)), 64)
    assert [piece.layer for piece in pieces] == [None, layer, None]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("all", ["embedding", "layer", "layer", "head"]),
        ("none", []),
        ("head, embedding", ["embedding", "head"]),
        ("LAYER", ["layer", "layer"]),
        ("0,2", ["layer"]),
        ("0,1,head", ["layer", "layer", "head"]),
    ],
)
def test_choice(text: str, expected: list[str]) -> None:
    assert [piece.kind for piece in choose_pieces(GSHARD, 64, text)] == expected


def test_a_number_means_that_layer() -> None:
    for number in (0, 1):
        (piece,) = choose_pieces(GSHARD, 64, str(number))
        assert piece.layer == GSHARD.layers[number]


@pytest.mark.parametrize("text", ["", "layers", "16", "-1", "1.5", "all,head", "\N{DEVANAGARI DIGIT ONE}"])
def test_no_piece(text: str) -> None:
    with pytest.raises(InputError, match="is no piece of gshard-moe") as caught:
        choose_pieces(GSHARD, 64, text)
    assert caught.value.where == "--layers"


def test_degrees_divide_everything() -> None:
    assert tensor_parallel_degrees(LLAMA, 64) == [1, 2, 4, 8]
    assert tensor_parallel_degrees(LLAMA, 12) == [1, 2, 4]
    (mixture,) = (layer for layer in GSHARD.distinct_layers if layer.moe)
    expert = replace(mixture.moe.expert, intermediate_size=6)
    narrow = replace(mixture, feed_forward=replace(mixture.moe, expert=expert))
    assert tensor_parallel_degrees(replace(GSHARD, layers=(narrow,)), 64) == [1, 2]
    shared = replace(mixture, feed_forward=replace(mixture.moe, shared=FeedForwardSpec(4, gated=False)))
    assert tensor_parallel_degrees(replace(GSHARD, layers=(shared,)), 64) == [1, 2, 4]


@pytest.mark.parametrize(
    ("changes", "where", "text"),
    [
        ({"tp": (1, 3)}, "--tp", "tp 3 does not divide .*legal: 1, 2, 4, 8"),
        ({"tp": (16,)}, "--tp", "tp 16"),
        ({"micro_batch": (0,)}, "--micro-batch", "out of range"),
        ({"seq_len": 0}, "--seq-len", "out of range"),
        ({"repeats": 0}, "--repeats", "out of range"),
        ({"warmup": -1}, "--warmup", "out of range"),
        ({"model": replace(LLAMA, position=PositionKind.LEARNED, max_positions=32)}, "--seq-len", "up to 32"),
    ],
)
def test_refusals(changes: dict[str, object], where: str, text: str) -> None:
    with pytest.raises(InputError, match=text) as caught:
        request_of(**changes)
    assert caught.value.where == where


def test_odd_heads_cannot_be_rotated() -> None:
    layer = LayerSpec(AttentionSpec(4, 4, 5), LLAMA.layers[0].feed_forward, LLAMA.norm)
    model = replace(LLAMA, layers=(layer,))
    with pytest.raises(InputError, match="heads of 5 cannot be rotated"):
        request_of(model=model, pieces=all_pieces(model, 64))
    learned = replace(model, position=PositionKind.LEARNED)
    request_of(model=learned, pieces=all_pieces(learned, 64))
    request_of(model=model, pieces=choose_pieces(model, 64, "head"))


def test_only_the_rotary_part_of_latent_heads_counts() -> None:
    for rope_dim, legal in ((3, False), (4, True)):
        latent = LatentSpec(None, 8, 5, rope_dim, 7)
        attention = AttentionSpec(4, 4, 5 + rope_dim, latent=latent)
        model = replace(LLAMA, layers=(LayerSpec(attention, LLAMA.layers[0].feed_forward, LLAMA.norm),))
        if legal:
            request_of(model=model, pieces=all_pieces(model, 64))
        else:
            with pytest.raises(InputError, match="heads of 3 cannot be rotated"):
                request_of(model=model, pieces=all_pieces(model, 64))
