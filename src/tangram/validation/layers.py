"""How layers are spread over stages where a row does not say."""

from __future__ import annotations

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


def check_layers(stated: tuple[int, ...], num_layers: int, pp: int) -> None:
    """Checks a stated split.

    Raises:
        RowError: It has another number of stages or of layers.
    """
    if len(stated) != pp or sum(stated) != num_layers:
        split = "/".join(map(str, stated))
        message = f"{split} does not split {num_layers} layers over {pp} stages"
        raise RowError("impossible", message, column="layers_per_stage")
