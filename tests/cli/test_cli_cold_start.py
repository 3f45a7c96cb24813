"""What a command may import: a plan within a second includes the start of Python."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import os, sys
sys.stdout = open(os.devnull, "w")
from tangram.cli.main import main
main(sys.argv[1:])
print(*sorted(sys.modules), file=sys.stderr)
"""


def imported(*argv: str) -> set[str]:
    done = subprocess.run([sys.executable, "-c", SCRIPT, *argv], capture_output=True, check=True, timeout=60)
    return set(done.stderr.decode().splitlines()[-1].split())


def test_the_version_needs_nothing_heavy() -> None:
    heavy = {"numpy", "pydantic", "rich", "yaml", "tangram.planner.planner", "torch", "sqlite3"}
    assert not imported("--version") & heavy
    assert not imported("--help") & heavy


@pytest.mark.parametrize("command", ["gpus", "plan gpt3-1.3b 1x2xA100-40GB-SXM --global-batch 8"])
def test_pages_need_only_the_core_of_rich(command: str) -> None:
    heavy = {
        "rich.markdown",
        "rich.syntax",
        "rich.table",
        "pygments",
        "markdown_it",
        "typer.rich_utils",
        "asyncio",
        "torch",
    }
    assert not imported(*command.split()) & heavy


def test_nothing_is_looked_through_for_garbage_when_the_process_ends_and_nothing_else_is_frozen() -> None:
    script = "import gc, sys; from tangram.cli.main import main; main({}); print(gc.get_freeze_count())"
    for call, frozen in (("", True), ("['--version']", False)):
        command = [sys.executable, "-c", script.format(call), "--version"]
        done = subprocess.run(command, capture_output=True, check=True, timeout=60)
        assert (int(done.stdout.split()[-1]) > 1_000) is frozen


@pytest.mark.parametrize("command", ["plan", "islands", "profiles list"])
def test_of_other_commands_nothing_is_built(command: str) -> None:
    others = {"tangram.cli.calibrate", "tangram.cli.run", "tangram.cli.tokenize"}
    assert not imported(*command.split(), "--help") & others
    assert others <= imported("--help")
