from __future__ import annotations

import subprocess
import sys

import pytest

from tangram.errors import UnknownNameError
from tangram.model.presets import load_preset, preset_names

# layers, hidden, query heads, key and value heads, vocabulary, tied
SHAPES = {
    "gpt3-1.3b": (24, 2048, 32, 32, 51200, True),
    "gpt3-2.6b": (32, 2560, 32, 32, 51200, True),
    "gpt3-6.7b": (32, 4096, 32, 32, 51200, True),
    "gpt3-13b": (40, 5120, 40, 40, 51200, True),
    "gshard-moe-2.4b": (16, 1024, 16, 16, 32000, True),
    "gshard-moe-7.1b": (16, 1280, 16, 16, 32000, True),
    "gshard-moe-10b": (16, 1536, 16, 16, 32000, True),
    "llama-3-8b": (32, 4096, 32, 8, 128256, False),
    "llama-3-70b": (80, 8192, 64, 8, 128256, False),
    "mixtral-8x7b": (32, 4096, 32, 8, 32000, False),
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
