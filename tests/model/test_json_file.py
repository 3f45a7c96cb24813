from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from tangram.errors import InputError
from tangram.model.json_file import MAX_FILE_BYTES, parse_json_object, printable, read_json_object


def refusal(content: bytes | str, folder: Path) -> str:
    file = folder / "file.json"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(InputError) as caught:
        read_json_object(file)
    message = str(caught.value)
    assert message.startswith(str(file))
    assert "\n" not in message
    assert len(message) < len(str(file)) + 200
    return message.removeprefix(str(file))


def test_reads_an_object_with_and_without_a_byte_order_mark(tmp_path: Path) -> None:
    for i, mark in enumerate((b"", b"\xef\xbb\xbf")):
        file = tmp_path / f"{i}.json"
        file.write_bytes(mark + '{"a": 1, "b": [null, true, 2.5, "é"]}'.encode())
        assert read_json_object(file) == {"a": 1, "b": [None, True, 2.5, "é"]}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('{\n  "a": 1,\n  "b" 2\n}', ":3:7: broken JSON"),
        ("", ": is empty"),
        ('{"a": 1} {}', ":1:10: broken JSON"),
        ("[1]", ": is not a JSON object"),
        ("7", ": is not a JSON object"),
        (b'{"a": "\xff"}', ":1: is not UTF-8"),
        ('{"a": 1}'.encode("utf-16"), ":1: is not UTF-8"),
        ('{"a": 1, "b": {"c": 1, "c": 2}}', ": the key 'c' occurs twice"),
        ('{"a": NaN}', ": a: NaN is not a finite number"),
        ('{"a": {"b": [1, [NaN]]}}', ": b[1][0]: NaN is not a finite number"),
        ('{"a": -Infinity}', ": a: -Infinity is not a finite number"),
        ('{"a": 1e999}', ": a: 1e999 is not a finite number"),
        ('{"a": ' + "1" * 5000 + "}", ": a: " + "1" * 40 + " is the beginning of a number of 5000 digits"),
        ('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}", ": nests too deeply"),
        ('{"a": ' * 100_000 + "1" + "}" * 100_000, ": nests too deeply"),
        ('{"a\x00": 1}', ":1:4: broken JSON"),
    ],
    ids=range(16),
)
def test_refuses_what_is_not_one_json_object(content: bytes | str, expected: str, tmp_path: Path) -> None:
    assert refusal(content, tmp_path).startswith(expected)


def test_refuses_large_files(tmp_path: Path) -> None:
    assert "larger than 8 MiB" in refusal(b'{"a": 1}' + b" " * MAX_FILE_BYTES, tmp_path)


def test_reads_a_file_of_the_largest_size(tmp_path: Path) -> None:
    file = tmp_path / "large.json"
    file.write_bytes(b"{}" + b" " * (MAX_FILE_BYTES - 2))
    assert read_json_object(file) == {}


def test_refuses_what_is_no_regular_file(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    cases = [
        (tmp_path, "is a folder, not a regular file"),
        (pipe, "is a pipe, not a regular file"),
        (Path("/dev/null"), "is a device, not a regular file"),
        (tmp_path / "absent", "cannot be read: No such file"),
        (tmp_path / ("x" * 5000), "cannot be read: File name too long"),
        (loop, "cannot be read"),
        (tmp_path / "file" / "below", "cannot be read: No such file"),
        (Path("nul\0byte"), "is not a path"),
        (Path("\udfff"), "is not a path"),
    ]
    for path, expected in cases:
        with pytest.raises(InputError) as caught:
            read_json_object(path)
        assert expected in str(caught.value)


def test_refuses_a_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the names of sockets are short
    with socket.socket(socket.AF_UNIX) as end:
        end.bind("socket")
        with pytest.raises(InputError, match="is a socket"):
            read_json_object(Path("socket"))


def test_messages_hold_no_control_characters(tmp_path: Path) -> None:
    file = tmp_path / "a\x1b[31m\nb.json"
    file.write_text("{")
    with pytest.raises(InputError) as caught:
        read_json_object(file)
    assert str(caught.value).isprintable()
    assert printable("a\x1bb\ud800") == "a?b?"


def test_names_the_place() -> None:
    with pytest.raises(InputError) as caught:
        parse_json_object("{", where="here")
    assert caught.value.where == "here:1:2"
