from __future__ import annotations

from pathlib import Path

import pytest
from layer_cases import layer, record
from profile_files import read, write_json

from tangram.errors import InputError, UnknownNameError
from tangram.profiles.exchange import to_json
from tangram.profiles.importers.formats import FORMATS
from tangram.profiles.keys import key_of
from tangram.profiles.shapes import LayerKind
from tangram.profiles.store import Profiles


def test_unknown_formats_come_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'metis'"):
        read("metiss", Path())


def test_paths_have_to_fit(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file or folder"):
        read("aceso", tmp_path / "none")
    (tmp_path / "notes.txt").write_text("hello", encoding="utf-8")
    for name in FORMATS:
        if name != "nccl-tests":
            with pytest.raises(InputError, match=f"holds no file of the format {name}"):
                read(name, tmp_path)
    with pytest.raises(InputError, match="holds no results of nccl-tests"):
        read("nccl-tests", tmp_path)
    with pytest.raises(InputError, match=r"notes\.txt: the name is none of the format aceso"):
        read("aceso", tmp_path / "notes.txt")


def test_folders_are_searched_and_other_files_ignored(tmp_path: Path) -> None:
    for number in (1, 2):
        path = tmp_path / str(number) / "x.profiles.json"
        path.parent.mkdir()
        path.write_text(to_json(Profiles((record(micro_batch=number),))), encoding="utf-8")
    write_json(tmp_path / "other.json", {})
    found = read("tangram", tmp_path)
    assert (found.num_files, len(found.records)) == (2, 2)


def test_records_are_sorted_by_key(tmp_path: Path) -> None:
    records = (record(micro_batch=4), record(layer(LayerKind.HEAD)), record(tp=2), record())
    path = tmp_path / "x.profiles.json"
    path.write_text(to_json(Profiles(records)), encoding="utf-8")
    found = read("tangram", path).records
    assert list(found) == sorted(records, key=key_of)
    assert next(r.shape.kind for r in found if hasattr(r, "shape")) is LayerKind.HEAD


def test_a_record_twice_counts_once_and_two_of_one_key_contradict(tmp_path: Path) -> None:
    for name, forward_s in (("a", 1.0), ("b", 1.0), ("c", 2.0)):
        path = tmp_path / f"{name}.profiles.json"
        path.write_text(to_json(Profiles((record(forward_s=forward_s, source=name),))), encoding="utf-8")
    found = read("tangram", tmp_path / "a.profiles.json", tmp_path / "b.profiles.json")
    assert (len(found.records), found.num_repeated) == (1, 1)
    with pytest.raises(InputError, match=r"c: layer h64 .* has other figures in 'a'"):
        read("tangram", tmp_path / "a.profiles.json", tmp_path / "c.profiles.json")


def test_what_no_gpu_can_do_is_refused(tmp_path: Path) -> None:
    """4,096 tokens of this layer are 6.0 TFLOP forward: a T4 (65 TFLOP/s in fp16) needs 74 ms at least."""
    shape = layer(hidden=4096, seq_len=4096)

    def imported(**changes: object) -> int:
        path = tmp_path / "x.profiles.json"
        path.write_text(to_json(Profiles((record(shape, **changes),))), encoding="utf-8")  # type: ignore[arg-type]
        return len(read("tangram", path).records)

    assert imported(forward_s=0.03, tp=4) == 1
    assert imported(forward_s=0.03, gpu="abacus") == 1
    with pytest.raises(InputError, match=r"x\.profiles\.json: layer h4096 .* but T4 has 65 in fp16"):
        imported(forward_s=0.02)
    with pytest.raises(InputError, match="would run at"):
        imported(forward_s=None, backward_s=None, both_s=0.06)
    with pytest.raises(InputError, match="T4 has no bf16 arithmetic"):
        read("tangram", written_bf16(tmp_path))


def written_bf16(tmp_path: Path) -> Path:
    path = tmp_path / "x.profiles.json"
    text = to_json(Profiles((record(),))).replace('"fp16"', '"bf16"')
    path.write_text(text, encoding="utf-8")
    return path
