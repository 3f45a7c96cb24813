"""From the cells and settings of one row to a run: the one builder behind all layouts.

The columns are those of published collections: ``gpu``, ``n_gpus``, shapes, ``seq_len``, ``global_batch``,
``micro_batch``, ``tp``, ``pp``, ``vpp``, ``cp``, ``ep``, ``dp``, ``zero_or_fsdp``, ``recompute``,
``precision``, ``iter_s`` or ``tokens_per_s_per_gpu``, ``peak_mem_GiB``. Empty ``vpp``, ``cp`` and ``ep`` are
1; an empty ``dp`` follows from the other degrees.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tangram.cluster.spec import GpuSpec
from tangram.job import OptimizerSpec, Precision, Recompute
from tangram.model.spec import ModelSpec
from tangram.validation.cells import Cells, RowError
from tangram.validation.hardware import row_hardware
from tangram.validation.keys import configuration_key
from tangram.validation.layers import (
    checked_split,
    parse_boundaries,
    parse_split,
    spread_layers,
    without_ends,
)
from tangram.validation.plausible import check_agreement, check_degrees, check_measurement
from tangram.validation.run import (
    Attention,
    Degrees,
    Fp8,
    Measured,
    MemoryKind,
    MemoryRanks,
    Numbers,
    Origin,
    Run,
    Saving,
    Software,
    Tuning,
)
from tangram.validation.settings import HostSettings, Settings
from tangram.validation.shapes import row_model
from tangram.validation.words import parse_precision, parse_recompute, parse_sharding

UNKNOWN_STACK = "unknown"


def build_run(
    cells: Cells,
    settings: Settings,
    own: Settings,
    origin: Origin,
    *,
    flags: tuple[str, ...] = (),
    filled: tuple[str, ...] = (),
    not_in_key: frozenset[str] = frozenset(),
    hosts: Mapping[str, HostSettings] | None = None,
) -> Run:
    """Builds the run of one row.

    Args:
        cells: The row in the common columns.
        settings: Everything else that is known: of the source, and of the row.
        own: The settings that the row itself states.
        origin: Where it stands.
        flags: Options that the source lists and no setting holds; part of the configuration.
        filled: Columns that were filled from what is known of the source.
        not_in_key: Fields that do not tell configurations apart (see :mod:`tangram.validation.keys`).
        hosts: What is known of the nodes of a mixed row, by the name of their part.

    Raises:
        RowError: The row cannot be used.
    """
    degrees = _degrees(cells, settings)
    hardware = row_hardware(cells, settings, own, degrees, hosts or {})
    numbers = _numbers(cells, settings, hardware.gpus)
    model = row_model(cells, settings)
    run = Run(
        origin=origin,
        key="",
        hardware=hardware,
        model=model,
        mtp_layers=settings.mtp_layers or 0,
        layers_per_stage=_layers(cells, settings, model, degrees),
        seq_len=cells.count("seq_len"),
        global_batch=cells.count("global_batch"),
        micro_batch=cells.count("micro_batch"),
        degrees=degrees,
        numbers=numbers,
        saving=_saving(cells, settings),
        software=_software(settings, degrees, flags),
        tuning=settings.tuning or Tuning.PRETRAIN,
        filled=filled,
        measured=_measured(cells, settings),
    )
    check_degrees(run, cells.count("n_gpus"))
    run = _with_time(run, cells)
    check_measurement(run)
    return replace(run, key=configuration_key(run, not_in_key))


def _degrees(cells: Cells, settings: Settings) -> Degrees:
    tp, pp = cells.count("tp"), cells.count("pp")
    cp, ep, vpp = cells.count("cp", 1), cells.count("ep", 1), cells.count("vpp", 1)
    num_gpus = cells.count("n_gpus")
    dp = cells.optional_count("dp") or max(1, num_gpus // (tp * pp * cp))
    zero, fsdp = parse_sharding(cells.text("zero_or_fsdp"))
    expert_tp = settings.expert_tp or tp  # Megatron's default
    shard_ranks = settings.shard_ranks
    if "hsdp" in cells.text("zero_or_fsdp").lower():
        shard_ranks = shard_ranks or settings.gpus_per_node
    return Degrees(
        dp,
        tp,
        pp,
        cp,
        ep,
        vpp,
        expert_tp,
        zero,
        fsdp,
        shard_ranks,
        settings.experts_per_rank,
        settings.chunk_group,
    )


def _numbers(cells: Cells, settings: Settings, parts: tuple[GpuSpec, ...]) -> Numbers:
    text = cells.needed_text("precision")
    found = [parse_precision(text, part) for part in parts]
    # Unequal parts: each runs the tf32 it has, and what is stored is the same everywhere.
    precisions = {precision for precision, _ in found}
    precision = found[0][0] if len(precisions) == 1 else Precision.FP32
    default = OptimizerSpec()
    if not precision.is_mixed:
        default = OptimizerSpec(gradient_bytes=4, master_bytes=0, moment_bytes=8)
    optimizer = OptimizerSpec(
        gradient_bytes=_or(settings.gradient_bytes, default.gradient_bytes),
        master_bytes=_or(settings.master_bytes, default.master_bytes),
        moment_bytes=_or(settings.moment_bytes, default.moment_bytes),
    )
    return Numbers(
        precision=precision,
        fp8=found[0][1] if found else Fp8.NONE,
        tf32_where_possible=Precision.TF32 in precisions,
        optimizer=optimizer,
        gradient_copy_bytes=settings.gradient_copy_bytes or 0,
        reduce_bytes=_or(settings.reduce_bytes, optimizer.gradient_bytes),
        further_gradient_bytes=settings.further_gradient_bytes or 0,
    )


def _layers(cells: Cells, settings: Settings, model: ModelSpec, degrees: Degrees) -> tuple[int, ...]:
    before, after = _or(settings.pseudo_before, 1), _or(settings.pseudo_after, 1)
    for column, parse in (
        ("layers_per_stage", parse_split),
        ("pseudo_layers_per_stage", lambda text: without_ends(parse_split(text), before, after)),
        ("pseudo_boundaries", lambda text: without_ends(parse_boundaries(text), before, after)),
    ):
        if text := cells.text(column):
            try:
                return checked_split(parse(text), model.num_layers, degrees.pp)
            except ValueError as error:
                raise RowError("impossible", f"{text!r}: {error}", column=cells.name(column)) from None
    return spread_layers(model.num_layers, degrees.pp, degrees.vpp)


def _saving(cells: Cells, settings: Settings) -> Saving:
    text = cells.text("recompute")
    recompute, modules = parse_recompute(text) if text else (Recompute.NONE, ())
    return Saving(
        recompute=recompute,
        modules=modules,
        stated=bool(text),
        optimizer_offload=bool(settings.optimizer_offload),
        parameter_offload=bool(settings.parameter_offload),
        offloaded_layers=settings.offloaded_layers or 0,
        deferred_heads=settings.deferred_heads or 0,
    )


def _software(settings: Settings, degrees: Degrees, flags: tuple[str, ...]) -> Software:
    sequence_parallel = settings.sequence_parallel
    return Software(
        stack=settings.stack or UNKNOWN_STACK,
        attention=settings.attention or Attention.UNKNOWN,
        sequence_parallel=degrees.tp > 1 and (sequence_parallel is None or sequence_parallel),
        dispatcher=settings.dispatcher,
        overlap_ep=settings.overlap_ep,
        balanced_experts=settings.balanced_experts,
        cuda_graphs=settings.cuda_graphs,
        cross_entropy_fusion=settings.cross_entropy_fusion,
        loss_in_place=settings.loss_in_place,
        deterministic=settings.deterministic,
        grouped_products=settings.grouped_products,
        fused_accumulation=settings.fused_accumulation,
        weighs_outputs=settings.weighs_outputs,
        dropout=settings.dropout,
        relu=settings.relu,
        overlap_gradients=settings.overlap_gradients,
        overlap_parameters=settings.overlap_parameters,
        environment=settings.environment,
        method=settings.method,
        flags=flags,
        blocking_transfers=settings.blocking_transfers,
        headless=settings.headless,
    )


def _measured(cells: Cells, settings: Settings) -> Measured:
    return Measured(
        iter_s=cells.optional_number("iter_s"),
        peak_memory_gib=cells.optional_number("peak_mem_GiB"),
        memory_kind=settings.memory_kind or MemoryKind.ALLOCATOR,
        memory_ranks=settings.memory_ranks or MemoryRanks.MAX,
        scores_time=settings.scores_time is not False,
        scores_memory=settings.scores_memory is not False,
    )


def _with_time(run: Run, cells: Cells) -> Run:
    """Takes the time from the throughput where only that is there, and compares them where both are."""
    rate = cells.optional_number("tokens_per_s_per_gpu")
    if rate is None:
        return run
    iter_s = run.global_batch * run.seq_len / (rate * run.num_gpus)
    if run.measured.iter_s is None:
        return replace(run, measured=replace(run.measured, iter_s=iter_s))
    check_agreement(run.measured.iter_s, iter_s, cells.name("iter_s"))
    return run


def _or(value: int | None, default: int) -> int:
    return default if value is None else value
