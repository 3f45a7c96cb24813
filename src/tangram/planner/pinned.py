"""The slices of a pipeline whose layers per stage are dictated."""

from __future__ import annotations

from itertools import pairwise

from tangram.errors import InputError
from tangram.model.atoms import Atom


def pinned_slices(atoms: tuple[Atom, ...], layers: tuple[int, ...]) -> frozenset[tuple[int, int]]:
    """Returns the slices of a pipeline with so many transformer layers per stage.

    Raises:
        InputError: A cut would lie inside an atom.
    """
    cuts = [0]
    last_layer = 0
    for count in layers[:-1]:
        last_layer += count
        behind = [i for i, a in enumerate(atoms) if a.layer_idxs and a.layer_idxs[-1] < last_layer]
        cut = max(behind, default=0) + 1
        if any(a.layer_idxs and a.layer_idxs[0] < last_layer for a in atoms[cut:]):
            raise InputError(
                f"a cut behind layer {last_layer - 1} lies inside an atom",
                where="--layers-per-stage",
                hint="choose smaller atoms with --atoms, or multiples of their layers",
            )
        cuts.append(cut)
    cuts.append(len(atoms))
    return frozenset(pairwise(cuts))
