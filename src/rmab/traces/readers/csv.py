"""CSV files, read by pandas, which leaves their cells as texts: so errors can name the line."""

from __future__ import annotations

import csv
import gzip
import io
import string
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, cast

import numpy as np

from rmab.errors import TraceError
from rmab.traces.readers.arrays import opened
from rmab.traces.readers.options import RecordingOptions
from rmab.traces.readers.sweeps import is_sweep, read_sweeps
from rmab.traces.readers.tables import Rows, find_columns, read_rows
from rmab.traces.samples import Samples

__all__ = ["read_csv"]

_LONGEST_LINE = 2**24
_BLOCK = 2**24  # characters that are read together
_DELIMITERS = (",", ";", "\t")


def read_csv(path: str, options: RecordingOptions) -> Samples:
    """Return the samples of a .csv or .csv.gz file."""
    with _text(path) as text:
        number, first = 1, text.readline(_LONGEST_LINE)
        while first and not first.strip():
            number, first = number + 1, text.readline(_LONGEST_LINE)
        if not first:
            raise TraceError(f"{path}: line 1: a header with the names of columns must be here")
        if is_sweep(first):
            return read_sweeps(path, first, number, text, options)
        if options.bands is not None:
            raise TraceError(f"{path}: line {number}: --bands is for sweeps, and this is none")
        # A decimal mark is no delimiter, unless there is no other: then cells with it are quoted.
        delimiter = max(_DELIMITERS, key=lambda d: (d != options.decimal) * first.count(d))
        if delimiter not in first and options.decimal == ",":
            delimiter = ","
        header = next(csv.reader([first], delimiter=delimiter, skipinitialspace=True))
        columns = find_columns(f"{path}: line {number}", header, options)
        blocks = _blocks(path, text, number, delimiter, len(header))
        return read_rows(path, columns, blocks, options)


@contextmanager
def _text(path: str) -> Iterator[IO[str]]:
    """Open a text file, unpacked if its name says so; lines end with a newline."""
    with opened(path) as raw:
        try:
            yield io.TextIOWrapper(_unpacked(path, raw), encoding="utf-8-sig")
        except UnicodeDecodeError:
            raise _not_text(path) from None
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise TraceError(f"{path}: not a whole .gz file: {error}") from None


def _unpacked(path: str, raw: IO[bytes]) -> IO[bytes]:
    packed = path.lower().endswith(".gz")
    return cast("IO[bytes]", gzip.GzipFile(fileobj=raw)) if packed else raw


def _not_text(path: str) -> TraceError:
    """Return the error with the line; text is decoded in blocks, so the line is searched for."""
    with opened(path) as raw:
        for number, line in enumerate(_unpacked(path, raw), start=1):
            try:
                line.decode()
            except UnicodeDecodeError as error:
                byte = line[error.start]
                return TraceError(f"{path}: line {number}: not text in UTF-8: byte {byte:#x}")
    return TraceError(f"{path}: not text in UTF-8")


def _blocks(path: str, text: IO[str], number: int, delimiter: str, width: int) -> Iterator[Rows]:
    """Yield the rows below the header, which is in line `number`, many at a time.

    pandas fills up short rows without a word, so the fields of each row are counted first.
    """
    import pandas as pd

    blank = delimiter + string.whitespace
    while block := text.read(_BLOCK):
        block += text.readline()
        if '"' in block:  # a cell in quotes may have several lines
            block += text.read()
            rows = csv.reader(io.StringIO(block), delimiter=delimiter, skipinitialspace=True)
            try:
                sizes = [(rows.line_num, len(row), any(map(str.strip, row))) for row in rows]
            except csv.Error as error:
                raise TraceError(
                    f"{path}: line {number + rows.line_num}: not CSV: {error}"
                ) from None
            lines, fields, filled = map(np.array, zip(*sizes, strict=True))
        else:
            split = block.removesuffix("\n").split("\n")
            lines = np.arange(1, len(split) + 1)
            fields = np.array([row.count(delimiter) for row in split]) + 1
            filled = np.array([row.strip(blank) != "" for row in split])
        lines += number
        number = int(lines[-1])
        wrong = np.flatnonzero((fields > width) | (filled & (fields != width)))
        sound = int(wrong[0]) if wrong.size else len(lines)
        try:
            table = pd.read_csv(
                io.StringIO(block),
                sep=delimiter,
                names=list(range(width)),
                index_col=False,
                nrows=sound,
                dtype=object,
                na_filter=False,
                skipinitialspace=True,
                skip_blank_lines=False,
            )
        except pd.errors.ParserError as error:  # a quote that is not closed, at the end of the file
            reason = str(error).splitlines()[0]
            raise TraceError(f"{path}: line {lines[sound - 1]}: not CSV: {reason}") from None
        filled = filled[:sound]
        yield lines[:sound][filled], table[filled]
        if wrong.size:
            where = f"{path}: line {lines[sound]}"
            raise TraceError(f"{where}: {fields[sound]} fields, where the header has {width}")
