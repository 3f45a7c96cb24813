from __future__ import annotations

from report_samples import make_plan

from tangram.job import Precision
from tangram.report.islands import add_islands
from tangram.report.page import Page


def lines(reasons: dict[str, list[str]]) -> list[str]:
    doc = make_plan()
    islands = [island.model_copy(update={"reasons": reasons.get(island.name, [])}) for island in doc.islands]
    page = Page(100, unicode=False)
    add_islands(page, islands, doc.cluster, doc.tolerances, Precision.FP16)
    return [line.plain for line in page.lines]


def test_a_boundary_is_told_once() -> None:
    text = lines(
        {
            "A100-80GB-SXM": ["A100-80GB-SXM differs from V100-32GB-SXM2: memory 2.5x"],
            "V100-32GB-SXM2": [
                "V100-32GB-SXM2 differs from A100-80GB-SXM: memory 2.5x",
                "links to V100-16GB-SXM2 reach 1 GB/s",
            ],
        }
    )
    assert [line for line in text if line.startswith("  - ")] == [
        "  - A100-80GB-SXM differs from V100-32GB-SXM2: memory 2.5x.",
        "  - V100-32GB-SXM2: links to V100-16GB-SXM2 reach 1 GB/s.",
    ]


def test_a_file_may_name_what_it_does_not_define() -> None:
    doc = make_plan()
    island = doc.islands[0].model_copy(update={"gpu": "H1000", "nodes": ["nowhere"]})
    page = Page(100, unicode=False)
    add_islands(page, [island], doc.cluster, doc.tolerances, Precision.FP16)
    assert any(" ? " in line.plain for line in page.lines)


def test_names_that_contain_each_other_are_told_apart() -> None:
    text = lines({"V100-32GB-SXM2": ["links to A100-80GB-SXM#2 reach 1 GB/s"]})
    assert "  - V100-32GB-SXM2: links to A100-80GB-SXM#2 reach 1 GB/s." in text
