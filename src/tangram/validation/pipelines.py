"""Runs side by side: from the costs of their stages to the times of their steps and the peaks of their
memory.

The time of a pipeline is a closed form, which costs microseconds and knows interleaving; the planner's
simulator is for plans that are placed on a cluster. With stage times t (forward and backward of one
micro-batch), m micro-batches, v chunks of the model per stage and step ends u:

    T = m max(t, link) + (sum t - max t) / v + max u

the first two terms are Megatron's (Narayanan et al. 2021, section 2.2) for unequal stages. Transfers between
stages add to the time of the stage that waits for them: in engines that send and receive in line with their
kernels both ends wait for activations and for gradients, and then put together what every rank of a
tensor-parallel group got a share of.

Replicas on unequal nodes are pipelines of their own, *lanes*; the step's end waits for the slowest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from tangram.cluster.spec import GpuSpec
from tangram.cost import memory
from tangram.cost.atoms import STEP_COMPONENTS
from tangram.cost.batch import BatchCosts, BatchStage, StageBatch
from tangram.cost.constants import Constants, family_shelf
from tangram.cost.types import BoolArray, FloatArray, IntArray, Number
from tangram.validation.run import Host, MemoryKind, MemoryRanks, Run
from tangram.validation.stages import gpus_on_node, stages_of


@dataclass(frozen=True, slots=True, eq=False)
class RunBatch:
    """Runs, and their stages as one batch.

    Arrays are of columns (the different stages, see :class:`tangram.cost.batch.StageBatch`), of positions
    (stage after stage of lane after lane of run after run), of lanes, or of runs.

    Attributes:
        runs: As given.
        stages: Columns.
        parts: Per column, what it was made of.
        run_of_column: Per column, its run.
        hosts: Per column, its node.
        column: Per position, its column.
        first_position: Per lane, its first position.
        first_lane: Per run, its first lane.
        depth: Per position, how many stages are behind it, itself included.
        last_chunk: Per position, the share of its layers that is in its last chunk.
        nic_s, intra_s: Per position, how long one transfer to the next stage takes at the stated bandwidth of
            the NICs, or of the node; 0 where it does not cross them, and behind the last stage.
        gather_s: Per position, how long a tensor-parallel group takes at the node's stated bandwidth to put a
            received tensor together; 0 behind the last stage.
        blocking: Per run, whether its stages wait for transfers, at both ends.
        num_micro_batches, chunks: Per run.
    """

    runs: tuple[Run, ...]
    stages: StageBatch
    parts: tuple[BatchStage, ...]
    run_of_column: IntArray
    hosts: tuple[Host, ...]
    column: IntArray
    first_position: IntArray
    first_lane: IntArray
    depth: FloatArray
    last_chunk: FloatArray
    nic_s: FloatArray
    intra_s: FloatArray
    gather_s: FloatArray
    blocking: BoolArray
    num_micro_batches: FloatArray
    chunks: FloatArray

    @staticmethod
    def of(runs: Sequence[Run], *, as_engine: bool = False) -> RunBatch:
        """Fills the tables of all runs.

        Args:
            runs: At least one.
            as_engine: Whether stages wait for transfers where their engine is known to. Constants of formulas
                were fitted without that and hold it already; measured layers do not.
        """
        stages: list[BatchStage] = []
        run_of_column: list[int] = []
        column: list[int] = []
        first_position: list[int] = []
        first_lane: list[int] = []
        hosts: list[Host] = []
        edges, depth, last_chunk, blocking = [], [], [], []
        for number, run in enumerate(runs):
            own = stages_of(run)
            blocking.append(as_engine and run.software.blocking_transfers is True)
            first_lane.append(len(first_position))
            for lane in own.lanes:
                first_position.append(len(column))
                column += [len(stages) + position for position in lane]
                nodes = [own.hosts[position] for position in lane]
                edges += [_edge_s(run, idx, nodes) for idx in range(run.degrees.pp)]
                depth += [run.degrees.pp - idx for idx in range(run.degrees.pp)]
                last_chunk += [_last_chunk(run, idx) for idx in range(run.degrees.pp)]
            stages += own.stages
            hosts += own.hosts
            run_of_column += [number] * len(own.stages)
        return RunBatch(
            runs=tuple(runs),
            stages=StageBatch.of(stages),
            parts=tuple(stages),
            run_of_column=_ints(run_of_column),
            hosts=tuple(hosts),
            column=_ints(column),
            first_position=_ints(first_position),
            first_lane=_ints(first_lane),
            depth=np.array(depth, dtype=np.float64),
            last_chunk=np.array(last_chunk),
            nic_s=np.array([edge.nic_s for edge in edges]),
            intra_s=np.array([edge.intra_s for edge in edges]),
            gather_s=np.array([edge.gather_s for edge in edges]),
            blocking=np.array(blocking),
            num_micro_batches=np.array([run.num_micro_batches for run in runs], dtype=np.float64),
            chunks=np.array([run.degrees.vpp for run in runs], dtype=np.float64),
        )

    @property
    def gpus(self) -> tuple[GpuSpec, ...]:
        """Per column, its GPU."""
        return tuple(host.gpu for host in self.hosts)

    @property
    def families(self) -> list[str]:
        """Per column, the shelf of its GPU."""
        return [family_shelf(gpu) for gpu in self.gpus]

    def of_position(self, of_column: FloatArray) -> FloatArray:
        """Returns one value per position for one per column."""
        found: FloatArray = of_column[self.column]
        return found

    def spread(self, of_run: FloatArray | BoolArray) -> FloatArray:
        """Returns one value per position for one per run."""
        values: FloatArray = np.repeat(of_run, np.diff(np.append(self.first_of_run, len(self.column))))
        return values

    def lanes(self, of_run: FloatArray) -> FloatArray:
        """Returns one value per lane for one per run."""
        values: FloatArray = np.repeat(of_run, np.diff(np.append(self.first_lane, len(self.first_position))))
        return values

    @property
    def first_of_run(self) -> IntArray:
        """Per run, its first position."""
        found: IntArray = self.first_position[self.first_lane]
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Predictions:
    """What the cost model says of the runs of a batch; arrays of shape ``(num_runs,)``.

    Attributes:
        iter_s: Time of one step.
        peak_bytes: Peak memory, as the row counts it (whose peak, and the device's or the allocator's).
        upper_peak_bytes: What fewer than 1 run of 50 exceeds.
        components: Parts of the time: those of the stage that sets the pace, over all micro-batches and its
            step end, and ``fill``, all that is not that stage's.
    """

    iter_s: FloatArray
    peak_bytes: FloatArray
    upper_peak_bytes: FloatArray
    components: dict[str, FloatArray]


def predict_batch(batch: RunBatch, constants: Constants) -> Predictions:
    """Predicts all runs.

    Args:
        batch: Runs.
        constants: One number per constant, or one per column of the batch.
    """
    costs = batch.stages.costs(constants)
    seconds = iteration_s(batch, costs, constants)
    states, others = peak_parts(batch, costs, doubtful=True)
    upper = memory.upper_bytes(states, others, batch.of_position(costs.upper_ratio))
    of_run = largest_of_ranks(batch, upper)
    return Predictions(seconds, peak_bytes(batch, costs), of_run, _components(batch, costs, seconds))


def iteration_s(batch: RunBatch, costs: BatchCosts, constants: Constants) -> FloatArray:
    """Returns the time of a step of every run."""
    transfer_s, gather_s = _transfer_s(batch, constants)
    blocking = batch.spread(batch.blocking)
    exposed = batch.of_position(_of_columns(batch, constants.stack.p2p_exposed_frac))
    exposed = np.where(blocking, 1.0, exposed)
    chunks = batch.spread(batch.chunks)
    waiting_s = blocking * chunks * gather_s
    stage_s = batch.of_position(costs.time_s) + 2 * exposed * chunks * transfer_s + 2 * waiting_s
    # Both ends wait: the pace of a stage has the edge in front as well; the way through all stages has not.
    has_front = batch.depth < batch.spread(_stages(batch))
    in_front_s = np.where(has_front, np.roll(2 * transfer_s * chunks + gather_s * chunks, 1), 0.0)
    pace_s = stage_s + blocking * in_front_s - waiting_s
    first = batch.first_position
    # A link carries one transfer per micro-batch in either direction, so it may set the pace as well.
    slowest = np.maximum.reduceat(np.maximum(pace_s, chunks * transfer_s), first)
    fill = np.add.reduceat(stage_s, first) - np.maximum.reduceat(pace_s, first)
    sent = np.add.reduceat(2 * (1 - exposed) * transfer_s, first)
    lane_s = batch.lanes(batch.num_micro_batches) * slowest + fill / batch.lanes(batch.chunks) + sent
    step = np.maximum.reduceat(batch.of_position(costs.step_s), batch.first_of_run)
    seconds: FloatArray = np.maximum.reduceat(lane_s, batch.first_lane) + step
    return seconds


def peak_bytes(batch: RunBatch, costs: BatchCosts) -> FloatArray:
    """Returns the best estimate of every run's peak memory, as its row counts it."""
    states, others = peak_parts(batch, costs)
    return largest_of_ranks(batch, states + others)


def peak_parts(
    batch: RunBatch, costs: BatchCosts, *, doubtful: bool = False
) -> tuple[FloatArray, FloatArray]:
    """Returns model states, and all else that a rank holds at its peak; per position.

    Under 1F1B a stage holds as many micro-batches as there are stages from it to the end. Interleaved, it
    holds ``2 (stages behind it) + (v - 1) g + 1`` chunks of its layers, for groups of g micro-batches
    (Megatron-Core's warm-up; g is pp unless stated): one of the last chunk, the others of the earlier ones.
    Layers that are no multiple of v leave the last chunk short.

    Args:
        batch: Runs.
        costs: Of their stages.
        doubtful: Whether to count what layers keep if attention of an unknown kind is unfused.
    """
    m, v, depth = (batch.spread(batch.num_micro_batches), batch.spread(batch.chunks), batch.depth)
    group = batch.spread(np.array([float(run.degrees.chunk_group or run.degrees.pp) for run in batch.runs]))
    held = np.minimum(m, depth)
    chunks = np.minimum(m * v, 2 * (depth - 1) + (v - 1) * group + 1)
    tail = batch.last_chunk
    layers = np.where(v > 1, tail + (1 - tail) * (chunks - 1) / np.maximum(v - 1, 1), held)
    on_device = np.array([run.measured.memory_kind is MemoryKind.DEVICE for run in batch.runs])
    others = costs.workspace_bytes - costs.late_bytes
    others += np.where(on_device[batch.run_of_column], costs.reserve_bytes, costs.library_bytes)
    layer_bytes = costs.layer_activation_bytes + (costs.doubtful_bytes if doubtful else 0.0)
    activations = layers * batch.of_position(layer_bytes)
    activations += held * batch.of_position(costs.end_activation_bytes)
    states = batch.of_position(costs.weight_bytes + costs.gradient_bytes + costs.optimizer_bytes)
    return states, batch.of_position(others) + activations


def largest_of_ranks(batch: RunBatch, of_position: FloatArray) -> FloatArray:
    """Returns the largest value among the ranks whose memory a run's row states."""
    first = batch.first_of_run
    in_front = batch.spread(_stages(batch)) - batch.depth
    of_first = np.maximum.reduceat(np.where(in_front == 0, of_position, -np.inf), first)
    of_last = np.maximum.reduceat(np.where(batch.depth == 1, of_position, -np.inf), first)
    ranks = [run.measured.memory_ranks for run in batch.runs]
    return np.select(
        [
            np.array([r is which for r in ranks])
            for which in (MemoryRanks.FIRST_STAGE, MemoryRanks.LAST_STAGE)
        ],
        [of_first, of_last],
        np.maximum.reduceat(of_position, first),
    )


def _components(batch: RunBatch, costs: BatchCosts, iter_s: FloatArray) -> dict[str, FloatArray]:
    pace = []
    for first, last in pairwise([*batch.first_of_run, len(batch.column)]):
        columns = batch.column[first:last]
        pace.append(int(columns[np.argmax(costs.time_s[columns])]))
    parts = {}
    for name, seconds in costs.components.items():
        times = 1.0 if name in STEP_COMPONENTS else batch.num_micro_batches
        parts[name] = seconds[pace] * times
    parts["fill"] = iter_s - sum(parts.values())
    return parts


def _transfer_s(batch: RunBatch, constants: Constants) -> tuple[FloatArray, FloatArray]:
    """Of one transfer behind every position, and of putting together what it brought."""
    cluster = constants.cluster
    nic = batch.of_position(_of_columns(batch, cluster.nic_efficiency))
    intra = batch.of_position(_of_columns(batch, cluster.nvlink_efficiency))
    seconds: FloatArray = batch.nic_s / nic + batch.intra_s / intra
    gather: FloatArray = batch.gather_s / intra
    return seconds, gather


def _stages(batch: RunBatch) -> FloatArray:
    """Stages of every run."""
    return np.array([float(run.degrees.pp) for run in batch.runs])


def _of_columns(batch: RunBatch, constant: Number) -> FloatArray:
    return np.broadcast_to(np.asarray(constant, dtype=np.float64), len(batch.stages))


class _Edge(NamedTuple):
    """Seconds at stated bandwidths behind a stage; see :class:`RunBatch`."""

    nic_s: float = 0.0
    intra_s: float = 0.0
    gather_s: float = 0.0


def _edge_s(run: Run, stage: int, nodes: Sequence[Host]) -> _Edge:
    """Seconds of one transfer behind a stage at stated bandwidths: over the NICs, or inside a node.

    Every rank of a tensor-parallel group sends its share of the residual stream (Megatron scatters and
    gathers it, DeepSpeed partitions it). All ranks of a node send at once.

    Args:
        run: The run.
        stage: The stage.
        nodes: Of each stage of the lane.
    """
    degrees = run.degrees
    if stage + 1 == degrees.pp:
        return _Edge()
    host, behind = nodes[stage], nodes[stage + 1]
    gpus = degrees.dp * degrees.cp * degrees.tp
    width = run.model.hidden_size * run.numbers.precision.element_bytes
    rank_bytes = run.micro_batch * run.seq_len / degrees.cp * width / degrees.tp
    link = min(host.link_bytes_per_s, behind.link_bytes_per_s)
    gather_s = (degrees.tp - 1) * rank_bytes / link
    same = gpus * (stage + 2) <= host.gpus_per_node * (gpus * stage // host.gpus_per_node + 1)
    if same and host == behind:
        return _Edge(0.0, rank_bytes / host.link_bytes_per_s, gather_s)
    on_node = min(gpus_on_node(run, stage), host.gpus_per_node)
    nic_s = on_node * rank_bytes / min(host.nic_bytes_per_s, behind.nic_bytes_per_s)
    return _Edge(nic_s, 0.0, gather_s)


def _last_chunk(run: Run, stage: int) -> float:
    """Share of a stage's layers in its last chunk, which holds those for multi-token prediction, too."""
    layers, chunks = run.layers_per_stage[stage], run.degrees.vpp
    extra = run.mtp_layers if stage == run.degrees.pp - 1 else 0
    short = max(0, layers - -(-layers // chunks) * (chunks - 1))
    return (short + extra) / max(1, layers + extra)


def _ints(values: Sequence[int]) -> IntArray:
    return np.array(values, dtype=np.int64)
