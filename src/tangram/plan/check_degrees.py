"""Degrees of a plan's stages: do they multiply to the ranks, and do they divide what they cut?"""

from __future__ import annotations

from collections.abc import Iterator

from tangram.model.atoms import Part
from tangram.model.spec import FeedForwardSpec, ModelSpec
from tangram.plan.schema import MeshSection, StageSection
from tangram.plan.violation import Facts, StageFacts, Violation, Violations

MESH_AXES = ("dp", "cp", "tp")
EXPERT_MESH_AXES = ("expert_dp", "ep", "expert_tp")


def check_degrees(facts: Facts) -> Violations:
    """Checks degrees, meshes, and that heads, feed-forward width, experts, vocabulary and sequence divide."""
    for item in facts.stages:
        yield from _vocabulary(facts, item)
        yield from _kernel(facts, item)
        for run in item.runs:
            yield from _dense_mesh(run)
            yield from _expert_mesh(run, item.parts)
            yield from _zero(run)
            yield from _sequence(facts, run)
            yield from _tp_nodes(facts, run)
            if facts.model is not None:
                yield from _divisibility(facts.model, run)


def _dense_mesh(item: StageFacts) -> Violations:
    stage = item.stage
    product, num_ranks = stage.dp * stage.cp * stage.tp, len(stage.ranks)
    if product != num_ranks:
        yield Violation(
            "degrees-product",
            f"{item.where}.dp",
            f"dp {stage.dp} x cp {stage.cp} x tp {stage.tp} = {product}; the stage has {num_ranks} ranks",
        )
    yield from _mesh(stage.mesh, MESH_AXES, (stage.dp, stage.cp, stage.tp), "mesh", item.where)


def _expert_mesh(item: StageFacts, parts: frozenset[Part]) -> Violations:
    """A run without experts, in a stage (of these parts) that has some, has an expert mesh all the same."""
    stage, where = item.stage, item.where
    if Part.MOE not in parts:
        if item.atoms and (stage.expert_mesh is not None or stage.ep != 1 or stage.expert_tp != 1):
            yield Violation(
                "experts-absent",
                f"{where}.expert_mesh",
                f"must be null, and ep {stage.ep} and expert_tp {stage.expert_tp} be 1: no experts here",
            )
        return
    if stage.expert_mesh is None:
        yield Violation("expert-mesh-missing", f"{where}.expert_mesh", "is null; the stage has experts")
        return
    expert_dp, rest = divmod(len(stage.ranks), stage.ep * stage.expert_tp)
    if rest or not expert_dp:
        yield Violation(
            "expert-degrees-product",
            f"{where}.ep",
            f"ep {stage.ep} x expert_tp {stage.expert_tp} does not divide {len(stage.ranks)} ranks",
        )
        return
    sizes = (expert_dp, stage.ep, stage.expert_tp)
    yield from _mesh(stage.expert_mesh, EXPERT_MESH_AXES, sizes, "expert_mesh", where)


def _mesh(
    mesh: MeshSection, axes: tuple[str, ...], sizes: tuple[int, ...], name: str, where: str
) -> Violations:
    code = name.replace("_", "-")
    if tuple(mesh.axes) != axes:
        yield Violation(f"{code}-axes", f"{where}.{name}.axes", f"is {mesh.axes}; version 1 has {list(axes)}")
    elif tuple(mesh.sizes) != sizes:
        yield Violation(
            f"{code}-sizes", f"{where}.{name}.sizes", f"is {mesh.sizes}; the degrees say {list(sizes)}"
        )


def _zero(item: StageFacts) -> Violations:
    stage = item.stage
    for name, legal in (("zero_axes", ("dp", "cp")), ("expert_zero_axes", ("expert_dp",))):
        axes = getattr(stage, name)
        known = [axis for axis in legal if axis in axes]
        if list(axes) != known:
            yield Violation(
                "zero-axes",
                f"{item.where}.{name}",
                f"is {axes}; legal are {list(legal)} or fewer, in this order",
            )
        elif axes and not stage.zero:
            yield Violation("zero-axes", f"{item.where}.{name}", f"is {axes}; with zero 0 nothing is sharded")
    if stage.zero and not stage.zero_axes:
        yield Violation(
            "zero-axes",
            f"{item.where}.zero_axes",
            f"is empty; zero {stage.zero} shards over some of ['dp', 'cp']",
        )


def _sequence(facts: Facts, item: StageFacts) -> Violations:
    stage, seq_len = item.stage, facts.doc.job.seq_len
    needs = {stage.cp: f"cp {stage.cp}"}
    if stage.cp > 1 and stage.cp_layout == "zigzag":
        needs[2 * stage.cp] = f"2 x cp {stage.cp} (zigzag)"
    if stage.sequence_parallel:
        needs[stage.tp * stage.cp] = f"tp {stage.tp} x cp {stage.cp} (sequence parallel)"
    for divisor, words in needs.items():
        if seq_len % divisor:
            yield Violation(
                "sequence-not-divisible",
                f"{item.where}.cp",
                f"{words} does not divide the sequence length {seq_len}",
            )


def _vocabulary(facts: Facts, item: StageFacts) -> Violations:
    stage, where = item.stage, f"{item.where}.padded_vocab_size"
    rows = stage.padded_vocab_size
    if rows is None:
        if stage.has_embedding or stage.has_head:
            yield Violation("vocab-missing", where, "is null; the stage holds an end of the model")
        return
    if not stage.has_embedding and not stage.has_head:
        yield Violation(
            "vocab-unneeded", where, f"is {rows}; the stage holds no end of the model, so it must be null"
        )
    if rows != facts.doc.model.padded_vocab_size:
        yield Violation(
            "vocab-differs",
            where,
            f"is {rows}; model.padded_vocab_size, the same for all, is {facts.doc.model.padded_vocab_size}",
        )
        return
    for run in item.runs:
        holds_end = run is item or any(atom.is_embedding or atom.is_head for atom in run.atoms)
        if holds_end and rows % run.stage.tp:
            yield Violation("vocab-not-divisible", where, f"tp {run.stage.tp} does not divide {rows}")
            return


def _kernel(facts: Facts, item: StageFacts) -> Violations:
    stage, where = item.stage, f"{item.where}.attention_kernel"
    if stage.attention_kernel not in ("flash", "unfused"):
        yield Violation("attention-kernel", where, f"is {stage.attention_kernel!r}; legal: flash, unfused")
    elif stage.attention_kernel == "flash":
        without = [gpu.name for gpu in item.gpus if gpu.attention_kernel != "flash"]
        if without:
            yield Violation("attention-kernel", where, f"is flash, which {without[0]} does not have")
        if not facts.doc.job.precision.is_mixed:
            yield Violation(
                "attention-kernel",
                where,
                f"is flash, which does not exist for {facts.doc.job.precision.value}",
            )


def _tp_nodes(facts: Facts, item: StageFacts) -> Violations:
    stage = item.stage
    if facts.doc.job.pins.allow_cross_node_tp or stage.dp * stage.cp * stage.tp != len(stage.ranks):
        return
    for first in range(0, len(stage.ranks), stage.tp):
        nodes = list(dict.fromkeys(slot.node for slot in stage.ranks[first : first + stage.tp]))
        domains = {facts.nodes[name].domain if name in facts.nodes else None for name in nodes}
        if len(nodes) > 1 and (len(domains) > 1 or None in domains):
            yield Violation(
                "tp-crosses-nodes",
                f"{item.where}.ranks[{first}]",
                f"a tp group spans nodes {', '.join(nodes)}; job.pins.allow_cross_node_tp is false",
            )
            return


def _divisibility(model: ModelSpec, item: StageFacts) -> Violations:
    found: dict[tuple[str, str], str] = {}
    for code, field, words in _indivisible(model, item):
        found.setdefault((code, field), words)
    for (code, field), words in found.items():
        yield Violation(code, f"{item.where}.{field}", words)


def _indivisible(model: ModelSpec, item: StageFacts) -> Iterator[tuple[str, str, str]]:
    """Yields (code, field, message); layers of different kinds may yield the same twice."""
    stage = item.stage
    for layer in item.layers_with(model, Part.QKV, Part.CORE, Part.OUT):
        heads, kv_heads = layer.attention.num_heads, layer.attention.num_kv_heads
        cut = stage.tp * (stage.cp if stage.cp_exchange == "a2a" else 1)
        words = f"tp {stage.tp}" if cut == stage.tp else f"tp {stage.tp} x cp {stage.cp} (a2a)"
        if heads % cut:
            yield "heads-not-divisible", "tp", f"{words} does not divide {heads} heads; {_legal(heads)}"
        elif kv_heads % cut:
            yield (
                "kv-heads-not-divisible",
                "tp",
                f"{words} does not divide {kv_heads} key/value heads; {_legal(kv_heads)}",
            )
    for layer in item.layers_with(model, Part.UP, Part.DOWN):
        width = layer.feed_forward.intermediate_size if isinstance(layer.feed_forward, FeedForwardSpec) else 0
        if width % stage.tp:
            yield "ffn-not-divisible", "tp", f"tp {stage.tp} does not divide the feed-forward width {width}"
    for layer in item.layers_with(model, Part.MOE):
        if layer.moe is not None:
            yield from _indivisible_experts(layer.moe.num_experts, layer.moe.expert.intermediate_size, stage)


def _indivisible_experts(num_experts: int, width: int, stage: StageSection) -> Iterator[tuple[str, str, str]]:
    if num_experts % stage.ep:
        yield (
            "experts-not-divisible",
            "ep",
            f"ep {stage.ep} does not divide {num_experts} experts; {_legal(num_experts)}",
        )
    if width % stage.expert_tp:
        yield (
            "expert-ffn-not-divisible",
            "expert_tp",
            f"expert_tp {stage.expert_tp} does not divide the expert width {width}",
        )


def _legal(number: int) -> str:
    """Legal degrees up to 64, which is as far as anybody goes."""
    return "legal: " + ", ".join(str(d) for d in range(1, min(number, 64) + 1) if number % d == 0)
