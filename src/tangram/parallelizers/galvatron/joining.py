"""From a strategy per atom to a stage: what means nothing for an atom is taken from others.

Expert degrees mean nothing for an atom without experts. Taken over from a neighbour, they leave fewer runs of
equal configurations. Selective recomputation means nothing for an atom without attention or recomputed in
full; it is said to be as in the other layers where these agree, and else left out, as plan documents have it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tangram.cluster.spec import Portion
from tangram.cost.types import StageConfig
from tangram.model.atoms import has_experts
from tangram.parallelizers.book import StageBook
from tangram.parallelizers.protocols import StageChoice


def stage_of(
    book: StageBook,
    start: int,
    stop: int,
    portion: Portion,
    configs: Sequence[StageConfig],
    recomputed: tuple[bool, ...],
) -> StageChoice:
    """Returns the stage whose atoms have these configurations, in as few runs as they mean.

    Args:
        book: The question.
        start, stop: The slice.
        portion: The GPUs.
        configs: Per atom.
        recomputed: Per atom.
    """
    atoms = book.atoms[start:stop]
    blind = [not has_experts([atom]) for atom in atoms]
    idle = [again or not atom.layer_idxs for atom, again in zip(atoms, recomputed, strict=True)]
    kept = {config.selective for config, is_idle in zip(configs, idle, strict=True) if not is_idle}
    joined = [
        replace(config, selective=kept == {True}) if kept and is_idle else config
        for config, is_idle in zip(configs, idle, strict=True)
    ]
    order = range(len(joined))
    for near, far in [*zip(order[1:], order, strict=False), *zip(order[-2::-1], order[::-1], strict=False)]:
        if blind[near] and _without_experts(joined[near]) == _without_experts(joined[far]):
            joined[near] = joined[far]
    if atoms[0].is_embedding and atoms[-1].is_head and book.model.shares_embedding:
        joined[-1] = joined[0]
    mixed = tuple(joined) if len(set(joined)) > 1 else ()
    return StageChoice(start, stop, portion, joined[0], recomputed, mixed)


def _without_experts(config: StageConfig) -> StageConfig:
    return replace(config, ep=1, expert_tp=1)
