"""Tokens as a single long row, wherever they lie: what every kind of data gives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from tangram.errors import InputError
from tangram.runtime.data.order import Int64Array


class Tokens(Protocol):
    """A row of tokens."""

    @property
    def num_tokens(self) -> int:
        """How many there are."""
        ...

    @property
    def place(self) -> str:
        """Where they lie, for people."""
        ...

    def read(self, start: int, stop: int) -> Int64Array:
        """Returns the tokens ``[start, stop)``."""
        ...


class ArrayTokens:
    """Tokens of a numpy file (``.npy``), which says itself what type its numbers have.

    Raises:
        InputError: It cannot be read, or is no row of integers.
    """

    def __init__(self, path: Path) -> None:
        try:
            # Mapped, not read: a shard may be larger than memory.
            self._array = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise InputError(f"is no numpy file: {error}", where=str(path)) from None
        if self._array.ndim != 1 or not np.issubdtype(self._array.dtype, np.integer):
            raise InputError(
                f"holds {self._array.dtype} of shape {self._array.shape}",
                where=str(path),
                hint="tokens are one row of integers",
            )
        self._place = str(path)

    @property
    def num_tokens(self) -> int:
        """How many there are."""
        return len(self._array)

    @property
    def place(self) -> str:
        """The file."""
        return self._place

    def read(self, start: int, stop: int) -> Int64Array:
        """Returns the tokens ``[start, stop)``."""
        return np.asarray(self._array[start:stop], dtype=np.int64)


class Pieces(ABC):
    """Pieces that follow each other in the row.

    Args:
        lengths: Tokens of each piece.
        place: Where they lie, for people.
    """

    def __init__(self, lengths: Sequence[int] | Int64Array, place: str) -> None:
        self._starts = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        self._place = place

    @property
    def num_tokens(self) -> int:
        """How many there are."""
        return int(self._starts[-1])

    @property
    def place(self) -> str:
        """Where they lie, for people."""
        return self._place

    def read(self, start: int, stop: int) -> Int64Array:
        """Returns the tokens ``[start, stop)``."""
        starts = self._starts
        idx = int(np.searchsorted(starts, start, side="right")) - 1
        found = []
        while start < stop and idx < len(starts) - 1:
            until = min(stop, int(starts[idx + 1]))
            if until > start:
                found.append(self._read_piece(idx, start - int(starts[idx]), until - int(starts[idx])))
            start, idx = max(start, until), idx + 1
        return np.concatenate(found) if found else np.zeros(0, dtype=np.int64)

    @abstractmethod
    def _read_piece(self, idx: int, start: int, stop: int) -> Int64Array:
        """Returns the tokens ``[start, stop)`` of the piece ``idx``, counted inside of it."""


class JoinedTokens(Pieces):
    """Several shards, one after the other.

    Args:
        shards: At least one.
        place: Where they lie, for people.
    """

    def __init__(self, shards: Sequence[Tokens], place: str) -> None:
        super().__init__([shard.num_tokens for shard in shards], place)
        self._shards = tuple(shards)

    def _read_piece(self, idx: int, start: int, stop: int) -> Int64Array:
        return self._shards[idx].read(start, stop)
