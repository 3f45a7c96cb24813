"""Models and GPUs by the names that published profiles call them, from ``peers.json``.

Profiles of other tools name a model and a GPU in a folder or file name, and say nothing more of them. The
table holds what was profiled under these names, checked against sizes in the same files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from tangram.cluster.catalog import gpu
from tangram.errors import InputError, UnknownNameError
from tangram.model.load import load_model
from tangram.model.presets import preset_names
from tangram.model.spec import AttentionSpec, FeedForwardSpec, LayerSpec, ModelSpec, NormKind, PositionKind


@dataclass(frozen=True, slots=True)
class ProfiledModel:
    """A model that somebody profiled.

    Attributes:
        spec: Its shape.
        seq_len: Tokens per sample in the profiles; None where only the user knows.
        last_is_head: Whether the last of ``num_layers + 2`` entries of a per-layer profile is the final norm
            with the LM head and the loss, or a norm without the LM head's product.
    """

    spec: ModelSpec
    seq_len: int | None = None
    last_is_head: bool = True


def profiled_model(name: str) -> ProfiledModel:
    """Returns a model by the name that profiles use, by a preset's name, or from a file.

    Raises:
        UnknownNameError: There is no such model.
        InputError: It is a file that cannot be read as a model.
    """
    entry = _data()["models"].get(name)
    if entry is None:
        try:
            return ProfiledModel(load_model(name))
        except UnknownNameError as error:
            known = [*_data()["models"], *preset_names()]
            raise UnknownNameError("model", name, known, where=error.where) from error
    width, heads = entry["hidden_size"], entry["num_heads"]
    norm = NormKind.RMSNORM if entry["gated"] else NormKind.LAYERNORM
    position = PositionKind.ROTARY if entry["gated"] else PositionKind.LEARNED
    layer = LayerSpec(
        AttentionSpec(heads, heads, width // heads),
        FeedForwardSpec(entry["intermediate_size"], gated=entry["gated"]),
        norm,
    )
    spec = ModelSpec(
        name=name,
        family="profiled",
        hidden_size=width,
        vocab_size=entry["vocab_size"],
        layers=(layer,) * entry["num_layers"],
        norm=norm,
        position=position,
        max_positions=entry["seq_len"],
        tied_embeddings=False,
        source=entry["source"],
    )
    return ProfiledModel(spec, entry["seq_len"], entry["last_entry"] == "head")


def profiled_gpu(name: str) -> str:
    """Returns the catalogue's name of a GPU, or the name as given where the catalogue does not know it.

    Raises:
        InputError: The name leaves open which variant it is.
    """
    entry = _data()["gpus"].get(name)
    if entry is not None:
        found: str = entry["name"]
        return found
    try:
        return gpu(name).name
    except UnknownNameError:
        return name.strip()


def knows_gpu(name: str) -> bool:
    """Whether :func:`profiled_gpu` is sure which part the name means."""
    if name in _data()["gpus"]:
        return True
    try:
        gpu(name)
    except InputError:
        return False
    return True


@cache
def _data() -> Mapping[str, Any]:
    text = resources.files("tangram.profiles").joinpath("peers.json").read_text(encoding="utf-8")
    data: Mapping[str, Any] = json.loads(text)
    return data
