from __future__ import annotations

from pathlib import Path

import pytest
from row_samples import reason_of, run_of

from tangram.model.params import num_params
from tangram.model.spec import FeedForwardSpec, NormKind, PositionKind


def test_a_block_of_four_hidden_sizes_is_gpts(tmp_path: Path) -> None:
    model = run_of(tmp_path).model
    (layer,) = model.distinct_layers
    assert layer.feed_forward == FeedForwardSpec(4096, gated=False, bias=True)
    assert (layer.norm, model.position) == (NormKind.LAYERNORM, PositionKind.LEARNED)
    assert layer.attention.qkv_bias
    assert layer.attention.out_bias
    assert not model.tied_embeddings


def test_any_other_block_is_gated(tmp_path: Path) -> None:
    model = run_of(tmp_path, ffn_hidden=3584, kv_heads=4).model
    (layer,) = model.distinct_layers
    assert layer.feed_forward == FeedForwardSpec(3584, gated=True)
    assert (layer.norm, model.position) == (NormKind.RMSNORM, PositionKind.ROTARY)
    assert layer.attention.num_kv_heads == 4


def test_an_empty_width_is_four_hidden_sizes(tmp_path: Path) -> None:
    assert run_of(tmp_path, ffn_hidden="").model == run_of(tmp_path, ffn_hidden=4096).model


def test_experts_and_what_the_columns_do_not_hold(tmp_path: Path) -> None:
    cells = {"experts": 8, "top_k": 2, "ffn_hidden": 512, "dense_layers": 1, "dense_width": 2048}
    model = run_of(tmp_path, **cells, shared_width=1024, head_dim=96, tied_embeddings="true").model
    assert model.layers[0].feed_forward == FeedForwardSpec(2048, gated=True)
    moe = model.layers[1].moe
    assert moe is not None
    assert (moe.num_experts, moe.top_k, moe.expert.intermediate_size) == (8, 2, 512)
    assert moe.shared == FeedForwardSpec(1024, gated=True)
    assert model.layers[0].attention.head_dim == 96
    assert model.tied_embeddings


def test_experts_in_every_second_layer(tmp_path: Path) -> None:
    model = run_of(tmp_path, experts=8, top_k=1, ffn_hidden=512, moe_every=2).model
    assert [layer.moe is not None for layer in model.layers] == [False, True] * 4


def test_windows(tmp_path: Path) -> None:
    model = run_of(tmp_path, window=128, window_every=2).model
    assert [layer.attention.window for layer in model.layers] == [128, None] * 4
    assert {layer.attention.window for layer in run_of(tmp_path, window=128).model.layers} == {128}


def test_experts_of_their_own_width(tmp_path: Path) -> None:
    model = run_of(tmp_path, experts=8, top_k=1, expert_width=1024, dense_layers=3).model
    assert model.layers[0].feed_forward == FeedForwardSpec(4096, gated=False, bias=True)
    assert model.layers[3].moe is not None
    assert model.layers[3].moe.expert.intermediate_size == 1024


def test_a_vocabulary_padded_in_its_own_way(tmp_path: Path) -> None:
    assert run_of(tmp_path).model.vocab_size == 50257
    assert run_of(tmp_path, vocab_multiple=128).model.vocab_size == 50432


def test_deepseek_v3_has_its_published_size(tmp_path: Path) -> None:
    cells = {"model": "DeepSeek-V3", "n_layers": 61, "hidden": 7168, "ffn_hidden": 2048, "heads": 128}
    cells |= {"kv_heads": "", "vocab": 129280, "experts": 256, "top_k": 8, "pp": 1, "dp": 8, "ep": 8}
    run = run_of(tmp_path, **cells, iter_s="", gpu="GB300", expert_tp=2)
    assert num_params(run.model) == pytest.approx(671e9, rel=0.01)


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"heads": 15, "kv_heads": ""}, "column heads: 15 does not divide the hidden size 1024"),
        ({"kv_heads": 5}, "column kv_heads: 5 does not divide 16 heads"),
        ({"experts": 4, "top_k": 8}, "column top_k: 8 is more than 4 experts"),
        ({"experts": 4, "top_k": ""}, "column top_k: is empty"),
        ({"hidden": 10**9}, "column hidden: 1000000000 is out of range"),
        ({"n_layers": ""}, "column n_layers: is empty"),
    ],
)
def test_shapes_that_cannot_be(tmp_path: Path, cells: dict[str, object], reason: str) -> None:
    assert reason in reason_of(tmp_path, **cells)
