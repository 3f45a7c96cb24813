"""Emulated mixed clusters on one machine: is the preferred plan the fastest, and as fast as predicted?

    python bench/emulate.py            prints tables
    python bench/emulate.py --write    also puts them into docs/benchmarks.md, with hardware and date
    python bench/emulate.py --smoke    one cluster, one step, to see that it works
    python bench/emulate.py --quota    slows processes down by processor time (cgroup v1, as root) instead

Every case profiles its kinds of GPU by running them, plans on that profile, and runs the plan and others on
CPU ranks through gloo; emulate_ranks.py says how passes and links are slowed down. What is emulated is time:
the training itself is real. Needs the extra "train". As root, ranks that wake up go before other work on the
machine; else, and with --quota, that work shows in the figures.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import median

import emulate_quota
from emulate_plans import Candidate, alternatives, preferred, profile
from emulate_ranks import Ranks
from emulate_world import WORLDS, World
from markdown import DOCS, table, write_sections
from tangram.plan.schema import PlanDocument
from tangram.profiles.measured import MeasuredLayers
from tangram.profiles.records import LayerTime
from tangram.units import format_duration


@dataclass(frozen=True)
class Effort:
    """How much is run: turns of all plans, steps that count of each turn, and alternatives at most."""

    turns: int
    steps: int
    most: int


USUAL, WITH_QUOTAS, SMOKE = Effort(2, 2, 7), Effort(1, 2, 5), Effort(1, 1, 2)
COLUMNS = ("plan", "stages", "micro-batch", "windows", "predicted", "measured", "difference")


@dataclass(frozen=True)
class Row:
    """A plan, predicted and measured; the first of a world is the preferred one."""

    candidate: Candidate
    measured_s: float

    @property
    def predicted_s(self) -> float:
        return self.candidate.plan.prediction.iteration_time_s

    @property
    def difference(self) -> float:
        return self.measured_s / self.predicted_s - 1


def run_world(world: World, ranks: Ranks, known: dict[str, list[LayerTime]], effort: Effort) -> list[Row]:
    """Profiles, plans and runs; plans take turns, so that a disturbance does not hit one of them alone."""
    measured = MeasuredLayers.of(profile(world, ranks, known))
    best = preferred(world, measured)
    candidates = [Candidate("preferred", best), *alternatives(world, measured, best)[: effort.most]]
    seconds: dict[str, list[float]] = {candidate.name: [] for candidate in candidates}
    for _ in range(effort.turns):
        for candidate in candidates:
            seconds[candidate.name] += ranks.run(candidate.plan, world, effort.steps).step_s
    return [Row(candidate, median(seconds[candidate.name])) for candidate in candidates]


def shown(plan: PlanDocument) -> str:
    """Stages in few words: GPUs and layers."""
    return ", ".join(
        f"{len(stage.ranks)}x {stage.ranks[0].gpu} {stage.layers[1] - stage.layers[0]}"
        for stage in plan.stages
    )


def rows_table(rows: Sequence[Row]) -> str:
    cells = [
        (
            row.candidate.name,
            shown(row.candidate.plan),
            str(row.candidate.plan.pipelines[0].micro_batch),
            "/".join(map(str, row.candidate.plan.pipelines[0].schedule.in_flight)),
            format_duration(row.predicted_s),
            format_duration(row.measured_s),
            f"{100 * row.difference:+.1f} %",
        )
        for row in rows
    ]
    return table(COLUMNS, cells)


def verdict(rows: Sequence[Row]) -> str:
    """Whether the preferred plan was the fastest, and how far off predictions were."""
    fastest = min(rows, key=lambda row: row.measured_s)
    off = median(abs(row.difference) for row in rows)
    first = "is the fastest" if fastest is rows[0] else f"is not the fastest: {fastest.candidate.name} is"
    return (
        f"The preferred plan {first} of {len(rows)}; predictions are off by {100 * off:.1f} % in the median."
    )


def machine() -> str:
    now = datetime.now(UTC).date().isoformat()
    import torch

    return (
        f"{platform.machine()}, {os.cpu_count()} cores; {platform.system()}; "
        f"Python {platform.python_version()}, torch {torch.__version__}; {now}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Runs plans on emulated mixed clusters.")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/benchmarks.md")
    parser.add_argument("--smoke", action="store_true", help="one cluster, one step")
    parser.add_argument("--quota", action="store_true", help="slow processes down by processor time, as root")
    given = parser.parse_args(arguments)
    worlds = WORLDS[:1] if given.smoke else WORLDS
    effort = SMOKE if given.smoke else WITH_QUOTAS if given.quota else USUAL
    if given.quota and (reason := emulate_quota.why_not()) is not None:
        print(f"no quotas here: {reason}")
        return 0
    how = " --quota" if given.quota else ""
    parts = [f"Measured with `python bench/emulate.py{how} --write`: {machine()}."]
    with ExitStack() as stack:
        ranks = stack.enter_context(Ranks())
        if given.quota:
            ranks.slow_by(stack.enter_context(emulate_quota.Quotas(ranks.pids)).set)
            worlds = tuple(emulate_quota.heavier(world) for world in worlds)
        known: dict[str, list[LayerTime]] = {}
        for world in worlds:
            rows = run_world(world, ranks, known, effort)
            gpus = ", ".join(f"{host.num_gpus}x {host.kind.name}" for host in world.hosts)
            parts += [
                f"**{world.name}** ({gpus}, {world.num_layers} layers). {verdict(rows)}",
                rows_table(rows),
            ]
            print("\n\n".join(parts[-2:]), flush=True)
    if given.write:
        name = "emulate-quota" if given.quota else "emulate"
        write_sections(DOCS / "benchmarks.md", {name: "\n\n".join(parts)})
    return 0


if __name__ == "__main__":
    sys.exit(main())
