from __future__ import annotations

import io
from pathlib import Path

import pytest

from tangram.cli.streams import Progress, check_target, page_width, write_text
from tangram.errors import InputError


@pytest.mark.parametrize(
    ("columns", "width"),
    [("80", 80), ("200", 200), ("3", 40), ("", 100), ("wide", 100), ("0", 100), ("-5", 100), ("²", 100)],
)
def test_width_without_a_terminal(columns: str, width: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert page_width({"COLUMNS": columns}) == width


def test_progress_is_silent_where_nobody_watches(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress()
    progress("working")
    progress.clear()
    assert capsys.readouterr() == ("", "")


def test_progress_is_one_line_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    progress = Progress()
    progress("one")
    progress("two " * 100)
    progress.clear()
    text = stream.getvalue()
    assert "\n" not in text
    assert text.endswith("\r\x1b[K")


def test_targets(tmp_path: Path) -> None:
    check_target(None, "-o")
    check_target(tmp_path / "new.json", "-o")
    with pytest.raises(InputError, match="there is no folder"):
        check_target(tmp_path / "no" / "new.json", "-o")
    with pytest.raises(InputError, match="this is a folder"):
        check_target(tmp_path, "-o")


def test_writing_is_reported_on_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.json"
    write_text(path, "{}\n", "-o")
    assert path.read_text(encoding="utf-8") == "{}\n"
    assert capsys.readouterr() == ("", f"wrote {path}\n")
    with pytest.raises(InputError, match="cannot be written"):
        write_text(path / "below", "", "-o")
