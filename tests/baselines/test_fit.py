"""Whether a plan fits is said as the referee says it, for every plan of a search."""

from __future__ import annotations

from dataclasses import replace

from cluster_cases import JOB, PARTS, cluster_of, request_for

from tangram.advise.referee import judge
from tangram.baselines.fit import FitTest
from tangram.cluster.spec import Slot
from tangram.cost.types import StageConfig
from tangram.parallelizers.protocols import ClusterPlan, ClusterStage, Replicas
from tangram.testing.cases import llama_like
from tangram.units import MIB


def test_it_says_what_the_referee_says() -> None:
    """Two stages, of the fast part and of both, whatever is recomputed and wherever the cut is."""
    fast, slow = (replace(part, usable_memory_bytes=2_600 * MIB) for part in PARTS[:2])
    cluster = cluster_of((fast, 4), (slow, 4))
    request = request_for(cluster, llama_like(12), replace(JOB, seq_len=4096))
    slots = [Slot(node, idx) for node in cluster.nodes for idx in range(4)]
    test, said = FitTest(request), []
    for cut in range(1, len(request.atoms)):
        for again in (False, True):
            for samples in (2, 4):
                plan = _plan(request.atoms, cut, again, samples, slots)
                said.append(test.fits(plan))
                assert said[-1] == judge(request, plan).is_executable
    assert {True, False} == set(said)


def _plan(atoms: tuple[object, ...], cut: int, again: bool, samples: int, slots: list[Slot]) -> ClusterPlan:
    front = Replicas(tuple(slots[:2]), StageConfig(2, 1), samples)
    rest = (
        Replicas(tuple(slots[2:4]), StageConfig(1, 2), samples // 2),
        Replicas(tuple(slots[4:6]), StageConfig(1, 2), samples // 2),
    )
    flags = tuple(again and bool(atom.layer_idxs) for atom in atoms)  # type: ignore[attr-defined]
    return ClusterPlan(
        samples,
        (
            ClusterStage(0, cut, (front,), flags[:cut]),
            ClusterStage(cut, len(atoms), rest, flags[cut:]),
        ),
    )
