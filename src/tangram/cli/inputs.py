"""From what was typed to model, cluster and job: options win over the job file, defaults have reasons."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tangram.cli.basis import read_basis
from tangram.cli.options import BasisOptions, ChoiceOptions, IslandOptions, JobOptions
from tangram.errors import InputError
from tangram.job import Job, OptimizerSpec, Pins, Precision

if TYPE_CHECKING:
    from tangram.cluster.islands import Tolerances
    from tangram.cluster.spec import Assumption, Cluster
    from tangram.job_reader import JobFile
    from tangram.model.spec import ModelSpec
    from tangram.profiles.measured import MeasuredLayers


TOLERANCE_OPTIONS = {
    "compute": "--island-compute-tolerance",
    "memory": "--island-memory-tolerance",
    "intra": "--island-link-tolerance",
    "network": "--island-network-tolerance",
}


@dataclass(frozen=True, slots=True)
class Inputs:
    """What the planner is asked.

    Attributes:
        model, cluster, job: The question.
        precision_reason: Why the job runs in its precision.
        assumptions: What nobody stated.
        measured: Measured layers, which override formulas; None without any.
    """

    model: ModelSpec
    cluster: Cluster
    job: Job
    precision_reason: str
    assumptions: tuple[Assumption, ...]
    measured: MeasuredLayers | None = None


def read_inputs(
    model: str,
    cluster: str | None,
    options: JobOptions,
    choices: ChoiceOptions,
    basis: BasisOptions = BasisOptions(),
    *,
    chooses_warmup: bool = True,
) -> Inputs:
    """Reads all inputs.

    Args:
        model: MODEL; or CLUSTER, when ``cluster`` is None and the job file names the model.
        cluster: CLUSTER.
        options: The options about the job.
        choices: What the user dictates.
        basis: The options about what predictions rest on.
        chooses_warmup: Whether micro-batches in flight will be chosen, so that the engine must allow it.

    Raises:
        InputError: One of them cannot be used.
    """
    from tangram.cluster.readers import load_cluster
    from tangram.model.load import load_model, trim_layers
    from tangram.planner.precision import choose_precision

    rests_on = read_basis(basis)
    file = _job_file(options.job_file)
    if cluster is None:
        if file is None:
            raise InputError("CLUSTER is missing", hint="after MODEL, give a cluster file or a shorthand")
        model, cluster = file.model, model
    with _said_by(options, "model", given=file is None or model != file.model):
        spec = load_model(model)
    num_layers = options.num_layers
    if num_layers is None and file is not None and file.model == model:
        num_layers = file.num_layers
    if num_layers is not None:
        with _said_by(options, "num_layers", given=options.num_layers is not None):
            spec = trim_layers(spec, num_layers)
    cluster_spec = load_cluster(cluster)
    requested = options.precision or (file.precision if file else None)
    with _said_by(options, "precision", given=options.precision is not None):
        precision, reason = choose_precision(cluster_spec, requested)
    job, assumptions = _job(spec, precision, options, choices, file)
    engine = _engine(options, chooses_warmup=chooses_warmup)
    noted = (*assumptions, *engine, *rests_on.assumptions)
    job = replace(job, basis=rests_on.basis)
    return Inputs(spec, cluster_spec, job, reason, noted, rests_on.measured)


@contextmanager
def _said_by(options: JobOptions, field: str, *, given: bool) -> Iterator[None]:
    """Names the job file and its field in what is refused inside, unless the command line gave the value."""
    try:
        yield
    except InputError as error:
        if options.job_file is None or given:
            raise
        place = f"{options.job_file}: {field}"
        named = error.where if error.where and not error.where.startswith("--") else None
        raise InputError(
            error.message, where=f"{place}: {named}" if named else place, hint=error.hint
        ) from None


def read_tolerances(options: IslandOptions) -> Tolerances:
    """Returns the tolerances of islands; what is not given has its default.

    Raises:
        InputError: One is negative or no number.
    """
    from tangram.cluster.islands import Tolerances

    tolerances = Tolerances()
    for name, option in TOLERANCE_OPTIONS.items():
        value = getattr(options, name)
        if value is None:
            continue
        try:
            tolerances = replace(tolerances, **{name: value})
        except InputError as error:
            raise InputError(error.message, where=option, hint=error.hint) from None
    return tolerances


def _job_file(path: Path | None) -> JobFile | None:
    if path is None:
        return None
    from tangram.job_reader import load_job_file

    return load_job_file(path)


def _job(
    model: ModelSpec,
    precision: Precision,
    options: JobOptions,
    choices: ChoiceOptions,
    file: JobFile | None,
) -> tuple[Job, tuple[Assumption, ...]]:
    from tangram.planner.defaults import default_global_batch, default_seq_len

    assumptions = list(file.assumptions) if file else []
    seq_len = _first(options.seq_len, file.seq_len if file else None)
    global_batch = _first(options.global_batch, file.global_batch if file else None)
    if global_batch is None:
        global_batch, assumption = default_global_batch()
        assumptions.append(assumption)
    if seq_len is None:
        seq_len, assumption = default_seq_len(model)
        assumptions.append(assumption)
    optimizer, gradients = _optimizer(precision, options, file)
    assumptions += [gradients] if gradients else []
    job = Job(
        global_batch=global_batch,
        seq_len=seq_len,
        precision=precision,
        optimizer=optimizer,
        pins=_pins(choices),
        overlap_p2p=options.engine_overlap is not False,
        free_warmup=not options.fixed_warmup,
    )
    return job, tuple(assumptions)


def _optimizer(
    precision: Precision, options: JobOptions, file: JobFile | None
) -> tuple[OptimizerSpec, Assumption | None]:
    """AdamW; jobs that store fp32 weights need no master copy beside them."""
    from tangram.cluster.spec import Assumption

    default = OptimizerSpec() if precision.is_mixed else OptimizerSpec(master_bytes=0)
    optimizer = default
    if file is not None and file.optimizer != OptimizerSpec():
        optimizer = file.optimizer
    if options.gradient_bytes is not None:
        if options.gradient_bytes not in (2, 4):
            raise InputError(
                f"{options.gradient_bytes} bytes per gradient", where="--gradient-bytes", hint="legal: 2 or 4"
            )
        return replace(optimizer, gradient_bytes=options.gradient_bytes), None
    if optimizer is not default or not precision.is_mixed:
        return optimizer, None
    reason = "not given; as Megatron-Core accumulates them (--gradient-bytes 2 where yours does not)"
    return optimizer, Assumption("gradients of 4 bytes", reason)


def _engine(options: JobOptions, *, chooses_warmup: bool) -> list[Assumption]:
    """What the engine that will run the plan is taken to do."""
    from tangram.cluster.spec import Assumption

    found = []
    if options.engine_overlap is None:
        reason = "not given; an engine that waits for them is slower than predicted (--no-engine-overlap)"
        found.append(Assumption("transfers between stages overlap with compute", reason))
    if options.fixed_warmup is None and chooses_warmup:
        reason = "not given; it hides slow links (--fixed-warmup where the engine cannot)"
        found.append(Assumption("a stage may hold more micro-batches in flight than plain 1F1B", reason))
    return found


def _pins(choices: ChoiceOptions) -> Pins:
    return Pins(
        micro_batch=choices.micro_batch,
        tp=choices.tp,
        dp=choices.dp,
        cp=choices.cp,
        ep=choices.ep,
        pp=choices.pp,
        zero=choices.zero,
        recompute=choices.recompute,
        layers_per_stage=parse_layers(choices.layers_per_stage)
        if choices.layers_per_stage is not None
        else None,
        offload=choices.offload or "none",
        allow_cross_node_tp=choices.allow_cross_node_tp,
    )


def parse_layers(text: str) -> tuple[int, ...]:
    """Parses ``20,12,8``.

    Raises:
        InputError: It is not a list of whole numbers.
    """
    words = [word.strip() for word in text.split(",")]
    for word in words:
        if not (word.isascii() and word.isdigit()) or len(word) > 9:
            raise InputError(
                f"{word!r} is no number of layers",
                where="--layers-per-stage",
                hint="write for example 20,12,8",
            )
    return tuple(int(word) for word in words)


def _first(given: int | None, from_file: int | None) -> int | None:
    return from_file if given is None else given
