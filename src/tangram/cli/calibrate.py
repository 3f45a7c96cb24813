"""``tangram calibrate``: fits the constants of the cost model to measured runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tangram.cli.streams import check_target, note, print_page, write_text
from tangram.cli.validate import RowsArgument
from tangram.cost.constants import Shelf
from tangram.errors import InputError

Shelves = Annotated[
    list[Shelf] | None,
    typer.Option(
        "--shelf",
        help="Fit constants of this shelf only; may be given several times. Default: all three.",
        show_default=False,
    ),
]
Output = Annotated[
    Path,
    typer.Option(
        "-o", "--output", metavar="FILE", help="Where the calibration goes (JSON).", show_default=False
    ),
]
Splits = Annotated[
    int,
    typer.Option("--splits", metavar="N", help="Random five-fold splits that the errors are averaged over."),
]


Scratch = Annotated[
    bool,
    typer.Option(
        "--from-scratch", help="Start from the first estimates, not from the constants that Tangram ships."
    ),
]


def calibrate_command(
    rows: RowsArgument,
    output: Output,
    shelf: Shelves = None,
    splits: Splits = 1,
    from_scratch: Scratch = False,
) -> None:
    """Fit constants to measured runs: GPU family, software stack and cluster; write values, errors and
    bands.
    """
    from tangram.report.calibration import add_calibration
    from tangram.validation.calibration_file import calibrate, calibration_text, time_bands
    from tangram.validation.fit import Target
    from tangram.validation.reading import read_runs
    from tangram.validation.slots import unfitted

    if splits < 1:
        raise InputError(f"{splits} is out of range", where="--splits", hint="legal: 1 or more")
    check_target(output, "-o")
    runs = [result.run for result in read_runs(str(path) for path in rows) if result.run is not None]
    if not runs:
        raise InputError(
            "no row can be used", where=", ".join(map(str, rows)), hint="tangram validate says why"
        )
    base = unfitted() if from_scratch else []
    scores = [
        found
        for target in Target
        if (found := calibrate(runs, target, shelf or list(Shelf), splits, note, base)) is not None
    ]
    made = time_bands(scores)
    write_text(output, calibration_text(scores, made), "-o")
    print_page(lambda page: add_calibration(page, scores, made, str(output)))
