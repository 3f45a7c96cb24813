"""Memory beside model states: activations, transients, and what is lost to everybody."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tangram.cost import work
from tangram.cost.rates import Rates
from tangram.cost.setting import Setting
from tangram.cost.types import FloatArray

BOUNDARY_BUFFERS = 4
"""Micro-batches of residual stream in flight between stages: two in, two out (double buffering)."""

OFFLOAD_BUFFERS = 2
"""Atoms whose offloaded activations are on the GPU at once: the running one and the one being copied."""

GATHERED_LAYERS = 2
"""Layers whose ZeRO-3 weights are gathered at once: the running one and the prefetched one."""


class ActivationBytes(NamedTuple):
    """In the order of ``AtomCosts``."""

    stored: FloatArray
    recomputed_stored: FloatArray
    workspace: FloatArray
    recompute_workspace: FloatArray


def stored_bytes(rates: Rates, table: FloatArray) -> FloatArray:
    """Returns what atoms keep for the backward pass per micro-batch; ``(num_atoms, num_configs)``."""
    kept: FloatArray = table[work.STORED] + rates.imbalance * table[work.EXPERT_STORED]
    return kept


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
    stored, offloaded = stored_bytes(rates, table), setting.configs.offload_activations
    buffers = _zero_workspace_bytes(setting, rates, layer_dense, layer_expert)
    buffers += offloaded * (OFFLOAD_BUFFERS * stored)
    rerun = stored + setting.configs.selective * table[work.DROPPABLE]
    own = np.maximum(_head_bytes(setting, rates, table), rates.imbalance * table[work.EXPERT_TRANSIENT])
    return ActivationBytes(
        stored=np.where(offloaded, 0.0, stored),
        recomputed_stored=table[work.INPUT],
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

    That is context, communicators (one per group of more than one rank, and one for the pipeline), buffers of
    the pipeline's boundaries, and fragmentation.
    """
    stack = rates.stack
    communicators = 1.0 + setting.num_communicators
    boundary_bytes = BOUNDARY_BUFFERS * setting.residual_bytes
    lost_bytes = stack.fragmentation_frac * setting.hardware.usable_memory_bytes
    reserved: FloatArray = stack.communicator_bytes * communicators + boundary_bytes
    return stack.context_bytes + lost_bytes + reserved


def _head_bytes(setting: Setting, rates: Rates, table: FloatArray) -> FloatArray:
    """Transients of the LM head: logits, their copies and gradients, and the gradient of its matrix."""
    stack = rates.stack
    per_logit = stack.logit_fixed_bytes + stack.logit_element_ratio * setting.element_bytes
    transient: FloatArray = (
        table[work.LOGITS] * per_logit + table[work.HEAD_WEIGHTS] * stack.head_gradient_bytes
    )
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
