"""Families with experts: Mixtral, Qwen3-MoE and DeepSeek's."""

from __future__ import annotations

from dataclasses import replace

from tangram.errors import InputError
from tangram.model import fields as limits
from tangram.model.families.common import (
    ROTARY_KEYS,
    WINDOW_KEYS,
    Ends,
    Identity,
    gated_block,
    grouped_attention,
    num_layers,
    optional_window,
    refuse_true,
    rotary_model,
    upper_windows,
    with_windows,
)
from tangram.model.fields import Fields
from tangram.model.spec import (
    AttentionSpec,
    FeedForwardSpec,
    LatentSpec,
    LayerSpec,
    ModelSpec,
    MoeSpec,
    NormKind,
)

MIXTRAL_KEYS = (*ROTARY_KEYS, "num_local_experts", "num_experts", "num_experts_per_tok", "sliding_window")
QWEN3_MOE_KEYS = (
    *MIXTRAL_KEYS,
    *WINDOW_KEYS,
    "attention_bias",
    "moe_intermediate_size",
    "decoder_sparse_step",
    "mlp_only_layers",
)
DEEPSEEK_KEYS = (
    *ROTARY_KEYS,
    "attention_bias",
    "q_lora_rank",
    "kv_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
    "n_routed_experts",
    "num_local_experts",
    "n_shared_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "first_k_dense_replace",
    "moe_layer_freq",
    "num_nextn_predict_layers",
)


def read_mixtral(values: Fields, identity: Identity) -> ModelSpec:
    """MixtralConfig: every layer has experts, and ``intermediate_size`` is the width of one expert."""
    num_experts = values.integer("num_local_experts", limits.MAX_EXPERTS, aliases=("num_experts",))
    moe = MoeSpec(num_experts, _top_k(values, num_experts), gated_block(values))
    count = num_layers(values)
    kinds = (LayerSpec(grouped_attention(values, kv_if_absent=8), moe, NormKind.RMSNORM),) * count
    layers = with_windows(kinds, [optional_window(values)] * count)
    return rotary_model(values, identity, layers, Ends(max_positions=131_072))


def read_qwen3_moe(values: Fields, identity: Identity) -> ModelSpec:
    """Qwen3MoeConfig: layer i has experts when ``decoder_sparse_step`` divides i + 1 and ``mlp_only_layers``
    lacks i.

    The width of dense layers (``intermediate_size``) is read only if there are any.
    """
    count = num_layers(values)
    step = values.optional_integer("decoder_sparse_step", limits.MAX_LAYERS) or 1
    dense_idxs = frozenset(values.integers("mlp_only_layers", count - 1))
    num_experts = values.integer("num_experts", limits.MAX_EXPERTS, low=0, aliases=("num_local_experts",))
    is_moe = [num_experts > 0 and (idx + 1) % step == 0 and idx not in dense_idxs for idx in range(count)]
    bias = values.boolean("attention_bias", default=False)
    attention = grouped_attention(values, kv_if_absent=4, qkv_bias=bias, out_bias=bias, qk_norm=True)
    kinds: dict[bool, LayerSpec] = {}
    if any(is_moe):
        expert = gated_block(values, "moe_intermediate_size")
        moe = MoeSpec(num_experts, _top_k(values, num_experts), expert)
        kinds[True] = LayerSpec(attention, moe, NormKind.RMSNORM)
    if not all(is_moe):
        kinds[False] = LayerSpec(attention, gated_block(values), NormKind.RMSNORM)
    # The class of today gives all layers the window; the key is that of its predecessors.
    windows = upper_windows(values, count, first_if_absent=0)
    layers = with_windows([kinds[moe_here] for moe_here in is_moe], windows)
    return rotary_model(values, identity, layers, Ends(max_positions=32_768))


def read_deepseek(values: Fields, identity: Identity) -> ModelSpec:
    """DeepseekV3Config (and V2's): latent attention, ``first_k_dense_replace`` dense layers in front, shared
    experts as one block, and ``num_nextn_predict_layers`` behind the others that predict further tokens.

    ``num_key_value_heads`` and ``head_dim`` are not read: keys and values are those of the latent vectors.
    """
    refuse_true(values, "attention_bias", "latent attention with biases is not supported")
    count = num_layers(values)
    start = values.integer("first_k_dense_replace", limits.MAX_LAYERS, low=0)
    every = values.optional_integer("moe_layer_freq", limits.MAX_LAYERS) or 1
    ahead = values.optional_integer("num_nextn_predict_layers", limits.MAX_LAYERS, low=0) or 0
    is_moe = [idx >= start and idx % every == 0 for idx in range(count + ahead)]
    attention = _latent_attention(values)
    kinds: dict[bool, LayerSpec] = {}
    if any(is_moe):
        kinds[True] = LayerSpec(attention, _deepseek_moe(values), NormKind.RMSNORM)
    if not all(is_moe):
        kinds[False] = LayerSpec(attention, gated_block(values), NormKind.RMSNORM)
    layers = [kinds[moe_here] for moe_here in is_moe]
    model = rotary_model(values, identity, layers, Ends(max_positions=4096))
    return replace(model, num_prediction_layers=ahead)


def _latent_attention(values: Fields) -> AttentionSpec:
    """Where ``q_lora_rank`` is null, queries are projected directly; it must not be missing."""
    heads = values.integer("num_attention_heads", limits.MAX_HEADS)
    direct = values.is_null("q_lora_rank")
    latent = LatentSpec(
        q_rank=None if direct else values.integer("q_lora_rank", limits.MAX_WIDTH),
        kv_rank=values.integer("kv_lora_rank", limits.MAX_WIDTH),
        nope_dim=values.integer("qk_nope_head_dim", limits.MAX_WIDTH),
        rope_dim=values.integer("qk_rope_head_dim", limits.MAX_WIDTH),
        value_dim=values.integer("v_head_dim", limits.MAX_WIDTH),
    )
    return AttentionSpec(heads, heads, latent.nope_dim + latent.rope_dim, latent=latent)


def _deepseek_moe(values: Fields) -> MoeSpec:
    num_experts = values.integer("n_routed_experts", limits.MAX_EXPERTS, aliases=("num_local_experts",))
    expert = gated_block(values, "moe_intermediate_size")
    none = values.is_null("n_shared_experts")
    num_shared = 0 if none else values.integer("n_shared_experts", limits.MAX_EXPERTS, low=0)
    shared = FeedForwardSpec(num_shared * expert.intermediate_size, gated=True) if num_shared else None
    return MoeSpec(num_experts, _top_k(values, num_experts), expert, shared)


def _top_k(values: Fields, num_experts: int) -> int:
    top_k = values.integer("num_experts_per_tok", limits.MAX_EXPERTS)
    if top_k > num_experts:
        raise InputError(
            f"{top_k} is more than the {num_experts} experts there are",
            where=values.place("num_experts_per_tok"),
        )
    return top_k
