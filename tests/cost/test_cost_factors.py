"""Measured factors in the cost model: what they multiply, and what they leave alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cost_cases import MODELS, island_of, job_of
from hypothesis import given
from hypothesis import strategies as st

from tangram.basis import CostBasis, FactorKey, MeasuredFactor, MeasuredTable, Override
from tangram.cluster.spec import Portion
from tangram.cost.atoms import atom_costs
from tangram.cost.factors import applies
from tangram.cost.stage import stage_cost
from tangram.cost.types import AtomCosts, StageConfig, StageConfigs
from tangram.job import Job, Precision
from tangram.model.atoms import cut_atoms

MODEL = MODELS[0]
ATOMS = cut_atoms(MODEL)
LAYER = ATOMS[1]
ISLAND = island_of()
COMPUTE = ("matmul", "attention", "elementwise", "launch")


def with_factors(job: Job, *factors: MeasuredFactor, is_whole: bool = False) -> Job:
    table = MeasuredTable(job.precision.value, job.seq_len, factors, is_whole)
    return replace(job, basis=replace(job.basis, measured=table))


def factor(
    tp: int, samples: int, forward: float, backward: float, *, comm: bool = False, island: str = "island"
) -> MeasuredFactor:
    key = FactorKey(LAYER.fingerprint, island, tp, samples)
    return MeasuredFactor(key, forward, backward, comm, "measured")


def costs(job: Job, *configs: StageConfig, micro_batch: int = 8, num_nodes: int = 1) -> AtomCosts:
    portion = Portion(ISLAND, num_nodes, configs[0].num_gpus // num_nodes)
    return atom_costs(MODEL, ATOMS, portion, StageConfigs.of(list(configs)), micro_batch, job)


def test_one_point_is_multiplied_and_no_other() -> None:
    configs = [StageConfig(dp=4, tp=2), StageConfig(dp=8, tp=1), StageConfig(dp=2, tp=4)]
    job = job_of()
    plain = costs(job, *configs)
    found = costs(with_factors(job, factor(2, 2, 3.0, 0.5)), *configs)
    forward = plain.forward_s.copy()
    compute = [
        sum(plain.components[name] for name in COMPUTE),
        sum(found.components[name] for name in COMPUTE),
    ]
    changed = np.zeros_like(forward, dtype=bool)
    changed[1:3, 0] = True  # both layers, tp 2 with 8 / 4 samples
    for name in ("forward_s", "backward_s"):
        assert ((getattr(found, name) != getattr(plain, name)) == changed).all(), name
    assert ((compute[0] != compute[1]) == changed).all()
    assert (found.components["tp"] == plain.components["tp"]).all()


def test_compute_alone_or_with_its_collectives() -> None:
    config, job = StageConfig(dp=1, tp=8), job_of()
    plain = costs(job, config)
    tp_s = plain.components["tp"][1, 0]
    assert tp_s > 0
    both = costs(with_factors(job, factor(8, 8, 2.0, 2.0, comm=True)), config)
    assert both.forward_s[1, 0] == pytest.approx(2 * plain.forward_s[1, 0])
    assert both.backward_s[1, 0] == pytest.approx(2 * plain.backward_s[1, 0])
    alone = costs(with_factors(job, factor(8, 8, 2.0, 2.0)), config)
    total = plain.forward_s[1, 0] + plain.backward_s[1, 0]
    assert alone.forward_s[1, 0] + alone.backward_s[1, 0] == pytest.approx(2 * total - tp_s)
    assert alone.components["tp"][1, 0] == tp_s


def test_collectives_timed_inside_a_node_say_nothing_across_nodes() -> None:
    config, job = StageConfig(dp=1, tp=16), job_of(allow_cross_node_tp=True)
    plain = costs(job, config, num_nodes=2)
    with_comm = costs(with_factors(job, factor(16, 8, 2.0, 2.0, comm=True)), config, num_nodes=2)
    assert (with_comm.forward_s == plain.forward_s).all()
    alone = costs(with_factors(job, factor(16, 8, 2.0, 2.0)), config, num_nodes=2)
    assert alone.forward_s[1, 0] > plain.forward_s[1, 0]


def test_memory_and_the_optimizer_rest_on_formulas() -> None:
    config, job = StageConfig(dp=8, tp=1, zero=1), job_of()
    plain, found = costs(job, config), costs(with_factors(job, factor(1, 1, 9.0, 9.0)), config)
    assert (found.components["optimizer"] == plain.components["optimizer"]).all()
    for name in ("weight_bytes", "optimizer_bytes", "stored_bytes", "workspace_bytes"):
        assert (getattr(found, name) == getattr(plain, name)).all()
    assert found.recompute_s[1, 0] == pytest.approx(9 * plain.recompute_s[1, 0])


def test_longer_compute_hides_more_of_the_gradients() -> None:
    eager = CostBasis(overrides=(Override("stack", "tangram-runtime", "exposed_floor_frac", 0.02),))
    config, job = StageConfig(dp=16, tp=1, zero=1), replace(job_of(), basis=eager)
    plain = costs(job, config, micro_batch=16, num_nodes=2)
    slow = costs(with_factors(job, factor(1, 1, 20.0, 20.0)), config, micro_batch=16, num_nodes=2)
    assert slow.components["grad_sync"][1, 0] < plain.components["grad_sync"][1, 0]


def test_a_table_of_another_job_or_island_says_nothing() -> None:
    config, job = StageConfig(dp=8, tp=1), job_of()
    plain = costs(job, config)
    other = with_factors(job, factor(1, 1, 2.0, 2.0, island="elsewhere"))
    assert (costs(other, config).forward_s == plain.forward_s).all()
    measured = with_factors(job, factor(1, 1, 2.0, 2.0))
    assert applies(measured)
    assert not applies(job)
    longer = replace(measured, seq_len=1024)
    assert not applies(longer)
    assert not applies(replace(measured, precision=Precision.FP16))
    formulas = costs(replace(job, seq_len=1024), config)
    assert (costs(longer, config).forward_s == formulas.forward_s).all()


@given(st.floats(0.3, 3), st.floats(0.3, 3), st.sampled_from([1, 2, 4, 8]), st.booleans())
def test_a_stage_is_the_sum_of_its_atoms(forward: float, backward: float, tp: int, comm: bool) -> None:
    """The table of a slice and the stage that is chosen from it agree, whatever was measured."""
    config = StageConfig(dp=8 // tp, tp=tp)
    job = with_factors(job_of(), factor(tp, tp, forward, backward, comm=comm and tp > 1))
    rows = costs(job, config)
    flags = [False, True, False, False]
    stage = stage_cost(MODEL, ATOMS, Portion(ISLAND, 1, 8), config, 8, 8, 2, flags, job)
    assert stage.forward_s == pytest.approx(rows.forward_s[:, 0].sum())
    assert stage.backward_s == pytest.approx(rows.backward_s[:, 0].sum() + rows.recompute_s[1, 0])
