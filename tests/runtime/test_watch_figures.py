"""Figures of ranks and stages, the table, and the files they are kept in."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
from samples import dense_plan
from watch_cases import as_predicted, rank_figures, step_figures

from tangram.errors import InputError
from tangram.runtime.hooks import TaskKind
from tangram.runtime.watch.clock import Clock, Event, Stamps
from tangram.runtime.watch.figures import RankFigures, peak_flop_per_s, predicted_memory_bytes, stage_figures
from tangram.runtime.watch.files import Curves, JsonLines
from tangram.runtime.watch.table import LiveTable


def test_a_rank_that_ran_as_predicted() -> None:
    plan = dense_plan()
    for ranks, stage in zip((as_predicted(plan)[0], as_predicted(plan)[4]), plan.stages, strict=True):
        found = RankFigures.of(ranks.rank, (0, 10**9), ranks.events, 6, 7)
        assert found.forward_s == pytest.approx(stage.predicted.forward_s)
        assert found.backward_s == pytest.approx(stage.predicted.backward_s)
        assert found.step_s == pytest.approx(stage.predicted.step_s)
        per_micro_batch = stage.predicted.forward_s + stage.predicted.backward_s
        assert found.busy_s == pytest.approx(6 * per_micro_batch + stage.predicted.step_s)


def test_a_stage_is_as_slow_as_its_slowest_rank() -> None:
    ranks = [rank_figures(rank, forward_s=0.1 * (rank + 1), memory_bytes=10 - rank) for rank in range(5)]
    first, second = stage_figures(dense_plan(), ranks)
    assert (first.forward_s, first.backward_s) == pytest.approx((0.4, 0.8))
    assert (second.forward_s, second.memory_bytes) == pytest.approx((0.5, 6))
    assert first.memory_bytes == 10
    assert first.busy_frac == pytest.approx(0.5)


def test_the_step_takes_as_long_as_its_longest_rank() -> None:
    ranks = [rank_figures(rank, step_s=2.0 if rank == 3 else 1.0) for rank in range(5)]
    assert stage_figures(dense_plan(), ranks)[0].busy_frac == pytest.approx(0.25)


def test_what_datasheets_promise() -> None:
    assert peak_flop_per_s(dense_plan()) == pytest.approx(4 * 312e12 + 125e12)


def test_memory_that_a_process_allocates() -> None:
    (stage, _) = dense_plan().stages
    memory = stage.predicted.memory
    assert predicted_memory_bytes(stage) == sum(memory.values()) - memory["reserve"]


def test_the_clock_notes_what_happens_in_order() -> None:
    clock = Clock(Stamps())
    clock.begin_step(0)
    clock.received(TaskKind.SEND_FORWARD, 0)
    clock.begin(TaskKind.FORWARD, 0)
    clock.end(TaskKind.FORWARD, 0)
    posted: list[int] = []
    clock.send(TaskKind.SEND_FORWARD, 0, lambda: posted.append(1))
    clock.begin(TaskKind.STEP, None)
    clock.end(TaskKind.STEP, None)
    clock.end_step(0)
    events = clock.events()
    assert posted == [1]
    assert [(e.kind.value, e.received) for e in events] == [
        ("send_forward", True),
        ("F", False),
        ("send_forward", False),
        ("step", False),
    ]
    times = [clock.step_ns[0], *(t for e in events for t in (e.start_ns, e.end_ns)), clock.step_ns[1]]
    assert times == sorted(times)
    clock.begin_step(1)
    clock.end_step(1)
    assert clock.events() == []
    assert isinstance(events[0], Event)


def table(on_cpu: bool = False, quiet: bool = False) -> tuple[LiveTable, io.StringIO]:
    stream = io.StringIO()
    return LiveTable(dense_plan(), 5, on_cpu=on_cpu, quiet=quiet, stream=stream), stream


def test_lines_and_the_last_table() -> None:
    shown, stream = table()
    with shown:
        shown.show(step_figures(4))
        shown.show(step_figures(5, loss_scale=1024.0))
    text = stream.getvalue()
    predicted = dense_plan().prediction.iteration_time_s
    assert "step 4/5  loss 2.5000  768 tokens/s  500 ms per step" in text
    assert f"(predicted {1e3 * predicted:.3g} ms)" in text
    assert "MFU 40.0 %" in text
    assert "loss scale 1024  overflow: no update" in text
    assert text.count("backward") == 1  # the table, once
    rows = [line.split() for line in text.splitlines()[3:]]
    assert rows[0][:8] == ["0", "4x", "FAST-40GB", "0-2", "20", "ms", "40", "ms"]
    assert rows[1][:5] == ["predicted", "10", "ms", "20", "ms"]
    assert rows[0][-2:] == ["1.00", "GiB"]


def test_a_terminal_shows_one_table_anew() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    with LiveTable(dense_plan(), 5, stream=stream) as shown:
        shown.show(step_figures(1))
        shown.show(step_figures(2))
    text = stream.getvalue()
    assert "step 1/5" in text
    assert "\x1b[1A" in text[text.index("step 1/5") : text.index("step 2/5")]  # back up over the old one


def test_predictions_are_not_of_cpus() -> None:
    shown, stream = table(on_cpu=True)
    shown.show(step_figures(5, mfu=None))
    assert "predicted" not in stream.getvalue()
    assert "MFU" not in stream.getvalue()
    assert "(" not in stream.getvalue()


def test_quiet_shows_the_last_line_alone() -> None:
    shown, stream = table(quiet=True)
    for step in (1, 4, 5):
        shown.show(step_figures(step))
    assert stream.getvalue().count("\n") == 1
    assert "step 5/5" in stream.getvalue()


def test_json_lines_survive_a_run_that_ends_early(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    lines = JsonLines(path)
    lines.write(step_figures().to_json())
    found = json.loads(path.read_text())  # before it is closed
    assert (found["step"], found["loss"], found["stages"][1]["forward_s"]) == (3, 2.5, 0.02)
    lines.close()
    with pytest.raises(InputError, match="cannot be written"):
        JsonLines(tmp_path / "no" / "log.jsonl")


def test_without_tensorboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(InputError, match="TensorBoard is not installed") as caught:
        Curves(tmp_path)
    assert "tangram-llm[watch]" in str(caught.value.hint)


def test_curves(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    curves = Curves(tmp_path)
    curves.write(step_figures(3))
    curves.write(step_figures(4, mfu=None))
    curves.close()
    found = EventAccumulator(str(tmp_path)).Reload()
    assert [(e.step, e.value) for e in found.Scalars("loss")] == [(3, 2.5), (4, 2.5)]
    assert [e.step for e in found.Scalars("mfu")] == [3]
    assert found.Scalars("memory_bytes/stage_1")[0].value == 2**30
