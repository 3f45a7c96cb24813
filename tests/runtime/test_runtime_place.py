"""Which process is which rank, and what is refused because processes and hosts are not the plan's."""

from __future__ import annotations

import shlex

import pytest
from samples import FAST_SLOTS, ISLANDS, JOB, Choice, build, dense_plan, model

from tangram.errors import InputError
from tangram.plan.schema import PlanDocument
from tangram.runtime.place import host_shares, is_started_by_torchrun, this_place, torchrun_commands


def environ(local_rank: int, local_world: int, node: int, num_nodes: int, world: int) -> dict[str, str]:
    return {
        "RANK": "99",  # torchrun's own numbers do not count
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(local_world),
        "GROUP_RANK": str(node),
        "GROUP_WORLD_SIZE": str(num_nodes),
        "WORLD_SIZE": str(world),
        "MASTER_ADDR": "somewhere",
        "MASTER_PORT": "29500",
    }


def interleaved_plan() -> PlanDocument:
    """Stages 0 and 2 on the fast host, stage 1 between them on the slow one."""
    choices = [
        Choice((0, 2), ISLANDS[0], FAST_SLOTS[:2], 3, dp=2),
        Choice((2, 4), ISLANDS[1], (("slow-0", 0),), 2),
        Choice((4, 6), ISLANDS[0], FAST_SLOTS[2:3], 1),
    ]
    return build(model(), JOB, choices)


def test_ranks_of_a_host_need_not_follow_each_other() -> None:
    plan = interleaved_plan()
    shares = host_shares(plan)
    assert [(s.host, [slot.rank for slot in s.slots]) for s in shares] == [
        ("fast-0", [0, 1, 3]),
        ("slow-0", [2]),
    ]
    places = [this_place(plan, environ(i, 3, 0, 2, 4)) for i in range(3)]
    places.append(this_place(plan, environ(0, 1, 1, 2, 4)))
    assert [place.rank for place in places] == [0, 1, 3, 2]
    assert [place.slot.gpu_idx for place in places] == [0, 1, 2, 0]
    assert places[0].master == ("somewhere", 29500)


def test_one_machine_for_all_hosts() -> None:
    """On CPUs; ranks are then in the plan's order."""
    plan = interleaved_plan()
    places = [this_place(plan, environ(i, 4, 0, 1, 4), one_machine=True) for i in range(4)]
    assert [place.rank for place in places] == [0, 1, 2, 3]
    with pytest.raises(InputError, match=r"spans 2 hosts \(fast-0, slow-0\), and torchrun runs on 1"):
        this_place(plan, environ(0, 4, 0, 1, 4))


@pytest.mark.parametrize(
    ("given", "message", "hint"),
    [
        (environ(0, 3, 0, 2, 3), "the plan has 4 ranks; processes that were started: 3", "legal: 4"),
        (environ(0, 2, 0, 3, 4), r"spans 2 hosts \(fast-0, slow-0\), and torchrun runs on 3", "legal: 2"),
        (environ(0, 2, 0, 2, 4), "node 0 is fast-0, which has 3 ranks", "0 is fast-0, 1 is slow-0"),
        (environ(0, 3, 1, 2, 4), "node 1 is slow-0, which has 1 rank in the plan, and 3", "legal: 1"),
        ({"WORLD_SIZE": "4"}, "no LOCAL_RANK and no LOCAL_WORLD_SIZE", "torchrun"),
        (environ(0, 3, 0, 2, 4) | {"LOCAL_RANK": "one"}, "a number of the environment is none", None),
        (environ(0, 3, 0, 2, 4) | {"MASTER_PORT": "one"}, "a number of the environment is none", None),
    ],
)
def test_refusals(given: dict[str, str], message: str, hint: str | None) -> None:
    with pytest.raises(InputError, match=message) as caught:
        this_place(interleaved_plan(), given)
    assert caught.value.where is not None
    assert hint is None or hint in str(caught.value.hint)


def test_commands_for_every_host() -> None:
    shares = host_shares(interleaved_plan())
    first, second = torchrun_commands(shares, ["a plan.json", "--steps", "3"])
    words = shlex.split(first)
    assert words[:5] == ["torchrun", "--nnodes", "2", "--node-rank", "0"]
    assert words[5:11] == ["--nproc-per-node", "3", "--master-addr", "fast-0", "--master-port", "29500"]
    assert words[11:] == ["-m", "tangram.runtime", "a plan.json", "--steps", "3"]
    assert "--node-rank 1 --nproc-per-node 1" in second
    assert "--master-addr 10.0.0.7 --master-port 77" in torchrun_commands(shares, [], "10.0.0.7:77")[1]


def test_who_was_started() -> None:
    assert is_started_by_torchrun(environ(0, 1, 0, 1, 1))
    assert not is_started_by_torchrun({"PATH": "/bin"})


def test_a_whole_host_of_one_kind() -> None:
    (share, other) = host_shares(dense_plan())
    assert [slot.rank for slot in share.slots] == [0, 1, 2, 3]
    assert [slot.rank for slot in other.slots] == [4]
