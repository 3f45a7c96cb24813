"""A run on the terminal: a table that is drawn anew with every step, or else a line per step."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tangram.plan.schema import PlanDocument
from tangram.runtime.watch.figures import StepFigures, predicted_memory_bytes
from tangram.units import format_bytes, format_duration

_PIPED_WIDTH = 120


class LiveTable:
    """Shows the last step, measured beside predicted.

    Args:
        plan: The plan.
        num_steps: Of the run.
        on_cpu: Whether CPUs stand for the GPUs: then predictions are of other hardware.
        quiet: Whether to show nothing.
        stream: Where to.
    """

    def __init__(
        self,
        plan: PlanDocument,
        num_steps: int,
        *,
        on_cpu: bool = False,
        quiet: bool = False,
        stream: TextIO | None = None,
    ) -> None:
        self._plan, self._num_steps, self._on_cpu, self._quiet = plan, num_steps, on_cpu, quiet
        stream = stream or sys.stdout
        terminal = stream.isatty()
        self._console = Console(file=stream, width=None if terminal else _PIPED_WIDTH)
        self._live = Live(console=self._console, auto_refresh=False) if terminal and not quiet else None

    def __enter__(self) -> LiveTable:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, figures: StepFigures) -> None:
        """Shows a step."""
        if self._quiet and figures.step < self._num_steps:
            return
        if self._live is not None:
            self._live.update(Group(Text(self.line(figures)), self.table(figures)), refresh=True)
            return
        self._console.print(self.line(figures), markup=False, highlight=False, soft_wrap=True)
        if figures.step == self._num_steps and not self._quiet:
            self._console.print(self.table(figures))

    def line(self, figures: StepFigures) -> str:
        """Returns a step in one line."""
        words = [
            f"step {figures.step}/{self._num_steps}",
            f"loss {figures.loss:.4f}",
            f"{figures.tokens_per_s:.4g} tokens/s",
            f"{format_duration(figures.step_s)} per step",
        ]
        if not self._on_cpu:
            words.append(f"(predicted {format_duration(self._plan.prediction.iteration_time_s)})")
        if figures.mfu is not None:
            words.append(f"MFU {100 * figures.mfu:.1f} %")
        words += [f"norm {figures.grad_norm:.3g}", f"lr {figures.learning_rate:.3g}"]
        if figures.loss_scale != 1:
            words.append(f"loss scale {figures.loss_scale:g}")
        if figures.skipped:
            words.append("overflow: no update")
        return "  ".join(words)

    def table(self, figures: StepFigures) -> Table:
        """Returns the stages; below each of them what was predicted."""
        table = Table(box=None, pad_edge=False, header_style="dim")
        for name in ("stage", "GPUs", "layers", "forward", "backward", "step end", "busy", "memory"):
            table.add_column(name, justify="left" if name in ("GPUs", "layers") else "right", no_wrap=True)
        for stage, own in zip(self._plan.stages, figures.stages, strict=True):
            first, stop = stage.layers
            table.add_row(
                str(stage.index),
                f"{len(stage.ranks)}x {stage.ranks[0].gpu}",
                f"{first}-{stop - 1}" if stop > first else "-",
                *(format_duration(seconds) for seconds in (own.forward_s, own.backward_s, own.step_s)),
                f"{100 * own.busy_frac:.0f} %",
                format_bytes(own.memory_bytes),
            )
            if not self._on_cpu:
                predicted = stage.predicted
                seconds = (predicted.forward_s, predicted.backward_s, predicted.step_s)
                times = [format_duration(one) for one in seconds]
                memory = format_bytes(predicted_memory_bytes(stage))
                table.add_row("", "predicted", "", *times, "", memory, style="dim")
        return table
