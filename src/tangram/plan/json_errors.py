"""Says in one message what is wrong with a plan file, from what pydantic found."""

from __future__ import annotations

from typing import Any, get_args

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from tangram.errors import InputError, UnknownNameError
from tangram.model.fields import describe
from tangram.plan.schema import PlanDocument
from tangram.plan.section import Section
from tangram.units import count_of

_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing_size": "a whole number of at most 64 bits",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
}


def explain(error: ValidationError, where: str) -> InputError:
    """Returns the error to raise for a file that is JSON, but no plan.

    Args:
        error: What pydantic found; the first finding is told, the others are counted.
        where: The file.
    """
    findings = error.errors(include_url=False, include_context=True)
    first = _most_telling(findings)
    others = len(findings) - 1
    more = f", and {count_of(others, 'more problem')}" if others else ""
    place = f"{where}: {field_path(first['loc'])}" if first["loc"] else where
    if first["type"] == "extra_forbidden":
        key = str(first["loc"][-1])
        outer = field_path(first["loc"][:-1])
        known = _known_keys(first["loc"])
        return UnknownNameError("key", key[:80], known, where=f"{where}: {outer}" if outer else where)
    if first["type"] == "missing" and isinstance(first["loc"][-1], str):
        key = str(first["loc"][-1])
        outer = field_path(first["loc"][:-1])
        return InputError(f"the key {key!r} is missing{more}", where=f"{where}: {outer}" if outer else where)
    return InputError(f"{problem_of(first)}{more}", where=place)


def field_path(loc: tuple[int | str, ...]) -> str:
    """Returns ``pipelines[0].stages[2].dp`` for its parts."""
    text = ""
    for part in loc:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part[:80]}" if text else part[:80]
    return text


def _most_telling(findings: list[ErrorDetails]) -> ErrorDetails:
    """A misspelled key is found twice, as missing and as unknown; the unknown one can be pointed at."""
    missing = {finding["loc"][:-1] for finding in findings if finding["type"] == "missing"}
    unknown = (f for f in findings if f["type"] == "extra_forbidden" and f["loc"][:-1] in missing)
    return next(unknown, findings[0])


def problem_of(finding: ErrorDetails) -> str:
    """Returns in words what pydantic found at one place: what is there, and what is legal."""
    kind, value, context = finding["type"], finding["input"], finding.get("ctx", {})
    if kind in _EXPECTED:
        return f"is {describe(value)}, but must be {_EXPECTED[kind]}"
    if kind in ("literal_error", "enum"):
        return f"is {describe(value)}; legal: {context.get('expected')}"
    limits = {"greater_than": "above", "greater_than_equal": "at least", "less_than_equal": "at most"}
    keys = {"greater_than": "gt", "greater_than_equal": "ge", "less_than_equal": "le"}
    if kind in limits:
        return f"is {describe(value)}, but must be {limits[kind]} {context.get(keys[kind])}"
    if kind == "missing":
        return "is missing"
    if kind == "extra_forbidden":
        return "is no key here"
    if kind in ("too_long", "too_short"):
        limit = "at most" if kind == "too_long" else "at least"
        legal = context.get("max_length" if kind == "too_long" else "min_length")
        return f"has {context.get('actual_length')} entries, but must have {limit} {legal}"
    return finding["msg"]


def _known_keys(loc: tuple[int | str, ...]) -> list[str]:
    """Keys of the section in which an unknown key was found."""
    section: type[Section] = PlanDocument
    for part in loc[:-1]:
        if isinstance(part, str) and part in section.model_fields:
            section = _section_in(section.model_fields[part].annotation) or section
    return list(section.model_fields)


def _section_in(annotation: Any) -> type[Section] | None:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    return next((found for arg in get_args(annotation) if (found := _section_in(arg)) is not None), None)
