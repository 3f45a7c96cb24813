"""Reads the plans of Alpa's tables: words such as ``TP2 PP8`` or ``ZeRO-2 style, logical mesh (4,1)``.

Only plans whose words fix every degree are read. What Alpa's solver chose inside of a mesh is not recorded,
so a row that names a mesh of several GPUs and nothing else does not state its plan.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from tangram.validation.cells import RowError

_DEGREE = re.compile(r"(?<![A-Za-z-])(DP|TP|PP)\s?(\d+)")
_ZERO = re.compile(r"ZeRO-(\d)")
_STAGES = re.compile(r"(\d+) stages? x \d+ layers")
_FORCED_MESH = re.compile(r"logical \((\d+),\s*(\d+)\) batch-dim forced")
_EXPERT_DEGREE = re.compile(r"\bEP(\d+)")

EXPERT_WIDTH_RATIO = 8
"""Feed-forward width over hidden size in GShard's models, dense layers and experts alike."""


def alpa_columns(row: Mapping[str, str]) -> Mapping[str, str]:
    """Returns the common columns that a row's plan fixes.

    Args:
        row: The row; ``micro_batch`` is the global batch over the number of micro-batches, before the split
            over replicas.

    Raises:
        RowError: The plan does not fix all degrees.
    """
    plan, gpus = row["plan"].strip(), row["n_gpus"].strip()
    degrees = {name.lower(): int(number) for name, number in _DEGREE.findall(plan)}
    if stages := _STAGES.search(plan):
        degrees["pp"] = int(stages.group(1))
    if mesh := _FORCED_MESH.search(plan):  # the batch on the first axis, the second for tensors
        degrees |= {"dp": int(mesh.group(1)), "tp": int(mesh.group(2))}
    zero, experts = _ZERO.search(plan), _EXPERT_DEGREE.search(plan)
    num_gpus = int(gpus) if gpus.isdecimal() else 0
    fixed = bool(degrees) or num_gpus == 1 or plan.startswith("plain DP") or zero is not None
    if not fixed or "stages of" in plan or "ILP mix" in plan or "mix chosen" in plan:
        raise RowError("plan-not-stated", f"{plan[:60]!r} does not fix the degrees", column="plan")
    tp, pp = degrees.get("tp", 1), degrees.get("pp", 1)
    dp = degrees.get("dp") or max(1, num_gpus // (tp * pp))
    found = {
        "tp": str(tp),
        "pp": str(pp),
        "dp": str(dp),
        "zero_or_fsdp": f"ZeRO-{zero.group(1) if zero else 0}",
    }
    if experts:
        found["ep"] = experts.group(1)
    micro_batch = row["micro_batch"].strip()
    if micro_batch.isdecimal():
        if int(micro_batch) % dp:
            message = f"{micro_batch} samples do not divide over {dp} replicas"
            raise RowError("impossible", message, column="micro_batch")
        found["micro_batch"] = str(int(micro_batch) // dp)
    if row["experts"].strip() and row["hidden"].strip().isdecimal():
        found |= {"ffn_hidden": str(EXPERT_WIDTH_RATIO * int(row["hidden"])), "top_k": "2"}
    return found
