"""Which constants a calibration may change, and how runs take them from their shelves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import numpy as np

from tangram.cost.constants import (
    ClusterConstants,
    Constants,
    GpuConstants,
    Shelf,
    StackConstants,
    calibration_document,
    cluster_constants,
    family_shelf,
    first_value,
    gpu_constants,
    shelf_of,
    stack_constants,
)
from tangram.cost.types import BoolArray, FloatArray, IntArray
from tangram.validation.pipelines import RunBatch
from tangram.validation.run import Run

EVERYBODY = "*"
"""Owner of a slot that all runs take, whatever their shelves are called."""


@dataclass(frozen=True, slots=True, order=True)
class Slot:
    """One constant of one shelf.

    Attributes:
        shelf: GPU family, stack or cluster.
        owner: Name of the family, the stack or the cluster, or ``EVERYBODY``.
        constant: Its name.
    """

    shelf: Shelf
    owner: str
    constant: str

    def __str__(self) -> str:
        return f"{self.owner}.{self.constant}"


def owners_of(run: Run) -> dict[Shelf, str]:
    """Returns the names of the shelves that a run takes its constants from.

    A source's runs on one kind of GPU are one cluster. A mixed run's family is that of its first stage;
    :class:`Shelves` asks every stage.
    """
    gpu, software = run.hardware.gpus[0], run.software
    return {
        Shelf.GPU: family_shelf(gpu),
        Shelf.STACK: f"{software.stack}/{software.method}" if software.method else software.stack,
        Shelf.CLUSTER: cluster_name(run),
    }


def cluster_name(run: Run) -> str:
    """Returns a name for the cluster that a run used: its source and GPU."""
    return f"{run.origin.source}/{run.origin.gpu}"


class Shelves:
    """The constants of the columns of a batch: shipped values, and slots that can be set.

    Setting slots again and again costs a few array assignments, which is what a fit does.
    """

    def __init__(
        self, batch: RunBatch, slots: Sequence[Slot], base: Sequence[tuple[Slot, float]] = ()
    ) -> None:
        """Prepares the shipped values; slots of nobody are no mistake, they just change nothing.

        Args:
            batch: Runs.
            slots: What can be set.
            base: Values that come in place of shipped ones.
        """
        owners = [
            {**owners_of(batch.runs[number]), Shelf.GPU: family}
            for number, family in zip(batch.run_of_column.tolist(), batch.families, strict=True)
        ]

        def members(slot: Slot) -> BoolArray:
            return np.array([slot.owner in (EVERYBODY, o[slot.shelf]) for o in owners], dtype=np.bool_)

        self._values: dict[str, FloatArray] = {}
        kinds = (
            (Shelf.GPU, GpuConstants, [gpu_constants(gpu) for gpu in batch.gpus]),
            (Shelf.STACK, StackConstants, [stack_constants(o[Shelf.STACK]) for o in owners]),
            (Shelf.CLUSTER, ClusterConstants, [cluster_constants(o[Shelf.CLUSTER]) for o in owners]),
        )
        for _, kind, per_column in kinds:
            for field in fields(kind):
                self._values[field.name] = np.array([getattr(c, field.name) for c in per_column])
        for slot, value in base:
            self._values[slot.constant] = np.where(members(slot), value, self._values[slot.constant])
        self._members = [(slot, members(slot)) for slot in slots]
        self._nic_is_measured = np.array([host.nic_is_measured for host in batch.hosts])

    def constants(self, values: Iterable[float]) -> Constants:
        """Returns the constants of all columns with the slots set, in the order of construction."""
        columns = dict(self._values)
        for (slot, members), value in zip(self._members, values, strict=True):
            columns[slot.constant] = np.where(members, value, columns[slot.constant])
        # What was measured between nodes is what they reach: nothing is left to take off.
        columns["nic_efficiency"] = np.where(self._nic_is_measured, 1.0, columns["nic_efficiency"])
        return Constants(
            _shelf(GpuConstants, columns), _shelf(StackConstants, columns), _shelf(ClusterConstants, columns)
        )

    def shipped(self) -> list[float]:
        """Returns what the slots hold without a fit; the average where columns differ."""
        found = []
        for slot, members in self._members:
            held = self._values[slot.constant][members]
            found.append(float(held.mean()) if len(held) else float(self._values[slot.constant].mean()))
        return found

    def groups(self, run_of_column: IntArray) -> list[list[tuple[int, BoolArray]]]:
        """Returns slots that may be moved at once: no run takes two of a group.

        Args:
            run_of_column: Per column, its run.

        Returns:
            Groups of (position of the slot, which runs take it). All owners of one constant are one group,
            unless a run has stages of several.
        """
        num_runs = int(run_of_column.max(initial=-1)) + 1
        found: dict[str, list[list[tuple[int, BoolArray]]]] = {}
        for position, (slot, members) in enumerate(self._members):
            runs = np.zeros(num_runs, dtype=np.bool_)
            runs[run_of_column[members]] = True
            for group in found.setdefault(slot.constant, []):
                if not any((taken & runs).any() for _, taken in group):
                    group.append((position, runs))
                    break
            else:
                found[slot.constant].append([(position, runs)])
        return [group for groups in found.values() for group in groups]

    def used(self) -> list[bool]:
        """Returns which slots any column takes."""
        return [bool(members.any()) for _, members in self._members]


_Kind = TypeVar("_Kind", GpuConstants, StackConstants, ClusterConstants)


def _shelf(kind: type[_Kind], columns: Mapping[str, Any]) -> _Kind:
    return kind(**{field.name: columns[field.name] for field in fields(kind)})


Base = Sequence[tuple[Slot, float]]
"""Values that come in place of shipped ones."""


def unfitted() -> list[tuple[Slot, float]]:
    """Returns the first values of what the shipped calibration has changed."""
    found = []
    for shelf in Shelf:
        for owner, entries in calibration_document()[shelf.value].items():
            found += [(Slot(shelf, owner, name), first_value(shelf, owner, name)) for name in entries]
    return found


def slots_for(runs: Sequence[Run], names: Mapping[Shelf, Sequence[str]]) -> list[Slot]:
    """Returns one slot per owner and name, for all owners among the runs, in a fixed order."""
    found = {
        Slot(shelf, owners_of(run)[shelf], name) for run in runs for shelf in names for name in names[shelf]
    }
    assert all(shelf_of(slot.constant) is slot.shelf for slot in found)
    return sorted(found)
