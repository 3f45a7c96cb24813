"""The column layouts of tables of runs, known by their headers; all become the common columns.

A file with another header is read as the common layout, and its rows say which columns they miss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from tangram.validation.common import HardwareOf

Row = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Layout:
    """A layout.

    Attributes:
        name: For messages.
        header: Columns by which it is known.
        names: Common columns, and what the layout calls them.
        factors: Common columns, and what their numbers have to be multiplied with.
        derive: Returns further common columns, from the row as the file has it.
        mixed: Returns what finds the nodes of a row of unequal GPUs, or None for a row of equal ones.
    """

    name: str
    header: frozenset[str]
    names: Mapping[str, str] = field(default_factory=dict)
    factors: Mapping[str, float] = field(default_factory=dict)
    derive: Callable[[Row], Mapping[str, str]] | None = None
    mixed: Callable[[Row], HardwareOf | None] | None = None

    def common(self, row: Row) -> dict[str, str]:
        """Returns the row in common columns.

        Raises:
            RowError: A cell that others follow from cannot be read.
        """
        renamed = {original: column for column, original in self.names.items()}
        found = {renamed.get(column, column): text for column, text in row.items()}
        for column, factor in self.factors.items():
            found[column] = _scaled(found.get(column, ""), factor)
        return found | dict(self.derive(row) if self.derive else {})


def _scaled(text: str, factor: float) -> str:
    """The number times the factor; what is no number stays, and is reported where it is needed."""
    try:
        return repr(float(text) * factor)
    except ValueError:
        return text


def _vtrain_model(row: Row) -> Mapping[str, str]:
    size = row.get("Parameters (billion)", "").strip()
    return {"model": f"gpt-{size}B" if size else f"gpt-h{row.get('hidden size')}-l{row.get('# layers')}"}


COMMON = Layout("common", frozenset())

VTRAIN = Layout(
    "vtrain",
    frozenset({"# GPUs", "tensor parallelism", "iteration time (ms)"}),
    names={
        "n_gpus": "# GPUs",
        "global_batch": "global batch",
        "micro_batch": "micro batch",
        "hidden": "hidden size",
        "heads": "attention heads",
        "n_layers": "# layers",
        "seq_len": "sequence length",
        "tp": "tensor parallelism",
        "dp": "data parallelism",
        "pp": "pipeline parallelism",
        "iter_s": "iteration time (ms)",
    },
    factors={"iter_s": 1e-3},
    derive=_vtrain_model,
)

_LAYOUTS = (VTRAIN,)


def find_layout(header: Iterable[str]) -> Layout:
    """Returns the layout of a header."""
    columns = set(header)
    return next((layout for layout in _LAYOUTS if layout.header <= columns), COMMON)
