"""The nodes of a run: equal ones, or unequal ones with a place for every replica of every stage."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tangram.cluster.catalog import gpu as find_gpu
from tangram.cluster.defaults import NETWORK_BANDWIDTH_BYTES_PER_S, default_intra
from tangram.cluster.spec import GpuSpec
from tangram.errors import InputError
from tangram.units import GB
from tangram.validation.cells import Cells, RowError
from tangram.validation.parts import extra_part
from tangram.validation.run import Basis, Degrees, Hardware, Host
from tangram.validation.settings import HostSettings, Settings

MIXED = "mixed"
"""A gpu cell that starts so lists different parts: ``mixed: 12xV100-16GB + 4xT4``."""

_BYTES_PER_S_PER_GBIT = 125e6
_COUNTED = re.compile(r"([0-9]{1,7})\s*x\s*([^\s+,]+)")
_GROUP_COUNT = re.compile(r"x\d+$")


def row_hardware(
    cells: Cells, settings: Settings, own: Settings, degrees: Degrees, hosts: Mapping[str, HostSettings]
) -> Hardware:
    """Returns the hardware of a row.

    Args:
        cells: Column ``gpu``; of a mixed row also ``placement``, which names the part of every
            tensor-parallel group, with ``|`` between stages and ``+`` or ``,`` between replicas. Without it
            the parts hold ranks in the order of the gpu cell: stage by stage, replica by replica.
        settings: All settings of the row.
        own: Those of them that the row itself states.
        degrees: The row's degrees.
        hosts: What is known of the source's nodes, by the name that the row has for their part.

    Raises:
        RowError: A part is unknown, or the placement does not fit the degrees.
    """
    name = cells.needed_text("gpu")
    if not name.lower().startswith(MIXED):
        return _equal_nodes(_part(name, cells.name("gpu")), settings, own)
    grid = _placement(cells, degrees) if cells.text("placement") else _in_order(cells, name, degrees)
    kinds = {part: _host(part, settings, hosts) for row in grid for part in row}
    known = all(hosts.get(part) is not None for part in kinds)
    basis = Basis.SOURCE if known else Basis.CATALOGUE
    return Hardware(tuple(tuple(kinds[part] for part in row) for row in grid), basis, basis)


def _part(name: str, column: str) -> GpuSpec:
    found = extra_part(name)
    if found is not None:
        return found
    try:
        return find_gpu(name)
    except InputError as error:
        raise RowError("unknown-gpu", str(error), column=column) from None


def _equal_nodes(part: GpuSpec, settings: Settings, own: Settings) -> Hardware:
    return Hardware(
        hosts=((_node(part, settings, settings),),),
        link_basis=_basis(settings.link_gb_per_s, own.link_gb_per_s),
        nic_basis=_basis(settings.nic_gbit_per_s, own.nic_gbit_per_s),
    )


def _host(name: str, settings: Settings, hosts: Mapping[str, HostSettings]) -> Host:
    known = hosts.get(name, HostSettings())
    return _node(_part(known.part or name, "gpu"), known, settings)


def _node(part: GpuSpec, known: HostSettings, row: Settings) -> Host:
    """A node of a part, by what is known of it, then by what is known of the row, then by the catalogue."""
    link_gb = known.link_gb_per_s or row.link_gb_per_s
    nic_gbit = known.nic_gbit_per_s or row.nic_gbit_per_s
    gpus_per_node = known.gpus_per_node or row.gpus_per_node or part.gpus_per_node
    owner = known if known.nic_gbit_per_s else row
    return Host(
        gpu=part,
        gpus_per_node=gpus_per_node,
        link_domain=known.link_domain or gpus_per_node,
        link_bytes_per_s=link_gb * GB if link_gb else default_intra(part).bandwidth_bytes_per_s,
        nic_bytes_per_s=nic_gbit * _BYTES_PER_S_PER_GBIT if nic_gbit else NETWORK_BANDWIDTH_BYTES_PER_S,
        nic_is_measured=bool(nic_gbit and owner.nic_measured),
    )


def _placement(cells: Cells, degrees: Degrees) -> list[list[str]]:
    text = cells.text("placement")
    stages = [re.split(r"\s*[+,]\s*", stage.strip()) for stage in text.split("|")]
    grid = [[_GROUP_COUNT.sub("", part.strip()) for part in stage] for stage in stages]
    if len(grid) != degrees.pp or any(len(row) != degrees.dp for row in grid):
        message = f"{text!r} does not place {degrees.pp} stages of {degrees.dp} replicas"
        raise RowError("impossible", message, column=cells.name("placement"))
    return grid


def _in_order(cells: Cells, name: str, degrees: Degrees) -> list[list[str]]:
    listed = [(int(count), part) for count, part in _COUNTED.findall(name)]
    total = sum(count for count, _ in listed)
    if total != degrees.num_gpus:
        message = f"{name!r} lists {total} GPUs, the degrees use {degrees.num_gpus}"
        raise RowError("impossible", message, column=cells.name("gpu"))
    parts = [part for count, part in listed for _ in range(count)]
    width = degrees.tp * degrees.cp
    groups = [parts[i : i + width] for i in range(0, len(parts), width)]
    if any(len(set(group)) > 1 for group in groups):
        message = f"a tensor-parallel group of {width} would hold different parts of {name!r}"
        raise RowError("impossible", message, column=cells.name("gpu"))
    return [[group[0] for group in groups[s * degrees.dp :][: degrees.dp]] for s in range(degrees.pp)]


def _basis(used: float | None, own: float | None) -> Basis:
    if own is not None:
        return Basis.ROW
    return Basis.CATALOGUE if used is None else Basis.SOURCE
