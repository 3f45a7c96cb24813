"""Weights that are gathered, reduced and updated together: one flat tensor, and this rank's share of it.

A bucket holds the dense weights, or those of experts, of one atom. Two groups of ranks hold the same weights:
the *shard* group, over which the bucket is cut into equal shares, and the *replicas*, which hold the same
share. Without sharding the first is this rank alone. So all of ZeRO is one thing:

====  ==============================================  ===================================================
zero  per micro-batch                                 per step
====  ==============================================  ===================================================
0     gradients added up                              all-reduce over replicas (all ranks); update
1     gradients added up                              reduce-scatter, all-reduce over replicas, update,
                                                      gather
2     reduce-scatter, own share added up              all-reduce over replicas, update, gather
3     as 2; weights gathered for forward and          all-reduce over replicas, update
      backward
====  ==============================================  ===================================================

The parameters of the model are views of the flat tensor. With zero 3 its storage is given back between uses
and filled again for the next; what autograd has saved refers to the same storage and finds the weights there.
Sums are sums, never means: the loss carries the only division.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from tangram.runtime.boundary import Interval
from tangram.runtime.collectives import gather_into, scatter_sum_into
from tangram.runtime.groups import Group
from tangram.runtime.parameters import LocalParameter

ALIGNMENT = 8
"""Elements; products of matrices are slow on operands that do not start at 16 bytes."""


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a parameter lies in its bucket.

    Attributes:
        parameter: The parameter.
        start, stop: Its elements in the flat tensor.
    """

    parameter: LocalParameter
    start: int
    stop: int


class Bucket:
    """Weights, gradients and shares of some parameters of equal dtype.

    Args:
        parameters: What it holds; their data move into the flat tensor.
        shard, replicas: Groups that hold the same weights; see above.
        zero: 0 to 3.
        gradient_dtype: In which gradients are added up and travel.

    Attributes:
        slots: Where each parameter lies; those that decay come first.
        share: This rank's elements of the flat tensor.
        own_weights: Their values.
        own_gradients: Their gradients, complete after :meth:`reduce`.
    """

    def __init__(
        self,
        parameters: Sequence[LocalParameter],
        shard: Group,
        replicas: Group,
        zero: int,
        gradient_dtype: Any,
    ) -> None:
        self.shard, self.replicas = shard, replicas
        self.zero = zero if shard.size > 1 else 0
        self._gradient_dtype = gradient_dtype
        self.slots = _slots(parameters)
        first = parameters[0].parameter
        unit = ALIGNMENT * shard.size
        self.num_elements = -(-self.slots[-1].stop // unit) * unit
        size = self.num_elements // shard.size
        self.share: Interval = (shard.index * size, (shard.index + 1) * size)
        self._flat = torch.zeros(self.num_elements, dtype=first.dtype, device=first.device)
        for slot in self.slots:
            parameter = slot.parameter.parameter
            place = self._flat[slot.start : slot.stop]
            place.copy_(parameter.detach().reshape(-1))
            parameter.data = place.view(parameter.shape)
        own = self._flat[slice(*self.share)]
        self.own_weights = own.clone() if self.zero == 3 else own
        self.is_whole = True
        self._gradients: Any = None
        self._work: Any = None
        self._has_started = False
        self.own_gradients: Any = torch.zeros(size, dtype=gradient_dtype, device=first.device)
        if self.zero < 2:
            self._accumulate_whole()

    def _accumulate_whole(self) -> None:
        """Lets autograd add into one flat tensor, or does so itself where dtypes differ."""
        if self.zero == 0:
            self._gradients = self.own_gradients
        else:
            self._gradients = torch.zeros(
                self.num_elements, dtype=self._gradient_dtype, device=self._flat.device
            )
        for slot in self.slots:
            parameter = slot.parameter.parameter
            place = self._gradients[slot.start : slot.stop].view(parameter.shape)
            if parameter.dtype == self._gradient_dtype:
                parameter.grad = place
            else:
                parameter.register_post_accumulate_grad_hook(_adds_to(place))

    def gather(self) -> None:
        """Makes the weights whole, for zero 3; does nothing where they are."""
        if self.is_whole:
            return
        self._flat.untyped_storage().resize_(self._flat.numel() * self._flat.element_size())
        self._fill()
        self.is_whole = True

    def free(self) -> None:
        """Gives back what other ranks hold, with zero 3."""
        if self.zero == 3 and self.is_whole:
            self._flat.untyped_storage().resize_(0)
            self.is_whole = False

    def _fill(self) -> None:
        own = self.own_weights
        if self.zero < 3:  # a view of what is filled
            own = own.clone()
        gather_into(self._flat, own, self.shard)

    def absorb(self) -> None:
        """Adds up gradients that came to parameters past autograd's hooks: those of split backwards."""
        if self.zero >= 2:
            return
        for slot in self.slots:
            parameter = slot.parameter.parameter
            if parameter.grad is not None and parameter.dtype != self._gradient_dtype:
                assert self._gradients is not None
                self._gradients[slot.start : slot.stop].add_(parameter.grad.reshape(-1))
                parameter.grad = None

    def collect(self) -> None:
        """After a backward, with zero 2 and 3: adds this rank's share of the gradients' sum to its own."""
        if self.zero < 2:
            return
        whole = torch.zeros(self.num_elements, dtype=self._gradient_dtype, device=self._flat.device)
        for slot in self.slots:
            parameter = slot.parameter.parameter
            if parameter.grad is not None:
                whole[slot.start : slot.stop].copy_(parameter.grad.reshape(-1))
                parameter.grad = None
        self.own_gradients += self._scattered(whole)

    def start(self) -> None:
        """Once per step: starts to sum the gradients, to which nothing will be added any more."""
        assert not self._has_started
        self._has_started = True
        if self.zero == 1:
            self.own_gradients = torch.empty_like(self.own_gradients)
            self._work = scatter_sum_into(self.own_gradients, self._gradients, self.shard, later=True)
        elif self.replicas.size > 1:
            self._work = dist.all_reduce(self.own_gradients, group=self.replicas.handle, async_op=True)

    def reduce(self) -> None:
        """Makes ``own_gradients`` the sum over all ranks with the same weights."""
        if not self._has_started:
            self.start()
        if self._work is not None:
            self._work.wait()
        if self.zero == 1 and self.replicas.size > 1:
            dist.all_reduce(self.own_gradients, group=self.replicas.handle)
        self._has_started, self._work = False, None

    def _scattered(self, whole: Any) -> Any:
        share = torch.empty_like(self.own_gradients)
        scatter_sum_into(share, whole, self.shard)
        return share

    def spread(self) -> None:
        """After an update: brings the new weights to the ranks that need them."""
        if self.zero in (1, 2):
            self._fill()

    def clear(self) -> None:
        """Forgets the gradients of the step."""
        self.own_gradients.zero_()
        if self._gradients is not None:
            self._gradients.zero_()

    def take_over(self) -> None:
        """After somebody wrote into the parameters, which were whole: keeps this rank's share of that."""
        if self.zero == 3:
            self.own_weights.copy_(self._flat[slice(*self.share)])

    def own_part(self, slot: Slot) -> Interval | None:
        """Returns which elements of this rank's share belong to a parameter, counted in the share."""
        start, stop = max(slot.start, self.share[0]), min(slot.stop, self.share[1])
        return (start - self.share[0], stop - self.share[0]) if start < stop else None


def _slots(parameters: Sequence[LocalParameter]) -> tuple[Slot, ...]:
    slots, start = [], 0
    for parameter in parameters:
        stop = start + parameter.parameter.numel()
        slots.append(Slot(parameter, start, stop))
        start = -(-stop // ALIGNMENT) * ALIGNMENT
    return tuple(slots)


def _adds_to(place: Any) -> Any:
    def add(parameter: Any) -> None:
        place.add_(parameter.grad)
        parameter.grad = None

    return add
