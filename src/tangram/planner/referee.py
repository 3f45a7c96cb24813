"""Executes plans: chains of pieces become placed pipelines, and the simulators say how long they take."""

from __future__ import annotations

from dataclasses import dataclass, field

from tangram.cluster.spec import Portion
from tangram.parallelizers.protocols import StageChoice
from tangram.planner.candidates import Candidate
from tangram.planner.edges import Boundaries
from tangram.planner.placement import Placement, place
from tangram.planner.problem import Chain, Problem, StageTimes
from tangram.planner.reference import Reference
from tangram.planner.tables import TableSet
from tangram.planner.traffic import EdgeBook, Traffic
from tangram.simulate.engine import executed_ns
from tangram.simulate.fast import iteration_ns
from tangram.simulate.pipeline import SimPipeline, SimStage
from tangram.units import NS_PER_S

_BUSY_NIC = 16  # transfers of more than 1/16 of the pace are simulated with shared NICs while searching


@dataclass(frozen=True, slots=True, eq=False)
class MicroBatch:
    """Everything about one micro-batch size.

    Attributes:
        size: Samples that enter the pipeline together.
        num_micro_batches: Per step.
        reference: One GPU alone.
        cuts: Bytes at every cut.
    """

    size: int
    num_micro_batches: int
    reference: Reference
    cuts: Boundaries

    @property
    def bound_ns(self) -> int:
        """What no pipeline of this micro-batch size can beat, before any table is made."""
        return int(self.reference.least_iteration_s(self.num_micro_batches) * NS_PER_S)


@dataclass(frozen=True, slots=True)
class Found:
    """A plan that the search found, placed and simulated.

    Attributes:
        micro_batch: Its size.
        stages: First to last, as chosen by their parallelizers.
        placements: GPUs of each stage.
        pipeline: What the simulator executed.
        iteration_ns: Simulated, with shared NICs.
    """

    micro_batch: MicroBatch
    stages: tuple[StageChoice, ...]
    placements: tuple[Placement, ...]
    pipeline: SimPipeline
    iteration_ns: int


@dataclass(slots=True)
class Referee:
    """Executes the chains of one search.

    Attributes:
        book: Edges between placed stages.
        tied_bytes: Of an embedding at both ends of the model; 0 without one.
        overlap_p2p: Whether transfers overlap with compute.
    """

    book: EdgeBook
    tied_bytes: int
    overlap_p2p: bool
    _contexts: dict[int, tuple[Problem, MicroBatch, TableSet]] = field(default_factory=dict)
    _executed: dict[int, Found] = field(default_factory=dict)

    def add(self, problem: Problem, size: MicroBatch, tables: TableSet) -> None:
        """Takes on a problem: its micro-batch size, and where its pieces came from."""
        self._contexts[id(problem)] = (problem, size, tables)

    def tables_of(self, problem: Problem) -> TableSet:
        """Returns where the pieces of a problem came from."""
        return self._contexts[id(problem)][2]

    def quick_ns(self, problem: Problem, chain: Chain) -> int:
        """Simulates a chain; with shared NICs where transfers are long enough to meet there. Else it may take
        a little longer than this says, and never less.
        """
        pipeline = self.pipeline(problem, chain)[0]
        longest = max((e.forward_occupancy_ns for e in pipeline.edges if e.forward_resources), default=0)
        pace = max(s.forward_ns + s.backward_ns for s in pipeline.stages)
        if longest * _BUSY_NIC > pace:
            return executed_ns(pipeline)
        return iteration_ns(pipeline)

    def exact_ns(self, problem: Problem, chain: Chain) -> int:
        """Simulates a chain with shared NICs."""
        return executed_ns(self.pipeline(problem, chain)[0])

    def pipeline(self, problem: Problem, chain: Chain) -> tuple[SimPipeline, tuple[Placement, ...]]:
        """Returns a chain as the simulators execute it, and where its stages are."""
        _, size, tables = self._contexts[id(problem)]
        times: list[StageTimes] = []
        windows: list[int] = []
        spans: list[tuple[int, Portion]] = []
        for piece, window in zip(chain.pieces, chain.windows, strict=True):
            stages = tables.stages_of(piece)
            own = [window]
            for stage in reversed(stages[:-1]):
                own.append(own[-1] + 1 + stage.extra_in_flight)
            windows += reversed(own)
            times += stages
            spans += tables.spans(piece)
        traffic = Traffic(
            self.book,
            tuple(portion for _, portion in spans),
            tuple(size.cuts.bytes_at[stop] for stop, _ in spans[:-1]),
            self.tied_bytes,
            problem.num_micro_batches,
            max(stage.time_ns for stage in times),
        )
        placements = place(traffic.portions, traffic.best_homes())
        pipeline = self.book.pipeline(
            placements,
            traffic.bytes_behind,
            traffic.tied_bytes,
            [
                SimStage(t.forward_ns, t.backward_ns, t.step_ns, w)
                for t, w in zip(times, windows, strict=True)
            ],
            problem.num_micro_batches,
            blocking_p2p=not self.overlap_p2p,
        )
        return pipeline, placements

    def found(self, candidate: Candidate) -> Found:
        """Executes a candidate with shared NICs, once."""
        if id(candidate) in self._executed:
            return self._executed[id(candidate)]
        problem, size, tables = self._contexts[id(candidate.problem)]
        pipeline, placements = self.pipeline(problem, candidate.chain)
        stages = tuple(choice for piece in candidate.chain.pieces for choice in tables.choices(piece))
        contended = executed_ns(pipeline)
        self._executed[id(candidate)] = Found(size, stages, placements, pipeline, contended)
        return self._executed[id(candidate)]
