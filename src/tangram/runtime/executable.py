"""What a legal plan may ask for that this runtime cannot do: refused before anything starts. No torch."""

from __future__ import annotations

from tangram.errors import InputError
from tangram.job import Precision
from tangram.plan.schema import PlanDocument


def check_executable(plan: PlanDocument) -> None:
    """Makes sure that the engine can run a plan; what the models cannot do is refused where they are built.

    Raises:
        InputError: It cannot; the message says what is in the way.
    """
    job, optimizer = plan.job, plan.job.optimizer
    if len(plan.pipelines) != 1:
        raise _refusal(f"{len(plan.pipelines)} pipelines are not executable yet", "pipelines")
    if job.precision is Precision.FP8:
        raise _refusal("fp8 is not executable yet", "job.precision", "legal: fp32, tf32, bf16 or fp16")
    for stage in plan.stages:
        if stage.cp_exchange == "ring" and max([stage.cp, *(run.cp for run in stage.layer_configs)]) > 1:
            raise _refusal(
                "keys and values that travel in a ring are not executable yet",
                f"pipelines[0].stages[{stage.index}].cp_exchange",
                "legal: allgather or a2a",
            )
    if optimizer.moment_bytes != 8:
        raise _refusal(
            f"moments of {optimizer.moment_bytes} bytes are not executable yet",
            "job.optimizer.moment_bytes",
            "legal: 8, two of fp32",
        )
    if job.precision.is_mixed and optimizer.master_bytes != 4:
        raise _refusal(
            f"16-bit weights with master weights of {optimizer.master_bytes} bytes are not executable yet",
            "job.optimizer.master_bytes",
            "legal: 4",
        )
    legal = (2, 4) if job.precision.is_mixed else (4,)
    if optimizer.gradient_bytes not in legal:
        raise _refusal(
            f"gradients of {optimizer.gradient_bytes} bytes are not executable yet",
            "job.optimizer.gradient_bytes",
            "legal: " + " or ".join(map(str, legal)),
        )


def check_zero_bubble(plan: PlanDocument) -> None:
    """Makes sure that backwards of a plan can be split.

    Raises:
        InputError: Gradients or weights of a stage are sharded: they would have to be whole for longer.
    """
    for stage in plan.stages:
        most = max([stage.zero, *(run.zero for run in stage.layer_configs)])
        if most > 1:
            raise InputError(
                f"stage {stage.index} has zero {most}; split backwards keep gradients whole",
                where="--zero-bubble",
                hint="plan with --zero 1",
            )


def _refusal(message: str, where: str, hint: str | None = None) -> InputError:
    return InputError(message, where=where, hint=hint)
