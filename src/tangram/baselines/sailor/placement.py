"""From numbers of GPUs to GPUs: which ones the replicas of Sailor's plan run on.

Sailor counts GPUs per zone and type; its runtime hands out virtual machines. Here the widest
tensor-parallel groups are placed first, stage by stage, on the nodes in the order of their names. All
degrees are powers of two that divide a node, so what Sailor counts always packs.
"""

from __future__ import annotations

from tangram.baselines.sailor.grounds import Grounds
from tangram.baselines.sailor.profile import SailorPlan
from tangram.cluster.spec import Slot


def placed(grounds: Grounds, plan: SailorPlan) -> list[list[tuple[Slot, ...]]]:
    """Returns the GPUs of every stage's runs of replicas, replica after replica."""
    free = [[[slot for part in of_type for slot in part.slots] for of_type in row] for row in grounds.parts]
    runs = [
        (-run.endpoint.lanes, idx, place)
        for idx, stage in enumerate(plan.stages)
        for place, run in enumerate(stage.runs)
    ]
    found: dict[tuple[int, int], tuple[Slot, ...]] = {}
    for _, idx, place in sorted(runs):
        endpoint, replicas = plan.stages[idx].runs[place]
        slots = free[endpoint.zone][endpoint.gpu]
        number = replicas * endpoint.lanes
        assert len(slots) >= number, "the search counts GPUs"
        found[idx, place] = tuple(slots[:number])
        del slots[:number]
    return [[found[idx, place] for place in range(len(s.runs))] for idx, s in enumerate(plan.stages)]
