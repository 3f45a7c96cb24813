"""What a configuration says beside shapes, for those who train the model: planning never reads it."""

from __future__ import annotations

from collections.abc import Mapping

_KEYS = frozenset(
    {
        # positions
        "rope_theta",
        "rope_scaling",
        "rope_parameters",
        "partial_rotary_factor",
        "use_mrope",
        # norms, activations, attention
        "rms_norm_eps",
        "layer_norm_epsilon",
        "hidden_act",
        "activation_function",
        "scale_attn_weights",
        "scale_attn_by_inverse_layer_idx",
        # dropout and initial weights
        "attention_dropout",
        "attn_pdrop",
        "embd_pdrop",
        "resid_pdrop",
        "initializer_range",
        # experts
        "norm_topk_prob",
        "router_aux_loss_coef",
        "router_jitter_noise",
        # tokens
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
    }
)


def executor_values(config: Mapping[str, object]) -> dict[str, object]:
    """Returns the keys of a ``config.json`` that an executor may want, in the order of the file.

    >>> executor_values({"model_type": "llama", "rope_theta": 500000.0, "vocab_size": 128256})
    {'rope_theta': 500000.0}
    """
    return {key: value for key, value in config.items() if key in _KEYS and value is not None}
