"""Slices of a plan: is every atom of the model in exactly one stage of each pipeline, in order?"""

from __future__ import annotations

from itertools import pairwise

from tangram.plan.schema import PipelineSection
from tangram.plan.violation import Facts, StageFacts, Violation, Violations


def check_slices(facts: Facts) -> Violations:
    """Checks that stages cover the model once and in order, and that what they say of their slice is true."""
    if len(facts.doc.pipelines) != 1:
        yield Violation(
            "pipeline-count", "pipelines", f"there are {len(facts.doc.pipelines)}; version 1 runs exactly one"
        )
    for idx, pipeline in enumerate(facts.doc.pipelines):
        yield from _coverage(facts, pipeline, f"pipelines[{idx}]")
    for item in facts.stages:
        yield from _ends(item)
        yield from _layers(item)
        yield from _recompute(item)
        yield from _offload(item)
        yield from _layer_configs(facts, item)


def _coverage(facts: Facts, pipeline: PipelineSection, where: str) -> Violations:
    if not pipeline.stages:
        yield Violation("stages-missing", f"{where}.stages", "there is no stage; at least one is needed")
        return
    num_atoms = len(facts.atoms) if facts.atoms is not None else facts.doc.num_atoms
    due = 0
    for idx, stage in enumerate(pipeline.stages):
        place = f"{where}.stages[{idx}]"
        start, stop = stage.atoms
        if stage.index != idx:
            yield Violation("stage-index", f"{place}.index", f"is {stage.index}; {idx} is due")
        if stop > num_atoms:
            yield Violation(
                "slice-out-of-range", f"{place}.atoms", f"ends at {stop}; the model has {num_atoms} atoms"
            )
        if stop <= start:
            yield Violation("slice-empty", f"{place}.atoms", f"[{start}, {stop}) holds no atom")
        if start > due:
            yield Violation("layers-missing", f"{place}.atoms", f"atoms {due} to {start - 1} are in no stage")
        elif start < due:
            yield Violation(
                "layers-twice",
                f"{place}.atoms",
                f"starts at {start}; atoms up to {due - 1} are in earlier stages",
            )
        due = max(due, stop)
    if due < num_atoms:
        yield Violation(
            "layers-missing", f"{where}.stages", f"atoms {due} to {num_atoms - 1} are in no stage"
        )


def _ends(item: StageFacts) -> Violations:
    if not item.atoms:
        return
    start, stop = item.stage.atoms
    found = {
        "has_embedding": any(atom.is_embedding for atom in item.atoms),
        "has_head": any(atom.is_head for atom in item.atoms),
    }
    for name, holds in found.items():
        if getattr(item.stage, name) != holds:
            yield Violation(
                "ends-differ",
                f"{item.where}.{name}",
                f"is {str(not holds).lower()}; atoms [{start}, {stop}) say otherwise",
            )


def _layers(item: StageFacts) -> Violations:
    touched = sorted({idx for atom in item.atoms for idx in atom.layer_idxs})
    start, stop = item.stage.layers
    if not item.atoms:
        return
    if not touched:
        if start != stop:
            yield Violation(
                "layers-differ",
                f"{item.where}.layers",
                f"is [{start}, {stop}); the stage has no transformer layer",
            )
    elif (start, stop) != (touched[0], touched[-1] + 1):
        yield Violation(
            "layers-differ",
            f"{item.where}.layers",
            f"is [{start}, {stop}); atoms [{item.stage.atoms[0]}, {item.stage.atoms[1]}) hold layers "
            f"[{touched[0]}, {touched[-1] + 1})",
        )


def _recompute(item: StageFacts) -> Violations:
    start, stop = item.stage.atoms
    entries = item.stage.recompute
    wrong = next((i for i, entry in enumerate(entries) if entry.atom != start + i), None)
    if wrong is not None:
        yield Violation(
            "recompute-atoms",
            f"{item.where}.recompute[{wrong}].atom",
            f"is {entries[wrong].atom}; entries follow the atoms of the stage, so {start + wrong} is due",
        )
        return
    num_atoms = max(0, stop - start)
    if len(entries) != num_atoms:
        yield Violation(
            "recompute-atoms",
            f"{item.where}.recompute",
            f"has {len(entries)} entries; the stage has {num_atoms} atoms, each of which needs one",
        )
    for i, (entry, atom) in enumerate(zip(entries, item.atoms, strict=False)):
        if tuple(entry.layers) != atom.layer_idxs:
            yield Violation(
                "recompute-layers",
                f"{item.where}.recompute[{i}].layers",
                f"is {entry.layers}; atom {entry.atom} holds {list(atom.layer_idxs)}",
            )


def _offload(item: StageFacts) -> Violations:
    start, stop = item.stage.atoms
    atoms = item.stage.offload_activation_atoms
    where = f"{item.where}.offload_activation_atoms"
    if any(b <= a for a, b in pairwise(atoms)):
        yield Violation("offload-atoms", where, "atoms are not ascending")
    outside = [atom for atom in atoms if not start <= atom < stop]
    if outside:
        yield Violation("offload-atoms", where, f"atom {outside[0]} is not in the slice [{start}, {stop})")


def _layer_configs(facts: Facts, item: StageFacts) -> Violations:
    runs, where = item.stage.layer_configs, f"{item.where}.layer_configs"
    if not runs:
        return
    start, stop = item.stage.atoms
    bounds = [start, *(run.atoms[1] for run in runs)]
    due = [(a, b) for a, b in pairwise(bounds) if a < b]
    if len(runs) < 2 or [run.atoms for run in runs] != due or bounds[-1] != stop:
        yield Violation(
            "layer-configs-atoms",
            where,
            f"holds {', '.join(f'[{a}, {b})' for a, b in (run.atoms for run in runs))}; due are two or more "
            f"runs that cover [{start}, {stop}) in order",
        )
        return
    first = runs[0]
    differs = [
        n for n in type(first).model_fields if n != "atoms" and getattr(first, n) != getattr(item.stage, n)
    ]
    if differs:
        yield Violation(
            "layer-configs-first",
            f"{where}[0].{differs[0]}",
            f"is {getattr(first, differs[0])}; the stage's own field, which is that of its first run, is "
            f"{getattr(item.stage, differs[0])}",
        )
    tied = facts.model is not None and facts.model.shares_embedding
    if tied and item.stage.has_embedding and item.stage.has_head:
        last = runs[-1].model_copy(update={"atoms": first.atoms})
        if last != first:
            yield Violation(
                "layer-configs-tied",
                f"{where}[{len(runs) - 1}]",
                "differs from the first; embedding and head of this stage share their matrix",
            )
