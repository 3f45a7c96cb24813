"""Planning with measured layers: what was measured is predicted as measured, and bounds stay bounds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from measured_layers import erratic, records
from small_jobs import outcome, random_world, small_cluster, small_model, small_node

import tangram
from tangram.basis import PLAIN_FORMULA, FactorKey
from tangram.cluster.islands import build_islands
from tangram.cluster.spec import Cluster, portions
from tangram.cost.atoms import atom_costs
from tangram.cost.configs import legal_configs
from tangram.cost.stage import stage_cost
from tangram.cost.types import StageConfig, StageConfigs
from tangram.job import Job, Pins, Precision
from tangram.model.atoms import cut_atoms, parse_granularity
from tangram.model.spec import FeedForwardSpec
from tangram.parallelizers.protocols import StageChoice
from tangram.plan.check import check_plan
from tangram.plan.json_io import parse_plan, to_json
from tangram.planner.estimate import DictatedStage, estimate
from tangram.planner.measured import atom_bases, with_measured
from tangram.planner.options import PlanOptions, Pruning
from tangram.planner.recost import cost_violations
from tangram.planner.reference import reference
from tangram.profiles.measured import MeasuredLayers
from tangram.profiles.shapes import LayerKind, LayerShape, layer_shape
from tangram.units import GB

SEQ_LEN = 512
JOB = Job(8, SEQ_LEN, Precision.FP16)
MODEL = small_model()
ATOMS = cut_atoms(MODEL)
LAYER = layer_shape(MODEL, MODEL.layers[0], SEQ_LEN)


def cluster_of(*kinds: tuple[str, int]) -> Cluster:
    return small_cluster([small_node(f"n{i}", gpu, number) for i, (gpu, number) in enumerate(kinds)])


def gpus_of(cluster: Cluster) -> list[str]:
    return sorted({node.gpu.name for node in cluster.nodes})


TWO = cluster_of(("V100-16GB-SXM2", 4), ("T4", 4))


def fixed(shape: LayerShape, tp: int, samples: int) -> tuple[float, float]:
    own = {LayerKind.EMBEDDING: 0.001, LayerKind.HEAD: 0.004}.get(shape.kind, 0.01)
    return own * samples / tp, 2.5 * own * samples / tp


def job_with(layers: MeasuredLayers, cluster: Cluster = TWO, job: Job = JOB) -> Job:
    return with_measured(job, layers, MODEL, ATOMS, build_islands(cluster, job.precision))


def erratic_layers(
    cluster: Cluster, seed: int, *, comm: bool = True, atoms: object = ATOMS
) -> MeasuredLayers:
    return MeasuredLayers.of(
        record
        for gpu in gpus_of(cluster)
        for record in records(MODEL, ATOMS, gpu, erratic(seed), seq_len=SEQ_LEN, comm=comm)
    )


@pytest.mark.parametrize("tp", [1, 2, 4])
@pytest.mark.parametrize("num_recomputed", [0, 2])
def test_what_was_measured_is_predicted_as_measured(tp: int, num_recomputed: int) -> None:
    gpu = gpus_of(TWO)[1]
    layers = MeasuredLayers.of(records(MODEL, ATOMS, gpu, fixed, seq_len=SEQ_LEN))
    island = next(i for i in build_islands(TWO, JOB.precision) if i.gpu.name == gpu)
    portion = next(p for p in portions(island) if p.num_gpus == 4)
    config = StageConfig(dp=4 // tp, tp=tp, zero=1 if tp < 4 else 0)
    flags = [0 < i <= num_recomputed for i in range(len(ATOMS))]
    cost = stage_cost(MODEL, ATOMS, portion, config, 8, 1, 1, flags, job_with(layers))
    samples = 8 * tp // 4
    per_layer = 0.01 * samples / tp
    total = 6 * per_layer + 0.005 * samples / tp
    assert cost.forward_s == pytest.approx(total)
    again = cost.components["recompute"]
    assert again == pytest.approx(num_recomputed * per_layer)
    assert cost.backward_s == pytest.approx(2.5 * total + again)


def test_the_basis_of_every_factor_is_told() -> None:
    gpu = gpus_of(TWO)[1]
    made = records(MODEL, ATOMS[1:2], gpu, fixed, seq_len=SEQ_LEN, tps=(1, 2), samples=(1, 4))
    table = job_with(MeasuredLayers.of(made)).basis.measured
    island = next(i.name for i in build_islands(TWO, JOB.precision) if i.gpu.name == gpu)

    def basis(atom: int, tp: int, samples: int) -> str:
        found = table.find(FactorKey(ATOMS[atom].fingerprint, island, tp, samples))
        assert found is not None
        return found.basis

    assert [basis(1, 1, n) for n in (1, 2, 4, 8)] == [
        "measured", "interpolated", "measured", "scaled formula",
    ]  # fmt: skip
    assert basis(1, 4, 1) == "scaled formula"
    # The ends of a model are comparable with their own kind only.
    assert {basis(atom, tp, 1) for atom in (0, -1) for tp in (1, 2, 4)} == {PLAIN_FORMULA}
    others = {f.key.island for f in table.factors}
    assert others == {island}
    assert table.is_whole
    assert {f.key.samples for f in table.factors} == {1, 2, 4, 8}


def test_layers_timed_alone_leave_collectives_to_the_formula() -> None:
    gpu = gpus_of(TWO)[1]
    made = records(MODEL, ATOMS, gpu, fixed, seq_len=SEQ_LEN, comm=False)
    job = job_with(MeasuredLayers.of(made))
    assert not any(f.includes_tp_comm for f in job.basis.measured.factors)
    island = next(i for i in build_islands(TWO, JOB.precision) if i.gpu.name == gpu)
    portion, config = portions(island)[-1], StageConfigs.of([StageConfig(dp=1, tp=4)])
    plain = atom_costs(MODEL, ATOMS, portion, config, 8, JOB)
    found = atom_costs(MODEL, ATOMS, portion, config, 8, job)
    assert (found.components["tp"] == plain.components["tp"]).all()
    assert found.forward_s[1, 0] != plain.forward_s[1, 0]


@pytest.mark.parametrize("comm", [True, False])
def test_a_layer_with_a_window_takes_times_of_all_keys_as_a_factor(comm: bool) -> None:
    """Measured layers know no windows; one that looks back 64 keys is quicker than one that was timed."""
    cluster = cluster_of(("A100-40GB-SXM", 4))
    local = replace(MODEL.layers[0], attention=replace(MODEL.layers[0].attention, window=64))
    model = replace(MODEL, layers=(MODEL.layers[0], local))
    atoms = cut_atoms(model)
    made = records(model, atoms, gpus_of(cluster)[0], fixed, seq_len=SEQ_LEN, comm=comm)
    islands = build_islands(cluster, JOB.precision)
    job = with_measured(JOB, MeasuredLayers.of(made), model, atoms, islands)
    found = {f.key.atom: f for f in job.basis.measured.factors if f.key.tp == 2 and f.key.samples == 4}
    whole, windowed = (found[atom.fingerprint] for atom in atoms[1:3])
    assert (whole.basis, windowed.basis) == ("measured", "scaled formula")
    assert windowed.forward == pytest.approx(whole.forward)
    assert windowed.backward == pytest.approx(whole.backward)
    configs = StageConfigs.of([StageConfig(dp=1, tp=2)])
    portion = next(p for p in portions(islands[0]) if p.num_gpus == 2)
    costs = atom_costs(model, atoms, portion, configs, 4, job)
    assert costs.forward_s[2, 0] < costs.forward_s[1, 0]


@pytest.mark.parametrize("granularity", ["operator", "block", "2"])
def test_other_atoms_are_sums_or_pieces(granularity: str) -> None:
    atoms = cut_atoms(MODEL, parse_granularity(granularity))
    gpu = gpus_of(TWO)[1]
    made = records(MODEL, atoms, gpu, fixed, seq_len=SEQ_LEN)
    islands = build_islands(TWO, JOB.precision)
    job = with_measured(JOB, MeasuredLayers.of(made), MODEL, atoms, islands)
    island = next(i for i in islands if i.gpu.name == gpu)
    costs = atom_costs(MODEL, atoms, portions(island)[0], StageConfigs.of([StageConfig(dp=1, tp=1)]), 4, job)
    per_atom = 0.08 if granularity == "2" else 0.04
    assert costs.forward_s[1:-1, 0] == pytest.approx(np.full(len(atoms) - 2, per_atom))


def test_no_measurements_no_change() -> None:
    islands = build_islands(TWO, JOB.precision)
    assert with_measured(JOB, None, MODEL, ATOMS, islands) is JOB
    elsewhere = MeasuredLayers.of(records(MODEL, ATOMS, "H100-80GB-SXM", fixed, seq_len=SEQ_LEN))
    assert with_measured(JOB, elsewhere, MODEL, ATOMS, islands) == JOB
    other = replace(JOB, precision=Precision.FP32)
    assert with_measured(other, erratic_layers(TWO, 0), MODEL, ATOMS, islands) == other


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("comm", [True, False])
def test_the_reference_stays_below_every_configuration(seed: int, comm: bool) -> None:
    """The bounds that prune: no way to spread a measured atom over GPUs takes fewer GPU-seconds."""
    job = job_with(erratic_layers(TWO, seed, comm=comm))
    islands = build_islands(TWO, job.precision)
    for micro_batch in (1, 2, 4, 8):
        ref = reference(MODEL, ATOMS, islands, micro_batch, job)
        for row, island in enumerate(islands):
            for portion in portions(island):
                configs = legal_configs(MODEL, portion, micro_batch, job)
                if not configs:
                    continue
                costs = atom_costs(MODEL, ATOMS, portion, StageConfigs.of(configs), micro_batch, job)
                spent = (costs.forward_s + costs.backward_s) * portion.num_gpus
                assert (spent >= ref.gpu_seconds[row][:, None] * (1 - 1e-9)).all()


@pytest.mark.parametrize("seed", range(8))
def test_pruning_changes_nothing_and_no_plan_beats_the_bound(seed: int) -> None:
    world = random_world(seed)
    atoms = cut_atoms(world.model)
    islands = build_islands(world.cluster, world.job.precision)
    layers = MeasuredLayers.of(
        record
        for gpu in gpus_of(world.cluster)[:2]
        for record in records(
            world.model, atoms, gpu, erratic(seed), seq_len=world.job.seq_len,
            precision=world.job.precision, samples=(1, 2, 4),
        )
    )  # fmt: skip
    job = with_measured(world.job, layers, world.model, atoms, islands)
    safe, full = (
        outcome(world.model, world.cluster, job, PlanOptions(pruning=pruning))
        for pruning in (Pruning.SAFE, Pruning.NONE)
    )
    assert (safe is None) == (full is None)
    if safe is None or full is None:
        return
    assert safe.bound_s <= safe.time_s
    assert safe.bound_s <= full.time_s
    if safe.proven and full.proven:
        assert safe.time_s == full.time_s


@pytest.mark.parametrize("seed", range(3))
def test_a_plan_is_checked_and_costed_again_from_itself(seed: int) -> None:
    doc = tangram.plan(MODEL, TWO, JOB, measured=erratic_layers(TWO, seed))
    assert doc.prediction.basis == "mixed"
    assert doc.prediction.basis_note.startswith("compute of 8 atoms: ")
    assert doc.job.basis is not None
    used = {(s.island, s.tp, doc.pipelines[0].micro_batch // s.dp) for s in doc.stages}
    assert {(f.island, f.tp, f.samples) for f in doc.job.basis.measured} <= used
    read = parse_plan(to_json(doc), where="plan.json")
    assert not check_plan(read)
    assert not cost_violations(read)
    slower = [row.model_copy(update={"forward": row.forward * 1.5}) for row in doc.job.basis.measured]
    basis = doc.job.basis.model_copy(update={"measured": slower})
    changed = doc.model_copy(update={"job": doc.job.model_copy(update={"basis": basis})})
    assert {v.code for v in cost_violations(changed)} >= {"stage-cost-differs"}


def test_measured_gpus_get_the_layers_that_they_earn() -> None:
    """A GPU that turns out four times as slow as thought gets fewer layers."""
    cluster = cluster_of(("V100-16GB-SXM2", 2), ("A100-40GB-SXM", 2))
    job = Job(32, SEQ_LEN, Precision.FP16)
    plain = tangram.plan(MODEL, cluster, job)
    gpu = next(name for name in gpus_of(cluster) if name.startswith("A100"))
    atoms_of = {s.island: s.atoms[1] - s.atoms[0] for s in plain.stages}
    slow = MeasuredLayers.of(
        records(MODEL, ATOMS, gpu, lambda *_: (0.05, 0.1), seq_len=SEQ_LEN, samples=(1, 2, 4, 8, 16, 32))
    )
    found = tangram.plan(MODEL, cluster, job, measured=slow)
    assert found.prediction.iteration_time_s > plain.prediction.iteration_time_s
    held = {s.island: s.atoms[1] - s.atoms[0] for s in found.stages}
    fast = next(name for name in atoms_of if name.startswith("A100"))
    assert held.get(fast, 0) < atoms_of[fast]


def test_gpus_without_measurements_are_named() -> None:
    gpu = gpus_of(TWO)[1]
    layers = MeasuredLayers.of(records(MODEL, ATOMS, gpu, fixed, seq_len=SEQ_LEN))
    doc = tangram.plan(MODEL, TWO, JOB, measured=layers)
    assert [a.what for a in doc.assumptions if a.what.startswith("formulas for")] == [
        f"formulas for {gpus_of(TWO)[0]}"
    ]


def test_estimate_predicts_with_measurements() -> None:
    gpu = gpus_of(TWO)[1]
    layers = MeasuredLayers.of(records(MODEL, ATOMS, gpu, fixed, seq_len=SEQ_LEN))
    island = next(i.name for i in build_islands(TWO, JOB.precision) if i.gpu.name == gpu)
    stage = DictatedStage(None, island, 4, 6, dp=2, tp=2)
    job = replace(JOB, pins=Pins(micro_batch=4))
    doc = estimate(MODEL, TWO, job, [stage], measured=layers)
    assert doc.stages[0].predicted.forward_s == pytest.approx((6 * 0.01 + 0.005) * 2 / 2)
    assert "8 measured;" in doc.prediction.basis_note
    assert not check_plan(doc)
    assert not cost_violations(doc)


def test_repairs_try_what_is_not_pinned() -> None:
    """The table covers what is pinned away, so that bounds of what-ifs hold too."""
    pinned = replace(JOB, pins=Pins(micro_batch=2, tp=1))
    samples = {f.key.samples for f in job_with(erratic_layers(TWO, 0), job=pinned).basis.measured.factors}
    assert samples == {1, 2, 4, 8}
    tiny = small_cluster([small_node("a", "T4", 2, 3 * GB)])
    with pytest.raises(tangram.InfeasibleError):
        tangram.plan(small_model(24), tiny, pinned, measured=erratic_layers(tiny, 0))


def test_layers_timed_both_ways_are_no_sum() -> None:
    """Two unequal layers in one atom, one timed with its collectives and one alone."""
    wide = replace(MODEL.layers[0], feed_forward=FeedForwardSpec(intermediate_size=4096, gated=True))
    model = replace(MODEL, layers=(MODEL.layers[0], wide) * 2)
    atoms = cut_atoms(model, parse_granularity("2"))
    single = cut_atoms(model)
    gpu = gpus_of(TWO)[1]
    islands = build_islands(TWO, JOB.precision)
    made = [
        record
        for atom, comm in ((single[1], True), (single[2], False))
        for record in records(model, [atom], gpu, fixed, seq_len=SEQ_LEN, tps=(1, 2), comm=comm)
    ]
    table = with_measured(JOB, MeasuredLayers.of(made), model, atoms, islands).basis.measured
    found = {f.key.tp: f for f in table.factors if f.key.atom == atoms[1].fingerprint and f.key.samples == 1}
    assert found[1].basis == "measured"
    assert (found[2].basis, found[2].forward, found[2].backward) == (PLAIN_FORMULA, 1.0, 1.0)


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_experts_are_predicted_as_measured(tp: int) -> None:
    model = small_model(moe=True)
    atoms = cut_atoms(model)
    gpu = gpus_of(TWO)[1]
    islands = build_islands(TWO, JOB.precision)
    island = next(i for i in islands if i.gpu.name == gpu)
    made = records(model, atoms, gpu, fixed, seq_len=SEQ_LEN)
    job = with_measured(JOB, MeasuredLayers.of(made), model, atoms, islands)
    config = StageConfig(dp=4 // tp, tp=tp, expert_tp=tp)
    portion = next(p for p in portions(island) if p.num_gpus == 4)
    costs = atom_costs(model, atoms, portion, StageConfigs.of([config]), 8, job)
    assert costs.forward_s[1, 0] == pytest.approx(fixed(LAYER, tp, 2 * tp)[0])
    assert costs.backward_s[1, 0] == pytest.approx(fixed(LAYER, tp, 2 * tp)[1])


def test_what_was_not_timed_that_way_is_a_scaled_formula() -> None:
    model = small_model(moe=True)
    atoms = cut_atoms(model)
    gpu = gpus_of(TWO)[1]
    islands = build_islands(TWO, JOB.precision)
    island = next(i for i in islands if i.gpu.name == gpu)
    made = records(model, atoms, gpu, fixed, seq_len=SEQ_LEN)
    job = with_measured(JOB, MeasuredLayers.of(made), model, atoms, islands)
    portion = next(p for p in portions(island) if p.num_gpus == 4)

    def bases(config: StageConfig) -> dict[str, int]:
        stage = StageChoice(0, len(atoms), portion, config, (False,) * len(atoms))
        return dict(atom_bases(job, atoms, [stage], 8))

    assert bases(StageConfig(dp=2, tp=2, expert_tp=2)) == {"measured": 8}
    assert bases(StageConfig(dp=2, tp=2, expert_tp=1)) == {"measured": 2, "scaled formula": 6}
    assert bases(StageConfig(dp=4, tp=1, ep=4)) == {"measured": 2, "scaled formula": 6}
    assert bases(StageConfig(dp=2, tp=1, cp=2)) == {"scaled formula": 8}
    formulas = replace(job, basis=JOB.basis)
    stage = StageChoice(0, 8, portion, StageConfig(dp=4, tp=1), (False,) * 8)
    assert atom_bases(formulas, atoms, [stage], 8) == {PLAIN_FORMULA: 8}
