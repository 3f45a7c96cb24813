"""From the plans that Aceso saves to slice plans.

A saved plan is a JSON object: operators per stage, and per operator a tp, a dp and whether it is recomputed.
Three things do not exist in Tangram as they do there, and are translated:

* A stage ends behind any operator. It ends behind the nearest atom instead (of two equally near ones, the one
  in front), but every stage keeps one atom at least.
* Single operators are recomputed; here atoms are, in full, or the attention cores of all layers of a stage,
  where attention is unfused. What Aceso frees in a stage is added up by its own rule, and as many atoms are
  recomputed as free the same, most bytes per second first; if the stage does not fit by the referee's memory
  model, which is not Aceso's, further ones are, until it does. This is done with and without recomputation of
  the cores; the faster of the two counts.
* Weights are not sharded over dp: stages have ZeRO stage 0, unless the user dictates another one.

A plan that does not fit even so, or that has to use a degree that is not allowed, is left out: that is what
Aceso answers where it finds nothing. A plan that contradicts the question or itself is an error.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import numpy as np

from tangram.cluster.spec import Portion
from tangram.cost.atoms import atom_costs
from tangram.cost.setting import FLASH, attention_kernel
from tangram.cost.stage import recompute_order
from tangram.cost.types import StageConfig, StageConfigs
from tangram.errors import InputError
from tangram.job import Recompute
from tangram.model.atoms import Atom
from tangram.model.json_file import parse_json_object
from tangram.parallelizers.external.aceso_profiles import NEVER_RECOMPUTED, OperatorRow, operators_of
from tangram.parallelizers.external.process import ProgramError
from tangram.parallelizers.invariants import recost
from tangram.parallelizers.protocols import SlicePlan, SliceRequest, StageChoice
from tangram.units import MIB

Tables = Mapping[tuple[int, int], tuple[OperatorRow, ...]]
"""Rows of the profile by (tp, samples on one replica)."""


@dataclass(frozen=True, slots=True)
class AcesoStage:
    """One stage as Aceso saved it.

    Attributes:
        num_ops: Operators.
        tp, dp: Degrees of all of them.
        recomputed: Per operator.
    """

    num_ops: int
    tp: int
    dp: int
    recomputed: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class AcesoPlan:
    """A saved plan: its stages, and the global micro-batch it was found for."""

    micro_batch: int
    stages: tuple[AcesoStage, ...]


def read_plan(text: str, name: str) -> AcesoPlan:
    """Reads a saved plan.

    Args:
        text: Content of the file.
        name: Of the file, for messages.

    Raises:
        ProgramError: It is no plan, or its parts contradict each other.
    """
    where = f"Aceso's plan {name}"
    try:
        found = parse_json_object(text, where=where)
    except InputError as error:
        raise ProgramError(str(error)) from error
    sizes = _counts(found.get("num_ops_in_each_stage"), where, "num_ops_in_each_stage")
    columns = {
        key: _lists(found.get(key), sizes, where, key)
        for key in ("model_parallel_size_of_each_op", "data_parallel_size_of_each_op", "recompute_ops")
    }
    micro_batch = _counts([found.get("micro_batch_size")], where, "micro_batch_size")[0]
    stages = []
    for idx, (num_ops, tps, dps, marks) in enumerate(zip(sizes, *columns.values(), strict=True)):
        if len({*zip(tps, dps, strict=True)}) > 1:
            raise ProgramError(
                f"{where}: stage {idx} mixes degrees, as only its fine-tuning does, which is off"
            )
        if min(*tps, *dps) < 1:
            raise ProgramError(f"{where}: stage {idx} has a degree below 1")
        stages.append(AcesoStage(num_ops, tps[0], dps[0], tuple(mark > 0 for mark in marks)))
    return AcesoPlan(micro_batch, tuple(stages))


def slice_plan(
    request: SliceRequest,
    found: AcesoPlan,
    tables: Tables,
    allowed: Collection[tuple[int, int]],
    name: str,
) -> SlicePlan | None:
    """Translates a saved plan; None where it does not fit or uses a degree that is not allowed.

    Args:
        request: The question: a whole model.
        found: The saved plan.
        tables: What the search was given.
        allowed: Pairs (tp, dp) that stages may have; for each of them there is a table.
        name: Of the file, for messages.

    Raises:
        ProgramError: It is no answer to this question.
    """
    _check(request, found, name)
    if not all((stage.tp, stage.dp) in allowed for stage in found.stages):
        return None
    op_bounds = list(accumulate((stage.num_ops for stage in found.stages), initial=0))
    atom_bounds = rounded_cuts(op_bounds, operator_ends(request.atoms))
    stages = []
    for idx, (stage, (start, stop)) in enumerate(zip(found.stages, pairwise(atom_bounds), strict=True)):
        portion = Portion(request.portion.island, 1, stage.tp * stage.dp)
        choice = StageChoice(start, stop, portion, _config(request, stage), (False,) * (stop - start))
        rows = tables[stage.tp, request.micro_batch // stage.dp]
        freed = freed_bytes(stage, rows, op_bounds[idx], op_bounds[-1])
        fitted = _fitted(request, choice, freed, request.in_flight + len(found.stages) - 1 - idx)
        if fitted is None:
            return None
        stages.append(fitted)
    return SlicePlan(tuple(stages))


def fastest_first(request: SliceRequest, plans: Sequence[SlicePlan]) -> list[SlicePlan]:
    """Returns different plans, the fastest first; ties go by their number of stages.

    A plan takes the sum of its stage times, the slowest once per further micro-batch, the longest step end.
    """

    def time_s(plan: SlicePlan) -> float:
        costs = [recost(request, stage, 1) for stage in plan.stages]
        slowest = max(cost.time_s for cost in costs)
        total = sum(cost.time_s for cost in costs) + (request.num_micro_batches - 1) * slowest
        return total + max(cost.step_s for cost in costs)

    return sorted(dict.fromkeys(plans), key=lambda plan: (time_s(plan), len(plan.stages)))


def operator_ends(atoms: Sequence[Atom]) -> list[int]:
    """Returns where atoms begin, counted in operators, and where the last one ends."""
    sizes = (sum(len(operators_of(part.part)) for part in atom.parts) for atom in atoms)
    return list(accumulate(sizes, initial=0))


def rounded_cuts(op_bounds: Sequence[int], ends: Sequence[int]) -> list[int]:
    """Returns the atoms at which stages begin, and the number of atoms.

    Args:
        op_bounds: Operators at which stages begin, and their number.
        ends: Operators at which atoms begin, and their number; at least as many atoms as stages.
    """
    num_stages, num_atoms = len(op_bounds) - 1, len(ends) - 1
    places = np.array(ends)
    cuts = [int(np.argmin(np.abs(places - bound))) for bound in op_bounds[1:-1]]
    for idx, cut in enumerate(cuts):  # From the front: every stage so far keeps an atom ...
        cuts[idx] = max(cut, cuts[idx - 1] + 1 if idx else 1)
    # ... and so do those that are left.
    cuts = [min(cut, num_atoms - num_stages + 1 + idx) for idx, cut in enumerate(cuts)]
    return [0, *cuts, num_atoms]


def freed_bytes(stage: AcesoStage, rows: Sequence[OperatorRow], first: int, num_ops: int) -> float:
    """Returns what recomputation frees per micro-batch, as Aceso counts it.

    An operator's activation is dropped when it and the next one are recomputed; a layer's input never is.

    Args:
        stage: The stage.
        rows: Of its degrees: embedding, one layer, final norm, head.
        first: Its first operator, counted in the model.
        num_ops: Of the model.
    """
    layer = tuple(rows[1:-2])
    in_model = (rows[0], *layer * ((num_ops - 3) // len(layer)), *rows[-2:])
    mine = in_model[first : first + stage.num_ops]
    marked = zip(pairwise(mine), pairwise(stage.recomputed), strict=True)
    freed = (
        row.activations_mib
        for (row, following), (this, that) in marked
        if this and that and following.name != NEVER_RECOMPUTED
    )
    return MIB * float(sum(freed))


def _check(request: SliceRequest, found: AcesoPlan, name: str) -> None:
    num_ops, wanted = sum(stage.num_ops for stage in found.stages), operator_ends(request.atoms)[-1]
    num_gpus = sum(stage.tp * stage.dp for stage in found.stages)
    most = request.portion.gpus_per_node
    contradictions = {
        f"it is for a micro-batch of {found.micro_batch}, not {request.micro_batch}": found.micro_batch
        != request.micro_batch,
        f"it has {num_ops} operators, the model {wanted}": num_ops != wanted,
        f"it uses {num_gpus} GPUs, the portion has {request.portion.num_gpus}": num_gpus
        != request.portion.num_gpus,
        f"a stage spans nodes of {most} GPUs": any(s.tp * s.dp > most for s in found.stages),
        f"it has {len(found.stages)} stages for {len(request.atoms)} atoms": len(found.stages)
        > len(request.atoms),
        "a dp does not divide its micro-batch": any(found.micro_batch % s.dp for s in found.stages),
    }
    for problem, holds in contradictions.items():
        if holds:
            raise ProgramError(f"Aceso's plan {name} is no answer: {problem}")


def _config(request: SliceRequest, stage: AcesoStage) -> StageConfig:
    return StageConfig(dp=stage.dp, tp=stage.tp, zero=request.job.pins.zero or 0)


def _fitted(request: SliceRequest, choice: StageChoice, freed: float, in_flight: int) -> StageChoice | None:
    """Returns the stage with the recomputation that takes least time, of those that free so many bytes per
    micro-batch and fit; None where nothing fits.
    """
    plain = recost(request, choice, in_flight)
    keep_bytes = plain.activation_bytes - freed * (1 - 1e-9)
    made = []
    for selective in _selectives(request):
        config = replace(choice.config, selective=selective)
        stage = _marked(request, replace(choice, config=config), keep_bytes, in_flight)
        made += [] if stage is None else [stage]
    return min(made, key=lambda stage: recost(request, stage, in_flight).time_s, default=None)


def _selectives(request: SliceRequest) -> list[bool]:
    """Returns whether layers may recompute their attention core: as dictated, else both where it is unfused.

    A fused kernel leaves nothing to free.
    """
    pinned = request.job.pins.recompute
    if pinned is not None:
        return [pinned is Recompute.SELECTIVE]
    kernel = attention_kernel(request.portion.island.gpu, request.job.precision)
    return [False] if kernel == FLASH else [False, True]


def _marked(
    request: SliceRequest, choice: StageChoice, keep_bytes: float, in_flight: int
) -> StageChoice | None:
    """Marks atoms until the stage fits and keeps at most so many bytes per micro-batch, or none is left."""
    atoms, pinned = request.atoms[choice.start : choice.stop], request.job.pins.recompute
    configs = StageConfigs.of([choice.config])
    costs = atom_costs(request.model, atoms, choice.portion, configs, request.micro_batch, request.job)
    saved = (costs.stored_bytes - costs.recomputed_stored_bytes)[:, 0]
    free = pinned in (None, Recompute.FULL)
    left = recompute_order(costs, 0, [free and bool(atom.layer_idxs) for atom in atoms])
    keep_bytes = -float("inf") if pinned is Recompute.FULL else keep_bytes
    marks, held = list(choice.recomputed), min(in_flight, request.num_micro_batches)
    while True:
        made = replace(choice, recomputed=tuple(marks))
        cost = recost(request, made, in_flight)
        over = (cost.peak_bytes - cost.capacity_bytes) / cost.upper_ratio / held
        lacking = max(over, cost.activation_bytes - keep_bytes)
        if lacking <= 0 or not left:
            return made if over <= 0 else None
        while left:
            at = left.pop(0)
            marks[at], lacking = True, lacking - saved[at]
            if lacking <= 0:
                break


def _counts(value: object, where: str, key: str) -> list[int]:
    if not isinstance(value, list) or not value or not all(type(v) is int and v > 0 for v in value):
        raise ProgramError(f"{where}: {key} is missing, or holds no counts")
    return value


def _lists(value: object, sizes: Sequence[int], where: str, key: str) -> list[list[int]]:
    found = value if isinstance(value, list) else []
    if [_num_integers(numbers) for numbers in found] != list(sizes):
        raise ProgramError(f"{where}: {key} is missing, or does not match num_ops_in_each_stage")
    return found


def _num_integers(value: object) -> int | None:
    """Returns the length of a list of integers; None for anything else."""
    return len(value) if isinstance(value, list) and all(type(v) is int for v in value) else None
