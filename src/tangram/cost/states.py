"""Model states: their bytes on one GPU, and what it takes to keep their replicas equal.

ZeRO (Rajbhandari et al. 2020) shards over the dp x cp ranks, experts over their own replicas: stage 1 the
optimizer's states, 2 also the gradients, 3 also the weights. What moves, per parameter on the rank before
sharding:

* stage 0: one all-reduce of gradients per step;
* stage 1: one reduce-scatter of gradients and one all-gather of weights per step;
* stage 2: a reduce-scatter of gradients per micro-batch, an all-gather of weights per step;
* stage 3: a reduce-scatter per micro-batch, and an all-gather of weights in each forward and each backward. A
  recomputed forward pass uses the gather of its backward pass.

Gradients travel as they are accumulated (``gradient_bytes``), weights as they are stored.

Overlap, assumed: each of these collectives runs beside the compute of its own atom, ``compute_hides_frac`` of
which hides it, and ``exposed_floor_frac`` of it stays visible in any case (what fits on FSDP and NeMo rows
show): ``exposed = max(floor * time, time - hides * compute)``. A faster link never makes it longer. The same
compute never hides two things at once, so a faster GPU never makes a step longer: where activations are
offloaded, the copies have the compute, and collectives are exposed in full.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tangram.cost import links
from tangram.cost.rates import Rates
from tangram.cost.setting import Setting
from tangram.cost.types import BoolArray, FloatArray, Number


class StateBytes(NamedTuple):
    """Bytes on the GPU."""

    weights: FloatArray
    gradients: FloatArray
    optimizer: FloatArray

    def sum(self) -> FloatArray:
        """All states."""
        return self.weights + self.gradients + self.optimizer


class StepTime(NamedTuple):
    """Seconds once per step."""

    grad_sync: FloatArray
    param_gather: FloatArray
    optimizer: FloatArray
    optimizer_offload: FloatArray

    def sum(self) -> FloatArray:
        """All of it: nothing of the step end overlaps with the rest of it."""
        return self.grad_sync + self.param_gather + self.optimizer + self.optimizer_offload


def state_bytes(setting: Setting, dense: FloatArray, expert: FloatArray) -> StateBytes:
    """Returns the model states on the GPU.

    Args:
        setting: Degrees and dtypes.
        dense, expert: Parameters on the rank before ZeRO; last axis ``num_configs``.
    """
    zero = setting.configs.zero
    gradient_bytes = setting.gradient_bytes + setting.memory.further_gradient_bytes
    held = 1.0 - setting.configs.offload_optimizer
    return StateBytes(
        weights=setting.element_bytes * _sharded(setting, dense, expert, zero >= 3),
        gradients=gradient_bytes * _sharded(setting, dense, expert, zero >= 2),
        optimizer=setting.optimizer_bytes * held * _sharded(setting, dense, expert, zero >= 1),
    )


def gather_s(setting: Setting, rates: Rates, dense: FloatArray, expert: FloatArray) -> FloatArray:
    """Time of all-gathering the weights of all replicas' shards, before overlap."""
    return _sweep_s(setting, rates, dense, expert, setting.element_bytes)


def reduce_s(setting: Setting, rates: Rates, dense: FloatArray, expert: FloatArray) -> FloatArray:
    """Time of reduce-scattering the gradients, before overlap."""
    return _sweep_s(setting, rates, dense, expert, setting.gradient_bytes)


def exposed_s(rates: Rates, collective_s: FloatArray, compute_s: FloatArray) -> FloatArray:
    """Returns what of a collective stays visible beside that much compute."""
    stack = rates.stack
    return np.maximum(
        stack.exposed_floor_frac * collective_s, collective_s - stack.compute_hides_frac * compute_s
    )


def zero_s(
    setting: Setting,
    rates: Rates,
    dense: FloatArray,
    expert: FloatArray,
    forward_s: FloatArray,
    backward_s: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """Returns what ZeRO 2 and 3 add to forward and backward of every micro-batch.

    Args:
        setting: Degrees.
        rates: Of links, and what overlaps.
        dense, expert: Parameters on the rank before ZeRO; shape ``(num_atoms, num_configs)``, as all others.
        forward_s, backward_s: Compute that can hide collectives.
    """
    zero = setting.configs.zero
    weights = (zero >= 3) * gather_s(setting, rates, dense, expert)
    gradients = (zero >= 2) * reduce_s(setting, rates, dense, expert)
    forward = exposed_s(rates, weights, forward_s)
    backward = exposed_s(rates, weights + gradients, backward_s)
    return forward, backward


def step_time(
    setting: Setting,
    rates: Rates,
    dense: FloatArray,
    expert: FloatArray,
    forward_s: FloatArray,
    backward_s: FloatArray,
) -> StepTime:
    """Returns the time after the last micro-batch.

    Gradients are reduced beside the last backward pass, weights gathered beside the next forward pass. The
    optimizer reads and writes its states, reads gradients and writes weights. In host memory it does the same
    at the host's bandwidth, gradients and weights cross PCIe, and nothing overlaps.

    Args:
        setting: Degrees and rates.
        rates: Of memory and links, and what overlaps.
        dense, expert: Parameters on the rank before ZeRO; shape ``(num_atoms, num_configs)``, as all others.
        forward_s, backward_s: Compute of one micro-batch that can hide collectives.
    """
    zero, offloaded = setting.configs.zero, setting.configs.offload_optimizer
    # A ring all-reduce is a reduce-scatter and an all-gather of the same bytes.
    sync = np.where(zero == 0, 2.0, np.where(zero == 1, 1.0, 0.0)) * reduce_s(setting, rates, dense, expert)
    gather = ((zero == 1) | (zero == 2)) * gather_s(setting, rates, dense, expert)
    updated = _sharded(setting, dense, expert, zero >= 1)
    # fp32 weights are read and written by the optimizer itself; 16-bit ones are only written.
    weight_passes = np.where(setting.element_bytes < 4, 1, 2)
    touched_bytes = updated * (
        2 * setting.optimizer_bytes + setting.gradient_bytes + weight_passes * setting.element_bytes
    )
    crossing_bytes = updated * (setting.gradient_bytes + setting.element_bytes)
    return StepTime(
        grad_sync=exposed_s(rates, sync, backward_s),
        param_gather=exposed_s(rates, gather, forward_s),
        optimizer=touched_bytes * np.where(offloaded, rates.host_update_s_per_byte, rates.stream_s_per_byte),
        optimizer_offload=crossing_bytes * (offloaded * rates.host_copy_s_per_byte),
    )


def _sharded(setting: Setting, dense: FloatArray, expert: FloatArray, where: BoolArray) -> FloatArray:
    """Parameters left on the rank where they are sharded."""
    return dense / np.where(where, setting.data_ranks, 1.0) + expert / np.where(
        where, setting.expert_data_ranks, 1.0
    )


def _sweep_s(
    setting: Setting, rates: Rates, dense: FloatArray, expert: FloatArray, bytes_each: Number
) -> FloatArray:
    """One ring pass over all parameters of the rank; atoms without parameters cost no latency."""
    links_of, remote_frac = rates.links, setting.groups.remote_frac
    latency = (dense > 0) * links_of.latency_s[links.DATA]
    latency = latency + (expert > 0) * links_of.latency_s[links.EXPERT_DATA]
    per_byte = remote_frac * links_of.seconds_per_byte
    dense_s = dense * (per_byte[links.DATA] * bytes_each)
    expert_s = expert * (per_byte[links.EXPERT_DATA] * bytes_each)
    seconds: FloatArray = dense_s + expert_s + latency
    return seconds
