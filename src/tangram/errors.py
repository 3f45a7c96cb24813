"""The tree of errors that Tangram raises on purpose, with the exit code that each one means.

    TangramError                 1   (never raised itself)
    +-- InputError               2   what the user gave cannot be used (also a ValueError)
    |   +-- UnknownNameError     2   a name that does not exist, with the nearest ones that do
    +-- InfeasibleError          3   everything is valid, and nothing fits
    +-- InternalError            1   a broken promise of our own: a bug

A message says what is wrong; ``where`` says in which file, field or line; ``hint`` says the nearest fix.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class TangramError(Exception):
    """The root of every error that Tangram raises on purpose.

    Args:
        message: What is wrong, in one sentence.
        where: The place: a file, ``file:line``, a field or an option.
        hint: The nearest fix, or the legal values.
    """

    exit_code: int = 1

    def __init__(self, message: str, *, where: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        text = f"{self.where}: {self.message}" if self.where else self.message
        return f"{text} ({self.hint})" if self.hint else text


class InputError(TangramError, ValueError):
    """What the user gave cannot be used."""

    exit_code = 2


class UnknownNameError(InputError):
    """A name that does not exist; the message lists the nearest names that do."""

    def __init__(self, kind: str, name: str, known: Iterable[str], *, where: str | None = None) -> None:
        names = sorted(known)
        near = nearest(name, names)
        if near:
            hint = "did you mean " + " or ".join(repr(n) for n in near) + "?"
        elif len(names) <= 24:
            hint = "known: " + ", ".join(names)
        else:
            hint = f"{len(names)} are known; the first: " + ", ".join(names[:12])
        super().__init__(f"unknown {kind} {name!r}", where=where, hint=hint)
        self.name = name
        self.nearest = near


class InfeasibleError(TangramError):
    """Everything is valid, and no plan fits.

    Args:
        message: The binding constraint, in one sentence.
        details: Lines that say which part does not fit and by how much.
        repairs: Ranked repairs, the cheapest first, one sentence each.
    """

    exit_code = 3

    def __init__(
        self,
        message: str,
        *,
        details: Iterable[str] = (),
        repairs: Iterable[str] = (),
        where: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, where=where, hint=hint)
        self.details = tuple(details)
        self.repairs = tuple(repairs)


class InternalError(TangramError, RuntimeError):
    """A broken promise of our own; please report it."""


def nearest(name: str, known: Iterable[str], limit: int = 3) -> list[str]:
    """Returns up to ``limit`` known names that look like ``name``, the nearest first."""
    by_lower, lower = {k.lower(): k for k in sorted(known)}, name.lower()
    # Of two characters, one has to be right: T5 is meant to be T4. Two letters may be anything.
    cutoff = 0.5 if len(name) == 2 and any(c.isdigit() for c in name) else 0.55
    begun = [k for k in by_lower if k.startswith(lower)] if len(name) > 1 else []
    found = sorted(begun, key=len) + difflib.get_close_matches(lower, list(by_lower), n=limit, cutoff=cutoff)
    return [by_lower[f] for f in dict.fromkeys(found)][:limit]


class Stopped(BaseException):
    """Work was asked to end early: no error, and so (like ``KeyboardInterrupt``) not caught as one."""
