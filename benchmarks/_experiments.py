"""Tables in docs/experiments.md that a command writes, each between two marks of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def replace_section(path: Path, name: str, text: str) -> None:
    """Put `text` between the marks of `name`; they are added at the end where they are missing."""
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    whole = path.read_text() if path.is_file() else ""
    section = f"{begin}\n{text}\n{end}"
    if begin in whole and end in whole:
        before, rest = whole.split(begin, 1)
        whole = before + section + rest.split(end, 1)[1]
    else:
        whole = f"{whole.rstrip()}\n\n{section}\n".lstrip()
    path.write_text(whole)
