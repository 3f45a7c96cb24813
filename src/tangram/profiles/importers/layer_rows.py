"""What the readers of per-layer profiles share: records of one model, one GPU and one degree.

A profile lists embedding, transformer layers and what follows them. The layers of a model are equal in all
profiles that were published, and mostly one measurement repeated; the median of them becomes one record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from tangram.errors import InputError
from tangram.job import Precision
from tangram.profiles.importers.harvest import Harvest, located
from tangram.profiles.peers import ProfiledModel
from tangram.profiles.records import LayerTime
from tangram.profiles.shapes import LayerShape, embedding_shape, final_norm_shape, head_shape, layer_shape


@dataclass(frozen=True, slots=True)
class Run:
    """What all records of one list of entries have in common; ``where`` is their place, for messages."""

    gpu: str
    stack: str
    precision: Precision
    model: ProfiledModel
    seq_len: int
    tp: int
    micro_batch: int
    source: str
    where: str

    def record(
        self,
        shape: LayerShape,
        *,
        forward_s: float | None = None,
        backward_s: float | None = None,
        forward_backward_s: float | None = None,
        activation_bytes: int | None = None,
    ) -> LayerTime:
        """Returns a record of a shape; times hold the tensor-parallel collectives when tp > 1.

        Raises:
            InputError: A figure cannot have been measured.
        """
        with located(f"{self.where}: {shape.kind.value}"):
            return LayerTime(
                gpu=self.gpu,
                stack=self.stack,
                precision=self.precision,
                shape=shape,
                tp=self.tp,
                micro_batch=self.micro_batch,
                includes_tp_comm=self.tp > 1,
                forward_s=forward_s,
                backward_s=backward_s,
                forward_backward_s=forward_backward_s,
                activation_bytes=activation_bytes,
                source=self.source,
            )


@dataclass(frozen=True, slots=True)
class Entries:
    """The entries of a per-layer profile, sorted into what they are; the same measures in each.

    Attributes:
        embedding: Of the embedding.
        layer: Of one transformer layer: the median of all, measure by measure.
        final_norm: Of the final norm alone, where it is an entry of its own, or the last one.
        head: Of final norm, LM head and loss; None where the profile lacks the LM head's product.
    """

    embedding: tuple[float, ...]
    layer: tuple[float, ...]
    final_norm: tuple[float, ...] | None
    head: tuple[float, ...] | None


def sort_entries(
    entries: Sequence[tuple[float, ...]], model: ProfiledModel, where: str, harvest: Harvest
) -> Entries:
    """Sorts the entries of a per-layer profile, first to last.

    Args:
        entries: One per layer of the profile, all with the same measures.
        model: What was profiled; it must have as many layers.
        where: The file and field, for messages.
        harvest: Counts what is left out.

    Raises:
        InputError: The number of entries is neither the model's layers and two ends, nor these with the final
            norm as an entry of its own.
    """
    num_layers = model.spec.num_layers
    if len(entries) not in (num_layers + 2, num_layers + 3):
        raise InputError(
            f"has {len(entries)} entries, but {model.spec.name} has {num_layers} layers and two ends",
            where=where,
            hint="this is the profile of another model, or --model is wrong",
        )
    layers = entries[1 : 1 + num_layers]
    middle = tuple(median(values) for values in zip(*layers, strict=True))
    last = entries[-1]
    if len(entries) == num_layers + 3:
        norm = entries[-2]
        both = tuple(a + b for a, b in zip(norm, last, strict=True))
        return Entries(entries[0], middle, norm, both)
    if model.last_is_head:
        return Entries(entries[0], middle, None, last)
    return Entries(entries[0], middle, last, None)


def entry_shapes(run: Run) -> tuple[LayerShape, LayerShape, LayerShape, LayerShape]:
    """Returns the shapes of embedding, layer, final norm and head.

    Raises:
        InputError: The layers of the model are not equal, so that one record cannot stand for all.
    """
    spec = run.model.spec
    if len(spec.distinct_layers) != 1:
        raise InputError(
            f"{spec.name} has {len(spec.distinct_layers)} kinds of layers; profiles of this format hold one",
            where="--model",
        )
    return (
        embedding_shape(spec, run.seq_len),
        layer_shape(spec, spec.layers[0], run.seq_len),
        final_norm_shape(spec, run.seq_len),
        head_shape(spec, run.seq_len),
    )
