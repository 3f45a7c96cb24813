from __future__ import annotations

from pathlib import Path

import pytest
from profile_files import collectives, read

from tangram.errors import InputError
from tangram.profiles.records import Op, Scope

# Shaped like the output of nccl-tests 2.17 on two nodes; shortened to two GPUs per node.
HEAD = """\
# nccl-tests version 2.17.9 nccl-headers=22903 nccl-library=22903
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 1 minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 1 iters: 20 agg iters: 1
#
# Using devices
#  Rank  0 Group  0 Pid   1584 on node-a device  0 [0000:0f:00] NVIDIA A100-SXM4-40GB
#  Rank  1 Group  0 Pid   1585 on node-a device  1 [0000:15:00] NVIDIA A100-SXM4-40GB
#  Rank  2 Group  0 Pid   1088 on node-b device  0 [0000:0f:00] NVIDIA A100-SXM4-40GB
#  Rank  3 Group  0 Pid   1089 on node-b device  1 [0000:15:00] NVIDIA A100-SXM4-40GB
NCCL version 2.29.3+cuda13.1
#
#                                                              out-of-place                       in-place
#     size        count     type  redop   root    time   algbw   busbw #wrong    time   algbw   busbw #wrong
#      (B)   (elements)                             (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
"""
ROWS = """\
         0            0    float    sum    -1     0.20    0.00    0.00      0     0.20    0.00    0.00      0
         8            2    float    sum    -1    30.00    0.00    0.00      0    25.00    0.00    0.00      0
 134217728     33554432    float    sum    -1   1916.4   70.04  105.06      0   1907.8   70.35  105.53      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 19.7866
#
# Collective test concluded: all_reduce_perf
"""


def output(tmp_path: Path, text: str, name: str = "run.log") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def renamed(text: str, op: str, redop: str = "none") -> str:
    return text.replace("all_reduce_perf", op).replace("  sum", redop.rjust(5))


def test_a_run_on_two_nodes(tmp_path: Path) -> None:
    found = read("nccl-tests", output(tmp_path, HEAD + ROWS), link="ib-400g")
    assert [(r.num_bytes, r.seconds) for r in collectives(found)] == [
        (8, 25e-6),
        (134217728, pytest.approx(1907.8e-6)),
    ]
    record = collectives(found)[0]
    assert (record.gpu, record.stack, record.link, record.op) == (
        "A100-40GB-SXM",
        "nccl",
        "ib-400g",
        Op.ALL_REDUCE,
    )
    assert (record.scope, record.ranks, record.ranks_per_node) == (Scope.INTER_NODE, 4, 2)
    assert dict(found.left_out) == {"sizes of 0 bytes": 1}


def test_labels_of_mpirun_are_dropped(tmp_path: Path) -> None:
    plain = read("nccl-tests", output(tmp_path, HEAD + ROWS))
    labelled = "".join(f"[1,0]<stdout>:{line}\n" for line in (HEAD + ROWS).splitlines())
    assert read("nccl-tests", output(tmp_path, "some warning\n" + labelled)) == plain


def test_other_collectives_are_timed_out_of_place(tmp_path: Path) -> None:
    text = renamed(HEAD + ROWS, "all_gather_perf").replace("105.06", "52.53").replace("105.53", "52.76")
    found = collectives(read("nccl-tests", output(tmp_path, text)))
    assert [(r.op, r.seconds) for r in found] == [
        (Op.ALL_GATHER, 30e-6),
        (Op.ALL_GATHER, pytest.approx(1916.4e-6)),
    ]


def test_several_runs_in_one_file(tmp_path: Path) -> None:
    one_node = HEAD.replace("node-b", "node-a").replace("all_reduce_perf", "sendrecv_perf")
    found = collectives(
        read("nccl-tests", output(tmp_path, HEAD + ROWS + one_node + ROWS.replace("  sum", " none")))
    )
    assert [(r.op, r.scope, r.ranks_per_node) for r in found] == [
        (Op.ALL_REDUCE, Scope.INTER_NODE, 2),
        (Op.ALL_REDUCE, Scope.INTER_NODE, 2),
        (Op.SEND, Scope.INTRA_NODE, 4),
        (Op.SEND, Scope.INTRA_NODE, 4),
    ]


def without_name(text: str) -> str:
    return "".join(line + "\n" for line in text.splitlines() if "Collective test" not in line)


def test_old_versions_do_not_name_the_collective(tmp_path: Path) -> None:
    reduce = without_name(HEAD + ROWS)
    assert {r.op for r in collectives(read("nccl-tests", output(tmp_path, reduce)))} == {Op.ALL_REDUCE}
    scatter = reduce.replace("105.06", "52.53")
    assert {r.op for r in collectives(read("nccl-tests", output(tmp_path, scatter)))} == {Op.REDUCE_SCATTER}
    gather = renamed(scatter, "")
    with pytest.raises(InputError, match=r"it fits all_gather or all_to_all .*give --op"):
        read("nccl-tests", output(tmp_path, gather))
    found = read("nccl-tests", output(tmp_path, gather), op=Op.ALL_TO_ALL)
    assert {r.op for r in collectives(found)} == {Op.ALL_TO_ALL}


def test_wrong_results_are_left_out(tmp_path: Path) -> None:
    text = HEAD + ROWS.replace("105.53      0", "105.53      3").replace(
        "25.00    0.00    0.00      0", "25.00    0.00    0.00    N/A"
    )
    found = read("nccl-tests", output(tmp_path, text))
    assert [r.num_bytes for r in collectives(found)] == [8]
    assert dict(found.left_out) == {"rows whose result was wrong": 1, "sizes of 0 bytes": 1}


@pytest.mark.parametrize(
    ("old", "new", "wrong"),
    [
        (ROWS, "", "holds no results"),
        ("1907.8   70.35", "1.9078   70.35", r":17: 134217728 bytes in 1\.9078 us are 70352"),
        ("1907.8", "fast", r":17: time: 'fast' is not a number"),
        ("    -1   1916.4   70.04  105.06      0", "", r":17: has 8 cells"),
        ("Rank  3", "Rank  5", "4 ranks are listed .* none left out"),
        ("Rank  3", "Rank  2", "rank 2 occurs twice .*without MPI"),
        ("1089 on node-b", "1089 on node-c", "different numbers of ranks: 1, 2"),
        (
            "[0000:15:00] NVIDIA A100-SXM4-40GB\nNCCL",
            "[0000:15:00] Tesla T4\nNCCL",
            "different GPUs: NVIDIA A100-SXM4-40GB, Tesla T4",
        ),
        ("all_reduce_perf", "broadcast_perf", "broadcast_perf is not used in training"),
        ("NVIDIA A100-SXM4-40GB", "NVIDIA GH200 120GB", "'NVIDIA GH200 120GB' names no GPU"),
    ],
)
def test_broken_output_names_the_line(tmp_path: Path, old: str, new: str, wrong: str) -> None:
    text = (HEAD + ROWS).replace(old, new)
    assert text != HEAD + ROWS
    with pytest.raises(InputError, match=wrong):
        read("nccl-tests", output(tmp_path, text))


def test_a_given_gpu_wins(tmp_path: Path) -> None:
    text = (HEAD + ROWS).replace("NVIDIA A100-SXM4-40GB", "NVIDIA GH200 120GB")
    assert {r.gpu for r in read("nccl-tests", output(tmp_path, text), gpu="GH200-96GB").records} == {
        "GH200-96GB"
    }
