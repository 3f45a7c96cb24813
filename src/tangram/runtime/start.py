"""Starts a run from one command: all ranks here, or the commands for several hosts."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tangram.errors import InputError
from tangram.plan.schema import PlanDocument
from tangram.profiler.torch_extra import require_torch
from tangram.run_options import RunOptions
from tangram.runtime.devices import assigned, check_cpu_precision, found_devices
from tangram.runtime.launch import Launcher
from tangram.runtime.place import (
    HostShare,
    host_shares,
    is_started_by_torchrun,
    joined_shares,
    torchrun_commands,
)
from tangram.runtime.refusals import check_options, check_runnable
from tangram.runtime.worker import open_feed, steps_of, work
from tangram.units import count_of


def commands(plan_file: Path, plan: PlanDocument, options: RunOptions, master: str | None) -> list[str]:
    """Returns the torchrun command for every host of the plan, in the order of its hosts.

    Raises:
        InputError: The plan breaks a rule, or is not executable.
    """
    check_runnable(plan, str(plan_file))
    return torchrun_commands(host_shares(plan), [str(plan_file), *options.arguments()], master)


def start(plan_file: Path, plan: PlanDocument, options: RunOptions) -> int:
    """Checks everything that can be checked, starts all ranks on this machine, and waits for their end.

    Returns:
        The exit code.

    Raises:
        InputError: torch is missing, or plan, machine, data and options do not go together.
    """
    require_torch("tangram run")
    if is_started_by_torchrun(os.environ):  # torchrun --no-python tangram run ...
        return work(str(plan_file), plan, options)
    check_runnable(plan, str(plan_file))
    check_options(plan, options)
    shares = host_shares(plan)
    if options.cpu:
        share = joined_shares(shares)
        check_cpu_precision(plan.job.precision)
        _warn_of_cpus(plan)
    else:
        share = _only(shares, plan_file, options)
        devices = assigned(share.slots, found_devices(), plan.job.precision, any_gpu=options.any_gpu)
        if options.any_gpu:
            taken = ", ".join(str(device) for device in devices)
            _note(f"--any-gpu: predictions are of other GPUs than these: {taken}")
    _check_files(options)
    _tell_data(plan, options)
    return _launch(plan_file, plan, options, share)


def _launch(plan_file: Path, plan: PlanDocument, options: RunOptions, share: HostShare) -> int:
    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    stage_of = {slot.rank: stage.index for stage in plan.stages for slot in stage.ranks}
    slot_of = {slot.rank: slot for slot in share.slots}

    def words(rank: int) -> str:
        slot = slot_of[rank]
        where = "a CPU" if options.cpu else f"GPU {slot.gpu_idx}"
        return f"rank {rank} (stage {stage_of[rank]}, {slot.node}, {where})"

    launcher = Launcher(
        share=share,
        command=["-m", "tangram.runtime", str(plan_file), *options.arguments()],
        environ={"GLOO_SOCKET_IFNAME": _loopback()} if options.cpu else {},
        port=store.port,
        words=words,
    )
    return launcher.run()


def _loopback() -> str:
    return "lo0" if sys.platform == "darwin" else "lo"


def _only(shares: tuple[HostShare, ...], plan_file: Path, options: RunOptions) -> HostShare:
    if len(shares) > 1:
        names = ", ".join(share.host for share in shares)
        raise InputError(
            f"the plan spans {count_of(len(shares), 'host')} ({names}), and this command runs on one",
            where=str(plan_file),
            hint=f"tangram run {plan_file} --print shows a torchrun command for each of them; --cpu runs all "
            "of it here, on CPUs",
        )
    return shares[0]


def _check_files(options: RunOptions) -> None:
    for flag, path in options.written_files().items():
        folder = Path(path).parent
        if Path(path).is_dir():
            raise InputError("this is a folder, not a file", where=f"{flag} {path}")
        if flag != "--save-profile" and not folder.is_dir():
            raise InputError(
                f"there is no folder {str(folder)!r}", where=f"{flag} {path}", hint="create it first"
            )


def _warn_of_cpus(plan: PlanDocument) -> None:
    parts = sorted({slot.gpu for stage in plan.stages for slot in stage.ranks})
    _note(
        f"ON CPUS: {plan.num_gpus} CPU ranks of this machine stand for {', '.join(parts)}; their times say "
        "nothing of these GPUs"
    )


def _tell_data(plan: PlanDocument, options: RunOptions) -> None:
    feed = open_feed(plan, options)
    num_steps = steps_of(feed, options)
    samples = feed.samples
    _note(
        f"{samples.num_samples} samples of {samples.seq_len} tokens, {samples.tail_tokens} tokens left over; "
        f"{num_steps} steps of {feed.global_batch} samples are {feed.epoch(num_steps - 1):.3g} epochs"
    )


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
