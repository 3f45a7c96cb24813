"""``tangram islands``: what the planner makes of a cluster."""

from __future__ import annotations

import math
from dataclasses import fields

from tangram.cli.inputs import read_tolerances
from tangram.cli.options import ClusterArgument, IslandOptions, Json, PrecisionOption
from tangram.cli.streams import print_json, print_page


def islands_command(
    cluster: ClusterArgument,
    islands: IslandOptions,
    precision: PrecisionOption = None,
    json_only: Json = False,
) -> None:
    """Show the islands of CLUSTER: sets of equal nodes, and why each ends where it ends."""
    from tangram.cluster.islands import build_islands
    from tangram.cluster.readers import load_cluster
    from tangram.plan.schema import ClusterSection, IslandSection
    from tangram.planner.precision import choose_precision

    tolerances = read_tolerances(islands)
    spec = load_cluster(cluster)
    chosen, reason = choose_precision(spec, precision)
    sections = [IslandSection.of(island) for island in build_islands(spec, chosen, tolerances)]
    section = ClusterSection.of(spec)
    names = [field.name for field in fields(tolerances)]
    stated = {name: _finite(getattr(tolerances, name)) for name in names}
    if json_only:
        print_json(
            {
                "precision": chosen.value,
                "precision_reason": reason,
                "tolerances": stated,
                "islands": [island.model_dump(mode="json") for island in sections],
                "assumptions": [entry.model_dump(mode="json") for entry in section.assumptions],
            }
        )
        return
    from tangram.report.islands import add_cluster

    print_page(lambda page: add_cluster(page, section, sections, stated, chosen, reason))


def _finite(value: float) -> float | None:
    """JSON has no infinity; null is "no limit", as in plan files."""
    return None if math.isinf(value) else value
