"""Efforts for tests: how far the listing of plans goes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tangram.planner.effort import Effort


def listing(labels: int | None = None, plans: int | None = None, **settings: Any) -> Effort:
    """An effort that lists up to so many labels and plans, whatever the number of micro-batches."""
    given = {"listing_labels": labels, "listing_plans": plans}
    limits: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    usual = Effort()
    return Effort(
        widest=replace(usual.widest, **limits), narrowest=replace(usual.narrowest, **limits), **settings
    )


EVERYTHING = listing(2_000_000, 1_000_000)
