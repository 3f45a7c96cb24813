"""The intra-operator pass: equal to an integer linear programme, close to the referee, and what it finds."""

from pathlib import Path

import numpy as np
import pytest
from alpa_graphs import BLOCKS, meshes_of, model_of, parts_of, portion_of, prices_of, programme_optimum

from tangram.cluster.islands import build_islands
from tangram.cluster.readers import load_cluster
from tangram.cluster.spec import Island, Portion
from tangram.cost.configs import legal_configs
from tangram.cost.stage import stage_cost
from tangram.job import Job, Precision
from tangram.model.atoms import cut_atoms, parse_granularity
from tangram.parallelizers.alpa import intra
from tangram.parallelizers.alpa.charges import Prices
from tangram.parallelizers.alpa.graphs import graph_of
from tangram.parallelizers.alpa.intra import expressed, free_table, problem_of, roles_on, strung
from tangram.parallelizers.alpa.losses import parts_loss, stage_loss
from tangram.parallelizers.alpa.strategies import strategies_of

CLUSTERS = Path(__file__).parents[2] / "examples" / "clusters"
PORTIONS = {"pair": (1, 2), "node": (1, 4), "two-nodes": (2, 4)}

# The programme takes a second or more where a whole pipeline of blocks meets two axes.
CASES = [
    pytest.param(
        block,
        portion,
        marks=[pytest.mark.slow] if portion == "two-nodes" or block in ("two-layers", "whole") else [],
    )
    for portion in PORTIONS
    for block in BLOCKS
]


@pytest.mark.parametrize(("block", "portion"), CASES)
def test_elimination_equals_the_integer_programme(block: str, portion: str) -> None:
    name, atoms = BLOCKS[block]
    model = model_of(name)
    prices = prices_of(model, portion_of(*PORTIONS[portion]))
    for mesh in meshes_of(prices):
        problem = problem_of(prices, parts_of(model, *atoms), mesh)
        solved = problem.eliminated()
        assert float(solved.costs) == pytest.approx(programme_optimum(problem), rel=1e-6)
        assert problem.seconds(solved.assignment()) == pytest.approx(float(solved.costs), rel=1e-12)


@pytest.mark.parametrize("shape", range(3))
def test_tables_of_layers_string_together(shape: int) -> None:
    """Embedding, three layers and head: by tables of single atoms, and as one graph."""
    model = model_of("gshard-moe-2.4b")
    prices = prices_of(model, portion_of(2, 4))
    mesh = meshes_of(prices)[shape]
    run = (0, 1, 2, 1, -1)
    whole = float(problem_of(prices, parts_of(model, *run), mesh).eliminated().costs)
    tables = [free_table(problem_of(prices, parts_of(model, idx), mesh)) for idx in run]
    assert strung(tables) == pytest.approx(whole, rel=1e-12)


def test_the_better_of_all_strategies_by_hand() -> None:
    """Two GPUs, an output projection alone: every strategy, and what it should cost more than another."""
    model = model_of("gshard-moe-2.4b")
    prices = prices_of(model, portion_of(1, 2))
    (mesh,) = meshes_of(prices)
    graph = graph_of(model, parts_of(model, 2)[:3], prices.micro_batch, prices.job)
    names = [op.name for op in graph.operators]
    assert names == ["stream", "qkv", "core", "out", "add_attention"]
    out = graph.operators[names.index("out")]
    options = strategies_of(out, mesh.shape, graph.sizes)
    splits = [(s.splits[0], s.reads[0], s.writes[0]) for s in options]
    assert splits == [
        ("", "", ""),
        ("b", "b", "b"),
        ("s", "s", "s"),
        ("n", "n", ""),
        ("n", "n", "s"),
        ("h", "", "h"),
    ]
    (charged,) = prices.charged([out], [options], mesh, 1)
    cost = dict(zip(splits, charged.seconds.tolist(), strict=True))
    # All-reduce, or reduce-scatter and a gather in the other pass: the same. h sums the input's gradient.
    assert cost["n", "n", ""] == pytest.approx(cost["n", "n", "s"])
    assert cost["b", "b", "b"] == pytest.approx(cost["s", "s", "s"])
    assert cost["", "", ""] > 1.5 * cost["b", "b", "b"]
    assert cost["h", "", "h"] > cost["b", "b", "b"] < cost["n", "n", ""]


def mixed_islands() -> dict[str, Island]:
    """Four V100 on NVLink and four T4 on PCIe: the paper's smallest cluster."""
    cluster = load_cluster(str(CLUSTERS / "c1-t4-v100-4-4.yaml"))
    return {island.gpu.name.partition("-")[0]: island for island in build_islands(cluster, Precision.FP16)}


def gshard_prices(island: Island) -> Prices:
    job = Job(1024, 1024, Precision.FP16)
    return Prices.of(model_of("gshard-moe-2.4b"), Portion(island, 1, 4), 32, 32, job)


def test_expert_parallelism_is_found() -> None:
    """No strategy says expert parallelism; the optimiser puts it together where links are fast."""
    prices = gshard_prices(mixed_islands()["V100"])
    for mesh in meshes_of(prices):
        found = parts_loss(prices, parts_of(prices.model, 1), mesh)
        for name in ("dispatch", "combine"):
            assert set(found.chosen[name].splits) <= {"b", ""}  # Tokens stay with their samples.
        for name in ("expert_up", "expert_down"):
            assert set(found.chosen[name].splits) <= {"e", ""}
            assert "e" in found.chosen[name].splits
        assert found.roles is not None
        assert found.roles.degrees == (4, 1, 4, 1)
    # What lies between is an exchange of tokens that takes its time.
    operators = graph_of(prices.model, parts_of(prices.model, 1), 32, prices.job).operators
    (tokens,) = next(op for op in operators if op.name == "expert_up").reads
    assert prices.reshard_s(tokens, ("b", ""), ("e", ""), meshes_of(prices)[0]) > 5e-4


def test_expert_parallelism_is_not_taken_where_it_costs_more() -> None:
    """Over PCIe the same tokens are not worth the way."""
    prices = gshard_prices(mixed_islands()["T4"])
    for mesh in meshes_of(prices):
        found = parts_loss(prices, parts_of(prices.model, 1), mesh)
        assert set(found.chosen["expert_up"].splits) <= {"b", ""}
        assert found.roles is not None
        assert found.roles.degrees == (4, 1, 1, 1)


@pytest.mark.parametrize("block", ["dense", "gated", "experts", "many-experts", "head"])
def test_free_optimum_bounds_the_expressible_one(block: str) -> None:
    name, atoms = BLOCKS[block]
    model = model_of(name)
    for portion in PORTIONS.values():
        prices = prices_of(model, portion_of(*portion))
        for mesh in meshes_of(prices):
            found = parts_loss(prices, parts_of(model, *atoms), mesh)
            assert found.free_s <= found.expressed_s * (1 + 1e-9)
            assert found.roles is not None


@pytest.mark.parametrize("block", ["dense", "gated", "experts", "many-experts"])
@pytest.mark.parametrize("portion", ["node", "two-nodes"])
def test_charges_are_the_referees(block: str, portion: str) -> None:
    """What a stage configuration costs as an assignment, and as a stage of one layer."""
    name, (atom,) = BLOCKS[block]
    model, place = model_of(name), portion_of(*PORTIONS[portion])
    prices = prices_of(model, place)
    legal = [c for c in legal_configs(model, place, prices.micro_batch, prices.job) if c.zero <= 1]
    compared = 0
    for mesh in meshes_of(prices):
        for roles in roles_on(mesh.shape, moe=model.has_moe):
            for config in legal:
                if (config.dp, config.tp, config.ep, config.expert_tp) != roles.degrees:
                    continue
                (ours,) = expressed(prices, parts_of(model, atom), mesh, [roles], config.zero)
                theirs = stage_cost(
                    model,
                    cut_atoms(model)[atom : atom + 1],
                    place,
                    config,
                    prices.micro_batch,
                    prices.num_micro_batches,
                    1,
                    [False],
                    prices.job,
                )
                step = theirs.step_s / prices.num_micro_batches
                assert ours.seconds == pytest.approx(theirs.time_s + step, rel=0.05)
                states = sum(theirs.memory[item] for item in ("weights", "gradients", "optimizer"))
                assert ours.state_bytes == pytest.approx(states, rel=0.01)
                compared += 1
    assert compared >= 4


def test_parts_of_a_layer_are_charged_like_the_layer() -> None:
    model = model_of("gshard-moe-2.4b")
    prices = prices_of(model, portion_of(1, 4))
    mesh = meshes_of(prices)[1]
    roles = roles_on(mesh.shape, moe=True)
    whole = expressed(prices, parts_of(model, 1), mesh, roles, 1)
    finer = [a for a in cut_atoms(model, parse_granularity("operator")) if a.layer_idxs == (0,)]
    parts = [expressed(prices, a.parts, mesh, roles, 1) for a in finer]
    total = np.array([[c.seconds for c in own] for own in parts]).sum(axis=0)
    assert total == pytest.approx([c.seconds for c in whole], rel=1e-9)


def test_parallel_blocks_start_from_the_same_stream() -> None:
    model = model_of("tiny-parallel")
    prices = prices_of(model, portion_of(1, 2))
    graph = graph_of(model, parts_of(model, 1), prices.micro_batch, prices.job)
    names = [op.name for op in graph.operators]
    assert names == ["stream", "qkv", "core", "out", "up", "down", "add_block"]
    read = {
        names[b]: [names[a] for a, reader, _ in graph.edges() if reader == b] for _, b, _ in graph.edges()
    }
    assert read["qkv"] == read["up"] == ["stream"]
    assert read["add_block"] == ["stream", "out", "down"]


def test_roles_keep_the_order_of_ranks() -> None:
    on = {shape: [r.degrees for r in roles_on(shape, moe=True)] for shape in ((8, 1), (2, 4))}
    assert on[8, 1] == [(8, 1, 1, 1), (8, 1, 8, 1), (1, 8, 1, 1), (1, 8, 8, 1), (1, 8, 1, 8)]
    assert on[2, 4] == [
        (8, 1, 1, 1),
        (8, 1, 4, 1),
        (8, 1, 8, 1),
        (2, 4, 1, 1),
        (2, 4, 4, 1),
        (2, 4, 1, 4),
        (2, 4, 8, 1),
        (2, 4, 2, 4),
        (1, 8, 1, 1),
        (1, 8, 4, 1),
        (1, 8, 8, 1),
        (1, 8, 1, 8),
    ]
    assert [r.degrees for r in roles_on((4, 2), moe=False)] == [(8, 1, 1, 1), (4, 2, 1, 1), (1, 8, 1, 1)]


def test_default_zero_is_what_gradient_accumulation_gives() -> None:
    assert intra.DEFAULT_ZERO == 1


# Model, cluster, GPU, micro-batch; ms, ms, dp, tp, ep: the table of docs/parallelizers.md.
LOST = [
    ("gshard-moe-2.4b", "c1-t4-v100-8-8", "V100-16GB-SXM2", 8, 186.5, 188.4, (8, 1, 4)),
    ("gshard-moe-2.4b", "c1-t4-v100-8-8", "T4", 8, 309.0, 309.0, (8, 1, 4)),
    ("gshard-moe-10b", "c1-t4-v100-4-4", "V100-16GB-SXM2", 8, 421.8, 422.5, (4, 1, 4)),
    ("gshard-moe-10b", "c1-t4-v100-8-8", "V100-16GB-SXM2", 8, 422.0, 521.5, (2, 4, 4)),
    ("gpt3-1.3b", "c1-t4-v100-8-8", "V100-16GB-SXM2", 32, 976.6, 991.9, (8, 1, 1)),
    ("gpt3-13b", "c3-four-islands", "V100-32GB-SXM2", 2, 477.8, 478.8, (2, 4, 1)),
    ("mixtral-8x7b", "c2-h100-a100", "H100-80GB-SXM", 8, 674.0, 674.0, (8, 1, 1)),
]


@pytest.mark.parametrize(
    ("name", "cluster", "part", "micro_batch", "free_ms", "expressed_ms", "degrees"), LOST
)
def test_documented_losses(
    name: str,
    cluster: str,
    part: str,
    micro_batch: int,
    free_ms: float,
    expressed_ms: float,
    degrees: tuple[int, int, int],
) -> None:
    """When a constant of the cost model changes, so does the table."""
    model, on_c2 = model_of(name), cluster.startswith("c2")
    job = Job(1024, 4096 if on_c2 else 1024, Precision.BF16 if on_c2 else Precision.FP16)
    islands = build_islands(load_cluster(str(CLUSTERS / f"{cluster}.yaml")), job.precision)
    island = next(i for i in islands if i.gpu.name == part)
    place = Portion(island, island.num_nodes, island.gpus_per_node)
    prices = Prices.of(model, place, micro_batch, 1024 // micro_batch, job)
    found = stage_loss(prices, cut_atoms(model))
    assert (found.free_s * 1e3, found.expressed_s * 1e3) == pytest.approx((free_ms, expressed_ms), abs=0.051)
    assert found.roles is not None
    assert found.roles.degrees[:3] == degrees
