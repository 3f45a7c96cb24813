from __future__ import annotations

import io
import re
from typing import Any

import pytest
from report_samples import make_plan

from tangram.plan.schema import LayerConfig, PlanDocument, SearchSection
from tangram.report.page import Page, can_show_unicode, make_console
from tangram.report.terminal import add_plan


def printed(doc: PlanDocument, width: int = 100, *, unicode: bool = True, path: str | None = None) -> str:
    stream = io.StringIO()
    page = Page(width, unicode=unicode)
    add_plan(page, doc, path=path)
    page.print(make_console(stream, width))
    return stream.getvalue()


@pytest.mark.parametrize("width", [80, 100, 120, 160])
@pytest.mark.parametrize("unicode", [False, True])
def test_no_line_is_wider_than_the_page(width: int, unicode: bool) -> None:
    lines = printed(make_plan(), width, unicode=unicode).splitlines()
    assert max(len(line) for line in lines) <= width
    assert not any(line != line.rstrip() for line in lines)


def test_ascii_where_the_terminal_is_ascii() -> None:
    assert printed(make_plan(), unicode=False).isascii()
    assert not printed(make_plan(), unicode=True).isascii()


def test_typographic_signs_of_reasons_are_written_in_ascii() -> None:
    stage = make_plan().stages[0].model_copy(update={"reason": "2 × 3 – “so” → 6…"})
    doc = make_plan()
    pipeline = doc.pipelines[0].model_copy(update={"stages": [stage, *doc.stages[1:]]})
    text = printed(make_plan(pipelines=[pipeline]), unicode=False)
    assert '2 x 3 - "so" -> 6...' in text


def test_brackets_in_names_are_no_markup() -> None:
    model = make_plan().model.model_copy(update={"name": "mixtral[16 layers] [bold]:smile:"})
    assert "mixtral[16 layers] [bold]:smile: on by-hand" in printed(make_plan(model=model))


def test_the_first_line_is_the_answer() -> None:
    first = printed(make_plan()).splitlines()[0]
    assert first == "gpt3-13b on by-hand: 36.31 s per step on 12 of 16 GPUs, 3 stages"


@pytest.mark.parametrize(
    "line",
    [
        "12.9 B parameters, 40 layers, hidden size 5120",
        "512 samples of 2,048 tokens per step (1.05 M tokens)",
        "fp16 with dynamic loss scaling: V100-32GB-SXM2 and V100-16GB-SXM2 have no bf16",
        "AdamW, 18 bytes per parameter: weight 2, gradient 4, master weight and moments 12",
        "dictated   zero 1",
        "3 stages, 256 micro-batches of 2 samples per step, 1F1B",
        "stages 0-2: takes as many layers as its rate allows.",
        "4x V100-16GB-SXM2: as a stage they would set a pace 2.4x the present one.",
        "global batch 512: not given; fills a pipeline (--global-batch).",
        "network 100 Gbit/s: the paper does not say.",
        "stage 3 needs 21.2 GiB of 15.0 GiB on V100-16GB-SXM2",
        "Yes: mixing makes a step 1.41x as fast as the fastest island alone.",
        "28.9 k tokens/s, 14.1 samples/s",
        "set by stage 1 (V100-32GB-SXM2)",
        "formula: uncalibrated; expect errors of a quarter.",
        "No plan can be faster than 35.80 s under this cost model; this one is at most 1.4% from the best.",
        "Removed without a query: 11,000 redundant and 300 unbalanced.",
        "tangram check plan.json",
    ],
)
def test_every_part_is_there(line: str) -> None:
    assert line in printed(make_plan())


def test_stage_rows() -> None:
    text = printed(make_plan(), 120, unicode=False)
    row = r"0 +4x A100-80GB-SXM +emb\+0-23 +tp4 dp1 zero1 +45\.2 \+ 91\.1 ms +4 +none .* 61\.4 / 79\.0 GiB"
    assert re.search(row, text)
    assert re.search(r"1 +4x V100-32GB-SXM2 +24-31 +tp2 dp2 zero1 .* full 3/8 ", text)
    assert re.search(r"2 +4x V100-32GB-SXM2 +32-39\+head .* optimizer ", text)


def test_layers_that_differ_are_counted() -> None:
    doc = make_plan()
    stage = doc.pipelines[0].stages[1]
    own = {name: getattr(stage, name) for name in LayerConfig.model_fields}
    wide = {"dp": 4, "tp": 1, "zero": 3}
    runs = [LayerConfig(**own | {"atoms": (25, 28)}), LayerConfig(**own | wide | {"atoms": (28, 32)})]
    runs.append(runs[0].model_copy(update={"atoms": (32, 33)}))
    mixed = stage.model_copy(update={"layer_configs": runs})
    stages = [doc.stages[0], mixed, *doc.stages[2:]]
    pipeline = doc.pipelines[0].model_copy(update={"stages": stages})
    text = printed(doc.model_copy(update={"pipelines": [pipeline]}), 160, unicode=False)
    assert "mixed: 4x tp2 dp2 zero1, 4x tp1 dp4 zero3" in text
    assert "mixed: so many atoms of each kind" in " ".join(text.split())
    assert "mixed" not in printed(doc, 160, unicode=False)


def test_narrow_stage_rows_keep_all_choices() -> None:
    text = printed(make_plan(), 80, unicode=False)
    assert "tp2 dp2 zero1, recompute full 3/8" in text
    assert "tp4 dp1 zero1, offloads optimizer" in text


def test_an_overfull_stage_shows_red(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    doc = make_plan()
    predicted = doc.stages[0].predicted
    over = predicted.model_copy(update={"peak_bytes": predicted.capacity_bytes + 1})
    stage = doc.stages[0].model_copy(update={"predicted": over})
    pipeline = doc.pipelines[0].model_copy(update={"stages": [stage, *doc.stages[1:]]})
    page = Page(100, unicode=True)
    add_plan(page, make_plan(pipelines=[pipeline]))
    assert any(span.style == "red" for line in page.lines for span in line.spans)


def test_what_does_not_fit_is_said_first() -> None:
    doc = make_plan()
    predicted = doc.stages[1].predicted.model_copy(update={"headroom_bytes": -3 * 2**30})
    stages = [*doc.stages]
    stages[1] = stages[1].model_copy(update={"predicted": predicted})
    text = printed(make_plan(pipelines=[doc.pipelines[0].model_copy(update={"stages": stages})]))
    assert "stage 1 lacks 3.00 GiB per GPU" in text[: text.index("Islands")]
    assert "Does not fit" not in printed(doc)


def test_a_saved_plan_is_named_in_the_advice() -> None:
    text = printed(make_plan(), path="my plan.json")
    assert "tangram check 'my plan.json'" in text
    assert "add -o" not in text


def _single(time_s: float | None) -> list[Any]:
    first, *rest = make_plan().comparisons
    return [first.model_copy(update={"iteration_time_s": time_s, "reason": "too small"}), *rest]


@pytest.mark.parametrize(
    ("time_s", "verdict"),
    [
        (36.31, "No: one island alone is as fast."),
        (None, "Yes: no island can do it alone."),
        (72.62, "Yes: mixing makes a step 2.00x as fast as the fastest island alone."),
    ],
)
def test_verdict_on_mixing(time_s: float | None, verdict: str) -> None:
    assert verdict in printed(make_plan(comparisons=_single(time_s)))


def test_sections_without_content_are_left_out() -> None:
    doc = make_plan(
        idle=[],
        comparisons=[],
        search=SearchSection(parallelizers=[], pruning="none", micro_batches_considered=[]),
        bound=make_plan().bound.model_copy(update={"staircase": []}),
    )
    text = printed(doc)
    for heading in ("Left out", "Is mixing worth it?", "Search", "Where the time goes"):
        assert f"\n{heading}" not in text
    assert "\nBound\n  No plan can be faster than 35.80 s" in text


def test_optimal_is_said_only_when_proven() -> None:
    assert "Optimal" not in printed(make_plan())
    proven = make_plan().bound.model_copy(update={"proven_optimal": True})
    assert "Optimal: the search covered its space" in printed(make_plan(bound=proven))


def test_encodings() -> None:
    def stream(encoding: str) -> io.TextIOWrapper:
        return io.TextIOWrapper(io.BytesIO(), encoding=encoding)

    assert can_show_unicode(stream("utf-8"))
    assert not can_show_unicode(stream("ascii"))
    assert not can_show_unicode(stream("latin-1"))
    assert not can_show_unicode(io.StringIO())
