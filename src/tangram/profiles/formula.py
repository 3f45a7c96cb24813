"""What the cost model says of a timed shape, so that measurements can be set against it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from tangram.basis import SHIPPED_BASIS, CostBasis, MeasuredTable
from tangram.cluster.defaults import default_intra
from tangram.cluster.spec import GpuSpec, Island, Node, Portion
from tangram.cost.atoms import atom_costs
from tangram.cost.constants import matmul_flop_per_s
from tangram.cost.types import StageConfig, StageConfigs
from tangram.errors import InputError
from tangram.job import Job, Precision
from tangram.model.atoms import Atom
from tangram.profiles.shape_pieces import shape_model, shape_parts, shard_of
from tangram.profiles.shapes import LayerShape


class PassTimes(NamedTuple):
    """Seconds of one micro-batch on one rank."""

    forward_s: float
    backward_s: float


class Formula(Protocol):
    """Predicts what :class:`tangram.profiles.records.LayerTime` measures."""

    def __call__(self, shape: LayerShape, tp: int, micro_batch: int, with_tp_comm: bool) -> PassTimes | None:
        """Returns the times of a shape, or None where the formula does not apply.

        Args:
            shape: Unsharded.
            tp: Tensor-parallel degree, inside one node.
            micro_batch: Samples on the rank.
            with_tp_comm: Whether tensor-parallel collectives count, or a rank is timed alone.
        """


@dataclass(slots=True)
class CostFormula:
    """:mod:`tangram.cost` as a :class:`Formula`, for one island and precision; answers are kept.

    A rank that is timed alone runs the shape's share at tp = 1: nothing to communicate, and the norms and
    residuals of all tokens, which sequence parallelism would split.

    Attributes:
        island: GPUs and links. Groups are inside one of its nodes: a larger tp has no answer.
        precision: Arithmetic of the matrix products.
        basis: Whose constants count; measured factors do not, this is the formula alone.
    """

    island: Island
    precision: Precision
    basis: CostBasis = SHIPPED_BASIS
    _known: dict[tuple[LayerShape, int, int, bool], PassTimes | None] = field(default_factory=dict)

    @staticmethod
    def of_part(part: GpuSpec, precision: Precision, num_gpus: int | None = None) -> CostFormula:
        """Returns the formula for one node of a part, with the part's own links.

        Args:
            part: The part.
            precision: Arithmetic of the matrix products.
            num_gpus: GPUs of the node; by default the usual number.
        """
        return CostFormula(_one_node(part, num_gpus or part.gpus_per_node), precision)

    def __call__(self, shape: LayerShape, tp: int, micro_batch: int, with_tp_comm: bool) -> PassTimes | None:
        """Returns what the cost model predicts; None for kinds and splits that it does not know.

        Raises:
            InputError: The GPU has no arithmetic in this precision.
        """
        key = (shape, tp, micro_batch, with_tp_comm)
        if key not in self._known:
            self._known[key] = self._computed(*key)
        return self._known[key]

    def _computed(self, shape: LayerShape, tp: int, micro_batch: int, with_tp_comm: bool) -> PassTimes | None:
        shard = shard_of(shape, tp)
        parts = shape_parts(shape)
        if shard is None or not parts or tp > self.island.gpus_per_node:
            return None
        matmul_flop_per_s(self.island.gpu, self.precision)  # refuses a precision that the part lacks
        formulas = replace(self.basis, measured=MeasuredTable())
        degree = tp if with_tp_comm else 1
        model, _ = shape_model(shape if with_tp_comm else shard)
        try:
            costs = atom_costs(
                model,
                [Atom(parts, str(shape))],
                Portion(self.island, 1, degree),
                StageConfigs.of([StageConfig(dp=1, tp=degree, expert_tp=degree if shape.num_experts else 1)]),
                micro_batch,
                Job(micro_batch, shape.seq_len, self.precision, basis=formulas),
            )
        except InputError:  # a part that the cost model has no formula for
            return None
        return PassTimes(float(costs.forward_s[0, 0]), float(costs.backward_s[0, 0]))


def _one_node(part: GpuSpec, num_gpus: int) -> Island:
    link = default_intra(part)
    rate = link.bandwidth_bytes_per_s
    node = Node("node", part, num_gpus, rate, link.latency_s, link.kind, rate, "node", "node")
    return Island(part.name, (node,), part, num_gpus, rate, link.latency_s, rate, link.latency_s, rate)
