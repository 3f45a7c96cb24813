"""The YAML reader: what it accepts, and that every refusal names the place."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from tangram import yaml_reader
from tangram.errors import InputError, UnknownNameError
from tangram.yaml_reader import Kind, parse_yaml, read_assumed, read_yaml


@pytest.fixture(params=["libyaml", "pure Python"])
def any_loader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "pure Python":
        monkeypatch.setattr(yaml_reader, "_LOADER", yaml.SafeLoader)


@pytest.mark.usefixtures("any_loader")
def test_reads_lists_mappings_and_scalars_with_their_places() -> None:
    root = parse_yaml("a: 1\nb:\n  - x\n  - {c: 'no', d: 2}\n", "f.yaml")
    members = root.mapping(required=("a", "b"))
    assert members["a"].integer(0, 5) == 1
    first, second = members["b"].items()
    assert (first.text(), first.line, first.path) == ("x", 3, "b[0]")
    inner = second.mapping(optional=("c", "d"))
    assert inner["c"].text() == "no"
    assert inner["d"].where == "f.yaml:4: b[1].d"


def test_reads_json_indented_with_tabs() -> None:
    root = parse_yaml('{\n\t"a": [1, "x\\u00e9"],\n\t"b": {"c": "d"}\n}\n', "f.json")
    members = root.mapping(required=("a", "b"))
    assert [v.kind for v in members["a"].items()] == [Kind.INTEGER, Kind.TEXT]
    assert members["a"].items()[1].text() == "xé"


REFUSED = [
    ("a: &x 1\nb: *x\n", "f.yaml:1", "anchors"),
    ("a: 1\nb: *x\n", "f.yaml:2", "aliases"),
    ("a: 1\na: 2\n", "f.yaml:2", "given twice"),
    ("a: !!python/object:os.system {}\n", "f.yaml:1", "tag"),
    ("a: !x 1\n", "f.yaml:1", "tag"),
    ("? [a, b]\n: 1\n", "f.yaml:1", "cannot be a key"),
    ("a: 1\n---\nb: 2\n", "f.yaml:2", "second document"),
    ("\n\na: [1, 2\n", "f.yaml:4", "not valid YAML"),
    ("a:\n\t- 1\n", "f.yaml:2", "tabs"),
    ("a: 'x\n", "f.yaml:2", "not valid YAML"),
    ("", "f.yaml", "empty"),
    ("# nothing\n", "f.yaml", "empty"),
    ("---\n...\n", "f.yaml", "empty"),
    ("a: \x07\n", "f.yaml", "not valid YAML"),
    ("[" * 17 + "]" * 17, "f.yaml:1", "nest deeper"),
    ("[" * 200_000, "f.yaml:1", "nest"),
    ("{a: " * 5_000, "f.yaml:1", "nest"),
]


@pytest.mark.usefixtures("any_loader")
@pytest.mark.parametrize(("text", "where", "message"), REFUSED)
def test_refuses_with_the_line(text: str, where: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_yaml(text, "f.yaml")
    assert (caught.value.where or "").startswith(where)
    assert message in str(caught.value)


def test_an_alias_bomb_is_refused_at_its_first_anchor() -> None:
    bomb = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"{b}: &{b} [{','.join(['*' + a] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
    )
    with pytest.raises(InputError, match=r"f\.yaml:1: anchors"):
        parse_yaml(bomb, "f.yaml")


@pytest.mark.parametrize(
    ("plain", "kind"),
    [
        ("no", Kind.BOOLEAN),
        ("Yes", Kind.BOOLEAN),
        ("off", Kind.BOOLEAN),
        ("~", Kind.NULL),
        ("", Kind.NULL),
        ("12", Kind.INTEGER),
        ("-3", Kind.INTEGER),
        ("1e9", Kind.NUMBER),
        ("1.5", Kind.NUMBER),
        (".inf", Kind.NUMBER),
        ("12:30", Kind.AMBIGUOUS),
        ("010", Kind.AMBIGUOUS),
        ("0x1F", Kind.AMBIGUOUS),
        ("1_000", Kind.AMBIGUOUS),
        ("2024-01-31", Kind.DATE),
        ("100Gbit", Kind.TEXT),
        ("5us", Kind.TEXT),
        ("T4", Kind.TEXT),
        ("A100-80GB-SXM", Kind.TEXT),
        ("no-one", Kind.TEXT),
    ],
)
def test_plain_scalars_are_what_yaml_readers_take_them_for(plain: str, kind: Kind) -> None:
    value = parse_yaml(f"a: {plain}\n", "f.yaml").mapping(required=("a",))["a"]
    assert value.kind is kind
    if kind is not Kind.TEXT:
        with pytest.raises(InputError, match=r"f\.yaml:1: a: expected a text"):
            value.text()
    if kind is not Kind.INTEGER:
        with pytest.raises(InputError, match="expected a whole number"):
            value.integer(0, 10**18)


@pytest.mark.parametrize("plain", ["-1", "11", "9" * 30, "9" * 10_000])
def test_integers_out_of_range_are_refused(plain: str) -> None:
    value = parse_yaml(f"a: {plain}\n", "f.yaml").mapping(required=("a",))["a"]
    with pytest.raises(InputError, match="out of range") as caught:
        value.integer(0, 10)
    assert len(str(caught.value)) < 200


def test_quoted_numbers_are_texts() -> None:
    value = parse_yaml("a: '8'\n", "f.yaml").mapping(required=("a",))["a"]
    assert value.text() == "8"
    with pytest.raises(InputError, match="found a text, '8'"):
        value.integer(0, 10)


def test_wrong_shapes_are_refused() -> None:
    root = parse_yaml("a: [1]\nb: {c: 1}\nd: '  '\n", "f.yaml")
    members = root.mapping(required=("a", "b", "d"))
    with pytest.raises(InputError, match="expected a mapping"):
        members["a"].mapping()
    with pytest.raises(InputError, match="expected a list"):
        members["b"].items()
    with pytest.raises(InputError, match="expected a text, found a list"):
        members["a"].text()
    with pytest.raises(InputError, match="blank"):
        members["d"].text()


def test_unknown_and_missing_keys() -> None:
    root = parse_yaml("naem: x\n", "f.yaml")
    with pytest.raises(UnknownNameError, match="'name'") as caught:
        root.mapping(required=("name",))
    assert caught.value.where == "f.yaml:1: naem"
    with pytest.raises(InputError, match="the key 'name' is missing"):
        parse_yaml("other: x\n", "f.yaml").mapping(required=("name",), optional=("other",))


def test_assumed_list() -> None:
    members = parse_yaml("assumed:\n- {what: x, why: y}\n", "f.yaml").mapping(optional=("assumed",))
    assert read_assumed(members["assumed"]) == [("x", "y")]
    assert read_assumed(None) == []
    with pytest.raises(InputError, match="'why' is missing"):
        read_assumed(parse_yaml("- {what: x}\n", "f.yaml"))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    def refusal(path: Path | str) -> str:
        with pytest.raises(InputError) as caught:
            read_yaml(path, "cluster file")
        assert str(path) in str(caught.value)
        return str(caught.value)

    (tmp_path / "lab.yaml").write_text("a: 1\n")
    assert "did you mean" in refusal(tmp_path / "lba.yaml")
    assert "lab.yaml" in refusal(tmp_path / "lba.yaml")
    assert "no such cluster file" in refusal(tmp_path / "nowhere" / "lab.yaml")
    assert "no such cluster file" in refusal("x" * 5_000)
    assert "no such cluster file" in refusal("nul\0byte")
    assert "directory" in refusal(tmp_path)
    assert "it holds lab.yaml" in refusal(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    assert "not a regular file" in refusal(tmp_path / "pipe")
    assert "not a regular file" in refusal("/dev/null")
    (tmp_path / "empty").write_bytes(b"")
    assert "empty" in refusal(tmp_path / "empty")
    (tmp_path / "latin").write_bytes(b"a: 1\nb: caf\xe9\n")
    assert "UTF-8" in refusal(tmp_path / "latin")
    assert "latin:2" in refusal(tmp_path / "latin")
    (tmp_path / "large").write_bytes(b"#" * (yaml_reader.MAX_BYTES + 1))
    assert "1024 KiB" in refusal(tmp_path / "large")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission(tmp_path: Path) -> None:
    path = tmp_path / "secret.yaml"
    path.write_text("a: 1\n")
    path.chmod(0)
    with pytest.raises(InputError, match="cannot be read"):
        read_yaml(path, "cluster file")


def test_a_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "bom.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert read_yaml(path, "file").mapping(required=("a",))["a"].integer(0, 1) == 1
