"""Folders that the ``datasets`` library of Hugging Face saved (``save_to_disk``), with tokens in a column.

The only module that imports that library. It maps the files, so that nothing is read before it is needed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tangram.errors import InputError
from tangram.runtime.data.order import Int64Array
from tangram.runtime.data.tokens import Pieces

INSTALL = "pip install 'tangram-llm[data]'"
COLUMN = "input_ids"
_BATCH = 10_000


def is_saved_dataset(folder: Path) -> bool:
    """Returns whether ``save_to_disk`` made a folder, of one data set or of several splits."""
    return (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file()


class ArrowTokens(Pieces):
    """The column ``input_ids`` of a saved data set, row after row.

    Args:
        folder: As ``save_to_disk`` left it.

    Raises:
        InputError: The library is missing, the folder holds several splits, or there is no such column.
    """

    def __init__(self, folder: Path) -> None:
        self._rows = _load(folder)
        lengths: list[int] = []
        for batch in self._rows.with_format("arrow").iter(batch_size=_BATCH):
            lengths += _lengths(batch.column(COLUMN), str(folder))
        super().__init__(lengths, str(folder))

    def _read_piece(self, idx: int, start: int, stop: int) -> Int64Array:
        return np.asarray(self._rows[idx][COLUMN][start:stop], dtype=np.int64)


def _load(folder: Path) -> Any:
    if (folder / "dataset_dict.json").is_file():
        splits = sorted(path.name for path in folder.iterdir() if (path / "state.json").is_file())
        raise InputError(
            f"holds {len(splits)} splits",
            where=str(folder),
            hint="name one of them: " + ", ".join(str(folder / split) for split in splits),
        )
    try:
        import datasets
    except ImportError:
        raise InputError(
            "the datasets library is needed to read this folder, and not installed",
            where=str(folder),
            hint=INSTALL,
        ) from None
    try:
        rows = datasets.load_from_disk(str(folder))
    except Exception as error:  # whatever the library makes of a broken file
        raise InputError(f"cannot be read: {error}", where=str(folder)) from None
    if COLUMN not in rows.column_names:
        raise InputError(
            f"has no column {COLUMN!r}",
            where=str(folder),
            hint=f"it has {', '.join(rows.column_names)}; tangram tokenize turns text into tokens",
        )
    return rows.select_columns(COLUMN)


def _lengths(column: Any, place: str) -> list[int]:
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    lists = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if not lists or not pa.types.is_integer(kind.value_type):
        raise InputError(f"column {COLUMN!r} holds {kind}", where=place, hint="lists of integers")
    return [length or 0 for length in pc.list_value_length(column).to_pylist()]
