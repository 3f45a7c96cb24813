"""Tangram's own form of profiles for other programs: one JSON document of everything, or CSV per kind.

The JSON is what ``tangram profiles import tangram`` reads back; CSV is for spreadsheets.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from tangram.errors import InputError
from tangram.job import Precision
from tangram.model.json_file import parse_json_object
from tangram.model.json_lines import lines_named
from tangram.plan.json_errors import field_path, problem_of
from tangram.profiles.importers.harvest import Given, Harvest, file_name, read_text
from tangram.profiles.peers import profiled_gpu
from tangram.profiles.records import CollectiveTime, LayerTime, LinkRate, Op, Record, Scope
from tangram.profiles.shapes import LayerKind, LayerShape
from tangram.profiles.store import Profiles

FORMAT = "tangram-profiles"
VERSION = 1

_Built = TypeVar("_Built", LayerTime, CollectiveTime, LinkRate)


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class ShapeSection(_Section):
    """A :class:`LayerShape`."""

    kind: LayerKind
    seq_len: int
    hidden_size: int
    num_heads: int = 0
    num_kv_heads: int = 0
    head_dim: int = 0
    intermediate_size: int = 0
    gated: bool = False
    num_experts: int = 0
    top_k: int = 0
    vocab_size: int = 0
    shared_size: int = 0
    q_rank: int = 0
    kv_rank: int = 0
    rope_dim: int = 0
    value_dim: int = 0


class LayerSection(_Section):
    """A :class:`LayerTime`."""

    gpu: str
    stack: str
    precision: Precision
    shape: ShapeSection
    tp: int
    micro_batch: int
    includes_tp_comm: bool
    forward_s: float | None = None
    backward_s: float | None = None
    forward_backward_s: float | None = None
    recompute_s: float | None = None
    optimizer_s: float | None = None
    activation_bytes: int | None = None
    workspace_bytes: int | None = None
    source: str


class _GroupSection(_Section):
    """What talks, and over what."""

    gpu: str
    stack: str
    link: str
    scope: Scope
    op: Op
    ranks: int
    ranks_per_node: int


class CollectiveSection(_GroupSection):
    """A :class:`CollectiveTime`."""

    num_bytes: int
    seconds: float
    source: str


class RateSection(_GroupSection):
    """A :class:`LinkRate`."""

    bus_bytes_per_s: float
    source: str


class ProfilesDocument(_Section):
    """All records of a store; units are in the names: ``_s`` seconds, ``_bytes`` bytes."""

    format: Literal["tangram-profiles"]
    version: Literal[1]
    layers: list[LayerSection] = []
    collectives: list[CollectiveSection] = []
    rates: list[RateSection] = []


def to_json(profiles: Profiles) -> str:
    """Returns a JSON document of all records, sorted by key; the same records give the same bytes."""
    document = {
        "format": FORMAT,
        "version": VERSION,
        "layers": [_plain(record) for record in profiles.layers],
        "collectives": [_plain(record) for record in profiles.collectives],
        "rates": [_plain(record) for record in profiles.rates],
    }
    return json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def to_csv(records: Iterable[Record]) -> str:
    """Returns a table of records of one kind, with a header; what was not measured is empty."""
    out = io.StringIO()
    writer: csv.DictWriter[str] | None = None
    for record in records:
        values: dict[str, Any] = {}
        for name, value in _plain(record).items():
            values |= value if isinstance(value, dict) else {name: _cell(value)}
        if writer is None:
            writer = csv.DictWriter(out, list(values), lineterminator="\n")
            writer.writeheader()
        writer.writerow(values)
    return out.getvalue()


def read(path: Path, given: Given, harvest: Harvest) -> None:
    """Reads a JSON document that :func:`to_json` wrote; what the user gives replaces what it says.

    Raises:
        InputError: It is not such a document, or a record could not have been measured.
    """
    where, text = file_name(path), read_text(path)
    data = parse_json_object(text, where=where)
    with lines_named(text, where):
        _take(data, where, given, harvest)


def _take(data: Mapping[str, Any], where: str, given: Given, harvest: Harvest) -> None:
    if data.get("format") != FORMAT:
        raise InputError(
            f"is no export of profiles: its format is not {FORMAT!r}",
            where=where,
            hint="tangram profiles export writes one",
        )
    if data.get("version") != VERSION:
        raise InputError(
            f"has version {data.get('version')!r}", where=where, hint=f"this Tangram reads {VERSION}"
        )
    try:
        document = ProfilesDocument.model_validate_json(json.dumps(data))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = field_path(first["loc"]) or "the document"
        raise InputError(problem_of(first), where=f"{where}: {place}") from error
    for idx, layer in enumerate(document.layers):
        values = _values(layer, given)
        place = f"{where}: layers[{idx}]"
        shape = _built_shape(values.pop("shape"), place)
        if given.precision is not None:
            values["precision"] = given.precision
        harvest.records.append(_built(LayerTime, {**values, "shape": shape}, place))
    for idx, collective in enumerate(document.collectives):
        place = f"{where}: collectives[{idx}]"
        harvest.records.append(_built(CollectiveTime, _values(collective, given), place))
    for idx, rate in enumerate(document.rates):
        harvest.records.append(_built(LinkRate, _values(rate, given), f"{where}: rates[{idx}]"))


def _values(section: _Section, given: Given) -> dict[str, Any]:
    values = section.model_dump()
    if given.gpu is not None:
        values["gpu"] = profiled_gpu(given.gpu)
    if given.stack is not None:
        values["stack"] = given.stack
    if given.link and "link" in values:
        values["link"] = given.link
    return values


def _built_shape(values: Mapping[str, Any], where: str) -> LayerShape:
    try:
        return LayerShape(**values)
    except InputError as error:
        raise InputError(error.message, where=f"{where}.shape", hint=error.hint) from error


def _built(kind: type[_Built], values: Mapping[str, Any], where: str) -> _Built:
    try:
        return kind(**values)
    except InputError as error:
        place = f"{where}.{error.where}" if error.where else where
        raise InputError(error.message, where=place, hint=error.hint) from error


def _plain(record: Record | LayerShape) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name in record.__slots__:
        value = getattr(record, name)
        if isinstance(value, LayerShape):
            value = _plain(value)
        values[name] = str(value) if isinstance(value, str) else value
    return values


def _cell(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value
