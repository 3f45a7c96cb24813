"""Reads Galvatron's hardware profiles (github.com/PKU-DAIR/Hetu-Galvatron, ``hardware_configs``).

The file's name says nodes and GPUs per node. Three kinds of file:

* ``allreduce_bandwidth_<n>nodes_<g>gpus_per_node.json``: ``allreduce_size_<r>_consec_<0|1>`` in GB/s, bus
  bandwidth of nccl-tests. consec 1: neighbouring ranks; 0: ranks that are strides apart.
* ``p2p_bandwidth_...``: ``pp_size_<p>`` in GB/s, each of p stages sending to the next.
* ``sp_time_...``: ``<allreduce|all2all>_size_<r>_<m>MB_time`` in milliseconds, for a message of m MiB.

Bandwidths do not say for which message they hold, so they become rates, not times. All groups of the cluster
ran at once, so where groups cross nodes they shared the NICs.

Left out: strided ranks inside one node (the same key as neighbouring ones).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from tangram.errors import InputError
from tangram.model.json_file import parse_json_object
from tangram.profiles.importers.harvest import Given, Harvest, file_name, json_number, read_text
from tangram.profiles.records import CollectiveTime, LinkRate, Op, Scope
from tangram.units import GB, MIB

STACK = "galvatron"
PATTERN = re.compile(
    r"(?P<what>allreduce_bandwidth|p2p_bandwidth|sp_time)_(?P<nodes>\d{1,5})nodes_(?P<gpus>\d{1,5})"
    r"gpus_per_node\.json"
)

_ALLREDUCE = re.compile(r"allreduce_size_(?P<ranks>\d{1,6})_consec_(?P<consec>[01])")
_P2P = re.compile(r"pp_size_(?P<ranks>\d{1,6})")
_SP = re.compile(r"(?P<op>allreduce|all2all)_size_(?P<ranks>\d{1,6})_(?P<mib>\d{1,7})MB_time")
_KEYS: Mapping[str, tuple[re.Pattern[str], str]] = {
    "allreduce_bandwidth": (_ALLREDUCE, "allreduce_size_<ranks>_consec_<0|1>"),
    "p2p_bandwidth": (_P2P, "pp_size_<stages>"),
    "sp_time": (_SP, "allreduce_size_<ranks>_<m>MB_time"),
}
_STRIDED = "strided ranks inside one node"


def read(path: Path, given: Given, harvest: Harvest) -> None:
    """Reads one file.

    Raises:
        InputError: It is not such a file, or nobody says which GPU ran.
    """
    where = file_name(path)
    match = PATTERN.fullmatch(path.name)
    if match is None:
        raise InputError(
            "the name is none of Galvatron's hardware profiles",
            where=where,
            hint="allreduce_bandwidth_<n>nodes_<g>gpus_per_node.json, p2p_bandwidth_..., sp_time_...",
        )
    world, per_node = int(match["nodes"]) * int(match["gpus"]), int(match["gpus"])
    if per_node < 1 or world < 2:
        raise InputError(f"{world} GPUs cannot talk to each other", where=where)
    gpu = given.gpu_name(None, where, harvest)
    pattern, form = _KEYS[match["what"]]
    for key, value in parse_json_object(read_text(path), where=where).items():
        place = f"{where}: {key[:80]}"
        fields = pattern.fullmatch(key)
        if fields is None:
            raise InputError("is an unknown key", where=place, hint=f"expected: {form}")
        ranks = int(fields["ranks"])
        if ranks < 2 or world % ranks:
            raise InputError(f"groups of {ranks} do not divide {world} GPUs", where=place)
        figure = json_number(value, place)
        if figure == 0:
            raise InputError("0 was not measured", where=place, hint="legal: above zero")
        _add(fields, figure, gpu, world, per_node, path.name, given, harvest)


def _add(
    fields: re.Match[str],
    figure: float,
    gpu: str,
    world: int,
    per_node: int,
    file: str,
    given: Given,
    harvest: Harvest,
) -> None:
    """Adds one figure: of neighbouring ranks, or of ranks that are ``world / ranks`` apart."""
    ranks, values = int(fields["ranks"]), fields.groupdict()
    neighbours = values.get("consec") == "1" or "mib" in values
    together = min(ranks, per_node) if neighbours else max(1, ranks * per_node // world)
    scope = Scope.INTRA_NODE if together == ranks else Scope.INTER_NODE
    stack, source = given.stack or STACK, f"Galvatron, {file}"
    if "mib" in values:
        op = Op.ALL_REDUCE if values["op"] == "allreduce" else Op.ALL_TO_ALL
        num_bytes = int(values["mib"]) * MIB
        harvest.records.append(
            CollectiveTime(
                gpu, stack, given.link, scope, op, ranks, together, num_bytes, figure / 1e3, source
            )
        )
        return
    if values.get("consec") == "0" and scope is Scope.INTRA_NODE:
        harvest.leave_out(_STRIDED)
        return
    op = Op.ALL_REDUCE if "consec" in values else Op.SEND
    harvest.records.append(
        LinkRate(
            gpu, stack, given.link, scope, op, ranks, together, figure * GB, f"{source}, all groups at once"
        )
    )
