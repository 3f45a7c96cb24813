"""The exact table against a scalar enumeration of every configuration and every amount of recomputation."""

from dataclasses import replace

import numpy as np
import pytest

from tangram.cluster.spec import Portion
from tangram.cost.atoms import atom_costs
from tangram.cost.configs import legal_configs
from tangram.cost.stage import recompute_order
from tangram.cost.types import StageConfigs
from tangram.job import Job, Pins, Precision, Recompute
from tangram.model.atoms import cut_atoms, parse_granularity
from tangram.model.spec import ModelSpec
from tangram.parallelizers import exact, pareto
from tangram.parallelizers.contents import slice_contents
from tangram.parallelizers.exact import ExactStageTable
from tangram.parallelizers.invariants import TABLE_COLUMNS, recost, table_faults
from tangram.parallelizers.protocols import OptionTable, SliceRequest, StageChoice, TableRequest
from tangram.parallelizers.recompute import class_order
from tangram.parallelizers.totals import SPARE_BYTES, nanoseconds, stage_totals
from tangram.parallelizers.uniform import UniformPlanner
from tangram.testing.cases import (
    least_memory_bytes,
    llama_like,
    moe_like,
    small_gpu,
    small_island,
    with_memory,
)
from tangram.units import MIB

MAX_IN_FLIGHT = 5


def mixed(num_layers: int) -> ModelSpec:
    """Dense layers in front, experts behind: two classes that can be recomputed."""
    dense, moe = llama_like(num_layers), moe_like(num_layers)
    return replace(moe, name="mixed", layers=dense.layers[: num_layers // 2] + moe.layers[num_layers // 2 :])


def table_request(
    model: ModelSpec,
    granularity: str = "layer",
    portion: tuple[int, int] = (1, 4),
    memory_bytes: int | None = None,
    pins: Pins = Pins(),
    num_micro_batches: int = 8,
) -> TableRequest:
    gpu = small_gpu() if memory_bytes is None else small_gpu(memory_bytes)
    return TableRequest(
        model=model,
        atoms=cut_atoms(model, parse_granularity(granularity)),
        portion=Portion(small_island(gpu), *portion),
        micro_batch=8,
        num_micro_batches=num_micro_batches,
        max_in_flight=MAX_IN_FLIGHT,
        max_time_s=float("inf"),
        job=Job(global_batch=8 * num_micro_batches, seq_len=256, precision=Precision.BF16, pins=pins),
    )


Option = tuple[int, int, int, int]  # Time, forward, step end; minus the largest window.


def enumerate_options(request: TableRequest, start: int, stop: int) -> list[Option]:
    """Every configuration with every number of recomputed atoms, in the cost model's order, one by one."""
    atoms = request.atoms[start:stop]
    pinned = request.job.pins.recompute
    found = []
    for config in legal_configs(request.model, request.portion, request.micro_batch, request.job):
        table = StageConfigs.of([config])
        costs = atom_costs(request.model, atoms, request.portion, table, request.micro_batch, request.job)
        order = recompute_order(costs, 0, [bool(atom.layer_idxs) for atom in atoms])
        numbers = {None: range(len(order) + 1), Recompute.FULL: [len(order)]}.get(pinned, [0])
        for k in numbers:
            marks = tuple(i in order[:k] for i in range(len(atoms)))
            stage = StageChoice(start, stop, request.portion, config, marks)
            option = scalar_option(request, stage)
            if option is not None:
                found.append(option)
    return found


def scalar_option(request: TableRequest, stage: StageChoice) -> Option | None:
    """Counts windows upwards until one does not fit."""
    cost, largest = recost(request, stage, 1), 0
    beside = (cost.capacity_bytes - cost.state_bytes) / cost.upper_ratio - SPARE_BYTES
    for window in range(1, request.max_in_flight + 1):
        if recost(request, stage, window).best_peak_bytes - cost.state_bytes > beside:
            break
        largest = window
    if not largest:
        return None
    forward, backward, step = nanoseconds(np.array([cost.forward_s, cost.backward_s, cost.step_s])).tolist()
    return forward + backward, forward, step, -largest


def front(options: list[Option]) -> list[Option]:
    """Drops options that another one equals or beats in forward, backward and step time and in its window."""

    def no_worse(a: Option, b: Option) -> bool:
        return a[1] <= b[1] and a[0] - a[1] <= b[0] - b[1] and a[2] <= b[2] and a[3] <= b[3]

    distinct = sorted(set(options))
    return [b for b in distinct if not any(a != b and no_worse(a, b) for a in distinct)]


def table_front(table: OptionTable, start: int, stop: int) -> list[Option]:
    mine = np.flatnonzero((table.start == start) & (table.stop == stop))
    return [
        (
            int(table.forward_ns[i] + table.backward_ns[i]),
            int(table.forward_ns[i]),
            int(table.step_ns[i]),
            -int(table.max_in_flight[i]),
        )
        for i in mine
    ]


def slice_request(request: TableRequest, start: int, stop: int, in_flight: int) -> SliceRequest:
    return SliceRequest(
        model=request.model,
        atoms=request.atoms,
        start=start,
        stop=stop,
        portion=request.portion,
        micro_batch=request.micro_batch,
        num_micro_batches=request.num_micro_batches,
        in_flight=in_flight,
        link_in_bytes_per_s=None,
        link_out_bytes_per_s=None,
        job=request.job,
    )


def tight(request: TableRequest, share: float) -> TableRequest:
    """On GPUs that need recomputation: ``share`` 0 holds just the recomputed model, 1 all of it."""
    whole = slice_request(request, 0, len(request.atoms), MAX_IN_FLIGHT)
    low, high = (least_memory_bytes(whole, full=full) for full in (True, False))
    return replace(request, portion=with_memory(whole, round(low + share * (high - low))).portion)


REQUESTS = {
    "dense, plenty of memory": table_request(llama_like(2)),
    "dense, one GPU": table_request(llama_like(3), portion=(1, 1)),
    "dense, tight": tight(table_request(llama_like(6), portion=(1, 2)), 0.4),
    "dense, very tight": tight(table_request(llama_like(6), portion=(1, 4)), 0.05),
    "dense, two nodes, tight": tight(table_request(llama_like(4), portion=(2, 4)), 0.5),
    "dense, too small for some": tight(table_request(llama_like(6), portion=(1, 1)), -0.1),
    "experts, tight": tight(table_request(moe_like(2), portion=(1, 4)), 0.3),
    "two kinds of layers, tight": tight(table_request(mixed(4), portion=(1, 2)), 0.3),
    "operators, tight": tight(table_request(llama_like(2), "operator", portion=(1, 2)), 0.3),
    "blocks, tight": tight(table_request(mixed(4), "block", portion=(1, 1)), 0.25),
    "few micro-batches": tight(table_request(llama_like(4), portion=(1, 2), num_micro_batches=2), 0.2),
    "fp32, unfused attention": replace(
        tight(table_request(llama_like(3), portion=(1, 2)), 0.3),
        job=Job(global_batch=64, seq_len=256, precision=Precision.FP32),
    ),
    "offload": table_request(llama_like(3), portion=(1, 2), pins=Pins(offload="auto")),
    "pinned none": tight(
        table_request(llama_like(4), portion=(1, 2), pins=Pins(recompute=Recompute.NONE)), 0.5
    ),
    "pinned full": tight(
        table_request(llama_like(4), portion=(1, 2), pins=Pins(recompute=Recompute.FULL)), 0.1
    ),
    "pinned selective": table_request(
        llama_like(4), portion=(1, 2), pins=Pins(recompute=Recompute.SELECTIVE)
    ),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_front_equals_scalar_enumeration(name: str) -> None:
    request = REQUESTS[name]
    table = ExactStageTable().options(request)
    num = len(request.atoms)
    checked: dict[tuple[str, ...], list[Option]] = {}
    for start in range(num):
        for stop in range(start + 1, num + 1):
            content = tuple(sorted(atom.fingerprint for atom in request.atoms[start:stop]))
            if content not in checked:
                checked[content] = front(enumerate_options(request, start, stop))
            assert table_front(table, start, stop) == sorted(checked[content])


def test_the_tight_requests_do_recompute() -> None:
    """Or the test above would prove less than it seems to."""
    for name, request in REQUESTS.items():
        table = ExactStageTable().options(request)
        if "tight" in name:
            assert (table.num_recomputed > 0).any(), name
            assert table.counts["pairs_infeasible"] > 0 or "very" not in name


@pytest.mark.parametrize("name", REQUESTS)
def test_choices_cost_what_the_table_says(name: str) -> None:
    request = REQUESTS[name]
    table = ExactStageTable().options(request)
    assert table_faults(request, table, ExactStageTable()) == []
    for idx in range(0, len(table.start), 7):
        stage = ExactStageTable().choice(request, table, idx)
        assert sum(stage.recomputed) == table.num_recomputed[idx]


def test_least_time_per_window_never_falls() -> None:
    for request in REQUESTS.values():
        table = ExactStageTable().options(request)
        time_ns = table.forward_ns + table.backward_ns
        for start, stop in {(0, len(request.atoms)), (1, 3), (0, 2)}:
            mine = (table.start == start) & (table.stop == stop)
            least = [
                time_ns[mine & (table.max_in_flight >= w)].min(initial=2**62)
                for w in range(1, MAX_IN_FLIGHT + 1)
            ]
            assert least == sorted(least)


def test_the_earliest_atoms_of_a_class_are_recomputed() -> None:
    request = REQUESTS["two kinds of layers, tight"]
    table = ExactStageTable().options(request)
    whole = np.flatnonzero((table.start == 0) & (table.stop == 6) & (table.num_recomputed > 0))
    for idx in whole:
        recomputed = ExactStageTable().choice(request, table, int(idx)).recomputed
        assert not recomputed[0]
        assert not recomputed[-1]
        for kind in (recomputed[1:3], recomputed[3:5]):
            assert list(kind) == sorted(kind, reverse=True)


@pytest.mark.parametrize("name", ["dense, tight", "two kinds of layers, tight", "fp32, unfused attention"])
def test_class_order_is_the_cost_models(name: str) -> None:
    request = REQUESTS[name]
    configs = legal_configs(request.model, request.portion, request.micro_batch, request.job)
    contents = slice_contents(request.atoms)
    totals = stage_totals(
        request.model, request.atoms, contents, request.portion, configs, request.micro_batch, request.job
    )
    order = class_order(totals)
    for idx in range(len(configs)):
        assert order[:, idx].tolist() == recompute_order(totals.costs, idx, totals.recomputable.tolist())


def test_slow_options_are_left_out_and_counted() -> None:
    request = REQUESTS["dense, tight"]
    everything = ExactStageTable().options(request)
    time_ns = everything.forward_ns + everything.backward_ns
    cap_ns = int(np.sort(time_ns)[len(time_ns) // 3])
    quick = ExactStageTable().options(replace(request, max_time_s=cap_ns / 1e9))
    assert len(quick.start) == (time_ns <= cap_ns).sum()
    assert quick.counts["pairs_too_slow"] > 0
    nothing = ExactStageTable().options(replace(request, max_time_s=0.0))
    assert len(nothing.start) == 0
    assert nothing.counts["pairs_too_slow"] == nothing.counts["pairs"]


@pytest.mark.parametrize("name", REQUESTS)
def test_counts_add_up(name: str) -> None:
    for cap_s in (float("inf"), 3e-4):
        counts = ExactStageTable().options(replace(REQUESTS[name], max_time_s=cap_s)).counts
        parts = ("pairs_too_slow", "pairs_infeasible", "pairs_dominated", "pairs_useful")
        assert sum(counts[part] for part in parts) == counts["pairs"]


@pytest.mark.parametrize("num_layers", [1, 6, 30])
@pytest.mark.parametrize("in_flight", [1, 4])
def test_plans_down_to_the_last_bytes(num_layers: int, in_flight: int) -> None:
    request = table_request(llama_like(num_layers), portion=(1, 1))
    whole = slice_request(request, 0, len(request.atoms), in_flight)
    least = round(least_memory_bytes(whole, full=True))
    for spare, fits in ((-MIB, False), (MIB, True)):
        portion = with_memory(whole, least + spare).portion
        table = ExactStageTable().options(replace(request, portion=portion, slices=[(0, num_layers + 2)]))
        assert bool((table.max_in_flight >= in_flight).any()) is fits


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    request = REQUESTS["two kinds of layers, tight"]
    whole = ExactStageTable().options(request)
    monkeypatch.setattr(exact, "_MAX_CELLS", 200)
    monkeypatch.setattr(pareto, "_MAX_CELLS", 10)
    pieces = ExactStageTable().options(request)
    assert whole.counts == pieces.counts
    for name in TABLE_COLUMNS:
        assert np.array_equal(getattr(whole, name), getattr(pieces, name))


def test_nothing_legal_and_nothing_asked() -> None:
    pinned = table_request(llama_like(2), pins=Pins(tp=8))
    assert len(ExactStageTable().options(pinned).start) == 0
    assert len(ExactStageTable().options(table_request(llama_like(2), memory_bytes=1)).start) == 0
    assert len(ExactStageTable().options(replace(table_request(llama_like(2)), slices=[])).start) == 0


@pytest.mark.parametrize("name", ["dense, tight", "experts, tight", "few micro-batches", "pinned full"])
def test_never_worse_than_uniform_as_one_stage(name: str) -> None:
    request = REQUESTS[name]
    table = ExactStageTable().options(request)
    compared = 0
    for start in range(len(request.atoms)):
        for stop in range(start + 1, len(request.atoms) + 1):
            options = table_front(table, start, stop)
            for in_flight in (1, 3):
                question = slice_request(request, start, stop, in_flight)
                for plan in UniformPlanner().plan(question):
                    if len(plan.stages) == 1:
                        theirs = scalar_option(request, plan.stages[0])
                        assert theirs is not None
                        assert any(all(a <= b for a, b in zip(o, theirs, strict=True)) for o in options)
                        compared += 1
    assert compared > 10
