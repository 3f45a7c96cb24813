"""Latent attention and shared experts: parameters against published counts, FLOP, and the way to a file."""

from __future__ import annotations

import pytest

from tangram.model import serial
from tangram.model.atoms import Part
from tangram.model.flops import part_forward_flop
from tangram.model.params import num_active_params, num_params, part_params
from tangram.model.spec import (
    AttentionSpec,
    FeedForwardSpec,
    LatentSpec,
    LayerSpec,
    ModelSpec,
    MoeSpec,
    NormKind,
    PositionKind,
)
from tangram.plan.schema_model import ModelSection


def deepseek(
    hidden: int, heads: int, q_rank: int | None, moe: MoeSpec, dense: tuple[int, int], layers: int, vocab: int
) -> ModelSpec:
    """A model of DeepSeek-V3's kind; ``dense`` is the number and the width of the dense layers."""
    latent = LatentSpec(q_rank=q_rank, kv_rank=512, nope_dim=128, rope_dim=64, value_dim=128)
    attention = AttentionSpec(heads, heads, 192, latent=latent)
    block = FeedForwardSpec(dense[1], gated=True)
    kinds = [LayerSpec(attention, block, NormKind.RMSNORM)] * dense[0]
    kinds += [LayerSpec(attention, moe, NormKind.RMSNORM)] * (layers - dense[0])
    ends = (NormKind.RMSNORM, PositionKind.ROTARY, 4096, False)
    return ModelSpec("deep", "deepseek_v3", hidden, vocab, tuple(kinds), *ends)


def deepseek_v3() -> ModelSpec:
    """config.json of deepseek-ai/DeepSeek-V3."""
    expert = FeedForwardSpec(2048, gated=True)
    moe = MoeSpec(256, 8, expert, shared=expert)
    return deepseek(7168, 128, 1536, moe, (3, 18432), layers=61, vocab=129280)


def moonlight() -> ModelSpec:
    """config.json of moonshotai/Moonlight-16B-A3B: two shared experts, queries without a latent vector."""
    moe = MoeSpec(64, 6, FeedForwardSpec(1408, gated=True), shared=FeedForwardSpec(2816, gated=True))
    return deepseek(2048, 16, None, moe, (1, 11264), layers=27, vocab=163840)


def test_published_counts() -> None:
    # arXiv 2412.19437, section 4.2: 671B in all, 37B for each token, without the extra prediction layer.
    assert num_params(deepseek_v3()) == pytest.approx(671e9, rel=0.01)
    # The paper's 37B is rounded to billions and leaves the embedding out (0.9B).
    assert num_active_params(deepseek_v3()) - 129280 * 7168 == pytest.approx(37e9, abs=0.5e9)
    # arXiv 2502.16982: 15.29B parameters, 2.24B active, both without embedding and head.
    ends = 2 * 163840 * 2048
    assert num_params(moonlight()) - ends == pytest.approx(15.29e9, rel=0.01)
    assert num_active_params(moonlight()) - ends == pytest.approx(2.24e9, rel=0.01)


def test_matrices_of_latent_attention_by_their_shapes() -> None:
    model = deepseek_v3()
    h, norms = 7168, 7168 + 1536 + 512
    shapes = [(h, 1536), (1536, 128 * 192), (h, 512 + 64), (512, 128 * (128 + 128))]
    assert part_params(model, 5, Part.QKV).total == norms + sum(a * b for a, b in shapes)
    assert part_params(model, 5, Part.OUT).total == 128 * 128 * h
    assert part_forward_flop(model, 5, Part.QKV, 10, 100) == 2 * 10 * sum(a * b for a, b in shapes)
    assert part_forward_flop(model, 5, Part.CORE, 10, 100) == 2 * 10 * 100 * 128 * (192 + 128)
    direct = part_params(moonlight(), 5, Part.QKV).total
    assert direct == 2048 + 512 + 2048 * 16 * 192 + 2048 * 576 + 512 * 16 * 256


def test_shared_experts_serve_every_token() -> None:
    model = moonlight()
    params = part_params(model, 1, Part.MOE)
    routed, shared = 3 * 2048 * 1408, 3 * 2048 * 2816
    assert params.total == 2048 + 2048 * 64 + 64 * routed + shared
    assert params.active == params.total - 58 * routed
    assert params.expert == 64 * routed
    assert part_forward_flop(model, 1, Part.MOE, 10, 100) == 2 * 10 * (2048 * 64 + 6 * routed + shared)


@pytest.mark.parametrize("model", [deepseek_v3(), moonlight()], ids=["v3", "moonlight"])
def test_both_ways_to_a_file(model: ModelSpec) -> None:
    assert serial.from_dict(serial.to_dict(model)) == model
    section = ModelSection.of(model)
    assert ModelSection.model_validate_json(section.model_dump_json()).to_spec() == model


def test_a_window_leaves_fewer_keys() -> None:
    layer = LayerSpec(AttentionSpec(4, 4, 16, window=100), FeedForwardSpec(64, gated=True), NormKind.RMSNORM)
    model = ModelSpec("w", "x", 64, 100, (layer,), NormKind.RMSNORM, PositionKind.ROTARY, 4096, False)
    for s in (1, 50, 100, 101, 200, 400, 4000):
        # Queries 0 to s - 1 see up to 100 keys; the diagonal counts half, as without a window. The mean
        # number of keys is cut down to a whole one.
        seen = sum(min(i + 1, 100) for i in range(s)) - min(s, 100) / 2
        flop = part_forward_flop(model, 0, Part.CORE, s, s, causal=True)
        assert 4 * 64 * (seen - s / 2) < flop <= 4 * 64 * seen
    assert serial.from_dict(serial.to_dict(model)) == model
    assert ModelSection.of(model).to_spec() == model


def test_head_dimensions_have_to_agree() -> None:
    data = serial.to_dict(moonlight())
    kinds = data["layer_kinds"]
    assert isinstance(kinds, list)
    kinds[0]["attention"]["head_dim"] = 128
    with pytest.raises(ValueError, match="nope_dim 128 and rope_dim 64 do not sum to head_dim 128"):
        serial.from_dict(data)
