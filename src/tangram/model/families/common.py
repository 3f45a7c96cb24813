"""What the readers of several families share: names, attention, windows, and the ends of the model.

Where a key that changes a shape may be missing or null, it means what the family's class in ``transformers``
makes of it; the essential ones (layers, widths, heads, vocabulary, experts) must be there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from tangram.errors import InputError
from tangram.model import fields as limits
from tangram.model.fields import Fields
from tangram.model.spec import AttentionSpec, FeedForwardSpec, LayerSpec, ModelSpec, NormKind, PositionKind

SHARED_KEYS = (
    "model_type",
    "vocab_size",
    "tie_word_embeddings",
    "is_encoder_decoder",
    "add_cross_attention",
)
ROTARY_KEYS = (
    *SHARED_KEYS,
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "max_position_embeddings",
)
WINDOW_KEYS = ("use_sliding_window", "sliding_window", "max_window_layers", "layer_types")

_SLIDING = "sliding_attention"
_LAYER_TYPES = ("full_attention", _SLIDING)


@dataclass(frozen=True, slots=True)
class Identity:
    """Name and source of a model, which are not in the file."""

    name: str
    source: str


Reader = Callable[[Fields, Identity], ModelSpec]


@dataclass(frozen=True, slots=True)
class Ends:
    """What a family's class has at the ends of a model where the file says nothing.

    Attributes:
        max_positions: Longest sequence.
        tied: Whether the head uses the embedding's matrix.
        norm: Of the final norm.
    """

    max_positions: int
    tied: bool = False
    norm: NormKind = NormKind.RMSNORM


def rotary_model(
    values: Fields,
    identity: Identity,
    layers: Iterable[LayerSpec],
    ends: Ends,
    *,
    vocab_if_absent: int | None = None,
) -> ModelSpec:
    """Returns a model with rotary positions."""
    longest = values.optional_integer("max_position_embeddings", limits.MAX_POSITIONS)
    if vocab_if_absent is None:
        vocab = values.integer("vocab_size", limits.MAX_VOCAB)
    else:
        vocab = values.optional_integer("vocab_size", limits.MAX_VOCAB) or vocab_if_absent
    return ModelSpec(
        name=identity.name,
        family=str(values.values["model_type"]),
        hidden_size=values.integer("hidden_size", limits.MAX_WIDTH),
        vocab_size=vocab,
        layers=tuple(layers),
        norm=ends.norm,
        position=PositionKind.ROTARY,
        max_positions=longest or ends.max_positions,
        tied_embeddings=values.boolean("tie_word_embeddings", default=ends.tied),
        source=identity.source,
    )


def num_layers(values: Fields, key: str = "num_hidden_layers", *, aliases: tuple[str, ...] = ()) -> int:
    """Returns the number of layers, which must be there."""
    return values.integer(key, limits.MAX_LAYERS, aliases=aliases)


def gated_block(values: Fields, key: str = "intermediate_size", *, bias: bool = False) -> FeedForwardSpec:
    """Returns a gated block of the width that a key says."""
    return FeedForwardSpec(values.integer(key, limits.MAX_FEED_FORWARD), gated=True, bias=bias)


def grouped_attention(
    values: Fields,
    *,
    kv_if_absent: int | None,
    num_heads: int | None = None,
    head_dim_if_absent: int | None = None,
    qkv_bias: bool = False,
    out_bias: bool = False,
    qk_norm: bool = False,
) -> AttentionSpec:
    """Returns attention with grouped queries.

    Args:
        values: The file.
        kv_if_absent: Key and value heads that a missing key means; by default, and where it is null, as many
            as query heads.
        num_heads: Query heads; by default the key says them.
        head_dim_if_absent: Width of a head that a missing key means; by default, and where it is null, the
            hidden size divided by the heads.
        qkv_bias, out_bias, qk_norm: As in :class:`~tangram.model.spec.AttentionSpec`.
    """
    hidden = values.integer("hidden_size", limits.MAX_WIDTH)
    heads = num_heads or values.integer("num_attention_heads", limits.MAX_HEADS)
    kv_heads = values.optional_integer("num_key_value_heads", limits.MAX_HEADS)
    absent = not values.has("num_key_value_heads")
    if kv_heads is None:
        kv_heads = kv_if_absent if absent and kv_if_absent is not None else heads
    if heads % kv_heads:
        meant = f"; without the key there are {kv_heads}" if absent else ""
        raise InputError(
            f"{kv_heads} does not divide num_attention_heads {heads}",
            where=values.place("num_key_value_heads"),
            hint=f"each key and value head serves an equal number of query heads{meant}",
        )
    head_dim = values.optional_integer("head_dim", limits.MAX_WIDTH)
    if head_dim is None and head_dim_if_absent is not None and not values.has("head_dim"):
        head_dim = head_dim_if_absent
    if head_dim is None and hidden % heads:
        raise InputError(
            f"{hidden} is no multiple of num_attention_heads {heads}, and head_dim is not given",
            where=values.place("hidden_size"),
            hint="add head_dim, or correct one of them",
        )
    return AttentionSpec(heads, kv_heads, head_dim or hidden // heads, qkv_bias, out_bias, qk_norm)


def optional_window(values: Fields, *, if_absent: int | None = None) -> int | None:
    """Returns ``sliding_window``; null means that there is none."""
    window = values.optional_integer("sliding_window", limits.MAX_POSITIONS)
    return window if values.has("sliding_window") else if_absent


def layer_windows(
    values: Fields, count: int, window: int | None, slides: Callable[[int], bool]
) -> list[int | None]:
    """Returns the window of each layer, None for all keys.

    Args:
        values: The file; its ``layer_types`` decide where they are there.
        count: Layers.
        window: Keys that a query looks back at in layers that have a window; None where none has one.
        slides: Whether a layer has one, by its number, where the file does not list them.

    Raises:
        InputError: ``layer_types`` does not fit the layers, or lists windows without saying how large.
    """
    kinds = values.choices("layer_types", _LAYER_TYPES)
    if kinds is None:
        return [window if slides(idx) else None for idx in range(count)]
    if len(kinds) != count:
        raise InputError(f"lists {len(kinds)} layers, there are {count}", where=values.place("layer_types"))
    if window is None and _SLIDING in kinds:
        raise InputError(
            f"lists {_SLIDING}, but no window is in use",
            where=values.place("layer_types"),
            hint="give sliding_window (and use_sliding_window true where the family has that key)",
        )
    return [window if kind == _SLIDING else None for kind in kinds]


def upper_windows(values: Fields, count: int, *, first_if_absent: int) -> list[int | None]:
    """Returns the windows of Qwen's families: only where ``use_sliding_window`` is true, and from layer
    ``max_window_layers`` on.
    """
    window = optional_window(values, if_absent=4096)
    if not values.boolean("use_sliding_window", default=False):
        window = None
    first = values.optional_integer("max_window_layers", limits.MAX_LAYERS, low=0)
    start = first_if_absent if first is None else first
    return layer_windows(values, count, window, lambda idx: idx >= start)


def with_windows(kinds: Sequence[LayerSpec], windows: Sequence[int | None]) -> tuple[LayerSpec, ...]:
    """Returns the layers with their windows; equal layers are one object."""
    made: dict[tuple[LayerSpec, int | None], LayerSpec] = {}
    layers = []
    for kind, window in zip(kinds, windows, strict=True):
        if (kind, window) not in made:
            made[kind, window] = replace(kind, attention=replace(kind.attention, window=window))
        layers.append(made[kind, window])
    return tuple(layers)


def equal_head_dim(values: Fields, hidden: int, heads: int, keys: tuple[str, str]) -> int:
    """Returns the width of a head where all share the hidden size; the keys are those of the two numbers.

    Raises:
        InputError: The heads do not divide it.
    """
    if hidden % heads:
        raise InputError(
            f"{hidden} is no multiple of {keys[1]} {heads}",
            where=values.place(keys[0]),
            hint=f"each head takes an equal share of {keys[0]}",
        )
    return hidden // heads


def refuse_true(values: Fields, key: str, why: str) -> None:
    """Refuses a key that is true.

    Raises:
        InputError: It is true, or neither true nor false.
    """
    if values.boolean(key, default=False):
        raise InputError(f"must be false: {why}", where=values.place(key))
