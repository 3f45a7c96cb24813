"""``tangram models`` and ``tangram gpus``: what is known by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tangram.cli.options import Json
from tangram.cli.streams import print_json, print_page

if TYPE_CHECKING:
    from tangram.cluster.spec import GpuSpec
    from tangram.model.spec import ModelSpec

ModelName = Annotated[
    str | None,
    typer.Argument(metavar="MODEL", help="A preset, a config.json, or its folder.", show_default=False),
]
GpuName = Annotated[
    str | None, typer.Argument(metavar="GPU", help="A part, for example A100-80GB-SXM.", show_default=False)
]


def models_command(model: ModelName = None, json_only: Json = False) -> None:
    """List the model presets, or show one model in full."""
    from tangram.model.load import load_model
    from tangram.model.presets import load_preset, preset_names

    specs = [load_model(model)] if model else [load_preset(name) for name in preset_names()]
    if json_only:
        entries = [_model_json(spec) for spec in specs]
        print_json(entries[0] if model else entries)
        return
    from tangram.report.catalog import add_model, add_models

    print_page(lambda page: add_model(page, specs[0]) if model else add_models(page, specs))


def gpus_command(gpu: GpuName = None, json_only: Json = False) -> None:
    """List the GPU catalogue, or show one part with its sources."""
    from tangram.cluster import catalog

    parts = [catalog.gpu(gpu)] if gpu else list(catalog.load_catalog().values())
    if json_only:
        entries = [_gpu_json(part) for part in parts]
        print_json(entries[0] if gpu else entries)
        return
    from tangram.report.catalog import add_gpu, add_gpus

    print_page(lambda page: add_gpu(page, parts[0]) if gpu else add_gpus(page, parts))


def _model_json(spec: ModelSpec) -> dict[str, Any]:
    from tangram.plan.schema import ModelSection

    return ModelSection.of(spec).model_dump(mode="json")


def _gpu_json(part: GpuSpec) -> dict[str, Any]:
    """The fields of the part; rates by precision."""
    fields = {name: getattr(part, name) for name in part.__slots__}
    return {name: dict(value) if isinstance(value, Mapping) else value for name, value in fields.items()}
