"""From parts to tables of work: which formula a part runs, and how many parameters of it lie on one rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tangram.cost import work
from tangram.cost.attention import fill_core, fill_out, fill_qkv
from tangram.cost.ends import fill_embedding, fill_head
from tangram.cost.feed_forward import fill_down, fill_up
from tangram.cost.moe import fill_moe
from tangram.cost.setting import Setting
from tangram.cost.types import FloatArray
from tangram.model.atoms import AtomPart, Part
from tangram.model.params import feed_forward_params, norm_params, part_params
from tangram.model.spec import FeedForwardSpec, LatentSpec, LayerSpec, ModelSpec, MoeSpec

_LAYER_PARTS: Mapping[Part, Callable[[Setting, LayerSpec, FloatArray], None]] = {
    Part.QKV: fill_qkv,
    Part.CORE: fill_core,
    Part.OUT: fill_out,
    Part.UP: fill_up,
    Part.DOWN: fill_down,
    Part.MOE: fill_moe,
}


def fill_part(setting: Setting, atom_part: AtomPart, table: FloatArray) -> None:
    """Fills the table of one part, shape ``(NUM_ROWS, num_configs)``, zero before."""
    if atom_part.part is Part.EMBEDDING:
        fill_embedding(setting, table)
    elif atom_part.part is Part.HEAD:
        fill_head(setting, table)
    else:
        assert atom_part.layer_idx is not None
        _LAYER_PARTS[atom_part.part](setting, setting.model.layers[atom_part.layer_idx], table)
    table[work.RERUN_TRANSIENT] = table[work.TRANSIENT]
    if atom_part.part is Part.CORE:
        _apply_selective(setting, table)
    _fill_params(setting, atom_part, table)


def vocab_matrix_params(setting: Setting) -> FloatArray:
    """Returns the parameters of one padded vocabulary matrix on a rank before ZeRO; ``(num_configs,)``."""
    return setting.vocab_rows * setting.model.embedding_width


def _apply_selective(setting: Setting, table: FloatArray) -> None:
    """Where it is on, backward runs the core again, and what that brings back is transient, not stored."""
    selective = setting.configs.selective
    table[work.STORED] += ~selective * table[work.DROPPABLE]
    table[work.TRANSIENT] += selective * table[work.DROPPABLE]
    for row in (work.FLASH, work.UNFUSED, work.UNALIGNED, work.SCORES):
        table[row + work.BACKWARD] += selective * table[row]


def _fill_params(setting: Setting, atom_part: AtomPart, table: FloatArray) -> None:
    """Matrices are split over tp (experts over ep and expert tp).

    Norms, routers, position tables, projections at the ends of the model and the biases after a row-parallel
    product are not.
    """
    model, part, layer_idx = setting.model, atom_part.part, atom_part.layer_idx
    params = part_params(model, layer_idx, part)
    if layer_idx is None:
        has_matrix = part is Part.EMBEDDING or not model.tied_embeddings
        replicated = params.total - (model.vocab_size * model.embedding_width if has_matrix else 0)
        matrices = 2 if part is Part.HEAD and model.num_prediction_layers and not model.tied_embeddings else 1
        table[work.DENSE_PARAMS] = matrices * vocab_matrix_params(setting) + replicated
        return
    dense = params.total - params.expert
    replicated = _replicated_params(model, model.layers[layer_idx], part, dense)
    table[work.DENSE_PARAMS] = (dense - replicated) / setting.tp + replicated
    if params.expert:
        table[work.EXPERT_PARAMS] = params.expert / (setting.ep * setting.expert_tp)


def _replicated_params(model: ModelSpec, layer: LayerSpec, part: Part, dense: int) -> int:
    """Parameters of a part that every tensor-parallel rank holds in full."""
    hidden, attention, block = model.hidden_size, layer.attention, layer.feed_forward
    if part is Part.QKV and attention.latent is not None:
        return norm_params(layer.norm, hidden) + _down_params(layer, attention.latent, hidden)
    if part is Part.QKV:
        return norm_params(layer.norm, hidden) + (2 * attention.head_dim if attention.qk_norm else 0)
    post_norm = norm_params(layer.norm, hidden) if layer.post_norm else 0
    if part is Part.OUT:
        return post_norm + (hidden if attention.out_bias else 0)
    if part is Part.UP:
        return norm_params(layer.norm, hidden)
    if part is Part.DOWN:
        return post_norm + (hidden if isinstance(block, FeedForwardSpec) and block.bias else 0)
    if isinstance(block, MoeSpec) and part is Part.MOE:
        return dense - (feed_forward_params(block.shared, hidden) if block.shared else 0)
    return 0


def _down_params(layer: LayerSpec, latent: LatentSpec, hidden: int) -> int:
    """Down-projections of latent attention and the norms behind them."""
    ranks = [rank for rank in (latent.q_rank, latent.kv_rank) if rank is not None]
    norms = sum(norm_params(layer.norm, rank) for rank in ranks)
    return hidden * (sum(ranks) + latent.rope_dim) + norms
