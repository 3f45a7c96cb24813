"""Parallelizers by name: the built-in ones, and those of installed packages.

A package registers its own through the entry point group ``tangram.parallelizers``. Reading entry points
costs tens of milliseconds, so it happens only when a name is not built in, or when all names are asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from tangram.errors import InputError, UnknownNameError
from tangram.parallelizers.protocols import ClusterPlanner, SlicePlanner, StageTable

GROUP = "tangram.parallelizers"

AUTO = "auto"
"""No parallelizer but a choice of them, which the planner makes: ``exact``, and whoever has what it lacks."""

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

Parallelizer = SlicePlanner | StageTable | ClusterPlanner

_BUILT_IN = {
    "exact": ("tangram.parallelizers.exact", "ExactStageTable"),
    "uniform": ("tangram.parallelizers.uniform", "UniformPlanner"),
    "aceso": ("tangram.parallelizers.aceso.planner", "AcesoPlanner"),
    "galvatron": ("tangram.parallelizers.galvatron.planner", "GalvatronPlanner"),
    "layerwise": ("tangram.parallelizers.layerwise.planner", "LayerwiseTable"),
    "alpa": ("tangram.parallelizers.alpa.planner", "AlpaPlanner"),
    "aceso-external": ("tangram.parallelizers.external.aceso", "AcesoCheckout"),
    "megatron": ("tangram.baselines.megatron", "MegatronPlanner"),
    "megatron-slowest-first": ("tangram.baselines.megatron", "slow_nodes_first"),
    "metis": ("tangram.baselines.metis.planner", "MetisPlanner"),
    "metis-published": ("tangram.baselines.metis.planner", "published_metis"),
    "metis-recompute": ("tangram.baselines.metis.planner", "metis_with_recompute"),
    "sailor": ("tangram.baselines.sailor.planner", "SailorPlanner"),
    "sailor-published": ("tangram.baselines.sailor.planner", "published"),
    "sailor-recompute": ("tangram.baselines.sailor.planner", "with_recompute"),
}


def get_parallelizer(name: str) -> Parallelizer:
    """Returns a new parallelizer of that name; a built-in name is never replaced by a package.

    Raises:
        UnknownNameError: There is none.
        InputError: The package that registers it cannot be imported, or what it registers is no parallelizer.
    """
    if name in _BUILT_IN:
        module, attribute = _BUILT_IN[name]
        built_in: Parallelizer = getattr(import_module(module), attribute)()
        return built_in
    registered = _registered()
    if name not in registered:
        raise UnknownNameError("parallelizer", name, [AUTO, *_BUILT_IN, *registered], where="--parallelizer")
    return _load(registered[name])


def parallelizer_names() -> list[str]:
    """Returns all names, the built-in ones first, without importing any package."""
    return [*_BUILT_IN, *(name for name in _registered() if name not in _BUILT_IN)]


def _registered() -> dict[str, EntryPoint]:
    """Entry points by name, in an order that no file system decides; of equal names the first wins."""
    from importlib.metadata import entry_points

    found: dict[str, EntryPoint] = {}
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: (entry.name, entry.value)):
        found.setdefault(entry.name, entry)
    return found


def _load(entry: EntryPoint) -> Parallelizer:
    try:
        made = entry.load()()
    except Exception as error:  # Foreign code: anything can happen, and none of it may end in a traceback.
        reason = f"{type(error).__name__}: {error}"
        raise InputError(
            f"parallelizer {entry.name!r} ({entry.value}) cannot be loaded: {reason}",
            where="--parallelizer",
            hint="repair or uninstall the package that registers it",
        ) from error
    if not isinstance(made, SlicePlanner | StageTable | ClusterPlanner):
        raise InputError(
            f"parallelizer {entry.name!r} ({entry.value}) implements none of the protocols",
            where="--parallelizer",
            hint="SlicePlanner, StageTable or ClusterPlanner of tangram.parallelizers.protocols",
        )
    return made
