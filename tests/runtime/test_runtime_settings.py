"""Learning rates, loss scales, and what is refused."""

from __future__ import annotations

from math import sqrt

import pytest
from samples import dense_plan, edited, mixed_plan

from tangram.errors import InputError
from tangram.runtime.executable import check_executable, check_zero_bubble
from tangram.runtime.scaling import HIGHEST, LOWEST, LossScaler
from tangram.runtime.settings import Decay, TrainSettings, learning_rate


def test_learning_rate_rises_and_falls() -> None:
    cosine = TrainSettings(
        learning_rate=1.0, min_learning_rate=0.1, warmup_steps=4, total_steps=12, decay=Decay.COSINE
    )
    rates = [learning_rate(cosine, step) for step in range(14)]
    assert rates[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert rates[6] == pytest.approx(0.1 + 0.9 * (1 + sqrt(0.5)) / 2)  # a quarter of the way down
    assert rates[8] == pytest.approx(0.55)
    assert rates[12:] == pytest.approx([0.1, 0.1])
    linear = TrainSettings(learning_rate=1.0, total_steps=10, decay=Decay.LINEAR)
    assert [learning_rate(linear, step) for step in (0, 5, 10, 20)] == pytest.approx([1.0, 0.5, 0.0, 0.0])
    assert learning_rate(TrainSettings(learning_rate=0.5), 10_000) == 0.5


@pytest.mark.parametrize(
    ("name", "value"),
    [("learning_rate", 0.0), ("beta1", 1.0), ("weight_decay", -1.0), ("eps", 0.0), ("warmup_steps", -1)],
)
def test_settings_out_of_range(name: str, value: float) -> None:
    with pytest.raises(InputError) as caught:
        TrainSettings(**{name: value})
    assert caught.value.where == "--" + name.replace("_", "-")


def test_loss_scale_halves_and_doubles() -> None:
    scaler = LossScaler(8.0, window=2)
    seen = []
    for overflow in (False, False, True, False, True, False, False, False):
        scaler.update(overflow=overflow)
        seen.append(scaler.scale)
    assert seen == [8.0, 16.0, 8.0, 8.0, 4.0, 4.0, 8.0, 8.0]
    for _ in range(60):
        scaler.update(overflow=True)
    assert scaler.scale == LOWEST
    for _ in range(120):
        scaler.update(overflow=False)
    assert scaler.scale == HIGHEST


def test_without_loss_scaling_the_scale_is_one() -> None:
    scaler = LossScaler()
    scaler.update(overflow=True)
    scaler.update(overflow=False)
    assert scaler.scale == 1.0


def test_what_cannot_be_run_is_refused() -> None:
    check_executable(dense_plan())
    for changes, where in (
        ({"job.optimizer.moment_bytes": 4}, "job.optimizer.moment_bytes"),
        ({"job.optimizer.master_bytes": 0}, "job.optimizer.master_bytes"),
        ({"job.optimizer.gradient_bytes": 1}, "job.optimizer.gradient_bytes"),
        ({"job.precision": "fp8"}, "job.precision"),
    ):
        with pytest.raises(InputError, match="not executable yet") as caught:
            check_executable(edited(dense_plan(), changes))
        assert caught.value.where == where
    check_executable(mixed_plan())
    section = dense_plan().pipelines[0]
    stage = section.stages[0].model_copy(update={"cp_exchange": "ring", "cp": 2})
    pipeline = section.model_copy(update={"stages": [stage, *section.stages[1:]]})
    with pytest.raises(InputError, match="in a ring are not executable yet"):
        check_executable(dense_plan().model_copy(update={"pipelines": [pipeline]}))


def test_split_backwards_want_whole_gradients() -> None:
    check_zero_bubble(dense_plan())
    with pytest.raises(InputError, match="stage 0 has zero 2; split backwards keep gradients whole"):
        check_zero_bubble(edited(dense_plan(), {"pipelines[0].stages[0].zero": 2}))
    with pytest.raises(InputError, match="stage 0 has zero 3"):
        check_zero_bubble(mixed_plan())
