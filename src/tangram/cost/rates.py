"""What work costs in seconds: stated hardware figures times calibrated constants.

Everything that can be calibrated enters here (and in the bytes of :mod:`tangram.cost.memory`); tables of work
(:mod:`tangram.cost.work`) know no constants.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tangram.cost import links, work
from tangram.cost.constants import Constants, GpuConstants, StackConstants
from tangram.cost.links import LinkRates
from tangram.cost.setting import Setting
from tangram.cost.types import FloatArray, Number


@dataclass(frozen=True, slots=True)
class Rates:
    """Seconds per unit of work; scalars, or arrays of shape ``(num_configs,)``.

    Attributes:
        gemm_s_per_flop, gemm_overhead_rows: Of products in the job's precision.
        pass_bytes_per_logit: What the loss moves in one pass.
        head_s_per_flop, head_overhead_rows: Of the LM head's, at 16 bit where the job's precision has less.
        flash_s_per_flop, unfused_s_per_flop, score_s_per_byte: Of attention.
        element_s_per_byte: Of element-wise kernels, per byte that fused ones move.
        unaligned_ratio: Time of unfused attention with unaligned heads over that of others.
        stream_s_per_byte: Of memory that is read and written in one sweep.
        launch_s, moe_launch_s: Per layer's worth of launches, in one pass.
        ep_exposed_frac: Share of the exchange of tokens that no kernel hides.
        imbalance: Tokens of the busiest expert-parallel rank over the mean.
        links: Of collectives.
        gpu: What the GPU's family adds in bytes.
        stack: What the stack adds in bytes and in overlap.
        host_copy_s_per_byte: Between GPU and host.
        host_update_s_per_byte: Of an optimizer in host memory, per GPU; all GPUs of the node are taken to do
            the same.
    """

    gemm_s_per_flop: Number
    gemm_overhead_rows: Number
    pass_bytes_per_logit: Number
    head_s_per_flop: Number
    head_overhead_rows: Number
    flash_s_per_flop: Number
    unfused_s_per_flop: Number
    unaligned_ratio: Number
    score_s_per_byte: Number
    element_s_per_byte: Number
    stream_s_per_byte: Number
    launch_s: Number
    moe_launch_s: Number
    ep_exposed_frac: Number
    imbalance: Number
    links: LinkRates
    gpu: GpuConstants
    stack: StackConstants
    host_copy_s_per_byte: Number
    host_update_s_per_byte: Number

    @staticmethod
    def of(setting: Setting, constants: Constants) -> Rates:
        """Applies constants to the stated figures of a setting."""
        gpu, stack, hardware = constants.gpu, constants.stack, setting.hardware
        wide, narrow = hardware.wide_flop_per_s, setting.is_fp8
        efficiency = np.where(narrow, gpu.fp8_efficiency, gpu.gemm_efficiency)
        efficiency = np.where(setting.is_fp4, gpu.fp4_efficiency, efficiency)
        achieved = efficiency * hardware.achieved_flop_per_s
        bandwidth = hardware.memory_bandwidth_bytes_per_s
        options = setting.options
        launch_s = stack.launch_s * np.where(options.cuda_graphs, stack.graph_launch_ratio, 1.0)
        exposed = np.where(options.overlap_experts, stack.ep_overlapped_frac, stack.ep_exposed_frac)
        exposed = exposed * np.where(options.fused_dispatch, stack.fused_dispatch_ratio, 1.0)
        return Rates(
            gemm_s_per_flop=1 / achieved,
            gemm_overhead_rows=np.where(narrow, gpu.fp8_overhead_rows, gpu.gemm_overhead_rows),
            pass_bytes_per_logit=0.5
            * (1 + setting.model.num_prediction_layers)
            * (stack.logit_traffic_fixed_bytes + stack.logit_traffic_element_ratio * setting.element_bytes),
            head_s_per_flop=1 / (gpu.gemm_efficiency * wide),
            head_overhead_rows=gpu.gemm_overhead_rows,
            flash_s_per_flop=stack.attention_ratio / (gpu.flash_efficiency * wide),
            unfused_s_per_flop=1 / (gpu.unfused_efficiency * wide),
            unaligned_ratio=gpu.unaligned_ratio,
            score_s_per_byte=1 / (gpu.score_efficiency * bandwidth),
            element_s_per_byte=stack.elementwise_ratio / (gpu.memory_efficiency * bandwidth),
            stream_s_per_byte=1 / (gpu.memory_efficiency * bandwidth),
            launch_s=launch_s,
            moe_launch_s=launch_s * stack.moe_launch_ratio,
            ep_exposed_frac=exposed,
            imbalance=np.where(
                (setting.ep > 1) & ~np.asarray(setting.memory.balanced_experts), stack.expert_imbalance, 1.0
            ),
            links=LinkRates.of(setting.groups, stack, constants.cluster),
            gpu=gpu,
            stack=stack,
            host_copy_s_per_byte=1 / (constants.cluster.host_copy_efficiency * hardware.pcie_bytes_per_s),
            host_update_s_per_byte=hardware.gpus_per_node / stack.host_bandwidth_bytes_per_s,
        )

    def times(self, table: FloatArray) -> FloatArray:
        """Returns the times of all kinds, forward and backward.

        Args:
            table: Work; shape ``(NUM_ROWS, ..., num_configs)``.

        Returns:
            Seconds; shape ``(NUM_TIMES, ..., num_configs)``.
        """
        count = table[: work.NUM_WORK].reshape(2, work.BACKWARD, *table.shape[1:])
        seconds = np.empty((2, work.BACKWARD_S, *table.shape[1:]))
        latency, per_byte = self.links.latency_s, self.links.seconds_per_byte
        kernels, stack = self.stack.kernel_ratio, self.stack
        for out, row in zip(seconds, count, strict=True):
            out[work.MATMUL_S] = kernels * self._matmul_s(row)
            out[work.ATTENTION_S] = kernels * self._attention_s(row)
            moved_s = (row[work.STREAM] + self.imbalance * row[work.EXPERT_STREAM]) * self.element_s_per_byte
            moved_s += table[work.LOGITS] * (self.pass_bytes_per_logit * self.stream_s_per_byte)
            out[work.ELEMENTWISE_S] = kernels * moved_s
            out[work.LAUNCH_S] = row[work.LAUNCH] * self.launch_s + row[work.MOE_LAUNCH] * self.moe_launch_s
            tp_s = row[work.TP_CALLS] * latency[links.TP] + row[work.TP_BYTES] * per_byte[links.TP]
            cp_s = row[work.CP_CALLS] * latency[links.CP] + row[work.CP_BYTES] * per_byte[links.CP]
            out[work.TP_S] = stack.tp_exposed_frac * tp_s
            out[work.CP_S] = stack.cp_exposed_frac * cp_s
            out[work.EP_S] = self.ep_exposed_frac * self._expert_exchange_s(row)
        return seconds.reshape(work.NUM_TIMES, *table.shape[1:])

    def _attention_s(self, row: FloatArray) -> FloatArray:
        unfused = row[work.UNFUSED] + self.unaligned_ratio * row[work.UNALIGNED]
        seconds: FloatArray = (
            row[work.FLASH] * self.flash_s_per_flop
            + unfused * self.unfused_s_per_flop
            + row[work.SCORES] * self.score_s_per_byte
        )
        return seconds

    def _matmul_s(self, row: FloatArray) -> FloatArray:
        mu, head_mu, busy = self.gemm_overhead_rows, self.head_overhead_rows, self.imbalance
        own = row[work.GEMM] + mu * (row[work.GEMM_MU] + mu * row[work.GEMM_MU2])
        own += busy * (row[work.EXPERT] + mu * (row[work.EXPERT_MU] + mu * row[work.EXPERT_MU2]))
        own += mu * (row[work.EXPERT_ROWLESS_MU] + mu * row[work.EXPERT_ROWLESS_MU2])
        head = row[work.HEAD] + head_mu * (row[work.HEAD_MU] + head_mu * row[work.HEAD_MU2])
        seconds: FloatArray = own * self.gemm_s_per_flop + head * self.head_s_per_flop
        return seconds

    def _expert_exchange_s(self, row: FloatArray) -> FloatArray:
        latency, per_byte = self.links.latency_s, self.links.seconds_per_byte[links.EXPERT_TP]
        calls_s = (
            row[work.EP_CALLS] * latency[links.EP] + row[work.EXPERT_TP_CALLS] * latency[links.EXPERT_TP]
        )
        sent_s = row[work.EP_BYTES] * self.links.all_to_all_s_per_byte
        seconds: FloatArray = calls_s + self.imbalance * (sent_s + row[work.EXPERT_TP_BYTES] * per_byte)
        return seconds
