"""The norm of all gradients, over all stages and meshes, with every weight counted once.

A weight may be on many ranks: replicated over dp and cp, over tp (norms), and tied between two stages.
Exactly one of the ranks that hold an element counts it: the first replica, the first tp rank of those that
hold the same, the first of the tied stages. The sum over all ranks of the world is then the squared norm.
Should any gradient be infinite or no number, so is the sum, and every rank sees it: the vote on fp16's
overflow.
"""

from __future__ import annotations

from typing import Any

import torch

from tangram.runtime.boundary import Interval
from tangram.runtime.groups import StageGroups
from tangram.runtime.parameters import LocalParameter
from tangram.runtime.sharding import Sharding


class NormCounter:
    """Knows which of its gradients this rank counts.

    Args:
        sharding: The buckets.
        elsewhere: Names of parameters that another stage counts.
    """

    def __init__(self, sharding: Sharding, elsewhere: frozenset[str]) -> None:
        self._counted: list[tuple[Any, list[Interval]]] = []
        for bucket in sharding.buckets:
            own: list[Interval] = []
            for slot in bucket.slots:
                part = bucket.own_part(slot)
                name = slot.parameter.name
                if part is None or bucket.replicas.index or name in elsewhere:
                    continue
                if _counts(slot.parameter, sharding.groups[slot.parameter.atom]):
                    own.append(part)
            self._counted.append((bucket, _merged(own)))

    def squares(self) -> Any:
        """Returns the sum of squares of what this rank counts: one fp64 number on its device."""
        views = [bucket.own_gradients[start:stop] for bucket, own in self._counted for start, stop in own]
        if not views:
            return None
        # In fp32 whatever they are stored in: a norm in fp16 would overflow, and have three digits.
        norms = [torch.linalg.vector_norm(view, dtype=torch.float32) for view in views]
        return torch.stack([norm.double() for norm in norms]).square().sum()


def clip_factor(norm: float, max_norm: float) -> float:
    """Returns what gradients are multiplied by so that their norm is at most ``max_norm`` (0: no limit)."""
    return min(1.0, max_norm / (norm + 1e-6)) if max_norm else 1.0


def _counts(parameter: LocalParameter, groups: StageGroups) -> bool:
    """Whether this rank is the first of those that hold the same part of the tensor."""
    group = groups.expert_tp if parameter.is_expert else groups.tp
    return group.index == 0 or not all(part.is_whole for part in parameter.parts)


def _merged(intervals: list[Interval]) -> list[Interval]:
    """Joins neighbours; what lies between two parameters of a bucket is padding, and zero."""
    found: list[Interval] = []
    for start, stop in intervals:
        if found and start - found[-1][1] < 8:
            found[-1] = (found[-1][0], stop)
        else:
            found.append((start, stop))
    return found
