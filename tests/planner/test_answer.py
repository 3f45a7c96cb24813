"""The second opinion: asked where it is needed, used where it is better, and named in the plan."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from small_jobs import Outcome, answered

import tangram
from tangram.cluster.islands import build_islands
from tangram.cluster.readers import load_cluster
from tangram.cluster.shorthand import parse_shorthand
from tangram.cluster.spec import Cluster
from tangram.job import Job, Pins, Precision
from tangram.model.load import load_model, trim_layers
from tangram.model.spec import ModelSpec
from tangram.plan.check import check_plan
from tangram.planner import answer
from tangram.planner.effort import Effort
from tangram.planner.options import PlanOptions, Pruning
from tangram.planner.prober import Prober
from tangram.planner.recost import cost_violations
from tangram.planner.referee import Found
from tangram.planner.search import Search
from tangram.planner.space import search_space

CLUSTERS = Path(__file__).parents[2] / "examples" / "clusters"

HARD = (12, 64, 1024, 8)
QUICK = (3, 16, 1024, 2)
LITTLE = Effort(easy_labels=500, levels=2, label_limit=2_000, widest=Effort().narrowest)


def question(
    layers: int, batch: int, seq_len: int, micro_batch: int, cluster: str = "c1-v100-16"
) -> tuple[ModelSpec, Cluster, Job]:
    """By default on four nodes behind 10 Gbit/s each, where searches end with a gap."""
    job = Job(batch, seq_len, Precision.FP16, pins=Pins(micro_batch=micro_batch))
    return trim_layers(load_model("gpt3-1.3b"), layers), load_cluster(str(CLUSTERS / f"{cluster}.yaml")), job


@cache
def answer_to(asked: tuple[int, int, int, int], *parallelizers: str) -> Outcome:
    # With little effort the search of exact stays above the best plan of uniform, whatever the constants are.
    found = answered(*question(*asked), PlanOptions(parallelizers=parallelizers, effort=LITTLE))
    assert found is not None
    return found


def test_a_better_plan_is_taken_and_improved() -> None:
    exact, uniform = answer_to(HARD, "exact"), answer_to(HARD, "uniform")
    second = exact.second
    assert second is not None
    assert second.is_better
    assert second.theirs_ns is not None
    assert second.theirs_ns <= uniform.found.iteration_ns < second.ours_ns
    assert exact.found.iteration_ns <= second.theirs_ns
    assert exact.search.counts["second_opinion_is_better"] == 1
    assert exact.search.counts["second_opinion_queries"] > 0
    assert exact.found.micro_batch in exact.search.sizes
    assert not exact.proven
    assert uniform.second is None


def test_a_plan_of_uniform_has_its_like_among_the_pieces_of_exact() -> None:
    """Same slices, portions and windows, and no stage slower."""
    search, theirs = answer_to(HARD, "exact").search, answer_to(HARD, "uniform").found
    problem = search.problem_of(theirs.micro_batch)
    assert problem is not None
    chain = search._like(problem, theirs)
    assert chain is not None
    ours = search.referee.pipeline(problem, chain)[0].stages
    assert len(ours) == len(theirs.pipeline.stages)
    for mine, given in zip(ours, theirs.pipeline.stages, strict=True):
        assert mine.forward_ns <= given.forward_ns
        assert mine.backward_ns <= given.backward_ns
        assert mine.step_ns <= given.step_ns
        assert mine.in_flight == given.in_flight


def test_a_plan_without_its_like_is_taken_as_it_is() -> None:
    search, theirs = answer_to(HARD, "exact").search, answer_to(HARD, "uniform").found
    first = replace(theirs.stages[0], stop=theirs.stages[0].start)  # A slice that no piece has.
    odd = replace(theirs, stages=(first, *theirs.stages[1:]), iteration_ns=1)
    problem = search.problem_of(theirs.micro_batch)
    assert problem is not None
    assert search._like(problem, odd) is None
    taken = search.improved(odd)
    assert (taken.stages, taken.iteration_ns) == (odd.stages, 1)
    assert taken.micro_batch in search.sizes


@cache
def hard_plan() -> tangram.Plan:
    return tangram.plan(*question(*HARD), PlanOptions(effort=LITTLE))


def test_the_plan_says_so() -> None:
    plan = hard_plan()
    assert check_plan(plan) == []
    assert cost_violations(plan) == []
    assert plan.search.parallelizers == ["exact"]
    assert plan.search.counts["second_opinion_is_better"] == 1
    assert plan.search.counts["second_opinion_queries"] > 0
    (note,) = [a for a in plan.assumptions if "second opinion" in a.what]
    assert "began as one of uniform with" in note.what
    second = answer_to(HARD, "exact").second
    assert second is not None
    assert f"a gap of {100 * second.gap_frac:.2g} % to its bound, with" in note.why
    assert plan.prediction.iteration_time_s <= answer_to(HARD, "uniform").time_s
    assert plan.bound.gap_frac > 0.1
    assert not plan.bound.proven_optimal


def test_a_size_is_open_while_its_bound_is_below_the_plan_and_nothing_is_proven() -> None:
    model, cluster, _ = question(*QUICK)
    exact = answered(model, cluster, Job(16, 1024, Precision.FP16), PlanOptions(effort=LITTLE))
    assert exact is not None
    search, found, composer = exact.search, exact.found, exact.search.composer
    assert len(search.sizes) > 2
    assert search.is_proven(found)
    assert not search.open_sizes(found)
    composer.proven[1] = composer.proven[2] = False
    composer.lower_bounds_ns[1] = found.iteration_ns - 1
    composer.lower_bounds_ns[2] = found.iteration_ns
    assert search.open_sizes(found) == {search.sizes[1].size}
    slower = replace(found, iteration_ns=composer.cutoff_ns + 1)  # Its proofs are about less time.
    assert search.open_sizes(slower) == {size.size for size in search.sizes}


def test_a_list_holds_the_best_plan_of_uniform() -> None:
    uniform, search = answer_to(QUICK, "uniform"), answer_to(QUICK, "exact").search
    size = uniform.found.micro_batch.size
    slower = answer._question(search, uniform.found.iteration_ns + 1, frozenset({size}))
    found = slower.run_listing()
    assert found is not None
    assert found.iteration_ns <= uniform.found.iteration_ns
    assert slower.is_settled(found.iteration_ns)
    assert slower.considered == [size]
    again = answer._question(search, found.iteration_ns, frozenset({size}))
    better = again.run_listing()
    assert better is None or better.iteration_ns >= found.iteration_ns
    assert again.is_settled(found.iteration_ns)


@pytest.mark.parametrize(
    ("asked", "cluster"),
    [(QUICK, "c1-v100-16"), ((4, 16, 1024, 2), "c3-two-islands"), ((8, 32, 1024, 4), "c3-two-islands")],
)
def test_uniform_need_not_be_asked_about_what_no_listed_plan_has(
    asked: tuple[int, int, int, int], cluster: str
) -> None:
    options = PlanOptions(parallelizers=("exact",))
    exact = answered(*question(*asked, cluster=cluster), options)
    uniform = answered(*question(*asked, cluster=cluster), replace(options, parallelizers=("uniform",)))
    assert exact is not None
    assert uniform is not None
    search, (size,) = exact.search, exact.search.sizes
    problem, time_ns = search.problem_of(size), uniform.found.iteration_ns + 1
    assert problem is not None
    assert time_ns <= search.composer.reach_ns  # else pieces of such plans may be left out
    prober = Prober(problem, Effort(), pace_floor_ns=search.composer.pace_floors_ns[0])
    listed = prober.list_all(time_ns, 100_000, max_chains=10)
    assert listed.exhausted
    assert listed.pieces is not None
    search.composer.listed[0] = time_ns, listed.pieces
    some = answer._question(search, time_ns, frozenset({size.size}))
    everything = answer._question(search, time_ns, frozenset({size.size}))
    everything.only_pairs = {}
    best, found = everything.run_listing(), some.run_listing()
    assert best is not None
    assert found is not None
    assert found.iteration_ns == best.iteration_ns == uniform.found.iteration_ns
    assert some.counts["queries"] < everything.counts["queries"] / 2
    assert not search.pairs_below(time_ns + 1)


def test_after_an_incomplete_list_the_search_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    gone_on: list[Search] = []
    go_on = Search.go_on

    def goes_on(search: Search) -> Found | None:
        gone_on.append(search)
        return go_on(search)

    monkeypatch.setattr(Search, "go_on", goes_on)
    monkeypatch.setattr(answer, "LISTED_LABELS", 1)
    monkeypatch.setattr(answer, "LISTED_PLANS", 1)
    exact, uniform = (
        answered(*question(*QUICK), PlanOptions(parallelizers=(name,), effort=LITTLE))
        for name in ("exact", "uniform")
    )
    assert exact is not None
    assert uniform is not None
    assert exact.second is not None
    (asked,) = gone_on
    assert asked.options.parallelizers == ("uniform",)
    assert asked.considered == [2]
    assert exact.found.iteration_ns <= uniform.found.iteration_ns


def test_what_is_proven_needs_none() -> None:
    model, cluster, job = question(4, 16, 512, 4, "c3-a100")
    exact = answered(model, cluster, job)
    assert exact is not None
    assert exact.proven
    assert exact.second is None
    assert "second_opinion_queries" not in exact.search.counts


@pytest.mark.parametrize(
    ("options", "asks"),
    [
        (PlanOptions(effort=LITTLE), True),
        (PlanOptions(effort=LITTLE, parallelizers=("exact", "uniform")), True),
        (PlanOptions(effort=LITTLE, pruning=Pruning.NONE), True),
        (PlanOptions(effort=LITTLE, pruning=Pruning.PAPER), False),
        (PlanOptions(effort=LITTLE, parallelizers=("uniform",)), False),
        (PlanOptions(effort=LITTLE.hurried()), False),
    ],
    ids=["exact", "both", "unpruned", "paper", "uniform", "hurried"],
)
def test_who_asks(options: PlanOptions, asks: bool) -> None:
    found = answered(*question(*QUICK), options)
    assert found is not None
    assert not found.proven
    assert (found.second is not None) is asks


def test_pruning_changes_no_second_opinion() -> None:
    safe, none = (
        answered(*question(*QUICK), PlanOptions(effort=LITTLE, pruning=pruning))
        for pruning in (Pruning.SAFE, Pruning.NONE)
    )
    assert safe is not None
    assert none is not None
    assert safe.second == none.second
    assert safe.found.pipeline == none.found.pipeline


def test_too_many_questions_are_not_asked_and_the_plan_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer, "MOST_QUESTIONS", 10)
    plan = tangram.plan(*question(*QUICK), PlanOptions(effort=LITTLE))
    (note,) = [a for a in plan.assumptions if "second opinion" in a.what]
    assert note.what == "uniform was not asked for a second opinion and may have a faster plan"
    assert note.why.endswith("questions")
    assert "second_opinion_queries" not in plan.search.counts


def test_coarse_spaces_lack_stages_of_uniform() -> None:
    """Stages smaller than a block, or of so many nodes that not every number is tried."""

    def holds(cluster: Cluster) -> bool:
        space = search_space(build_islands(cluster, Precision.FP16), Precision.FP16)
        return answer.holds_uniform_stages(space)

    for path in sorted(CLUSTERS.glob("*.yaml")):
        # 144 GPUs in racks of 72 are counted in blocks.
        assert holds(load_cluster(str(path))) is (path.stem != "nvl72-racks")
    assert holds(parse_shorthand("12x8xH100-80GB-SXM@100Gbit"))
    assert not holds(parse_shorthand("26x8xH100-80GB-SXM@100Gbit"))
    assert not holds(parse_shorthand("8x8xH100-80GB-SXM+8x8xA100-80GB-SXM+8x8xV100-32GB-SXM2@100Gbit"))
