"""The part of the job section that says what its predictions rest on: :class:`~tangram.basis.CostBasis`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tangram.basis import CostBasis, FactorKey, MeasuredFactor, MeasuredTable, Override
from tangram.job import Precision
from tangram.plan.section import Positive, Section

Factor = Annotated[float, Field(gt=0)]
Margin = Annotated[float, Field(ge=0, le=1)]
Name = Annotated[str, Field(min_length=1)]


class OverrideSection(Section):
    """A constant of the cost model that takes the place of the shipped one.

    Attributes:
        shelf: ``gpu_family``, ``stack`` or ``cluster``.
        owner: Name of the GPU family, stack or cluster.
        constant: Name of the constant.
        value: In the constant's unit.
    """

    shelf: Literal["gpu_family", "stack", "cluster"]
    owner: Name
    constant: Name
    value: float


class FactorSection(Section):
    """What the time of an atom by formula is multiplied by, to agree with measurements.

    Attributes:
        atom: Fingerprint of the atom.
        island: Name of the island.
        tp: Tensor-parallel degree.
        samples: Of the micro-batch on one rank.
        forward, backward: Factors of the two passes.
        includes_tp_comm: Whether they hold for compute and tensor-parallel collectives inside a node
            together, or for compute alone.
        basis: What they rest on: an equal layer that was measured, two measured ones between which it lies,
            or the nearest measured ones.
    """

    atom: Name
    island: Name
    tp: Positive
    samples: Positive
    forward: Factor
    backward: Factor
    includes_tp_comm: bool
    basis: Literal["measured", "interpolated", "scaled formula"]


class BasisSection(Section):
    """What the predictions rest on, where it is not what Tangram ships.

    Attributes:
        stack: Software stack whose constants count.
        cluster: Shelf of constants of the links.
        overrides: The user's constants.
        measured: Factors from measured layers, of those atoms and degrees that the plan uses.
        memory_margin_frac: What the user adds to the best estimate of memory beside model states, as a share
            of it; null where the stack's constant counts.
    """

    stack: Name
    cluster: Name
    overrides: list[OverrideSection] = Field(default_factory=list)
    measured: list[FactorSection] = Field(default_factory=list)
    memory_margin_frac: Margin | None = None

    @staticmethod
    def of(basis: CostBasis) -> BasisSection | None:
        """Returns the section of a basis; None for what Tangram ships."""
        if basis.is_default:
            return None
        return BasisSection(
            stack=basis.stack,
            cluster=basis.cluster,
            overrides=[OverrideSection.model_validate(override._asdict()) for override in basis.overrides],
            measured=[
                FactorSection.model_validate(
                    factor.key._asdict()
                    | {
                        "forward": factor.forward,
                        "backward": factor.backward,
                        "includes_tp_comm": factor.includes_tp_comm,
                        "basis": factor.basis,
                    }
                )
                for factor in sorted(basis.measured.factors, key=lambda factor: factor.key)
            ],
            memory_margin_frac=basis.memory_margin_frac,
        )

    def to_basis(self, precision: Precision, seq_len: int) -> CostBasis:
        """Returns the basis of a job of this precision and sequence length."""
        factors = tuple(
            MeasuredFactor(
                FactorKey(row.atom, row.island, row.tp, row.samples),
                row.forward,
                row.backward,
                row.includes_tp_comm,
                row.basis,
            )
            for row in self.measured
        )
        return CostBasis(
            stack=self.stack,
            cluster=self.cluster,
            overrides=tuple(Override(o.shelf, o.owner, o.constant, o.value) for o in self.overrides),
            measured=MeasuredTable(precision.value, seq_len, factors) if factors else MeasuredTable(),
            memory_margin_frac=self.memory_margin_frac,
        )
