"""Recordings that are tables of text: CSV files, long and wide, and sweeps of a spectrum.

Long: a row for each sample, with the columns time, arm and value, and agent if there are several.
Wide: a row for each time, with the column time and one for each arm.
Sweeps, as rtl_power and hackrf_sweep write them: a row for each part of the spectrum, without a
header: date, time, Hz low, Hz high, Hz step, samples, then a power in dB for each bin.
"""

from __future__ import annotations

import csv
import gzip
import io
import math
import re
import zlib
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import IO, TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from rmab.errors import TraceError
from rmab.text import shown
from rmab.traces.readers.arrays import opened
from rmab.traces.samples import Clock, Samples, Series, natural_order
from rmab.traces.trace import is_one_line

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Band", "Cells", "Columns", "parse_bands", "read_csv", "read_parquet"]

_LONGEST_LINE = 2**24
_DELIMITERS = (",", ";", "\t")
_SWEEP = re.compile(r"\s*\d{4}-\d\d-\d\d\s*,\s*\d\d:\d\d:\d\d")
_SWEEP_HEAD = 6  # date, time, Hz low, Hz high, Hz step, samples
_SHOWN_COLUMNS = 12
_DECIMAL_COMMA = re.compile(r"[-+]?\d*,\d+(?:[eE][-+]?\d+)?")


class Columns(NamedTuple):
    """The names of a table's columns; None: the usual one, if it is there."""

    time: str | None = None
    arm: str | None = None
    value: str | None = None
    agent: str | None = None


class Cells(NamedTuple):
    """What cells of a table hold.

    decimal: the decimal mark of numbers, "." or ","; missing: cells that mean a missing value,
    beside empty ones; dates: the form of dates, as strptime of Python has it, None: ISO 8601.
    """

    decimal: str = "."
    missing: tuple[str, ...] = ()
    dates: str | None = None

    @property
    def clock(self) -> Clock:
        """What reads the times."""
        return Clock(self.decimal, self.dates)

    @property
    def missing_numbers(self) -> list[float]:
        """The marks that are numbers, which are compared as such: -9999 is -9999.0, too."""
        return list(_numbers(self.missing))

    def number(self, text: str, where: str) -> float | None:
        """The value of a cell; None where it is empty or marked as missing."""
        text = text.strip()
        if not text or text in self.missing:
            return None
        try:
            if "_" not in text and (self.decimal == "." or "." not in text):  # "_": of Python
                value = float(text.replace(self.decimal, "."))
                return None if value in _numbers(self.missing) else value
        except ValueError:
            pass
        hint = ""
        if self.decimal == "." and _DECIMAL_COMMA.fullmatch(text):
            hint = "; --decimal , reads decimal commas"
        elif not any(map(str.isdigit, text)) and is_one_line(text):
            hint = f"; --missing {text} reads it as missing"
        raise TraceError(f"{where}: {shown(text)} is no number{hint}")


@lru_cache(maxsize=8)
def _numbers(marks: tuple[str, ...]) -> frozenset[float]:
    found = []
    for mark in marks:
        with suppress(ValueError):
            found.append(float(mark))
    return frozenset(found)


@dataclass(frozen=True)
class Band:
    """Frequencies from `low` to below `high`, in Hz; `name` is as it was written."""

    name: str
    low: float
    high: float


Row = tuple[int, list[str]]  # a row's line, and its fields


def read_csv(
    path: str,
    columns: Columns,
    bands: Sequence[Band] = (),
    slot_s: float | None = None,
    cells: Cells = Cells(),  # noqa: B008 - immutable
) -> Samples:
    """The samples of a .csv or .csv.gz file."""
    with _lines(path) as lines:
        before: list[str] = []  # lines that are empty
        for first in lines:
            if first.strip():
                break
            before.append(first)
        else:
            raise TraceError(f"{path}: line 1: a header with the names of columns must be here")
        if _SWEEP.match(first):
            if any(columns):
                raise TraceError(f"{path}: a sweep has no columns to be named")
            if cells.decimal != "." or cells.dates is not None:
                raise TraceError(f"{path}: it is a sweep, and --decimal and --dates are for tables")
            rows = _rows([*before, first], lines)
            return _read_sweeps(path, rows, bands, slot_s, cells)
        rows = _rows([*before, first], lines, cells.decimal)
        if bands:
            where = f"{path}: line {len(before) + 1}"
            raise TraceError(f"{where}: --bands is for sweeps, and this is none")
        return _read_table(path, rows, columns, cells)


def read_parquet(path: str, columns: Columns, cells: Cells) -> Samples:
    """The samples of a .parquet file, a table like a long or wide CSV, if pandas can read it."""
    import pandas as pd

    with opened(path):
        pass
    try:
        table = pd.read_parquet(path)
    except ImportError:
        raise TraceError(
            f"{path}: pandas reads .parquet with pyarrow or fastparquet, and neither is installed; "
            "install one, or save as .csv"
        ) from None
    except Exception as error:  # whatever its engine raises at a file that is none
        raise TraceError(f"{path}: not a .parquet file that pandas reads: {error}") from None
    if table.index.name is not None:  # often the times
        table = table.reset_index()
    texts = zip(*(_as_text(table.iloc[:, i]) for i in range(table.shape[1])), strict=True)
    rows = ((i + 2, list(row)) for i, row in enumerate(texts))
    header: Row = (1, [str(name) for name in table.columns])
    return _read_table(path, chain([header], rows), columns, cells)


def _as_text(column: pd.Series[Any]) -> Iterator[str]:
    """The cells of a column as a CSV file would have them."""
    # NaN stays, to be counted with those of other files; what has no value is empty.
    keeps_nan = isinstance(column.dtype, np.dtype) and column.dtype.kind == "f"
    # NumPy writes single precision with the digits it has.
    cells = column.to_numpy() if keeps_nan else column.astype(object)
    for cell, missing in zip(cells, column.isna(), strict=True):
        if missing and not keeps_nan:
            yield ""
        elif isinstance(cell, bool | np.bool_):
            yield str(int(cell))
        elif hasattr(cell, "total_seconds"):
            yield repr(cell.total_seconds())
        else:
            yield cell.isoformat() if hasattr(cell, "isoformat") else str(cell)


def parse_bands(text: str) -> tuple[Band, ...]:
    """The bands of a text such as "2.401e9:2.423e9,2.426e9:2.448e9"."""
    bands: list[Band] = []
    for part in text.split(","):
        try:
            low, high = (float(end) for end in part.split(":"))
        except ValueError:
            low, high = math.nan, math.nan
        if not 0 <= low < high < math.inf:
            raise TraceError(
                "--bands must be LOW:HIGH in Hz, with commas between them, as in "
                f"2.401e9:2.423e9,2.426e9:2.448e9; got {part.strip()!r}"
            )
        if part.strip() in [band.name for band in bands]:
            raise TraceError(f"--bands: {part.strip()} comes twice")
        bands.append(Band(part.strip(), low, high))
    return tuple(bands)


@contextmanager
def _lines(path: str) -> Iterator[Iterator[str]]:
    """The lines of a text file, unpacked where its name says so."""
    with opened(path) as raw:
        text = io.TextIOWrapper(_unpacked(path, raw), encoding="utf-8-sig", newline="")
        number = 0

        def each() -> Iterator[str]:
            nonlocal number
            while line := text.readline(_LONGEST_LINE):
                number += 1
                if len(line) == _LONGEST_LINE:
                    raise TraceError(f"{path}: line {number} is longer than 2^24 characters")
                yield line

        try:
            yield each()
        except UnicodeDecodeError:
            raise _not_text(path) from None
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise TraceError(f"{path}: not a whole .gz file: {error}") from None
        except csv.Error as error:
            raise TraceError(f"{path}: line {number}: not CSV: {error}") from None


def _unpacked(path: str, raw: IO[bytes]) -> IO[bytes]:
    packed = path.lower().endswith(".gz")
    return cast("IO[bytes]", gzip.GzipFile(fileobj=raw)) if packed else raw


def _not_text(path: str) -> TraceError:
    """Which line is no text: text is decoded in blocks, so the line must be looked for."""
    with opened(path) as raw:
        for number, line in enumerate(_unpacked(path, raw), start=1):
            try:
                line.decode()
            except UnicodeDecodeError as error:
                byte = line[error.start]
                return TraceError(f"{path}: line {number}: not text in UTF-8: byte {byte:#x}")
    return TraceError(f"{path}: not text in UTF-8")


def _rows(head: list[str], rest: Iterator[str], decimal: str = ".") -> Iterator[Row]:
    """The rows that are not empty, with their lines; head: the lines up to the first row.

    A decimal mark is no delimiter, unless there is no other: then cells that have it are quoted.
    """
    delimiter = max(_DELIMITERS, key=lambda each: (each != decimal) * head[-1].count(each))
    delimiter = delimiter if delimiter in head[-1] else decimal if decimal == "," else delimiter
    reader = csv.reader(chain(head, rest), delimiter=delimiter, skipinitialspace=True)
    for fields in reader:
        if any(map(str.strip, fields)):
            yield reader.line_num, fields


def _check_name(name: str, where: str) -> None:
    """Refuse the name of an agent or an arm that would spoil every line it is printed in."""
    if not is_one_line(name):
        raise TraceError(f"{where}: the name {shown(name)} has characters that cannot be printed")


class _Collected:
    """Samples in the order of the file, each with the code of its series."""

    def __init__(self, cells: Cells) -> None:
        self._cells = cells
        self.code = array("q")
        self.time = array("q")
        self.value = array("d")
        self.line = array("q")
        self.not_finite = 0

    def add(self, code: int, time: int, text: str, line: int, where: str) -> None:
        """Add one; `where` names the file and the line."""
        value = self._cells.number(text, where)
        self.add_value(code, time, math.nan if value is None else value, line)
        self.not_finite += value is not None and not math.isfinite(value)

    def add_value(self, code: int, time: int, value: float, line: int) -> None:
        self.code.append(code)
        self.time.append(time)
        self.value.append(value if math.isfinite(value) else math.nan)
        self.line.append(line)

    def series(self) -> dict[int, Series]:
        """The samples of each code, in the order of the file."""
        code = np.array(self.code, np.int64)
        order = np.argsort(code, kind="stable")
        time, line = np.array(self.time, np.int64)[order], np.array(self.line, np.int64)[order]
        value = np.array(self.value, np.float64)[order]
        codes, starts = np.unique(code[order], return_index=True)
        ends = [*starts[1:], code.size]
        return {
            int(c): Series(time[a:b], value[a:b], line[a:b])
            for c, a, b in zip(codes, starts, ends, strict=True)
        }


def _read_table(path: str, rows: Iterator[Row], columns: Columns, cells: Cells) -> Samples:
    """The samples of a table with a header."""
    line, header = next(rows)
    names = [name.strip() for name in header]

    def find(asked: str | None, usual: str) -> int | None:
        """A column's place; None where it is neither there nor asked for."""
        if asked is None and usual not in names:
            return None
        if (asked or usual) not in names:
            option = f" (--{usual})" if asked is not None else ""
            raise _no_column(path, line, asked or usual, names, option)
        return names.index(asked or usual)

    time = find(columns.time, "time")
    if time is None:
        raise _no_column(path, line, "time", names, "; --time names another")
    for place, name in enumerate(names):
        if name and name in names[:place]:
            raise TraceError(f"{path}: line {line}: two columns have the name {shown(name)}")
        _check_name(name, f"{path}: line {line}")
    agent = find(columns.agent, "agent")
    arm, value = find(columns.arm, "arm"), find(columns.value, "value")
    checked = _checked(path, rows, len(names))
    if arm is None and value is None:
        # A column without a name is an index that some program wrote.
        arms = [i for i, name in enumerate(names) if name and i not in (time, agent)]
        return _read_wide(path, checked, time, agent, {i: names[i] for i in arms}, cells)
    if arm is None:
        raise _no_column(path, line, "arm", names, "; --arm names another")
    if value is None:
        raise _no_column(path, line, "value", names, "; --value names another")
    return _read_long(path, checked, (time, agent, arm, value), cells)


def _no_column(path: str, line: int, name: str, names: list[str], more: str) -> TraceError:
    shown = ", ".join(names[:_SHOWN_COLUMNS]) + (", ..." if len(names) > _SHOWN_COLUMNS else "")
    return TraceError(f"{path}: line {line}: no column {name!r}{more}; columns are {shown}")


def _checked(path: str, rows: Iterator[Row], width: int) -> Iterator[Row]:
    """Rows of as many fields as the header has."""
    for line, fields in rows:
        if len(fields) != width:
            raise TraceError(
                f"{path}: line {line}: {len(fields)} fields, where the header has {width}"
            )
        yield line, fields


def _time(clock: Clock, text: str, where: str) -> int:
    try:
        return clock.read(text.strip())
    except ValueError as error:
        raise TraceError(f"{where}: {error}") from None


def _read_long(
    path: str, rows: Iterator[Row], where_is: tuple[int, int | None, int, int], cells: Cells
) -> Samples:
    """where_is: the columns of time, agent, arm and value."""
    time, agent, arm, value = where_is
    clock, found = cells.clock, _Collected(cells)
    codes: dict[tuple[str, str], int] = {}
    for line, fields in rows:
        where = f"{path}: line {line}"
        who = "0" if agent is None else fields[agent].strip()
        key = (who, fields[arm].strip())
        if "" in key:
            raise TraceError(f"{where}: {'agent' if not who else 'arm'} has no name")
        if key not in codes:
            for name in key:
                _check_name(name, where)
        code = codes.setdefault(key, len(codes))
        found.add(code, _time(clock, fields[time], where), fields[value], line, where)
    _check_any(path, found)
    agents = natural_order(list({who for who, _ in codes}))
    arms = natural_order(list({arm for _, arm in codes}))
    places = {name: m for m, name in enumerate(agents)}, {name: n for n, name in enumerate(arms)}
    by_code = {code: (places[0][who], places[1][name]) for (who, name), code in codes.items()}
    series = {by_code[code]: one for code, one in found.series().items()}
    return Samples(tuple(agents), tuple(arms), series, True, found.not_finite)


def _read_wide(
    path: str,
    rows: Iterator[Row],
    time: int,
    agent: int | None,
    arms: dict[int, str],
    cells: Cells,
) -> Samples:
    clock, found = cells.clock, _Collected(cells)
    seen: dict[str, int] = {}
    for line, fields in rows:
        where = f"{path}: line {line}"
        who = "0" if agent is None else fields[agent].strip()
        if not who:
            raise TraceError(f"{where}: agent has no name")
        if who not in seen:
            _check_name(who, where)
        code = seen.setdefault(who, len(seen)) * len(arms)
        now = _time(clock, fields[time], where)
        for n, (column, name) in enumerate(arms.items()):
            found.add(code + n, now, fields[column], line, f"{where}: column {name!r}")
    _check_any(path, found)
    agents = natural_order(list(seen))
    places = {seen[who]: m for m, who in enumerate(agents)}
    series = {
        (places[code // len(arms)], code % len(arms)): one for code, one in found.series().items()
    }
    return Samples(tuple(agents), tuple(arms.values()), series, True, found.not_finite)


def _check_any(path: str, found: _Collected) -> None:
    if not found.code:
        raise TraceError(f"{path}: a trace has 2 slots or more, and here is no row with a sample")


def _read_sweeps(
    path: str, rows: Iterator[Row], bands: Sequence[Band], slot_s: float | None, cells: Cells
) -> Samples:
    """The power of each band in each sweep: the mean over its bins, of powers and not of dB.

    A sweep ends where a part of the spectrum comes again, or where its rows last longer than a
    slot. Its time is that of its first row.
    """
    if not bands:
        raise TraceError(f"{path}: a sweep needs --bands LOW:HIGH,... in Hz, which become the arms")
    clock, found = cells.clock, _Collected(cells)
    bins: dict[tuple[str, ...], list[np.ndarray]] = {}
    longest = math.inf if slot_s is None else slot_s * 1e9
    parts: set[str] = set()
    start, first_line = 0, 0
    power, n_bins = np.zeros(len(bands)), np.zeros(len(bands), np.int64)

    def end_sweep() -> None:
        for n in range(len(bands)):
            mean = 10 * math.log10(power[n] / n_bins[n]) if power[n] > 0 else math.nan
            found.add_value(n, start, mean, first_line)

    for line, fields in rows:
        where = f"{path}: line {line}"
        if len(fields) <= _SWEEP_HEAD:
            raise TraceError(
                f"{where}: {len(fields)} fields; a sweep has date, time, Hz low, Hz high, Hz step, "
                "samples and a power for each bin"
            )
        if not fields[-1].strip():
            fields.pop()  # some versions end a row with a comma
        now = _time(clock, f"{fields[0].strip()} {fields[1].strip()}", where)
        part = fields[2].strip()
        if not parts or part in parts or now - start >= longest:
            if parts:
                end_sweep()
            parts, start, first_line = set(), now, line
            power[:], n_bins[:] = 0.0, 0
        parts.add(part)
        key = (part, fields[4].strip(), str(len(fields)))
        if key not in bins:
            bins[key] = _bins_of(bands, fields, where, cells)
        dB = np.array([cells.number(text, where) for text in fields[_SWEEP_HEAD:]], np.float64)
        finite = np.isfinite(dB)
        found.not_finite += int(np.count_nonzero(~finite))
        for n, inside in enumerate(bins[key]):
            some = inside[finite[inside]]
            with np.errstate(over="ignore"):
                power[n] += np.sum(10.0 ** (dB[some] / 10))
            n_bins[n] += some.size
    end_sweep()
    for n, band in enumerate(bands):
        if not any(inside[n].size for inside in bins.values()):
            raise TraceError(
                f"{path}: --bands {band.name}: no bin of the sweeps has its middle there"
            )
    series = {(0, n): one for n, one in found.series().items()}
    return Samples(("0",), tuple(band.name for band in bands), series, True, found.not_finite)


def _bins_of(
    bands: Sequence[Band], fields: list[str], where: str, cells: Cells
) -> list[np.ndarray]:
    """The places of the bins in each band: those whose middle lies in it."""
    low, high, step = np.array([cells.number(text, where) for text in fields[2:5]], np.float64)
    if not (math.isfinite(low) and high > low and 0 < step < math.inf):
        raise TraceError(
            f"{where}: Hz low must be below Hz high, and Hz step above 0, "
            f"got {', '.join(text.strip() for text in fields[2:5])}"
        )
    middle = low + step * (np.arange(len(fields) - _SWEEP_HEAD) + 0.5)
    # rtl_power repeats the last bin of a row, beyond its end.
    return [
        np.flatnonzero((middle >= band.low) & (middle < min(band.high, high))) for band in bands
    ]
