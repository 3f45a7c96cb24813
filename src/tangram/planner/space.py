"""What the search may use: islands, their portions, and how finely their GPUs are counted.

GPUs left per island span a lattice; while its size is at most ``LATTICE_LIMIT`` every portion counts.
On larger clusters states are not counted at all: the space is *large*, has every portion, and is searched
in another way (:mod:`tangram.planner.large`). That way hardly knows slice plans of several stages; where
there may be some, GPUs are counted in larger units (part of a node), the island with most units first, and
the plan says so; the space is large only where units would be whole nodes or more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tangram.cluster.spec import Island, Portion, portions
from tangram.job import Precision

LATTICE_LIMIT = 4_000
_MANY_NODES = 12


@dataclass(frozen=True, slots=True, order=True)
class LinkClass:
    """What transfers of a stage depend on, before it is placed.

    Attributes:
        island: Index of the island.
        num_nodes: Nodes touched.
        whole: Whether the stage takes whole nodes, and so shares none.
    """

    island: int
    num_nodes: int
    whole: bool


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """Islands and portions of one search.

    Attributes:
        islands: Those whose GPUs have the job's precision.
        excluded: The others, with the reason.
        portions: Every portion a stage may take, of all islands.
        portion_islands: Index into ``islands`` of each portion.
        units: GPUs that one unit of each island's counter stands for.
        capacity: Units of each island.
        link_classes: Distinct classes of portions; transfers are told apart by them.
        portion_classes: Index into ``link_classes`` of each portion.
        notes: What was coarsened, in words.
        is_large: Whether the GPUs left are too many states to count; units are then single GPUs.
    """

    islands: tuple[Island, ...]
    excluded: tuple[tuple[Island, str], ...]
    portions: tuple[Portion, ...]
    portion_islands: tuple[int, ...]
    units: tuple[int, ...]
    capacity: tuple[int, ...]
    link_classes: tuple[LinkClass, ...]
    portion_classes: tuple[int, ...]
    notes: tuple[str, ...]
    is_large: bool = False

    @property
    def num_gpus(self) -> int:
        """GPUs of all usable islands."""
        return sum(island.num_gpus for island in self.islands)

    @property
    def placement_matters(self) -> bool:
        """Whether two stages of one island may share a node or not."""
        return any(
            not known.whole and self.islands[known.island].num_nodes > 1 for known in self.link_classes
        )

    def class_index(self, island: int, portion: Portion) -> int:
        """Returns the link class of a portion; of one that the space is too coarse for, its island's first
        class of as few nodes.
        """
        wanted = link_class(island, portion)
        if wanted in self.link_classes:
            return self.link_classes.index(wanted)
        own = [idx for idx, known in enumerate(self.link_classes) if known.island == island]
        return min(own, key=lambda idx: (abs(self.link_classes[idx].num_nodes - portion.num_nodes), idx))

    def on_node(self, island: int, portion: Portion) -> int:
        """GPUs of a portion that may share its node with others or not; 0 where that is no choice."""
        if self.islands[island].num_nodes == 1 or link_class(island, portion).whole:
            return 0
        return portion.num_gpus

    def index(self, portion: Portion) -> int:
        """Returns which one of the portions it is."""
        wanted = portion.island.name, portion.num_nodes, portion.gpus_per_node
        return next(
            idx
            for idx, own in enumerate(self.portions)
            if (own.island.name, own.num_nodes, own.gpus_per_node) == wanted
        )

    def portion_units(self, idx: int) -> int:
        """Units that a portion takes from its island's counter."""
        return self.portions[idx].num_gpus // self.units[self.portion_islands[idx]]


def search_space(
    islands: Sequence[Island],
    precision: Precision,
    *,
    lattice_limit: int = LATTICE_LIMIT,
    may_be_large: bool = False,
    may_be_coarse: bool = True,
    large: bool = False,
) -> SearchSpace:
    """Builds the space over islands.

    Args:
        islands: All of them.
        precision: Of the job.
        lattice_limit: Most points of the lattice of GPUs left; the space is coarsened to it.
        may_be_large: Whether the space may be large instead of being counted in units of whole nodes.
        may_be_coarse: Whether such a space is rather counted in parts of a node, where that will do.
        large: Whether it is, however few GPUs there are.
    """
    usable = tuple(i for i in islands if i.gpu.supports(precision))
    excluded = tuple(
        (i, f"{i.gpu.name} has no {precision} matrix arithmetic{_instead(i, precision)}")
        for i in islands
        if not i.gpu.supports(precision)
    )
    units = [1] * len(usable)
    while _points(usable, units) > lattice_limit:
        counts = [i.num_gpus // u for i, u in zip(usable, units, strict=True)]
        if max(counts) <= 1:
            break
        largest = counts.index(max(counts))
        units[largest] = _next_unit(usable[largest], units[largest])
    too_coarse = any(
        u >= max(i.gpus_per_node, 2) and i.num_nodes > 1 for i, u in zip(usable, units, strict=True)
    )
    too_coarse = too_coarse or _points(usable, units) > lattice_limit  # too many islands, in any units
    too_coarse = too_coarse or (not may_be_coarse and max(units, default=1) > 1)
    is_large = large or (may_be_large and too_coarse)
    units = [1] * len(usable) if is_large else units
    chosen: list[tuple[int, Portion]] = []
    for idx, island in enumerate(usable):
        chosen += [(idx, p) for p in _useful_portions(island) if p.num_gpus % units[idx] == 0]
    keys = [link_class(idx, p) for idx, p in chosen]
    classes = tuple(sorted(set(keys)))
    notes = tuple(
        f"{island.name} is counted in blocks of {unit} GPUs{_lost(island, unit)}"
        for island, unit in zip(usable, units, strict=True)
        if unit > 1
    )
    return SearchSpace(
        islands=usable,
        excluded=excluded,
        portions=tuple(p for _, p in chosen),
        portion_islands=tuple(idx for idx, _ in chosen),
        units=tuple(units),
        capacity=tuple(i.num_gpus // u for i, u in zip(usable, units, strict=True)),
        link_classes=classes,
        portion_classes=tuple(classes.index(key) for key in keys),
        notes=notes,
        is_large=is_large,
    )


def _instead(island: Island, precision: Precision) -> str:
    """What would let an island take part."""
    others = (Precision.BF16, Precision.FP16) if precision.is_mixed else (Precision.TF32, Precision.FP32)
    able = [other for other in others if island.gpu.supports(other)]
    return f"; --precision {able[0]} would let it take part" if able else ""


def _points(islands: Sequence[Island], units: Sequence[int]) -> int:
    """Points of the lattice of what is left."""
    return prod(i.num_gpus // u + 1 for i, u in zip(islands, units, strict=True))


def _lost(island: Island, unit: int) -> str:
    left = island.num_gpus % unit
    return f", which leaves {left} out" if left else ""


def link_class(island: int, portion: Portion) -> LinkClass:
    """Returns the class of a portion of an island."""
    return LinkClass(island, portion.num_nodes, portion.gpus_per_node == portion.island.gpus_per_node)


def _useful_portions(island: Island) -> list[Portion]:
    """All portions of a small island; on a large one, node counts thin out above a dozen."""
    found = []
    for portion in portions(island):
        n = portion.num_nodes
        power_like = n & (n - 1) == 0 or (n % 3 == 0 and (n // 3) & (n // 3 - 1) == 0)
        if n <= _MANY_NODES or n == island.num_nodes or power_like:
            found.append(portion)
    return found


def _next_unit(island: Island, unit: int) -> int:
    size = island.gpus_per_node
    if unit < size:
        return next(g for g in range(unit + 1, size + 1) if size % g == 0 and g % unit == 0)
    return unit * 2
