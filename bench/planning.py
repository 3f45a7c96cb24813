"""Measures what planning costs: cold, as a person types it, and warm, as a program calls it.

    python bench/planning.py            prints a table
    python bench/planning.py --write    also puts it into docs/benchmarks.md, with hardware and date
    python bench/planning.py --smoke    one run of everything, to see that it works
    python bench/planning.py --large    large clusters and a long model instead, one cold run each, with the
                                        proven gap

Cold is a new process from start to exit (imports, files, planning, printing), by its parent's wall
clock, with the processor time beside it; peak memory is that process's resident set as the kernel counts
it. Compiled modules are kept, as Python does unless told otherwise: the run that is not counted compiles.
Warm is ``tangram.plan`` alone in a process that has planned before. Times are records of one machine, never
assertions.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from markdown import DOCS, table, write_sections

ROOT = Path(__file__).parents[1]
MIB = 1024**2
COLUMNS = (
    "case",
    "cold process: median (range)",
    "of it processor",
    "peak memory",
    "warm `plan()`",
    "of it search",
    "predicted iteration",
    "default, cold",
    "its iteration",
    "beside",
)


@dataclass(frozen=True)
class Case:
    """One question: a job file, a cluster, and what it is compared with."""

    name: str
    job: str
    cluster: str
    beside: str


CASES = (
    Case(
        "gpt3-13b on c3-four-islands (20 GPUs, 4 islands, 40 layers)",
        "examples/jobs/fig11-gpt3-13b.yaml",
        "examples/clusters/c3-four-islands.yaml",
        "paper: 16.4 min",
    ),
    Case(
        "gpt3-13b on 16x A100 + 16x V100 (32 GPUs, 2 islands, 40 layers)",
        "examples/jobs/fig11-gpt3-13b.yaml",
        "2x8xA100-80GB-SXM+2x8xV100-32GB-SXM2@100Gbit",
        "Metis: 61 s on one core",
    ),
)


LARGE_COLUMNS = (
    "case",
    "cold process",
    "of it processor",
    "peak memory",
    "predicted iteration",
    "lower bound",
    "proven gap",
    "aim",
)
LARGE_CASES = (
    Case(
        "gpt3-175b on 512 GPUs in 6 islands (96 layers, 2,048 samples of 2,048 tokens)",
        "bench/large/gpt3-175b.yaml",
        "12x8xH100-80GB-SXM+12x8xA100-80GB-SXM+12x8xA100-40GB-SXM+12x8xV100-32GB-SXM2+8x8xL40S+8x8xA40@1600Gbit",
        "3 % within 10 s",
    ),
    Case(
        "llama-3-405b on 16,384 GPUs in 6 islands (126 layers, 2,048 samples of 8,192 tokens)",
        "bench/large/llama-3-405b.yaml",
        "400x8xH100-80GB-SXM+480x8xA100-80GB-SXM+320x8xA100-40GB-SXM+320x8xH200-141GB-SXM+272x8xH20-96GB"
        "+256x8xL40S@1600Gbit",
        "5 % within 60 s and 2 GiB",
    ),
    Case(
        "llama-3-70b on 64 H100 with 64 A100 (80 layers, 1,024 samples of 4,096 tokens)",
        "bench/large/llama-3-70b.yaml",
        "8x8xH100-80GB-SXM+8x8xA100-80GB-SXM@400Gbit",
        "seconds, with a proven gap",
    ),
    Case(
        "deepseek-v3 on 128 H100 with 128 H200 (61 layers, 1,024 samples of 4,096 tokens)",
        "bench/large/deepseek-v3.yaml",
        "16x8xH100-80GB-SXM+16x8xH200-141GB-SXM@400Gbit",
        "seconds, with a proven gap",
    ),
    Case(
        "three-kinds-10b on c3-two-islands (12 GPUs; 160 layers of three kinds)",
        "bench/large/three-kinds.yaml",
        "examples/clusters/c3-two-islands.yaml",
        "seconds, with a proven gap",
    ),
)


@dataclass(frozen=True)
class Cold:
    """One cold run."""

    wall_s: float
    cpu_s: float
    peak_bytes: int
    plan: dict[str, Any]


def cold_run(case: Case, *options: str) -> Cold:
    """Plans once in a process of its own, with further options of the command line."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.txt"
        saved = Path(folder) / "plan.json"
        arguments = ["plan", case.cluster, "--job", case.job, "-o", str(saved), *options]
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        code = "from tangram.cli.main import main; raise SystemExit(main())"
        with page.open("w") as out:
            began = time.perf_counter()
            command = [sys.executable, "-c", code, *arguments]
            process = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=out, env=environment)
            _, status, usage = os.wait4(process.pid, 0)
            wall_s = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(f"{case.name}: exit code {process.returncode}\n{page.read_text()}")
        # Linux counts kilobytes, macOS bytes.
        unit = 1 if sys.platform == "darwin" else 1024
        cpu_s = usage.ru_utime + usage.ru_stime
        return Cold(wall_s, cpu_s, usage.ru_maxrss * unit, json.loads(saved.read_text()))


def warm_runs(case: Case, repeats: int) -> tuple[list[dict[str, float]], float]:
    """Plans several times in this process; returns seconds by phase of each, and the predicted iteration."""
    from tangram.cli.inputs import read_inputs
    from tangram.cli.options import ChoiceOptions, JobOptions
    from tangram.planner.planner import plan

    asked = read_inputs(
        str(ROOT / case.cluster) if case.cluster.endswith(".yaml") else case.cluster,
        None,
        JobOptions(job_file=ROOT / case.job),
        ChoiceOptions(),
    )
    runs = []
    for _ in range(repeats + 1):
        phases: dict[str, float] = {}
        began = time.perf_counter()
        document = plan(asked.model, asked.cluster, asked.job, stats=phases)
        phases["wall_s"] = time.perf_counter() - began
        runs.append(phases)
    return runs[min(1, repeats) :], document.prediction.iteration_time_s


def row(
    case: Case, cold: list[Cold], auto: list[Cold], warm: list[dict[str, float]], iteration_s: float
) -> Sequence[str]:
    """Formats the cells of one line of the table."""
    walls = [run.wall_s for run in cold]
    return (
        case.name,
        f"{statistics.median(walls):.2f} s ({min(walls):.2f} to {max(walls):.2f})",
        f"{statistics.median(run.cpu_s for run in cold):.2f} s",
        f"{max(run.peak_bytes for run in cold) / MIB:.0f} MiB",
        f"{statistics.median(run['wall_s'] for run in warm):.2f} s",
        f"{statistics.median(run.get('search_s', 0.0) for run in warm):.2f} s",
        f"{iteration_s:.4g} s",
        f"{statistics.median(run.wall_s for run in auto):.2f} s",
        f"{auto[0].plan['prediction']['iteration_time_s']:.4g} s",
        case.beside,
    )


def large_row(case: Case, cold: Cold) -> Sequence[str]:
    """Formats the cells of one line about a large cluster."""
    bound = cold.plan["bound"]
    return (
        case.name,
        f"{cold.wall_s:.1f} s",
        f"{cold.cpu_s:.1f} s",
        f"{cold.peak_bytes / MIB:.0f} MiB",
        f"{cold.plan['prediction']['iteration_time_s']:.4g} s",
        f"{bound['lower_bound_s']:.4g} s",
        f"{100 * bound['gap_frac']:.1f} %",
        case.beside,
    )


def measure_large() -> str:
    """Measures every large cluster, once."""
    return table(LARGE_COLUMNS, [large_row(case, cold_run(case)) for case in LARGE_CASES])


def measure(repeats: int) -> str:
    """Measures every case; 0 repeats count the first run, which else is left out.

    All cold runs come first: a child's peak includes what its parent held when it forked.
    """
    exact, auto = (
        {case: [cold_run(case, *options) for _ in range(repeats + 1)][min(1, repeats) :] for case in CASES}
        for options in (("--parallelizer", "exact"), ())
    )
    rows = [row(case, exact[case], auto[case], *warm_runs(case, repeats)) for case in CASES]
    return table(COLUMNS, rows)


def conditions(repeats: int, flags: str = "") -> str:
    """Says where and when this was measured."""
    from importlib.metadata import version

    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1024**3
    parts = (
        f"{cpu_name()}, {os.cpu_count()} cores, {memory:.0f} GiB",
        f"{platform.system()} {platform.machine()}",
        f"Python {platform.python_version()}, numpy {version('numpy')}",
        f"{datetime.now(UTC):%Y-%m-%d}",
        f"{repeats} runs after one that is not counted" if repeats else "one run",
    )
    return f"Measured with `python bench/planning.py {flags}--write`: " + "; ".join(parts) + "."


def cpu_name() -> str:
    """Returns the processor's name, as far as the system tells it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown processor"


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures planning time and memory.")
    parser.add_argument("--repeats", type=int, default=5, help="runs that count (default: 5)")
    parser.add_argument("--write", action="store_true", help="put the table into docs/benchmarks.md")
    parser.add_argument("--smoke", action="store_true", help="one run of everything")
    parser.add_argument("--large", action="store_true", help="large clusters, one cold run each")
    arguments = parser.parse_args()
    if arguments.large:
        measured = measure_large()
        print(measured)
        if arguments.write:
            write_sections(DOCS / "benchmarks.md", {"large": f"{conditions(0, '--large ')}\n\n{measured}"})
        return
    repeats = 0 if arguments.smoke else max(1, arguments.repeats)
    measured = measure(repeats)
    print(measured)
    if arguments.write and repeats:
        write_sections(DOCS / "benchmarks.md", {"planning": f"{conditions(repeats)}\n\n{measured}"})


if __name__ == "__main__":
    main()
