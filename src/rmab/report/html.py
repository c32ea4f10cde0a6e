"""HTML: elements of a page, and the page around them.

A page is one HTML file that needs no other: style (`page.css`) and drawings are part of it, in the
frame of `page.html`. All text is escaped except `Markup`, which is HTML already.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources
from pathlib import Path

from rmab import __version__

__all__ = [
    "Markup",
    "details",
    "drawing",
    "escaped",
    "file_links",
    "join",
    "link",
    "several",
    "table",
    "tag",
    "write_page",
]

_WIDE_DRAWING = 600.0  # least points of a drawing with two columns


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def escaped(text: str) -> Markup:
    """Escape a text, unless it is markup."""
    return text if isinstance(text, Markup) else Markup(escape(text))


def tag(name: str, text: str, kind: str = "") -> Markup:
    """Make an element around a text; kind is its class."""
    shown = f' class="{kind}"' if kind else ""
    return Markup(f"<{name}{shown}>{escaped(text)}</{name}>")


def join(*parts: Markup) -> Markup:
    """Join parts below one another, without empty ones."""
    return Markup("\n".join(part for part in parts if part))


def link(to: str, text: str) -> Markup:
    """Make a link to a file beside the page, or to a place on it."""
    return Markup(f'<a href="{escaped(to)}">{escaped(text)}</a>')


def details(summary: str, *parts: Markup) -> Markup:
    """Make parts that show when the summary is clicked."""
    return Markup(f"<details>\n{tag('summary', summary)}\n{join(*parts)}\n</details>")


def several(n: int, noun: str) -> str:
    """Write a number with its noun."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def file_links(names: Iterable[str], before: str = "") -> Markup:
    """Make a line with links to files beside the page."""
    links = ", ".join(link(name, name) for name in names)
    return tag("p", Markup(f"{escaped(before)}Files: {links}"), "files")


def drawing(svg: str, caption: str) -> Markup:
    """Put a drawing on a white card; one with two columns scrolls on a narrow screen."""
    found = re.search(r'viewBox="0 0 ([0-9.]+) ', svg)
    kind = "wide" if found is not None and float(found[1]) > _WIDE_DRAWING else "narrow"
    return Markup(
        f'<figure>\n<div class="drawing {kind}">\n{svg}\n</div>\n'
        f"{tag('figcaption', caption)}\n</figure>"
    )


def table(
    about: str, head: Sequence[str], rows: Iterable[Sequence[str]], numbers_from: int = 99
) -> Markup:
    """Make a table that scrolls in its place; columns from numbers_from on hold numbers."""

    def line(tags: Iterable[str], cells: Iterable[str]) -> str:
        return "<tr>" + "".join(map(cell, tags, cells, range(len(head)))) + "</tr>"

    def cell(tag: str, text: str, column: int) -> str:
        kind = ' class="number"' if column >= numbers_from else ""
        return f"<{tag}{kind}>{escaped(text)}</{tag.split()[0]}>"

    top = line(['th scope="col"'] * len(head), head)
    body = "\n".join(line(['th scope="row"', *["td"] * (len(head) - 1)], row) for row in rows)
    return Markup(
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escaped(about)}">\n<table>\n'
        f"<thead>{top}</thead>\n<tbody>\n{body}\n</tbody>\n</table>\n</div>"
    )


def write_page(folder: Path, title: str, body: Iterable[Markup], name: str = "report.html") -> Path:
    """Write the page; return its path."""
    path = folder / name
    template, style = (
        resources.files("rmab.report").joinpath(file).read_text(encoding="utf-8")
        for file in ("page.html", "page.css")
    )
    page = template.format(
        title=escaped(title), style=style, body=join(*body), version=escaped(__version__)
    )
    path.write_text(page, encoding="utf-8")
    return path
