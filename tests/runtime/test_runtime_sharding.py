"""ZeRO holds what it says it holds: whole weights and gradients of few atoms, and no more in between."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from equivalence import feed
from ranks import RankPool
from reference import SETTINGS
from run_plans import Stage, plan_of
from torch_or_skip import torch

from tangram.plan.schema import PlanDocument
from tangram.runtime.buckets import Bucket
from tangram.runtime.engine import Engine


def engine_of(rank: int, plan: PlanDocument) -> tuple[Engine, tuple[Bucket, ...]]:
    engine = Engine(plan, rank, torch.device("cpu"), SETTINGS)
    return engine, engine._sharding.buckets


def whole_atoms(buckets: tuple[Bucket, ...]) -> set[int]:
    """Atoms whose weights of other ranks are in memory."""
    return {
        slot.parameter.atom
        for bucket in buckets
        if bucket.zero == 3 and bucket._flat.untyped_storage().nbytes()
        for slot in bucket.slots
    }


def most_at_a_time(rank: int, plan: PlanDocument) -> dict[str, int]:
    """Looks on while a step is trained, whenever an atom begins or ends."""
    engine, buckets = engine_of(rank, plan)
    most = {"weights": 0, "gradients": 0, "before": len(whole_atoms(buckets))}

    def look(*_: Any) -> None:
        grads = {
            slot.parameter.atom
            for bucket in buckets
            for slot in bucket.slots
            if bucket.zero >= 2 and slot.parameter.parameter.grad is not None
        }
        most["weights"] = max(most["weights"], len(whole_atoms(buckets)))
        most["gradients"] = max(most["gradients"], len(grads))

    for bucket in buckets:
        for slot in bucket.slots:
            slot.parameter.parameter.register_post_accumulate_grad_hook(look)
    for unit in engine.module.units.values():
        unit.register_forward_hook(look)
    engine.train_step(feed(engine, plan, 0))
    most["after"] = len(whole_atoms(buckets))
    return most


@pytest.mark.parametrize(("zero", "weights"), [(2, 0), (3, 2)])
def test_two_atoms_at_most_are_whole(zero: int, weights: int, ranks: RankPool) -> None:
    plan = plan_of([Stage(5, dp=2, zero=zero)])
    for most in ranks.run(2, most_at_a_time, plan):
        assert most["before"] == most["after"] == 0
        assert most["weights"] <= weights
        assert 1 <= most["gradients"] <= 2


def test_without_resharding_weights_stay_whole_within_a_step(ranks: RankPool) -> None:
    plan = plan_of([Stage(5, dp=2, zero=3, more={"reshard_after_forward": False})])
    for most in ranks.run(2, most_at_a_time, plan):
        assert most["before"] == most["after"] == 0
        assert most["weights"] == 7


def bytes_held(rank: int, plan: PlanDocument) -> dict[str, int]:
    """Bytes of weights, gradients and masters of a rank between steps."""
    engine, buckets = engine_of(rank, plan)
    engine.train_step(feed(engine, plan, 0))
    storages: dict[int, int] = {}
    for bucket in buckets:
        for tensor in (bucket._flat, bucket.own_weights):
            storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
    gradients = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
        for bucket in buckets
        for tensor in (bucket.own_gradients, bucket._gradients)
        if tensor is not None
    }
    masters = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
        for state in engine._optimizer._adamw.state.values()
        for tensor in (state["exp_avg"], state["exp_avg_sq"])
    }
    parts = {"weights": storages, "gradients": gradients, "moments": masters}
    return {name: sum(held.values()) for name, held in parts.items()}


def test_each_stage_of_zero_shards_one_thing_more(ranks: RankPool) -> None:
    held = {}
    for zero in (0, 1, 2, 3):
        plan = plan_of([Stage(4, dp=4, zero=zero)])
        held[zero] = ranks.run(4, bytes_held, plan)[0]
    whole = held[0]
    for zero in (1, 2, 3):
        assert held[zero]["moments"] == pytest.approx(whole["moments"] / 4, rel=0.02)
    assert held[1]["gradients"] >= whole["gradients"]
    assert held[2]["gradients"] == pytest.approx(whole["gradients"] / 4, rel=0.02)
    assert held[2]["weights"] == pytest.approx(whole["weights"], rel=0.02)
    assert held[3]["weights"] == pytest.approx(whole["weights"] / 4, rel=0.02)


def slots_of(rank: int, plan: PlanDocument) -> list[tuple[tuple[int, int], list[tuple[int, int, bool]]]]:
    _, buckets = engine_of(rank, plan)
    return [(b.share, [(s.start, s.stop, s.parameter.decays) for s in b.slots]) for b in buckets]


def test_shares_cover_a_bucket_and_those_that_decay_come_first(ranks: RankPool) -> None:
    found = ranks.run(4, slots_of, plan_of([Stage(2, dp=4, zero=3)], family="gpt2"))
    for bucket in range(len(found[0])):
        shares = [rank[bucket][0] for rank in found]
        slots = found[0][bucket][1]
        assert all(rank[bucket][1] == slots for rank in found)
        assert shares[0][0] == 0
        assert all(one[1] == other[0] for one, other in pairwise(shares))
        assert shares[-1][1] >= slots[-1][1]
        assert all(one[1] <= other[0] for one, other in pairwise(slots))
        assert [slot[2] for slot in slots] == sorted((slot[2] for slot in slots), reverse=True)


def started_before_the_first_atom(rank: int, plan: PlanDocument) -> list[set[int]]:
    """Atoms whose sums are under way when the first atom gets a gradient, micro-batch by micro-batch."""
    engine, buckets = engine_of(rank, plan)
    seen: list[set[int]] = []

    def look(_: Any) -> None:
        seen.append({s.parameter.atom for b in buckets if b._has_started for s in b.slots})

    first = engine.module.local_parameters()[0].parameter
    first.register_post_accumulate_grad_hook(look)
    engine.train_step(feed(engine, plan, 0))
    assert not any(bucket._has_started for bucket in buckets)
    return seen


@pytest.mark.parametrize("zero", [0, 1, 3])
def test_sums_run_beside_the_last_backward(zero: int, ranks: RankPool) -> None:
    plan = plan_of([Stage(3, dp=2, zero=zero)])
    for seen in ranks.run(2, started_before_the_first_atom, plan):
        assert seen == [set(), set(), {1, 2, 3, 4}]
