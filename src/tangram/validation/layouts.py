"""The column layouts of tables of runs, known by their headers; all become the common columns.

A file with another header is read as the common layout, and its rows say which columns they miss.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from tangram.validation.alpa_plans import alpa_columns
from tangram.validation.cells import RowError

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
    """

    name: str
    header: frozenset[str]
    names: Mapping[str, str] = field(default_factory=dict)
    factors: Mapping[str, float] = field(default_factory=dict)
    derive: Callable[[Row], Mapping[str, str]] | None = None

    def renamed(self, row: Row) -> dict[str, str]:
        """Returns the row under the common names of its columns, in common units."""
        common = {original: column for column, original in self.names.items()}
        found = {common.get(column, column): text for column, text in row.items()}
        for column, factor in self.factors.items():
            found[column] = _scaled(found.get(column, ""), factor)
        return found

    def derived(self, row: Row) -> Mapping[str, str]:
        """Returns the common columns that follow from others.

        Raises:
            RowError: A cell that they follow from cannot be read.
        """
        return self.derive(row) if self.derive else {}


def find_layout(header: Iterable[str]) -> Layout:
    """Returns the layout of a header."""
    columns = set(header)
    return next((layout for layout in _LAYOUTS if layout.header <= columns), COMMON)


def _scaled(text: str, factor: float) -> str:
    """The number times the factor; what is no number stays, and is reported where it is needed."""
    try:
        return repr(float(text) * factor)
    except ValueError:
        return text


def _vtrain_columns(row: Row) -> Mapping[str, str]:
    size = row.get("Parameters (billion)", "").strip()
    return {"model": f"gpt-{size}B" if size else f"gpt-h{row.get('hidden size')}-l{row.get('# layers')}"}


def _sailor_columns(row: Row) -> Mapping[str, str]:
    """``64xGH200-96GB`` is one kind of part; several are joined by ``+``."""
    kinds = row["gpu_type(s)"].strip()
    gpu = f"mixed: {kinds}" if "+" in kinds else re.sub(r"^\d+x", "", kinds)
    return {
        "gpu": gpu,
        "zero_or_fsdp": "ZeRO 0" if "ZeRO 0" in row["optimizer/zero"] else row["optimizer/zero"],
    }


def _galvatron_columns(row: Row) -> Mapping[str, str]:
    """The degrees stand in words; where the pipeline is not said, the plan is not stated."""
    words = row["parallelism"]
    degrees = {name: re.search(rf"\b{name}=(\d+)", words) for name in ("pp", "tp")}
    count = row["microbatches"].strip()
    if not all(degrees.values()) or not count.isdecimal() or not int(count):
        raise RowError(
            "plan-not-stated", "degrees and micro-batches are not all stated", column="parallelism"
        )
    tp, pp = (int(found.group(1)) for found in (degrees["tp"], degrees["pp"]) if found)
    gpus, batch = row["gpus"].strip(), row["global_batch"].strip()
    columns = {"tp": str(tp), "pp": str(pp), "recompute": "full" if "full ckpt" in words else ""}
    if gpus.isdecimal() and batch.isdecimal() and int(gpus) >= tp * pp:
        dp = int(gpus) // (tp * pp)
        columns |= {"dp": str(dp), "micro_batch": str(max(1, int(batch) // (dp * int(count))))}
    return columns


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
    derive=_vtrain_columns,
)

SAILOR = Layout(
    "sailor",
    frozenset({"gpu_type(s)", "layers_per_stage", "optimizer/zero", "measured_iter_s"}),
    names={
        "pseudo_layers_per_stage": "layers_per_stage",
        "iter_s": "measured_iter_s",
        "peak_mem_GiB": "measured_peak_mem_GiB",
    },
    derive=_sailor_columns,
)

GALVATRON = Layout(
    "galvatron",
    frozenset({"method", "parallelism", "microbatches", "iter_time_ms"}),
    names={
        "n_gpus": "gpus",
        "n_layers": "layers",
        "iter_s": "iter_time_ms",
        "note": "notes",
        "placed_by": "method",
    },
    factors={"iter_s": 1e-3},
    derive=_galvatron_columns,
)

ALPA = Layout(
    "alpa",
    frozenset({"plan", "measured_iter_s", "micro_batch", "experts"}),
    names={"iter_s": "measured_iter_s"},
    derive=alpa_columns,
)

_LAYOUTS = (VTRAIN, SAILOR, GALVATRON, ALPA)
