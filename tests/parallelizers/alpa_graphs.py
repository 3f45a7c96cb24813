"""Blocks and meshes that the tests of ``alpa`` look at, and an integer linear programme as their oracle."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
from scipy.optimize import LinearConstraint, milp
from scipy.sparse import lil_array

from tangram.cluster.spec import Island, Portion
from tangram.job import Job, Precision
from tangram.model.atoms import AtomPart, cut_atoms
from tangram.model.load import load_model
from tangram.model.spec import FeedForwardSpec, ModelSpec, MoeSpec
from tangram.parallelizers.alpa.charges import Prices
from tangram.parallelizers.alpa.intra import Problem
from tangram.parallelizers.alpa.meshes import LogicalMesh, logical_meshes
from tangram.testing.cases import llama_like, small_island

MICRO_BATCH, NUM_MICRO_BATCHES = 16, 8


@cache
def model_of(name: str) -> ModelSpec:
    if name == "tiny-shared":  # A shared expert beside the routed ones.
        model = model_of("gshard-moe-2.4b")
        moe = model.layers[0].moe
        assert isinstance(moe, MoeSpec)
        layer = replace(
            model.layers[0],
            feed_forward=replace(moe, shared=FeedForwardSpec(2048, gated=True)),
        )
        return replace(model, name=name, layers=(layer,) * 4)
    if name == "tiny-parallel":  # Attention beside the feed-forward block.
        model = llama_like()
        return replace(model, name=name, layers=(replace(model.layers[0], parallel=True),) * 4)
    return llama_like() if name == "tiny-llama" else load_model(name)


def parts_of(model: ModelSpec, *atoms: int) -> list[AtomPart]:
    """The parts of some atoms (one layer each; 0 is the embedding, -1 the head), strung together."""
    return [part for idx in atoms for part in cut_atoms(model)[idx].parts]


# Name -> model, atoms. The first layer of a GShard model has experts, the second is dense.
BLOCKS = {
    "dense": ("gshard-moe-2.4b", (2,)),
    "gated": ("llama-3-8b", (1,)),
    "grouped-query": ("tiny-llama", (1,)),
    "experts": ("gshard-moe-2.4b", (1,)),
    "many-experts": ("qwen3-30b-a3b", (1,)),
    "shared-expert": ("tiny-shared", (1,)),
    "latent": ("deepseek-v3", (5,)),
    "parallel": ("tiny-parallel", (1,)),
    "embedding": ("gshard-moe-2.4b", (0,)),
    "head": ("llama-3-8b", (-1,)),
    "two-layers": ("gshard-moe-2.4b", (1, 2)),
    "whole": ("gshard-moe-2.4b", (0, 1, 2, -1)),
}


def portion_of(nodes: int, gpus: int, island: Island | None = None) -> Portion:
    return Portion(island or small_island(), nodes, gpus)


def prices_of(model: ModelSpec, portion: Portion) -> Prices:
    job = Job(MICRO_BATCH * NUM_MICRO_BATCHES, min(1024, model.max_positions), Precision.BF16)
    return Prices.of(model, portion, MICRO_BATCH, NUM_MICRO_BATCHES, job)


def meshes_of(prices: Prices) -> list[LogicalMesh]:
    return logical_meshes(prices.portion, prices.constants)


def programme_optimum(problem: Problem) -> float:
    """The least time by an integer linear programme: one of each operator's strategies, and for every pair of
    operators that share a tensor one pair of strategies, which has to agree with both.
    """
    sizes = [len(c.seconds) for c in problem.charged]
    first = np.cumsum([0, *sizes])
    costs = [c.seconds for c in problem.charged]
    integral = [np.ones(first[-1])]
    shapes = list(problem.pairs.values())
    columns = first[-1] + sum(table.size for table in shapes)
    num_rows = len(sizes) + sum(sum(table.shape) for table in shapes)
    matrix, right = lil_array((num_rows, columns)), np.zeros(num_rows)
    for v in range(len(sizes)):
        matrix[v, first[v] : first[v + 1]] = 1
        right[v] = 1
    row, column = len(sizes), int(first[-1])
    for (a, b), table in problem.pairs.items():
        cells = column + np.arange(table.size).reshape(table.shape)
        for own, variable in ((cells, a), (cells.T, b)):
            for value, line in enumerate(own):
                matrix[row, line] = 1
                matrix[row, int(first[variable]) + value] = -1
                row += 1
        costs.append(table.ravel())
        integral.append(np.zeros(table.size))
        column += table.size
    scale = max(float(np.concatenate(costs).max()), 1e-12)
    done = milp(
        np.concatenate(costs) / scale,
        integrality=np.concatenate(integral),
        bounds=(0, 1),
        constraints=LinearConstraint(matrix.tocsr(), right, right),
        options={"mip_rel_gap": 1e-9},
    )
    assert done.success, done.message
    return float(done.fun) * scale
