"""Metis's cost, samples of mixed stages and search, on a profile small enough to count by hand."""

from __future__ import annotations

from dataclasses import astuple, replace

import pytest

from tangram.baselines.metis.cost import CostBreakdown, CostModel
from tangram.baselines.metis.defects import Defects
from tangram.baselines.metis.profile import LayerProfile, MetisProfile, Point, read_profile, shares
from tangram.baselines.metis.question import Kind, Layout, Limits, Question
from tangram.baselines.metis.search import search
from tangram.baselines.metis.stages import StageForms, mixed_replicas

FAST, SLOW = 0, 1
LAYER_MS = {FAST: 2.0, SLOW: 6.0}


def made(sync_ms: float = 0.5, memory_mb: float = 10.0) -> MetisProfile:
    """Four layers of equal time; twice the samples take 1.5 times as long, twice the tp 0.6 times."""
    points = {}
    for kind, layer_ms in LAYER_MS.items():
        for tp_factor, tp in ((1.0, 1), (0.6, 2), (0.36, 4)):
            for batch_factor, batch in ((1.0, 1), (1.5, 2), (2.25, 4)):
                time = layer_ms * tp_factor * batch_factor
                points[Point(kind, tp, batch)] = LayerProfile((time,) * 4, (memory_mb * batch,) * 4, sync_ms)
    return MetisProfile(points, (800.0,) * 4, 3.0, 0.25, shares(points[Point(FAST, 1, 1)]))


def asked(profile: MetisProfile, defects: Defects = Defects(), memory_mb: float = 1000.0) -> Question:
    """Two nodes of two GPUs of either kind; 16 samples a step."""
    kinds = (Kind("fast", 4, memory_mb, 100.0, 10.0), Kind("slow", 4, memory_mb, 50.0, 5.0))
    limits = Limits(max_tp=4, max_batch=4, variance=0.5, max_blocks=8, max_plans=10**6)
    return Question(kinds, 2, profile, 16, 7.0, 70.0, limits, defects)


def cost_of(question: Question, *degrees: tuple[int, int], bounds: tuple[int, ...]) -> CostBreakdown:
    """Of a pipeline over all GPUs in equal groups, the fast ones first, with 4 micro-batches."""
    layout, forms = Layout.of(question, (FAST, SLOW)), StageForms(question)
    size = 8 // len(degrees)
    stages = []
    for idx, pair in enumerate(degrees):
        form = forms.form(layout, idx * size, (idx + 1) * size, pair, 4)
        assert form is not None
        stages.append(form)
    cost = CostModel(question).cost(layout, [size] * len(degrees), stages, bounds, 4)
    assert cost is not None
    return cost


def test_every_term_by_hand() -> None:
    cost = cost_of(asked(made()), (4, 1), (2, 2), bounds=(0, 3, 4))
    fast, slow = 3 * 2.0, 6.0 * 0.6 * 1.5
    assert astuple(cost) == pytest.approx(
        (
            3 * fast + fast + slow,
            4 * 0.5,
            2 * 3.0 * 3 / 4,
            max(2 * 3 / (4 * 10.0) * 3 * 800.0, 2 * 1 / (2 * 5.0) * 800.0 / 2),
            7.0 / 5.0,
            4 * 0.25,
        )
    )
    assert cost.total == pytest.approx(sum(astuple(cost)))


def test_links_between_nodes_may_count_as_fast() -> None:
    sound = cost_of(asked(made()), (4, 1), (4, 1), bounds=(0, 2, 4))
    fast = cost_of(asked(made(), Defects(fast_network=True)), (4, 1), (4, 1), bounds=(0, 2, 4))
    assert (sound.gradients, sound.cuts) == (2 * 3 / (4 * 5.0) * 1600.0, 7.0 / 5.0)
    assert (fast.gradients, fast.cuts) == (2 * 3 / (4 * 50.0) * 1600.0, 7.0 / 50.0)


def test_gradients_may_be_looked_up_for_tensor_groups() -> None:
    """Without tensor parallelism these are single GPUs, which no network parts."""
    faulty = asked(made(), Defects(tensor_groups=True))
    assert cost_of(faulty, (4, 1), (4, 1), bounds=(0, 2, 4)).gradients == 2 * 3 / (4 * 50.0) * 1600.0


def test_a_cut_before_the_head_may_count_logits() -> None:
    faulty = asked(made(), Defects(logits_at_cut=True))
    assert cost_of(faulty, (4, 1), (4, 1), bounds=(0, 3, 4)).cuts == 70.0 / 5.0
    assert cost_of(faulty, (4, 1), (4, 1), bounds=(0, 2, 4)).cuts == 7.0 / 5.0


def test_a_zero_may_count_as_a_gap() -> None:
    profile = made(sync_ms=0.0)
    assert search(asked(profile)).candidates
    assert not search(asked(profile, Defects(zero_sync=True))).candidates


def test_samples_follow_speed() -> None:
    """Speeds 3 to 1: of 9 samples 3.375 each and 1.125 each; what is left goes to the largest remainders."""
    kinds = (FAST, FAST, SLOW, SLOW)
    replicas = mixed_replicas(made(), kinds, (4, 1), 9)
    assert replicas is not None
    assert [replica.samples for replica in replicas] == [4, 3, 1, 1]
    # Three samples are timed as two and one.
    assert [replica.time_ms(0, 4) for replica in replicas] == pytest.approx([18.0, 20.0, 24.0, 24.0])
    assert mixed_replicas(made(), kinds, (4, 1), 64) is None  # 24 samples need a profile of 16.


def test_memory_may_be_looked_up_for_the_first_kind() -> None:
    profile = made()
    heavy = {
        at: replace(p, memory_mb=(500.0,) * 4) if at.kind == FAST else p for at, p in profile.points.items()
    }
    for first_kind, demand in ((False, 5 * 10.0), (True, 5 * 500.0)):
        question = asked(replace(profile, points=heavy), Defects(first_kind_memory=first_kind))
        layout = Layout.of(question, (FAST, SLOW))
        form = StageForms(question).form(layout, 4, 8, (4, 1), 4)
        assert form is not None
        assert form.demand_mb(0, 1) == pytest.approx(demand, abs=0.01)


def test_memory_drives_stages_to_tensor_parallelism() -> None:
    """Room for two layers of a stage of four: all layers fit on no group of eight, and the walk goes on."""
    assert any(plan.degrees[0] == (8, 1) for plan in search(asked(made())).candidates)
    tight = search(asked(made(memory_mb=150.0), memory_mb=500.0)).candidates
    assert tight
    for plan in tight:
        for size, span in zip(plan.groups, zip(plan.bounds, plan.bounds[1:], strict=False), strict=True):
            assert 5 * 150.0 * (span[1] - span[0]) < size * 500.0


def test_one_stage_costed_repeats_the_shallowest_pipelines() -> None:
    profile = made()
    sound = search(asked(profile)).candidates
    faulty = search(asked(profile, Defects(one_stage_costed=True))).candidates
    cheap = [c for c in faulty if c not in sound]
    assert cheap
    assert all(c.order == (SLOW, FAST) and len(c.groups) == 2 and c.cost.cuts == 0.0 for c in cheap)
    assert not any(c.order == (SLOW, FAST) and len(c.groups) == 1 for c in faulty)


def test_a_cap_keeps_the_pipelines_of_fewest_stages() -> None:
    question = asked(made())
    whole = search(question)
    capped = search(replace(question, limits=replace(question.limits, max_plans=50)))
    assert whole.is_whole
    assert not capped.is_whole
    assert capped.num_inter <= 50 < whole.num_inter
    kept = max(len(c.groups) for c in capped.candidates)
    assert kept < max(len(c.groups) for c in whole.candidates)
    assert all(plan in whole.candidates for plan in capped.candidates)


def test_a_file_is_read_as_the_program_reads_it() -> None:
    data = {
        "model": {"parameters": {"parameters_per_layer_bytes": [5, 7, 9, 6]}},
        "execution_time": {
            "layer_compute_total_ms": [1.0, 2.0, 2.0, 3.0],
            "forward_backward_time_ms": 8.5,
            "optimizer_time_ms": 4.0,
            "batch_generator_time_ms": 0.1,
        },
        "execution_memory": {"layer_memory_total_mb": [10, 20, 20, 15]},
    }
    other = {**data, "model": {"parameters": {"parameters_per_layer_bytes": [1, 1, 1, 1]}}}
    profile = read_profile([(Point(0, 1, 1), data), (Point(0, 2, 1), other)])
    assert profile.parameter_bytes == (5.0, 7.0, 7.0, 6.0)
    assert profile.share == (0.125, 0.25, 0.25, 0.375)
    assert (profile.optimizer_ms, profile.batch_ms) == (4.0, 0.1)
    assert profile.points[Point(0, 2, 1)].sync_ms == 0.5
    assert profile.points[Point(0, 1, 1)].memory_before == (0.0, 10.0, 30.0, 50.0, 65.0)
