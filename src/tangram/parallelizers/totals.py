"""What slice contents cost under each configuration: sums over atom classes, before any full recomputation.

Arrays have the shape ``(num_contents, num_configs)`` unless stated. The sums are products of counts with the
cost of one atom per class; :func:`tangram.cost.stage.stage_cost` says the same of a single stage, atom by
atom. They are added class by class, in the order of the model: a BLAS product may round differently for
another number of slices, and then a pruned and an unpruned search would no longer see the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tangram.cluster.spec import Portion
from tangram.cost.constants import upper_memory_ratio
from tangram.cost.types import AtomCosts, BoolArray, FloatArray, IntArray, StageConfig
from tangram.job import Job
from tangram.model.atoms import Atom
from tangram.model.spec import ModelSpec
from tangram.parallelizers.contents import Contents
from tangram.parallelizers.prices import price_list

SPARE_BYTES = 8.0
"""Left free by every stage: rounding its items up, or adding them in another order, breaks no plan."""


@dataclass(frozen=True, slots=True, eq=False)
class StageTotals:
    """What contents cost as single stages, with no atom recomputed in full.

    Attributes:
        counts: Atoms per class; ``(num_contents, num_classes)``.
        recomputable: Classes that may be recomputed in full: all but embedding and head; ``(num_classes,)``.
        costs: Of one atom per class; arrays ``(num_classes, num_configs)``.
        forward_s, backward_s, step_s: Sums; once the tied embedding where both ends are in the slice.
        activation_bytes: Per micro-batch in flight.
        workspace_bytes: The largest of any atom.
        room_bytes: What is left for activations: what best estimates may take of the GPU beside model states
            (the rest of its capacity without the margin), without workspace and reserve; may be below zero.
    """

    counts: IntArray
    recomputable: BoolArray
    costs: AtomCosts
    forward_s: FloatArray
    backward_s: FloatArray
    step_s: FloatArray
    activation_bytes: FloatArray
    workspace_bytes: FloatArray
    room_bytes: FloatArray

    @property
    def num_recomputable(self) -> IntArray:
        """Atoms per content that may be recomputed in full; shape ``(num_contents,)``."""
        atoms: IntArray = self.counts[:, self.recomputable].sum(axis=1)
        return atoms

    def may_fit(self) -> BoolArray:
        """Returns where one micro-batch in flight may fit; where it says no, no recomputation helps.

        A bound: the least activations of every atom, beside the least workspace.
        """
        least = np.minimum(self.costs.stored_bytes, self.costs.recomputed_stored_bytes)
        fits: BoolArray = _sum(self.counts, least) <= self.room_bytes
        return fits

    def all_recomputed(self) -> StageTotals:
        """Returns the totals with every recomputable atom recomputed in full."""
        counts = self.counts * self.recomputable
        costs = self.costs
        workspace = np.maximum(self.workspace_bytes, _largest(counts, costs.recompute_workspace_bytes))
        return StageTotals(
            counts=self.counts,
            recomputable=self.recomputable,
            costs=costs,
            forward_s=self.forward_s,
            backward_s=self.backward_s + _sum(counts, costs.recompute_s),
            step_s=self.step_s,
            activation_bytes=self.activation_bytes
            - _sum(counts, costs.stored_bytes - costs.recomputed_stored_bytes),
            workspace_bytes=workspace,
            room_bytes=self.room_bytes - (workspace - self.workspace_bytes),
        )


def stage_totals(
    model: ModelSpec,
    atoms: Sequence[Atom],
    contents: Contents,
    portion: Portion,
    configs: Sequence[StageConfig],
    micro_batch: int,
    job: Job,
) -> StageTotals:
    """Returns what every content costs under every configuration.

    Args:
        model: The whole model.
        atoms: All its atoms.
        contents: Slices of these atoms.
        portion: The GPUs of one stage.
        configs: At least one.
        micro_batch: Global micro-batch, in samples.
        job: The job.
    """
    distinct = contents.distinct(atoms)
    costs = price_list(model, atoms, portion, job).costs(distinct, configs, micro_batch)[0]
    counts = contents.counts
    embedding = np.array([atom.is_embedding for atom in distinct], dtype=np.bool_)
    head = np.array([atom.is_head for atom in distinct], dtype=np.bool_)
    both_ends = contents.holds(embedding) & contents.holds(head)
    tied = (both_ends & model.shares_embedding).astype(np.float64)[:, None]
    workspace = _largest(counts, costs.workspace_bytes)
    states = _sum(counts, costs.state_bytes) - tied * costs.tied_bytes
    # The upper estimate must fit: model states as they are, the best estimate of all else times the ratio.
    left = portion.island.gpu.usable_memory_bytes - states
    beside = left / upper_memory_ratio(job.basis) - SPARE_BYTES
    return StageTotals(
        counts=contents.counts,
        recomputable=~(embedding | head),
        costs=costs,
        forward_s=_sum(counts, costs.forward_s),
        backward_s=_sum(counts, costs.backward_s),
        step_s=_sum(counts, costs.step_s) - tied * costs.tied_step_s,
        activation_bytes=_sum(counts, costs.stored_bytes),
        workspace_bytes=workspace,
        room_bytes=beside - workspace - costs.reserve_bytes,
    )


def nanoseconds(seconds: FloatArray) -> IntArray:
    """Rounds to whole nanoseconds, half up, and to 1 at least."""
    rounded: IntArray = np.maximum(np.floor(seconds * 1e9 + 0.5), 1.0).astype(np.int64)
    return rounded


def _sum(counts: IntArray, class_values: FloatArray) -> FloatArray:
    """Returns the sum over the atoms of each content, class by class."""
    total = np.zeros((len(counts), class_values.shape[1]))
    for number, row in zip(counts.T.astype(np.float64), class_values, strict=True):
        total += number[:, None] * row
    return total


def _largest(counts: IntArray, class_bytes: FloatArray) -> FloatArray:
    """Returns the maximum over the classes that a content holds; 0 where it holds none."""
    largest = np.zeros((len(counts), class_bytes.shape[1]))
    for held, row in zip(counts.T > 0, class_bytes, strict=True):
        np.maximum(largest, np.where(held[:, None], row, 0.0), out=largest)
    return largest
