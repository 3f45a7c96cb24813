"""The search over micro-batch sizes: tables, composition, and the referee that simulates placed plans."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from tangram.cluster.spec import Cluster
from tangram.job import Job
from tangram.model.atoms import Atom, atom_kinds
from tangram.model.spec import ModelSpec
from tangram.parallelizers.protocols import StageChoice, StageTable, TableRequest
from tangram.planner.candidates import Candidate
from tangram.planner.compose import Composer
from tangram.planner.corridor import pairs_within
from tangram.planner.edges import boundaries, placed_edge, tied_bytes
from tangram.planner.frontier import chain_of
from tangram.planner.lattice import prefix_bound
from tangram.planner.links import ClassLinks
from tangram.planner.options import PlanOptions, Pruning
from tangram.planner.pairs import Pair, PairRules, equal_runs
from tangram.planner.pinned import pinned_slices
from tangram.planner.placement import place
from tangram.planner.problem import FAR_NS, Chain, Problem, with_tail_step
from tangram.planner.queries import SliceQueries, collapsed
from tangram.planner.referee import Found, MicroBatch, Referee
from tangram.planner.reference import reference
from tangram.planner.space import SearchSpace
from tangram.planner.tables import TableBuilder, TableSet
from tangram.planner.traffic import EdgeBook
from tangram.simulate.pipeline import SimEdge
from tangram.units import NS_PER_S

if TYPE_CHECKING:
    from tangram.parallelizers.layerwise.finest import Asked

_EXTRA_IN_FLIGHT = 2
_CONTENDED_FINALISTS = 6
_SCOUT_PACE = 1.3
_SLOWER_PACE = 1.8  # of large clusters, for which all slices are many
_SCOUTED_SIZES = 3  # micro-batch sizes whose relaxed programme says which one to begin with
_LIKELY_TP = 2


@dataclass(slots=True)
class Search:
    """One search over one space.

    Attributes:
        model, atoms, cluster, job, space, options: What to plan, and how.
        progress: Called with one line at a time; None is silent.
        incumbent_ns: A time that a plan has to beat to be of interest; None takes any plan.
        only_sizes: Micro-batch sizes to look at; None for all of the job's.
        only_pairs: Per micro-batch size, the pairs to ask about; of others all that the rules leave.
        queries: Executes slice queries; whoever made its executor closes it.
        counts: Pairs, what each rule removed, queries, options, labels, finalists.
        rejections: Parallelizers that misbehaved, in words.
        considered: Micro-batch sizes whose tables were made.
        forced: Per island left out, the best plan found that uses it; None when there is none.
        is_stopped: Whether it ended early: what was found counts, and nothing more is looked for.
        referee: Executes plans.
        composer: Finds them.
    """

    model: ModelSpec
    atoms: tuple[Atom, ...]
    cluster: Cluster
    job: Job
    space: SearchSpace
    options: PlanOptions
    progress: Callable[[str], None] | None = None
    incumbent_ns: int | None = None
    only_sizes: frozenset[int] | None = None
    only_pairs: Mapping[int, frozenset[Pair]] = field(default_factory=dict)
    queries: SliceQueries = field(default_factory=SliceQueries)
    counts: Counter[str] = field(default_factory=Counter)
    rejections: list[str] = field(default_factory=list)
    considered: list[int] = field(default_factory=list)
    forced: dict[int, Candidate | None] = field(default_factory=dict)
    is_stopped: bool = False
    referee: Referee = field(init=False)
    composer: Composer = field(init=False)
    _said: str = ""
    _ideal_ns: dict[int, int] = field(default_factory=dict)
    _sizes: list[MicroBatch] = field(default_factory=list)
    _problems: dict[int, Problem] = field(default_factory=dict)
    _known: Found | None = None
    _scouts: dict[int, tuple[float, TableSet]] = field(default_factory=dict)
    _answered: dict[int, set[tuple[int, Asked]]] = field(default_factory=dict)
    _links: ClassLinks = field(init=False)

    def __post_init__(self) -> None:
        tied = tied_bytes(self.model, self.job)
        self.referee = Referee(EdgeBook(self.cluster, self.job.basis), tied, self.job.overlap_p2p)
        self._links = ClassLinks.of(self.cluster, self.space, tied, self.job.basis)
        self.composer = self._kind_of_composer()(
            self.referee.quick_ns,
            self.options.effort,
            incumbent_ns=self.incumbent_ns,
            exactly=self.referee.exact_ns,
        )
        if self.progress is not None:
            self.composer.report = self._report

    def _kind_of_composer(self) -> type[Composer]:
        if not self.space.is_large:
            return Composer
        # Imported where it is needed, with all that only large clusters need.
        from tangram.planner.large import LargeComposer

        return LargeComposer

    @property
    def sizes(self) -> list[MicroBatch]:
        """Micro-batch sizes in the order in which they are searched."""
        return self._sizes

    def run(self) -> Found | None:
        """Searches all micro-batch sizes; None when no plan fits."""
        return self._run(listing=False)

    def run_listing(self) -> Found | None:
        """Looks for plans that beat ``incumbent_ns``, and for nothing else: lists all that might.

        :meth:`is_settled` then says whether the list was complete.
        """
        return self._run(listing=True)

    def go_on(self) -> Found | None:
        """Looks on where the list was not complete, as :meth:`run` does; returns the best plan then known."""
        builder = self._builder()
        for idx in self.composer.open_problems():
            self.composer.scout(idx, self._scouted(self._sizes[idx], builder, Pruning.SAFE))
        self.composer.settle()
        return self._end()

    def _scouted(
        self, size: MicroBatch, builder: TableBuilder, pruning: Pruning, factor: float = _SCOUT_PACE
    ) -> Problem:
        """The problem of slices that suit a pace not far above the ideal one."""
        pace_s = size.reference.least_period_s() * factor
        tables = self._tables(size, builder, pace_s, pruning)
        self._scouts[size.size] = pace_s, tables
        return self._stated(size, tables)

    def open_sizes(self, found: Found) -> frozenset[int]:
        """Returns the micro-batch sizes that may hold something faster than a plan of this search."""
        composer = self.composer
        everything = self.options.pruning is Pruning.PAPER or found.iteration_ns > composer.cutoff_ns
        return frozenset(
            size.size
            for idx, size in enumerate(self._sizes)
            if everything or (not composer.proven[idx] and composer.lower_bounds_ns[idx] < found.iteration_ns)
        )

    def pairs_below(self, time_ns: int) -> dict[int, frozenset[Pair]]:
        """Returns, of micro-batch sizes of which it is known, on which pairs the stages of a plan that takes
        less than that may be: single ones, and runs of stages on equal numbers of GPUs.
        """
        found = {}
        for idx, (below_ns, pieces) in self.composer.listed.items():
            problem = self.problem_of(self._sizes[idx])
            if problem is not None and time_ns <= below_ns:
                found[self._sizes[idx].size] = equal_runs(problem, pieces, self.space.units)
        return found

    def relaxed(self, table: StageTable, worth_ns: int) -> tuple[dict[int, int], dict[int, frozenset[Pair]]]:
        """Returns what no plan of a micro-batch size can beat, at most the time to beat; nothing is searched.

        Of a size that may have plans below a time it may be the bound of another one, where that is lower;
        of those also the pairs that plans which are no slower than the time to beat can have.

        Args:
            table: Whose options are no slower than any stage that is of interest.
            worth_ns: That time.
        """
        self._sizes = self._ordered_sizes()
        builder = self._builder()
        found: dict[int, int] = {}
        pairs: dict[int, frozenset[Pair]] = {}
        cutoff_ns, units = self.composer.cutoff_ns, self.space.units
        for size in self._sizes:
            if size.bound_ns >= cutoff_ns:
                continue
            max_time_s = self._max_time_s(size)
            rules = self._rules(size, Pruning.SAFE, max_time_s)
            tables = builder.build(size.size, rules, self._max_in_flight(size), max_time_s, [table])
            problem, known_ns = self._stated(size, tables), min([cutoff_ns, *found.values()])
            found[size.size], guide = self.composer.least_ns(problem, worth_ns, known_ns)
            if guide is not None and found[size.size] < worth_ns:
                pairs[size.size] = pairs_within(problem, guide, cutoff_ns, units)
        return found, pairs

    def _builder(self) -> TableBuilder:
        return TableBuilder(
            self.model,
            self.atoms,
            self.cluster,
            self.job,
            self.space,
            self.options.parallelizers,
            self.queries,
            self._inner_edge,
        )

    def _max_time_s(self, size: MicroBatch) -> float:
        """How long a stage may take at most for a plan to be of interest."""
        if self.composer.cutoff_ns >= FAR_NS:
            return float("inf")
        return self.composer.reach_ns / max(size.num_micro_batches - 1, 1) / NS_PER_S

    def _run(self, *, listing: bool) -> Found | None:
        self._sizes = self._ordered_sizes()
        if self.options.pruning is not Pruning.NONE and not self._sizes[0].reference.holds_states():
            return None
        builder = self._builder()
        if not listing and self.incumbent_ns is None:
            self._scout(builder)
        for idx, size in enumerate(self._sizes):
            if self._is_enough(idx):
                break
            self._consider(idx, size, builder)
        self._scouts.clear()
        if listing:
            self.composer.list_rest()
        else:
            self.composer.settle()
        return self._end()

    def _end(self) -> Found | None:
        self.counts["labels"] = self.composer.num_labels
        self.counts["finalists_simulated"] = len(self.composer.candidates)
        self.rejections = collapsed(self.rejections)
        return self._best()

    def stop(self) -> Found | None:
        """Ends a search that was interrupted anywhere; returns the best plan so far, None without any."""
        self.is_stopped = True
        self._sizes = self._sizes or self._ordered_sizes()
        self.rejections = collapsed(self.rejections)
        return self._best()

    def incumbent(self, found: Found) -> None:
        """Starts from a plan that is known already, of part of this space: the answer will be no worse."""
        self._known = found
        # One more, so that a plan as fast as the known one is found again and the known one need not serve.
        self.composer.incumbent_ns = found.iteration_ns + 1

    def adopt(self, found: Found) -> Found:
        """Returns a plan of a part of this space as one of this search."""
        size = next(s for s in self._sizes if s.size == found.micro_batch.size)
        return replace(found, micro_batch=size)

    def improved(self, found: Found) -> Found:
        """Takes a plan from elsewhere as one more start of this search and returns the best then known: that
        plan, or one to which steps lead from its like among this search's pieces.
        """
        found = self.adopt(found)
        return self._improved(self.problem_of(found.micro_batch), found)

    def _improved(self, problem: Problem | None, found: Found) -> Found:
        chain = None if problem is None else self._like(problem, found)
        if problem is not None and chain is not None:
            self.composer.improve(self._sizes.index(found.micro_batch), problem, chain)
        best = self._best()
        return best if best is not None and best.iteration_ns < found.iteration_ns else found

    def refined(self, found: Found) -> Found:
        """Puts the stages of a plan to the knapsack, and returns the best plan then known: that plan, or one
        to which steps lead with what the knapsack knows, first among such stages and then among all pieces.
        """
        from tangram.planner.finer import finer_stages

        found = self.adopt(found)
        size, problem = found.micro_batch, self.problem_of(found.micro_batch)
        if problem is None:
            return found
        tables = self.referee.tables_of(problem)
        request = TableRequest(
            model=self.model,
            atoms=self.atoms,
            portion=found.stages[0].portion,
            micro_batch=size.size,
            num_micro_batches=size.num_micro_batches,
            max_in_flight=self._max_in_flight(size),
            max_time_s=float("inf"),
            job=self.job,
        )
        answered = self._answered.setdefault(size.size, set())
        finer = finer_stages(tables.pieces, found, self.space, request, self._allowed_slices(), answered)
        if finer is None:
            return found
        near = self._stated(size, finer.added_to(tables.only(finer.near)))
        better = self._improved(near, found)
        if better.iteration_ns < found.iteration_ns:
            answered |= finer.asked
            self._problems[size.num_micro_batches] = self._stated(size, finer.added_to(tables))
            better = self.improved(better)
        return better

    def _like(self, problem: Problem, found: Found) -> Chain | None:
        """Returns a plan of a problem with the slices, portions and windows of another one; None where some
        stage has none. Its stages are no slower, if there are such pieces.
        """
        pieces, chosen = problem.pieces, []
        islands = {island.name: idx for idx, island in enumerate(self.space.islands)}
        for stage, times in zip(found.stages, found.pipeline.stages, strict=True):
            island = islands[stage.portion.island.name]
            able = (pieces.start == stage.start) & (pieces.stop == stage.stop) & (pieces.island == island)
            able &= (pieces.head_class == self.space.class_index(island, stage.portion)) & (pieces.run < 0)
            able &= pieces.gpus * self.space.units[island] == stage.portion.num_gpus
            able &= pieces.max_in_flight >= min(times.in_flight, problem.num_micro_batches)
            if not able.any():
                return None
            no_slower = (
                able & (pieces.forward_ns <= times.forward_ns) & (pieces.head_step_ns <= times.step_ns)
            )
            no_slower &= pieces.time_ns - pieces.forward_ns <= times.backward_ns
            idx = np.flatnonzero(no_slower if no_slower.any() else able)
            chosen.append(int(idx[np.argmin(pieces.time_ns[idx])]))
        windows = [stage.in_flight for stage in found.pipeline.stages]
        extras = [front - behind - 1 for front, behind in pairwise(windows)]
        return chain_of(pieces, chosen, [*extras, 0], 0)

    def with_left_out(self, found: Found) -> Found:
        """Looks for plans that use each island that ``found`` leaves out, and returns the best plan then
        known.

        ``forced`` keeps them: their times are the reasons for leaving an island out.
        """
        if self.space.is_large:
            return found
        for _ in self.space.islands:
            used = {stage.portion.island.name for stage in found.stages}
            problem = self.problem_of(found.micro_batch)
            unused = [idx for idx, island in enumerate(self.space.islands) if island.name not in used]
            if not unused or problem is None:
                return found
            for idx in unused:
                self.forced[idx] = self.composer.best_with(self._sizes.index(found.micro_batch), problem, idx)
            best = self._best() or found
            if best.iteration_ns >= found.iteration_ns:
                return found
            found = best
        return found

    def lower_bound_ns(self) -> int:
        """What no plan within the space can beat."""
        ideal = min(size.bound_ns for size in self._sizes)
        if self.options.pruning is Pruning.PAPER:
            return ideal  # its rules remove pairs that a better plan may need
        if self.is_stopped:
            return self._bound_so_far_ns()
        return max(ideal, self.composer.lower_bound_ns())

    def _bound_so_far_ns(self) -> int:
        """What no plan can beat, as far as it is known: the ideal for sizes that were not searched yet."""
        known = self.composer.lower_bounds_ns
        if not self._ideal_ns:
            self._ideal_ns = {size.size: size.bound_ns for size in self._sizes}
        sizes = (max(self._ideal_ns[size.size], known.get(idx, 0)) for idx, size in enumerate(self._sizes))
        return min([self.composer.cutoff_ns, *sizes])

    def _report(self) -> None:
        """Says how far the search is: the best time, and its gap to the bound so far."""
        best, bound = self.composer.cutoff_ns, self._bound_so_far_ns()
        if self.progress is None or best >= FAR_NS or not bound:
            return
        gap = f"at most {100 * (best / bound - 1):.1f} % from the best there is"
        text = f"best so far {best / NS_PER_S:.4g} s, {gap}"
        if text != self._said:
            self._said = text
            self.progress(text)

    def coverage(self, size: MicroBatch) -> tuple[int, float]:
        """Returns how many atoms from the front fit at best, time aside, and the model states of the
        others in bytes.
        """
        problem = self._problems.get(size.num_micro_batches)
        states = size.reference.state_bytes
        if problem is None or not len(problem.pieces):
            return 0, float(states.sum())
        if self.space.is_large:
            from tangram.planner.blocks import uncovered

            covered = len(self.atoms) - uncovered(problem)
            return covered, float(states[covered:].sum())
        guide = prefix_bound(problem, FAR_NS)
        reached = np.flatnonzero(guide.time_ns[0, :, -1] < FAR_NS)
        covered = int(reached.max(initial=0))
        return covered, float(states[covered:].sum())

    def problem_of(self, size: MicroBatch) -> Problem | None:
        """Returns the composition problem of a micro-batch size; None where pruning left none."""
        return self._problems.get(size.num_micro_batches)

    def is_proven(self, found: Found) -> bool:
        """Whether nothing within the space is faster than ``found``."""
        return self.is_settled(found.iteration_ns)

    def is_settled(self, time_ns: int) -> bool:
        """Whether nothing within the space takes less than that."""
        if self.is_stopped:
            return self.lower_bound_ns() >= time_ns
        complete = self.options.pruning is not Pruning.PAPER and all(self.composer.proven.values())
        return complete and time_ns <= self.composer.cutoff_ns

    def _is_enough(self, num_considered: int) -> bool:
        """Whether a quick search has looked at enough sizes: few after its first plan, some more without
        any.
        """
        effort = self.options.effort
        if not effort.quick:
            return False
        if self.composer.best is None:
            return num_considered >= 3 * effort.quick_sizes
        return num_considered >= self.composer.best.problem_idx + effort.quick_sizes

    def _ordered_sizes(self) -> list[MicroBatch]:
        """Most promising first: the ideal pace, stretched by the fill of a pipeline of as many stages as the
        size makes likely. Few samples cannot be spread over many GPUs, so small sizes mean many stages.
        """
        sizes = []
        for size in self.job.micro_batches():
            if self.only_sizes is not None and size not in self.only_sizes:
                continue
            ref = reference(self.model, self.atoms, self.space.islands, size, self.job)
            cuts = boundaries(self.model, self.atoms, size, self.job)
            sizes.append(MicroBatch(size, self.job.global_batch // size, ref, cuts))

        def expected_ns(size: MicroBatch) -> int:
            stages = max(len(self.space.islands) + 1, self.space.num_gpus // (_LIKELY_TP * size.size))
            m = size.num_micro_batches
            return size.bound_ns * (m + stages) // m

        return sorted(sizes, key=lambda s: (expected_ns(s), s.size))

    def _scout(self, builder: TableBuilder) -> None:
        """Looks for a first plan among slices that suit a pace not far above the ideal one, and begins with
        the micro-batch size that promises most; on a large cluster with the first, as others get plans too.

        An incumbent makes every table after it small, the first one too. Where none is found the search
        starts without one.
        """
        if self.options.effort.quick and self.composer.cutoff_ns < FAR_NS:
            return
        # An unpruned search scouts like a pruned one: what is found first must not depend on the rules.
        pruning = Pruning.PAPER if self.options.pruning is Pruning.PAPER else Pruning.SAFE
        is_first_enough = self.options.effort.quick or self.space.is_large
        sizes = self._sizes[: 1 if is_first_enough else _SCOUTED_SIZES]
        problems, idx = [self._scouted(size, builder, pruning) for size in sizes], 0
        if len(problems) > 1:
            idx = min(range(len(problems)), key=lambda idx: (self.composer.promise_ns(problems[idx]), idx))
        self._sizes = [self._sizes[idx], *self._sizes[:idx], *self._sizes[idx + 1 :]]
        self.composer.scout(0, problems[idx])
        if self.space.is_large and self.composer.best is None:
            self.composer.scout(0, self._scouted(self._sizes[0], builder, pruning, _SLOWER_PACE))

    def _consider(self, idx: int, size: MicroBatch, builder: TableBuilder) -> None:
        """Asks about one micro-batch size and searches it, as far as it may hold a better plan.

        Without pruning, everything is asked about; but what the safe rules call useless is looked at
        afterwards and by itself, for the limits of effort must not depend on it.
        """
        composer, pruning = self.composer, self.options.pruning
        is_hopeless = size.bound_ns >= composer.cutoff_ns
        if is_hopeless:
            composer.close(idx, composer.cutoff_ns, proven=True)
            if pruning is not Pruning.NONE:
                self.counts["micro_batches_pruned"] += 1
                return
        max_time_s = self._max_time_s(size)
        self.considered.append(size.size)
        if pruning is not Pruning.NONE:
            self._search_size(idx, size, self._pruned(size, builder, max_time_s, pruning))
            return
        tables = self._tables(size, builder, float("inf"), pruning)
        useful = self._rules(size, Pruning.SAFE, max_time_s).useful(tables.pieces, self.space.units)
        if not is_hopeless:
            self._search_size(idx, size, tables.only(np.flatnonzero(useful)))
        if not (self.options.effort.quick or useful.all()):
            composer.doubt(idx, self._stated(size, tables), ~useful)

    def _pruned(
        self, size: MicroBatch, builder: TableBuilder, max_time_s: float, pruning: Pruning
    ) -> TableSet:
        """The pieces that the rules leave: some of those of the scout, where it looked at slower ones too."""
        pace_s, tables = self._scouts.pop(size.size, (0.0, None))
        if tables is None or max_time_s > pace_s:
            return self._tables(size, builder, max_time_s, pruning)
        useful = self._rules(size, pruning, max_time_s).useful(tables.pieces, self.space.units)
        return tables.only(np.flatnonzero(useful))

    def _search_size(self, idx: int, size: MicroBatch, tables: TableSet) -> None:
        composer, problem = self.composer, self._stated(size, tables)
        self._problems[size.num_micro_batches] = problem
        composer.consider(idx, problem)

    def _rules(self, size: MicroBatch, pruning: Pruning, max_time_s: float) -> PairRules:
        return PairRules(
            self.atoms,
            self.model.has_moe,
            size.reference,
            pruning,
            max_time_s,
            self._allowed_slices(),
            self.only_pairs.get(size.size),
        )

    def _tables(
        self, size: MicroBatch, builder: TableBuilder, max_time_s: float, pruning: Pruning
    ) -> TableSet:
        """Asks the parallelizers about one micro-batch size."""
        rules = self._rules(size, pruning, max_time_s)
        tables = builder.build(size.size, rules, self._max_in_flight(size), max_time_s)
        if pruning is self.options.pruning:
            self.counts.update(tables.counts)
        self.rejections += tables.rejections
        return tables

    def _stated(self, size: MicroBatch, tables: TableSet) -> Problem:
        """States the composition problem of one micro-batch size."""
        expected, at_best = self._links.edges(size.cuts)
        tied = self._links.tied_ns if self.model.shares_embedding else None
        problem = Problem(
            num_atoms=len(self.atoms),
            capacity=self.space.capacity,
            num_micro_batches=size.num_micro_batches,
            pieces=tables.pieces if tied is None else with_tail_step(tables.pieces, len(self.atoms), tied),
            edges=expected,
            edges_at_best=at_best,
            max_extra_in_flight=_EXTRA_IN_FLIGHT if self.job.free_warmup and self.job.overlap_p2p else 0,
            num_stages=self.job.pins.pp,
            tied_ns=tied,
            same_node=self._links.same_node(size.cuts),
            nics=self._links.nics,
            runs=tables.runs,
            atom_kinds=atom_kinds(self.atoms),
        )
        self.referee.add(problem, size, tables)
        return problem

    def _max_in_flight(self, size: MicroBatch) -> int:
        stages = min(len(self.atoms), sum(self.space.capacity))
        if self.job.pins.pp is not None:
            stages = min(stages, self.job.pins.pp)
        return min(size.num_micro_batches, stages + max(8, stages // 2))

    def _allowed_slices(self) -> frozenset[tuple[int, int]] | None:
        """Slices of a pipeline whose layers per stage are pinned; embedding and head go with the ends."""
        layers = self.job.pins.layers_per_stage
        if layers is None:
            return None
        return pinned_slices(self.atoms, layers)

    def _inner_edge(self, front: StageChoice, behind: StageChoice, micro_batch: int) -> SimEdge:
        """An edge inside a slice plan, as its two stages would be placed by themselves."""
        size = next(s for s in self._sizes if s.size == micro_batch)
        first, second = place((front.portion, behind.portion))
        return placed_edge(self.cluster, first, second, size.cuts.bytes_at[front.stop], self.job.basis)

    def _best(self) -> Found | None:
        """Simulates the best few once more with shared NICs, until no other can be better."""
        best = self.adopt(self._known) if self._known is not None else None
        for candidate in sorted(self.composer.candidates, key=lambda c: c.rank)[:_CONTENDED_FINALISTS]:
            if best is not None and candidate.time_ns >= best.iteration_ns:
                break
            found = self.referee.found(candidate)
            if best is None or found.iteration_ns < best.iteration_ns:
                best = found
        return best
