"""What Aceso's search is given: read back by the importer it is the cost model, and so is the memory."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import tangram
from tangram.basis import CostBasis, FactorKey, MeasuredFactor, MeasuredTable
from tangram.cluster.islands import build_islands
from tangram.cluster.spec import Island, Portion
from tangram.cost.atoms import atom_costs
from tangram.cost.stage import stage_cost
from tangram.cost.transfer import boundary_bytes
from tangram.cost.types import StageConfig, StageConfigs
from tangram.job import Job, Precision
from tangram.model.atoms import Granularity, Part, cut_atoms
from tangram.model.params import norm_params
from tangram.parallelizers.external.aceso_profiles import (
    NEVER_RECOMPUTED,
    OperatorRow,
    Profiled,
    operator_rows,
    operators_of,
    profile_files,
)
from tangram.profiles.importers.aceso import OUT_OF_MEMORY_US
from tangram.profiles.importers.formats import Imported, import_files
from tangram.profiles.importers.harvest import Given
from tangram.profiles.records import CollectiveTime, LayerTime, Op, Scope
from tangram.profiles.shapes import LayerKind
from tangram.units import MIB

SEQ_LEN = 2048
POINTS = ((1, 1), (2, 1), (4, 2))  # tp, samples


def island(name: str = "2x4xV100-32GB-SXM2") -> Island:
    return build_islands(tangram.load_cluster(name), Precision.FP16)[0]


def profiled(
    model: str = "gpt3-1.3b", granularity: str = "layer", basis: CostBasis | None = None
) -> Profiled:
    spec = tangram.load_model(model)
    job = Job(8, SEQ_LEN, Precision.FP16)
    job = job if basis is None else replace(job, basis=basis)
    return Profiled(spec, cut_atoms(spec, Granularity(granularity)), island(), job)


def imported(given: Profiled, folder: Path, points: Sequence[tuple[int, int]] = POINTS) -> Imported:
    files = profile_files(given, {point: operator_rows(given, *point) for point in points})
    for name, text in files:
        (folder / name).write_text(text, encoding="utf-8")
    said = Given(
        gpu=given.island.gpu.name, model=given.model.name, seq_len=SEQ_LEN, precision=given.job.precision
    )
    return import_files("aceso", [folder / name for name, _ in files], said)


def costs_of(given: Profiled, granularity: str, tp: int, samples: int) -> dict[str, tuple[float, float]]:
    """Forward and backward of the first atoms of each kind, by their parts."""
    atoms = cut_atoms(given.model, Granularity(granularity))
    configs = StageConfigs.of([StageConfig(1, tp)])
    costs = atom_costs(given.model, atoms, Portion(given.island, 1, tp), configs, samples, given.job)
    names = ["+".join(part.part.value for part in atom.parts) for atom in atoms]
    times = zip(costs.forward_s[:, 0].tolist(), costs.backward_s[:, 0].tolist(), strict=True)
    return dict(zip(names, times, strict=True))


@pytest.mark.parametrize("model", ["gpt3-1.3b", "llama-3-8b"])
def test_the_importer_reads_back_what_the_cost_model_says(model: str, tmp_path: Path) -> None:
    """Times of parts, blocks, layers and ends; weights are checked by the importer itself."""
    given = profiled(model)
    found = imported(given, tmp_path)
    records = [r for r in found.records if isinstance(r, LayerTime)]
    by_point = {(r.shape.kind, r.tp, r.micro_batch): (r.forward_s, r.backward_s) for r in records}
    kinds = {
        LayerKind.EMBEDDING: ("operator", "embedding"),
        LayerKind.QKV: ("operator", "qkv"),
        LayerKind.CORE: ("operator", "core"),
        LayerKind.OUT: ("operator", "out"),
        LayerKind.UP: ("operator", "up"),
        LayerKind.DOWN: ("operator", "down"),
        LayerKind.ATTENTION: ("block", "qkv+core+out"),
        LayerKind.FEED_FORWARD: ("block", "up+down"),
        LayerKind.LAYER: ("layer", "qkv+core+out+up+down"),
        LayerKind.HEAD: ("operator", "head"),
    }
    for point in POINTS:
        for kind, (granularity, parts) in kinds.items():
            expected = costs_of(given, granularity, *point)[parts]
            assert by_point[kind, *point] == pytest.approx(expected, rel=1e-6), (kind, point)
    # The embedding's input, token numbers, is that small.
    assert [what for what, _ in found.left_out] == ["collectives of a size that was rounded to 0"]


def test_the_importer_reads_back_the_links(tmp_path: Path) -> None:
    given = profiled()
    found = [r for r in imported(given, tmp_path).records if isinstance(r, CollectiveTime)]
    node = given.island.nodes[0]
    sends = {(r.scope, round(r.num_bytes / MIB)): r.seconds for r in found if r.op is Op.SEND}
    assert len(sends) == 2 * 11
    stated = {
        Scope.INTRA_NODE: node.intra_bandwidth_bytes_per_s,
        Scope.INTER_NODE: given.island.inter_bandwidth_bytes_per_s,
    }
    for scope, rate in stated.items():  # One pair of GPUs gets most of what is stated, and never more.
        per_mib = (sends[scope, 1024] - sends[scope, 512]) / 512
        assert 0.5 < MIB / per_mib / rate <= 1
        assert 0 < sends[scope, 1] - per_mib < 1e-4  # The latency.
    gathers = {(r.ranks, r.num_bytes): r.seconds for r in found if r.op is Op.ALL_GATHER}
    reduces = {(r.ranks, r.num_bytes): r.seconds for r in found if r.op is Op.ALL_REDUCE}
    both = gathers.keys() & reduces.keys()
    assert both
    for key in both:  # Of one buffer of the same size: twice a ring.
        assert reduces[key] == pytest.approx(2 * gathers[key], rel=1e-3)


def test_measured_layers_are_what_is_written() -> None:
    """A layer that was measured twice as slow forward is twice as slow, in all its operators alike."""
    plain = profiled()
    layer = plain.atoms[1].fingerprint
    key = FactorKey(layer, plain.island.name, 1, 1)
    factor = MeasuredFactor(key, 2.0, 1.5, includes_tp_comm=False, basis="measured")
    table = MeasuredTable(precision="fp16", seq_len=SEQ_LEN, factors=(factor,))
    slower = profiled(basis=replace(plain.job.basis, measured=table))
    before, after = operator_rows(plain, 1, 1), operator_rows(slower, 1, 1)
    layer_of = slice(1, -2)
    ratio = sum(r.forward_us for r in after[layer_of]) / sum(r.forward_us for r in before[layer_of])
    compute = costs_of(slower, "layer", 1, 1)["qkv+core+out+up+down"]
    assert sum(r.forward_us for r in after[layer_of]) == pytest.approx(1e6 * compute[0])
    assert sum(r.backward_us for r in after[layer_of]) == pytest.approx(1e6 * compute[1])
    assert ratio > 1.9
    assert [after[0], *after[-2:]] == [before[0], *before[-2:]]


def kept_mib(rows: Sequence[OperatorRow]) -> float:
    """What Aceso counts for a run of operators without recomputation: the input, and all activations."""
    return rows[0].input_mib + sum(row.activations_mib for row in rows)


@pytest.mark.parametrize(("tp", "samples"), POINTS)
@pytest.mark.parametrize("part", ["V100-32GB-SXM2", "A100-80GB-SXM"])  # unfused and fused attention
def test_a_stage_keeps_what_the_cost_model_says(part: str, tp: int, samples: int) -> None:
    given = replace(profiled(), island=island(f"1x4x{part}"))
    rows = operator_rows(given, tp, samples)
    start, stop = 3, 7
    portion = Portion(given.island, 1, tp)
    counted = (portion, StageConfig(1, tp), samples, 8, 1, [False] * (stop - start), given.job)
    cost = stage_cost(given.model, given.atoms[start:stop], *counted)
    leaving = boundary_bytes(given.model, given.atoms[stop - 1], samples, given.job) / tp
    assert kept_mib(rows[1:-2] * (stop - start)) * MIB == pytest.approx(
        cost.activation_bytes + leaving, rel=0.01
    )
    weights = sum(row.weights_mib for row in rows[1:-2]) * MIB * (stop - start)
    assert weights == pytest.approx(cost.memory["weights"], rel=1e-9)
    assert all(row.backward_reserved_mib * MIB <= cost.memory["workspace"] + 1 for row in rows[1:-2])


def test_weights_of_norms_are_on_the_norms() -> None:
    given = profiled()
    rows = {row.name: row for row in operator_rows(given, 2, 1)}
    norm_mib = 2 * norm_params(given.model.norm, given.model.hidden_size) / MIB
    for name in ("enc-1st-layernorm", "enc-2nd-layernorm", "final-layernorm"):
        assert rows[name].weights_mib == pytest.approx(norm_mib)
    assert sum(row.weights_mib > 0 for row in rows.values()) == 3 + 4 + 2  # norms, products, vocabulary


def test_what_must_not_be_recomputed_is_kept_by_the_norm() -> None:
    free = profiled()
    bound = replace(free, recomputable=False)
    rows, kept = operator_rows(free, 2, 1), operator_rows(bound, 2, 1)
    assert kept_mib(kept[1:-2]) == pytest.approx(kept_mib(rows[1:-2]))
    assert [row.name for row in kept[1:-2] if row.activations_mib] == [NEVER_RECOMPUTED]
    assert (kept[0], *kept[-2:]) == (rows[0], *rows[-2:])
    assert not kept[-2].activations_mib  # The final norm, which Aceso might recompute, keeps nothing.


def test_what_is_not_allowed_takes_the_time_of_a_lack_of_memory() -> None:
    given = profiled()
    usual, barred = operator_rows(given, 4, 1), operator_rows(given, 4, 1, allowed=False)
    differing = [(a, b) for a, b in zip(usual, barred, strict=True) if a != b]
    assert [(b.name, b.forward_us) for _, b in differing] == [("enc-attention-qkv", OUT_OF_MEMORY_US)]


@pytest.mark.parametrize("granularity", ["operator", "block", "layer", "4"])
def test_tables_do_not_depend_on_how_atoms_are_cut(granularity: str) -> None:
    """Without measurements; sums may differ in the last digit."""
    number = int(granularity) if granularity.isdigit() else 1
    kind = "layer" if granularity.isdigit() else granularity
    layer = profiled()
    other = replace(layer, atoms=cut_atoms(layer.model, Granularity(kind, number)))
    for mine, theirs in zip(operator_rows(layer, 2, 1), operator_rows(other, 2, 1), strict=True):
        assert mine.name == theirs.name
        assert mine.forward_us == pytest.approx(theirs.forward_us, rel=1e-12)


def test_every_part_has_its_operators() -> None:
    counts = [len(operators_of(part)) for part in Part if part is not Part.MOE]
    assert counts == [1, 2, 4, 2, 2, 3, 2]
