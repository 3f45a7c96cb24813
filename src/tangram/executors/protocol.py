"""What an executor is asked, and what it gives back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Errand(Generic[Item, Result]):
    """One function for many independent items.

    Attributes:
        function: ``function(*shared, items) -> results``, one per item and in their order; found by its name
            in another process, so at the top of a module.
        shared: What all items have in common; picklable, like items and results.
        items: What to do.
        seconds_each: A rough guess, which decides whether other processes pay and how many items travel
            together; never what comes out.
    """

    function: Callable[..., Sequence[Result]]
    shared: tuple[Any, ...]
    items: Sequence[Item]
    seconds_each: float


@dataclass(frozen=True, slots=True)
class Lost:
    """An item without result: whoever took it on died of it.

    Attributes:
        reason: How, in words.
    """

    reason: str


class Executor(Protocol):
    """Runs errands, one after the other."""

    def run(self, errand: Errand[Item, Result]) -> list[Result | Lost]:
        """Returns the result of every item, in their order.

        Raises:
            InputError: Its workers cannot be had.
            InternalError: The function raised in a worker.
        """
        ...

    def close(self) -> None:
        """Ends whatever runs; a second time it does nothing."""
        ...
