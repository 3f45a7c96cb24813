"""Atoms: the smallest pieces that a parallelizer can cut, and slices: contiguous runs of them.

An atom is a list of *parts*. A transformer layer has the parts qkv, core, out, up, down (dense) or
qkv, core, out, moe; the ends of the model are atoms of one part each. Granularity says how parts are
glued: ``operator`` (each part alone), ``block`` (attention, feed-forward), ``layer`` (default), or a
number N (N layers). The experts of a MoE layer are one part: cutting between dispatch and combine would
send tokens by expert over a stage boundary, which no engine does. Layers for prediction belong to the atom of
the head: they need what the last layer gives and the head's matrix.

Equal content has an equal fingerprint, so the content of two slices can be compared without knowing what
is inside.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from tangram.errors import InputError
from tangram.model.spec import LayerSpec, ModelSpec


class Part(StrEnum):
    """The parts of a model that atoms are made of, in the order in which they run."""

    EMBEDDING = "embedding"
    QKV = "qkv"  # norm, query/key/value projection
    CORE = "core"  # rotary, scores, softmax, values
    OUT = "out"  # output projection, residual
    UP = "up"  # norm, up (and gate) projection
    DOWN = "down"  # activation, down projection, residual
    MOE = "moe"  # norm, router, dispatch, experts, combine, residual
    HEAD = "head"  # final norm, LM head, loss


@dataclass(frozen=True, slots=True)
class AtomPart:
    """One part, and the layer that it belongs to (None for embedding and head)."""

    part: Part
    layer_idx: int | None


@dataclass(frozen=True, slots=True)
class Atom:
    """The smallest piece that can be cut.

    Attributes:
        parts: What runs, in order.
        fingerprint: Equal for atoms of equal content (whatever their position).
    """

    parts: tuple[AtomPart, ...]
    fingerprint: str

    @property
    def is_embedding(self) -> bool:
        """Whether this is the token embedding."""
        return self.parts[0].part is Part.EMBEDDING

    @property
    def is_head(self) -> bool:
        """Whether this is the final norm and LM head."""
        return self.parts[-1].part is Part.HEAD

    @property
    def layer_idxs(self) -> tuple[int, ...]:
        """The layers that this atom holds, or holds a part of, ascending."""
        return tuple(sorted({p.layer_idx for p in self.parts if p.layer_idx is not None}))


@dataclass(frozen=True, slots=True)
class Granularity:
    """How parts are glued to atoms; ``layers_per_atom`` counts only for kind ``layer``."""

    kind: str = "layer"
    layers_per_atom: int = 1

    def __str__(self) -> str:
        return str(self.layers_per_atom) if self.layers_per_atom != 1 else self.kind


def parse_granularity(text: str, *, where: str | None = None) -> Granularity:
    """Parses ``operator``, ``block``, ``layer`` or a number of layers.

    Raises:
        InputError: The text is none of them.
    """
    lowered = text.strip().lower()
    if lowered in ("operator", "block", "layer"):
        return Granularity(lowered)
    is_count = lowered.isascii() and lowered.isdigit() and len(lowered) <= 5
    if is_count and 1 <= int(lowered) <= 10_000:
        return Granularity("layer", int(lowered))
    raise InputError(
        f"{text!r} is no granularity of atoms",
        where=where,
        hint="legal: operator, block, layer, or a number of layers from 1 to 10000",
    )


def cut_atoms(model: ModelSpec, granularity: Granularity = Granularity()) -> tuple[Atom, ...]:
    """Cuts a model into atoms: embedding first, head last (with layers for prediction), layers between them.

    Raises:
        InputError: The number of layers per atom does not divide the number of layers, or layers whose
            blocks run side by side would be cut inside.
    """
    if granularity.kind == "layer" and model.num_layers % granularity.layers_per_atom:
        divisors = [d for d in range(1, model.num_layers + 1) if model.num_layers % d == 0]
        raise InputError(
            f"{granularity.layers_per_atom} layers per atom do not divide {model.num_layers} layers",
            where="--atoms",
            hint="legal: " + ", ".join(map(str, divisors)),
        )
    if granularity.kind != "layer" and any(layer.parallel for layer in model.distinct_layers):
        raise InputError(
            f"attention and feed-forward of {model.name} run side by side: no {granularity.kind} is a piece "
            "that could be cut off",
            where="--atoms",
            hint="legal: layer, or a number of layers",
        )
    atoms = [_atom(model, [AtomPart(Part.EMBEDDING, None)])]
    pending: list[AtomPart] = []
    for idx, layer in enumerate(model.layers[: model.num_layers]):
        groups = _groups(layer, granularity.kind)
        for group in groups:
            pending += [AtomPart(part, idx) for part in group]
            whole = granularity.kind != "layer" or (idx + 1) % granularity.layers_per_atom == 0
            if whole:
                atoms.append(_atom(model, pending))
                pending = []
    for idx in range(model.num_layers, len(model.layers)):
        pending += [AtomPart(part, idx) for part in layer_parts(model.layers[idx])]
    atoms.append(_atom(model, [*pending, AtomPart(Part.HEAD, None)]))
    return tuple(atoms)


def atom_kinds(atoms: Iterable[Atom]) -> tuple[int, ...]:
    """Returns a number per atom, equal for equal content, in order of first appearance."""
    known: dict[str, int] = {}
    return tuple(known.setdefault(atom.fingerprint, len(known)) for atom in atoms)


def has_experts(atoms: Iterable[Atom]) -> bool:
    """Returns whether any of the atoms holds experts."""
    return any(part.part is Part.MOE for atom in atoms for part in atom.parts)


def layer_parts(layer: LayerSpec) -> tuple[Part, ...]:
    """Returns the parts of a layer in the order in which they run."""
    feed_forward = (Part.MOE,) if layer.moe else (Part.UP, Part.DOWN)
    return (Part.QKV, Part.CORE, Part.OUT, *feed_forward)


def _groups(layer: LayerSpec, kind: str) -> list[tuple[Part, ...]]:
    parts = layer_parts(layer)
    if kind == "operator":
        return [(part,) for part in parts]
    if kind == "block":
        return [parts[:3], parts[3:]]
    return [parts]


def _atom(model: ModelSpec, parts: Iterable[AtomPart]) -> Atom:
    listed = tuple(parts)
    first = next((p.layer_idx for p in listed if p.layer_idx is not None), 0) or 0
    content = [
        (
            p.part.value,
            None if p.layer_idx is None else (p.layer_idx - first, _content(model.layers[p.layer_idx])),
        )
        for p in listed
    ]
    ends: tuple[object, ...] = (
        model.hidden_size,
        model.vocab_size,
        model.tied_embeddings,
        model.position.value,
        model.max_positions,
    )
    more: tuple[object, ...] = (
        model.embedding_size,
        model.embedding_norm,
        model.final_norm,
        model.position_offset,
        model.num_prediction_layers,
    )
    if more != (None, False, True, 0, 0):  # plans hold fingerprints: those of other models have to stay
        ends += more
    text = repr((content, ends, model.norm.value))
    return Atom(listed, hashlib.sha256(text.encode()).hexdigest()[:16])


def _content(layer: LayerSpec) -> str:
    """All that a layer is, as text; again, what few layers have is written only where they have it."""
    more = (layer.post_norm, layer.parallel)
    return repr(layer) + (repr(more) if any(more) else "")
