"""Runs errands in this process."""

from __future__ import annotations

from tangram.executors.protocol import Errand, Item, Lost, Result


class InlineExecutor:
    """One item after the other; what a function raises is raised."""

    def run(self, errand: Errand[Item, Result]) -> list[Result | Lost]:
        """Calls the function once, with all items."""
        return list(errand.function(*errand.shared, errand.items))

    def close(self) -> None:
        """Nothing runs."""
