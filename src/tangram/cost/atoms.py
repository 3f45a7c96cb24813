"""What each atom costs under every configuration of a table: the analytic form of the cost model.

An atom's work is the sum of its parts'. Everything is vectorised over configurations; atoms of equal
fingerprint are computed once. The steps: parts -> tables of work (:mod:`tangram.cost.parts`) -> sums per
distinct atom -> states, overlap, memory -> one row per atom of the request.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import numpy as np

from tangram.cluster.spec import Portion
from tangram.cost import memory, states, work
from tangram.cost.constants import constants_of
from tangram.cost.factors import applies, factored_times
from tangram.cost.parts import fill_part, vocab_matrix_params
from tangram.cost.rates import Rates
from tangram.cost.setting import Setting
from tangram.cost.types import AtomCosts, FloatArray, IntArray, StageConfig, StageConfigs
from tangram.job import Job
from tangram.model.atoms import Atom, Part
from tangram.model.spec import LayerSpec, ModelSpec

COMPONENTS = (
    *work.TIME_NAMES,
    "zero",
    "offload",
    "grad_sync",
    "param_gather",
    "optimizer",
    "optimizer_offload",
)
"""Keys of ``AtomCosts.components``: nine parts of forward plus backward, four of the step."""

STEP_COMPONENTS = COMPONENTS[-4:]

FIELDS = (
    "forward_s",
    "backward_s",
    "recompute_s",
    "weight_bytes",
    "gradient_bytes",
    "optimizer_bytes",
    "stored_bytes",
    "recomputed_stored_bytes",
    "workspace_bytes",
    "recompute_workspace_bytes",
    "step_s",
)
"""First rows of :func:`fields_of`; ``COMPONENTS`` follow."""


def atom_costs(
    model: ModelSpec,
    atoms: Sequence[Atom],
    portion: Portion,
    configs: StageConfigs,
    micro_batch: int | IntArray,
    job: Job,
) -> AtomCosts:
    """Returns the costs of atoms on a portion.

    Args:
        model: The whole model.
        atoms: Atoms of it, in any selection and order.
        portion: The GPUs of one stage.
        configs: Legal configurations of that portion (see :func:`tangram.cost.configs.legal_configs`).
        micro_batch: Global micro-batch, in samples; or one per configuration.
        job: The job.

    Returns:
        Arrays of shape ``(len(atoms), len(configs))``. ``tied_bytes`` and ``tied_step_s`` are zero unless
        embeddings are tied and ``atoms`` holds both ends of the model.

    Raises:
        InputError: The GPU has no arithmetic in the job's precision.
    """
    return itemised_costs(model, atoms, portion, configs, micro_batch, job)[0]


def least_reserve_bytes(model: ModelSpec, portion: Portion, job: Job) -> float:
    """Returns what a GPU loses in any stage on GPUs of this kind, without margin.

    Args:
        model: The whole model.
        portion: Any one.
        job: The job.
    """
    config = StageConfig(dp=portion.num_gpus, tp=1)
    setting = Setting.of(model, portion, StageConfigs.of([config]), portion.num_gpus, job)
    rates = Rates.of(setting, constants_of(portion.island.gpu, job.basis))
    return float(memory.least_reserve_bytes(setting, rates)[0])


class TiedShare(NamedTuple):
    """What a stage with both ends of a tied model counts twice; arrays of shape ``(num_configs,)``."""

    held: states.StateBytes
    step: states.StepTime

    def take(self, columns: slice | IntArray) -> TiedShare:
        """Returns the shares under some configurations."""
        return TiedShare(
            states.StateBytes(*(values[columns] for values in self.held)),
            states.StepTime(*(values[columns] for values in self.step)),
        )

    @staticmethod
    def none(num_configs: int) -> TiedShare:
        """Returns the shares of a stage that does not hold both ends, or whose model is not tied."""
        nothing = np.zeros(num_configs)
        return TiedShare(states.StateBytes(*[nothing] * 3), states.StepTime(*[nothing] * 4))


def itemised_costs(
    model: ModelSpec,
    atoms: Sequence[Atom],
    portion: Portion,
    configs: StageConfigs,
    micro_batch: int | IntArray,
    job: Job,
) -> tuple[AtomCosts, TiedShare]:
    """Returns :func:`atom_costs`, and the tied share item by item; arguments as there."""
    setting = Setting.of(model, portion, configs, micro_batch, job)
    layout = layout_of(model, atoms)
    work_of = summed(setting, layout)
    rates = Rates.of(setting, constants_of(portion.island.gpu, job.basis))
    times = rates.times(work_of.table)
    if applies(job):
        times = factored_times(setting, layout.distinct, portion.island.name, times)
    fields = fields_of(setting, rates, work_of, times)
    spread = fields[:, layout.atom_of, :]
    tied = _tied(setting, rates, layout, times)
    costs = AtomCosts(
        **dict(zip(FIELDS, spread, strict=False)),
        components=dict(zip(COMPONENTS, spread[len(FIELDS) :], strict=True)),
        reserve_bytes=memory.reserve_bytes(setting, rates),
        tied_bytes=tied.held.sum(),
        tied_step_s=tied.step.sum(),
    )
    return costs, tied


@dataclass(frozen=True, slots=True)
class Layout:
    """Which distinct atoms there are, and of which distinct parts they consist.

    Attributes:
        distinct: First atom of each fingerprint.
        atom_of: Distinct atom of each requested atom.
        part_of: Per distinct atom, per part, the distinct part.
        part_owner: Per distinct part, a (distinct atom, position) that holds it.
        embedding, head: Which distinct atom is an end of the model; None when absent.
    """

    distinct: tuple[Atom, ...]
    atom_of: list[int]
    part_of: tuple[tuple[int, ...], ...]
    part_owner: tuple[tuple[int, int], ...]
    embedding: int | None
    head: int | None


def layout_of(model: ModelSpec, atoms: Sequence[Atom]) -> Layout:
    """Numbers the distinct atoms and parts, in order of first appearance."""
    numbers: dict[str, int] = {}
    distinct: list[Atom] = []
    atom_of = []
    for atom in atoms:
        number = numbers.setdefault(atom.fingerprint, len(distinct))
        if number == len(distinct):
            distinct.append(atom)
        atom_of.append(number)
    kinds: dict[LayerSpec, int] = {}
    parts: dict[tuple[Part, int], int] = {}
    part_of, owners = [], []
    for a, atom in enumerate(distinct):
        kind_of = {i: kinds.setdefault(model.layers[i], len(kinds)) for i in atom.layer_idxs}
        keys = [(p.part, -1 if p.layer_idx is None else kind_of[p.layer_idx]) for p in atom.parts]
        for position, key in enumerate(keys):
            if key not in parts:
                parts[key] = len(parts)
                owners.append((a, position))
        part_of.append(tuple(parts[key] for key in keys))
    embedding = next((a for a, atom in enumerate(distinct) if atom.is_embedding), None)
    head = next((a for a, atom in enumerate(distinct) if atom.is_head), None)
    return Layout(tuple(distinct), atom_of, tuple(part_of), tuple(owners), embedding, head)


@dataclass(frozen=True, slots=True)
class Work:
    """Work of the distinct atoms.

    Attributes:
        table: Shape ``(NUM_ROWS, num_distinct, num_configs)``; rows as in :mod:`tangram.cost.work`.
        layer_dense, layer_expert: Parameters of the largest layer in the atom (an atom may hold several);
            shape ``(num_distinct, num_configs)``.
    """

    table: FloatArray
    layer_dense: FloatArray
    layer_expert: FloatArray


def summed(setting: Setting, layout: Layout) -> Work:
    """Fills the tables of the distinct parts and adds them up, always in the same order."""
    num_configs, num_distinct = len(setting.configs), len(layout.distinct)
    parts = np.zeros((len(layout.part_owner), work.NUM_ROWS, num_configs))
    for table, (a, position) in zip(parts, layout.part_owner, strict=True):
        fill_part(setting, layout.distinct[a].parts[position], table)
    table = np.zeros((work.NUM_ROWS, num_distinct, num_configs))
    layer_params = np.zeros((2, num_distinct, num_configs))
    for a, atom in enumerate(layout.distinct):
        for part in layout.part_of[a]:
            table[: work.NUM_SUMMED, a] += parts[part, : work.NUM_SUMMED]
            peaks = table[work.TRANSIENT : work.INPUT, a]
            np.maximum(peaks, parts[part, work.TRANSIENT : work.INPUT], out=peaks)
        table[work.INPUT, a] = parts[layout.part_of[a][0], work.INPUT]
        for layer in _layer_groups(atom, layout.part_of[a]):
            held = sum(parts[part, work.DENSE_PARAMS : work.EXPERT_PARAMS + 1] for part in layer)
            np.maximum(layer_params[:, a], held, out=layer_params[:, a])
    return Work(table, layer_params[0], layer_params[1])


def _layer_groups(atom: Atom, part_of: tuple[int, ...]) -> Iterator[list[int]]:
    """Yields the distinct parts of each layer of an atom."""
    numbered = zip(atom.parts, part_of, strict=True)
    for _, group in groupby(numbered, key=lambda pair: pair[0].layer_idx):
        yield [part for _, part in group]


def _compute_s(times: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Kernels of forward and of backward, without collectives."""
    last = work.BACKWARD_S + work.NUM_COMPUTE
    return times[: work.NUM_COMPUTE].sum(axis=0), times[work.BACKWARD_S : last].sum(axis=0)


def fields_of(setting: Setting, rates: Rates, work_of: Work, times: FloatArray) -> FloatArray:
    """Returns all fields, then all components: shape ``(num_fields, num_distinct, num_configs)``."""
    table = work_of.table
    dense, expert = table[work.DENSE_PARAMS], table[work.EXPERT_PARAMS]
    stored = memory.stored_bytes(setting, rates, table)
    forward_compute, backward_compute = _compute_s(times)
    own_forward = times[: work.BACKWARD_S].sum(axis=0)
    own_backward = times[work.BACKWARD_S :].sum(axis=0)
    copy_forward, copy_backward = memory.offload_s(setting, rates, stored, forward_compute, backward_compute)
    hiding = ~setting.configs.offload_activations
    spare = hiding * forward_compute, hiding * backward_compute
    zero_forward, zero_backward = states.zero_s(setting, rates, dense, expert, *spare)
    step = states.step_time(setting, rates, dense, expert, *spare)
    fields = np.empty((len(FIELDS) + len(COMPONENTS), *dense.shape))
    fields[0] = own_forward + zero_forward + copy_forward
    fields[1] = own_backward + zero_backward + copy_backward
    # An atom recomputed in full does not recompute its attention core once more, and its activations do not
    # cross PCIe: backward_s and forward_s hold these, so they are taken off here.
    saved = setting.configs.selective * times[work.ATTENTION_S] + copy_forward + copy_backward
    fields[2] = np.maximum(own_forward - saved, 0.0)
    fields[3:6] = states.state_bytes(setting, dense, expert)
    fields[6:10] = memory.activation_bytes(setting, rates, table, work_of.layer_dense, work_of.layer_expert)
    fields[10] = step.sum()
    components = fields[len(FIELDS) :]
    components[: work.BACKWARD_S] = times[: work.BACKWARD_S] + times[work.BACKWARD_S :]
    components[7] = zero_forward + zero_backward
    components[8] = copy_forward + copy_backward
    components[9:13] = step
    return fields


def tied_share(setting: Setting, rates: Rates, matrix: FloatArray, embedding_times: FloatArray) -> TiedShare:
    """Returns what a stage with both ends of a tied model counts twice.

    The embedding's copy is dropped, so it is the embedding's compute that decides what was hidden.

    Args:
        setting: Degrees.
        rates: Of links, and what overlaps.
        matrix: Parameters of one vocabulary matrix on a rank; ``(num_configs,)``.
        embedding_times: Times of the embedding; ``(NUM_TIMES, num_configs)``.
    """
    hiding, nothing = ~setting.configs.offload_activations, np.zeros_like(matrix)
    forward_s, backward_s = (hiding * seconds for seconds in _compute_s(embedding_times))
    return TiedShare(
        states.state_bytes(setting, matrix, nothing),
        states.step_time(setting, rates, matrix, nothing, forward_s, backward_s),
    )


def _tied(setting: Setting, rates: Rates, layout: Layout, times: FloatArray) -> TiedShare:
    if not setting.model.shares_embedding or layout.embedding is None or layout.head is None:
        return TiedShare.none(len(setting.configs))
    return tied_share(setting, rates, vocab_matrix_params(setting), times[:, layout.embedding])
