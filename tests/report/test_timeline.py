from __future__ import annotations

import io

import pytest
from report_samples import make_plan

from tangram.report.page import Page, make_console
from tangram.report.timeline import add_timeline, busy_shares
from tangram.simulate.engine import simulate
from tangram.simulate.pipeline import SimEdge, SimPipeline, SimStage
from tangram.simulate.timeline import Timeline


def run() -> Timeline:
    stages = tuple(SimStage(10, 20, 5, window) for window in (3, 2, 1))
    return simulate(SimPipeline(stages, (SimEdge(1), SimEdge(1)), num_micro_batches=8))


def test_shares_add_up_to_the_busy_time() -> None:
    timeline = run()
    cell_ns = timeline.iteration_ns / 50
    for shares, busy in zip(busy_shares(timeline, 50), timeline.busy_ns, strict=True):
        assert sum(shares) * cell_ns == pytest.approx(busy)
        assert all(0 <= share <= 1 + 1e-9 for share in shares)


@pytest.mark.parametrize("width", [80, 120])
def test_page(width: int) -> None:
    page = Page(width, unicode=False)
    add_timeline(page, make_plan(), run())
    stream = io.StringIO()
    page.print(make_console(stream, width))
    lines = stream.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    rows = [line for line in lines if "|" in line]
    assert len(rows) == 3
    assert len({(row.index("|"), row.rindex("|")) for row in rows}) == 1
    assert rows[2].split("|")[1].startswith(" ")  # the last stage waits for the first micro-batch
