"""A recording in any of the forms that instruments and people leave behind becomes a trace.

    .csv, .csv.gz  long, wide, or sweeps of a spectrum (rmab.traces.readers.csv)
    .parquet       a table like these
    .npy, .npz     an array (slots, arms) or (agents, slots, arms)
    .mat           the same, up to version 7

Nothing is filled in: a slot without a sample is missing.

A grading is a row of comparisons, and the state of a value is how many of them hold: of one rule
for good 0 or 1, of S - 1 cuts 0 to S - 1. With a hysteresis h every comparison has a memory: it
ceases to hold at its bound, and holds again only h beyond it. So with `<= -95` and h = 3 a channel
is bad above -95 dB, and good again at -98 dB or less.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from rmab.errors import TraceError
from rmab.extensions import Catalogue
from rmab.traces.readers.arrays import ArrayFile, check_cells, chosen, fits_memory, read_npy
from rmab.traces.readers.csv import Cells, Columns, parse_bands, read_csv, read_parquet
from rmab.traces.readers.mat import read_mat
from rmab.traces.samples import DUPLICATES, Samples, Series, on_grid, on_steps, segments
from rmab.traces.trace import MISSING, Comparison, Trace, check_usable, load_trace

__all__ = ["HOLE", "HOWS", "Floor", "Recording", "read_recording"]

HOWS = ("first", "any-bad", "mean")
_HOW = HOWS[0]
HOLE = 10
_STATE_ARRAYS = ("state", "level")  # of a trace, where -1 is missing
_AUTO = "auto"
_STATES = Comparison("==", 1.0)  # of values that are states themselves
FLOOR_PERCENT = 10.0  # of an arm's powers lie below its noise floor
ABOVE_FLOOR_DB = 6.0  # a power is good up to so much above it
_MAX_LEVELS = 127


class Floor(NamedTuple):
    """The noise floor of an arm as an agent measured it, and the highest power that is good."""

    agent: str
    arm: str
    floor: float
    good_up_to: float


@dataclass(frozen=True)
class Recording:
    """What was read.

    levels: the same in several states, where these were asked for; without a rule for good it is
        the trace itself.
    not_finite: how many values were NaN or infinite, and are missing.
    floors: of good = "auto".
    """

    trace: Trace
    levels: Trace | None = None
    not_finite: int = 0
    floors: tuple[Floor, ...] = ()


@dataclass(frozen=True)
class _Options:
    good: str | None
    levels: str | None
    hysteresis: float
    slot: float | None
    how: str
    hole: int
    sort: bool
    columns: Columns
    bands: str | None
    variable: str | None
    duplicates: str | None
    cells: Cells


def read_recording(
    path: str | PathLike[str],
    *,
    good: str | None = None,
    levels: str | None = None,
    hysteresis: float = 0.0,
    slot: float | None = None,
    how: str = _HOW,
    hole: int = HOLE,
    sort: bool = False,
    time: str | None = None,
    arm: str | None = None,
    value: str | None = None,
    agent: str | None = None,
    bands: str | None = None,
    variable: str | None = None,
    duplicates: str | None = None,
    decimal: str = ".",
    missing: Sequence[str] = (),
    dates: str | None = None,
) -> Recording:
    """Read a recording.

    good: a rule such as "<= -95", or "auto" for powers in dB; None: values are states, 1 is good,
        0 bad and -1 missing.
    levels: cuts such as "-95,-80", which make several states.
    hysteresis: by how much more a value must be good to be so again.
    slot: seconds of a slot; None: the median step between times.
    how: what becomes of several samples in a slot: the "first" counts, one that is bad makes it
        bad ("any-bad"), or their "mean" is judged.
    hole: more slots than these without any sample begin a new segment.
    sort: whether times may go back.
    time, arm, value, agent: names of columns; bands: of sweeps; variable: which array.
    duplicates: of several samples of an arm at one time the "first" or the "last" that was measured
        counts, or their "mean"; None: they are refused.
    decimal: the decimal mark of numbers in a table of text, "." or ",".
    missing: values that mean missing, as they are written, beside empty cells.
    dates: the form of dates in a table, as strptime of Python has it; None: ISO 8601.
    """
    if slot is not None and not (math.isfinite(slot) and slot > 0):
        raise TraceError(f"--slot must be a number of seconds above 0, got {slot}")
    if not (math.isfinite(hysteresis) and hysteresis >= 0):
        raise TraceError(f"--hysteresis must be a number of at least 0, got {hysteresis}")
    if how not in HOWS:
        raise TraceError(f"--how: unknown {how!r}; known are {', '.join(HOWS)}")
    if hole < 0:
        raise TraceError(f"--hole must be a whole number of at least 0, got {hole}")
    if duplicates is not None and duplicates not in DUPLICATES:
        known = ", ".join(DUPLICATES)
        raise TraceError(f"--duplicates: unknown {duplicates!r}; known are {known}")
    if decimal not in (".", ","):
        raise TraceError(f"--decimal must be . or a comma, got {decimal!r}")
    if dates is not None:
        _check_dates(dates)
    marks = tuple(mark.strip() for mark in missing)
    if "" in marks:
        raise TraceError("--missing must be marks such as NA or -9999, got an empty one")
    options = _Options(
        good=good,
        levels=levels,
        hysteresis=hysteresis,
        slot=slot,
        how=how,
        hole=hole,
        sort=sort,
        columns=Columns(time, arm, value, agent),
        bands=bands,
        variable=variable,
        duplicates=duplicates,
        cells=Cells(decimal, marks, dates),
    )
    _gradings(options)  # refuses a bad rule before a long file is read
    name = str(path)
    for form in _FORMS:
        if name.lower().endswith(f".{form}"):
            with fits_memory(name), _FORMS.used(form):
                return (
                    _FORMS[form](name, options) if form in _READERS else _other(form, name, options)
                )
    raise TraceError(f"{name}: the name must end in one of {', '.join(f'.{f}' for f in _FORMS)}")


def _check_dates(form: str) -> None:
    """Refuse a form that does not say which day it is."""
    day = datetime(2001, 2, 3, 4, 5, 6, tzinfo=UTC)
    try:
        read = datetime.strptime(day.strftime(form), form)
    except ValueError:
        read = None
    if read is None or read.date() != day.date():
        raise TraceError(
            f"--dates must have a year, a month and a day as in '%d.%m.%Y %H:%M:%S', got {form!r}"
        )


# ------------------------------------------------------------------------------------------- tables


def _csv(path: str, options: _Options) -> Recording:
    _refuse(path, "--variable", options.variable)
    bands = () if options.bands is None else parse_bands(options.bands)
    samples = read_csv(path, options.columns, bands, options.slot, options.cells)
    return _recording(path, samples, options)


def _parquet(path: str, options: _Options) -> Recording:
    _refuse(path, "--variable", options.variable)
    _refuse(path, "--bands", options.bands)
    _refuse(path, "--decimal", None if options.cells.decimal == "." else options.cells.decimal)
    return _recording(path, read_parquet(path, options.columns, options.cells), options)


def _refuse(path: str, option: str, given: object) -> None:
    """Refuse an option that such a file has no use for."""
    if given is not None:
        raise TraceError(f"{path}: {option} is not for files of this kind")


# ------------------------------------------------------------------------------------------- arrays


def _npy(path: str, options: _Options) -> Recording:
    _refuse(path, "--variable", options.variable)
    return _recording(path, _samples(path, read_npy(path), options), options)


def _npz(path: str, options: _Options) -> Recording:
    with ArrayFile(path) as file:
        is_trace = _is_trace(file)
        if is_trace and options.variable is None:
            return _finished(path, "level" in file.names, options)
        name = options.variable
        fit = [] if name else [one for one in file.names if file.is_numbers(one)]
        pickled = [] if name or fit else [one for one in file.names if file.is_numbers(one, "O")]
        name = chosen(path, name, file.names, fit or pickled)  # what is pickled is refused by name
        array = file.read(name)
    if name in _STATE_ARRAYS and array.dtype.kind == "i":
        array = np.where(array == MISSING, np.nan, array)
    samples = _samples(f"{path}: {name}", array, options)
    if is_trace:
        samples = _as_in(load_trace(path), samples)
    return _recording(path, samples, options)


def _is_trace(file: ArrayFile) -> bool:
    """Whether it has states, beside what only a trace has or by their values."""
    if "state" not in file.names or not file.is_numbers("state", "biu"):
        return False
    if not {"seg", "meta"}.isdisjoint(file.names):
        return True
    state = file.read("state")
    return bool(state.size) and int(state.min()) >= MISSING and int(state.max()) <= 1


def _finished(path: str, has_levels: bool, options: _Options) -> Recording:
    """A file that is a trace already."""
    for_samples = {
        "--how": options.how != _HOW,
        "--sort": options.sort,
        "--duplicates": options.duplicates is not None,
        "--decimal": options.cells.decimal != ".",
        "--missing": bool(options.cells.missing),
        "--dates": options.cells.dates is not None,
        "--hole": options.hole != HOLE,
        "--bands": options.bands is not None,
        "names of columns": any(options.columns),
    }
    for option, given in for_samples.items():
        if given:
            is_or_are = "are" if option.startswith("names") else "is"
            raise TraceError(f"{path}: it is a trace, and {option} {is_or_are} for samples")
    if options.levels is not None or options.good == _AUTO or options.hysteresis:
        raise TraceError(
            f"{path}: it is a trace, and --levels, --good auto and --hysteresis need what was "
            "measured; --variable names an array of that"
        )

    def with_slot(trace: Trace) -> Trace:
        return trace if options.slot is None else replace(trace, slot_s=options.slot)

    trace = with_slot(load_trace(path))
    if options.good is not None:
        trace = trace.regraded(options.good)
    return Recording(trace, with_slot(load_trace(path, levels=True)) if has_levels else None)


def _as_in(trace: Trace, samples: Samples) -> Samples:
    """With the names and segments of the trace that is in the same file, if they are of a size."""
    shape = (len(samples.agents), *_slots_and_arms(samples))
    if shape != trace.state.shape:
        return samples
    slot_s = trace.slot_s if samples.slot_s is None else samples.slot_s
    return replace(
        samples, agents=trace.agents, arms=trace.arms, segment=trace.segment, slot_s=slot_s
    )


def _slots_and_arms(samples: Samples) -> tuple[int, int]:
    return len(next(iter(samples.series.values())).times), len(samples.arms)


def _mat(path: str, options: _Options) -> Recording:
    name, array = read_mat(path, options.variable)
    return _recording(path, _samples(f"{path}: {name}", array, options), options)


def _samples(place: str, array: np.ndarray, options: _Options) -> Samples:
    """The series of an array (slots, arms) or (agents, slots, arms)."""
    if any(options.columns):
        raise TraceError(f"{place}: an array has no columns to be named")
    _refuse(place, "--bands", options.bands)
    _refuse(place, "--duplicates", options.duplicates)
    _refuse(place, "--decimal", None if options.cells.decimal == "." else options.cells.decimal)
    _refuse(place, "--dates", options.cells.dates)
    if array.dtype.kind == "c":
        raise TraceError(
            f"{place}: IQ samples, complex numbers, are not read; make powers of them first"
        )
    if array.dtype.kind not in "biuf" or array.ndim not in (2, 3):
        raise TraceError(
            f"{place}: must be numbers of shape (slots, arms) or (agents, slots, arms), got shape "
            f"{array.shape} of type {array.dtype}"
        )
    check_cells(place, array.shape)
    array = array[None] if array.ndim == 2 else array
    agents, slots, arms = array.shape
    if not array.size:
        raise TraceError(f"{place}: shape {array.shape} has no cells")
    marked = np.isin(array, options.cells.missing_numbers)
    missing = int(np.count_nonzero(marked & np.isfinite(array)))
    finite = np.isfinite(array) & ~marked
    kind = array.dtype if array.dtype.kind == "f" else np.float64
    numbers = np.where(finite, array, np.asarray(np.nan, kind))
    at = np.arange(slots)
    series = {(m, n): Series(at, numbers[m, :, n]) for m in range(agents) for n in range(arms)}
    return Samples(
        agents=tuple(map(str, range(agents))),
        arms=tuple(map(str, range(arms))),
        series=series,
        timed=False,
        not_finite=int(np.count_nonzero(~finite)) - missing,
        slot_s=options.slot,
    )


def _other(form: str, path: str, options: _Options) -> Recording:
    """Read a file by another package's reader, which returns an array or `Samples`."""
    _refuse(path, "--variable", options.variable)
    found = _FORMS[form](path)
    if isinstance(found, Samples):
        _refuse(path, "--bands", options.bands)
        return _recording(path, found, options)
    return _recording(path, _samples(path, np.asarray(found), options), options)


_READERS: Mapping[str, Callable[[str, _Options], Recording]] = MappingProxyType(
    {"csv": _csv, "csv.gz": _csv, "npz": _npz, "npy": _npy, "mat": _mat, "parquet": _parquet}
)
# By the suffix of a file's name; other packages' readers take its path only.
_FORMS: Catalogue[Callable[..., Any]] = Catalogue(_READERS, "rmab.recordings", error=TraceError)

# ------------------------------------------------------------------------------------------ a trace


def _gradings(options: _Options) -> dict[str, Grading | None]:
    """How values become states, by "good" and "levels"; None: by the noise floor of each series."""
    made: dict[str, Grading | None] = {}
    if options.good == _AUTO:
        made["good"] = None
    elif options.good is not None or options.levels is None:
        rule = _STATES if options.good is None else Comparison.parse(options.good)
        made["good"] = Grading((rule,), options.hysteresis)
    if options.levels is not None:
        made["levels"] = Grading(parse_levels(options.levels), options.hysteresis)
    return made


def _recording(path: str, samples: Samples, options: _Options) -> Recording:
    """Samples to slots, slots to segments, values to states."""
    if not any(np.isfinite(one.values).any() for one in samples.series.values()):
        raise TraceError(f"{path}: nothing was measured anywhere")
    if options.good is None and options.levels is None:
        _check_states(path, samples)
    n_slots, slot_s = _in_slots(path, samples, options)
    segment = samples.segment
    if segment is None:
        measured = np.zeros(n_slots, bool)
        for one in samples.series.values():
            measured[one.times[np.isfinite(one.values)]] = True
        segment = segments(measured, options.hole)

    traces, floors = {}, []
    for what, grading in _gradings(options).items():
        state = np.full((len(samples.agents), n_slots, len(samples.arms)), MISSING, np.int8)
        for (m, n), one in samples.series.items():
            finite = np.isfinite(one.values)
            if not finite.any():
                continue
            slots, values = one.times[finite], one.values[finite]
            rule = grading
            if rule is None:
                floor, good = by_noise_floor(values)
                floors.append(Floor(samples.agents[m], samples.arms[n], floor, good.bound))
                rule = Grading((good,), options.hysteresis)
            slots, states = _graded(slots, values, segment, rule, options.how)
            state[m, slots, n] = states
        traces[what] = Trace(
            state=state,
            segment=segment,
            slot_s=slot_s,
            arms=samples.arms,
            agents=samples.agents,
            source=_source(path, what, options, samples.timed),
            states=2 if grading is None else grading.states,
        )
        check_usable(traces[what], path)
    levels = traces.get("levels")
    return Recording(
        traces.get("good") or traces["levels"], levels, samples.not_finite, tuple(floors)
    )


def _in_slots(path: str, samples: Samples, options: _Options) -> tuple[int, float | None]:
    """Give every sample its slot; how many there are, and their seconds."""
    if not samples.timed:
        return _slots_and_arms(samples)[0], samples.slot_s
    samples.in_order(path, options.sort, options.duplicates)
    if options.slot is None:
        return on_steps(path, samples)
    return on_grid(path, samples, options.slot), options.slot


def _check_states(path: str, samples: Samples) -> None:
    """Without a rule for good values must be states; -1 becomes missing."""
    for key, one in samples.series.items():
        with np.errstate(invalid="ignore"):
            wrong = np.flatnonzero(~(np.isin(one.values, (-1, 0, 1)) | np.isnan(one.values)))
        if wrong.size:
            at = int(wrong[0])
            raise TraceError(
                f"{path}: {samples.place(key, at)}: {one.values[at]:g} is no state: that is 0, 1, "
                "or -1 where nothing was measured; --good or --levels make states of values"
            )
        one.values = np.where(one.values == MISSING, np.nan, one.values)


def _graded(
    slots: np.ndarray, values: np.ndarray, segment: np.ndarray, rule: Grading, how: str
) -> tuple[np.ndarray, np.ndarray]:
    """The slots of a series that have samples, and the state in each.

    slots, values: (samples,) in the order of time; a slot may have several.
    """
    starts = np.flatnonzero(np.concatenate(([True], slots[1:] != slots[:-1])))
    if how == "any-bad":
        states = np.minimum.reduceat(rule(values, segment[slots]), starts)
        return slots[starts], states
    if how == "mean":
        with np.errstate(over="ignore"):
            sums = np.add.reduceat(values.astype(np.float64), starts)
            values = (sums / np.diff([*starts, values.size])).astype(values.dtype)
    else:
        values = values[starts]
    slots = slots[starts]
    return slots, rule(values, segment[slots])


def _source(path: str, what: str, options: _Options, timed: bool) -> str:
    """Where a trace came from, and the rule for its states."""
    parts = [Path(path).name]
    if what == "levels":
        parts.append(f"levels: {options.levels}")
    elif options.good == _AUTO:
        parts.append(f"good: at most {ABOVE_FLOOR_DB:g} dB above the noise floor")
    elif options.good is not None:
        parts.append(f"good: {Comparison.parse(options.good)}")
    if options.hysteresis:
        parts.append(f"hysteresis {options.hysteresis:g}")
    if timed and options.how != "first":
        parts.append(f"a slot by {options.how}")
    return "; ".join(parts)


# ------------------------------------------------------------------------------------------ grading


@dataclass(frozen=True)
class Grading:
    """Comparisons, the widest first: a value's state is how many hold.

    hysteresis: by how much more a comparison must hold to hold again.
    """

    comparisons: tuple[Comparison, ...]
    hysteresis: float = 0.0

    def __post_init__(self) -> None:
        if self.hysteresis and any(rule.sign in ("==", "!=") for rule in self.comparisons):
            raise TraceError(
                "--hysteresis needs a rule for good with <=, <, >= or >, or --levels, got "
                f'"{self.comparisons[0]}"'
            )

    @property
    def states(self) -> int:
        """How many states it tells apart."""
        return len(self.comparisons) + 1

    def __call__(self, values: np.ndarray, segment: np.ndarray) -> np.ndarray:
        """The state (samples,) int8 of each value; memory ends with the segment of a sample."""
        state = np.zeros(values.shape, np.int8)
        first = np.concatenate(([True], segment[1:] != segment[:-1]))[: len(segment)]
        for rule in self.comparisons:
            holds = rule(values)
            if self.hysteresis:
                again = rule.stricter(self.hysteresis)(values)
                # Between the two bounds a sample is as the one before it, unless it is the first.
                decided = first | again | ~holds
                last = np.maximum.accumulate(np.where(decided, np.arange(len(values)), 0))
                holds = holds[last]
            state += holds
        return state


def by_noise_floor(values: np.ndarray) -> tuple[float, Comparison]:
    """The noise floor of an arm's finite powers (samples,) in dB, and the rule for good by it."""
    floor = float(np.percentile(values, FLOOR_PERCENT))
    return floor, Comparison("<=", floor + ABOVE_FLOOR_DB)


def parse_levels(text: str) -> tuple[Comparison, ...]:
    """The comparisons of cuts such as "-95,-80".

    Cuts that rise are reached from below: state 1 begins at the first. Cuts that fall are reached
    from above, for values of which the lower ones are better.
    """
    try:
        cuts = [float(cut) for cut in text.split(",")]
    except ValueError:
        cuts = []
    steps = np.diff(cuts)
    sound = all(math.isfinite(cut) for cut in cuts) and (np.all(steps > 0) or np.all(steps < 0))
    if not 1 <= len(cuts) < _MAX_LEVELS or not sound:
        raise TraceError(
            "--levels must be numbers that rise, or that fall, with commas between them, as in "
            f'"-95,-80", got {text!r}'
        )
    sign = "<=" if len(cuts) > 1 and cuts[1] < cuts[0] else ">="
    return tuple(Comparison(sign, cut) for cut in cuts)
