"""Parallelizers by name: built in, from packages, unknown, and broken."""

import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest

from tangram.errors import InputError, UnknownNameError
from tangram.parallelizers import registry
from tangram.parallelizers.exact import ExactStageTable
from tangram.parallelizers.registry import get_parallelizer, parallelizer_names
from tangram.parallelizers.uniform import UniformPlanner


class Own(UniformPlanner):
    name = "own"


def not_a_planner() -> object:
    return object()


def register(monkeypatch: pytest.MonkeyPatch, **values: str) -> None:
    entries = [EntryPoint(name.replace("_", "-"), value, registry.GROUP) for name, value in values.items()]
    monkeypatch.setattr(
        "importlib.metadata.entry_points", lambda group: entries if group == registry.GROUP else []
    )


def test_built_in() -> None:
    assert isinstance(get_parallelizer("exact"), ExactStageTable)
    assert isinstance(get_parallelizer("uniform"), UniformPlanner)
    assert parallelizer_names()[:2] == ["exact", "uniform"]
    assert len(set(parallelizer_names())) == len(parallelizer_names())


def test_built_in_needs_no_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: pytest.fail("scanned"))
    assert get_parallelizer("exact").name == "exact"


def test_cold_import_is_light() -> None:
    code = "import sys, tangram.parallelizers.registry; print('tangram.parallelizers.exact' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_from_a_package(monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, own=f"{__name__}:Own", exact=f"{__name__}:Own")
    assert isinstance(get_parallelizer("own"), Own)
    assert isinstance(get_parallelizer("exact"), ExactStageTable)
    assert parallelizer_names()[-1] == "own"
    assert parallelizer_names().count("exact") == 1


def test_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch)
    with pytest.raises(UnknownNameError, match=r"--parallelizer: unknown parallelizer 'exakt'.*'exact'"):
        get_parallelizer("exakt")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("no_such_package:Planner", "ModuleNotFoundError"),
        (f"{__name__}:missing", "AttributeError"),
        (f"{__name__}:not_a_planner", "none of the protocols"),
    ],
)
def test_broken_package(monkeypatch: pytest.MonkeyPatch, value: str, said: str) -> None:
    register(monkeypatch, theirs=value)
    assert "theirs" in parallelizer_names()
    with pytest.raises(InputError, match=said) as caught:
        get_parallelizer("theirs")
    assert "'theirs'" in str(caught.value)
