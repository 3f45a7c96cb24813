"""The planner: islands, space, search, document."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass, replace

from tangram.cluster.islands import build_islands
from tangram.cluster.spec import Assumption, Cluster
from tangram.errors import Stopped
from tangram.executors.choice import new_executor
from tangram.job import Job
from tangram.model.atoms import cut_atoms
from tangram.model.spec import ModelSpec
from tangram.parallelizers.registry import AUTO
from tangram.plan.schema import PlanDocument, SearchSection
from tangram.planner.answer import SecondOpinion, best_answer
from tangram.planner.beyond import FIRST, Beyond, with_layer_degrees
from tangram.planner.bounds import bound_section
from tangram.planner.comparisons import comparisons
from tangram.planner.document import place_pipeline, plan_document, stated_tolerances
from tangram.planner.idle import idle_sections
from tangram.planner.measured import transfer_notes, unmeasured_notes, with_measured
from tangram.planner.options import PlanOptions
from tangram.planner.pin_checks import check_atoms, check_pins
from tangram.planner.queries import SliceQueries
from tangram.planner.refusal import infeasible
from tangram.planner.search import Search
from tangram.planner.space import search_space
from tangram.profiles.measured import MeasuredLayers

Stats = MutableMapping[str, float]

_FEW_ATOMS = 20
"""Of a model for which counting GPUs, in parts of a node if need be, is quick and bounds better."""


def plan(
    model: ModelSpec,
    cluster: Cluster,
    job: Job,
    options: PlanOptions = PlanOptions(),
    *,
    precision_reason: str = "",
    assumptions: Sequence[Assumption] = (),
    measured: MeasuredLayers | None = None,
    stats: Stats | None = None,
    progress: Callable[[str], None] | None = None,
    may_stop: AbstractContextManager[None] = nullcontext(),
) -> PlanDocument:
    """Plans a training job on a cluster.

    Args:
        model: What to train.
        cluster: On what.
        job: How.
        options: About the search itself.
        precision_reason: Why this precision, for the document.
        assumptions: What the caller assumed, for the document; the cluster's own are added.
        measured: Measured layers, which override formulas where they say anything.
        stats: Receives wall-clock seconds by phase; never part of the document.
        progress: Called with one line at a time.
        may_stop: While it is entered, :class:`~tangram.errors.Stopped` may be raised anywhere; the best plan
            so far is then the answer, and says so.

    Raises:
        InputError: A pin has no legal meaning on this model and cluster, or the executor cannot be had.
        InfeasibleError: Nothing fits; says what binds and which repairs would do.
        Stopped: It was stopped before there was a plan.
    """
    clock = _Clock(stats)
    with clock.phase("executor_s"):
        executor = new_executor(options.chosen_executor, progress)
    with closing(executor):
        asked = _Asked(model, cluster, job, options, precision_reason, assumptions, measured)
        return _planned(asked, SliceQueries(executor), clock, progress, may_stop)


@dataclass(frozen=True, slots=True)
class _Asked:
    """What :func:`plan` was asked, which explains the fields."""

    model: ModelSpec
    cluster: Cluster
    job: Job
    options: PlanOptions
    precision_reason: str
    assumptions: Sequence[Assumption]
    measured: MeasuredLayers | None


def _planned(
    asked: _Asked,
    queries: SliceQueries,
    clock: _Clock,
    progress: Callable[[str], None] | None,
    may_stop: AbstractContextManager[None],
) -> PlanDocument:
    model, cluster, job, options = asked.model, asked.cluster, asked.job, asked.options
    with clock.phase("islands_s"):
        atoms = cut_atoms(model, options.granularity)
        check_atoms(len(atoms))
        islands = build_islands(cluster, job.precision, options.tolerances)
        resolved = _resolved(options)
        space = search_space(
            islands,
            job.precision,
            may_be_large=job.pins.pp is None,
            may_be_coarse=resolved.parallelizers != (FIRST,) or len(atoms) <= _FEW_ATOMS,
        )
        check_pins(model, job, space)
    with clock.phase("measured_s"):
        job = with_measured(job, asked.measured, model, atoms, space.islands)
    search = Search(model, atoms, cluster, job, space, resolved, progress, queries=queries)
    answer = best_answer(search, clock.phase, may_stop)
    if answer is None:
        raise infeasible(search)
    found, beyond = answer.found, None
    if AUTO in options.parallelizers and not space.is_large and not search.is_stopped:
        try:
            with may_stop, clock.phase("beyond_s"):
                beyond = with_layer_degrees(search, found)
            found = beyond.found
        except Stopped:
            search.is_stopped = True
    with clock.phase("explain_s"):
        bound = bound_section(search, found, beyond)
        idle = idle_sections(search, found)
        compared = comparisons(search, found, answer.alone)
    with clock.phase("document_s"):
        placed = place_pipeline(
            model, atoms, job, found.micro_batch.size, found.stages, found.placements, found.pipeline
        )
        return plan_document(
            placed,
            cluster=cluster,
            islands=islands,
            granularity=str(options.granularity),
            tolerances=stated_tolerances(options.tolerances),
            precision_reason=asked.precision_reason,
            assumptions=[
                *cluster.assumptions,
                *asked.assumptions,
                *_notes(search, asked.measured, answer.second, beyond),
            ],
            bound=bound,
            idle=idle,
            comparisons=compared,
            search=_search_section(search, options, beyond),
        )


def _resolved(options: PlanOptions) -> PlanOptions:
    """``auto`` begins with ``exact``, beside whoever else is named."""
    names = [FIRST if name == AUTO else name for name in options.parallelizers]
    return replace(options, parallelizers=tuple(dict.fromkeys(names)))


class _Clock:
    """Measures phases into a mapping, or nothing at all."""

    def __init__(self, stats: Stats | None) -> None:
        self._stats = stats

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Times what runs inside."""
        began = time.perf_counter()
        yield
        if self._stats is not None:
            self._stats[name] = time.perf_counter() - began


def _notes(
    search: Search,
    measured: MeasuredLayers | None,
    second: SecondOpinion | None,
    beyond: Beyond | None,
) -> list[Assumption]:
    coarse = [
        Assumption(note, "to keep the search small; smaller stages there were not tried")
        for note in search.space.notes
    ]
    if search.space.is_large:
        coarse.append(
            Assumption(
                "plans of a large cluster: a block of stages per island, and what random walks make of it",
                "its GPUs can be used in too many ways to go through all; the lower bound holds for any plan",
            )
        )
    if search.is_stopped:
        coarse.append(
            Assumption(
                "the search was stopped before its end, and has the best plan until then",
                "its time was up, or it was interrupted; another run may stop elsewhere",
            )
        )
    basis = [*unmeasured_notes(measured, search.job, search.space.islands), *transfer_notes(search.job)]
    rejected = [Assumption(text, "its answers were not used") for text in search.rejections]
    opinions = [opinion.note() for opinion in (second, beyond) if opinion is not None]
    return basis + coarse + rejected + opinions


def _search_section(search: Search, options: PlanOptions, beyond: Beyond | None) -> SearchSection:
    counts = {name: int(number) for name, number in search.counts.items()}
    if beyond is not None:
        counts["layerwise_queries"] = beyond.num_queries
    return SearchSection(
        parallelizers=list(options.parallelizers),
        pruning=search.options.pruning.value,
        micro_batches_considered=sorted(search.considered),
        counts={name: counts[name] for name in sorted(counts)},
    )
