"""Measures what things cost, and writes docs/benchmarks.md with its figures.

    make bench                             the usual parts
    make bench ARGS="engine indices"       some parts; the others keep their records
    make bench ARGS="reproduce year"       what takes long, and is left out else
    make bench ARGS=--quick                small and rough: printed, and not kept
    make bench ARGS=--page                 writes the page again, from the records
    make bench ARGS="--add gpu.json"       takes records that were measured elsewhere into the page
    make bench-gpu                         the part of the GPU, where there is one

Records are kept in docs/benchmarks.json after each part. The exit status is 1 where a limit is
missed, 2 where a part cannot be measured here.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.figures import draw
from benchmarks.page import TABLES, page, table
from benchmarks.records import NotHere, Part, read, store

__all__ = ["main", "write_page"]

DOCS = Path(__file__).parent.parent / "docs"
USUAL = ("engine", "growth", "simulators", "indices", "draws", "service", "sums")
MODULES = {"cluster": "cluster_records"}  # of parts that are called otherwise
ASKED_FOR = ("reproduce", "year", "cluster", "gpu")  # too long, or not possible everywhere


def write_page(docs: Path) -> None:
    """The page and its figures, from the records beside it."""
    parts = read(docs / "benchmarks.json")
    (docs / "pictures").mkdir(exist_ok=True)
    draw(parts, docs / "pictures")
    path = docs / "benchmarks.md"
    path.write_text(page(path.read_text(encoding="utf-8"), parts), encoding="utf-8")


def measured(name: str, quick: bool) -> Part:
    """A part, with a line for each step that is done."""
    begun = time.perf_counter()

    def say(text: str) -> None:
        print(f"{time.perf_counter() - begun:6.0f} s  {name}: {text}", flush=True)

    module: Any = importlib.import_module(f"benchmarks.{MODULES.get(name, name)}")
    part: Part = module.measure(quick, say)
    return part


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what is asked for, and write the page."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n")[0],
        epilog=(__doc__ or "").partition("\n")[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(USUAL + ASKED_FOR))
    parser.add_argument("--quick", action="store_true", help="small and rough: not kept")
    parser.add_argument("--page", action="store_true", help="write the page from the records")
    parser.add_argument("--add", metavar="FILE", help="take the records of this file")
    parser.add_argument("--docs", metavar="DIR", type=Path, default=DOCS, help="where the page is")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.parts if name not in USUAL + ASKED_FOR]
    if unknown:
        parser.error(f"no part {unknown[0]!r}: there are {', '.join(USUAL + ASKED_FOR)}")
    records = options.docs / "benchmarks.json"
    if options.add:
        store(records, {**read(records), **read(Path(options.add))})
    missed = []
    only_page = options.page or (options.add and not options.parts)
    for name in () if only_page else options.parts or USUAL:
        try:
            part = measured(name, options.quick)
        except NotHere as error:
            print(f"{name}: {error}", file=sys.stderr)
            return 2
        missed += [f"{name}, {case}" for case in part.missed]
        if options.quick:
            for title, rows in part.tables.items():
                print(f"\n{name}, {title}\n{table(rows, TABLES[name].get(title))}")
        else:
            store(records, {**read(records), name: part})
    if not options.quick:
        write_page(options.docs)
    for each in missed:
        print(f"missed  {each}")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
