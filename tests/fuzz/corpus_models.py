"""Malformed models: Hugging Face configurations, Tangram's own form, and what is no model file at all."""

from __future__ import annotations

from typing import Any

from malformed import Malformed, nested, to_text

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 1024,
    "vocab_size": 1000,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}
GPT2: dict[str, Any] = {
    "model_type": "gpt2",
    "n_layer": 4,
    "n_embd": 256,
    "n_head": 8,
    "n_positions": 512,
    "vocab_size": 1000,
}
MIXTRAL: dict[str, Any] = LLAMA | {
    "model_type": "mixtral",
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
QWEN3_MOE: dict[str, Any] = LLAMA | {
    "model_type": "qwen3_moe",
    "head_dim": 32,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 128,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
ATTENTION: dict[str, Any] = {
    "num_heads": 8,
    "num_kv_heads": 4,
    "head_dim": 32,
    "qkv_bias": False,
    "out_bias": False,
    "qk_norm": False,
}
BLOCK: dict[str, Any] = {"intermediate_size": 512, "gated": True, "bias": False}
OWN: dict[str, Any] = {
    "name": "own",
    "family": "own",
    "source": "a test",
    "hidden_size": 256,
    "vocab_size": 1000,
    "norm": "rmsnorm",
    "position": "rotary",
    "max_positions": 512,
    "tied_embeddings": False,
    "layer_kinds": [{"norm": "rmsnorm", "attention": ATTENTION, "feed_forward": BLOCK}],
    "layers": [0, 0],
}


def file(name: str, content: str | bytes, *says: str) -> Malformed:
    return Malformed(f"model: {name}", ("models", "config.json"), says, {"config.json": content})


def config(name: str, base: dict[str, Any], changes: dict[str, Any], *says: str) -> Malformed:
    """A configuration with some keys changed; a change to ... takes the key away."""
    changed = {key: value for key, value in (base | changes).items() if value is not ...}
    return file(f"{base['model_type']}: {name}", to_text(changed), *says)


def own(name: str, changes: dict[str, Any], *says: str) -> Malformed:
    """A model in Tangram's own form, with some keys changed."""
    changed = {key: value for key, value in (OWN | changes).items() if value is not ...}
    return file(f"own form: {name}", to_text(changed), *says)


def kind(name: str, changes: dict[str, Any], *says: str) -> Malformed:
    """A kind of layers with some keys changed."""
    changed = OWN["layer_kinds"][0] | changes
    return own(name, {"layer_kinds": [{key: v for key, v in changed.items() if v is not ...}]}, *says)


def attention(name: str, changes: dict[str, Any], *says: str) -> Malformed:
    return kind(name, {"attention": {k: v for k, v in (ATTENTION | changes).items() if v is not ...}}, *says)


FILES = (
    file("empty", "", "config.json: is empty", "a JSON object starts with '{'"),
    file("blank", " \n\n", "config.json: is empty", "a JSON object starts with '{'"),
    file("only a byte order mark", b"\xef\xbb\xbf", "config.json: is empty", "a JSON object starts with '{'"),
    file(
        "not JSON",
        "model_type: llama\n",
        "config.json:1:",
        "is not JSON: it begins with 'model_type:'",
        "a JSON object starts with '{'",
    ),
    file(
        "cut off",
        to_text(LLAMA)[:100],
        "config.json:6:",
        "broken JSON",
        "keys stand in double quotes; no comment, and no comma before a bracket",
    ),
    file(
        "cut off within a text",
        '{"model_type": "lla',
        "config.json:1:",
        "broken JSON",
        "a quotation mark is missing",
    ),
    file(
        "a trailing comma",
        '{"model_type": "llama",}',
        "config.json:1:",
        "broken JSON",
    ),
    file(
        "a comment",
        '{\n// layers\n"num_hidden_layers": 4}',
        "config.json:2:",
        "broken JSON",
        "keys stand in double quotes; no comment, and no comma before a bracket",
    ),
    file(
        "single quotes",
        "{'model_type': 'llama'}",
        "config.json:1:",
        "broken JSON",
        "keys stand in double quotes; no comment, and no comma before a bracket",
    ),
    file("two objects", to_text(LLAMA) * 2, "config.json:12:", "broken JSON", "a file holds one object"),
    file("a list", to_text([LLAMA]), "config.json: is not a JSON object", "it must start with '{'"),
    file("a text", '"llama"', "config.json: is not a JSON object", "it must start with '{'"),
    file("a number", "4", "config.json: is not a JSON object", "it must start with '{'"),
    file("null", "null", "config.json: is not a JSON object", "it must start with '{'"),
    file(
        "a plan",
        '{"format": "tangram-plan", "model": {}}',
        "config.json: is a file of format 'tangram-plan', not a model",
        "a plan holds its model under 'model'",
    ),
    file("an empty object", "{}", "config.json: the key 'model_type' is missing"),
    file(
        "a key twice",
        '{"model_type": "llama", "hidden_size": 1,\n "hidden_size": 2}',
        "config.json: the key 'hidden_size' occurs twice",
        "remove one of them",
    ),
    file(
        "a key twice, deep down",
        '{"a": {"b": [{"c": 1, "c": 1}]}}',
        "config.json: the key 'c' occurs twice",
        "remove one of them",
    ),
    file(
        "NaN",
        '{"model_type": "llama", "hidden_size": NaN}',
        "config.json: hidden_size: NaN is not a finite number",
    ),
    file(
        "infinity",
        '{"model_type": "llama", "rope_theta": -Infinity}',
        "config.json: rope_theta: -Infinity is not a finite number",
    ),
    file(
        "a number that is infinite for a machine",
        '{"model_type": "llama", "rope_theta": 1e999}',
        "config.json: rope_theta: 1e999 is not a finite number",
    ),
    file(
        "a number of 5,000 digits",
        '{"hidden_size": ' + "9" * 5000 + "}",
        "config.json: hidden_size: 9999999999999999999999999999999999999999 is the beginning of a number",
    ),
    file("nested too deeply", '{"a": ' + nested(100_000) + "}", "config.json: nests too deeply"),
    file(
        "Latin-1",
        '{"model_type": "llama", "name": "Jos\xe9"}'.encode("latin-1"),
        "config.json:1: is not UTF-8",
        "save it as UTF-8",
    ),
    file("UTF-16", to_text(LLAMA).encode("utf-16"), "config.json:1: is not UTF-8", "save it as UTF-8"),
    file(
        "NUL",
        b"\0" * 64,
        "config.json:1:",
        "broken JSON",
        "texts stand in double quotes; no comment, and no comma before a bracket",
    ),
    file(
        "NUL inside",
        to_text(LLAMA)[:60].encode() + b"\0" + b"}",
        "config.json:4:",
        "broken JSON",
        "write a line break as \\n",
    ),
    file(
        "a picture",
        b"\x89PNG\r\n\x1a\n" + bytes(range(256)),
        "config.json:1: is not UTF-8",
        "save it as UTF-8",
    ),
    file("too large", b" " * (8 * 1024**2 + 1), "config.json: is larger than 8 MiB"),
    file(
        "a control character in a text",
        '{"model_type": "lla\x07ma"}',
        "config.json:1:",
        "broken JSON",
        "write a line break as \\n",
    ),
    Malformed(
        "model: no such file",
        ("models", "nowhere/config.json"),
        (
            "nowhere/config.json: no such file or folder",
            "give a config.json or its folder (nothing is downloaded)",
        ),
    ),
    Malformed(
        "model: no such preset",
        ("models", "lama-3-8b"),
        (
            "unknown model 'lama-3-8b'",
            "did you mean 'llama-3-8b'",
        ),
    ),
    Malformed(
        "model: no name",
        ("plan", " ", "1x2xT4"),
        (
            "the name of the model is empty",
            "give a preset, a file or a folder",
        ),
    ),
    Malformed(
        "model: an empty folder",
        ("models", "."),
        (
            ".: the folder has no config.json",
            "give the folder of one model",
        ),
        {"weights.bin": b"\0"},
    ),
    Malformed(
        "model: a path with NUL",
        ("models", "a\0b.json"),
        (
            "a?b.json: no such file or folder",
            "give a config.json or its folder (nothing is downloaded)",
        ),
    ),
    Malformed(
        "model: a path that is too long",
        ("models", "x" * 5000 + ".json"),
        ("xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",),
    ),
    Malformed(
        "model: a path with an escape",
        ("models", "\x1b[2J.json"),
        (
            "?[2J.json: no such file or folder",
            "give a config.json or its folder (nothing is downloaded)",
        ),
    ),
    Malformed("model: a device", ("models", "/dev/zero"), ("/dev/zero: is a device, not a regular file",)),
    Malformed(
        "model: layers of a preset",
        ("estimate", "gpt3-1.3b", "1x2xT4", "--num-layers", "25"),
        (
            "--num-layers: 25 layers cannot be taken from gpt3-1.3b",
            "legal: 1 to 24",
        ),
    ),
)

CONFIGS = (
    config("unknown type", LLAMA, {"model_type": "lama"}, "config.json: unknown model_type 'lama'"),
    config("another type", LLAMA, {"model_type": "bert"}, "config.json: unknown model_type 'bert'"),
    config("type missing", LLAMA, {"model_type": ...}, "config.json: the key 'model_type' is missing"),
    config("type null", LLAMA, {"model_type": None}, "config.json: the key 'model_type' is missing"),
    config(
        "type is a list",
        LLAMA,
        {"model_type": ["llama"]},
        "config.json: model_type: is a list, but must be text",
    ),
    config(
        "type of a thousand letters",
        LLAMA,
        {"model_type": "x" * 1000},
        "config.json: unknown model_type",
    ),
    config(
        "encoder and decoder",
        LLAMA,
        {"is_encoder_decoder": True},
        "config.json: is_encoder_decoder: must be false: only decoders are supported",
    ),
    config(
        "cross-attention is a text",
        LLAMA,
        {"add_cross_attention": "no"},
        "config.json: add_cross_attention: is the text 'no', but must be true or false",
    ),
    config(
        "layers missing",
        LLAMA,
        {"num_hidden_layers": ...},
        "config.json: the key 'num_hidden_layers' is missing; a llama configuration needs it",
    ),
    config(
        "layers null",
        LLAMA,
        {"num_hidden_layers": None},
        "config.json: num_hidden_layers: is null, but must be a whole number",
    ),
    config(
        "layers 0",
        LLAMA,
        {"num_hidden_layers": 0},
        "config.json: num_hidden_layers: 0 is out of range",
        "legal: 1 to 10000",
    ),
    config(
        "layers negative",
        LLAMA,
        {"num_hidden_layers": -4},
        "config.json: num_hidden_layers: -4 is out of range",
        "legal: 1 to 10000",
    ),
    config(
        "layers a text",
        LLAMA,
        {"num_hidden_layers": "4"},
        "config.json: num_hidden_layers: is the text '4', but must be a whole number",
        "legal: 1 to 10000",
    ),
    config(
        "layers true",
        LLAMA,
        {"num_hidden_layers": True},
        "config.json: num_hidden_layers: is true, but must be a whole number",
        "legal: 1 to 10000",
    ),
    config(
        "layers a fraction",
        LLAMA,
        {"num_hidden_layers": 4.0},
        "config.json: num_hidden_layers: is 4.0, but must be a whole number",
        "legal: 1 to 10000",
    ),
    config(
        "layers a list",
        LLAMA,
        {"num_hidden_layers": [4]},
        "config.json: num_hidden_layers: is a list, but must be a whole number",
        "legal: 1 to 10000",
    ),
    config(
        "layers an object",
        LLAMA,
        {"num_hidden_layers": {}},
        "config.json: num_hidden_layers: is an object, but must be a whole number",
        "legal: 1 to 10000",
    ),
    config(
        "a million layers",
        LLAMA,
        {"num_hidden_layers": 1_000_000},
        "config.json: num_hidden_layers: 1000000 is out of range",
        "legal: 1 to 10000",
    ),
    config(
        "layers misspelled",
        LLAMA,
        {"num_hidden_layers": ..., "num_hiden_layers": 4},
        "config.json: the key 'num_hidden_layers' is missing; a llama configuration needs it",
        "nearest in the file: 'num_hiden_layers'",
    ),
    config(
        "width no multiple of heads",
        LLAMA,
        {"hidden_size": 250},
        "config.json: hidden_size: 250 is no multiple of num_attention_heads 8, and head_dim is not given",
        "add head_dim, or correct one of them",
    ),
    config(
        "width huge",
        LLAMA,
        {"hidden_size": 10**30},
        "config.json: hidden_size: 1000000000000000000000000000000 is out of range",
        "legal: 1 to 1048576",
    ),
    config(
        "width a text of a thousand letters",
        LLAMA,
        {"hidden_size": "9" * 1000},
        "config.json: hidden_size: is the text '9999999999999999999999999999999999999999'..., but must be",
        "legal: 1 to 1048576",
    ),
    config(
        "heads 0",
        LLAMA,
        {"num_attention_heads": 0},
        "config.json: num_attention_heads: 0 is out of range",
        "legal: 1 to 65536",
    ),
    config(
        "KV heads do not divide",
        LLAMA,
        {"num_key_value_heads": 3},
        "config.json: num_key_value_heads: 3 does not divide num_attention_heads 8",
        "each key and value head serves an equal number of query heads",
    ),
    config(
        "more KV heads than heads",
        LLAMA,
        {"num_key_value_heads": 16},
        "config.json: num_key_value_heads: 16 does not divide num_attention_heads 8",
        "each key and value head serves an equal number of query heads",
    ),
    config(
        "head_dim 0",
        LLAMA,
        {"head_dim": 0},
        "config.json: head_dim: 0 is out of range",
        "legal: 1 to 1048576",
    ),
    config(
        "head_dim a fraction",
        LLAMA,
        {"head_dim": 0.5},
        "config.json: head_dim: is 0.5, but must be a whole number",
        "legal: 1 to 1048576",
    ),
    config(
        "vocabulary missing",
        LLAMA,
        {"vocab_size": ...},
        "config.json: the key 'vocab_size' is missing; a llama configuration needs it",
    ),
    config(
        "vocabulary too large",
        LLAMA,
        {"vocab_size": 2**40},
        "config.json: vocab_size: 1099511627776 is out of range",
        "legal: 1 to 16777216",
    ),
    config(
        "feed-forward width missing",
        LLAMA,
        {"intermediate_size": ...},
        "config.json: the key 'intermediate_size' is missing; a llama configuration needs it",
    ),
    config(
        "tied is a number",
        LLAMA,
        {"tie_word_embeddings": 1},
        "config.json: tie_word_embeddings: is 1, but must be true or false",
    ),
    config(
        "tied is a text",
        LLAMA,
        {"tie_word_embeddings": "false"},
        "config.json: tie_word_embeddings: is the text 'false', but must be true or false",
    ),
    config(
        "tied misspelled",
        LLAMA,
        {"tie_word_embeddings": ..., "tie_word_embedings": True},
        "config.json: 'tie_word_embedings' is no key of a llama configuration",
        "did you mean 'tie_word_embeddings'?",
    ),
    config(
        "bias is a text",
        LLAMA,
        {"attention_bias": "yes"},
        "config.json: attention_bias: is the text 'yes', but must be true or false",
    ),
    config(
        "positions 0",
        LLAMA,
        {"max_position_embeddings": 0},
        "config.json: max_position_embeddings: 0 is out of range",
        "legal: 1 to 1000000000",
    ),
    config(
        "n_embd and hidden_size differ",
        GPT2,
        {"hidden_size": 512},
        "config.json: n_embd is 256 and hidden_size is 512: they mean the same",
        "keep one of them",
    ),
    config(
        "n_layer missing",
        GPT2,
        {"n_layer": ...},
        "config.json: the key 'n_layer' is missing; a gpt2 configuration needs it",
    ),
    config(
        "n_inner negative",
        GPT2,
        {"n_inner": -1},
        "config.json: n_inner: -1 is out of range",
        "legal: 1 to 16777216",
    ),
    config(
        "heads do not divide",
        GPT2,
        {"n_head": 7},
        "config.json: n_embd: 256 is no multiple of n_head 7",
        "each head takes an equal share of n_embd",
    ),
    config(
        "positions are a text",
        GPT2,
        {"n_positions": "many"},
        "config.json: n_positions: is the text 'many', but must be a whole number",
        "legal: 1 to 1000000000",
    ),
    config(
        "experts missing",
        MIXTRAL,
        {"num_local_experts": ...},
        "config.json: the key 'num_local_experts' is missing; a mixtral configuration needs it",
    ),
    config(
        "experts 0",
        MIXTRAL,
        {"num_local_experts": 0},
        "config.json: num_local_experts: 0 is out of range",
        "legal: 1 to 65536",
    ),
    config(
        "spellings of experts differ",
        MIXTRAL,
        {"num_experts": 4},
        "config.json: num_local_experts is 8 and num_experts is 4: they mean the same",
        "keep one of them",
    ),
    config(
        "more experts per token than experts",
        MIXTRAL,
        {"num_experts_per_tok": 9},
        "config.json: num_experts_per_tok: 9 is more than the 8 experts there are",
    ),
    config(
        "experts per token missing",
        MIXTRAL,
        {"num_experts_per_tok": ...},
        "config.json: the key 'num_experts_per_tok' is missing; a mixtral configuration needs it",
    ),
    config(
        "width of experts missing",
        QWEN3_MOE,
        {"moe_intermediate_size": ...},
        "config.json: the key 'moe_intermediate_size' is missing; a qwen3_moe configuration needs it",
    ),
    config(
        "dense layer beyond the last",
        QWEN3_MOE,
        {"mlp_only_layers": [4]},
        "config.json: mlp_only_layers[0]: 4 is out of range",
        "legal: 0 to 3",
    ),
    config(
        "dense layers a number",
        QWEN3_MOE,
        {"mlp_only_layers": 3},
        "config.json: mlp_only_layers: is 3, but must be a list",
    ),
    config(
        "dense layer a text",
        QWEN3_MOE,
        {"mlp_only_layers": ["0"]},
        "config.json: mlp_only_layers[0]: is the text '0', but must be a whole number",
        "legal: 0 to 3",
    ),
    config(
        "sparse step 0",
        QWEN3_MOE,
        {"decoder_sparse_step": 0},
        "config.json: decoder_sparse_step: 0 is out of range",
        "legal: 1 to 10000",
    ),
    config(
        "too many experts",
        QWEN3_MOE,
        {"num_experts": 1_000_000},
        "config.json: num_experts: 1000000 is out of range",
        "legal: 0 to 65536",
    ),
)

OWN_FORM = (
    own("layers missing", {"layers": ...}, "config.json: the key 'layers' is missing", "number of its kind"),
    own("layer kinds missing", {"layer_kinds": ...}, "config.json: the key 'layer_kinds' is missing"),
    own("layers empty", {"layers": []}, "config.json: layers: lists 0 layers", "legal: 1 to 10000"),
    own(
        "layers of a kind that is not there",
        {"layers": [0, 1]},
        "config.json: layers[1]: 1 is out of range",
        "legal: 0 to 0",
    ),
    own("layers a number", {"layers": 2}, "config.json: layers: is 2, but must be a list"),
    own(
        "kinds empty",
        {"layer_kinds": []},
        "config.json: layer_kinds: is a list, but must be a list with a kind",
    ),
    own(
        "kinds an object",
        {"layer_kinds": {}},
        "config.json: layer_kinds: is an object, but must be a list with a kind",
    ),
    own(
        "a kind is null",
        {"layer_kinds": [None]},
        "config.json: layer_kinds[0]: is null, but must be an object",
    ),
    own(
        "unknown key",
        {"hiden_size": 3},
        "config.json: 'hiden_size' is no key of a model",
        "did you mean 'hidden_size'?",
    ),
    own(
        "norm unknown",
        {"norm": "batchnorm"},
        "config.json: norm: is the text 'batchnorm'",
        "legal: rmsnorm, layernorm",
    ),
    own(
        "position missing", {"position": ...}, "config.json: the key 'position' is missing; a model needs it"
    ),
    own(
        "tied a text",
        {"tied_embeddings": "no"},
        "config.json: tied_embeddings: is the text 'no', but must be true or false",
    ),
    own("name a number", {"name": 7}, "config.json: name: is 7, but must be text"),
    own(
        "name of 20,000 letters", {"name": "x" * 20_000}, "config.json: name: is longer than 10000 characters"
    ),
    own("source null", {"source": None}, "config.json: source: is null, but must be text"),
    own("width 0", {"hidden_size": 0}, "config.json: hidden_size: 0 is out of range", "legal: 1 to 1048576"),
    own(
        "more layers than are read",
        {"layers": [0] * 10_001},
        "config.json: layers: lists 10001 layers",
        "legal: 1 to 10000",
    ),
    kind(
        "neither block nor experts",
        {"feed_forward": ...},
        "config.json: layer_kinds[0]: must have either 'feed_forward' or 'moe'",
    ),
    kind(
        "both block and experts",
        {"moe": {"num_experts": 2, "top_k": 1, "expert": BLOCK}},
        "config.json: layer_kinds[0]: must have either 'feed_forward' or 'moe'",
    ),
    kind(
        "attention missing",
        {"attention": ...},
        "config.json: layer_kinds[0]: the key 'attention' is missing; a layer kind needs it",
    ),
    kind(
        "block a list",
        {"feed_forward": []},
        "config.json: layer_kinds[0]: feed_forward: is a list, but must be an object",
    ),
    kind(
        "block without width",
        {"feed_forward": {"gated": True, "bias": False}},
        "config.json: layer_kinds[0]: feed_forward: the key 'intermediate_size' is missing; a",
    ),
    kind(
        "more experts per token than experts",
        {"feed_forward": ..., "moe": {"num_experts": 2, "top_k": 3, "expert": BLOCK}},
        "config.json: layer_kinds[0]: moe: top_k: 3 is more than 2 experts",
    ),
    kind(
        "experts without a block",
        {"feed_forward": ..., "moe": {"num_experts": 2, "top_k": 1}},
        "config.json: layer_kinds[0]: moe: the key 'expert' is missing; a mixture of experts needs it",
    ),
    kind("unknown key of a kind", {"mlp": 1}, "config.json: layer_kinds[0]: 'mlp' is no key of a layer kind"),
    attention(
        "KV heads do not divide",
        {"num_kv_heads": 3},
        "config.json: layer_kinds[0]: attention: num_kv_heads: 3 does not divide num_heads 8",
    ),
    attention(
        "window negative",
        {"window": -1},
        "config.json: layer_kinds[0]: attention: window: -1 is out of range",
        "legal: 1 to 1000000000",
    ),
    attention(
        "bias missing",
        {"qkv_bias": ...},
        "config.json: layer_kinds[0]: attention: the key 'qkv_bias' is missing; attention needs it",
    ),
    attention(
        "latent is true",
        {"latent": True},
        "config.json: layer_kinds[0]: attention: latent: is true, but must be an object",
    ),
    attention(
        "latent widths do not sum",
        {"latent": {"q_rank": None, "kv_rank": 8, "nope_dim": 8, "rope_dim": 8, "value_dim": 8}},
        "config.json: layer_kinds[0]: attention: latent: nope_dim: nope_dim 8 and rope_dim 8 do not sum",
    ),
    attention(
        "latent rank missing",
        {"latent": {"nope_dim": 16, "rope_dim": 16, "value_dim": 8}},
        "config.json: layer_kinds[0]: attention: latent: the key 'kv_rank' is missing; latent attention",
    ),
)

CASES = (*FILES, *CONFIGS, *OWN_FORM)
