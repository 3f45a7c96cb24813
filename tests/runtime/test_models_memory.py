"""What a rank allocates: its stage's weights alone, and for backward what the cost model counts."""

from __future__ import annotations

from typing import Any

import model_cases
import pytest
import samples
from model_cases import batch_of, module_of, plan_of, runs_of
from ranks import RankPool
from torch_or_skip import torch

from tangram.errors import InputError
from tangram.job import Precision, Recompute
from tangram.planner.recost import recost_plan
from tangram.runtime.groups import StageGroups
from tangram.runtime.models.attention_core import AttentionCore
from tangram.runtime.models.offload import kept_on_host
from tangram.runtime.models.projection import Columns
from tangram.runtime.models.share import Context
from tangram.runtime.models.stage import build_runs, build_stage
from tangram.runtime.models.unit import Unit

NONE, SELECTIVE, FULL = Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL
WIDE = {
    "hidden_size": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "intermediate_size": 704,
    "max_position_embeddings": 512,
}
LONG = 256


def test_a_rank_has_the_weights_of_its_stage_alone() -> None:
    plan = plan_of("mixtral", cuts=(1, 2), num_hidden_layers=2)
    stages = [build_stage(plan, stage, StageGroups.alone(stage.ranks[0].rank)) for stage in plan.stages]
    counts = []
    for module in stages:
        assert all(parameter.is_meta for parameter in module.parameters())  # nothing is allocated yet
        counts.append(sum(parameter.numel() for parameter in module.parameters()))
        module.units[min(module.units)].materialise("cpu")
        real = {atom for atom, unit in module.units.items() if not next(unit.parameters()).is_meta}
        assert real == {min(module.units)}
    padding = 2 * 6 * 32
    assert sum(counts) == plan.model.num_params + padding
    assert max(counts) < 0.55 * sum(counts)


def count_on_rank(rank: int, plan: Any) -> tuple[int, int]:
    """Elements of experts, and all others."""
    found = build_runs(plan, plan.stages[0], runs_of(plan, rank)).local_parameters()
    experts = sum(one.num_elements for one in found if one.is_expert)
    return experts, sum(one.num_elements for one in found) - experts


def test_degrees_divide_weights(ranks: RankPool) -> None:
    ((experts, dense),) = ranks.run(1, count_on_rank, plan_of("mixtral"))
    norms, routers = 5 * 32, 2 * 4 * 32  # which every rank has
    split = dense - norms - routers
    plan = plan_of("mixtral", dp=2, tp=2, ep=2, expert_tp=2)
    assert ranks.run(4, count_on_rank, plan) == [(experts // 4, split // 2 + norms + routers)] * 4


@pytest.mark.parametrize("family", ["llama", "mixtral"])
@pytest.mark.parametrize("mode", [NONE, SELECTIVE, FULL])
def test_a_layer_keeps_what_the_cost_model_counts(
    family: str, mode: Recompute, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_cases, "SEQ_LEN", LONG)
    plans = []
    for num_layers in (2, 3):
        plan = plan_of(
            family,
            kernel="flash",
            modes=[NONE, *[mode] * num_layers, NONE],
            **WIDE | {"num_hidden_layers": num_layers},
        )
        job = plan.job.model_copy(update={"precision": Precision.BF16, "seq_len": LONG})
        plans.append(plan.model_copy(update={"job": job}))
    less, more = (recost_plan(plan).cost(0).activation_bytes for plan in plans)
    module = module_of(plans[0], 0, dtype=torch.bfloat16)
    context = Context(batch_of(plans[0], 0))
    hidden = module.units[0](context.batch.ids, context).detach().requires_grad_()
    saved = saved_bytes(module.units[1], hidden, context)
    if mode is NONE:  # on a CPU the kernel's output is copied into the layout of the projection
        saved -= hidden.nbytes
    assert saved == pytest.approx(more - less, rel=0.015)


def saved_bytes(unit: Unit, hidden: Any, context: Context) -> int:
    """Memory that autograd keeps, without weights."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in unit.parameters()}
    kept: dict[int, Any] = {}

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        unit(hidden, context)
    return sum(storage.nbytes() for storage in kept.values())


def saved_on_rank(rank: int, plan: Any) -> int:
    module = module_of(plan, rank, dtype=torch.bfloat16)
    context = Context(batch_of(plan, rank))
    hidden = module.units[0](context.batch.ids, context).detach().requires_grad_()
    return saved_bytes(module.units[1], hidden, context)


def test_sequence_parallelism_keeps_shares(ranks: RankPool) -> None:
    (whole,) = ranks.run(1, saved_on_rank, plan_of("llama", **WIDE))
    for saved in ranks.run(2, saved_on_rank, plan_of("llama", tp=2, **WIDE)):
        assert saved == pytest.approx(whole / 2, rel=0.02)


@pytest.mark.parametrize(("mode", "cores", "projections"), [(NONE, 1, 2), (SELECTIVE, 2, 2), (FULL, 2, 4)])
def test_what_is_computed_again(
    mode: Recompute, cores: int, projections: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = {"core": 0, "projection": 0}
    real_core, real_columns = AttentionCore.__call__, Columns.forward

    def core(self: AttentionCore, *args: Any) -> Any:
        calls["core"] += 1
        return real_core(self, *args)

    def columns(self: Columns, *args: Any) -> Any:
        calls["projection"] += 1
        return real_columns(self, *args)

    monkeypatch.setattr(AttentionCore, "__call__", core)
    monkeypatch.setattr(Columns, "forward", columns)
    plan = plan_of("llama", modes=[NONE, mode, NONE, NONE])
    module = module_of(plan, 0)
    context = Context(batch_of(plan, 0))
    hidden = module.units[0](context.batch.ids, context).detach().requires_grad_()
    module.units[1](hidden, context).sum().backward()
    assert calls == {"core": cores, "projection": projections}
    assert hidden.grad is not None


def test_hooks_of_a_recomputed_atom_run_once() -> None:
    plan = plan_of("llama", modes=[NONE, FULL, NONE, NONE])
    module = module_of(plan, 0)
    seen = []
    module.units[1].register_forward_pre_hook(lambda unit, args: seen.append("before"))
    module.units[1].register_forward_hook(lambda unit, args, output: seen.append("after"))
    module(batch_of(plan, 0)).backward()
    assert seen == ["before", "after"]


def test_offload_copies_activations_and_leaves_weights() -> None:
    weight = torch.nn.Parameter(torch.full((32, 32), 2.0))
    x = torch.ones(32, 32, requires_grad=True)
    with kept_on_host([weight]):
        y = (x * 1.0) * weight
    with torch.no_grad():
        weight.data.mul_(5.0)  # not copied: backward sees it
    y.sum().backward()
    assert torch.equal(weight.grad, torch.ones(32, 32))
    assert torch.equal(x.grad, torch.full((32, 32), 10.0))


def test_offload_keeps_the_values_of_the_forward_pass() -> None:
    weight = torch.nn.Parameter(torch.full((32, 32), 2.0))
    inner = torch.full((32, 32), 3.0)
    with kept_on_host([weight]):
        y = inner * weight
    inner.data.zero_()  # the copy on the host is another
    y.sum().backward()
    assert torch.equal(weight.grad, torch.full((32, 32), 3.0))


def test_granularity_below_a_block_is_refused() -> None:
    spec, _ = model_cases.spec_of("llama")
    num_atoms = len(samples.cut_atoms(spec, samples.parse_granularity("operator")))
    plan = plan_of("llama", granularity="operator", modes=[NONE] * num_atoms)
    with pytest.raises(InputError, match="atoms smaller than a block cannot be run yet"):
        build_stage(plan, plan.stages[0], StageGroups.alone())
