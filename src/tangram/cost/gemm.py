"""Matrix products.

A product of M x K by K x N takes

    2 (M + mu) (N + mu) K / rate

with ``rate`` the GPU's achieved matrix rate times ``gemm_efficiency``, and ``mu`` the family's
``gemm_overhead_rows``. ``mu`` is near the ridge point, so a product of few rows costs what reading its
weights costs: the memory side of the roofline. ``constants.json`` says how well this form fitted public rows.
"""

from __future__ import annotations

from tangram.cost.setting import Setting
from tangram.cost.types import FloatArray

Size = FloatArray | float


def gemm_s(setting: Setting, rows: FloatArray, columns: Size, inner: Size) -> tuple[FloatArray, FloatArray]:
    """Returns forward and backward time of a linear map from ``inner`` to ``columns`` features.

    Backward is two products: the gradient of the input (rows x columns by columns x inner) and of the weights
    (inner x rows by rows x columns).

    Args:
        setting: Rates.
        rows: Tokens; shape ``(num_configs,)``.
        columns, inner: Features on one rank; scalars or shape ``(num_configs,)``.

    Returns:
        Two arrays of shape ``(num_configs,)``, in seconds.
    """
    overhead = setting.gpu.gemm_overhead_rows
    per_flop = 2 / (setting.achieved_flop_per_s * setting.gpu.gemm_efficiency)
    wide_rows = (rows + overhead) * per_flop
    wide_columns, wide_inner = columns + overhead, inner + overhead
    forward = wide_rows * wide_columns * inner
    input_gradient = wide_rows * wide_inner * columns
    weight_gradient = rows * per_flop * wide_inner * wide_columns
    return forward, input_gradient + weight_gradient
