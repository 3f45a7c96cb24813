"""Refuses what the user pinned but no plan can honour, naming the legal values, before any search."""

from __future__ import annotations

from math import gcd, prod

from tangram.cost.configs import legal_configs, tensor_parallel_degrees
from tangram.errors import InputError
from tangram.job import Job, divisors
from tangram.model.spec import ModelSpec, PositionKind
from tangram.planner.space import SearchSpace
from tangram.units import count_of

MOST_ATOMS = 450


def check_atoms(num_atoms: int) -> None:
    """Refuses more atoms than tables of all slices can hold.

    Raises:
        InputError: There are more than ``MOST_ATOMS``.
    """
    if num_atoms > MOST_ATOMS:
        raise InputError(
            f"{num_atoms} atoms are more than the search takes ({MOST_ATOMS})",
            where="--atoms",
            hint="choose larger ones: layer, or a number of layers such as 4",
        )


def check_pins(model: ModelSpec, job: Job, space: SearchSpace) -> None:
    """Checks every pin against model, batch and cluster.

    Raises:
        InputError: A pin has no legal meaning; the message gives the legal values.
    """
    _check_sequence(model, job)
    _check_tp(model, job, space)
    _check_cp(job)
    _check_ep(model, job)
    _check_dp(job)
    _check_stages(model, job, space)
    _check_places(job, space)
    _check_together(model, job, space)


def _check_sequence(model: ModelSpec, job: Job) -> None:
    if model.position is PositionKind.LEARNED and job.seq_len > model.max_positions:
        raise InputError(
            f"{model.name} has {model.max_positions} learned positions, a sample has {job.seq_len} tokens",
            where="--seq-len",
            hint=f"legal: up to {model.max_positions}",
        )


def _check_tp(model: ModelSpec, job: Job, space: SearchSpace) -> None:
    tp = job.pins.tp
    if tp is None:
        return
    across = job.pins.allow_cross_node_tp
    sizes = [i.num_gpus if across else i.joined_gpus for i in space.islands]
    legal = sorted({d for size in sizes for d in tensor_parallel_degrees(model, size)})
    if tp in legal:
        return
    attention = model.layers[0].attention
    if tp in {d for size in sizes for d in divisors(size)}:
        why = (
            f"does not suit the model: {attention.num_heads} heads, {attention.num_kv_heads} key/value heads "
            f"and the feed-forward widths must divide by it"
        )
    else:
        what, counts = "island" if across else "node", ", ".join(map(str, sorted(set(sizes))))
        why = f"divides no {what} of this cluster (GPUs: {counts})"
    raise InputError(f"tp {tp} {why}", where="--tp", hint="legal: " + ", ".join(map(str, legal)))


def _check_cp(job: Job) -> None:
    cp, tp = job.pins.cp, job.pins.tp or 1
    if cp is not None and job.seq_len % (cp * tp):
        legal = [d for d in divisors(job.seq_len // gcd(job.seq_len, tp)) if d <= 4096]
        raise InputError(
            f"cp {cp} does not divide the sequence of {job.seq_len} tokens"
            + (f" with tp {tp}" if tp > 1 else ""),
            where="--cp",
            hint="legal: " + ", ".join(map(str, legal[:16])),
        )


def _check_ep(model: ModelSpec, job: Job) -> None:
    ep = job.pins.ep
    if ep is None or ep == 1:
        return
    experts = [layer.moe.num_experts for layer in model.layers if layer.moe is not None]
    if not experts:
        raise InputError(f"ep {ep}: {model.name} has no experts", where="--ep", hint="legal: 1")
    common = gcd(*experts)
    if common % ep:
        raise InputError(
            f"ep {ep} does not divide {common} experts",
            where="--ep",
            hint="legal: " + ", ".join(map(str, divisors(common))),
        )


def _check_dp(job: Job) -> None:
    dp, micro_batch = job.pins.dp, job.pins.micro_batch
    if dp is None:
        return
    whole = micro_batch if micro_batch is not None else job.global_batch
    if whole % dp:
        what = "global micro-batch" if micro_batch is not None else "global batch"
        raise InputError(
            f"dp {dp} does not divide the {what} of {whole}",
            where="--dp",
            hint="legal: " + ", ".join(map(str, divisors(whole)[:24])),
        )


def _check_stages(model: ModelSpec, job: Job, space: SearchSpace) -> None:
    pp, layers = job.pins.pp, job.pins.layers_per_stage
    if layers is not None:
        if any(count < 1 for count in layers[1:-1]):
            raise InputError(
                f"layers per stage {', '.join(map(str, layers))}: a stage between others has none",
                where="--layers-per-stage",
                hint="only the first and the last stage may have 0",
            )
        if sum(layers) != model.num_layers or any(count < 0 for count in layers):
            raise InputError(
                f"layers per stage {', '.join(map(str, layers))} sum to {sum(layers)}, "
                f"{model.name} has {model.num_layers} layers",
                where="--layers-per-stage",
                hint=f"they must be 0 or more and sum to {model.num_layers}",
            )
        if pp is not None and pp != len(layers):
            raise InputError(
                f"{count_of(len(layers), 'stage')} listed, pp is {pp}",
                where="--layers-per-stage",
                hint="list pp numbers",
            )
    stages = pp if pp is not None else len(layers) if layers is not None else 1
    most = min(model.num_layers + 2, space.num_gpus)
    if stages > most:
        raise InputError(
            f"{stages} stages for {model.num_layers} layers on {space.num_gpus} GPUs",
            where="--pp" if pp is not None else "--layers-per-stage",
            hint=f"legal: 1 to {most}",
        )


def _check_places(job: Job, space: SearchSpace) -> None:
    """Whether so many stages of at least the pinned degrees find a place."""
    pins = job.pins
    stages = pins.pp if pins.pp is not None else len(pins.layers_per_stage or ())
    degrees = {name: getattr(pins, name) for name in ("dp", "cp", "tp") if getattr(pins, name) is not None}
    gpus = prod(degrees.values())
    room = sum(island.num_gpus // gpus for island in space.islands)
    if stages > room:
        named = " x ".join(f"{name} {value}" for name, value in degrees.items()) or "one GPU each"
        raise InputError(
            f"{stages} stages with {named} need {stages * gpus} GPUs, {gpus} of one island for each; "
            f"this cluster has room for {room}",
            where="--pp" if pins.pp is not None else "--layers-per-stage",
            hint=f"legal here: up to {room} stages",
        )


def _check_together(model: ModelSpec, job: Job, space: SearchSpace) -> None:
    """Asks the search space itself whether any stage can honour the pinned degrees together."""
    pins = job.pins
    named = [
        f"{name} {getattr(pins, name)}"
        for name in ("tp", "dp", "cp", "ep")
        if getattr(pins, name) is not None
    ]
    if not named:
        return
    whole = pins.micro_batch if pins.micro_batch is not None else job.global_batch
    if any(legal_configs(model, portion, whole, job) for portion in space.portions):
        return
    sizes = sorted({portion.num_gpus for portion in space.portions})
    raise InputError(
        f"no stage of this cluster can have {', '.join(named)}",
        where=", ".join("--" + name.split()[0] for name in named),
        hint=f"a stage has dp x cp x tp GPUs, here one of {', '.join(map(str, sizes))}",
    )
