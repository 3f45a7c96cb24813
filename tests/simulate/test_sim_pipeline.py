from __future__ import annotations

import numpy as np
import pytest

from tangram.errors import InputError
from tangram.simulate.pipeline import SimEdge, SimPipeline, SimStage


def stages(*windows: int) -> tuple[SimStage, ...]:
    return tuple(SimStage(1, 2, 0, w) for w in windows)


def test_times_of_an_edge_include_latency_in_each_direction() -> None:
    edge = SimEdge(5, 30, 20)
    assert (edge.forward_ns, edge.backward_ns, edge.round_trip_ns) == (35, 25, 60)


def test_windows_are_cut_at_the_number_of_micro_batches() -> None:
    assert SimPipeline(stages(9, 4, 1), (SimEdge(),) * 2, 3).windows == (3, 3, 1)


def test_numpy_integers_and_lists_become_plain() -> None:
    stage = SimStage(np.int64(3), np.int32(4), 0, np.int64(1))  # type: ignore[arg-type]
    pipeline = SimPipeline([stage], [], np.int64(2))  # type: ignore[arg-type]
    assert pipeline == SimPipeline((SimStage(3, 4, 0, 1),), (), 2)
    assert type(pipeline.stages[0].forward_ns) is int
    assert type(pipeline.num_micro_batches) is int
    assert hash(pipeline)


def test_folding_puts_transfers_into_the_sender() -> None:
    a, b = SimEdge(1, 10, 20, ("r",), ()), SimEdge(2, 30, 40)
    pipeline = SimPipeline(stages(3, 2, 1), (a, b), 4, blocking_p2p=True)
    folded = pipeline.folded()
    assert [s.forward_ns for s in folded.stages] == [1 + 11, 1 + 32, 1]
    assert [s.backward_ns for s in folded.stages] == [2, 2 + 21, 2 + 42]
    assert [s.in_flight for s in folded.stages] == [3, 2, 1]
    assert folded.edges == (SimEdge(), SimEdge())
    assert not folded.blocking_p2p


def test_folding_leaves_an_overlapping_pipeline_alone() -> None:
    pipeline = SimPipeline(stages(2, 1), (SimEdge(1, 2, 3),), 4)
    assert pipeline.folded() is pipeline


@pytest.mark.parametrize("windows", [(2, 2), (1, 2), (4, 3, 3), (3, 3, 1)])
def test_windows_must_fall_along_the_pipeline(windows: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="in flight") as error:
        SimPipeline(stages(*windows), (SimEdge(),) * (len(windows) - 1), 8)
    assert error.value.hint is not None
    assert error.value.hint.startswith("legal:")


def test_the_last_window_may_exceed_one() -> None:
    assert SimPipeline(stages(5, 3), (SimEdge(),), 8).windows == (5, 3)


@pytest.mark.parametrize("bad", [{"forward_ns": -1}, {"backward_ns": -1}, {"step_ns": -1}, {"in_flight": 0}])
def test_a_stage_out_of_range_is_refused(bad: dict[str, int]) -> None:
    with pytest.raises(InputError, match="out of range") as error:
        SimStage(**({"forward_ns": 1, "backward_ns": 1, "step_ns": 0, "in_flight": 1} | bad))
    assert error.value.where == next(iter(bad))


def test_fractions_of_a_nanosecond_are_refused() -> None:
    with pytest.raises(InputError, match="not an integer"):
        SimStage(1.5, 2, 0, 1)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="not an integer"):
        SimEdge(float("nan"))  # type: ignore[arg-type]


def test_shapes_must_agree() -> None:
    with pytest.raises(InputError, match="at least one stage"):
        SimPipeline((), (), 1)
    with pytest.raises(InputError, match="edges between them"):
        SimPipeline(stages(2, 1), (), 1)
    with pytest.raises(InputError, match="out of range"):
        SimPipeline(stages(1), (), 0)
    with pytest.raises(InputError, match="out of range"):
        SimEdge(latency_ns=-1)
