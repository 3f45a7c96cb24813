"""Matrix products.

A product of M x K by K x N takes

    2 (M + mu) (N + mu) K / rate

with ``rate`` the GPU's achieved matrix rate times ``gemm_efficiency``, and ``mu`` the family's
``gemm_overhead_rows``. ``mu`` is near the ridge point, so a product of few rows costs what reading its
weights costs: the memory side of the roofline.

Multiplied out, that is FLOP, plus ``mu`` times ``2 (M + N) K``, plus ``mu`` squared times ``2 K``: three
counts that know nothing of the GPU.
"""

from __future__ import annotations

from tangram.cost import work
from tangram.cost.types import FloatArray

Size = FloatArray | float


def fill_gemm(table: FloatArray, first_row: int, rows: FloatArray, columns: Size, inner: Size) -> None:
    """Adds a linear map from ``inner`` to ``columns`` features to three rows of a part's table.

    Backward is two products: the gradient of the input (rows x columns by columns x inner) and of the weights
    (inner x rows by rows x columns).

    Args:
        table: Shape ``(NUM_ROWS, num_configs)``.
        first_row: ``GEMM`` or ``HEAD``.
        rows: Tokens; shape ``(num_configs,)``.
        columns, inner: Features on one rank; scalars or shape ``(num_configs,)``.
    """
    flop = 2 * rows * columns * inner
    back = first_row + work.BACKWARD
    table[first_row] += flop
    table[first_row + 1] += 2 * (rows + columns) * inner
    table[first_row + 2] += 2 * inner
    table[back] += 2 * flop
    table[back + 1] += 2 * ((rows + inner) * columns + (inner + columns) * rows)
    table[back + 2] += 2 * (columns + rows)


def fill_expert_gemm(table: FloatArray, count: Size, rows: FloatArray, columns: Size, inner: Size) -> None:
    """Adds ``count`` products of routed experts, with what grows with the number of rows apart; arguments as
    above.
    """
    flop = count * (2 * rows * columns * inner)
    back = work.EXPERT + work.BACKWARD
    table[work.EXPERT] += flop
    table[work.EXPERT_MU] += count * (2 * rows * inner)
    table[work.EXPERT_ROWLESS_MU] += count * (2 * columns * inner)
    table[work.EXPERT_ROWLESS_MU2] += count * (2 * inner)
    table[back] += 2 * flop
    table[work.EXPERT_MU + work.BACKWARD] += count * (2 * rows * (columns + inner + columns))
    table[work.EXPERT_MU2 + work.BACKWARD] += count * (2 * rows)
    table[work.EXPERT_ROWLESS_MU + work.BACKWARD] += count * (2 * inner * columns)
    table[work.EXPERT_ROWLESS_MU2 + work.BACKWARD] += count * (2 * columns)
