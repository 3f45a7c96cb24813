"""The commands that read a plan file (``show``, ``check``, ``simulate``), and ``schema``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from tangram.cli.options import Json, PlanArgument, Trace
from tangram.cli.results import write_trace
from tangram.cli.streams import check_target, note, one_line, print_json, print_page, print_text

if TYPE_CHECKING:
    from tangram.plan.schema import PlanDocument
    from tangram.plan.violation import Violation
    from tangram.simulate.timeline import Timeline

EXIT_INVALID = 2


def show_command(plan: PlanArgument, json_only: Json = False) -> None:
    """Print a saved plan as tangram plan does."""
    from tangram.plan.check import check_plan
    from tangram.plan.json_io import read_plan, to_json
    from tangram.units import count_of

    doc = read_plan(plan)
    if json_only:
        print_text(to_json(doc))
        return
    from tangram.report.terminal import add_plan

    found = check_plan(doc)
    if found:
        note(f"this plan breaks {count_of(len(found), 'rule')}; tangram check {plan} lists them")
    print_page(lambda page: add_plan(page, doc, path=str(plan)))


def check_command(plan: PlanArgument, json_only: Json = False) -> None:
    """Validate a plan file: layers, GPUs, degrees, memory, times; exit code 2 when a rule is broken."""
    from tangram.plan.check import CHECKS, check_plan
    from tangram.plan.json_io import read_plan

    doc = read_plan(plan)
    checks = [check.__name__.removeprefix("check_") for check in CHECKS]
    found = check_plan(doc)
    if not found:
        from tangram.planner.recost import cost_violations

        found = cost_violations(doc)
        checks.append("costs")
    if json_only:
        violations = [{"code": v.code, "where": v.where, "message": v.message} for v in found]
        print_json({"ok": not found, "checks": checks, "violations": violations})
    else:
        print_text(_verdict(found, checks))
    if found:
        raise typer.Exit(EXIT_INVALID)


def simulate_command(plan: PlanArgument, trace: Trace = None, json_only: Json = False) -> None:
    """Run a plan's task graph in the simulator: when every stage works, waits and sends."""
    check_target(trace, "--trace")
    doc = _valid_plan(plan)
    from tangram.planner.recost import cost_violations, simulate_plan

    if cost_violations(doc):
        note(f"stage times in this file are not what the cost model says; tangram check {plan} tells where")
    timeline = simulate_plan(doc)
    if trace is not None:
        write_trace(doc, timeline, trace)
    if json_only:
        print_json(_timeline_json(doc, timeline))
        return
    from tangram.report.timeline import add_timeline

    print_page(lambda page: add_timeline(page, doc, timeline))


def schema_command() -> None:
    """Print the JSON Schema of plan files."""
    from tangram.plan.json_io import json_schema

    print_json(json_schema())


def _valid_plan(path: PlanArgument) -> PlanDocument:
    """Reads a plan and refuses one that breaks a rule: a simulation of it would mean nothing."""
    from tangram.errors import InputError
    from tangram.plan.check import check_plan
    from tangram.plan.json_io import read_plan

    doc = read_plan(path)
    found = check_plan(doc)
    if found:
        for violation in found[:5]:
            note(f"  {violation}")
        raise InputError(
            f"the plan breaks {len(found)} rule{'s' if len(found) > 1 else ''}",
            where=str(path),
            hint=f"tangram check {path} lists them",
        )
    return doc


def _verdict(found: list[Violation], checks: list[str]) -> str:
    if not found:
        return f"ok: {len(checks)} checks ({', '.join(checks)})\n"
    lines = [f"{len(found)} rule{'s' if len(found) > 1 else ''} broken"]
    lines += [one_line(f"  {violation}") for violation in found]
    return "\n".join(lines) + "\n"


def _timeline_json(doc: PlanDocument, timeline: Timeline) -> dict[str, object]:
    """Times in seconds; one entry per stage."""
    from tangram.units import NS_PER_S

    columns = zip(doc.stages, timeline.busy_ns, timeline.first_ns, timeline.last_ns, strict=True)
    return {
        "iteration_time_s": timeline.iteration_ns / NS_PER_S,
        "bubble_frac": timeline.idle_frac([len(s.ranks) for s in doc.stages]),
        "stages": [
            {
                "index": stage.index,
                "busy_s": busy / NS_PER_S,
                "first_start_s": first / NS_PER_S,
                "last_end_s": last / NS_PER_S,
            }
            for stage, busy, first, last in columns
        ],
    }
