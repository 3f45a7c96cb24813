"""Small measurements, and a formula that is easy to check by hand."""

from __future__ import annotations

from dataclasses import replace

from tangram.job import Precision
from tangram.model.spec import ModelSpec
from tangram.profiles.formula import PassTimes
from tangram.profiles.records import LayerTime
from tangram.profiles.shapes import LayerKind, LayerShape

HIDDEN = 64


def layer(kind: LayerKind = LayerKind.LAYER, *, hidden: int = HIDDEN, seq_len: int = 128) -> LayerShape:
    """A dense layer with four heads and a block four times as wide, or a piece of it."""
    attention = {"num_heads": 4, "num_kv_heads": 4, "head_dim": hidden // 4}
    block = {"intermediate_size": 4 * hidden}
    sizes = {
        LayerKind.LAYER: attention | block,
        LayerKind.FEED_FORWARD: block,
        LayerKind.UP: block,
        LayerKind.DOWN: block,
        LayerKind.EXPERT: block,
        LayerKind.EMBEDDING: {"vocab_size": 1024},
        LayerKind.HEAD: {"vocab_size": 1024},
        LayerKind.FINAL_NORM: {},
    }.get(kind, attention)
    return LayerShape(kind, seq_len, hidden, **sizes)


def record(
    shape: LayerShape | None = None,
    *,
    tp: int = 1,
    micro_batch: int = 1,
    comm: bool | None = None,
    forward_s: float | None = 1.0,
    backward_s: float | None = 2.0,
    both_s: float | None = None,
    stack: str = "test",
    gpu: str = "T4",
    source: str = "a test",
) -> LayerTime:
    return LayerTime(
        gpu=gpu,
        stack=stack,
        precision=Precision.FP16,
        shape=shape or layer(),
        tp=tp,
        micro_batch=micro_batch,
        includes_tp_comm=tp > 1 if comm is None else comm,
        forward_s=forward_s,
        backward_s=backward_s,
        forward_backward_s=both_s,
        source=source,
    )


_SHARE = {
    LayerKind.LAYER: 1.0,
    LayerKind.ATTENTION: 0.4,
    LayerKind.FEED_FORWARD: 0.6,
    LayerKind.UP: 0.3,
    LayerKind.DOWN: 0.3,
    LayerKind.QKV: 0.2,
    LayerKind.CORE: 0.1,
    LayerKind.OUT: 0.1,
}


def simple_formula(shape: LayerShape, tp: int, micro_batch: int, with_tp_comm: bool) -> PassTimes | None:
    """Tokens x hidden / tp, and one second of collectives per pass; three times that backward."""
    if shape.kind is LayerKind.EXPERT:
        return None
    work = micro_batch * shape.seq_len * shape.hidden_size / tp / 8192
    comm = 1.0 if with_tp_comm and tp > 1 else 0.0
    forward = work * _SHARE.get(shape.kind, 0.5) + comm
    return PassTimes(forward, 3 * forward)


def as_shapes_see_it(model: ModelSpec) -> ModelSpec:
    """The model without what shapes leave out: windows, norms and projections at the ends, and in front of
    layers for prediction.
    """
    model = model.main
    layers = tuple(replace(one, attention=replace(one.attention, window=None)) for one in model.layers)
    return replace(model, layers=layers, embedding_size=None, embedding_norm=False, final_norm=True)
