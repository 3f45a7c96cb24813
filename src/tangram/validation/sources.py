"""What is known of published tables of runs: the facts that their rows omit, and which rows are left out.

All of it stands in ``sources.yaml``, with a note per fact; nothing is keyed by the name of a model or of a
test, except shapes that no column holds and exclusions that are stated as rules. A row's own cells go before
facts; later facts go before earlier ones.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from tangram.validation.cells import RowError
from tangram.validation.parts import source_data
from tangram.validation.settings import HostSettings, Settings

OTHER = "unknown"
"""Name of the source of rows that no entry of the table matches."""


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Condition(_Entry):
    """Holds where every pattern of ``when`` is found in its column, and none of ``unless`` is.

    Patterns are regular expressions, searched without regard to case; ``^$`` finds an empty cell.
    """

    when: Mapping[str, str] = Field(default_factory=dict)
    unless: Mapping[str, str] = Field(default_factory=dict)

    @field_validator("when", "unless")
    @classmethod
    def _compiles(cls, value: Mapping[str, str]) -> Mapping[str, str]:
        for pattern in value.values():
            re.compile(pattern)
        return value

    def holds(self, row: Mapping[str, str]) -> bool:
        """Returns whether it holds for a row."""
        return all(_found(row, *item) for item in self.when.items()) and not any(
            _found(row, *item) for item in self.unless.items()
        )


class Fact(Condition):
    """Something that a source (or a family of models) fixes.

    Attributes:
        set: Settings and their values.
        fill: Columns and the text that counts where their cell is empty.
        replace: Columns and the text that counts whatever their cell says.
        capture: Settings or columns, and a pattern whose first group, found in the note, is their value.
        note: Why: where the source says so, or what it is inferred from.
    """

    set: Settings = Settings()
    fill: Mapping[str, str] = Field(default_factory=dict)
    replace: Mapping[str, str] = Field(default_factory=dict)
    capture: Mapping[str, str] = Field(default_factory=dict)
    note: str = Field(min_length=10)


class Rule(Condition):
    """Rows that are left out, stated before anything was fitted.

    Attributes:
        name: Short; summaries count by it.
        sentence: Why such rows say nothing about a prediction.
    """

    name: str = Field(pattern=r"^[a-z0-9-]+$")
    sentence: str = Field(min_length=10)


class Source(_Entry):
    """A published table.

    Attributes:
        name: For print.
        match: Patterns of the columns ``file`` and ``source`` by which its rows are known.
        note: What it is.
        flags: Patterns whose first group, found in the row's note, lists options that belong to the
            configuration.
        not_in_key: See :func:`tangram.validation.keys.configuration_key`.
        hosts: Its nodes, by the name that mixed rows have for their part.
        alternatives: Whether its rows with one job are plans to choose among, so that ranking is scored.
        facts: What it fixes.
        exclude: Rules of its own.
    """

    name: str
    match: Mapping[str, str]
    note: str
    flags: tuple[str, ...] = ()
    not_in_key: frozenset[str] = frozenset()
    hosts: Mapping[str, HostSettings] = Field(default_factory=dict)
    alternatives: bool = False
    facts: tuple[Fact, ...] = ()
    exclude: tuple[Rule, ...] = ()


class _Table(_Entry):
    rules: tuple[Rule, ...]
    architectures: tuple[Fact, ...]
    sources: tuple[Source, ...]


@dataclass(frozen=True, slots=True)
class Resolved:
    """A row with everything that is known of it.

    Attributes:
        source: Name of its source.
        row: Cells by common column, empty ones filled.
        settings: All settings.
        own: The settings that the row itself states.
        flags: Further options, sorted.
        filled: Columns whose cell was empty, sorted.
        not_in_key: Fields that do not tell its configurations apart.
        hosts: The source's nodes, by the name that mixed rows have for their part.
        alternatives: Whether ranking is scored.
        rule: The rule that leaves the row out, or None.
    """

    source: str
    row: Mapping[str, str]
    settings: Settings
    own: Settings
    flags: tuple[str, ...]
    filled: tuple[str, ...]
    not_in_key: frozenset[str]
    hosts: Mapping[str, HostSettings]
    alternatives: bool
    rule: Rule | None


def resolve(row: Mapping[str, str], file: str) -> Resolved:
    """Adds what is known of a row's source to it.

    Args:
        row: Cells by common column.
        file: Name of its file.

    Raises:
        RowError: A cell that holds a setting has no legal value.
    """
    source = _source_of(row, file)
    own = _own_settings(row)
    filled = {column: text.strip() for column, text in row.items()}
    rules = (*_table().rules, *source.exclude)
    rule = next((rule for rule in rules if rule.holds(filled)), None)
    values: dict[str, object] = {}
    for fact in (*_table().architectures, *source.facts):
        if fact.holds(filled):
            _apply(fact, filled, values)
    settings = _merged(values, own)
    note = filled.get("note", "")
    flags = {
        word for pattern in source.flags for found in re.findall(pattern, note) for word in found.split()
    }
    return Resolved(
        source=source.name,
        row=filled,
        settings=settings,
        own=own,
        flags=tuple(sorted(flags)),
        filled=tuple(
            sorted(column for column, text in filled.items() if text and not row.get(column, "").strip())
        ),
        not_in_key=source.not_in_key,
        hosts=source.hosts,
        alternatives=source.alternatives,
        rule=rule,
    )


def rule_names() -> tuple[str, ...]:
    """Returns the names of all exclusion rules."""
    table = _table()
    rules = [*table.rules, *(rule for source in table.sources for rule in source.exclude)]
    return tuple(dict.fromkeys(rule.name for rule in rules))


def known_sources() -> tuple[Source, ...]:
    """Returns all known sources."""
    return _table().sources


def _source_of(row: Mapping[str, str], file: str) -> Source:
    named = {**row, "file": file}
    for source in _table().sources:
        if Condition(when=source.match).holds(named):
            return source
    return Source(name=OTHER, match={}, note="rows of the user's own")


def _apply(fact: Fact, row: dict[str, str], values: dict[str, object]) -> None:
    """Writes what a fact says into the row and the settings."""
    values.update(fact.set.model_dump(exclude_none=True))
    for column, text in fact.fill.items():
        if not row.get(column):
            row[column] = text
    row.update(fact.replace)
    for name, pattern in fact.capture.items():
        found = re.search(pattern, row.get("note", ""), re.IGNORECASE)
        if found and name in Settings.model_fields:
            values[name] = found.group(1)
        elif found and not row.get(name):
            row[name] = found.group(1)


def _own_settings(row: Mapping[str, str]) -> Settings:
    """The settings that a row has columns for; true and false are written so, or as 1 and 0."""
    return _validated(
        {name: row[name].strip() for name in Settings.model_fields if row.get(name, "").strip()}
    )


def _merged(values: Mapping[str, object], own: Settings) -> Settings:
    return _validated({**values, **own.model_dump(exclude_none=True)})


def _validated(values: Mapping[str, object]) -> Settings:
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        column = str(first["loc"][0])
        raise RowError("unknown-word", f"{first['input']!r}: {first['msg']}", column=column) from None


def _found(row: Mapping[str, str], column: str, pattern: str) -> bool:
    return re.search(pattern, row.get(column, ""), re.IGNORECASE) is not None


@cache
def _table() -> _Table:
    data = source_data()
    return _Table.model_validate({name: data[name] for name in _Table.model_fields})
