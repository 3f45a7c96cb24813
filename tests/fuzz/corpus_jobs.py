"""Malformed job files, and wrong options: everything else that is said on the command line."""

from __future__ import annotations

from malformed import Malformed

CLUSTER = "1x2xT4+1x2xA10"
JOB = "model: gpt3-1.3b\nglobal_batch: 8\nseq_len: 512\n"


def file(name: str, content: str | bytes, *says: str) -> Malformed:
    return Malformed(f"job: {name}", ("plan", CLUSTER, "--job", "job.yaml"), says, {"job.yaml": content})


def more(name: str, line: str, *says: str) -> Malformed:
    """A job with one more line, the fourth."""
    return file(name, f"{JOB}{line}\n", *says)


def options(line: str, *says: str, command: str = f"plan gpt3-1.3b {CLUSTER}", code: int = 2) -> Malformed:
    """A command with options that cannot be."""
    return Malformed(f"options: {command} {line}", (*command.split(), *line.split()), says, code=code)


def dictated(text: str, *says: str) -> Malformed:
    """A pipeline in the compact text of --stages."""
    argv = ("estimate", "gpt3-1.3b", CLUSTER, "--stages", text)
    return Malformed(f"stages: {text[:40]}", argv, says)


JOBS = (
    file("empty", "", "job.yaml: the file is empty"),
    file("a text", "gpt3-1.3b\n", "job.yaml:1: expected a mapping (key: value), found a text, 'gpt3-1.3b'"),
    file("a list", "- gpt3-1.3b\n", "job.yaml:1: expected a mapping (key: value), found a list"),
    file(
        "model missing",
        "global_batch: 8\nseq_len: 512\n",
        "job.yaml:1: the key 'model' is missing",
        "needed: model, global_batch, seq_len",
    ),
    file(
        "batch missing",
        "model: gpt3-1.3b\nseq_len: 512\n",
        "job.yaml:1: the key 'global_batch' is missing",
        "needed: model, global_batch, seq_len",
    ),
    file(
        "length misspelled",
        "model: gpt3-1.3b\nglobal_batch: 8\nseqlen: 512\n",
        "job.yaml:3: seqlen: unknown key 'seqlen'",
        "did you mean 'seq_len'?",
    ),
    file(
        "a key twice",
        JOB + "seq_len: 1024\n",
        "job.yaml:4: the key 'seq_len' is given twice",
        "first in line 3",
    ),
    file(
        "model a number",
        "model: 13\nglobal_batch: 8\nseq_len: 512\n",
        "job.yaml:1: model: expected a model: a preset or a path, found a whole number, '13'",
    ),
    file(
        "model unknown",
        "model: gpt3-1.4b\nglobal_batch: 8\nseq_len: 512\n",
        "job.yaml: model: unknown model 'gpt3-1.4b'",
        "did you mean 'gpt3-1.3b'",
    ),
    file(
        "model a list",
        "model: [gpt3-1.3b]\nglobal_batch: 8\nseq_len: 512\n",
        "job.yaml:1: model: expected a model: a preset or a path, found a list",
    ),
    file(
        "batch 0",
        "model: gpt3-1.3b\nglobal_batch: 0\nseq_len: 512\n",
        "job.yaml:2: global_batch: 0 is out of range",
        "legal: 1 to 10000000",
    ),
    file(
        "batch in powers of ten",
        "model: gpt3-1.3b\nglobal_batch: 1e3\nseq_len: 512\n",
        "job.yaml:2: global_batch: expected a whole number, found a number, '1e3'",
        "legal: 1 to 10000000",
    ),
    file(
        "batch with underscores",
        "model: gpt3-1.3b\nglobal_batch: 1_000\nseq_len: 512\n",
        "job.yaml:2: global_batch: expected a whole number, found a value that YAML readers disagree",
        "legal: 1 to 10000000",
    ),
    file(
        "batch of a thousand million",
        "model: gpt3-1.3b\nglobal_batch: 1000000000\nseq_len: 512\n",
        "job.yaml:2: global_batch: 1000000000 is out of range",
        "legal: 1 to 10000000",
    ),
    file(
        "length a text",
        "model: gpt3-1.3b\nglobal_batch: 8\nseq_len: 2k\n",
        "job.yaml:3: seq_len: expected a whole number, found a text, '2k'",
        "legal: 1 to 100000000",
    ),
    file(
        "length negative",
        "model: gpt3-1.3b\nglobal_batch: 8\nseq_len: -512\n",
        "job.yaml:3: seq_len: -512 is out of range",
        "legal: 1 to 100000000",
    ),
    more("layers 0", "num_layers: 0", "job.yaml:4: num_layers: 0 is out of range", "legal: 1 to 100000"),
    more(
        "more layers than the model has",
        "num_layers: 25",
        "job.yaml: num_layers: 25 layers cannot be taken from gpt3-1.3b",
        "legal: 1 to 24",
    ),
    more(
        "precision unknown",
        "precision: fp4",
        "job.yaml:4: precision: unknown precision 'fp4'",
        "did you mean 'fp8'",
    ),
    more(
        "precision a number",
        "precision: 16",
        "job.yaml:4: precision: expected a precision such as bf16, found a whole number, '16'",
    ),
    more(
        "precision that no GPU has",
        "precision: fp8",
        "job.yaml: precision: A10 and T4 have no fp8 matrix arithmetic",
        "legal on this cluster: fp32, fp16",
    ),
    more(
        "optimizer a text",
        "optimizer: adam",
        "job.yaml:4: optimizer: expected a mapping (key: value), found a text, 'adam'",
    ),
    more(
        "optimizer unknown", "optimizer: {name: sgd}", "job.yaml:4: optimizer.name: unknown optimizer 'sgd'"
    ),
    more(
        "optimizer with an unknown key",
        "optimizer: {momentum_bytes: 4}",
        "job.yaml:4: optimizer.momentum_bytes: unknown key 'momentum_bytes'",
        "did you mean 'moment_bytes'",
    ),
    more(
        "gradients of 16 bytes",
        "optimizer: {gradient_bytes: 16}",
        "job.yaml:4: optimizer.gradient_bytes: 16 is out of range",
        "legal: 1 to 8",
    ),
    more(
        "moments negative",
        "optimizer: {moment_bytes: -8}",
        "job.yaml:4: optimizer.moment_bytes: -8 is out of range",
        "legal: 0 to 16",
    ),
    more("name blank", "name: ''", "job.yaml:4: name: the text is blank"),
    more(
        "assumed a mapping",
        "assumed: {what: a, why: b}",
        "job.yaml:4: assumed: expected a list, found a mapping",
    ),
    more(
        "assumed a number",
        "assumed: [{what: 1, why: b}]",
        "job.yaml:4: assumed[0].what: expected a text, found a whole number, '1'",
        "put it in quotes if a text is meant",
    ),
    more("a merge key", "<<: {precision: fp16}", "job.yaml:4: <<: unknown key '<<'"),
    more(
        "an anchor",
        "precision: &p fp16",
        "job.yaml:4: anchors (&name) are not accepted",
        "write the value out where it is used",
    ),
    Malformed(
        "job: no such file",
        ("plan", CLUSTER, "--job", "jobs.yaml"),
        (
            "jobs.yaml: no such job file",
            "did you mean job.yaml?",
        ),
        {"job.yaml": JOB},
    ),
    Malformed(
        "job: a folder",
        ("plan", CLUSTER, "--job", "."),
        (
            ".: this is a directory, not a job file",
            "it holds job.yaml",
        ),
        {"job.yaml": JOB},
    ),
    Malformed(
        "job: not UTF-8",
        ("plan", CLUSTER, "--job", "job.yaml"),
        ("job.yaml:1: a job file is UTF-8 text; this is not",),
        {"job.yaml": b"\xff\xfe\x00"},
    ),
)

OPTIONS = (
    options("", "missing argument 'MODEL'", command="plan"),
    options("--no-such", "no such option: --no-such", command=""),
    options(
        "", "CLUSTER is missing", "after MODEL, give a cluster file or a shorthand", command="plan gpt3-1.3b"
    ),
    options("1x2xT4 extra", "got unexpected extra argument(s) (1x2xT4 extra)"),
    options("", "no such command 'paln'. Did you mean 'plan'?", command="paln gpt3-1.3b 1x2xT4"),
    options("--tp", "option '--tp' requires an argument"),
    options("--tp 3", "--tp: tp 3 divides no node of this cluster (GPUs: 2)", "legal: 1, 2"),
    options("--tp 0", "--tp: tp 0 is out of range", "legal: 1 to 1000000"),
    options("--tp -2", "--tp: tp -2 is out of range", "legal: 1 to 1000000"),
    options("--tp two", "invalid value for '--tp'"),
    options("--tp 1.5", "invalid value for '--tp'"),
    options(
        "--tp 99999999999999999999", "--tp: tp 99999999999999999999 is out of range", "legal: 1 to 1000000"
    ),
    options("--pp 99", "--pp: 99 stages for 24 layers on 4 GPUs", "legal: 1 to 4"),
    options(
        "--dp 3 --global-batch 8", "--dp: dp 3 does not divide the global batch of 8", "legal: 1, 2, 4, 8"
    ),
    options("--cp 0", "--cp: cp 0 is out of range", "legal: 1 to 1000000"),
    options("--ep 2", "--ep: ep 2: gpt3-1.3b has no experts", "legal: 1"),
    options("--zero 4", "--zero: zero 4 is out of range", "legal: 0 to 3"),
    options("--zero -1", "--zero: zero -1 is out of range", "legal: 0 to 3"),
    options("--recompute some", "invalid value for '--recompute'"),
    options(
        "--offload disk",
        "--offload: unknown offload 'disk'",
        "legal: none, optimizer, activations, both or auto",
    ),
    options(
        "--micro-batch 3 --global-batch 8",
        "--micro-batch: micro-batch 3 does not divide the global batch 8",
        "legal: 1, 2, 4, 8",
    ),
    options("--global-batch 0", "--global-batch: global batch 0 is out of range", "legal: 1 to 10000000"),
    options(
        "--global-batch 100000000",
        "--global-batch: global batch 100000000 is out of range",
        "legal: 1 to 10000000",
    ),
    options("--seq-len 0", "--seq-len: sequence length 0 is out of range", "legal: 1 to 100000000"),
    options(
        "--seq-len 4096",
        "--seq-len: gpt3-1.3b has 2048 learned positions, a sample has 4096 tokens",
        "legal: up to 2048",
    ),
    options("--precision int4", "invalid value for '--precision'"),
    options("--num-layers 0", "--num-layers: 0 layers cannot be taken from gpt3-1.3b", "legal: 1 to 24"),
    options("--num-layers 25", "--num-layers: 25 layers cannot be taken from gpt3-1.3b", "legal: 1 to 24"),
    options("--gradient-bytes 3", "--gradient-bytes: 3 bytes per gradient", "legal: 2 or 4"),
    options(
        "--layers-per-stage 12,x",
        "--layers-per-stage: 'x' is no number of layers",
        "write for example 20,12,8",
    ),
    options(
        "--layers-per-stage ,", "--layers-per-stage: '' is no number of layers", "write for example 20,12,8"
    ),
    options(
        "--layers-per-stage 12,11",
        "--layers-per-stage: layers per stage 12, 11 sum to 23, gpt3-1.3b has 24 layers",
        "they must be 0 or more and sum to 24",
    ),
    options(
        "--layers-per-stage 12,12 --pp 3", "--layers-per-stage: 2 stages listed, pp is 3", "list pp numbers"
    ),
    options(
        "--atoms 0",
        "--atoms: '0' is no granularity of atoms",
        "legal: operator, block, layer, or a number of layers from 1 to 10000",
    ),
    options(
        "--atoms halves",
        "--atoms: 'halves' is no granularity of atoms",
        "legal: operator, block, layer, or a number of layers from 1 to 10000",
    ),
    options("--workers -1", "--workers: -1 workers", "legal: 0 (decide) to 1024"),
    options("--workers 100000", "--workers: 100000 workers", "legal: 0 (decide) to 1024"),
    options("--workers 2 --executor inline", "--workers: workers and an executor are both given"),
    options("--executor rey", "--executor: unknown executor 'rey'", "did you mean 'ray'?"),
    options("--executor threads", "--executor: unknown executor 'threads'", "known: auto, inline, processes"),
    options("--executor processes:0", "--executor: '0' is no number of processes", "N from 1 to 1024"),
    options("--executor processes:many", "--executor: 'many' is no number of processes"),
    options("--executor ray:head:10001", "--executor: 'ray:head:10001' is no address", "ray://HOST:PORT"),
    options("--executor ray://head:http", "--executor: 'ray://head:http' is no address"),
    options("--pruning bold", "--pruning: unknown pruning 'bold'"),
    options("--parallelizer exakt", "--parallelizer: unknown parallelizer 'exakt'", "did you mean 'exact'?"),
    options("--parallelizer ,", "--parallelizer: no parallelizer is chosen", "for example exact"),
    options(
        "--memory-margin -0.1",
        "--memory-margin: memory margin -0.1 is out of range",
        "legal: 0 to 1, a share of",
    ),
    options(
        "--memory-margin 2",
        "--memory-margin: memory margin 2 is out of range",
        "legal: 0 to 1, a share of",
    ),
    options(
        "--memory-margin nan",
        "--memory-margin: memory margin nan is out of range",
        "legal: 0 to 1, a share of",
    ),
    options(
        "--island-compute-tolerance -1",
        "--island-compute-tolerance: -1.0 is no tolerance",
        "legal: 0 and more, or inf",
    ),
    options(
        "--island-memory-tolerance nan",
        "--island-memory-tolerance: nan is no tolerance",
        "legal: 0 and more, or inf",
    ),
    options("--island-link-tolerance much", "invalid value for '--island-link-tolerance'"),
    options(
        "--stack megatron-2099",
        "--stack: unknown software stack 'megatron-2099'",
        "did you mean 'megatron-2025'",
    ),
    options("--cluster-constants rack-7", "--cluster-constants: unknown cluster 'rack-7'"),
    options("--calibration nowhere.json", "nowhere.json: cannot be read: No such file or directory"),
    options(
        "--profiles nowhere.sqlite",
        "nowhere.sqlite: there is no such profile store",
        "tangram profiles import makes one",
    ),
    options("-o nowhere/plan.json", "-o nowhere/plan.json: there is no folder 'nowhere'", "create it first"),
    options("-o .", "-o .: this is a folder, not a file"),
    options("-o -", "-o: - is no file", "--json writes the plan to stdout"),
    options(
        "--trace nowhere/t.json", "--trace nowhere/t.json: there is no folder 'nowhere'", "create it first"
    ),
    options("--stats .", "--stats .: this is a folder, not a file"),
    options("--seq-length 5", "no such option: --seq-length"),
    options(
        "--stages T4:2:tp2:24 --tp 2",
        "--tp: --tp and --stages exclude each other",
        "give one of them",
        command=f"estimate gpt3-1.3b {CLUSTER}",
    ),
    options(
        "--pp 25", "--pp: 25 stages for 24 layers", "legal: 1 to 24", command=f"estimate gpt3-1.3b {CLUSTER}"
    ),
    options(
        "--pp 5",
        "--pp, --tp, --dp, --cp: 5 stages of 1 GPUs do not fit: a stage stays within one island",
        "the islands: 2x A10, 2x T4",
        command=f"estimate gpt3-1.3b {CLUSTER}",
    ),
    options(
        "--pp 2 --layers-per-stage 12,11",
        "--stages: the stages hold 23 layers, gpt3-1.3b has 24",
        "layers must sum to 24",
        command=f"estimate gpt3-1.3b {CLUSTER}",
    ),
    options(
        "--pp 3 --layers-per-stage 12,12",
        "--layers-per-stage: 2 numbers of layers for 3 stages",
        "one per stage",
        command=f"estimate gpt3-1.3b {CLUSTER}",
    ),
    options(
        "--planners nobody", "--planners: unknown planner 'nobody'", command=f"compare gpt3-1.3b {CLUSTER}"
    ),
    options(
        "--planners exact-alone-alone",
        "--planners: unknown planner 'exact-alone-alone'",
        "did you mean '",
        command=f"compare gpt3-1.3b {CLUSTER}",
    ),
    options("T44", "unknown GPU 'T44'", "did you mean 'T4'?", command="gpus"),
    options(
        "A100",
        "GPU 'A100' does not say which variant",
        "write A100-40GB-SXM",
        command="gpus",
    ),
    options(
        "GTX-1080",
        "unknown GPU 'GTX-1080'",
        "did you mean 'RTX-",
        command="gpus",
    ),
)

STAGES = (
    dictated("", "--stages, stage 0: '' does not follow the form of a stage"),
    dictated("T4", "--stages, stage 0: 'T4' does not follow the form of a stage"),
    dictated(
        "T4:2:tp2:24:none:more",
        "--stages, stage 0: 'T4:2:tp2:24:none:more' does not follow the form of a stage",
    ),
    dictated("T5:2:tp2:24", "--stages, stage 0: unknown island or node 'T5'"),
    dictated("T4:x:tp2:24", "--stages, stage 0: 'x' is no number of GPUs"),
    dictated("T4:0:tp2:24", "--stages, stage 0: '0' is no number of GPUs"),
    dictated("T4:2:tp3:24", "--stages, stage 0: tp x cp = 3 does not divide 2 GPUs", "legal products: 1, 2"),
    dictated("T4:2:tp0:24", "--stages, stage 0: tp 0 is out of range", "legal: 1 or more"),
    dictated(
        "T4:2:2:24",
        "--stages, stage 0: '2' is no list of degrees",
        "write for example tp2dp4z1 (tp, dp, cp, ep, z)",
    ),
    dictated(
        "T4:2:tp2tp2:24",
        "--stages, stage 0: 'tp2tp2' is no list of degrees",
        "write for example tp2dp4z1 (tp, dp, cp, ep, z)",
    ),
    dictated("T4:2:tp2:many", "--stages, stage 0: 'many' is no number of layers"),
    dictated("T4:2:tp2:23", "--stages: the stages hold 23 layers, gpt3-1.3b has 24", "layers must sum to 24"),
    dictated(
        "T4:2:tp2:12+A10:2:tp2:13",
        "--stages: the stages hold 25 layers, gpt3-1.3b has 24",
        "layers must sum to 24",
    ),
    dictated(
        "T4:4:tp4:24",
        "--stages: stage 0 cannot take 4 GPUs of T4",
        "legal: up to 1 node of 2 GPUs, equally many on each",
    ),
    dictated(
        "T4:2:tp2:24:all",
        "--stages, stage 0: 'all' says nothing about recomputation",
        "legal: none, selective, full, or full8 for eight layers",
    ),
    dictated(
        "T4:2:tp2:24:none4",
        "--stages, stage 0: 'none4' says nothing about recomputation",
        "legal: none, selective, full, or full8 for eight layers",
    ),
    dictated(
        "T4:2:tp2:24:full25",
        "--stages, stage 0: full25 recomputes more than the 24 layers there are",
        "full recomputes all of them",
    ),
    dictated(
        "T4:2:tp2:24:selective4",
        "--stages, stage 0: 'selective4' says nothing about recomputation",
        "legal: none, selective, full, or full8 for eight layers",
    ),
    dictated("T4:2:tp2z7:24", "--stages, stage 0: zero 7", "legal: 0 to 3"),
    dictated("t4,a10:4:tp2:24", "--stages: stage 0 takes nodes of 2 islands", "a stage stays within one"),
    dictated(
        "t4,t4:4:tp2:24",
        "--stages: stage 0 cannot take 4 GPUs of T4",
        "legal: up to 1 node of 2 GPUs, equally many on each",
    ),
    dictated("T4:2:tp2:24+", "--stages, stage 1: '' does not follow the form of a stage"),
    dictated("T4:2:tp2:12+T4:2:tp2:12", "--stages: the stages take 4 GPUs of T4, which has 2"),
    dictated("T4:2:ep2:24", "--stages, stage 0: ep 2 is not legal here", "legal: 1"),
)

CASES = (*JOBS, *OPTIONS, *STAGES)
