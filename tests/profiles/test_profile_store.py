from __future__ import annotations

import os
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tangram.errors import InputError
from tangram.job import Precision
from tangram.profiles.records import CollectiveTime, LayerTime, LinkRate, Op, Record, Scope
from tangram.profiles.shapes import LayerKind, LayerShape
from tangram.profiles.store import SCHEMA_VERSION, Profiles, Saved, default_store, load, merged, save

SHAPE = LayerShape(
    LayerKind.LAYER, 128, 64, 4, 2, 16, 256, True, 8, 2, shared_size=32, kv_rank=8, rope_dim=4, value_dim=16
)
LAYER = LayerTime("T4", "test", Precision.FP16, SHAPE, 2, 4, True, 0.5, 1.0, "first")
REDUCE = CollectiveTime("T4", "nccl", "pcie", Scope.INTRA_NODE, Op.ALL_REDUCE, 4, 4, 800, 2.0, "first")
RATE = LinkRate("T4", "nccl", "", Scope.INTER_NODE, Op.SEND, 2, 1, 1e9, "first")
RECORDS: tuple[Record, ...] = (
    RATE,
    REDUCE,
    LAYER,
    replace(LAYER, micro_batch=1),
    replace(REDUCE, num_bytes=8),
)


def test_records_come_back_as_they_were_and_sorted(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "store.sqlite"
    assert save(path, RECORDS) == Saved(new=5, changed=0, same=0)
    found = load(path)
    assert found.layers == (replace(LAYER, micro_batch=1), LAYER)
    assert found.collectives == (replace(REDUCE, num_bytes=8), REDUCE)
    assert found.rates == (RATE,)
    assert len(found) == 5
    assert isinstance(found.layers[0].precision, Precision)
    assert isinstance(found.layers[0].shape.kind, LayerKind)
    assert found.layers[0].includes_tp_comm is True


@settings(max_examples=15)
@given(order=st.permutations(RECORDS))
def test_the_order_of_writing_does_not_matter(
    order: list[Record], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("store") / "s.sqlite"
    for record in order:
        save(path, [record])
    assert list(load(path)) == sorted_records()


def sorted_records() -> list[Record]:
    return [replace(LAYER, micro_batch=1), LAYER, replace(REDUCE, num_bytes=8), REDUCE, RATE]


def test_an_equal_key_replaces(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    save(path, [LAYER, REDUCE])
    newer = replace(LAYER, forward_s=0.25, source="second")
    assert save(path, [newer, REDUCE]) == Saved(new=0, changed=1, same=1)
    assert load(path) == Profiles((newer,), (REDUCE,))


def test_times_are_replaced_as_a_whole_and_sizes_survive() -> None:
    old = replace(LAYER, activation_bytes=100, recompute_s=0.5)
    new = replace(LAYER, forward_s=None, backward_s=None, forward_backward_s=2.0, source="second")
    both = merged(old, new)
    assert isinstance(both, LayerTime)
    assert (both.forward_s, both.backward_s, both.recompute_s) == (None, None, None)
    assert (both.forward_backward_s, both.activation_bytes) == (2.0, 100)
    assert both.source == "second + first"
    assert merged(both, new) == both
    assert merged(old, replace(new, activation_bytes=7)) == replace(new, activation_bytes=7)


def test_a_size_alone_joins_the_times_of_another_source() -> None:
    size = replace(LAYER, forward_s=None, backward_s=None, activation_bytes=9, source="sizes")
    both = merged(LAYER, size)
    assert isinstance(both, LayerTime)
    assert (both.forward_s, both.activation_bytes, both.source) == (0.5, 9, "sizes + first")


def test_all_or_nothing(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    save(path, [LAYER])

    def broken() -> object:
        yield replace(LAYER, micro_batch=8)
        raise InputError("stop")

    with pytest.raises(InputError, match=r"^stop$"):
        save(path, broken())  # type: ignore[arg-type]
    assert load(path).layers == (LAYER,)


def test_a_missing_store(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such profile store"):
        load(tmp_path / "none.sqlite")
    assert not (tmp_path / "none.sqlite").exists()


@pytest.mark.parametrize("write", [False, True])
def test_other_files_are_refused_and_left_alone(tmp_path: Path, write: bool) -> None:
    def use(path: Path) -> None:
        if write:
            save(path, [LAYER])
        else:
            load(path)

    text = tmp_path / "text.sqlite"
    text.write_text("this is not a database, and it is long enough to have a header" * 20)
    with pytest.raises(InputError, match="no profile store: file is not a database"):
        use(text)
    other = tmp_path / "other.sqlite"
    connection = sqlite3.connect(other)
    connection.execute("CREATE TABLE holiday (photo)")
    connection.commit()
    connection.close()
    before = other.read_bytes()
    with pytest.raises(InputError, match="a database, but no profile store"):
        use(other)
    assert other.read_bytes() == before
    with pytest.raises(InputError, match=r"folder|unable to open"):
        use(tmp_path)


def test_a_newer_store_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    save(path, [LAYER])
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    connection.close()
    with pytest.raises(InputError, match=f"version {SCHEMA_VERSION + 1}, written by a newer Tangram"):
        load(path)
    with pytest.raises(InputError, match="newer"):
        save(path, [LAYER])


def test_a_locked_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tangram.profiles.store._TIMEOUT_S", 0.0)
    path = tmp_path / "s.sqlite"
    save(path, [LAYER])
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    try:
        with pytest.raises(InputError, match="locked by another process"):
            save(path, [REDUCE])
    finally:
        holder.close()


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everything")
def test_a_read_only_store(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    save(path, [LAYER])
    path.chmod(0o444)
    assert load(path).layers == (LAYER,)
    with pytest.raises(InputError, match="may not be written"):
        save(path, [REDUCE])


def test_a_broken_record_is_named(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    save(path, [LAYER])
    connection = sqlite3.connect(path)
    connection.execute("UPDATE layer SET precision = 'fp7'")
    connection.commit()
    connection.close()
    with pytest.raises(InputError, match=r"broken record.*fp7") as caught:
        load(path)
    assert caught.value.where == str(path)


def test_a_name_with_signs_of_a_url(tmp_path: Path) -> None:
    path = tmp_path / "50% #1?.sqlite"
    save(path, [LAYER])
    assert path.is_file()
    assert load(path).layers == (LAYER,)


def test_where_profiles_are_kept() -> None:
    home = Path.home()
    assert default_store({}) == home / ".cache" / "tangram" / "profiles.sqlite"
    assert default_store({"XDG_CACHE_HOME": "/c"}) == Path("/c/tangram/profiles.sqlite")
    assert default_store({"XDG_CACHE_HOME": "c"}) == home / ".cache" / "tangram" / "profiles.sqlite"
    assert default_store({"TANGRAM_PROFILES": "/p.db", "XDG_CACHE_HOME": "/c"}) == Path("/p.db")
