"""A measured run: one row of a table of measurements, with everything that a predictor needs.

Nothing here depends on where the row comes from: what a source fixes for all of its rows (the software, the
network, what its memory figures mean) has been resolved by :mod:`tangram.validation.reading`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum

from tangram.cluster.spec import GpuSpec
from tangram.job import OptimizerSpec, Precision, Recompute
from tangram.model.flops import model_flop_per_token
from tangram.model.spec import ModelSpec


class Basis(StrEnum):
    """Where a bandwidth comes from: the row itself, what is known of its machine, or the catalogue."""

    ROW = "row"
    SOURCE = "source"
    CATALOGUE = "catalogue"


class Fp8(StrEnum):
    """Scaling of 8-bit (or 4-bit) matrix products; everything that is no layer's product stays 16-bit."""

    NONE = "none"
    PER_TENSOR = "per-tensor"
    MX = "mx"
    BLOCKWISE = "blockwise"
    NVFP4 = "nvfp4"


class Attention(StrEnum):
    """The attention core: one fused kernel that keeps no scores, several kernels that do, or not stated."""

    FLASH = "flash"
    UNFUSED = "unfused"
    UNKNOWN = "unknown"


class Tuning(StrEnum):
    """What is trained: everything on full samples, everything on packed short ones, or adapters only."""

    PRETRAIN = "pretrain"
    SFT = "sft"
    LORA = "lora"


class MemoryKind(StrEnum):
    """What a memory figure counts: the allocator's peak, or all that the device has in use."""

    ALLOCATOR = "allocator"
    DEVICE = "device"


class MemoryRanks(StrEnum):
    """Whose peak a memory figure is: the largest of all ranks, that of the first, or of the last stage."""

    MAX = "max"
    FIRST_STAGE = "first-stage"
    LAST_STAGE = "last-stage"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a row stands.

    Attributes:
        file: Name of the file, without its folder.
        line: 1 for the first row of data.
        source: Name of the source in the table of known sources, or ``unknown``.
        gpu: The GPU as the row has it; for print and for grouping.
    """

    file: str
    line: int
    source: str
    gpu: str


@dataclass(frozen=True, slots=True)
class Host:
    """A node that holds tensor-parallel groups of a run.

    Attributes:
        gpu: The part; all of a node are equal.
        gpus_per_node: GPUs of the node, used or not.
        link_domain: GPUs that the fast links join: those of the node, or of a rack of nodes (NVL72).
        link_bytes_per_s: Between two GPUs of the node, per GPU and direction.
        nic_bytes_per_s: All NICs of the node together, per direction.
        nic_is_measured: Whether that was measured between such nodes, and is not what the NICs are rated at.
    """

    gpu: GpuSpec
    gpus_per_node: int
    link_domain: int
    link_bytes_per_s: float
    nic_bytes_per_s: float
    nic_is_measured: bool = False


@dataclass(frozen=True, slots=True)
class Hardware:
    """Which node every replica of every stage runs on.

    Attributes:
        hosts: One entry per stage, each with one host for all replicas of the stage or with one per replica
            (dp of them); a homogeneous run has a single entry with a single host.
        link_basis: Where the links' bandwidth comes from.
        nic_basis: Where the NICs' bandwidth comes from.
    """

    hosts: tuple[tuple[Host, ...], ...]
    link_basis: Basis
    nic_basis: Basis

    @property
    def is_mixed(self) -> bool:
        """Whether the run uses different parts or different nodes."""
        return len({host for row in self.hosts for host in row}) > 1

    @property
    def lanes(self) -> tuple[tuple[Host, ...], ...]:
        """The different pipelines, in order of first appearance: the node of every stage of a replica.

        Replica k of a stage talks to replica k of the next. A run of equal nodes has one lane of one host.
        """
        replicas = range(max(len(row) for row in self.hosts))
        lanes = (tuple(row[k if len(row) > 1 else 0] for row in self.hosts) for k in replicas)
        return tuple(dict.fromkeys(lanes))

    @property
    def gpus(self) -> tuple[GpuSpec, ...]:
        """The different parts, in order of first appearance."""
        return tuple(dict.fromkeys(host.gpu for row in self.hosts for host in row))

    def row(self, stage: int) -> tuple[Host, ...]:
        """Returns the nodes of a stage: one for all replicas, or one per replica."""
        return self.hosts[stage if len(self.hosts) > 1 else 0]

    def host(self, stage: int = 0, replica: int = 0) -> Host:
        """Returns the node of a replica of a stage."""
        row = self.row(stage)
        return row[replica if len(row) > 1 else 0]


@dataclass(frozen=True, slots=True)
class Degrees:
    """How the run is parallelised.

    Attributes:
        dp, tp, pp, cp, ep: Degrees; ep is carved out of the others and does not multiply the GPUs.
        vpp: Model chunks of a stage (interleaved schedule); 1 for plain 1F1B.
        expert_tp: Tensor parallelism of the experts.
        zero: ZeRO stage; 3 for fully sharded data parallelism, 1 for a distributed optimizer.
        fsdp: Whether the sharding is done layer by layer by an FSDP.
        shard_ranks: Ranks that share one copy of the sharded states, when fewer than dp x cp (HSDP, or
            several instances of a distributed optimizer).
        experts_per_rank: Whole experts that a rank of the ep group works on at a time, where experts are
            replicated in the group; None where each has one place in it.
        chunk_group: Micro-batches that a chunk of an interleaved schedule takes in a row; pp where None.
    """

    dp: int
    tp: int
    pp: int
    cp: int
    ep: int
    vpp: int
    expert_tp: int
    zero: int
    fsdp: bool
    shard_ranks: int | None = None
    experts_per_rank: int | None = None
    chunk_group: int | None = None

    @property
    def num_gpus(self) -> int:
        """GPUs of the run."""
        return self.dp * self.tp * self.pp * self.cp


@dataclass(frozen=True, slots=True)
class Numbers:
    """Precision and storage.

    Attributes:
        precision: Of the 16-bit (or wider) products; storage of weights and activations.
        fp8: Scaling of the 8-bit products, ``none`` without.
        tf32_where_possible: Whether fp32 products run in tf32 on parts that have it; where all have it,
            ``precision`` says so too.
        optimizer: Bytes per parameter of gradients and optimizer, as far as the stack fixes them.
        gradient_copy_bytes: Per parameter, a further copy of the gradients, sharded like the optimizer.
        further_gradient_bytes: Per parameter, a further copy of the gradients, sharded like them.
        reduce_bytes: Bytes of a gradient element as data parallelism sends it.
    """

    precision: Precision
    fp8: Fp8
    tf32_where_possible: bool
    optimizer: OptimizerSpec
    gradient_copy_bytes: int
    reduce_bytes: int
    further_gradient_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Saving:
    """What is done to save memory.

    Attributes:
        recompute: None, some modules of every layer, or whole layers; as the row or its source says.
        modules: The modules of ``selective``, as Megatron calls them (``core_attn``, ``moe_act`` ...).
        stated: Whether the row or its source says so; else ``none`` is an assumption.
        optimizer_offload: Optimizer states and update on the host.
        parameter_offload: Weights on the host (ZeRO-3).
        offloaded_layers: Layers whose activations go to the host.
        deferred_heads: Micro-batches whose weight gradient of the LM head is put off.
    """

    recompute: Recompute
    modules: tuple[str, ...]
    stated: bool
    optimizer_offload: bool = False
    parameter_offload: bool = False
    offloaded_layers: int = 0
    deferred_heads: int = 0


@dataclass(frozen=True, slots=True)
class Software:
    """The stack and its options; None where nobody says.

    Attributes:
        stack: Name of the shelf of stack constants, such as ``megatron-2025``; free text.
        attention: Kind of the attention core.
        sequence_parallel: Whether activations between tensor-parallel regions are split over tp.
        dispatcher: How tokens reach experts: ``alltoall``, ``allgather``, ``deepep``, ``hybridep``, ``flex``.
        overlap_ep: Whether the exchange of tokens runs beside compute.
        balanced_experts: Whether tokens are spread evenly over experts by force.
        cuda_graphs: Whether (parts of) layers are launched as graphs.
        cross_entropy_fusion: Whether the loss is fused.
        loss_in_place: Whether it is one kernel that overwrites the logits with their gradients.
        deterministic: Whether kernels are deterministic.
        grouped_products: Whether the products of experts are one grouped product.
        weighs_outputs: Whether the outputs of experts, not their activations, are weighted.
        fused_accumulation: Whether products add up weight gradients themselves.
        dropout: Whether there is dropout, whose masks are kept.
        relu: Whether backward needs the output of the activation function only.
        overlap_gradients: Whether gradients are reduced beside the backward pass.
        overlap_parameters: Whether parameters are gathered beside the forward pass.
        environment: Version of the stack, as the source calls it; no part of the configuration's key.
        method: Name of a training method that places experts its own way, or None.
        flags: Further options that the source lists, as it writes them.
        blocking_transfers: Whether stages send and receive in line with their kernels, so that both ends of a
            transfer wait for it.
        headless: Whether the loss is taken of what the last norm returns: there is no LM head.
    """

    stack: str
    attention: Attention
    sequence_parallel: bool
    dispatcher: str | None = None
    overlap_ep: bool | None = None
    balanced_experts: bool | None = None
    cuda_graphs: bool | None = None
    cross_entropy_fusion: bool | None = None
    loss_in_place: bool | None = None
    deterministic: bool | None = None
    grouped_products: bool | None = None
    fused_accumulation: bool | None = None
    weighs_outputs: bool | None = None
    dropout: bool | None = None
    relu: bool | None = None
    overlap_gradients: bool | None = None
    overlap_parameters: bool | None = None
    environment: str | None = None
    method: str | None = None
    flags: tuple[str, ...] = ()
    blocking_transfers: bool | None = field(default=None, repr=False)
    headless: bool | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured; None where it was not.

    Attributes:
        iter_s: One step, in seconds.
        peak_memory_gib: Peak memory.
        memory_kind: What the memory figure counts.
        memory_ranks: Whose peak it is.
        scores_time: Whether the source says that its times can be trusted; else they are shown, not scored.
        scores_memory: Likewise for memory.
    """

    iter_s: float | None
    peak_memory_gib: float | None
    memory_kind: MemoryKind
    memory_ranks: MemoryRanks
    scores_time: bool = True
    scores_memory: bool = True


@dataclass(frozen=True, slots=True)
class Run:
    """One measured row with complete configuration.

    Attributes:
        origin: Where it stands.
        key: Equal for repeats of one configuration: measurements, notes and names do not count.
        hardware: Nodes and network.
        model: Shapes, without layers for multi-token prediction.
        mtp_layers: Layers that predict further tokens, each with a pass through the head of its own.
        layers_per_stage: Transformer layers of each stage; embedding in the first, head in the last.
        seq_len: Tokens per sample.
        global_batch: Samples per step.
        micro_batch: Samples of one replica per pass.
        degrees: Parallelism.
        numbers: Precision and storage.
        saving: Recomputation and offload.
        software: The stack and its options.
        tuning: What is trained.
        filled: Columns that the row leaves empty and that were filled from what is known of its source.
        measured: Time and memory.
    """

    origin: Origin
    key: str
    hardware: Hardware
    model: ModelSpec
    mtp_layers: int
    layers_per_stage: tuple[int, ...]
    seq_len: int
    global_batch: int
    micro_batch: int
    degrees: Degrees
    numbers: Numbers
    saving: Saving
    software: Software
    tuning: Tuning
    filled: tuple[str, ...]
    measured: Measured

    @property
    def num_micro_batches(self) -> int:
        """Micro-batches of one replica per step."""
        return self.global_batch // (self.micro_batch * self.degrees.dp)

    @property
    def num_gpus(self) -> int:
        """GPUs of the run."""
        return self.degrees.num_gpus

    @property
    def is_moe(self) -> bool:
        """Whether the model has experts."""
        return self.model.has_moe

    @property
    def is_mixed(self) -> bool:
        """Whether the run uses different GPUs."""
        return self.hardware.is_mixed

    def model_flop(self, *, causal: bool) -> float:
        """Counts the model FLOP of one step: forward and backward without recomputation.

        A layer for multi-token prediction counts as a layer with a projection of 2 h x h before it and a pass
        through the head behind it (DeepSeek-V3, arXiv 2412.19437, section 2.2). With a frozen base the
        backward pass has no products for weights; the adapters' own are not counted.

        Args:
            causal: Count only the half of the attention square that a causal mask leaves.
        """
        model, extra = self.model, self.mtp_layers
        deeper = replace(model, layers=model.layers + model.layers[-1:] * extra) if extra else model
        ends = extra * 6 * model.hidden_size * (model.vocab_size + 2 * model.hidden_size)
        tokens = float(self.global_batch) * self.seq_len
        tokens *= 2 / 3 if self.tuning is Tuning.LORA else 1.0
        return tokens * float(model_flop_per_token(deeper, self.seq_len, causal=causal) + ends)
