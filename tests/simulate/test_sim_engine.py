"""The event-driven executor. The deliberate faults it must catch are listed in test_sim_fast."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from sim_cases import pipelines, random_pipeline, uniform_pipeline
from sim_naive import naive_run

from tangram.simulate import engine
from tangram.simulate.engine import executed_ns, simulate
from tangram.simulate.fast import iteration_ns
from tangram.simulate.pipeline import SimEdge, SimPipeline, SimStage
from tangram.simulate.timeline import SimTask, TaskKind, Timeline

NAIVE_KINDS = {
    TaskKind.FORWARD: "F",
    TaskKind.BACKWARD: "B",
    TaskKind.SEND_FORWARD: "SF",
    TaskKind.SEND_BACKWARD: "SB",
    TaskKind.STEP: "step",
}
COMPUTE = (TaskKind.FORWARD, TaskKind.BACKWARD)


def table(timeline: Timeline) -> dict[tuple[str, int, int], tuple[int, int]]:
    """Every task by the naive executor's key, with start and end."""
    found = {
        (NAIVE_KINDS[t.kind], t.stage, t.micro_batch or 0): (t.start_ns, t.end_ns) for t in timeline.tasks()
    }
    assert len(found) == sum(1 for _ in timeline.tasks())
    return found


def naive_table(pipeline: SimPipeline) -> dict[tuple[str, int, int], tuple[int, int]]:
    run = naive_run(pipeline)
    return {key: (start, run.ends[key]) for key, start in run.starts.items()}


@pytest.mark.parametrize("resources", [False, True])
def test_every_task_runs_when_the_naive_executor_runs_it(resources: bool) -> None:
    rng = random.Random(30 + resources)
    contended = 0
    for _ in range(300):
        pipeline = random_pipeline(
            rng, resources=resources, blocking=None, low=rng.choice((0, 1)), scale=rng.choice((2, 10, 10**9))
        )
        timeline = simulate(pipeline)
        assert table(timeline) == naive_table(pipeline), pipeline
        contended += timeline.iteration_ns != iteration_ns(pipeline)
    assert contended > 20 if resources else contended == 0


@settings(max_examples=60, deadline=None)
@given(pipelines(resources=True, blocking=True))
def test_equals_the_naive_executor_on_adversarial_pipelines(pipeline: SimPipeline) -> None:
    assert table(simulate(pipeline)) == naive_table(pipeline)


@given(pipelines(max_stages=7, max_micro_batches=20, blocking=True))
def test_equals_the_longest_path_without_shared_resources(pipeline: SimPipeline) -> None:
    assert simulate(pipeline).iteration_ns == iteration_ns(pipeline)


def test_equals_the_longest_path_on_large_pipelines() -> None:
    rng = random.Random(6)
    for _ in range(10):
        pipeline = random_pipeline(rng, max_stages=12, max_micro_batches=128, scale=10**8)
        assert simulate(pipeline).iteration_ns == iteration_ns(pipeline)


@pytest.mark.parametrize("resources", [False, True])
def test_what_repeats_is_as_if_it_were_executed(resources: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many micro-batches: cycles of one and of several, and states that never repeat."""
    cycles: Counter[int] = Counter()
    repeat = engine._Run.repeat

    def counted(run: engine._Run, cycle: int) -> None:
        before = run.lanes[0].free_ns
        repeat(run, cycle)
        cycles[cycle] += run.lanes[0].free_ns > before

    monkeypatch.setattr(engine._Run, "repeat", counted)
    rng = random.Random(70 + resources)
    for number in range(200):
        scale = rng.choice((2, 10, 10**9))
        pipeline = random_pipeline(rng, resources=resources, blocking=None, max_micro_batches=90, scale=scale)
        timeline = simulate(pipeline)
        with monkeypatch.context() as patch:
            patch.setattr(engine, "_FIRST_LOOK", 1000)
            assert timeline == simulate(pipeline), pipeline
        assert executed_ns(pipeline) == timeline.iteration_ns
        if number < 5:
            assert table(timeline) == naive_table(pipeline), pipeline
    assert cycles[1] > 50
    assert cycles[2] + cycles[3] + cycles[4] > 5


@given(pipelines(resources=True, blocking=True))
def test_private_names_change_nothing(pipeline: SimPipeline) -> None:
    """A resource that only one edge direction names is that direction's own queue again."""
    edges = tuple(
        replace(edge, forward_resources=(f"{i}f", f"{i}g"), backward_resources=(f"{i}b",))
        for i, edge in enumerate(pipeline.edges)
    )
    assert simulate(replace(pipeline, edges=edges)).iteration_ns == iteration_ns(pipeline)


@given(pipelines(resources=True, blocking=True))
def test_what_an_execution_must_obey(pipeline: SimPipeline) -> None:
    timeline = simulate(pipeline)
    tasks = {(t.kind, t.stage, t.micro_batch): t for t in timeline.tasks()}
    for (kind, i, k), task in tasks.items():
        if kind is TaskKind.SEND_FORWARD:
            assert tasks[TaskKind.FORWARD, i, k].end_ns <= task.start_ns
            assert task.end_ns <= tasks[TaskKind.FORWARD, i + 1, k].start_ns
        if kind is TaskKind.SEND_BACKWARD:
            assert tasks[TaskKind.BACKWARD, i, k].end_ns <= task.start_ns
            assert task.end_ns <= tasks[TaskKind.BACKWARD, i - 1, k].start_ns
        if kind is TaskKind.BACKWARD:
            assert tasks[TaskKind.FORWARD, i, k].end_ns <= task.start_ns
    for i in range(pipeline.num_stages):
        lane = sorted(
            (t for t in tasks.values() if t.stage == i and t.kind in (*COMPUTE, TaskKind.STEP)),
            key=lambda t: (t.start_ns, t.end_ns),
        )
        assert all(a.end_ns <= b.start_ns for a, b in pairwise(lane))
    for name in sorted({r for e in pipeline.edges for r in (*e.forward_resources, *e.backward_resources)}):
        held = sorted(occupied(pipeline, tasks.values(), name))
        assert all(a[1] <= b[0] for a, b in pairwise(held))


def occupied(pipeline: SimPipeline, tasks: object, name: str) -> list[tuple[int, int]]:
    spans = []
    for task in tasks:  # type: ignore[attr-defined]
        assert isinstance(task, SimTask)
        if task.kind is TaskKind.SEND_FORWARD:
            edge = pipeline.edges[task.stage]
            names, occupancy = edge.forward_resources, edge.forward_occupancy_ns
        elif task.kind is TaskKind.SEND_BACKWARD:
            edge = pipeline.edges[task.stage - 1]
            names, occupancy = edge.backward_resources, edge.backward_occupancy_ns
        else:
            continue
        if name in names and occupancy:
            spans.append((task.start_ns, task.start_ns + occupancy))
    return spans


@given(pipelines(max_micro_batches=14, resources=True, blocking=True))
def test_holds_no_more_than_the_window(pipeline: SimPipeline) -> None:
    """Micro-batches pile up to the window before the first backward, and never beyond."""
    timeline = simulate(pipeline)
    for i, stage in enumerate(pipeline.stages):
        window = min(stage.in_flight, pipeline.num_micro_batches)
        forwards, backwards = timeline.forward_starts_ns[i], timeline.backward_starts_ns[i]
        ends = [start + stage.backward_ns for start in backwards]
        for k in range(pipeline.num_micro_batches - window):
            assert ends[k] <= forwards[k + window], "a forward beyond the window waits for a backward"
        assert forwards[window - 1] <= backwards[0], "the window is filled first"


def test_two_edges_share_a_nic() -> None:
    """Stages 0 and 2 sit on one node and both send to stage 1's and 3's nodes through its only NIC."""
    shared = SimEdge(0, 100, 0, ("node-a:egress",))
    alone = replace(shared, forward_resources=())
    stages = tuple(SimStage(10, 10, 0, w) for w in (4, 3, 2, 1))
    free = SimPipeline(stages, (alone, SimEdge(), alone), 8)
    contended = replace(free, edges=(shared, SimEdge(), shared))
    assert simulate(free).iteration_ns < simulate(contended).iteration_ns
    starts = simulate(contended).send_forward_starts_ns
    held = sorted([*starts[0], *starts[2]])
    assert all(b - a >= 100 for a, b in pairwise(held))


def test_equal_moments_are_served_by_stage() -> None:
    """Both transfers become ready at the same moment on one resource; the earlier stage goes first."""
    edge = SimEdge(0, 7, 7, ("wire",), ("wire",))
    pipeline = SimPipeline(
        (SimStage(5, 5, 0, 3), SimStage(5, 5, 0, 2), SimStage(5, 5, 0, 1)), (edge, edge), 3
    )
    timeline = simulate(pipeline)
    # F1 of stage 0 is ready at 10 and waits for F0's transfer (5-12): 12-19; stage 1's F0 (12-17) comes
    # behind it, and behind F2 of stage 0, ready at 15: that one takes 19-26, stage 1's F0 26-33.
    assert timeline.send_forward_starts_ns[0] == (5, 12, 19)
    assert timeline.send_forward_starts_ns[1][0] == 26
    tie = replace(pipeline, stages=tuple(replace(s, forward_ns=7) for s in pipeline.stages))
    # F0's transfer 7-14, stage 1's F0 14-21: its transfer is ready at 21 like the one of stage 0's F2.
    assert simulate(tie).send_forward_starts_ns[0] == (7, 14, 21)
    assert simulate(tie).send_forward_starts_ns[1][0] == 28


def test_blocking_holds_the_sender_until_the_tensor_has_arrived() -> None:
    pipeline = replace(uniform_pipeline(2, 3, 10, 20, edge=SimEdge(4, 6, 6)), blocking_p2p=True)
    timeline = simulate(pipeline)
    assert timeline.forward_starts_ns[0][:2] == (0, 20)
    assert timeline.iteration_ns == iteration_ns(pipeline.folded())


def test_sums_of_a_timeline() -> None:
    pipeline = uniform_pipeline(4, 12, 10, 20, u=5)
    timeline = simulate(pipeline)
    assert timeline.iteration_ns == (12 + 4 - 1) * 30 + 5
    assert timeline.busy_ns == (12 * 30 + 5,) * 4
    assert timeline.bubble_frac == pytest.approx(3 * 30 / 455)
    assert timeline.bubble_fracs == pytest.approx([90 / 455] * 4)
    assert timeline.first_ns == (0, 10, 20, 30)
    assert timeline.last_ns == (455, 435, 415, 395)


def test_a_step_that_takes_no_time_has_no_bubble() -> None:
    assert simulate(uniform_pipeline(2, 3, 0, 0)).bubble_frac == 0.0


@given(pipelines(resources=True))
def test_names_and_order_of_resources_do_not_matter(pipeline: SimPipeline) -> None:
    edges = tuple(
        replace(
            edge,
            forward_resources=tuple(f"other {name}" for name in reversed(edge.forward_resources)),
            backward_resources=tuple(f"other {name}" for name in reversed(edge.backward_resources)),
        )
        for edge in pipeline.edges
    )
    assert list(simulate(pipeline).tasks()) == list(simulate(replace(pipeline, edges=edges)).tasks())
