"""Measures what documents say, keeps it in docs/records and writes it into the pages.

    make docs-numbers                              measures everything that is measured here
    make docs-numbers ARGS="lookahead-learning"    one record
    make docs-numbers ARGS="lookahead.md"          all records of a page
    make docs-numbers ARGS="paper"                 takes what `make reproduce` wrote
    make docs-numbers ARGS="paper --from DIR"      ... in another folder
    make docs-numbers ARGS="--render"              writes all pages again, from the records
    make docs-numbers ARGS="--list"                records, trials and about how long they take

Each record is kept as soon as it is measured, so what was interrupted goes on with the names that
are left. Records that are taken from another command's folder are measured by name only.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.documents.blocks import Asked, NotFound, measured, written
from benchmarks.documents.kept import read, store
from benchmarks.documents.pages import MEASUREMENTS, PAGES

__all__ = ["main", "write_pages"]

DOCS = Path(__file__).parent.parent.parent / "docs"
RECORDS = "records"


def write_pages(docs: Path) -> tuple[list[str], list[str]]:
    """Render all pages from the records beside them: names of those that changed, and errors.

    A page that cannot be rendered stays as it is, so that a record of another version does not
    keep others from being measured.
    """
    records = read(docs / RECORDS)
    changed, errors = [], []
    for page in PAGES:
        path = docs / page.name
        before = path.read_text(encoding="utf-8")
        try:
            after = written(before, page, records)
        except (LookupError, TypeError, ValueError) as error:
            errors.append(f"{page.name} is not rendered: {type(error).__name__}: {error}")
            continue
        if after != before:
            path.write_text(after, encoding="utf-8")
            changed.append(page.name)
    return changed, errors


def chosen(names: Sequence[str]) -> list[str]:
    """Records by their names, or those of a page; ValueError for a name that is neither."""
    found: list[str] = []
    pages = {page.name: page for page in PAGES}
    for name in names:
        if name in MEASUREMENTS:
            found.append(name)
        elif name in pages:
            blocks = pages[name].blocks.values()
            found += [record for block in blocks for record in block.records]
        else:
            known = ", ".join([*MEASUREMENTS, *pages])
            raise ValueError(f"no record or page {name!r}: there are {known}")
    usual = [name for name, each in MEASUREMENTS.items() if each.folder is None]
    return list(dict.fromkeys(found)) if names else usual


def main(words: Sequence[str] | None = None) -> int:
    """Measure what is asked for, and write the pages."""
    head, _, examples = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.documents",
        description=head,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="records, or pages")
    parser.add_argument("--trials", type=int, help="trials, instead of each record's own")
    parser.add_argument("--seed", type=int, help="seed, instead of each record's own")
    parser.add_argument("--from", dest="folder", type=Path, metavar="DIR", help="what to read")
    parser.add_argument("--render", action="store_true", help="only write the pages")
    parser.add_argument("--list", action="store_true", help="list the records")
    parser.add_argument("--docs", type=Path, default=DOCS, metavar="DIR", help="where pages are")
    options = parser.parse_args(words)
    try:
        names = [] if options.render else chosen(options.names)
    except ValueError as error:
        parser.error(str(error))
    if options.list:
        for name in (options.names and names) or MEASUREMENTS:
            each = MEASUREMENTS[name]
            trials = "" if each.trials is None else f"{each.trials:,} {each.unit}"
            folder = "" if each.folder is None else f"from {each.folder}"
            print(f"{name:24} {each.minutes:5g} min  {trials:14} {folder}".rstrip())
        return 0
    for name in names:
        measurement = MEASUREMENTS[name]
        begun = time.perf_counter()

        def say(text: str, name: str = name, begun: float = begun) -> None:
            print(f"{time.perf_counter() - begun:6.0f} s  {name}: {text}", flush=True)

        asked = Asked(
            name,
            measurement.trials if options.trials is None else options.trials,
            measurement.seed if options.seed is None else options.seed,
            options.folder or (Path(measurement.folder) if measurement.folder else None),
            options.docs,
            say,
        )
        try:
            store(options.docs / RECORDS, name, measured(name, measurement, asked))
        except NotFound as error:
            print(f"error: {name}: {error}", file=sys.stderr)
            return 2
        say("kept")
    changed, errors = write_pages(options.docs)
    for name in changed:
        print(f"written  {options.docs / name}")
    for line in errors:
        print(f"error: {line}; its records may be of another version", file=sys.stderr)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
