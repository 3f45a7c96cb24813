"""The work of a part on one rank, as rows of one table: the formulas of the parts fill it in.

A part's table has the shape ``(NUM_ROWS, num_configs)``. One table instead of many arrays keeps the number of
numpy calls, which is what a query costs, independent of the number of atoms.
"""

from __future__ import annotations

MATMUL, ATTENTION, ELEMENTWISE, LAUNCH, TP, CP, EP = range(7)
"""Kinds of time. A row of this index is forward; the same index plus ``BACKWARD`` is backward."""

BACKWARD = 7
NUM_TIMES = 14

STORED = 14
"""Bytes kept for the backward pass, per micro-batch."""
DENSE_PARAMS = 15
"""Parameters on the rank before ZeRO, of those that are replicated over dp and cp."""
EXPERT_PARAMS = 16
"""Parameters on the rank before ZeRO, of those that belong to routed experts."""
DROPPABLE = 17
"""Bytes of the attention core that selective recomputation does not keep; ``STORED`` has them otherwise."""
NUM_SUMMED = 18

TRANSIENT = 18
"""Bytes that exist only while the part runs. The maximum over an atom counts, not the sum."""
RERUN_TRANSIENT = 19
"""The same when the atom is recomputed in full, and nothing selectively. The maximum counts."""
INPUT = 20
"""Bytes of the part's input: what full recomputation keeps. The first part of an atom counts, not the sum."""
NUM_ROWS = 21

COMPUTE = (MATMUL, ATTENTION, ELEMENTWISE, LAUNCH)
TIME_NAMES = ("matmul", "attention", "elementwise", "launch", "tp", "cp", "ep")
