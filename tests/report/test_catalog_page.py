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
