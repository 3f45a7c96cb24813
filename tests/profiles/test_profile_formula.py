from __future__ import annotations

import pytest
from layer_cases import as_shapes_see_it, layer

from tangram.cluster.catalog import gpu
from tangram.cluster.spec import Island, Node, Portion
from tangram.cost.stage import stage_cost
from tangram.cost.types import StageConfig
from tangram.errors import InputError
from tangram.job import Job, Precision
from tangram.model.atoms import cut_atoms
from tangram.model.presets import load_preset, preset_names
from tangram.profiles.formula import CostFormula
from tangram.profiles.shapes import LayerKind, atom_shapes

A100 = gpu("A100-80GB-SXM")
K = LayerKind


def formula(precision: Precision = Precision.BF16) -> CostFormula:
    return CostFormula.of_part(A100, precision)


@pytest.mark.parametrize("name", preset_names())
@pytest.mark.parametrize("tp", [1, 2])
def test_it_is_the_cost_model(name: str, tp: int) -> None:
    """Up to what a shape leaves out (biases, padding of the vocabulary), a stage is the sum of its shapes."""
    model = as_shapes_see_it(load_preset(name))
    rate = A100.link_bytes_per_s
    node = Node("n", A100, 8, rate, 5e-6, "nvlink", rate, "n", "n")
    portion = Portion(Island("i", (node,), A100, 8, rate, 5e-6, rate, 5e-6, rate), 1, tp)
    has_moe = model.has_moe
    config = StageConfig(dp=1, tp=tp, expert_tp=tp if has_moe else 1)
    job = Job(2, 1024, Precision.BF16)
    asked = formula()
    for atom in dict.fromkeys(cut_atoms(model)):
        cost = stage_cost(model, [atom], portion, config, 2, 1, 1, [False], job)
        (shape,) = atom_shapes(model, atom, 1024)
        found = asked(shape, tp, 2, True)
        assert found is not None
        assert found.forward_s == pytest.approx(cost.forward_s, rel=1e-3)
        assert found.backward_s == pytest.approx(cost.backward_s, rel=1e-3)


def test_a_layer_for_prediction_is_a_layer_and_both_ends_once_more() -> None:
    """But for its projection, which shapes leave out."""
    model = load_preset("deepseek-v3")
    rate = A100.link_bytes_per_s
    node = Node("n", A100, 8, rate, 5e-6, "nvlink", rate, "n", "n")
    portion = Portion(Island("i", (node,), A100, 8, rate, 5e-6, rate, 5e-6, rate), 1, 1)
    head = cut_atoms(model)[-1]
    job = Job(2, 1024, Precision.BF16)
    cost = stage_cost(model, [head], portion, StageConfig(dp=1, tp=1), 2, 1, 1, [False], job)
    shapes = atom_shapes(model, head, 1024)
    assert [shape.kind for shape in shapes] == [K.LAYER, K.EMBEDDING, K.HEAD, K.HEAD]
    found = [formula()(shape, 1, 2, True) for shape in shapes]
    seconds = sum(times.forward_s for times in found if times is not None)
    assert 0.95 * cost.forward_s < seconds < cost.forward_s


def test_a_rank_alone_has_no_collectives() -> None:
    big = layer(hidden=4096, seq_len=2048)
    together, alone = formula()(big, 4, 1, True), formula()(big, 4, 1, False)
    whole = formula()(big, 1, 1, True)
    assert together is not None
    assert alone is not None
    assert whole is not None
    assert whole.forward_s / 4 < alone.forward_s < together.forward_s
    assert formula()(big, 1, 1, False) == whole


def test_what_it_does_not_know() -> None:
    assert formula()(layer(LayerKind.EXPERT), 1, 1, True) is None
    assert formula()(layer(LayerKind.FINAL_NORM), 1, 1, True) is None
    assert formula()(layer(), 8, 1, True) is None  # four heads
    assert CostFormula.of_part(A100, Precision.BF16, 2)(layer(), 4, 1, True) is None
    with pytest.raises(InputError, match="no bf16"):
        CostFormula.of_part(gpu("T4"), Precision.BF16)(layer(), 1, 1, True)


def test_answers_are_kept() -> None:
    asked = formula()
    assert asked(layer(), 1, 1, True) is asked(layer(), 1, 1, True)
