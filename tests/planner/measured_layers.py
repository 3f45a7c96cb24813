"""Hand-made measurements of a model's layers."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

from tangram.job import Precision
from tangram.model.atoms import Atom
from tangram.model.spec import ModelSpec
from tangram.profiles.records import LayerTime
from tangram.profiles.shapes import LayerShape, atom_shapes

Seconds = Callable[[LayerShape, int, int], tuple[float, float]]
"""(shape, tp, samples) -> forward and backward."""


def records(
    model: ModelSpec,
    atoms: Iterable[Atom],
    gpu: str,
    seconds: Seconds,
    *,
    seq_len: int,
    tps: Iterable[int] = (1, 2, 4),
    samples: Iterable[int] = (1, 2, 4, 8),
    precision: Precision = Precision.FP16,
    stack: str = "tangram-runtime",
    comm: bool = True,
) -> list[LayerTime]:
    """One record per distinct shape of the atoms, tp and number of samples."""
    shapes = dict.fromkeys(shape for atom in atoms for shape in atom_shapes(model, atom, seq_len))
    found = []
    for shape in shapes:
        for tp in tps:
            for number in samples:
                forward, backward = seconds(shape, tp, number)
                found.append(
                    LayerTime(
                        gpu=gpu,
                        stack=stack,
                        precision=precision,
                        shape=shape,
                        tp=tp,
                        micro_batch=number,
                        includes_tp_comm=comm and tp > 1,
                        forward_s=forward,
                        backward_s=backward,
                        source="a test",
                    )
                )
    return found


def erratic(seed: int) -> Seconds:
    """Times that follow no formula, but grow with the work by and large."""
    rng = random.Random(seed)

    def seconds(shape: LayerShape, tp: int, samples: int) -> tuple[float, float]:
        work = samples * shape.seq_len * shape.hidden_size / tp * 1e-9 * rng.uniform(0.3, 3)
        return work, work * rng.uniform(1, 3)

    return seconds
