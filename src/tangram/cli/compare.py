"""``tangram compare``: planners of every kind on one question, under one referee."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from tangram.cli.inputs import read_inputs
from tangram.cli.options import (
    BasisOptions,
    ChoiceOptions,
    IslandOptions,
    JobOptions,
    Json,
    ModelArgument,
    OptionalClusterArgument,
    SearchOptions,
)
from tangram.cli.plan import plan_options
from tangram.cli.streams import Progress, print_page, print_text
from tangram.errors import InfeasibleError

Planners = Annotated[
    list[str] | None,
    typer.Option(
        "--planners",
        metavar="NAME",
        help="Whom to ask; repeat it or use commas. A parallelizer's name (exact, aceso ...) is that one "
        "inside Tangram, with -alone behind it the same as if all GPUs were the slowest; megatron, metis and "
        "sailor plan the whole cluster (default: all that are built in).",
        show_default=False,
    ),
]


def compare_command(
    model: ModelArgument,
    job: JobOptions,
    choices: ChoiceOptions,
    basis: BasisOptions,
    islands: IslandOptions,
    search: SearchOptions,
    cluster: OptionalClusterArgument = None,
    planners: Planners = None,
    json_only: Json = False,
) -> None:
    """Compare planners on MODEL and CLUSTER: step time, memory, planning time, features."""
    from tangram.advise.compare import DEFAULT_PLANNERS, Question, compare

    options = plan_options(search, islands)
    names = [name.strip() for text in planners or () for name in text.split(",") if name.strip()]
    inputs = read_inputs(model, cluster, job, choices, basis)
    progress = Progress()
    question = Question(
        inputs.model, inputs.cluster, inputs.job, options, measured=inputs.measured, progress=progress
    )
    try:
        doc = compare(question, names or DEFAULT_PLANNERS)
    finally:
        progress.clear()
    if json_only:
        print_text(json.dumps(doc.model_dump(mode="json"), indent=1) + "\n")
    else:
        from tangram.report.compare import add_comparison

        print_page(lambda page: add_comparison(page, doc))
    if doc.fastest is None:
        raise typer.Exit(InfeasibleError.exit_code)
