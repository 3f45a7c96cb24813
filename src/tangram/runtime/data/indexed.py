"""Token files in Megatron-LM's form: ``NAME.bin`` holds tokens, ``NAME.idx`` says where documents are.

The index, little-endian, version 1 (megatron/core/datasets/indexed_dataset.py of Megatron-LM, core 0.16):

    9 bytes    "MMIDIDX", two zeros
    uint64     version: 1
    uint8      type of the tokens: 1 uint8, 2 int8, 3 int16, 4 int32, 5 int64, 8 uint16 (6 and 7 are floats)
    uint64     number n of sequences
    uint64     length d of the list of documents: their number plus one
    int32[n]   tokens of each sequence
    int64[n]   where each starts in the .bin file, in bytes
    int64[d]   the sequence at which each document starts, and n
    int8[n]    only of multi-modal data: a mode per sequence

Sequences follow each other here in the order of the index, and documents make no difference: a sample may
hold the end of one and the start of the next, as in most pre-training.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tangram.errors import InputError
from tangram.runtime.data.order import Int64Array
from tangram.runtime.data.tokens import Pieces

_MAGIC = b"MMIDIDX\x00\x00"
_VERSION = 1
_HEADER = struct.Struct("<9sQBQQ")
_TYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
_FLOATS = (6, 7)
_UINT16, _INT32 = 8, 4

LARGEST_UINT16_VOCAB = 65_500
"""Megatron-LM writes vocabularies below it as uint16, others as int32."""


class IndexedTokens(Pieces):
    """The tokens of a ``.bin`` and an ``.idx`` file.

    Args:
        prefix: Their common path, without the endings.

    Raises:
        InputError: A file is missing, is none of the kind, or they contradict each other.
    """

    def __init__(self, prefix: Path) -> None:
        code, lengths, self._offsets = _read_index(Path(f"{prefix}.idx"))
        super().__init__(lengths, f"{prefix}.bin")
        self._type = np.dtype(_TYPES[code])
        try:
            self._bytes = np.memmap(self._place, mode="r") if self.num_tokens else np.zeros(0, dtype=np.uint8)
        except (OSError, ValueError) as error:
            raise InputError(f"cannot be read: {error}", where=self._place) from None
        room = len(self._bytes) - lengths * self._type.itemsize  # no sum, which may be beyond 64 bits
        if ((self._offsets > room) | (self._offsets < 0)).any():
            raise InputError(
                f"has {len(self._bytes)} bytes, and its index names others",
                where=self._place,
                hint="an interrupted copy, or an index of another file",
            )

    def _read_piece(self, idx: int, start: int, stop: int) -> Int64Array:
        size, first = self._type.itemsize, int(self._offsets[idx])
        found = self._bytes[first + start * size : first + stop * size]
        return np.frombuffer(found, dtype=self._type).astype(np.int64)


def _read_index(path: Path) -> tuple[int, Int64Array, Int64Array]:
    """The code of the type, and lengths and offsets of the sequences."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path)) from None
    if len(data) < _HEADER.size or not data.startswith(_MAGIC):
        raise InputError("is no index of Megatron-LM's form", where=str(path))
    _, version, code, count, documents = _HEADER.unpack_from(data)
    if version != _VERSION:
        raise InputError(f"is of version {version}", where=str(path), hint=f"legal: {_VERSION}")
    if code not in _TYPES:
        what = (
            "holds floating-point numbers" if code in _FLOATS else f"has an unknown type of tokens ({code})"
        )
        raise InputError(what, where=str(path), hint="tokens are integers")
    if len(data) < _HEADER.size + 12 * count + 8 * documents:
        raise InputError(f"ends within its {count} sequences", where=str(path), hint="an interrupted copy")
    lengths = np.frombuffer(data, dtype="<i4", count=count, offset=_HEADER.size).astype(np.int64)
    offsets = np.frombuffer(data, dtype="<i8", count=count, offset=_HEADER.size + 4 * count)
    if count and int(lengths.min()) < 0:
        raise InputError("has a sequence of less than no tokens", where=str(path))
    return code, lengths, offsets.astype(np.int64)


@dataclass(frozen=True, slots=True)
class Written:
    """What :func:`write_indexed` wrote."""

    num_tokens: int
    num_documents: int


def write_indexed(prefix: Path, documents: Iterable[Sequence[int]], vocab_size: int) -> Written:
    """Writes documents, each as one sequence. The index comes last: without one, nothing was finished.

    Args:
        prefix: Path of both files, without the endings.
        documents: Their tokens; empty ones are left out.
        vocab_size: Above every token.

    Raises:
        InputError: A file cannot be written, or there is no token.
    """
    code = _UINT16 if vocab_size < LARGEST_UINT16_VOCAB else _INT32
    lengths: list[int] = []
    try:
        Path(f"{prefix}.idx").unlink(missing_ok=True)
        with Path(f"{prefix}.bin").open("wb") as tokens:
            for document in documents:
                if len(document):
                    tokens.write(np.asarray(document, dtype=_TYPES[code]).tobytes())
                    lengths.append(len(document))
        if not lengths:
            raise InputError("there is no token to write", where=str(prefix))
        Path(f"{prefix}.idx").write_bytes(_index(code, lengths))
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", where=str(prefix)) from None
    return Written(sum(lengths), len(lengths))


def _index(code: int, lengths: Sequence[int]) -> bytes:
    counts = np.asarray(lengths, dtype=np.int64)
    offsets = (np.cumsum(counts) - counts) * np.dtype(_TYPES[code]).itemsize
    header = _HEADER.pack(_MAGIC, _VERSION, code, len(lengths), len(lengths) + 1)
    starts = np.arange(len(lengths) + 1, dtype="<i8")
    return header + counts.astype("<i4").tobytes() + offsets.astype("<i8").tobytes() + starts.tobytes()
