"""Several chunks of the model per stage, for interleaved schedules. No torch.

A plan gives a stage one run of atoms. Cut into v chunks the stage keeps as many atoms as the plan says, and
what the plan says of each (recomputation, offload) by its place; but which atoms these are changes: chunk c
of all stages comes before chunk c + 1 of any. Nothing of this is predicted by the plan, whose times and
memory hold for its own schedule.
"""

from __future__ import annotations

from collections.abc import Sequence

from tangram.errors import InputError
from tangram.model.atoms import Atom, cut_atoms, has_experts, parse_granularity
from tangram.plan.schema import PlanDocument, StageSection

_WHERE = "--virtual-stages"


def chunk_sections(plan: PlanDocument, num_chunks: int) -> list[list[StageSection]]:
    """Returns the chunks of each stage, each as a stage of its own with the ranks and degrees of the stage.

    Args:
        plan: The plan.
        num_chunks: Chunks per stage; with 1, each stage is its own chunk.

    Raises:
        InputError: The plan's stages cannot be cut so.
    """
    stages = plan.stages
    if num_chunks == 1:
        return [[stage] for stage in stages]
    _check(plan, num_chunks)
    atoms = cut_atoms(plan.model.to_spec(), parse_granularity(plan.granularity))
    sizes = [_sizes(stage.atoms[1] - stage.atoms[0], num_chunks, at_end=stage.has_head) for stage in stages]
    chunks: list[list[StageSection]] = [[] for _ in stages]
    start = 0
    for chunk in range(num_chunks):
        for idx, stage in enumerate(stages):
            stop = start + sizes[idx][chunk]
            chunks[idx].append(_section(stage, atoms, start, stop, sum(sizes[idx][:chunk])))
            start = stop
    return chunks


def _check(plan: PlanDocument, num_chunks: int) -> None:
    if len(plan.stages) < 2:
        raise InputError("one stage has no others to take turns with", where=_WHERE, hint="legal: 1")
    if plan.granularity in ("operator", "block"):
        raise InputError("atoms smaller than a layer cannot be regrouped", where=_WHERE, hint="legal: 1")
    for stage in plan.stages:
        count = stage.atoms[1] - stage.atoms[0]
        if count < num_chunks:
            raise InputError(
                f"stage {stage.index} has {count} atoms, too few for {num_chunks} chunks",
                where=_WHERE,
                hint=f"at most {min(s.atoms[1] - s.atoms[0] for s in plan.stages)}",
            )
        if stage.layer_configs:
            raise InputError(
                f"degrees differ inside of stage {stage.index}, which fixes its layers",
                where=_WHERE,
                hint="legal: 1",
            )


def _sizes(num_atoms: int, num_chunks: int, *, at_end: bool) -> list[int]:
    """As even as can be; what is left over goes to the first chunks, or to the last ones."""
    size, left = divmod(num_atoms, num_chunks)
    sizes = [size + (chunk < left) for chunk in range(num_chunks)]
    return sizes[::-1] if at_end else sizes


def _section(stage: StageSection, atoms: Sequence[Atom], start: int, stop: int, place: int) -> StageSection:
    """The stage as if it had these atoms; they take what the plan says of its atoms from ``place`` on."""
    own = atoms[start:stop]
    if has_experts(own) and stage.expert_mesh is None:
        raise InputError(
            f"stage {stage.index} would get layers with experts, for which the plan gives it no mesh",
            where=_WHERE,
            hint="legal: 1",
        )
    layers = sorted({layer for atom in own for layer in atom.layer_idxs})
    shift = start - (stage.atoms[0] + place)
    return stage.model_copy(
        update={
            "atoms": (start, stop),
            "layers": (layers[0], layers[-1] + 1) if layers else (0, 0),
            "has_embedding": own[0].is_embedding,
            "has_head": own[-1].is_head,
            "recompute": [
                entry.model_copy(update={"atom": start + i, "layers": list(atom.layer_idxs)})
                for i, (entry, atom) in enumerate(zip(stage.recompute[place:], own, strict=False))
            ],
            "offload_activation_atoms": [
                atom + shift for atom in stage.offload_activation_atoms if start <= atom + shift < stop
            ],
        }
    )
