"""The question of a search, asked again: of another space, of others, or with a time to beat."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tangram.planner.options import PlanOptions
from tangram.planner.pairs import Pair
from tangram.planner.search import Search
from tangram.planner.space import SearchSpace


def asked_anew(
    search: Search,
    options: PlanOptions,
    *,
    space: SearchSpace | None = None,
    progress: Callable[[str], None] | None = None,
    incumbent_ns: int | None = None,
    only_sizes: frozenset[int] | None = None,
    only_pairs: Mapping[int, frozenset[Pair]] | None = None,
) -> Search:
    """Returns a search, not run yet, for the same model, cluster and job; it shares nothing that was found.

    Args:
        search: Whose question it is.
        options: How to search now.
        space: What may be used now; by default the same.
        progress, incumbent_ns, only_sizes, only_pairs: As :class:`~tangram.planner.search.Search` has them.
    """
    return Search(
        search.model,
        search.atoms,
        search.cluster,
        search.job,
        search.space if space is None else space,
        options,
        progress,
        incumbent_ns,
        only_sizes,
        only_pairs or {},
        search.queries,
    )
