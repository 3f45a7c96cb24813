"""What shapes do not tell of a model: from the plan's ``model.hyperparameters``, or the family's defaults.

Names and defaults are those of the family's configuration in ``transformers``, with one exception: dropout
that nobody states is 0, as models are pre-trained today. What would change the result and is not built here
is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from tangram.errors import InputError
from tangram.model.spec import ModelSpec
from tangram.runtime.models.rope import Rope, parse_rope

T = TypeVar("T")

_WHERE = "model.hyperparameters"
_THETA_IF_ABSENT = {"mixtral": 1e6}
_EPS_IF_ABSENT = {"mixtral": 1e-5, "gpt2": 1e-5}
_MUST_BE_FALSE = ("scale_attn_by_inverse_layer_idx", "use_mrope")
_ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}


@dataclass(frozen=True, slots=True)
class Hyperparameters:
    """What an executor has to know beside shapes.

    Attributes:
        activation: ``silu``, ``gelu``, ``gelu_tanh`` or ``relu``.
        norm_eps: Added to the variance in all norms.
        rope: Rotary positions.
        initializer_std: Standard deviation of initial matrices and tables.
        embedding_dropout, residual_dropout, attention_dropout: Probabilities.
        normalizes_top_k: Whether the weights of a token's experts are made to sum to 1.
        balance_coefficient: Of the load-balancing loss.
    """

    activation: str
    norm_eps: float
    rope: Rope
    initializer_std: float
    embedding_dropout: float
    residual_dropout: float
    attention_dropout: float
    normalizes_top_k: bool
    balance_coefficient: float


def parse_hyperparameters(values: Mapping[str, Any], model: ModelSpec) -> Hyperparameters:
    """Reads the hyperparameters of a plan's model.

    Raises:
        InputError: One has a value that is not built here, or none that can be.
    """
    family = model.family
    for key in _MUST_BE_FALSE:
        if values.get(key):
            raise InputError("must be false: it is not supported", where=f"{_WHERE}.{key}")
    if values.get("router_jitter_noise"):
        raise InputError("must be 0: noise is not supported", where=f"{_WHERE}.router_jitter_noise")
    if values.get("scale_attn_weights") is False:
        raise InputError(
            "must be true: scores that are not scaled are not supported", where=f"{_WHERE}.scale_attn_weights"
        )
    is_gpt = family == "gpt2"
    return Hyperparameters(
        activation=_activation(values, "activation_function" if is_gpt else "hidden_act", is_gpt),
        norm_eps=_number(
            values,
            "layer_norm_epsilon" if is_gpt else "rms_norm_eps",
            _EPS_IF_ABSENT.get(family, 1e-6),
            lambda eps: eps > 0,
        ),
        rope=parse_rope(values, _THETA_IF_ABSENT.get(family, 1e4), model.max_positions),
        initializer_std=_number(values, "initializer_range", 0.02, lambda std: std > 0),
        embedding_dropout=_probability(values, "embd_pdrop") if is_gpt else 0.0,
        residual_dropout=_probability(values, "resid_pdrop") if is_gpt else 0.0,
        attention_dropout=_probability(values, "attn_pdrop" if is_gpt else "attention_dropout"),
        normalizes_top_k=bool(values.get("norm_topk_prob", family == "mixtral")),
        balance_coefficient=_number(values, "router_aux_loss_coef", 1e-3, lambda coef: coef >= 0),
    )


def _activation(values: Mapping[str, Any], key: str, is_gpt: bool) -> str:
    name = values.get(key) or ("gelu_new" if is_gpt else "silu")
    if name not in _ACTIVATIONS:
        raise InputError(
            f"{name!r} is not supported", where=f"{_WHERE}.{key}", hint=f"legal: {', '.join(_ACTIVATIONS)}"
        )
    return _ACTIVATIONS[name]


def _probability(values: Mapping[str, Any], key: str) -> float:
    return _number(values, key, 0.0, lambda share: 0 <= share < 1)


def _number(values: Mapping[str, Any], key: str, if_absent: float, legal: Callable[[float], bool]) -> float:
    found = values.get(key)
    if found is None:
        return if_absent
    if isinstance(found, bool) or not isinstance(found, int | float) or not legal(found):
        raise InputError(f"{found!r} is out of range", where=f"{_WHERE}.{key}")
    return float(found)
