"""A price list says what the cost model says, to the last bit, for every size and configuration."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from tangram.cluster.spec import Portion, portions
from tangram.cost.atoms import TiedShare, itemised_costs
from tangram.cost.configs import legal_configs
from tangram.cost.types import AtomCosts, StageConfig, StageConfigs
from tangram.job import Pins
from tangram.model.atoms import Atom, cut_atoms, parse_granularity
from tangram.parallelizers import prices
from tangram.parallelizers.prices import PriceList, price_list
from tangram.parallelizers.protocols import Capabilities
from tangram.testing.cases import llama_like, moe_like, slice_cases

REQUEST = next(iter(slice_cases(Capabilities()))).request
PORTIONS = portions(REQUEST.portion.island)


def new_list(name: str, portion: Portion, *, shared: bool = False) -> PriceList:
    model = {"llama": llama_like, "moe": moe_like}[name]()
    if shared:
        model = replace(model, tied_embeddings=True)
    job = replace(REQUEST.job, pins=Pins(offload="auto"))
    return price_list(model, cut_atoms(model, parse_granularity("layer")), portion, job)


def agrees(
    listed: PriceList, distinct: tuple[Atom, ...], configs: list[StageConfig], micro_batch: int
) -> None:
    """Every number of a list's answer is that of the cost model."""
    costs, tied = listed.costs(distinct, configs, micro_batch)
    table = StageConfigs.of(configs)
    found = itemised_costs(listed.model, distinct, listed.portion, table, micro_batch, listed.job)
    assert flat(costs, tied).keys() == flat(*found).keys()
    for name, values in flat(*found).items():
        assert np.array_equal(flat(costs, tied)[name], values), name


def flat(costs: AtomCosts, tied: TiedShare) -> dict[str, np.ndarray]:
    columns = {f.name: getattr(costs, f.name) for f in fields(AtomCosts) if f.name != "components"}
    shares = {f"tied {idx}": values for idx, values in enumerate((*tied.held, *tied.step))}
    return {**columns, **costs.components, **shares}


@pytest.mark.parametrize("name", ["llama", "moe"])
@pytest.mark.parametrize("shared", [False, True])
def test_prices_are_those_of_the_cost_model(name: str, shared: bool) -> None:
    for portion in PORTIONS[:: max(1, len(PORTIONS) // 4)]:
        listed = new_list(name, portion, shared=shared)
        kinds = tuple({atom.fingerprint: atom for atom in listed.atoms}.values())
        for micro_batch in (*listed.job.micro_batches(), 3 * listed.job.global_batch):
            legal = legal_configs(listed.model, portion, micro_batch, listed.job)
            assert listed.configs(micro_batch) == tuple(legal)
            if legal:
                agrees(listed, kinds, legal, micro_batch)
                agrees(listed, kinds[::-1], legal[1::2] + legal[:1], micro_batch)
                agrees(listed, kinds[:1], legal, micro_batch)


def test_configurations_that_are_not_searched_are_priced_too() -> None:
    listed = new_list("llama", Portion(REQUEST.portion.island, 1, 2))
    legal = listed.configs(4)
    other = replace(next(c for c in legal if c.zero), zero=0)
    assert other not in legal
    agrees(listed, listed.atoms[:2], [other, legal[0]], 4)


def test_a_list_that_would_be_long_prices_one_size_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prices, "_MOST_CELLS", 1)
    listed = new_list("llama", PORTIONS[-1])
    for micro_batch in listed.job.micro_batches()[::-1]:
        if listed.configs(micro_batch):
            agrees(listed, listed.atoms[:3], list(listed.configs(micro_batch)), micro_batch)
            assert list(listed._sizes) == [micro_batch]


def test_lists_are_remembered_by_identity() -> None:
    model, job, island = llama_like(), REQUEST.job, REQUEST.portion.island
    atoms = cut_atoms(model, parse_granularity("layer"))
    listed = price_list(model, atoms, Portion(island, 1, 2), job)
    assert price_list(model, atoms, Portion(island, 1, 2), job) is listed
    assert price_list(model, atoms, Portion(island, 1, 2), replace(job)) is not listed
    assert price_list(model, atoms, Portion(replace(island), 1, 2), job) is not listed
    assert price_list(model, atoms, Portion(island, 1, 1), job) is not listed
