"""The basis of predictions: values that compare, travel and answer."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangram.basis import (
    SHIPPED_BASIS,
    CostBasis,
    FactorKey,
    MeasuredFactor,
    MeasuredTable,
    Override,
)
from tangram.errors import InputError
from tangram.job import Job, Precision

FACTORS = st.builds(
    MeasuredFactor,
    st.builds(
        FactorKey,
        st.sampled_from("ab"),
        st.sampled_from(["X", "Y"]),
        st.sampled_from([1, 2, 4]),
        st.sampled_from([1, 2, 3, 4]),
    ),
    st.floats(0.2, 5),
    st.floats(0.2, 5),
    st.booleans(),
    st.just("measured"),
)
TABLES = st.lists(FACTORS, unique_by=lambda factor: factor.key).map(tuple)


def test_the_default_is_what_is_shipped() -> None:
    assert Job(1, 1, Precision.BF16).basis == SHIPPED_BASIS
    assert SHIPPED_BASIS.is_default
    assert not CostBasis(stack="other").has_shipped_constants
    override = Override("cluster", "default", "nic_efficiency", 0.5)
    assert not CostBasis(overrides=(override,)).is_default
    table = MeasuredTable("bf16", 8, (MeasuredFactor(FactorKey("a", "X", 1, 1), 2, 2, False, "measured"),))
    assert CostBasis(measured=table).has_shipped_constants
    assert not CostBasis(measured=table).is_default


def test_order_does_not_matter_and_nothing_is_said_twice() -> None:
    one = Override("cluster", "a", "nic_efficiency", 0.5)
    other = Override("cluster", "a", "all_to_all_efficiency", 0.5)
    assert CostBasis(overrides=(one, other)) == CostBasis(overrides=(other, one))
    with pytest.raises(InputError, match="has two values") as caught:
        CostBasis(overrides=(one, other, one._replace(value=0.6)))
    assert caught.value.where == "cluster.a.nic_efficiency"
    factor = MeasuredFactor(FactorKey("a", "X", 1, 1), 2, 2, False, "measured")
    with pytest.raises(InputError, match="one key"):
        MeasuredTable("bf16", 8, (factor, replace(factor, forward=3)))


@given(TABLES, st.booleans())
def test_tables_are_values(factors: tuple[MeasuredFactor, ...], is_whole: bool) -> None:
    table = MeasuredTable("bf16", 8, factors, is_whole)
    job = replace(Job(1, 8, Precision.BF16), basis=CostBasis(measured=table))
    again = pickle.loads(pickle.dumps(job))
    assert again == job
    assert hash(again) == hash(job)
    for factor in factors:
        assert again.basis.measured.find(factor.key) == factor
    assert table.find(FactorKey("c", "X", 1, 1)) is None


@given(TABLES, st.booleans(), st.sampled_from([1, 2, 3, 4, 8, 12]))
def test_no_factor_that_a_planner_may_meet_is_below_the_least(
    factors: tuple[MeasuredFactor, ...], is_whole: bool, micro_batch: int
) -> None:
    table = MeasuredTable("bf16", 8, factors, is_whole)
    for atom, island in (("a", "X"), ("b", "Y"), ("c", "Z")):
        least = table.least(atom, island, micro_batch)
        met = [
            (f.forward, f.backward)
            for f in factors
            if (f.key.atom, f.key.island) == (atom, island) and micro_batch % f.key.samples == 0
        ]
        if not is_whole or not met:
            met.append((1.0, 1.0))
        assert least == (min(f for f, _ in met), min(b for _, b in met))
