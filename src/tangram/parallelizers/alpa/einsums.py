"""What the intra-operator pass looks at: the einsums of a run of parts, and what each reads.

An einsum has indices. Those of a transformer are the samples ``b`` and the sequence ``s`` of its tokens, the
hidden features ``h``, the heads ``n`` (with their widths), the columns ``f`` of a feed-forward block, the
experts ``e``, the columns ``g`` of a shared expert and the vocabulary ``v``:

========== ======================== ======================
operator   reads, weight -> writes  what
========== ======================== ======================
embedding  bs, vh -> bsh            rows of the vocabulary
qkv        bsh, hn -> bsn           norm and projections
core       bsn -> bsn               scores and values
out        bsn, nh -> bsh           output projection
up, down   bsh, hf -> bsf; bsf, fh -> bsh  feed-forward
gate       bsh, he -> bse           router of a mixture
dispatch   bsh, bse -> ebsh         tokens to experts
expert_up  ebsh, ehf -> ebsf        one product per expert
expert_down ebsf, efh -> ebsh       one product per expert
combine    ebsh, bse -> bsh         tokens from experts
add_...    bsh, bsh -> bsh          residual stream
head       bsh, hv -> bs            logits and loss
========== ======================== ======================

The mixture is GShard's (Lepikhin et al. 2021, algorithm 1): every sample is a group, and a group's tokens
have ``top_k * s / e`` places at each expert, so an expert's tensor has ``b`` and ``s`` like any other, only
fewer elements. Tokens are dispatched by index, as Tangram's runtime does: the dense products of GShard's
one-hot masks are not charged.

Simplifications: latent attention is one product of its full width; a shared expert is a dense block; norms
belong to the product behind them; rotary embedding belongs to the core; embedding and head have the width of
the residual stream.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from tangram.model.spec import LayerSpec

PADDED = 0
"""Size of an index that is padded until any number divides it: the vocabulary."""


class Kind(StrEnum):
    """What an operator runs."""

    PRODUCT = "product"
    EXPERTS = "experts"
    HEAD = "head"
    CORE = "core"
    STREAM = "stream"


@dataclass(frozen=True, slots=True)
class Read:
    """A tensor that an operator reads.

    Attributes:
        producer: Operator that writes it; None where it is none of this graph's.
        indices: Of the tensor.
        elements: Of the micro-batch, on all GPUs together.
    """

    producer: int | None
    indices: str
    elements: float


@dataclass(frozen=True, slots=True)
class Operator:
    """One einsum.

    Attributes:
        name: As in the table above.
        kind: What it runs.
        splits: Indices that an axis may split.
        reads: Its inputs; the first is the one that products multiply.
        writes: Indices of its output.
        elements: Of the output.
        weight: Indices of its weight; empty without.
        params: Of the weight.
        rows, columns, inner: Of the product (of one expert's).
        experts: Products of that shape.
        read_passes, write_passes: What element-wise kernels move: passes over input and output.
        launches: Launches of a forward pass, in layers' worth.
        layer: The layer, where attention has to be looked at.
    """

    name: str
    kind: Kind
    splits: str
    reads: tuple[Read, ...]
    writes: str
    elements: float
    weight: str = ""
    params: float = 0.0
    rows: float = 0.0
    columns: float = 0.0
    inner: float = 0.0
    experts: int = 1
    read_passes: float = 0.0
    write_passes: float = 0.0
    launches: float = 0.0
    layer: LayerSpec | None = None


@dataclass(frozen=True, slots=True)
class Graph:
    """The operators of a run of parts, in the order in which they run.

    Attributes:
        operators: Producers come before their readers.
        sizes: Of every index; ``PADDED`` where any number divides it.
        entry, exit: Operators that stand for the residual stream in front and behind; None without.
    """

    operators: tuple[Operator, ...]
    sizes: Mapping[str, int]
    entry: int | None
    exit: int | None

    def edges(self) -> list[tuple[int, int, int]]:
        """Returns (producer, reader, which of its inputs) of every tensor."""
        return [
            (read.producer, reader, which)
            for reader, operator in enumerate(self.operators)
            for which, read in enumerate(operator.reads)
            if read.producer is not None
        ]
