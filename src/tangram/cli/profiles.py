"""``tangram profiles``: what was measured: list, import, export."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tangram.cli.options import Json
from tangram.cli.streams import check_target, print_json, print_page, print_text, write_text
from tangram.errors import InputError, UnknownNameError
from tangram.job import Precision

if TYPE_CHECKING:
    from tangram.profiles.importers.formats import Imported
    from tangram.profiles.importers.harvest import Given
    from tangram.profiles.store import Profiles, Saved

_KINDS = ("layers", "collectives", "rates")


def _option(*names: str, metavar: str, text: str) -> Any:
    return typer.Option(*names, metavar=metavar, help=text, show_default=False)


Store = Annotated[
    Path | None,
    _option(
        "--store",
        metavar="FILE",
        text="The profile store (default: $TANGRAM_PROFILES, or profiles.sqlite in the user's cache).",
    ),
]
OfGpu = Annotated[str | None, _option("--gpu", metavar="NAME", text="Only of this GPU.")]
FormatName = Annotated[
    str,
    typer.Argument(
        metavar="FORMAT",
        help="tangram, aceso, metis, sailor, galvatron, vtrain or nccl-tests.",
        show_default=False,
    ),
]
Paths = Annotated[
    list[Path],
    typer.Argument(
        metavar="PATH",
        help="Files, or folders that are searched for files of the format.",
        show_default=False,
    ),
]


@dataclass(frozen=True, slots=True)
class GivenOptions:
    """What the user says of the files, where they do not say it."""

    gpu: Annotated[
        str | None,
        _option("--gpu", metavar="NAME", text="The GPU that ran; of a file with many, the one to take."),
    ] = None
    model: Annotated[
        str | None,
        _option(
            "--model",
            metavar="MODEL",
            text="The model that ran: a preset, a config.json, its folder, or a name of docs/profiles.md.",
        ),
    ] = None
    seq_len: Annotated[int | None, _option("--seq-len", metavar="N", text="Tokens per sample.")] = None
    precision: Annotated[
        Precision | None, _option("--precision", metavar="NAME", text="fp32, tf32, fp16 or bf16.")
    ] = None
    stack: Annotated[
        str | None,
        _option("--stack", metavar="NAME", text="The software that ran (default: named after the format)."),
    ] = None
    link: Annotated[
        str, _option("--link", metavar="NAME", text="What joins the ranks, for example nvlink or ib-200g.")
    ] = ""
    op: Annotated[
        str | None,
        _option("--op", metavar="NAME", text="The collective, where output of nccl-tests does not say it."),
    ] = None


def list_command(store: Store = None, gpu: OfGpu = None, json_only: Json = False) -> None:
    """List what is in the store."""
    from tangram.profiles.summary import layer_groups, link_groups

    path, profiles = _load(store, gpu)
    layers = layer_groups(profiles.layers)
    links = link_groups([*profiles.collectives, *profiles.rates])
    if json_only:
        print_json(
            {
                "store": str(path),
                "num_records": len(profiles),
                "layers": [asdict(group) for group in layers],
                "links": [asdict(group) for group in links],
            }
        )
        return
    from tangram.report.profiles import add_profiles

    print_page(lambda page: add_profiles(page, str(path), len(profiles), layers, links))


def import_command(
    format_name: FormatName, paths: Paths, given: GivenOptions, store: Store = None, json_only: Json = False
) -> None:
    """Import profiles of other tools into the store; a record replaces the one of equal key."""
    from tangram.profiles.importers.formats import import_files
    from tangram.profiles.store import default_store, save

    path = store or default_store()
    imported = import_files(format_name, paths, _given(given))
    if not imported.records:
        reasons = "; ".join(f"{number} x {reason}" for reason, number in imported.left_out)
        raise InputError(
            "nothing in these files can be used",
            where=", ".join(map(str, paths)),
            hint=f"left out: {reasons}" if reasons else None,
        )
    saved = save(path, imported.records)
    if json_only:
        print_json(
            {
                "store": str(path),
                "num_files": imported.num_files,
                "num_records": len(imported.records),
                "num_repeated": imported.num_repeated,
                **asdict(saved),
                "left_out": dict(imported.left_out),
            }
        )
        return
    _print_imported(path, imported, saved)


def export_command(
    store: Store = None,
    gpu: OfGpu = None,
    output: Annotated[
        Path | None, _option("-o", "--output", metavar="FILE", text="Where to write (default: stdout).")
    ] = None,
    form: Annotated[
        str,
        _option("--format", metavar="json|csv", text="json holds everything, csv one kind (default: json)."),
    ] = "json",
    kind: Annotated[
        str,
        _option("--kind", metavar="NAME", text="For csv: layers, collectives or rates (default: layers)."),
    ] = "layers",
) -> None:
    """Export the store, as JSON that can be imported again, or as CSV."""
    from tangram.profiles.exchange import to_csv, to_json

    if form not in ("json", "csv"):
        raise UnknownNameError("format", form, ("json", "csv"), where="--format")
    if kind not in _KINDS:
        raise UnknownNameError("kind", kind, _KINDS, where="--kind")
    check_target(output, "--output")
    _, profiles = _load(store, gpu)
    text = to_json(profiles) if form == "json" else to_csv(getattr(profiles, kind))
    if output is None:
        print_text(text)
    else:
        write_text(output, text, "--output")


COMMANDS: tuple[tuple[str, Callable[..., None]], ...] = (
    ("list", list_command),
    ("import", import_command),
    ("export", export_command),
)


def _load(store: Path | None, gpu: str | None) -> tuple[Path, Profiles]:
    from tangram.profiles.store import default_store, load
    from tangram.profiles.summary import of_gpu

    path = store or default_store()
    return path, of_gpu(load(path), gpu)


def _given(options: GivenOptions) -> Given:
    from tangram.profiles.importers.harvest import Given
    from tangram.profiles.records import Op

    if options.op is not None and options.op not in (*Op,):
        raise UnknownNameError("collective", options.op, Op, where="--op")
    if options.seq_len is not None and options.seq_len < 1:
        raise InputError(
            f"sequence length {options.seq_len} is out of range", where="--seq-len", hint="legal: 1 or more"
        )
    values = {name: getattr(options, name) for name in GivenOptions.__slots__}
    return Given(**values | {"op": None if options.op is None else Op(options.op)})


def _print_imported(path: Path, imported: Imported, saved: Saved) -> None:
    from tangram.report.profiles import add_imported

    counts = f"{saved.new:,} new, {saved.changed:,} changed, {saved.same:,} known"
    lines = [
        ("files", f"{imported.num_files:,}"),
        ("records", f"{len(imported.records):,}: {counts}"),
        ("store", str(path)),
    ]
    if imported.num_repeated:
        lines.insert(2, ("joined", f"{imported.num_repeated:,} figures with others of equal key"))
    print_page(lambda page: add_imported(page, lines, imported.left_out))
