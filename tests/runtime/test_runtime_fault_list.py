"""The page about tests lists the faults that are put into the runtime."""

from __future__ import annotations

from pathlib import Path

import pytest
from runtime_faults import FAULTS, RuntimeFault, put_in


def test_every_fault_of_the_runtime_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "testing.md").read_text(encoding="utf-8")
    section = page.partition("## Deliberate faults in the runtime")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")]
    assert [row.split("|")[2].strip() for row in rows[2:]] == [fault.name for fault in FAULTS]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_every_fault_is_about_code_that_exists(fault: RuntimeFault) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed (pip install 'tangram-llm[train]')")
    with put_in(fault):
        pass
