"""Times and peaks of whole runs from those of their stages, against the simulator and by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from row_samples import run_of

from tangram.cost.constants import Constants
from tangram.simulate.fast import iteration_ns
from tangram.simulate.pipeline import SimEdge, SimPipeline, SimStage
from tangram.validation.pipelines import RunBatch, iteration_s, predict_batch
from tangram.validation.run import MemoryRanks, Run
from tangram.validation.slots import Shelves


def batch_of(*runs: Run) -> tuple[RunBatch, Constants]:
    batch = RunBatch.of(runs)
    return batch, Shelves(batch, ()).constants(())


@pytest.mark.parametrize("cells", [{}, {"pp": 4, "dp": 2}, {"pp": 1, "dp": 8}, {"layers_per_stage": "5/3"}])
def test_the_closed_form_is_near_the_simulator(tmp_path: Path, cells: dict[str, object]) -> None:
    """Without transfers both say the same of equal stages; of unequal ones, nearly."""
    run = run_of(tmp_path, **cells)
    batch, constants = batch_of(run)
    free = replace(batch, nic_s=0 * batch.nic_s, intra_s=0 * batch.intra_s)
    costs = batch.stages.costs(constants)
    columns = batch.column
    stages = tuple(
        SimStage(
            round(costs.forward_s[c] * 1e9),
            round(costs.backward_s[c] * 1e9),
            round(costs.step_s[c] * 1e9),
            run.degrees.pp - idx,
        )
        for idx, c in enumerate(columns)
    )
    edges = (SimEdge(0, 0, 0),) * (len(stages) - 1)
    simulated = iteration_ns(SimPipeline(stages, edges, run.num_micro_batches)) / 1e9
    assert iteration_s(free, costs, constants)[0] == pytest.approx(simulated, rel=0.03)


def test_runs_side_by_side_are_what_they_are_alone(tmp_path: Path) -> None:
    cells = (
        {},
        {"vpp": 2},
        {"recompute": "full"},
        {"pp": 4, "dp": 2},
        {"zero_or_fsdp": "FSDP"},
        {"micro_batch": 1},
    )
    runs = [run_of(tmp_path, **c) for c in cells]
    together = predict_batch(*batch_of(*runs))
    for idx, run in enumerate(runs):
        alone = predict_batch(*batch_of(run))
        assert together.iter_s[idx] == pytest.approx(alone.iter_s[0], rel=1e-12)
        assert together.peak_bytes[idx] == pytest.approx(alone.peak_bytes[0], rel=1e-12)
        for name, seconds in alone.components.items():
            assert together.components[name][idx] == pytest.approx(seconds[0], abs=1e-12)


def test_whose_peak_is_meant(tmp_path: Path) -> None:
    base = run_of(tmp_path, vocab=500_000, layers_per_stage="7/1")
    runs = [replace(base, measured=replace(base.measured, memory_ranks=ranks)) for ranks in MemoryRanks]
    peak = dict(zip(MemoryRanks, predict_batch(*batch_of(*runs)).peak_bytes, strict=True))
    assert peak[MemoryRanks.MAX] == max(peak[MemoryRanks.FIRST_STAGE], peak[MemoryRanks.LAST_STAGE])


def test_interleaving_holds_more_on_the_first_stage(tmp_path: Path) -> None:
    """Megatron's warm-up: 2 (pp - 1) + (v - 1) pp + 1 chunks of a v-th of the layers."""
    plain, chunks = (run_of(tmp_path, vpp=v, memory_ranks="first-stage") for v in (1, 4))
    peaks = predict_batch(*batch_of(plain, chunks)).peak_bytes
    assert peaks[1] > peaks[0]


def test_a_faster_network_never_hurts(tmp_path: Path) -> None:
    cells = {"gpus_per_node": 4, "pp": 4, "dp": 2}
    slow, fast = (run_of(tmp_path, **cells, nic_gbit_per_s=gbit) for gbit in (10, 400))
    times = predict_batch(*batch_of(slow, fast)).iter_s
    assert times[1] < times[0]


def test_a_rack_of_fast_links_is_one_node(tmp_path: Path) -> None:
    """NVL72: what crosses trays stays on the fast links."""
    tray, rack = (
        run_of(tmp_path, gpus_per_node=4, link_domain=domain, nic_gbit_per_s=10, pp=1, dp=8)
        for domain in (4, 72)
    )
    times = predict_batch(*batch_of(tray, rack)).iter_s
    assert times[1] < times[0]


def test_every_value_is_finite(tmp_path: Path) -> None:
    found = predict_batch(*batch_of(run_of(tmp_path), run_of(tmp_path, cp=2, dp=2)))
    assert np.isfinite(found.iter_s).all()
    assert np.isfinite(found.peak_bytes).all()
