"""All that rank 0 shows and writes of a run."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tangram.errors import InputError
from tangram.plan.schema import PlanDocument
from tangram.planner.recost import simulate_plan
from tangram.profiles.store import save
from tangram.run_options import RunOptions
from tangram.runtime.watch.figures import (
    RankFigures,
    StepFigures,
    peak_flop_per_s,
    stage_figures,
    step_seconds,
)
from tangram.runtime.watch.files import Curves, JsonLines
from tangram.runtime.watch.layers import AtomTimes, layer_records
from tangram.runtime.watch.table import LiveTable
from tangram.runtime.watch.timeline import RankEvents, measured_trace
from tangram.units import count_of

if TYPE_CHECKING:
    from tangram.runtime.engine import StepResult


class RunWriter:
    """Shows steps, and writes the files that the options name.

    Args:
        plan: The plan.
        options: What to leave behind.
        num_steps: Of the run.

    Raises:
        InputError: A file cannot be written, or a library is missing.
    """

    def __init__(self, plan: PlanDocument, options: RunOptions, num_steps: int) -> None:
        self._plan, self._options = plan, options
        self._table = LiveTable(plan, num_steps, on_cpu=options.cpu, quiet=options.quiet)
        self._lines = JsonLines(Path(options.log_file)) if options.log_file is not None else None
        self._curves = Curves(Path(options.tensorboard)) if options.tensorboard is not None else None
        if options.save_profile is not None:
            save(Path(options.save_profile), [])  # what is wrong with the store shows now, not at the end
        self._peak = peak_flop_per_s(plan)
        self._open = ExitStack()
        if self._lines is not None:
            self._lines.write(_header(plan, options, num_steps))

    def __enter__(self) -> RunWriter:
        self._open.enter_context(self._table)
        for file in (self._lines, self._curves):
            if file is not None:
                self._open.callback(file.close)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def step(self, result: StepResult, epoch: float, ranks: Sequence[RankFigures]) -> None:
        """Shows and writes a step."""
        seconds = step_seconds(ranks)
        flop = self._plan.prediction.model_flop_per_step
        figures = StepFigures(
            step=result.step + 1,
            epoch=epoch,
            loss=result.loss,
            tokens=result.tokens,
            grad_norm=result.grad_norm,
            learning_rate=result.lr,
            loss_scale=result.loss_scale,
            skipped=result.skipped,
            step_s=seconds,
            tokens_per_s=result.tokens / seconds,
            mfu=None if self._options.cpu else flop / seconds / self._peak,
            stages=stage_figures(self._plan, ranks),
        )
        self._table.show(figures)
        if self._lines is not None:
            self._lines.write(figures.to_json())
        if self._curves is not None:
            self._curves.write(figures)

    def trace(self, ranks: Sequence[RankEvents]) -> None:
        """Writes the timeline of a step over the predicted one."""
        labels = [f"{len(stage.ranks)}x {stage.ranks[0].gpu}" for stage in self._plan.stages]
        trace = measured_trace(self._plan, simulate_plan(self._plan), ranks, labels)
        path = Path(self._options.trace or "")
        try:
            path.write_text(json.dumps(trace, separators=(",", ":")) + "\n", encoding="utf-8")
        except OSError as error:
            raise InputError(f"cannot be written: {error.strerror}", where=f"--trace {path}") from None
        _note(f"wrote {path}")

    def profile(self, times: Sequence[AtomTimes], source: str) -> None:
        """Saves measured times of layers, and says which gave none."""
        records, notes = layer_records(self._plan, times, source)
        path = Path(self._options.save_profile or "")
        save(path, records)
        _note(f"saved {count_of(len(records), 'record')} in {path}")
        if not times:
            _note("  nothing was timed: the first step does not count; give --steps 2 or more")
        for note in notes:
            _note(f"  left out: {note}")


def _header(plan: PlanDocument, options: RunOptions, num_steps: int) -> dict[str, Any]:
    """The first line of a run: what was run, and what is predicted of it."""
    return {
        "run": {"model": plan.model.name, "cluster": plan.cluster.name, "steps": num_steps},
        "options": options.arguments(),
        "predicted": {
            "step_s": plan.prediction.iteration_time_s,
            "tokens_per_s": plan.prediction.tokens_per_s,
            "stages": [
                {
                    "index": stage.index,
                    "forward_s": stage.predicted.forward_s,
                    "backward_s": stage.predicted.backward_s,
                    "step_s": stage.predicted.step_s,
                    "peak_bytes": stage.predicted.peak_bytes,
                }
                for stage in plan.stages
            ],
        },
    }


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
