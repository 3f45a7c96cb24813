"""Where a run leaves its figures: lines of JSON, and curves for TensorBoard."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TextIO

from tangram.errors import InputError
from tangram.runtime.watch.figures import StepFigures

INSTALL = "pip install 'tangram-llm[watch]'"


class JsonLines:
    """Appends an object per line, each at once, so that a run that ends early leaves all it had.

    Raises:
        InputError: The file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._file: TextIO = path.open("a", encoding="utf-8")
        except OSError as error:
            raise InputError(f"cannot be written: {error.strerror}", where=f"--log-file {path}") from None

    def write(self, value: dict[str, Any]) -> None:
        """Writes a line."""
        self._file.write(json.dumps(value, allow_nan=True) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Ends the file."""
        self._file.close()


class Curves:
    """Writes curves for TensorBoard.

    Raises:
        InputError: The library is missing, or the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise InputError(
                "TensorBoard is not installed", where=f"--tensorboard {folder}", hint=INSTALL
            ) from None
        try:
            self._writer: Any = SummaryWriter(str(folder))
        except OSError as error:
            raise InputError(
                f"cannot be written: {error.strerror}", where=f"--tensorboard {folder}"
            ) from None

    def write(self, figures: StepFigures) -> None:
        """Adds a step to all curves."""
        values = {
            "loss": figures.loss,
            "grad_norm": figures.grad_norm,
            "learning_rate": figures.learning_rate,
            "loss_scale": figures.loss_scale,
            "step_s": figures.step_s,
            "tokens_per_s": figures.tokens_per_s,
        } | ({} if figures.mfu is None else {"mfu": figures.mfu})
        for stage in figures.stages:
            values[f"memory_bytes/stage_{stage.index}"] = stage.memory_bytes
        for name, value in values.items():
            self._writer.add_scalar(name, value, figures.step)

    def close(self) -> None:
        """Writes what is left."""
        self._writer.close()
