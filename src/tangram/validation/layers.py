"""How layers are spread over stages where a row does not say."""

from __future__ import annotations

from itertools import pairwise

from tangram.validation.cells import RowError


def spread_layers(num_layers: int, pp: int, vpp: int) -> tuple[int, ...]:
    """Returns the layers of each stage.

    Evenly where that comes out in whole layers per chunk. Else embedding and head count as a layer each, as
    Megatron's ``--account-for-embedding-in-pipeline-split`` and DeepSpeed's ``type:transformer|embedding``
    have it, and what is left over goes to stages in the middle.

    Raises:
        RowError: There are fewer layers than stages can hold.

    >>> spread_layers(80, 4, 5), spread_layers(126, 8, 8), spread_layers(61, 4, 1)
    ((20, 20, 20, 20), (15, 16, 16, 16, 16, 16, 16, 15), (15, 16, 16, 14))
    """
    if pp > num_layers + 2:
        raise RowError("impossible", f"{num_layers} layers are too few for {pp} stages", column="pp")
    if num_layers % (pp * vpp) == 0 or pp == 1:
        return (num_layers // pp,) * pp
    share, rest = divmod(num_layers + 2, pp)
    pseudo = [share] * pp
    # The head is a layer's worth, so the last stage gets no more; the embedding costs next to nothing.
    for idx in [*range(1, pp - 1), 0][:rest]:
        pseudo[idx] += 1
    pseudo[0] -= 1
    pseudo[-1] -= 1
    if min(pseudo) < 0:
        raise RowError("impossible", f"{num_layers} layers are too few for {pp} stages", column="pp")
    return tuple(pseudo)


def parse_split(text: str) -> tuple[int, ...]:
    """Parses layers per stage, such as ``7/9/9/7``.

    Raises:
        ValueError: It is no such list.
    """
    pieces = text.split("/")
    if not all(piece.strip().isdecimal() for piece in pieces):
        raise ValueError("is no split; legal: numbers with / between them, such as 7/9/9/7")
    return tuple(int(piece) for piece in pieces)


def parse_boundaries(text: str) -> tuple[int, ...]:
    """Parses where stages begin and the last one ends, such as ``0, 7, 14, 20, 30``, into their sizes.

    Raises:
        ValueError: It is no such list, or does not ascend.
    """
    pieces = text.replace(",", " ").split()
    if len(pieces) < 2 or not all(piece.isdecimal() for piece in pieces):
        raise ValueError("is no list of boundaries; legal: numbers such as 0, 7, 14, 20, 30")
    bounds = [int(piece) for piece in pieces]
    if bounds != sorted(bounds):
        raise ValueError("does not ascend")
    return tuple(b - a for a, b in pairwise(bounds))


def without_ends(sizes: tuple[int, ...], before: int, after: int) -> tuple[int, ...]:
    """Takes the pieces at both ends, which are no layers, out of stages that count them.

    >>> without_ends((7, 7, 6, 10), before=2, after=4), without_ends((7, 9, 9, 9), before=1, after=1)
    ((5, 7, 6, 6), (6, 9, 9, 8))
    """
    first, last = before, sum(sizes) - after
    found, begin = [], 0
    for size in sizes:
        found.append(max(0, min(begin + size, last) - max(begin, first)))
        begin += size
    return tuple(found)


def checked_split(split: tuple[int, ...], num_layers: int, pp: int) -> tuple[int, ...]:
    """Returns a stated split.

    Raises:
        ValueError: It has another number of stages or of layers.
    """
    if len(split) != pp or sum(split) != num_layers:
        raise ValueError(f"does not split {num_layers} layers over {pp} stages")
    return split
