"""What a row cannot say in the common columns: settings, from the table of sources or from further columns.

A setting that nobody gives is None; :mod:`tangram.validation.common` says what then counts. A user's table
may have a column with a setting's name, and its cells go before what is known of the source.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from tangram.model.spec import NormKind, PositionKind
from tangram.validation.run import Attention, MemoryKind, MemoryRanks, Tuning


class Latent(BaseModel):
    """Latent attention: see :class:`~tangram.model.spec.LatentSpec`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    q_rank: int | None = Field(default=None, ge=1)
    kv_rank: int = Field(ge=1)
    nope_dim: int = Field(ge=1)
    rope_dim: int = Field(ge=1)
    value_dim: int = Field(ge=1)


class HostSettings(BaseModel):
    """A node, as far as it is known.

    Attributes:
        part: Full name of its GPUs' part, where rows abbreviate it.
        gpus_per_node: GPUs of the node.
        link_domain: GPUs that the fast links join, where they join more than a node.
        nic_gbit_per_s: All NICs of the node together, per direction.
        link_gb_per_s: Between two GPUs of the node, per GPU and direction.
        nic_measured: ``nic_gbit_per_s`` was measured between such nodes; not what they are rated at.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    part: str | None = None
    gpus_per_node: int | None = Field(default=None, ge=1, le=256)
    link_domain: int | None = Field(default=None, ge=1, le=10_000)
    nic_gbit_per_s: float | None = Field(default=None, gt=0, le=1e6)
    link_gb_per_s: float | None = Field(default=None, gt=0, le=1e5)
    nic_measured: bool | None = None


class Settings(HostSettings):
    """Software, memory convention, nodes and shapes of a row; all optional.

    Attributes:
        stack: Name of the software stack.
        attention: Kind of the attention core.
        sequence_parallel: Activations between tensor-parallel regions split over tp; else on when tp > 1.
        environment: Version of the stack, as the source calls it.
        dispatcher: How tokens reach experts.
        overlap_ep: The exchange of tokens runs beside compute.
        balanced_experts: Tokens are spread evenly over experts by force.
        cuda_graphs: Layers are launched as graphs.
        cross_entropy_fusion: The loss is fused.
        loss_in_place: It is one kernel that overwrites the logits with their gradients.
        deterministic: Kernels are deterministic.
        grouped_products: The products of experts are one grouped product.
        weighs_outputs: The outputs of experts, not their activations, are weighted by the router.
        fused_accumulation: Products add up weight gradients themselves.
        overlap_gradients: Gradients are reduced beside the backward pass.
        overlap_parameters: Parameters are gathered beside the forward pass.
        method: A training method that places experts its own way.
        gradient_bytes: Per parameter, accumulated gradients.
        gradient_copy_bytes: Per parameter, a further sharded copy of the gradients.
        further_gradient_bytes: Per parameter, a further copy of the gradients, sharded like them.
        reduce_bytes: Per gradient element, as data parallelism sends it.
        master_bytes: Per parameter, master weights.
        moment_bytes: Per parameter, both moments.
        expert_tp: Tensor parallelism of the experts.
        experts_per_rank: Whole experts that a rank works on at a time, where experts are replicated.
        shard_ranks: Ranks that share one copy of the sharded states.
        optimizer_offload: Optimizer on the host.
        parameter_offload: Weights on the host.
        offloaded_layers: Layers whose activations go to the host.
        deferred_heads: Micro-batches whose weight gradient of the LM head is put off.
        chunk_group: Micro-batches that a chunk of an interleaved schedule takes in a row; else pp.
        memory_kind: What the memory figure counts.
        memory_ranks: Whose memory it is.
        scores_time: The times can be trusted.
        scores_memory: The memory figures can be trusted.
        tuning: What is trained.
        head_dim: Width of an attention head; else hidden size / heads.
        gated: The feed-forward block has a gate; else it has one unless its width is four hidden sizes.
        biases: All projections have biases; else they have where the block has no gate.
        qkv_bias: Query, key and value projections have biases.
        qk_norm: Queries and keys are normalised per head.
        norm: Kind of the norms; else LayerNorm where the block has no gate.
        position: Position information; else learned where the block has no gate.
        tied_embeddings: The head uses the embedding's matrix; else it does not.
        latent: Latent attention.
        expert_width: Width of one expert, where ``ffn_hidden`` is that of the dense layers.
        shared_width: Width of all shared experts together.
        dense_layers: The first layers that have a dense block although the model has experts.
        dense_width: Width of the dense block in a model with experts.
        moe_every: Every how manyth layer has experts, counted from the end of the period.
        mtp_layers: Layers for multi-token prediction.
        vocab_multiple: The vocabulary is padded to a multiple of this times tp before it is split.
        dropout: Whether there is dropout, whose masks are kept.
        window: Keys that a query looks back at in layers with a window.
        window_every: Every how manyth layer has none; else all layers have the window.
        relu: The activation function is one whose output is all that backward needs.
        pseudo_before: Pieces that the pipeline counts in front of the first layer (``pseudo_...`` columns).
        pseudo_after: Pieces that it counts behind the last layer.
        blocking_transfers: Stages send and receive in line with their kernels.
        headless: There is no LM head; the loss is taken of what the last norm returns.
    """

    stack: str | None = Field(default=None, min_length=1, max_length=100)
    attention: Attention | None = None
    sequence_parallel: bool | None = None
    environment: str | None = Field(default=None, min_length=1, max_length=100)
    dispatcher: str | None = Field(default=None, min_length=1, max_length=100)
    overlap_ep: bool | None = None
    balanced_experts: bool | None = None
    cuda_graphs: bool | None = None
    cross_entropy_fusion: bool | None = None
    loss_in_place: bool | None = None
    deterministic: bool | None = None
    grouped_products: bool | None = None
    fused_accumulation: bool | None = None
    weighs_outputs: bool | None = None
    overlap_gradients: bool | None = None
    overlap_parameters: bool | None = None
    method: str | None = Field(default=None, min_length=1, max_length=100)
    gradient_bytes: int | None = Field(default=None, ge=0, le=16)
    gradient_copy_bytes: int | None = Field(default=None, ge=0, le=16)
    further_gradient_bytes: int | None = Field(default=None, ge=0, le=16)
    reduce_bytes: int | None = Field(default=None, ge=1, le=16)
    master_bytes: int | None = Field(default=None, ge=0, le=16)
    moment_bytes: int | None = Field(default=None, ge=0, le=64)
    expert_tp: int | None = Field(default=None, ge=1, le=1_000_000)
    experts_per_rank: int | None = Field(default=None, ge=1, le=1_000_000)
    shard_ranks: int | None = Field(default=None, ge=1, le=1_000_000)
    optimizer_offload: bool | None = None
    parameter_offload: bool | None = None
    offloaded_layers: int | None = Field(default=None, ge=0, le=10_000)
    deferred_heads: int | None = Field(default=None, ge=0, le=10_000)
    chunk_group: int | None = Field(default=None, ge=1, le=10_000)
    memory_kind: MemoryKind | None = None
    memory_ranks: MemoryRanks | None = None
    scores_time: bool | None = None
    scores_memory: bool | None = None
    tuning: Tuning | None = None
    head_dim: int | None = Field(default=None, ge=1, le=1 << 20)
    gated: bool | None = None
    biases: bool | None = None
    qkv_bias: bool | None = None
    qk_norm: bool | None = None
    norm: NormKind | None = None
    position: PositionKind | None = None
    tied_embeddings: bool | None = None
    latent: Latent | None = None
    expert_width: int | None = Field(default=None, ge=1, le=1 << 24)
    shared_width: int | None = Field(default=None, ge=1, le=1 << 24)
    dense_layers: int | None = Field(default=None, ge=0, le=10_000)
    dense_width: int | None = Field(default=None, ge=1, le=1 << 24)
    moe_every: int | None = Field(default=None, ge=1, le=10_000)
    mtp_layers: int | None = Field(default=None, ge=0, le=100)
    vocab_multiple: int | None = Field(default=None, ge=1, le=1 << 20)
    dropout: bool | None = None
    window: int | None = Field(default=None, ge=1, le=1_000_000_000)
    window_every: int | None = Field(default=None, ge=1, le=10_000)
    relu: bool | None = None
    pseudo_before: int | None = Field(default=None, ge=0, le=100)
    pseudo_after: int | None = Field(default=None, ge=0, le=100)
    blocking_transfers: bool | None = None
    headless: bool | None = None
