"""From what a user types to a model: a preset's name, a file or a folder; and trimming to fewer layers."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping
from pathlib import Path

from tangram.errors import InputError, UnknownNameError, nearest
from tangram.model.hf import config_file, hf_model
from tangram.model.json_file import MAX_FILE_BYTES, parse_json_object, printable, read_json_text
from tangram.model.json_lines import lines_named
from tangram.model.presets import load_preset, preset_names
from tangram.model.serial import from_dict
from tangram.model.spec import ModelSpec

_TRIMMED_SUFFIX = re.compile(r"\[\d+ layers?\]$")


def load_model(name_or_path: str | os.PathLike[str]) -> ModelSpec:
    """Loads a model: a preset, a Hugging Face ``config.json`` or its folder, or a file in Tangram's own form.

    A preset's name wins over a file of the same name; write ``./name`` for the file. Tangram's own form is
    that of :mod:`tangram.model.serial`.

    Raises:
        UnknownNameError: It is neither a preset nor an existing path, and looks like a name.
        InputError: The path does not exist, or cannot be read as a model.
    """
    text = os.fspath(name_or_path)
    if not text.strip():
        raise InputError("the name of the model is empty", hint="give a preset, a file or a folder")
    if not _looks_like_path(text) and text in preset_names():
        return load_preset(text)
    try:
        path = Path(text).expanduser()
        exists = path.exists()
    except (OSError, ValueError, RuntimeError) as error:  # a name no file system takes; no home folder
        raise InputError("is not a path", where=printable(text[:200])) from error
    if not exists:
        raise _unknown(text)
    file = config_file(path)
    where, text = printable(str(file)), read_json_text(file, max_bytes=MAX_FILE_BYTES)
    data = parse_json_object(text, where=where)
    _refuse_other_formats(data, where)
    with lines_named(text, where):
        return from_dict(data, where=where) if _is_own_form(data) else hf_model(data, file)


def trim_layers(model: ModelSpec, num_layers: int) -> ModelSpec:
    """Returns the model with its first ``num_layers`` layers only, named like ``mixtral-8x7b[16 layers]``.

    Embedding, head and layers for prediction stay. The whole number of layers gives the model itself.

    Raises:
        InputError: ``num_layers`` is not from 1 to the model's number of layers.
    """
    if (
        isinstance(num_layers, bool)
        or not isinstance(num_layers, int)
        or not 1 <= num_layers <= model.num_layers
    ):
        raise InputError(
            f"{num_layers} layers cannot be taken from {model.name}",
            where="--num-layers",
            hint=f"legal: 1 to {model.num_layers}",
        )
    if num_layers == model.num_layers:
        return model
    suffix = f"[{num_layers} layer{'s' if num_layers > 1 else ''}]"
    return dataclasses.replace(
        model,
        name=_TRIMMED_SUFFIX.sub("", model.name) + suffix,
        layers=model.layers[:num_layers] + model.layers[model.num_layers :],
    )


def _refuse_other_formats(data: Mapping[str, object], where: str) -> None:
    """Files that Tangram writes say what they are."""
    found = data.get("format")
    if isinstance(found, str) and found.startswith("tangram-"):
        hint = "a plan holds its model under 'model'" if "model" in data else None
        raise InputError(
            f"is a file of format {printable(found[:40])!r}, not a model", where=where, hint=hint
        )


def _is_own_form(data: Mapping[str, object]) -> bool:
    """Whether a file is meant to be in Tangram's own form; then what is wrong is said in its words."""
    if "layer_kinds" in data:
        return True
    return not {"model_type", "text_config"} & set(data) and {"layers", "tied_embeddings"} <= set(data)


def _looks_like_path(text: str) -> bool:
    """Whether it cannot be a preset: it has a separator, a suffix, or a leading dot or tilde."""
    separators = [s for s in (os.sep, os.altsep) if s]
    return text.startswith((".", "~")) or text.lower().endswith(".json") or any(s in text for s in separators)


def _unknown(text: str) -> InputError:
    names = preset_names()
    if not _looks_like_path(text):
        return UnknownNameError("model", printable(text[:200]), names)
    near = nearest(Path(text).name, names)
    presets = f"; the nearest preset is {near[0]!r}" if near else ""
    return InputError(
        "no such file or folder",
        where=printable(text[:200]),
        hint=f"give a config.json or its folder (nothing is downloaded){presets}",
    )
