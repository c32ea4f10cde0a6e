"""The blocks of a page: commands and what they print, files, and blocks that are only shown.

Indented by four spaces are commands, after `$` of any user and after `#` of root, each followed by
what it prints. Fenced are texts of files: the first name with a fitting ending in the paragraph
before says which file it is. A comment in the page, <!-- shown: REASON -->, says that the next
block is only shown, and why.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Block", "Command", "blocks_of"]

ROOT = Path(__file__).parent.parent.parent.parent
_ENDINGS = {"toml": (".toml",), "python": (".py",), "ini": (".service", ".conf")}


@dataclass
class Command:
    """What is typed, by root or by any user, and what is then printed."""

    as_root: bool
    text: str
    prints: list[str] = field(default_factory=list)


@dataclass
class Block:
    """A block of a page.

    kind: "shell", "text" of an indented block without a command, or what is fenced; section: its
    heading; file: the name that the page gives it; shown: why it is only shown, if it is.
    """

    page: str
    line: int
    section: str
    kind: str
    text: str
    file: str | None = None
    shown: str | None = None

    @property
    def commands(self) -> list[Command]:
        """What is typed, in order."""
        found: list[Command] = []
        ends: str | None = None  # the line with which a command ends that has several
        for line in self.text.splitlines():
            last = found[-1] if found else None
            if last is not None and ends is not None:
                last.text += f"\n{line}"
                ends = None if line.strip() == ends else ends
            elif last is not None and last.text.rstrip().endswith(("\\", "|")):
                last.text += f"\n{line}"
            elif line.startswith(("$ ", "# ")):
                found.append(Command(line[0] == "#", line[2:]))
                ends = _end_of(line)
            elif line.strip() and last is not None:
                last.prints.append(line)
        return found


def _end_of(line: str) -> str | None:
    here = re.search(r"<<'(\w+)'", line)
    if here:
        return here[1]
    return "done" if line.endswith("; do") else None


def blocks_of(page: str) -> list[Block]:
    """All blocks of a page, in order."""
    return list(_blocks(page))


def _blocks(page: str) -> Iterator[Block]:
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    section, paragraph, shown = "", "", None
    at = 0
    while at < len(lines):
        line, start = lines[at], at
        at += 1
        if line.startswith("```"):
            kind = line[3:]
            while lines[at] != "```":
                at += 1
            text = "\n".join(lines[start + 1 : at]) + "\n"
            at += 1
            yield Block(page, start + 1, section, kind, text, _named(paragraph, kind), shown)
            paragraph, shown = "", None
        elif line.startswith("    ") and not paragraph.startswith(("- ", "* ", "1. ")):
            while at < len(lines) and (lines[at].startswith("    ") or _goes_on(lines, at)):
                at += 1
            text = "\n".join(each[4:] for each in lines[start:at])
            kind = "shell" if re.search(r"^[$#] ", text, re.M) else "text"
            yield Block(page, start + 1, section, kind, text, None, shown)
            paragraph, shown = "", None
        elif line.startswith("#"):
            section, paragraph = line.lstrip("# "), ""
        elif found := re.fullmatch(r"<!-- shown: (.+) -->", line):
            shown = found[1]
        elif line.strip() and not line.startswith("<!--"):
            paragraph = f"{paragraph} {line}" if lines[start - 1].strip() else line
    assert shown is None, f"{page}: a block that is only shown is missing"


def _goes_on(lines: list[str], at: int) -> bool:
    """Whether an empty line is within an indented block."""
    return not lines[at].strip() and at + 1 < len(lines) and lines[at + 1].startswith("    ")


def _named(paragraph: str, kind: str) -> str | None:
    names: list[str] = re.findall(r"`([^`\s]+)`", paragraph)
    return next((name for name in names if name.endswith(_ENDINGS.get(kind, ("\0",)))), None)
