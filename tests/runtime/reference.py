"""Trains the model of a plan in one process, without the engine: plain loops, torch's AdamW and clipping.

Only the model itself is the runtime's, in its form for one rank; tests of the models hold that against
``transformers``. Batches are made here, too: a function of the number of the step alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from run_plans import VOCAB, alone
from torch_or_skip import torch

from tangram.plan.schema import PlanDocument
from tangram.runtime.groups import StageGroups
from tangram.runtime.micro_batch import IGNORED, MicroBatch
from tangram.runtime.models.stage import build_stage
from tangram.runtime.settings import TrainSettings, learning_rate

SETTINGS = TrainSettings(
    learning_rate=3e-2, warmup_steps=2, eps=1e-2, weight_decay=0.1, max_grad_norm=0.5, seed=7
)
"""Gradients of the small models are near 1e-2 and below. With an eps of that size an update depends on the
size of the gradient, so that a wrong scale shows, and rounding is not blown up where a gradient is nearly
zero."""


@dataclass
class Trained:
    """What came of some steps: losses and norms step by step, and the full tensors by name."""

    losses: list[float]
    norms: list[float]
    tensors: dict[str, Any]


def batch_of(plan: PlanDocument, step: int) -> tuple[Any, Any, Any]:
    """Ids, labels (a fifth of them does not count) and sample ids of a global batch."""
    generator = torch.Generator().manual_seed(1000 + step)
    shape = (plan.job.global_batch, plan.job.seq_len)
    ids = torch.randint(0, VOCAB, shape, generator=generator)
    labels = torch.randint(0, VOCAB, shape, generator=generator)
    labels[torch.rand(shape, generator=generator) < 0.2] = IGNORED
    return ids, labels, torch.arange(shape[0]) + step * shape[0]


def trained_alone(
    plan: PlanDocument, steps: int, settings: TrainSettings = SETTINGS, dtype: Any = None
) -> Trained:
    """Trains all of the model on whole global batches."""
    single = alone(plan)
    module = build_stage(single, single.stages[0], StageGroups.alone(), seed=settings.seed, dtype=dtype)
    module.materialise(torch.device("cpu"))
    parameters = module.local_parameters()
    tensors = [p.parameter for p in parameters]
    optimizer = torch.optim.AdamW(
        [
            {"params": [p.parameter for p in parameters if p.parameter.dim() > 1 and p.decays]},
            {"params": [p.parameter for p in parameters if not p.decays], "weight_decay": 0.0},
        ],
        betas=(settings.beta1, settings.beta2),
        eps=settings.eps,
        weight_decay=settings.weight_decay,
    )
    result = Trained([], [], {})
    for step in range(steps):
        ids, labels, sample_ids = batch_of(plan, step)
        count = int((labels != IGNORED).sum())
        batch = MicroBatch(ids, labels, sample_ids, torch.arange(plan.job.seq_len), seed=1 / count)
        loss = module(batch) / count
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(tensors, settings.max_grad_norm or float("inf"))
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(settings, step)
        optimizer.step()
        result.losses.append(loss.item())
        result.norms.append(norm.item())
    for parameter in parameters:  # several may be parts of one tensor of the checkpoint
        for part, view in parameter.views():
            full = result.tensors.setdefault(part.name, torch.full(part.full_shape, float("nan")))
            full[tuple(slice(*interval) for interval in part.region)] = view
    return result
