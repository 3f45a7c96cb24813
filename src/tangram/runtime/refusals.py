"""Plans that are not run: broken ones, and those that the engine cannot carry out yet. No torch.

What is not built yet is refused with its reason; nothing is run in another way than the plan says.
"""

from __future__ import annotations

from tangram.errors import InputError
from tangram.plan.check import check_plan
from tangram.plan.schema import PlanDocument
from tangram.profiler.torch_extra import require_safetensors
from tangram.run_options import RunOptions
from tangram.runtime.chunks import chunk_sections
from tangram.runtime.executable import check_executable, check_zero_bubble
from tangram.runtime.hf_config import check_saveable
from tangram.runtime.models.hyperparameters import parse_hyperparameters
from tangram.runtime.models.names import names_of


def check_runnable(plan: PlanDocument, where: str) -> None:
    """Refuses a plan that breaks a rule, or that the engine cannot carry out.

    Args:
        plan: The plan.
        where: Its file.

    Raises:
        InputError: It is such a plan; the first reason is given.
    """
    broken = check_plan(plan)
    if broken:
        count = f"{len(broken)} rules" if len(broken) > 1 else "a rule"
        raise InputError(
            f"the plan breaks {count}; the first: {broken[0]}",
            where=where,
            hint=f"tangram check {where} lists them",
        )
    if plan.granularity == "operator":
        raise InputError(
            "atoms smaller than a block are not executable yet",
            where=where,
            hint="plan with --atoms block, layer, or a number of layers",
        )
    if plan.model.num_prediction_layers:
        raise InputError(
            "layers for multi-token prediction are not executable yet",
            where=where,
            hint="plan the model without num_nextn_predict_layers",
        )
    try:
        check_executable(plan)
        model = plan.model.to_spec()
        names_of(model)
        parse_hyperparameters(plan.model.hyperparameters, model)
    except InputError as error:
        raise _placed(error, where) from None


def check_options(plan: PlanDocument, options: RunOptions) -> None:
    """Makes sure that options go with the plan, and that weights can be read and written.

    Args:
        plan: A plan that can be run.
        options: Of the run.

    Raises:
        InputError: They do not, or the library for weights is missing.
    """
    chunk_sections(plan, options.virtual_stages)
    if options.zero_bubble:
        check_zero_bubble(plan)
    for flag, folder in (("--init", options.init), ("--save", options.save)):
        if folder is not None:
            require_safetensors(flag)
    if options.save is not None:
        check_saveable(plan)


def _placed(error: InputError, where: str) -> InputError:
    return InputError(error.message, where=f"{where}: {error.where}", hint=error.hint)
