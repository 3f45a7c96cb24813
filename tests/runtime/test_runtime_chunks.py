"""Several chunks of the model per stage: who gets which atoms."""

from __future__ import annotations

import pytest
from run_plans import Stage, plan_of
from samples import mixed_plan, operator_plan

from tangram.errors import InputError
from tangram.job import Recompute
from tangram.runtime.chunks import chunk_sections

NONE, SELECTIVE, FULL = Recompute


def test_atoms_go_round_and_modes_stay_with_their_places() -> None:
    plan = plan_of(
        [
            Stage(2, recompute=(NONE, SELECTIVE, FULL), kept_on_host=(0, 2)),
            Stage(3, tp=2, recompute=(FULL, NONE, NONE, SELECTIVE), kept_on_host=(3,)),
        ]
    )
    first, last = chunk_sections(plan, 2)
    assert [section.atoms for section in (first[0], last[0], first[1], last[1])] == [
        (0, 2),
        (2, 4),
        (4, 5),
        (5, 7),
    ]
    assert [[e.mode for e in section.recompute] for section in first] == [[NONE, SELECTIVE], [FULL]]
    assert [[e.mode for e in section.recompute] for section in last] == [[FULL, NONE], [NONE, SELECTIVE]]
    assert [section.offload_activation_atoms for section in (*first, *last)] == [[0], [4], [], [6]]
    assert [section.layers for section in (*first, *last)] == [(0, 1), (3, 4), (1, 3), (4, 5)]
    assert [section.has_embedding for section in (*first, *last)] == [True, False, False, False]
    assert [section.has_head for section in (*first, *last)] == [False, False, False, True]
    for section in (*first, *last):
        assert [e.atom for e in section.recompute] == list(range(*section.atoms))


def test_what_is_left_over_goes_to_the_ends_of_the_model() -> None:
    first, last = chunk_sections(plan_of([Stage(2), Stage(2)]), 2)
    assert [section.atoms[1] - section.atoms[0] for section in (*first, *last)] == [2, 1, 1, 2]


def test_one_chunk_is_the_stage() -> None:
    plan = plan_of([Stage(2), Stage(2)])
    assert chunk_sections(plan, 1) == [[stage] for stage in plan.stages]


def test_what_cannot_be_regrouped_is_refused() -> None:
    with pytest.raises(InputError, match="no others to take turns"):
        chunk_sections(plan_of([Stage(4)]), 2)
    with pytest.raises(InputError, match="stage 1 has 2 atoms, too few for 3 chunks") as caught:
        chunk_sections(plan_of([Stage(3), Stage(1)]), 3)
    assert caught.value.hint == "at most 2"
    with pytest.raises(InputError, match="smaller than a layer"):
        chunk_sections(operator_plan(), 2)
    with pytest.raises(InputError, match="no others to take turns"):
        chunk_sections(mixed_plan(), 2)
