"""What single families have beside the common layer: work and bytes by hand, or by counts of the model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cost_cases import A100, V100, dense_layer, island_of, moe_layer, whole

from tangram.cluster.spec import GpuSpec
from tangram.cost import work
from tangram.cost.atoms import atom_costs
from tangram.cost.parts import fill_part
from tangram.cost.setting import Setting
from tangram.cost.transfer import boundary_bytes
from tangram.cost.types import StageConfig, StageConfigs
from tangram.job import Job, Precision
from tangram.model.atoms import AtomPart, Part, cut_atoms, layer_parts, parse_granularity
from tangram.model.flops import part_forward_flop
from tangram.model.params import part_params
from tangram.model.presets import load_preset
from tangram.model.spec import AttentionSpec, LatentSpec, LayerSpec, ModelSpec, NormKind, PositionKind

SEQ, SAMPLES, HIDDEN = 512, 16, 1024
TOKENS = SEQ * SAMPLES
GATED = dense_layer(gated=True)


def model_with(*layers: LayerSpec, **changes: object) -> ModelSpec:
    ends = (NormKind.LAYERNORM, PositionKind.LEARNED, 2048, True)
    return replace(ModelSpec("small", "opt", HIDDEN, 5120, layers, *ends), **changes)  # type: ignore[arg-type]


def table_of(
    model: ModelSpec,
    part: Part,
    *,
    layer_idx: int | None = None,
    tp: int = 1,
    gpu: GpuSpec = A100,
    seq: int = SEQ,
) -> np.ndarray:
    """The work of one part; activations are divided by tp."""
    portion = whole(island_of(gpu))
    job = Job(64, seq, Precision.FP16)
    configs = StageConfigs.of([StageConfig(dp=16 // tp, tp=tp)])
    setting = Setting.of(model, portion, configs, 16 // tp * SAMPLES, job)
    table = np.zeros((work.NUM_ROWS, 1))
    fill_part(setting, AtomPart(part, layer_idx), table)
    return table[:, 0]


def stored(layer: LayerSpec, *, tp: int = 1) -> float:
    model = model_with(layer)
    return sum(float(table_of(model, part, layer_idx=0, tp=tp)[work.STORED]) for part in layer_parts(layer))


@pytest.mark.parametrize("layer", [GATED, moe_layer()], ids=["dense", "moe"])
@pytest.mark.parametrize("tp", [1, 4])
def test_norms_behind_blocks_keep_their_inputs(layer: LayerSpec, tp: int) -> None:
    more = stored(replace(layer, post_norm=True), tp=tp) - stored(layer, tp=tp)
    assert more == 2 * TOKENS * HIDDEN * 2 / tp  # two norms, 16 bit


def test_norms_behind_blocks_stream_and_are_held_by_every_rank() -> None:
    layer = replace(GATED, post_norm=True)
    for part in (Part.OUT, Part.DOWN):
        plain, more = (table_of(model_with(each), part, layer_idx=0, tp=4) for each in (GATED, layer))
        assert more[work.STREAM] - plain[work.STREAM] == 2 * TOKENS * HIDDEN * 2 / 4
        assert more[work.STREAM + work.BACKWARD] - plain[work.STREAM + work.BACKWARD] == TOKENS * HIDDEN * 2
        assert more[work.DENSE_PARAMS] - plain[work.DENSE_PARAMS] == HIDDEN


@pytest.mark.parametrize("layer", [GATED, moe_layer()], ids=["dense", "moe"])
def test_blocks_side_by_side_keep_one_input(layer: LayerSpec) -> None:
    assert stored(layer) - stored(replace(layer, parallel=True)) == TOKENS * HIDDEN * 2


@pytest.mark.parametrize("window", [1, 100, 511, 512, 4096, None])
def test_windows_save_products_of_a_fused_kernel_only(window: int | None) -> None:
    layer = replace(GATED, attention=replace(GATED.attention, window=window))
    model = model_with(layer)
    fused = table_of(model, Part.CORE, layer_idx=0)[work.FLASH]
    counted = part_forward_flop(model, 0, Part.CORE, TOKENS, SEQ, causal=True)
    one_key = 2 * TOKENS * 2 * HIDDEN
    assert counted <= fused < counted + one_key
    unfused = table_of(model, Part.CORE, layer_idx=0, gpu=V100)[work.UNFUSED]
    assert unfused == part_forward_flop(model_with(GATED), 0, Part.CORE, TOKENS, SEQ)


def test_layers_with_and_without_a_window_differ_in_time_alone() -> None:
    """Gemma 2 and GPT-Neo have both in turns; the search takes each by its own time."""
    local = replace(GATED, attention=replace(GATED.attention, window=256))
    model = model_with(local, GATED, local)
    atoms = cut_atoms(model)
    costs = atom_costs(
        model,
        atoms,
        whole(island_of(A100)),
        StageConfigs.of([StageConfig(dp=16, tp=1)]),
        16,
        Job(64, 2048, Precision.BF16),
    )
    assert costs.forward_s[1, 0] == costs.forward_s[3, 0] < costs.forward_s[2, 0]
    assert costs.backward_s[1, 0] < costs.backward_s[2, 0]
    assert costs.stored_bytes[1, 0] == costs.stored_bytes[2, 0]
    assert costs.weight_bytes[1, 0] == costs.weight_bytes[2, 0]


@pytest.mark.parametrize("tp", [1, 4])
def test_narrow_embeddings(tp: int) -> None:
    """OPT-350m: vocabulary matrices of 512 columns, with a projection at either end of the model."""
    wide, narrow = model_with(GATED), model_with(GATED, embedding_size=512)
    ends = {part: table_of(narrow, part, tp=tp) for part in (Part.EMBEDDING, Part.HEAD)}
    for part, table in ends.items():
        products = tp * (table[work.GEMM] + table[work.HEAD])
        assert products == part_forward_flop(narrow, None, part, TOKENS, SEQ)
        assert table[work.TP_BYTES] == table_of(wide, part, tp=tp)[work.TP_BYTES] / 2
    projection = 512 * HIDDEN  # held by every rank in full
    positions = 2048 * HIDDEN
    assert ends[Part.EMBEDDING][work.DENSE_PARAMS] == 5120 * 512 / tp + projection + positions
    assert ends[Part.HEAD][work.DENSE_PARAMS] == 5120 * 512 / tp + projection + 2 * HIDDEN
    assert ends[Part.HEAD][work.HEAD_WEIGHTS] == 5120 * 512 / tp
    kept = ends[Part.EMBEDDING][work.STORED] - table_of(wide, Part.EMBEDDING, tp=tp)[work.STORED]
    assert kept == TOKENS * 512 * 2 / tp  # the input of the projection


def test_norms_at_the_ends() -> None:
    plain = model_with(GATED)
    normed = table_of(replace(plain, embedding_norm=True), Part.EMBEDDING, tp=4)
    bare = table_of(plain, Part.EMBEDDING, tp=4)
    assert normed[work.STORED] - bare[work.STORED] == TOKENS * HIDDEN * 2 / 4
    assert normed[work.DENSE_PARAMS] - bare[work.DENSE_PARAMS] == 2 * HIDDEN
    assert normed[work.STREAM] - bare[work.STREAM] == 2 * TOKENS * HIDDEN * 2 / 4
    without, with_norm = (
        table_of(replace(plain, final_norm=final_norm), Part.HEAD, tp=4) for final_norm in (False, True)
    )
    assert with_norm[work.STORED] - without[work.STORED] == TOKENS * HIDDEN * 2 / 4
    assert with_norm[work.DENSE_PARAMS] - without[work.DENSE_PARAMS] == 2 * HIDDEN


def test_latent_attention_crosses_a_cut_with_expanded_keys_and_values() -> None:
    latent = LatentSpec(q_rank=64, kv_rank=32, nope_dim=16, rope_dim=8, value_dim=20)
    model = model_with(
        LayerSpec(AttentionSpec(4, 4, 24, latent=latent), GATED.feed_forward, NormKind.RMSNORM)
    )
    atoms = cut_atoms(model, parse_granularity("operator"))
    job = Job(64, 1, Precision.BF16)
    crossing = [boundary_bytes(model, atom, 1, job) / 2 - HIDDEN for atom in atoms[1:3]]
    assert crossing == [4 * (24 + 24 + 20), 4 * 20]


@pytest.mark.parametrize("tp", [1, 4])
def test_what_a_layer_for_prediction_adds_to_the_head(tp: int) -> None:
    """DeepSeek-V3: a projection of two inputs, three norms, a second pass through the head, an embedding."""
    plain = model_with(GATED, GATED, tied_embeddings=False, norm=NormKind.RMSNORM)
    model = replace(plain, num_prediction_layers=1)
    head, bare = (table_of(each, Part.HEAD, tp=tp) for each in (model, plain))
    products = tp * (head[work.GEMM] + head[work.HEAD])
    assert products == part_forward_flop(model, None, Part.HEAD, TOKENS, SEQ)
    projection, matrix = 2 * HIDDEN**2, 5120 * HIDDEN
    assert head[work.DENSE_PARAMS] - bare[work.DENSE_PARAMS] == projection + 3 * HIDDEN + matrix / tp
    assert head[work.LOGITS] == bare[work.LOGITS]  # one loss after the other
    assert head[work.TP_BYTES] == (3 * bare[work.TP_BYTES] if tp > 1 else 0)
    kept = head[work.STORED] - bare[work.STORED]
    assert kept == 6 * TOKENS * HIDDEN * 2 / tp + 8 * TOKENS
    waiting = peak_of(model, tp) - peak_of(plain, tp)
    assert waiting >= 4 * TOKENS * 5120 / tp  # a softmax in fp32 waits for the backward pass


def peak_of(model: ModelSpec, tp: int) -> float:
    """Workspace of the head, which its loss decides here."""
    atoms = cut_atoms(model)
    portion, job = whole(island_of(A100)), Job(64, SEQ, Precision.FP16)
    configs = StageConfigs.of([StageConfig(dp=16 // tp, tp=tp)])
    return float(atom_costs(model, atoms, portion, configs, 16 // tp * SAMPLES, job).workspace_bytes[-1, 0])


def test_a_layer_for_prediction_takes_the_time_of_a_layer_and_a_head() -> None:
    model = replace(
        model_with(GATED, GATED, GATED, tied_embeddings=False, norm=NormKind.RMSNORM), num_prediction_layers=1
    )
    portion, job = whole(island_of(A100)), Job(64, 2048, Precision.BF16)
    configs = StageConfigs.of([StageConfig(dp=16, tp=1)])
    ahead, plain = (
        atom_costs(each, cut_atoms(each), portion, configs, 16, job).forward_s[:, 0]
        for each in (model, model.main)
    )
    assert len(ahead) == len(plain)
    assert (ahead[:-1] == plain[:-1]).all()
    layer, head = plain[1], plain[-1]
    assert layer + head < ahead[-1] - head < 1.5 * (layer + head)


@pytest.mark.parametrize("name", ["opt-350m", "bloom-176b", "gpt-neo-2.7b", "deepseek-v3"])
@pytest.mark.parametrize("tp", [1, 4])
def test_what_ranks_hold_together_is_the_model_and_its_replicas(name: str, tp: int) -> None:
    model = load_preset(name)
    for part in (Part.EMBEDDING, Part.HEAD):
        total = part_params(replace(model, tied_embeddings=False), None, part).total
        held = float(table_of(model, part, tp=tp)[work.DENSE_PARAMS])
        rows = -(-model.vocab_size // (128 * tp)) * 128 * tp
        matrix = model.vocab_size * model.embedding_width
        matrices = 1 + (part is Part.HEAD and model.num_prediction_layers > 0)  # a copy of the embedding's
        assert held == matrices * rows * model.embedding_width / tp + total - matrix
