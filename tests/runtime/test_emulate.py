"""The emulation of bench/emulate.py: its links are those of the simulator, its worlds keep plans apart."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

import pytest

BENCH = Path(__file__).parents[2] / "bench"
sys.path.append(str(BENCH))

import emulate_plans  # noqa: E402
from emulate_ranks import EmulatedLinks  # noqa: E402
from emulate_world import WORLDS, World, share_of_layer  # noqa: E402
from tangram.job import Precision  # noqa: E402
from tangram.model.atoms import cut_atoms  # noqa: E402
from tangram.planner.recost import simulate_plan  # noqa: E402
from tangram.profiles.measured import MeasuredLayers  # noqa: E402
from tangram.profiles.records import LayerTime  # noqa: E402
from tangram.profiles.shapes import atom_shapes  # noqa: E402
from tangram.runtime.hooks import TaskKind  # noqa: E402


def true_times(world: World) -> MeasuredLayers:
    """What profiling would find if nothing disturbed it."""
    model, records = world.model(), []
    atoms = cut_atoms(model)
    for kind in world.kinds.values():
        for samples in emulate_plans.SAMPLES:
            for index in (0, 1, len(atoms) - 1):
                (shape,) = atom_shapes(model, atoms[index], world.seq_len)
                share = share_of_layer(index, len(atoms))
                passes = [kind.seconds(share, samples, backward=backward) for backward in (False, True)]
                key = (kind.name, "tangram-runtime", Precision.FP32, shape, 1, samples, False)
                records.append(LayerTime(*key, *passes, "truth"))
    return MeasuredLayers.of(records)


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
def test_links_carry_what_the_simulator_lets_them_carry(world: World) -> None:
    """Every transfer of a step arrives when it does in the simulator, shared NICs and all."""
    plan = emulate_plans.preferred(world, true_times(world))
    timeline = simulate_plan(plan)
    busy = multiprocessing.get_context("spawn").Array("d", 4096)
    links: list[Any] = [EmulatedLinks(plan, stage.index, busy) for stage in plan.stages]
    try:
        check(timeline, links)
    finally:
        for one in links:
            one.close()


def check(timeline: Any, links: list[Any]) -> None:
    stages, m = timeline.pipeline.stages, timeline.pipeline.num_micro_batches
    ready = []
    for i in range(len(timeline.pipeline.edges)):
        for k in range(m):
            ready.append(
                (timeline.forward_starts_ns[i][k] + stages[i].forward_ns, i, k, TaskKind.SEND_FORWARD)
            )
            end = timeline.backward_starts_ns[i + 1][k] + stages[i + 1].backward_ns
            ready.append((end, i + 1, k, TaskKind.SEND_BACKWARD))
    expected = {
        (task.stage, task.kind, task.micro_batch): task.end_ns
        for task in timeline.tasks()
        if task.kind in (TaskKind.SEND_FORWARD, TaskKind.SEND_BACKWARD)
    }
    assert len(expected) == len(ready) > 0
    for time_ns, stage, k, kind in sorted(ready, key=lambda one: one[:3]):
        arrival_s = links[stage]._arrival_s(kind, k, time_ns / 1e9)
        assert arrival_s == pytest.approx(expected[stage, kind, k] / 1e9, abs=1e-8)
        # Another rank of the stage comes a little later: the transfer is the same one.
        assert links[stage]._arrival_s(kind, k, (time_ns + 100) / 1e9) == arrival_s


@pytest.mark.slow
@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
def test_no_alternative_comes_near(world: World) -> None:
    """As emulate_world.py says: whoever measures must be able to tell plans apart."""
    measured = true_times(world)
    best = emulate_plans.preferred(world, measured)
    others = emulate_plans.alternatives(world, measured, best)
    assert len(others) >= 5
    for other in others:
        ratio = other.plan.prediction.iteration_time_s / best.prediction.iteration_time_s
        assert ratio > 1.08, other.name


@pytest.mark.slow
def test_a_short_run() -> None:
    """One world, a step of each plan: the preferred one is the fastest, predictions are near."""
    pytest.importorskip("torch", reason="PyTorch is not installed (pip install 'tangram-llm[train]')")
    command = [sys.executable, str(BENCH / "emulate.py"), "--smoke"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert "The preferred plan is the fastest of 3" in done.stdout
    rows = [line for line in done.stdout.splitlines() if line.endswith("% |")]
    off = [abs(float(row.split("|")[-2].strip().removesuffix(" %"))) for row in rows]
    assert len(off) == 3
    assert median(off) < 15
