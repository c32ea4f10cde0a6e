"""Sweeps of a spectrum, as rtl_power and hackrf_sweep write them.

A row for each part of the spectrum, without a header: date, time, Hz low, Hz high, Hz step,
samples, then a power in dB for each bin. Rows differ in length, so they are read one by one.
"""

from __future__ import annotations

import csv
import math
import re
from array import array
from collections.abc import Sequence
from itertools import chain
from typing import IO, NamedTuple

import numpy as np

from rmab.errors import TraceError
from rmab.traces.readers.options import RecordingOptions
from rmab.traces.samples import Samples, Series

__all__ = ["Band", "is_sweep", "parse_bands", "read_sweeps"]

_SWEEP = re.compile(r"\s*\d{4}-\d\d-\d\d\s*,\s*\d\d:\d\d:\d\d")
_HEAD = 6  # date, time, Hz low, Hz high, Hz step, samples


class Band(NamedTuple):
    """Frequencies from `low` to below `high`, in Hz; `name` is as it was written."""

    name: str
    low: float
    high: float


def is_sweep(line: str) -> bool:
    """Return whether a file with this first line has sweeps."""
    return _SWEEP.match(line) is not None


def parse_bands(text: str) -> tuple[Band, ...]:
    """Return the bands of a text such as "2.401e9:2.423e9,2.426e9:2.448e9"."""
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


def read_sweeps(
    path: str, first: str, number: int, rest: IO[str], options: RecordingOptions
) -> Samples:
    """Return the power of each band in each sweep: the mean over its bins, of powers and not of dB.

    A sweep ends where a part of the spectrum comes again, or where its rows last longer than a
    slot. Its time is that of its first row.

    Parameters
    ----------
    first, number : str, int
        First row, and its line.
    rest : text file
        Rows below it.
    """
    if any(options.columns):
        raise TraceError(f"{path}: a sweep has no columns to be named")
    if options.decimal != "." or options.dates is not None:
        raise TraceError(f"{path}: it is a sweep, and --decimal and --dates are for tables")
    if options.bands is None:
        raise TraceError(f"{path}: a sweep needs --bands LOW:HIGH,... in Hz, which become the arms")
    bands = parse_bands(options.bands)
    clock, not_finite = options.clock, 0
    bins: dict[tuple[str, ...], list[np.ndarray]] = {}
    longest = math.inf if options.slot is None else options.slot * 1e9
    parts: set[str] = set()
    start, first_line = 0, 0
    power, n_bins = np.zeros(len(bands)), np.zeros(len(bands), np.int64)
    times, lines, means = array("q"), array("q"), array("d")  # of sweeps; means of bands in each

    def end_sweep() -> None:
        times.append(start)
        lines.append(first_line)
        for total, n in zip(power.tolist(), n_bins.tolist(), strict=True):
            means.append(10 * math.log10(total / n) if total > 0 else math.nan)

    rows = csv.reader(chain([first], rest), skipinitialspace=True)
    for fields in rows:
        if not any(map(str.strip, fields)):
            continue
        line = number - 1 + rows.line_num
        try:
            if len(fields) <= _HEAD:
                raise ValueError(
                    f"{len(fields)} fields; a sweep has date, time, Hz low, Hz high, Hz step, "
                    "samples and a power for each bin"
                )
            if not fields[-1].strip():
                fields.pop()  # some versions end a row with a comma
            now = clock.read(f"{fields[0].strip()} {fields[1].strip()}")
            part = fields[2].strip()
            key = (part, fields[4].strip(), str(len(fields)))
            if key not in bins:
                bins[key] = _bins_of(bands, fields, options)
            dB = np.array([options.number(text) for text in fields[_HEAD:]], np.float64)
        except ValueError as error:
            raise TraceError(f"{path}: line {line}: {error}") from None
        if not parts or part in parts or now - start >= longest:
            if parts:
                end_sweep()
            parts, start, first_line = set(), now, line
            power[:], n_bins[:] = 0.0, 0
        parts.add(part)
        finite = np.isfinite(dB)
        not_finite += int(np.count_nonzero(~finite))
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
    values = np.array(means).reshape(-1, len(bands))
    series = {
        (0, n): Series(np.array(times), values[:, n], np.array(lines)) for n in range(len(bands))
    }
    return Samples(("0",), tuple(band.name for band in bands), series, True, not_finite)


def _bins_of(
    bands: Sequence[Band], fields: list[str], options: RecordingOptions
) -> list[np.ndarray]:
    """Return the places of the bins in each band: those with their middle in it."""
    low, high, step = np.array([options.number(text) for text in fields[2:5]], np.float64)
    if not (math.isfinite(low) and high > low and 0 < step < math.inf):
        raise ValueError(
            "Hz low must be below Hz high, and Hz step above 0, "
            f"got {', '.join(text.strip() for text in fields[2:5])}"
        )
    middle = low + step * (np.arange(len(fields) - _HEAD) + 0.5)
    # rtl_power repeats the last bin of a row, beyond its end.
    return [
        np.flatnonzero((middle >= band.low) & (middle < min(band.high, high))) for band in bands
    ]
