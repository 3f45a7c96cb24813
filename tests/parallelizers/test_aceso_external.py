"""Aceso's own search as a subprocess: a stand-in that speaks the same files, and the real one where it is.

The real one runs where ``TANGRAM_ACESO`` names a checkout; the searches of the test are short.
"""

import json
import os
import pickle
import re
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from test_external_process import ends_soon

import tangram
from tangram.cluster.islands import build_islands
from tangram.cluster.spec import Portion
from tangram.errors import InputError
from tangram.job import Job, Pins, Precision, Recompute
from tangram.model.atoms import Granularity, cut_atoms
from tangram.parallelizers.external import aceso
from tangram.parallelizers.external.aceso import (
    BUDGET,
    FOLDER,
    PYTHON,
    AcesoCheckout,
    Checkout,
    allowed_degrees,
    stage_counts,
)
from tangram.parallelizers.external.process import ProgramError
from tangram.parallelizers.guard import RejectionKind, guarded_plan
from tangram.parallelizers.invariants import plan_faults
from tangram.parallelizers.protocols import SlicePlan, SlicePlanner, SliceRequest
from tangram.parallelizers.registry import get_parallelizer, parallelizer_names
from tangram.planner.options import PlanOptions
from tangram.testing import check_parallelizer

STAND_IN = Path(__file__).parent / "aceso_stand_in"
REAL = os.environ.get(FOLDER)

needs_real = pytest.mark.skipif(not REAL, reason=f"{FOLDER} names no checkout of Aceso")


@pytest.fixture(autouse=True)
def _stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every test asks the stand-in, with nothing remembered."""
    for name in (PYTHON, BUDGET, "STAND_IN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(FOLDER, str(STAND_IN))
    aceso._searched.cache_clear()
    yield
    aceso._searched.cache_clear()


def request(
    model: str = "gpt3-1.3b",
    cluster: str = "1x4xV100-32GB-SXM2",
    micro_batch: int = 4,
    granularity: str = "layer",
    pins: Pins = Pins(),
    num_gpus: int | None = None,
) -> SliceRequest:
    spec = tangram.load_model(model)
    island = build_islands(tangram.load_cluster(cluster), Precision.FP16)[0]
    atoms = cut_atoms(spec, Granularity(granularity))
    portion = Portion(island, island.num_nodes, island.gpus_per_node)
    if num_gpus is not None:
        portion = Portion(island, 1, num_gpus)
    job = Job(micro_batch * 16, 2048, Precision.FP16, pins=pins)
    return SliceRequest(spec, atoms, 0, len(atoms), portion, micro_batch, 16, 1, None, None, job)


def degrees(plans: Sequence[SlicePlan]) -> set[tuple[int, int]]:
    return {(stage.config.tp, stage.config.dp) for plan in plans for stage in plan.stages}


def asked_for(log: Path) -> list[dict[str, list[str]]]:
    """The options of every run, by name."""
    runs = []
    for line in log.read_text().splitlines():
        options: dict[str, list[str]] = {}
        for word in json.loads(line):
            if word.startswith("--"):
                options[word] = last = []
            else:
                last.append(word)
        runs.append(options)
    return runs


def test_it_keeps_its_promises() -> None:
    check_parallelizer(get_parallelizer("aceso-external"))


@pytest.mark.parametrize("granularity", ["operator", "block", "layer", "4"])
def test_plans_of_a_real_size(granularity: str) -> None:
    kind, number = ("layer", int(granularity)) if granularity.isdigit() else (granularity, 1)
    asked = request()
    asked = replace(asked, atoms=cut_atoms(asked.model, Granularity(kind, number)))
    asked = replace(asked, stop=len(asked.atoms))
    plans = AcesoCheckout().plan(asked)
    assert {len(plan.stages) for plan in plans} >= {1, 2, 4}
    for plan in plans:
        assert not plan_faults(asked, plan)
        assert sum(stage.portion.num_gpus for stage in plan.stages) == 4


def test_the_program_is_asked_what_the_request_asks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STAND_IN_LOG", str(tmp_path / "log"))
    monkeypatch.setenv(BUDGET, "12")
    AcesoCheckout().plan(request(cluster="2x4xV100-32GB-SXM2", micro_batch=12))
    (options,) = asked_for(tmp_path / "log")
    assert options["--micro-batch-size"] == ["12", "6", "3"]  # The first is the one that stays.
    assert options["--global-batch-size"] == ["192"]
    assert options["--num-layers"] == ["24"]
    assert (options["--num-nodes"], options["--num-gpus-per-node"]) == (["2"], ["4"])
    assert (options["--start-num-stages"], options["--end-num-stages"]) == (["1"], ["8"])
    assert options["--max-tp"] == ["4"]
    assert (options["--initial-point"], options["--op-group-size"]) == (["imbalance_op"], ["13"])
    assert options["--time-budget-total"] == ["9"]
    assert 20_000 < int(options["--memory-limit"][0]) < 32 * 1024
    assert not Path(options["--config-save-path"][0]).exists()  # Nothing is left.


def test_equal_questions_run_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of one process, also where atoms stand elsewhere in memory."""
    monkeypatch.setenv("STAND_IN_LOG", str(tmp_path / "log"))
    first, again = AcesoCheckout().plan(request()), AcesoCheckout().plan(request())
    assert first == again
    assert len(asked_for(tmp_path / "log")) == 1
    AcesoCheckout().plan(request(micro_batch=8))
    assert len(asked_for(tmp_path / "log")) == 2


@pytest.mark.parametrize(
    ("pins", "expected"),
    [
        (Pins(tp=2), {(2, 1), (2, 2)}),
        (Pins(dp=2), {(1, 2), (2, 2)}),
        (Pins(tp=1, dp=1), {(1, 1)}),
        (Pins(tp=4), {(4, 1)}),
    ],
)
def test_dictated_degrees(pins: Pins, expected: set[tuple[int, int]]) -> None:
    asked = request(pins=pins)
    assert allowed_degrees(asked) == expected
    plans = AcesoCheckout().plan(asked)
    assert plans
    assert degrees(plans) <= expected
    assert not [fault for plan in plans for fault in plan_faults(asked, plan)]


@pytest.mark.parametrize("pins", [Pins(pp=2), Pins(zero=1), Pins(recompute=Recompute.FULL), Pins(zero=3)])
def test_other_choices_of_the_user(pins: Pins) -> None:
    asked = request(pins=pins)
    plans = AcesoCheckout().plan(asked)
    assert plans
    assert not [fault for plan in plans for fault in plan_faults(asked, plan)]
    assert {len(plan.stages) for plan in plans} == {2} or pins.pp is None


@pytest.mark.parametrize("mode", [Recompute.NONE, Recompute.SELECTIVE])
def test_no_full_recomputation(mode: Recompute) -> None:
    asked = request(cluster="1x4xA100-80GB-SXM", micro_batch=1, pins=Pins(recompute=mode))
    plans = AcesoCheckout().plan(asked)
    assert plans
    assert not [fault for plan in plans for fault in plan_faults(asked, plan)]


def test_what_cannot_be_is_not_asked() -> None:
    """Degrees that do not divide what they have to, more stages than atoms or GPUs."""
    asked = request(micro_batch=3)
    assert allowed_degrees(asked) == {(1, 1), (2, 1), (4, 1)}
    assert stage_counts(asked) == range(1, 5)
    assert stage_counts(request(pins=Pins(pp=4))) == range(4, 5)
    assert not stage_counts(request(pins=Pins(pp=5)))
    assert AcesoCheckout().plan(request(pins=Pins(pp=5))) == []
    assert AcesoCheckout().plan(request(pins=Pins(tp=3))) == []
    assert stage_counts(request(cluster="4x8xV100-32GB-SXM2")) == range(1, 17)


def unequal(asked: SliceRequest) -> SliceRequest:
    """The last layer looks at a window."""
    *layers, last = asked.model.layers
    windowed = replace(last, attention=replace(last.attention, window=512))
    model = replace(asked.model, layers=(*layers, windowed))
    return replace(asked, model=model, atoms=cut_atoms(model))


def outside(asked: SliceRequest) -> dict[str, SliceRequest]:
    return {
        "slices without embedding or head": replace(asked, start=1),
        "pipelines that others continue": replace(asked, in_flight=2),
        "experts": request("mixtral-8x7b"),
        "layers that differ": unequal(asked),
        "context parallelism": request(pins=Pins(cp=2)),
        "dictated layers per stage": request(pins=Pins(layers_per_stage=(12, 12))),
        "offload": request(pins=Pins(offload="optimizer")),
        "6 GPUs": request(cluster="3x2xV100-32GB-SXM2"),
    }


@pytest.mark.parametrize(
    "what",
    [
        "slices without embedding or head",
        "pipelines that others continue",
        "experts",
        "layers that differ",
        "context parallelism",
        "dictated layers per stage",
        "offload",
        "6 GPUs",
    ],
)
def test_what_the_program_cannot_do_is_said(what: str) -> None:
    asked = outside(request())[what]
    with pytest.raises(InputError, match=re.escape(f"{asked.model.name}: Aceso cannot plan {what}")):
        AcesoCheckout().plan(asked)


FAILURES = {
    "crash": r"^Aceso's search ended with status 1: IndexError: list index out of range",
    "garbage": r"^Aceso's plan .*1stages.*\.json:\d+:\d+: broken JSON",
    "other-micro-batch": r"^Aceso's plan .* is no answer: it is for a micro-batch of 8, not 4",
    "lost-operator": r"^Aceso's plan .* is no answer: it has 314 operators, the model 315",
    "mixed": r"^Aceso's plan .*: stage 0 mixes degrees",
    "no-degrees": r"^Aceso's plan .*: data_parallel_size_of_each_op is missing",
}


@pytest.mark.parametrize("mode", FAILURES)
def test_failures_are_one_clear_message_each(monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    """The guard reports them by name."""
    monkeypatch.setenv("STAND_IN", mode)
    planner = AcesoCheckout()
    with pytest.raises(ProgramError, match=FAILURES[mode]):
        planner.plan(request())
    answer = guarded_plan(planner, request())
    assert not answer.plans
    (rejection,) = answer.rejections
    assert rejection.kind is RejectionKind.RAISED
    assert str(rejection).startswith("parallelizer 'aceso-external' skipped for gpt3-1.3b, atoms 0 to 26")
    assert "\n" not in str(rejection)


def test_a_search_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STAND_IN", "hang")
    monkeypatch.setenv("STAND_IN_PID", str(tmp_path / "pid"))
    monkeypatch.setenv(BUDGET, "2")
    began = time.monotonic()
    with pytest.raises(ProgramError, match=r"^Aceso's search did not end within its 2 s and was ended$"):
        AcesoCheckout().plan(request())
    assert time.monotonic() - began < 15
    assert ends_soon(int((tmp_path / "pid").read_text()))


def test_a_search_that_finds_nothing_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN", "nothing")
    assert AcesoCheckout().plan(request()) == []


def test_a_python_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PYTHON, "/no/such/python")
    with pytest.raises(ProgramError, match=r"^/no/such/python cannot be started"):
        AcesoCheckout().plan(request())


@pytest.mark.parametrize("folder", ["", "/no/such/folder"])
def test_without_a_checkout_there_is_a_hint(monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    monkeypatch.setenv(FOLDER, folder)
    with pytest.raises(InputError, match=r"aceso_search\.py") as caught:
        get_parallelizer("aceso-external")
    assert caught.value.hint is not None
    assert f"set {FOLDER}" in caught.value.hint
    assert "aceso-external" in parallelizer_names()


@pytest.mark.parametrize("text", ["soon", "0", "-1", "nan", "inf", "1.5"])
def test_a_time_limit_has_to_be_one(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(BUDGET, text)
    with pytest.raises(InputError, match=rf"{BUDGET}: '{text}' is no time limit"):
        AcesoCheckout()


def test_the_environment_says_what_runs(tmp_path: Path) -> None:
    (tmp_path / "search").mkdir()
    (tmp_path / "search" / "aceso_search.py").write_text("", encoding="utf-8")
    environment = {FOLDER: str(tmp_path), PYTHON: "python3.9", BUDGET: "7.5"}
    inside = Checkout.of(environment)
    assert inside == Checkout(tmp_path / "search" / "aceso_search.py", "python3.9", 7.5)
    assert Checkout.of(environment | {FOLDER: str(tmp_path / "search")}) == inside
    assert Checkout.of({FOLDER: str(tmp_path)}).python == sys.executable


def test_capabilities_say_what_an_unmodified_program_can_do() -> None:
    planner = get_parallelizer("aceso-external")
    assert isinstance(planner, SlicePlanner)
    able = planner.capabilities
    assert not any((able.partial_slices, able.later_positions, able.moe, able.deterministic))
    assert able.gpu_counts == {1, 2, 4, 8, 16, 32, 64, 128}
    assert able.seconds_per_query == 20
    assert pickle.loads(pickle.dumps(planner)).plan(request()) == planner.plan(request())


def test_plans_through_the_planner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the planner asks lies within the capabilities, and the plan is the program's."""
    requests: list[SliceRequest] = []
    real = AcesoCheckout.plan

    def plan(self: AcesoCheckout, request: SliceRequest) -> Sequence[SlicePlan]:
        requests.append(request)
        return real(self, request)

    monkeypatch.setattr(AcesoCheckout, "plan", plan)
    cluster = tangram.load_cluster("1x4xV100-32GB-SXM2+1x3xT4@100Gbit")
    job = Job(16, 2048, Precision.FP16, pins=Pins(micro_batch=2))
    found = tangram.plan(
        tangram.load_model("gpt3-1.3b"), cluster, job, PlanOptions(parallelizers=("aceso-external",))
    )
    assert {stage.zero for stage in found.pipelines[0].stages} == {0}
    assert not [a for a in found.assumptions if "skipped" in a.what]
    assert requests
    able = AcesoCheckout().capabilities
    for asked in requests:
        assert (asked.start, asked.stop, asked.in_flight) == (0, len(asked.atoms), 1)
        assert able.gpu_counts is not None
        assert asked.portion.num_gpus in able.gpu_counts


def test_the_search_goes_on_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN", "crash")
    model, cluster = tangram.load_model("gpt3-1.3b"), tangram.load_cluster("1x2xV100-32GB-SXM2")
    job = Job(8, 2048, Precision.FP16, pins=Pins(micro_batch=2))
    alone = tangram.plan(model, cluster, job, PlanOptions(parallelizers=("uniform",)))
    both = tangram.plan(model, cluster, job, PlanOptions(parallelizers=("aceso-external", "uniform")))
    assert both.pipelines == alone.pipelines
    said = [a.what for a in both.assumptions if "'aceso-external'" in a.what]
    assert len(said) == 1
    assert "IndexError: list index out of range" in said[0]


@needs_real
def test_the_real_search_keeps_its_promises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER, str(REAL))
    monkeypatch.setenv(BUDGET, "4")
    check_parallelizer(get_parallelizer("aceso-external"))


@needs_real
def test_the_real_search_plans_a_model_of_a_real_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """It beats the plan that it starts with: one layer per stage, all others on the last one."""
    monkeypatch.setenv(FOLDER, str(REAL))
    monkeypatch.setenv(BUDGET, "8")
    asked = request()
    before = sorted(path.name for path in Path(str(REAL)).rglob("*"))
    plans = AcesoCheckout().plan(asked)
    assert sorted(path.name for path in Path(str(REAL)).rglob("*")) == before
    assert not [fault for plan in plans for fault in plan_faults(asked, plan)]
    by_number = {len(plan.stages): plan for plan in plans}
    assert {2, 4} <= by_number.keys()
    sizes = [stage.stop - stage.start for stage in by_number[4].stages]
    assert max(sizes) - min(sizes) <= 4
