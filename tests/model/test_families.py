"""What each family's files leave unsaid or say in a way of their own, and counts against checkpoints."""

from __future__ import annotations

import math

import pytest
from family_configs import (
    ALL,
    BLOOM,
    DEEPSEEK,
    GEMMA,
    GEMMA2,
    GEMMA3,
    GPT_NEO,
    GPT_NEOX,
    LLAMA,
    MISTRAL,
    MIXTRAL,
    OPT,
    QWEN2,
    QWEN3,
    QWEN3_MOE,
    moe_of,
    parse,
    refusal,
    windows,
    without,
)

from tangram.errors import InputError
from tangram.model.atoms import Part, cut_atoms, layer_parts, parse_granularity
from tangram.model.flops import model_forward_flop, part_forward_flop
from tangram.model.hf import parse_hf_config
from tangram.model.load import trim_layers
from tangram.model.params import num_params, part_params
from tangram.model.spec import FeedForwardSpec, LatentSpec, ModelSpec, NormKind, PositionKind

V4_ENDS: dict[str, object] = {"torch_dtype": "bfloat16", "rope_theta": 1e6, "rope_scaling": None}
V5_ENDS: dict[str, object] = {
    "dtype": "bfloat16",
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    },
}


@pytest.mark.parametrize("name", sorted(ALL))
def test_spellings_of_transformers_4_and_5(name: str) -> None:
    plain = parse(ALL[name])
    assert parse(ALL[name], **V4_ENDS) == plain
    assert parse(ALL[name], **V5_ENDS) == plain


def test_mistral_has_a_window_of_4096_unless_the_file_says_otherwise() -> None:
    assert windows(parse(MISTRAL)) == [4096] * 4
    assert windows(parse(MISTRAL, sliding_window=None)) == [None] * 4
    assert windows(parse(MISTRAL, sliding_window=128)) == [128] * 4
    assert windows(parse(MIXTRAL)) == [None] * 4
    assert windows(parse(MIXTRAL, sliding_window=128)) == [128] * 4
    assert "sliding_window: 0 is out of range" in refusal(MISTRAL, sliding_window=0)
    assert "did you mean 'sliding_window'?" in refusal(MIXTRAL, sliding_windows=128)


def test_key_and_value_heads_of_other_families() -> None:
    wide: dict[str, object] = {"num_attention_heads": 32, "hidden_size": 512, "head_dim": 16}
    for config, absent in ((MISTRAL, 8), (QWEN2, 32), (QWEN3, 32), (GEMMA, 16), (GEMMA2, 4), (GEMMA3, 4)):
        alone = without(config, "num_key_value_heads") | wide
        assert parse(alone).layers[0].attention.num_kv_heads == absent
        assert parse(alone, num_key_value_heads=None).layers[0].attention.num_kv_heads == 32
    message = refusal(without(QWEN2, "num_key_value_heads"))
    assert message.startswith("num_key_value_heads: 32 does not divide num_attention_heads 8")
    assert "without the key there are 32" in message


def test_qwen2_has_biases_that_no_key_tells() -> None:
    attention = parse(QWEN2).layers[0].attention
    assert (attention.qkv_bias, attention.out_bias, attention.qk_norm) == (True, False, False)
    assert parse(QWEN2).layers[0].feed_forward == FeedForwardSpec(96, gated=True)
    assert parse(QWEN2, tie_word_embeddings=True).tied_embeddings  # as the small ones say


def test_qwen3_normalises_queries_and_keys_and_has_heads_of_128() -> None:
    attention = parse(without(QWEN3, "head_dim")).layers[0].attention
    assert (attention.head_dim, attention.qk_norm, attention.qkv_bias) == (128, True, False)
    assert parse(QWEN3).layers[0].attention.head_dim == 16
    assert parse(QWEN3, attention_bias=True).layers[0].attention.out_bias


@pytest.mark.parametrize("config", [QWEN2, QWEN3, QWEN3_MOE], ids=["qwen2", "qwen3", "qwen3_moe"])
def test_qwen_windows_count_only_when_in_use_and_in_upper_layers(config: dict[str, object]) -> None:
    assert windows(parse(config, sliding_window=64, max_window_layers=1)) == [None] * 4
    used: dict[str, object] = {"use_sliding_window": True, "sliding_window": 64}
    assert windows(parse(config, **used, max_window_layers=1)) == [None, 64, 64, 64]
    assert windows(parse(config, **used, max_window_layers=4)) == [None] * 4
    listed = ["sliding_attention", "full_attention"] * 2
    assert windows(parse(config, **used, max_window_layers=4, layer_types=listed)) == [64, None, 64, None]
    assert windows(parse(config, layer_types=["full_attention"] * 4)) == [None] * 4
    assert windows(parse(config, use_sliding_window=True, max_window_layers=3)) == [None, None, None, 4096]


def test_layer_types_have_to_fit() -> None:
    assert "layer_types: lists 2 layers, there are 4" in refusal(QWEN2, layer_types=["full_attention"] * 2)
    message = refusal(QWEN2, layer_types=["full_attention", "linear_attention"] * 2)
    assert message.startswith("layer_types[1]: is the text 'linear_attention'")
    assert "legal: full_attention, sliding_attention" in message
    assert "no window is in use (give sliding_window" in refusal(
        QWEN2, sliding_window=64, layer_types=["sliding_attention"] * 4
    )
    assert "layer_types: is the text 'x', but must be a list" in refusal(GEMMA2, layer_types="x")


def test_gemma_has_wide_heads_and_a_tied_head() -> None:
    for config in (GEMMA, GEMMA2, GEMMA3):
        model = parse(without(config, "head_dim"))
        assert model.layers[0].attention.query_width == 8 * 256  # not the hidden size
        assert model.tied_embeddings
        assert not parse(config, tie_word_embeddings=False).tied_embeddings
        assert "only decoders" in refusal(config, use_bidirectional_attention=True)
    assert not parse(GEMMA).layers[0].post_norm
    assert parse(GEMMA2).layers[0].post_norm
    assert parse(GEMMA3).layers[0].post_norm
    assert not parse(GEMMA2).layers[0].attention.qk_norm
    assert parse(GEMMA3).layers[0].attention.qk_norm


def test_gemma_windows() -> None:
    assert windows(parse(GEMMA, sliding_window=64)) == [None] * 4
    assert windows(parse(GEMMA2, sliding_window=64)) == [64, None, 64, None]
    assert windows(parse(GEMMA2)) == [4096, None, 4096, None]
    listed = ["full_attention"] * 3 + ["sliding_attention"]
    assert windows(parse(GEMMA2, sliding_window=64, layer_types=listed)) == [None, None, None, 64]
    seven: dict[str, object] = {"num_hidden_layers": 7, "sliding_window": 64}
    assert windows(parse(GEMMA3, **seven)) == [64, 64, 64, 64, 64, None, 64]
    for key in ("sliding_window_pattern", "_sliding_window_pattern"):
        changed = parse(GEMMA3, **seven, **{key: 3})
        assert windows(changed) == [64, 64, None, 64, 64, None, 64]


def test_gemma3_is_nested_and_leaves_most_out() -> None:
    text = {
        "model_type": "gemma3_text",
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
        "sliding_window": 1024,
    }
    outer: dict[str, object] = {
        "model_type": "gemma3",
        "text_config": text,
        "vision_config": {"hidden_size": 1},
    }
    model = parse(outer)
    attention = model.layers[0].attention
    assert (attention.num_heads, attention.num_kv_heads, attention.head_dim) == (8, 4, 256)
    assert (model.family, model.vocab_size, model.max_positions) == ("gemma3_text", 262_208, 131_072)
    assert windows(model).count(None) == 5
    assert model.source == "config.json of model_type gemma3, the language model alone"
    # 3.88B of google/gemma-3-4b; the other 0.42B are of the vision tower.
    assert num_params(model) == pytest.approx(3.88e9, rel=0.001)
    assert parse({**outer, "text_config": without(text, "model_type")}) == model


def test_nested_language_models() -> None:
    inner = {**LLAMA, "tie_word_embeddings": True}
    model = parse({"model_type": "llava", "text_config": inner})
    assert (model.family, model.layers, model.tied_embeddings) == ("llama", parse(LLAMA).layers, True)
    assert parse({"model_type": "x", "tie_word_embeddings": True, "text_config": LLAMA}).tied_embeddings
    assert not parse(
        {
            "model_type": "x",
            "tie_word_embeddings": True,
            "text_config": {**LLAMA, "tie_word_embeddings": False},
        }
    ).tied_embeddings
    assert parse({**LLAMA, "text_config": None}) == parse(LLAMA)
    assert refusal({"model_type": "x", "text_config": []}).startswith("text_config: is a list")
    message = refusal({"model_type": "x", "text_config": without(LLAMA, "hidden_size")})
    assert message.startswith("text_config: the key 'hidden_size' is missing; a llama configuration")
    assert refusal({"model_type": "x", "text_config": without(LLAMA, "model_type")}).startswith(
        "text_config: the key 'model_type' is missing"
    )
    assert "text_config: unknown model_type 'phi'" in refusal(
        {"model_type": "x", "text_config": {**LLAMA, "model_type": "phi"}}
    )


def test_deepseek() -> None:
    model = parse(DEEPSEEK)
    attention = model.layers[0].attention
    assert attention.latent == LatentSpec(24, 16, 8, 4, 6)
    assert (attention.num_heads, attention.num_kv_heads, attention.head_dim) == (8, 8, 12)
    assert [layer.moe is not None for layer in model.layers] == [False, True, True, True]
    assert model.layers[0].feed_forward == FeedForwardSpec(96, gated=True)
    moe = moe_of(model.layers[1])
    assert (moe.num_experts, moe.top_k) == (16, 4)
    assert moe.expert == FeedForwardSpec(20, gated=True)
    assert moe.shared == FeedForwardSpec(40, gated=True)  # two shared experts as one
    # Neither is the shape of what is projected.
    assert parse(DEEPSEEK, num_key_value_heads=3, head_dim=64) == model


def test_deepseek_predicts_further_tokens() -> None:
    """Released files say so, and the class in transformers does not know the key."""
    model = parse(DEEPSEEK, num_nextn_predict_layers=2)
    assert (model.num_layers, len(model.layers), model.num_prediction_layers) == (4, 6, 2)
    assert model.main == parse(DEEPSEEK)
    assert parse(DEEPSEEK, num_nextn_predict_layers=0) == parse(DEEPSEEK, num_nextn_predict_layers=None)
    assert model.layers[-1] == model.layers[3]
    assert num_params(model) == num_params(parse(DEEPSEEK))
    atoms = cut_atoms(model)
    assert len(atoms) == 4 + 2
    assert atoms[-1].layer_idxs == (4, 5)
    assert atoms[-1].is_head
    assert trim_layers(model, 2).layers == (*model.layers[:2], *model.layers[4:])
    head = 2 * 10 * 64 * 1000
    layer = sum(part_forward_flop(model, 3, part, 10, 100) for part in layer_parts(model.layers[3]))
    projection = 2 * 10 * 128 * 64
    more = model_forward_flop(model, 10, 100) - model_forward_flop(model.main, 10, 100)
    assert more == 2 * (head + layer + projection)


def test_deepseek_variants() -> None:
    direct = parse(DEEPSEEK, q_lora_rank=None).layers[0].attention.latent
    assert direct is not None
    assert direct.q_rank is None
    for none in (0, None):
        assert moe_of(parse(DEEPSEEK, n_shared_experts=none).layers[1]).shared is None
    for count, dense in ((0, 0), (4, 4), (9, 4)):
        model = parse(DEEPSEEK, first_k_dense_replace=count)
        assert sum(layer.moe is None for layer in model.layers) == dense
    frequency = parse(DEEPSEEK, moe_layer_freq=2)
    assert [layer.moe is not None for layer in frequency.layers] == [False, False, True, False]
    assert parse(without(DEEPSEEK, "n_routed_experts"), num_local_experts=16) == parse(DEEPSEEK)
    assert "attention_bias: must be false" in refusal(DEEPSEEK, attention_bias=True)
    assert "num_experts_per_tok: 17 is more than the 16 experts" in refusal(DEEPSEEK, num_experts_per_tok=17)


def test_gpt_neo_looks_at_all_keys_and_at_256_by_turns() -> None:
    model = parse(GPT_NEO)
    attention = model.layers[0].attention
    assert windows(model) == [None, 256, None, 256]
    assert (attention.qkv_bias, attention.out_bias) == (False, True)
    assert model.layers[0].feed_forward == FeedForwardSpec(256, gated=False, bias=True)
    assert model.tied_embeddings
    assert parse(GPT_NEO, attention_types=[[["global", "local"], 2]]) == model
    assert parse(GPT_NEO, attention_layers=["global", "local"] * 2) == model
    assert windows(parse(GPT_NEO, attention_types=[[["global"], 3], [["local"], 1]], window_size=9)) == [
        None,
        None,
        None,
        9,
    ]
    renamed = without(GPT_NEO, "num_layers", "num_heads") | {"num_hidden_layers": 4, "num_attention_heads": 4}
    assert parse(renamed) == model
    assert parse(GPT_NEO, intermediate_size=77).layers[0].feed_forward == FeedForwardSpec(77, False, True)


@pytest.mark.parametrize(
    ("types", "expected"),
    [
        ([[["global", "local"], 3]], "lists 6 layers, there are 4"),
        ([[["global", "local"], 10**9]], "repeats a pattern 1000000000 times (legal: 0 to 4)"),
        ([[["global"], True]], "repeats a pattern true times"),
        ([[["sparse"], 4]], "holds the text 'sparse' (legal: global, local)"),
        ([["global", 4]], "must hold patterns with a number each"),
        ([[[], 4]], "must hold patterns with a number each"),
        ("global", "is the text 'global', but must be a list"),
    ],
)
def test_gpt_neo_patterns_have_to_fit(types: object, expected: str) -> None:
    message = refusal(GPT_NEO, attention_types=types)
    assert message.startswith("attention_types: ")
    assert expected in message


def test_gpt_neox_runs_its_blocks_side_by_side() -> None:
    model = parse(GPT_NEOX, rotary_pct=0.25)
    layer = model.layers[0]
    assert layer.parallel
    assert not parse(GPT_NEOX, use_parallel_residual=False).layers[0].parallel
    assert not model.tied_embeddings
    assert (model.position, model.norm) == (PositionKind.ROTARY, NormKind.LAYERNORM)
    assert layer.attention.qkv_bias
    assert not parse(GPT_NEOX, attention_bias=False).layers[0].attention.out_bias
    with pytest.raises(InputError, match="attention and feed-forward of m run side by side"):
        cut_atoms(model, parse_granularity("block"))
    assert len(cut_atoms(model)) == 5


def test_bloom() -> None:
    model = parse(BLOOM)
    assert (model.position, model.max_positions) == (PositionKind.ALIBI, 2048)
    assert model.embedding_norm
    assert model.tied_embeddings
    assert part_params(model, None, Part.EMBEDDING).total == 500 * 64 + 2 * 64  # no position table
    older = without(BLOOM, "hidden_size", "n_layer") | {"n_embed": 64, "num_hidden_layers": 3}
    assert parse(older) == model
    assert parse(without(BLOOM, "num_attention_heads"), n_head=4) == model
    assert parse(BLOOM, n_inner=None, seq_length=4096).max_positions == 4096


def test_opt_positions_are_offset() -> None:
    model = parse(OPT)
    assert (model.position, model.max_positions, model.position_offset) == (PositionKind.LEARNED, 128, 2)
    assert part_params(model, None, Part.EMBEDDING).total == 500 * 64 + 130 * 64
    assert model.final_norm
    assert model.embedding_size is None
    assert parse(OPT, word_embed_proj_dim=64) == model
    assert parse(OPT, word_embed_proj_dim=None) == model
    assert not parse(OPT, enable_bias=False).layers[0].attention.qkv_bias
    assert "layer_norm_elementwise_affine: must be true" in refusal(OPT, layer_norm_elementwise_affine=False)


def test_opt_with_narrow_embeddings() -> None:
    model = parse(OPT, word_embed_proj_dim=16, do_layer_norm_before=False)
    embedding, head = (part_params(model, None, part).total for part in (Part.EMBEDDING, Part.HEAD))
    assert embedding == 500 * 16 + 16 * 64 + 130 * 64
    assert head == 64 * 16  # tied, and no final norm
    assert part_forward_flop(model, None, Part.EMBEDDING, 10, 100) == 2 * 10 * 16 * 64
    assert part_forward_flop(model, None, Part.HEAD, 10, 100) == 2 * 10 * (16 * 64 + 16 * 500)
    assert not parse(OPT, _remove_final_layer_norm=True).final_norm


CHECKPOINTS: list[tuple[str, dict[str, object], int]] = [
    (
        "mistralai/Mistral-7B-v0.1",
        {
            "model_type": "mistral",
            "num_hidden_layers": 32,
            "hidden_size": 4096,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "intermediate_size": 14336,
            "vocab_size": 32000,
        },
        7_241_732_096,
    ),
    (
        "Qwen/Qwen2-0.5B",
        {
            "model_type": "qwen2",
            "num_hidden_layers": 24,
            "hidden_size": 896,
            "num_attention_heads": 14,
            "num_key_value_heads": 2,
            "intermediate_size": 4864,
            "vocab_size": 151936,
            "tie_word_embeddings": True,
        },
        494_032_768,
    ),
    (
        "Qwen/Qwen3-8B",
        {
            "model_type": "qwen3",
            "num_hidden_layers": 36,
            "hidden_size": 4096,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "intermediate_size": 12288,
            "vocab_size": 151936,
        },
        8_190_735_360,
    ),
    (
        "EleutherAI/gpt-neox-20b",
        {
            "model_type": "gpt_neox",
            "num_hidden_layers": 44,
            "hidden_size": 6144,
            "num_attention_heads": 64,
            "intermediate_size": 24576,
            "vocab_size": 50432,
        },
        20_554_567_680,
    ),
    (
        "google/gemma-2b",
        {
            "model_type": "gemma",
            "num_hidden_layers": 18,
            "hidden_size": 2048,
            "num_attention_heads": 8,
            "num_key_value_heads": 1,
            "intermediate_size": 16384,
            "vocab_size": 256000,
        },
        2_506_172_416,
    ),
    (
        "google/gemma-2-9b",
        {
            "model_type": "gemma2",
            "num_hidden_layers": 42,
            "hidden_size": 3584,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "intermediate_size": 14336,
            "vocab_size": 256000,
        },
        9_241_705_984,
    ),
    (
        "google/gemma-3-1b-pt",
        {
            "model_type": "gemma3_text",
            "num_hidden_layers": 26,
            "hidden_size": 1152,
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
            "intermediate_size": 6912,
            "vocab_size": 262144,
        },
        999_885_952,
    ),
    (
        "deepseek-ai/DeepSeek-V2-Lite",
        {
            "model_type": "deepseek_v2",
            "num_hidden_layers": 27,
            "hidden_size": 2048,
            "num_attention_heads": 16,
            "q_lora_rank": None,
            "kv_lora_rank": 512,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
            "intermediate_size": 10944,
            "moe_intermediate_size": 1408,
            "n_routed_experts": 64,
            "n_shared_experts": 2,
            "num_experts_per_tok": 6,
            "first_k_dense_replace": 1,
            "vocab_size": 102400,
        },
        15_706_484_224,
    ),
]


@pytest.mark.parametrize(("repository", "config", "published"), CHECKPOINTS)
def test_counts_of_published_checkpoints(repository: str, config: dict[str, object], published: int) -> None:
    """Elements of the tensors on Hugging Face, as its model pages list them, one by one."""
    assert num_params(parse_hf_config(config, name=repository, where="config.json")) == published


def tensors(model: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a checkpoint of Gemma 3, written out."""
    h, shapes = (
        model.hidden_size,
        {"embed": (model.vocab_size, model.hidden_size), "norm": (model.hidden_size,)},
    )
    for i, layer in enumerate(model.layers):
        a, block = layer.attention, layer.feed_forward
        assert isinstance(block, FeedForwardSpec)
        f = block.intermediate_size
        names = ("input", "post_attention", "pre_feedforward", "post_feedforward")
        shapes |= {f"{i}.{name}_layernorm": (h,) for name in names}
        shapes |= {f"{i}.{name}_norm": (a.head_dim,) for name in "qk"}
        shapes |= {f"{i}.q": (a.num_heads * a.head_dim, h), f"{i}.o": (h, a.num_heads * a.head_dim)}
        shapes |= {f"{i}.{name}": (a.num_kv_heads * a.head_dim, h) for name in "kv"}
        shapes |= {f"{i}.gate": (f, h), f"{i}.up": (f, h), f"{i}.down": (h, f)}
    return shapes


def test_gemma3_by_its_tensors() -> None:
    model = parse(GEMMA3)
    assert num_params(model) == sum(math.prod(shape) for shape in tensors(model).values())
