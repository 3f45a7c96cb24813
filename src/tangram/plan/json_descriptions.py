"""Carries the descriptions of fields from the sections' docstrings into the JSON Schema.

Descriptions are written once, where a programmer looks for them; importing the schema stays cheap, since they
are only read when somebody asks for the JSON Schema.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

from tangram.plan.schema import PlanDocument
from tangram.plan.section import Section

_ATTRIBUTE = re.compile(r"    (\w+(?:, \w+)*): (.*)")
_MARKUP = re.compile(r":\w+:`~?([^`]*)`")


def describe_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Returns the JSON Schema with descriptions filled in and a dialect stated."""
    definitions = schema.get("$defs", {})
    for section in _all_sections(Section):
        target = schema if section is PlanDocument else definitions.get(section.__name__)
        if target is not None:
            _describe(section, target)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def attribute_texts(section: type[Section]) -> dict[str, str]:
    """Returns the description of each field that the docstring describes."""
    texts: dict[str, str] = {}
    names: list[str] = []
    _, _, listing = (inspect.getdoc(section) or "").partition("Attributes:\n")
    for line in listing.splitlines():
        match = _ATTRIBUTE.fullmatch(line)
        if match:
            names = match.group(1).split(", ")
            texts |= dict.fromkeys(names, match.group(2))
        else:
            texts |= {name: f"{texts[name]} {line.strip()}".strip() for name in names}
    return {name: _plain(text) for name, text in texts.items()}


def _describe(section: type[Section], target: dict[str, Any]) -> None:
    summary = (inspect.getdoc(section) or "").partition("\n\n")[0]
    target["description"] = _plain(" ".join(summary.split()))
    for name, text in attribute_texts(section).items():
        target["properties"][name]["description"] = text


def _plain(text: str) -> str:
    """Removes the markup of docstrings."""
    return _MARKUP.sub(r"\1", text).replace("``", "")


def _all_sections(base: type[Section]) -> list[type[Section]]:
    found: list[type[Section]] = []
    for section in base.__subclasses__():
        found += [section, *_all_sections(section)]
    return found
