"""``tangram tokenize``: turns text into the files of tokens that ``tangram run`` trains on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tangram.cli.streams import check_target, note


def tokenize_command(
    texts: Annotated[
        list[Path],
        typer.Argument(
            metavar="TEXT...", help='Text files, each a document, or .jsonl files with a "text" per line.'
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "-o", "--output", metavar="NAME", help="Write NAME.bin and NAME.idx.", show_default=False
        ),
    ],
    tokenizer: Annotated[
        str,
        typer.Option(
            "--tokenizer",
            metavar="NAME",
            help="A tokenizer of Hugging Face, by name or folder (default: bytes, a vocabulary of 257).",
            show_default=False,
        ),
    ] = "bytes",
) -> None:
    """Turn text into tokens: NAME.bin and NAME.idx in Megatron-LM's form, for tangram run --data NAME."""
    from tangram.runtime.data.indexed import write_indexed
    from tangram.runtime.data.tokenizer import find_tokenizer, read_documents

    prefix = output.with_suffix("") if output.suffix in (".bin", ".idx") else output
    check_target(Path(f"{prefix}.bin"), "-o")
    found = find_tokenizer(tokenizer)
    written = write_indexed(prefix, map(found.encode, read_documents(texts)), found.vocab_size)
    note(
        f"wrote {prefix}.bin and {prefix}.idx: {written.num_tokens} tokens in {written.num_documents} "
        f"documents, vocabulary {found.vocab_size}"
    )
