"""A stage of a plan as a module: the atoms that a rank has, in order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tangram.errors import InputError
from tangram.job import Recompute
from tangram.model.atoms import Atom, Part, cut_atoms, parse_granularity
from tangram.plan.schema import PlanDocument, StageSection
from tangram.runtime.groups import StageGroups
from tangram.runtime.micro_batch import MicroBatch
from tangram.runtime.models.attention import Attention
from tangram.runtime.models.block import Block, blocks_of
from tangram.runtime.models.ends import Embedding, Head
from tangram.runtime.models.experts import Experts
from tangram.runtime.models.feed_forward import FeedForward
from tangram.runtime.models.share import Context, Share, share_of
from tangram.runtime.models.unit import Unit
from tangram.runtime.parameters import LocalParameter

_ATTENTION = (Part.QKV, Part.CORE, Part.OUT)
_BLOCKS: dict[tuple[Part, ...], type[Attention | FeedForward | Experts]] = {
    _ATTENTION: Attention,
    (Part.UP, Part.DOWN): FeedForward,
    (Part.MOE,): Experts,
}


class StageModule(torch.nn.Module):
    """The atoms of one stage on one rank.

    Args:
        units: By index of the atom, in order.
    """

    def __init__(self, units: dict[int, Unit]) -> None:
        super().__init__()
        self._units = torch.nn.ModuleDict({str(atom): unit for atom, unit in units.items()})

    @property
    def units(self) -> dict[int, Unit]:
        """The atoms' modules by the plan's index, in order."""
        return {int(atom): unit for atom, unit in self._units.items()}

    def forward(self, batch: MicroBatch, hidden: Any = None) -> Any:
        """Runs the stage.

        Args:
            batch: This rank's share of the micro-batch.
            hidden: What the stage before gave; None on the first stage.

        Returns:
            Hidden states ``(rows, tokens, hidden_size)``; on the last stage the sum of the losses of this
            rank's rows and tokens, the same on all its tp ranks.
        """
        context = Context(batch)
        x = batch.ids if hidden is None else hidden
        for unit in self._units.values():
            x = unit(x, context)
        return x

    def materialise(self, device: Any) -> None:
        """Gives all parameters memory and initial values."""
        for unit in self._units.values():
            unit.materialise(device)

    def local_parameters(self) -> list[LocalParameter]:
        """Returns the rank's parameters in the order of atoms; a matrix tied inside of the stage once."""
        found = []
        for atom, unit in self.units.items():
            for prefix, block in blocks_of(unit):
                for name, weight in block.weights.items():
                    one = LocalParameter(
                        name=f"_units.{atom}.{prefix}.{name}",
                        parameter=getattr(block, name),
                        parts=weight.parts,
                        is_expert=weight.is_expert,
                        partial_over=weight.partial_over,
                        atom=atom,
                        decays=weight.decays,
                    )
                    found.append(one)
        return found


def build_stage(
    plan: PlanDocument,
    stage: StageSection,
    groups: StageGroups,
    *,
    seed: int = 0,
    dtype: Any = None,
) -> StageModule:
    """Builds the share of a rank on the meta device; ``materialise`` gives it memory and initial weights.

    Args:
        plan: The plan.
        stage: One of its stages.
        groups: Of the rank in the stage.
        seed: Of initial weights and dropout.
        dtype: Of weights and activations; by default that of the job.

    Raises:
        InputError: The runtime has no such model, precision or cut.
    """
    share = share_of(plan, stage, groups, seed=seed, dtype=dtype)
    atoms = cut_atoms(share.model, parse_granularity(plan.granularity))
    modes = {entry.atom: entry.mode for entry in stage.recompute}
    return StageModule(
        build_units(share, atoms, range(*stage.atoms), modes, set(stage.offload_activation_atoms))
    )


def build_units(
    share: Share,
    atoms: Sequence[Atom],
    which: Sequence[int],
    modes: dict[int, Recompute],
    offloaded: set[int],
) -> dict[int, Unit]:
    """Builds some atoms of a stage.

    Args:
        share: What this rank builds.
        atoms: All atoms of the model.
        which: Those to build.
        modes: Recomputation by atom.
        offloaded: Atoms whose activations lie in host memory.

    Raises:
        InputError: An atom is smaller than a block.
    """
    units: dict[int, Unit] = {}
    embedding: Embedding | None = None
    for idx in which:
        blocks = _blocks(share, atoms[idx], embedding)
        if isinstance(blocks[0], Embedding) and share.model.tied_embeddings:
            embedding = blocks[0]
        units[idx] = Unit(blocks, modes[idx], offloads=idx in offloaded)
    return units


def _blocks(share: Share, atom: Atom, embedding: Embedding | None) -> list[Block]:
    """The blocks of an atom; parts of one layer that make a block stand next to each other."""
    if atom.is_embedding:
        return [Embedding(share)]
    blocks: list[Block] = []
    rest = [(part.part, part.layer_idx) for part in atom.parts]
    while rest:
        if rest[0][0] is Part.HEAD:
            blocks.append(Head(share, embedding))
            rest = rest[1:]
            continue
        layer = rest[0][1]
        found = next(
            (kind for kind in _BLOCKS if tuple(rest[: len(kind)]) == tuple((part, layer) for part in kind)),
            None,
        )
        if found is None or layer is None:
            raise InputError(
                "atoms smaller than a block cannot be run yet",
                where="granularity",
                hint="plan with --atoms layer, block, or a number of layers",
            )
        blocks.append(_BLOCKS[found](share, layer))
        rest = rest[len(found) :]
    return blocks
