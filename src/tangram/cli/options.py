"""The options, in groups, named as the field names them.

A group is a frozen dataclass; :func:`tangram.cli.groups.grouped` takes it apart into single options.
The set of options is frozen by a test, so that growing it is a decision. None means "not given": then the job
file counts (``--seq-len`` is ``seq_len`` there), then a default that is printed with its reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from tangram.job import Precision, Recompute


def _option(*names: str, metavar: str | None = None, text: str) -> Any:
    return typer.Option(*names, metavar=metavar, help=text, show_default=False)


_CLUSTER_HELP = "A YAML file, or a shorthand such as 2x8xH100-80GB-SXM+1x4xT4@100Gbit."

ModelArgument = Annotated[
    str, typer.Argument(metavar="MODEL", help="A preset (tangram models), a config.json, or its folder.")
]
ClusterArgument = Annotated[str, typer.Argument(metavar="CLUSTER", help=_CLUSTER_HELP)]
OptionalClusterArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="CLUSTER",
        help=f"{_CLUSTER_HELP} Where the job file names the model, CLUSTER alone is enough.",
        show_default=False,
    ),
]
PlanArgument = Annotated[Path, typer.Argument(metavar="PLAN", help="A plan file, as plan -o writes it.")]
Json = Annotated[bool, _option("--json", text="Print one JSON document on stdout, and nothing else.")]
Trace = Annotated[
    Path | None, _option("--trace", metavar="FILE", text="Save the timeline for ui.perfetto.dev.")
]
PrecisionOption = Annotated[
    Precision | None,
    _option("--precision", text="Arithmetic of the whole job (default: what all GPUs have)."),
]


@dataclass(frozen=True, slots=True)
class JobOptions:
    """What to train, how much of it per step, and on which engine."""

    job_file: Annotated[
        Path | None,
        _option("--job", metavar="FILE", text="Job file (YAML); the options below win over it."),
    ] = None
    global_batch: Annotated[
        int | None, _option("--global-batch", metavar="N", text="Samples per optimizer step.")
    ] = None
    seq_len: Annotated[int | None, _option("--seq-len", metavar="N", text="Tokens per sample.")] = None
    precision: PrecisionOption = None
    num_layers: Annotated[
        int | None, _option("--num-layers", metavar="N", text="Trim the model to its first N layers.")
    ] = None
    gradient_bytes: Annotated[
        int | None,
        _option("--gradient-bytes", metavar="2|4", text="Bytes of an accumulated gradient (default: 4)."),
    ] = None
    engine_overlap: Annotated[
        bool | None,
        _option(
            "--engine-overlap/--no-engine-overlap",
            text="Whether transfers between stages overlap with compute (default: they do).",
        ),
    ] = None
    fixed_warmup: Annotated[
        bool | None,
        _option(
            "--fixed-warmup/--free-warmup",
            text="Whether the engine is bound to plain 1F1B's micro-batches in flight (default: free).",
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class ChoiceOptions:
    """Degrees and memory-saving choices that the user dictates."""

    micro_batch: Annotated[
        int | None,
        _option("--micro-batch", metavar="N", text="Samples that enter the pipeline together (global)."),
    ] = None
    tp: Annotated[int | None, _option("--tp", metavar="N", text="Tensor-parallel degree.")] = None
    pp: Annotated[int | None, _option("--pp", metavar="N", text="Number of pipeline stages.")] = None
    dp: Annotated[int | None, _option("--dp", metavar="N", text="Data-parallel degree.")] = None
    cp: Annotated[int | None, _option("--cp", metavar="N", text="Context-parallel degree.")] = None
    ep: Annotated[int | None, _option("--ep", metavar="N", text="Expert-parallel degree.")] = None
    zero: Annotated[
        int | None,
        _option("--zero", metavar="0-3", text="ZeRO: 1 shards the optimizer, 2 gradients too, 3 all."),
    ] = None
    recompute: Annotated[
        Recompute | None, _option("--recompute", text="Activation recomputation of every layer.")
    ] = None
    offload: Annotated[
        str | None,
        _option(
            "--offload",
            metavar="WHAT",
            text="To host memory: none, optimizer, activations, both, or auto (search) (default: none).",
        ),
    ] = None
    layers_per_stage: Annotated[
        str | None,
        _option("--layers-per-stage", metavar="20,12,8", text="Layers of each stage, first to last."),
    ] = None
    allow_cross_node_tp: Annotated[
        bool,
        _option("--allow-cross-node-tp", text="Let tensor-parallel groups span nodes."),
    ] = False


@dataclass(frozen=True, slots=True)
class BasisOptions:
    """What predictions rest on besides the shipped constants."""

    stack: Annotated[
        str | None,
        _option(
            "--stack",
            metavar="NAME",
            text="Software stack whose constants and profiles count (default: tangram-runtime, or the only "
            "other one of --calibration).",
        ),
    ] = None
    calibration: Annotated[
        Path | None,
        _option(
            "--calibration", metavar="FILE", text="Constants fitted to your runs, as tangram calibrate saves."
        ),
    ] = None
    cluster_constants: Annotated[
        str | None,
        _option(
            "--cluster-constants",
            metavar="NAME",
            text="Whose link constants count (default: the only cluster of --calibration, or default).",
        ),
    ] = None
    profiles: Annotated[
        Path | None,
        _option(
            "--profiles",
            metavar="STORE",
            text="Profile store whose measured layers override formulas (tangram profile fills one).",
        ),
    ] = None
    memory_margin: Annotated[
        float | None,
        _option(
            "--memory-margin",
            metavar="FRAC",
            text="Memory to keep free beside the best estimate of activations, workspace and reserve, as a "
            "share of them: 0.1 is 10 % (default: the stack's).",
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class IslandOptions:
    """How unequal the GPUs and links of one island may be."""

    compute: Annotated[
        float | None,
        _option(
            "--island-compute-tolerance",
            metavar="X",
            text="How much faster one GPU may be than another (default: 0.05).",
        ),
    ] = None
    memory: Annotated[
        float | None,
        _option("--island-memory-tolerance", metavar="X", text="The same for memory (default: 0.05)."),
    ] = None
    intra: Annotated[
        float | None,
        _option(
            "--island-link-tolerance",
            metavar="X",
            text="The same for links inside nodes (default: 0.1).",
        ),
    ] = None
    network: Annotated[
        float | None,
        _option(
            "--island-network-tolerance",
            metavar="X",
            text="The same for links between nodes; inf for the paper's islands (default: 0.5).",
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """How to search."""

    atoms: Annotated[
        str,
        _option(
            "--atoms",
            metavar="SIZE",
            text="Smallest piece to cut: operator, block, layer, or a number of layers (default: layer).",
        ),
    ] = "layer"
    workers: Annotated[
        int,
        _option("--workers", metavar="N", text="Processes (default: 0, which decides); same plan."),
    ] = 0
    executor: Annotated[
        str,
        _option(
            "--executor",
            metavar="WHERE",
            text="Where parallelizers are asked, slice by slice: inline (this process), processes or "
            "processes:N, ray or ray://HOST:PORT; same plan (default: auto, processes once there is work "
            "for seconds).",
        ),
    ] = "auto"
    pruning: Annotated[
        str,
        _option(
            "--pruning",
            metavar="RULES",
            text="none, paper, or safe, which finds what none finds (default: safe).",
        ),
    ] = "safe"


@dataclass(frozen=True, slots=True)
class ParallelizerOptions:
    """Who plans stages."""

    parallelizer: Annotated[
        list[str] | None,
        _option(
            "--parallelizer",
            metavar="NAME",
            text="Who plans stages: exact, layerwise, uniform, aceso, galvatron, alpa, an installed one, or "
            "auto, which is exact and, where that may help, layerwise (degrees per layer); repeat it or use "
            "commas (default: auto).",
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """Where the plan goes."""

    output: Annotated[
        Path | None, _option("-o", "--output", metavar="FILE", text="Save the plan (JSON).")
    ] = None
    json_only: Json = False
    trace: Trace = None


@dataclass(frozen=True, slots=True)
class StatsOptions:
    """How long the search may take, and what is written about it."""

    budget: Annotated[
        float | None,
        _option(
            "--budget",
            metavar="SECONDS",
            text="End the search after so long, with the best plan so far (default: it ends by itself).",
        ),
    ] = None

    stats: Annotated[
        Path | None,
        _option("--stats", metavar="FILE", text="Save where the planning time went (JSON)."),
    ] = None
