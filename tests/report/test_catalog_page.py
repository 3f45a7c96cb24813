from __future__ import annotations

import pytest

from tangram.cluster.catalog import load_catalog
from tangram.model.presets import load_preset, preset_names
from tangram.report.catalog import add_gpu, add_gpus, add_model, add_models
from tangram.report.page import Page


@pytest.mark.parametrize("width", [80, 100, 140])
def test_tables_fit(width: int) -> None:
    for fill in (
        lambda page: add_gpus(page, list(load_catalog().values())),
        lambda page: add_models(page, [load_preset(name) for name in preset_names()]),
    ):
        page = Page(width, unicode=False)
        fill(page)
        assert max(line.cell_len for line in page.lines) <= width


def test_one_of_each() -> None:
    page = Page(80, unicode=False)
    add_gpu(page, load_catalog()["T4"])
    text = "\n".join(line.plain for line in page.lines)
    assert "lacks        tf32, bf16" in text
    assert "unfused kernel" in text
    page = Page(80, unicode=False)
    add_model(page, load_preset("mixtral-8x7b"))
    text = "\n".join(line.plain for line in page.lines)
    assert "8 gated experts of 14336" in text


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "gpt-neo-2.7b",
            "20 heads of 128, 20 for keys and values, a window of 256 keys; feed-forward of 10240",
        ),
        (
            "deepseek-v3",
            "128 heads of 192; latent vectors of 1536 for queries and 512 for keys and values of 128",
        ),
        ("deepseek-v3", "256 gated experts of 2048, 8 per token, shared ones of 2048; rmsnorm"),
        ("opt-350m", "embedding 512 wide, projected to and from the hidden size"),
        ("bloom-176b", "alibi, 2,048"),
    ],
)
def test_what_few_models_have(name: str, expected: str) -> None:
    page = Page(80, unicode=False)
    add_model(page, load_preset(name))
    assert expected in " ".join(" ".join(line.plain for line in page.lines).split())


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("RTX-4090", "none; PCIe 32 GB/s, through host memory: no peer access"),
        ("A40", "56.25 GB/s per direction, bridges over pairs; PCIe 32 GB/s"),
        ("GB200", "900 GB/s per direction, over 72 GPUs of several nodes; PCIe 450 GB/s"),
    ],
)
def test_what_joins_gpus_is_told(name: str, expected: str) -> None:
    page = Page(140, unicode=False)
    add_gpu(page, load_catalog()[name])
    assert any(line.plain.rstrip().endswith(expected) for line in page.lines)
