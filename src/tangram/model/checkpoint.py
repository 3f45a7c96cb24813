"""Sets the parameters counted from a configuration against the checkpoint that lies beside it.

``model.safetensors.index.json`` says how many bytes the weights have; divided by the bytes of an element that
is their number, and a configuration that was edited, misread or copied from another model is found out
without opening a weight file.

Not compared: quantised checkpoints, whose elements have no common size. Of a model that is one of several
parts (vision and language), or that has layers which the configuration counts apart, the checkpoint may hold
more than is counted, but not less.
"""

from __future__ import annotations

from collections.abc import Mapping

from tangram.errors import InputError
from tangram.model.params import num_params
from tangram.model.spec import ModelSpec

INDEX_NAME = "model.safetensors.index.json"
MAX_INDEX_BYTES = 64 * 1024**2
"""The index of the largest models has one line for each of some 100,000 tensors: 10 MiB."""

TOLERANCE = 0.01
"""What may differ: buffers, and rows that a checkpoint pads its vocabulary with."""

_ELEMENT_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
_USUAL_BYTES = (2, 4)


def check_index(
    model: ModelSpec, config: Mapping[str, object], index: Mapping[str, object], *, where: str, partial: bool
) -> None:
    """Refuses a configuration that does not describe the checkpoint beside it.

    Args:
        model: The model, as read from the configuration.
        config: The configuration; says the dtype, and whether weights are quantised.
        index: Content of the index file. Without ``metadata.total_size`` nothing is compared.
        where: The index file, for messages.
        partial: Whether the checkpoint may hold more than the model.

    Raises:
        InputError: They contradict each other, or the size is no number of bytes.
    """
    total_bytes = _total_bytes(index, where)
    if total_bytes is None or _setting(config, "quantization_config") is not None:
        return
    dtype = _setting(config, "dtype", "torch_dtype")
    stated = _ELEMENT_BYTES.get(dtype) if isinstance(dtype, str) else None
    counted = _stored_params(model, index)
    sizes = _USUAL_BYTES if stated is None else (stated,)
    if any(_agrees(total_bytes / size, counted, partial=partial) for size in sizes):
        return
    size = sizes[0]
    held, of = total_bytes // size, f"of {dtype}" if stated else "each, dtype not stated"
    raise InputError(
        f"the checkpoint holds {held:,} elements ({total_bytes:,} bytes, {size} {of}), the configuration "
        f"describes {counted:,}",
        where=where,
        hint="a key of the configuration is wrong or missing, or the two are of different models; without "
        "the index file, the configuration counts",
    )


def _agrees(held: float, counted: int, *, partial: bool) -> bool:
    most = float("inf") if partial else counted * (1 + TOLERANCE)
    return counted * (1 - TOLERANCE) <= held <= most


def _stored_params(model: ModelSpec, index: Mapping[str, object]) -> int:
    """A tied head is written once, unless the checkpoint lists it beside the embedding."""
    names = index.get("weight_map")
    twice = model.tied_embeddings and isinstance(names, Mapping) and "lm_head.weight" in names
    return num_params(model) + (model.vocab_size * model.embedding_width if twice else 0)


def _total_bytes(index: Mapping[str, object], where: str) -> int | None:
    metadata = index.get("metadata")
    found = metadata.get("total_size") if isinstance(metadata, Mapping) else None
    if found is None:
        return None
    # Some releases of transformers wrote a float.
    if isinstance(found, bool) or not isinstance(found, (int, float)) or found != int(found) or found <= 0:
        raise InputError("is no number of bytes", where=f"{where}: metadata.total_size")
    return int(found)


def _setting(config: Mapping[str, object], *names: str) -> object:
    """The first of these keys that is there and not null, in the file or in its language model."""
    text = config.get("text_config")
    places = [config, text] if isinstance(text, Mapping) else [config]
    found = (place.get(name) for place in places for name in names)
    return next((value for value in found if value is not None), None)
