"""What a check finds, and the facts that all checks share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tangram.errors import InputError
from tangram.model.atoms import Atom, Part, cut_atoms, parse_granularity
from tangram.model.spec import LayerSpec, ModelSpec
from tangram.plan.schema import (
    GpuSection,
    IslandSection,
    NodeSection,
    PipelineSection,
    PlanDocument,
    StageSection,
)


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken rule.

    Attributes:
        code: Stable name of the rule; docs/plan-format.md lists them.
        where: Path of the field, such as ``pipelines[0].stages[2].dp``.
        message: What is wrong, with the numbers and what would be legal.
    """

    code: str
    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.where}: {self.message} [{self.code}]"


Violations = Iterator[Violation]


@dataclass(frozen=True, slots=True)
class StageFacts:
    """One stage with what surrounds it.

    Attributes:
        where: Path of the stage.
        pipeline: Its pipeline.
        stage: The stage.
        atoms: Its atoms, as far as they exist; empty when the model cannot be cut.
        gpus: The part of every rank whose node is known, in rank order.
    """

    where: str
    pipeline: PipelineSection
    stage: StageSection
    atoms: tuple[Atom, ...]
    gpus: tuple[GpuSection, ...]

    @property
    def is_last(self) -> bool:
        """Whether the stage ends its pipeline."""
        return self.stage is self.pipeline.stages[-1]

    @property
    def runs(self) -> tuple[StageFacts, ...]:
        """The stage itself; or, where its atoms differ in degrees, each run of them as if it were a stage."""
        if not self.stage.layer_configs:
            return (self,)
        first, found = self.stage.atoms[0], []
        for idx, run in enumerate(self.stage.layer_configs):
            start, stop = (max(0, at - first) for at in run.atoms)
            fields = {name: getattr(run, name) for name in type(run).model_fields}
            own = self.stage.model_copy(update=fields)
            where = f"{self.where}.layer_configs[{idx}]"
            found.append(replace(self, where=where, stage=own, atoms=self.atoms[start:stop]))
        return tuple(found)

    @property
    def parts(self) -> frozenset[Part]:
        """Kinds of parts that the stage runs."""
        return frozenset(p.part for atom in self.atoms for p in atom.parts)

    def layers_with(self, model: ModelSpec, *parts: Part) -> list[LayerSpec]:
        """Returns the different layers of which the stage runs one of these parts, in model order."""
        idxs = sorted(
            {
                p.layer_idx
                for atom in self.atoms
                for p in atom.parts
                if p.part in parts and p.layer_idx is not None
            }
        )
        return list(dict.fromkeys(model.layers[idx] for idx in idxs))


@dataclass(frozen=True, slots=True)
class Facts:
    """The document, and what follows from its parts taken alone.

    Attributes:
        doc: The document.
        model: The model, or None when its section contradicts itself.
        atoms: The atoms, or None when the model cannot be cut.
        nodes: By name; the first of equal names.
        parts: GPU parts by name; the first of equal names.
        islands: By name; the first of equal names.
        stages: Of all pipelines.
        broken: What stood in the way of the above.
    """

    doc: PlanDocument
    model: ModelSpec | None
    atoms: tuple[Atom, ...] | None
    nodes: dict[str, NodeSection]
    parts: dict[str, GpuSection]
    islands: dict[str, IslandSection]
    stages: tuple[StageFacts, ...]
    broken: tuple[Violation, ...]


def gather(doc: PlanDocument) -> Facts:
    """Collects the facts of a document; what cannot be had is None, and ``broken`` says why."""
    broken: list[Violation] = []
    model: ModelSpec | None = None
    atoms: tuple[Atom, ...] | None = None
    try:
        model = doc.model.to_spec()
    except InputError as error:
        broken.append(Violation("model-invalid", error.where or "model", _text(error)))
    if model is not None:
        try:
            atoms = cut_atoms(model, parse_granularity(doc.granularity))
        except InputError as error:
            broken.append(Violation("granularity-invalid", "granularity", _text(error)))
    nodes = {node.name: node for node in reversed(doc.cluster.nodes)}
    parts = {gpu.name: gpu for gpu in reversed(doc.cluster.gpus)}
    stages = []
    for idx, pipeline in enumerate(doc.pipelines):
        for stage_idx, stage in enumerate(pipeline.stages):
            start, stop = stage.atoms
            known = [nodes[slot.node].gpu for slot in stage.ranks if slot.node in nodes]
            stages.append(
                StageFacts(
                    where=f"pipelines[{idx}].stages[{stage_idx}]",
                    pipeline=pipeline,
                    stage=stage,
                    atoms=(atoms or ())[start:stop],
                    gpus=tuple(parts[name] for name in known if name in parts),
                )
            )
    return Facts(
        doc=doc,
        model=model,
        atoms=atoms,
        nodes=nodes,
        parts=parts,
        islands={island.name: island for island in reversed(doc.islands)},
        stages=tuple(stages),
        broken=tuple(broken),
    )


def _text(error: InputError) -> str:
    return f"{error.message}; {error.hint}" if error.hint else error.message
