"""From text to tokens, and folders of the ``datasets`` library where it is installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangram.errors import InputError
from tangram.runtime.data.indexed import write_indexed
from tangram.runtime.data.opening import open_tokens
from tangram.runtime.data.tokenizer import ByteTokenizer, find_tokenizer, read_documents

LICENCE = Path(__file__).parents[2] / "LICENSE"


@given(st.text())
def test_bytes_there_and_back(text: str) -> None:
    *tokens, end = ByteTokenizer().encode(text)
    assert end == 256
    assert bytes(tokens).decode() == text
    assert all(token < ByteTokenizer().vocab_size for token in [*tokens, end])


def test_a_real_text(tmp_path: Path) -> None:
    tokenizer = find_tokenizer("bytes")
    written = write_indexed(
        tmp_path / "t", map(tokenizer.encode, read_documents([LICENCE])), tokenizer.vocab_size
    )
    text = LICENCE.read_text()
    assert written.num_tokens == len(text.encode()) + 1
    found = open_tokens(tmp_path / "t").read(0, len(text.encode()))
    assert bytes(found.tolist()).decode() == text


def test_a_line_is_a_document(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "one", "id": 1}\n\n{"text": "two"}\n')
    assert list(read_documents([path])) == ["one", "two"]


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.jsonl", b'{"text": "one"}\n{"words": 1}\n', r"a.jsonl:2: has no text"),
        ("a.jsonl", b"[1]\n", r"a.jsonl:1: has no text"),
        ("a.jsonl", b"one\n", r"a.jsonl:1: is no JSON"),
        ("a.txt", b"\xff\xfe", r"is no text in UTF-8"),
    ],
)
def test_broken_text(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(InputError, match=message):
        list(read_documents([path]))


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        list(read_documents([tmp_path / "none.txt"]))


def test_without_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(InputError, match="transformers library") as caught:
        find_tokenizer("somebody/tokenizer")
    assert "tangram-llm[data]" in str(caught.value.hint)


def test_without_datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "state.json").write_text("{}")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError, match="datasets library") as caught:
        open_tokens(tmp_path)
    assert "tangram-llm[data]" in str(caught.value.hint)


def test_a_tokenizer_of_hugging_face(tmp_path: Path) -> None:
    """Trained here on the licence, so that nothing is downloaded."""
    pytest.importorskip("transformers", reason="transformers is not installed")
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    inner = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token=None))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<end>"],
        show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )
    inner.train([str(LICENCE)], trainer)
    from transformers import PreTrainedTokenizerFast

    PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<end>").save_pretrained(str(tmp_path))
    found = find_tokenizer(str(tmp_path))
    assert found.vocab_size == 400
    *tokens, end = found.encode("Licensed under the Apache License")
    assert end == 0
    assert inner.decode(tokens) == "Licensed under the Apache License"
    assert len(tokens) < 20
    with pytest.raises(InputError, match="cannot be loaded"):
        find_tokenizer(str(tmp_path / "nothing"))


def test_saved_data_sets(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="the datasets library is not installed")
    datasets.disable_progress_bars()
    rows = datasets.Dataset.from_dict({"input_ids": [[1, 2, 3], [], [4], [5, 6]], "text": ["a"] * 4})
    rows.save_to_disk(str(tmp_path / "plain"))
    tokens = open_tokens(tmp_path / "plain")
    row = [1, 2, 3, 4, 5, 6]
    for start in range(7):
        for stop in range(start, 7):
            assert tokens.read(start, stop).tolist() == row[start:stop]
    rows.select([3, 0]).save_to_disk(str(tmp_path / "chosen"))
    assert open_tokens(tmp_path / "chosen").read(0, 5).tolist() == [5, 6, 1, 2, 3]
    datasets.DatasetDict({"train": rows, "test": rows}).save_to_disk(str(tmp_path / "splits"))
    with pytest.raises(InputError, match="holds 2 splits") as caught:
        open_tokens(tmp_path / "splits")
    assert str(tmp_path / "splits" / "train") in str(caught.value.hint)
    assert open_tokens(tmp_path / "splits" / "train").num_tokens == 6
    rows.remove_columns("input_ids").save_to_disk(str(tmp_path / "text"))
    with pytest.raises(InputError, match="has no column 'input_ids'"):
        open_tokens(tmp_path / "text")
    datasets.Dataset.from_dict({"input_ids": [1, 2]}).save_to_disk(str(tmp_path / "flat"))
    with pytest.raises(InputError, match="lists of integers"):
        open_tokens(tmp_path / "flat")
