"""Lays out JSON for people: two spaces a level, and short things on one line.

>>> print(layout({"stages": [{"index": 0, "atoms": [0, 3]}], "name": "x"}))
{
  "stages": [
    {"index": 0, "atoms": [0, 3]}
  ],
  "name": "x"
}
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

WIDTH = 110


def layout(value: Any, depth: int = 0) -> str:
    """Returns the JSON text of plain data (dicts, lists, scalars); keys keep their order."""
    if not isinstance(value, (dict, list)) or not value:
        return _dumps(value)
    if _is_flat(value):
        text = _dumps(value)
        if 2 * depth + len(text) <= WIDTH:
            return text
    pad = "  " * (depth + 1)
    if isinstance(value, list):
        items = [layout(item, depth + 1) for item in value]
        rows = _fill(items, len(pad)) if _all_scalar(value) else items
        body = f",\n{pad}".join(rows)
        return f"[\n{pad}{body}\n{'  ' * depth}]"
    body = f",\n{pad}".join(f"{_dumps(key)}: {layout(item, depth + 1)}" for key, item in value.items())
    return f"{{\n{pad}{body}\n{'  ' * depth}}}"


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _is_flat(value: Mapping[str, Any] | Sequence[Any]) -> bool:
    """Whether it holds scalars only, or lists of scalars: more than that deserves lines of its own."""
    items = value.values() if isinstance(value, Mapping) else value
    if isinstance(value, list) and any(isinstance(item, list) for item in items):
        return all(isinstance(item, list) and _all_scalar(item) for item in items)
    return all(not isinstance(i, dict) and (not isinstance(i, list) or _all_scalar(i)) for i in items)


def _all_scalar(items: Sequence[Any]) -> bool:
    return not any(isinstance(item, (dict, list)) for item in items)


def _fill(items: list[str], indent: int) -> list[str]:
    """Joins short items (numbers, names) to full lines."""
    rows: list[str] = []
    row = ""
    for item in items:
        longer = f"{row}, {item}" if row else item
        if row and indent + len(longer) + 1 > WIDTH:
            rows.append(row)
            row = item
        else:
            row = longer
    return [*rows, row]
