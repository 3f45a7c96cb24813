"""Features of plans, read from documents and from cluster plans alike."""

from __future__ import annotations

from dataclasses import replace

import pytest
from report_samples import make_plan
from test_referee import ATOMS, node, one_stage, replicas

from tangram.advise.features import Feature, features_of_cluster_plan, features_of_document
from tangram.cost.types import StageConfig
from tangram.parallelizers.protocols import ClusterPlan


def features(plan: ClusterPlan, num_layers: int = len(ATOMS) - 2, num_gpus: int = 8) -> set[Feature]:
    return set(features_of_cluster_plan(plan, [num_layers], num_gpus))


A, B = node("a"), node("b", speed=2.0)
DENSE = replicas(A, range(4), 8, StageConfig(2, 2))


def test_degrees_and_idle_gpus_are_features() -> None:
    assert features(one_stage(DENSE)) == {Feature.TENSOR, Feature.DATA, Feature.LEFT_OUT}
    assert features(one_stage(DENSE), num_gpus=4) == {Feature.TENSOR, Feature.DATA}


@pytest.mark.parametrize(
    ("changes", "feature"),
    [
        ({"zero": 1}, Feature.ZERO),
        ({"zero": 3}, Feature.SHARDED_WEIGHTS),
        ({"ep": 2}, Feature.EXPERT),
        ({"selective": True}, Feature.RECOMPUTE),
        ({"offload_optimizer": True}, Feature.OFFLOAD),
    ],
)
def test_each_choice_is_one_feature(changes: dict[str, int], feature: Feature) -> None:
    changed = replace(DENSE, config=replace(DENSE.config, **changes))  # type: ignore[arg-type]
    assert features(one_stage(changed)) - features(one_stage(DENSE)) == {feature}


def test_several_kinds_and_unequal_samples_are_features() -> None:
    mixed = one_stage(replicas(A, range(4), 8), replicas(B, range(4), 8))
    assert features(mixed) == {Feature.DATA, Feature.MIXED_STAGES}
    shared = one_stage(replicas(A, range(4), 4), replicas(B, range(4), 12))
    assert features(shared) == {Feature.DATA, Feature.MIXED_STAGES, Feature.UNEVEN_SAMPLES}


def test_recomputation_of_some_layers_is_told_from_all() -> None:
    (stage,) = one_stage(DENSE).stages
    inner = [bool(atom.layer_idxs) for atom in ATOMS]
    every = ClusterPlan(8, (replace(stage, recomputed=tuple(inner)),))
    assert features(every) - features(one_stage(DENSE)) == {Feature.RECOMPUTE}
    first = ClusterPlan(8, (replace(stage, recomputed=(False, True, *([False] * (len(ATOMS) - 2)))),))
    assert features(first) - features(every) == {Feature.PARTIAL_RECOMPUTE}


def test_layers_that_differ_are_a_feature() -> None:
    num, other = len(ATOMS), StageConfig(4, 1, zero=1)
    mixed = replace(DENSE, atom_configs=(DENSE.config,) * (num - 1) + (other,))
    assert features(one_stage(mixed)) - features(one_stage(DENSE)) == {Feature.LAYER_DEGREES, Feature.ZERO}
    some = replace(DENSE, atom_configs=(DENSE.config,) * (num - 1) + (replace(DENSE.config, selective=True),))
    assert features(one_stage(some)) - features(one_stage(DENSE)) == {
        Feature.LAYER_SELECTIVE,
    }


def test_a_document_has_the_features_of_the_same_cluster_plan() -> None:
    doc = make_plan()
    found = set(features_of_document(doc))
    assert {Feature.PIPELINE, Feature.UNEVEN_LAYERS, Feature.LEFT_OUT} <= found
    assert Feature.MIXED_STAGES not in found
