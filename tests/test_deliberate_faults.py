"""Faults put into the real code on purpose: for each, a check that finds it. docs/testing.md lists them.

A fault replaces one piece of text in one function, for as long as the test runs. The text must occur
exactly once, so this list cannot outlive the code that it is about. Every check is one that also runs
elsewhere without a fault: brute force, the naive executor, the checks of the plan document, its re-
simulation, the conformance test of parallelizers.
"""

from __future__ import annotations

import inspect
import itertools
import random
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
from adversarial import adversarial_problem, nic_problem
from efforts import EVERYTHING
from instances import all_pipelines, node_problem, plain_closed_form, random_problem
from referee import plain_simulation, referee
from sim_cases import Terms, random_pipeline
from sim_naive import naive_run

import tangram
from tangram.cluster.islands import build_islands
from tangram.cluster.shorthand import parse_shorthand
from tangram.cluster.spec import Portion
from tangram.cost import stage
from tangram.cost.configs import legal_configs
from tangram.cost.stage import stage_cost
from tangram.errors import TangramError
from tangram.job import Job, Pins, Precision
from tangram.model.atoms import cut_atoms
from tangram.model.load import load_model, trim_layers
from tangram.parallelizers import exact, uniform
from tangram.plan.check import check_plan
from tangram.planner import frontier, labels, placement, stages
from tangram.planner.compose import Composer
from tangram.planner.frontier import FrontierSearch, Objective
from tangram.planner.lattice import prefix_bound
from tangram.planner.options import PlanOptions, Pruning
from tangram.planner.problem import FAR_NS, Chain, Problem
from tangram.planner.recost import cost_violations
from tangram.planner.referee import Referee
from tangram.planner.reference import Reference
from tangram.planner.sharing import Sharing
from tangram.simulate import engine, formulas
from tangram.simulate.fast import iteration_ns
from tangram.simulate.pipeline import SimPipeline
from tangram.testing import check_parallelizer

NUM_LAYERS = 8


def composition() -> None:
    """The search finds what brute force finds, through the closed form and through the simulator."""
    problems = [random_problem(seed, max_atoms=6) for seed in range(30)]
    # Labels that differ in one thing only; NICs that are the bottleneck; stages that may share a node.
    problems += [adversarial_problem(seed) for seed in (2, 3, 14, 18, 33, 41, 126, 156)]
    problems += [nic_problem(seed) for seed in (4, 21)]
    problems += [node_problem(seed, tied=tied) for seed in (8, 12, 13, 26) for tied in (False, True)]
    for idx, problem in enumerate(problems):
        pipelines = list(itertools.islice(all_pipelines(problem), 2001))
        if not pipelines or len(pipelines) > 2000:
            continue
        best = searched(problem, Objective.CLOSED_FORM)
        assert best
        assert best[0].value_ns == min(plain_closed_form(problem, p) for p in pipelines), idx
        composer = Composer(referee, EVERYTHING)
        composer.consider(0, problem)
        composer.settle()
        space = all_pipelines(problem, composer.pace_floors_ns[0])
        fastest = min(plain_simulation(problem, p) for p in space)
        assert composer.best is not None
        assert composer.best.time_ns == fastest, idx
        assert searched(problem, Objective.LOWER_BOUND)[0].value_ns <= fastest, idx


def searched(problem: Problem, objective: Objective) -> list[Chain]:
    return FrontierSearch(problem, prefix_bound(problem, FAR_NS), objective, FAR_NS).run().chains


def simulators() -> None:
    """Both simulators agree with the executor that shares nothing with them."""
    rng = random.Random(11)
    for _ in range(60):
        pipeline = random_pipeline(rng, blocking=None, low=1)
        expected = naive_run(pipeline).iteration_ns
        assert engine.simulate(pipeline).iteration_ns == expected
        assert iteration_ns(pipeline) == expected


def bounds() -> None:
    """No execution is faster than the lower bound of its windows."""
    rng = random.Random(12)
    for _ in range(200):
        pipeline = random_pipeline(rng, low=1)
        of = Terms.of(pipeline)
        bound = formulas.lower_bound_ns(of.f, of.b, of.u, of.x, of.X, of.w, of.m)
        assert bound <= naive_run(pipeline).iteration_ns


def table_promises() -> None:
    """The exact table keeps what a parallelizer promises."""
    check_parallelizer(exact.ExactStageTable())


def uniform_promises() -> None:
    """So does the uniform planner."""
    check_parallelizer(uniform.UniformPlanner())


def small_plan(pruning: Pruning = Pruning.SAFE, pp: int | None = None) -> tangram.Plan:
    model = trim_layers(load_model("gpt3-1.3b"), NUM_LAYERS)
    cluster = parse_shorthand("1x2xA100-40GB-SXM+1x4xV100-16GB-SXM2@100Gbit")
    job = Job(global_batch=32, seq_len=1024, precision=Precision.FP16, pins=Pins(pp=pp))
    return tangram.plan(model, cluster, job, PlanOptions(pruning=pruning))


def documents() -> None:
    """Plans hold every layer, obey every rule, and take as long as they say when they are simulated again."""
    for pp in (2, 4):
        plan = small_plan(pp=pp)
        assert check_plan(plan) == []
        assert cost_violations(plan) == []
        held = [layer for stage in plan.pipelines[0].stages for layer in range(*stage.layers)]
        assert held == list(range(NUM_LAYERS))
        again = tangram.simulate(plan).iteration_ns
        assert again == pytest.approx(plan.prediction.iteration_time_s * 1e9, rel=1e-6)


def pruning() -> None:
    """Safe pruning changes nothing."""
    pruned, whole = small_plan(Pruning.SAFE), small_plan(Pruning.NONE)
    assert pruned.pipelines == whole.pipelines


def memory() -> None:
    """Activations grow with the micro-batches in flight, from the first on."""
    model, job = load_model("gpt3-1.3b"), Job(32, 1024, Precision.FP16)
    portion = Portion(build_islands(parse_shorthand("1x2xA100-40GB-SXM"), Precision.FP16)[0], 1, 2)
    config = legal_configs(model, portion, 4, job)[0]
    for window in (1, 3):
        cost = stage_cost(model, cut_atoms(model)[1:4], portion, config, 4, 8, window, [False] * 3, job)
        assert cost.memory["activations"] == pytest.approx(window * cost.activation_bytes)


@dataclass(frozen=True)
class Fault:
    """Replace ``old`` by ``new`` in ``function``; then ``found_by`` fails."""

    name: str
    function: Callable[..., Any]
    old: str
    new: str
    found_by: Callable[[], None]


FAULTS = (
    # A dropped layer.
    Fault(
        "a stage drops its first layer",
        exact.ExactStageTable.choice,
        "return StageChoice(start, stop, request.portion, config, recomputed)",
        "return StageChoice(start + 1, stop, request.portion, config, recomputed[1:])",
        documents,
    ),
    Fault(
        "a slice plan ends one layer early",
        uniform.split_evenly,
        "*inner, request.stop]",
        "*inner, request.stop - 1]",
        uniform_promises,
    ),
    Fault(
        "the model loses its last layer",
        cut_atoms,
        "enumerate(model.layers[: model.num_layers])",
        "enumerate(model.layers[: model.num_layers - 1])",
        documents,
    ),
    # A swapped GPU.
    Fault(
        "stages get each other's GPUs",
        stages._section,
        "_ranks(placed.placements[idx], first_rank)",
        "_ranks(placed.placements[-1 - idx], first_rank)",
        documents,
    ),
    Fault(
        "a GPU is given to two stages",
        placement.place,
        "first = free.get(node.name, 0)",
        "first = 0",
        documents,
    ),
    Fault(
        "slots count from one",
        stages._ranks,
        "gpu_idx=slot.gpu_idx,",
        "gpu_idx=slot.gpu_idx + 1,",
        documents,
    ),
    # An off-by-one in the in-flight count.
    Fault(
        "the search tests memory for one micro-batch less",
        FrontierSearch._expand_chunk,
        "labels.window + 1 + extra,",
        "labels.window + extra,",
        composition,
    ),
    Fault(
        "the plan holds one micro-batch less per stage",
        frontier.chain_of,
        "window += 1 + extra",
        "window += max(extra, 1 - window)",
        composition,
    ),
    Fault(
        "a table promises one micro-batch more than fits",
        exact._search,
        "longest = column + 1",
        "longest = column + 2",
        table_promises,
    ),
    Fault(
        "the uniform planner forgets the last stage's own micro-batch",
        uniform._split,
        "np.arange(len(pieces) - 1, -1, -1)",
        "np.arange(len(pieces) - 2, -2, -1)",
        uniform_promises,
    ),
    Fault(
        "memory counts one micro-batch less",
        stage._together,
        "num_held * activation_bytes",
        "(num_held - 1) * activation_bytes",
        memory,
    ),
    Fault(
        "the simulator warms up with one micro-batch more",
        engine._lane,
        "pipeline.windows[i]",
        "min(pipeline.windows[i] + 1, pipeline.num_micro_batches)",
        simulators,
    ),
    # A folded transfer.
    Fault(
        "the fast simulator puts every transfer into stage time",
        SimPipeline.folded,
        "if not self.blocking_p2p:",
        "if False:",
        simulators,
    ),
    Fault(
        "the referee lets every transfer block its stage",
        Referee.pipeline,
        "blocking_p2p=not self.overlap_p2p",
        "blocking_p2p=True",
        documents,
    ),
    Fault(
        "labels forget the round trip",
        FrontierSearch._values,
        "sum_behind = behind[:, 0] + round_trip",
        "sum_behind = behind[:, 0]",
        composition,
    ),
    # Nodes and NICs that stages share.
    Fault(
        "the two edges of a stage do not meet at its NICs",
        FrontierSearch._values,
        "nic + np.maximum(behind[:, 3], pieces.tail_nic_ns[piece])",
        "np.maximum(nic, pieces.tail_nic_ns[piece])",
        composition,
    ),
    Fault(
        "more stages share a node than fit",
        Sharing.may_share,
        "(taken + part <= same_node.node_gpus[island])",
        "(part <= same_node.node_gpus[island])",
        composition,
    ),
    Fault(
        "the ends of a tied model always find room on one node",
        Sharing.ends,
        "(tail_taken < 0) | (taken + tail_taken <= problem.same_node.node_gpus[island])",
        "np.ones(len(piece), dtype=np.bool_)",
        composition,
    ),
    # Bounds and rules that promise too much.
    Fault(
        "the searched bound counts one window less",
        FrontierSearch._busy,
        "(window - 1) * tail_forward",
        "(window - 2) * tail_forward",
        composition,
    ),
    Fault(
        "the bound's formula counts one window less",
        formulas.lower_bound_ns,
        "others = min(w[i], m) - 1",
        "others = min(w[i], m) - 2",
        bounds,
    ),
    # Labels taken for each other.
    Fault(
        "a label is dropped that has the better fill",
        labels.undominated,
        "values[behind, 1:] >= values[front, 1:]",
        "values[behind, 2:] >= values[front, 2:]",
        composition,
    ),
    Fault(
        "labels of different link classes compete",
        FrontierSearch._keys,
        "key = code * (int(labels.link_class.max()) + 1) + labels.link_class",
        "key = code",
        composition,
    ),
    Fault(
        "labels of different windows compete",
        FrontierSearch._keys,
        "key = key * (int(labels.window.max()) + 1) + labels.window",
        "pass",
        composition,
    ),
    Fault(
        "pruning takes two GPUs for one",
        Reference.slice_times_s,
        "(_SAFETY / num_gpus)",
        "(2.0 / num_gpus)",
        pruning,
    ),
)


def put_in(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    """Changes the function itself, so that everybody who imported it has the fault."""
    function = fault.function
    assert isinstance(function, FunctionType)
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(fault.old) == 1, f"{fault.name}: the code has changed, and this fault with it"
    namespace = dict(function.__globals__)
    exec("from __future__ import annotations\n" + source.replace(fault.old, fault.new), namespace)
    monkeypatch.setattr(function, "__code__", namespace[function.__name__].__code__)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault_is_found(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    put_in(fault, monkeypatch)
    with pytest.raises((AssertionError, TangramError)):
        fault.found_by()


@pytest.mark.parametrize(
    "check",
    [composition, simulators, bounds, documents, pruning, memory],  # the others run in tests/parallelizers
    ids=lambda check: check.__name__,
)
def test_checks_are_silent_without_a_fault(check: Callable[[], None]) -> None:
    check()


def test_every_fault_is_documented() -> None:
    page = (Path(__file__).parents[1] / "docs" / "testing.md").read_text(encoding="utf-8")
    rows = [
        line
        for line in page.partition("## Deliberate faults\n")[2].partition("\n## ")[0].splitlines()
        if line.startswith("|")
    ]
    listed = [row.split("|")[2].strip() for row in rows[2:]]
    assert listed == [fault.name for fault in FAULTS]
