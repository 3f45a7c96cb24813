"""The pool of ranks that the tests of a session share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from ranks import RankPool


@pytest.fixture(scope="session")
def ranks() -> Iterator[RankPool]:
    """Processes for small worlds; none starts before a test asks for one."""
    pool = RankPool()
    yield pool
    pool.close()
