"""Pipelines that the user dictates: the compact text of ``--stages``, and uniform ones from single degrees.

A stage is ``PLACE:GPUS:DEGREES:LAYERS`` or ``PLACE:GPUS:DEGREES:LAYERS:RECOMPUTE``; ``+`` joins stages:

    A100-80GB-SXM:4:tp4:24+V100-32GB-SXM2:8:tp2dp4z1:16:full8

PLACE is an island (``tangram islands``), a node, or nodes joined by commas. DEGREES are any of tp, dp, cp, ep
and z (ZeRO) with their numbers; dp may be left out. LAYERS are transformer layers. RECOMPUTE is ``none``,
``selective`` or ``full``, or ``full8`` for eight of the layers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tangram.errors import InputError, UnknownNameError
from tangram.job import Pins, Recompute, divisors
from tangram.units import count_of

if TYPE_CHECKING:
    from tangram.cluster.spec import Cluster, Island
    from tangram.planner.estimate import DictatedStage

_FORM = "PLACE:GPUS:DEGREES:LAYERS[:RECOMPUTE], for example A100-80GB-SXM:4:tp4:24+T4:8:tp2dp4z1:16"
_DEGREE = re.compile(r"(tp|dp|cp|ep|zero|z)([0-9]{1,6})")
_RECOMPUTE = re.compile(r"(none|selective|full)([0-9]{0,6})")


def parse_stages(text: str, cluster: Cluster, islands: Sequence[Island]) -> list[DictatedStage]:
    """Parses the text of ``--stages``.

    Raises:
        InputError: It does not follow the form.
        UnknownNameError: A place is neither an island nor a node.
    """
    return [
        _stage(piece.strip(), f"--stages, stage {idx}", cluster, islands)
        for idx, piece in enumerate(text.split("+"))
    ]


def uniform_stages(pins: Pins, num_layers: int, islands: Sequence[Island]) -> list[DictatedStage]:
    """Returns ``pp`` stages of equal degrees, placed on the islands in order; layers evenly unless given.

    ``pp`` is 1 when it is not given, or the number of ``layers_per_stage``; dp what the GPUs allow.

    Raises:
        InputError: The stages do not fit on the islands, or the layers do not add up.
    """
    from tangram.planner.estimate import DictatedStage

    layers = pins.layers_per_stage
    pp = pins.pp or (len(layers) if layers else 1)
    if layers is None:
        if pp > num_layers:
            raise InputError(
                f"{pp} stages for {num_layers} layers", where="--pp", hint=f"legal: 1 to {num_layers}"
            )
        layers = tuple(num_layers // pp + (idx < num_layers % pp) for idx in range(pp))
    if len(layers) != pp:
        raise InputError(
            f"{len(layers)} numbers of layers for {pp} stages",
            where="--layers-per-stage",
            hint="one per stage",
        )
    tp, cp, ep = pins.tp or 1, pins.cp or 1, pins.ep or 1
    dp = pins.dp or _largest_dp(islands, pp, tp * cp)
    places = _place(islands, pp, dp * cp * tp)
    return [
        DictatedStage(
            nodes=None,
            island=island,
            num_gpus=dp * cp * tp,
            num_layers=count,
            dp=dp,
            tp=tp,
            cp=cp,
            ep=ep,
            zero=pins.zero or 0,
            recompute=pins.recompute or Recompute.NONE,
            num_recomputed_layers=None,
        )
        for island, count in zip(places, layers, strict=True)
    ]


def _stage(text: str, where: str, cluster: Cluster, islands: Sequence[Island]) -> DictatedStage:
    from tangram.planner.estimate import DictatedStage

    fields = [field.strip() for field in text.split(":")]
    if len(fields) not in (4, 5):
        raise InputError(f"{text!r} does not follow the form of a stage", where=where, hint=f"write {_FORM}")
    place, gpus, degrees, layers = fields[:4]
    num_gpus = _number(gpus, "GPUs", where)
    named = _degrees(degrees, where)
    model_parallel = named.get("tp", 1) * named.get("cp", 1)
    if "dp" not in named and num_gpus % model_parallel:
        raise InputError(
            f"tp x cp = {model_parallel} does not divide {num_gpus} GPUs",
            where=where,
            hint="legal products: " + ", ".join(map(str, divisors(num_gpus))),
        )
    island, nodes = _named_place(place, where, cluster, islands)
    recompute, num_recomputed = _recompute(fields[4] if len(fields) == 5 else "none", where)
    num_layers = _number(layers, "layers", where, low=0)
    if num_recomputed is not None and num_recomputed > num_layers:
        raise InputError(
            f"full{num_recomputed} recomputes more than the {count_of(num_layers, 'layer')} there are",
            where=where,
            hint="full recomputes all of them",
        )
    return DictatedStage(
        nodes=nodes,
        island=island,
        num_gpus=num_gpus,
        num_layers=num_layers,
        dp=named.get("dp", num_gpus // model_parallel),
        tp=named.get("tp", 1),
        cp=named.get("cp", 1),
        ep=named.get("ep", 1),
        zero=named.get("z", 0),
        recompute=recompute,
        num_recomputed_layers=num_recomputed,
    )


def _named_place(
    place: str, where: str, cluster: Cluster, islands: Sequence[Island]
) -> tuple[str | None, tuple[str, ...] | None]:
    if place in {island.name for island in islands}:
        return place, None
    nodes = tuple(name.strip() for name in place.split(","))
    known = [node.name for node in cluster.nodes]
    for name in nodes:
        if name not in known:
            raise UnknownNameError("island or node", name, [i.name for i in islands] + known, where=where)
    return None, nodes


def _degrees(text: str, where: str) -> dict[str, int]:
    named: dict[str, int] = {}
    position = 0
    for match in _DEGREE.finditer(text):
        name = match[1].replace("zero", "z")
        if text[position : match.start()].strip(" ,") or name in named:
            break
        named[name] = int(match[2])
        if named[name] < 1 and name != "z":
            raise InputError(f"{name} {named[name]} is out of range", where=where, hint="legal: 1 or more")
        position = match.end()
    if position == 0 or text[position:].strip(" ,"):
        raise InputError(
            f"{text!r} is no list of degrees",
            where=where,
            hint="write for example tp2dp4z1 (tp, dp, cp, ep, z)",
        )
    return named


def _recompute(text: str, where: str) -> tuple[Recompute, int | None]:
    match = _RECOMPUTE.fullmatch(text)
    if match is None or (match[1] != "full" and match[2]):
        raise InputError(
            f"{text!r} says nothing about recomputation",
            where=where,
            hint="legal: none, selective, full, or full8 for eight layers",
        )
    return Recompute(match[1]), int(match[2]) if match[2] else None


def _number(text: str, what: str, where: str, low: int = 1) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 7 or int(text) < low:
        raise InputError(f"{text!r} is no number of {what}", where=where, hint=f"write {_FORM}")
    return int(text)


def _largest_dp(islands: Sequence[Island], pp: int, model_parallel: int) -> int:
    """The largest dp, a power of two, with which all stages find a place."""
    dp = 1
    while _fits(islands, pp, 2 * dp * model_parallel):
        dp *= 2
    return dp


def _fits(islands: Sequence[Island], pp: int, num_gpus: int) -> bool:
    return sum(island.num_gpus // num_gpus for island in islands) >= pp


def _place(islands: Sequence[Island], pp: int, num_gpus: int) -> list[str]:
    """The island of each stage: islands are filled in order."""
    places = [island.name for island in islands for _ in range(island.num_gpus // num_gpus)]
    if len(places) < pp:
        sizes = ", ".join(f"{island.num_gpus}x {island.name}" for island in islands)
        raise InputError(
            f"{pp} stages of {num_gpus} GPUs do not fit: a stage stays within one island",
            where="--pp, --tp, --dp, --cp",
            hint=f"the islands: {sizes}",
        )
    return places[:pp]
