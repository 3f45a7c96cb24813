"""Runs plans on the pool of ranks and holds what they trained against one process.

Losses and norms of gradients: relative difference. Parameters: the largest difference of an element of a
tensor, relative to the tensor's largest element; over all ranks and tensors. Every rank is looked at, so
replicas that went apart are found.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ranks import RankPool
from reference import SETTINGS, Trained, batch_of, trained_alone
from torch_or_skip import torch

from tangram.plan.schema import PlanDocument
from tangram.runtime.engine import Engine, StepResult
from tangram.runtime.parameters import ParameterPart
from tangram.runtime.settings import TrainSettings

STEPS = 5
TOLERANCE = 1e-5


@dataclass
class Rank:
    """What one rank tells: the result of each step, and its parts of the full tensors."""

    results: list[StepResult]
    parts: list[tuple[ParameterPart, Any]]


def feed(engine: Engine, plan: PlanDocument, step: int) -> list[Any]:
    """The micro-batches of a rank."""
    ids, labels, sample_ids = batch_of(plan, step)
    pipeline = plan.pipelines[0]
    found = []
    for first in range(0, pipeline.global_batch, pipeline.micro_batch):
        rows = slice(first + engine.rows[0], first + engine.rows[1])
        found.append(engine.micro_batch(ids[rows], labels[rows], sample_ids[rows]))
    return found


def parts_of(engine: Engine) -> list[tuple[ParameterPart, Any]]:
    """Copies of all weights of a rank."""
    with engine.gathered():
        return [
            (part, view.clone())
            for parameter in engine.module.local_parameters()
            for part, view in parameter.views()
        ]


def train(rank: int, plan: PlanDocument, settings: TrainSettings, steps: int) -> Rank:
    """What every rank of a case does."""
    engine = Engine(plan, rank, torch.device("cpu"), settings)
    results = [engine.train_step(feed(engine, plan, step)) for step in range(steps)]
    return Rank(results, parts_of(engine))


def differences(found: list[Rank], expected: Trained) -> dict[str, float]:
    """The largest relative differences of losses, norms and parameters, over all ranks."""
    worst = {"loss": 0.0, "norm": 0.0, "parameter": 0.0}
    seen = set()
    for rank in found:
        for result, loss, norm in zip(rank.results, expected.losses, expected.norms, strict=True):
            worst["loss"] = max(worst["loss"], abs(result.loss / loss - 1))
            worst["norm"] = max(worst["norm"], abs(result.grad_norm / norm - 1))
        for part, value in rank.parts:
            full = expected.tensors[part.name]
            due = full[tuple(slice(*interval) for interval in part.region)]
            assert value.shape == due.shape, part
            difference = (value - due).abs().max() / full.abs().max()
            worst["parameter"] = max(worst["parameter"], float(difference))
            seen.add(part.name)
    assert seen == set(expected.tensors), set(expected.tensors) ^ seen
    return worst


def assert_copies_are_equal(found: list[Rank]) -> None:
    """Whoever holds the same elements, as replicas or tied, holds the same bits."""
    whole: dict[str, Any] = {}
    for idx, rank in enumerate(found):
        for part, value in rank.parts:
            full = whole.setdefault(part.name, torch.full(part.full_shape, float("nan")))
            place = full[tuple(slice(*interval) for interval in part.region)]
            known = ~place.isnan()
            assert torch.equal(place[known], value.float()[known]), f"rank {idx}: {part.name} went apart"
            place.copy_(value)
    for name, full in whole.items():
        assert not full.isnan().any(), f"nobody has all of {name}"


def assert_equal_to_one_process(
    ranks: RankPool, plan: PlanDocument, settings: TrainSettings = SETTINGS, steps: int = STEPS
) -> None:
    """Trains a plan, and the same model alone, and compares."""
    found = ranks.run(plan.num_gpus, train, plan, settings, steps)
    assert_copies_are_equal(found)
    worst = differences(found, expected_of(plan, settings, steps))
    assert all(value <= TOLERANCE for value in worst.values()), worst


_KNOWN: dict[Any, Trained] = {}


def expected_of(plan: PlanDocument, settings: TrainSettings = SETTINGS, steps: int = STEPS) -> Trained:
    """The run in one process; it is remembered, since stages do not matter to it."""
    job = (plan.job.global_batch, plan.job.precision)
    key = (plan.model.model_dump_json(), job, settings, steps)
    if key not in _KNOWN:
        _KNOWN[key] = trained_alone(plan, steps, settings)
    return _KNOWN[key]
