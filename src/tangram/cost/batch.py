"""Many stages of different runs at once: one column each, whatever their models, jobs and GPUs.

Planning asks for many configurations of one stage; validation and calibration ask for one configuration of
many stages, over and over with other constants. The tables of work hold no constants, so they are filled
once, and an evaluation is a handful of array operations over all stages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np

from tangram.cost import memory, work
from tangram.cost.atoms import (
    COMPONENTS,
    FIELDS,
    Layout,
    Work,
    fields_of,
    layout_of,
    summed,
    tied_share,
)
from tangram.cost.constants import Constants
from tangram.cost.factors import multiplied
from tangram.cost.rates import Rates
from tangram.cost.setting import Setting
from tangram.cost.types import BoolArray, FloatArray
from tangram.model.atoms import Atom

EMBEDDING, HEAD = 0, 1
"""Rows of the atoms' axis that hold the ends of the model; the others hold its kinds of layers."""


@dataclass(frozen=True, slots=True)
class BatchStage:
    """One stage.

    Attributes:
        setting: Of a single configuration.
        atoms: Of the stage.
        recomputed: Whether its layers are recomputed in full.
        adapters_only: Whether all its weights are frozen, but for small adapters that are not counted:
            backward computes no gradients of weights, and nothing is reduced or updated.
        packed: Whether samples are packs of short ones, so that attention costs next to nothing.
    """

    setting: Setting
    atoms: tuple[Atom, ...]
    recomputed: bool = False
    adapters_only: bool = False
    packed: bool = False

    def rows(self) -> tuple[Atom | None, ...]:
        """Returns which atom stands in each row of the batch's tables."""
        layout = layout_of(self.setting.model, self.atoms)
        return tuple(None if a is None else layout.distinct[a] for a in _rows(layout))


@dataclass(frozen=True, slots=True, eq=False)
class AtomFactors:
    """What formulas are multiplied by to agree with measured layers; shape ``(num_atoms, num_stages)``.

    Attributes:
        forward, backward: Of the two passes.
        with_tp: Whether they hold for compute and tensor-parallel collectives together, or for compute alone.
    """

    forward: FloatArray
    backward: FloatArray
    with_tp: BoolArray


@dataclass(frozen=True, slots=True, eq=False)
class StageBatch:
    """Stages side by side; the last axis of every array is theirs.

    Attributes:
        setting: All settings, stacked; its ``model`` and ``job`` are those of the first stage and mean
            nothing.
        work: Tables of the distinct atoms, padded with zeros.
        counts: How many of each atom the stage holds; shape ``(num_atoms, num_stages)``.
        again: How many of these are recomputed in full.
        is_tied: Whether the stage holds both ends of a model with tied embeddings.
        matrix: Parameters of one vocabulary matrix on a rank.
        placeholders: Bytes kept in place of gradients (:func:`tangram.cost.memory.placeholder_bytes`).
        params: Dense parameters of the stage on a rank.
        factors: From measured layers; None where all rests on formulas.
    """

    setting: Setting
    work: Work
    counts: FloatArray
    again: FloatArray
    is_tied: BoolArray
    matrix: FloatArray
    placeholders: FloatArray
    params: FloatArray
    factors: AtomFactors | None = None

    @staticmethod
    def of(stages: Sequence[BatchStage]) -> StageBatch:
        """Fills the tables of all stages."""
        kinds = [_kinds(stage) for stage in stages]
        num_atoms = max(len(rows) for _, rows, _ in kinds)
        table = np.zeros((work.NUM_ROWS, num_atoms, len(stages)))
        dense, expert, counts, again = (np.zeros((num_atoms, len(stages))) for _ in range(4))
        for idx, (stage, (one, rows, number)) in enumerate(zip(stages, kinds, strict=True)):
            for row, source in enumerate(rows):
                if source is None:
                    continue
                table[:, row, idx] = one.table[:, source, 0]
                dense[row, idx], expert[row, idx] = one.layer_dense[source, 0], one.layer_expert[source, 0]
                counts[row, idx] = number[source]
                again[row, idx] = number[source] * (stage.recomputed and row > HEAD)
        tied = [s.setting.model.shares_embedding for s in stages]
        params = (counts * table[work.DENSE_PARAMS]).sum(axis=0)
        return StageBatch(
            setting=_stacked([stage.setting for stage in stages]),
            work=Work(table, dense, expert),
            counts=counts,
            again=again,
            is_tied=np.array(tied) & (counts[EMBEDDING] > 0) & (counts[HEAD] > 0),
            matrix=np.array([s.setting.vocab_rows[0] * s.setting.model.embedding_width for s in stages]),
            params=params,
            placeholders=np.array(
                [_placeholders(stage, one) for stage, (one, _, _) in zip(stages, kinds, strict=True)]
            ),
        )

    def __len__(self) -> int:
        return len(self.is_tied)

    def times(self, constants: Constants) -> FloatArray:
        """Returns the times of the atoms by kind; shape ``(NUM_TIMES, num_atoms, num_stages)``."""
        times = Rates.of(self.setting, constants).times(self.work.table)
        if self.factors is None:
            return times
        factors = self.factors
        return multiplied(self.setting, times, factors.forward, factors.backward, factors.with_tp)

    def costs(self, constants: Constants) -> BatchCosts:
        """Evaluates the cost model; constants may be arrays with one entry per stage."""
        setting, counts, again = self.setting, self.counts, self.again
        rates = Rates.of(setting, constants)
        times = self.times(constants)
        values = dict(zip(FIELDS + COMPONENTS, fields_of(setting, rates, self.work, times), strict=True))
        tied = tied_share(setting, rates, self.matrix, times[:, EMBEDDING])
        recompute_s = (again * values["recompute_s"]).sum(axis=0)
        held = np.stack([(counts * values[name]).sum(axis=0) for name in FIELDS[3:6]])
        held -= self.is_tied * np.stack(tied.held)
        parts = {name: (counts * values[name]).sum(axis=0) for name in COMPONENTS}
        for name, seconds in tied.step._asdict().items():
            parts[name] = parts[name] - self.is_tied * seconds
        kept = (counts - again) * values["stored_bytes"] + again * values["recomputed_stored_bytes"]
        rerun = np.where(again > 0, values["recompute_workspace_bytes"], 0.0).max(axis=0)
        transient = np.where(counts > 0, values["workspace_bytes"], 0.0)
        workspace = np.maximum(transient.max(axis=0), rerun)
        # When the embedding's gradient is there, its micro-batch has nothing else left.
        transient[EMBEDDING] -= kept[HEAD + 1 :].sum(axis=0)
        late = workspace - np.maximum(transient.max(axis=0), rerun)
        library = self.placeholders + memory.reduce_buffer_bytes(setting, rates, self.params)
        step = (counts * values["step_s"]).sum(axis=0) - self.is_tied * tied.step.sum()
        return BatchCosts(
            forward_s=(counts * values["forward_s"]).sum(axis=0),
            backward_s=(counts * values["backward_s"]).sum(axis=0) + recompute_s,
            step_s=step,
            weight_bytes=held[0],
            gradient_bytes=held[1],
            optimizer_bytes=held[2],
            layer_activation_bytes=kept[HEAD + 1 :].sum(axis=0),
            end_activation_bytes=kept[: HEAD + 1].sum(axis=0),
            doubtful_bytes=((counts - again) * self.work.table[work.DOUBTFUL]).sum(axis=0),
            workspace_bytes=workspace,
            late_bytes=late,
            library_bytes=library + memory.workspace_bytes(setting, rates),
            reserve_bytes=library + memory.reserve_bytes(setting, rates),
            upper_ratio=np.broadcast_to(rates.stack.upper_memory_ratio, len(self)),
            components={**parts, "recompute": recompute_s},
        )


@dataclass(frozen=True, slots=True, eq=False)
class BatchCosts:
    """What the stages cost; arrays of shape ``(num_stages,)``, as in :class:`tangram.cost.types.StageCost`.

    Attributes:
        forward_s, backward_s: Per micro-batch; ``backward_s`` includes recomputation.
        step_s: Once per step.
        weight_bytes, gradient_bytes, optimizer_bytes, workspace_bytes, reserve_bytes: Memory.
        late_bytes: The part of ``workspace_bytes`` that is taken only once a micro-batch's activations are
            gone; the planner counts it all the same.
        library_bytes: The part of ``reserve_bytes`` that the framework's allocator counts.
        upper_ratio: By what all but model states is multiplied to get the upper estimate.
        layer_activation_bytes, end_activation_bytes: Per micro-batch in flight, of the layers and of the ends
            of the model.
        doubtful_bytes: Likewise, what layers keep besides in the upper estimate.
        components: Parts of ``forward_s + backward_s`` and of ``step_s``.
    """

    forward_s: FloatArray
    backward_s: FloatArray
    step_s: FloatArray
    weight_bytes: FloatArray
    gradient_bytes: FloatArray
    optimizer_bytes: FloatArray
    layer_activation_bytes: FloatArray
    end_activation_bytes: FloatArray
    doubtful_bytes: FloatArray
    workspace_bytes: FloatArray
    reserve_bytes: FloatArray
    late_bytes: FloatArray
    library_bytes: FloatArray
    upper_ratio: FloatArray
    components: dict[str, FloatArray]

    @property
    def time_s(self) -> FloatArray:
        """Forward plus backward of one micro-batch."""
        return self.forward_s + self.backward_s


def _kinds(stage: BatchStage) -> tuple[Work, list[int | None], list[int]]:
    """Work of the stage's distinct atoms; which of them stands in each row of the batch; how many of each."""
    layout = layout_of(stage.setting.model, stage.atoms)
    number = [layout.atom_of.count(a) for a in range(len(layout.distinct))]
    return _tuned(summed(stage.setting, layout), stage), _rows(layout), number


def _rows(layout: Layout) -> list[int | None]:
    """Which distinct atom stands in each row of the batch: the ends of the model first, None where absent."""
    ends: list[int | None] = [layout.embedding, layout.head]
    return ends + [a for a in range(len(layout.distinct)) if a not in ends]


def _tuned(own: Work, stage: BatchStage) -> Work:
    """Takes away what fine-tuning does not do."""
    table = own.table
    if stage.packed:
        for row in (work.FLASH, work.UNFUSED, work.UNALIGNED, work.SCORES):
            table[[row, row + work.BACKWARD]] = 0.0
    if stage.adapters_only:
        # The gradient of the input is a product of the same three sizes as the forward one.
        table[work.BACKWARD : work.BACKWARD + work.FLASH] = table[: work.FLASH]
        table[[work.DENSE_PARAMS, work.EXPERT_PARAMS]] = 0.0
    return own


def _placeholders(stage: BatchStage, own: Work) -> float:
    """Of the stage's layers; the ends of a model are no products of the library that keeps placeholders."""
    layout = layout_of(stage.setting.model, stage.atoms)
    ends = (layout.embedding, layout.head)
    rows = [a for a in range(len(layout.distinct)) if a not in ends]
    if not rows:
        return 0.0
    held = memory.placeholder_bytes(stage.setting, own.layer_dense[rows], own.layer_expert[rows])
    return float(held[0])


def _stacked(settings: Sequence[Setting]) -> Setting:
    stacked: Setting = _stack(settings, 1)
    return stacked


def _stack(values: Sequence[Any], num_columns: int) -> Any:
    """Joins equal structures: arrays along their last axis, numbers into an array; else the first counts."""
    first = values[0]
    if is_dataclass(first) and type(first).__module__.startswith("tangram.cost"):
        names = [field.name for field in fields(first)]
        kind: Any = type(first)
        return kind(**{n: _stack([getattr(v, n) for v in values], num_columns) for n in names})
    if isinstance(first, np.ndarray):
        return np.concatenate(values, axis=-1)
    if isinstance(first, bool | int | float):
        return np.array(values)
    return first
