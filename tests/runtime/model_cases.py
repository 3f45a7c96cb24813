"""Tiny models of every family, plans of one stage for them, and batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import samples
from samples import Choice
from torch_or_skip import torch

from tangram.job import Job, Precision, Recompute
from tangram.model.hf import parse_hf_config
from tangram.model.spec import ModelSpec
from tangram.plan.schema import ModelSection, PlanDocument
from tangram.runtime.boundary import context_share
from tangram.runtime.groups import GroupMaker
from tangram.runtime.micro_batch import IGNORED, MicroBatch
from tangram.runtime.models.stage import StageModule, build_runs
from tangram.runtime.runs import StageRun, stage_runs

SEQ_LEN = 16
VOCAB, PADDED = 250, 256

_COMMON = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "intermediate_size": 48,
    "vocab_size": VOCAB,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
}
_EXPERTS = {"num_experts_per_tok": 2, "router_aux_loss_coef": 0.02}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": _COMMON | {"rope_theta": 500.0, "rms_norm_eps": 1e-5, "tie_word_embeddings": True},
    "mistral": _COMMON | {"sliding_window": 5},
    "qwen2": _COMMON | {"head_dim": 8},
    "qwen3": _COMMON | {"tie_word_embeddings": True},
    "gpt2": {
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 64,
        "vocab_size": VOCAB,
        "initializer_range": 0.2,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
    },
    "mixtral": _COMMON | _EXPERTS | {"num_local_experts": 4, "sliding_window": None},
    "qwen3_moe": _COMMON
    | _EXPERTS
    | {"num_experts": 4, "moe_intermediate_size": 24, "mlp_only_layers": [0], "norm_topk_prob": False},
}


def spec_of(family: str, **changes: Any) -> tuple[ModelSpec, dict[str, Any]]:
    """A tiny model of a family and its configuration."""
    config = {"model_type": family, **CONFIGS[family], **changes}
    return parse_hf_config(config, name=f"tiny-{family}", where="test"), config


def plan_of(
    family: str,
    *,
    dp: int = 1,
    cp: int = 1,
    tp: int = 1,
    ep: int = 1,
    expert_tp: int = 1,
    sequence_parallel: bool = True,
    zigzag: bool = True,
    exchange: str = "allgather",
    kernel: str = "unfused",
    modes: Sequence[Recompute] | None = None,
    granularity: str = "layer",
    split: tuple[int, ...] | None = None,
    offload: Sequence[int] = (),
    cuts: Sequence[int] = (),
    **changes: Any,
) -> PlanDocument:
    """A plan whose first stage has these degrees; ``cuts`` says where further stages of one rank begin."""
    spec, config = spec_of(family, **changes)
    num_atoms = len(samples.cut_atoms(spec, samples.parse_granularity(granularity)))
    bounds = [0, *cuts, num_atoms]
    slots = [("fast-0", idx) for idx in range(dp * cp * tp + len(cuts))]
    stages = []
    for idx, atoms in enumerate(pairwise(bounds)):
        own = slots[: dp * cp * tp] if idx == 0 else slots[dp * cp * tp + idx - 1 :][:1]
        one = Choice(atoms, samples.ISLANDS[0], tuple(own), len(bounds) - 1 - idx)
        if idx == 0:
            degrees = {"dp": dp, "cp": cp, "tp": tp, "ep": ep, "expert_tp": expert_tp, "split": split}
            one = replace(one, **degrees, modes=tuple(modes) if modes else None)
        stages.append(one)
    job = Job(global_batch=8, seq_len=SEQ_LEN, precision=Precision.FP32)
    plan = samples.build(spec, job, stages, micro_batch=4, granularity=granularity)
    first = plan.stages[0].model_copy(
        update={
            "sequence_parallel": sequence_parallel and tp > 1,
            "cp_layout": "zigzag" if zigzag else "contiguous",
            "cp_exchange": exchange,
            "attention_kernel": kernel,
            "offload_activation_atoms": list(offload),
        }
    )
    model = ModelSection.of(spec, padded_vocab_size=PADDED, hyperparameters=config)
    pipeline = plan.pipelines[0].model_copy(update={"stages": [first, *plan.stages[1:]]})
    return plan.model_copy(update={"model": model, "pipelines": [pipeline]})


def runs_of(plan: PlanDocument, rank: int) -> list[StageRun]:
    """The runs of a rank's stage; all ranks of the plan call it."""
    maker = GroupMaker(rank)
    found = [stage_runs(plan, stage, maker) for stage in plan.stages]
    return next(runs for runs in found if runs)


def module_of(
    plan: PlanDocument, rank: int, *, stage_idx: int = 0, dtype: Any = torch.float64, seed: int = 3
) -> StageModule:
    """The stage of a rank with its initial weights."""
    module = build_runs(plan, plan.stages[stage_idx], runs_of(plan, rank), seed=seed, dtype=dtype)
    module.materialise("cpu")
    return module


def tokens(num_rows: int = 4, *, seed: int = 5) -> tuple[Any, Any]:
    """Ids and labels of whole samples, with a label that does not count."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, VOCAB, (num_rows, SEQ_LEN + 1), generator=generator)
    labels = ids[:, 1:].clone()
    labels[1, 3] = IGNORED
    return ids[:, :-1], labels


def batch_of(plan: PlanDocument, rank: int, *, stage_idx: int = 0, seed: float = 1.0) -> MicroBatch:
    """A rank's share of the one micro-batch."""
    stage = plan.stages[stage_idx]
    place = rank - stage.ranks[0].rank
    dp_idx, rest = divmod(place, stage.cp * stage.tp)
    first = sum(stage.micro_batch_per_dp_rank[:dp_idx])
    rows = slice(first, first + stage.micro_batch_per_dp_rank[dp_idx])
    runs = context_share(SEQ_LEN, stage.cp, rest // stage.tp, zigzag=stage.cp_layout == "zigzag")
    positions = torch.cat([torch.arange(start, stop) for start, stop in runs])
    ids, labels = tokens(sum(stage.micro_batch_per_dp_rank))
    return MicroBatch(
        ids[rows][:, positions], labels[rows][:, positions], torch.arange(100, 200)[rows], positions, seed
    )
