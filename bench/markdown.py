"""Tables, and the parts of a page that a script keeps up to date: what stands between two markers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a table."""
    lines = [headers, ["---"] * len(headers), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def write_sections(page: Path, sections: Mapping[str, str]) -> None:
    """Replaces what stands between ``<!-- name: begin -->`` and ``<!-- name: end -->``, for every name."""
    text = page.read_text(encoding="utf-8")
    for name, content in sections.items():
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        before, rest = text.split(begin)
        _, after = rest.split(end)
        text = f"{before}{begin}\n{content}\n{end}{after}"
    page.write_text(text, encoding="utf-8")
