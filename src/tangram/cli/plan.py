"""``tangram plan``: the main job."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from tangram.cli.budget import EXIT_INTERRUPTED, Budget, check_budget
from tangram.cli.inputs import Inputs, read_inputs, read_tolerances
from tangram.cli.options import (
    BasisOptions,
    ChoiceOptions,
    IslandOptions,
    JobOptions,
    ModelArgument,
    OptionalClusterArgument,
    OutputOptions,
    ParallelizerOptions,
    SearchOptions,
    StatsOptions,
)
from tangram.cli.results import check_targets, deliver
from tangram.cli.streams import Progress, check_target, note, write_text
from tangram.errors import InputError, Stopped, UnknownNameError

if TYPE_CHECKING:
    from tangram.plan.schema import PlanDocument
    from tangram.planner.options import PlanOptions


def plan_command(
    model: ModelArgument,
    job: JobOptions,
    choices: ChoiceOptions,
    basis: BasisOptions,
    islands: IslandOptions,
    search: SearchOptions,
    parallelizers: ParallelizerOptions,
    out: OutputOptions,
    stats: StatsOptions,
    cluster: OptionalClusterArgument = None,
) -> None:
    """Find the fastest pipeline for MODEL on CLUSTER, and say why."""
    check_targets(out)
    check_target(stats.stats, "--stats")
    check_budget(stats.budget)
    budget = Budget(stats.budget)
    started = time.perf_counter()
    options = plan_options(search, islands, parallelizers.parallelizer)
    inputs = read_inputs(model, cluster, job, choices, basis)
    seconds = {"inputs_s": time.perf_counter() - started}
    doc = _plan(inputs, options, seconds, budget)
    seconds["total_s"] = time.perf_counter() - started
    gap = f"at most {100 * doc.bound.gap_frac:.1f} % from the best there is"
    if budget.is_over:
        note(f"stopped after {stats.budget:g} s of --budget: the best plan so far, {gap}")
    if budget.is_interrupted:
        note(f"interrupted: the best plan so far, {gap}")
    note(f"planned in {seconds['total_s']:.2f} s")
    if stats.stats is not None:
        write_text(stats.stats, json.dumps(seconds, indent=2) + "\n", "--stats")
    deliver(doc, out)
    if budget.is_interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)


def plan_options(
    search: SearchOptions, islands: IslandOptions, parallelizers: Sequence[str] | None = None
) -> PlanOptions:
    """Returns the planner's options.

    Args:
        search, islands: As typed.
        parallelizers: Names, or texts of several names with commas; the default when None.

    Raises:
        InputError: A value is out of range.
        UnknownNameError: There is no such rule of pruning, or no such executor.
    """
    from tangram.executors.choice import parse_executor
    from tangram.model.atoms import parse_granularity
    from tangram.parallelizers.registry import AUTO
    from tangram.planner.options import PlanOptions, Pruning

    rules = [rule.value for rule in Pruning]
    if search.pruning not in rules:
        raise UnknownNameError("pruning", search.pruning, rules, where="--pruning")
    names = [name.strip() for text in parallelizers or [AUTO] for name in text.split(",")]
    return PlanOptions(
        parallelizers=tuple(dict.fromkeys(name for name in names if name)),
        granularity=parse_granularity(search.atoms, where="--atoms"),
        tolerances=read_tolerances(islands),
        pruning=Pruning(search.pruning),
        workers=search.workers,
        executor=parse_executor(search.executor),
    )


def _plan(inputs: Inputs, options: PlanOptions, seconds: dict[str, float], budget: Budget) -> PlanDocument:
    from tangram.planner.planner import plan

    progress = Progress()
    try:
        return plan(
            inputs.model,
            inputs.cluster,
            inputs.job,
            options,
            precision_reason=inputs.precision_reason,
            assumptions=inputs.assumptions,
            measured=inputs.measured,
            stats=seconds,
            progress=progress,
            may_stop=budget,
        )
    except Stopped:
        if budget.is_interrupted:
            raise KeyboardInterrupt from None
        raise InputError(
            "no plan was found in that time", where="--budget", hint="a few seconds more, or no budget"
        ) from None
    finally:
        progress.clear()
