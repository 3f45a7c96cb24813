"""Regenerates the tables of docs/accuracy.md: fits all published rows, leaves rows out in every way, scores.

    python bench/accuracy.py ../shared/data/measured            prints the tables
    python bench/accuracy.py ../shared/data/measured --write    writes them to docs/accuracy.md
        --calibration src/tangram/cost/calibration.json         and the constants to ship
        --only mixed --only profiles                            only these tables, in seconds
        --only upper                                            upper estimates of memory, in a minute

Takes some minutes without ``--only``. The shipped calibration is made by ``tangram calibrate`` from the same
files.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from markdown import DOCS, table, write_sections
from tangram.cost import constants
from tangram.cost.constants import Shelf
from tangram.job import Precision
from tangram.profiles.importers.formats import import_files
from tangram.profiles.importers.harvest import Given
from tangram.profiles.measured import MeasuredLayers
from tangram.profiles.store import load, save
from tangram.validation.bands import COVERED
from tangram.validation.calibration import MEMORY_CONSTANTS, cross_validate, errors_of
from tangram.validation.calibration_file import Scores, calibrate, calibration_text, group_errors, time_bands
from tangram.validation.fit import Target, fit, measured
from tangram.validation.folds import spread_choice
from tangram.validation.measured import measured_batch
from tangram.validation.pipelines import RunBatch, iteration_s, predict_batch
from tangram.validation.predict import REFITTED, predict
from tangram.validation.ranking import job_key, top_1_regret
from tangram.validation.reading import read_runs
from tangram.validation.run import Attention, Run
from tangram.validation.scores import trivial_errors
from tangram.validation.slots import EVERYBODY, Shelves, Slot, owners_of, unfitted
from tangram.validation.upper import UPPER_COVERED, left_out_ratios

FITTED = (
    "llm_foundry",
    "bigscience_bloom_a100",
    "simumax_b200",
    "vtrain_multi",
    "dgxc_benchmarking",
    "megatron_bridge",
    "nemo_automodel",
    "megatron_bridge_ep_overlap",
    "galvatron_measured",
    "alpa_measured",
    "sailor_validation",
    "megatron_lm_ci",
)
"""Files that constants are fitted on; the others have noise, gaps or units that their sources do not fix."""

PARTS = ("fits", "ranking", "mixed", "profiles", "upper")
RANKED = ("bigscience_bloom_a100", "vtrain_multi", "amp_heterogeneous")
MIXED = ("sailor_validation", "amp_heterogeneous")
REFIT_ROWS = 10


def runs_of(folder: Path, names: Sequence[str]) -> list[Run]:
    results = read_runs(str(folder / f"{name}.csv") for name in names)
    return [result.run for result in results if result.run is not None]


def percent(value: float) -> str:
    return f"{100 * value:.1f}"


def errors_table(scores: Scores, *, with_trivial: bool) -> str:
    """One line per file, GPU, experts and 8 bit."""
    headers = ["rows of", "GPU", "rows", "fitted on", "five folds", "median", "worst", "model left out"]
    headers += ["source left out", *(["one constant"] if with_trivial else [])]
    lines = []
    for group in group_errors(scores):
        cells = [
            group.file.removesuffix(".csv"),
            group.gpu + group.kind,
            str(group.rows),
            percent(group.in_sample),
            f"**{percent(group.five_fold)}** +- {percent(group.five_fold_spread)}",
            percent(group.five_fold_median),
            percent(group.five_fold_worst),
            percent(group.model_left_out),
            percent(group.source_left_out),
        ]
        if with_trivial:
            trivial = trivial_errors([scores.runs[idx] for idx in group.where])
            cells.append(percent(trivial.mape) if trivial else "-")
        lines.append(cells)
    return table(headers, lines)


Where = Callable[[Run], bool]


def in_file(*files: str, moe: bool | None = False, gpu: str = "", narrow: bool | None = None) -> Where:
    def chosen(run: Run) -> bool:
        return (
            run.origin.file.removesuffix(".csv") in files
            and (moe is None or run.is_moe is moe)
            and gpu in run.origin.gpu
            and (narrow is None or (run.numbers.fp8 != "none") is narrow)
        )

    return chosen


AIMS: tuple[tuple[str, Where, float, float | None], ...] = (
    ("llm_foundry, A100", in_file("llm_foundry", gpu="A100"), 0.04, None),
    ("llm_foundry, H100, bf16", in_file("llm_foundry", gpu="H100", narrow=False), 0.03, None),
    ("bloom", in_file("bigscience_bloom_a100"), 0.045, None),
    ("vtrain_multi", in_file("vtrain_multi"), 0.07, 0.04),
    ("simumax, dense", in_file("simumax_b200"), 0.03, None),
    (
        "GB200 and GB300, 8 bit, dense",
        in_file("dgxc_benchmarking", "megatron_bridge", gpu="GB", narrow=True),
        0.07,
        None,
    ),
    ("megatron_bridge and dgxc, MoE", in_file("megatron_bridge", "dgxc_benchmarking", moe=True), 0.18, 0.10),
    (
        "the same, where overlap and dispatcher are known",
        lambda run: (
            in_file("megatron_bridge", moe=True)(run)
            and run.software.overlap_ep is not None
            and run.software.dispatcher is not None
        ),
        0.12,
        None,
    ),
    ("LAER set", in_file("galvatron_measured", moe=True), 0.05, None),
)
MEMORY_AIMS: tuple[tuple[str, Where, float | None, float | None], ...] = (
    ("simumax", in_file("simumax_b200", moe=None), 0.015, None),
    ("Sailor, GH200", in_file("sailor_validation"), 0.03, None),
    ("bloom", in_file("bigscience_bloom_a100"), 0.05, 0.025),
    ("megatron_lm_ci", in_file("megatron_lm_ci", moe=None), None, 0.02),
    (
        "megatron_lm_ci, attention backend known",
        lambda run: in_file("megatron_lm_ci", moe=None)(run) and run.software.attention != "unknown",
        0.03,
        None,
    ),
)


def aims_table(scores: Scores, aims: Sequence[tuple[str, Where, float | None, float | None]]) -> str:
    lines = []
    for name, chosen, mean, median in aims:
        where = [idx for idx, run in enumerate(scores.runs) if chosen(run)]
        if not where:
            continue
        left_out = scores.model[None, where] if name == "simumax" else scores.folds[:, where]
        folds = np.abs(left_out)
        reached = float(folds.mean()), float(np.median(folds, axis=1).mean())
        met = (mean is None or reached[0] <= mean) and (median is None or reached[1] <= median)
        aim = ", ".join(
            f"{what} {percent(value)}"
            for what, value in (("mean", mean), ("median", median))
            if value is not None
        )
        lines.append(
            [
                name,
                str(len(where)),
                aim,
                f"{percent(reached[0])}, median {percent(reached[1])}",
                "yes" if met else "no",
            ]
        )
    return table(["rows", "number", "aim", "reached", "met"], lines)


def residual_table(scores: Scores) -> str:
    """What the errors are made of: unseen configurations, the form, factors common to many rows, repeats."""
    lines = []
    for name, chosen, _, _ in AIMS:
        where = np.array([idx for idx, run in enumerate(scores.runs) if chosen(run)])
        runs = [scores.runs[idx] for idx in where]
        inside = np.log1p(scores.inside[where])
        by_gpu = without_common(inside, [f"{run.origin.source} {run.origin.gpu}" for run in runs])
        recipes = [f"{run.origin.source} {run.origin.gpu} {run.model.name}" for run in runs]
        keys = [run.key for run in runs]
        again = np.array([keys.count(key) > 1 for key in keys])
        # Of the measurements themselves: the model predicts the same for each repeat.
        repeats = without_common(np.log(measured(runs, scores.target)), keys)[again]
        lines.append(
            [
                name,
                percent(float(np.abs(scores.folds[:, where]).mean())),
                percent(float(np.abs(scores.inside[where]).mean())),
                *(percent(mean_size(part)) for part in (by_gpu, without_common(inside, recipes))),
                f"{percent(mean_size(repeats))} ({len(repeats)} rows)" if again.any() else "-",
            ]
        )
    headers = [
        "rows",
        "five folds",
        "fitted on",
        "less a factor per GPU",
        "less a factor per model",
        "repeats",
    ]
    return table(headers, lines)


def mean_size(logs: np.ndarray) -> float:
    return float(np.abs(np.expm1(logs)).mean())


def without_common(values: np.ndarray, groups: Sequence[str]) -> np.ndarray:
    """What is left of logarithms when each group has its median taken away."""
    left = values.copy()
    for group in set(groups):
        same = [idx for idx, name in enumerate(groups) if name == group]
        left[same] -= np.median(values[same])
    return left


def refit_table(scores: Scores) -> str:
    """Every source predicted from the others, blind and with ten rows to re-fit five constants."""
    lines, reached = [], []
    slots = [entry.slot for entry in scores.fitted]
    for source in sorted({run.origin.source for run in scores.runs}):
        own = [run for run in scores.runs if run.origin.source == source]
        if len(own) < REFIT_ROWS + 10:
            continue
        others = [run for run in scores.runs if run.origin.source != source]
        base = fit(RunBatch.of(others), slots, Target.TIME, scores.fitted, unfitted())
        picked = spread_choice(own, REFIT_ROWS)
        before = [*unfitted(), *((entry.slot, entry.value) for entry in base)]
        again = fit(RunBatch.of([own[idx] for idx in picked]), REFITTED, Target.TIME, base=before)
        rest = [run for idx, run in enumerate(own) if idx not in picked]
        blind, refitted = (
            np.abs(errors_of(rest, Target.TIME, base + more, unfitted())) for more in ([], again)
        )
        covered = float((blind <= band_without(scores, source, own[0])).mean())
        reached.append(float(refitted.mean()))
        lines.append(
            [source, str(len(own)), percent(float(blind.mean())), percent(covered), percent(reached[-1])]
        )
    lines.append(["median over sources", "", "", "", f"**{percent(float(np.median(reached)))}**"])
    headers = [
        "source left out",
        "rows",
        "blind",
        "% of rows within the band",
        f"{REFIT_ROWS} rows re-fitted",
    ]
    return table(headers, lines)


def band_without(scores: Scores, source: str, like: Run) -> float:
    """The band of a source, made of other sources only: on the same GPU family, or else on all."""
    family = owners_of(like)[Shelf.GPU]
    others = [
        idx
        for idx, run in enumerate(scores.runs)
        if run.origin.source != source and run.is_moe is like.is_moe
    ]
    same = [idx for idx in others if owners_of(scores.runs[idx])[Shelf.GPU] == family]
    where = same if len(same) >= 8 else others
    return float(np.quantile(np.abs(scores.source[where]), COVERED))


def ranking_table(folder: Path) -> str:
    lines = []
    for name in RANKED:
        jobs: dict[object, list[tuple[float, float]]] = {}
        for run in runs_of(folder, [name]):
            if run.measured.iter_s is not None:
                jobs.setdefault(job_key(run), []).append((predict(run).iter_s, run.measured.iter_s))
        pairs = [np.array(found) for found in jobs.values() if len(found) >= 3]
        regrets = [top_1_regret(found[:, 0], found[:, 1]) for found in pairs]
        lines.append(
            [
                name,
                str(len(pairs)),
                str(sum(map(len, pairs))),
                percent(float(np.median(regrets))),
                percent(max(regrets)),
            ]
        )
    return table(["sweep", "jobs", "plans", "median regret", "worst"], lines)


def mixed_table(folder: Path) -> str:
    lines = []
    for name in MIXED:
        runs = [run for run in runs_of(folder, [name]) if run.is_mixed and run.measured.iter_s is not None]
        off = np.array([predict(run).iter_s / (run.measured.iter_s or 1) - 1 for run in runs])
        size = np.abs(off)
        lines.append(
            [
                name,
                str(len(runs)),
                percent(float(size.mean())),
                percent(float(np.median(size))),
                percent(float(off.mean())),
            ]
        )
    return table(["mixed runs, nothing fitted on them", "rows", "mean", "median", "bias"], lines)


PROFILED = (
    ("OPT-350", "GH-96", Precision.TF32),
    ("GPT-Neo-2.7", "GH-96", Precision.TF32),
    ("OPT-350", "RTX-3090", Precision.TF32),
    ("OPT-350", "RTX-2080", Precision.FP32),
    ("OPT-350", "Titan-RTX", Precision.FP32),
)
"""What of the simulator's file of Sailor its measured runs need: model, GPU, and what its units ran in."""

RUN_OVER_PROFILE = Slot(Shelf.STACK, EVERYBODY, "kernel_ratio")
"""With factors from measured layers, how much slower kernels are in a run than when they were timed."""


def sailor_layers(profiles: Path) -> MeasuredLayers:
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "profiles.sqlite"
        for model, part, precision in PROFILED:
            given = Given(model=model, gpu=part, precision=precision)
            save(
                store,
                import_files("sailor", [profiles / "sailor" / "simulator_profiles.json"], given).records,
            )
        return MeasuredLayers.of(load(store).layers)


def profile_sections(folder: Path, profiles: Path, num_splits: int) -> dict[str, str]:
    """Sailor's runs with its published layer profiles in place of formulas, and what each step is made of."""
    layers = sailor_layers(profiles)
    runs = [run for run in runs_of(folder, ["sailor_validation"]) if run.measured.iter_s is not None]
    equal = [run for run in runs if not run.is_mixed]
    mixed = [run for run in runs if run.is_mixed]

    def batch_of(some: Sequence[Run]) -> RunBatch:
        return measured_batch(some, layers)[0]

    def off(some: Sequence[Run], using: Callable[[Sequence[Run]], RunBatch]) -> np.ndarray:
        return errors_of(some, Target.TIME, [], batch_of=using)

    folds = cross_validate(
        equal, Target.TIME, [RUN_OVER_PROFILE], num_splits=num_splits, batch_of=batch_of
    ).errors
    lines = [
        score_line("GH200, formulas", off(equal, RunBatch.of), None),
        score_line("GH200, profiles", off(equal, batch_of), None),
        score_line("GH200, profiles, five folds of `kernel_ratio`", folds, (0.05, None)),
        score_line("mixed, formulas", off(mixed, RunBatch.of), None),
        score_line("mixed, profiles, nothing fitted", off(mixed, batch_of), (0.10, 0.03)),
    ]
    headers = ["rows of sailor_validation", "number", "mean", "median", "worst", "bias", "aim", "met"]
    return {
        "profiles": table(headers, lines),
        "profile-steps": steps_table(mixed, batch_of),
        "profile-rows": steps_table(equal, batch_of, folds.mean(axis=0)),
    }


def score_line(name: str, off: np.ndarray, aim: tuple[float, float | None] | None) -> list[str]:
    """Of errors of shape ``(num_rows,)``, or ``(num_splits, num_rows)``, averaged over splits."""
    size = np.atleast_2d(np.abs(off))
    mean, median = float(size.mean()), float(np.median(size, axis=1).mean())
    cells = [name, str(size.shape[1]), f"{100 * mean:.1f}"]
    if size.shape[0] > 1:
        cells[-1] += f" +- {100 * float(size.mean(axis=1).std()):.1f}"
    cells += [percent(median), percent(float(size.max())), percent(float(off.mean()))]
    if aim is None:
        return [*cells, "-", "-"]
    met = mean <= aim[0] and (aim[1] is None or median <= aim[1])
    words = f"mean {percent(aim[0])}" + ("" if aim[1] is None else f", median {percent(aim[1])}")
    return [*cells, words, "yes" if met else "no"]


def steps_table(
    runs: Sequence[Run], batch_of: Callable[[Sequence[Run]], RunBatch], folds: np.ndarray | None = None
) -> str:
    """What predicted steps are made of: layers, transfers between stages, the step's end."""
    batch = batch_of(runs)
    given = Shelves(batch, ()).constants(())
    costs = batch.stages.costs(given)
    whole = iteration_s(batch, costs, given)
    still = replace(batch, nic_s=0 * batch.nic_s, intra_s=0 * batch.intra_s, gather_s=0 * batch.gather_s)
    layers_s = iteration_s(still, replace(costs, step_s=0 * costs.step_s), given)
    step_s = np.maximum.reduceat(batch.of_position(costs.step_s), batch.first_of_run)
    truth = measured(runs, Target.TIME)
    lines = []
    for idx, run in enumerate(runs):
        degrees = run.degrees
        shape = (
            f"pp {degrees.pp}, tp {degrees.tp}, dp {degrees.dp}, {run.num_micro_batches} x {run.micro_batch}"
        )
        parts = (layers_s[idx], whole[idx] - layers_s[idx] - step_s[idx], step_s[idx])
        cells = [run.model.name, shape, f"{truth[idx]:.3g}", f"{whole[idx]:.3g}"]
        cells += [f"{part:.3g}" if part > 1e-9 * whole[idx] else "0" for part in parts]
        cells.append(f"{100 * (whole[idx] / truth[idx] - 1):+.1f}")
        lines.append(cells if folds is None else [*cells, f"{100 * folds[idx]:+.1f}"])
    headers = ["model", "degrees, micro-batches x samples", "measured s", "predicted s", "layers"]
    headers += ["transfers", "step's end", "off %", *([] if folds is None else ["off %, left out"])]
    return table(headers, lines)


def upper_table(folder: Path, num_splits: int) -> str:
    """Per stack, the factor that covers 98 % of rows out of fold, and what the shipped one does."""
    found = runs_of(folder, FITTED)
    known = np.isfinite(measured(found, Target.MEMORY))
    runs = [run for run, has in zip(found, known, strict=True) if has and not run.is_mixed]
    entries = constants.calibration_document()[Shelf.STACK.value].items()
    names = MEMORY_CONSTANTS[Shelf.STACK]
    slots = [Slot(Shelf.STACK, owner, name) for owner, held in entries for name in held if name in names]
    needed = left_out_ratios(runs, sorted(slots), num_splits, unfitted())
    batch = RunBatch.of(runs)
    predictions = predict_batch(batch, Shelves(batch, []).constants([]))
    above = predictions.upper_peak_bytes / measured(runs, Target.MEMORY) - 1
    stated = np.array([run.software.attention is not Attention.UNKNOWN for run in runs])
    stacks = np.array([owners_of(run)[Shelf.STACK] for run in runs])
    lines = []
    for name, where in [(name, stacks == name) for name in sorted(set(stacks))] + [("all", stacks != "")]:
        ratio = f"{constants.stack_constants(name).upper_memory_ratio:.2f}" if name != "all" else "-"
        for kind, chosen in (("all", where), ("kernel known", where & stated)):
            if kind == "all" and (chosen == (where & stated)).all():
                continue
            covers = (
                np.median(np.quantile(needed[:, chosen], UPPER_COVERED, axis=1)) if name != "all" else None
            )
            lines.append(
                [
                    f"{name}, {kind}",
                    str(int(chosen.sum())),
                    "-" if covers is None else f"{covers:.3f}",
                    ratio,
                    str(int((above[chosen] < 0).sum())),
                    percent(float(above[chosen].mean())),
                ]
            )
    headers = ["rows of", "number", "98th percentile", "shipped ratio", "rows above", "mean over measured, %"]
    return table(headers, lines)


def sections(folder: Path, num_splits: int) -> tuple[dict[str, str], list[Scores]]:
    runs = runs_of(folder, FITTED)
    found: dict[str, str] = {}
    every: list[Scores] = []
    for target, aims in ((Target.TIME, AIMS), (Target.MEMORY, MEMORY_AIMS)):
        scores = calibrate(runs, target, list(Shelf), num_splits, print, unfitted())
        assert scores is not None
        every.append(scores)
        found[f"{target}-aims"] = aims_table(scores, aims)
        found[str(target)] = errors_table(scores, with_trivial=target is Target.TIME)
        if target is Target.TIME:
            found["residual"] = residual_table(scores)
            found["refit"] = refit_table(scores)
            found["constants"] = (
                f"{len(scores.fitted)} constants on {len(scores.runs)} rows; on a bound: "
                + (", ".join(f"`{entry.slot}`" for entry in scores.fitted if entry.on_bound) or "none")
            )
    return found, every


def shipped_again() -> None:
    """Forgets the constants that were read: the shipped file may just have been written."""
    constants.calibration_document.cache_clear()
    for shelf in (constants._text, constants._gpu_shelf, constants._stack_shelf, constants._cluster_shelf):
        shelf.cache_clear()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="folder of the published rows")
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument(
        "--calibration", type=Path, help="where to write what tangram calibrate --from-scratch would"
    )
    parser.add_argument("--profiles", type=Path, help="folder of the published profiles (default: beside it)")
    parser.add_argument("--only", action="append", choices=PARTS, help="only these tables; repeat it")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    parts = options.only or PARTS
    found: dict[str, str] = {}
    if "fits" in parts:
        found, scores = sections(options.folder, options.splits)
        if options.calibration is not None:
            options.calibration.write_text(calibration_text(scores, time_bands(scores)), encoding="utf-8")
            shipped_again()
    if "ranking" in parts:
        found["ranking"] = ranking_table(options.folder)
    if "mixed" in parts:
        found["mixed"] = mixed_table(options.folder)
    profiles = options.profiles or options.folder.parent / "profiles"
    if "profiles" in parts:
        found |= profile_sections(options.folder, profiles, options.splits)
    if "upper" in parts:
        found["upper"] = upper_table(options.folder, options.splits)
    for name, text in found.items():
        print(f"\n## {name}\n\n{text}")
    if options.write:
        write_sections(DOCS / "accuracy.md", found)


if __name__ == "__main__":
    main()
