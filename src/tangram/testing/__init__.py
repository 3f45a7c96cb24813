"""For authors of parallelizers: does it keep its promises? Needs no test framework."""

from tangram.testing.conformance import check_parallelizer

__all__ = ["check_parallelizer"]
