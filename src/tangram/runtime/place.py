"""Which process is which rank of the plan: hosts in the plan's order, and on each its ranks in their order.

Processes are counted by host, ranks by stage, and a host may hold several stages that do not follow each
other. So a process takes its rank from the plan, by the number of its node and its number there, and not the
number that torchrun gives it. No torch.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tangram.errors import InputError
from tangram.plan.schema import PlanDocument, RankSlot
from tangram.units import count_of

DEFAULT_PORT = 29500
_NAMES = ("WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")


@dataclass(frozen=True, slots=True)
class HostShare:
    """What one host runs.

    Attributes:
        host: Its name in the plan; of several, where all run on one machine.
        slots: Its ranks, ascending.
    """

    host: str
    slots: tuple[RankSlot, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a process stands.

    Attributes:
        rank: In the plan, and in the process group.
        local_rank: Among the processes of its host.
        host_number: Of its host, in the plan's order.
        share: What its host runs.
        master: Address and port of the store.
        agent_store: Whether torchrun holds the store; else rank 0 or the launcher does.
        attempt: How often torchrun has started all of this anew.
    """

    rank: int
    local_rank: int
    host_number: int
    share: HostShare
    master: tuple[str, int]
    agent_store: bool
    attempt: int

    @property
    def slot(self) -> RankSlot:
        """The rank and its GPU."""
        return self.share.slots[self.local_rank]


def host_shares(plan: PlanDocument) -> tuple[HostShare, ...]:
    """Returns what every host of the plan runs, in the order of their first ranks."""
    host_of = {node.name: node.host for node in plan.cluster.nodes}
    found: dict[str, list[RankSlot]] = {}
    for stage in plan.stages:
        for slot in stage.ranks:
            found.setdefault(host_of[slot.node], []).append(slot)
    return tuple(HostShare(host, tuple(slots)) for host, slots in found.items())


def joined_shares(shares: Sequence[HostShare]) -> HostShare:
    """Returns all of it as the share of one machine."""
    slots = sorted((slot for share in shares for slot in share.slots), key=lambda slot: slot.rank)
    return HostShare(", ".join(share.host for share in shares), tuple(slots))


def is_started_by_torchrun(environ: Mapping[str, str]) -> bool:
    """Returns whether this process is one of a run; else it is the one that starts it."""
    return "RANK" in environ and "WORLD_SIZE" in environ


def this_place(plan: PlanDocument, environ: Mapping[str, str], *, one_machine: bool = False) -> Place:
    """Returns the place of this process.

    Args:
        plan: The plan.
        environ: As torchrun or the launcher set it.
        one_machine: Whether one machine may stand for all hosts of the plan.

    Raises:
        InputError: Processes and hosts are not those of the plan.
    """
    world, local_rank, local_world, node, num_nodes = _numbers(environ)
    shares = host_shares(plan)
    if world != plan.num_gpus:
        raise InputError(
            f"the plan has {count_of(plan.num_gpus, 'rank')}; processes that were started: {world}",
            where="torchrun",
            hint=f"legal: {plan.num_gpus}; tangram run PLAN --print shows the command for every host",
        )
    if num_nodes == 1 and one_machine:
        shares = (joined_shares(shares),)
    if num_nodes != len(shares):
        names = ", ".join(share.host for share in shares)
        raise InputError(
            f"the plan spans {count_of(len(shares), 'host')} ({names}), and torchrun runs on {num_nodes}",
            where="torchrun --nnodes",
            hint=f"legal: {len(shares)}, one torchrun per host; tangram run PLAN --print shows the commands",
        )
    share = shares[node]
    if local_world != len(share.slots):
        raise InputError(
            f"node {node} is {share.host}, which has {count_of(len(share.slots), 'rank')} in the plan, and "
            f"{local_world} processes were started there",
            where="torchrun --nproc-per-node",
            hint=f"legal: {len(share.slots)}; nodes count as the plan's hosts do: "
            + ", ".join(f"{number} is {one.host}" for number, one in enumerate(shares)),
        )
    return Place(
        rank=share.slots[local_rank].rank,
        local_rank=local_rank,
        host_number=node,
        share=share,
        master=(environ["MASTER_ADDR"], int(environ["MASTER_PORT"])),
        agent_store=environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        attempt=int(environ.get("TORCHELASTIC_RESTART_COUNT", "0")),
    )


def torchrun_commands(
    shares: Sequence[HostShare], arguments: Sequence[str], master: str | None = None
) -> list[str]:
    """Returns the command for every host, in the order of the hosts.

    Args:
        shares: What every host runs.
        arguments: For ``tangram.runtime``.
        master: Address, or address and port with a colon between them, of the first host; by default its name
            in the plan.
    """
    address, _, port = (master or shares[0].host).partition(":")
    commands = []
    for number, share in enumerate(shares):
        words = ["torchrun", "--nnodes", str(len(shares)), "--node-rank", str(number)]
        words += ["--nproc-per-node", str(len(share.slots))]
        words += ["--master-addr", address, "--master-port", port or str(DEFAULT_PORT)]
        commands.append(shlex.join([*words, "-m", "tangram.runtime", *arguments]))
    return commands


def _numbers(environ: Mapping[str, str]) -> list[int]:
    missing = [name for name in (*_NAMES, "MASTER_ADDR", "MASTER_PORT") if name not in environ]
    if missing:
        raise InputError(
            f"the environment has no {' and no '.join(missing)}",
            where="torchrun",
            hint="start it with torchrun, or with tangram run",
        )
    try:
        int(environ["MASTER_PORT"])
        return [int(environ[name]) for name in _NAMES]
    except ValueError as error:
        raise InputError(f"a number of the environment is none: {error}", where="torchrun") from None
