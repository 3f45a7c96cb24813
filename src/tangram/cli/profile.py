"""``tangram profile``: times the layers of a model, and the links, on the device that it runs on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tangram.cli.options import Json, ModelArgument
from tangram.cli.profiles import Store
from tangram.cli.streams import Progress, note, print_json, print_page
from tangram.errors import InfeasibleError, InputError
from tangram.job import Precision

if TYPE_CHECKING:
    from tangram.model.spec import ModelSpec
    from tangram.profiler.device import Device
    from tangram.profiler.launch import Process
    from tangram.profiler.request import LayerRequest
    from tangram.profiler.results import Profile
    from tangram.profiler.run import CollectiveRequest
    from tangram.profiles.records import Record


def _option(*names: str, metavar: str | None = None, text: str) -> Any:
    return typer.Option(*names, metavar=metavar, help=text, show_default=False)


@dataclass(frozen=True, slots=True)
class DeviceOptions:
    """What is profiled, and what it is called."""

    gpu: Annotated[
        str | None,
        _option("--gpu", metavar="NAME", text="Name in the store (default: the catalogue's for this GPU)."),
    ] = None
    device: Annotated[
        str | None, _option("--device", metavar="KIND", text="cuda or cpu (default: cuda if there is one).")
    ] = None
    stack: Annotated[
        str | None,
        _option(
            "--stack",
            metavar="NAME",
            text="Software stack that these layers stand for (default: tangram-runtime).",
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class SizeOptions:
    """Which layers, in which sizes, how often."""

    precision: Annotated[
        Precision | None,
        _option("--precision", text="Arithmetic (default: bf16, fp16 without it; fp32 on a CPU)."),
    ] = None
    seq_len: Annotated[
        int | None,
        _option("--seq-len", metavar="N", text="Tokens per sample (default: the model's, at most 4096)."),
    ] = None
    tp: Annotated[
        str | None, _option("--tp", metavar="1,2,4", text="Tensor-parallel degrees (default: 1).")
    ] = None
    micro_batch: Annotated[
        str | None, _option("--micro-batch", metavar="1,2,4", text="Samples on a GPU (default: 1).")
    ] = None
    layers: Annotated[
        str,
        _option(
            "--layers",
            metavar="WHAT",
            text="all (that differ), none, or embedding, layer, head and numbers of layers, with commas "
            "(default: all).",
        ),
    ] = "all"
    repeats: Annotated[
        int, _option("--repeats", metavar="N", text="Timings of everything (default: 10).")
    ] = 10
    warmup: Annotated[
        int, _option("--warmup", metavar="N", text="Runs before the clock counts (default: 3).")
    ] = 3


@dataclass(frozen=True, slots=True)
class LinkOptions:
    """Collectives and messages."""

    collectives: Annotated[
        bool, _option("--collectives", text="Time collectives too; start the command with torchrun.")
    ] = False
    message_bytes: Annotated[
        str | None,
        _option(
            "--message-bytes",
            metavar="64KiB,4MiB",
            text="Sizes of messages (default: 4KiB to 256MiB, to 16MiB on CPUs).",
        ),
    ] = None
    intra_link: Annotated[
        str, _option("--intra-link", metavar="NAME", text="What joins GPUs of a node, for example nvlink.")
    ] = ""
    inter_link: Annotated[
        str, _option("--inter-link", metavar="NAME", text="What joins nodes, for example ib-200g.")
    ] = ""


def profile_command(
    model: ModelArgument,
    device: DeviceOptions,
    sizes: SizeOptions,
    links: LinkOptions,
    store: Store = None,
    json_only: Json = False,
) -> None:
    """Time the layers of MODEL on this machine's GPU or CPU, and keep the times in the profile store."""
    from tangram.basis import DEFAULT_STACK
    from tangram.model.load import load_model
    from tangram.profiler.torch_extra import require_torch
    from tangram.profiles.store import default_store, save

    spec = load_model(model)
    require_torch()
    from tangram.profiler.device import find_device
    from tangram.profiler.launch import this_process
    from tangram.profiler.run import run_profile

    process = this_process()
    found = find_device(device.device, device.gpu, process.local_rank)
    request, messages = _requests(process, found, spec, sizes, links)
    path = store or default_store()
    stack = device.stack or DEFAULT_STACK
    if not process.writes:
        run_profile(process, found, request, messages, stack)
        return
    save(path, [])  # what is wrong with the store shows now, and not after an hour
    progress = Progress()
    try:
        profile = run_profile(
            process, found, request, messages, stack, progress, lambda records: _keep(path, records)
        )
    finally:
        progress.clear()
    if not profile.records:
        raise InfeasibleError("nothing could be timed", details=[str(one) for one in profile.skipped])
    if json_only:
        print_json(_json(profile, path))
        return
    from tangram.report.measured import add_profile

    print_page(lambda page: add_profile(page, profile, str(path)))


def _keep(path: Path, records: Sequence[Record]) -> None:
    from tangram.profiles.store import save

    save(path, records)


def _requests(
    process: Process, device: Device, model: ModelSpec, sizes: SizeOptions, links: LinkOptions
) -> tuple[LayerRequest, CollectiveRequest | None]:
    """What is asked; what is wrong with it is said once, not by every process of the run."""
    try:
        layers, messages = _layers(process, device, model, sizes), _messages(process, sizes, links)
        if messages is None and not layers.pieces:
            raise InputError("there is nothing to time", where="--layers none", hint="add --collectives")
        return layers, messages
    except InputError as error:
        if process.writes:
            raise
        raise typer.Exit(error.exit_code) from None


def _layers(process: Process, device: Device, model: ModelSpec, sizes: SizeOptions) -> LayerRequest:
    from tangram.planner.defaults import default_seq_len
    from tangram.profiler.device import check_precision, default_precision
    from tangram.profiler.request import LayerRequest, choose_pieces

    precision = sizes.precision or default_precision(device)
    check_precision(device, precision)
    seq_len = sizes.seq_len
    if seq_len is None:
        seq_len, assumption = default_seq_len(model)
        if process.writes:
            note(f"{assumption.what}: {assumption.why}")
    if seq_len < 1:
        raise InputError(f"{seq_len} tokens are out of range", where="--seq-len", hint="legal: 1 or more")
    return LayerRequest(
        model=model,
        seq_len=seq_len,
        precision=precision,
        tp=_numbers(sizes.tp, "--tp"),
        micro_batch=_numbers(sizes.micro_batch, "--micro-batch"),
        pieces=choose_pieces(model, seq_len, sizes.layers),
        warmup=sizes.warmup,
        repeats=sizes.repeats,
    )


def _messages(process: Process, sizes: SizeOptions, links: LinkOptions) -> CollectiveRequest | None:
    if not links.collectives:
        return None
    from tangram.profiler.collectives import LinkNames
    from tangram.profiler.run import CollectiveRequest, check_partners
    from tangram.units import parse_bytes

    check_partners(process)
    where = "--message-bytes"
    words = links.message_bytes.split(",") if links.message_bytes is not None else []
    num_bytes = sorted({parse_bytes(word, where=where) for word in words})
    if num_bytes and num_bytes[0] < 1:
        raise InputError("a message has at least one byte", where=where)
    names = LinkNames(links.intra_link, links.inter_link)
    return CollectiveRequest(tuple(num_bytes), sizes.repeats, names)


def _numbers(text: str | None, where: str) -> tuple[int, ...]:
    """Parses ``1,2,4``; ascending, each once."""
    words = [word.strip() for word in ("1" if text is None else text).split(",")]
    for word in words:
        if not (word.isascii() and word.isdigit()) or len(word) > 9 or int(word) < 1:
            raise InputError(f"{word!r} is no number above zero", where=where, hint="write for example 1,2,4")
    return tuple(sorted({int(word) for word in words}))


def _json(profile: Profile, path: Path) -> dict[str, Any]:
    return {
        "device": profile.device,
        "store": str(path),
        "layers": [
            asdict(timed.record)
            | {"spreads": {name: asdict(spread) for name, spread in timed.spreads.items()}}
            | {"notes": list(timed.notes)}
            for timed in profile.layers
        ],
        "collectives": [
            asdict(timed.record) | {"spread": asdict(timed.spread)} for timed in profile.collectives
        ],
        "skipped": [asdict(one) for one in profile.skipped],
        "notes": list(profile.notes),
    }
