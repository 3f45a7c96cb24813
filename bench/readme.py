"""Shows, or puts into the README, the parts of its first command's page that it quotes.

    python bench/readme.py            prints them
    python bench/readme.py --write    replaces the block in README.md

A test compares the two, so the README cannot show what Tangram no longer prints.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
COMMAND = ["plan", "gpt3-13b", "examples/clusters/a100-v100-mixed.yaml"]
QUOTED = ("gpt3-13b on", "Pipeline:", "Memory:", "Is mixing worth it?", "Where the time goes:")
LEFT_OUT = "  What this covers:"  # and what follows it within a section
BLOCK = re.compile(r"```text\n.*?```\n", re.DOTALL)


def excerpt() -> str:
    """Runs the command and returns the quoted sections of its page."""
    code = f"from tangram.cli.main import main; raise SystemExit(main({COMMAND!r}))"
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8", "COLUMNS": "100"}
    call = [sys.executable, "-c", code]
    done = subprocess.run(call, cwd=ROOT, env=environment, capture_output=True, encoding="utf-8", check=True)
    sections = [section.partition(f"\n{LEFT_OUT}")[0].rstrip() for section in done.stdout.split("\n\n")]
    return "\n\n".join(section for section in sections if section.startswith(QUOTED)) + "\n"


def block(text: str) -> str:
    """Returns an excerpt as it stands in the README."""
    return f"```text\n{text}```\n"


def main() -> None:
    text = excerpt()
    if "--write" not in sys.argv[1:]:
        sys.stdout.buffer.write(text.encode())
        return
    readme = ROOT / "README.md"
    page, found = BLOCK.subn(lambda _: block(text), readme.read_text(encoding="utf-8"))
    if found != 1:
        raise SystemExit(f"README.md has {found} blocks of text, not one")
    readme.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
