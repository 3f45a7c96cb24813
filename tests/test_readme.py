"""What the pages say is so: links lead somewhere, examples run, options exist, the gate finds commands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import tangram
from tangram.cli.app import build_command
from tangram.cluster.readers import cluster_from_yaml
from tangram.yaml_reader import read_yaml

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


def block(language: str, holding: str) -> str:
    blocks = re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)
    return next(text for text in blocks if holding in text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_relative_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_both_commands_stand_on_lines_of_their_own() -> None:
    """.ci/run looks for them so, and runs what it finds."""
    start = r"^python3 -m venv \.venv && \.venv/bin/pip install .* && \.venv/bin/"
    plan = re.findall(start + r"tangram plan gpt3-13b (\S+)$", README, re.MULTILINE)
    assert plan == ["examples/clusters/a100-v100-mixed.yaml"]
    assert (ROOT / plan[0]).is_file()
    assert len(re.findall(start + r"python -m pytest$", README, re.MULTILINE)) == 1


def test_the_cluster_file_of_the_readme_is_one(tmp_path: Path) -> None:
    path = tmp_path / "my-cluster.yaml"
    path.write_text(block("yaml", "nodes:"), encoding="utf-8")
    cluster = cluster_from_yaml(read_yaml(path, "cluster file"), path.stem)
    assert cluster.num_gpus == 48


def test_shorthands_of_the_readme_are_clusters() -> None:
    found = re.findall(r"`([0-9]+x[0-9]+x[^`]+)`", README)
    assert found
    for text in found:
        assert tangram.load_cluster(text).num_gpus > 0


def test_options_of_the_pages_exist() -> None:
    commands = [*build_command().commands.values()]
    commands += [one for group in commands for one in getattr(group, "commands", {}).values()]
    known = {option for c in commands for p in c.params for option in (*p.opts, *p.secondary_opts)}
    known |= {
        "--help",
        "--full",
        "--write",
        "--smoke",
        "--only",
        "--pdb",
        "--large",
        "--quota",
    }  # of every command, of .ci/run, of scripts in bench, and of pytest
    known |= {
        "--nnodes",
        "--node-rank",
        "--nproc-per-node",
        "--no-python",
        "--rdzv-backend",
        "--rdzv-endpoint",
    }  # of torchrun
    for page in PAGES:
        for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", page.read_text(encoding="utf-8")):
            assert option in known, f"{page.name}: {option}"


def test_commands_of_the_readme_exist() -> None:
    names = set(re.findall(r"\btangram ([a-z]+)\b", block("bash", "tangram show"))) | {
        "plan",
        "estimate",
        "islands",
    }
    assert names <= set(build_command().commands)


def test_the_readme_shows_what_is_printed() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "bench" / "readme.py")], capture_output=True, encoding="utf-8", check=True
    )
    shown = block("text", "Pipeline:")
    assert shown == done.stdout, "python bench/readme.py --write puts the present output into the README"


def test_the_python_example_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT)
    exec(block("python", "tangram.plan("), {})
    assert float(capsys.readouterr().out) > 0
