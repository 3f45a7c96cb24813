from __future__ import annotations

from pathlib import Path

import pytest
from row_samples import read, row, write

from tangram.errors import InputError
from tangram.validation.reading import read_runs


def test_every_row_has_a_result_in_order(tmp_path: Path) -> None:
    results = read(tmp_path, row(), row(tp="x"), row(iter_s=0.4))
    assert [result.origin.line for result in results] == [1, 2, 3]
    assert [result.run is not None for result in results] == [True, False, True]
    assert (results[1].code, results[1].origin.gpu) == ("not-a-number", "A100-80GB-SXM")


def test_several_files(tmp_path: Path) -> None:
    paths = [str(write(tmp_path / name, [row()])) for name in ("a.csv", "b.csv")]
    assert [result.origin.file for result in read_runs(paths)] == ["a.csv", "b.csv"]


def test_reading_twice_gives_the_same(tmp_path: Path) -> None:
    assert read(tmp_path, row(), row(tp=1, dp=8)) == read(tmp_path, row(), row(tp=1, dp=8))


def test_a_byte_order_mark_and_blank_lines(tmp_path: Path) -> None:
    path = write(tmp_path / "bom.csv", [row(), row()])
    text = path.read_text(encoding="utf-8")
    path.write_text("\ufeff" + text.replace("\n", "\n\n"), encoding="utf-8")
    assert [result.run is not None for result in read_runs([str(path)])] == [True, True]


def test_short_and_long_rows(tmp_path: Path) -> None:
    path = tmp_path / "ragged.csv"
    header, cells = ",".join(row()), ",".join(row().values())
    path.write_text(f"{header}\n{cells},surplus\nonly\n{cells},,\n{cells}\n", encoding="utf-8")
    long, short, padded, good = read_runs([str(path)])
    assert "ragged: row 1: " in long.reason
    assert "missing: row 2, column gpu" not in short.reason
    assert short.code == "missing"
    assert padded.run is not None
    assert good.run is not None


def test_a_table_of_something_else(tmp_path: Path) -> None:
    path = tmp_path / "other.csv"
    path.write_text("name,price\napple,1\n", encoding="utf-8")
    (result,) = read_runs([str(path)])
    assert result.code == "missing"
    assert "is missing from the table" in result.reason


def test_no_rows(tmp_path: Path) -> None:
    path = tmp_path / "empty.csv"
    path.write_text(",".join(row()) + "\n", encoding="utf-8")
    assert read_runs([str(path)]) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read: No such file"),
        (b"", "has no header"),
        (b"\xff\xfe\x00\x01", "is not UTF-8"),
        (b'gpu,tp\n"A100,1\n', "is no CSV"),
        (b"gpu,tp,gpu\nA100,1,T4\n", "has the column 'gpu' twice"),
    ],
)
def test_files_that_are_no_tables(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "bad.csv"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        read_runs([str(path)])
    assert (caught.value.where or "").partition(":")[0] == str(path)


def test_a_folder_is_no_table(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a folder, not a regular file"):
        read_runs([str(tmp_path)])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (",".join(f"c{idx}" for idx in range(501)) + "\n", "has 501 columns .legal: up to 500"),
        ("gpu\n" + "x\n" * 100_001, "has 100001 rows .legal: up to 100000"),
        ("g" * (8 * 1024**2 + 1), "is larger than 8 MiB"),
    ],
)
def test_tables_are_of_bounded_size(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "large.csv"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        read_runs([str(path)])
