"""``tangram estimate``: predicts a pipeline that the user dictates, without searching."""

from __future__ import annotations

from typing import Annotated

import typer

from tangram.cli.inputs import read_inputs, read_tolerances
from tangram.cli.options import (
    BasisOptions,
    ChoiceOptions,
    IslandOptions,
    JobOptions,
    ModelArgument,
    OptionalClusterArgument,
    OutputOptions,
)
from tangram.cli.results import check_targets, deliver
from tangram.errors import InfeasibleError, InputError

Stages = Annotated[
    str | None,
    typer.Option(
        "--stages",
        metavar="TEXT",
        help="PLACE:GPUS:DEGREES:LAYERS[:RECOMPUTE] for each stage, joined by +, for example "
        "A100-80GB-SXM:4:tp4:24+V100-32GB-SXM2:8:tp2dp4z1:16:full8. PLACE is an island, a node, or nodes "
        "with commas. Without it, --pp, --tp, --dp and --cp make equal stages.",
        show_default=False,
    ),
]


def estimate_command(
    model: ModelArgument,
    job: JobOptions,
    choices: ChoiceOptions,
    basis: BasisOptions,
    islands: IslandOptions,
    out: OutputOptions,
    cluster: OptionalClusterArgument = None,
    stages: Stages = None,
) -> None:
    """Predict a pipeline that you dictate: time, memory, and whether it fits (else the exit code is 3)."""
    check_targets(out)
    if stages is not None:
        _refuse_both(choices)
    from tangram.cli.dictated import parse_stages, uniform_stages
    from tangram.cluster.islands import build_islands
    from tangram.planner.estimate import estimate

    inputs = read_inputs(model, cluster, job, choices, basis, chooses_warmup=False)
    tolerances = read_tolerances(islands)
    built = build_islands(inputs.cluster, inputs.job.precision, tolerances)
    if stages is not None:
        dictated = parse_stages(stages, inputs.cluster, built)
    else:
        dictated = uniform_stages(inputs.job.pins, inputs.model.num_layers, built)
    doc = estimate(
        inputs.model,
        inputs.cluster,
        inputs.job,
        dictated,
        precision_reason=inputs.precision_reason,
        assumptions=inputs.assumptions,
        tolerances=tolerances,
        measured=inputs.measured,
    )
    deliver(doc, out)
    if any(stage.predicted.headroom_bytes < 0 for stage in doc.stages):
        raise typer.Exit(InfeasibleError.exit_code)


def _refuse_both(choices: ChoiceOptions) -> None:
    """Degrees are said once: in the text of the stages, or for all of them."""
    for name in ("tp", "pp", "dp", "cp", "ep", "zero", "recompute", "layers_per_stage"):
        if getattr(choices, name) is not None:
            option = f"--{name.replace('_', '-')}"
            raise InputError(
                f"{option} and --stages exclude each other", where=option, hint="give one of them"
            )
