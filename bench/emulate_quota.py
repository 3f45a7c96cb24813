"""Slower processes by less processor time: quotas of the kernel's CPU controller (cgroup v1, as root).

A rank gets a share of one core, refilled every 20 ms; shorter periods cost much by themselves, and passes of
a few periods and less are quantised. Links are emulated as ever (emulate_ranks.py), not by namespaces and tc.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from emulate_world import World
from tangram.plan.schema import PlanDocument

ROOT = Path("/sys/fs/cgroup/cpu")
PERIOD_US = 20_000
MOST_OF_ALL_CORES = 0.8
"""What ranks may ask for together, so that they do not wait for each other."""
MOST_SHARES = 262_144
"""Weight of a group against others; a process by itself has 1024."""
SHARES = {"FAST": 0.30, "MIDDLE": 0.22, "SLOW": 0.16}
"""Of one core, by kind of GPU."""


def why_not() -> str | None:
    """Why quotas are not possible here, or None where they are."""
    if not (ROOT / "cpu.cfs_quota_us").exists():
        return f"there is no CPU controller of cgroup v1 in {ROOT}"
    if os.geteuid() != 0 or not os.access(ROOT, os.W_OK):
        return f"no permission to make groups in {ROOT}"
    return None


def heavier(world: World) -> World:
    """The same cluster for passes that take many periods of real work; links carry larger samples as fast."""
    heavy = replace(world, hidden=384, seq_len=192, num_layers=6, global_batch=8)
    factor = heavy.hidden * heavy.seq_len / (world.hidden * world.seq_len)
    far = tuple((name, factor * bytes_per_s, latency_s) for name, bytes_per_s, latency_s in world.far)
    return replace(heavy, bytes_per_s=factor * world.bytes_per_s, far=far)


class Quotas:
    """A group of the CPU controller for every process; a context manager."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._folder = ROOT / f"tangram-emulate-{os.getpid()}"
        self._pids = pids

    def __enter__(self) -> Quotas:
        self._folder.mkdir()
        # What the quotas allow is to be had, whatever else runs: other work gets the rest.
        (self._folder / "cpu.shares").write_text(str(MOST_SHARES))
        for rank, pid in enumerate(self._pids):
            group = self._folder / str(rank)
            group.mkdir()
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (group / "cgroup.procs").write_text(str(pid))
        return self

    def __exit__(self, *error: object) -> None:
        for rank, pid in enumerate(self._pids):
            (ROOT / "cgroup.procs").write_text(str(pid))
            (self._folder / str(rank)).rmdir()
        self._folder.rmdir()

    def set(self, plan: PlanDocument) -> None:
        """Gives every rank of a plan its share."""
        wanted = [SHARES[slot.gpu] for stage in plan.stages for slot in stage.ranks]
        room = MOST_OF_ALL_CORES * (os.cpu_count() or 1)
        if sum(wanted) > room:
            raise RuntimeError(f"{sum(wanted):.2f} cores are wanted, and there are {room:.2f}")
        for rank, share in enumerate(wanted):
            quota = self._folder / str(rank) / "cpu.cfs_quota_us"
            quota.write_text(str(round(share * PERIOD_US)))
