"""From end to end on a CPU: profile a small model, plan with it, and price the plan by what was measured."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from torch_or_skip import torch

import tangram
from tangram.cli.main import main
from tangram.cluster import catalog
from tangram.cluster.spec import Cluster, GpuSpec
from tangram.job import Pins, Precision
from tangram.model.atoms import cut_atoms
from tangram.profiles.formula import CostFormula
from tangram.profiles.lookup import Basis, factors, layer_times
from tangram.profiles.measured import LayerQuery, MeasuredLayers
from tangram.profiles.shapes import atom_shapes
from tangram.profiles.store import load
from tangram.units import GIB

SEQ_LEN = 16
CONFIG = {
    "model_type": "qwen3_moe",
    "num_hidden_layers": 4,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 96,
    "moe_intermediate_size": 48,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "mlp_only_layers": [1],
    "vocab_size": 300,
    "max_position_embeddings": 64,
}


def cpu_part() -> GpuSpec:
    """What the planner has to know of a CPU: no part of the catalogue, rates of a slow one."""
    return replace(
        catalog.gpu("T4"),
        name="CPU",
        vendor="none",
        family="generic",
        architecture="cpu",
        memory_bytes=8 * GIB,
        usable_memory_bytes=8 * GIB,
        memory_bandwidth_bytes_per_s=2e10,
        peak_flop_per_s={Precision.FP32: 2e11},
        achieved_flop_per_s={Precision.FP32: 1e11},
    )


def cpu_cluster() -> Cluster:
    cluster = tangram.load_cluster("1x2xT4")
    return replace(cluster, nodes=tuple(replace(node, gpu=cpu_part()) for node in cluster.nodes))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds the model and its profile."""
    torch.set_num_threads(1)
    path = tmp_path_factory.mktemp("profile")
    (path / "config.json").write_text(json.dumps(CONFIG))
    arguments = ["profile", str(path), "--gpu", "CPU", "--store", str(path / "store.sqlite")]
    arguments += ["--seq-len", str(SEQ_LEN), "--tp", "1,2", "--micro-batch", "1,2,4,8", "--repeats", "3"]
    assert main(arguments) == 0
    return path


@pytest.mark.parametrize("pp", [1, 2])
def test_every_stage_of_a_plan_has_a_measured_time(folder: Path, pp: int) -> None:
    """With the degrees and micro-batch that the planner chose, and no formula at all."""
    model = tangram.load_model(folder)
    job = tangram.Job(8, SEQ_LEN, Precision.FP32, pins=Pins(pp=pp))
    plan = tangram.plan(model, cpu_cluster(), job)
    measured = MeasuredLayers.of(load(folder / "store.sqlite").layers)
    atoms = cut_atoms(model)
    assert len(plan.stages) == pp
    priced = 0
    for stage in plan.stages:
        for atom in atoms[slice(*stage.atoms)]:
            (shape,) = atom_shapes(model, atom, SEQ_LEN)
            (samples, *_) = stage.micro_batch_per_dp_rank
            found = layer_times(measured, LayerQuery("CPU", Precision.FP32, shape, stage.tp, samples))
            assert found is not None
            assert found.basis is Basis.MEASURED
            assert found.forward_s > 0
            assert found.backward_s > 0
            priced += 1
    assert priced == len(atoms)


def test_between_two_micro_batches(folder: Path) -> None:
    model = tangram.load_model(folder)
    measured = MeasuredLayers.of(load(folder / "store.sqlite").layers)
    formula = CostFormula.of_part(cpu_part(), Precision.FP32, 2)
    for atom in cut_atoms(model):
        (shape,) = atom_shapes(model, atom, SEQ_LEN)
        found = factors(measured, LayerQuery("CPU", Precision.FP32, shape, 2, 3), formula)
        assert found is not None
        assert found.basis is Basis.INTERPOLATED
        assert found.forward > 0
        assert found.backward > 0
