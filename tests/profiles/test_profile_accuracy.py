"""How far lookups are off on published profiles, when what is asked for was left out of them.

The bounds are wide enough for other constants of the cost model; docs/profiles.md has the figures of the day.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median

import pytest
from profile_files import FP32, TF32, needs_shared, read, shared_profiles

from tangram.cluster.catalog import gpu
from tangram.job import Precision
from tangram.profiles.formula import CostFormula
from tangram.profiles.lookup import Basis, layer_times
from tangram.profiles.measured import LayerQuery, MeasuredLayers
from tangram.profiles.records import LayerTime
from tangram.profiles.shapes import LayerKind

SAILOR = "sailor/layer_profiles"
SETS = [
    ("sailor", f"{SAILOR}/OPT-350/A100-40", "A100-40", TF32),
    ("sailor", f"{SAILOR}/GPT-Neo-2.7/A100-40", "A100-40", TF32),
    ("sailor", f"{SAILOR}/OPT-350/A100-80", "A100-80", TF32),
    ("sailor", f"{SAILOR}/OPT-350/GH-96", "GH-96", TF32),
    ("sailor", f"{SAILOR}/OPT-30/GH-96", "GH-96", TF32),
    ("sailor", f"{SAILOR}/OPT-350/V100-16", "V100-16", FP32),
    ("sailor", f"{SAILOR}/GPT-Neo-2.7/V100-16", "V100-16", FP32),
    ("aceso", "aceso-v100/eurosys-v100-32gb", "V100-32", Precision.FP16),
    ("aceso", "aceso-v100/tables/ops_A100-40_fp16.csv", "A100-40", Precision.FP16),
    ("aceso", "aceso-v100/tables/ops_GH-96_fp16.csv", "GH-96", Precision.FP16),
]


@dataclass(frozen=True)
class Errors:
    """Relative errors of forward plus backward."""

    formula: list[float]
    interpolated: list[float]
    scaled: list[float]


def errors(
    name: str,
    path: str,
    gpu_name: str,
    precision: Precision,
    held_out: Callable[[LayerTime, LayerTime], bool],
) -> Errors:
    """Errors of every layer, looked up in what is left of the profile without ``held_out(layer, other)``."""
    found = read(name, shared_profiles() / path, gpu=gpu_name, precision=precision)
    records = [r for r in found.records if isinstance(r, LayerTime) and r.shape.kind is LayerKind.LAYER]
    # These stacks ran unfused attention on every GPU.
    part = replace(gpu(records[0].gpu), attention_kernel="unfused")
    formula = CostFormula.of_part(part, precision)
    result = Errors([], [], [])
    for record in records:
        rest = MeasuredLayers.of([other for other in records if not held_out(record, other)])
        query = LayerQuery(record.gpu, precision, record.shape, record.tp, record.micro_batch)
        answer = layer_times(rest, query, formula)
        base = formula(record.shape, record.tp, record.micro_batch, record.includes_tp_comm)
        if answer is None or base is None or answer.includes_tp_comm is not record.includes_tp_comm:
            continue
        measured = record.total_s or 0.0
        result.formula.append(abs(sum(base) / measured - 1))
        chosen = result.interpolated if answer.basis is Basis.INTERPOLATED else result.scaled
        chosen.append(abs((answer.forward_s + answer.backward_s) / measured - 1))
    return result


def ids(case: object) -> str:
    return str(case).rpartition("/")[2] if isinstance(case, str) else ""


@needs_shared
@pytest.mark.parametrize(("name", "path", "gpu_name", "precision"), SETS, ids=ids)
def test_single_points(name: str, path: str, gpu_name: str, precision: Precision) -> None:
    """One micro-batch is left out: between two others it is interpolated, at an end the formula is scaled."""
    found = errors(name, path, gpu_name, precision, lambda record, other: other is record)
    assert len(found.interpolated) >= 3
    assert median(found.interpolated) <= 0.05
    assert len(found.scaled) >= 3
    assert median(found.scaled) <= 0.10
    assert median(found.scaled) <= median(found.formula) / 2


@needs_shared
@pytest.mark.parametrize(("name", "path", "gpu_name", "precision"), SETS, ids=ids)
def test_whole_degrees(name: str, path: str, gpu_name: str, precision: Precision) -> None:
    """All micro-batches of one shape and tp are left out: other degrees (and shapes) scale the formula."""
    found = errors(
        name,
        path,
        gpu_name,
        precision,
        lambda record, other: (other.shape, other.tp) == (record.shape, record.tp),
    )
    assert not found.interpolated
    assert len(found.scaled) >= 3
    assert median(found.scaled) <= 0.2
    assert median(found.scaled) <= median(found.formula)


@needs_shared
def test_whole_shapes() -> None:
    """All of one shape is left out: five other models of the same stack on the same GPU scale the formula."""
    found = errors(*SETS[7], lambda record, other: other.shape == record.shape)
    assert len(found.scaled) == 96
    assert median(found.scaled) <= 0.06
    assert median(found.scaled) <= median(found.formula) / 2


if __name__ == "__main__":  # the table of docs/profiles.md
    for case in SETS:
        one = errors(*case, lambda record, other: other is record)
        many = errors(*case, lambda record, other: (other.shape, other.tp) == (record.shape, record.tp))
        cells = [one.formula, one.interpolated, one.scaled, many.scaled]
        texts = [f"{median(cell):.1%} ({max(cell):.0%}; {len(cell)})" for cell in cells]
        print(f"| {case[1]} | {' | '.join(texts)} |")
    shapes = errors(*SETS[7], lambda record, other: other.shape == record.shape)
    print(f"whole shapes: {median(shapes.scaled):.1%} ({max(shapes.scaled):.0%})")
