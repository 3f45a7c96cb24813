"""Whether a row can be true: degrees that fit the GPUs and the batch, and a time that the GPUs can reach."""

from __future__ import annotations

from tangram.job import Precision
from tangram.units import GIB
from tangram.validation.cells import RowError
from tangram.validation.run import Fp8, Run

MAX_MFU = 1.2
"""A step with more model FLOP than 1.2 times the datasheet's rate is no measurement; the margin is for model
FLOP counted in another way."""

MIN_MFU = 0.001
"""A step a thousand times slower than the datasheet allows is most likely given in milliseconds."""

MAX_DISAGREEMENT = 3.0
"""Between a time and a throughput of one row; sources round, and leave out some steps, but not by so much."""

_FP8_SPEED = 2.0
_FP4_SPEED = 4.0


def check_degrees(run: Run, num_gpus: int) -> None:
    """Checks that degrees, GPUs, batch and experts are consistent.

    Raises:
        RowError: They are not.
    """
    d = run.degrees
    product = f"tp {d.tp} x pp {d.pp} x cp {d.cp} x dp {d.dp}"
    if d.num_gpus != num_gpus:
        raise RowError("impossible", f"{product} is {d.num_gpus}, not {num_gpus} GPUs", column="n_gpus")
    per_pass = run.micro_batch * d.dp
    if run.global_batch % per_pass:
        message = f"micro-batch {run.micro_batch} x dp {d.dp} does not divide {run.global_batch}"
        raise RowError("impossible", message, column="global_batch")
    if run.seq_len % d.cp:
        raise RowError("impossible", f"{d.cp} does not divide {run.seq_len} tokens", column="cp")
    _check_experts(run)


def check_measurement(run: Run) -> None:
    """Checks that something was measured, and that it can be in the stated unit.

    Raises:
        RowError: Nothing was, or it cannot be.
    """
    measured = run.measured
    if measured.iter_s is None and measured.peak_memory_gib is None:
        raise RowError("no-measurement", "the row has neither a time nor a peak of memory")
    if measured.iter_s is not None:  # toy models whose time is not scored may be as slow as they like
        mfu = model_flop_utilisation(run, measured.iter_s)
        if mfu > MAX_MFU:
            message = (
                f"{measured.iter_s:g} s would be {mfu:.3g} times what the GPUs can do; is it in seconds?"
            )
            raise RowError("implausible", message, column="iter_s")
        if mfu < MIN_MFU and measured.scores_time:
            message = (
                f"{measured.iter_s:g} s would be {mfu:.2g} of what the GPUs can do; is it in milliseconds?"
            )
            raise RowError("implausible", message, column="iter_s")
    peak = measured.peak_memory_gib
    largest = max(part.memory_bytes for part in run.hardware.gpus) / GIB
    if peak is not None and peak > 1.1 * largest:
        message = f"{peak:g} GiB do not fit a GPU of {largest:.0f} GiB; is it in GiB?"
        raise RowError("implausible", message, column="peak_mem_GiB")


def check_agreement(iter_s: float, implied_s: float, column: str) -> None:
    """Checks a time against the one that the row's throughput implies.

    Raises:
        RowError: They are so far apart that one of them must be in another unit.
    """
    if not 1 / MAX_DISAGREEMENT < iter_s / implied_s < MAX_DISAGREEMENT:
        message = f"{iter_s:g} s, but the throughput implies {implied_s:.4g} s; is it in seconds?"
        raise RowError("implausible", message, column=column)


def model_flop_utilisation(run: Run, iter_s: float) -> float:
    """Returns model FLOP per second over the datasheet's rate of all GPUs, in the precision of the layers.

    Only half of the attention square counts, so that long sequences are not taken for impossible.
    """
    return run.model_flop(causal=True) / iter_s / _peak_flop_per_s(run)


def _peak_flop_per_s(run: Run) -> float:
    speed = {Fp8.NONE: 1.0, Fp8.NVFP4: _FP4_SPEED}.get(run.numbers.fp8, _FP8_SPEED)
    stages = len(run.hardware.hosts)
    total = 0.0
    for row in run.hardware.hosts:
        for host in row:
            gpu = host.gpu
            rate = gpu.peak_flop_per_s.get(run.numbers.precision, gpu.peak_flop_per_s[Precision.FP32])
            if run.numbers.tf32_where_possible:
                rate = gpu.peak_flop_per_s.get(Precision.TF32, rate)
            total += rate * speed / len(row) / stages
    return total * run.num_gpus


def _check_experts(run: Run) -> None:
    d = run.degrees
    counts = {layer.moe.num_experts for layer in run.model.distinct_layers if layer.moe is not None}
    if not counts:
        if d.ep > 1:
            raise RowError("impossible", f"ep {d.ep} without experts", column="ep")
        return
    num_experts = counts.pop()
    places = d.ep * (d.experts_per_rank or 0)
    if num_experts % d.ep and (not places or places % num_experts):
        raise RowError("impossible", f"ep {d.ep} does not divide {num_experts} experts", column="ep")
    ranks = d.dp * d.cp * d.tp
    if ranks % (d.ep * d.expert_tp):
        message = f"ep {d.ep} x expert tp {d.expert_tp} does not divide the {ranks} GPUs of a stage"
        raise RowError("impossible", message, column="ep")
