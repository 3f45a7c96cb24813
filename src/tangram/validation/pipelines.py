"""Runs side by side: from the costs of their stages to the times of their steps and the peaks of their
memory.

The time of a pipeline is a closed form, which costs microseconds and knows interleaving; the planner's
simulator is for plans that are placed on a cluster. With stage times t (forward and backward of one
micro-batch), m micro-batches, v chunks of the model per stage and step ends u:

    T = m max(t, link) + (sum t - max t) / v + max u

the first two terms are Megatron's (Narayanan et al. 2021, section 2.2) for unequal stages. Transfers between
stages add to the time of the stage that waits for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from tangram.cluster.spec import GpuSpec
from tangram.cost import memory
from tangram.cost.atoms import STEP_COMPONENTS
from tangram.cost.batch import BatchCosts, BatchStage, StageBatch
from tangram.cost.constants import Constants, family_shelf
from tangram.cost.types import FloatArray, IntArray, Number
from tangram.validation.run import MemoryKind, MemoryRanks, Run
from tangram.validation.stages import stages_of


@dataclass(frozen=True, slots=True, eq=False)
class RunBatch:
    """Runs, and their stages as one batch.

    Arrays are of columns (the different stages, see :class:`tangram.cost.batch.StageBatch`), of places (stage
    after stage of run after run, once per kind of host that replicas of it run on), of positions (stage after
    stage), or of runs.

    Attributes:
        runs: As given.
        stages: Columns.
        run_of_column: Per column, its run.
        gpus: Per column, its GPU.
        column: Per place, its column.
        first_place: Per position, its first place.
        first_position: Per run, its first position.
        depth: Per position, how many stages are behind it, itself included.
        last_chunk: Per position, the share of its layers that is in its last chunk.
        nic_s, intra_s: Per position, how long one transfer to the next stage takes at the stated bandwidth of
            the NICs, or of the node; 0 where it does not cross them, and behind the last stage.
        num_micro_batches, chunks: Per run.
    """

    runs: tuple[Run, ...]
    stages: StageBatch
    run_of_column: IntArray
    gpus: tuple[GpuSpec, ...]
    column: IntArray
    first_place: IntArray
    first_position: IntArray
    depth: FloatArray
    last_chunk: FloatArray
    nic_s: FloatArray
    intra_s: FloatArray
    num_micro_batches: FloatArray
    chunks: FloatArray

    @staticmethod
    def of(runs: Sequence[Run]) -> RunBatch:
        """Fills the tables of all runs; at least one."""
        stages: list[BatchStage] = []
        run_of_column: list[int] = []
        column: list[int] = []
        first_place: list[int] = []
        first_position: list[int] = []
        gpus: list[GpuSpec] = []
        edges, depth, last_chunk = [], [], []
        for number, run in enumerate(runs):
            own = stages_of(run)
            first_position.append(len(first_place))
            for idx, positions in enumerate(own.of_stage):
                first_place.append(len(column))
                column += [len(stages) + position for position in positions]
                depth.append(run.degrees.pp - idx)
                last_chunk.append(_last_chunk(run, idx))
                edges.append(_edge_s(run, idx))
            stages += own.stages
            gpus += own.gpus
            run_of_column += [number] * len(own.stages)
        return RunBatch(
            runs=tuple(runs),
            stages=StageBatch.of(stages),
            run_of_column=_ints(run_of_column),
            gpus=tuple(gpus),
            column=_ints(column),
            first_place=_ints(first_place),
            first_position=_ints(first_position),
            depth=np.array(depth, dtype=np.float64),
            last_chunk=np.array(last_chunk),
            nic_s=np.array([nic for nic, _ in edges]),
            intra_s=np.array([intra for _, intra in edges]),
            num_micro_batches=np.array([run.num_micro_batches for run in runs], dtype=np.float64),
            chunks=np.array([run.degrees.vpp for run in runs], dtype=np.float64),
        )

    @property
    def families(self) -> list[str]:
        """Per column, the shelf of its GPU."""
        return [family_shelf(gpu) for gpu in self.gpus]

    def slowest(self, of_column: FloatArray) -> FloatArray:
        """Returns the largest value among the hosts of each position."""
        found: FloatArray = np.maximum.reduceat(of_column[self.column], self.first_place)
        return found

    def spread(self, of_run: FloatArray) -> FloatArray:
        """Returns one value per position for one per run."""
        lengths = np.diff(np.append(self.first_position, len(self.first_place)))
        values: FloatArray = np.repeat(of_run, lengths)
        return values


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
    ratio = np.maximum.reduceat(batch.slowest(costs.upper_ratio), batch.first_position)
    upper = memory.upper_bytes(peak_bytes(batch, costs, doubtful=True), ratio)
    peaks = peak_bytes(batch, costs)
    return Predictions(seconds, peaks, upper, _components(batch, costs, seconds))


def iteration_s(batch: RunBatch, costs: BatchCosts, constants: Constants) -> FloatArray:
    """Returns the time of a step of every run."""
    transfer_s = _transfer_s(batch, constants)
    exposed = batch.slowest(_of_columns(batch, constants.stack.p2p_exposed_frac))
    chunks = batch.spread(batch.chunks)
    own_s = batch.slowest(costs.time_s)
    stage_s = own_s + 2 * exposed * chunks * transfer_s
    first = batch.first_position
    # A link carries one transfer per micro-batch in either direction, so it may set the pace as well.
    slowest = np.maximum.reduceat(np.maximum(stage_s, chunks * transfer_s), first)
    fill = (np.add.reduceat(stage_s, first) - np.maximum.reduceat(stage_s, first)) / batch.chunks
    sent = np.add.reduceat(2 * (1 - exposed) * transfer_s, first)
    step = np.maximum.reduceat(batch.slowest(costs.step_s), first)
    seconds: FloatArray = batch.num_micro_batches * slowest + fill + sent + step
    return seconds


def peak_bytes(batch: RunBatch, costs: BatchCosts, *, doubtful: bool = False) -> FloatArray:
    """Returns the peak memory of every run, as its row counts it.

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
    states = costs.weight_bytes + costs.gradient_bytes + costs.optimizer_bytes + costs.workspace_bytes
    states -= costs.late_bytes
    layer_bytes = costs.layer_activation_bytes + (costs.doubtful_bytes if doubtful else 0.0)
    states += np.where(on_device[batch.run_of_column], costs.reserve_bytes, costs.library_bytes)
    peaks = batch.slowest(states) + layers * batch.slowest(layer_bytes)
    peaks = peaks + held * batch.slowest(costs.end_activation_bytes)
    first = batch.first_position
    last = np.append(first[1:], len(peaks)) - 1
    ranks = [run.measured.memory_ranks for run in batch.runs]
    return np.select(
        [
            np.array([r is which for r in ranks])
            for which in (MemoryRanks.FIRST_STAGE, MemoryRanks.LAST_STAGE)
        ],
        [peaks[first], peaks[last]],
        np.maximum.reduceat(peaks, first),
    )


def _components(batch: RunBatch, costs: BatchCosts, iter_s: FloatArray) -> dict[str, FloatArray]:
    time_s, bounds = costs.time_s, [*batch.first_position, len(batch.first_place)]
    places = [*batch.first_place, len(batch.column)]
    pace = []
    for first, last in pairwise(bounds):
        columns = batch.column[places[first] : places[last]]
        pace.append(int(columns[np.argmax(time_s[columns])]))
    parts = {}
    for name, seconds in costs.components.items():
        times = 1.0 if name in STEP_COMPONENTS else batch.num_micro_batches
        parts[name] = seconds[pace] * times
    parts["fill"] = iter_s - sum(parts.values())
    return parts


def _transfer_s(batch: RunBatch, constants: Constants) -> FloatArray:
    cluster = constants.cluster
    nic = batch.slowest(_of_columns(batch, cluster.nic_efficiency))
    intra = batch.slowest(_of_columns(batch, cluster.nvlink_efficiency))
    seconds: FloatArray = batch.nic_s / nic + batch.intra_s / intra
    return seconds


def _of_columns(batch: RunBatch, constant: Number) -> FloatArray:
    return np.broadcast_to(np.asarray(constant, dtype=np.float64), len(batch.stages))


def _edge_s(run: Run, stage: int) -> tuple[float, float]:
    """Seconds of one transfer behind a stage at stated bandwidths: over the NICs, or inside a node.

    Every rank of a tensor-parallel group sends its share of the residual stream (Megatron scatters and
    gathers it, DeepSpeed partitions it). All ranks of a node send at once.
    """
    degrees = run.degrees
    if stage + 1 == degrees.pp:
        return 0.0, 0.0
    host, behind = run.hardware.host(stage), run.hardware.host(stage + 1)
    gpus = degrees.dp * degrees.cp * degrees.tp
    width = run.model.hidden_size * run.numbers.precision.element_bytes
    rank_bytes = run.micro_batch * run.seq_len / degrees.cp * width / degrees.tp
    if gpus * (stage + 2) <= host.gpus_per_node * (gpus * stage // host.gpus_per_node + 1):
        return 0.0, rank_bytes / host.link_bytes_per_s
    on_node = min(gpus, host.gpus_per_node)
    return on_node * rank_bytes / min(host.nic_bytes_per_s, behind.nic_bytes_per_s), 0.0


def _last_chunk(run: Run, stage: int) -> float:
    """Share of a stage's layers in its last chunk, which holds those for multi-token prediction, too."""
    layers, chunks = run.layers_per_stage[stage], run.degrees.vpp
    extra = run.mtp_layers if stage == run.degrees.pp - 1 else 0
    short = max(0, layers - -(-layers // chunks) * (chunks - 1))
    return (short + extra) / max(1, layers + extra)


def _ints(values: Sequence[int]) -> IntArray:
    return np.array(values, dtype=np.int64)
