"""The profile store: one SQLite file that keeps measured records by their keys.

A record replaces the one of equal key; :func:`merged` says what of the old one survives. Listings are sorted
by key, so the same content gives the same answer, in whatever order it was written.

The file carries an application id and the version of its tables (``PRAGMA user_version``): a database of
something else and a store of a newer Tangram are refused, not guessed at.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tangram.errors import InputError
from tangram.job import Precision
from tangram.profiles.records import CollectiveTime, LayerTime, LinkRate, Op, Record, Scope
from tangram.profiles.shapes import LayerKind, LayerShape

SCHEMA_VERSION = 1
_APPLICATION_ID = 0x54474D50  # "TGMP"
_TIMEOUT_S = 5.0

_KEY, _VALUE = "key", "value"

# Columns of each table in key order: name, type, and whether it belongs to the key.
_GROUP = (
    ("gpu", "TEXT NOT NULL", _KEY),
    ("stack", "TEXT NOT NULL", _KEY),
    ("link", "TEXT NOT NULL", _KEY),
    ("scope", "TEXT NOT NULL", _KEY),
    ("op", "TEXT NOT NULL", _KEY),
    ("ranks", "INTEGER NOT NULL", _KEY),
    ("ranks_per_node", "INTEGER NOT NULL", _KEY),
)
_COLUMNS: Mapping[str, tuple[tuple[str, str, str], ...]] = {
    "layer": (
        ("gpu", "TEXT NOT NULL", _KEY),
        ("stack", "TEXT NOT NULL", _KEY),
        ("precision", "TEXT NOT NULL", _KEY),
        ("kind", "TEXT NOT NULL", _KEY),
        ("seq_len", "INTEGER NOT NULL", _KEY),
        ("hidden_size", "INTEGER NOT NULL", _KEY),
        ("num_heads", "INTEGER NOT NULL", _KEY),
        ("num_kv_heads", "INTEGER NOT NULL", _KEY),
        ("head_dim", "INTEGER NOT NULL", _KEY),
        ("intermediate_size", "INTEGER NOT NULL", _KEY),
        ("gated", "INTEGER NOT NULL", _KEY),
        ("num_experts", "INTEGER NOT NULL", _KEY),
        ("top_k", "INTEGER NOT NULL", _KEY),
        ("vocab_size", "INTEGER NOT NULL", _KEY),
        ("shared_size", "INTEGER NOT NULL", _KEY),
        ("q_rank", "INTEGER NOT NULL", _KEY),
        ("kv_rank", "INTEGER NOT NULL", _KEY),
        ("rope_dim", "INTEGER NOT NULL", _KEY),
        ("value_dim", "INTEGER NOT NULL", _KEY),
        ("tp", "INTEGER NOT NULL", _KEY),
        ("micro_batch", "INTEGER NOT NULL", _KEY),
        ("includes_tp_comm", "INTEGER NOT NULL", _KEY),
        ("forward_s", "REAL", _VALUE),
        ("backward_s", "REAL", _VALUE),
        ("forward_backward_s", "REAL", _VALUE),
        ("recompute_s", "REAL", _VALUE),
        ("optimizer_s", "REAL", _VALUE),
        ("activation_bytes", "INTEGER", _VALUE),
        ("workspace_bytes", "INTEGER", _VALUE),
        ("source", "TEXT NOT NULL", _VALUE),
    ),
    "collective": (
        *_GROUP,
        ("num_bytes", "INTEGER NOT NULL", _KEY),
        ("seconds", "REAL NOT NULL", _VALUE),
        ("source", "TEXT NOT NULL", _VALUE),
    ),
    "rate": (
        *_GROUP,
        ("bus_bytes_per_s", "REAL NOT NULL", _VALUE),
        ("source", "TEXT NOT NULL", _VALUE),
    ),
}

_SHAPE_FIELDS = LayerShape.__slots__
_TABLE_OF = {LayerTime: "layer", CollectiveTime: "collective", LinkRate: "rate"}


@dataclass(frozen=True, slots=True)
class Profiles:
    """All records of a store, each kind sorted by key."""

    layers: tuple[LayerTime, ...] = ()
    collectives: tuple[CollectiveTime, ...] = ()
    rates: tuple[LinkRate, ...] = ()

    def __len__(self) -> int:
        return len(self.layers) + len(self.collectives) + len(self.rates)

    def __iter__(self) -> Iterator[Record]:
        yield from self.layers
        yield from self.collectives
        yield from self.rates


@dataclass(frozen=True, slots=True)
class Saved:
    """What :func:`save` did: how many records were new, changed an old one, or said what was known."""

    new: int
    changed: int
    same: int


def default_store(environ: Mapping[str, str] = os.environ) -> Path:
    """Returns where profiles are kept when nobody says: ``TANGRAM_PROFILES``, else the user's cache.

    The cache is ``$XDG_CACHE_HOME/tangram/profiles.sqlite``, or ``~/.cache/tangram/profiles.sqlite`` where
    that variable is not an absolute path (as the XDG base directory specification wants it).
    """
    named = environ.get("TANGRAM_PROFILES", "")
    if named:
        return Path(named).expanduser()
    cache = environ.get("XDG_CACHE_HOME", "")
    folder = Path(cache) if cache and Path(cache).is_absolute() else Path.home() / ".cache"
    return folder / "tangram" / "profiles.sqlite"


def load(path: Path) -> Profiles:
    """Reads all records.

    Raises:
        InputError: There is no such file, it is no store, a newer Tangram wrote it, or it cannot be read.
    """
    with _errors(path), _open(path, write=False) as connection:
        layers = [_layer(row) for row in _rows(connection, "layer")]
        collectives = [_collective(row) for row in _rows(connection, "collective")]
        rates = [_rate(row) for row in _rows(connection, "rate")]
    return Profiles(tuple(layers), tuple(collectives), tuple(rates))


def save(path: Path, records: Iterable[Record]) -> Saved:
    """Writes records into a store, all of them or none; makes the file and its folder when missing.

    Raises:
        InputError: The file is no store, a newer Tangram wrote it, it is locked, or it cannot be written.
    """
    counts = {"new": 0, "changed": 0, "same": 0}
    listed = list(records)  # whatever is wrong with them is not the store's fault
    with _errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with _open(path, write=True) as connection:
            for record in listed:
                counts[_put(connection, record)] += 1
    return Saved(**counts)


def merged(old: Record, new: Record) -> Record:
    """Returns what a store keeps of two records of equal key.

    Times are one group and sizes are another. A group of the new record replaces the old group as a whole,
    so that times of two measurements never stand side by side; a group that only the old record has stays,
    and then the source names both.
    """
    if not isinstance(old, LayerTime) or not isinstance(new, LayerTime):
        return new
    kept: dict[str, Any] = {}
    for group in (LayerTime.TIMES, LayerTime.SIZES):
        if all(getattr(new, name) is None for name in group):
            kept |= {name: getattr(old, name) for name in group if getattr(old, name) is not None}
    if not kept:
        return new
    sources = dict.fromkeys([*new.source.split(" + "), *old.source.split(" + ")])
    return replace(new, **kept, source=" + ".join(sources))


def _put(connection: sqlite3.Connection, record: Record) -> str:
    table = _TABLE_OF[type(record)]
    values = _values(record)
    keys = [name for name, _, role in _COLUMNS[table] if role == _KEY]
    where = " AND ".join(f"{name} = :{name}" for name in keys)
    row = connection.execute(f"SELECT * FROM {table} WHERE {where}", values).fetchone()
    if row is not None:
        old = _READERS[table](row)
        kept = merged(old, record)
        if kept == old:
            return "same"
        values = _values(kept)
    names = [name for name, _, _ in _COLUMNS[table]]
    marks = ", ".join(f":{name}" for name in names)
    connection.execute(f"INSERT OR REPLACE INTO {table} ({', '.join(names)}) VALUES ({marks})", values)
    return "new" if row is None else "changed"


def _values(record: Record) -> dict[str, Any]:
    values = {name: getattr(record, name) for name in record.__slots__}
    shape = values.pop("shape", None)
    if isinstance(shape, LayerShape):
        values |= {name: getattr(shape, name) for name in _SHAPE_FIELDS}
    return {name: str(value) if isinstance(value, str) else value for name, value in values.items()}


def _rows(connection: sqlite3.Connection, table: str) -> list[sqlite3.Row]:
    keys = ", ".join(name for name, _, role in _COLUMNS[table] if role == _KEY)
    return connection.execute(f"SELECT * FROM {table} ORDER BY {keys}").fetchall()


def _layer(row: sqlite3.Row) -> LayerTime:
    values = dict(row)
    sizes = {name: values.pop(name) for name in _SHAPE_FIELDS}
    sizes["kind"], sizes["gated"] = LayerKind(sizes["kind"]), bool(sizes["gated"])
    values["precision"] = Precision(values["precision"])
    values["includes_tp_comm"] = bool(values["includes_tp_comm"])
    return LayerTime(shape=LayerShape(**sizes), **values)


def _collective(row: sqlite3.Row) -> CollectiveTime:
    values = dict(row)
    return CollectiveTime(**values | {"scope": Scope(values["scope"]), "op": Op(values["op"])})


def _rate(row: sqlite3.Row) -> LinkRate:
    values = dict(row)
    return LinkRate(**values | {"scope": Scope(values["scope"]), "op": Op(values["op"])})


_READERS: Mapping[str, Callable[[sqlite3.Row], Record]] = {
    "layer": _layer,
    "collective": _collective,
    "rate": _rate,
}


@contextmanager
def _open(path: Path, *, write: bool) -> Iterator[sqlite3.Connection]:
    """One transaction on a store: committed at the end, rolled back on an error."""
    new = write and (not path.exists() or path.stat().st_size == 0)
    if not write and not path.exists():
        raise InputError(
            "there is no such profile store", where=str(path), hint="tangram profiles import makes one"
        )
    mode = "rwc" if write else "ro"
    uri = f"{path.absolute().as_uri()}?mode={mode}"
    connection = sqlite3.connect(uri, uri=True, timeout=_TIMEOUT_S, isolation_level=None)
    try:
        connection.row_factory = sqlite3.Row
        connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
        if new and _pragma(connection, "application_id") == 0:
            _create(connection)
        _check(connection, path)
        yield connection
        connection.execute("COMMIT")
    finally:
        connection.close()  # rolls back what was not committed


def _create(connection: sqlite3.Connection) -> None:
    connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    for table, columns in _COLUMNS.items():
        keys = ", ".join(name for name, _, role in columns if role == _KEY)
        body = ", ".join(f"{name} {kind}" for name, kind, _ in columns)
        connection.execute(f"CREATE TABLE {table} ({body}, PRIMARY KEY ({keys})) WITHOUT ROWID")


def _check(connection: sqlite3.Connection, path: Path) -> None:
    if _pragma(connection, "application_id") != _APPLICATION_ID:
        raise InputError("is a database, but no profile store", where=str(path), hint="give another --store")
    version = _pragma(connection, "user_version")
    if version != SCHEMA_VERSION:
        age = "a newer" if version > SCHEMA_VERSION else "an unknown"
        raise InputError(
            f"is a profile store of version {version}, written by {age} Tangram",
            where=str(path),
            hint=f"this Tangram reads version {SCHEMA_VERSION}: export with the other one, or give "
            "another --store",
        )


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])


@contextmanager
def _errors(path: Path) -> Iterator[None]:
    """Turns what SQLite and the file system say into one clear error."""
    where = str(path)
    try:
        yield
    except sqlite3.OperationalError as error:
        text = str(error)
        if "locked" in text:
            hint = "wait for the other process, or give another --store"
            raise InputError("is locked by another process", where=where, hint=hint) from error
        if "readonly" in text:
            raise InputError("may not be written", where=where, hint="give another --store") from error
        if path.is_dir():
            raise InputError("is a folder, not a file", where=where) from error
        raise InputError(f"cannot be opened: {text}", where=where, hint="give another --store") from error
    except sqlite3.DatabaseError as error:
        hint = "give another --store; a damaged store has to be made again"
        raise InputError(f"is no profile store: {error}", where=where, hint=hint) from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(f"cannot be used: {reason}", where=where, hint="give another --store") from error
    except (ValueError, TypeError) as error:
        if isinstance(error, InputError) and error.where == where:
            raise
        # A value that no writer of ours puts there: somebody edited the file.
        raise InputError(f"holds a broken record: {error}", where=where) from error
