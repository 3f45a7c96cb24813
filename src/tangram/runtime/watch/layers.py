"""Measured times of a stage's atoms as records for the profile store, and why some are left out. No torch.

What a record means is fixed by :class:`~tangram.profiles.records.LayerTime`: whole sequences, all experts on
the rank, backward without recomputation. Atoms whose passes hold anything else are left out, or give their
forward pass alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median

from tangram.basis import DEFAULT_STACK
from tangram.job import Recompute
from tangram.model.atoms import cut_atoms, has_experts, parse_granularity
from tangram.plan.schema import PlanDocument, StageSection
from tangram.profiles.records import LayerTime
from tangram.profiles.shapes import LayerShape, atom_shapes, has_window


@dataclass(frozen=True, slots=True)
class AtomTimes:
    """An atom, timed on one rank.

    Attributes:
        rank: In the plan.
        gpu: Under which name its times are kept.
        atom: Which.
        samples: Rows of a micro-batch on the rank.
        forward_s, backward_s: Per micro-batch.
    """

    rank: int
    gpu: str
    atom: int
    samples: int
    forward_s: float
    backward_s: float


def layer_records(
    plan: PlanDocument, times: Iterable[AtomTimes], source: str
) -> tuple[list[LayerTime], list[str]]:
    """Returns records, and sentences on what gives none.

    Args:
        plan: The plan that ran.
        times: Of all ranks.
        source: What ran, in words.
    """
    model = plan.model.to_spec()
    atoms = cut_atoms(model, parse_granularity(plan.granularity))
    stage_of = {slot.rank: stage for stage in plan.stages for slot in stage.ranks}
    notes: dict[str, None] = {}
    found: dict[tuple[str, LayerShape, int, int], list[tuple[float, float | None]]] = {}
    for one in times:
        stage = stage_of[one.rank]
        reason = _left_out(plan, stage)
        shapes = atom_shapes(model, atoms[one.atom], plan.job.seq_len)
        if reason is None and len(set(shapes)) > 1:
            reason = f"stage {stage.index}: an atom of unequal layers"
        if reason is None and has_window(model, atoms[one.atom], plan.job.seq_len):
            reason = f"stage {stage.index}: layers with a window of attention"
        if reason is None and stage.ep > 1 and has_experts([atoms[one.atom]]):
            reason = f"stage {stage.index}: experts on several ranks"
        if reason is not None:
            notes[reason] = None
            continue
        mode = stage.recompute[one.atom - stage.atoms[0]].mode
        if mode is not Recompute.NONE:
            notes[f"stage {stage.index}: backward passes that recompute"] = None
        share = 1 / len(shapes)
        backward = one.backward_s * share if mode is Recompute.NONE else None
        found.setdefault((one.gpu, shapes[0], stage.tp, one.samples), []).append(
            (one.forward_s * share, backward)
        )
    return _records(plan, found, source), list(notes)


def _records(
    plan: PlanDocument,
    found: Mapping[tuple[str, LayerShape, int, int], list[tuple[float, float | None]]],
    source: str,
) -> list[LayerTime]:
    """One record per key: the median over ranks and equal atoms."""
    records = []
    for (gpu, shape, tp, samples), passes in sorted(found.items()):
        backward = [seconds for _, seconds in passes if seconds is not None]
        records.append(
            LayerTime(
                gpu=gpu,
                stack=DEFAULT_STACK,
                precision=plan.job.precision,
                shape=shape,
                tp=tp,
                micro_batch=samples,
                includes_tp_comm=tp > 1,
                forward_s=median(seconds for seconds, _ in passes),
                backward_s=median(backward) if backward else None,
                source=source,
            )
        )
    return records


def _left_out(plan: PlanDocument, stage: StageSection) -> str | None:
    if stage.layer_configs:
        return f"stage {stage.index}: layers with degrees of their own"
    if stage.zero == 3:
        return f"stage {stage.index}: weights are gathered in every pass (zero 3)"
    if stage.cp > 1:
        return f"stage {stage.index}: sequences are cut (cp {stage.cp})"
    if stage.offload_activation_atoms:
        return f"stage {stage.index}: activations go to host memory"
    for start in range(0, len(stage.ranks), stage.tp):
        nodes = {slot.node for slot in stage.ranks[start : start + stage.tp]}
        if len(nodes) > 1:
            return f"stage {stage.index}: a tp group spans nodes"
    return None
