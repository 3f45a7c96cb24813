"""The questions of the paper's evaluation: which model, on which GPUs, put to which planners.

Batch, sequence length and links are assumptions, committed in examples/jobs and examples/clusters before any
result; each file says so. Clusters between the committed ones are made of their nodes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from tangram.advise.compare import Question
from tangram.cluster.readers import load_cluster
from tangram.cluster.spec import Cluster
from tangram.job import Job
from tangram.job_reader import load_job_file
from tangram.model.load import load_model, trim_layers
from tangram.planner.precision import choose_precision

ROOT = Path(__file__).parents[1]
OURS = ("auto", "exact")
PUBLISHED = ("metis", "metis-published", "sailor", "sailor-published")
GSHARD = ("gshard-moe-2.4b", "gshard-moe-7.1b", "gshard-moe-10b")
C3 = ("c3-a100", "c3-two-islands", "c3-three-islands")


@dataclass(frozen=True)
class Case:
    """One group of bars of a figure.

    Attributes:
        figure: For example ``fig8``.
        label: Of the group.
        cluster: On what.
        job: Name of a job file of examples/jobs.
        planners: Whom to ask.
        model: Another model than the job's.
        num_layers: The model's first layers; 0 keeps all of them, None does as the job file says.
    """

    figure: str
    label: str
    cluster: Cluster
    job: str
    planners: tuple[str, ...]
    model: str | None = None
    num_layers: int | None = None

    def question(self, *, global_batch: int | None = None, seq_len: int | None = None) -> Question:
        """Returns the question, with another batch or sequence length where one is given."""
        file = load_job_file(ROOT / "examples" / "jobs" / f"{self.job}.yaml")
        model = load_model(self.model or file.model)
        num_layers = file.num_layers if self.num_layers is None else self.num_layers
        if num_layers:
            model = trim_layers(model, num_layers)
        precision, _ = choose_precision(self.cluster, file.precision)
        batch, tokens = global_batch or file.global_batch, seq_len or file.seq_len
        return Question(model, self.cluster, Job(batch, tokens, precision, file.optimizer))


def example(name: str) -> Cluster:
    """Returns an example cluster."""
    return load_cluster(str(ROOT / "examples" / "clusters" / f"{name}.yaml"))


def c1(t4_nodes: int, v100_nodes: int) -> Cluster:
    """Returns C1 with so many nodes of four GPUs of each kind."""
    t4, v100 = example("c1-t4-16"), example("c1-v100-16")
    nodes = (*t4.nodes[:t4_nodes], *v100.nodes[:v100_nodes])
    return replace(t4, name=f"c1-t4-v100-{4 * t4_nodes}-{4 * v100_nodes}", nodes=nodes)


def with_network(cluster: Cluster, bytes_per_s: float) -> Cluster:
    """Returns a cluster whose hosts have NICs of this bandwidth, and a network that carries it."""
    nodes = tuple(replace(node, nic_bandwidth_bytes_per_s=bytes_per_s) for node in cluster.nodes)
    links = tuple(replace(link, bandwidth_bytes_per_s=bytes_per_s) for link in cluster.links)
    return replace(cluster, nodes=nodes, links=links, default_bandwidth_bytes_per_s=bytes_per_s)


def cases(figure: str) -> list[Case]:
    """Returns the groups of bars of a figure, in its order.

    Raises:
        KeyError: The figure is no comparison of planners.
    """
    return {"fig8": _fig8, "fig9": _fig9, "fig10": _fig10, "fig11": _fig11}[figure]()


def _fig8() -> list[Case]:
    """GPT-3 on C1: T4 alone, a growing share of V100, V100 alone."""
    planners = (*OURS, "aceso", "alpa", "aceso-alone", "alpa-alone", "megatron", *PUBLISHED)
    mixes = [(4, 0), (3, 1), (2, 2), (1, 3), (0, 4)]
    labels = [f"{4 * t4} T4 + {4 * v100} V100" for t4, v100 in mixes]
    return [
        Case("fig8", label, c1(*mix), "fig8-gpt3", planners) for label, mix in zip(labels, mixes, strict=True)
    ]


def _fig9() -> list[Case]:
    """GShard MoE of three sizes on C1."""
    planners = (*OURS, "alpa", "alpa-alone", *PUBLISHED)
    return [
        Case(
            "fig9",
            f"{model.removeprefix('gshard-moe-')} on {gpus} V100 + {gpus} T4",
            c1(gpus // 4, gpus // 4),
            "fig9-gshard-moe",
            planners,
            model=model,
        )
        for gpus in (4, 8)
        for model in GSHARD
    ]


def _fig10() -> list[Case]:
    """Mixtral and Qwen3 at half and full depth on C2; alone with either kind of GPU in front."""
    alone = ("uniform-alone", "uniform-alone-slowest-first", "galvatron-alone")
    planners = (*OURS, "uniform", "galvatron", *alone, *PUBLISHED)
    jobs = [("Mixtral-8x7B", "fig10-mixtral"), ("Qwen3-30B-A3B", "fig10-qwen3")]
    return [
        Case("fig10", f"{name}, {depth}", example("c2-h100-a100"), job, planners, num_layers=num_layers)
        for name, job in jobs
        for depth, num_layers in (("half depth", None), ("full depth", 0))
    ]


def _fig11() -> list[Case]:
    """GPT-3 13B on C3 as it grows."""
    planners = (*OURS, "aceso", "alpa", "galvatron", "aceso-alone", "alpa-alone", "megatron", *PUBLISHED)
    return [Case("fig11", name, example(name), "fig11-gpt3-13b", planners) for name in C3]
