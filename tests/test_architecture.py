"""The shape of the project: who may import whom, where effects live, sizes, and the public API."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

import tangram
from tangram._version import VERSION

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "tangram"

# From the bottom to the top; a room may import rooms of earlier rows only, and itself.
ROOMS = (
    ("_version", "errors"),
    ("units", "basis", "run_options"),
    ("job",),
    ("yaml_reader", "executors"),
    ("model", "cluster"),
    ("job_reader", "plan"),
    ("cost",),
    ("profiles",),
    ("simulate",),
    ("validation",),
    ("parallelizers",),
    ("baselines",),
    ("planner", "testing", "profiler"),
    ("runtime",),
    ("advise",),
    ("report",),
    ("cli",),
    ("",),  # the facade: src/tangram/__init__.py
)

MAX_MODULE_LINES = 600
MAX_FUNCTION_LINES = 60  # without its docstring

NEVER = {"torch", "ray", "plotly"}
# The homes, rooms or single modules, that may import some of them all the same, and the only modules that may
# import these homes.
OPTIONAL = {"profiler": {"torch"}, "runtime": {"torch"}, "executors.ray_cluster": {"ray"}}
USERS_OF_OPTIONAL = {
    "profiler": {"cli.profile", "report.measured"},
    "runtime": {"cli.run", "cli.tokenize"},
    "executors.ray_cluster": {"executors.choice"},
}

# Clocks, chance, and everything that reaches outside of the process.
EFFECTS = {
    "time",
    "datetime",
    "random",
    "secrets",
    "uuid",
    "os",
    "pathlib",
    "io",
    "stat",
    "shutil",
    "tempfile",
    "glob",
    "socket",
    "sqlite3",
    "subprocess",
    "multiprocessing",
    "concurrent",
    "threading",
    "asyncio",
    "signal",
    "sys",
    "logging",
    "urllib",
    "importlib.resources",
}

PURE_ROOMS = {
    "units",
    "basis",
    "job",
    "errors",
    "model",
    "cluster",
    "plan",
    "cost",
    "profiles",
    "simulate",
    "validation",
    "parallelizers",
    "baselines",
    "planner",
    "advise",
}

# The named corners of pure rooms in which effects live, and which ones.
CORNERS = {
    "model.hf": {"os", "pathlib"},
    "model.load": {"os", "pathlib"},
    "model.json_file": {"pathlib", "stat"},
    "model.presets": {"importlib.resources"},
    "cluster.readers": {"os", "pathlib"},
    "cluster.catalog": {"importlib.resources"},
    "plan.json_io": {"pathlib"},
    "cost.constants": {"importlib.resources"},
    "cost.calibration": {"pathlib"},
    "profiles.store": {"os", "pathlib", "sqlite3"},
    "profiles.peers": {"importlib.resources"},
    "profiles.exchange": {"io", "pathlib"},
    "profiles.importers.harvest": {"pathlib"},
    "profiles.importers.formats": {"pathlib"},
    "profiles.importers.csv_file": {"pathlib"},
    "profiles.importers.aceso": {"pathlib"},
    "profiles.importers.aceso_collectives": {"pathlib"},
    "profiles.importers.galvatron_hardware": {"pathlib"},
    "profiles.importers.galvatron_model": {"pathlib"},
    "profiles.importers.metis": {"pathlib"},
    "profiles.importers.nccl_tests": {"pathlib"},
    "profiles.importers.sailor": {"pathlib"},
    "profiles.importers.vtrain": {"pathlib"},
    "validation.reading": {"io", "pathlib"},
    "validation.parts": {"importlib.resources"},
    "parallelizers.guard": {"multiprocessing", "time"},
    "parallelizers.external.process": {"os", "pathlib", "signal", "subprocess"},
    "parallelizers.external.aceso": {"os", "pathlib", "sys", "tempfile"},
    "planner.planner": {"time"},
    "advise.compare": {"time"},
}

PUBLIC = [
    "load_model",
    "load_cluster",
    "Job",
    "plan",
    "simulate",
    "Plan",
    "TangramError",
    "InputError",
    "UnknownNameError",
    "InfeasibleError",
    "InternalError",
    "SlicePlanner",
    "StageTable",
    "ClusterPlanner",
    "Capabilities",
]


@dataclass(frozen=True)
class Module:
    name: str  # without "tangram."; "" is the facade
    path: Path
    text: str
    tree: ast.Module

    @property
    def room(self) -> str:
        return self.name.partition(".")[0]


@cache
def modules() -> tuple[Module, ...]:
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        text = path.read_text(encoding="utf-8")
        found.append(Module(name, path, text, ast.parse(text)))
    return tuple(found)


def imports(module: Module) -> Iterator[tuple[str, int]]:
    """Every imported module by its full name, wherever in the file it is imported."""
    own = {f"tangram.{other.name}".rstrip(".") for other in modules()}
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module.path}:{node.lineno}: imports are absolute here"
            base = node.module or ""
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                yield inner if inner in own or inner in EFFECTS else base, node.lineno


def home(name: str) -> str | None:
    """The entry of OPTIONAL that a module, named without "tangram.", belongs to."""
    return next((key for key in OPTIONAL if name == key or name.startswith(f"{key}.")), None)


def rank(room: str) -> int:
    return next(idx for idx, row in enumerate(ROOMS) if room in row)


@pytest.mark.parametrize("module", modules(), ids=lambda m: m.name or "facade")
def test_imports_point_down_only(module: Module) -> None:
    assert any(module.room in row for row in ROOMS), f"{module.name}: a new room needs a place in ROOMS"
    for name, line in imports(module):
        if name != "tangram" and not name.startswith("tangram."):
            continue
        room = name.partition(".")[2].partition(".")[0]
        allowed = room == module.room or rank(room) < rank(module.room)
        assert allowed, f"{module.path}:{line}: {module.room or 'the facade'} may not import {name}"


def test_the_plan_knows_nothing_of_planners() -> None:
    """A plan written by hand or by a peer is checked like one of ours."""
    for room, strangers in (("plan", {"job_reader"}), ("model", {"cluster"}), ("cluster", {"model"})):
        for module in modules():
            rooms = {name.split(".")[1] for name, _ in imports(module) if name.startswith("tangram.")}
            assert module.room != room or not rooms & strangers, module.path


@pytest.mark.parametrize("module", modules(), ids=lambda m: m.name or "facade")
def test_pure_rooms_have_no_effects(module: Module) -> None:
    roots = {name.partition(".")[0]: line for name, line in imports(module)}
    never = NEVER - OPTIONAL.get(home(module.name) or "", set())
    assert not never & roots.keys(), f"{module.path} imports {sorted(never & roots.keys())}"
    if module.room not in PURE_ROOMS:
        return
    found = {name if name in EFFECTS else name.partition(".")[0] for name, _ in imports(module)} & EFFECTS
    extra = found - CORNERS.get(module.name, set())
    assert not extra, f"{module.path} imports {sorted(extra)}; effects live in {sorted(CORNERS)}"
    if "pathlib" in found:
        return
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in {"open", "print", "input"}, (
                f"{module.path}:{node.lineno}: {node.func.id}()"
            )
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "np":
            assert node.attr != "random", f"{module.path}:{node.lineno}: np.random"


@pytest.mark.parametrize("module", modules(), ids=lambda m: m.name or "facade")
def test_optional_libraries_are_imported_when_needed_only(module: Module) -> None:
    """Nobody imports torch or ray by importing anything outside of its home: inside of functions at the
    earliest.
    """
    if home(module.name) is not None:
        return
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        names = [alias.name for alias in node.names]
        if isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(f"{node.module}.{name}" for name in names)]
        homes = {home(name.partition(".")[2]) for name in names if name.startswith("tangram.")}
        for other in homes - {None}:
            assert module.name in USERS_OF_OPTIONAL[other], f"{module.path}:{node.lineno} imports {names}"
            assert node not in module.tree.body, f"{module.path}:{node.lineno}: import it where it is needed"


def test_corners_are_not_wider_than_needed() -> None:
    known = {module.name: module for module in modules()}
    for name, effects in CORNERS.items():
        assert name in known, f"CORNERS names {name}, which does not exist"
        used = {full if full in EFFECTS else full.partition(".")[0] for full, _ in imports(known[name])}
        assert effects <= used, f"{name} no longer needs {sorted(effects - used)}"


@pytest.mark.parametrize("module", modules(), ids=lambda m: m.name or "facade")
def test_modules_and_functions_stay_small(module: Module) -> None:
    num_lines = len(module.text.splitlines())
    assert num_lines < MAX_MODULE_LINES, f"{module.path} has {num_lines} lines"
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef):
            docstring = node.body[0] if ast.get_docstring(node) is not None else None
            of_docstring = docstring.end_lineno - docstring.lineno + 1 if docstring else 0
            length = node.end_lineno - node.lineno + 1 - of_docstring
            assert length <= MAX_FUNCTION_LINES, f"{module.path}: {node.name} has {length} lines"


def test_modules_say_what_they_are_for() -> None:
    for module in modules():
        assert ast.get_docstring(module.tree), f"{module.path} has no docstring"
        for lineno, line in enumerate(module.text.splitlines(), 1):
            assert "TODO" not in line and "FIXME" not in line, f"{module.path}:{lineno}"  # noqa: PT018


def test_public_api_is_frozen() -> None:
    assert tangram.__all__ == PUBLIC
    for name in PUBLIC:
        assert callable(getattr(tangram, name)), name
        assert name in dir(tangram)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        tangram.nonsense  # noqa: B018
    from tangram import testing

    assert testing.__all__ == ["check_parallelizer"]


def test_plan_and_simulate_are_rooms_and_functions() -> None:
    """Whichever is imported first: the subpackages bear the functions' names."""
    import tangram.plan.schema
    import tangram.simulate.engine
    from tangram.planner.planner import plan
    from tangram.planner.recost import simulate_plan

    assert tangram.Plan is tangram.plan.schema.PlanDocument
    assert inspect.signature(tangram.plan) == inspect.signature(plan)
    assert inspect.signature(tangram.simulate) == inspect.signature(simulate_plan)
    assert callable(tangram.simulate.engine.simulate)


def test_importing_tangram_is_cheap() -> None:
    heavy = "{'numpy', 'pydantic', 'yaml', 'typer', 'rich'}"
    code = f"import sys, tangram; tangram.InputError; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_versions_agree() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == VERSION == tangram.__version__


def test_entry_points_name_what_is_built_in() -> None:
    from tangram.parallelizers.registry import GROUP, get_parallelizer

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for name, home in project["entry-points"][GROUP].items():
        kind = type(get_parallelizer(name))
        assert home == f"{kind.__module__}:{kind.__qualname__}"
