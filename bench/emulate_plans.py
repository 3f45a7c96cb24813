"""The plan that Tangram prefers for an emulated world, and others that somebody might take instead."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import tangram
from emulate_ranks import Ranks
from emulate_world import Host, World
from tangram.errors import TangramError
from tangram.plan.schema import PlanDocument
from tangram.planner.estimate import DictatedStage, estimate
from tangram.profiles.measured import MeasuredLayers
from tangram.profiles.records import LayerTime
from tangram.runtime.watch.layers import layer_records

SAMPLES = (1, 2, 4, 8, 12)
"""Rows on a rank with which every kind of GPU is profiled."""
MICRO_BATCHES = 2
"""Of a step that is profiled."""


@dataclass(frozen=True)
class Candidate:
    """A plan with a name."""

    name: str
    plan: PlanDocument


def profile(world: World, ranks: Ranks, known: dict[str, list[LayerTime]]) -> list[LayerTime]:
    """Times the layers of every kind of GPU, as tangram run --save-profile does, one after the other.

    Layers are alike, so a model of two of them has all that there is to time.

    Args:
        world: The cluster.
        ranks: What runs it.
        known: Times by kind, which are not taken again; new ones are added.
    """
    for host in world.hosts:
        if host.kind.name in known:
            continue
        others = {other.name for other in world.hosts if other.name != host.name}
        alone = replace(world.without(others), num_layers=2)
        records: list[LayerTime] = []
        for samples in (size for size in SAMPLES if size <= world.global_batch):
            job = replace(alone, global_batch=samples * MICRO_BATCHES).job(samples)
            stage = DictatedStage((host.name,), None, 1, alone.num_layers)
            plan = estimate(alone.model(), alone.cluster(), job, [stage])
            ran = ranks.run(plan, alone, 3)
            records += layer_records(plan, ran.times, "emulated")[0]
        known[host.kind.name] = records
    return [record for host in world.hosts for record in known[host.kind.name]]


def preferred(world: World, measured: MeasuredLayers) -> PlanDocument:
    """What tangram plan answers."""
    return tangram.plan(world.model(), world.cluster(), world.job(), measured=measured)


def alternatives(world: World, measured: MeasuredLayers, best: PlanDocument) -> list[Candidate]:
    """Other plans, each with its best micro-batch size unless it is about that; none is the preferred one."""
    found: list[Candidate] = []
    seen = {_essence(best)}
    for name, plan in _alternatives(world, measured, best):
        if plan is not None and _essence(plan) not in seen:
            seen.add(_essence(plan))
            found.append(Candidate(name, plan))
    return found


def _alternatives(
    world: World, measured: MeasuredLayers, best: PlanDocument
) -> Iterator[tuple[str, PlanDocument | None]]:
    def dictated(stages: Sequence[tuple[Host, int]], weights: Sequence[float]) -> PlanDocument | None:
        layers = _shared(world.num_layers, weights)
        given = [
            DictatedStage((host.name,), None, gpus, count, dp=gpus)
            for (host, gpus), count in zip(stages, layers, strict=True)
        ]
        try:
            return estimate(world.model(), world.cluster(), world.job(), given, measured=measured)
        except TangramError:
            return None

    hosts = [(host, host.num_gpus) for host in world.hosts]
    single = [(host, 1) for host in world.hosts for _ in range(host.num_gpus)]
    yield "even split, a stage per host", dictated(hosts, [1.0] * len(hosts))
    yield "split by compute, a stage per host", dictated(hosts, _speeds(hosts))
    slowest = max(world.hosts, key=lambda host: host.kind.sample_s).name
    yield f"best without {slowest}", _planned(world.without({slowest}), measured)
    size = best.pipelines[0].micro_batch
    for other, words in ((2 * size, "twice"), (size // 2, "half")):
        if other and world.global_batch % other == 0:
            yield f"best with {words} the micro-batch", _planned(world, measured, other)
    yield "best with minimal windows", _planned(world, measured, free_warmup=False)
    yield "split by compute, a stage per GPU", dictated(single, _speeds(single))
    yield "split by compute, slowest first", dictated(hosts[::-1], _speeds(hosts[::-1]))
    yield "even split, a stage per GPU", dictated(single, [1.0] * len(single))


def _speeds(stages: Sequence[tuple[Host, int]]) -> list[float]:
    """What a datasheet would say of the compute of each stage."""
    return [gpus / host.kind.sample_s for host, gpus in stages]


def _planned(
    world: World, measured: MeasuredLayers, micro_batch: int | None = None, *, free_warmup: bool = True
) -> PlanDocument | None:
    job = world.job(micro_batch, free_warmup=free_warmup)
    try:
        return tangram.plan(world.model(), world.cluster(), job, measured=measured)
    except TangramError:
        return None


def _shared(total: int, weights: Sequence[float]) -> list[int]:
    """Whole shares in proportion, at least one each; what is left over goes where it is missed most."""
    exact = [total * weight / sum(weights) for weight in weights]
    shares = [max(1, int(share)) for share in exact]
    while sum(shares) < total:
        index = max(range(len(shares)), key=lambda i: (exact[i] - shares[i], -i))
        shares[index] += 1
    while sum(shares) > total:
        index = max(range(len(shares)), key=lambda i: (shares[i] - exact[i], shares[i], -i))
        shares[index] -= 1
    return shares


def _essence(plan: PlanDocument) -> tuple[object, ...]:
    """What of a plan makes it another one."""
    pipeline = plan.pipelines[0]
    stages = [
        (stage.atoms, stage.dp, stage.zero, [(slot.node, slot.gpu_idx) for slot in stage.ranks])
        for stage in plan.stages
    ]
    return (pipeline.micro_batch, tuple(pipeline.schedule.in_flight), repr(stages))
