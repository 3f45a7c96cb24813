"""The base of all sections of the plan document, and the ranges of its numbers.

Ranges here only keep a reader safe from absurd input (a degree of zero, a count beyond 64 bits); what makes a
plan valid is said by :mod:`tangram.plan.check`.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=0, le=2**63 - 1)]
"""A size, an index or a number of things."""

Positive = Annotated[int, Field(ge=1, le=2**63 - 1)]
"""A number of things of which there is at least one."""

Integer = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
"""A number that may be negative, such as headroom."""

Rate = Annotated[float, Field(gt=0)]
"""A bandwidth or an arithmetic rate."""

Seconds = Annotated[float, Field(ge=0)]
"""A latency."""


class Section(BaseModel):
    """A part of the plan document: frozen, no unknown keys, no infinite numbers."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        protected_namespaces=(),
        ser_json_inf_nan="constants",
    )
