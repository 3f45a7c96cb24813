"""Counts bytes by hand, from shapes alone: what a job holds at the very least, beside what the GPUs have.

Nothing here asks the planner or its cost model. Every figure is an under-estimate, so a job that does not
fit by one of these counts fits nowhere:

1. *states*: parameters times the bytes that AdamW keeps of each, against all usable memory;
2. *whole layers*: stages take a divisor of a node or whole nodes, and hold whole layers. Every process loses
   some memory before its first tensor. While one of its layers runs backwards, a GPU has its share of that
   layer's attention matrix (without a fused kernel) and of every layer's input; where ranks replicate one
   another, it has gathered that layer's weights. While the head runs backwards, a GPU has its share of the
   gradients of the logits and of the matrix: as the product leaves it, and as it is accumulated, where that
   is another precision. Where embedding and head are tied but on different stages, either has the matrix.

Beside whatever is no model state a margin stays free, since a plan has to fit by the upper estimate of its
memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

from tangram.cluster.spec import Cluster, GpuSpec, Node
from tangram.job import Job
from tangram.model.spec import FeedForwardSpec, LayerSpec, ModelSpec, MoeSpec, NormKind, PositionKind

GIB = 1024**3
CONTEXT_BYTES = 0.75 * GIB  # CUDA context and library workspaces: at least
COMMUNICATOR_BYTES = 0.25 * GIB  # NCCL's buffers, per communicator: at least
FRAGMENTATION_FRAC = 0.03  # of the usable memory: at least
MARGIN_FRAC = 0.1  # of all that is held beside model states: what must stay free, since counts may be short


EMBEDDING, HEAD = 1, 2  # ends of a model, to be added


class Excess(StrEnum):
    """The first count by which a job does not fit."""

    STATES = "states"
    WHOLE_LAYERS = "whole layers"


def excess(model: ModelSpec, cluster: Cluster, job: Job) -> Excess | None:
    """Returns why a job cannot fit, or None when it may fit by both counts."""
    if state_bytes(model, job) > usable_bytes(cluster, job):
        return Excess.STATES
    return Excess.WHOLE_LAYERS if most_layers(model, cluster, job) < model.num_layers else None


def usable_bytes(cluster: Cluster, job: Job) -> int:
    """Memory of all GPUs that have the job's precision."""
    return sum(node.num_gpus * node.gpu.usable_memory_bytes for node in _nodes(cluster, job))


def state_bytes(model: ModelSpec, job: Job) -> int:
    """Weights, gradients and optimizer states, each once."""
    return num_parameters(model) * bytes_per_parameter(job)


def margined(held_bytes: float) -> float:
    """Bytes that must be there to hold so many that are no model states."""
    return (1 + MARGIN_FRAC) * held_bytes


def bytes_per_parameter(job: Job) -> int:
    """Weight, gradient, master weight and both moments."""
    kept = job.optimizer.gradient_bytes + job.optimizer.master_bytes + job.optimizer.moment_bytes
    return job.precision.element_bytes + kept


def num_parameters(model: ModelSpec) -> int:
    """Parameters of the whole model; a tied head counts once."""
    head = 0 if model.tied_embeddings else model.vocab_size * model.hidden_size
    norm = _norm(model.norm, model.hidden_size)
    layers = sum(count * _layer(layer, model.hidden_size) for layer, count in Counter(model.layers).items())
    return _embedding(model) + layers + norm + head


def _embedding(model: ModelSpec) -> int:
    positions = model.max_positions if model.position is PositionKind.LEARNED else 0
    return (model.vocab_size + positions) * model.hidden_size


def _norm(kind: NormKind, width: int) -> int:
    return 2 * width if kind is NormKind.LAYERNORM else width


def _layer(layer: LayerSpec, hidden: int) -> int:
    block = layer.feed_forward
    if isinstance(block, MoeSpec):
        experts = block.num_experts * _feed_forward(block.expert, hidden)
        return _attention(layer, hidden) + hidden * block.num_experts + experts
    return _attention(layer, hidden) + _feed_forward(block, hidden)


def _attention(layer: LayerSpec, hidden: int) -> int:
    """Attention and both norms of the layer."""
    attention = layer.attention
    queries = attention.num_heads * attention.head_dim
    keys = attention.num_kv_heads * attention.head_dim
    count = 2 * hidden * queries + 2 * hidden * keys + 2 * _norm(layer.norm, hidden)
    count += queries + 2 * keys if attention.qkv_bias else 0
    count += hidden if attention.out_bias else 0
    return count + (2 * attention.head_dim if attention.qk_norm else 0)


def _feed_forward(block: FeedForwardSpec, hidden: int) -> int:
    ups = 2 if block.gated else 1
    bias = ups * block.intermediate_size + hidden if block.bias else 0
    return (ups + 1) * hidden * block.intermediate_size + bias


def _reserve(gpu: GpuSpec, num_communicators: int = 1) -> float:
    lost = FRAGMENTATION_FRAC * gpu.usable_memory_bytes
    return CONTEXT_BYTES + num_communicators * COMMUNICATOR_BYTES + lost


@dataclass(frozen=True)
class Kind:
    """Equal nodes, wherever they are: islands are of one kind, so stages are."""

    gpu: GpuSpec
    gpus_per_node: int
    num_nodes: int

    def stage_sizes(self) -> list[int]:
        """GPUs of a stage: divisors of a node, whole nodes."""
        size = self.gpus_per_node
        within = [gpus for gpus in range(1, size) if size % gpus == 0]
        return within + [size * nodes for nodes in range(1, self.num_nodes + 1)]


def most_layers(model: ModelSpec, cluster: Cluster, job: Job) -> int:
    """Returns how many layers fit at most beside embedding and head; -1 when not even those do."""
    counts = Counter((node.gpu, node.num_gpus) for node in _nodes(cluster, job))
    kinds = [Kind(gpu, per_node, nodes) for (gpu, per_node), nodes in counts.items()]

    @cache
    def room(kind: int, gpus: int, ends: int) -> int:
        """Layers of a stage with these ends of the model."""
        return max(_room(model, job, kinds[kind], gpus, ends))

    @cache
    def most(left: tuple[int, ...], ends: int) -> int:
        """Layers on what is left, with these ends still to be placed, on different stages."""
        best = -model.num_layers - 1 if ends else 0
        for idx, kind in enumerate(kinds):
            for gpus in (size for size in kind.stage_sizes() if size <= left[idx]):
                rest = (*left[:idx], left[idx] - gpus, *left[idx + 1 :])
                for held in {0, ends & EMBEDDING, ends & HEAD}:
                    if room(idx, gpus, held) >= 0:
                        best = max(best, room(idx, gpus, held) + most(rest, ends - held))
        return best

    both = EMBEDDING | HEAD
    alone = max(room(idx, gpus, both) for idx, kind in enumerate(kinds) for gpus in kind.stage_sizes())
    everything = tuple(kind.gpus_per_node * kind.num_nodes for kind in kinds)
    return max(alone, most(everything, both), -1)


def _room(model: ModelSpec, job: Job, kind: Kind, gpus: int, ends: int) -> Iterator[int]:
    """Yields how many layers a stage holds under each tp, fully sharded, one sample per replica."""
    element, states = job.precision.element_bytes, bytes_per_parameter(job)
    shapes = list(dict.fromkeys(model.layers))
    matrix = model.vocab_size * model.hidden_size
    held = matrix * (ends.bit_count() if not model.tied_embeddings else min(ends, 1))  # And no positions.
    head = _head_bytes(model, job) if ends & HEAD else 0
    smallest = min(_layer(layer, model.hidden_size) for layer in shapes)
    weights = min(_replicated(layer, model.hidden_size) for layer in shapes)
    heads = min(layer.attention.num_heads for layer in shapes)
    fused = kind.gpu.attention_kernel == "flash" and element == 2
    scores = 0 if fused else element * heads * job.seq_len**2
    residual = element * job.seq_len * model.hidden_size
    for tp in (t for t in range(1, kind.gpus_per_node + 1) if gpus % t == 0):
        replicas = gpus // tp
        reserve = _reserve(kind.gpu, 1 + (tp > 1) + (replicas > 1))
        gathered = element * weights / tp * (1 - 1 / replicas)
        running = max(scores / tp + gathered, head / tp)
        room = kind.gpu.usable_memory_bytes - margined(reserve) - states * held / gpus
        if room < 0:
            yield -1
            continue
        layers = (room - margined(running)) / (states * smallest / gpus + margined(residual / tp))
        yield int(layers) if layers >= 0 else -1


def _head_bytes(model: ModelSpec, job: Job) -> int:
    """Gradients of the logits of one sample and of the head's matrix, on its way to where it is summed."""
    made = head_gradient_bytes(job)
    logits = job.precision.element_bytes * job.seq_len * model.vocab_size
    return made * model.vocab_size * model.hidden_size + logits


def head_gradient_bytes(job: Job) -> int:
    """Bytes per weight of the head's gradient before it is summed: as made, and converted if need be."""
    element, summed = job.precision.element_bytes, job.optimizer.gradient_bytes
    return element + (summed if summed != element else 0)


def _replicated(layer: LayerSpec, hidden: int) -> int:
    """Parameters that every replica needs in full while the layer runs: experts may each have one home."""
    return _attention(layer, hidden) if layer.moe else _layer(layer, hidden)


def _nodes(cluster: Cluster, job: Job) -> list[Node]:
    return [node for node in cluster.nodes if node.gpu.supports(job.precision)]
