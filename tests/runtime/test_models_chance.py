"""Random numbers: what they are like, that they are the same everywhere, and dropout."""

from __future__ import annotations

import numpy as np
import pytest
from model_cases import batch_of, module_of, plan_of
from torch_or_skip import torch

from tangram.runtime.groups import StageGroups
from tangram.runtime.models import chance
from tangram.runtime.models.chance import bits, fill_normal, key_of, normal, region_index, uniform
from tangram.runtime.models.dropout import dropped, residual_dropout
from tangram.runtime.models.share import Context, share_of

WORD = (1 << 64) - 1


def naive_bits(key: int, index: int) -> int:
    """SplitMix64's finaliser in Python's own integers."""
    value = (index * 0x9E3779B97F4A7C15 + key) & WORD
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & WORD
    return value ^ (value >> 31)


def test_bits_are_those_of_the_published_function() -> None:
    # The first outputs of SplitMix64 seeded with 1234567, as the JDK and many others print them.
    index = torch.arange(1, 4)
    assert [number & WORD for number in bits(1234567, index).tolist()] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
    ]
    key = key_of("anything", 7)
    places = torch.tensor([0, 1, 2**40, 2**62 + 5])
    assert [number & WORD for number in bits(key, places).tolist()] == [
        naive_bits(key & WORD, place) for place in places.tolist()
    ]


def test_keys_depend_on_every_word() -> None:
    keys = {key_of(*words) for words in [("a", 1), ("a", 2), ("b", 1), ("a1",), ("a", "1", ""), (1, "a")]}
    assert len(keys) == 6
    assert key_of("a", 1) == key_of("a", "1")
    assert all(-(2**63) <= key < 2**63 for key in keys)


def test_numbers_are_uniform_and_normal() -> None:
    index = torch.arange(200_000)
    share = uniform(key_of("u"), index)
    assert share.min() > 0
    assert share.max() < 1
    counts = np.histogram(share.numpy(), bins=20, range=(0, 1))[0]
    assert np.abs(counts - 10_000).max() < 500  # five standard deviations
    numbers = normal(key_of("n"), index)
    assert abs(numbers.mean().item()) < 0.012
    assert numbers.std().item() == pytest.approx(1.0, abs=0.01)
    assert (numbers.abs() > 1.959964).double().mean().item() == pytest.approx(0.05, abs=0.0025)
    neighbours = np.corrcoef(numbers[:-1].numpy(), numbers[1:].numpy())[0, 1]
    assert abs(neighbours) < 0.012


def test_a_region_has_the_numbers_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = (12, 5, 7)
    whole = torch.empty(shape, dtype=torch.float64)
    fill_normal(whole, 3, 0.5, shape, [(0, 12), (0, 5), (0, 7)])
    assert torch.equal(whole, 0.5 * normal(3, torch.arange(420).view(shape)))
    monkeypatch.setattr(chance, "CHUNK_ELEMENTS", 20)  # two rows at a time
    part = torch.empty(5, 3, 7, dtype=torch.float64)
    fill_normal(part, 3, 0.5, shape, [(4, 9), (1, 4), (0, 7)])
    assert torch.equal(part, whole[4:9, 1:4])
    assert region_index((4, 6), [(1, 3), (2, 4)], "cpu").tolist() == [[8, 9], [14, 15]]


def test_dropped_share_and_scale() -> None:
    x = torch.ones(100_000, dtype=torch.float64)
    y = dropped(x, torch.arange(100_000), torch.tensor(key_of("d")), 0.3)
    assert sorted(set(y.tolist())) == [0.0, 1 / 0.7]
    assert y.mean().item() == pytest.approx(1.0, abs=0.01)


def test_dropout_depends_on_sample_place_and_seed() -> None:
    plan = plan_of("gpt2")
    batch = batch_of(plan, 0)
    shares = [share_of(plan, plan.stages[0], StageGroups.alone(), seed=seed) for seed in (0, 1)]
    x = torch.ones(4, 16, 32)

    def mask(seed: int, place: str) -> torch.Tensor:
        return residual_dropout(shares[seed], x, Context(batch), 0.5, place) > 0

    base = mask(0, "a")
    assert torch.equal(base, mask(0, "a"))
    others = [mask(0, "b"), mask(1, "a"), base.roll(1, 0), base.roll(1, 1), base.roll(1, 2)]
    for other in others:  # independent: half agrees by chance
        assert (base == other).double().mean().item() == pytest.approx(0.5, abs=0.06)


def test_a_seed_gives_other_weights() -> None:
    plan = plan_of("llama")
    one, same, other = (
        module_of(plan, 0, seed=seed).units[1].blocks[0].out.weight.detach() for seed in (1, 1, 2)
    )
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert one.std().item() == pytest.approx(0.2, rel=0.1)


def test_gpt_weights_know_the_depth() -> None:
    block = module_of(plan_of("gpt2", n_layer=8), 0).units[1].blocks[0]
    assert block.out.weight.std().item() == pytest.approx(0.2 / 4, rel=0.1)
    assert block.qkv.weight_0.std().item() == pytest.approx(0.2, rel=0.1)
