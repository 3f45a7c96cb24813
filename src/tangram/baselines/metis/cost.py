"""Metis's cost of a plan, item by item, in ms.

Pipelined execution, synchronisation per micro-batch, the parameters' update, the slowest stage's gradient
all-reduce, activations across cuts, and the making of input. As published, activations are counted in
elements instead of bytes, tensor parallelism costs what the profile contains, nothing overlaps, and twice the
profiled time of the optimizer is charged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from tangram.baselines.metis.question import Layout, Question
from tangram.baselines.metis.stages import StageForm

_OPTIMIZER_TIMES = 2


@dataclass(frozen=True, slots=True)
class CostBreakdown:
    """All in ms.

    Attributes:
        execution: Of all micro-batches through all stages.
        sync: What forward and backward take beyond the layers.
        update: Of the stage with the longest optimizer step.
        gradients: Of the stage with the longest all-reduce.
        cuts: Activations of one micro-batch, over all cuts.
        batches: Making all micro-batches.
    """

    execution: float
    sync: float
    update: float
    gradients: float
    cuts: float
    batches: float

    @property
    def total(self) -> float:
        """The predicted iteration time."""
        return self.execution + self.sync + self.update + self.gradients + self.cuts + self.batches


class CostModel:
    """Costs plans of one question; bandwidths are remembered."""

    def __init__(self, question: Question) -> None:
        self._question = question
        self._gradient_rates: dict[tuple[tuple[int, ...], int, int, int], float] = {}

    def cost(
        self,
        layout: Layout,
        groups: Sequence[int],
        forms: Sequence[StageForm],
        bounds: Sequence[int],
        num_micro_batches: int,
    ) -> CostBreakdown | None:
        """Returns the cost of the first ``len(forms)`` stages; None where a profile is missing.

        Args:
            layout: Of the ranks.
            groups: GPUs of every stage.
            forms: What the stages are.
            bounds: Layers of the stages, as in :func:`tangram.baselines.metis.layers.LayerBalancer`.
            num_micro_batches: Per step.
        """
        question, profile = self._question, self._question.profile
        micro_batch = question.global_batch // num_micro_batches
        first_ranks = [0, *accumulate(groups)]
        sync_ms = forms[-1].sync_ms
        if sync_ms is None:
            return None
        times, updates, reduces, cuts = [], [], [], 0.0
        for stage, form in enumerate(forms):
            start, stop, rank = bounds[stage], bounds[stage + 1], first_ranks[stage]
            times.append(form.time_ms(start, stop))
            updates.append(
                _OPTIMIZER_TIMES * profile.optimizer_ms / form.tp * ((stop - start) / profile.num_layers)
            )
            held = (profile.parameters_before[stop] - profile.parameters_before[start]) / form.tp
            rate = self._gradient_rate(layout, rank, form)
            reduces.append(2 * (form.dp - 1) / (form.dp * rate) * held)
            if stage < len(forms) - 1:
                between = self._rate(layout, range(rank, first_ranks[stage + 2]))
                cuts += self._elements(stop, micro_batch // form.dp, form.tp) / between
        return CostBreakdown(
            execution=(num_micro_batches - 1) * max(times) + sum(times),
            sync=sync_ms * num_micro_batches,
            update=max(updates),
            gradients=max(reduces),
            cuts=cuts,
            batches=profile.batch_ms * num_micro_batches,
        )

    def _elements(self, cut: int, samples: int, tp: int) -> float:
        """Of one replica's activations at a cut."""
        if self._question.defects.logits_at_cut and cut == self._question.profile.num_layers - 1:
            return samples * self._question.sample_logits / tp
        return samples * self._question.sample_elements

    def _rate(self, layout: Layout, ranks: range) -> float:
        """Bytes per ms between ranks: the node's link, or where there are several nodes the slowest of their
        networks.
        """
        kinds = layout.kinds_of_nodes(ranks)
        if len(kinds) == 1:
            return self._question.kinds[kinds[0]].intra_bytes_per_ms
        if self._question.defects.fast_network:
            return min(self._question.kinds[kind].intra_bytes_per_ms for kind in kinds)
        return min(self._question.kinds[kind].inter_bytes_per_ms for kind in kinds)

    def _gradient_rate(self, layout: Layout, rank: int, form: StageForm) -> float:
        """The slowest of the groups that add up gradients: every tp-th rank of the stage."""
        key = (layout.order, rank, form.dp, form.tp)
        if key not in self._gradient_rates:
            stop = rank + form.dp * form.tp
            stride = form.dp if self._question.defects.tensor_groups else form.tp
            rates = [self._rate(layout, range(rank + i, stop, stride)) for i in range(stride)]
            self._gradient_rates[key] = min(rates)
        return self._gradient_rates[key]
