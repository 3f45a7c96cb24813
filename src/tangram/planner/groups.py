"""Where groups of equal rows begin, in columns that are in order."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tangram.cost.types import BoolArray


def begins(*columns: npt.NDArray[np.generic]) -> BoolArray:
    """Returns of each row whether it begins a group: whether any column differs from the row in front.

    Args:
        columns: At least one, of one length, sorted so that equal rows follow each other.
    """
    found = np.ones(len(columns[0]), dtype=np.bool_)
    found[1:] = np.any([column[1:] != column[:-1] for column in columns], axis=0)
    return found
