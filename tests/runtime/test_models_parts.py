"""Rotary positions, refusals, the balance loss, cross entropy, and arithmetic at 16 bit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from model_cases import CONFIGS, SEQ_LEN, batch_of, module_of, plan_of, spec_of
from ranks import RankPool
from torch_or_skip import torch

from tangram.errors import InputError
from tangram.job import Precision
from tangram.model.presets import load_preset, preset_names
from tangram.model.spec import ModelSpec, PositionKind
from tangram.plan.schema import ModelSection
from tangram.runtime.groups import GroupMaker, StageGroups, group_of_one
from tangram.runtime.micro_batch import IGNORED
from tangram.runtime.models.cross_entropy import summed_cross_entropy
from tangram.runtime.models.hyperparameters import parse_hyperparameters
from tangram.runtime.models.names import FAMILIES, names_of
from tangram.runtime.models.rope import parse_rope
from tangram.runtime.models.rotary import rotary_tables
from tangram.runtime.models.routing import Router
from tangram.runtime.models.share import share_of
from tangram.runtime.models.stage import StageModule

ROPES: dict[str, dict[str, Any]] = {
    "default": {"rope_theta": 5e5},
    "new form": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
    "linear": {"rope_scaling": {"type": "linear", "factor": 4.0}},
    "llama3": {
        "rope_theta": 5e5,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    },
    "yarn": {
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    },
    "yarn with more": {
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1e4,
            "factor": 4.0,
            "original_max_position_embeddings": 64,
            "beta_fast": 16,
            "beta_slow": 2,
            "mscale": 0.7,
            "mscale_all_dim": 1.1,
            "truncate": False,
        }
    },
}


@pytest.mark.parametrize("name", ROPES)
def test_rotary_tables(name: str) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = transformers.LlamaConfig(
        hidden_size=256, num_attention_heads=4, max_position_embeddings=256, **ROPES[name]
    )
    positions = torch.arange(200)
    expected = LlamaRotaryEmbedding(config)(torch.zeros(1), positions[None])
    found = rotary_tables(parse_rope(ROPES[name], 1e4, 256), positions, 64, torch.float32)
    for own, peer in zip(found, expected, strict=True):
        torch.testing.assert_close(own, peer[0], rtol=0, atol=2e-5)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "of type 'dynamic' are not supported"),
        ({"rope_scaling": {"type": "longrope"}}, "of type 'longrope' are not supported"),
        ({"rope_scaling": {"type": "linear"}}, "factor is None, but linear needs a number"),
        ({"rope_scaling": [2.0]}, "must be an object"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "a part of each head"),
        ({"hidden_act": "xielu"}, "'xielu' is not supported"),
        ({"attention_dropout": 1.0}, "out of range"),
        ({"rms_norm_eps": "1e-5"}, "out of range"),
        ({"router_jitter_noise": 0.1}, "must be 0"),
        ({"use_mrope": True}, "must be false"),
        ({"scale_attn_weights": False}, "must be true"),
    ],
)
def test_hyperparameters_that_would_change_the_result(values: dict[str, Any], expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        parse_hyperparameters(values, spec_of("llama")[0])


def test_presets_that_run() -> None:
    runs = set()
    for name in preset_names():
        model = load_preset(name)
        if model.family in FAMILIES:
            names_of(model)
            parse_hyperparameters(dict(model.hyperparameters), model)
            runs.add(model.family)
            continue
        with pytest.raises(InputError, match="cannot be run yet") as caught:
            names_of(model)
        assert caught.value.hint == f"families that run: {', '.join(FAMILIES)}"
    assert runs == {"gpt2", "llama", "mixtral", "qwen2", "qwen3_moe"}


def changed(model: ModelSpec, **changes: Any) -> ModelSpec:
    """The model with these changes in every layer."""
    return replace(model, layers=tuple(replace(layer, **changes) for layer in model.layers))


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (changed(spec_of("llama")[0], feed_forward=spec_of("mixtral")[0].layers[0].feed_forward), "experts"),
        (changed(spec_of("llama")[0], post_norm=True), "norms behind blocks"),
        (changed(spec_of("llama")[0], attention=load_preset("deepseek-v3").layers[0].attention), "latent"),
        (
            changed(spec_of("gpt2")[0], feed_forward=spec_of("llama")[0].layers[0].feed_forward),
            "gated blocks",
        ),
        (replace(spec_of("gpt2")[0], position=PositionKind.ROTARY), "gpt2 with rotary positions"),
        (replace(spec_of("gpt2")[0], final_norm=False), "no final norm"),
        (replace(spec_of("llama")[0], family="olmo"), "of family 'olmo'"),
    ],
)
def test_models_that_are_not_built(model: ModelSpec, expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        names_of(model)


def test_fp8_is_refused() -> None:
    plan = plan_of("llama")
    job = plan.job.model_copy(update={"precision": Precision.FP8})
    with pytest.raises(InputError, match="precision fp8 cannot be run yet"):
        share_of(plan.model_copy(update={"job": job}), plan.stages[0], StageGroups.alone())


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe"])
def test_balance_loss(family: str) -> None:
    """Where no label counts, all gradients are those of the balance loss: written out from its formula."""
    seed = 0.25
    plain = plan_of(family, router_aux_loss_coef=0.0)
    batch = batch_of(plain, 0, seed=seed)
    batch = replace(batch, labels=torch.full_like(batch.labels, IGNORED))
    module = module_of(plain, 0)
    seen: list[Any] = []
    for router in routers_of(module):
        router.register_forward_pre_hook(lambda router, args: seen.append((router, args[0])))
    module(batch)
    expected: Any = 0
    for router, rows in seen:
        shares = torch.softmax(rows @ router.matrix.T, dim=-1).view(4, SEQ_LEN, -1)
        for sample in shares:
            chosen = sample.topk(2, dim=-1).indices.flatten().tolist()
            counts = torch.tensor([chosen.count(expert) for expert in range(4)], dtype=torch.float64)
            of_sample = 4 * (counts / SEQ_LEN * sample.mean(dim=0)).sum()
            expected = expected + 0.02 / len(seen) * SEQ_LEN * of_sample
    (seed * expected).backward()

    own = module_of(plan_of(family), 0)
    loss = own(batch)
    (seed * loss).backward()
    assert loss.item() == 0.0
    assert len(seen) == (2 if family == "mixtral" else 1)
    for router, peer in zip(routers_of(own), routers_of(module), strict=True):
        assert peer.matrix.grad.abs().max() > 1e-4
        torch.testing.assert_close(router.matrix.grad, peer.matrix.grad)


def routers_of(module: StageModule) -> list[Router]:
    return [part for part in module.modules() if isinstance(part, Router)]


def test_balance_loss_of_one_sequence_is_that_of_transformers() -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(SEQ_LEN, 4, generator=generator)
    shares = logits.softmax(-1)
    counts = torch.bincount(shares.topk(2).indices.flatten(), minlength=4)
    own = 4 * (counts / SEQ_LEN * shares.mean(dim=0)).sum()
    torch.testing.assert_close(load_balancing_loss_func((logits,), 4, 2), own)


def entropy_on_rank(rank: int, logits: Any, labels: Any, valid: int) -> tuple[float, Any]:
    group = GroupMaker(rank).make([0, 1, 2]) or group_of_one()
    size = logits.shape[-1] // 3
    own = logits[..., rank * size : (rank + 1) * size].clone().requires_grad_()
    loss = summed_cross_entropy(own, labels, rank * size, valid - rank * size, group)
    (3.0 * loss).backward()
    return loss.item(), own.grad


@pytest.mark.parametrize("valid", [12, 11, 5])  # 5: one rank has padding alone
def test_cross_entropy_of_a_split_vocabulary(ranks: RankPool, valid: int) -> None:
    generator = torch.Generator().manual_seed(1)
    logits = 20 * torch.randn(2, 7, 12, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, valid, (2, 7), generator=generator)
    labels[0, 2] = labels[1, 6] = IGNORED
    leaf = logits[..., :valid].clone().requires_grad_()
    expected = torch.nn.functional.cross_entropy(
        leaf.flatten(0, 1), labels.flatten(), reduction="sum", ignore_index=IGNORED
    )
    (3.0 * expected).backward()
    found = ranks.run(3, entropy_on_rank, logits, labels, valid)
    assert {loss for loss, _ in found} == {found[0][0]}
    assert found[0][0] == pytest.approx(expected.item(), rel=1e-12)
    gradients = torch.cat([gradient for _, gradient in found], dim=-1)
    torch.testing.assert_close(gradients[..., :valid], leaf.grad)
    assert not gradients[..., valid:].any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", CONFIGS)
def test_16_bit(family: str, dtype: Any) -> None:
    """The same weights up to their rounding, and gradients of the same direction, in the right dtype."""
    plan = plan_of(family, kernel="flash", initializer_range=0.1)
    found = {}
    for kind in (torch.float32, dtype):
        module = module_of(plan, 0, dtype=kind)
        loss = module(batch_of(plan, 0))
        loss.backward()
        assert {parameter.grad.dtype for parameter in module.parameters()} == {kind}
        gradients = torch.cat([parameter.grad.float().flatten() for parameter in module.parameters()])
        found[kind] = loss.item(), gradients
    assert found[dtype][0] == pytest.approx(found[torch.float32][0], rel=5e-3)
    likeness = torch.cosine_similarity(found[dtype][1], found[torch.float32][1], dim=0).item()
    assert likeness > 0.98


def test_learned_positions_have_a_row_each() -> None:
    section = ModelSection.of(spec_of("gpt2")[0])
    assert section.max_positions == 64
    module = module_of(plan_of("gpt2"), 0)
    assert module.units[0].blocks[0].positions.shape == (64, 32)
