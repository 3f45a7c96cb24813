"""The work of a part on one rank, as rows of one table: the formulas of the parts fill it in.

Rows are counts: FLOP, bytes, calls. What a count costs in seconds is the business of
:mod:`tangram.cost.rates`, so that the same table serves every set of constants.

A part's table has the shape ``(NUM_ROWS, num_configs)``. One table instead of many arrays keeps the number of
numpy calls, which is what a query costs, independent of the number of atoms.
"""

from __future__ import annotations

GEMM, GEMM_MU, GEMM_MU2 = range(3)
"""Products of dense parts: FLOP; FLOP per overhead row; FLOP per square of that
(:mod:`tangram.cost.gemm`).
"""
EXPERT, EXPERT_MU, EXPERT_MU2 = range(3, 6)
"""Products of routed experts: what grows with the tokens of the busiest rank."""
EXPERT_ROWLESS_MU, EXPERT_ROWLESS_MU2 = 6, 7
"""Products of routed experts: what does not."""
HEAD, HEAD_MU, HEAD_MU2 = range(8, 11)
"""Products of the LM head, which never run below 16 bit."""
FLASH, UNFUSED, UNALIGNED = 11, 12, 13
"""FLOP of attention, by kernel; the last of unfused attention with heads that tensor cores cannot load
whole.
"""
SCORES = 14
"""Bytes that unfused attention moves."""
STREAM, EXPERT_STREAM = 15, 16
"""Bytes that element-wise kernels move; the second grows with the tokens of the busiest rank."""
LAUNCH, MOE_LAUNCH = 17, 18
"""Kernel launches, in layers' worth; the second of mixtures of experts."""
TP_CALLS, TP_BYTES, CP_CALLS, CP_BYTES = range(19, 23)
EP_CALLS, EP_BYTES, EXPERT_TP_CALLS, EXPERT_TP_BYTES = range(23, 27)
"""Collectives: how many, and the bytes a rank gets from others (EP: the bytes that it sends, itself
included).
"""

BACKWARD = 27
"""A row of the index above is forward; the same index plus this is backward."""
NUM_WORK = 2 * BACKWARD

STORED, EXPERT_STORED = NUM_WORK, NUM_WORK + 1
"""Bytes kept for the backward pass, per micro-batch; the second grow with the tokens of the busiest rank."""
DENSE_PARAMS, EXPERT_PARAMS = NUM_WORK + 2, NUM_WORK + 3
"""Parameters on the rank before ZeRO: replicated over dp and cp; of routed experts."""
DROPPABLE = NUM_WORK + 4
"""Bytes of the attention core that selective recomputation does not keep; ``STORED`` has them otherwise."""
LOGITS, HEAD_WEIGHTS = NUM_WORK + 5, NUM_WORK + 6
"""Elements of the logits and of the head's matrix; their transients depend on the stack."""
DOUBTFUL = NUM_WORK + 7
"""Bytes that the part would keep besides, were its attention unfused where nobody says which it is."""
NUM_SUMMED = NUM_WORK + 8

TRANSIENT, EXPERT_TRANSIENT = NUM_SUMMED, NUM_SUMMED + 1
"""Bytes that exist only while the part runs. The maximum over an atom counts, not the sum."""
RERUN_TRANSIENT = NUM_SUMMED + 2
"""``TRANSIENT`` when the atom is recomputed in full, and nothing selectively. The maximum counts."""
INPUT = NUM_SUMMED + 3
"""Bytes of the part's input: what full recomputation keeps. The first part of an atom counts, not the sum."""
NUM_ROWS = NUM_SUMMED + 4

MATMUL_S, ATTENTION_S, ELEMENTWISE_S, LAUNCH_S, TP_S, CP_S, EP_S = range(7)
"""Kinds of time, as :meth:`tangram.cost.rates.Rates.times` returns them: rows of this index are forward, the
same index plus ``BACKWARD_S`` backward."""
BACKWARD_S = 7
NUM_TIMES = 14

NUM_COMPUTE = 4
"""The first so many kinds are kernels; the others are collectives."""
TIME_NAMES = ("matmul", "attention", "elementwise", "launch", "tp", "cp", "ep")
