"""Random pipelines for the tests, seeded and by hypothesis, and what the formulas want to know of them."""

from __future__ import annotations

import random
from dataclasses import dataclass

from hypothesis import strategies as st

from tangram.simulate.pipeline import SimEdge, SimPipeline, SimStage

RESOURCES = ("a:out", "a:in", "b:out", "b:in")


@dataclass(frozen=True)
class Terms:
    """Arguments of the formulas, from a pipeline (folded if its point-to-point blocks)."""

    f: list[int]
    b: list[int]
    t: list[int]
    u: list[int]
    w: list[int]
    x: list[int]
    X: list[int]
    occupancy: list[int]
    m: int

    @staticmethod
    def of(pipeline: SimPipeline) -> Terms:
        p = pipeline.folded()
        return Terms(
            f=[s.forward_ns for s in p.stages],
            b=[s.backward_ns for s in p.stages],
            t=[s.forward_ns + s.backward_ns for s in p.stages],
            u=[s.step_ns for s in p.stages],
            w=[s.in_flight for s in p.stages],
            x=[e.forward_ns for e in p.edges],
            X=[e.round_trip_ns for e in p.edges],
            occupancy=[o for e in p.edges for o in (e.forward_occupancy_ns, e.backward_occupancy_ns)],
            m=p.num_micro_batches,
        )


def random_pipeline(
    rng: random.Random,
    *,
    max_stages: int = 6,
    max_micro_batches: int = 12,
    scale: int = 10,
    low: int = 0,
    transfers: bool = True,
    extra: int = 2,
    resources: bool = False,
    blocking: bool | None = False,
) -> SimPipeline:
    """Unequal stages; small ``scale`` gives many ties, ``low=0`` tasks that take no time."""
    num_stages = rng.randint(1, max_stages)
    window, windows = 0, []
    for i in range(num_stages):
        window += 1 + (rng.randint(0, extra) if i and rng.random() < 0.5 else 0)
        windows.append(window)
    stages = tuple(
        SimStage(rng.randint(low, scale), rng.randint(low, 2 * scale), rng.randint(0, 4 * scale), w)
        for w in reversed(windows)
    )
    slow = rng.choice((0, scale // 5, scale, 3 * scale)) if transfers else 0

    def named() -> tuple[str, ...]:
        return tuple(rng.sample(RESOURCES, rng.randint(0, 3))) if resources else ()

    edges = tuple(
        SimEdge(rng.randint(0, slow), rng.randint(0, slow), rng.randint(0, slow), named(), named())
        for _ in range(num_stages - 1)
    )
    blocks = rng.random() < 0.5 if blocking is None else blocking
    return SimPipeline(stages, edges, rng.randint(1, max_micro_batches), blocks)


@st.composite
def pipelines(
    draw: st.DrawFn,
    *,
    max_stages: int = 5,
    max_micro_batches: int = 10,
    top: int = 40,
    transfers: bool = True,
    extra: int = 2,
    resources: bool = False,
    blocking: bool = False,
) -> SimPipeline:
    num_stages = draw(st.integers(1, max_stages))
    times = st.integers(0, top)
    extras = [draw(st.integers(0, extra)) for _ in range(num_stages)]
    windows = [sum(1 + e for e in extras[i + 1 :]) + 1 for i in range(num_stages)]
    stages = tuple(SimStage(draw(times), draw(times), draw(times), w) for w in windows)
    names = (
        st.lists(st.sampled_from(RESOURCES), max_size=3, unique=True).map(tuple) if resources else st.just(())
    )
    moved = times if transfers else st.just(0)
    edges = tuple(
        SimEdge(draw(moved), draw(moved), draw(moved), draw(names), draw(names))
        for _ in range(num_stages - 1)
    )
    blocks = draw(st.booleans()) if blocking else False
    return SimPipeline(stages, edges, draw(st.integers(1, max_micro_batches)), blocks)


def uniform_pipeline(
    num_stages: int, m: int, f: int, b: int, u: int = 0, edge: SimEdge | None = None, extra: int = 0
) -> SimPipeline:
    """Equal stages; windows are minimal plus ``extra`` per edge."""
    windows = [1 + (1 + extra) * (num_stages - 1 - i) for i in range(num_stages)]
    stages = tuple(SimStage(f, b, u, w) for w in windows)
    return SimPipeline(stages, (edge or SimEdge(),) * (num_stages - 1), m)
