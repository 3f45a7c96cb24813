"""What strategies cost: seconds per micro-batch and bytes per GPU of operators, seconds of resharding.

Unlike in Alpa's own model, compute, gradients, the optimizer and ZeRO are charged. The rates are those of
:mod:`tangram.cost` (products, attention, memory, links and what overlaps), applied to the local shape that a
strategy leaves; so a repeated computation, a thin product or a slow axis show. What happens once per step is
divided by the number of micro-batches.

ZeRO is Alpa's rewrite of weight updates (section 1e of its code's passes), charged where Alpa decides it
afterwards: the sum of the gradients of replicas becomes a reduce-scatter, the optimizer works on a shard, the
new weights are gathered (stage 1). Stage 2 scatters gradients after every micro-batch, stage 3 also gathers
weights in each pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

import numpy as np

from tangram.cluster.spec import Portion
from tangram.cost import work
from tangram.cost.attention import fill_core, fill_elementwise, fill_launch
from tangram.cost.constants import Constants, constants_of
from tangram.cost.gemm import fill_expert_gemm, fill_gemm
from tangram.cost.rates import Rates
from tangram.cost.setting import Setting
from tangram.cost.types import FloatArray, StageConfig, StageConfigs
from tangram.job import Job
from tangram.model.spec import ModelSpec
from tangram.parallelizers.alpa.einsums import Kind, Operator, Read
from tangram.parallelizers.alpa.meshes import WHOLE, LogicalMesh
from tangram.parallelizers.alpa.strategies import NOTHING, Spec, Strategy

_MOE_OPERATORS = ("dispatch", "expert_up", "expert_down", "combine")
_LOSS_BYTES = 4.0


@dataclass(frozen=True, slots=True, eq=False)
class Charged:
    """What the strategies of one operator cost; arrays of shape ``(num_strategies,)``.

    Attributes:
        seconds: Forward and backward of one micro-batch, with its share of the step end.
        state_bytes: Weights, gradients and optimizer states on a GPU.
        stored_bytes: Kept for backward, per micro-batch in flight.
    """

    seconds: FloatArray
    state_bytes: FloatArray
    stored_bytes: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class Prices:
    """What a portion's GPUs and links charge for one micro-batch size.

    Attributes:
        model, portion, micro_batch, num_micro_batches, job: What is planned.
        constants: Of the cost model.
        setting, rates: Of one GPU of the portion.
    """

    model: ModelSpec
    portion: Portion
    micro_batch: int
    num_micro_batches: int
    job: Job
    constants: Constants
    setting: Setting
    rates: Rates

    @staticmethod
    def of(model: ModelSpec, portion: Portion, micro_batch: int, num_micro_batches: int, job: Job) -> Prices:
        """Looks the rates up."""
        constants = constants_of(portion.island.gpu, job.basis)
        configs = StageConfigs.of([StageConfig(dp=portion.num_gpus, tp=1)])
        setting = Setting.of(model, portion, configs, micro_batch, job)
        rates = Rates.of(setting, constants)
        return Prices(model, portion, micro_batch, num_micro_batches, job, constants, setting, rates)

    def charged(
        self,
        operators: Sequence[Operator],
        options: Sequence[Sequence[Strategy]],
        mesh: LogicalMesh,
        zero: int,
    ) -> tuple[Charged, ...]:
        """Returns what the strategies of each operator cost under a ZeRO stage."""
        bounds = np.cumsum([0, *map(len, options)]).tolist()
        # One table for all operators: what takes time is the number of array operations.
        table = np.zeros((work.NUM_ROWS, bounds[-1]))
        own = [slice(a, b) for a, b in pairwise(bounds)]
        parts = [_Parts(strategies, mesh.shape) for strategies in options]
        for operator, part, columns in zip(operators, parts, own, strict=True):
            self._fill(operator, part, self._busy(part), table[:, columns])
        times = self.rates.times(table)
        forward = times[: work.NUM_COMPUTE].sum(axis=0)
        backward = times[work.BACKWARD_S : work.BACKWARD_S + work.NUM_COMPUTE].sum(axis=0)
        found = []
        for operator, strategies, part, columns in zip(operators, options, parts, own, strict=True):
            compute = forward[columns].tolist(), backward[columns].tolist()
            update = [
                self._update(operator, s, mesh, zero, f, b)
                for s, f, b in zip(strategies, *compute, strict=True)
            ]
            moved = [self._reductions_s(operator, s, mesh) for s in strategies]
            own_s = forward[columns] + backward[columns] + moved + [seconds for seconds, _ in update]
            state = np.array([num_bytes for _, num_bytes in update])
            found.append(Charged(own_s, state, self._kept(operator, part, table[:, columns])))
        return tuple(found)

    def _kept(self, operator: Operator, parts: _Parts, table: FloatArray) -> FloatArray:
        """Kept for backward: what attention keeps, and the inputs of products."""
        if operator.kind is Kind.CORE:
            attended: FloatArray = table[work.STORED] + table[work.DROPPABLE]
            return attended
        if operator.kind is Kind.STREAM:
            return np.zeros(table.shape[1])
        read = operator.reads[0]
        kept: FloatArray = read.elements * self._element_bytes / parts.reads(read.indices)
        return self._busy(parts) * kept

    def reshard_s(self, read: Read, written: Spec, wanted: Spec, mesh: LogicalMesh) -> float:
        """Returns what it takes to bring a tensor from one sharding to another, and back its gradient.

        Axis after axis, in the better order: a split that appears is a slice (a gather of the gradient), one
        that goes a gather, one that moves to another index an all-to-all each way. Where both axes move
        their splits, one all-to-all of all GPUs may be better.
        """
        both = written[0] != wanted[0] and written[1] != wanted[1]
        ways = [self._in_order(read, written, wanted, mesh, (0, 1))]
        if both:
            ways.append(self._in_order(read, written, wanted, mesh, (1, 0)))
        if both and all(written) and all(wanted):
            held = read.elements * self._element_bytes / (mesh.shape[0] * mesh.shape[1])
            ways.append(self._exchange_s(WHOLE, held, "e" in (*written, *wanted), mesh))
        return min(ways)

    def _in_order(
        self, read: Read, written: Spec, wanted: Spec, mesh: LogicalMesh, order: tuple[int, int]
    ) -> float:
        now, seconds = list(written), 0.0
        for axis in order:
            if now[axis] == wanted[axis]:
                continue
            other = mesh.shape[1 - axis] if now[1 - axis] else 1
            size = read.elements * self._element_bytes / other
            if now[axis] and wanted[axis]:
                experts = "e" in (now[axis], wanted[axis])
                seconds += self._exchange_s(axis, size / mesh.shape[axis], experts, mesh)
            else:
                seconds += self._tp_exposed * mesh.sweep_s(axis, size)
            now[axis] = wanted[axis]
        return seconds

    def _exchange_s(self, group: int, held_bytes: float, experts: bool, mesh: LogicalMesh) -> float:
        """An all-to-all each way; the busiest rank of experts holds more."""
        if experts:
            return 2 * self._expert_exposed * mesh.exchange_s(group, self._imbalance * held_bytes)
        return 2 * self._tp_exposed * mesh.exchange_s(group, held_bytes)

    @property
    def _element_bytes(self) -> float:
        return float(self.setting.element_bytes)

    @property
    def _tp_exposed(self) -> float:
        return float(self.constants.stack.tp_exposed_frac)

    @property
    def _expert_exposed(self) -> float:
        return float(np.max(self.rates.ep_exposed_frac))

    @property
    def _imbalance(self) -> float:
        """Tokens of the busiest rank over the mean, where experts are spread."""
        return 1.0 if np.any(self.setting.memory.balanced_experts) else self.constants.stack.expert_imbalance

    def _busy(self, parts: _Parts) -> FloatArray:
        """Tokens of the busiest rank over the mean."""
        return np.where(parts.of("e") > 1, self._imbalance, 1.0)

    def _fill(self, operator: Operator, parts: _Parts, busy: FloatArray, table: FloatArray) -> None:
        """Fills a table of work with the kernels of an operator at its local shapes."""
        if operator.kind is Kind.CORE:
            self._fill_core(operator, parts, table)
            return
        column, inner = _split_indices(operator)
        rows, columns = operator.rows / parts.of("bs"), operator.columns / parts.of(column)
        depth = operator.inner / parts.of(inner)
        if operator.kind is Kind.PRODUCT:
            fill_gemm(table, work.GEMM, rows, columns, depth)
        elif operator.kind is Kind.HEAD:
            fill_gemm(table, work.HEAD, rows, columns, depth)
            table[work.LOGITS] = rows * columns
        elif operator.kind is Kind.EXPERTS:
            own = operator.experts / parts.of("e")
            count = np.minimum(own, own * rows)  # An expert without tokens has no product.
            fill_expert_gemm(table, count, busy * own * rows / count, columns, depth)
        made = busy * operator.write_passes * operator.elements / parts.of(operator.writes)
        if operator.reads:
            read = operator.reads[0]
            made += busy * operator.read_passes * read.elements / parts.reads(read.indices)
        fill_elementwise(table, made * self._element_bytes)
        row = work.MOE_LAUNCH if operator.name in _MOE_OPERATORS else work.LAUNCH
        fill_launch(table, operator.launches, row)

    def _fill_core(self, operator: Operator, parts: _Parts, table: FloatArray) -> None:
        """Attention, as a stage with these degrees has it."""
        assert operator.layer is not None
        one = np.ones(len(parts.of("b")), dtype=np.int64)
        no = np.zeros(len(one), dtype=np.bool_)
        dp, tp = parts.of("b").astype(np.int64), parts.of("n").astype(np.int64)
        configs = StageConfigs(dp, tp, one, one, one, 0 * one, no, no, no)
        setting = Setting.of(self.model, self.portion, configs, self.micro_batch, self.job)
        fill_core(setting, operator.layer, table)

    def _reductions_s(self, operator: Operator, strategy: Strategy, mesh: LogicalMesh) -> float:
        """Sums of partial outputs and of partial gradients of the input, in both passes."""
        if not operator.reads:
            return 0.0
        read, splits = operator.reads[0], strategy.splits
        element = _LOSS_BYTES if operator.kind is Kind.HEAD else self._element_bytes
        outputs = [axis for axis, i in enumerate(splits) if i and i not in operator.writes]
        seconds = _summed_s(operator.elements * element, strategy.writes, outputs, mesh)
        if operator.name != "embedding":  # Token numbers have no gradient.
            inputs = [axis for axis, i in enumerate(splits) if i and i not in read.indices]
            seconds += _summed_s(read.elements * self._element_bytes, strategy.reads, inputs, mesh)
        exposed = self._expert_exposed if operator.name in _MOE_OPERATORS else self._tp_exposed
        return exposed * seconds

    def _update(
        self,
        operator: Operator,
        strategy: Strategy,
        mesh: LogicalMesh,
        zero: int,
        forward_s: float,
        backward_s: float,
    ) -> tuple[float, float]:
        """Gradients, optimizer and ZeRO per micro-batch in seconds, and the states of the weight in bytes."""
        if not operator.weight:
            return 0.0, 0.0
        shards = prod(
            size for i, size in zip(strategy.splits, mesh.shape, strict=True) if i and i in operator.weight
        )
        replicated = [axis for axis, i in enumerate(strategy.splits) if i and i not in operator.weight]
        replicas = prod(mesh.shape[axis] for axis in replicated)
        held = operator.params / shards
        element, gradient = self._element_bytes, float(self.setting.gradient_bytes)
        optimizer = float(self.setting.optimizer_bytes)
        sharing = [replicas if zero >= stage else 1 for stage in (3, 2, 1)]
        state = held * (element / sharing[0] + gradient / sharing[1] + optimizer / sharing[2])
        passes = 1 if element < 4 else 2
        touched = held / sharing[2] * (2 * optimizer + gradient + passes * element)
        step = touched * float(np.max(self.rates.stream_s_per_byte))
        if replicas == 1:
            return step / self.num_micro_batches, state
        group = WHOLE if len(replicated) == 2 else replicated[0]
        sums, gathers = mesh.sweep_s(group, held * gradient), mesh.sweep_s(group, held * element)
        every = 0.0
        if zero >= 3:
            every = self._exposed_s(gathers, forward_s) + self._exposed_s(gathers + sums, backward_s)
        elif zero == 2:
            every = self._exposed_s(sums, backward_s)
            step += self._exposed_s(gathers, forward_s)
        else:
            step += self._exposed_s(2 * sums if zero == 0 else sums, backward_s)
            step += self._exposed_s(gathers, forward_s) if zero else 0.0
        return every + step / self.num_micro_batches, state

    def _exposed_s(self, collective_s: float, compute_s: float) -> float:
        """As :func:`tangram.cost.states.exposed_s`, operator by operator."""
        stack = self.constants.stack
        least = stack.exposed_floor_frac * collective_s
        return max(least, collective_s - stack.compute_hides_frac * compute_s)


class _Parts:
    """Into how many parts the strategies of an operator split indices."""

    def __init__(self, strategies: Sequence[Strategy], shape: tuple[int, int]) -> None:
        self._splits = [s.splits for s in strategies]
        self._reads = [s.reads for s in strategies]
        self._shape = shape

    def of(self, indices: str) -> FloatArray:
        """Returns the parts of these indices together, per strategy."""
        return self._count(self._splits, indices)

    def reads(self, indices: str) -> FloatArray:
        """Returns the parts of the first input as it arrives, per strategy."""
        return self._count(self._reads, indices)

    def _count(self, specs: Sequence[Spec], indices: str) -> FloatArray:
        first, second = self._shape
        return np.array(
            [
                (first if a and a in indices else 1.0) * (second if b and b in indices else 1.0)
                for a, b in specs
            ]
        )


def _summed_s(num_bytes: float, spec: Spec, axes: Sequence[int], mesh: LogicalMesh) -> float:
    """Returns the time of summing a tensor over some axes, and of the reverse in the other pass.

    An all-reduce in one pass (nothing in the other), or a reduce-scatter in one and an all-gather in the
    other: two sweeps either way. What one axis has scattered is less for the other; the better order counts.

    Args:
        num_bytes: Of the whole tensor.
        spec: How it is split in the end.
        axes: To sum over.
        mesh: The mesh.
    """
    for axis, index in enumerate(spec):
        num_bytes /= mesh.shape[axis] if index and axis not in axes else 1
    best = float("inf")
    for order in (axes, axes[::-1]):
        seconds, left = 0.0, num_bytes
        for axis in order:
            seconds += 2 * mesh.sweep_s(axis, left)
            left /= mesh.shape[axis] if spec[axis] else 1
        best = min(best, seconds)
    return best


def _split_indices(operator: Operator) -> tuple[str, str]:
    """Returns the index that its columns have, and that its products sum over."""
    own = operator.weight.replace("e", "") if operator.kind is Kind.EXPERTS else operator.weight
    return (own[1:], own[:1]) if operator.kind is not Kind.STREAM else (NOTHING, NOTHING)
