"""The formulas once more, naively: one configuration, plain floats, written from the documented form."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from cost_cases import A100, V100, dense_layer, island_of, model_of, moe_layer, whole

from tangram.cluster.spec import GpuSpec
from tangram.cost.atoms import atom_costs
from tangram.cost.constants import cluster_constants, gpu_constants, stack_constants
from tangram.cost.types import StageConfig, StageConfigs
from tangram.job import Job, Precision
from tangram.model.atoms import cut_atoms
from tangram.model.params import part_params
from tangram.model.spec import ModelSpec

STACK, CLUSTER = stack_constants(), cluster_constants()
SEQ, HIDDEN = 2048, 1024


@dataclass
class Naive:
    """A stage on two nodes of eight GPUs with 100 GB/s of NICs each."""

    part: GpuSpec
    precision: Precision
    dp: int
    tp: int
    samples: int

    @property
    def tokens(self) -> int:
        return self.samples * SEQ

    @property
    def hbm(self) -> float:
        return self.part.memory_bandwidth_bytes_per_s

    def gemm(self, m: float, n: float, k: float) -> tuple[float, float]:
        constants = gpu_constants(self.part)
        rate, mu = (
            constants.gemm_efficiency * self.part.achieved_flop_per_s[self.precision],
            constants.gemm_overhead_rows,
        )
        forward = 2 * (m + mu) * (n + mu) * k / rate
        return forward, 2 * ((m + mu) * (k + mu) * n + (k + mu) * (n + mu) * m) / rate

    def stream(self, num_bytes: float) -> tuple[float, float]:
        seconds = num_bytes / (gpu_constants(self.part).memory_efficiency * self.hbm)
        return seconds, 2 * seconds

    def elements(self, num_bytes: float) -> tuple[float, float]:
        forward, backward = self.stream(num_bytes)
        return STACK.elementwise_ratio * forward, STACK.elementwise_ratio * backward

    def gather(self) -> float:
        """One collective of the residual stream over tp, inside a node."""
        if self.tp == 1:
            return 0.0
        num_bytes = self.tokens * HIDDEN * self.precision.element_bytes
        latency = STACK.collective_launch_s + 5e-6 * (self.tp - 1)
        return latency + (self.tp - 1) / self.tp * num_bytes / (300e9 * CLUSTER.nvlink_efficiency)

    def flash(self, width: int) -> tuple[float, float]:
        rate = gpu_constants(self.part).flash_efficiency * self.part.achieved_flop_per_s[self.precision]
        forward = 2 * self.tokens * SEQ * width / self.tp / rate  # half of 4 T s d
        return forward, 2.5 * forward

    def unfused(self, width: int, heads: int) -> tuple[float, float]:
        constants = gpu_constants(self.part)
        product = (
            4 * self.tokens * SEQ * width / self.tp / self.part.achieved_flop_per_s[self.precision]
        ) / constants.unfused_efficiency
        scores = self.samples * heads / self.tp * SEQ**2
        wide = self.precision.element_bytes / 2
        moved = scores * wide / (constants.score_efficiency * self.hbm)
        return product + 11 * moved, 2 * product + 17 * moved


def add(*pairs: tuple[float, float]) -> tuple[float, float]:
    return sum(p[0] for p in pairs), sum(p[1] for p in pairs)


def twice(seconds: float) -> tuple[float, float]:
    return seconds, seconds


def naive_attention(naive: Naive, heads: int, kv: int, *, flash: bool) -> tuple[float, float]:
    width, columns = HIDDEN, (HIDDEN + 2 * kv) / naive.tp
    element = naive.precision.element_bytes
    # Norm 2, addition to the residual 3; queries, keys and values read and written.
    moved = (5 * HIDDEN / naive.tp + 2 * columns) * naive.tokens * element
    return add(
        naive.gemm(naive.tokens, columns, HIDDEN),
        naive.gemm(naive.tokens, HIDDEN, width / naive.tp),
        naive.elements(moved),
        naive.flash(width) if flash else naive.unfused(width, heads),
        twice(0.65 * STACK.launch_s),
        twice(2 * naive.gather()),
    )


def computed(
    model: ModelSpec, part: GpuSpec, job: Job, config: StageConfig, samples: int
) -> tuple[float, float, dict[str, float]]:
    island = island_of(part)
    costs = atom_costs(
        model, cut_atoms(model)[1:2], whole(island), StageConfigs.of([config]), samples * config.dp, job
    )
    parts = {name: float(seconds[0, 0]) for name, seconds in costs.components.items()}
    return float(costs.forward_s[0, 0]), float(costs.backward_s[0, 0]), parts


@pytest.mark.parametrize("tp", [1, 2, 8])
@pytest.mark.parametrize(
    ("part", "precision", "flash"),
    [
        (A100, Precision.BF16, True),
        (A100, Precision.TF32, False),
        (V100, Precision.FP16, False),
        (V100, Precision.FP32, False),
    ],
)
def test_a_dense_layer(tp: int, part: GpuSpec, precision: Precision, flash: bool) -> None:
    ffn, kv, samples = 4096, 1024, 2
    model, job = model_of(dense_layer(ffn=ffn)), Job(64, SEQ, precision)
    forward, backward, parts = computed(model, part, job, StageConfig(dp=16 // tp, tp=tp, zero=1), samples)
    naive = Naive(part, precision, 16 // tp, tp, samples)
    moved = (5 * HIDDEN + 2 * ffn) / tp * naive.tokens * precision.element_bytes
    expected = add(
        naive_attention(naive, 8, kv, flash=flash),
        naive.gemm(naive.tokens, ffn / tp, HIDDEN),
        naive.gemm(naive.tokens, HIDDEN, ffn / tp),
        naive.elements(moved),
        twice(0.35 * STACK.launch_s),
        twice(2 * naive.gather()),
    )
    assert (forward, backward) == pytest.approx(expected, rel=1e-12)
    assert parts["tp"] == pytest.approx(8 * naive.gather())


def test_a_mixture_of_experts() -> None:
    samples, experts, top_k, width, ep = 2, 8, 2, 512, 4
    model = model_of(moe_layer(num_experts=experts, top_k=top_k, width=width))
    job = Job(64, SEQ, Precision.BF16)
    forward, backward, _ = computed(model, A100, job, StageConfig(dp=16, tp=1, ep=ep, zero=1), samples)
    naive = Naive(A100, Precision.BF16, 16, 1, samples)
    routed = naive.tokens * top_k * STACK.expert_imbalance
    local = experts // ep
    up, down = naive.gemm(routed / local, 2 * width, HIDDEN), naive.gemm(routed / local, HIDDEN, width)
    moved = 2 * (5 * naive.tokens * HIDDEN + 4 * routed * HIDDEN + 1.5 * routed * 2 * width)
    rate = 300e9 * CLUSTER.nvlink_efficiency * CLUSTER.all_to_all_efficiency
    exchange = STACK.collective_launch_s + 3 * 5e-6 + 3 / 4 * routed * HIDDEN * 2 / rate
    expected = add(
        naive_attention(naive, 8, 1024, flash=True),
        (local * up[0], local * up[1]),
        (local * down[0], local * down[1]),
        naive.gemm(naive.tokens, experts, HIDDEN),
        naive.elements(moved),
        twice(2 * 0.35 * STACK.launch_s),
        twice(2 * exchange),
    )
    assert (forward, backward) == pytest.approx(expected, rel=1e-12)


def test_the_head() -> None:
    samples, tp, rows = 2, 4, 5120
    model, job = model_of(dense_layer()), Job(64, SEQ, Precision.BF16)
    costs = atom_costs(
        model,
        cut_atoms(model)[-1:],
        whole(island_of()),
        StageConfigs.of([StageConfig(dp=4, tp=tp)]),
        samples * 4,
        job,
    )
    naive = Naive(A100, Precision.BF16, 4, tp, samples)
    loss = naive.stream(12 * naive.tokens * rows / tp)[0]
    norm = naive.elements(2 * naive.tokens * HIDDEN * 2 / tp)
    latency = STACK.collective_launch_s + 3 * 5e-6
    forward = add(
        naive.gemm(naive.tokens, rows / tp, HIDDEN),
        norm,
        twice(loss),
        twice(0.3 * STACK.launch_s),
        twice(naive.gather()),
    )
    assert costs.forward_s[0, 0] == pytest.approx(forward[0] + 6 * latency, rel=1e-12)
    assert costs.backward_s[0, 0] == pytest.approx(forward[1], rel=1e-12)


def collective(num_bytes: float) -> float:
    """Over all 16 GPUs of the two nodes: one ring that has all NICs of a node."""
    latency = STACK.collective_launch_s + 7 * 5e-6 + 10e-6
    return latency + 15 / 16 * num_bytes / (100e9 * CLUSTER.nic_efficiency)


def shown(seconds: float, compute: float) -> float:
    return max(STACK.exposed_floor_frac * seconds, seconds - STACK.compute_hides_frac * compute)


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_zero_collectives_and_optimizer(zero: int) -> None:
    model, job = model_of(dense_layer(ffn=16384)), Job(64, SEQ, Precision.BF16)
    atoms = cut_atoms(model)[1:2]
    portion = whole(island_of())
    # One GPU's compute, and the same with replicas.
    plain = atom_costs(model, atoms, portion, StageConfigs.of([StageConfig(dp=1, tp=1)]), 1, job)
    costs = atom_costs(model, atoms, portion, StageConfigs.of([StageConfig(16, 1, zero=zero)]), 16, job)
    params = sum(part_params(model, 0, p.part).total for p in atoms[0].parts)
    weights, gradients = collective(2 * params), collective(4 * params)
    forward, backward = plain.forward_s[0, 0], plain.backward_s[0, 0]
    extra_forward = shown(weights, forward) if zero == 3 else 0
    extra_backward = shown((weights if zero == 3 else 0) + (gradients if zero >= 2 else 0), backward)
    assert costs.forward_s[0, 0] - forward == pytest.approx(extra_forward, rel=1e-9)
    assert costs.backward_s[0, 0] - backward == pytest.approx(extra_backward, rel=1e-9, abs=1e-15)
    sync = {0: 2, 1: 1}.get(zero, 0) * gradients
    update = (2 * 12 + 4 + 2) * params / (16 if zero else 1)
    update_s = update / (gpu_constants(A100).memory_efficiency * A100.memory_bandwidth_bytes_per_s)
    step = shown(sync, backward) + (shown(weights, forward) if zero in (1, 2) else 0) + update_s
    assert costs.step_s[0, 0] == pytest.approx(step, rel=1e-9)


def test_offloading_by_hand() -> None:
    model, job = model_of(dense_layer()), Job(64, SEQ, Precision.BF16)
    config = StageConfig(16, 1, zero=1, offload_optimizer=True, offload_activations=True)
    args = (model, cut_atoms(model)[1:2], whole(island_of()))
    plain = atom_costs(*args, StageConfigs.of([StageConfig(16, 1, zero=1)]), 16, job)
    away = atom_costs(*args, StageConfigs.of([config]), 16, job)
    copy = plain.stored_bytes[0, 0] / (CLUSTER.host_copy_efficiency * A100.pcie_bytes_per_s)
    for name in ("forward_s", "backward_s"):
        compute = getattr(plain, name)[0, 0]
        longer = getattr(away, name)[0, 0] - compute
        assert longer == pytest.approx(max(0.0, copy - STACK.compute_hides_frac * compute), abs=1e-15)
    params = plain.weight_bytes[0, 0] / 2
    # Nothing hides the collectives: the copies have the compute.
    exchange = collective(4 * params) + collective(2 * params)
    update = (2 * 12 + 4 + 2) * params / 16 * 8 / STACK.host_bandwidth_bytes_per_s
    crossing = (4 + 2) * params / 16 / (CLUSTER.host_copy_efficiency * A100.pcie_bytes_per_s)
    assert away.step_s[0, 0] == pytest.approx(exchange + update + crossing, rel=1e-9)
