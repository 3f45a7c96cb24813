"""Loss and gradients of every family against ``transformers``, with the same weights."""

from __future__ import annotations

from typing import Any

import pytest
from model_cases import CONFIGS, PADDED, VOCAB, batch_of, module_of, plan_of, tokens
from torch_or_skip import torch
from whole_tensors import whole_gradients, whole_weights

from tangram.runtime.models.stage import StageModule

transformers = pytest.importorskip("transformers", reason="transformers is not installed")


def peer_of(family: str, config: dict[str, Any], weights: dict[str, Any]) -> Any:
    """The model of ``transformers`` with these weights, whose names are those of a checkpoint."""
    made = transformers.AutoConfig.for_model(**config)
    made._attn_implementation = "eager"
    peer = transformers.AutoModelForCausalLM.from_config(made).to(torch.float32)
    for name, parameter in peer.named_parameters():
        parameter.data.copy_(peer_tensor(family, name, weights))
    return peer.train()


def peer_tensor(family: str, name: str, tensors: dict[str, Any]) -> Any:
    """A tensor under the name that the module of ``transformers`` has for it: experts are stacked there."""
    if name in tensors:  # without the rows that pad a vocabulary
        return tensors[name][:VOCAB] if len(tensors[name]) == PADDED else tensors[name]
    layer = name.partition(".mlp.")[0]
    if family == "mixtral":
        stem, gate, up, down = f"{layer}.block_sparse_moe", "w1", "w3", "w2"
    else:
        stem, gate, up, down = f"{layer}.mlp", "gate_proj", "up_proj", "down_proj"
    if name.endswith("gate.weight"):
        return tensors[f"{stem}.gate.weight"]
    of = [[tensors[f"{stem}.experts.{e}.{one}.weight"] for e in range(4)] for one in (gate, up, down)]
    if name.endswith("down_proj"):
        return torch.stack(of[2])
    assert name.endswith("gate_up_proj"), name
    return torch.cat((torch.stack(of[0]), torch.stack(of[1])), dim=1)


def run(module: StageModule, plan: Any) -> float:
    loss = module(batch_of(plan, 0))
    loss.backward()
    return float(loss.detach())


@pytest.mark.parametrize("family", CONFIGS)
@pytest.mark.parametrize("kernel", ["unfused", "flash"])
def test_loss_and_gradients(family: str, kernel: str) -> None:
    """Without the balance loss, which transformers defines otherwise."""
    plan = plan_of(family, kernel=kernel, router_aux_loss_coef=0.0)
    module = module_of(plan, 0, dtype=torch.float32)
    own_loss = run(module, plan)
    peer = peer_of(family, dict(plan.model.hyperparameters), whole_weights([module]))
    ids, labels = tokens()
    logits = peer(ids, use_cache=False).logits.float()
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
    loss.backward()
    assert own_loss == pytest.approx(loss.item(), rel=2e-6)
    own = whole_gradients([module])
    for name, parameter in peer.named_parameters():
        expected = parameter.grad
        found = peer_tensor(family, name, own)
        torch.testing.assert_close(
            found, expected, rtol=2e-4, atol=2e-5 * expected.abs().max().item(), msg=name
        )
