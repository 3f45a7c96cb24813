"""Transfers between placed stages, and what crosses the cuts between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from tangram.basis import CostBasis
from tangram.cluster.spec import Cluster, Node
from tangram.cost.transfer import boundary_bytes, transfer
from tangram.job import Job
from tangram.model.atoms import Atom
from tangram.model.spec import ModelSpec
from tangram.planner.placement import Placement
from tangram.simulate.pipeline import SimEdge
from tangram.units import NS_PER_S


@dataclass(frozen=True, slots=True)
class Boundaries:
    """Bytes that one micro-batch sends over each cut; ``bytes_at[j]`` is the cut behind atom ``j - 1``."""

    bytes_at: tuple[int, ...]

    @property
    def largest(self) -> int:
        """Over all inner cuts."""
        return max(self.bytes_at[1:-1], default=0)

    @property
    def smallest(self) -> int:
        """Over all inner cuts."""
        return min(self.bytes_at[1:-1], default=0)


def boundaries(model: ModelSpec, atoms: Sequence[Atom], micro_batch: int, job: Job) -> Boundaries:
    """Returns the bytes of every cut."""
    inner = [round(boundary_bytes(model, atom, micro_batch, job)) for atom in atoms[:-1]]
    return Boundaries((0, *inner, 0))


def tied_bytes(model: ModelSpec, job: Job) -> int:
    """Returns the bytes of the gradient of an embedding that the head shares; 0 when it has its own
    matrix.
    """
    if not model.shares_embedding:
        return 0
    return model.vocab_size * model.embedding_width * job.optimizer.gradient_bytes


def placed_edge(
    cluster: Cluster, front: Placement, behind: Placement, num_bytes: int, basis: CostBasis
) -> SimEdge:
    """Returns the edge between two placed stages; transfers between hosts hold their NICs."""
    lanes = min(front.portion.gpus_per_node, behind.portion.gpus_per_node)
    return node_edge(cluster, front.nodes, behind.nodes, num_bytes, lanes, basis)


def node_edge(
    cluster: Cluster,
    front: Sequence[Node],
    behind: Sequence[Node],
    num_bytes: int,
    lanes: int,
    basis: CostBasis,
) -> SimEdge:
    """Returns the edge between stages on these nodes; ``lanes`` pairs of GPUs talk at once on one node.

    Its transfers hold the NICs of the hosts they leave and reach, and the lines that links share; within a
    domain neither.
    """
    moved = transfer(cluster, front, behind, num_bytes, lanes=lanes, basis=basis)
    occupancy = round(moved.occupancy_s * NS_PER_S)
    latency = round(moved.latency_s * NS_PER_S)
    if len({n.reach for n in (*front, *behind)}) == 1:
        return SimEdge(latency, occupancy, occupancy)
    hosts_front = {n.host for n in front}
    hosts_behind = {n.host for n in behind}
    out, into = hosts_front - hosts_behind, hosts_behind - hosts_front

    def held(senders: set[str], receivers: set[str]) -> tuple[str, ...]:
        if not (senders or receivers):
            return ()
        return (*(f"{h}:out" for h in sorted(senders)), *(f"{h}:in" for h in sorted(receivers)))

    ahead, back = _lines(cluster, front, behind)
    return SimEdge(latency, occupancy, occupancy, held(out, into) + ahead, held(into, out) + back)


def _lines(
    cluster: Cluster, front: Sequence[Node], behind: Sequence[Node]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The shared lines between two stages, by direction: forward, and back."""
    if not any(link.line for link in cluster.links):
        return (), ()
    named = {name for link in cluster.links for name in (link.a, link.b)}
    senders, receivers = (
        {(n.name if n.name in named else "", n.group): n for n in nodes}.values() for nodes in (front, behind)
    )
    pairs = product(senders, receivers)
    found = {(line[0].line, line[1]) for x, y in pairs if (line := cluster.line(x, y)) is not None}
    ahead = tuple(sorted(f"{name}:{'there' if onward else 'back'}" for name, onward in found))
    back = tuple(sorted(f"{name}:{'back' if onward else 'there'}" for name, onward in found))
    return ahead, back
