"""Slices of equal content are found, and only those."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tangram.model.atoms import Atom, AtomPart, Part, cut_atoms, parse_granularity
from tangram.parallelizers.contents import slice_contents
from tangram.testing.cases import llama_like


def atoms_of(letters: str) -> list[Atom]:
    return [Atom((AtomPart(Part.QKV, i),), letter) for i, letter in enumerate(letters)]


@given(st.text(alphabet="abc", min_size=1, max_size=9))
def test_contents_are_multisets_of_fingerprints(letters: str) -> None:
    contents = slice_contents(atoms_of(letters))
    slices = [(a, b) for a in range(len(letters)) for b in range(a + 1, len(letters) + 1)]
    assert list(zip(contents.start.tolist(), contents.stop.tolist(), strict=True)) == slices
    names = list(dict.fromkeys(letters))
    for (start, stop), content in zip(slices, contents.content_of, strict=True):
        expected = [letters[start:stop].count(name) for name in names]
        assert contents.counts[content].tolist() == expected
    assert len(contents.counts) == len({tuple(sorted(letters[a:b])) for a, b in slices})
    assert [names[c] for c in contents.class_of] == list(letters)


def test_given_slices_are_sorted_and_taken_once() -> None:
    contents = slice_contents(atoms_of("aabb"), [(2, 4), (0, 2), (2, 4), (1, 2)])
    assert list(zip(contents.start, contents.stop, strict=True)) == [(0, 2), (1, 2), (2, 4)]
    assert np.unique(contents.content_of).size == 3


def test_no_slices() -> None:
    contents = slice_contents(atoms_of("ab"), [])
    assert contents.start.size == contents.content_of.size == len(contents.counts) == 0


def test_equal_layers_have_few_contents() -> None:
    atoms = cut_atoms(llama_like(40))
    assert len(slice_contents(atoms).counts) == 40 + 2 * 41 + 1
    operators = cut_atoms(llama_like(8), parse_granularity("operator"))
    assert len(slice_contents(operators).counts) < len(slice_contents(operators).start) / 2
