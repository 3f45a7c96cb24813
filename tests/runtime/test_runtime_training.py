"""Whole runs of small plans: the same losses whatever the plan, and all that a run leaves behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ranks import RankPool
from run_cases import alone, uneven, write_data
from torch_or_skip import torch

from tangram.errors import InputError
from tangram.plan.schema import PlanDocument
from tangram.profiles.shapes import LayerKind
from tangram.profiles.store import load
from tangram.run_options import RunOptions
from tangram.runtime.lifeline import StopSignal

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="PyTorch has no distributed")


def train_rank(rank: int, plan: PlanDocument, options: RunOptions, stop_at: int | None = None) -> int:
    """One rank of a run; the last one is interrupted in the step ``stop_at``, counted from 1."""
    import torch.distributed as dist

    from tangram.runtime.results import RunWriter
    from tangram.runtime.training import Run, train
    from tangram.runtime.worker import open_feed, steps_of

    feed = open_feed(plan, options)
    num_steps = steps_of(feed, options)
    writer = RunWriter(plan, options, num_steps) if rank == 0 else None
    stop: Any = StopSignal()
    if stop_at is not None and rank == plan.num_gpus - 1:
        stop = SetAt(stop_at)
    run = Run(plan, rank, torch.device("cpu"), f"GPU of {rank}", options, feed, num_steps, dist.group.WORLD)
    return train(run, stop, writer)


class SetAt:
    """Becomes set when it is asked for the n-th time."""

    def __init__(self, number: int) -> None:
        self._left = number

    @property
    def is_set(self) -> bool:
        self._left -= 1
        return self._left <= 0


def run(
    ranks: RankPool, plan: PlanDocument, folder: Path, stop_at: int | None = None, **options: Any
) -> RunOptions:
    folder.mkdir(exist_ok=True)
    given = RunOptions(
        data=write_data(folder),
        cpu=True,
        quiet=True,
        learning_rate=0.01,
        log_file=str(folder / "log.jsonl"),
        **options,
    )
    done = ranks.run(plan.num_gpus, train_rank, plan, given, stop_at)
    assert len(set(done)) == 1
    return given


def lines(options: RunOptions) -> list[dict[str, Any]]:
    assert options.log_file is not None
    return [json.loads(line) for line in Path(options.log_file).read_text().splitlines()]


def test_the_curve_does_not_depend_on_the_plan(ranks: RankPool, tmp_path: Path) -> None:
    """Nor does it stand still."""
    curves = [
        [line["loss"] for line in lines(run(ranks, plan, tmp_path / name, steps=6, seed=3))[1:]]
        for name, plan in (("alone", alone()), ("uneven", uneven()))
    ]
    assert curves[1] == pytest.approx(curves[0], rel=1e-5)
    assert len(curves[0]) == 6
    assert curves[0][-1] < curves[0][0] - 0.5
    assert curves[0][0] == pytest.approx(5.55, abs=0.3)  # log 257: nothing is known yet


def test_interleaved_chunks_train_the_same(ranks: RankPool, tmp_path: Path) -> None:
    """And each stage's time of a micro-batch is that of its chunks together."""
    options = run(ranks, uneven(), tmp_path / "chunks", steps=3, seed=3, virtual_stages=2)
    plain = run(ranks, uneven(), tmp_path / "plain", steps=3, seed=3)
    chunked, expected = lines(options)[1:], lines(plain)[1:]
    assert [s["loss"] for s in chunked] == pytest.approx([s["loss"] for s in expected], rel=1e-5)
    for step in chunked:
        for stage in step["stages"]:
            busy_s = 3 * (stage["forward_s"] + stage["backward_s"]) + stage["step_s"]
            assert stage["busy_frac"] * step["step_s"] <= busy_s * (1 + 1e-9)


def test_another_seed_is_another_run(ranks: RankPool, tmp_path: Path) -> None:
    losses = {lines(run(ranks, alone(), tmp_path / str(s), steps=1, seed=s))[1]["loss"] for s in (0, 1)}
    assert len(losses) == 2


def test_what_a_run_leaves_behind(ranks: RankPool, tmp_path: Path) -> None:
    plan = uneven()
    files = {"trace": str(tmp_path / "trace.json"), "save_profile": str(tmp_path / "store.sqlite")}
    options = run(ranks, plan, tmp_path, steps=3, trace_step=2, **files)
    header, *steps = lines(options)
    assert header["predicted"]["step_s"] == plan.prediction.iteration_time_s
    assert [step["step"] for step in steps] == [1, 2, 3]
    for step in steps:
        assert step["tokens"] == 12 * 16
        assert step["tokens_per_s"] == pytest.approx(step["tokens"] / step["step_s"])
        assert step["mfu"] is None
        first, second = step["stages"]
        for stage in (first, second):
            assert stage["forward_s"] > 0
            assert stage["backward_s"] > 0
            assert 0 < stage["busy_frac"] <= 1
            assert stage["memory_bytes"] > 2**20
        assert 3 * (first["forward_s"] + first["backward_s"]) < step["step_s"]
    trace = json.loads(Path(files["trace"]).read_text())
    measured = [e for e in trace["traceEvents"] if e["ph"] == "X" and e["pid"] in (3, 4)]
    names = {e["name"] for e in measured}
    for stage in (0, 1):
        assert {f"{kind} s{stage} m{k}" for kind in "FB" for k in range(3)} <= names
    assert {f"send F s0 m{k} to s1" for k in range(3)} <= names
    assert all(e["ts"] >= 0 and e["dur"] >= 0 for e in measured)
    by_name = {e["name"]: e for e in measured}
    for k in range(3):  # nobody computes on what has not come yet
        sent = by_name[f"F s0 m{k}"]
        assert sent["ts"] + sent["dur"] <= by_name[f"F s1 m{k}"]["ts"] + 1


def test_measured_layers_go_into_the_store(ranks: RankPool, tmp_path: Path) -> None:
    """Of each rank under its own name and with its own number of rows."""
    store = tmp_path / "store.sqlite"
    run(ranks, uneven(), tmp_path, steps=3, save_profile=str(store))
    records = load(store).layers
    keys = {(r.gpu, r.shape.kind, r.micro_batch) for r in records}
    assert keys == {
        ("GPU of 0", LayerKind.EMBEDDING, 3),
        ("GPU of 0", LayerKind.LAYER, 3),
        ("GPU of 1", LayerKind.EMBEDDING, 1),
        ("GPU of 1", LayerKind.LAYER, 1),
        ("GPU of 2", LayerKind.LAYER, 4),
        ("GPU of 2", LayerKind.HEAD, 4),
    }
    for record in records:
        assert record.forward_s is not None
        assert record.backward_s is not None
        assert 0 < record.forward_s < 1
        assert 0 < record.backward_s < 1
        assert record.source.startswith("tangram run, torch")


def test_one_interrupted_rank_stops_all_after_the_same_step(ranks: RankPool, tmp_path: Path) -> None:
    options = run(ranks, uneven(), tmp_path, stop_at=2, steps=5)
    assert [line["step"] for line in lines(options)[1:]] == [1, 2]


def test_weights_go_out_and_in(ranks: RankPool, tmp_path: Path) -> None:
    """A run that starts from saved weights knows what was learned, whatever the plans of both."""
    weights = str(tmp_path / "weights")
    fresh = lines(run(ranks, uneven(), tmp_path / "a", steps=4, save=weights))[1]["loss"]
    trained = [
        lines(run(ranks, plan, tmp_path / name, steps=1, init=weights))[1]["loss"]
        for name, plan in (("b", alone()), ("c", uneven()))
    ]
    assert trained[0] < fresh - 0.3  # of the same batch
    assert trained[1] == pytest.approx(trained[0], rel=1e-5)


def test_an_unknown_decay() -> None:
    from tangram.runtime.training import train_settings

    with pytest.raises(InputError, match="unknown decay 'cosin'") as caught:
        train_settings(RunOptions(decay="cosin"), 3)
    assert "cosine" in str(caught.value.hint)


def agree_rank(rank: int, values: list[dict[str, object]]) -> str:
    import torch.distributed as dist

    from tangram.runtime.meeting import check_agreement

    try:
        check_agreement(dist.group.WORLD, rank, values[rank])
    except InputError as error:
        return error.message
    return ""


def test_ranks_that_were_given_different_things(ranks: RankPool) -> None:
    assert ranks.run(2, agree_rank, [{"plan": "a", "number": 3}] * 2) == ["", ""]
    found = ranks.run(2, agree_rank, [{"plan": "a", "number": 3}, {"plan": "a", "number": 4}])
    assert found == ["rank 1 has another number than rank 0: 4, not 3"] * 2
