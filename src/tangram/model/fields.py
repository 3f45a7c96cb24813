"""Reads typed values out of a JSON object: strict about types, clear about what is wrong.

A bool is not a number, text is not a number, 4096.0 is not a count. A key that is needed and missing is
reported with the nearest key that the file has instead.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

from tangram.errors import InputError, nearest

# Far above every model that exists: they catch typing errors.
MAX_LAYERS = 10_000
MAX_WIDTH = 1 << 20
MAX_FEED_FORWARD = 1 << 24
MAX_HEADS = 1 << 16
MAX_VOCAB = 1 << 24
MAX_EXPERTS = 1 << 16
MAX_POSITIONS = 1_000_000_000
MAX_TEXT = 10_000

# An optional key counts as misspelled only when another key is this close (difflib's ratio): it is legal to
# leave it out, so a false alarm would refuse a good file.
_MISSPELLED_RATIO = 0.9


class Fields:
    """The values of one JSON object, read by key.

    Args:
        values: The object.
        where: The file (or a path inside of it), for messages.
        keys: All keys that the reader knows; other keys are candidates for misspelled ones.
        kind: What the object describes, for messages, for example ``a llama configuration``.
    """

    def __init__(self, values: Mapping[str, object], *, where: str, keys: Iterable[str], kind: str) -> None:
        self.values = values
        self.where = where
        self.kind = kind
        self._keys = tuple(keys)

    def place(self, key: str) -> str:
        """Returns file and key, for messages."""
        return f"{self.where}: {key}"

    def has(self, key: str) -> bool:
        """Whether the key is there, be it null."""
        return key in self.values

    def is_null(self, key: str) -> bool:
        """Whether the key is there, and null."""
        return key in self.values and self.values[key] is None

    def refuse_other_keys(self) -> None:
        """Refuses keys that the reader does not know.

        Raises:
            InputError: There is one.
        """
        for key in self.values:
            if key not in self._keys:
                near = nearest(key, self._keys)
                hint = f"did you mean {near[0]!r}?" if near else "known: " + ", ".join(self._keys)
                raise InputError(f"{key[:80]!r} is no key of {self.kind}", where=self.where, hint=hint)

    def integer(self, key: str, high: int, *, low: int = 1, aliases: tuple[str, ...] = ()) -> int:
        """Returns a whole number that must be there, from ``low`` to ``high``.

        Raises:
            InputError: It is missing, null, no whole number, out of range, or contradicts an alias.
        """
        value = self._agreed(key, high, low, aliases)
        if value is None:
            found = self._first(key, aliases)
            if found is not None:
                raise InputError("is null, but must be a whole number", where=self.place(found))
            raise self._missing(key)
        return value

    def optional_integer(
        self, key: str, high: int, *, low: int = 1, aliases: tuple[str, ...] = ()
    ) -> int | None:
        """Returns a whole number, or None where the key is missing or null.

        Raises:
            InputError: It is no whole number, out of range or contradicts an alias, or a misspelled key is
                there.
        """
        value = self._agreed(key, high, low, aliases)
        if value is None:
            self._refuse_misspelled(key, aliases)
        return value

    def boolean(self, key: str, default: bool | None = None) -> bool:
        """Returns true or false; where the key is missing or null the default, if there is one.

        Raises:
            InputError: It is neither, or missing without a default, or a misspelled key is there.
        """
        value = self.values.get(key)
        if isinstance(value, bool):
            return value
        if value is not None:
            raise InputError(f"is {describe(value)}, but must be true or false", where=self.place(key))
        self._refuse_misspelled(key, ())
        if default is None:
            raise self._missing(key)
        return default

    def text(self, key: str) -> str:
        """Returns a text that must be there.

        Raises:
            InputError: It is missing, no text, or longer than 10,000 characters.
        """
        value = self.values.get(key)
        if value is None and key not in self.values:
            raise self._missing(key)
        if not isinstance(value, str):
            raise InputError(f"is {describe(value)}, but must be text", where=self.place(key))
        if len(value) > MAX_TEXT:
            raise InputError(f"is longer than {MAX_TEXT} characters", where=self.place(key))
        return value

    def choice(self, key: str, legal: Iterable[str]) -> str:
        """Returns one of the legal texts.

        Raises:
            InputError: It is another one, or missing.
        """
        value = self.text(key)
        names = list(legal)
        if value not in names:
            raise InputError(
                f"is {describe(value)}", where=self.place(key), hint="legal: " + ", ".join(names)
            )
        return value

    def integers(self, key: str, high: int) -> list[int]:
        """Returns a list of whole numbers from 0 to ``high``; empty where the key is missing or null.

        Raises:
            InputError: It is no such list, or a misspelled key is there.
        """
        value = self.values.get(key)
        if value is None:
            self._refuse_misspelled(key, ())
            return []
        if not isinstance(value, list):
            raise InputError(f"is {describe(value)}, but must be a list", where=self.place(key))
        return [self._whole(f"{key}[{i}]", item, 0, high) for i, item in enumerate(value)]

    def choices(self, key: str, legal: Iterable[str]) -> list[str] | None:
        """Returns a list of legal texts; None where the key is missing or null.

        Raises:
            InputError: It is no such list, or a misspelled key is there.
        """
        value = self.values.get(key)
        if value is None:
            self._refuse_misspelled(key, ())
            return None
        if not isinstance(value, list):
            raise InputError(f"is {describe(value)}, but must be a list", where=self.place(key))
        names = list(legal)
        for i, item in enumerate(value):
            if item not in names:
                raise InputError(
                    f"is {describe(item)}", where=self.place(f"{key}[{i}]"), hint="legal: " + ", ".join(names)
                )
        return list(value)

    def section(self, key: str, keys: Iterable[str], kind: str) -> Fields:
        """Returns the fields of a nested object that must be there and holds only these keys.

        Raises:
            InputError: It is missing, no object, or has other keys.
        """
        if key not in self.values:
            raise self._missing(key)
        return nested(self.values[key], where=self.place(key), keys=keys, kind=kind)

    def _agreed(self, key: str, high: int, low: int, aliases: tuple[str, ...]) -> int | None:
        """The one value of a key and its aliases; None where all are missing or null."""
        found: dict[str, int] = {}
        for name in (key, *aliases):
            value = self.values.get(name)
            if value is not None:
                found[name] = self._whole(name, value, low, high)
        if len(set(found.values())) > 1:
            told = " and ".join(f"{name} is {value}" for name, value in found.items())
            raise InputError(f"{told}: they mean the same", where=self.where, hint="keep one of them")
        return next(iter(found.values()), None)

    def _first(self, key: str, aliases: tuple[str, ...]) -> str | None:
        return next((name for name in (key, *aliases) if name in self.values), None)

    def _whole(self, name: str, value: object, low: int, high: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise InputError(
                f"is {describe(value)}, but must be a whole number",
                where=self.place(name),
                hint=f"legal: {low} to {high}",
            )
        if not low <= value <= high:
            raise InputError(
                f"{describe(value)} is out of range", where=self.place(name), hint=f"legal: {low} to {high}"
            )
        return value

    def _missing(self, key: str) -> InputError:
        near = nearest(key, (k for k in self.values if k not in self._keys))
        hint = "nearest in the file: " + ", ".join(repr(k) for k in near) if near else None
        return InputError(f"the key {key!r} is missing; {self.kind} needs it", where=self.where, hint=hint)

    def _refuse_misspelled(self, key: str, aliases: tuple[str, ...]) -> None:
        if self._first(key, aliases) is not None:
            return
        others = {k.lower(): k for k in sorted(self.values) if k not in self._keys}
        near = difflib.get_close_matches(key, list(others), n=1, cutoff=_MISSPELLED_RATIO)
        if near:
            raise InputError(
                f"{others[near[0]]!r} is no key of {self.kind}",
                where=self.where,
                hint=f"did you mean {key!r}?",
            )


def nested(value: object, *, where: str, keys: Iterable[str], kind: str) -> Fields:
    """Returns the fields of an object that may hold only these keys.

    Raises:
        InputError: It is no object, or has other keys.
    """
    if not isinstance(value, Mapping):
        raise InputError(f"is {describe(value)}, but must be an object", where=where)
    fields = Fields(value, where=where, keys=keys, kind=kind)
    fields.refuse_other_keys()
    return fields


def describe(value: object) -> str:
    """Returns a short description of a JSON value, for messages."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        shown = repr(value)
        return shown if len(shown) <= 40 else f"a number of {len(shown)} digits"
    if isinstance(value, str):
        return f"the text {value[:40]!r}" + ("..." if len(value) > 40 else "")
    return "a list" if isinstance(value, (list, tuple)) else "an object"
