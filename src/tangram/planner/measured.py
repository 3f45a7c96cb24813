"""From measured layers to the factors that a job carries: done once, before anything is predicted.

For every distinct atom, island, tp inside a node and number of samples on a rank that the planner may try,
the lookup (:mod:`tangram.profiles.lookup`) says what the atom takes; the factor is that time over the cost
model's (:mod:`tangram.profiles.factors`). Where nothing comparable was measured, formulas count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tangram.basis import PLAIN_FORMULA, FactorKey, MeasuredFactor, MeasuredTable
from tangram.cluster.spec import Assumption, Island, Portion
from tangram.cost.atoms import atom_costs
from tangram.cost.configs import tensor_parallel_degrees
from tangram.cost.constants import stack_constants
from tangram.cost.factors import applies
from tangram.cost.types import StageConfig, StageConfigs
from tangram.job import Job, divisors
from tangram.model.atoms import Atom, has_experts
from tangram.model.spec import ModelSpec
from tangram.parallelizers.protocols import StageChoice
from tangram.profiles.factors import AtomQuery, atom_factor
from tangram.profiles.formula import CostFormula
from tangram.profiles.lookup import Basis
from tangram.profiles.measured import MeasuredLayers
from tangram.profiles.shapes import atom_shapes, has_window

KINDS = (*(basis.value for basis in Basis), PLAIN_FORMULA)
"""What an atom's time can rest on, the best first."""

_Passes = tuple[float, float]


def with_measured(
    job: Job,
    measured: MeasuredLayers | None,
    model: ModelSpec,
    atoms: Sequence[Atom],
    islands: Sequence[Island],
) -> Job:
    """Returns the job with the factors that measured layers give for it; the job itself without measurements.

    Args:
        job: The job.
        measured: Measured layers; None leaves the job as it is.
        model: The model.
        atoms: All atoms of it.
        islands: The islands that may be used.
    """
    if measured is None:
        return job
    kinds = tuple({atom.fingerprint: atom for atom in atoms}.values())
    formulas = replace(job, basis=replace(job.basis, measured=MeasuredTable()))
    factors: list[MeasuredFactor] = []
    for island in islands:
        if island.gpu.supports(job.precision) and (island.gpu.name, job.precision) in measured.tables:
            factors += _IslandFactors(model, kinds, island, formulas, measured).all()
    table = MeasuredTable(job.precision.value, job.seq_len, tuple(factors), is_whole=True)
    return replace(job, basis=replace(job.basis, measured=table if factors else MeasuredTable()))


@dataclass(frozen=True, slots=True)
class _IslandFactors:
    """Sets measured layers against the cost model on one island.

    Attributes:
        model, kinds: The model and its distinct atoms.
        island: The GPUs.
        job: The job, resting on formulas alone.
        measured: Measured layers.
    """

    model: ModelSpec
    kinds: tuple[Atom, ...]
    island: Island
    job: Job
    measured: MeasuredLayers

    def _timed(self) -> ModelSpec:
        """The model as shapes of measured layers see it: without windows, for their times are of all keys."""
        whole = {
            layer: replace(layer, attention=replace(layer.attention, window=None))
            for layer in self.model.distinct_layers
        }
        return replace(self.model, layers=tuple(whole[layer] for layer in self.model.layers))

    def all(self) -> list[MeasuredFactor]:
        """Returns the factors of all atoms, degrees and samples, plain formulas included."""
        formula = CostFormula(self.island, self.job.precision, self.job.basis)
        found: list[MeasuredFactor] = []
        timed = self._timed()
        # Whatever is pinned: repairs try what is not.
        for tp in tensor_parallel_degrees(self.model, self.island.joined_gpus):
            for samples in divisors(self.job.global_batch):
                base = self._formula_times(timed, tp, samples)
                for atom in self.kinds:
                    key = FactorKey(atom.fingerprint, self.island.name, tp, samples)
                    own = self._factor(atom, key, formula, base[atom.fingerprint])
                    found.append(own or MeasuredFactor(key, 1.0, 1.0, False, PLAIN_FORMULA))
        return found

    def _formula_times(self, model: ModelSpec, tp: int, samples: int) -> dict[str, _Passes]:
        """What the cost model says of every atom on one group inside a node, collectives included."""
        config = StageConfig(dp=1, tp=tp, expert_tp=tp if self.model.has_moe else 1)
        portion = Portion(self.island, 1, tp)
        costs = atom_costs(model, self.kinds, portion, StageConfigs.of([config]), samples, self.job)
        passes = zip(costs.forward_s[:, 0].tolist(), costs.backward_s[:, 0].tolist(), strict=True)
        return {atom.fingerprint: both for atom, both in zip(self.kinds, passes, strict=True)}

    def _factor(
        self, atom: Atom, key: FactorKey, formula: CostFormula, base: _Passes
    ) -> MeasuredFactor | None:
        shapes = atom_shapes(self.model, atom, self.job.seq_len)
        query = AtomQuery(self.island.gpu.name, self.job.precision, shapes, key.tp, key.samples)
        found = atom_factor(self.measured, query, formula, base)
        if found is None:
            return None
        basis = Basis.SCALED if has_window(self.model, atom, self.job.seq_len) else found.basis
        return MeasuredFactor(key, found.forward, found.backward, found.includes_tp_comm, basis=basis.value)


def used_factors(
    job: Job, atoms: Sequence[Atom], stages: Sequence[StageChoice], micro_batch: int
) -> MeasuredTable:
    """Returns what of the job's factors a pipeline rests on; plain formulas are left out."""
    table = job.basis.measured
    if not applies(job):
        return MeasuredTable()
    keys = {
        _key(atom, stage, config, micro_batch)
        for stage in stages
        for atom, config in zip(atoms[stage.start : stage.stop], stage.configs, strict=True)
    }
    found = [factor for key in sorted(keys) if (factor := table.find(key)) is not None]
    used = tuple(factor for factor in found if factor.basis != PLAIN_FORMULA)
    return MeasuredTable(table.precision, table.seq_len, used) if used else MeasuredTable()


def atom_bases(
    job: Job, atoms: Sequence[Atom], stages: Sequence[StageChoice], micro_batch: int
) -> Counter[str]:
    """Counts the atoms of a pipeline by what their times rest on (:data:`KINDS`).

    Under context or expert parallelism, and where experts are split otherwise than they were timed, a
    measured factor is a scaled formula.
    """
    counts: Counter[str] = Counter()
    for stage in stages:
        for atom, config in zip(atoms[stage.start : stage.stop], stage.configs, strict=True):
            key = _key(atom, stage, config, micro_batch)
            factor = job.basis.measured.find(key) if applies(job) else None
            basis = factor.basis if factor is not None else PLAIN_FORMULA
            other_experts = has_experts([atom]) and (config.ep > 1 or config.expert_tp != config.tp)
            if basis != PLAIN_FORMULA and (config.cp > 1 or other_experts):
                basis = Basis.SCALED.value
            counts[basis] += 1
    return counts


def unmeasured_notes(
    measured: MeasuredLayers | None, job: Job, islands: Sequence[Island]
) -> list[Assumption]:
    """Says of which GPUs no layer was measured in the job's precision, if profiles are used."""
    if measured is None:
        return []
    names = sorted({island.gpu.name for island in islands})
    return [
        Assumption(
            f"formulas for {name}", f"no layer was measured on it in {job.precision.value} with that stack"
        )
        for name in names
        if (name, job.precision) not in measured.tables
    ]


def transfer_notes(job: Job) -> list[Assumption]:
    """Says where transfers between stages are exposed in a stack, but hidden in the plan."""
    exposed = stack_constants(job.basis.stack, job.basis.overrides).p2p_exposed_frac
    if not job.overlap_p2p or exposed <= 0:
        return []
    why = f"{job.basis.stack} waits for {exposed:.0%} of each; --no-engine-overlap counts all of it"
    return [Assumption("transfers between stages are hidden behind compute", why)]


def _key(atom: Atom, stage: StageChoice, config: StageConfig, micro_batch: int) -> FactorKey:
    return FactorKey(atom.fingerprint, stage.portion.island.name, config.tp, micro_batch // config.dp)
