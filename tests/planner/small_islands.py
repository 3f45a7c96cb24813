"""Islands made for tests: any number of nodes of any size, all GPUs equal."""

from __future__ import annotations

from functools import cache

from tangram.cluster.catalog import gpu
from tangram.cluster.spec import GpuSpec, Island, Node


@cache
def _part() -> GpuSpec:
    return gpu("V100-32GB-SXM2")


def make_island(name: str, gpus_per_node: int, num_nodes: int) -> Island:
    names = [f"{name}-{i:03}" for i in range(num_nodes)]
    nodes = tuple(
        Node(own, _part(), gpus_per_node, 1.5e11, 3e-6, "nvlink", 1.25e10, own, name) for own in names
    )
    return Island(name, nodes, _part(), gpus_per_node, 1.5e11, 3e-6, 1.25e10, 1e-5, 1.25e10)
