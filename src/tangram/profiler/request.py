"""What a profiling run is asked: which pieces of which model, in which sizes. Validated here; no torch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import gcd

from tangram.errors import InputError
from tangram.job import Precision, divisors
from tangram.model.spec import FeedForwardSpec, LayerSpec, ModelSpec, PositionKind
from tangram.profiles.shapes import LayerShape, embedding_shape, head_shape, layer_shape


class PieceKind(StrEnum):
    """What is timed by itself."""

    EMBEDDING = "embedding"
    LAYER = "layer"
    HEAD = "head"


@dataclass(frozen=True, slots=True)
class PieceSpec:
    """One piece of a model.

    Attributes:
        kind: What it is.
        layer: The transformer layer; None at the ends.
        shape: As the store knows it.
    """

    kind: PieceKind
    layer: LayerSpec | None
    shape: LayerShape


@dataclass(frozen=True, slots=True)
class LayerRequest:
    """Which layers to time, and how.

    Attributes:
        model: The model.
        seq_len: Tokens per sample.
        precision: Arithmetic of the matrix products.
        tp: Tensor-parallel degrees.
        micro_batch: Samples on a rank.
        pieces: What to time.
        warmup, repeats: Runs before the clock counts, and while it counts.
    """

    model: ModelSpec
    seq_len: int
    precision: Precision
    tp: tuple[int, ...]
    micro_batch: tuple[int, ...]
    pieces: tuple[PieceSpec, ...]
    warmup: int = 3
    repeats: int = 10

    def __post_init__(self) -> None:
        _in_range("sequence length", "--seq-len", self.seq_len, 1, 10_000_000)
        _in_range("repeats", "--repeats", self.repeats, 1, 10_000)
        _in_range("warm-up", "--warmup", self.warmup, 0, 10_000)
        for micro_batch in self.micro_batch:
            _in_range("micro-batch", "--micro-batch", micro_batch, 1, 1_000_000)
        _check_tp(self.model, self.seq_len, self.tp)
        model = self.model
        if model.position is PositionKind.LEARNED and self.seq_len > model.max_positions:
            raise InputError(
                f"{model.name} has learned positions for {model.max_positions} tokens, not {self.seq_len}",
                where="--seq-len",
                hint=f"legal: up to {model.max_positions}",
            )
        for piece in self.pieces:
            width = _rotary_width(model, piece)
            if width % 2:
                raise InputError(
                    f"heads of {width} cannot be rotated", where="MODEL", hint="legal: even widths"
                )


def tensor_parallel_degrees(model: ModelSpec, seq_len: int) -> list[int]:
    """Returns the degrees that divide heads, widths of all blocks, and the sequence, ascending."""
    common = seq_len
    for layer in model.distinct_layers:
        common = gcd(common, layer.attention.num_heads, layer.attention.num_kv_heads)
        block = layer.feed_forward
        blocks = [block] if isinstance(block, FeedForwardSpec) else [block.expert, block.shared]
        common = gcd(common, *(each.intermediate_size for each in blocks if each is not None))
    return divisors(common)


def all_pieces(model: ModelSpec, seq_len: int) -> tuple[PieceSpec, ...]:
    """Returns the pieces of a model of different shape, in the order in which they run."""
    pieces = [PieceSpec(PieceKind.EMBEDDING, None, embedding_shape(model, seq_len))]
    pieces += [
        PieceSpec(PieceKind.LAYER, layer, layer_shape(model, layer, seq_len))
        for layer in model.distinct_layers
    ]
    pieces.append(PieceSpec(PieceKind.HEAD, None, head_shape(model, seq_len)))
    first: dict[LayerShape, PieceSpec] = {}
    for piece in pieces:
        first.setdefault(piece.shape, piece)
    return tuple(first.values())


def choose_pieces(model: ModelSpec, seq_len: int, text: str) -> tuple[PieceSpec, ...]:
    """Parses what to time: ``all``, ``none``, or names and numbers with commas (``embedding,0,31,head``).

    Args:
        model: The model.
        seq_len: Tokens per sample.
        text: ``embedding``, ``layer`` (all that differ), ``head``, or the number of a layer, from 0.

    Raises:
        InputError: A word is none of these.
    """
    known = all_pieces(model, seq_len)
    words = [word.strip().lower() for word in text.split(",")]
    if words == ["all"]:
        return known
    if words == ["none"]:
        return ()
    wanted: set[LayerShape] = set()
    for word in words:
        wanted |= _shapes(model, seq_len, word, known)
    return tuple(piece for piece in known if piece.shape in wanted)


def _shapes(model: ModelSpec, seq_len: int, word: str, known: tuple[PieceSpec, ...]) -> set[LayerShape]:
    if word in [kind.value for kind in PieceKind]:
        return {piece.shape for piece in known if piece.kind == word}
    if word.isascii() and word.isdigit() and len(word) < 7 and int(word) < model.num_layers:
        return {layer_shape(model, model.layers[int(word)], seq_len)}
    raise InputError(
        f"{word!r} is no piece of {model.name}",
        where="--layers",
        hint=f"all, none, or embedding, layer, head and layer numbers up to {model.num_layers - 1}",
    )


def _rotary_width(model: ModelSpec, piece: PieceSpec) -> int:
    """Columns of a head that carry positions; 0 without."""
    if piece.layer is None:
        return 0
    attention = piece.layer.attention
    if attention.latent is not None:
        return attention.latent.rope_dim
    return attention.head_dim if model.position is PositionKind.ROTARY else 0


def _check_tp(model: ModelSpec, seq_len: int, degrees: tuple[int, ...]) -> None:
    legal = tensor_parallel_degrees(model, seq_len)
    for tp in degrees:
        if tp not in legal:
            raise InputError(
                f"tp {tp} does not divide the heads, widths and sequence of {model.name}",
                where="--tp",
                hint="legal: " + ", ".join(map(str, legal)),
            )


def _in_range(what: str, where: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise InputError(f"{what} {value} is out of range", where=where, hint=f"legal: {low} to {high}")
