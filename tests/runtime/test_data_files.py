"""Shards of tokens in every form: what was written is read, and what is broken is refused by name."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tangram.errors import InputError
from tangram.runtime.data.indexed import IndexedTokens, write_indexed
from tangram.runtime.data.opening import open_tokens
from tangram.runtime.data.order import Int64Array
from tangram.runtime.data.tokens import JoinedTokens, Tokens

DOCUMENTS = [[5, 6, 7], [], [8], [9, 10]]
ROW = [5, 6, 7, 8, 9, 10]


def everything(tokens: Tokens) -> list[int]:
    return tokens.read(0, tokens.num_tokens).tolist()


def check_all_reads(tokens: Tokens, row: list[int]) -> None:
    assert tokens.num_tokens == len(row)
    for start in range(len(row) + 1):
        for stop in range(start, len(row) + 1):
            found = tokens.read(start, stop)
            assert found.dtype == np.int64
            assert found.tolist() == row[start:stop]


@pytest.mark.parametrize(("vocab_size", "token_bytes"), [(65_499, 2), (65_500, 4), (200_000, 4)])
def test_indexed(tmp_path: Path, vocab_size: int, token_bytes: int) -> None:
    written = write_indexed(tmp_path / "text", DOCUMENTS, vocab_size)
    assert (written.num_tokens, written.num_documents) == (6, 3)
    assert (tmp_path / "text.bin").stat().st_size == 6 * token_bytes
    for name in ("text", "text.bin", "text.idx"):
        check_all_reads(open_tokens(tmp_path / name), ROW)


def test_an_index_to_the_byte(tmp_path: Path) -> None:
    """As Megatron-LM's reader takes it apart: three sequences, four entries for documents."""
    write_indexed(tmp_path / "text", DOCUMENTS, 1000)
    data = (tmp_path / "text.idx").read_bytes()
    assert data == (
        b"MMIDIDX\x00\x00"
        + struct.pack("<QB", 1, 8)
        + struct.pack("<QQ", 3, 4)
        + struct.pack("<3i", 3, 1, 2)
        + struct.pack("<3q", 0, 6, 8)
        + struct.pack("<4q", 0, 1, 2, 3)
    )


@pytest.mark.parametrize(
    ("code", "kind"), [(1, "u1"), (2, "i1"), (3, "<i2"), (4, "<i4"), (5, "<i8"), (8, "<u2")]
)
def test_all_types_of_others_and_any_order_of_sequences(tmp_path: Path, code: int, kind: str) -> None:
    """Sequences may lie in another order than the index names them, with gaps; modes may follow."""
    size = np.dtype(kind).itemsize
    (tmp_path / "a.bin").write_bytes(np.array([3, 4, 99, 1, 2], dtype=kind).tobytes())
    index = struct.pack("<9sQBQQ", b"MMIDIDX\x00\x00", 1, code, 2, 3)
    index += struct.pack("<2i2q3q2b", 2, 2, 3 * size, 0, 0, 1, 2, 0, 1)
    (tmp_path / "a.idx").write_bytes(index)
    check_all_reads(IndexedTokens(tmp_path / "a"), [1, 2, 3, 4])


def test_numpy_shards_and_folders(tmp_path: Path) -> None:
    np.save(tmp_path / "b.npy", np.array([1, 2, 3], dtype=np.uint16))
    write_indexed(tmp_path / "a", [[4, 5], [6]], 300)
    np.save(tmp_path / "c.npy", np.array([7], dtype=np.int32))
    check_all_reads(open_tokens(tmp_path / "b.npy"), [1, 2, 3])
    check_all_reads(open_tokens(tmp_path), [4, 5, 6, 1, 2, 3, 7])


class Listed:
    place = "a list"

    def __init__(self, row: list[int]) -> None:
        self.row, self.num_tokens = row, len(row)

    def read(self, start: int, stop: int) -> Int64Array:
        return np.array(self.row[start:stop], dtype=np.int64)


@given(st.lists(st.lists(st.integers(0, 9), max_size=4), min_size=1, max_size=5), st.data())
def test_joined_reads(pieces: list[list[int]], data: st.DataObject) -> None:
    """Empty pieces too."""
    joined = JoinedTokens([Listed(piece) for piece in pieces], "lists")
    row = [token for piece in pieces for token in piece]
    start = data.draw(st.integers(0, len(row)))
    stop = data.draw(st.integers(start, len(row)))
    assert joined.num_tokens == len(row)
    assert joined.read(start, stop).tolist() == row[start:stop]


def saved(tmp_path: Path) -> None:
    write_indexed(tmp_path / "a", [[1, 2, 3], [4]], 300)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d[:20], "is no index of Megatron-LM's form"),
        (lambda d: b"X" + d[1:], "is no index of Megatron-LM's form"),
        (lambda d: d[:9] + struct.pack("<Q", 2) + d[17:], "is of version 2"),
        (lambda d: d[:17] + b"\x06" + d[18:], "holds floating-point numbers"),
        (lambda d: d[:17] + b"\x63" + d[18:], "has an unknown type of tokens"),
        (lambda d: d[:-1], "ends within its 2 sequences"),
        (lambda d: d[:34] + struct.pack("<i", -1) + d[38:], "less than no tokens"),
        (lambda d: d[:34] + struct.pack("<i", 9) + d[38:], "has 8 bytes, and its index names others"),
        (lambda d: d[:42] + struct.pack("<q", 2**63 - 1) + d[50:], "has 8 bytes, and its index names others"),
        (lambda d: d[:42] + struct.pack("<q", -1) + d[50:], "has 8 bytes, and its index names others"),
    ],
)
def test_broken_indices(tmp_path: Path, change: object, message: str) -> None:
    saved(tmp_path)
    index = tmp_path / "a.idx"
    assert callable(change)
    index.write_bytes(change(index.read_bytes()))
    with pytest.raises(InputError, match=message):
        open_tokens(tmp_path / "a.bin")


def test_what_is_no_data(tmp_path: Path) -> None:
    saved(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.txt").write_text("words")
    np.save(tmp_path / "wide.npy", np.zeros((2, 2), dtype=np.int64))
    np.save(tmp_path / "real.npy", np.zeros(3))
    (tmp_path / "torn.npy").write_bytes(b"\x93NUMPY\x01\x00")
    for name, message in (
        ("nothing", "there is no such file or folder"),
        ("nothing.bin", "there is no "),
        ("empty", "this folder holds no tokens"),
        ("text.txt", "this is no file of tokens"),
        ("wide.npy", "of shape"),
        ("real.npy", "float64"),
        ("torn.npy", "is no numpy file"),
    ):
        with pytest.raises(InputError, match=message) as caught:
            open_tokens(tmp_path / name)
        assert str(tmp_path) in str(caught.value)


def test_writing_what_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no token"):
        write_indexed(tmp_path / "a", [[]], 300)
    assert not (tmp_path / "a.idx").exists()
    with pytest.raises(InputError, match="cannot be written"):
        write_indexed(tmp_path / "no" / "a", [[1]], 300)


@settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_spoiled_indices_are_refused_or_read(tmp_path: Path, data: st.DataObject) -> None:
    """Nothing but an InputError comes of them, and what is read has the length that was promised."""
    saved(tmp_path)
    index = bytearray((tmp_path / "a.idx").read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(17, len(index) - 1))
        index[place] = data.draw(st.sampled_from([0, 1, 2, 127, 128, 255]))
    (tmp_path / "b.idx").write_bytes(index)
    (tmp_path / "b.bin").write_bytes((tmp_path / "a.bin").read_bytes())
    try:
        tokens = open_tokens(tmp_path / "b")
        assert len(tokens.read(0, tokens.num_tokens)) == tokens.num_tokens
    except InputError:
        pass
