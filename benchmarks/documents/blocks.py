"""Measurements, blocks, and the markers between which a page has its numbers.

<!-- numbers: NAME -->
what the block NAME makes of its records
<!-- /numbers -->
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import fill

from benchmarks.documents.kept import Json, Record

__all__ = [
    *("NOT_YET", "Asked", "Block", "Measurement", "NotFound", "Page"),
    *("blocks_of", "filled", "measured", "outside", "rendered", "written"),
]

NOT_YET = "Not measured yet."
_MARKED = re.compile(
    r"(?P<open><!-- numbers: (?P<name>[\w-]+) -->\n)(?P<body>.*?)(?P<close><!-- /numbers -->)",
    re.DOTALL,
)
_WIDTH = 110


class NotFound(Exception):  # noqa: N818 - it is no mistake
    """A folder that a measurement reads is not there, or has not what is needed."""


@dataclass(frozen=True)
class Asked:
    """What a measurement is asked for; folder: where another command wrote what it reads."""

    name: str
    trials: int | None
    seed: int | None
    folder: Path | None
    docs: Path  # where pictures go
    say: Callable[[str], None]

    @property
    def often(self) -> int:
        """The number of trials, where there are some."""
        assert self.trials is not None, f"{self.name} has no trials"
        return self.trials


@dataclass(frozen=True)
class Measurement:
    """What makes a record.

    measure: gives its data, or, of what another command wrote, the whole record; minutes: about how
    long it takes on two cores; folder: what it reads, unless it is told otherwise; unit: of trials.
    """

    measure: Callable[[Asked], Json | Record]
    minutes: float
    trials: int | None = None
    seed: int | None = 0
    folder: str | None = None
    unit: str = "trials"  # of what is repeated
    command: str = 'make docs-numbers ARGS="{}"'  # with the name and what was asked for


@dataclass(frozen=True)
class Block:
    """Text made of records; without records it is computed when it is rendered."""

    render: Callable[..., str]
    records: tuple[str, ...] = ()


@dataclass(frozen=True)
class Page:
    """A page of docs/, with what is measured for it and the blocks that stand in it."""

    name: str
    blocks: Mapping[str, Block]
    measurements: Mapping[str, Measurement] = field(default_factory=dict)


def measured(name: str, measurement: Measurement, asked: Asked) -> Record:
    """Measure anew."""
    begun = time.perf_counter()
    found = measurement.measure(asked)
    if isinstance(found, Record):
        return found
    changed = "" if asked.trials == measurement.trials else f" --trials {asked.trials}"
    command = measurement.command.format(f"{name}{changed}")
    took = time.perf_counter() - begun
    often = {"seed": asked.seed, "trials": asked.trials, "unit": measurement.unit}
    return Record.now(command, found, took, **often)


def rendered(block: Block, records: Mapping[str, Record]) -> str:
    """The text of a block, and below it where its numbers come from."""
    missing = [name for name in block.records if name not in records]
    if missing:
        return f'{NOT_YET} (`make docs-numbers ARGS="{" ".join(missing)}"`)'
    text = block.render(*(records[name] for name in block.records))
    sources = "; ".join(records[name].source for name in block.records)
    return f"{_filled(text)}\n\n*{sources}.*" if sources else _filled(text)


def _filled(text: str) -> str:
    """Paragraphs and items in lines of one width; tables and pictures as they are."""
    parts = []
    for part in text.strip().split("\n\n"):
        if part.startswith(("|", "!", "#", "    ")):
            parts.append(part)
        else:
            lines = part.split("\n") if part.startswith("- ") else [" ".join(part.split("\n"))]
            parts.append("\n".join(_line(line) for line in lines))
    return "\n\n".join(parts)


def _line(text: str) -> str:
    """A paragraph in lines; a number stays with its unit and its error."""
    kept = re.sub(r" (?=[%±])|(?<=±) ", "\N{NO-BREAK SPACE}", text)
    after = "  " if text.startswith("- ") else ""
    lines = fill(
        kept, _WIDTH, subsequent_indent=after, break_long_words=False, break_on_hyphens=False
    )
    return lines.replace("\N{NO-BREAK SPACE}", " ")


def written(text: str, page: Page, records: Mapping[str, Record]) -> str:
    """The page's text with every block anew; ValueError if marks and blocks are not the same."""
    bodies = {name: rendered(block, records) for name, block in page.blocks.items()}
    try:
        return filled(text, bodies)
    except ValueError as error:
        raise ValueError(f"{page.name}: {error}") from None


def filled(text: str, bodies: Mapping[str, str]) -> str:
    """A text with these bodies between its marks; ValueError if names are not the same."""
    marks = list(blocks_of(text))
    if set(marks) != set(bodies):
        raise ValueError(f"the marks are {marks}, and the blocks {list(bodies)}")

    def fresh(match: re.Match[str]) -> str:
        body = bodies[match["name"]]
        end = "\n" if body else ""
        return f"{match['open']}{body}{end}{match['close']}"

    return _MARKED.sub(fresh, text)


def blocks_of(text: str) -> dict[str, str]:
    """What stands between the marks of a page, by name."""
    found: dict[str, str] = {}
    for match in _MARKED.finditer(text):
        if match["name"] in found:
            raise ValueError(f"the mark {match['name']} stands twice")
        found[match["name"]] = match["body"].rstrip("\n")
    return found


def outside(text: str) -> str:
    """The page without its blocks."""
    return _MARKED.sub("", text)
