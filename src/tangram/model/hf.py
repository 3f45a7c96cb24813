"""Reads a Hugging Face ``config.json`` of a family that :mod:`tangram.model.families` knows.

JSON only: no code of a model repository is ever run. Keys that do not change a shape are not read: those
that training needs (activation, dropout, ``rope_parameters`` or ``rope_theta``) are carried along, others
(``dtype`` or ``torch_dtype``, quantisation of a checkpoint, soft caps, scales) are not. Of a multimodal model
the language model is read, which stands in ``text_config``.

>>> config = {"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "n_positions": 1024}
>>> parse_hf_config(config | {"vocab_size": 50257}, name="gpt2", where="config.json").num_layers
12
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from tangram.errors import InputError, UnknownNameError
from tangram.model.checkpoint import INDEX_NAME, MAX_INDEX_BYTES, check_index
from tangram.model.families.common import Identity
from tangram.model.families.readers import FAMILIES, NESTED_TYPES
from tangram.model.fields import Fields, describe
from tangram.model.hyperparameters import executor_values
from tangram.model.json_file import MAX_FILE_BYTES, parse_json_object, printable, read_json_text
from tangram.model.json_lines import lines_named
from tangram.model.spec import ModelSpec

CONFIG_NAME = "config.json"
SUPPORTED_MODEL_TYPES = tuple(FAMILIES)


def read_hf_config(path: Path) -> ModelSpec:
    """Reads a ``config.json``, or the one of a model folder.

    Raises:
        InputError: The file cannot be read, is not JSON, or does not describe a model that Tangram knows; or
            the checkpoint beside it has another size.
    """
    file = config_file(path)
    text = read_json_text(file, max_bytes=MAX_FILE_BYTES)
    where = printable(str(file))
    data = parse_json_object(text, where=where)
    with lines_named(text, where):
        return hf_model(data, file)


def hf_model(config: Mapping[str, object], file: Path) -> ModelSpec:
    """Builds a model from the content of a configuration file, and checks it against the index beside it.

    Raises:
        InputError: As :func:`read_hf_config`.
    """
    model = parse_hf_config(config, name=model_name(file), where=printable(str(file)))
    index_file = file.with_name(INDEX_NAME)
    try:
        has_index = file.name == CONFIG_NAME and index_file.exists()
    except OSError:
        return model
    if has_index:
        where = printable(str(index_file))
        index = parse_json_object(read_json_text(index_file, max_bytes=MAX_INDEX_BYTES), where=where)
        check_index(model, config, index, where=where, partial=_is_partial(config))
    return model


def config_file(path: Path) -> Path:
    """Returns the file to read: the path itself, or ``config.json`` inside of a folder.

    Raises:
        InputError: The folder has no ``config.json``.
    """
    try:
        is_folder = path.is_dir()
    except (OSError, ValueError):
        return path  # whatever is wrong with it, the reader says
    inside = path / CONFIG_NAME
    if not is_folder:
        return path
    try:
        if inside.exists():
            return inside
    except OSError:
        return inside  # likewise
    raise InputError(
        f"the folder has no {CONFIG_NAME}", where=printable(str(path)), hint="give the folder of one model"
    )


def model_name(file: Path) -> str:
    """Returns the name of a model read from a file: of its folder for a ``config.json``, else of the file.

    In a Hugging Face cache (``models--org--name/snapshots/hash/config.json``) it is the model's name.
    """
    whole = Path(os.path.abspath(file))  # noqa: PTH100  (Path.resolve would follow the cache's links)
    if whole.name != CONFIG_NAME:
        return printable(whole.stem) or "model"
    repository = whole.parent.parent.parent.name
    if whole.parent.parent.name == "snapshots" and repository.startswith("models--"):
        return printable(repository.split("--")[-1]) or "model"
    return printable(whole.parent.name) or "model"


def parse_hf_config(config: Mapping[str, object], *, name: str, where: str, source: str = "") -> ModelSpec:
    """Builds a model from a parsed ``config.json``.

    Args:
        config: The JSON object.
        name: Name of the model.
        where: The file, for messages.
        source: Where the numbers come from; by default the kind of file.

    Raises:
        UnknownNameError: The ``model_type`` is not supported.
        InputError: A needed key is missing, or a value has the wrong type, is out of range or contradicts
            another.
    """
    source = source or f"{CONFIG_NAME} of model_type {printable(str(config.get('model_type'))[:80])}"
    text = config.get("text_config")
    if text is not None:
        config, where = _language_model(config, text, where), f"{where}: text_config"
        source += ", the language model alone"
    model_type = _model_type(config, where)
    keys, read = FAMILIES[model_type]
    article = "an" if model_type[0] in "aeiou" else "a"
    values = Fields(config, where=where, keys=keys, kind=f"{article} {model_type} configuration")
    for key in ("is_encoder_decoder", "add_cross_attention"):
        if values.boolean(key, default=False):
            raise InputError("must be false: only decoders are supported", where=values.place(key))
    return replace(read(values, Identity(name, source)), hyperparameters=executor_values(config))


def _is_partial(config: Mapping[str, object]) -> bool:
    """Whether the file describes more than the model that is read: other parts, or layers for training."""
    return config.get("text_config") is not None or bool(config.get("num_nextn_predict_layers"))


def _language_model(config: Mapping[str, object], text: object, where: str) -> Mapping[str, object]:
    """The nested configuration, with what only the outer one may say of it: its type, and whether the head is
    tied.
    """
    if not isinstance(text, Mapping):
        raise InputError(f"is {describe(text)}, but must be an object", where=f"{where}: text_config")
    outer: dict[str, object] = {}
    if "tie_word_embeddings" in config:
        outer["tie_word_embeddings"] = config["tie_word_embeddings"]
    own_type = NESTED_TYPES.get(str(config.get("model_type")))
    if own_type is not None:
        outer["model_type"] = own_type
    return outer | dict(text)


def _model_type(config: Mapping[str, object], where: str) -> str:
    model_type = config.get("model_type")
    supported = "supported: " + ", ".join(FAMILIES)
    if model_type is None:
        raise InputError("the key 'model_type' is missing", where=where, hint=supported)
    if not isinstance(model_type, str):
        raise InputError(f"is {describe(model_type)}, but must be text", where=f"{where}: model_type")
    if model_type not in FAMILIES:
        unknown = UnknownNameError("model_type", model_type[:80], FAMILIES, where=where)
        near = f"{unknown.hint} " if unknown.nearest else ""
        unknown.hint = f"{near}{supported}; or describe the model in Tangram's own form, see docs/models.md"
        raise unknown
    return model_type
