"""Legal plans of small models on up to six ranks, written by hand: four fast GPUs and two slow ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from samples import ISLANDS, Choice, build

from tangram.job import Job, Precision, Recompute
from tangram.model.spec import (
    AttentionSpec,
    FeedForwardSpec,
    LayerSpec,
    ModelSpec,
    MoeSpec,
    NormKind,
    PositionKind,
)
from tangram.plan.check import check_plan
from tangram.plan.schema import LayerConfig, PlanDocument, StageSection

HIDDEN, SEQ_LEN, VOCAB = 32, 16, 250

_LLAMA = LayerSpec(
    AttentionSpec(num_heads=4, num_kv_heads=2, head_dim=8), FeedForwardSpec(64, gated=True), NormKind.RMSNORM
)
_QWEN3 = LayerSpec(
    AttentionSpec(num_heads=4, num_kv_heads=2, head_dim=8, qk_norm=True),
    FeedForwardSpec(64, gated=True),
    NormKind.RMSNORM,
)
_GPT = LayerSpec(
    AttentionSpec(num_heads=4, num_kv_heads=4, head_dim=8, qkv_bias=True, out_bias=True),
    FeedForwardSpec(128, gated=False, bias=True),
    NormKind.LAYERNORM,
)
_MIXTRAL = LayerSpec(
    AttentionSpec(num_heads=4, num_kv_heads=2, head_dim=8),
    MoeSpec(4, 2, FeedForwardSpec(48, gated=True)),
    NormKind.RMSNORM,
)

FAMILIES: dict[str, tuple[LayerSpec, dict[str, Any]]] = {
    "llama": (_LLAMA, {"rope_theta": 10000.0, "rms_norm_eps": 1e-5, "hidden_act": "silu"}),
    "qwen3": (_QWEN3, {"rope_theta": 10000.0, "rms_norm_eps": 1e-6, "hidden_act": "silu"}),
    "gpt2": (_GPT, {"layer_norm_epsilon": 1e-5, "activation_function": "gelu_new", "resid_pdrop": 0.1}),
    "mixtral": (
        _MIXTRAL,
        {"rope_theta": 10000.0, "rms_norm_eps": 1e-5, "hidden_act": "silu", "router_aux_loss_coef": 0.02},
    ),
}


@dataclass(frozen=True)
class Stage:
    """A stage of a test plan; what is not said is as plain as can be.

    Attributes:
        layers: Atoms between embedding and head: layers, or blocks of which two are a layer.
        rows: Samples of a micro-batch per dp index; even where None.
        window: Micro-batches in flight; plain 1F1B where None.
        recompute: One mode for all atoms, or one per atom.
        offload: Whether the optimizer lives in host memory.
        kept_on_host: Atoms of the stage, counted from its first, whose activations do.
        runs: Where atoms differ in degrees: how many each run has, and what is not 1 or 0 there.
        more: Other fields of the stage.
    """

    layers: int
    dp: int = 1
    cp: int = 1
    tp: int = 1
    ep: int = 1
    expert_tp: int = 1
    zero: int = 0
    rows: tuple[int, ...] | None = None
    window: int | None = None
    recompute: Recompute | tuple[Recompute, ...] = Recompute.NONE
    offload: bool = False
    kept_on_host: tuple[int, ...] = ()
    runs: tuple[tuple[int, dict[str, Any]], ...] = ()
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def ranks(self) -> int:
        return self.dp * self.cp * self.tp


def spec_of(family: str, num_layers: int, *, tied: bool) -> ModelSpec:
    """A model of a family, of hidden size 32."""
    layer, _ = FAMILIES[family]
    return ModelSpec(
        name=f"tiny-{family}",
        family=family,
        hidden_size=HIDDEN,
        vocab_size=VOCAB,
        layers=(layer,) * num_layers,
        norm=layer.norm,
        position=PositionKind.LEARNED if family == "gpt2" else PositionKind.ROTARY,
        max_positions=SEQ_LEN,
        tied_embeddings=tied,
    )


def plan_of(
    stages: Sequence[Stage],
    *,
    family: str = "llama",
    tied: bool = False,
    micro_batch: int = 4,
    num_micro_batches: int = 3,
    precision: Precision = Precision.FP32,
    hyperparameters: dict[str, Any] | None = None,
    granularity: str = "layer",
) -> PlanDocument:
    """Writes the plan and checks it."""
    num_layers = sum(stage.layers for stage in stages) // (2 if granularity == "block" else 1)
    spec = spec_of(family, num_layers, tied=tied)
    job = Job(global_batch=micro_batch * num_micro_batches, seq_len=SEQ_LEN, precision=precision)
    choices = _choices(stages)
    doc = build(spec, job, choices, micro_batch=micro_batch, granularity=granularity)
    sections = [_section(section, stage) for section, stage in zip(doc.stages, stages, strict=True)]
    pipeline = doc.pipelines[0].model_copy(update={"stages": sections})
    values = FAMILIES[family][1] | (hyperparameters or {})
    model = doc.model.model_copy(update={"hyperparameters": values})
    doc = doc.model_copy(update={"pipelines": [pipeline], "model": model})
    assert not check_plan(doc), check_plan(doc)
    return doc


def alone(plan: PlanDocument) -> PlanDocument:
    """The same model and job on one rank, the whole batch as one micro-batch."""
    assert len({kind.norm for kind in plan.model.layer_kinds}) == 1
    return plan_of(
        [Stage(len(plan.model.layers))],
        family=plan.model.family,
        tied=plan.model.tied_embeddings,
        micro_batch=plan.job.global_batch,
        num_micro_batches=1,
        precision=plan.job.precision,
        hyperparameters=plan.model.hyperparameters,
    )


def _choices(stages: Sequence[Stage]) -> list[Choice]:
    """Puts stages on GPUs: fast ones first, slow ones where these do not suffice."""
    free = {0: list(range(4)), 1: [0, 1]}
    choices: list[Choice] = []
    atom = 0
    for idx, stage in enumerate(stages):
        place = 0 if not (choices and choices[-1].island is ISLANDS[1]) else 1
        place = place if stage.ranks <= len(free[place]) else 1
        slots, free[place] = free[place][: stage.ranks], free[place][stage.ranks :]
        stop = atom + stage.layers + (idx == 0) + (idx == len(stages) - 1)
        name = ISLANDS[place].nodes[0].name
        plain = Choice(
            (atom, stop),
            ISLANDS[place],
            tuple((name, slot) for slot in slots),
            stage.window or len(stages) - idx,
            dp=stage.dp,
            cp=stage.cp,
            tp=stage.tp,
            ep=stage.ep,
            expert_tp=stage.expert_tp,
            zero=stage.zero,
            split=stage.rows,
        )
        modes = stage.recompute
        choices.append(replace(plain, modes=modes if isinstance(modes, tuple) else (modes,) * (stop - atom)))
        atom = stop
    return choices


def _section(section: StageSection, stage: Stage) -> StageSection:
    update = {
        "offload_optimizer": stage.offload,
        "offload_activation_atoms": [section.atoms[0] + atom for atom in stage.kept_on_host],
    }
    section = section.model_copy(update=update | stage.more)
    return section.model_copy(update={"layer_configs": list(_runs(section, stage))})


def _runs(section: StageSection, stage: Stage) -> Iterator[LayerConfig]:
    """The runs of a stage, each with whole fields."""
    size, start = len(section.ranks), section.atoms[0]
    rows = sum(section.micro_batch_per_dp_rank)
    for count, given in stage.runs:
        degrees = {"dp": 1, "cp": 1, "tp": 1, "ep": 1, "expert_tp": 1, "zero": 0} | given
        dp, ep, expert_tp = degrees["dp"], degrees["ep"], degrees["expert_tp"]
        has_experts = section.expert_mesh is not None
        experts = [size // (ep * expert_tp), ep, expert_tp]
        defaults = {
            "atoms": (start, start + count),
            "mesh": {"axes": ["dp", "cp", "tp"], "sizes": [dp, degrees["cp"], degrees["tp"]]},
            "expert_mesh": {"axes": ["expert_dp", "ep", "expert_tp"], "sizes": experts}
            if has_experts
            else None,
            "sequence_parallel": degrees["tp"] > 1,
            "micro_batch_per_dp_rank": [rows // dp] * dp,
            "zero_axes": ["dp", "cp"] if degrees["zero"] else [],
            "expert_zero_axes": ["expert_dp"] if degrees["zero"] and has_experts else [],
        }
        yield LayerConfig.model_validate(defaults | degrees)
        start += count
