"""Finds out what kind of data a path names, and opens it."""

from __future__ import annotations

from pathlib import Path

from tangram.errors import InputError
from tangram.runtime.data.arrow import ArrowTokens, is_saved_dataset
from tangram.runtime.data.indexed import IndexedTokens
from tangram.runtime.data.tokens import ArrayTokens, JoinedTokens, Tokens

_LEGAL = "NAME.bin with NAME.idx (Megatron-LM's form), NAME.npy, a folder of such shards, or a saved data set"


def open_tokens(path: Path) -> Tokens:
    """Opens data.

    Args:
        path: ``NAME.bin``, ``NAME.idx`` or their common ``NAME``; ``NAME.npy``; a folder with such shards,
            which follow each other by name; or a folder that the ``datasets`` library saved.

    Raises:
        InputError: There is nothing of that kind, or it cannot be read.
    """
    if path.is_dir():
        return ArrowTokens(path) if is_saved_dataset(path) else _shards(path)
    if path.suffix in (".bin", ".idx"):
        return _indexed(path.with_suffix(""))
    if Path(f"{path}.idx").is_file():
        return IndexedTokens(path)
    if not path.is_file():
        raise InputError("there is no such file or folder", where=f"--data {path}", hint=f"legal: {_LEGAL}")
    if path.suffix == ".npy":
        return ArrayTokens(path)
    raise InputError(
        "this is no file of tokens",
        where=f"--data {path}",
        hint=f"legal: {_LEGAL}; text becomes tokens with: tangram tokenize {path} -o {path.with_suffix('')}",
    )


def _indexed(prefix: Path) -> IndexedTokens:
    for suffix in (".idx", ".bin"):
        file = Path(f"{prefix}{suffix}")
        if not file.is_file():
            raise InputError(f"there is no {file}", where=f"--data {prefix}", hint=f"legal: {_LEGAL}")
    return IndexedTokens(prefix)


def _shards(folder: Path) -> Tokens:
    files = sorted(path for path in folder.iterdir() if path.suffix in (".npy", ".idx"))
    if not files:
        raise InputError("this folder holds no tokens", where=f"--data {folder}", hint=f"legal: {_LEGAL}")
    shards: list[Tokens] = [
        ArrayTokens(file) if file.suffix == ".npy" else _indexed(file.with_suffix("")) for file in files
    ]
    return JoinedTokens(shards, str(folder))
