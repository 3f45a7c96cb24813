"""What a plan may do wrong, one thing at a time; broken planners in the conformance tests cover the rest."""

from dataclasses import replace

import pytest

from tangram.cluster.spec import Portion
from tangram.cost.types import StageConfig
from tangram.job import Pins, Recompute
from tangram.parallelizers.invariants import choice_faults, faults_text, plan_faults, request_text
from tangram.parallelizers.protocols import Capabilities, SlicePlan, SliceRequest, StageChoice
from tangram.testing.cases import least_memory_bytes, slice_cases, small_gpu, small_island, with_memory
from tangram.units import MIB

WHOLE = next(
    case.request
    for case in slice_cases(Capabilities())
    if case.request.portion.num_gpus == 4 and case.request.stop - case.request.start == 6
)
PAIR = Portion(WHOLE.portion.island, 1, 2)


def two_stages(request: SliceRequest) -> SlicePlan:
    """Three layers with the embedding, then one with the head, each on two GPUs."""
    pair = Portion(request.portion.island, 1, 2)
    config = StageConfig(dp=1, tp=2)
    first = StageChoice(0, 4, pair, config, (False,) * 4)
    return SlicePlan((first, StageChoice(4, 6, pair, config, (False,) * 2)))


def test_in_order() -> None:
    assert plan_faults(WHOLE, two_stages(WHOLE)) == []


def test_the_first_of_two_stages_holds_one_micro_batch_more() -> None:
    pinned = replace(WHOLE, portion=PAIR, stop=4, job=replace(WHOLE.job, pins=Pins(tp=2)))
    needed = least_memory_bytes(replace(pinned, in_flight=2), full=False)
    assert needed > least_memory_bytes(replace(pinned, in_flight=1), full=False) + 2 * MIB
    enough = with_memory(WHOLE, round(needed) + MIB)
    assert plan_faults(enough, two_stages(enough)) == []
    scarce = with_memory(WHOLE, round(needed) - MIB)
    (fault,) = plan_faults(scarce, two_stages(scarce))
    assert fault.startswith("stage 0: it needs")
    assert "2 micro-batches in flight" in fault


STAGE = StageChoice(0, 6, WHOLE.portion, StageConfig(dp=4, tp=1, zero=1), (False,) * 6)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (StageConfig(dp=2, tp=1), "dp 2 x tp 1 x cp 1 = 2, but it has 4 GPUs"),
        (StageConfig(dp=0, tp=1), "below 1"),
        (StageConfig(dp=4, tp=1, zero=4), "zero 4"),
        (StageConfig(dp=4, tp=1, ep=3), "ep 3 x expert tp 1"),
        (StageConfig(dp=1, tp=4, expert_tp=2), "ep 1 x expert tp 2"),
        (StageConfig(dp=1, tp=1, cp=4), None),
    ],
)
def test_degrees(config: StageConfig, said: str | None) -> None:
    faults = choice_faults(WHOLE, replace(STAGE, config=config))
    assert (said in faults_text(faults)) if said else faults == []


def test_shapes() -> None:
    odd = replace(WHOLE, micro_batch=6)
    assert "dp 4 does not divide the micro-batch of 6" in faults_text(choice_faults(odd, STAGE))
    uneven = replace(WHOLE, job=replace(WHOLE.job, seq_len=255))
    ring = replace(STAGE, config=StageConfig(dp=1, tp=1, cp=4))
    assert "does not divide 255 tokens" in faults_text(choice_faults(uneven, ring))


def test_gpus() -> None:
    three = replace(STAGE, portion=Portion(WHOLE.portion.island, 1, 3), config=StageConfig(dp=3, tp=1))
    assert "no legal part" in faults_text(choice_faults(WHOLE, three))
    elsewhere = replace(STAGE, portion=Portion(small_island(small_gpu(), 3), 1, 4))
    assert "on island" in faults_text(choice_faults(WHOLE, elsewhere))
    across = replace(WHOLE, portion=Portion(WHOLE.portion.island, 2, 4))
    wide = replace(STAGE, portion=across.portion, config=StageConfig(dp=1, tp=8))
    assert "tp 8 spans nodes of 4 GPUs" in choice_faults(across, wide)[0]
    allowed = replace(across, job=replace(WHOLE.job, pins=Pins(allow_cross_node_tp=True)))
    assert "spans nodes" not in faults_text(choice_faults(allowed, wide))


@pytest.mark.parametrize("pins", [Pins(tp=2), Pins(dp=2), Pins(cp=2), Pins(ep=2), Pins(zero=0)])
def test_pins(pins: Pins) -> None:
    dictated = replace(WHOLE, job=replace(WHOLE.job, pins=pins))
    assert "the user dictates" in faults_text(choice_faults(dictated, STAGE))


@pytest.mark.parametrize("mode", list(Recompute))
def test_pinned_recomputation(mode: Recompute) -> None:
    dictated = replace(WHOLE, job=replace(WHOLE.job, pins=Pins(recompute=mode)))
    full = replace(STAGE, recomputed=(False, True, True, True, True, False))
    selective = replace(STAGE, config=replace(STAGE.config, selective=True))
    stages = {Recompute.NONE: STAGE, Recompute.SELECTIVE: selective, Recompute.FULL: full}
    for name, stage in stages.items():
        assert bool(choice_faults(dictated, stage)) is (name is not mode)


def test_marks() -> None:
    assert "5 recompute marks for 6 atoms" in faults_text(
        choice_faults(WHOLE, replace(STAGE, recomputed=(False,) * 5))
    )
    assert "embedding or the head" in faults_text(
        choice_faults(WHOLE, replace(STAGE, recomputed=(True,) * 6))
    )


WIDE, TWO = StageConfig(dp=4, tp=1, zero=3), StageConfig(dp=2, tp=2, zero=1)


def mixed(*configs: StageConfig) -> StageChoice:
    return replace(STAGE, config=configs[0], atom_configs=configs)


def test_atoms_may_differ() -> None:
    assert choice_faults(WHOLE, mixed(WIDE, TWO, TWO, WIDE, TWO, WIDE)) == []
    assert plan_faults(WHOLE, SlicePlan((mixed(WIDE, WIDE, TWO, TWO, TWO, TWO),))) == []


@pytest.mark.parametrize(
    ("stage", "said"),
    [
        (mixed(*[WIDE] * 5), ["5 configurations for 6 atoms"]),
        (replace(STAGE, atom_configs=(WIDE,) * 6), ["its configuration is", "that of its first atom"]),
        (mixed(*[WIDE] * 5, replace(WIDE, offload_optimizer=True)), ["differ in what is offloaded"]),
        (mixed(*[WIDE] * 5, StageConfig(dp=2, tp=1)), ["dp 2 x tp 1 x cp 1 = 2, but it has 4 GPUs"]),
        (mixed(*[WIDE] * 5, StageConfig(dp=0, tp=1)), ["below 1"]),
        (mixed(*[WIDE] * 5, replace(WIDE, zero=4)), ["zero 4"]),
    ],
)
def test_every_configuration_must_be_legal(stage: StageChoice, said: list[str]) -> None:
    faults = choice_faults(WHOLE, stage)
    assert all(words in faults_text(faults) for words in said)
    assert len(faults) == 1


def test_pins_hold_for_every_atom() -> None:
    pins = replace(WHOLE, job=replace(WHOLE.job, pins=Pins(tp=1)))
    assert choice_faults(pins, mixed(*[WIDE] * 5, TWO)) == ["tp is 2, the user dictates 1"]


def test_ends_that_share_a_matrix_agree() -> None:
    tied = replace(WHOLE, model=replace(WHOLE.model, tied_embeddings=True))
    apart = mixed(*[WIDE] * 5, TWO)
    assert choice_faults(WHOLE, apart) == []
    assert "share a matrix" in faults_text(choice_faults(tied, apart))
    assert choice_faults(tied, mixed(WIDE, TWO, TWO, TWO, TWO, WIDE)) == []
    assert choice_faults(replace(tied, start=1), replace(apart, start=1, recomputed=(False,) * 5)) != []


def test_coverage() -> None:
    first, second = two_stages(WHOLE).stages
    assert plan_faults(WHOLE, SlicePlan(())) == ["the plan has no stages"]
    assert "starts at atom 4 instead of 0" in faults_text(plan_faults(WHOLE, SlicePlan((second,))))
    empty = replace(second, stop=4, recomputed=())
    assert "holds no atoms" in faults_text(plan_faults(WHOLE, SlicePlan((first, empty, second))))
    assert "use 6 GPUs" in faults_text(plan_faults(WHOLE, SlicePlan((first, empty, second))))


def test_words() -> None:
    assert request_text(WHOLE) == "tiny-llama, atoms 0 to 6, 1 in flight, on 1 x 4 test-gpu, micro-batch 8"
    assert faults_text(["a", "b", "c", "d", "e"]) == "a; b; c; and 2 more"
