"""Aceso's own accounting of a GPT pipeline, from the operator profiles that it publishes.

With it the search can be compared with the published one on equal terms: the same atoms (single operators),
the same space (powers of two of GPUs up to a node, nodes filled one after the other, tp x dp, no ZeRO) and
the same cost model, which has neither gradient synchronisation nor overlap:

* time of a stage: profiled forward and backward of its operators (collectives of tensor parallelism inside),
  forward once more for what is recomputed, and what it receives and sends over the profiled bandwidth;
* memory: 16 bytes per parameter; what operators keep, for every stage behind and itself; what the longest
  recomputed run brings back; and what the allocator holds besides.

Two choices of its planner are left out, as its best plans for GPT never use them: the second way to partition
an operator, and operators of one stage with different degrees.

Units as in the profiles: MiB, milliseconds (files: microseconds), GB/s of 1024**3 bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from tangram.parallelizers.aceso.operators import (
    BATCHES,
    EMBEDDING,
    FINAL_NORM,
    HEAD,
    OPS_PER_LAYER,
    Operators,
    Profile,
    Rounds,
    flagged,
    recompute_mib,
)
from tangram.parallelizers.aceso.space import Degrees, Pipeline, StageValue, iteration_time

_STATES_PER_WEIGHT = 8.0  # fp16 weight and gradient, fp32 copy and two moments: 16 bytes for 2.


class _Totals:
    """Sums over the operators in front of each position, for one profile."""

    __slots__ = ("kept_mib", "time_ms", "weights_mib")

    def __init__(self, rows: Operators, kinds: Sequence[int]) -> None:
        time = [rows.forward_ms[k] + rows.backward_ms[k] for k in kinds]
        self.time_ms = [0.0, *accumulate(time)]
        self.kept_mib = [0.0, *accumulate(rows.kept_mib[k] for k in kinds)]
        self.weights_mib = [0.0, *accumulate(rows.weights_mib[k] for k in kinds)]


@dataclass(slots=True, eq=False)
class AcesoSpace:
    """Aceso's space and accounting for one model on equal nodes.

    Attributes:
        profile: What was measured.
        num_layers: Of the model.
        num_gpus, gpus_per_node: Of the cluster.
        global_batch: Samples per step.
        limit_mib: Memory of a GPU.
        micro_batches: Global micro-batches to choose from.
    """

    profile: Profile
    num_layers: int
    num_gpus: int
    gpus_per_node: int
    global_batch: int
    limit_mib: float
    micro_batches: tuple[int, ...] = BATCHES
    num_atoms: int = field(init=False)
    sizes: tuple[int, ...] = field(init=False)
    kinds: tuple[int, ...] = field(init=False)
    _totals: dict[tuple[int, int], _Totals] = field(default_factory=dict, repr=False)
    _inner: dict[tuple[int, ...], tuple[float, float, float]] = field(default_factory=dict, repr=False)
    _all_rounds: dict[tuple[int, int, int, int], Rounds] = field(default_factory=dict, repr=False)
    _values: dict[tuple[object, ...], StageValue] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        layer = tuple(range(1, 1 + OPS_PER_LAYER))
        self.kinds = (EMBEDDING, *layer * self.num_layers, FINAL_NORM, HEAD)
        self.num_atoms = len(self.kinds)
        self.sizes = tuple(g for g in (1, 2, 4, 8) if g <= min(self.num_gpus, self.gpus_per_node))

    def num_micro_batches(self, micro_batch: int) -> int:
        """Returns the number of micro-batches of one step."""
        return self.global_batch // micro_batch

    def degrees(self, micro_batch: int, size: int) -> tuple[Degrees, ...]:
        """Returns what was profiled: the samples of a replica and its tp."""
        return tuple(
            (tp, size // tp)
            for tp in (1, 2, 4, 8)
            if tp <= size
            and micro_batch % (size // tp) == 0
            and (micro_batch // (size // tp), tp) in self.profile.operators
        )

    def lays_out(self, sizes: tuple[int, ...]) -> bool:
        """Returns whether no stage spans two nodes."""
        used = 0
        for size in sizes:
            if used // self.gpus_per_node != (used + size - 1) // self.gpus_per_node:
                return False
            used += size
        return used == self.num_gpus

    def value(
        self, micro_batch: int, start: int, stop: int, degrees: Degrees, behind: int, first_gpu: int
    ) -> StageValue:
        """Returns what a stage costs, in milliseconds and MiB."""
        tp, dp = degrees
        per_node = self.gpus_per_node
        crosses_in = first_gpu > 0 and first_gpu % per_node == 0
        crosses_out = (first_gpu + tp * dp) % per_node == 0
        key = (micro_batch, start, stop, tp, dp, behind, crosses_in, crosses_out)
        found = self._values.get(key)
        if found is None:
            batch = micro_batch // dp
            compute, recompute, memory = self.inner(batch, tp, start, stop, behind)
            moved = self.received_ms(batch, tp, start, between_nodes=crosses_in)
            moved += self.sent_ms(batch, tp, stop, between_nodes=crosses_out)
            whole = self._sums(micro_batch, 1).time_ms
            found = StageValue(
                time=compute + recompute + moved,
                step=0.0,
                memory=memory,
                limit=self.limit_mib,
                ideal=(whole[stop] - whole[start]) / (tp * dp),
                recompute=recompute,
            )
            self._values[key] = found
        return found

    def inner(self, batch: int, tp: int, start: int, stop: int, behind: int) -> tuple[float, float, float]:
        """Returns compute and recomputation in ms, and memory in MiB, of a stage wherever it stands.

        Layers are equal, so stages without ends of the model that begin in the same place of a layer are.
        """
        if start > 0 and stop <= self.num_atoms - 2:
            shift = (start - 1) // OPS_PER_LAYER * OPS_PER_LAYER
            start, stop = start - shift, stop - shift
        key = (batch, tp, start, stop, behind)
        found = self._inner.get(key)
        if found is None:
            flags, memory = self.recomputed(batch, tp, start, stop, behind)
            forward = self.profile.operators[batch, tp].forward_ms
            again = sum(forward[self.kinds[start + i]] for i, flag in enumerate(flags) if flag)
            found = self._inner[key] = (self.compute_ms(batch, tp, start, stop), again, memory)
        return found

    def compute_ms(self, batch: int, tp: int, start: int, stop: int) -> float:
        """Returns forward and backward of a stage."""
        time = self._sums(batch, tp).time_ms
        return time[stop] - time[start]

    def received_ms(self, batch: int, tp: int, start: int, *, between_nodes: bool) -> float:
        """Returns what a stage that begins with an atom takes to receive its input."""
        mib = self.profile.operators[batch, tp].input_mib[self.kinds[start]]
        return self.profile.transfer_ms(mib, between_nodes=between_nodes)

    def sent_ms(self, batch: int, tp: int, stop: int, *, between_nodes: bool) -> float:
        """Returns what a stage that ends in front of an atom takes to send its output."""
        mib = self.profile.operators[batch, tp].output_mib[self.kinds[stop - 1]]
        return self.profile.transfer_ms(mib, between_nodes=between_nodes)

    def memory_mib(
        self, batch: int, tp: int, start: int, stop: int, behind: int, flags: Sequence[bool]
    ) -> float:
        """Returns the peak of a stage that recomputes the operators with a flag."""
        rows, sums = self.profile.operators[batch, tp], self._sums(batch, tp)
        kinds = self.kinds[start:stop]
        weights = sums.weights_mib[stop] - sums.weights_mib[start]
        kept = rows.input_mib[kinds[0]] + sums.kept_mib[stop] - sums.kept_mib[start]
        saved, regained = recompute_mib(rows, kinds, flags) if any(flags) else (0.0, 0.0)
        held = set(kinds[:-1])
        reserved = max([rows.forward_reserved_mib[k] for k in held], default=0.0) + max(
            [rows.backward_reserved_mib[k] for k in held], default=0.0
        )
        return (
            _STATES_PER_WEIGHT * weights + (behind + 1) * (kept - saved) + regained + max(reserved, weights)
        )

    def recomputed(self, batch: int, tp: int, start: int, stop: int, behind: int) -> tuple[list[bool], float]:
        """Returns which operators Aceso recomputes, and the peak then.

        Kind by kind, the one that keeps most first, as many as are needed; with each the operator behind it,
        since what an operator keeps goes only if its consumer runs again as well. Nothing where all fits.
        """
        rows, kinds = self.profile.operators[batch, tp], self.kinds[start:stop]
        held, flags, whole, used = behind + 1, [False] * len(kinds), True, 0
        memory = plain = self.memory_mib(batch, tp, start, stop, behind, flags)
        rounds = self._rounds(batch, tp, start, stop) if memory > self.limit_mib else None
        while rounds is not None and memory > self.limit_mib and (part := rounds.part(used)) is not None:
            used += 1
            over, size, number = memory - self.limit_mib, held * part.kept_mib, len(part.places)
            if size * number >= over:
                number = min(number, int(over / size) + 1)
            whole = whole and number == len(part.places)
            flags = list(part.flags) if whole else flagged(flags, part.places[:number])
            saved, regained = (
                (part.saved_mib, part.regained_mib) if whole else recompute_mib(rows, kinds, flags)
            )
            memory = plain - held * saved + regained
        return flags, memory

    def iteration_ms(self, pipeline: Pipeline, flags: Sequence[Sequence[bool]]) -> float:
        """Returns the iteration time of a pipeline that recomputes the operators with a flag."""
        start = gpus = 0
        times: list[float] = []
        for stop, (tp, dp), of_stage in zip(pipeline.stops, pipeline.degrees, flags, strict=True):
            value = self.value(pipeline.micro_batch, start, stop, (tp, dp), len(flags) - 1 - len(times), gpus)
            forward = self.profile.operators[pipeline.micro_batch // dp, tp].forward_ms
            marked = zip(self.kinds[start:stop], of_stage, strict=True)
            again = sum(forward[kind] for kind, flag in marked if flag)
            times.append(value.time - value.recompute + again)
            start, gpus = stop, gpus + tp * dp
        return iteration_time(times, [0.0], self.num_micro_batches(pipeline.micro_batch))

    def _rounds(self, batch: int, tp: int, start: int, stop: int) -> Rounds:
        key = (batch, tp, start, stop)
        if key not in self._all_rounds:
            self._all_rounds[key] = Rounds(self.profile.operators[batch, tp], self.kinds[start:stop])
        return self._all_rounds[key]

    def _sums(self, batch: int, tp: int) -> _Totals:
        if (batch, tp) not in self._totals:
            self._totals[batch, tp] = _Totals(self.profile.operators[batch, tp], self.kinds)
        return self._totals[batch, tp]


def stored_pipeline(document: Mapping[str, Any]) -> tuple[Pipeline, list[list[bool]]]:
    """Reads a plan as Aceso's search writes it: the pipeline, and the recomputed operators of each stage.

    Raises:
        ValueError: Operators of one stage differ in their degrees, or use the second partition.
    """
    degrees = []
    for tps, dps, algos in zip(
        document["model_parallel_size_of_each_op"],
        document["data_parallel_size_of_each_op"],
        document["algo_of_each_op"],
        strict=True,
    ):
        if len({*zip(tps, dps, strict=True)}) != 1 or any(algos):
            raise ValueError("operators of one stage differ in their degrees, or are partitioned otherwise")
        degrees.append((int(tps[0]), int(dps[0])))
    stops = tuple(accumulate(int(number) for number in document["num_ops_in_each_stage"]))
    flags = [[bool(flag) for flag in stage] for stage in document["recompute_ops"]]
    return Pipeline(int(document["micro_batch_size"]), stops, tuple(degrees)), flags
