"""What was timed: the shape of a layer, of a part of one, or of an end of the model.

A shape holds what decides how long a piece of a model runs, and nothing else: two models whose layers have
equal shapes share their measurements. Not in it, because it moves times by a few per cent at most and files
of other tools do not say it: biases, the kind and number of norms, query and key norms, the kind of
positions, whether the head is tied. Nor windows of attention: times are of all keys, and a layer with a
window takes them as a factor for its formula. The attention kernel and dropout belong to the software stack.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum

from tangram.errors import InputError
from tangram.model.atoms import Atom, Part
from tangram.model.spec import FeedForwardSpec, LayerSpec, ModelSpec, MoeSpec
from tangram.model.vocabulary import padded_vocab_size


class LayerKind(StrEnum):
    """What a shape describes. ``qkv`` to ``down`` are the parts of :class:`tangram.model.atoms.Part`."""

    EMBEDDING = "embedding"
    LAYER = "layer"  # a whole transformer layer
    ATTENTION = "attention"  # norm, qkv, core, out, residual
    FEED_FORWARD = "feed_forward"  # norm, up, down, residual; or norm, router, experts, residual
    QKV = "qkv"
    CORE = "core"
    OUT = "out"
    UP = "up"
    DOWN = "down"
    EXPERT = "expert"  # the feed-forward block of one expert, on all tokens of the micro-batch
    FINAL_NORM = "final_norm"  # the norm before the LM head alone
    HEAD = "head"  # final norm, LM head, loss


_ATTENTION = frozenset({"num_heads", "num_kv_heads", "head_dim"})
_LATENT = frozenset({"q_rank", "kv_rank", "rope_dim", "value_dim"})
_BLOCK = frozenset({"intermediate_size"})
_VOCAB = frozenset({"vocab_size"})

# The sizes that matter to a kind, besides seq_len and hidden_size; all others are 0.
_MATTERS: dict[LayerKind, frozenset[str]] = {
    LayerKind.EMBEDDING: _VOCAB,
    LayerKind.LAYER: _ATTENTION | _BLOCK,
    LayerKind.ATTENTION: _ATTENTION,
    LayerKind.FEED_FORWARD: _BLOCK,
    LayerKind.QKV: _ATTENTION,
    LayerKind.CORE: _ATTENTION,
    LayerKind.OUT: _ATTENTION,
    LayerKind.UP: _BLOCK,
    LayerKind.DOWN: _BLOCK,
    LayerKind.EXPERT: _BLOCK,
    LayerKind.FINAL_NORM: frozenset(),
    LayerKind.HEAD: _VOCAB,
}
_LARGEST = 10**9  # of any size of a shape; job.py allows no longer sequences
_MAY_BE_ZERO = frozenset({"q_rank", "rope_dim", "shared_size"})
_MAY_HAVE_EXPERTS = frozenset({LayerKind.LAYER, LayerKind.FEED_FORWARD})


@dataclass(frozen=True, slots=True, order=True)
class LayerShape:
    """The shape of one timed piece, unsharded: the same whatever tp it was timed with.

    Sizes that do not matter to the kind are 0, so that equal work has equal shapes.

    Attributes:
        kind: What it is.
        seq_len: Tokens per sample.
        hidden_size: Width of the residual stream.
        num_heads, num_kv_heads, head_dim: Of attention.
        intermediate_size: Width of the feed-forward block, or of one expert.
        gated: Whether the block has a gate beside its up projection.
        num_experts, top_k: Of a mixture of experts; 0 for a dense block.
        shared_size: Width of the shared experts together, as gated as the others; 0 without.
        q_rank, kv_rank, rope_dim, value_dim: Of latent attention (:class:`tangram.model.spec.LatentSpec`); 0
            for ordinary attention, ``q_rank`` also where queries are projected directly.
        vocab_size: Rows of the vocabulary matrix, rounded up to a multiple of 128 (what tp = 1 runs).
    """

    kind: LayerKind
    seq_len: int
    hidden_size: int
    num_heads: int = 0
    num_kv_heads: int = 0
    head_dim: int = 0
    intermediate_size: int = 0
    gated: bool = False
    num_experts: int = 0
    top_k: int = 0
    vocab_size: int = 0
    shared_size: int = 0
    q_rank: int = 0
    kv_rank: int = 0
    rope_dim: int = 0
    value_dim: int = 0

    def __post_init__(self) -> None:
        wanted = {"seq_len", "hidden_size"} | _MATTERS[self.kind]
        if self.kind in _MAY_HAVE_EXPERTS and (self.num_experts or self.top_k):
            wanted |= {"num_experts", "top_k", "shared_size"}
        if wanted >= _ATTENTION and (self.kv_rank or self.value_dim):
            wanted |= _LATENT
        for field in fields(self)[1:]:
            value = getattr(self, field.name)
            if field.name in wanted & _MAY_BE_ZERO:
                legal, rule = 0 <= value <= _LARGEST, f"0 to {_LARGEST:,}"
            elif field.name in wanted:
                legal, rule = 0 < value <= _LARGEST, f"1 to {_LARGEST:,}"
            elif field.name == "gated":
                legal, rule = not value or "intermediate_size" in wanted, "false"
            else:
                legal, rule = value == 0, "zero"
            if not legal:
                raise InputError(f"{field.name} is {value} for a shape of kind {self.kind.value}", hint=rule)

    def __str__(self) -> str:
        words = [self.kind.value, f"h{self.hidden_size}", f"s{self.seq_len}"]
        if self.num_heads:
            words.append(f"a{self.num_heads}/{self.num_kv_heads}x{self.head_dim}")
        if self.kv_rank:
            words.append(f"q{self.q_rank} kv{self.kv_rank} r{self.rope_dim} w{self.value_dim}")
        if self.intermediate_size:
            words.append(f"f{self.intermediate_size}{'g' if self.gated else ''}")
        if self.num_experts:
            shared = f"+{self.shared_size}" if self.shared_size else ""
            words.append(f"e{self.num_experts}k{self.top_k}{shared}")
        if self.vocab_size:
            words.append(f"v{self.vocab_size}")
        return " ".join(words)


def embedding_shape(model: ModelSpec, seq_len: int) -> LayerShape:
    """Returns the shape of a model's token embedding."""
    return LayerShape(LayerKind.EMBEDDING, seq_len, model.embedding_width, vocab_size=_rows(model))


def head_shape(model: ModelSpec, seq_len: int) -> LayerShape:
    """Returns the shape of a model's final norm, LM head and loss."""
    return LayerShape(LayerKind.HEAD, seq_len, model.embedding_width, vocab_size=_rows(model))


def final_norm_shape(model: ModelSpec, seq_len: int) -> LayerShape:
    """Returns the shape of a model's final norm alone."""
    return LayerShape(LayerKind.FINAL_NORM, seq_len, model.hidden_size)


def layer_shape(
    model: ModelSpec, layer: LayerSpec, seq_len: int, kind: LayerKind = LayerKind.LAYER
) -> LayerShape:
    """Returns the shape of a transformer layer of a model, or of a part of it.

    Args:
        model: The model; its width counts.
        layer: The layer.
        seq_len: Tokens per sample.
        kind: ``layer``, or a part of one (``attention`` to ``expert``).
    """
    matters = _MATTERS[kind]
    sizes: dict[str, int] = {}
    if matters >= _ATTENTION:
        attention = layer.attention
        sizes |= {
            "num_heads": attention.num_heads,
            "num_kv_heads": attention.num_kv_heads,
            "head_dim": attention.head_dim,
        }
        latent = attention.latent
        if latent is not None:
            sizes |= {"q_rank": latent.q_rank or 0, "kv_rank": latent.kv_rank}
            sizes |= {"rope_dim": latent.rope_dim, "value_dim": latent.value_dim}
    gated = False
    if matters >= _BLOCK:
        feed_forward = layer.feed_forward
        block = feed_forward if isinstance(feed_forward, FeedForwardSpec) else feed_forward.expert
        sizes["intermediate_size"], gated = block.intermediate_size, block.gated
        if isinstance(feed_forward, MoeSpec) and kind in _MAY_HAVE_EXPERTS:
            sizes |= {"num_experts": feed_forward.num_experts, "top_k": feed_forward.top_k}
            sizes["shared_size"] = feed_forward.shared.intermediate_size if feed_forward.shared else 0
    return LayerShape(kind, seq_len, model.hidden_size, gated=gated, **sizes)


def atom_shapes(model: ModelSpec, atom: Atom, seq_len: int) -> tuple[LayerShape, ...]:
    """Returns the shapes that an atom consists of, in the order in which they run.

    One for an end of the model, a block or an operator; one per layer for an atom of whole layers. The time
    of the atom is the sum of theirs.
    """
    shapes: list[LayerShape] = []
    if atom.is_embedding:
        shapes.append(embedding_shape(model, seq_len))
    for idx in atom.layer_idxs:
        parts = tuple(p.part for p in atom.parts if p.layer_idx == idx)
        shapes += [layer_shape(model, model.layers[idx], seq_len, kind) for kind in _kinds(parts)]
    if atom.is_head:
        # A layer for prediction looks the embedding up and passes the head once more; its projection and
        # norms move times by little.
        shapes += [embedding_shape(model, seq_len)] * model.num_prediction_layers
        shapes += [head_shape(model, seq_len)] * (1 + model.num_prediction_layers)
    return tuple(shapes)


def has_window(model: ModelSpec, atom: Atom, seq_len: int) -> bool:
    """Whether a query of an atom sees fewer keys than its shapes say, which know no windows."""
    windows = [model.layers[idx].attention.window for idx in atom.layer_idxs]
    return any(window is not None and window < seq_len for window in windows)


_ATTENTION_PARTS = (Part.QKV, Part.CORE, Part.OUT)


def _kinds(parts: tuple[Part, ...]) -> list[LayerKind]:
    """The kinds that a run of parts of one layer is made of: as few as possible."""
    feed_forward = parts[-2:] == (Part.UP, Part.DOWN) or parts[-1:] == (Part.MOE,)
    if parts[:3] == _ATTENTION_PARTS and feed_forward:
        return [LayerKind.LAYER]
    if parts == _ATTENTION_PARTS:
        return [LayerKind.ATTENTION]
    if feed_forward and len(parts) <= 2 and Part.OUT not in parts:
        return [LayerKind.FEED_FORWARD]
    return [LayerKind.FEED_FORWARD if part is Part.MOE else LayerKind(part.value) for part in parts]


def _rows(model: ModelSpec) -> int:
    return padded_vocab_size(model.vocab_size, tp=1)
