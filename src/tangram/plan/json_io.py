"""Plan documents as JSON text: written so that equal plans are equal bytes, read so that errors can be found.

What was given (model, cluster, job, tolerances) is written exactly; what was computed is rounded to nine
digits, which hides the last bits of a sum and no more.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tangram.errors import InputError
from tangram.model.json_file import parse_json_object, printable, read_json_text
from tangram.model.json_lines import lines_named
from tangram.plan.json_errors import explain
from tangram.plan.json_layout import layout
from tangram.plan.schema import PlanDocument

FORMAT = "tangram-plan"
VERSION = 1
MAX_FILE_BYTES = 64 * 1024**2
EXACT_SECTIONS = ("model", "cluster", "job", "tolerances", "extensions")
SIGNIFICANT_DIGITS = 9


def to_json(doc: PlanDocument) -> str:
    """Returns the document as JSON text that ends with a newline; equal documents give equal bytes."""
    data = doc.model_dump(mode="json")
    rounded = {key: value if key in EXACT_SECTIONS else _round(value) for key, value in data.items()}
    return layout(rounded) + "\n"


def read_plan(path: Path) -> PlanDocument:
    """Reads a plan file.

    Raises:
        InputError: The file is missing, no regular file, larger than 64 MiB, not JSON, not a plan, of another
            version, or has an unknown, missing or mistyped field. It need not be a valid plan: see
            :func:`~tangram.plan.check.check_plan`.
    """
    where = printable(str(path))
    return parse_plan(read_json_text(path, max_bytes=MAX_FILE_BYTES), where=where)


def parse_plan(text: str, *, where: str) -> PlanDocument:
    """Parses the text of a plan file; ``where`` names it in messages.

    Raises:
        InputError: As :func:`read_plan`.
    """
    data = parse_json_object(text, where=where)
    with lines_named(text, where):
        _refuse_other_formats(data, where)
        try:
            return PlanDocument.model_validate_json(text, strict=True)
        except ValidationError as error:
            raise explain(error, where) from None


def json_schema() -> dict[str, Any]:
    """Returns the JSON Schema (draft 2020-12) of the plan document, with a description of every field."""
    from tangram.plan.json_descriptions import describe_schema

    return describe_schema(PlanDocument.model_json_schema(mode="validation"))


def _refuse_other_formats(data: dict[str, object], where: str) -> None:
    found = data.get("format")
    if found != FORMAT:
        what = "has no 'format'" if found is None else f"has format {json.dumps(found)[:40]}"
        raise InputError(
            f"this is no Tangram plan: it {what}", where=where, hint=f'a plan file says "format": "{FORMAT}"'
        )
    version = data.get("version")
    if version != VERSION or isinstance(version, (bool, float)):
        shown = "missing" if version is None else json.dumps(version)[:40]
        raise InputError(
            f"the version is {shown}",
            where=f"{where}: version",
            hint=f"this release reads version {VERSION}; for a newer one, use a newer Tangram",
        )


def _round(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{SIGNIFICANT_DIGITS}g}")
    if isinstance(value, dict):
        return {key: _round(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_round(item) for item in value]
    return value
