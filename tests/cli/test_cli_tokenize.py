"""``tangram tokenize``, which needs neither torch nor a download."""

from __future__ import annotations

from pathlib import Path

import pytest

from tangram.cli.main import main
from tangram.runtime.data.opening import open_tokens

Capture = pytest.CaptureFixture[str]


def test_text_becomes_tokens(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "a.txt").write_text("abc")
    (tmp_path / "b.jsonl").write_text('{"text": "é"}\n{"text": "d"}\n')
    files = [str(tmp_path / name) for name in ("a.txt", "b.jsonl")]
    assert main(["tokenize", *files, "-o", str(tmp_path / "out.bin")]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert "9 tokens in 3 documents, vocabulary 257" in err
    tokens = open_tokens(tmp_path / "out")
    assert tokens.read(0, 9).tolist() == [97, 98, 99, 256, 195, 169, 256, 100, 256]


def test_refusals(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "a.txt").write_text("abc")
    (tmp_path / "empty.jsonl").write_text("")
    for text, output, message in (
        ("none.txt", "out", "none.txt: cannot be read"),
        ("empty.jsonl", "out", "there is no token to write"),
        ("a.txt", "no/out", "there is no folder"),
    ):
        assert main(["tokenize", str(tmp_path / text), "-o", str(tmp_path / output)]) == 2
        assert message in capsys.readouterr().err
