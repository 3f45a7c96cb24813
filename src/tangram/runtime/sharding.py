"""ZeRO 0 to 3 of a stage: buckets of its atoms, and when they are gathered, reduced and freed.

Each atom is a module of its own, called through ``__call__``. That is where ZeRO hangs on: before an atom's
forward its weights are gathered; after it they are freed; when the gradient of its output is there, its
backward begins: weights are gathered again, and the atom whose backward came before is done, so its gradients
are reduced and its weights freed. So at most two atoms have whole weights and gradients. All ranks of a group
run the same atoms in the same order, hence the same collectives.

The sums over replicas, of which there is one per step, start as soon as an atom's last backward is done,
and run beside the backward of the atoms before it. All other collectives run one after the other with
compute.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any

import torch
import torch.distributed as dist

from tangram.runtime.buckets import Bucket, Slot
from tangram.runtime.groups import Group, StageGroups
from tangram.runtime.parameters import LocalParameter

_Key = tuple[bool, str]


class Sharding:
    """The buckets of a stage, added atom by atom.

    Args:
        gradient_dtype: In which gradients are added up and travel.
        reshard_after_forward: Whether zero 3 gathers again for backward.
        shared: Name of the parameter that two atoms use, whose weights therefore stay whole; or None.
    """

    def __init__(
        self,
        gradient_dtype: Any,
        *,
        reshard_after_forward: bool = True,
        shared: str | None = None,
    ) -> None:
        self._gradient_dtype = gradient_dtype
        self._reshard = reshard_after_forward
        self._shared_name = shared
        self.groups: dict[int, StageGroups] = {}
        self._own: dict[int, list[Bucket]] = {}
        self._shared: list[Bucket] = []
        self._open: list[int] = []
        self._is_last = False

    def add(
        self, atom: int, unit: Any, parameters: Sequence[LocalParameter], groups: StageGroups, zero: int
    ) -> None:
        """Takes the parameters of an atom over: from now on they are views of its buckets.

        Args:
            atom: Its index; atoms come in forward order.
            unit: Its module.
            parameters: All that it has, with memory and values.
            groups: Of this rank, for this atom.
            zero: 0 to 3.
        """
        self._own[atom], self.groups[atom] = [], groups
        for parameter in parameters:
            if parameter.name == self._shared_name:  # gradients are sharded, weights are whole
                self._shared.append(self._bucket([parameter], groups, min(zero, 2)))
        rest = sorted((p for p in parameters if p.name != self._shared_name), key=_key)
        for _, members in groupby(rest, key=_key):
            self._own[atom].append(self._bucket(list(members), groups, zero))
        self._watch(atom, unit)
        self._free([atom])

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        """All buckets, in forward order."""
        return (*self._shared, *(bucket for own in self._own.values() for bucket in own))

    def _bucket(self, members: list[LocalParameter], groups: StageGroups, zero: int) -> Bucket:
        ordered = sorted(members, key=lambda p: not p.decays)  # those that decay come first
        of_experts = members[0].is_expert
        shard = groups.expert_shard if of_experts else groups.shard
        replicas = groups.expert_replicas if of_experts else groups.replicas
        return Bucket(ordered, shard, replicas, zero, self._gradient_dtype)

    def _watch(self, atom: int, unit: Any) -> None:
        def before_forward(*_: Any) -> None:
            self._gather(atom)

        def after_forward(_unit: Any, _args: Any, output: Any) -> None:
            if output.requires_grad:
                output.register_hook(before_backward)
            if self._reshard:
                self._free([atom])

        def before_backward(_grad: Any) -> None:
            self._close()
            self._gather(atom)
            self._open.append(atom)

        unit.register_forward_pre_hook(before_forward)
        unit.register_forward_hook(after_forward)

    def _gather(self, atom: int) -> None:
        for bucket in self._own[atom]:
            bucket.gather()

    def _free(self, atoms: Any) -> None:
        for atom in atoms:
            for bucket in self._own[atom]:
                bucket.free()

    def _close(self) -> None:
        """Ends the backward of the atoms that are in it: nothing more will be added to their gradients."""
        for atom in self._open:
            for bucket in self._own[atom]:
                bucket.collect()
                if self._is_last:
                    bucket.start()
        if self._reshard:
            self._free(self._open)
        self._open.clear()

    def begin_backward(self, *, is_last: bool) -> None:
        """Before the backward of a micro-batch.

        Args:
            is_last: Whether nothing is added to the gradients of its atoms afterwards: then they are summed
                while the atoms before them are in backward.
        """
        self._is_last = is_last

    def end_backward(self) -> None:
        """After the backward of a micro-batch."""
        self._close()
        self._is_last = False
        for bucket in self.buckets:
            bucket.absorb()
        for bucket in self._shared:
            bucket.collect()

    def reduce(self) -> None:
        """After the last backward: every rank's own gradients become those of the whole batch."""
        for bucket in self.buckets:
            bucket.reduce()
        for axis in ("tp", "expert_tp"):
            for group in dict.fromkeys(getattr(groups, axis) for groups in self.groups.values()):
                self._add_partial(axis, group)

    def _add_partial(self, axis: str, group: Group) -> None:
        """Adds up gradients of weights that all ranks of a tp group hold and each used for a part.

        Ranks of a tp group have equal shares of equal buckets, so what is to be summed lies at the same
        place.
        """
        if group.size == 1:
            return
        places = [
            bucket.own_gradients[start:stop]
            for bucket, slot in self.slots()
            if slot.parameter.partial_over == axis
            and getattr(self.groups[slot.parameter.atom], axis) == group
            for start, stop in [bucket.own_part(slot) or (0, 0)]
        ]
        if not places:
            return
        joined = torch.cat(places)
        if joined.numel():
            dist.all_reduce(joined, group=group.handle)
        for place, total in zip(places, joined.split([len(p) for p in places]), strict=True):
            place.copy_(total)

    def slots(self) -> Iterator[tuple[Bucket, Slot]]:
        """Yields every parameter's place."""
        for bucket in self.buckets:
            for slot in bucket.slots:
                yield bucket, slot

    def spread(self) -> None:
        """After an update: every rank gets the weights that it needs for the next step."""
        for bucket in self.buckets:
            bucket.spread()

    def clear(self) -> None:
        """Forgets the gradients of the step, and what was kept whole for it."""
        for bucket in self.buckets:
            bucket.clear()
        self._free(self._own)

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """All weights of the stage are whole inside; what is written into them counts afterwards."""
        for bucket in self.buckets:
            bucket.gather()
        try:
            yield
        finally:
            for bucket in self.buckets:
                bucket.take_over()
                bucket.free()


def _key(parameter: LocalParameter) -> _Key:
    return parameter.is_expert, str(parameter.parameter.dtype)
