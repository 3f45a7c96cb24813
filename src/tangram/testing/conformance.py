"""Whether a parallelizer keeps its promises, asked on small models."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tangram.cost.types import BoolArray, IntArray
from tangram.job import Job, Precision
from tangram.model.atoms import cut_atoms
from tangram.parallelizers.cluster_plans import cluster_plan_faults
from tangram.parallelizers.invariants import (
    TABLE_COLUMNS,
    faults_text,
    plan_faults,
    recost,
    request_text,
    table_faults,
)
from tangram.parallelizers.protocols import (
    Capabilities,
    ClusterPlan,
    ClusterPlanner,
    ClusterRequest,
    OptionTable,
    SlicePlan,
    SlicePlanner,
    SliceRequest,
    StageTable,
    TableRequest,
)
from tangram.testing.cases import (
    IN_FLIGHT,
    llama_like,
    moe_like,
    slice_cases,
    small_cluster,
    table_cases,
)

_RECOSTED_OPTIONS = 200  # Per table, spread evenly over it.

_SLACK = 1e-6  # Relative; a parallelizer may add up its times in another order.


def check_parallelizer(parallelizer: object) -> None:
    """Tests a parallelizer on small models and portions.

    The models are dense and MoE, the portions parts of a node and whole nodes, the slices with and without
    the ends of the model. It is asked everything that its capabilities promise, and nothing else. Checked
    are: that it answers where an answer surely exists; that its stages cover the slice on GPUs of the portion
    with degrees that multiply to their number; that they fit when the cost model counts their memory; that
    equal questions get equal answers if it says so; and that it finds nothing for many micro-batches in
    flight that it misses for fewer.

    Raises:
        AssertionError: It breaks a promise; the message says which, and on which question.
    """
    name = getattr(parallelizer, "name", None)
    _require(isinstance(name, str) and bool(name), f"{parallelizer!r} has no name")
    capabilities = getattr(parallelizer, "capabilities", None)
    _require(isinstance(capabilities, Capabilities), f"parallelizer {name!r} declares no Capabilities")
    known = False
    if isinstance(parallelizer, SlicePlanner):
        known = True
        _check_slice_planner(parallelizer)
    if isinstance(parallelizer, StageTable):
        known = True
        _check_stage_table(parallelizer)
    if isinstance(parallelizer, ClusterPlanner):
        known = True
        _check_cluster_planner(parallelizer)
    _require(known, f"parallelizer {name!r} implements none of SlicePlanner, StageTable and ClusterPlanner")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise AssertionError(message)


def _check_slice_planner(planner: SlicePlanner) -> None:
    capabilities = planner.capabilities
    for case in slice_cases(capabilities):
        request = case.request
        where = f"parallelizer {planner.name!r}, {request_text(request)}"
        plans = _asked(planner, request, where)
        _require(bool(plans) or not case.answerable, f"{where}: no plan, though its capabilities promise one")
        for idx, plan in enumerate(plans):
            _require(isinstance(plan, SlicePlan), f"{where}: answer {idx} is no SlicePlan but {plan!r}")
            faults = plan_faults(request, plan)
            _require(not faults, f"{where}: plan {idx}: {faults_text(faults)}")
        if capabilities.deterministic:
            again = _asked(planner, pickle.loads(pickle.dumps(request)), where)
            _require(list(again) == list(plans), f"{where}: equal questions got different answers")
        _check_fewer_in_flight(planner, request, plans, where)


def _asked(planner: SlicePlanner, request: SliceRequest, where: str) -> Sequence[SlicePlan]:
    try:
        return list(planner.plan(request))
    except Exception as error:
        raise AssertionError(f"{where}: it raised {type(error).__name__}: {error}") from error


def _check_fewer_in_flight(
    planner: SlicePlanner, request: SliceRequest, plans: Sequence[SlicePlan], where: str
) -> None:
    """What fits with many micro-batches in flight fits with one: asked for one, it must do as well."""
    if request.in_flight == min(IN_FLIGHT) or not plans:
        return
    fewer = replace(request, in_flight=min(IN_FLIGHT))
    answers = _asked(planner, fewer, where)
    _require(
        bool(answers), f"{where}: a plan, but none for {fewer.in_flight} in flight, where it fits as well"
    )
    many = min(_time_s(request, plan) for plan in plans)
    few = min(_time_s(fewer, plan) for plan in answers)
    _require(
        few <= many * (1 + _SLACK),
        f"{where}: a plan of {many:.6g} s, but asked for {fewer.in_flight} in flight one of {few:.6g} s",
    )


def _time_s(request: SliceRequest, plan: SlicePlan) -> float:
    """The slice alone: sum of stage times, the slowest once per further micro-batch, longest step end."""
    last = len(plan.stages) - 1
    costs = [recost(request, s, request.in_flight + last - i) for i, s in enumerate(plan.stages)]
    slowest = max(c.time_s for c in costs)
    return (
        sum(c.time_s for c in costs)
        + (request.num_micro_batches - 1) * slowest
        + max(c.step_s for c in costs)
    )


def _check_stage_table(planner: StageTable) -> None:
    for case in table_cases(planner.capabilities):
        request = case.request
        where = f"parallelizer {planner.name!r}, {request_text(request)}"
        table = _asked_table(planner, request, where)
        faults = table_faults(request, table, planner, _RECOSTED_OPTIONS)
        _require(not faults, f"{where}: {faults_text(faults)}")
        num_slices = len({*zip(table.start.tolist(), table.stop.tolist(), strict=True)})
        missing = len(request.atoms) * (len(request.atoms) + 1) // 2 - num_slices
        _require(not (case.answerable and missing), f"{where}: {missing} slices have no option")
        useless = _first_dominated(table)
        _require(useless is None, f"{where}: option {useless} is no better than another one in anything")
        if planner.capabilities.deterministic:
            again = _asked_table(planner, pickle.loads(pickle.dumps(request)), where)
            _require(_equal(table, again), f"{where}: equal questions got different answers")
        _check_subsets(planner, request, table, where)


def _asked_table(planner: StageTable, request: TableRequest, where: str) -> OptionTable:
    try:
        table = planner.options(request)
    except Exception as error:
        raise AssertionError(f"{where}: it raised {type(error).__name__}: {error}") from error
    _require(isinstance(table, OptionTable), f"{where}: the answer is no OptionTable but {table!r}")
    return table


def _check_subsets(planner: StageTable, request: TableRequest, table: OptionTable, where: str) -> None:
    """A narrower question gets the matching part of the wider answer."""
    num_atoms = len(request.atoms)
    slices = [(0, num_atoms), (1, num_atoms - 1)]
    part = _asked_table(planner, replace(request, slices=slices), where)
    whole_or_inner = (table.start == 0) & (table.stop == num_atoms)
    whole_or_inner |= (table.start == 1) & (table.stop == num_atoms - 1)
    same = _rows(part) == _rows(table, whole_or_inner)
    _require(same, f"{where}: asked for two slices only, it gives them other options")
    if not len(table.start):
        return
    time_ns = table.forward_ns + table.backward_ns
    cap_ns = int(np.sort(time_ns)[len(time_ns) // 2])
    quick = _asked_table(planner, replace(request, max_time_s=cap_ns / 1e9), where)
    same = _rows(quick) == _rows(table, time_ns <= cap_ns)
    _require(same, f"{where}: with a cap on time it gives other options below the cap")


def _rows(table: OptionTable, which: BoolArray | None = None) -> list[tuple[object, ...]]:
    """Options with their configuration spelled out, so that tables of different configurations compare."""
    chosen = slice(None) if which is None else which
    columns = [getattr(table, name)[chosen].tolist() for name in TABLE_COLUMNS]
    position = TABLE_COLUMNS.index("config")
    columns[position] = [table.configs[i] for i in columns[position]]
    return list(zip(*columns, strict=True))


def _equal(a: OptionTable, b: OptionTable) -> bool:
    return a.configs == b.configs and all(np.array_equal(getattr(a, n), getattr(b, n)) for n in TABLE_COLUMNS)


def _first_dominated(table: OptionTable) -> int | None:
    """Returns an option that another one of its slice makes useless, or None."""
    slices: dict[tuple[int, int], list[int]] = {}
    for idx, key in enumerate(zip(table.start.tolist(), table.stop.tolist(), strict=True)):
        slices.setdefault(key, []).append(idx)
    costs: IntArray = np.stack([table.forward_ns, table.backward_ns, table.step_ns, -table.max_in_flight])
    for members in slices.values():
        mine = costs[:, members]
        no_worse = (mine[:, :, None] <= mine[:, None, :]).all(axis=0)
        later = np.tri(len(members), k=-1, dtype=np.bool_)  # Of equal options one is useless: the earlier.
        dominated = no_worse & (~no_worse.T | later)
        if dominated.any():
            return members[int(np.flatnonzero(dominated.any(axis=0))[0])]
    return None


def _check_cluster_planner(planner: ClusterPlanner) -> None:
    job = Job(global_batch=64, seq_len=256, precision=Precision.BF16)
    models = [llama_like()] + ([moe_like()] if planner.capabilities.moe else [])
    for model in models:
        where = f"parallelizer {planner.name!r}, {model.name} on {small_cluster().name}"
        request = ClusterRequest(model, cut_atoms(model), small_cluster(), job)
        plans = []
        for _ in range(2):
            try:
                plans.append(planner.plan_cluster(request))
            except Exception as error:
                raise AssertionError(f"{where}: it raised {type(error).__name__}: {error}") from error
        plan = plans[0]
        if not isinstance(plan, ClusterPlan):
            raise AssertionError(f"{where}: the answer is no ClusterPlan but {plan!r}")
        faults = cluster_plan_faults(request, plan)
        _require(not faults, f"{where}: {faults_text(faults)}")
        same = plans[0] == plans[1] or not planner.capabilities.deterministic
        _require(same, f"{where}: equal questions got different answers")
