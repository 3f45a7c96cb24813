"""The inter-operator pass against trying every pipeline, on random stage times and limits."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tangram.parallelizers.alpa.inter import UNLIMITED, Options, Pipelines, rounded_down
from tangram.parallelizers.alpa.runs import MOST_CLUSTERS, Runs, runs_of

Stage = tuple[int, int, int]  # Submesh, time, held.


class World:
    """A few atoms of two classes, and for every run and submesh some stages of random time and limit."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        num = int(rng.integers(3, 7))
        layers = tuple(int(k) for k in rng.integers(0, 2, size=num))
        self.classes = (2, *layers, 3)
        self.runs = runs_of(self.classes, (None, *range(num), None), None)
        self.submeshes = {0: 1, 1: 2, 2: 4}
        self.num_gpus = int(rng.integers(2, 6))
        self.num_micro_batches = int(rng.integers(1, 9))
        self.stages: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for run in range(len(self.runs.start)):
            length = int(self.runs.stop[run] - self.runs.start[run])
            for submesh, gpus in self.submeshes.items():
                held = [
                    int(rng.integers(-2, 8)),
                    UNLIMITED if rng.random() < 0.2 else int(rng.integers(-2, 8)),
                ]
                times = rng.integers(10 * length // gpus + 1, 30 * length // gpus + 10, size=2).tolist()
                self.stages[run, submesh] = [(t, h) for t, h in zip(times, held, strict=True) if h >= 1]

    def options(self) -> dict[int, Options]:
        made = {}
        for submesh, gpus in self.submeshes.items():
            rows = [
                (run, time, held, choice)
                for run in range(len(self.runs.start))
                for choice, (time, held) in enumerate(self.stages[run, submesh])
            ]
            columns = np.array(rows, dtype=np.int64).reshape(-1, 4).T
            made[submesh] = Options(gpus, *columns)
        return made

    def pipelines(self, start: int, stop: int, gpus: int) -> Iterator[list[Stage]]:
        """All pipelines of a slice on at most so many GPUs, fitting or not."""
        for cut in range(start + 1, stop + 1):
            run = int(self.runs.number[start, cut])
            for submesh, size in self.submeshes.items():
                if size > gpus:
                    continue
                for time, held in self.stages[run, submesh]:
                    if cut == stop:
                        yield [(submesh, time, held)]
                    for rest in self.pipelines(cut, stop, gpus - size) if cut < stop else ():
                        yield [(submesh, time, held), *rest]

    def value(self, stages: list[Stage]) -> int:
        times = [time for _, time, _ in stages]
        return sum(times) + (self.num_micro_batches - 1) * max(times)

    def limit(self, stages: list[Stage]) -> int:
        """Most micro-batches at the last stage: each stage in front holds one more."""
        last = len(stages) - 1
        return min(h if h == UNLIMITED else h - (last - i) for i, (_, _, h) in enumerate(stages))


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("all_lengths", [False, True])
def test_it_finds_the_best_pipeline_for_every_number_in_flight(seed: int, all_lengths: bool) -> None:
    world = World(seed)
    made = Pipelines(world.runs, world.options(), world.num_micro_batches, all_lengths)
    labels = {d: made.labels(d) for d in range(1, world.num_gpus + 1)}
    num = len(world.classes)
    for start in range(num):
        for stop in range(start + 1, num + 1):
            run = int(world.runs.number[start, stop])
            tried = list(world.pipelines(start, stop, world.num_gpus))
            found = [(d, row) for d, part in labels.items() for row in np.flatnonzero(part.run == run)]
            for in_flight in (1, 2, 4, 7):
                able = [world.value(p) for p in tried if world.limit(p) >= in_flight]
                ours = [
                    int(labels[d].sum_ns[row] + (world.num_micro_batches - 1) * labels[d].max_ns[row])
                    for d, row in found
                    if labels[d].limit[row] >= in_flight
                ]
                assert min(ours, default=None) == min(able, default=None)
            if all_lengths:
                lengths = {len(p) for p in tried if world.limit(p) >= 1}
                assert {int(labels[d].stages[row]) for d, row in found} == lengths


@pytest.mark.parametrize("seed", range(10))
def test_labels_say_what_their_stages_do(seed: int) -> None:
    world = World(seed)
    options = world.options()
    made = Pipelines(world.runs, options, world.num_micro_batches)
    for d in range(1, world.num_gpus + 1):
        labels = made.labels(d)
        for row in range(len(labels)):
            chosen = made.stages(d, row)
            stages = [(m, int(options[m].time_ns[o]), int(options[m].held[o])) for m, o in chosen]
            assert sum(world.submeshes[m] for m, _, _ in stages) == d
            assert labels.sum_ns[row] == sum(t for _, t, _ in stages)
            assert labels.max_ns[row] == max(t for _, t, _ in stages)
            assert labels.stages[row] == len(stages)
            assert labels.limit[row] == world.limit(stages)
            lengths = [_length(world.runs, int(options[m].run[o])) for m, o in chosen]
            assert sum(lengths) == _length(world.runs, int(labels.run[row]))


def _length(runs: Runs, run: int) -> int:
    return int(runs.stop[run] - runs.start[run])


def test_limits_are_rounded_down_by_less_than_a_quarter() -> None:
    limits = np.arange(1, 2000)
    rounded = rounded_down(limits)
    assert (rounded <= limits).all()
    assert (rounded * 1.25 > limits).all()
    assert rounded[:8].tolist() == list(range(1, 9))
    assert rounded[8:20].tolist() == [8, 10, 10, 12, 12, 14, 14, 16, 16, 16, 16, 20]
    assert rounded_down(np.array([UNLIMITED])).tolist() == [UNLIMITED]


def test_runs_of_equal_content_are_one() -> None:
    runs = runs_of((0, 1, 1, 1, 2), (None, 0, 1, 2, None), None)
    assert runs.number[1, 3] == runs.number[2, 4] != runs.number[1, 4]
    assert runs.number[0, 2] != runs.number[1, 3]
    cuts = {(int(c), int(f), int(r)) for c, f, r in zip(runs.cut, runs.front, runs.rear, strict=True)}
    layer, two = int(runs.number[1, 2]), int(runs.number[1, 3])
    assert {(f, r) for c, f, r in cuts if c == two} == {(layer, layer)}
    assert len({(f, r) for c, f, r in cuts if c == runs.whole}) == 4


def test_runs_are_cut_between_layers() -> None:
    """Two atoms per layer: half of the places fall away, and runs differ by the half they begin in."""
    runs = runs_of((0, 1, 2, 1, 2, 3), (None, 0, 0, 1, 1, None), None)
    pairs = set(zip(runs.cut.tolist(), runs.front.tolist(), strict=True))
    assert {f for c, f in pairs if c == runs.whole} == {int(runs.number[0, k]) for k in (1, 3, 5)}


def test_many_layers_are_clustered() -> None:
    num = 2 * MOST_CLUSTERS
    runs = runs_of((0, *[1] * num, 2), (None, *range(num), None), None)
    fronts = {f for c, f in zip(runs.cut.tolist(), runs.front.tolist(), strict=True) if c == runs.whole}
    assert len(fronts) == MOST_CLUSTERS + 1
    assert runs.number[1, 5] == runs.number[3, 7] != runs.number[2, 6]
