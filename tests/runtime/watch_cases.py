"""Events of the ranks of the small plans, made up: exactly as the plan predicts, or as a test wants them."""

from __future__ import annotations

from tangram.plan.schema import PlanDocument
from tangram.planner.recost import simulate_plan
from tangram.runtime.hooks import TaskKind
from tangram.runtime.watch.clock import Event
from tangram.runtime.watch.figures import RankFigures, StageFigures, StepFigures
from tangram.runtime.watch.timeline import RankEvents

START_NS = 5_000_000_000


def as_predicted(plan: PlanDocument) -> list[RankEvents]:
    """What ranks would note if a step ran exactly as the simulator says."""
    timeline = simulate_plan(plan)
    found = []
    for stage in plan.stages:
        events = []
        for task in timeline.tasks():
            start, end = task.start_ns + START_NS, task.end_ns + START_NS
            if task.kind in (TaskKind.FORWARD, TaskKind.BACKWARD, TaskKind.STEP):
                if task.stage == stage.index:
                    events.append(Event(task.kind, task.micro_batch, start, end))
                continue
            receiver = task.stage + (1 if task.kind is TaskKind.SEND_FORWARD else -1)
            if task.stage == stage.index:
                events.append(Event(task.kind, task.micro_batch, start, start))
            if receiver == stage.index:
                events.append(Event(task.kind, task.micro_batch, end, end, received=True))
        found += [RankEvents(slot.rank, START_NS, tuple(events)) for slot in stage.ranks]
    return found


def rank_figures(
    rank: int, step_s: float = 1.0, forward_s: float = 0.1, memory_bytes: int = 0
) -> RankFigures:
    return RankFigures(
        rank=rank,
        start_ns=START_NS,
        end_ns=START_NS + round(step_s * 1e9),
        forward_s=forward_s,
        backward_s=2 * forward_s,
        step_s=0.01,
        busy_s=0.5,
        memory_bytes=memory_bytes,
    )


def step_figures(step: int = 3, *, mfu: float | None = 0.4, loss_scale: float = 1.0) -> StepFigures:
    stages = tuple(StageFigures(index, 0.02, 0.04, 0.003, 0.75, 2**30) for index in (0, 1))
    return StepFigures(
        step=step,
        epoch=0.5,
        loss=2.5,
        tokens=384,
        grad_norm=1.25,
        learning_rate=3e-4,
        loss_scale=loss_scale,
        skipped=loss_scale != 1,
        step_s=0.5,
        tokens_per_s=768.0,
        mfu=mfu,
        stages=stages,
    )
