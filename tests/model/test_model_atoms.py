from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_strategies import models

from tangram.errors import InputError
from tangram.job import divisors
from tangram.model.atoms import Granularity, Part, cut_atoms, parse_granularity
from tangram.model.flops import model_forward_flop, part_forward_flop
from tangram.model.load import trim_layers
from tangram.model.params import PartParams, count_params, model_parts, part_params
from tangram.model.presets import load_preset
from tangram.model.spec import ModelSpec

FINGERPRINTS = {
    "gpt3-13b": ["9ec443e53dabb9e5", "6b2d53e759fb5bca", "a64baee3a728d402"],
    "mixtral-8x7b": ["1f752476036de8bf", "2ccb8c01150936d7", "8dda871942c2262d"],
    "qwen3-30b-a3b": ["312171233d1690f6", "0760c3b35049be9e", "574b90c762888b20"],
}


@given(models(), st.data())
def test_every_cut_conserves_the_model(model: ModelSpec, data: st.DataObject) -> None:
    layers_per_atom = data.draw(st.sampled_from(divisors(model.num_layers)))
    for granularity in (*inner_cuts(model), Granularity("layer", layers_per_atom)):
        atoms = cut_atoms(model, granularity)
        parts = [part for atom in atoms for part in atom.parts]
        assert [(p.layer_idx, p.part) for p in parts] == list(model_parts(model))
        counted = sum((part_params(model, p.layer_idx, p.part) for p in parts), PartParams())
        assert counted == count_params(model)
        flop = sum(part_forward_flop(model, p.layer_idx, p.part, 3, 7) for p in parts)
        assert flop == model_forward_flop(model, 3, 7)
        assert [a.is_embedding for a in atoms] == [True] + [False] * (len(atoms) - 1)
        assert [a.is_head for a in atoms] == [False] * (len(atoms) - 1) + [True]
        assert sorted({i for a in atoms for i in a.layer_idxs}) == list(range(len(model.layers)))


@given(models())
def test_equal_fingerprints_mean_equal_content(model: ModelSpec) -> None:
    for granularity in (*inner_cuts(model), Granularity("layer")):
        seen: dict[str, tuple[object, ...]] = {}
        for atom in cut_atoms(model, granularity):
            content = tuple(
                (p.part, None if p.layer_idx is None else model.layers[p.layer_idx]) for p in atom.parts
            )
            assert seen.setdefault(atom.fingerprint, content) == content
        assert len(set(seen.values())) == len(seen)


@given(models(), models())
def test_ends_of_other_models_have_other_fingerprints(model: ModelSpec, other: ModelSpec) -> None:
    changes = [
        {name: getattr(other, name)}
        for name in ("embedding_size", "embedding_norm", "final_norm", "position_offset", "position")
    ]
    for change in changes:
        changed = replace(model, **change)
        for idx in (0, -1):
            same = cut_atoms(model)[idx].fingerprint == cut_atoms(changed)[idx].fingerprint
            assert same == (changed == model)


def inner_cuts(model: ModelSpec) -> list[Granularity]:
    """Granularities that cut inside of layers, where the model's layers can be."""
    can_be = not any(layer.parallel for layer in model.layers)
    return [Granularity("operator"), Granularity("block")] if can_be else []


def test_fingerprints_of_models_without_rarities_are_what_they_were() -> None:
    """Plans hold them, so they must not change by accident."""
    for name, prints in FINGERPRINTS.items():
        atoms = cut_atoms(load_preset(name))
        assert [atoms[idx].fingerprint for idx in (0, 1, -1)] == prints


def test_numbers_of_atoms() -> None:
    dense = load_preset("gpt3-13b")
    mixed = load_preset("gshard-moe-2.4b")
    assert len(cut_atoms(dense)) == 42
    assert len(cut_atoms(dense, Granularity("layer", 10))) == 6
    assert len(cut_atoms(dense, Granularity("block"))) == 82
    assert len(cut_atoms(dense, Granularity("operator"))) == 202
    assert len(cut_atoms(mixed, Granularity("operator"))) == 2 + 8 * 4 + 8 * 5
    # two kinds of layers, embedding, head
    assert len({atom.fingerprint for atom in cut_atoms(mixed)}) == 4
    assert len({atom.fingerprint for atom in cut_atoms(mixed, Granularity("layer", 2))}) == 3


def test_a_layer_keeps_its_fingerprint_in_a_trimmed_model() -> None:
    model = load_preset("qwen3-30b-a3b")
    assert cut_atoms(trim_layers(model, 24))[1].fingerprint == cut_atoms(model)[40].fingerprint


def test_experts_are_one_part() -> None:
    atoms = cut_atoms(load_preset("mixtral-8x7b"), Granularity("operator"))
    assert [[p.part for p in atom.parts] for atom in atoms[1:5]] == [
        [Part.QKV],
        [Part.CORE],
        [Part.OUT],
        [Part.MOE],
    ]


def test_layers_per_atom_must_divide() -> None:
    with pytest.raises(InputError) as caught:
        cut_atoms(load_preset("gpt3-13b"), Granularity("layer", 7))
    assert "legal: 1, 2, 4, 5, 8, 10, 20, 40" in str(caught.value)


def test_parsing_a_granularity() -> None:
    for text in ("operator", "block", "layer", "4"):
        assert str(parse_granularity(text)) == text
    assert parse_granularity(" Layer ") == Granularity("layer") == parse_granularity("1")
    for text in ("", "0", "-1", "2.0", "layers", "²", "1" * 5000, "10001"):
        with pytest.raises(InputError, match="is no granularity"):
            parse_granularity(text)
