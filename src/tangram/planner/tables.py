"""From parallelizers' answers to pieces: asks each of them about each portion and keeps what every piece
came from.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tangram.cluster.spec import Cluster, Portion
from tangram.cost.types import IntArray
from tangram.errors import InputError
from tangram.job import Job
from tangram.model.atoms import Atom, has_experts
from tangram.model.spec import ModelSpec
from tangram.parallelizers.guard import guarded_options
from tangram.parallelizers.protocols import (
    ClusterPlanner,
    OptionTable,
    SlicePlan,
    SlicePlanner,
    StageChoice,
    StageTable,
    TableRequest,
)
from tangram.parallelizers.registry import Parallelizer, get_parallelizer
from tangram.parallelizers.relaxed import RelaxedTable
from tangram.planner.pairs import PairRules
from tangram.planner.problem import Pieces, StageTimes, piece_stages, run_piece, single_stage_pieces
from tangram.planner.queries import SliceAnswer, SliceQueries
from tangram.planner.space import SearchSpace
from tangram.simulate.pipeline import SimEdge
from tangram.units import NS_PER_S

NATIVE_TABLES = frozenset({"exact", "layerwise", RelaxedTable.name})
"""Stage tables whose options are costed by ``tangram.cost`` already and need no second look."""


@dataclass(frozen=True, slots=True, eq=False)
class PieceSource:
    """Where a run of consecutive pieces came from: a table, or slice plans."""

    first_piece: int
    parallelizer: str
    request: TableRequest | None
    table: OptionTable | None
    plans: tuple[tuple[int, SlicePlan], ...] = ()


@dataclass(slots=True, eq=False)
class TableSet:
    """All pieces of one micro-batch size.

    Attributes:
        atoms: Of the model.
        pieces: For the composition.
        runs: Stages of the pieces that have several.
        sources: In the order of ``first_piece``.
        counts: Pairs, what each rule removed, queries, options.
        rejections: Parallelizers that misbehaved, in words.
        origin: Of which piece of ``sources`` each piece is; None where they are the same.
    """

    atoms: tuple[Atom, ...]
    pieces: Pieces
    runs: tuple[tuple[StageTimes, ...], ...]
    sources: list[PieceSource]
    counts: Counter[str]
    rejections: list[str]
    origin: IntArray | None = None

    def only(self, idx: IntArray) -> TableSet:
        """Returns the table with some of its pieces."""
        return replace(self, pieces=self.pieces.take(idx), origin=self._origin()[idx])

    def more(self, parallelizer: str, pieces: Pieces, plans: Sequence[tuple[int, SlicePlan]]) -> TableSet:
        """Returns the table with further pieces.

        Args:
            parallelizer: Whose they are.
            pieces: Of one stage each.
            plans: Where each starts, and its stage.
        """
        origin = self._origin()
        first = max([int(origin.max(initial=-1)), *(source.first_piece for source in self.sources)]) + 1
        return replace(
            self,
            pieces=Pieces.concatenate([self.pieces, pieces]),
            sources=[*self.sources, PieceSource(first, parallelizer, None, None, tuple(plans))],
            origin=np.concatenate([origin, first + np.arange(len(pieces))]),
        )

    def _origin(self) -> IntArray:
        return np.arange(len(self.pieces)) if self.origin is None else self.origin

    def stages_of(self, piece: int) -> tuple[StageTimes, ...]:
        """Returns the times of the stages of a piece, first to last."""
        return piece_stages(self.pieces, self.runs, piece)

    def spans(self, piece: int) -> list[tuple[int, Portion]]:
        """Returns where each stage of a piece ends, and its portion, without asking the parallelizer
        again.
        """
        source, row = self._source(piece)
        if source.table is not None and source.request is not None:
            return [(int(source.table.stop[row]), source.request.portion)]
        start, plan = source.plans[row]
        shift = start - plan.stages[0].start
        return [(s.stop + shift, s.portion) for s in plan.stages]

    def _source(self, piece: int) -> tuple[PieceSource, int]:
        piece = piece if self.origin is None else int(self.origin[piece])
        at = bisect_right([s.first_piece for s in self.sources], piece) - 1
        return self.sources[at], piece - self.sources[at].first_piece

    def choices(self, piece: int) -> tuple[StageChoice, ...]:
        """Returns the stages of a piece, as their parallelizer chose them."""
        source, row = self._source(piece)
        if source.table is not None and source.request is not None:
            planner = get_parallelizer(source.parallelizer)
            assert isinstance(planner, StageTable)
            chosen = [planner.choice(source.request, source.table, row)]
        else:
            start, plan = source.plans[row]
            shift = start - plan.stages[0].start
            chosen = [replace(s, start=s.start + shift, stop=s.stop + shift) for s in plan.stages]
        return tuple(self._plain(choice) for choice in chosen)

    def _plain(self, choice: StageChoice) -> StageChoice:
        """Expert degrees mean nothing on a stage without experts; 1 needs the fewest communicators."""
        if has_experts(self.atoms[choice.start : choice.stop]):
            return choice
        configs = [replace(config, ep=1, expert_tp=1) for config in choice.configs]
        own = tuple(configs) if len(set(configs)) > 1 else ()
        return replace(choice, config=configs[0], atom_configs=own)


@dataclass(slots=True)
class TableBuilder:
    """Builds the pieces of one micro-batch size after the other.

    Attributes:
        model, atoms, cluster, job, space: What is planned.
        parallelizers: Names.
        queries: Executes slice queries, in this process or in others.
        inner_edge: Edge between two stages of one slice plan: ``(stage in front, stage behind, micro-batch)
            -> edge``.
    """

    model: ModelSpec
    atoms: tuple[Atom, ...]
    cluster: Cluster
    job: Job
    space: SearchSpace
    parallelizers: tuple[str, ...]
    queries: SliceQueries
    inner_edge: Callable[[StageChoice, StageChoice, int], SimEdge]
    _runs: list[tuple[StageTimes, ...]] = field(default_factory=list)

    def build(
        self,
        micro_batch: int,
        rules: PairRules,
        max_in_flight: int,
        max_time_s: float,
        asked: Sequence[Parallelizer] = (),
    ) -> TableSet:
        """Asks every parallelizer about every portion; by default those of ``parallelizers``.

        Raises:
            InputError: One of them plans whole clusters only.
        """
        counts: Counter[str] = Counter()
        rejections: list[str] = []
        parts: list[Pieces] = []
        sources: list[PieceSource] = []
        self._runs = []
        first = 0
        for planner in asked or [get_parallelizer(name) for name in self.parallelizers]:
            name = planner.name
            if isinstance(planner, ClusterPlanner):
                raise InputError(
                    f"{name!r} plans whole clusters by itself, not parts of them",
                    where="--parallelizer",
                    hint=f"tangram compare MODEL CLUSTER --planners {name}",
                )
            for idx, portion in enumerate(self.space.portions):
                slices = rules.slices(portion, self.space.portion_islands[idx], planner.capabilities, counts)
                if not slices:
                    continue
                request = TableRequest(
                    model=self.model,
                    atoms=self.atoms,
                    portion=portion,
                    micro_batch=micro_batch,
                    num_micro_batches=self.job.global_batch // micro_batch,
                    max_in_flight=max_in_flight,
                    max_time_s=max_time_s,
                    job=self.job,
                    slices=slices,
                )
                if isinstance(planner, StageTable):
                    made, source = self._from_table(planner, request, idx, first, counts, rejections)
                else:
                    assert isinstance(planner, SlicePlanner)
                    made, source = self._from_plans(planner, request, idx, first, counts, rejections)
                if made is not None and source is not None:
                    parts.append(made)
                    sources.append(source)
                    first += len(made)
        pieces = Pieces.concatenate(parts) if parts else _no_pieces()
        counts["options"] += len(pieces)
        return TableSet(self.atoms, pieces, tuple(self._runs), sources, counts, rejections)

    def _from_table(
        self,
        planner: StageTable,
        request: TableRequest,
        portion_idx: int,
        first: int,
        counts: Counter[str],
        rejections: list[str],
    ) -> tuple[Pieces | None, PieceSource | None]:
        counts["queries"] += 1
        if planner.name in NATIVE_TABLES:
            table: OptionTable | None = planner.options(request)
        else:
            answer = guarded_options(planner, request)
            rejections += [str(r) for r in answer.rejections]
            table = answer.table
        if table is None or not len(table.start):
            return None, None
        pieces = single_stage_pieces(
            start=table.start,
            stop=table.stop,
            island=self.space.portion_islands[portion_idx],
            gpus=self.space.portion_units(portion_idx),
            link_class=self.space.portion_classes[portion_idx],
            on_node=self.space.on_node(self.space.portion_islands[portion_idx], request.portion),
            min_in_flight=_useful_from(table),
            max_in_flight=table.max_in_flight,
            forward_ns=table.forward_ns,
            backward_ns=table.backward_ns,
            step_ns=table.step_ns,
            num_micro_batches=request.num_micro_batches,
            payload=np.arange(len(table.start)),
        )
        return pieces, PieceSource(first, planner.name, request, table)

    def _from_plans(
        self,
        planner: SlicePlanner,
        request: TableRequest,
        portion_idx: int,
        first: int,
        counts: Counter[str],
        rejections: list[str],
    ) -> tuple[Pieces | None, PieceSource | None]:
        answers = self.queries.ask(planner, request, counts, rejections)
        if not answers:
            return None, None
        pieces = Pieces.concatenate([self._run_piece(answer, portion_idx, request) for answer in answers])
        slices = [(start, stop) for answer in answers for start, stop in answer.slices]
        plans = [(start, answer.plan) for answer in answers for start, _ in answer.slices]
        number = [len(answer.slices) for answer in answers]
        pieces = replace(
            pieces.take(np.repeat(np.arange(len(answers)), number)),
            start=np.array([start for start, _ in slices]),
            stop=np.array([stop for _, stop in slices]),
            payload=np.arange(len(slices)),
        )
        return pieces, PieceSource(first, planner.name, None, None, tuple(plans))

    def _run_piece(self, answer: SliceAnswer, portion_idx: int, request: TableRequest) -> Pieces:
        """Returns the piece that an answer is on the first of its slices, and keeps its stages."""
        stages = self._stage_times(answer, request)
        self._runs.append(stages)
        island = self.space.portion_islands[portion_idx]
        ends = answer.plan.stages[0].portion, answer.plan.stages[-1].portion
        head, tail = (self.space.class_index(island, portion) for portion in ends)
        start, stop = answer.slices[0]
        return run_piece(
            start=start,
            stop=stop,
            island=island,
            gpus=self.space.portion_units(portion_idx),
            head_class=head,
            tail_class=tail,
            head_on_node=self.space.on_node(island, ends[0]),
            tail_on_node=self.space.on_node(island, ends[1]),
            max_in_flight=answer.max_in_flight,
            stages=stages,
            num_micro_batches=request.num_micro_batches,
            run=len(self._runs) - 1,
            payload=0,
        )

    def _stage_times(self, answer: SliceAnswer, request: TableRequest) -> tuple[StageTimes, ...]:
        times, plan = [], answer.plan
        for place, (stage, cost) in enumerate(zip(plan.stages, answer.costs, strict=True)):
            edge = SimEdge()
            if place + 1 < len(plan.stages):
                edge = self.inner_edge(stage, plan.stages[place + 1], request.micro_batch)
            forward, backward, step = (
                round(t * NS_PER_S) for t in (cost.forward_s, cost.backward_s, cost.step_s)
            )
            occupancy = edge.forward_occupancy_ns
            times.append(
                StageTimes(
                    forward,
                    backward,
                    step,
                    edge.forward_ns,
                    edge.round_trip_ns,
                    occupancy,
                    nic_ns=occupancy if edge.forward_resources else 0,
                )
            )
        return tuple(times)


def _no_pieces() -> Pieces:
    empty: IntArray = np.zeros(0, dtype=np.int64)
    return single_stage_pieces(
        start=empty,
        stop=empty,
        island=0,
        gpus=0,
        link_class=0,
        max_in_flight=empty,
        forward_ns=empty,
        backward_ns=empty,
        step_ns=empty,
        num_micro_batches=1,
        payload=empty,
    )


def _useful_from(table: OptionTable) -> IntArray:
    """Returns the smallest window at which each option is worth a look.

    More recomputation makes room for more micro-batches in flight, at the price of time. So an option is
    redundant at windows that an option of the same slice and configuration with fewer micro-batches in
    flight can hold too, unless it is better in something.
    """
    columns = (table.max_in_flight, table.config, table.stop, table.start)
    order = np.lexsort(columns)
    longest, config, stop, start = (c[order] for c in columns)
    same = (np.diff(config) == 0) & (np.diff(stop) == 0) & (np.diff(start) == 0)
    for times in (table.forward_ns, table.backward_ns, table.step_ns):
        same &= np.diff(times[order]) >= 0
    useful = np.ones(len(order), dtype=np.int64)
    useful[1:][same] = longest[:-1][same] + 1
    found = np.empty_like(useful)
    found[order] = useful
    return found
