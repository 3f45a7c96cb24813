"""The nodes of a run whose GPUs are all equal."""

from __future__ import annotations

from tangram.cluster.catalog import gpu as find_gpu
from tangram.cluster.defaults import NETWORK_BANDWIDTH_BYTES_PER_S, default_intra
from tangram.cluster.spec import GpuSpec
from tangram.errors import InputError
from tangram.units import GB
from tangram.validation.cells import RowError
from tangram.validation.run import Basis, Hardware, Host
from tangram.validation.settings import Settings

_BYTES_PER_S_PER_GBIT = 125e6


def row_gpu(name: str, column: str = "gpu") -> GpuSpec:
    """Returns the part of a row.

    Raises:
        RowError: The name is unknown, or leaves the variant open.
    """
    try:
        return find_gpu(name)
    except InputError as error:
        raise RowError("unknown-gpu", str(error), column=column) from None


def equal_nodes(part: GpuSpec, settings: Settings, own: Settings) -> Hardware:
    """Returns the hardware of a run on equal nodes.

    Args:
        part: The part.
        settings: All settings of the row.
        own: Those of them that the row itself states.
    """
    link, nic = default_intra(part).bandwidth_bytes_per_s, NETWORK_BANDWIDTH_BYTES_PER_S
    if settings.link_gb_per_s is not None:
        link = settings.link_gb_per_s * GB
    if settings.nic_gbit_per_s is not None:
        nic = settings.nic_gbit_per_s * _BYTES_PER_S_PER_GBIT
    gpus_per_node = settings.gpus_per_node or part.gpus_per_node
    host = Host(part, gpus_per_node, settings.link_domain or gpus_per_node, link, nic)
    return Hardware(
        hosts=((host,),),
        link_basis=_basis(settings.link_gb_per_s, own.link_gb_per_s),
        nic_basis=_basis(settings.nic_gbit_per_s, own.nic_gbit_per_s),
    )


def _basis(used: float | None, own: float | None) -> Basis:
    if own is not None:
        return Basis.ROW
    return Basis.CATALOGUE if used is None else Basis.SOURCE
