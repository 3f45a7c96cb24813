from __future__ import annotations

import pytest
from report_samples import make_plan

from tangram.cluster.islands import build_islands
from tangram.cluster.readers import cluster_from_yaml
from tangram.job import Precision
from tangram.plan.schema import ClusterSection, IslandSection
from tangram.report.islands import add_islands
from tangram.report.page import Page
from tangram.yaml_reader import parse_yaml


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


@pytest.mark.parametrize(
    ("cluster", "inside"),
    [
        ("nodes: [{name: a, gpus: 'A40:4', intra: nvlink-pairs}]", "32 GB/s pcie; pairs 56.25 GB/s nvlink"),
        ("nodes: [{name: a, gpus: 'RTX-4090:4'}]", "25.6 GB/s pcie-host"),
        ("nodes: [{name: a, count: 3, gpus: 'GB200:4'}]", "900 GB/s nvlink, over all 3 nodes"),
    ],
)
def test_what_joins_gpus_is_told(cluster: str, inside: str) -> None:
    read = cluster_from_yaml(parse_yaml(cluster, "c.yaml"), "c")
    islands = [IslandSection.of(island) for island in build_islands(read, Precision.FP16)]
    page = Page(140, unicode=False)
    add_islands(page, islands, ClusterSection.of(read), {}, Precision.FP16)
    assert any(f"  {inside}  " in line.plain for line in page.lines)
