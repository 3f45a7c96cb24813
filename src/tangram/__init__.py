"""Tangram plans LLM training on clusters of mixed GPUs.

>>> import tangram
>>> from tangram.job import Precision
>>> model = tangram.load_model("gpt3-13b")
>>> cluster = tangram.load_cluster("1x4xA100-80GB-SXM+1x8xV100-32GB-SXM2@100Gbit")
>>> job = tangram.Job(global_batch=1024, seq_len=2048, precision=Precision.FP16)
>>> plan = tangram.plan(model, cluster, job)  # doctest: +SKIP
>>> tangram.simulate(plan).iteration_ns  # doctest: +SKIP

These names are the public API; everything else may change between versions. They are imported when they are
first used, so that ``import tangram`` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tangram._version import VERSION

if TYPE_CHECKING:
    from inspect import Signature

    from tangram.cluster.readers import load_cluster
    from tangram.errors import InfeasibleError, InputError, InternalError, TangramError, UnknownNameError
    from tangram.job import Job
    from tangram.model.load import load_model
    from tangram.parallelizers.protocols import Capabilities, ClusterPlanner, SlicePlanner, StageTable
    from tangram.plan.schema import PlanDocument as Plan
    from tangram.planner.planner import plan
    from tangram.planner.recost import simulate_plan as simulate

__version__ = VERSION

__all__ = [
    "load_model",
    "load_cluster",
    "Job",
    "plan",
    "simulate",
    "Plan",
    "TangramError",
    "InputError",
    "UnknownNameError",
    "InfeasibleError",
    "InternalError",
    "SlicePlanner",
    "StageTable",
    "ClusterPlanner",
    "Capabilities",
]

_HOMES = {
    "load_model": "tangram.model.load:load_model",
    "load_cluster": "tangram.cluster.readers:load_cluster",
    "Job": "tangram.job:Job",
    "Plan": "tangram.plan.schema:PlanDocument",
    "TangramError": "tangram.errors:TangramError",
    "InputError": "tangram.errors:InputError",
    "UnknownNameError": "tangram.errors:UnknownNameError",
    "InfeasibleError": "tangram.errors:InfeasibleError",
    "InternalError": "tangram.errors:InternalError",
    "SlicePlanner": "tangram.parallelizers.protocols:SlicePlanner",
    "StageTable": "tangram.parallelizers.protocols:StageTable",
    "ClusterPlanner": "tangram.parallelizers.protocols:ClusterPlanner",
    "Capabilities": "tangram.parallelizers.protocols:Capabilities",
}

_CALLABLE_ROOMS = {
    "tangram.plan": "tangram.planner.planner:plan",
    "tangram.simulate": "tangram.planner.recost:simulate_plan",
}
"""Packages whose names are functions of the public API as well."""


class _CallableRoom(ModuleType):
    """A package that can be called: ``tangram.plan`` holds the plan document, ``tangram.plan(...)`` makes it.

    Python sets the attribute ``plan`` of this package to the subpackage as soon as that is first imported,
    whatever the attribute was before. So the subpackage itself has to be the function.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _resolve(_CALLABLE_ROOMS[self.__name__])(*args, **kwargs)

    @property
    def __signature__(self) -> Signature:
        from inspect import signature

        return signature(_resolve(_CALLABLE_ROOMS[self.__name__]))


def _resolve(home: str) -> Any:
    module, _, name = home.partition(":")
    return getattr(import_module(module), name)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = _resolve(_HOMES[name])
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


for _room in _CALLABLE_ROOMS:
    import_module(_room).__class__ = _CallableRoom
