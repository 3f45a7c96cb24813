"""Published runs of homogeneous clusters, and what the cost model says of them.

The runs used other software than Tangram's runtime (FSDP of 2023, Megatron-DeepSpeed of 2022, Megatron-LM
with Transformer Engine), so the bands of the tests are wide: they catch a wrong unit, a lost factor of two
or a missing term, not a few per cent.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from tangram.cluster.catalog import gpu
from tangram.cluster.spec import GpuSpec, Island, Node, Portion
from tangram.cost.stage import stage_cost
from tangram.cost.types import StageConfig, StageCost
from tangram.job import Job, OptimizerSpec, Precision
from tangram.model.atoms import cut_atoms
from tangram.model.spec import (
    AttentionSpec,
    FeedForwardSpec,
    LayerSpec,
    ModelSpec,
    NormKind,
    PositionKind,
)

Row = dict[str, str]


def measured_folder() -> Path:
    """The folder of the shared rows; may not exist."""
    root = os.environ.get("TANGRAM_SHARED") or Path(__file__).parents[2].parent / "shared"
    return Path(root) / "data" / "measured"


@dataclass(frozen=True)
class Run:
    """One measured run; ``nic`` in bytes per second and node (an assumption where the source is silent)."""

    row: Row
    model: ModelSpec
    part: GpuSpec
    nic: float
    job: Job
    config: StageConfig
    pp: int
    full_recompute: bool

    @property
    def num_micro_batches(self) -> int:
        return self.job.global_batch // (int(self.row["micro_batch"]) * self.config.dp)

    def stages(self) -> list[StageCost]:
        """The stages of an even split, embedding with the first layers, head with the last."""
        atoms = cut_atoms(self.model)
        cuts = [0, *(round(1 + i * self.model.num_layers / self.pp) for i in range(1, self.pp)), len(atoms)]
        micro_batch = int(self.row["micro_batch"]) * self.config.dp
        costs = []
        for i in range(self.pp):
            held = atoms[cuts[i] : cuts[i + 1]]
            flags = [self.full_recompute and not (a.is_embedding or a.is_head) for a in held]
            args = (self.config, micro_batch, self.num_micro_batches, self.pp - i, flags, self.job)
            costs.append(stage_cost(self.model, held, self.portion(), *args))
        return costs

    def portion(self) -> Portion:
        gpus = self.config.num_gpus
        num_nodes = max(1, int(self.row["n_gpus"]) // 8)
        link = self.part.link_bytes_per_s
        nodes = tuple(
            Node(f"n{i}", self.part, 8, link, 5e-6, "nvlink", self.nic, f"n{i}", "n")
            for i in range(num_nodes)
        )
        island = Island("i", nodes, self.part, 8, link, 5e-6, self.nic, 1e-5, self.nic)
        return Portion(island, 1, gpus) if gpus < 8 else Portion(island, gpus // 8, 8)

    def iteration_s(self) -> float:
        """1F1B without transfers: fill, steady pace of the slowest stage, step end (an upper bound)."""
        stages = self.stages()
        pace = max(s.time_s for s in stages)
        ends = [
            sum(s.forward_s for s in stages[:i]) + sum(s.time_s for s in stages[i:]) + stage.step_s
            for i, stage in enumerate(stages)
        ]
        return max(ends) + (self.num_micro_batches - 1) * pace

    @property
    def error_frac(self) -> float:
        return self.iteration_s() / float(self.row["iter_s"]) - 1

    def allocated_gib(self) -> float:
        """What an allocator would report: without context, communicators and fragmentation."""
        return max(s.peak_bytes - s.memory["reserve"] for s in self.stages()) / 2**30


def llm_foundry(part: str) -> Iterator[Run]:
    """FSDP in bf16 with bf16 gradients; nodes of 1,600 (A100) and 3,200 Gbit/s (H100, assumed)."""
    for row in _rows("llm_foundry.csv"):
        if row["gpu"].startswith(part) and row["precision"].endswith("bf16") and row["iter_s"]:
            job = Job(*_batch(row), Precision.BF16, OptimizerSpec(gradient_bytes=2))
            zero = 3 if "FULL_SHARD" in row["zero_or_fsdp"] else 2
            config = StageConfig(dp=int(row["dp"]), tp=1, zero=zero)
            nic = 200e9 if part.startswith("A100") else 400e9
            model = _model(row, gated=False, tied=True)
            yield Run(row, model, gpu(row["gpu"]), nic, job, config, 1, row["recompute"] == "full")


def bloom() -> Iterator[Run]:
    """Megatron-DeepSpeed in fp16 with unfused attention and full recomputation; 4 x 100 Gbit/s per node."""
    part = replace(gpu("A100-80GB-SXM"), attention_kernel="unfused")
    for row in _rows("bigscience_bloom_a100.csv"):
        if not all(row[name] for name in ("iter_s", "n_layers", "heads", "dp")):
            continue
        config = StageConfig(dp=int(row["dp"]), tp=int(row["tp"]), zero=1)
        job = Job(*_batch(row), Precision.FP16)
        consistent = config.num_gpus * int(row["pp"]) == int(row["n_gpus"])
        if consistent and job.global_batch % (config.dp * int(row["micro_batch"])) == 0:
            yield Run(row, _model(row, gated=False), part, 50e9, job, config, int(row["pp"]), True)


def simumax() -> Iterator[Run]:
    """Megatron-LM in bf16 on one node of B200; the DeepSeek rows (latent attention) are left out."""
    for row in _rows("simumax_b200.csv"):
        if "deepseek" not in row["model"]:
            config = StageConfig(dp=int(row["dp"]), tp=int(row["tp"]), cp=int(row["cp"] or 1), zero=1)
            job = Job(*_batch(row), Precision.BF16)
            yield Run(
                row, _model(row, gated=True), gpu(row["gpu"]), 400e9, job, config, int(row["pp"]), False
            )


def _rows(name: str) -> list[Row]:
    with (measured_folder() / name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _batch(row: Row) -> tuple[int, int]:
    return int(row["global_batch"]), int(row["seq_len"])


def _model(row: Row, *, gated: bool, tied: bool = False) -> ModelSpec:
    hidden, heads = int(row["hidden"]), int(row["heads"])
    norm = NormKind.RMSNORM if gated else NormKind.LAYERNORM
    attention = AttentionSpec(heads, int(row["kv_heads"] or heads), hidden // heads)
    layer = LayerSpec(attention, FeedForwardSpec(int(row["ffn_hidden"]), gated), norm)
    layers = (layer,) * int(row["n_layers"])
    vocab = int(row["vocab"])
    return ModelSpec("row", "gpt2", hidden, vocab, layers, norm, PositionKind.ROTARY, 8192, tied)
