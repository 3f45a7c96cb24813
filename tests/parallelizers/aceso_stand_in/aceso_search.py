"""Stands in for Aceso's search in tests: the same options and files, another and much smaller search.

Written from the description of the files, not from the program. For every number of stages it cuts the
operators into stages of about equal time, gives every stage the (tp, dp) that is fastest within the memory
limit, and saves the plan. ``STAND_IN`` in the environment makes it fail in one of several ways.
"""

import argparse
import csv
import json
import os
import subprocess
import sys
import time
from pathlib import Path

SIZES = ("input_size", "output_size", "weights", "activations", "fwd_reserved", "bwd_reserved")
COLUMNS = ["op_name", "forward-compute", "backward-compute", *SIZES]
DROPPED = ("enc-attention-score", "enc-MLP-gelu", "enc-MLP-GEMM-1")
COLLECTIVES = ("all_gather", "all_reduce", "reduce_scatter", "all_to_all")


def options():
    parser = argparse.ArgumentParser()
    for name in ("model-name", "model-size", "initial-point"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("profiled-time-path", "log-path", "config-save-path"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("num-layers", "global-batch-size", "num-nodes", "num-gpus-per-node", "max-tp"):
        parser.add_argument(f"--{name}", type=int, required=True)
    for name in ("memory-limit", "start-num-stages", "end-num-stages", "time-budget-total"):
        parser.add_argument(f"--{name}", type=int, required=True)
    for name in ("max-num-hops", "op-group-size"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--micro-batch-size", type=int, nargs="+", required=True)
    parser.add_argument("--do-not-use-flex-recompute", action="store_true")
    parser.add_argument("--add-action-tp-dp-exchange", action="store_true", required=True)
    return parser.parse_args()


def read_profile(given):
    """Rows by (tp, samples); everything that the real program opens has to be there."""
    folder, degrees = given.profiled_time_path, [d for d in (1, 2, 4, 8) if d <= given.max_tp]
    tables = {}
    for samples in given.micro_batch_size:
        for tp in degrees:
            with Path(f"{folder}gpt_{given.model_size}_mbs{samples}_tp{tp}_algo0.csv").open() as file:
                rows = list(csv.DictReader(file))
            assert (list(rows[0]), len(rows)) == (COLUMNS, 16)
            tables[tp, samples] = [{k: v if k == "op_name" else float(v) for k, v in r.items()} for r in rows]
    for ranks in degrees[1:]:
        for name in COLLECTIVES:
            with Path(f"{folder}prim_gpt_{given.model_size}_{name}_{ranks}gpus.csv").open() as file:
                assert all(float(row["time(ms)"]) > 0 for row in csv.DictReader(file))
    for scope in ("intra", "inter"):
        with Path(f"{folder}p2p_{scope}_node.csv").open() as file:
            sizes, rates = csv.reader(file)
        assert len(sizes) == len(rates) == 11
    return tables


def gpus_of(given, num_stages):
    """Doubles stages from the front, round after round; None where GPUs are left over."""
    total, gpus = given.num_nodes * given.num_gpus_per_node, [1] * num_stages
    grown = True
    while grown and sum(gpus) < total:
        grown = False
        for i, own in enumerate(gpus):
            if own < given.max_tp and sum(gpus) + own <= total:
                gpus[i], grown = 2 * own, True
    return gpus if sum(gpus) == total else None


def cut(times, gpus, layers):
    """Stage sizes of about equal time per GPU, cut in front of whole layers if asked to."""
    total, sizes, done, passed, share = sum(times), [], 0, 0.0, 0
    for i, own in enumerate(gpus[:-1]):
        share += own
        stop = done
        left = len(gpus) - 1 - i
        while stop < len(times) - 13 * left and (stop <= done or passed < total * share / sum(gpus)):
            passed += times[stop]
            stop += 1
        if layers:
            stop = max(done + 1, 1 + 13 * max(round((stop - 1) / 13), 1 + (done - 1) // 13))
        passed = sum(times[:stop])
        sizes.append(stop - done)
        done = stop
    return [*sizes, len(times) - done]


def stage_plan(given, tables, first, size, gpus, behind):
    """The fastest degrees that fit, with as much recomputation as needed: (us, tp, dp, marks)."""
    best = None
    micro_batch = given.micro_batch_size[0]
    for (tp, samples), rows in tables.items():
        dp = gpus // tp
        if tp * dp != gpus or dp < 1 or dp * samples != micro_batch:
            continue
        ops = [rows[0], *rows[1:14] * given.num_layers, *rows[14:]][first : first + size]
        time_us = sum(op["forward-compute"] + op["backward-compute"] for op in ops)
        states = 8 * sum(op["weights"] for op in ops) + max(op["bwd_reserved"] for op in ops)
        kept = ops[0]["input_size"] + sum(op["activations"] for op in ops)
        marks = [int(given.do_not_use_flex_recompute)] * size
        places = [(kind, i) for kind in DROPPED for i, op in enumerate(ops[:-1]) if op["op_name"] == kind]
        for _, i in places:
            if states + kept * (behind + 1) <= given.memory_limit:
                break
            marks[i] = marks[i + 1] = 1
            time_us += ops[i]["forward-compute"] + ops[i + 1]["forward-compute"]
            kept -= ops[i]["activations"]
        found = (time_us, tp, dp, marks)
        if states + kept * (behind + 1) <= given.memory_limit and (best is None or found < best):
            best = found
    return best


def save(given, sizes, stages):
    ops = range(len(stages))
    plan = {
        "model_name": "gpt",
        "model_size": given.model_size,
        "num_layers": given.num_layers,
        "global_batch_size": given.global_batch_size,
        "micro_batch_size": given.micro_batch_size[0],
        "num_stages": len(stages),
        "num_gpus": [tp * dp for _, tp, dp, _ in stages],
        "num_ops_in_each_stage": sizes,
        "model_parallel_size_of_each_op": [[stages[i][1]] * sizes[i] for i in ops],
        "data_parallel_size_of_each_op": [[stages[i][2]] * sizes[i] for i in ops],
        "recompute_ops": [marks for *_, marks in stages],
        "algo_of_each_op": [[0] * size for size in sizes],
    }
    mode = os.environ.get("STAND_IN", "")
    if mode == "other-micro-batch":
        plan["micro_batch_size"] *= 2
    if mode == "lost-operator":
        for key in ("model_parallel_size_of_each_op", "data_parallel_size_of_each_op", "recompute_ops"):
            plan[key][0].pop()
        sizes[0] -= 1
    if mode == "mixed":
        plan["model_parallel_size_of_each_op"][0][0] *= 2
    if mode == "no-degrees":
        del plan["data_parallel_size_of_each_op"]
    text = json.dumps(plan, indent=4)
    name = f"{given.model_name}_{given.model_size}_{len(stages)}stages_now.json"
    (Path(given.config_save_path) / name).write_text(text[:99] if mode == "garbage" else text)


def main():
    mode = os.environ.get("STAND_IN", "")
    if "STAND_IN_LOG" in os.environ:
        with Path(os.environ["STAND_IN_LOG"]).open("a") as log:
            print(json.dumps(sys.argv[1:]), file=log)
    if mode == "crash":
        raise IndexError("list index out of range")
    if mode == "hang":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        Path(os.environ["STAND_IN_PID"]).write_text(str(child.pid))
        time.sleep(600)
    given = options()
    for folder in (Path(given.log_path, "trends"), Path(given.config_save_path, "csv")):
        assert folder.is_dir()
    tables = read_profile(given)
    times = [row["forward-compute"] + row["backward-compute"] for row in tables[1, given.micro_batch_size[0]]]
    times = [times[0], *times[1:14] * given.num_layers, *times[14:]]
    for num_stages in range(given.start_num_stages, given.end_num_stages + 1):
        gpus = gpus_of(given, num_stages)
        if gpus is None or mode == "nothing":
            continue
        sizes = cut(times, gpus, given.op_group_size > 1)
        stages, first = [], 0
        for i, (size, own) in enumerate(zip(sizes, gpus, strict=True)):
            stages.append(stage_plan(given, tables, first, size, own, num_stages - 1 - i))
            first += size
        if all(stages):
            save(given, sizes, stages)


if __name__ == "__main__":
    main()
