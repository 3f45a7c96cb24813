"""Ray: the same plan as in this process, also when a worker or a whole node is killed in the middle.

Runs where Ray is installed (``pip install -e '.[test,ray]'``); it starts a few processes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import errands
import pytest
from errands import Mortal, marks
from executor_plans import plan_with

from tangram.errors import InputError, InternalError
from tangram.executors.choice import ExecutorChoice, ExecutorKind, new_executor
from tangram.executors.protocol import Errand, Executor, Lost
from tangram.plan.json_io import to_json

pytest.importorskip("ray", reason="Ray is not installed: pip install -e '.[test,ray]'")

pytestmark = [
    pytest.mark.slow,
    # Of Ray's own client code; what is ours is imported before, and still raises.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

INLINE = ExecutorChoice(ExecutorKind.INLINE)
RAY = ExecutorChoice(ExecutorKind.RAY)


@pytest.fixture(scope="module")
def two_workers() -> Iterator[None]:
    """A cluster of this machine with two CPUs, which executors find and leave running."""
    import ray

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)]))
        ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        yield
        ray.shutdown()


@pytest.fixture
def executor(two_workers: None) -> Iterator[Executor]:
    executor = new_executor(RAY)
    yield executor
    executor.close()


def test_results_come_in_the_order_of_the_items(executor: Executor, tmp_path: Path) -> None:
    items = list(range(30, 0, -1))
    for seconds_each in (0.001, 5.0):
        errand = Errand(errands.squares, (str(tmp_path),), items, seconds_each)
        assert executor.run(errand) == [item * item for item in items]
    assert executor.run(Errand(errands.squares, (str(tmp_path),), [], 1.0)) == []


def test_a_killed_worker_costs_what_it_had_in_hand_only(executor: Executor, tmp_path: Path) -> None:
    errand = Errand(errands.squares_after_a_death, (str(tmp_path), 4), list(range(9)), 5.0)
    assert executor.run(errand) == [item * item for item in range(9)]
    assert [len(marks(tmp_path, str(item))) for item in range(9)] == [1, 1, 1, 1, 2, 1, 1, 1, 1]


def test_an_item_that_kills_its_workers_is_lost_alone(executor: Executor) -> None:
    found = executor.run(Errand(errands.squares_but_one, (3,), list(range(6)), 5.0))
    assert found[3] == Lost("3 workers died of it, the last one: ended by SIGKILL")
    assert found[:3] + found[4:] == [0, 1, 4, 16, 25]


def test_what_is_raised_is_told(executor: Executor) -> None:
    with pytest.raises(InternalError, match="LookupError: no luck with 1"):
        executor.run(Errand(errands.raises, (), [1], 5.0))


def test_a_plan_survives_the_death_of_one_of_two_workers(
    two_workers: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    alone = plan_with(monkeypatch, Mortal(str(tmp_path), 20), INLINE)
    assert not list(tmp_path.iterdir())
    shared = plan_with(monkeypatch, Mortal(str(tmp_path), 20), RAY)
    assert to_json(shared) == to_json(alone)
    workers = set(marks(tmp_path, "asked"))
    assert int((tmp_path / "killed").read_text()) in workers
    assert len(workers) >= 3  # two, and the one that took the place of the dead one
    assert os.getpid() not in workers


def test_a_lost_cluster_is_replaced_by_this_machine(
    executor: Executor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What came back is kept; the rest, and all further errands, are asked in processes of this machine."""
    import ray

    real, calls = ray.wait, []

    def breaking(*refs: object, **settings: object) -> object:
        calls.append(refs)
        if len(calls) > 3:
            raise Exception("Ray Client is not connected.")
        return real(*refs, **settings)

    monkeypatch.setattr(ray, "wait", breaking)
    folder = str(tmp_path)
    errand = Errand(errands.squares, (folder,), list(range(8)), 5.0)
    assert executor.run(errand) == [item * item for item in range(8)]
    assert len(calls) == 4
    twice = [item for item in range(8) if len(marks(folder, str(item))) > 1]
    assert len(twice) <= 5  # three had come back
    assert executor.run(Errand(errands.squares, (folder,), [9], 5.0)) == [81]
    assert len(calls) == 4


def test_another_version_is_refused(two_workers: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from tangram.executors import ray_cluster

    monkeypatch.setattr(ray_cluster, "VERSION", "9.9.9")
    with pytest.raises(
        InputError, match=r"has Tangram .*, this is 9\.9\.9 \(pip install tangram-llm==9\.9\.9"
    ):
        new_executor(RAY)


def test_a_parallelizer_that_workers_lack_is_refused(
    executor: Executor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "only_here.py").write_text("def same(items):\n    return items\n")
    monkeypatch.syspath_prepend(tmp_path)
    module = __import__("only_here")
    with pytest.raises(InputError, match=r"cannot read the question: No module named 'only_here' \(install"):
        executor.run(Errand(module.same, (), [1, 2], 5.0))


def test_no_cluster_at_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    def refused(address: str, **settings: object) -> None:
        raise ConnectionError(f"ray client connection timeout: {address}")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", refused)
    for address, asked in (("ray://head:10001", "ray://head:10001"), (None, "local")):
        monkeypatch.delenv("RAY_ADDRESS", raising=False)
        with pytest.raises(InputError, match=f"--executor: no Ray cluster at {asked}: .*timeout: {asked} "):
            new_executor(ExecutorChoice(ExecutorKind.RAY, address=address))
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    with pytest.raises(InputError, match=r"no Ray cluster at 10\.0\.0\.1:6379: "):
        new_executor(RAY)
