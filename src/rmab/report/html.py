"""HTML: elements of a page, and the page around them.

A page is one HTML file that needs no other: style and drawings are part of it. All text is escaped
except `Markup`, which is HTML already.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape
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
    page = _PAGE.format(
        title=escaped(title), style=_STYLE, body=join(*body), version=escaped(__version__)
    )
    path.write_text(page, encoding="utf-8")
    return path


_PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<main>
{body}
</main>
<footer><p>rmab {version}</p></footer>
</body>
</html>
"""

_STYLE = """\
:root {
  --ink: #1c1c1e; --soft: #5c5f66; --paper: #fff; --line: #dcdee3; --shade: #f4f5f7;
  --link: #0b57a4; --held: #11652f; --broken: #a3230f; --open: #7a5200;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ink: #e9eaec; --soft: #a5a9b1; --paper: #16181c; --line: #363a42; --shade: #20242a;
    --link: #8ec1ff; --held: #7fd49a; --broken: #ff9d8a; --open: #e8c068;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  -webkit-text-size-adjust: 100%;
}
main, footer { max-width: 62rem; margin: 0 auto; padding: 0 1.1rem; }
h1 { font-size: 1.8rem; line-height: 1.2; margin: 2.2rem 0 0.8rem; }
h2 { font-size: 1.3rem; line-height: 1.3; margin: 2.6rem 0 0.8rem; }
h3 { font-size: 1.05rem; margin: 1.6rem 0 0.5rem; }
p { max-width: 44rem; margin: 0.7rem 0; }
section { border-top: 1px solid var(--line); margin-top: 2.6rem; }
section h2 { margin-top: 1.6rem; }
a { color: var(--link); }
code { font-size: 0.85em; color: var(--soft); }
code.whole { white-space: nowrap; color: inherit; }
figure { margin: 1.2rem 0; }
figcaption { color: var(--soft); font-size: 0.9rem; margin-top: 0.4rem; max-width: 44rem; }
.drawing {
  background: #fff; border: 1px solid var(--line); border-radius: 6px; padding: 0.6rem;
  overflow-x: auto;
}
.drawing svg { display: block; width: 100%; height: auto; margin: 0 auto; }
.drawing.narrow svg { max-width: 40rem; }
.drawing.wide svg { min-width: 38rem; }
.scroll { overflow-x: auto; margin: 0.8rem 0 1.2rem; }
table { border-collapse: collapse; font-size: 0.92rem; line-height: 1.4; }
th, td {
  text-align: left; vertical-align: top; padding: 0.35rem 0.9rem 0.35rem 0;
  border-bottom: 1px solid var(--line);
}
th { font-weight: 600; }
tbody th { font-weight: 400; }
thead th { border-bottom: 2px solid var(--line); }
tbody th a { white-space: nowrap; }
.number { text-align: right; font-variant-numeric: tabular-nums; }
td.number { white-space: nowrap; }
.heat { border-collapse: separate; border-spacing: 1px; }
.heat th, .heat td { border: 0; padding: 0.15rem 0.2rem; }
.heat tbody th {
  position: sticky; left: 0; background: var(--paper); white-space: nowrap; font-size: 0.85rem;
}
.heat td {
  text-align: center; font-size: 0.8rem; font-variant-numeric: tabular-nums; min-width: 1.95rem;
}
.heat td.leads { box-shadow: inset 0 0 0 2px #e69f00; font-weight: 700; }
.heat td.none { color: var(--soft); }
.heat .apart th { padding-top: 0.8rem; color: var(--soft); font-size: 0.85rem; }
.heat .turned { vertical-align: bottom; height: 7.5rem; padding: 0; }
.heat .turned a {
  writing-mode: vertical-rl; transform: rotate(180deg); font-weight: 400; white-space: nowrap;
}
.claims { list-style: none; padding: 0; }
.claims li { border-left: 4px solid var(--line); padding-left: 0.9rem; margin: 0.9rem 0; }
.claims p { margin: 0.15rem 0; }
.claims .verdict {
  border: 1px solid; border-radius: 4px; padding: 0 0.4rem; margin-right: 0.3rem;
  font-size: 0.85rem;
}
.verdict { white-space: nowrap; font-weight: 600; }
.held, .exceeded { color: var(--held); }
.contradicted, .broken { color: var(--broken); }
.undecided { color: var(--open); }
.note { border-left: 4px solid var(--broken); background: var(--shade); padding: 0.6rem 0.9rem; }
details { margin: 0.8rem 0; }
summary { cursor: pointer; color: var(--link); }
.files, footer { color: var(--soft); font-size: 0.9rem; }
footer { margin-top: 3rem; padding-bottom: 2rem; }
"""
