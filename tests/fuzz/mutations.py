"""Ways to spoil a valid document: its tree of values first, then its text, then its bytes.

A tree is what JSON holds, except that an object is a list of pairs (:class:`Pairs`), so that a key can occur
twice. All choices are hypothesis's, which makes a spoiled document reproducible and lets it be shrunk.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st


class Pairs(list[tuple[str, Any]]):
    """An object as its keys and values, in order."""


NUMBERS: Sequence[Any] = (
    0, 1, 2, 3, 7, -1, -8, 64, 257, 1000, 10_001, 65_537, 2**31, 2**53 + 1, 2**63 - 1, 2**63, 10**30, 10**400,
    0.0, -0.0, 0.5, 1.5, 4.0, -1e-9, 1e-300, 5e-324, 1e15, 1e300, math.nan, math.inf, -math.inf,
)  # fmt: skip
EXTREMES: Sequence[Any] = (0, -1, 2**63, 10**30, 10**400, 0.5, math.nan, math.inf)
TEXTS: Sequence[str] = (
    *("", " ", "x", "0", "-1", "1e9", "1e999", "010", "1:30", "0x1F", "1_000", "nan", ".inf", "null", "~"),
    *("yes", "No", "2024-01-01", "=", "<<", "*a", "&a", "!!int", "{}", "[]", "a: b", "# a", "\t", "\n"),
    *("100Gbit", "1e400Gbit", "-5us", "0s", "T4", "A100", "fp16", "int3", "full", "../../etc/passwd"),
    *("\x00", "\x1b[2J", "\x7f", "\x85", "\u2028", "\ufeff", "\ud800", "\U0001f600", "\u0661"),
    *("a\nb", "ééé", "%s%n", "{0.__class__}", "x" * 5000),
)
TOKENS: Sequence[str] = (
    *(
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        '"',
        "'",
        "\\",
        "\n",
        "\t",
        " ",
        "\r",
        "-",
        "- ",
        "? ",
        "#",
        "|",
        ">",
        "&a ",
        "*a",
    ),
    *(
        "!!python/object:os.system ",
        "!!str ",
        "<<: ",
        "\n---\n",
        "\n...\n",
        "%YAML 9.9\n",
        "%TAG ! a\n",
        "NaN",
        "1e999",
    ),
    *(
        "Infinity",
        "null",
        "true",
        "0",
        "9" * 30,
        "-",
        ".",
        "e",
        "x",
        "@",
        "+",
        "=",
        "\x00",
        "\x1b",
        "\ufeff",
        "\ud800",
    ),
)
BYTES: Sequence[bytes] = (
    b"\x00",
    b"\xff",
    b"\xfe\xff",
    b"\xc3",
    b"\x80",
    b"\xed\xa0\x80",
    b"\xf8\x88\x80\x80\x80",
)


def as_tree(value: Any) -> Any:
    """Returns a document with its objects as pairs."""
    if isinstance(value, dict):
        return Pairs((key, as_tree(item)) for key, item in value.items())
    return [as_tree(item) for item in value] if isinstance(value, list) else value


def to_json(tree: Any) -> str:
    """Writes a tree as JSON, keys as often as they occur; NaN and infinity as Python writes them."""
    if isinstance(tree, Pairs):
        return "{" + ", ".join(f"{json.dumps(key)}: {to_json(item)}" for key, item in tree) + "}"
    if isinstance(tree, list):
        return "[" + ", ".join(to_json(item) for item in tree) + "]"
    return json.dumps(tree)


def to_yaml(tree: Any, indent: str = "") -> str:
    """Writes a tree as YAML: blocks for objects and lists, plain words where JSON has quotes."""
    if isinstance(tree, Pairs) and tree:
        return "".join(f"\n{indent}{key}: {to_yaml(item, indent + '  ')}" for key, item in tree)
    if isinstance(tree, list) and tree:
        return "".join(f"\n{indent}- {to_yaml(item, indent + '  ').lstrip()}" for item in tree)
    if isinstance(tree, str):
        return tree
    return to_json(tree)


def nodes(tree: Any, path: tuple[int, ...] = ()) -> list[tuple[int, ...]]:
    """Returns the paths of all values in a tree, as positions; the root's is empty."""
    found = [path]
    if isinstance(tree, list):
        for idx, item in enumerate(tree):
            found += nodes(item[1] if isinstance(tree, Pairs) else item, (*path, idx))
    return found


def leaves(tree: Any) -> list[tuple[int, ...]]:
    """Returns the paths of values that hold no others."""
    return [path for path in nodes(tree) if not isinstance(value_at(tree, path), list)]


def value_at(tree: Any, path: Sequence[int]) -> Any:
    """Returns the value at a path."""
    for idx in path:
        tree = tree[idx][1] if isinstance(tree, Pairs) else tree[idx]
    return tree


def put(tree: Any, path: Sequence[int], value: Any) -> Any:
    """Returns the tree with another value at a path."""
    if not path:
        return value
    idx, *rest = path
    if isinstance(tree, Pairs):
        key, item = tree[idx]
        return Pairs([*tree[:idx], (key, put(item, rest, value)), *tree[idx + 1 :]])
    return [*tree[:idx], put(tree[idx], rest, value), *tree[idx + 1 :]]


def deep(depth: int, leaf: Any, *, lists: bool) -> Any:
    """Lists in lists, or objects in objects."""
    for _ in range(depth):
        leaf = [leaf] if lists else Pairs([("a", leaf)])
    return leaf


@st.composite
def values(draw: st.DrawFn) -> Any:
    """What a value may be replaced by."""
    kind = draw(st.integers(0, 9))
    if kind < 3:
        return draw(st.sampled_from(EXTREMES))
    if kind == 3:
        return draw(st.sampled_from(NUMBERS))
    if kind < 7:
        return draw(st.sampled_from(TEXTS))
    if kind == 7:
        return draw(st.sampled_from((None, True, False)))
    if kind == 8:
        return draw(st.sampled_from(([], Pairs(), [[]], [None], Pairs([("", 0)]), [0] * 300)))
    return deep(draw(st.sampled_from((1, 5, 20, 300))), 0, lists=draw(st.booleans()))


@st.composite
def spoiled_trees(draw: st.DrawFn, tree: Any) -> Any:
    """A tree with one change."""
    paths = nodes(tree)
    path = draw(st.sampled_from(paths))
    change = draw(st.sampled_from(_CHANGES))
    return change(draw, tree, path)


@st.composite
def shifted_trees(draw: st.DrawFn, tree: Any) -> Any:
    """A tree of which one value is another of its type: it often can be read, and then has to be used."""
    paths = [path for path in nodes(tree) if path]
    path = draw(st.sampled_from(paths))
    value = value_at(tree, path)
    alike = [v for v in (value_at(tree, p) for p in paths) if type(v) is type(value) and v != value]
    if isinstance(value, bool):
        return put(tree, path, not value)
    if isinstance(value, int):
        alike += [value + 1, value - 1, value * 2, value // 2, value * 1000, 1]
    elif isinstance(value, float):
        alike += [value * 1e3, value / 1e3, value * 1e12, value / 1e12, -value, 1e300, 1e-300, 0.0]
    elif isinstance(value, list):
        alike += [value[1:], value[:-1], value[::-1], [*value, *value]]
        alike = [type(value)(items) for items in alike]
    return put(tree, path, draw(st.sampled_from(alike))) if alike else _removed(draw, tree, path)


def _replaced(draw: st.DrawFn, tree: Any, path: tuple[int, ...]) -> Any:
    return put(tree, path, draw(values()))


def _removed(_: st.DrawFn, tree: Any, path: tuple[int, ...]) -> Any:
    if not path:
        return tree
    outer = value_at(tree, path[:-1])
    return put(tree, path[:-1], type(outer)([*outer[: path[-1]], *outer[path[-1] + 1 :]]))


def _repeated(draw: st.DrawFn, tree: Any, path: tuple[int, ...]) -> Any:
    if not path:
        return tree
    outer = value_at(tree, path[:-1])
    times = draw(st.sampled_from((1, 1, 40)))
    return put(tree, path[:-1], type(outer)([*outer, *[outer[path[-1]]] * times]))


def _renamed(draw: st.DrawFn, tree: Any, path: tuple[int, ...]) -> Any:
    outer = value_at(tree, path[:-1]) if path else None
    if not isinstance(outer, Pairs):
        return tree
    key, item = outer[path[-1]]
    names = [key[:-1], key + "s", key.upper(), key[::-1], draw(st.sampled_from(TEXTS))]
    return put(
        tree,
        path[:-1],
        Pairs([*outer[: path[-1]], (draw(st.sampled_from(names)), item), *outer[path[-1] + 1 :]]),
    )


def _wrapped(draw: st.DrawFn, tree: Any, path: tuple[int, ...]) -> Any:
    value = value_at(tree, path)
    forms: list[Any] = [[value], Pairs([("value", value)]), [value, value], json.dumps(str(value))]
    return put(tree, path, draw(st.sampled_from(forms)))


def _scaled(draw: st.DrawFn, tree: Any, path: tuple[int, ...]) -> Any:
    value = value_at(tree, path)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return put(tree, path, draw(values()))
    factors: tuple[Callable[[Any], Any], ...] = (
        lambda v: v + 1, lambda v: v - 1, lambda v: -v, lambda v: v * 2, lambda v: v * 1000, float, str,
    )  # fmt: skip
    return put(tree, path, draw(st.sampled_from(factors))(value))


def _exchanged(draw: st.DrawFn, tree: Any, path: tuple[int, ...]) -> Any:
    other = draw(st.sampled_from(nodes(tree)))
    return put(tree, path, value_at(tree, other))


_CHANGES = (_replaced, _replaced, _removed, _repeated, _renamed, _wrapped, _scaled, _exchanged)


@st.composite
def spoiled_texts(draw: st.DrawFn, text: str) -> str:
    """A text with one change: something inserted, taken out, doubled, or the rest cut off."""
    start = draw(st.integers(0, len(text)))
    stop = min(len(text), start + draw(st.sampled_from((0, 0, 1, 2, 8, 60))))
    kind = draw(st.integers(0, 5))
    if kind == 0:
        return text[:start]
    if kind == 1:
        return text[:stop] + text[start:]
    if kind == 2:
        return (
            text[:start]
            + draw(st.sampled_from("[{(\"'")) * draw(st.sampled_from((1, 30, 3000)))
            + text[stop:]
        )
    return text[:start] + draw(st.sampled_from(TOKENS)) + text[stop:]


@st.composite
def shifted_texts(draw: st.DrawFn, text: str) -> str:
    """A text of which one number is another; it often can be read."""
    numbers = list(re.finditer(r"[0-9]+", text))
    if not numbers:
        return text
    match = draw(st.sampled_from(numbers))
    other = draw(st.sampled_from(("0", "1", "2", "3", "4", "8", "16", "100", "1024", "65536", "9" * 25)))
    return text[: match.start()] + other + text[match.end() :]


@st.composite
def encoded(draw: st.DrawFn, text: str) -> bytes:
    """A text as bytes, now and then in an encoding that nobody reads, or with bytes that are no text."""
    kind = draw(st.integers(0, 19))
    if kind == 0:
        return text.encode(draw(st.sampled_from(("utf-16", "utf-32", "utf-8-sig"))), "replace")
    data = text.encode("utf-8", "surrogatepass")
    if kind == 1:
        start = draw(st.integers(0, len(data)))
        return data[:start] + draw(st.sampled_from(BYTES)) + data[start:]
    return data


@st.composite
def spoiled(draw: st.DrawFn, tree: Any, write: Callable[[Any], str] = to_json) -> bytes:
    """A document as bytes: with gentle changes of its tree, with another value somewhere, or with rough
    changes of tree and text.
    """
    kind = draw(st.integers(0, 2))
    if kind == 0:
        for _ in range(draw(st.sampled_from((1, 1, 2, 3)))):
            tree = draw(shifted_trees(tree))
        return write(tree).encode("utf-8", "surrogatepass")
    if kind == 1:
        tree = put(tree, draw(st.sampled_from(leaves(tree))), draw(values()))
        return write(tree).encode("utf-8", "surrogatepass")
    for _ in range(draw(st.sampled_from((1, 1, 1, 2, 3, 0)))):
        tree = draw(spoiled_trees(tree))
    text = write(tree)
    for _ in range(draw(st.sampled_from((0, 0, 0, 0, 1, 2)))):
        text = draw(spoiled_texts(text))
    return draw(encoded(text))


@st.composite
def spoiled_words(draw: st.DrawFn, line: str) -> list[str]:
    """The words of a command with up to three changes; options stay where they are mostly."""
    words = line.split()
    for _ in range(draw(st.sampled_from((1, 1, 2, 3)))):
        idx = draw(st.integers(1, len(words) - 1))
        kind = draw(st.integers(0, 7))
        if kind < 4:
            words[idx] = draw(st.sampled_from((*map(_word, NUMBERS), *TEXTS)))
        elif kind < 6:
            words[idx] = draw(
                st.sampled_from(("1", "2", "3", "4", "8", "0", "1,1", "2,0", "0.5", "none", "full"))
            )
        else:
            words[idx : idx + 1] = [[], [words[idx]] * 2][kind - 6]
    return words


def _word(number: Any) -> str:
    return f"{number:g}" if isinstance(number, float) else str(number)


@st.composite
def spoiled_bytes(draw: st.DrawFn, data: bytes) -> bytes:
    """Bytes of which some are others, or the rest is cut off."""
    for _ in range(draw(st.sampled_from((1, 2, 8)))):
        start = draw(st.integers(0, len(data)))
        if draw(st.integers(0, 4)) == 0:
            data = data[:start]
        else:
            piece = draw(st.binary(min_size=1, max_size=8))
            data = data[:start] + piece + data[start + len(piece) :]
    return data
