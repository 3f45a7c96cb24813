"""Made-up measurements of the layers of a run."""

from __future__ import annotations

import random
from collections.abc import Iterable

from tangram.job import Precision
from tangram.model.atoms import cut_atoms
from tangram.profiles.records import LayerTime
from tangram.profiles.shapes import LayerKind, LayerShape, atom_shapes, final_norm_shape
from tangram.validation.run import Run

BOTH_PASSES = 3.0
"""Backward over forward."""


def shapes_of(run: Run) -> list[LayerShape]:
    """Embedding, layer, head, and the final norm alone."""
    atoms = cut_atoms(run.model)
    shapes = dict.fromkeys(shape for atom in atoms for shape in atom_shapes(run.model, atom, run.seq_len))
    return [*shapes, final_norm_shape(run.model, run.seq_len)]


def layer_times(
    run: Run,
    *,
    seed: int = 0,
    gpus: Iterable[str] | None = None,
    kinds: Iterable[LayerKind] = tuple(LayerKind),
    micro_batches: Iterable[int] = (1, 2, 4),
    with_comm: bool = True,
    stack: str = "mine",
) -> list[LayerTime]:
    """Times that follow no formula, of every shape of a run's model at the run's tp, by GPU."""
    rng = random.Random(seed)
    tp, wanted = run.degrees.tp, set(kinds)
    found = []
    for gpu in gpus or [part.name for part in run.hardware.gpus]:
        for shape in shapes_of(run):
            for micro_batch in micro_batches:
                forward_s = rng.uniform(1e-3, 5e-2)
                record = LayerTime(
                    gpu=gpu,
                    stack=stack,
                    precision=Precision(run.numbers.precision),
                    shape=shape,
                    tp=tp,
                    micro_batch=micro_batch,
                    includes_tp_comm=with_comm and tp > 1,
                    forward_s=forward_s,
                    backward_s=BOTH_PASSES * forward_s,
                    source="a test",
                )
                found += [record] if shape.kind in wanted else []
    return found


def seconds(records: Iterable[LayerTime], gpu: str, kind: LayerKind, micro_batch: int) -> float:
    """Forward and backward of one record."""
    (found,) = (r for r in records if (r.gpu, r.shape.kind, r.micro_batch) == (gpu, kind, micro_batch))
    assert found.forward_s is not None
    assert found.backward_s is not None
    return found.forward_s + found.backward_s
