"""Stages of many runs at once cost what each of them costs alone."""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import product

import numpy as np
import pytest
from cost_cases import A100, V100, dense_layer, island_of, model_of, moe_layer, whole

from tangram.basis import SHIPPED_BASIS
from tangram.cost import work
from tangram.cost.batch import EMBEDDING, HEAD, BatchStage, StageBatch
from tangram.cost.constants import Constants, constants_of
from tangram.cost.setting import Setting, StackOptions
from tangram.cost.stage import stage_cost
from tangram.cost.types import StageConfig, StageConfigs
from tangram.job import Job, Precision
from tangram.model.atoms import cut_atoms

JOB = Job(64, 1024, Precision.FP16)


def stages() -> list[tuple[BatchStage, float]]:
    """Stages of all kinds, each with the time that ``stage_cost`` gives it."""
    found = []
    models = [model_of(*[dense_layer()] * 3), model_of(*[moe_layer(num_experts=8)] * 2)]
    models.append(replace(models[0], tied_embeddings=True))
    for model, part, tp, full in product(models, (A100, V100), (1, 4), (False, True)):
        portion, config = whole(island_of(part)), StageConfig(dp=16 // tp, tp=tp, zero=1)
        atoms = cut_atoms(model)
        for held in (atoms, atoms[:2], atoms[1:-1], atoms[-1:]):
            micro_batch = config.dp * 2
            flags = [full and not (atom.is_embedding or atom.is_head) for atom in held]
            alone = stage_cost(model, held, portion, config, micro_batch, 4, 1, flags, JOB)
            setting = Setting.of(model, portion, StageConfigs.of([config]), micro_batch, JOB)
            found.append((BatchStage(setting, tuple(held), recomputed=full), alone))
    return found


@pytest.fixture(scope="module")
def cases() -> tuple[StageBatch, list[object], Constants]:
    listed = stages()
    per_part = [constants_of(V100 if idx // 16 % 2 else A100, SHIPPED_BASIS) for idx in range(len(listed))]
    columns = {}
    for shelf in ("gpu", "stack", "cluster"):
        kind = type(getattr(per_part[0], shelf))
        columns[shelf] = kind(
            **{f.name: np.array([getattr(getattr(c, shelf), f.name) for c in per_part]) for f in fields(kind)}
        )
    return StageBatch.of([stage for stage, _ in listed]), [alone for _, alone in listed], Constants(**columns)


def test_a_batch_costs_what_its_stages_cost(cases: tuple[StageBatch, list[object], Constants]) -> None:
    batch, alone, constants = cases
    costs = batch.costs(constants)
    assert len(batch) == len(alone) == 96
    for idx, one in enumerate(alone):
        assert costs.forward_s[idx] == pytest.approx(one.forward_s, rel=1e-12)
        assert costs.backward_s[idx] == pytest.approx(one.backward_s, rel=1e-12)
        assert costs.step_s[idx] == pytest.approx(one.step_s, rel=1e-12)
        states = [costs.weight_bytes[idx], costs.gradient_bytes[idx], costs.optimizer_bytes[idx]]
        assert states == pytest.approx([one.memory[n] for n in ("weights", "gradients", "optimizer")])
        kept = costs.layer_activation_bytes[idx] + costs.end_activation_bytes[idx]
        assert kept == pytest.approx(one.activation_bytes)
        assert costs.workspace_bytes[idx] == pytest.approx(one.memory["workspace"])
        assert costs.reserve_bytes[idx] == pytest.approx(one.memory["reserve"])
        assert costs.upper_ratio[idx] == one.upper_ratio
        for name, seconds in one.components.items():
            assert costs.components[name][idx] == pytest.approx(seconds, abs=1e-15), name


def test_ends_stand_in_rows_of_their_own(cases: tuple[StageBatch, list[object], Constants]) -> None:
    batch = cases[0]
    assert batch.counts[EMBEDDING].max() == batch.counts[HEAD].max() == 1
    assert (batch.work.table[work.LOGITS, EMBEDDING] == 0).all()
    assert (batch.again[[EMBEDDING, HEAD]] == 0).all()


def one_stage(**changes: object) -> BatchStage:
    model = model_of(*[moe_layer(num_experts=8)] * 2)
    config = StageConfig(dp=16, tp=1, ep=8, zero=1)
    setting = Setting.of(model, whole(island_of(A100)), StageConfigs.of([config]), 32, JOB)
    options = StackOptions(**{n: v for n, v in changes.items() if n in StackOptions.__dataclass_fields__})
    others = {n: v for n, v in changes.items() if n not in StackOptions.__dataclass_fields__}
    return BatchStage(replace(setting, options=options), cut_atoms(model), **others)


def seconds(stage: BatchStage) -> dict[str, float]:
    costs = StageBatch.of([stage]).costs(constants_of(A100, SHIPPED_BASIS))
    return {name: float(values[0]) for name, values in costs.components.items()}


def test_options_of_the_stack_touch_what_they_name() -> None:
    plain, stack = seconds(one_stage()), constants_of(A100, SHIPPED_BASIS).stack
    graphs = seconds(one_stage(cuda_graphs=True))
    assert graphs["launch"] == pytest.approx(stack.graph_launch_ratio * plain["launch"])
    beside = seconds(one_stage(overlap_experts=True))
    assert beside["ep"] == pytest.approx(stack.ep_overlapped_frac / stack.ep_exposed_frac * plain["ep"])
    fused = seconds(one_stage(fused_dispatch=True))
    assert fused["ep"] == pytest.approx(stack.fused_dispatch_ratio * plain["ep"])
    for other in (graphs, beside, fused):
        assert other["matmul"] == plain["matmul"]


def test_adapters_need_no_gradients_of_weights() -> None:
    plain, adapters = seconds(one_stage()), seconds(one_stage(adapters_only=True))
    # Three products become two, of the layers and of the head; attention and all else stays.
    assert adapters["matmul"] == pytest.approx(2 / 3 * plain["matmul"], rel=0.08)
    assert adapters["attention"] == plain["attention"]
    assert adapters["grad_sync"] == adapters["optimizer"] == 0


def test_packed_samples_have_no_long_rows_of_scores() -> None:
    packed = seconds(one_stage(packed=True))
    assert packed["attention"] == 0
    assert packed["matmul"] == seconds(one_stage())["matmul"]
