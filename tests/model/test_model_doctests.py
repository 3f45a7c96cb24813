"""The examples in the docstrings run."""

from __future__ import annotations

import doctest

import pytest

from tangram.model import hf, json_file, json_lines


@pytest.mark.parametrize("module", [hf, json_file, json_lines], ids=["hf", "json_file", "json_lines"])
def test_examples(module: object) -> None:
    result = doctest.testmod(module)  # type: ignore[arg-type]
    assert result.failed == 0
    assert result.attempted > 0
