from __future__ import annotations

import json
from pathlib import Path

import pytest
from family_configs import (
    ALL,
    GPT2,
    LLAMA,
    MAY_BE_MISSING,
    MIXTRAL,
    NEVER_NEEDED,
    QWEN3_MOE,
    moe_of,
    parse,
    refusal,
    without,
)
from hypothesis import given
from hypothesis import strategies as st

from tangram.errors import InputError, UnknownNameError
from tangram.model.hf import SUPPORTED_MODEL_TYPES, model_name, read_hf_config
from tangram.model.serial import from_dict, to_dict
from tangram.model.spec import FeedForwardSpec, MoeSpec, NormKind, PositionKind


def test_all_supported_types_are_tried_here() -> None:
    assert set(ALL) == set(SUPPORTED_MODEL_TYPES)


def test_llama() -> None:
    model = parse(LLAMA)
    attention = model.layers[0].attention
    assert (model.family, model.num_layers, model.hidden_size, model.vocab_size) == ("llama", 4, 64, 1000)
    assert (attention.num_heads, attention.num_kv_heads, attention.head_dim) == (8, 2, 8)
    assert (attention.qkv_bias, attention.out_bias, attention.qk_norm) == (False, False, False)
    assert model.layers[0].feed_forward == FeedForwardSpec(96, gated=True)
    assert (model.norm, model.position) == (NormKind.RMSNORM, PositionKind.ROTARY)
    assert model.max_positions == 512
    assert not model.tied_embeddings
    assert parse(LLAMA, tie_word_embeddings=True).tied_embeddings
    assert parse(LLAMA, tie_word_embeddings=None) == model


def test_llama_biases() -> None:
    layer = parse(LLAMA, attention_bias=True, mlp_bias=True).layers[0]
    assert layer.attention.qkv_bias
    assert layer.attention.out_bias
    assert layer.feed_forward == FeedForwardSpec(96, gated=True, bias=True)


def test_key_and_value_heads_absent_or_null() -> None:
    """As the transformers classes have it: null means ungrouped, absent means the class's default."""
    absent = {"llama": 8, "mixtral": 8, "qwen3_moe": 4}
    for name, expected in absent.items():
        config = ALL[name] | {"num_attention_heads": 16, "hidden_size": 128}
        expected = 16 if name == "llama" else expected
        assert parse(without(config, "num_key_value_heads")).layers[0].attention.num_kv_heads == expected
        assert parse(config, num_key_value_heads=None).layers[0].attention.num_kv_heads == 16


def test_head_dim_absent_null_or_explicit() -> None:
    for config in (LLAMA, MIXTRAL, QWEN3_MOE):
        assert parse(without(config, "head_dim")).layers[0].attention.head_dim == 8
        assert parse(config, head_dim=None).layers[0].attention.head_dim == 8
        explicit = parse(config, head_dim=128).layers[0].attention
        assert explicit.query_width == 1024  # not the hidden size
        assert explicit.kv_width == 256
    assert parse(LLAMA, head_dim=10, hidden_size=60).layers[0].attention.query_width == 80


def test_keys_that_set_no_shape_change_nothing() -> None:
    more = {
        "dtype": "bfloat16",
        "torch_dtype": None,
        "rope_parameters": {"full_attention": {"rope_theta": 1e6, "rope_type": "default"}},
        "rope_scaling": None,
        "rope_theta": 500000.0,
        "quantization_config": {"bits": 8},
        "architectures": ["X"],
        "auto_map": {"AutoConfig": "configuration_x.X"},
        "is_encoder_decoder": False,
        "eos_token_id": [1, 2],
    }
    for config in ALL.values():
        assert parse(config, **more) == parse(config)


def test_gpt2() -> None:
    model = parse(GPT2)
    layer = model.layers[0]
    assert model.num_layers == 3
    assert (layer.attention.num_heads, layer.attention.num_kv_heads, layer.attention.head_dim) == (4, 4, 16)
    assert layer.attention.qkv_bias
    assert layer.attention.out_bias
    assert layer.feed_forward == FeedForwardSpec(256, gated=False, bias=True)
    assert (model.norm, layer.norm) == (NormKind.LAYERNORM, NormKind.LAYERNORM)
    assert (model.position, model.max_positions) == (PositionKind.LEARNED, 128)
    assert model.tied_embeddings
    assert not parse(GPT2, tie_word_embeddings=False).tied_embeddings
    assert parse(GPT2, n_inner=None) == model
    assert parse(GPT2, n_inner=100).layers[0].feed_forward == FeedForwardSpec(100, gated=False, bias=True)


def test_gpt2_also_goes_by_the_common_names() -> None:
    names = {
        "num_hidden_layers": 3,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "max_position_embeddings": 128,
    }
    assert parse({"model_type": "gpt2", "vocab_size": 500, **names}) == parse(GPT2)
    assert parse(GPT2, **names) == parse(GPT2)
    assert refusal(GPT2, hidden_size=65).startswith("n_embd is 64 and hidden_size is 65: they mean the same")


def test_mixtral() -> None:
    model = parse(MIXTRAL)
    assert all(layer.moe for layer in model.layers)
    assert moe_of(model.layers[0]) == MoeSpec(8, 2, FeedForwardSpec(96, gated=True))
    assert not model.tied_embeddings
    renamed = without(MIXTRAL, "num_local_experts") | {"num_experts": 8}
    assert parse(renamed) == model


def test_qwen3_moe() -> None:
    model = parse(QWEN3_MOE)
    assert moe_of(model.layers[3]) == MoeSpec(16, 4, FeedForwardSpec(24, gated=True))
    assert model.layers[0].attention.qk_norm
    assert not model.layers[0].attention.qkv_bias
    assert parse(QWEN3_MOE, attention_bias=True).layers[0].attention.out_bias
    assert parse(without(QWEN3_MOE, "num_experts"), num_local_experts=16) == model
    assert parse(QWEN3_MOE, num_local_experts=16) == model
    assert "they mean the same" in refusal(QWEN3_MOE, num_local_experts=8)
    assert parse(without(QWEN3_MOE, "intermediate_size")) == model  # no dense layer needs it


@pytest.mark.parametrize(
    ("changes", "moe_layers"),
    [
        ({"decoder_sparse_step": 1, "mlp_only_layers": []}, [0, 1, 2, 3]),
        ({"decoder_sparse_step": 2}, [1, 3]),
        ({"decoder_sparse_step": 3}, [2]),
        ({"decoder_sparse_step": 9}, []),
        ({"mlp_only_layers": [0, 3]}, [1, 2]),
        ({"decoder_sparse_step": 2, "mlp_only_layers": [1]}, [3]),
        ({"mlp_only_layers": None}, [0, 1, 2, 3]),
        ({"num_experts": 0}, []),
    ],
)
def test_qwen3_moe_dense_layers(changes: dict[str, object], moe_layers: list[int]) -> None:
    model = parse(QWEN3_MOE, **changes)
    assert [i for i, layer in enumerate(model.layers) if layer.moe] == moe_layers
    dense = [layer.feed_forward for layer in model.layers if not layer.moe]
    assert all(block == FeedForwardSpec(96, gated=True) for block in dense)


def test_qwen3_moe_with_dense_layers_needs_their_width() -> None:
    config = without(QWEN3_MOE, "intermediate_size")
    assert "the key 'intermediate_size' is missing" in refusal(config, mlp_only_layers=[0])


@pytest.mark.parametrize("name", sorted(ALL))
def test_every_needed_key_is_missed_by_name(name: str) -> None:
    config = ALL[name]
    optional = NEVER_NEEDED | MAY_BE_MISSING.get(name, set())
    if parse(config).position is not PositionKind.LEARNED:
        optional |= {"max_position_embeddings"}
    article = "an" if name == "opt" else "a"
    for key in config:
        if key not in optional:
            message = refusal(without(config, key))
            assert message.startswith(f"the key {key!r} is missing; {article} {name} configuration needs it")
            wrong = key[:-1] if key.endswith("s") else key + "s"
            assert f"(nearest in the file: {wrong!r})" in refusal(without(config, key) | {wrong: config[key]})


def test_a_misspelled_optional_key_is_not_taken_for_an_absent_one() -> None:
    config = without(LLAMA, "num_key_value_heads")
    message = refusal(config, num_key_value_head=2)
    assert message == (
        "'num_key_value_head' is no key of a llama configuration (did you mean 'num_key_value_heads'?)"
    )
    assert "did you mean 'tie_word_embeddings'?" in refusal(LLAMA, tie_words_embeddings=True)
    assert "did you mean 'head_dim'?" in refusal(LLAMA, Head_Dim=64)
    assert "did you mean 'mlp_only_layers'?" in refusal(QWEN3_MOE, mlp_only_layer=[1])


def test_types_are_strict() -> None:
    for value, told in (
        (True, "true"),
        ("4", "the text '4'"),
        (4.0, "4.0"),
        ([4], "a list"),
        ({"a": 1}, "an object"),
        ("x" * 1000, "the text 'xxxx"),
    ):
        message = refusal(LLAMA, num_hidden_layers=value)
        assert message.startswith(f"num_hidden_layers: is {told}")
        assert "must be a whole number (legal: 1 to 10000)" in message
        assert len(message) < 160
    assert refusal(LLAMA, hidden_size=None) == "hidden_size: is null, but must be a whole number"
    for value in (1, 0, "false", [], 1.0):
        assert "must be true or false" in refusal(LLAMA, tie_word_embeddings=value)
    assert "mlp_only_layers: is the text '1', but must be a list" in refusal(QWEN3_MOE, mlp_only_layers="1")
    assert "mlp_only_layers[1]: is true" in refusal(QWEN3_MOE, mlp_only_layers=[0, True])


def test_numbers_out_of_range() -> None:
    for key in without(LLAMA, "model_type"):
        for value in (0, -1, 10**30, int("9" * 4000)):
            assert refusal(LLAMA, **{key: value}).startswith(f"{key}: ")
            assert len(refusal(LLAMA, **{key: value})) < 160
    assert "decoder_sparse_step: 0 is out of range" in refusal(QWEN3_MOE, decoder_sparse_step=0)
    assert "mlp_only_layers[0]: 4 is out of range (legal: 0 to 3)" in refusal(QWEN3_MOE, mlp_only_layers=[4])


def test_numbers_that_contradict_each_other() -> None:
    assert "num_key_value_heads: 3 does not divide num_attention_heads 8" in refusal(
        LLAMA, num_key_value_heads=3
    )
    assert "num_key_value_heads: 16 does not divide" in refusal(LLAMA, num_key_value_heads=16)
    assert "hidden_size: 60 is no multiple of num_attention_heads 8" in refusal(LLAMA, hidden_size=60)
    assert "n_embd: 66 is no multiple of n_head 4" in refusal(GPT2, n_embd=66)
    assert "num_experts_per_tok: 9 is more than the 8 experts" in refusal(MIXTRAL, num_experts_per_tok=9)


def test_unknown_model_types() -> None:
    with pytest.raises(UnknownNameError) as caught:
        parse(LLAMA, model_type="phi")
    assert all(name in str(caught.value) for name in SUPPORTED_MODEL_TYPES)
    with pytest.raises(UnknownNameError) as caught:
        parse(LLAMA, model_type="mixtrl")
    assert "did you mean 'mixtral' or 'mistral'?" in str(caught.value)
    assert all(name in str(caught.value) for name in SUPPORTED_MODEL_TYPES)
    with pytest.raises(UnknownNameError) as caught:
        parse(LLAMA, model_type="\x1b[31m" + "x" * 500)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400
    assert "docs/models.md" in str(caught.value)


def test_other_model_types_of_the_wrong_kind() -> None:
    assert "the key 'model_type' is missing (supported:" in refusal(without(LLAMA, "model_type"))
    assert "model_type: is a list, but must be text" in refusal(LLAMA, model_type=["llama"])
    assert "only decoders" in refusal(GPT2, add_cross_attention=True)
    assert "only decoders" in refusal(LLAMA, is_encoder_decoder=True)


def test_reads_a_file_and_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "My-Llama"
    folder.mkdir()
    file = folder / "config.json"
    file.write_text(json.dumps(LLAMA))
    model = read_hf_config(folder)
    assert model.name == "My-Llama"
    assert model == read_hf_config(file)
    assert model.layers == parse(LLAMA).layers
    other = tmp_path / "tiny.json"
    other.write_text(json.dumps(GPT2))
    assert read_hf_config(other).name == "tiny"


def test_the_file_is_named_in_messages(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(without(LLAMA, "vocab_size")))
    with pytest.raises(InputError) as caught:
        read_hf_config(tmp_path)
    assert str(caught.value).startswith(f"{file}: the key 'vocab_size' is missing")
    file.write_text('{"model_type": "llama",\n "hidden_size": }')
    with pytest.raises(InputError) as caught:
        read_hf_config(tmp_path)
    assert str(caught.value).startswith(f"{file}:2:17: broken JSON")


def test_refuses_a_folder_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"the folder has no config\.json"):
        read_hf_config(tmp_path)
    (tmp_path / "config.json").mkdir()
    with pytest.raises(InputError, match="is a folder, not a regular file"):
        read_hf_config(tmp_path)


def test_names_of_models(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cache = Path("/hub/models--meta-llama--Meta-Llama-3-8B/snapshots/0123abcd/config.json")
    assert model_name(cache) == "Meta-Llama-3-8B"
    assert model_name(Path("/config.json")) == "model"
    assert model_name(Path("/a/b\x1b/config.json")) == "b?"
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    assert model_name(Path("config.json")) == "here"
    assert model_name(Path("../here/config.json")) == "here"


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(0, 16) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=4,
)


@given(st.sampled_from(sorted(ALL)), st.data())
def test_any_content_gives_a_model_or_one_clear_refusal(name: str, data: st.DataObject) -> None:
    more = ["tie_word_embeddings", "decoder_sparse_step", "mlp_only_layers", "attention_bias", "text_config"]
    more += ["layer_types", "sliding_window", "use_sliding_window", "attention_types", "word_embed_proj_dim"]
    keys = st.sampled_from([*sorted(ALL[name]), *more]) | st.text(max_size=5)
    changes = data.draw(st.dictionaries(keys, values, max_size=3))
    try:
        model = parse(ALL[name], **changes)
    except InputError as error:
        assert str(error).isprintable()  # noqa: PT017
        assert len(str(error)) < 450  # noqa: PT017
    else:
        assert from_dict(to_dict(model)) == model
