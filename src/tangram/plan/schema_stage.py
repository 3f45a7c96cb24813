"""Pipelines and stages: the part of the plan document that an executor carries out.

docs/plan-format.md explains the fields for the author of an executor or an exporter.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from tangram.job import Recompute
from tangram.plan.section import Count, Integer, Positive, Section


class GpuSlot(Section):
    """One GPU of the cluster.

    Attributes:
        node: Name of the node.
        gpu_idx: Counts the GPUs of that node from 0. Where a mixed host was cut into several nodes, it counts
            the
            GPUs of that node's part on the host.
    """

    node: str
    gpu_idx: Count


class RankSlot(Section):
    """One rank and its GPU.

    Attributes:
        rank: Global; consecutive over the stages of all pipelines, from 0.
        node: Name of the node.
        gpu_idx: As in :class:`GpuSlot`.
        gpu: Name of the part.
        gpu_uuid: The device's own identifier, filled in by who knows it; it then wins over ``gpu_idx``.
    """

    rank: Count
    node: str
    gpu_idx: Count
    gpu: str
    gpu_uuid: str | None = None


class MeshSection(Section):
    """How the ranks of a stage form a grid: row-major, the last axis varies fastest.

    Attributes:
        axes: Names, outermost first.
        sizes: One per axis; their product is the number of ranks.
    """

    axes: list[str]
    sizes: list[Positive]


class LayerRecompute(Section):
    """What one atom does about its activations.

    Attributes:
        atom: Index of the atom.
        layers: Transformer layers that it holds, or holds a part of; empty for embedding and head.
        mode: ``none`` keeps all, ``selective`` recomputes the attention core, ``full`` keeps the input only.
    """

    atom: Count
    layers: list[Count]
    mode: Recompute


class LayerConfig(Section):
    """A run of atoms of a stage with degrees of their own, on all GPUs of the stage.

    Attributes:
        atoms: ``[start, stop)``, half-open.
        mesh: Grid of the dense part, over the ranks of the stage in their order.
        expert_mesh: Grid of the experts over the same ranks; null where the stage has no experts.
        dp, tp, cp, ep, expert_tp: Degrees.
        sequence_parallel: Whether activations between tensor-parallel regions are sharded over ``tp``.
        micro_batch_per_dp_rank: Samples of a micro-batch for each dp index; they sum to ``micro_batch``.
        zero: 0 nothing sharded, 1 optimizer states, 2 also gradients, 3 also weights.
        zero_axes: Mesh axes over which the states of dense weights are sharded.
        expert_zero_axes: Axes of ``expert_mesh`` over which those of expert weights are.
    """

    atoms: tuple[Count, Count]
    mesh: MeshSection
    expert_mesh: MeshSection | None
    dp: Positive
    tp: Positive
    cp: Positive
    ep: Positive
    expert_tp: Positive
    sequence_parallel: bool
    micro_batch_per_dp_rank: list[Positive]
    zero: Literal[0, 1, 2, 3]
    zero_axes: list[str]
    expert_zero_axes: list[str] = Field(default_factory=list)


class StagePrediction(Section):
    """What the cost model says of a stage; times of one (global) micro-batch, sizes per GPU.

    Attributes:
        forward_s, backward_s: One micro-batch; ``backward_s`` includes recomputation.
        step_s: Gradient synchronisation and optimizer, once per step.
        send_forward_s, send_backward_s: Activations to the next stage, and gradients back from it; null for
            the last.
        boundary_bytes: All bytes that one micro-batch sends to the next stage; 0 for the last.
        in_flight: Micro-batches whose activations the memory figure holds: the window, at most all of them.
        activation_bytes: Activations per micro-batch in flight.
        memory: Bytes per item: ``weights``, ``gradients``, ``optimizer``, ``activations`` (all in flight),
            ``workspace``, ``reserve``; and ``margin``, what the upper estimate adds to the best one (none
            where it is missing).
        peak_bytes: Their sum, which has to fit.
        capacity_bytes: What the GPU has.
        headroom_bytes: Capacity minus peak.
        components: Seconds per cause (matmul, attention, tp...), for print.
    """

    forward_s: float
    backward_s: float
    step_s: float
    send_forward_s: float | None
    send_backward_s: float | None
    boundary_bytes: Count
    in_flight: Positive
    activation_bytes: Count
    memory: dict[str, Integer]
    peak_bytes: Integer
    capacity_bytes: Integer
    headroom_bytes: Integer
    components: dict[str, float] = Field(default_factory=dict)


class StageSection(Section):
    """A slice of the model on GPUs of one island.

    Attributes:
        index: Position in the pipeline, from 0.
        island: Name of the island.
        atoms: ``[start, stop)``, half-open.
        layers: ``[start, stop)`` of the transformer layers touched; equal numbers when there is none.
            Neighbours
            share a layer only when atoms are smaller than a layer.
        has_embedding, has_head: Whether the slice holds an end of the model.
        ranks: In mesh order.
        mesh: Grid of the dense part: ``["dp", "cp", "tp"]``.
        expert_mesh: Grid of the experts over the same ranks: ``["expert_dp", "ep", "expert_tp"]``; null
            without.
        dp, tp, cp, ep, expert_tp: Degrees (``ep`` and ``expert_tp`` are 1 without experts).
        sequence_parallel: Whether activations between tensor-parallel regions are sharded over ``tp``.
        cp_layout: Which tokens a ``cp`` index holds: ``zigzag`` (chunks i and 2*cp-1-i of 2*cp equal ones,
            which
            balances causal attention) or ``contiguous``.
        cp_exchange: How keys and values travel: ``allgather``, ``ring`` or ``a2a``.
        micro_batch_per_dp_rank: Samples of a micro-batch for each dp index; they sum to ``micro_batch``.
        zero: 0 nothing sharded, 1 optimizer states, 2 also gradients, 3 also weights.
        zero_axes: Mesh axes over which the states of dense weights are sharded.
        expert_zero_axes: Axes of ``expert_mesh`` over which those of expert weights are.
        reshard_after_forward: With zero 3, whether weights are gathered again for the backward pass.
        recompute: One entry per atom of the slice, in order.
        offload_optimizer: Whether master weights and moments live in host memory.
        offload_activation_atoms: Atoms whose saved activations live in host memory, ascending.
        attention_kernel: ``flash`` or ``unfused``.
        padded_vocab_size: Rows of embedding or head; null when the stage has neither.
        predicted: What the cost model says.
        reason: Why the stage looks as it does, in one sentence.
        layer_configs: Where atoms of the stage differ in degrees: the runs of equal ones, which cover the
            slice in order, and the fields above are those of the first run; missing where all atoms have what
            stands above.
    """

    index: Count
    island: str
    atoms: tuple[Count, Count]
    layers: tuple[Count, Count]
    has_embedding: bool
    has_head: bool
    ranks: list[RankSlot]
    mesh: MeshSection
    expert_mesh: MeshSection | None
    dp: Positive
    tp: Positive
    cp: Positive
    ep: Positive
    expert_tp: Positive
    sequence_parallel: bool
    cp_layout: Literal["zigzag", "contiguous"] = "zigzag"
    cp_exchange: Literal["allgather", "ring", "a2a"] = "allgather"
    micro_batch_per_dp_rank: list[Positive]
    zero: Literal[0, 1, 2, 3]
    zero_axes: list[str]
    expert_zero_axes: list[str] = Field(default_factory=list)
    reshard_after_forward: bool = True
    recompute: list[LayerRecompute]
    offload_optimizer: bool
    offload_activation_atoms: list[Count] = Field(default_factory=list)
    attention_kernel: str
    padded_vocab_size: Positive | None
    predicted: StagePrediction
    reason: str
    layer_configs: list[LayerConfig] = Field(default_factory=list)

    @model_serializer(mode="wrap")
    def _without_equal_layers(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leaves the runs out where there is one: such stages are what they were before there were any."""
        data: dict[str, Any] = serialize(self)
        if not self.layer_configs:
            data.pop("layer_configs", None)
        return data


class ScheduleSection(Section):
    """In which order a stage works on its micro-batches.

    Attributes:
        kind: ``1f1b``.
        virtual_stages_per_rank: 1 (not interleaved).
        in_flight: The window w of each stage, falling by at least one per stage. It runs w - 1 forwards, then
            one forward and one backward in turn, then the backwards left over. Windows above the number of
            micro-batches mean that number.
        overlap_p2p: Whether transfers between stages overlap with compute.
        assumed_overlaps: Share (0 to 1) of a communication that the prediction takes as hidden behind
            compute.
    """

    kind: Literal["1f1b"] = "1f1b"
    virtual_stages_per_rank: Literal[1] = 1
    in_flight: list[Positive]
    overlap_p2p: bool
    assumed_overlaps: dict[str, float] = Field(default_factory=dict)


class PipelineSection(Section):
    """Stages that together hold the model once.

    Attributes:
        global_batch: Samples of a step that this pipeline takes.
        micro_batch: Samples that enter the pipeline together.
        num_micro_batches: Per step.
        schedule: Order of work.
        stages: First to last.
    """

    global_batch: Positive
    micro_batch: Positive
    num_micro_batches: Positive
    schedule: ScheduleSection
    stages: list[StageSection]


class TiedGroup(Section):
    """Copies of one weight on several stages, whose gradients must be summed once per step.

    Attributes:
        name: ``embedding``.
        stages: Indices of the stages that hold a copy.
        ranks: All ranks of those stages, ascending.
    """

    name: str
    stages: list[Count]
    ranks: list[Count]
