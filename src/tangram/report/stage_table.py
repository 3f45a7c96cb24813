"""The table of stages: one line per stage where it fits, else two."""

from __future__ import annotations

from collections import Counter

from rich.text import Text

from tangram.job import Recompute
from tangram.plan.schema import LayerConfig, PipelineSection, PlanDocument, StageSection
from tangram.report.bars import bar, fill_style
from tangram.report.grid import Grid
from tangram.report.page import Page
from tangram.report.words import counted, listed
from tangram.units import GIB

_WIDE_BAR, _NARROW_BAR = 12, 8


def add_stages(page: Page, doc: PlanDocument) -> None:
    """Adds the stages of all pipelines, and what the columns mean."""
    for pipeline in doc.pipelines:
        micro_batches = counted(pipeline.num_micro_batches, "micro-batch", "micro-batches")
        page.heading(
            "Pipeline",
            f"{counted(len(pipeline.stages), 'stage')}, {micro_batches} of "
            f"{counted(pipeline.micro_batch, 'sample')} per step, {pipeline.schedule.kind.upper()}",
        )
        _add_table(page, pipeline)
    page.wrapped(_legend(doc), style="dim")


def degrees(stage: StageSection) -> str:
    """Returns the degrees of a stage: always tp and dp, the others where they are not 1 or 0.

    Where atoms differ it counts those of each kind, for example ``mixed: 12x tp1 dp8 zero3, 4x tp2 dp4``.
    """
    if not stage.layer_configs:
        return _degrees(stage)
    counts: Counter[str] = Counter()
    for run in stage.layer_configs:
        counts[_degrees(run)] += run.atoms[1] - run.atoms[0]
    return "mixed: " + ", ".join(f"{number}x {words}" for words, number in counts.items())


def _degrees(stage: StageSection | LayerConfig) -> str:
    parts = [f"tp{stage.tp}", f"dp{stage.dp}"]
    parts += [f"cp{stage.cp}"] if stage.cp > 1 else []
    parts += [f"ep{stage.ep}"] if stage.ep > 1 else []
    parts += [f"etp{stage.expert_tp}"] if stage.expert_tp > 1 else []
    parts += [f"zero{stage.zero}"] if stage.zero else []
    return " ".join(parts)


def gpus(stage: StageSection) -> str:
    """Returns the GPUs of a stage by island, for example ``4x A100-80GB-SXM``."""
    return f"{len(stage.ranks)}x {stage.island}"


def layers(stage: StageSection) -> str:
    """Returns the layers of a stage, first to last, with the ends of the model that it holds."""
    start, stop = stage.layers
    parts = ["emb"] if stage.has_embedding else []
    parts += [str(start) if stop - start == 1 else f"{start}-{stop - 1}"] if stop > start else []
    parts += ["head"] if stage.has_head else []
    return "+".join(parts)


def recompute(stage: StageSection) -> str:
    """Returns which share of the layers recomputes what, for example ``full 12/24``."""
    atoms = [entry for entry in stage.recompute if entry.layers]
    parts = []
    for mode in (Recompute.SELECTIVE, Recompute.FULL):
        count = sum(entry.mode is mode for entry in atoms)
        if count:
            parts.append(mode.value if count == len(atoms) else f"{mode.value} {count}/{len(atoms)}")
    return "+".join(parts) or "none"


def offload(stage: StageSection) -> str:
    """Returns what lives in host memory, or an empty text."""
    parts = ["optimizer"] if stage.offload_optimizer else []
    if stage.offload_activation_atoms:
        parts.append(f"activations of {len(stage.offload_activation_atoms)}/{len(stage.recompute)} atoms")
    return f"offloads {listed(parts)}" if parts else ""


def _add_table(page: Page, pipeline: PipelineSection) -> None:
    for bar_width in (_WIDE_BAR, _NARROW_BAR):
        grid = _wide(page, pipeline, bar_width)
        if grid.width <= page.width:
            page.grid(grid)
            return
    grid, notes = _tall(page, pipeline)
    header = grid.header()
    if header is not None:
        page.line(header)
    for row, note in zip(grid.rows(), notes, strict=True):
        page.line(row)
        page.wrapped(note, indent=5)


def _wide(page: Page, pipeline: PipelineSection, bar_width: int) -> Grid:
    """One line per stage; columns for recomputation and offloading only where there is any."""
    with_recompute = any(recompute(stage) != "none" for stage in pipeline.stages)
    with_offload = any(offload(stage) for stage in pipeline.stages)
    headers = ["#", "GPUs", "layers", "degrees", "fwd + bwd", "w"]
    headers += ["recompute"] * with_recompute + ["offload"] * with_offload
    grid = Grid([*headers, "peak memory"], "rlllrr" + "l" * (len(headers) - 5))
    for stage in pipeline.stages:
        cells = [str(stage.index), gpus(stage), layers(stage), degrees(stage)]
        cells += [_times(stage), str(stage.predicted.in_flight)]
        cells += [recompute(stage)] if with_recompute else []
        cells += [offload(stage).removeprefix("offloads ")] if with_offload else []
        grid.add(*cells, _memory(stage, bar_width, page.unicode))
    return grid


def _tall(page: Page, pipeline: PipelineSection) -> tuple[Grid, list[str]]:
    """Two lines per stage: the choices go below."""
    grid = Grid(["#", "GPUs", "layers", "fwd + bwd", "w", "peak memory"], "rllrrl")
    notes = []
    for stage in pipeline.stages:
        memory = _memory(stage, _NARROW_BAR, page.unicode)
        cells = [str(stage.index), gpus(stage), layers(stage), _times(stage), str(stage.predicted.in_flight)]
        grid.add(*cells, memory)
        recomputed = recompute(stage)
        choices = [degrees(stage), "" if recomputed == "none" else f"recompute {recomputed}", offload(stage)]
        notes.append(", ".join(choice for choice in choices if choice))
    return grid, notes


def _times(stage: StageSection) -> str:
    """Forward and backward in one unit, so that they can be compared at a glance."""
    forward, backward = stage.predicted.forward_s, stage.predicted.backward_s
    if max(forward, backward) >= 1:
        return f"{forward:.2f} + {backward:.2f} s"
    digits = 0 if max(forward, backward) >= 0.1 else 1
    return f"{forward * 1e3:.{digits}f} + {backward * 1e3:.{digits}f} ms"


def _memory(stage: StageSection, bar_width: int, unicode: bool) -> Text:
    peak, capacity = stage.predicted.peak_bytes, stage.predicted.capacity_bytes
    fraction = peak / capacity if capacity > 0 else 2.0
    text = Text(bar(fraction, bar_width, unicode=unicode), style=fill_style(fraction))
    text.append(f" {peak / GIB:5.1f} / {capacity / GIB:.1f} GiB", style="none")
    return text


def _legend(doc: PlanDocument) -> str:
    parts = [
        "fwd + bwd: time of one micro-batch",
        "w: micro-batches in flight",
        "peak memory: of the fullest GPU, with a margin, against what it can allocate"
        if any(stage.predicted.memory.get("margin") for stage in doc.stages)
        else "peak memory: of the fullest GPU, against what it can allocate",
    ]
    kinds = {stage.predicted.in_flight for stage in doc.stages}
    if kinds == {1}:
        parts.pop(1)
    if all(recompute(stage) == "none" for stage in doc.stages):
        parts.append("no layer is recomputed")
    if any("etp" in degrees(stage) for stage in doc.stages):
        parts.insert(0, "etp: tensor-parallel degree of the experts")
    if any(stage.layer_configs for stage in doc.stages):
        parts.insert(0, "mixed: so many atoms of each kind, embedding and head among them")
    if any("emb" in layers(stage) for stage in doc.stages):
        parts.insert(0, "layers: counted from 0")
    return "; ".join(parts) + "."
