"""Sends tokens to the ranks of their experts, and what came of them back.

Over ep, rows go to the rank that has their expert (an all-to-all of unequal parts). Ranks that hold parts of
the same experts (expert_tp) then give each other their rows, work on all of them together, and give back sums
of their partial outputs. Rows are put expert by expert before the experts run.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from tangram.runtime.collectives import all_to_all, gather_into
from tangram.runtime.groups import Group, StageGroups


class Dispatch:
    """The way there and back of one micro-batch in one layer.

    Args:
        chosen: Experts of each token of this rank, ``(tokens, top_k)``.
        num_experts: Of all ranks.
        groups: Of this rank.

    Attributes:
        counts: Rows of each expert of this rank.
    """

    def __init__(self, chosen: Any, num_experts: int, groups: StageGroups) -> None:
        self._ep, self._expert_tp = groups.ep, groups.expert_tp
        self._shape = chosen.shape
        flat = chosen.flatten()
        self._order = torch.argsort(flat, stable=True)
        # From here on a table has a row per sender and a column per expert.
        to_each = torch.bincount(flat, minlength=num_experts).view(self._ep.size, -1)
        from_each = _exchanged_counts(to_each, self._ep)
        gathered = _gathered_counts(from_each, self._expert_tp)
        table = gathered.flatten(0, 1)
        num_own = table.shape[1]
        owners = torch.arange(num_own, device=flat.device).expand(len(table), num_own)
        blocks = torch.repeat_interleave(owners.flatten(), table.flatten())
        self._by_expert = torch.argsort(blocks, stable=True)
        counted = torch.cat(
            (to_each.sum(dim=1), from_each.sum(dim=1), table.sum(dim=0), gathered.sum((1, 2)))
        )
        numbers = counted.tolist()  # the one wait for the device
        ep, of_tp = self._ep.size, self._expert_tp.size
        self._sent, self._received = numbers[:ep], numbers[ep : 2 * ep]
        self.counts = numbers[2 * ep : -of_tp]
        self._of_tp = numbers[-of_tp:]

    def there(self, rows: Any) -> Any:
        """Returns the rows that this rank's experts work on, expert by expert.

        Args:
            rows: This rank's tokens, ``(tokens, hidden)``.
        """
        sent = rows.index_select(0, self._order // self._shape[1])
        came = all_to_all(sent, self._sent, self._received, self._ep)
        return _gathered(came, self._of_tp, self._expert_tp).index_select(0, self._by_expert)

    def back(self, outputs: Any) -> Any:
        """Returns what came of this rank's tokens, ``(tokens, top_k, hidden)``.

        Args:
            outputs: Of this rank's experts, in the order of :meth:`there`.
        """
        places = torch.argsort(self._by_expert)
        summed = _scattered(outputs.index_select(0, places), self._of_tp, self._expert_tp)
        came = all_to_all(summed, self._received, self._sent, self._ep)
        return came.index_select(0, torch.argsort(self._order)).view(*self._shape, -1)


def _exchanged_counts(to_each: Any, group: Group) -> Any:
    """Rows from each rank for each own expert, from rows to each rank for each of its experts."""
    if group.size == 1:
        return to_each
    from_each = torch.empty_like(to_each)
    dist.all_to_all_single(from_each, to_each.contiguous(), group=group.handle)
    return from_each


def _gathered_counts(table: Any, group: Group) -> Any:
    """The tables of all ranks of a group."""
    if group.size == 1:
        return table.unsqueeze(0)
    tables = table.new_empty((group.size, *table.shape))
    gather_into(tables.view(-1), table.contiguous().view(-1), group)
    return tables


def _gathered(rows: Any, lengths: list[int], group: Group) -> Any:
    """All ranks' rows, of unequal numbers; backward sums up the gradients."""
    if group.size == 1:
        return rows
    return all_to_all(rows.repeat(group.size, 1), [len(rows)] * group.size, lengths, group)


def _scattered(rows: Any, lengths: list[int], group: Group) -> Any:
    """The sum of all ranks' outputs for the rows that this rank gave."""
    if group.size == 1:
        return rows
    own = lengths[group.index]
    return all_to_all(rows, lengths, [own] * group.size, group).view(group.size, own, -1).sum(dim=0)
