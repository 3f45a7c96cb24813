"""The native stage table: every configuration, every useful amount of recomputation, for all slices at once.

``exact`` is the default parallelizer. It answers with single stages; the composition cuts islands into stages
itself, so its plans are optimal over all pipelines of such stages. Nothing is sampled and no heuristic drops
an option: an option goes only when another of the same slice is no worse in forward time, backward time,
step-end time and the number of micro-batches in flight that fit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from tangram.cost.stage import recompute_order
from tangram.cost.types import BoolArray, IntArray, StageConfig
from tangram.job import Job, Recompute
from tangram.parallelizers.contents import Contents, slice_contents
from tangram.parallelizers.pareto import FAR_NS, Rows, pareto_options
from tangram.parallelizers.prices import price_list
from tangram.parallelizers.protocols import Capabilities, OptionTable, StageChoice, TableRequest
from tangram.parallelizers.recompute import least_recompute, no_recompute
from tangram.parallelizers.totals import StageTotals, nanoseconds, stage_totals

_MAX_CELLS = 1 << 19  # Pairs times windows looked at together: arrays of 4 MiB, so that memory stays bounded.

_COLUMNS = ("max_in_flight", "forward_ns", "backward_ns", "step_ns", "config", "num_recomputed")


class ExactStageTable:
    """All useful single-stage options of a portion, by complete enumeration."""

    name = "exact"
    capabilities = Capabilities(seconds_per_query=0.003)

    def options(self, request: TableRequest) -> OptionTable:
        """Returns the Pareto set of options per slice, in (forward, backward, step, in-flight).

        Rows are ordered by start, stop, time and in-flight count. ``counts`` says, in pairs of a
        slice content and a configuration: ``pairs`` = ``pairs_too_slow`` + ``pairs_infeasible`` +
        ``pairs_dominated`` + ``pairs_useful``; besides ``slices``, ``contents`` and ``options``.
        """
        contents = slice_contents(request.atoms, request.slices)
        prices = price_list(request.model, request.atoms, request.portion, request.job)
        configs = prices.configs(request.micro_batch)
        if not configs or not len(contents.start):
            return _expand(contents, _Found(), configs)
        totals = stage_totals(
            request.model,
            request.atoms,
            contents,
            request.portion,
            configs,
            request.micro_batch,
            request.job,
        )
        if request.job.pins.recompute is Recompute.FULL:
            totals = totals.all_recomputed()
        found = _Found()
        num_windows = max(1, min(request.max_in_flight, request.num_micro_batches))
        block = max(1, _MAX_CELLS // (len(configs) * num_windows))
        for begin in range(0, len(contents.counts), block):
            stop = min(begin + block, len(contents.counts))
            _search(request, totals, configs, range(begin, stop), num_windows, found)
        return _expand(contents, found, configs)

    def choice(self, request: TableRequest, table: OptionTable, idx: int) -> StageChoice:
        """Returns option ``idx`` of the table as a stage; the earliest atoms of a class are recomputed."""
        start, stop = int(table.start[idx]), int(table.stop[idx])
        config = table.configs[int(table.config[idx])]
        recomputed = _recomputed_atoms(request, start, stop, config, int(table.num_recomputed[idx]))
        return StageChoice(start, stop, request.portion, config, recomputed)


class _Found:
    """Options per content, gathered block by block, and what was dropped."""

    def __init__(self) -> None:
        self.content: list[IntArray] = []
        self.columns: dict[str, list[IntArray]] = {name: [] for name in _COLUMNS}
        self.counts: Counter[str] = Counter()

    def column(self, name: str) -> IntArray:
        """Returns one column over all blocks."""
        return _joined(self.columns[name])


def _joined(parts: Sequence[IntArray]) -> IntArray:
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)


def _search(
    request: TableRequest,
    totals: StageTotals,
    configs: Sequence[StageConfig],
    block: range,
    num_windows: int,
    found: _Found,
) -> None:
    """Adds the useful options of a block of contents to ``found``."""
    rows_of = slice(block.start, block.stop)
    limit_ns = request.max_time_ns
    cap_ns = FAR_NS - 1 if limit_ns is None else min(limit_ns, FAR_NS - 1)
    forward_ns = nanoseconds(totals.forward_s[rows_of])
    in_time = forward_ns + nanoseconds(totals.backward_s[rows_of]) <= cap_ns
    content, config = np.nonzero(in_time & totals.may_fit()[rows_of])
    forward_ns = forward_ns[content, config]
    content = content + block.start
    free = request.job.pins.recompute is None
    levels = (least_recompute if free else no_recompute)(totals, content, config, num_windows)
    backward_s = totals.backward_s[content, config]
    backward_ns = nanoseconds(backward_s[:, None] + levels.recompute_s)
    time_ns = forward_ns[:, None] + backward_ns
    time_ns[~levels.feasible | (time_ns > cap_ns)] = FAR_NS
    rows = Rows(
        content=content,
        forward_ns=forward_ns,
        step_ns=nanoseconds(totals.step_s[content, config]),
        rank=_ranks(configs)[config],
        config=config,
        num_recomputed=levels.num_recomputed,
        backward_ns=np.where(time_ns < FAR_NS, backward_ns, FAR_NS),
    )
    kept = pareto_options(rows)
    _count(found, in_time, levels.feasible, time_ns, kept)
    row, column = np.nonzero(kept)
    longest = column + 1
    if num_windows == request.num_micro_batches:  # Never more in flight than there are: any window fits.
        longest[column == num_windows - 1] = request.max_in_flight
    number = levels.num_recomputed[row, column]
    if request.job.pins.recompute is Recompute.FULL:
        number = totals.num_recomputable[content[row]]
    values = (longest, rows.forward_ns[row], backward_ns[row, column], rows.step_ns[row], config[row], number)
    order = np.lexsort((*reversed(values), time_ns[row, column], content[row]))
    found.content.append(content[row][order])
    for name, value in zip(_COLUMNS, values, strict=True):
        found.columns[name].append(value[order])


def _count(
    found: _Found, in_time: BoolArray, feasible: BoolArray, time_ns: IntArray, kept: BoolArray
) -> None:
    """Adds up what became of the pairs; all arrays but ``in_time`` leave out what surely does not fit."""
    fits, useful = feasible[:, 0], kept.any(axis=1)
    in_reach = time_ns[:, 0] < FAR_NS
    found.counts["pairs"] += in_time.size
    found.counts["pairs_too_slow"] += int((~in_time).sum() + (fits & ~in_reach).sum())
    found.counts["pairs_infeasible"] += int(in_time.sum() - fits.sum())
    found.counts["pairs_dominated"] += int((in_reach & ~useful).sum())
    found.counts["pairs_useful"] += int(useful.sum())


def _ranks(configs: Sequence[StageConfig]) -> IntArray:
    """Ranks configurations by (GPUs, tp, zero): among equal options the smaller one is easier to run."""
    keys = [(c.num_gpus, c.tp, c.zero) for c in configs]
    rank = {key: i for i, key in enumerate(sorted(set(keys)))}
    return np.array([rank[key] for key in keys], dtype=np.int64)


def _expand(contents: Contents, found: _Found, configs: Sequence[StageConfig]) -> OptionTable:
    """Repeats the options of each content for every slice that holds it."""
    content = _joined(found.content)
    number = np.bincount(content, minlength=len(contents.counts))
    first = np.cumsum(number) - number
    per_slice = number[contents.content_of]
    total = int(per_slice.sum())
    begin = np.repeat(first[contents.content_of] - (np.cumsum(per_slice) - per_slice), per_slice)
    source = begin + np.arange(total)
    counts = {"slices": len(contents.start), "contents": len(contents.counts), "options": total}
    for name in ("pairs", "pairs_too_slow", "pairs_infeasible", "pairs_dominated", "pairs_useful"):
        counts[name] = found.counts[name]
    return OptionTable(
        start=np.repeat(contents.start, per_slice),
        stop=np.repeat(contents.stop, per_slice),
        configs=tuple(configs),
        counts=counts,
        **{name: found.column(name)[source] for name in _COLUMNS},
    )


def _recomputed_atoms(
    request: TableRequest, start: int, stop: int, config: StageConfig, number: int
) -> tuple[bool, ...]:
    """Marks ``number`` atoms of a slice, class by class in the order of recomputation."""
    contents = slice_contents(request.atoms)
    job: Job = request.job
    totals = stage_totals(
        request.model, request.atoms, contents, request.portion, [config], request.micro_batch, job
    )
    class_of = contents.class_of[start:stop]
    marked = np.zeros(stop - start, dtype=np.bool_)
    for held_class in recompute_order(totals.costs, 0, totals.recomputable.tolist()):
        members = np.flatnonzero(class_of == held_class)[: max(0, number)]
        marked[members] = True
        number -= len(members)
    return tuple(bool(m) for m in marked)
