"""Models that Tangram knows by name: data files in ``presets/``, each with its source.

A file holds either ``config``, the model's Hugging Face ``config.json`` (read like a user's own), with
``source`` beside it, or, for models that never had one, a model in the form of :mod:`tangram.model.serial`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from tangram.errors import InternalError, UnknownNameError
from tangram.model.hf import parse_hf_config
from tangram.model.json_file import parse_json_object
from tangram.model.serial import from_dict
from tangram.model.spec import ModelSpec

_SUFFIX = ".json"


def preset_names() -> list[str]:
    """Returns the names of all presets, families alphabetically, sizes ascending."""
    from importlib import resources  # 15 ms, which a user's own file need not pay

    files = resources.files("tangram.model").joinpath("presets").iterdir()
    names = [file.name.removesuffix(_SUFFIX) for file in files if file.name.endswith(_SUFFIX)]
    return sorted(names, key=_natural)


def load_preset(name: str) -> ModelSpec:
    """Returns the preset of that name.

    Raises:
        UnknownNameError: There is none; the message lists the nearest names.
    """
    from importlib import resources

    names = preset_names()
    if name not in names:
        raise UnknownNameError("model", name, names)
    file = resources.files("tangram.model").joinpath("presets", name + _SUFFIX)
    where = f"preset {name}"
    data = parse_json_object(file.read_text(encoding="utf-8"), where=where)
    if "config" not in data:
        return from_dict(data, where=where)
    config, source = data["config"], data.get("source")
    if not isinstance(config, Mapping) or not isinstance(source, str):
        raise InternalError("a preset needs an object 'config' and a text 'source'", where=where)
    return parse_hf_config(config, name=name, where=where, source=source)


def _natural(name: str) -> list[tuple[float, str]]:
    """Sorts gpt3-125m before gpt3-2.6b before gpt3-13b."""
    pieces = re.split(r"(\d+(?:\.\d+)?(?:[mb]\b)?)", name)
    return [(_size(piece), "") if i % 2 else (-1.0, piece) for i, piece in enumerate(pieces)]


def _size(text: str) -> float:
    """A number; millions count as fractions of billions."""
    return float(text.rstrip("mb")) / (1000 if text.endswith("m") else 1)
