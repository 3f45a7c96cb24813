"""The worked example of docs/adding-a-parallelizer.md keeps its promises, and plans once it is installed."""

import importlib.util
import re
import shutil
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import tangram
from tangram.cli.main import main
from tangram.job import Job, Pins, Precision, Recompute
from tangram.parallelizers.protocols import SliceRequest
from tangram.parallelizers.registry import GROUP, get_parallelizer, parallelizer_names
from tangram.planner.options import PlanOptions
from tangram.testing import check_parallelizer
from tangram.testing.cases import slice_cases

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "parallelizers"
PAGE = (ROOT / "docs" / "adding-a-parallelizer.md").read_text(encoding="utf-8")
CLUSTER = "1x2xA100-40GB-SXM+1x2xV100-16GB-SXM2@100Gbit"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What an installer makes of the example: the module, and the entry points of its pyproject."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    name, version = project["name"].replace("-", "_"), project["version"]
    info = tmp_path / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {version}\n")
    lines = [f"{key} = {value}" for key, value in project["entry-points"][GROUP].items()]
    (info / "entry_points.txt").write_text("\n".join([f"[{GROUP}]", *lines]) + "\n")
    shutil.copy(EXAMPLE / "fully_sharded.py", tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("fully_sharded", None)


def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fully_sharded_example", EXAMPLE / "fully_sharded.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_keeps_its_promises() -> None:
    check_parallelizer(example().FullyShardedPlanner())


def requests() -> list[SliceRequest]:
    return [case.request for case in slice_cases(example().FullyShardedPlanner.capabilities)]


def test_every_stage_is_fully_sharded_and_recomputes_as_little_as_possible() -> None:
    """Against trying every number of layers; on tight GPUs some are needed."""
    module, seen = example(), set()
    for request in requests():
        for config in module.configs(request):
            assert (config.dp, config.tp, config.cp, config.ep) == (request.portion.num_gpus, 1, 1, 1)
            assert config.zero == 3 or request.portion.num_gpus == 1
            found = module.least_recomputed(request, config)
            inner = [place for place, atom in enumerate(request.slice) if atom.layer_idxs]
            fitting = []
            for number in range(len(inner) + 1):
                marks = tuple(place in inner[:number] for place in range(len(request.slice)))
                stage = module.StageChoice(request.start, request.stop, request.portion, config, marks)
                cost = module.recost(request, stage, request.in_flight)
                fitting += [number] if cost.peak_bytes <= cost.capacity_bytes else []
            assert (sum(found.recomputed) if found else None) == (fitting[0] if fitting else None)
            seen.add(fitting[0] if fitting else None)
    assert {0, None} < seen


@pytest.mark.usefixtures("installed")
def test_it_plans_once_it_is_installed() -> None:
    assert "fully-sharded" in parallelizer_names()
    assert get_parallelizer("fully-sharded").name == "fully-sharded"
    job = Job(64, 1024, Precision.FP16, pins=Pins(micro_batch=4))
    plan = tangram.plan(
        tangram.load_model("gpt3-1.3b"),
        tangram.load_cluster(CLUSTER),
        job,
        PlanOptions(parallelizers=("fully-sharded",)),
    )
    stages = plan.pipelines[0].stages
    assert len(stages) > 1
    assert all(stage.zero == 3 or len(stage.ranks) == 1 for stage in stages)
    assert all(stage.mesh.sizes == [len(stage.ranks), 1, 1] for stage in stages)
    assert not [a for a in plan.assumptions if "skipped" in a.what]


@pytest.mark.usefixtures("installed")
def test_it_obeys_the_user() -> None:
    model, cluster = tangram.load_model("gpt3-1.3b"), tangram.load_cluster("1x4xA100-40GB-SXM")
    pins = Pins(micro_batch=4, recompute=Recompute.FULL)
    options = PlanOptions(parallelizers=("fully-sharded",))
    plan = tangram.plan(model, cluster, Job(64, 1024, Precision.FP16, pins=pins), options)
    modes = [atom.mode for stage in plan.pipelines[0].stages for atom in stage.recompute if atom.layers]
    assert modes == [Recompute.FULL] * model.num_layers
    pins = Pins(micro_batch=4, tp=2)
    with pytest.raises(tangram.InfeasibleError):
        tangram.plan(model, cluster, Job(64, 1024, Precision.FP16, pins=pins), options)


@pytest.mark.usefixtures("installed")
def test_the_command_line_knows_it(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "gpt3-1.3b", CLUSTER, "--parallelizer", "fully-sharded", "--global-batch", "64"]
    assert main([*words, "--seq-len", "1024", "--micro-batch", "4", "--precision", "fp16"]) == 0
    assert "Parallelizer fully-sharded" in capsys.readouterr().out


def test_the_page_shows_the_example_as_it_is() -> None:
    blocks = re.findall(r"```(?:python|toml)\n(.*?)```", PAGE, flags=re.DOTALL)
    code = (EXAMPLE / "fully_sharded.py").read_text(encoding="utf-8")
    assert code in blocks
    assert len(code.splitlines()) <= 100
    declared = tomllib.loads((EXAMPLE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    shown = [tomllib.loads(block) for block in blocks if block.startswith("[project.entry-points")]
    assert [block["project"]["entry-points"] for block in shown] == [declared["entry-points"]]


def test_the_page_names_every_capability() -> None:
    for name in tangram.Capabilities.__dataclass_fields__:
        assert f"| `{name}` |" in PAGE
