"""Where a process stands, and real runs of two processes that talk through gloo."""

from __future__ import annotations

import inspect
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from torch_or_skip import torch

from tangram.errors import InputError
from tangram.profiler import launch
from tangram.profiler.device import Device
from tangram.profiler.launch import Process, this_process
from tangram.profiles.records import CollectiveTime, Op, Scope
from tangram.profiles.store import Profiles, load

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="PyTorch has no distributed")

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "GROUP_RANK": "1",
    "MASTER_ADDR": "a",
    "MASTER_PORT": "1",
}
COMMAND = "from tangram.cli.main import main; import sys; sys.exit(main())"


def test_where_a_process_stands() -> None:
    assert this_process({}) == Process()
    assert this_process({"WORLD_SIZE": "1", "RANK": "0"}) == Process()
    assert this_process(TORCHRUN) == Process(rank=5, world_size=8, local_rank=1, node=1)
    assert not this_process(TORCHRUN).writes


def test_half_an_environment() -> None:
    with pytest.raises(InputError, match="no GROUP_RANK and no MASTER_PORT") as caught:
        this_process({k: v for k, v in TORCHRUN.items() if k not in ("GROUP_RANK", "MASTER_PORT")})
    assert caught.value.where == "torchrun"
    with pytest.raises(InputError, match="is no number"):
        this_process(TORCHRUN | {"LOCAL_RANK": "one"})


def test_nobody_holds_on_to_a_group() -> None:
    """A module that is imported while there is one would: its threads then live until Python's end."""
    function = sys.modules["torch.distributed.nn.functional"].broadcast
    assert inspect.signature(function).parameters["group"].default is None


def model_in(folder: Path) -> Path:
    """Writes a small model."""
    path = folder / "config.json"
    config = {
        "model_type": "gpt2",
        "n_layer": 1,
        "n_embd": 16,
        "n_head": 2,
        "n_positions": 16,
        "vocab_size": 99,
    }
    path.write_text(json.dumps(config))
    return path


@pytest.mark.parametrize(
    ("error", "ours"),
    [
        (RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:4"), False),
        (torch.distributed.DistNetworkError("The client socket has failed to connect"), False),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), True),
    ],
)
def test_a_lost_process_is_no_bug(monkeypatch: pytest.MonkeyPatch, error: Exception, ours: bool) -> None:
    monkeypatch.setattr(launch.dist, "init_process_group", lambda *args, **options: None)
    monkeypatch.setattr(launch.dist, "destroy_process_group", lambda: None)
    device = Device(torch.device("cpu"), "CPU", "a CPU")
    expected = RuntimeError if ours else InputError
    with pytest.raises(expected) as caught, launch.joined(Process(world_size=2), device):
        raise error
    assert type(caught.value) is expected


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_two(store: Path, nodes: tuple[int, int], gpus: tuple[str, str], *options: str) -> list[str]:
    """Runs two processes as torchrun would start them; returns what each printed."""
    port = str(free_port())
    running = []
    for rank in (0, 1):
        environ = os.environ | {
            "RANK": str(rank),
            "WORLD_SIZE": "2",
            "LOCAL_RANK": "0",
            "GROUP_RANK": str(nodes[rank]),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            "OMP_NUM_THREADS": "1",
        }
        arguments = ["profile", str(model_in(store.parent)), "--gpu", gpus[rank], "--seq-len", "16"]
        arguments += ["--store", str(store), "--repeats", "2", "--warmup", "0", *options]
        running.append(
            subprocess.Popen(
                [sys.executable, "-W", "error", "-c", COMMAND, *arguments],
                env=environ,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    printed = []
    for process in running:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        printed.append(out)
    return printed


def check_collectives(found: Profiles, scope: Scope, per_node: int) -> None:
    assert {(r.op, r.num_bytes) for r in found.collectives} == {(op, n) for op in Op for n in (4096, 65536)}
    for record in found.collectives:
        assert isinstance(record, CollectiveTime)
        assert (record.scope, record.ranks, record.ranks_per_node) == (scope, 2, per_node)
        assert (record.gpu, record.stack) == ("CPU", "gloo")
        assert record.link == ("shm" if scope is Scope.INTRA_NODE else "lo")
        assert 0 < record.seconds < 10


LINKS = ("--collectives", "--message-bytes", "4KiB,64KiB", "--intra-link", "shm", "--inter-link", "lo")


def test_across_nodes(tmp_path: Path) -> None:
    store = tmp_path / "store.sqlite"
    first, second = run_two(store, (0, 1), ("CPU", "CPU"), "--layers", "none", *LINKS)
    assert "all_to_all" in first
    assert second == ""
    found = load(store)
    assert found.layers == ()
    check_collectives(found, Scope.INTER_NODE, 1)


@pytest.mark.slow
def test_one_process_of_each_kind_times_layers(tmp_path: Path) -> None:
    """Both get into the store, and no collective between them."""
    store = tmp_path / "store.sqlite"
    printed, _ = run_two(store, (0, 1), ("CPU", "other CPU"), "--layers", "embedding")
    assert "other CPU" in printed
    assert {record.gpu for record in load(store).layers} == {"CPU", "other CPU"}


@pytest.mark.slow
def test_torchrun_on_one_node(tmp_path: Path) -> None:
    store = tmp_path / "store.sqlite"
    script = tmp_path / "command.py"
    script.write_text(COMMAND)
    arguments = ["profile", str(model_in(tmp_path)), "--gpu", "CPU", "--seq-len", "16"]
    arguments += ["--layers", "embedding", "--repeats", "2", "--store", str(store), *LINKS]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*launcher, str(script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Collectives") == 1  # rank 0 prints, and nobody else
    found = load(store)
    check_collectives(found, Scope.INTRA_NODE, 2)
    assert len(found.layers) == 1
