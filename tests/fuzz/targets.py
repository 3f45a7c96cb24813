"""What is fuzzed: valid documents of every kind, and the commands that read them.

Presets, example clusters and example jobs are taken from where they lie, so that a new family of models or
form of clusters is fuzzed as soon as there is an example of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import corpus_measured as measured
import corpus_models as models
import yaml
from corpus_jobs import CLUSTER
from hypothesis import strategies as st
from layer_cases import record
from mutations import (
    as_tree,
    shifted_texts,
    spoiled,
    spoiled_bytes,
    spoiled_texts,
    spoiled_words,
    to_json,
    to_yaml,
)
from samples import dense_plan, mixed_plan, moe_plan, operator_plan

from tangram.profiles.records import CollectiveTime, LinkRate, Op, Scope
from tangram.profiles.store import save

EXAMPLES = Path(__file__).parents[2] / "examples"
PRESETS = resources.files("tangram.model").joinpath("presets")


@dataclass(frozen=True, slots=True)
class Target:
    """A kind of input.

    Attributes:
        name: Of the kind, for the test's id.
        file: The name of the file; empty where the input is a word of the command line.
        documents: Returns valid documents: trees, or texts or bytes of what is no tree; none where the
            command itself is spoiled.
        commands: That read it; ``{}`` stands for the word.
        write: How a tree becomes a text.
        beside: Further files.
    """

    name: str
    file: str
    documents: Callable[[], list[Any]]
    commands: tuple[str, ...]
    write: Callable[[Any], str] = to_json
    beside: Mapping[str, str] = field(default_factory=dict)

    def command(self, draw: Callable[[st.SearchStrategy[Any]], Any], folder: Path) -> list[str]:
        """Draws a spoiled input, puts it into the folder, and returns the command that reads it."""
        command = draw(st.sampled_from(self.commands))
        if not self.documents():
            return draw(spoiled_words(command))
        content = self.spoiled(draw)
        for name, text in self.beside.items():
            (folder / name).write_text(text, encoding="utf-8")
        if self.file:
            (folder / self.file).write_bytes(content)
            return command.split()
        word = content.decode("utf-8", "surrogateescape")
        return [word if part == "{}" else part for part in command.split()]

    def spoiled(self, draw: Callable[[st.SearchStrategy[Any]], Any]) -> bytes:
        """Draws one of the documents, spoiled."""
        document = draw(st.sampled_from(self.documents()))
        if isinstance(document, bytes):
            return draw(spoiled_bytes(document))
        if isinstance(document, str):
            change = draw(st.sampled_from((spoiled_texts, shifted_texts)))
            for _ in range(draw(st.sampled_from((1, 1, 2, 3)))):
                document = draw(change(document))
            return document.encode("utf-8", "surrogatepass")
        return draw(spoiled(document, self.write))


@cache
def configurations() -> list[Any]:
    """Those of the corpus, and of all presets that are configurations."""
    presets = [json.loads(file.read_text(encoding="utf-8")) for file in sorted_files(PRESETS)]
    found = [preset["config"] for preset in presets if "config" in preset]
    return [
        as_tree(config) for config in (models.LLAMA, models.GPT2, models.MIXTRAL, models.QWEN3_MOE, *found)
    ]


@cache
def own_models() -> list[Any]:
    """Models in Tangram's own form: a small one with everything, and short presets."""
    latent = {"q_rank": 8, "kv_rank": 8, "nope_dim": 16, "rope_dim": 16, "value_dim": 8}
    moe = {"num_experts": 4, "top_k": 2, "expert": models.BLOCK, "shared": models.BLOCK}
    kinds = [
        {"norm": "rmsnorm", "attention": models.ATTENTION | {"window": 64}, "feed_forward": models.BLOCK},
        {"norm": "layernorm", "attention": models.ATTENTION | {"latent": latent}, "moe": moe},
    ]
    presets = [json.loads(file.read_text(encoding="utf-8")) for file in sorted_files(PRESETS)]
    found = [preset for preset in presets if "layer_kinds" in preset]
    return [as_tree(model) for model in (models.OWN | {"layer_kinds": kinds, "layers": [0, 1]}, *found)]


def sorted_files(folder: Any) -> list[Any]:
    """The JSON files of a package's folder."""
    return sorted((f for f in folder.iterdir() if f.name.endswith(".json")), key=lambda f: f.name)


def examples(folder: str) -> list[Any]:
    """All example files of one kind."""
    texts = [path.read_text(encoding="utf-8") for path in sorted((EXAMPLES / folder).glob("*.yaml"))]
    return [as_tree(yaml.safe_load(text)) for text in texts]


@cache
def clusters() -> list[Any]:
    whole = """
name: all
nodes:
- {name: a, count: 2, gpu: A100-80GB-SXM, gpus: 8, intra: {link: nvlink, latency: 3us}, nics: 200Gbit x4}
- {name: b, gpu: T4, gpus: 4, intra: pcie, host: box, nics: 10Gbit}
- {name: c, gpu: V100-32GB-SXM2, gpus: 2, intra: 100GB/s, host: box}
network: {default: 100Gbit, latency: 10us, links: [{between: [a, b], bandwidth: 1Gbit, latency: 1ms}]}
assumed: [{what: everything, why: a test}]
"""
    return [as_tree(yaml.safe_load(whole)), *examples("clusters")]


@cache
def jobs() -> list[Any]:
    text = """
name: all
model: gpt3-1.3b
num_layers: 2
global_batch: 8
seq_len: 128
precision: fp16
optimizer: {name: adamw, gradient_bytes: 4, master_bytes: 4, moment_bytes: 8}
assumed: [{what: everything, why: a test}]
"""
    return [as_tree(yaml.safe_load(text)), *examples("jobs")]


@cache
def plans() -> list[Any]:
    return [
        as_tree(plan().model_dump(mode="json")) for plan in (dense_plan, moe_plan, operator_plan, mixed_plan)
    ]


@cache
def calibrations() -> list[Any]:
    constants = {"value": 0.9, "low": 0.8}
    shelves = {
        "gpu_family": {"turing": {"gemm_efficiency": constants}},
        "stack": {"mine": {"launch_s": {"value": 5e-05}}},
        "cluster": {"rack": {"nic_efficiency": {"value": 1}}},
    }
    return [as_tree({"format": "tangram-calibration", "version": 1, **shelves, "rows": [1, 2]})]


@cache
def stores() -> list[Any]:
    """A profile store with a record of each kind."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "store.sqlite"
        reduce = CollectiveTime(
            "T4", "nccl", "pcie", Scope.INTRA_NODE, Op.ALL_REDUCE, 4, 4, 800, 0.1, "a test"
        )
        rate = LinkRate("T4", "nccl", "", Scope.INTER_NODE, Op.SEND, 2, 1, 1e9 / 3, "a test")
        save(path, [record(), reduce, rate])
        return [path.read_bytes()]


def tables() -> list[Any]:
    both = measured.rows_text(measured.row(), measured.row(gpu="V100-32GB-SXM2", precision="fp16", dp=""))
    return [measured.rows_text(measured.row()), both]


CONFIG = {"config.json": measured.to_text(measured.CONFIG)}
ESTIMATE = "estimate gpt3-1.3b 1x2xA10 --num-layers 2 --global-batch 4 --seq-len 64 --json"
MODEL = "estimate {} 1x8xH100-80GB-SXM --global-batch 8 --seq-len 64 --tp 2 --json"
ON_CLUSTER = "estimate gpt3-1.3b c.yaml --num-layers 2 --global-batch 8 --seq-len 64 --json"
OPTIONS = "--num-layers 2 --global-batch 8 --seq-len 64 --precision fp16 --tp 2 --pp 2 --dp 1 --cp 1 --ep 1"
OPTIONS += (
    " --zero 1 --micro-batch 2 --recompute full --offload none --layers-per-stage 1,1 --memory-margin 0.1"
)
OPTIONS += " --island-compute-tolerance 0.05 --island-network-tolerance inf --stack megatron-2025 --json"
JOB = f"estimate {CLUSTER} --job j.yaml --global-batch 8 --seq-len 64 --json"  # a huge batch takes its time
SHORTHANDS = [
    "2x8xH100-80GB-SXM+4x4xA100-40GB-SXM@100Gbit",
    "1x1xT4",
    "3x8x V100-32GB-SXM2 + 2x1xA10@1.5Gbit/s",
]
STAGES = ["T4:2:tp2:12+A10:2:dp2z1:12:full4", "t4:1:tp1:24", "A10:2:tp2dp1cp1ep1z0:24:selective"]
IMPORT = "profiles import {} --store store.sqlite --model config.json --gpu T4 --seq-len 8 --precision fp32"

TARGETS = (
    Target(
        "config.json",
        "config.json",
        configurations,
        ("models config.json --json", "models config.json", MODEL.format("config.json")),
    ),
    Target(
        "own model",
        "model.json",
        own_models,
        ("models model.json --json", "models model.json", MODEL.format("model.json")),
    ),
    Target("cluster", "c.yaml", clusters, ("islands c.yaml --json", "islands c.yaml", ON_CLUSTER)),
    Target("cluster in blocks", "c.yaml", clusters, ("islands c.yaml", ON_CLUSTER), to_yaml),
    Target("job", "j.yaml", jobs, (JOB,)),
    Target("job in blocks", "j.yaml", jobs, (JOB,), to_yaml),
    Target(
        "plan", "p.json", plans, ("check p.json", "check p.json --json", "show p.json", "simulate p.json")
    ),
    Target("calibration", "cal.json", calibrations, (f"{ESTIMATE} --calibration cal.json",)),
    Target("runs", "rows.csv", tables, ("validate rows.csv --json", "validate rows.csv")),
    Target(
        "profiles",
        "p.json",
        lambda: [as_tree(json.loads(measured.EXCHANGE))],
        ("profiles import tangram p.json --store store.sqlite",),
    ),
    Target(
        "profiles of sailor",
        "profile.json",
        lambda: [as_tree({"1": {"1": measured.SAILOR_LAYERS}})],
        (IMPORT.format("sailor profile.json"),),
        beside=CONFIG,
    ),
    Target(
        "profiles of metis",
        measured.METIS_NAME,
        lambda: [as_tree(measured.metis_document())],
        (IMPORT.format(f"metis {measured.METIS_NAME}"),),
        beside=CONFIG,
    ),
    Target(
        "store", "s.sqlite", stores, ("profiles list --store s.sqlite", "profiles export --store s.sqlite")
    ),
    Target(
        "options",
        "",
        list,
        (f"estimate gpt3-1.3b {CLUSTER} {OPTIONS}", f"plan gpt3-1.3b {CLUSTER} {OPTIONS}"),
    ),
    Target("shorthand", "", lambda: list(SHORTHANDS), ("islands {} --json", "islands {}")),
    Target("stages", "", lambda: list(STAGES), (f"estimate gpt3-1.3b {CLUSTER} --stages {{}}",)),
)
