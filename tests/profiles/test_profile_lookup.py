from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_cases import layer, record, simple_formula

from tangram.errors import InputError
from tangram.job import Precision
from tangram.profiles.lookup import Basis, factors, layer_times
from tangram.profiles.measured import LayerQuery, MeasuredLayers, nearest
from tangram.profiles.records import LayerTime
from tangram.profiles.shapes import LayerKind, LayerShape

K = LayerKind
SECONDS = st.floats(1e-6, 10.0)


def ask(shape: LayerShape | None = None, *, tp: int = 1, micro_batch: int = 1, gpu: str = "T4") -> LayerQuery:
    return LayerQuery(gpu, Precision.FP16, shape or layer(), tp, micro_batch)


def test_an_exact_shape_is_used_as_measured() -> None:
    measured = MeasuredLayers.of([record(), record(micro_batch=2, forward_s=1.5, backward_s=9.0)])
    found = layer_times(measured, ask(micro_batch=2), simple_formula)
    assert found is not None
    assert (found.forward_s, found.backward_s) == (1.5, 9.0)
    assert (found.basis, found.distance, found.sources) == (Basis.MEASURED, 0.0, ("a test",))


def test_between_two_micro_batches_times_lie_on_a_line() -> None:
    far = record(micro_batch=4, forward_s=7.0, backward_s=2.0, source="b")
    measured = MeasuredLayers.of([record(micro_batch=1, forward_s=1.0), far])
    found = layer_times(measured, ask(micro_batch=2))
    assert found is not None
    assert (found.forward_s, found.backward_s) == (pytest.approx(3.0), pytest.approx(2.0))
    assert (found.basis, found.sources) == (Basis.INTERPOLATED, ("a test", "b"))
    # the nearest two count, not the outermost
    dense = MeasuredLayers.of(
        [record(micro_batch=1, forward_s=1.0), record(micro_batch=3, forward_s=2.0), far]
    )
    nearer = layer_times(dense, ask(micro_batch=2))
    assert nearer is not None
    assert nearer.forward_s == pytest.approx(1.5)


def test_beyond_the_measured_range_the_formula_is_scaled() -> None:
    measured = MeasuredLayers.of([record(micro_batch=1, forward_s=2.0), record(micro_batch=2, forward_s=4.0)])
    found = layer_times(measured, ask(micro_batch=8), simple_formula)
    assert found is not None
    assert found.basis is Basis.SCALED
    assert found.forward_s == pytest.approx(16.0)  # both points are twice the formula
    assert found.distance == pytest.approx(2.0)
    assert layer_times(measured, ask(micro_batch=8)) is None


@given(ratio=st.floats(0.1, 10.0), tp=st.sampled_from([1, 2, 4]), micro_batch=st.integers(1, 64))
def test_where_all_measurements_are_one_multiple_of_the_formula_so_is_the_answer(
    ratio: float, tp: int, micro_batch: int
) -> None:
    points = [(1, 1), (1, 4), (2, 2), (4, 1)]
    records = []
    for of_tp, of_micro_batch in points:
        base = simple_formula(layer(), of_tp, of_micro_batch, of_tp > 1)
        assert base is not None
        times = {"forward_s": ratio * base.forward_s, "backward_s": ratio * base.backward_s}
        records.append(record(tp=of_tp, micro_batch=of_micro_batch, **times))
    shape = layer(hidden=256, seq_len=64)
    found = factors(MeasuredLayers.of(records), ask(shape, tp=tp, micro_batch=micro_batch), simple_formula)
    assert found is not None
    assert found.basis is Basis.SCALED
    assert found.forward == pytest.approx(ratio)
    assert found.backward == pytest.approx(ratio)


@given(data=st.data())
def test_answers_scale_with_the_measurements(data: st.DataObject) -> None:
    points = data.draw(
        st.lists(st.tuples(st.integers(1, 9), SECONDS, SECONDS), min_size=1, unique_by=lambda p: p[0])
    )
    records = [record(micro_batch=m, forward_s=f, backward_s=b) for m, f, b in points]
    doubled = [
        replace(r, forward_s=2 * (r.forward_s or 0), backward_s=2 * (r.backward_s or 0)) for r in records
    ]
    query = ask(micro_batch=data.draw(st.integers(1, 20)))
    one = layer_times(MeasuredLayers.of(records), query, simple_formula)
    two = layer_times(MeasuredLayers.of(doubled), query, simple_formula)
    assert one is not None
    assert two is not None
    assert two.forward_s == pytest.approx(2 * one.forward_s)
    assert two.backward_s == pytest.approx(2 * one.backward_s)
    assert two.basis is one.basis


@given(data=st.data())
def test_interpolated_times_lie_between_their_neighbours(data: st.DataObject) -> None:
    low, high = data.draw(SECONDS), data.draw(SECONDS)
    records = [record(micro_batch=2, forward_s=low), record(micro_batch=64, forward_s=high)]
    found = layer_times(MeasuredLayers.of(records), ask(micro_batch=data.draw(st.integers(3, 63))))
    assert found is not None
    assert min(low, high) * (1 - 1e-9) <= found.forward_s <= max(low, high) * (1 + 1e-9)


@given(
    order=st.permutations(
        [record(micro_batch=m, forward_s=float(m), source=str(m)) for m in (1, 2, 4, 8, 16)]
    )
)
def test_the_order_of_records_does_not_matter(order: list[LayerTime]) -> None:
    query = ask(layer(hidden=128), micro_batch=3)
    first = layer_times(MeasuredLayers.of(sorted(order, key=lambda r: r.micro_batch)), query, simple_formula)
    assert layer_times(MeasuredLayers.of(order), query, simple_formula) == first


def test_near_points_weigh_more_than_far_ones() -> None:
    base = simple_formula(layer(), 1, 1, False)
    assert base is not None
    records = [
        record(micro_batch=1, forward_s=base.forward_s),  # ratio 1
        record(micro_batch=64, forward_s=64 * 4 * base.forward_s),  # ratio 4
    ]
    measured = MeasuredLayers.of(records)
    near_one = factors(measured, ask(layer(hidden=128), micro_batch=1), simple_formula)
    near_many = factors(measured, ask(layer(hidden=128), micro_batch=64), simple_formula)
    assert near_one is not None
    assert near_many is not None
    assert 1.0 < near_one.forward < 1.5 < 3.0 < near_many.forward < 4.0


def test_a_sum_is_split_as_the_formula_splits_it() -> None:
    measured = MeasuredLayers.of([record(forward_s=None, backward_s=None, both_s=8.0)])
    found = layer_times(measured, ask(), simple_formula)
    assert found is not None
    assert (found.forward_s, found.backward_s, found.basis) == (2.0, 6.0, Basis.MEASURED)
    assert layer_times(measured, ask()) is None


def test_a_missing_pass_is_the_formula_scaled_like_the_other() -> None:
    found = layer_times(MeasuredLayers.of([record(forward_s=5.0, backward_s=None)]), ask(), simple_formula)
    assert found is not None
    assert (found.forward_s, found.backward_s) == (5.0, pytest.approx(15.0))
    assert found.basis is Basis.SCALED
    assert layer_times(MeasuredLayers.of([record(backward_s=None)]), ask()) is None


def test_pieces_add_up_to_a_layer() -> None:
    pieces = [record(layer(kind), forward_s=1.0) for kind in (K.QKV, K.CORE, K.OUT, K.UP)]
    block = record(layer(K.FEED_FORWARD), forward_s=4.0, backward_s=8.0)
    found = layer_times(MeasuredLayers.of([*pieces, block]), ask())
    assert found is not None
    assert (found.forward_s, found.backward_s, found.basis) == (7.0, 14.0, Basis.MEASURED)
    assert layer_times(MeasuredLayers.of(pieces), ask()) is None


def test_a_layer_scales_the_formula_of_its_pieces_and_not_of_the_ends() -> None:
    base = simple_formula(layer(), 1, 1, False)
    assert base is not None
    measured = MeasuredLayers.of([record(forward_s=2 * base.forward_s, backward_s=3 * base.backward_s)])
    found = factors(measured, ask(layer(K.ATTENTION)), simple_formula)
    assert found is not None
    assert (found.forward, found.backward) == (pytest.approx(2), pytest.approx(3))
    assert found.distance == pytest.approx(2.0)
    assert layer_times(measured, ask(layer(K.HEAD)), simple_formula) is None
    assert layer_times(measured, ask(layer(K.EXPERT)), simple_formula) is None


def test_collectives_are_in_or_out_and_the_answer_says_which() -> None:
    alone = MeasuredLayers.of([record(tp=2, comm=False, forward_s=1.0, backward_s=3.0)])
    found = layer_times(alone, ask(tp=2), simple_formula)
    assert found is not None
    assert (found.includes_tp_comm, found.forward_s) == (False, 1.0)
    both = MeasuredLayers.of([record(tp=2, comm=False), record(tp=2, comm=True, forward_s=3.0)])
    found = layer_times(both, ask(tp=2))
    assert found is not None
    assert (found.includes_tp_comm, found.forward_s) == (True, 3.0)


def test_scaled_answers_never_mix_times_with_and_without_collectives() -> None:
    # Alone, the rank takes twice the formula without collectives; in its group, five times that with them.
    work, comm = simple_formula(layer(), 2, 1, False), simple_formula(layer(), 2, 1, True)
    assert work is not None
    assert comm is not None
    records = [
        record(tp=2, comm=False, forward_s=2 * work.forward_s, backward_s=2 * work.backward_s),
        record(tp=2, comm=True, micro_batch=2, forward_s=5 * comm.forward_s),
    ]
    found = factors(MeasuredLayers.of(records), ask(layer(hidden=128), tp=2), simple_formula)
    assert found is not None
    assert found.includes_tp_comm is False
    assert found.forward == pytest.approx(2.0)
    # From tp 1 alone, only compute can be scaled.
    single = factors(MeasuredLayers.of([record()]), ask(tp=4), simple_formula)
    assert single is not None
    assert single.includes_tp_comm is False
    # At tp 1 there is nothing to include, whatever the formula is scaled by.
    grouped = factors(MeasuredLayers.of([record(tp=2)]), ask(tp=1), simple_formula)
    assert grouped is not None
    assert grouped.includes_tp_comm is False


def test_other_gpus_and_precisions_do_not_count() -> None:
    measured = MeasuredLayers.of([record()])
    assert layer_times(measured, ask(gpu="L4"), simple_formula) is None
    assert layer_times(measured, ask()._replace(precision=Precision.FP32), simple_formula) is None
    assert len(MeasuredLayers.of([])) == 0


def test_whose_measurements_count() -> None:
    ours = record(stack="tangram-runtime", forward_s=3.0)
    theirs = [record(stack="a", forward_s=4.0), record(stack="b", forward_s=5.0)]

    def forward_s(records: list[LayerTime], stack: str | None = None) -> float | None:
        found = layer_times(MeasuredLayers.of(records, stack), ask())
        return None if found is None else found.forward_s

    assert forward_s([ours, *theirs]) == 3.0
    assert forward_s(theirs[:1]) == 4.0
    assert forward_s([ours, *theirs], "b") == 5.0
    assert forward_s([ours, *theirs], "c") is None
    with pytest.raises(InputError, match="T4, fp16: profiles of 2 stacks"):
        forward_s(theirs)


def test_the_nearest_come_first() -> None:
    records = [record(micro_batch=m) for m in (1, 2, 4, 8)] + [record(layer(K.HEAD))]
    table = MeasuredLayers.of(records).tables["T4", Precision.FP16]
    found = [(round(distance, 6), r.micro_batch) for distance, r in nearest(table, ask(micro_batch=4))]
    assert found == [(0.0, 4), (1.0, 2), (1.0, 8), (2.0, 1)]
