"""A stage of a plan as a module: the atoms that a rank has, in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tangram.errors import InputError
from tangram.model.atoms import Atom, Part, cut_atoms, parse_granularity
from tangram.plan.schema import PlanDocument, StageSection
from tangram.runtime.boundary import Interval
from tangram.runtime.groups import StageGroups
from tangram.runtime.micro_batch import MicroBatch
from tangram.runtime.models.attention import Attention
from tangram.runtime.models.block import Block, blocks_of
from tangram.runtime.models.ends import Embedding, Head
from tangram.runtime.models.experts import Experts
from tangram.runtime.models.feed_forward import FeedForward
from tangram.runtime.models.join import Join
from tangram.runtime.models.share import Context, Share, share_of
from tangram.runtime.models.unit import Unit
from tangram.runtime.parameters import LocalParameter
from tangram.runtime.runs import StageRun, all_rows, plain_run

_ATTENTION = (Part.QKV, Part.CORE, Part.OUT)
_BLOCKS: dict[tuple[Part, ...], type[Attention | FeedForward | Experts]] = {
    _ATTENTION: Attention,
    (Part.UP, Part.DOWN): FeedForward,
    (Part.MOE,): Experts,
}


@dataclass(frozen=True, slots=True)
class Section:
    """Atoms of a stage with the same degrees.

    Attributes:
        atoms: Which.
        join: Brings hidden states into their layout; None for the first.
        cut: Rows and tokens of a micro-batch that these atoms work on; None where the stage gets what they
            need.
    """

    atoms: tuple[int, ...]
    join: Join | None = None
    cut: tuple[Interval, Any] | None = None


class StageModule(torch.nn.Module):
    """The atoms of one stage on one rank.

    Args:
        units: By index of the atom, in order.
        sections: Which of them have the same degrees; by default all.
    """

    def __init__(self, units: dict[int, Unit], sections: Sequence[Section] = ()) -> None:
        super().__init__()
        self._units = torch.nn.ModuleDict({str(atom): unit for atom, unit in units.items()})
        self._sections = tuple(sections) or (Section(tuple(units)),)

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
        x = hidden
        for section in self._sections:
            context = Context(_cut(batch, section))
            if section.join is not None:
                x = section.join(x)
            for atom in section.atoms:
                x = self._units[str(atom)](context.batch.ids if x is None else x, context)
        return x

    def counted_labels(self, batch: MicroBatch) -> Any:
        """Returns the labels of the rows and tokens whose loss this rank computes on the last stage."""
        return _cut(batch, self._sections[-1]).labels

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
    plan: PlanDocument, stage: StageSection, groups: StageGroups, *, seed: int = 0, dtype: Any = None
) -> StageModule:
    """Builds the share of a rank of a stage whose layers have equal degrees; see :func:`build_runs`."""
    return build_runs(plan, stage, [plain_run(plan, stage, groups)], seed=seed, dtype=dtype)


def build_runs(
    plan: PlanDocument, stage: StageSection, runs: Sequence[StageRun], *, seed: int = 0, dtype: Any = None
) -> StageModule:
    """Builds the share of a rank on the meta device; ``materialise`` gives it memory and initial weights.

    A stage of several runs is called with all tokens of all rows that any of them needs (``all_rows``), a
    stage of one with the rank's own.

    Args:
        plan: The plan.
        stage: One of its stages.
        runs: Its runs, as the rank sees them.
        seed: Of initial weights and dropout.
        dtype: Of weights and activations; by default that of the job.

    Raises:
        InputError: The runtime has no such model, precision or cut.
    """
    atoms = cut_atoms(plan.model.to_spec(), parse_granularity(plan.granularity))
    modes = {entry.atom: entry.mode for entry in stage.recompute}
    first_row, _ = all_rows(runs)
    units: dict[int, Unit] = {}
    sections: list[Section] = []
    embedding: Embedding | None = None
    for idx, run in enumerate(runs):
        share = share_of(plan, stage, run.groups, seed=seed, dtype=dtype, run=run.degrees)
        for atom in run.atoms:
            blocks = _blocks(share, atoms[atom], embedding)
            if isinstance(blocks[0], Embedding) and share.model.tied_embeddings:
                embedding = blocks[0]
            offloads = atom in stage.offload_activation_atoms
            units[atom] = Unit(blocks, modes[atom], offloads=offloads)
        if len(runs) == 1:
            break
        join = Join(runs[idx - 1].layout, run.layout, run.groups.stage) if idx else None
        rows = (run.holding.rows[0] - first_row, run.holding.rows[1] - first_row)
        tokens = torch.cat([torch.arange(*interval) for interval in run.context_tokens])
        sections.append(Section(tuple(run.atoms), join, (rows, tokens)))
    return StageModule(units, sections)


def _cut(batch: MicroBatch, section: Section) -> MicroBatch:
    if section.cut is None:
        return batch
    rows, tokens = section.cut
    return batch.cut(rows, tokens.to(batch.positions.device))


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
