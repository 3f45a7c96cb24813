"""The best stage of a slice against every choice of strategies for its atoms, each costed by the referee."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from wide_models import wide

from tangram.cluster.spec import Portion
from tangram.cost.configs import legal_configs
from tangram.cost.types import StageConfig, StageCost
from tangram.job import Job, Pins, Precision, Recompute
from tangram.model.atoms import cut_atoms
from tangram.model.spec import ModelSpec
from tangram.parallelizers.book import StageBook
from tangram.parallelizers.galvatron.mixing import Grain
from tangram.parallelizers.galvatron.stages import PortionStages
from tangram.parallelizers.protocols import StageChoice
from tangram.parallelizers.totals import SPARE_BYTES
from tangram.testing.cases import llama_like, moe_like, small_gpu, small_island
from tangram.units import GB, GIB, MIB

FINE = Grain(step_bytes=1e3, num_steps=200_000, level_bytes=0.0, worth_frac=0.0)
NUM_MICRO_BATCHES = 4


DENSE, TIED = wide(llama_like(3)), wide(llama_like(2), tied=True)
EXPERTS = wide(moe_like(2))
BOTH = replace(DENSE, name="both", layers=(DENSE.layers[0], EXPERTS.layers[0], DENSE.layers[0]))


def book_of(model: ModelSpec, memory_bytes: int, pins: Pins, *, slow: bool = False) -> StageBook:
    island = small_island(small_gpu(memory_bytes))
    if slow:
        island = replace(island, intra_bandwidth_bytes_per_s=2.0 * GB)
    job = Job(8 * NUM_MICRO_BATCHES, 256, Precision.BF16, pins=pins)
    return StageBook(model, cut_atoms(model), island, 8, NUM_MICRO_BATCHES, job)


def value_s(cost: StageCost) -> float:
    return cost.time_s + cost.step_s / NUM_MICRO_BATCHES


def brute_force(
    book: StageBook, portion: Portion, start: int, stop: int, in_flight: int
) -> dict[bool, float]:
    """The least value with all atoms of one configuration (True), and over all choices (False)."""
    configs = legal_configs(book.model, portion, book.micro_batch, book.job)
    atoms = book.atoms[start:stop]
    pinned = book.job.pins.recompute
    again = {None: (False, True), Recompute.FULL: (True,)}.get(pinned, (False,))
    offers = [[(c, f) for c in configs for f in (again if a.layer_idxs else (False,))] for a in atoms]
    best = {True: np.inf, False: np.inf}
    for choice in product(*offers):
        own = [config for config, _ in choice]
        tied = book.model.tied_embeddings and atoms[0].is_embedding and atoms[-1].is_head
        if tied and own[0] != own[-1]:
            continue
        cost = book.cost(stage(portion, start, stop, own, [full for _, full in choice]), in_flight)
        left = cost.capacity_bytes - cost.state_bytes
        if cost.best_peak_bytes - cost.state_bytes <= left / cost.upper_ratio - SPARE_BYTES:
            alike = len(set(own)) == 1
            best[False] = min(best[False], value_s(cost))
            best[True] = min(best[True], value_s(cost)) if alike else best[True]
    return best


def stage(portion: Portion, start: int, stop: int, own: list[StageConfig], full: list[bool]) -> StageChoice:
    mixed = tuple(own) if len(set(own)) > 1 else ()
    return StageChoice(start, stop, portion, own[0], tuple(full), mixed)


PAIR = Pins()
CASES = [
    # Model, slice, GPUs, pins, slow links.
    (DENSE, (1, 4), 2, PAIR, False),
    (DENSE, (1, 4), 2, PAIR, True),
    (DENSE, (0, 3), 2, PAIR, False),
    (DENSE, (2, 5), 2, PAIR, False),
    (TIED, (0, 4), 2, Pins(tp=1), False),
    (TIED, (0, 4), 2, Pins(recompute=Recompute.FULL), False),
    (BOTH, (1, 3), 2, PAIR, False),
    (BOTH, (2, 4), 4, Pins(tp=2), False),
    (EXPERTS, (2, 4), 2, Pins(zero=3), False),
    (DENSE, (1, 4), 4, Pins(recompute=Recompute.NONE), False),
    (DENSE, (4, 5), 4, PAIR, False),
]


@pytest.mark.parametrize("at", [0.02, 0.4, 0.7])
@pytest.mark.parametrize("case", CASES, ids=[f"{c[0].name}-{c[1]}-{i}" for i, c in enumerate(CASES)])
def test_the_best_of_all_choices(case: tuple[ModelSpec, tuple[int, int], int, Pins, bool], at: float) -> None:
    model, (start, stop), gpus, pins, slow = case
    book = book_of(model, tight_bytes(model, start, stop, gpus, pins, at), pins, slow=slow)
    portion = Portion(book.island, 1, gpus)
    best = brute_force(book, portion, start, stop, 2)
    for grain in (FINE, Grain()):
        stages = PortionStages(book, portion, grain=grain)
        window = stages.window(2)
        stages.ask(window, start, stop)
        choice = stages.stage(window, start, stop)
        assert (choice is not None) or best[True] == np.inf
        if choice is None:
            continue
        cost = book.cost(choice, 2)
        assert cost.peak_bytes <= cost.capacity_bytes
        content = int(stages.contents_of(np.array([start]), np.array([stop]))[0])
        assert value_s(cost) == pytest.approx(float(window.value_s[content]), rel=1e-9)
        if grain is FINE:
            assert value_s(cost) == pytest.approx(best[False], rel=1e-9)
        assert best[False] * (1 - 1e-9) <= value_s(cost) <= best[True] * (1 + 1e-9)


def tight_bytes(model: ModelSpec, start: int, stop: int, gpus: int, pins: Pins, at: float) -> int:
    """A GPU between the smallest that holds the slice with all atoms alike, and the smallest that holds it so
    at its fastest.

    A part of the reserve is a share of the memory, so a peak is a straight line in it.
    """
    books = [book_of(model, size, pins) for size in (4 * GIB, 8 * GIB)]
    portion = Portion(books[0].island, 1, gpus)
    needs: list[tuple[float, float]] = []
    for config in legal_configs(model, portion, books[0].micro_batch, books[0].job):
        for full in (False, True):
            marks = tuple(full and bool(a.layer_idxs) for a in books[0].atoms[start:stop])
            choices = [StageChoice(start, stop, Portion(b.island, 1, gpus), config, marks) for b in books]
            low, high = (b.cost(choice, 2) for b, choice in zip(books, choices, strict=True))
            slope = (high.peak_bytes - low.peak_bytes) / (4 * GIB)
            needs.append((value_s(low), (low.peak_bytes - slope * 4 * GIB) / (1 - slope)))
    lowest, fastest = min(need for _, need in needs), min(needs)[1]
    return round(lowest + at * max(0.0, fastest - lowest)) + MIB // 4


def test_mixing_is_worth_it_somewhere() -> None:
    """Where memory is short, layers of their own strategies beat the best of one configuration."""
    book = book_of(DENSE, tight_bytes(DENSE, 2, 5, 2, PAIR, 0.02), PAIR)
    best = brute_force(book, Portion(book.island, 1, 2), 2, 5, 2)
    assert best[False] * 1.04 < best[True] < np.inf


def test_no_legal_configuration() -> None:
    book = book_of(DENSE, 8 * GIB, Pins(tp=3))
    stages = PortionStages(book, Portion(book.island, 1, 4))
    assert stages.configs == []
    window = stages.window(1)
    assert not stages.ask(window, 1, 3)
    assert stages.stage(window, 1, 3) is None
