"""Profiles of single GPT operators, as Aceso publishes them, and what recomputing some of them saves.

A profile has 16 rows: embedding, the 13 operators of a layer, final norm, and logits with loss; layers
repeat.

Units: MiB, milliseconds (files: microseconds), GB/s of 1024**3 bytes.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import log2
from typing import NamedTuple

BATCHES = (1, 2, 4, 8)
"""Samples per replica that were profiled."""

OPS_PER_LAYER = 13
EMBEDDING, FIRST_NORM, FINAL_NORM, HEAD = 0, 1, 14, 15
"""Rows of a profile: the ends of the model, and the norm that a layer begins with."""

_SOFTMAX, _DROPOUT = 4, 5  # Of the attention scores.
_NEVER_RECOMPUTED = frozenset({EMBEDDING, FIRST_NORM, HEAD})


@dataclass(frozen=True, slots=True, eq=False)
class Operators:
    """The rows of one profile, for one number of samples per replica and one tp degree.

    Attributes:
        forward_ms, backward_ms: Time.
        input_mib, output_mib: What an operator takes and gives.
        weights_mib: Parameters on a rank.
        activations_mib: What it keeps for backward, as profiled.
        kept_mib: The same as accounted for: softmax works in place; dropout keeps its mask as well.
        forward_reserved_mib, backward_reserved_mib: What the allocator holds besides.
    """

    forward_ms: tuple[float, ...]
    backward_ms: tuple[float, ...]
    input_mib: tuple[float, ...]
    output_mib: tuple[float, ...]
    weights_mib: tuple[float, ...]
    activations_mib: tuple[float, ...]
    kept_mib: tuple[float, ...]
    forward_reserved_mib: tuple[float, ...]
    backward_reserved_mib: tuple[float, ...]

    @staticmethod
    def read(text: str) -> Operators:
        """Reads the text of a profile file."""
        rows = [[float(cell) for cell in row[1:]] for row in list(csv.reader(text.splitlines()))[1:]]
        columns = [tuple(column) for column in zip(*rows, strict=True)]
        factor = {_SOFTMAX: 0.0, _DROPOUT: 1.5}
        return Operators(
            forward_ms=tuple(us / 1e3 for us in columns[0]),
            backward_ms=tuple(us / 1e3 for us in columns[1]),
            input_mib=columns[2],
            output_mib=columns[3],
            weights_mib=columns[4],
            activations_mib=columns[5],
            kept_mib=tuple(mib * factor.get(i, 1.0) for i, mib in enumerate(columns[5])),
            forward_reserved_mib=columns[6],
            backward_reserved_mib=columns[7],
        )


@dataclass(frozen=True, slots=True, eq=False)
class Profile:
    """All profiles of one model on one cluster.

    Attributes:
        operators: By samples per replica and tp.
        intra_gb_per_s, inter_gb_per_s: Bandwidth between two GPUs, for 1, 2, 4, ... MiB.
    """

    operators: Mapping[tuple[int, int], Operators]
    intra_gb_per_s: tuple[float, ...]
    inter_gb_per_s: tuple[float, ...]

    @staticmethod
    def read(files: Mapping[str, str], model: str) -> Profile:
        """Reads the files of a profile folder.

        Args:
            files: Their texts, by file name.
            model: The model's name in them, such as ``gpt_6_7B``.
        """
        operators = {}
        for batch in BATCHES:
            for tp in (1, 2, 4, 8):
                name = f"{model}_mbs{batch}_tp{tp}_algo0.csv"
                if name in files:
                    operators[batch, tp] = Operators.read(files[name])
        intra = _bandwidths(files["p2p_intra_node.csv"])
        inter = files.get("p2p_inter_node.csv")
        return Profile(operators, intra, intra if inter is None else _bandwidths(inter))

    def transfer_ms(self, mib: float, *, between_nodes: bool) -> float:
        """Returns the time of one transfer.

        Bandwidth is looked up one power of two below the size, as Aceso does; sizes below 1 MiB count from
        the table's end, which is its slip and costs next to nothing.
        """
        if mib <= 0:
            return 0.0
        table = self.inter_gb_per_s if between_nodes else self.intra_gb_per_s
        at = int(log2(mib))
        at = min(at - 1 if at >= 1 else at, len(table) - 1)
        return mib / table[at]


def _bandwidths(text: str) -> tuple[float, ...]:
    return tuple(float(cell) for cell in list(csv.reader(text.splitlines()))[1])


class Round(NamedTuple):
    """One kind of operator that is recomputed.

    Attributes:
        kept_mib: What one operator of the kind keeps.
        places: Where they are in the stage.
        flags: What is recomputed when all of them and all kinds before are.
        saved_mib, regained_mib: The same of :func:`recompute_mib`.
    """

    kept_mib: float
    places: list[int]
    flags: list[bool]
    saved_mib: float
    regained_mib: float


class Rounds:
    """The kinds that a stage recomputes, in their order, as far as anybody has asked.

    It is the same for any number of micro-batches in flight, so one answer serves all positions.
    """

    __slots__ = ("_found", "_kinds", "_left", "_places", "_rows")

    def __init__(self, rows: Operators, kinds: Sequence[int]) -> None:
        self._rows, self._kinds = rows, kinds
        self._places: dict[int, list[int]] = {}
        for i, kind in enumerate(kinds):
            self._places.setdefault(kind, []).append(i)
        self._left = {k: rows.activations_mib[k] for k in self._places if k not in _NEVER_RECOMPUTED}
        self._found: list[Round] = []

    def part(self, number: int) -> Round | None:
        """Returns one of them; None when there are not so many."""
        while len(self._found) <= number:
            kind = max(self._left, key=lambda k: self._left[k] * len(self._places[k]), default=-1)
            if kind < 0 or self._left[kind] <= 0 or self._places[kind][0] + 1 >= len(self._kinds):
                return None
            places = self._places[kind]
            flags = flagged(self._found[-1].flags if self._found else [False] * len(self._kinds), places)
            again = recompute_mib(self._rows, self._kinds, flags)
            self._found.append(Round(self._left.pop(kind), places, flags, *again))
            self._left.pop(self._kinds[places[0] + 1], None)
        return self._found[number]


def flagged(flags: Sequence[bool], places: Sequence[int]) -> list[bool]:
    """Returns the flags with these operators, and the one behind each, recomputed as well."""
    more = list(flags)
    for i in places:
        more[i : i + 2] = [True] * len(more[i : i + 2])
    return more


def recompute_mib(rows: Operators, kinds: Sequence[int], flags: Sequence[bool]) -> tuple[float, float]:
    """Returns what recomputation saves per micro-batch in flight, and the most that it brings back at once.

    An operator's activations go when it and the next one are recomputed, except at the end of a layer, where
    they are the input of the next layer. What comes back at once is the longest run that is recomputed
    together; runs end with a layer and with the stage.
    """
    saved = run = longest = 0.0
    before, last = -1, len(kinds) - 1
    for i in [i for i, pair in enumerate(pairwise(flags)) if pair == (True, True)]:
        if i != before + 1:
            longest, run = max(longest, run), 0.0
        before, kind, ends_layer = i, kinds[i], kinds[i + 1] == FIRST_NORM
        run += rows.kept_mib[kind]
        saved += 0.0 if ends_layer else rows.kept_mib[kind]
        if (ends_layer or i + 1 == last) and kind not in (_SOFTMAX, _DROPOUT):
            longest, run = max(longest, run), 0.0
    # Aceso counts a run only once it has ended: not one that reaches the stage's end with these two kinds.
    return saved, longest if before == last - 1 else max(longest, run)
