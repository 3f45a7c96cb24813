"""Random small models, for properties."""

from __future__ import annotations

from hypothesis import strategies as st

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


@st.composite
def latent_attentions(draw: st.DrawFn) -> AttentionSpec:
    num_heads = draw(st.integers(1, 8))
    latent = LatentSpec(
        q_rank=draw(st.none() | st.integers(1, 16)),
        kv_rank=draw(st.integers(1, 16)),
        nope_dim=draw(st.integers(1, 8)),
        rope_dim=draw(st.integers(1, 8)),
        value_dim=draw(st.integers(1, 16)),
    )
    return AttentionSpec(num_heads, num_heads, latent.nope_dim + latent.rope_dim, latent=latent)


@st.composite
def attentions(draw: st.DrawFn) -> AttentionSpec:
    if draw(st.booleans()):
        return draw(latent_attentions())
    num_kv_heads = draw(st.integers(1, 4))
    return AttentionSpec(
        num_heads=num_kv_heads * draw(st.integers(1, 4)),
        num_kv_heads=num_kv_heads,
        head_dim=draw(st.integers(1, 16)),
        qkv_bias=draw(st.booleans()),
        out_bias=draw(st.booleans()),
        qk_norm=draw(st.booleans()),
        window=draw(st.none() | st.integers(1, 64)),
    )


feed_forwards = st.builds(FeedForwardSpec, st.integers(1, 64), st.booleans(), st.booleans())


@st.composite
def moes(draw: st.DrawFn) -> MoeSpec:
    num_experts = draw(st.integers(1, 8))
    top_k, shared = draw(st.integers(1, num_experts)), draw(st.none() | feed_forwards)
    return MoeSpec(num_experts, top_k, draw(feed_forwards), shared)


layers = st.builds(
    LayerSpec,
    attentions(),
    feed_forwards | moes(),
    st.sampled_from(NormKind),
    post_norm=st.booleans(),
    parallel=st.booleans(),
)


@st.composite
def models(draw: st.DrawFn) -> ModelSpec:
    kinds = draw(st.lists(layers, min_size=1, max_size=3))
    drawn = tuple(draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=8)))
    return ModelSpec(
        name=draw(st.text(max_size=8)),
        family=draw(st.sampled_from(["llama", "gpt2", "mixtral"])),
        hidden_size=draw(st.integers(1, 64)),
        vocab_size=draw(st.integers(1, 512)),
        layers=drawn,
        norm=draw(st.sampled_from(NormKind)),
        position=draw(st.sampled_from(PositionKind)),
        max_positions=draw(st.integers(1, 64)),
        tied_embeddings=draw(st.booleans()),
        source=draw(st.text(max_size=8)),
        embedding_size=draw(st.none() | st.integers(1, 64)),
        embedding_norm=draw(st.booleans()),
        final_norm=draw(st.booleans()),
        position_offset=draw(st.integers(0, 4)),
        num_prediction_layers=draw(st.integers(0, min(2, len(drawn) - 1))),
    )
