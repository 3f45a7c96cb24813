"""A real small model on a real text: planned for two emulated islands, trained on CPU ranks.

The islands have kinds of GPU that do not exist, whose layer times stand in a profile store. The plan mixes
them, runs by tangram run, and its curve is held against a plain loop: the model in one process, AdamW and
clipping as torch has them, and the same batches.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch_or_skip import torch

import tangram
from tangram.cluster import catalog
from tangram.cluster.spec import Cluster, GpuSpec, Node
from tangram.job import Precision
from tangram.model.atoms import cut_atoms
from tangram.plan.json_io import to_json
from tangram.plan.schema import PlanDocument
from tangram.profiles.measured import MeasuredLayers
from tangram.profiles.records import LayerTime
from tangram.profiles.shapes import atom_shapes
from tangram.run_options import RunOptions
from tangram.runtime.data.indexed import write_indexed
from tangram.runtime.data.opening import open_tokens
from tangram.runtime.data.tokenizer import ByteTokenizer, read_documents
from tangram.units import GIB

ROOT = Path(__file__).parents[2]
COMMAND = "from tangram.cli.main import main; import sys; sys.exit(main())"
SEQ_LEN, BATCH, STEPS = 32, 8, 200
MODEL = {
    "model_type": "llama",
    "num_hidden_layers": 9,
    "hidden_size": 320,
    "num_attention_heads": 5,
    "num_key_value_heads": 5,
    "intermediate_size": 864,
    "vocab_size": 257,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
OPTIONS = {"learning_rate": 1e-3, "warmup_steps": 20, "decay": "cosine", "seed": 5}
SLOWER = {"FAST": 1.0, "SLOW": 2.0}


def part(name: str) -> GpuSpec:
    """A kind of GPU; what counts of it is in the profile."""
    rate = {Precision.FP32: 1e12 / SLOWER[name]}
    memory = {"memory_bytes": 16 * GIB, "usable_memory_bytes": 15 * GIB}
    words = {"name": name, "vendor": "none", "family": "generic", "architecture": "emulated"}
    return replace(catalog.gpu("T4"), **words, **memory, peak_flop_per_s=rate, achieved_flop_per_s=rate)


def cluster(*hosts: tuple[str, int]) -> Cluster:
    nodes = tuple(
        Node(name.lower(), part(name), count, 1e9, 1e-5, "pcie", 1.25e8, name.lower(), name.lower())
        for name, count in hosts
    )
    return Cluster("two emulated islands", nodes, 1.25e8, 1e-4)


def measured(model: Any) -> MeasuredLayers:
    """What a profile of these kinds says: so much per pass, and so much per sample."""
    atoms, records = cut_atoms(model), []
    for name, slower in SLOWER.items():
        for index, share in ((0, 0.05), (1, 1.0), (len(atoms) - 1, 0.2)):
            (shape,) = atom_shapes(model, atoms[index], SEQ_LEN)
            for samples in (1, 2, 4, 8):
                seconds = slower * share * (2e-4 + 8e-3 * samples)
                passes = (seconds, 2 * seconds)
                key = (name, "tangram-runtime", Precision.FP32, shape, 1, samples, False)
                records.append(LayerTime(*key, *passes, "emulated"))
    return MeasuredLayers.of(records)


def plans(folder: Path) -> tuple[PlanDocument, PlanDocument]:
    """The plan of the two islands, and one of a single process with the whole batch at once."""
    (folder / "config.json").write_text(json.dumps(MODEL))
    model = tangram.load_model(folder)
    job = tangram.Job(BATCH, SEQ_LEN, Precision.FP32)
    mixed = tangram.plan(model, cluster(("FAST", 2), ("SLOW", 2)), job, measured=measured(model))
    alone = replace(job, pins=replace(job.pins, micro_batch=BATCH, pp=1, dp=1, tp=1))
    return mixed, tangram.plan(model, cluster(("FAST", 1)), alone)


def write_text(folder: Path) -> str:
    """Tokens of the project's own pages: real prose, always at hand."""
    tokenizer = ByteTokenizer()
    pages = sorted((ROOT / "docs").glob("*.md"))
    documents = map(tokenizer.encode, read_documents([ROOT / "README.md", *pages]))
    write_indexed(folder / "text", documents, tokenizer.vocab_size)
    return str(folder / "text")


def entropy_of_bytes(options: RunOptions) -> float:
    """The loss of whoever knows how often each token comes, and nothing of its neighbours."""
    tokens = open_tokens(Path(str(options.data)))
    counts = np.bincount(tokens.read(0, tokens.num_tokens))
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())


def plain_losses(plan: PlanDocument, options: RunOptions, steps: int) -> list[float]:
    """The same training as a plain loop in this process."""
    from tangram.runtime.groups import StageGroups
    from tangram.runtime.micro_batch import MicroBatch
    from tangram.runtime.models.stage import build_stage
    from tangram.runtime.settings import learning_rate
    from tangram.runtime.training import train_settings
    from tangram.runtime.worker import open_feed

    settings, feed = train_settings(options, STEPS), open_feed(plan, options)
    module = build_stage(plan, plan.stages[0], StageGroups.alone(), seed=settings.seed)
    module.materialise(torch.device("cpu"))
    parameters = list(module.parameters())
    decaying = [p for p in parameters if p.dim() > 1]
    groups = [{"params": decaying}, {"params": [p for p in parameters if p.dim() == 1], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(
        groups, betas=(settings.beta1, settings.beta2), eps=settings.eps, weight_decay=settings.weight_decay
    )
    losses = []
    for step in range(steps):
        batch = feed.batch(step)
        ids, labels = (torch.from_numpy(rows.copy()) for rows in batch.rows(0, BATCH))
        count = labels.numel()
        inputs = MicroBatch(
            ids, labels, torch.from_numpy(batch.sample_ids), torch.arange(SEQ_LEN), seed=1 / count
        )
        loss = module(inputs) / count
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, settings.max_grad_norm)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(settings, step)
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_the_plan_mixes_both_islands(tmp_path: Path) -> None:
    mixed, alone = plans(tmp_path)
    assert mixed.model.num_params >= 10_000_000
    assert {slot.gpu for stage in mixed.stages for slot in stage.ranks} == {"FAST", "SLOW"}
    assert len(mixed.stages) >= 2
    assert mixed.prediction.basis != "formula"
    assert (len(alone.stages), alone.num_gpus) == (1, 1)


@pytest.mark.slow
def test_a_small_model_learns_a_real_text_as_in_one_process(tmp_path: Path) -> None:
    mixed, alone = plans(tmp_path)
    plan, log = tmp_path / "plan.json", tmp_path / "log.jsonl"
    plan.write_text(to_json(mixed))
    options = RunOptions(data=write_text(tmp_path), steps=STEPS, cpu=True, log_file=str(log), **OPTIONS)
    command = [sys.executable, "-c", COMMAND, "run", str(plan), *options.arguments()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1500, check=False)
    assert done.returncode == 0, done.stderr
    curve = [json.loads(line)["loss"] for line in log.read_text().splitlines()[1:]]
    assert len(curve) == STEPS
    assert curve[0] == pytest.approx(5.55, abs=0.35)  # log 257: nothing is known yet
    last = sum(curve[-20:]) / 20
    assert last < entropy_of_bytes(options) - 0.4  # it knows more than how often each byte comes
    reference = plain_losses(alone, options, STEPS)
    # Training amplifies the rounding of another order of sums: measured were 3e-6 over the first 50 steps,
    # 6e-4 over 100 and 6e-3 over 200. A sample that is used twice shows in its own step by 2e-3, and stays.
    for steps, tolerance in ((5, 1e-6), (50, 3e-5), (100, 6e-3), (STEPS, 5e-2)):
        assert curve[:steps] == pytest.approx(reference[:steps], rel=tolerance)
