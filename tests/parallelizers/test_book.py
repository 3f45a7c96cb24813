"""What is remembered equals what is computed, to the last bit, and no question gets the answer to another."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tangram.cluster.spec import Portion, portions
from tangram.cost.configs import legal_configs
from tangram.cost.stage import stage_cost
from tangram.cost.types import StageCost
from tangram.job import Job, Pins
from tangram.model.atoms import cut_atoms, parse_granularity
from tangram.parallelizers.book import stage_book
from tangram.parallelizers.invariants import plan_faults
from tangram.parallelizers.protocols import Capabilities, SlicePlan, SliceRequest, StageChoice
from tangram.testing.cases import llama_like, moe_like, slice_cases, small_gpu, small_island

REQUEST = next(iter(slice_cases(Capabilities()))).request


def question(model_name: str, granularity: str = "layer") -> SliceRequest:
    model = {"llama": llama_like, "moe": moe_like}[model_name]()
    job = replace(REQUEST.job, pins=Pins(offload="auto"))
    return replace(REQUEST, model=model, atoms=cut_atoms(model, parse_granularity(granularity)), job=job)


def directly(request: SliceRequest, stage: StageChoice, in_flight: int) -> StageCost:
    return stage_cost(
        request.model,
        request.atoms[stage.start : stage.stop],
        stage.portion,
        stage.config,
        request.micro_batch,
        request.num_micro_batches,
        in_flight,
        stage.recomputed,
        request.job,
    )


def random_stage(request: SliceRequest, rng: random.Random) -> StageChoice:
    portion = rng.choice(portions(request.portion.island))
    config = rng.choice(legal_configs(request.model, portion, request.micro_batch, request.job))
    start, stop = sorted(rng.sample(range(len(request.atoms) + 1), 2))
    if rng.random() < 0.2:
        start, stop = 0, len(request.atoms)
    return StageChoice(start, stop, portion, config, tuple(rng.random() < 0.5 for _ in range(stop - start)))


@pytest.mark.parametrize("model", ["llama", "moe"])
@pytest.mark.parametrize("granularity", ["layer", "operator"])
def test_remembered_costs_equal_direct_ones(model: str, granularity: str) -> None:
    """Both ends of a tied model in one stage included; asked twice, with other numbers in flight."""
    request, rng = question(model, granularity), random.Random(f"{model} {granularity}")
    book = stage_book(request)
    for _ in range(150):
        stage, in_flight = random_stage(request, rng), rng.choice([1, 2, 3, 50])
        assert book.cost(stage, in_flight) == directly(request, stage, in_flight)
        assert book.cost(stage, 1) == directly(request, stage, 1)


def test_a_configuration_that_is_not_searched_is_costed_too() -> None:
    request = question("llama")
    portion = Portion(request.portion.island, 1, 2)
    config = replace(legal_configs(request.model, portion, request.micro_batch, request.job)[0], zero=0)
    assert config not in legal_configs(request.model, portion, request.micro_batch, request.job)
    stage = StageChoice(0, 2, portion, config, (False, False))
    assert stage_book(request).cost(stage, 2) == directly(request, stage, 2)


def test_every_part_of_the_question_counts() -> None:
    """Another job, micro-batch or island, even of the same name, is another question."""
    request = question("llama")
    config = legal_configs(request.model, Portion(request.portion.island, 1, 1), 8, request.job)[0]

    def costed(asked: SliceRequest) -> StageCost:
        stage = StageChoice(1, 3, Portion(asked.portion.island, 1, 1), config, (False, True))
        cost = stage_book(asked).cost(stage, 4)
        assert cost == directly(asked, stage, 4)
        return cost

    longer = Job(request.job.global_batch, 2 * request.job.seq_len, request.job.precision)
    slower = small_gpu()
    slower = replace(slower, achieved_flop_per_s={p: f / 2 for p, f in slower.achieved_flop_per_s.items()})
    other_island = replace(request, portion=Portion(small_island(slower), 1, 1))
    base = costed(request)
    for other in (
        replace(request, job=longer),
        replace(request, micro_batch=4),
        replace(request, num_micro_batches=2),
        other_island,
        replace(request, model=moe_like(), atoms=cut_atoms(moe_like())),
    ):
        assert costed(other) != base
    # A stage on an island that the question is not about is costed as it is, and remembered nowhere.
    stage = StageChoice(1, 3, Portion(other_island.portion.island, 1, 1), config, (False, True))
    assert stage_book(request).cost(stage, 4) == directly(other_island, stage, 4)
    assert costed(request) == base


def test_faults_are_those_of_the_portion_that_was_asked_about() -> None:
    """A stage of two GPUs is part of a portion of four, and not of one."""
    request = replace(question("llama"), start=1, stop=3, in_flight=1)
    two = Portion(request.portion.island, 1, 2)
    config = legal_configs(request.model, two, request.micro_batch, request.job)[0]
    plan = SlicePlan((StageChoice(1, 3, two, config, (False, False)),))
    for _ in range(2):
        for gpus, sound in ((4, True), (1, False), (2, True)):
            asked = replace(request, portion=Portion(request.portion.island, 1, gpus))
            assert (plan_faults(asked, plan) == []) is sound
