"""``tangram validate``: how far predictions are from measured runs."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from tangram.cli.options import Json
from tangram.cli.streams import print_json, print_page
from tangram.errors import InputError

RowsArgument = Annotated[
    list[Path],
    typer.Argument(
        metavar="ROWS...", help="CSV files of measured runs, in any layout that docs/validation.md lists."
    ),
]
CalibrateOn = Annotated[
    int | None,
    typer.Option(
        "--calibrate-on",
        metavar="N",
        help="Re-fit the named stack and cluster constants of each source on N of its rows, score the rest.",
        show_default=False,
    ),
]
Profiles = Annotated[
    Path | None,
    typer.Option(
        "--profiles",
        metavar="STORE",
        help="Profile store whose measured layers override formulas where a row runs them.",
        show_default=False,
    ),
]
Stack = Annotated[
    str | None,
    typer.Option(
        "--stack",
        metavar="NAME",
        help="Whose layers of the store count, where several stacks were measured.",
        show_default=False,
    ),
]


def validate_command(
    rows: RowsArgument,
    calibrate_on: CalibrateOn = None,
    profiles: Profiles = None,
    stack: Stack = None,
    json_only: Json = False,
) -> None:
    """Predict measured runs and show how far off the predictions are, beside one constant per GPU."""
    from tangram.cli.basis import measured_layers
    from tangram.validation.document import validation_document
    from tangram.validation.predict import predict, refit
    from tangram.validation.reading import read_runs
    from tangram.validation.scored import predict_refitted, predict_rows
    from tangram.validation.scores import score_groups

    if calibrate_on is not None and calibrate_on < 1:
        raise InputError(f"{calibrate_on} is out of range", where="--calibrate-on", hint="legal: 1 or more")
    layers = None if profiles is None else measured_layers(profiles, stack)
    if stack is not None and profiles is None:
        raise InputError("says whose measured layers count", where="--stack", hint="give --profiles, too")
    results = read_runs(str(path) for path in rows)
    if calibrate_on is None:
        scored = predict_rows(results, partial(predict, layers=layers))
    else:
        scored = predict_refitted(results, partial(refit, layers=layers), calibrate_on)
    groups = score_groups(scored)
    if json_only:
        print_json(validation_document(scored, groups))
        return
    from tangram.report.validation import add_validation

    print_page(lambda page: add_validation(page, scored, groups, with_profiles=layers is not None))
