"""Sailor behind Tangram's protocol: profiles from the cost model, plans on real GPUs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tangram
from tangram.advise.referee import judge
from tangram.baselines.sailor.costed import costed_problem, layers_of
from tangram.baselines.sailor.grounds import MAX_ZONES, ClusterNetwork, Grounds
from tangram.baselines.sailor.planner import SailorPlanner, published, with_recompute
from tangram.baselines.sailor.profile import Endpoint
from tangram.baselines.sailor.rules import stage_time_s
from tangram.cluster.catalog import gpu as catalog_gpu
from tangram.cluster.spec import Cluster, Link, Node, Portion
from tangram.cost.stage import stage_cost
from tangram.cost.types import StageConfig
from tangram.errors import InputError
from tangram.job import Job, Precision
from tangram.model.atoms import Granularity, cut_atoms
from tangram.model.spec import ModelSpec
from tangram.parallelizers.cluster_plans import cluster_plan_faults
from tangram.parallelizers.protocols import ClusterPlan, ClusterPlanner, ClusterRequest
from tangram.parallelizers.registry import get_parallelizer
from tangram.planner.options import PlanOptions
from tangram.testing import check_parallelizer
from tangram.testing.cases import llama_like, moe_like, small_cluster, small_gpu, small_island
from tangram.units import GB, GIB

EXAMPLES = Path(__file__).parents[2] / "examples" / "clusters"
FP16 = Job(global_batch=1024, seq_len=2048, precision=Precision.FP16)


def question(model: ModelSpec, cluster: Cluster, job: Job) -> ClusterRequest:
    return ClusterRequest(model, cut_atoms(model), cluster, job)


def example(model: str, cluster: str, job: Job = FP16) -> ClusterRequest:
    return question(tangram.load_model(model), tangram.load_cluster(str(EXAMPLES / f"{cluster}.yaml")), job)


def planned(planner: SailorPlanner, request: ClusterRequest) -> ClusterPlan:
    plan = planner.plan_cluster(request)
    assert plan is not None
    return plan


def shape(plan: ClusterPlan) -> tuple[object, ...]:
    """What is left of a plan when nodes have no names."""
    stages = [
        (
            stage.start,
            stage.stop,
            stage.recomputed,
            [(kind.slots[0].node.gpu.name, kind.config, kind.samples) for kind in stage.replicas],
        )
        for stage in plan.stages
    ]
    return plan.micro_batch, stages, plan.predicted_s


@pytest.mark.parametrize("name", ["sailor", "sailor-published", "sailor-recompute"])
def test_it_keeps_its_promises(name: str) -> None:
    planner = get_parallelizer(name)
    assert isinstance(planner, ClusterPlanner)
    assert planner.name == name
    check_parallelizer(planner)


def test_slices_are_refused_in_words() -> None:
    with pytest.raises(InputError, match="'sailor' plans whole clusters by itself"):
        tangram.plan(
            llama_like(),
            small_cluster(),
            Job(64, 256, Precision.BF16),
            PlanOptions(parallelizers=("sailor",)),
        )


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("tp", [1, 2, 4])
def test_profiles_are_those_of_the_cost_model(tp: int, recompute: bool) -> None:
    """Times, and what forward leaves behind per micro-batch in flight, with its margin."""
    request = question(llama_like(), small_cluster(), Job(64, 256, Precision.BF16))
    grounds = Grounds.of(request.cluster, Precision.BF16)
    problem = costed_problem(request, grounds, defects=False, recompute=recompute)
    (gpu,) = problem.gpus
    atoms = request.atoms[1:4]
    portion = Portion(small_island(), 1, tp)
    cost = stage_cost(
        request.model,
        atoms,
        portion,
        StageConfig(dp=1, tp=tp),
        2,
        32,
        1,
        [recompute] * 3,
        request.job,
    )
    assert stage_time_s(gpu, tp, 1, 4, 2) == pytest.approx(cost.time_s)
    assert sum(gpu.times[2, tp].update_s[1:4]) == pytest.approx(cost.step_s)
    more = gpu.memory_bytes(tp, 1, 4, 2, 3) - gpu.memory_bytes(tp, 1, 4, 2, 2)
    assert more == pytest.approx(cost.upper_ratio * cost.activation_bytes)
    states = sum(cost.memory[name] for name in ("weights", "gradients", "optimizer"))
    assert gpu.state_bytes_per_param * sum(gpu.sizes[tp].params[1:4]) == pytest.approx(states)
    beside = cost.memory["workspace"] + cost.memory["reserve"]
    upper = states + cost.upper_ratio * (cost.activation_bytes + beside)
    assert gpu.memory_bytes(tp, 1, 4, 2, 1) >= upper * (1 - 1e-9)


def test_layers_are_sailors_whatever_the_atoms_are() -> None:
    model, cluster, job = llama_like(), small_cluster(), Job(64, 256, Precision.BF16)
    whole = planned(SailorPlanner(), question(model, cluster, job))
    for kind in ("block", "operator"):
        atoms = cut_atoms(model, Granularity(kind))
        layers = layers_of(atoms)
        assert len(layers) == model.num_layers + 2
        request = ClusterRequest(model, atoms, cluster, job)
        plan = planned(SailorPlanner(), request)
        assert not cluster_plan_faults(request, plan)
        cuts = [layers[stage.start][0] for stage in whole.stages]
        assert [stage.start for stage in plan.stages] == cuts
        assert plan.predicted_s == pytest.approx(whole.predicted_s)


def test_an_unequal_node_is_divided() -> None:
    """4 + 8 + 4 GPUs are planned as four nodes of four, on the GPUs of the real ones."""
    request = example("gpt3-13b", "c3-three-islands")
    plan = planned(SailorPlanner(), request)
    assert not cluster_plan_faults(request, plan)
    used = [slot for stage in plan.stages for kind in stage.replicas for slot in kind.slots]
    large = [slot for slot in used if slot.node.num_gpus == 8]
    assert {slot.gpu_idx // 4 for slot in large} == {0, 1}
    for stage in plan.stages:
        for kind in stage.replicas:
            tp = kind.config.tp
            groups = [kind.slots[at : at + tp] for at in range(0, len(kind.slots), tp)]
            assert all(len({(s.node.name, s.gpu_idx // 4) for s in group}) == 1 for group in groups)


@pytest.mark.parametrize(
    ("model", "cluster"),
    [
        ("gpt3-2.6b", "c1-t4-v100-8-8"),
        ("gpt3-2.6b", "c1-v100-16"),
        ("gshard-moe-2.4b", "c1-t4-v100-4-4"),
        ("gpt3-13b", "c3-two-islands"),
    ],
)
def test_its_own_estimate_agrees_with_the_referee(model: str, cluster: str) -> None:
    """On profiles of one cost model, the two differ in transfers and in what overlaps."""
    request = example(model, cluster)
    for planner in (SailorPlanner(), with_recompute()):
        plan = planner.plan_cluster(request)
        if plan is None:
            continue
        verdict = judge(request, plan)
        assert verdict.faults == ()
        assert plan.predicted_s == pytest.approx(verdict.iteration_time_s, rel=0.25)


def test_recompute_helps_where_memory_binds() -> None:
    request = example("gpt3-2.6b", "c1-t4-v100-4-4")
    assert SailorPlanner().plan_cluster(request) is None
    plan = planned(with_recompute(), request)
    ends = {0, len(request.atoms) - 1}
    flags = [flag for stage in plan.stages for flag in stage.recomputed]
    assert flags == [idx not in ends for idx in range(len(request.atoms))]
    roomy = example("gpt3-13b", "c3-two-islands")
    without, choice = planned(SailorPlanner(), roomy), planned(with_recompute(), roomy)
    assert without.predicted_s is not None
    assert choice.predicted_s is not None
    assert choice.predicted_s <= without.predicted_s


def test_no_plan_where_nothing_fits_or_runs() -> None:
    tiny = small_cluster(small_gpu(2 * GIB), num_nodes=1)
    assert SailorPlanner().plan_cluster(question(tangram.load_model("gpt3-13b"), tiny, FP16)) is None
    turing = tangram.load_cluster("1x4xT4")
    assert SailorPlanner().plan_cluster(question(llama_like(), turing, Job(8, 256, Precision.BF16))) is None


def test_experts_are_plain_weights() -> None:
    request = question(moe_like(), small_cluster(), Job(64, 256, Precision.BF16))
    plan = planned(SailorPlanner(), request)
    for stage in plan.stages:
        for kind in stage.replicas:
            assert kind.config.ep == 1
            assert kind.config.expert_tp in (1, kind.config.tp)
            assert kind.config.zero == 0
    grounds = Grounds.of(request.cluster, Precision.BF16)
    problem = costed_problem(request, grounds, defects=False, recompute=False)
    sizes = problem.gpus[0].sizes
    experts = 8 * 3 * 256 * 128
    assert sizes[1].params[1] > experts
    assert sizes[1].params[1] - sizes[2].params[1] > experts / 2


def test_published_micro_batches_need_not_add_up() -> None:
    job = replace(FP16, global_batch=256)
    request = question(tangram.load_model("gpt3-1.3b"), tangram.load_cluster("3x4xA100-80GB-SXM"), job)
    faults = cluster_plan_faults(request, planned(published(), request))
    assert faults == ["the micro-batch of 3 does not divide the batch of 256"]
    assert not cluster_plan_faults(request, planned(SailorPlanner(), request))


def test_a_slow_link_separates_zones() -> None:
    base = small_cluster(num_nodes=4)
    nodes = tuple(replace(node, group="left" if idx < 2 else "right") for idx, node in enumerate(base.nodes))
    far = replace(base, nodes=nodes, links=(Link("left", "right", 0.1 * GB, 1e-3),))
    grounds = Grounds.of(far, Precision.BF16)
    assert [[part.whole.name for part in row[0]] for row in grounds.parts] == [
        ["node-0", "node-1"],
        ["node-2", "node-3"],
    ]
    network = ClusterNetwork(grounds, FP16.basis)
    here, there = Endpoint(0, 0, 1), Endpoint(1, 0, 1)
    assert network.link(here, there).peak_bytes_per_s < 0.1 * GB < network.link(here, here).peak_bytes_per_s
    plan = planned(SailorPlanner(), question(llama_like(), far, Job(64, 256, Precision.BF16)))
    zone_of = {node.name: node.group for node in nodes}
    for stage in plan.stages:
        assert len({zone_of[slot.node.name] for kind in stage.replicas for slot in kind.slots}) == 1
    everywhere = replace(
        base, links=tuple(Link(f"node-{a}", f"node-{b}", 1 * GB, 1e-3) for a in range(4) for b in range(a))
    )
    assert len(Grounds.of(everywhere, Precision.BF16).parts) == 1


def test_only_the_largest_zones_are_used() -> None:
    base = small_cluster(num_nodes=1).nodes[0]
    pairs = [
        replace(base, name=f"n{idx}", host=f"n{idx}", group=f"g{idx // 2}")
        for idx in range(2 * (MAX_ZONES + 1))
    ]
    groups = range(MAX_ZONES + 1)
    links = tuple(Link(f"g{a}", f"g{b}", 0.1 * GB, 1e-3) for a in groups for b in range(a))
    cluster = Cluster("archipelago", tuple(pairs), 12.5 * GB, 1e-5, links)
    assert len(Grounds.of(cluster, Precision.BF16).parts) == MAX_ZONES


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    """One to three groups of nodes of the catalogue, with a slow link between two of them at times."""
    nodes = []
    num_groups = draw(st.integers(1, 3))
    for group in range(num_groups):
        gpu = catalog_gpu(draw(st.sampled_from(["A100-80GB-SXM", "V100-16GB-SXM2", "T4"])))
        size = draw(st.sampled_from([2, 3, 4, 6]))
        for idx in range(draw(st.integers(1, 2))):
            name = f"{'cab'[group]}-{idx}"
            nodes.append(Node(name, gpu, size, 32.0 * GB, 5e-6, "pcie", 12.5 * GB, name, f"group-{group}"))
    slow = Link("group-0", "group-1", 0.5 * GB, 1e-4)
    links = (slow,) if num_groups > 1 and draw(st.booleans()) else ()
    return Cluster("drawn", tuple(nodes), 12.5 * GB, 1e-5, links)


@settings(max_examples=12, deadline=None)
@given(clusters(), st.sampled_from([12, 16]), st.booleans(), st.booleans(), st.randoms())
def test_plans_are_whole_and_names_do_not_matter(
    cluster: Cluster, batch: int, moe: bool, recompute: bool, random: object
) -> None:
    model = moe_like() if moe else llama_like()
    request = question(model, cluster, Job(batch, 256, Precision.FP16))
    planner = SailorPlanner(recompute=recompute)
    plan = planned(planner, request)
    assert cluster_plan_faults(request, plan) == []
    names = [f"host-{idx}" for idx in range(len(cluster.nodes))]
    random.shuffle(names)  # type: ignore[attr-defined]
    renamed = tuple(
        replace(node, name=name, host=name) for node, name in zip(cluster.nodes, names, strict=True)
    )
    for nodes in (renamed, cluster.nodes[::-1]):
        other = replace(request, cluster=replace(cluster, nodes=nodes))
        assert shape(planned(planner, other)) == shape(plan)
