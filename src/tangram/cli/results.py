"""Delivers a plan document: to a file, as JSON, as a page, as a trace."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from tangram.cli.options import OutputOptions
from tangram.cli.streams import check_target, print_page, print_text, write_text
from tangram.errors import InputError

if TYPE_CHECKING:
    from tangram.plan.schema import PlanDocument
    from tangram.simulate.timeline import Timeline


def check_targets(out: OutputOptions) -> None:
    """Refuses files that could not be written, before the work.

    Raises:
        InputError: One of them cannot be.
    """
    if out.output is not None and out.output == out.trace:
        raise InputError("-o and --trace name the same file", where="--trace", hint="give two files")
    check_target(out.output, "-o")
    check_target(out.trace, "--trace")


def deliver(doc: PlanDocument, out: OutputOptions) -> None:
    """Saves and prints a plan as the options say.

    Raises:
        InputError: A file cannot be written.
    """
    from tangram.plan.json_io import to_json

    text = to_json(doc) if out.output is not None or out.json_only else ""
    if out.output is not None:
        write_text(out.output, text, "-o")
    if out.trace is not None:
        from tangram.planner.recost import simulate_plan

        write_trace(doc, simulate_plan(doc), out.trace)
    if out.json_only:
        print_text(text)
        return
    from tangram.report.terminal import add_plan

    path = str(out.output) if out.output is not None else None
    print_page(lambda page: add_plan(page, doc, path=path))


def write_trace(doc: PlanDocument, timeline: Timeline, path: Path) -> None:
    """Writes a timeline for Perfetto.

    Raises:
        InputError: The file cannot be written.
    """
    from tangram.report.timeline import stage_labels
    from tangram.simulate.trace import chrome_trace

    trace = chrome_trace(timeline, stage_labels(doc))
    write_text(path, json.dumps(trace, separators=(",", ":")) + "\n", "--trace")
