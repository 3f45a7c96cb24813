"""Memory beside model states: activations, transients, and what is lost to everybody."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tangram.cost import work
from tangram.cost.rates import Rates
from tangram.cost.setting import Setting
from tangram.cost.types import FloatArray, Number
from tangram.units import MIB

BOUNDARY_BUFFERS = 4
"""Micro-batches of residual stream in flight between stages: two in, two out (double buffering)."""

OFFLOAD_BUFFERS = 2
"""Atoms whose offloaded activations are on the GPU at once: the running one and the one being copied."""

GATHERED_LAYERS = 2
"""Layers whose ZeRO-3 weights are gathered at once: the running one and the prefetched one."""

GROUPED_WORKSPACES = 4
"""Streams that the products of experts are spread over (Transformer Engine, ``cpp_extensions/gemm.py``)."""

FP32_BYTES = 4.0
"""Of a softmax that the loss keeps."""

DETERMINISTIC_WORKSPACE_BYTES = 32 * MIB
"""Workspace that deterministic cuBLAS is given (``CUBLAS_WORKSPACE_CONFIG=:4096:8``; cuBLAS manual)."""


class ActivationBytes(NamedTuple):
    """In the order of ``AtomCosts``."""

    stored: FloatArray
    recomputed_stored: FloatArray
    workspace: FloatArray
    recompute_workspace: FloatArray


def stored_bytes(setting: Setting, rates: Rates, table: FloatArray) -> FloatArray:
    """Returns what atoms keep for the backward pass per micro-batch; ``(num_atoms, num_configs)``."""
    kept: FloatArray = table[work.STORED] + _imbalance(setting, rates) * table[work.EXPERT_STORED]
    return rates.stack.activation_ratio * kept


def activation_bytes(
    setting: Setting, rates: Rates, table: FloatArray, layer_dense: FloatArray, layer_expert: FloatArray
) -> ActivationBytes:
    """Returns what atoms keep per micro-batch, and what they need while they run.

    Workspace is the largest transient of a part, plus what ZeRO needs of one layer: at stage 3 two gathered
    layers and one layer of unsharded gradients, below it a bucket of gradients. Recomputing an atom in full
    brings all its activations back at once, on top of that: ``recompute_workspace`` includes the workspace,
    so a stage needs the larger of the two.

    Offloaded activations leave two atoms' worth on the GPU.

    Args:
        setting: Degrees and dtypes.
        rates: What the stack adds.
        table: Work of the atoms, shape ``(NUM_ROWS, num_atoms, num_configs)``.
        layer_dense, layer_expert: Parameters of the largest layer of each atom, shape ``(num_atoms,
            num_configs)``.
    """
    stored, offloaded = stored_bytes(setting, rates, table), setting.configs.offload_activations
    buffers = _zero_workspace_bytes(setting, rates, layer_dense, layer_expert)
    buffers += offloaded * (OFFLOAD_BUFFERS * stored)
    ratio = rates.stack.activation_ratio
    rerun = stored + ratio * setting.configs.selective * table[work.DROPPABLE]
    busy = _imbalance(setting, rates) * table[work.EXPERT_TRANSIENT]
    own = np.maximum(_head_bytes(setting, rates, table), busy)
    return ActivationBytes(
        stored=np.where(offloaded, 0.0, stored),
        recomputed_stored=ratio * table[work.INPUT],
        workspace=np.maximum(table[work.TRANSIENT], own) + buffers,
        recompute_workspace=np.maximum(table[work.RERUN_TRANSIENT], own) + buffers + rerun,
    )


def offload_s(
    setting: Setting, rates: Rates, stored: FloatArray, forward_s: FloatArray, backward_s: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Returns what copying activations to the host in forward, and back in backward, adds to either.

    That is where a copy takes longer than the compute beside it.

    Args:
        setting: Which configurations offload.
        rates: Of copies, and what hides them.
        stored: Bytes of the atoms per micro-batch; shape ``(num_atoms, num_configs)``, as all others.
        forward_s, backward_s: Compute that hides the copies.
    """
    copy_s = stored * (setting.configs.offload_activations * rates.host_copy_s_per_byte)
    hides = rates.stack.compute_hides_frac
    return np.maximum(copy_s - hides * forward_s, 0.0), np.maximum(copy_s - hides * backward_s, 0.0)


def reserve_bytes(setting: Setting, rates: Rates) -> FloatArray:
    """Returns what every GPU of the stage loses, whatever it computes; shape ``(num_configs,)``.

    That is :func:`least_reserve_bytes`, a communicator for every group of more than one rank, and buffers of
    the pipeline's boundaries.
    """
    communicator_bytes = rates.stack.communicator_bytes * setting.num_communicators
    reserved: FloatArray = communicator_bytes + BOUNDARY_BUFFERS * setting.residual_bytes
    return reserved + least_reserve_bytes(setting, rates)


def least_reserve_bytes(setting: Setting, rates: Rates) -> FloatArray:
    """Returns what a GPU of this kind loses in any stage: context, the pipeline's communicator, fragmentation
    and workspaces of libraries; shape ``(num_configs,)``.
    """
    stack = rates.stack
    lost_bytes = stack.fragmentation_frac * setting.hardware.usable_memory_bytes
    lost: FloatArray = workspace_bytes(setting, rates) + lost_bytes
    return lost + stack.context_bytes + stack.communicator_bytes


def workspace_bytes(setting: Setting, rates: Rates) -> FloatArray:
    """Returns what libraries of matrix products hold from the first product on; shape ``(num_configs,)``.

    Forward and backward run in threads of their own, each with a workspace of PyTorch's; a library with fp8
    has another one, and one per stream for the products of experts.
    """
    options, stack = setting.memory, rates.stack
    usual = rates.gpu.blas_workspace_bytes
    plain = np.where(options.deterministic, np.maximum(usual, DETERMINISTIC_WORKSPACE_BYTES), usual)
    grouped = np.where(options.grouped_products, GROUPED_WORKSPACES, 0)
    fused = (stack.fused_workspaces + grouped) * rates.gpu.fused_workspace_bytes
    return np.broadcast_to(stack.blas_workspaces * plain + fused, setting.tp.shape)


def placeholder_bytes(setting: Setting, layer_dense: FloatArray, layer_expert: FloatArray) -> FloatArray:
    """Returns what frameworks keep in place of gradients that a product adds up itself.

    That is one tensor of each shape, so the weights of one layer and of one expert (Transformer Engine since
    2.3, ``get_dummy_wgrad``).

    Args:
        setting: Degrees and dtypes.
        layer_dense, layer_expert: Parameters of the largest layer of each atom, shape ``(num_atoms,
            num_configs)``.
    """
    if not setting.memory.fused_accumulation:
        return np.zeros(layer_dense.shape[-1])
    blocks = [layer.moe.num_experts for layer in setting.model.layers if layer.moe is not None]
    expert = layer_expert * (setting.ep / max(blocks, default=1))
    largest: FloatArray = setting.element_bytes * (layer_dense.max(axis=0) + expert.max(axis=0))
    return largest


def reduce_buffer_bytes(setting: Setting, rates: Rates, params: FloatArray) -> FloatArray:
    """Returns what copies of gradients take that are made to be reduced, stage by stage instead of in place.

    Args:
        setting: Degrees and dtypes.
        rates: What the stack adds.
        params: Of the stage on a rank; shape ``(num_configs,)``.
    """
    copied: FloatArray = np.minimum(rates.stack.reduce_buffer_elements, params) * (setting.data_ranks > 1)
    return copied * setting.gradient_bytes


def upper_bytes(state_bytes: FloatArray, other_bytes: FloatArray, ratio: Number) -> FloatArray:
    """Returns the peak that fewer than 1 run of 50 exceeds: what has to fit.

    Args:
        state_bytes: Model states, which are counted.
        other_bytes: Best estimates of all else.
        ratio: The stack's ``upper_memory_ratio``.
    """
    return state_bytes + ratio * other_bytes


def _imbalance(setting: Setting, rates: Rates) -> Number:
    spread = (setting.ep > 1) & ~np.asarray(setting.memory.balanced_experts)
    balanced: FloatArray = np.where(spread, rates.stack.expert_peak_imbalance, 1.0)
    return balanced


def _head_bytes(setting: Setting, rates: Rates, table: FloatArray) -> FloatArray:
    """Transients of the LM head, at the worse of two moments.

    In the loss: logits and their copies. In the head's backward pass: the gradients of the logits, of the
    input, and of the matrix. At both: gradients of logits that wait for their weight gradient, and softmaxes
    of further losses.
    """
    options, stack, element = setting.memory, rates.stack, setting.element_bytes
    copies = stack.logit_fixed_bytes * options.loss_copies
    loss = table[work.LOGITS] * (copies + stack.logit_element_ratio * element)
    gradients = table[work.LOGITS] * element + table[work.HEAD_WEIGHTS] * stack.head_gradient_bytes
    gradients += (table[work.LOGITS] > 0) * table[work.TRANSIENT]
    further_losses = options.further_losses + setting.model.num_prediction_layers
    waiting = (options.deferred_heads * element + further_losses * FP32_BYTES) * table[work.LOGITS]
    transient: FloatArray = np.maximum(loss, gradients) + waiting
    return transient


def _zero_workspace_bytes(
    setting: Setting, rates: Rates, layer_dense: FloatArray, layer_expert: FloatArray
) -> FloatArray:
    """Parameters without other replicas need neither gathering nor buckets."""
    dense = layer_dense * (setting.data_ranks > 1)
    shared = dense + layer_expert * (setting.expert_data_ranks > 1)
    gradient_bytes = setting.gradient_bytes * shared
    bucket_bytes = np.minimum(gradient_bytes, rates.stack.gradient_bucket_bytes)
    gathered_bytes = GATHERED_LAYERS * setting.element_bytes * shared + gradient_bytes
    return np.where(setting.configs.zero >= 3, gathered_bytes, bucket_bytes)
