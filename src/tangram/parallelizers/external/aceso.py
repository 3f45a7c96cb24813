"""Aceso's own search (EuroSys'24; microsoft/SuperScaler, branch Aceso), run from a user's checkout.

Nothing of the checkout is changed or copied: its ``aceso_search.py`` runs in a temporary folder, reads a
profile made from the cost model (:mod:`tangram.parallelizers.external.aceso_profiles`), and saves plans that
are read back (:mod:`tangram.parallelizers.external.aceso_plans`).

One question of the narrow API is one run: a whole model, one micro-batch, one portion. No option fixes the
micro-batch. But the search starts with the first size that it is given, makes it smaller only while it is
above the first, and larger only while it is below the last: with sizes in descending order it stays.
Changing it is also where the search chooses anew between tp and dp, so its option to exchange them, off by
default, is on. Where atoms are whole layers the search moves operators by whole atoms, from a start that is
cut between layers; otherwise by single operators.

What the program cannot do, unmodified: slices without embedding or head, and pipelines that others continue
(both are hard-coded); experts; stages of more than 8 GPUs or over several nodes; unequal layers. Its search
is limited by wall clock, so equal questions may get different answers; within one process, an answer is
remembered.

Environment:

* ``TANGRAM_ACESO``: the folder with ``aceso_search.py``, or the checkout that holds it in ``search``;
* ``TANGRAM_ACESO_PYTHON``: the Python that runs it (default: the one that runs Tangram);
* ``TANGRAM_ACESO_BUDGET_S``: seconds per question (default: 20), start and end included; all stage counts are
  searched at the same time, as the program does by itself.
"""

from __future__ import annotations

import math
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from tangram.cluster.spec import Portion
from tangram.cost.atoms import atom_costs
from tangram.cost.configs import tensor_parallel_degrees
from tangram.cost.constants import upper_memory_ratio
from tangram.cost.types import StageConfig, StageConfigs
from tangram.errors import InputError
from tangram.job import Recompute
from tangram.model.atoms import has_experts
from tangram.parallelizers.external.aceso_plans import Tables, fastest_first, read_plan, slice_plan
from tangram.parallelizers.external.aceso_profiles import (
    MODEL,
    Profiled,
    operator_rows,
    operators_of,
    profile_files,
)
from tangram.parallelizers.external.process import ProgramError, run_limited
from tangram.parallelizers.protocols import Capabilities, SlicePlan, SliceRequest
from tangram.units import MIB

FOLDER, PYTHON, BUDGET = "TANGRAM_ACESO", "TANGRAM_ACESO_PYTHON", "TANGRAM_ACESO_BUDGET_S"
"""Environment variables."""

SCRIPT = "aceso_search.py"
DEFAULT_BUDGET_S = 20.0
LEAST_BUDGET_S = 2.0

SEARCH_SHARE = 0.75
"""Of the budget that the search itself gets, in whole seconds; the rest is for start and end."""

GPU_COUNTS = frozenset(1 << i for i in range(8))
"""Powers of two, so that stages of 1, 2, 4 and 8 GPUs fill nodes: at most 16 stages of 8."""

MOST_STAGES = 16
MOST_STAGE_GPUS = 8


@dataclass(frozen=True, slots=True)
class Checkout:
    """What runs.

    Attributes:
        script: Aceso's search.
        python: The Python that runs it.
        budget_s: Seconds per question.
    """

    script: Path
    python: str
    budget_s: float

    @staticmethod
    def of(environment: Mapping[str, str]) -> Checkout:
        """Reads the environment variables.

        Raises:
            InputError: There is no checkout, or a variable has no meaning.
        """
        named = environment.get(FOLDER, "")
        hint = f"set {FOLDER} to the folder of {SCRIPT} in a checkout of microsoft/SuperScaler, branch Aceso"
        if not named:
            raise InputError("aceso-external needs a checkout of Aceso", where="--parallelizer", hint=hint)
        found = [p for p in (Path(named) / SCRIPT, Path(named) / "search" / SCRIPT) if p.is_file()]
        if not found:
            raise InputError(f"{named} holds no {SCRIPT}", where=FOLDER, hint=hint)
        python = environment.get(PYTHON) or sys.executable
        return Checkout(found[0].resolve(), python, _budget_s(environment.get(BUDGET)))


class AcesoCheckout:
    """Asks a user's checkout of Aceso; see the module's text.

    Args:
        checkout: What to run; by default what the environment names.

    Raises:
        InputError: The environment names none.
    """

    name = "aceso-external"

    def __init__(self, checkout: Checkout | None = None) -> None:
        self.checkout = Checkout.of(os.environ) if checkout is None else checkout
        self.capabilities = Capabilities(
            gpu_counts=GPU_COUNTS,
            partial_slices=False,
            later_positions=False,
            moe=False,
            deterministic=False,
            seconds_per_query=self.checkout.budget_s,
        )

    def plan(self, request: SliceRequest) -> Sequence[SlicePlan]:
        """Returns the best plan of every number of stages that has one which fits, the fastest first.

        Raises:
            InputError: The question is none that Aceso can answer.
            ProgramError: The program failed, was late, or its answer cannot be read.
        """
        _refuse(request)
        profiled = Profiled(
            request.model,
            request.atoms,
            request.portion.island,
            request.job,
            recomputable=request.job.pins.recompute in (None, Recompute.FULL),
        )
        allowed = allowed_degrees(request)
        stages, memory_mib = stage_counts(request), memory_limit_mib(profiled)
        if not allowed or not stages or memory_mib < 1:
            return []
        tables = _tables(request, profiled, allowed)
        options = (*_options(request, stages, tables), "--memory-limit", str(memory_mib))
        saved = _searched(self.checkout, profile_files(profiled, tables), options)
        found = (slice_plan(request, read_plan(text, name), tables, allowed, name) for name, text in saved)
        return fastest_first(request, [plan for plan in found if plan is not None])


def allowed_degrees(request: SliceRequest) -> frozenset[tuple[int, int]]:
    """Returns the pairs (tp, dp) that a stage may have."""
    pins, per_node = request.job.pins, min(MOST_STAGE_GPUS, request.portion.gpus_per_node)
    return frozenset(
        (tp, dp)
        for tp in tensor_parallel_degrees(request.model, per_node)
        for dp in (1, 2, 4, 8)
        if tp * dp <= per_node
        and request.micro_batch % dp == 0
        and request.job.seq_len % tp == 0
        and (pins.tp or tp) == tp
        and (pins.dp or dp) == dp
    )


def stage_counts(request: SliceRequest) -> range:
    """Returns the numbers of stages to search; every stage gets a GPU and an atom with a layer."""
    inner = sum(bool(atom.layer_idxs) for atom in request.atoms)
    most = min(request.portion.num_gpus, MOST_STAGES, inner)
    pinned = request.job.pins.pp
    if pinned is None:
        return range(1, most + 1)
    return range(pinned, pinned + 1) if pinned <= most else range(0)


def memory_limit_mib(profiled: Profiled) -> int:
    """Returns what a GPU has for Aceso's account of a stage: its memory without margin and reserve.

    Aceso counts 16 bytes of model states per parameter at 16 bit, and a reserve of at least one copy of the
    weights; the referee decides in the end.
    """
    portion = Portion(profiled.island, 1, 1)
    costs = atom_costs(
        profiled.model, profiled.atoms, portion, StageConfigs.of([StageConfig(1, 1)]), 1, profiled.job
    )
    capacity = profiled.island.gpu.usable_memory_bytes / upper_memory_ratio(profiled.job.basis)
    return math.floor((capacity - float(costs.reserve_bytes[0])) / MIB)


def _tables(request: SliceRequest, profiled: Profiled, allowed: frozenset[tuple[int, int]]) -> Tables:
    per_node = min(MOST_STAGE_GPUS, request.portion.gpus_per_node)
    degrees = [d for d in (1, 2, 4, 8) if d <= per_node]
    return {
        (tp, request.micro_batch // dp): operator_rows(
            profiled, tp, request.micro_batch // dp, allowed=(tp, dp) in allowed
        )
        for dp in degrees
        if request.micro_batch % dp == 0
        for tp in degrees
    }


def _options(request: SliceRequest, stages: range, tables: Tables) -> tuple[str, ...]:
    """Returns the options of the search but those that name folders and memory."""
    portion = request.portion
    inner = [atom for atom in request.atoms if atom.layer_idxs]
    whole_layers = len(inner) <= request.model.num_layers
    group = sum(len(operators_of(part.part)) for part in inner[0].parts) if whole_layers else 1
    sizes = sorted({samples for _, samples in tables}, reverse=True)  # The first is both ends: it stays.
    options = {
        "--model-name": MODEL,
        "--model-size": MODEL,
        "--num-layers": request.model.num_layers,
        "--global-batch-size": request.micro_batch * request.num_micro_batches,
        "--num-nodes": portion.num_nodes,
        "--num-gpus-per-node": portion.gpus_per_node,
        "--max-tp": min(MOST_STAGE_GPUS, portion.gpus_per_node),
        "--start-num-stages": stages[0],
        "--end-num-stages": stages[-1],
        "--max-num-hops": 7,
        "--initial-point": "imbalance_op" if whole_layers else "balance",
        "--op-group-size": group,
    }
    named = [word for name, value in options.items() for word in (name, str(value))]
    flags = ["--add-action-tp-dp-exchange"]
    if request.job.pins.recompute is Recompute.FULL:
        flags.append("--do-not-use-flex-recompute")
    return (*named, "--micro-batch-size", *map(str, sizes), *flags)


@lru_cache(maxsize=64)
def _searched(
    checkout: Checkout, files: tuple[tuple[str, str], ...], options: tuple[str, ...]
) -> tuple[tuple[str, str], ...]:
    """Runs the search; returns the plans that it saved as (name, text), in the order of their names.

    Raises:
        ProgramError: It cannot be started, failed, or saved nothing in time.
    """
    with tempfile.TemporaryDirectory(prefix="tangram-aceso-") as name:
        folder = Path(name)
        for made in ("profile", "log/trends", "plans/top_configs", "plans/csv"):
            (folder / made).mkdir(parents=True)
        for file, text in files:
            (folder / "profile" / file).write_text(text, encoding="utf-8")
        seconds = max(1, math.floor(SEARCH_SHARE * checkout.budget_s))
        # -E: settings made for this Python are not meant for that one. -B: no file is left in the checkout.
        command = [checkout.python, "-E", "-B", str(checkout.script), *options]
        command += ["--time-budget-total", str(seconds), "--profiled-time-path", f"{folder}/profile/"]
        command += ["--log-path", f"{folder}/log/", "--config-save-path", f"{folder}/plans/"]
        ended = run_limited(command, folder, checkout.budget_s)
        saved = tuple(
            (path.name, path.read_text(encoding="utf-8", errors="replace"))
            for path in sorted((folder / "plans").glob("*.json"))
        )
    if ended.code is None:
        raise ProgramError(f"Aceso's search did not end within its {checkout.budget_s:g} s and was ended")
    # With one process per number of stages, the program itself ends well when one of them fails.
    if ended.code or (not saved and "Traceback" in ended.said):
        raise ProgramError(f"Aceso's search ended with status {ended.code}: {ended.last_line}")
    return saved


def _refuse(request: SliceRequest) -> None:
    """Refuses what lies outside of the capabilities, and what these cannot express."""
    pins = request.job.pins
    problems = {
        "slices without embedding or head": (request.start, request.stop) != (0, len(request.atoms)),
        f"{request.portion.num_gpus} GPUs": request.portion.num_gpus not in GPU_COUNTS,
        "pipelines that others continue": request.in_flight > 1,
        "experts": has_experts(request.atoms),
        "layers that differ": len({*request.model.layers}) > 1,
        "context parallelism": (pins.cp or 1) > 1,
        "dictated layers per stage": pins.layers_per_stage is not None,
        "offload": pins.offload not in ("none", "auto"),
    }
    for what, asked in problems.items():
        if asked:
            raise InputError(f"Aceso cannot plan {what}", where=request.model.name)


def _budget_s(text: str | None) -> float:
    if not text:
        return DEFAULT_BUDGET_S
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not LEAST_BUDGET_S <= found < math.inf:
        hint = f"seconds per question, at least {LEAST_BUDGET_S:g}"
        raise InputError(f"{text!r} is no time limit", where=BUDGET, hint=hint)
    return found
