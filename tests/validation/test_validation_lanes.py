"""Pipelines of unequal replicas, and engines whose stages wait for transfers, against a naive executor."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rendezvous import step_s
from row_samples import run_of

from tangram.cost.batch import BatchCosts
from tangram.validation.pipelines import RunBatch, iteration_s
from tangram.validation.run import Run
from tangram.validation.slots import Shelves
from tangram.validation.stages import gpus_on_node

V100, T4 = "V100-16GB-SXM2", "T4"
MIXED = {
    "precision": "fp16",
    "gpu": f"mixed: 8x{V100}+8x{T4}",
    "peak_mem_GiB": "",
    "zero_or_fsdp": "DDP",
    "gpus_per_node": 4,
    "nic_gbit_per_s": 10,
}


def test_replicas_on_equal_nodes_are_one_lane(tmp_path: Path) -> None:
    assert len(run_of(tmp_path).hardware.lanes) == 1
    same = run_of(tmp_path, **MIXED, placement=f"{V100}+{V100}+{V100}+{V100} | {T4}+{T4}+{T4}+{T4}")
    assert [[host.gpu.name for host in lane] for lane in same.hardware.lanes] == [[V100, T4]]


def test_unequal_replicas_are_lanes(tmp_path: Path) -> None:
    run = run_of(tmp_path, **MIXED, placement=f"{V100}+{V100}+{T4}+{T4} | {V100}+{T4}+{V100}+{T4}")
    lanes = [[host.gpu.name for host in lane] for lane in run.hardware.lanes]
    assert lanes == [[V100, V100], [V100, T4], [T4, V100], [T4, T4]]


def test_the_slowest_lane_counts(tmp_path: Path) -> None:
    """A slow GPU behind a slow GPU is worse than the same GPUs in two pipelines, for bubbles only."""
    straight = run_of(tmp_path, **MIXED, placement=f"{V100}+{V100}+{T4}+{T4} | {V100}+{V100}+{T4}+{T4}")
    only_slow = run_of(tmp_path, **MIXED, placement=" | ".join(["+".join([T4] * 4)] * 2))
    batch = RunBatch.of([straight, only_slow])
    given = Shelves(batch, ()).constants(())
    costs = batch.stages.costs(given)
    still = iteration_s(batch, _without_steps(costs), given)
    assert still[0] == pytest.approx(still[1])


def _without_steps(costs: BatchCosts) -> BatchCosts:
    return replace(costs, step_s=0 * costs.step_s)


def test_a_node_holds_replicas_of_one_kind(tmp_path: Path) -> None:
    """Two replicas of tp 2 fit on a node of 8; unequal ones have a node each, and NICs between."""
    cells = MIXED | {"n_gpus": 4, "gpus_per_node": 8, "tp": 2, "pp": 1, "dp": 2}
    mixed = run_of(tmp_path, **cells | {"gpu": f"mixed: 2x{V100}+2x{T4}"})
    equal = run_of(tmp_path, **cells | {"gpu": T4})
    assert gpus_on_node(mixed, 0) == 2
    assert gpus_on_node(equal, 0) == 4
    batch = RunBatch.of([mixed, equal])
    sync = batch.stages.costs(Shelves(batch, ()).constants(())).components["grad_sync"]
    assert sync[:2].min() > 2 * sync[2]


def test_what_was_measured_of_a_nic_is_what_it_reaches(tmp_path: Path) -> None:
    cells = {"gpus_per_node": 2, "pp": 1, "dp": 8, "zero_or_fsdp": "DDP", "nic_gbit_per_s": 1}
    rated, measured = (run_of(tmp_path, **cells, **more) for more in ({}, {"nic_measured": 1}))
    batch = RunBatch.of([rated, measured])
    given = Shelves(batch, ()).constants(())
    assert np.asarray(given.cluster.nic_efficiency).tolist() == [0.8, 1.0]
    times = iteration_s(batch, batch.stages.costs(given), given)
    assert times[1] < times[0]


@pytest.mark.parametrize("gbit", [1000, 40, 10, 4])
@pytest.mark.parametrize("cells", [{}, {"pp": 4, "dp": 2}, {"layers_per_stage": "3/5"}, {"pp": 8, "dp": 1}])
def test_waiting_for_transfers_is_near_a_rendezvous(
    tmp_path: Path, cells: dict[str, object], gbit: int
) -> None:
    """Stages that send and receive in line with their kernels, executed one instruction after the other."""
    run = run_of(tmp_path, gpus_per_node=2, nic_gbit_per_s=gbit, blocking_transfers=1, **cells)
    predicted, executed = _both(run)
    assert predicted == pytest.approx(executed, rel=0.02)
    assert predicted > _both(run, as_engine=False)[0]


def _both(run: Run, *, as_engine: bool = True) -> tuple[float, float]:
    """The closed form and the executor, without the step's end and the gathers behind transfers."""
    batch = RunBatch.of([run], as_engine=as_engine)
    batch = replace(batch, gather_s=0 * batch.gather_s)
    given = Shelves(batch, ()).constants(())
    costs = _without_steps(batch.stages.costs(given))
    efficiency = float(np.asarray(given.cluster.nic_efficiency)[0])
    executed = step_s(
        costs.forward_s[batch.column],
        costs.backward_s[batch.column],
        batch.nic_s[:-1] / efficiency,
        run.num_micro_batches,
    )
    return float(iteration_s(batch, costs, given)[0]), executed
