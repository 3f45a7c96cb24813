"""Options of a run: the same for both who start one, there and back again."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import dense_plan, edited, mixed_plan, operator_plan

from tangram.cli.app import build_command
from tangram.errors import InputError
from tangram.model import serial
from tangram.plan.schema import PlanDocument
from tangram.run_options import OPTION_TEXTS, RunOptions
from tangram.runtime.options import parse_arguments
from tangram.runtime.refusals import check_options, check_runnable

PATHS = st.text(st.characters(codec="ascii", exclude_categories=["C"]), min_size=1).filter(
    lambda text: not text.startswith("-")
)
OPTIONS = st.builds(
    RunOptions,
    data=st.none() | PATHS,
    steps=st.none() | st.integers(1, 10**6),
    learning_rate=st.floats(0, 10),
    warmup_steps=st.integers(0, 100),
    seed=st.integers(0, 2**40),
    cpu=st.booleans(),
    log_file=st.none() | PATHS,
    quiet=st.booleans(),
)


@given(OPTIONS)
def test_there_and_back(options: RunOptions) -> None:
    assert parse_arguments(["plan.json", *options.arguments()]) == (Path("plan.json"), options)


def test_the_command_line_has_the_same_options() -> None:
    own = {"print_only", "master", "plan"}
    params = {param.name: param for param in build_command().commands["run"].params if param.name not in own}
    assert set(params) == set(OPTION_TEXTS) == {field.name for field in fields(RunOptions)}
    for name, param in params.items():
        option = OPTION_TEXTS[name]
        assert param.opts == [option.flag]
        assert param.help == option.text
        assert param.is_flag == (option.metavar is None)


@pytest.mark.parametrize(
    "change",
    [
        {"steps": 0},
        {"trace_step": 0},
        {"warmup_steps": -1},
        {"learning_rate": float("nan")},
        {"weight_decay": -0.1},
        {"cpu": True, "any_gpu": True},
        {"virtual_stages": 0},
        {"virtual_stages": 2, "trace": "trace.json"},
        {"zero_bubble": True, "trace": "trace.json"},
        {"virtual_stages": 2, "save_profile": "store.sqlite"},
    ],
)
def test_out_of_range(change: dict[str, object]) -> None:
    with pytest.raises(InputError) as caught:
        replace(RunOptions(), **change)  # type: ignore[arg-type]
    assert str(caught.value.where).startswith("--")


@pytest.mark.parametrize(
    "arguments", [[], ["p", "--steps", "many"], ["p", "--nonsense"], ["p", "--step", "3"]]
)
def test_a_wrong_command_line(arguments: list[str]) -> None:
    with pytest.raises(InputError):
        parse_arguments(arguments)


def test_torchrun_takes_none_of_them_for_its_own() -> None:
    """Its parser looks at all words, and refuses what may be short for two of its options."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    from torch.distributed.run import get_args_parser

    theirs = {flag for action in get_args_parser()._actions for flag in action.option_strings}
    for option in OPTION_TEXTS.values():
        assert not [flag for flag in theirs if flag.startswith(option.flag)]


def test_plans_that_are_not_run() -> None:
    check_runnable(dense_plan(), "plan.json")
    broken = dense_plan().model_copy(update={"num_atoms": 7})
    with pytest.raises(InputError, match="the plan breaks a rule; the first") as caught:
        check_runnable(broken, "plan.json")
    assert "tangram check plan.json" in str(caught.value.hint)
    with pytest.raises(InputError, match="atoms smaller than a block are not executable yet"):
        check_runnable(operator_plan(), "plan.json")
    check_runnable(mixed_plan(), "plan.json")


def with_model(**change: object) -> PlanDocument:
    """The small plan with another model, whose fingerprint is right."""
    doc = dense_plan()
    section = doc.model.model_copy(update=change)
    fingerprint = serial.fingerprint(section.to_spec())
    return doc.model_copy(update={"model": section.model_copy(update={"fingerprint": fingerprint})})


def test_models_that_are_not_run() -> None:
    with pytest.raises(InputError, match="models of family 'falcon' cannot be run yet") as caught:
        check_runnable(with_model(family="falcon"), "plan.json")
    assert str(caught.value.where).startswith("plan.json: ")
    with pytest.raises(InputError) as caught:
        check_runnable(with_model(hyperparameters={"hidden_act": "step"}), "plan.json")
    assert "hidden_act" in str(caught.value)
    assert str(caught.value.where).startswith("plan.json: ")
    with pytest.raises(InputError, match="'longrope' are not supported"):
        check_runnable(with_model(hyperparameters={"rope_scaling": {"type": "longrope"}}), "plan.json")


def test_checkpoints_want_their_library(monkeypatch: pytest.MonkeyPatch) -> None:
    from tangram.profiler import torch_extra

    monkeypatch.setattr(torch_extra, "find_spec", lambda name: None)
    check_options(dense_plan(), RunOptions())
    with pytest.raises(InputError, match="safetensors is not installed") as caught:
        check_options(dense_plan(), RunOptions(save="out"))
    assert caught.value.where == "--save"
    assert "train" in str(caught.value.hint)


def test_models_without_a_configuration_are_not_saved() -> None:
    pytest.importorskip("safetensors", reason="safetensors is not installed (extra train)")
    check_options(dense_plan(), RunOptions(save="out"))
    kinds = dense_plan().model.layer_kinds
    attention = kinds[0].attention.model_copy(update={"num_heads": 8})
    mixed = [*kinds, kinds[0].model_copy(update={"attention": attention})]
    plan = with_model(layer_kinds=mixed, layers=[0, 1, 0, 1])
    check_options(plan, RunOptions())
    with pytest.raises(InputError, match=r"no config\.json of model_type llama describes this model"):
        check_options(plan, RunOptions(save="out"))


def test_chunks_that_stages_do_not_have() -> None:
    with pytest.raises(InputError, match="too few for 3 chunks") as caught:
        check_options(dense_plan(), RunOptions(virtual_stages=3))
    assert caught.value.where == "--virtual-stages"
    check_options(dense_plan(), RunOptions(zero_bubble=True))
    with pytest.raises(InputError, match="split backwards keep gradients whole") as caught:
        check_options(edited(dense_plan(), {"pipelines[0].stages[0].zero": 3}), RunOptions(zero_bubble=True))
    assert caught.value.where == "--zero-bubble"
