"""What Metis is asked, in its own words: kinds of GPUs on nodes of one size, a profile, a batch, limits."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tangram.baselines.metis.defects import Defects
from tangram.baselines.metis.profile import MetisProfile


@dataclass(frozen=True, slots=True)
class Kind:
    """All GPUs of one part.

    Attributes:
        name: Of the part.
        num_gpus: In all nodes.
        memory_mb: Of one.
        intra_bytes_per_ms: Between two GPUs of a node.
        inter_bytes_per_ms: Between two nodes.
    """

    name: str
    num_gpus: int
    memory_mb: float
    intra_bytes_per_ms: float
    inter_bytes_per_ms: float


@dataclass(frozen=True, slots=True)
class Limits:
    """Where the search ends.

    Attributes:
        max_tp: Largest tp degree profiled.
        max_batch: Largest number of samples per rank profiled.
        variance: Least size of a group of GPUs, as a share of the average.
        max_blocks: Blocks of groups that are permuted.
        max_plans: Inter-stage plans looked at; those with the fewest stages come first.
    """

    max_tp: int
    max_batch: int
    variance: float
    max_blocks: int
    max_plans: int


@dataclass(frozen=True, slots=True)
class Question:
    """One search.

    Attributes:
        kinds: Of GPUs; their order is the one in which ties are broken.
        gpus_per_node: The same everywhere.
        profile: Of the model on these kinds.
        global_batch: Samples per step.
        sample_elements: What crosses a cut for one sample, in elements (Metis counts no bytes).
        sample_logits: The elements of one sample's logits.
        limits: Of the search.
        defects: That are on.
    """

    kinds: tuple[Kind, ...]
    gpus_per_node: int
    profile: MetisProfile
    global_batch: int
    sample_elements: float
    sample_logits: float
    limits: Limits
    defects: Defects

    @property
    def num_gpus(self) -> int:
        """Of all kinds."""
        return sum(kind.num_gpus for kind in self.kinds)

    @property
    def num_orders(self) -> int:
        """Orders that the kinds can come in."""
        return prod(range(1, len(self.kinds) + 1))


@dataclass(frozen=True, slots=True)
class Layout:
    """The GPUs in one order of their kinds: ranks follow it, and nodes follow ranks.

    Attributes:
        order: Kinds by number, first to last.
        kind_of: Per rank.
        gpus_per_node: Of every node.
    """

    order: tuple[int, ...]
    kind_of: tuple[int, ...]
    gpus_per_node: int

    @staticmethod
    def of(question: Question, order: tuple[int, ...]) -> Layout:
        """Lays out the kinds of a question."""
        ranks = tuple(kind for kind in order for _ in range(question.kinds[kind].num_gpus))
        return Layout(order, ranks, question.gpus_per_node)

    def kinds(self, start: int, stop: int) -> tuple[int, ...]:
        """Returns the kind of every rank of a stage."""
        return self.kind_of[start:stop]

    def kinds_of_nodes(self, ranks: range) -> list[int]:
        """Returns the kind of every node that holds one of the ranks."""
        nodes = dict.fromkeys(rank // self.gpus_per_node for rank in ranks)
        return [self.kind_of[node * self.gpus_per_node] for node in nodes]
