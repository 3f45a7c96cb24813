"""The table of sources: its form, and how facts reach a row."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from row_samples import row

from tangram.cluster.catalog import load_catalog
from tangram.validation.cells import RowError
from tangram.validation.parts import extra_part, source_data
from tangram.validation.settings import Settings
from tangram.validation.sources import Condition, Fact, known_sources, resolve, rule_names

COMMON_COLUMNS = {*row(), "layers_per_stage", "pseudo_layers_per_stage", "pseudo_boundaries", "placement"}


def test_every_fact_and_rule_can_be_read_and_has_a_note() -> None:
    names = [source.name for source in known_sources()]
    assert len(names) == len(set(names))
    for source in known_sources():
        assert source.match, source.name
        for fact in source.facts:
            assert {*fact.fill, *fact.replace} <= COMMON_COLUMNS, fact
            assert set(fact.capture) <= COMMON_COLUMNS | set(Settings.model_fields), fact
            assert all(re.compile(pattern).groups == 1 for pattern in fact.capture.values()), fact
            says = fact.set.model_dump(exclude_none=True), fact.fill, fact.replace, fact.capture
            assert any(says), f"{source.name}: a fact without content"


def test_rules_have_one_sentence_each() -> None:
    data = source_data()
    rules = [*data["rules"], *(rule for source in data["sources"] for rule in source.get("exclude", ()))]
    sentences: dict[str, set[str]] = {}
    for rule in rules:
        sentences.setdefault(rule["name"], set()).add(rule["sentence"])
    assert set(sentences) == set(rule_names())
    for name in ("out-of-memory", "hybrid-model", "layers-not-stated"):
        assert len(sentences[name]) == 1


def test_the_docs_name_every_rule() -> None:
    text = (Path(__file__).parents[2] / "docs" / "validation.md").read_text(encoding="utf-8")
    for name in rule_names():
        assert f"`{name}`" in text, name


def test_the_docs_name_every_source_and_stack() -> None:
    text = (Path(__file__).parents[2] / "docs" / "validation.md").read_text(encoding="utf-8")
    for source in known_sources():
        assert f"`{source.name}`" in text, source.name
        for fact in source.facts:
            assert fact.set.stack is None or f"`{fact.set.stack}`" in text, fact.set.stack


def test_conditions() -> None:
    cells = {"note": "ran OUT of memory", "tp": ""}
    assert Condition(when={"note": "out of MEMORY", "tp": "^$"}).holds(cells)
    assert not Condition(when={"note": "out", "tp": "1"}).holds(cells)
    assert Condition(unless={"note": "fast"}).holds(cells)
    assert not Condition(unless={"note": "out"}).holds(cells)
    assert Condition(when={"absent": "^$"}).holds(cells)
    with pytest.raises(re.error):
        Condition(when={"note": "("})


def test_facts_fill_what_a_row_leaves_open() -> None:
    cells = row(source="MosaicML llm-foundry benchmarking README", note="mode=PURE", gpu="H100-80GB-SXM")
    found = resolve(cells, "any.csv")
    assert found.source == "llm-foundry"
    assert found.settings.stack == "fsdp"
    assert found.settings.nic_gbit_per_s == 3200
    assert found.settings.gradient_bytes == 2
    assert found.own == Settings()


def test_a_row_goes_before_facts_and_later_facts_before_earlier_ones() -> None:
    cells = row(source="MosaicML llm-foundry benchmarking README", note="mode=DEFAULT", stack="mine")
    found = resolve(cells, "any.csv")
    assert found.settings.stack == found.own.stack == "mine"
    assert found.settings.master_bytes == 0


def test_notes_are_captured() -> None:
    note = "CI test gpt/x env=dev; flags: swiglu moe-token-dispatcher-type=alltoall mtp-num-layers=2; more"
    found = resolve(row(source="Megatron-LM CI golden values", gpu="A100", note=note), "any.csv")
    assert found.row["gpu"] == "A100-80GB-SXM"
    assert (found.settings.dispatcher, found.settings.mtp_layers) == ("alltoall", 2)
    assert found.settings.environment == "dev"
    assert {"swiglu", "gpt/x"} <= set(found.flags)


def test_rules_leave_rows_out() -> None:
    assert resolve(row(), "any.csv").rule is None
    found = resolve(row(note="CHECK MISMATCH"), "any.csv").rule
    assert found is not None
    assert found.name == "check-mismatch"


def test_the_name_of_a_file_may_tell_the_source() -> None:
    assert resolve({"note": ""}, "vtrain_multi.csv").source == "vtrain-multi"
    assert resolve({"note": ""}, "mine.csv").source == "unknown"


def test_settings_of_a_row_are_checked() -> None:
    with pytest.raises(RowError, match="'many'") as caught:
        resolve(row(gpus_per_node="many"), "any.csv")
    assert caught.value.column == "gpus_per_node"


def test_a_fact_needs_a_note() -> None:
    with pytest.raises(ValueError, match="note"):
        Fact.model_validate({"set": {"stack": "x"}})


def test_extra_parts_are_not_in_the_catalogue() -> None:
    names = [entry["name"] for entry in source_data()["parts"]]
    assert names
    assert not set(names) & set(load_catalog())
    for name in names:
        part = extra_part(name)
        assert part is not None
        assert part.usable_memory_bytes < part.memory_bytes
        assert all(part.achieved_flop_per_s[p] < rate for p, rate in part.peak_flop_per_s.items())
    assert extra_part("A100-80GB-SXM") is None
