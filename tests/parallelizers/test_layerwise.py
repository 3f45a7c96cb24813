"""Stages whose atoms differ, filled all at once: against all mixtures, the referee, and the knapsack."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations_with_replacement, product

import numpy as np
import pytest
from wide_models import wide

from tangram.cluster.spec import Portion
from tangram.cost.types import FloatArray
from tangram.job import Job, Pins, Precision, Recompute
from tangram.model.atoms import cut_atoms
from tangram.parallelizers.book import StageBook
from tangram.parallelizers.exact import ExactStageTable
from tangram.parallelizers.galvatron.stages import PortionStages
from tangram.parallelizers.layerwise.finest import finest_stages
from tangram.parallelizers.layerwise.mixtures import Offers, best_mixtures, relaxed_values
from tangram.parallelizers.layerwise.planner import LayerwiseTable, is_mixed
from tangram.parallelizers.protocols import OptionTable, TableRequest
from tangram.testing import check_parallelizer
from tangram.testing.cases import llama_like, moe_like, small_gpu, small_island
from tangram.units import GB, GIB

DENSE, EXPERTS = wide(llama_like(4)), wide(moe_like(4))
TIED = wide(llama_like(3), tied=True)
BOTH = replace(DENSE, name="both", layers=(*DENSE.layers[:2], *EXPERTS.layers[:1], *DENSE.layers[:1]))
MODELS = {"dense": DENSE, "tied": TIED, "experts": EXPERTS, "both": BOTH}


def instance(seed: int) -> Offers:
    """Three classes, four strategies, two ways, two windows; some strategies are not to be had."""
    rng = np.random.default_rng(seed)
    value = rng.uniform(1, 4, (2, 3, 4))
    value[rng.random(value.shape) < 0.2] = np.inf
    counts = rng.integers(0, 4, (5, 3))
    held = np.stack([size := rng.uniform(0, 5, (3, 4)), size + rng.uniform(0, 2, (3, 4))])
    return Offers(value, rng.uniform(0, 25, (2, 5)), held, counts, rng.uniform(0, 0.5, (2, 5)))


def all_mixtures(offers: Offers, window: int, way: int, content: int) -> float:
    """The least value over every choice for every atom."""
    value, held = offers.value_s[way], offers.held_bytes[window]
    kinds = [list(combinations_with_replacement(range(4), int(n))) for n in offers.counts[content]]
    best = np.inf
    for chosen in product(*kinds):
        pairs = [(held_class, s) for held_class, own in enumerate(chosen) for s in own]
        size = sum(held[pair] for pair in pairs)
        if size <= offers.room_bytes[way, content]:
            best = min(best, offers.fixed_s[way, content] + sum(value[pair] for pair in pairs))
    return float(best)


@pytest.mark.parametrize("seed", range(12))
def test_mixtures_are_within_one_atom_of_the_best(seed: int) -> None:
    offers = instance(seed)
    found, bound = best_mixtures(offers), relaxed_values(offers)
    finite = offers.value_s[np.isfinite(offers.value_s)]
    one_atom = float(finite.max() - finite.min())
    exact = 0
    for window, content in product(range(2), range(5)):
        best = min(all_mixtures(offers, window, way, content) for way in range(2))
        value = float(found.value_s[window, content])
        assert np.isfinite(value) == np.isfinite(best)
        if np.isfinite(best):
            assert bound[window, content] <= best + 1e-9
            assert best - 1e-9 <= value <= best + one_atom
            exact += value <= best + 1e-9
    assert exact >= 4


@pytest.mark.parametrize("seed", range(12))
def test_a_mixture_is_what_it_says(seed: int) -> None:
    offers = instance(seed)
    found = best_mixtures(offers)
    for window, content in zip(*np.nonzero(np.isfinite(found.value_s)), strict=True):
        way, numbers = found.way[window, content], found.numbers[window, content]
        assert (numbers >= 0).all()
        assert numbers.sum(axis=1).tolist() == offers.counts[content].tolist()
        value = np.where(numbers > 0, offers.value_s[way], 0.0)
        assert (numbers * value).sum() + offers.fixed_s[way, content] == pytest.approx(
            found.value_s[window, content]
        )
        assert (numbers * offers.held_bytes[window]).sum() <= offers.room_bytes[way, content] + 1e-9


def question(
    name: str, gib: float, gpus: int = 4, pins: Pins = Pins(), *, slow: bool = False
) -> TableRequest:
    """All slices of a model on GPUs of so much memory, over slow links or fast ones."""
    island, model = small_island(small_gpu(int(gib * GIB))), MODELS[name]
    if slow:
        island = replace(island, intra_bandwidth_bytes_per_s=2.0 * GB)
    job = Job(64, 256, Precision.BF16, pins=pins)
    return TableRequest(model, cut_atoms(model), Portion(island, 1, gpus), 8, 8, 6, float("inf"), job)


CASES = {
    "dense": question("dense", 2.0),
    "dense, slow": question("dense", 1.9, slow=True),
    "dense, ZeRO 1": question("dense", 1.8, pins=Pins(zero=1), slow=True),
    "dense, selective": question("dense", 2.0, pins=Pins(recompute=Recompute.SELECTIVE), slow=True),
    "dense, full": question("dense", 1.9, pins=Pins(recompute=Recompute.FULL), slow=True),
    "tied": question("tied", 2.0, 2, slow=True),
    "experts": question("experts", 2.4, slow=True),
    "both": question("both", 2.2, slow=True),
}


@pytest.mark.parametrize("case", CASES)
def test_every_stage_is_what_the_referee_says(case: str) -> None:
    request = CASES[case]
    table, planner = LayerwiseTable().options(request), LayerwiseTable()
    book = StageBook(request.model, request.atoms, request.portion.island, 8, 8, request.job)
    for row in np.flatnonzero(is_mixed(table)).tolist():
        choice = planner.choice(request, table, row)
        assert (choice.start, choice.stop) == (table.start[row], table.stop[row])
        limit = int(table.max_in_flight[row])
        cost = book.cost(choice, limit)
        assert cost.peak_bytes <= cost.capacity_bytes
        assert cost.forward_s * 1e9 == pytest.approx(table.forward_ns[row], abs=1)
        assert cost.backward_s * 1e9 == pytest.approx(table.backward_ns[row], abs=1)
        assert cost.step_s * 1e9 == pytest.approx(table.step_ns[row], abs=1)
        if limit < request.max_in_flight:
            more = book.cost(choice, limit + 1)
            assert more.peak_bytes > more.capacity_bytes
    assert is_mixed(table).any()


def values(request: TableRequest, table: OptionTable, in_flight: int) -> dict[tuple[int, int], float]:
    """The least ``t + u / m`` of every slice at a window."""
    found: dict[tuple[int, int], float] = {}
    for row in np.flatnonzero(table.max_in_flight >= in_flight).tolist():
        key = int(table.start[row]), int(table.stop[row])
        step = table.step_ns[row] / request.num_micro_batches
        value = (table.forward_ns[row] + table.backward_ns[row] + step) / 1e9
        found[key] = min(found.get(key, np.inf), float(value))
    return found


@pytest.mark.parametrize("case", ["dense", "dense, slow", "tied", "experts"])
def test_stages_come_up_to_the_knapsack(case: str) -> None:
    request = CASES[case]
    table, alike = LayerwiseTable().options(request), ExactStageTable().options(request)
    book = StageBook(request.model, request.atoms, request.portion.island, 8, 8, request.job)
    stages = PortionStages(book, request.portion)
    losses: list[float] = []
    gains: list[float] = []
    for in_flight in (1, 3, 5):
        ours, exact = values(request, table, in_flight), values(request, alike, in_flight)
        window = stages.window(in_flight)
        for (start, stop), value in ours.items():
            stages.ask(window, start, stop)
            content = stages.contents_of(np.array([start]), np.array([stop]))
            theirs: FloatArray = window.value_s[content]
            losses.append(value / float(theirs[0]) - 1)
            gains.append(exact.get((start, stop), np.inf) / value - 1)
    assert max(losses) < 0.05
    assert float(np.mean(losses)) < 0.005
    assert max(gains) > 0.005


@pytest.mark.parametrize("case", ["dense", "dense, slow", "tied", "experts", "both"])
def test_the_finest_stages_fit_and_make_up_for_what_the_table_lacks(case: str) -> None:
    request = CASES[case]
    table = LayerwiseTable().options(request)
    book = StageBook(request.model, request.atoms, request.portion.island, 8, 8, request.job)
    gains: list[float] = []
    for in_flight in (1, 3, 5):
        for (start, stop), value in values(request, table, in_flight).items():
            (stage,) = finest_stages(request, [(start, stop, in_flight)])
            cost = book.cost(stage, in_flight)
            assert (stage.start, stage.stop, stage.portion) == (start, stop, request.portion)
            assert cost.peak_bytes <= cost.capacity_bytes
            gains.append(value / (cost.time_s + cost.step_s / request.num_micro_batches) - 1)
    assert min(gains) > -1e-3  # memory is rounded, and times to whole nanoseconds
    assert max(gains) > 0.02


def test_the_finest_stages_are_those_asked_for_in_order() -> None:
    request = CASES["dense, slow"]
    asked = [(2, 5, 3), (0, 3, 2), (2, 5, 3)]
    found = finest_stages(request, asked)
    assert [(stage.start, stage.stop) for stage in found] == [(2, 5), (0, 3)]
    assert found == [stage for question in asked[:2] for stage in finest_stages(request, [question])]
    poor = question("dense", 0.1)
    assert finest_stages(poor, [(0, 5, 3)]) == []


def test_options_of_a_slice_do_not_depend_on_other_slices() -> None:
    request = CASES["dense, slow"]
    everything = LayerwiseTable().options(request)
    row = int(np.flatnonzero(is_mixed(everything))[0])
    asked = {(int(everything.start[row]), int(everything.stop[row])), (0, 2)}
    some = LayerwiseTable().options(replace(request, slices=sorted(asked)))
    wanted = [pair in asked for pair in zip(everything.start, everything.stop, strict=True)]
    assert is_mixed(some).any()
    names = ("start", "stop", "max_in_flight", "forward_ns", "backward_ns", "step_ns")
    for name in names:
        assert getattr(some, name).tolist() == getattr(everything, name)[wanted].tolist()


def test_it_keeps_the_rules_for_parallelizers() -> None:
    check_parallelizer(LayerwiseTable())
