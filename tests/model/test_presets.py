from __future__ import annotations

import subprocess
import sys

import pytest

from tangram.errors import UnknownNameError
from tangram.model.presets import load_preset, preset_names

# layers, hidden, query heads, key and value heads, vocabulary, tied
SHAPES = {
    "bloom-176b": (70, 14336, 112, 112, 250880, True),
    "deepseek-v3": (61, 7168, 128, 128, 129280, False),
    "gpt3-125m": (12, 768, 12, 12, 51200, True),
    "gpt3-350m": (24, 1024, 16, 16, 51200, True),
    "gpt3-1.3b": (24, 2048, 32, 32, 51200, True),
    "gpt3-2.6b": (32, 2560, 32, 32, 51200, True),
    "gpt3-6.7b": (32, 4096, 32, 32, 51200, True),
    "gpt3-13b": (40, 5120, 40, 40, 51200, True),
    "gpt3-39b": (48, 8192, 64, 64, 51200, True),
    "gpt3-175b": (96, 12288, 96, 96, 51200, True),
    "gpt-neo-2.7b": (32, 2560, 20, 20, 50257, True),
    "gshard-moe-2.4b": (16, 1024, 16, 16, 32000, True),
    "gshard-moe-7.1b": (16, 1280, 16, 16, 32000, True),
    "gshard-moe-10b": (16, 1536, 16, 16, 32000, True),
    "llama-2-7b": (32, 4096, 32, 32, 32000, False),
    "llama-2-13b": (40, 5120, 40, 40, 32000, False),
    "llama-2-70b": (80, 8192, 64, 8, 32000, False),
    "llama-3-8b": (32, 4096, 32, 8, 128256, False),
    "llama-3-70b": (80, 8192, 64, 8, 128256, False),
    "llama-3-405b": (126, 16384, 128, 8, 128256, False),
    "mixtral-8x7b": (32, 4096, 32, 8, 32000, False),
    "mixtral-8x22b": (56, 6144, 48, 8, 32000, False),
    "opt-350m": (24, 1024, 16, 16, 50272, True),
    "opt-30b": (48, 7168, 56, 56, 50272, True),
    "qwen2-7b": (28, 3584, 28, 4, 152064, False),
    "qwen3-30b-a3b": (48, 2048, 32, 4, 151936, False),
}


def test_names_and_order() -> None:
    assert preset_names() == list(SHAPES)


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_shapes(name: str) -> None:
    model = load_preset(name)
    attention = model.layers[0].attention
    shape = (model.num_layers, model.hidden_size, attention.num_heads, attention.num_kv_heads)
    assert (*shape, model.vocab_size, model.tied_embeddings) == SHAPES[name]
    assert model.name == name
    assert len(model.source) > 40
    if name.startswith("gpt3"):
        assert "Tied embeddings" in model.source
    if model.has_moe and name.startswith("gshard"):
        assert [layer.moe is not None for layer in model.layers] == [True, False] * 8


def test_unknown_preset() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown model 'gpt3-13' \(did you mean 'gpt3-13b'"):
        load_preset("gpt3-13")
    for name in ("../presets/gpt3-13b", "", "."):
        with pytest.raises(UnknownNameError):
            load_preset(name)


def test_models_load_without_heavy_libraries() -> None:
    code = (
        "import sys, tangram.model.load as l; l.load_model('gpt3-13b');"
        "print([m for m in ('numpy', 'pydantic', 'yaml', 'rich', 'typer') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
