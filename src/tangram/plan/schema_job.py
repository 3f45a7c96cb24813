"""The job as the plan holds it: a complete :class:`~tangram.job.Job`, and how its precision was chosen."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import SerializerFunctionWrapHandler, model_serializer

from tangram.basis import SHIPPED_BASIS
from tangram.job import Job, OptimizerSpec, Pins, Precision, Recompute
from tangram.plan.schema_basis import BasisSection
from tangram.plan.section import Count, Positive, Section


class OptimizerSection(Section):
    """AdamW and its storage in bytes per parameter, as in :class:`~tangram.job.OptimizerSpec`."""

    name: str
    gradient_bytes: Count
    master_bytes: Count
    moment_bytes: Count


class PinsSection(Section):
    """What the user dictated, as in :class:`~tangram.job.Pins`; null left the choice to the planner."""

    micro_batch: Positive | None = None
    tp: Positive | None = None
    dp: Positive | None = None
    cp: Positive | None = None
    ep: Positive | None = None
    pp: Positive | None = None
    zero: Count | None = None
    recompute: Recompute | None = None
    layers_per_stage: list[Count] | None = None
    offload: str = "none"
    allow_cross_node_tp: bool = False


class JobSection(Section):
    """One training job.

    Attributes:
        global_batch: Samples per optimizer step.
        seq_len: Tokens per sample.
        precision: Arithmetic of the whole job.
        precision_reason: Why this precision, in one sentence.
        loss_scaling: ``dynamic`` for fp16, which needs it, else ``none``.
        optimizer: AdamW and its storage.
        pins: What the user dictated.
        overlap_p2p: Whether transfers between stages overlap with compute.
        free_warmup: Whether the engine may hold more micro-batches in flight than plain 1F1B.
        basis: What the predictions rest on; absent where that is what Tangram ships.
    """

    global_batch: Positive
    seq_len: Positive
    precision: Precision
    precision_reason: str
    loss_scaling: Literal["none", "dynamic"]
    optimizer: OptimizerSection
    pins: PinsSection
    overlap_p2p: bool
    free_warmup: bool
    basis: BasisSection | None = None

    @model_serializer(mode="wrap")
    def _without_default_basis(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leaves the basis out where it says nothing: such plans are what they were before there was one."""
        data: dict[str, Any] = serialize(self)
        if self.basis is None:
            data.pop("basis", None)
        return data

    @staticmethod
    def of(job: Job, *, precision_reason: str = "") -> JobSection:
        """Returns the section of a job."""
        pins = {name: getattr(job.pins, name) for name in PinsSection.model_fields}
        if job.pins.layers_per_stage is not None:
            pins["layers_per_stage"] = list(job.pins.layers_per_stage)
        return JobSection(
            global_batch=job.global_batch,
            seq_len=job.seq_len,
            precision=job.precision,
            precision_reason=precision_reason,
            loss_scaling="dynamic" if job.precision is Precision.FP16 else "none",
            optimizer=OptimizerSection(
                name=job.optimizer.name,
                gradient_bytes=job.optimizer.gradient_bytes,
                master_bytes=job.optimizer.master_bytes,
                moment_bytes=job.optimizer.moment_bytes,
            ),
            pins=PinsSection(**pins),
            overlap_p2p=job.overlap_p2p,
            free_warmup=job.free_warmup,
            basis=BasisSection.of(job.basis),
        )

    def to_job(self) -> Job:
        """Returns the job.

        Raises:
            InputError: A number is out of range, or the pinned micro-batch does not divide the global batch.
        """
        pins = {name: getattr(self.pins, name) for name in PinsSection.model_fields}
        if self.pins.layers_per_stage is not None:
            pins["layers_per_stage"] = tuple(self.pins.layers_per_stage)
        return Job(
            global_batch=self.global_batch,
            seq_len=self.seq_len,
            precision=self.precision,
            optimizer=OptimizerSpec(
                self.optimizer.name,
                self.optimizer.gradient_bytes,
                self.optimizer.master_bytes,
                self.optimizer.moment_bytes,
            ),
            pins=Pins(**pins),
            overlap_p2p=self.overlap_p2p,
            free_warmup=self.free_warmup,
            basis=self.basis.to_basis(self.precision, self.seq_len) if self.basis else SHIPPED_BASIS,
        )
