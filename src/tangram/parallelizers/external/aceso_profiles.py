"""What Aceso's search reads, made from the cost model: tables of operators, collectives and messages.

The formats are those that :mod:`tangram.profiles.importers.aceso` and its neighbour read. Aceso knows a GPT
model of 13 operators per layer, an embedding, a final norm and a head; the cost model knows a layer of five
parts. A part's operators share it so:

* time: all but ``SMALL_SHARE`` per other operator lies on the part's main one. Sums of a part are the cost
  model's, scaled to what was measured where the job's basis holds measured factors;
* activations: what a part hands on, and the next part keeps, lies on its last operator; what it keeps
  besides, on its first (the head's on its last, which is never recomputed). Aceso adds the input of a stage,
  so a stage keeps what the cost model says, plus the tensor that leaves it. Full recomputation of a layer
  keeps the layer's input in both;
* weights: norms on the norm, all others on the main operator;
* workspace: on every operator, as memory that the backward pass reserves.

What the user or the model forbids (a tp that does not divide the heads, a pinned degree) gets the time that
Aceso's own profiler writes for an operator that ran out of memory. A layer that must not be recomputed keeps
everything on the first norm, which Aceso never chooses for recomputation.

Simplifications: messages take what one pair of GPUs takes alone, as Aceso measures them; an all-reduce is a
reduce-scatter and an all-gather; an all-to-all is costed as a reduce-scatter. Aceso's search uses collectives
for stages of mixed layouts only, which it makes in its fine-tuning, which is off.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tangram.cluster.spec import Island, Portion
from tangram.cost.atoms import atom_costs
from tangram.cost.constants import cluster_constants, constants_of
from tangram.cost.links import TP, Groups, LinkRates
from tangram.cost.types import AtomCosts, StageConfig, StageConfigs
from tangram.job import Job
from tangram.model.atoms import Atom, Granularity, Part, cut_atoms
from tangram.model.params import norm_params
from tangram.model.spec import ModelSpec
from tangram.profiles.importers.aceso import OPERATORS, OUT_OF_MEMORY_US
from tangram.profiles.shapes import LayerKind
from tangram.units import GIB, MIB

MODEL = "scale-layer"
"""Aceso's name for a GPT model of any number of layers; its files say ``gpt_scale-layer``."""

SMALL_SHARE = 0.05
"""Of a part's time, on each of its operators but the main one. Nothing rests on it: stages are cut between
parts, so only sums of parts count."""

MESSAGE_MIB = tuple(1 << i for i in range(11))
"""Sizes of messages in Aceso's tables."""

COLLECTIVES = ("all_gather", "all_reduce", "reduce_scatter", "all_to_all")

_MAIN = {
    Part.EMBEDDING: "encoder-embedding",
    Part.QKV: "enc-attention-qkv",
    Part.CORE: "enc-attention-score",
    Part.OUT: "enc-attention-dense",
    Part.UP: "enc-MLP-GEMM-1",
    Part.DOWN: "enc-MLP-GEMM-2",
    Part.HEAD: "gpt-post-process",
}
_NORMED = (Part.QKV, Part.UP, Part.HEAD)
_NEXT = {
    Part.EMBEDDING: Part.QKV,
    Part.QKV: Part.CORE,
    Part.CORE: Part.OUT,
    Part.OUT: Part.UP,
    Part.UP: Part.DOWN,
    Part.DOWN: Part.QKV,
}
NEVER_RECOMPUTED = "enc-1st-layernorm"


@dataclass(frozen=True, slots=True)
class OperatorRow:
    """One operator on one rank; times in microseconds, sizes in MiB, in the order of Aceso's columns."""

    name: str
    forward_us: float
    backward_us: float
    input_mib: float
    output_mib: float
    weights_mib: float
    activations_mib: float
    forward_reserved_mib: float
    backward_reserved_mib: float


@dataclass(frozen=True, slots=True)
class Profiled:
    """What is profiled.

    Attributes:
        model: Of equal, dense layers.
        atoms: As the request cuts it; measured factors are theirs.
        island: GPUs and links.
        job: Precision, sequence length and basis.
        recomputable: Whether layers may be recomputed.
    """

    model: ModelSpec
    atoms: tuple[Atom, ...]
    island: Island
    job: Job
    recomputable: bool = True


def operators_of(part: Part) -> tuple[str, ...]:
    """Returns Aceso's operators of a part, in the order in which they run."""
    return OPERATORS[LayerKind(part.value)]


def operator_rows(
    profiled: Profiled, tp: int, samples: int, *, allowed: bool = True
) -> tuple[OperatorRow, ...]:
    """Returns the 16 rows of a table: embedding, the operators of one layer, final norm, head.

    Args:
        profiled: What is profiled.
        tp: Tensor-parallel degree, inside a node.
        samples: On one replica.
        allowed: Whether stages may be so; else one operator takes Aceso's time for a lack of memory.
    """
    parts = _part_costs(profiled, tp, samples)
    rows = [row for part in parts for row in _rows_of(profiled, part, parts)]
    if not profiled.recomputable:
        rows = _kept_by_the_norm(rows)
    if not allowed:
        at = next(i for i, row in enumerate(rows) if row.name == _MAIN[Part.QKV])
        rows[at] = replace(rows[at], forward_us=OUT_OF_MEMORY_US)
    return tuple(rows)


def operator_table(rows: Iterable[OperatorRow]) -> str:
    """Returns rows as a file of Aceso's."""
    head = "op_name,forward-compute,backward-compute,input_size,output_size,weights,activations,"
    lines = [head + "fwd_reserved,bwd_reserved"]
    for row in rows:
        name, *numbers = (getattr(row, field) for field in OperatorRow.__dataclass_fields__)
        lines.append(",".join([name, *(f"{number:.6f}" for number in numbers)]))
    return "\n".join(lines) + "\n"


def message_table(island: Island, job: Job, *, between_nodes: bool) -> str:
    """Returns the rates of messages between two GPUs, in GiB/s: a line of sizes in MiB, a line of rates."""
    constants = cluster_constants(job.basis.cluster, job.basis.overrides)
    node = island.nodes[0]
    if between_nodes:
        stated = min(island.nic_bandwidth_bytes_per_s, island.inter_bandwidth_bytes_per_s)
        rate, latency_s = stated * constants.nic_efficiency, island.inter_latency_s
    else:
        share = constants.intra_efficiency(node.intra_kind)
        rate, latency_s = island.intra_bandwidth_bytes_per_s * share, island.intra_latency_s
    rates = [size * MIB / (latency_s + size * MIB / rate) / GIB for size in MESSAGE_MIB]
    return ",".join(map(str, MESSAGE_MIB)) + "\n" + ",".join(f"{r:.6f}" for r in rates) + "\n"


def collective_table(island: Island, job: Job, collective: str, ranks: int, sizes_mib: Sequence[int]) -> str:
    """Returns times of a collective inside a node, in ms, by the MiB that one rank holds before it."""
    constants = constants_of(island.gpu, job.basis)
    groups = Groups.of(Portion(island, 1, ranks), StageConfigs.of([StageConfig(dp=1, tp=ranks)]))
    rates = LinkRates.of(groups, constants.stack, constants.cluster)
    latency_s, s_per_byte = float(rates.latency_s[TP, 0]), float(rates.seconds_per_byte[TP, 0])
    # Per byte held: what a rank gets from others; and how many rings that takes.
    share, rings = {
        "all_gather": (ranks - 1, 1),
        "all_reduce": (2 * (ranks - 1) / ranks, 2),
    }.get(collective, ((ranks - 1) / ranks, 1))
    times_s = (rings * latency_s + size * MIB * share * s_per_byte for size in sizes_mib)
    lines = [f"{size},{1e3 * seconds:.6f}" for size, seconds in zip(sizes_mib, times_s, strict=True)]
    return "\n".join(["data_size(MB),time(ms)", *lines]) + "\n"


def profile_files(
    profiled: Profiled, tables: Mapping[tuple[int, int], tuple[OperatorRow, ...]]
) -> tuple[tuple[str, str], ...]:
    """Returns all files of a profile as (name, text).

    Args:
        profiled: What is profiled.
        tables: Rows by (tp, samples on one replica).
    """
    files = {
        f"gpt_{MODEL}_mbs{samples}_tp{tp}_algo0.csv": operator_table(rows)
        for (tp, samples), rows in tables.items()
    }
    sizes = sorted({int(f"{row.input_mib:.0f}") for rows in tables.values() for row in rows})
    for ranks in sorted({tp for tp, _ in tables} - {1}):
        for name in COLLECTIVES:
            files[f"prim_gpt_{MODEL}_{name}_{ranks}gpus.csv"] = collective_table(
                profiled.island, profiled.job, name, ranks, sizes
            )
    for scope, between in (("intra", False), ("inter", True)):
        files[f"p2p_{scope}_node.csv"] = message_table(profiled.island, profiled.job, between_nodes=between)
    return tuple(files.items())


@dataclass(frozen=True, slots=True)
class _PartCost:
    forward_s: float
    backward_s: float
    input_bytes: float
    stored_bytes: float
    weight_bytes: float
    workspace_bytes: float


def _part_costs(profiled: Profiled, tp: int, samples: int) -> dict[Part, _PartCost]:
    """Costs the parts of the first layer and the ends of the model, in the order in which they run."""
    model, job = profiled.model, profiled.job
    cut = cut_atoms(model, Granularity("operator"))
    singles = {atom.parts[0]: atom for atom in cut if atom.parts[0].layer_idx in (None, 0)}
    numbers = {part.part: at for at, part in enumerate(singles)}
    whole = [atom for atom in profiled.atoms if any(part in singles for part in atom.parts)]
    portion, configs = Portion(profiled.island, 1, tp), StageConfigs.of([StageConfig(dp=1, tp=tp)])
    costs = atom_costs(model, [*singles.values(), *whole], portion, configs, samples, job)
    ratios = {}
    for place, atom in enumerate(whole, start=len(singles)):
        ratio = _measured_ratios(costs, place, [numbers[part.part] for part in atom.parts])
        ratios.update({part.part: ratio for part in atom.parts})
    return {
        part: _PartCost(
            forward_s=float(costs.forward_s[at, 0]) * ratios[part][0],
            backward_s=float(costs.backward_s[at, 0]) * ratios[part][1],
            input_bytes=float(costs.recomputed_stored_bytes[at, 0]),
            stored_bytes=float(costs.stored_bytes[at, 0]),
            weight_bytes=float(costs.weight_bytes[at, 0]),
            workspace_bytes=float(costs.workspace_bytes[at, 0]),
        )
        for part, at in numbers.items()
    }


def _measured_ratios(costs: AtomCosts, atom: int, parts: list[int]) -> tuple[float, float]:
    """Forward and backward of an atom over the sums of its parts: 1 unless the atom was measured."""
    forward = costs.forward_s[atom, 0] / sum(costs.forward_s[at, 0] for at in parts)
    backward = costs.backward_s[atom, 0] / sum(costs.backward_s[at, 0] for at in parts)
    return float(forward), float(backward)


def _rows_of(profiled: Profiled, part: Part, parts: Mapping[Part, _PartCost]) -> list[OperatorRow]:
    cost, names = parts[part], operators_of(part)
    output_mib = parts[_NEXT[part]].input_bytes / MIB if part in _NEXT else 0.0
    kept_mib = max(0.0, cost.stored_bytes - cost.input_bytes) / MIB
    model, job = profiled.model, profiled.job
    norm_mib = norm_params(model.norm, model.hidden_size) * job.precision.element_bytes / MIB
    norm_mib = norm_mib if part in _NORMED else 0.0
    last = len(names) - 1
    keeps = last if part is Part.HEAD else 0  # Aceso may recompute the final norm, but never the head.
    rows = []
    for place, name in enumerate(names):
        main = name == _MAIN[part]
        share = 1 - SMALL_SHARE * (len(names) - 1) if main else SMALL_SHARE
        weights_mib = cost.weight_bytes / MIB - norm_mib if main else 0.0
        rows.append(
            OperatorRow(
                name=name,
                forward_us=1e6 * share * cost.forward_s,
                backward_us=1e6 * share * cost.backward_s,
                input_mib=output_mib if place else cost.input_bytes / MIB,
                output_mib=output_mib,
                weights_mib=weights_mib if place or not norm_mib else norm_mib,
                activations_mib=kept_mib * (place == keeps) + output_mib * (place == last),
                forward_reserved_mib=0.0,
                backward_reserved_mib=cost.workspace_bytes / MIB,
            )
        )
    return rows


def _kept_by_the_norm(rows: Sequence[OperatorRow]) -> list[OperatorRow]:
    """Moves the activations of the layer to the operator that Aceso never recomputes."""
    layer = {name for part in list(_NEXT)[1:] for name in operators_of(part)}
    total = sum(row.activations_mib for row in rows if row.name in layer)
    return [
        replace(row, activations_mib=total if row.name == NEVER_RECOMPUTED else 0.0)
        if row.name in layer
        else row
        for row in rows
    ]
