"""Recordings of any form become traces.

    .csv, .csv.gz  long, wide, or sweeps of a spectrum
    .parquet       a table like these
    .npy, .npz     an array (slots, arms) or (agents, slots, arms)
    .mat           the same, up to version 7

Readers make samples, samples fall into slots, and gradings make states of their values. Nothing is
filled in: a slot without a sample is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from rmab.errors import TraceError
from rmab.extensions import Catalogue
from rmab.traces.grading import ABOVE_FLOOR_DB, Floor, check_states, gradings, states_of
from rmab.traces.readers.arrays import ArrayFile, check_cells, chosen, fits_memory, read_npy
from rmab.traces.readers.csv import read_csv
from rmab.traces.readers.mat import read_mat
from rmab.traces.readers.options import AUTO, HOLE, HOW, RecordingOptions
from rmab.traces.readers.parquet import read_parquet
from rmab.traces.samples import Samples, Series, on_grid, on_steps, segments
from rmab.traces.trace import MISSING, Threshold, Trace, check_usable, load_trace

__all__ = ["Recording", "read_recording"]

_STATE_ARRAYS = ("state", "level")  # of a trace, where -1 is missing


@dataclass(frozen=True)
class Recording:
    """Recording as a trace.

    Parameters
    ----------
    trace : Trace
        States by the rule for good.
    levels : Trace or None
        States by the cuts, if there are any; without a rule for good this is `trace` itself.
    not_finite : int
        Number of values that were NaN or infinite, and are missing.
    floors : tuple of Floor
        Noise floors, with the rule "auto".
    """

    trace: Trace
    levels: Trace | None = None
    not_finite: int = 0
    floors: tuple[Floor, ...] = ()


def read_recording(
    path: str | PathLike[str],
    *,
    good: str | None = None,
    levels: str | None = None,
    hysteresis: float = 0.0,
    slot: float | None = None,
    how: str = HOW,
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

    Parameters
    ----------
    path : path
        File, with its form by the end of its name.
    good : str, optional
        Rule such as "<= -95", or "auto" for powers in dB. Without it values are states: 1 is good,
        0 bad and -1 missing.
    levels : str, optional
        Cuts such as "-95,-80", which make several states.
    hysteresis : float, default 0
        Amount by which a value must be better than the rule to be good again.
    slot : float, optional
        Seconds of a slot; default: the median step between times.
    how : {"first", "any-bad", "mean"}
        Of several samples in a slot the first counts, one that is bad makes it bad, or their mean
        is judged.
    hole : int, default 10
        More slots than these without any sample begin a new segment.
    sort : bool, default False
        Sort by time, which may then go back.
    time, arm, value, agent : str, optional
        Names of columns.
    bands : str, optional
        Bands of sweeps, which become the arms, such as "2.401e9:2.423e9,2.426e9:2.448e9" in Hz.
    variable : str, optional
        Array of a .mat or .npz file.
    duplicates : {"first", "last", "mean"}, optional
        Of several samples of an arm at one time the first or the last that was measured counts, or
        their mean; default: they are refused.
    decimal : {".", ","}
        Decimal mark of numbers in a table of text.
    missing : sequence of str
        Cells that mean missing, as they are written, beside empty ones.
    dates : str, optional
        Form of dates in a table, as strptime of Python has it; default: ISO 8601.
    """
    chosen_options = RecordingOptions(
        good=good,
        levels=levels,
        hysteresis=hysteresis,
        slot=slot,
        how=how,
        hole=hole,
        sort=sort,
        time=time,
        arm=arm,
        value=value,
        agent=agent,
        bands=bands,
        variable=variable,
        duplicates=duplicates,
        decimal=decimal,
        missing=tuple(missing),
        dates=dates,
    )
    gradings(chosen_options)  # refuses a bad rule before a long file is read
    name = str(path)
    for form in _FORMS:
        if name.lower().endswith(f".{form}"):
            with fits_memory(name), _FORMS.used(form):
                return (
                    _FORMS[form](name, chosen_options)
                    if form in _READERS
                    else _other(form, name, chosen_options)
                )
    raise TraceError(f"{name}: the name must end in one of {', '.join(f'.{f}' for f in _FORMS)}")


def _csv(path: str, options: RecordingOptions) -> Recording:
    options.refuse(path, "variable")
    return _recording(path, read_csv(path, options), options)


def _parquet(path: str, options: RecordingOptions) -> Recording:
    options.refuse(path, "variable", "bands", "decimal")
    return _recording(path, read_parquet(path, options), options)


def _npy(path: str, options: RecordingOptions) -> Recording:
    options.refuse(path, "variable")
    return _recording(path, _samples(path, read_npy(path), options), options)


def _npz(path: str, options: RecordingOptions) -> Recording:
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
    """Return whether a file has states, by its other arrays or by their values."""
    if "state" not in file.names or not file.is_numbers("state", "biu"):
        return False
    if not {"seg", "meta"}.isdisjoint(file.names):
        return True
    state = file.read("state")
    return bool(state.size) and int(state.min()) >= MISSING and int(state.max()) <= 1


def _finished(path: str, has_levels: bool, options: RecordingOptions) -> Recording:
    """Return a file that is a trace already."""
    for name in ("how", "sort", "duplicates", "decimal", "missing", "dates", "hole", "bands"):
        if options.has(name):
            raise TraceError(f"{path}: it is a trace, and --{name} is for samples")
    if any(options.columns):
        raise TraceError(f"{path}: it is a trace, and names of columns are for samples")
    if options.levels is not None or options.good == AUTO or options.hysteresis:
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
    """Return samples with names and segments of the trace in their file, if sizes agree."""
    shape = (len(samples.agents), *_slots_and_arms(samples))
    if shape != trace.state.shape:
        return samples
    slot_s = trace.slot_s if samples.slot_s is None else samples.slot_s
    return replace(
        samples, agents=trace.agents, arms=trace.arms, segment=trace.segment, slot_s=slot_s
    )


def _slots_and_arms(samples: Samples) -> tuple[int, int]:
    return len(next(iter(samples.series.values())).times), len(samples.arms)


def _mat(path: str, options: RecordingOptions) -> Recording:
    name, array = read_mat(path, options.variable)
    return _recording(path, _samples(f"{path}: {name}", array, options), options)


def _samples(place: str, array: np.ndarray, options: RecordingOptions) -> Samples:
    """Return the series of an array (slots, arms) or (agents, slots, arms)."""
    if any(options.columns):
        raise TraceError(f"{place}: an array has no columns to be named")
    options.refuse(place, "bands", "duplicates", "decimal", "dates")
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
    marked = np.isin(array, list(options.missing_numbers))
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


def _other(form: str, path: str, options: RecordingOptions) -> Recording:
    """Read a file by another package's reader, which returns an array or `Samples`."""
    options.refuse(path, "variable")
    found = _FORMS[form](path)
    if isinstance(found, Samples):
        options.refuse(path, "bands")
        return _recording(path, found, options)
    return _recording(path, _samples(path, np.asarray(found), options), options)


_READERS: Mapping[str, Callable[[str, RecordingOptions], Recording]] = MappingProxyType(
    {"csv": _csv, "csv.gz": _csv, "npz": _npz, "npy": _npy, "mat": _mat, "parquet": _parquet}
)
# By the suffix of a file's name; other packages' readers take its path only.
_FORMS: Catalogue[Callable[..., Any]] = Catalogue(_READERS, "rmab.recordings", error=TraceError)


def _recording(path: str, samples: Samples, options: RecordingOptions) -> Recording:
    """Return the recording of samples: their slots, segments and states."""
    if not any(np.isfinite(one.values).any() for one in samples.series.values()):
        raise TraceError(f"{path}: nothing was measured anywhere")
    if options.good is None and options.levels is None:
        check_states(path, samples)
    n_slots, slot_s = _in_slots(path, samples, options)
    segment = samples.segment
    if segment is None:
        measured = np.zeros(n_slots, bool)
        for one in samples.series.values():
            measured[one.times[np.isfinite(one.values)]] = True
        segment = segments(measured, options.hole)
    traces, floors = {}, []
    for kind, grading in gradings(options).items():
        state, of_kind = states_of(samples, segment, grading, options)
        floors += of_kind
        traces[kind] = Trace(
            state=state,
            segment=segment,
            slot_s=slot_s,
            arms=samples.arms,
            agents=samples.agents,
            source=_source(path, kind, options, samples.timed),
            states=2 if grading is None else grading.states,
        )
        check_usable(traces[kind], path)
    levels = traces.get("levels")
    trace = traces.get("good") or traces["levels"]
    return Recording(trace, levels, samples.not_finite, tuple(floors))


def _in_slots(path: str, samples: Samples, options: RecordingOptions) -> tuple[int, float | None]:
    """Give every sample its slot; return their number and their seconds."""
    if not samples.timed:
        return _slots_and_arms(samples)[0], samples.slot_s
    samples.in_order(path, options.sort, options.duplicates)
    if options.slot is None:
        return on_steps(path, samples)
    return on_grid(path, samples, options.slot), options.slot


def _source(path: str, what: str, options: RecordingOptions, timed: bool) -> str:
    """Return the origin of a trace, with the rule for its states."""
    parts = [Path(path).name]
    if what == "levels":
        parts.append(f"levels: {options.levels}")
    elif options.good == AUTO:
        parts.append(f"good: at most {ABOVE_FLOOR_DB:g} dB above the noise floor")
    elif options.good is not None:
        parts.append(f"good: {Threshold.parse(options.good)}")
    if options.hysteresis:
        parts.append(f"hysteresis {options.hysteresis:g}")
    if timed and options.how != HOW:
        parts.append(f"a slot by {options.how}")
    return "; ".join(parts)
