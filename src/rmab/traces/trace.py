"""Trace: the states of arms, slot by slot, as several agents recorded them.

A trace is kept as an .npz file with the arrays

    state  (agents, slots, arms)  0..S-1, of two 1 good and 0 bad; -1 where nothing was measured
    seg    (slots,)               segment ids; a new one where the recording was interrupted
    level  (agents, slots, arms)  states of several levels, where there are any
    meta   text, JSON             slot_s, agents, channels, source, states, level_states

of which only `state` is needed.
"""

from __future__ import annotations

import json
import operator
import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from rmab.errors import TraceError
from rmab.files import replaced
from rmab.text import is_number, is_whole, printable, shown
from rmab.traces.readers.arrays import ArrayFile, fits_memory

__all__ = [
    "MISSING",
    "Threshold",
    "Trace",
    "check_usable",
    "is_one_line",
    "load_trace",
    "save_trace",
]

MISSING = -1
_MAX_STATES = 127  # what int8 can count
_MAX_NAMES = 2**24  # characters of `meta`

_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
}
_COMPARISON = re.compile(r"\s*(<=|>=|==|!=|<|>)\s*([-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?)\s*")


@dataclass(frozen=True)
class Threshold:
    """Rule for good, such as `<= -95`."""

    sign: str
    bound: float

    @classmethod
    def parse(cls, text: str) -> Threshold:
        """Return the rule of a text such as "<= -95"."""
        found = _COMPARISON.fullmatch(text)
        try:
            bound = float(found[2]) if found else float("nan")
        except ValueError:
            bound = float("nan")
        if found is None or not np.isfinite(bound):
            raise TraceError(
                f"--good must be one of {', '.join(_OPERATORS)} and a number, as in "
                f'"<= -95", got {text!r}'
            )
        return cls(found[1], bound)

    def __call__(self, values: np.ndarray) -> np.ndarray:
        """Return whether each value is good, in the shape of `values`.

        A value is compared with the bound in its own precision: of single precision .95 is at least
        .95.
        """
        kind = values.dtype if values.dtype.kind == "f" else np.float64
        with np.errstate(over="ignore"):
            bound = np.asarray(self.bound, kind)
        good: np.ndarray = _OPERATORS[self.sign](values, bound)
        return good

    def stricter(self, by: float) -> Threshold:
        """Return the rule with a bound that is harder to meet by this amount."""
        return replace(self, bound=self.bound + (by if ">" in self.sign else -by))

    def __str__(self) -> str:
        return f"{self.sign} {self.bound:g}"


@dataclass(frozen=True, eq=False)
class Trace:
    """States of arms as they were recorded.

    state: (agents, slots, arms) int8, 0..states-1, -1 where nothing was measured. The highest state
        is good: of two, 1 is good and 0 bad.
    segment: (slots,) ids that never fall; slots of different segments are no neighbours.
    slot_s: seconds of a slot, or None where that is not known.
    arms, agents: their names.
    source: origin, and the rule for good.
    states: number of states of an arm.

    The arrays cannot be written to.
    """

    state: np.ndarray
    segment: np.ndarray
    slot_s: float | None = None
    arms: tuple[str, ...] = ()
    agents: tuple[str, ...] = ()
    source: str = ""
    states: int = 2

    def __post_init__(self) -> None:
        state = np.asarray(self.state)
        if state.ndim != 3 or state.dtype.kind not in "biu":
            raise TraceError(
                "state must be whole numbers of shape (agents, slots, arms), got shape "
                f"{state.shape} of type {state.dtype}"
            )
        if not is_whole(self.states) or not 2 <= self.states <= _MAX_STATES:
            raise TraceError(
                f"states must be a whole number from 2 to {_MAX_STATES}, got {shown(self.states)}"
            )
        _check_states(state, self.states)
        segment = np.asarray(self.segment)
        if segment.shape != state.shape[1:2] or segment.dtype.kind not in "biu":
            raise TraceError(
                f"segment must be a whole number for each of {state.shape[1]} slots, got shape "
                f"{segment.shape} of type {segment.dtype}"
            )
        segment = segment.astype(np.int64)
        if np.any(np.diff(segment) < 0):
            at = int(np.argmax(np.diff(segment) < 0)) + 1
            raise TraceError(f"segment[{at}] is {segment[at]}, below the one before it")
        if self.slot_s is not None and not (is_number(self.slot_s) and self.slot_s > 0):
            raise TraceError(
                f"slot_s must be a number of seconds above 0, got {shown(self.slot_s)}"
            )
        for axis, what in ((0, "agents"), (2, "arms")):
            names = tuple(getattr(self, what)) or tuple(map(str, range(state.shape[axis])))
            if len(names) != state.shape[axis]:
                raise TraceError(f"{state.shape[axis]} {what} have {len(names)} names")
            object.__setattr__(self, what, names)
        object.__setattr__(self, "source", printable(self.source))
        object.__setattr__(self, "state", _frozen(state.astype(np.int8, copy=False)))
        object.__setattr__(self, "segment", _frozen(segment))

    @property
    def measured(self) -> np.ndarray:
        """Cells (agents, slots, arms) with a state, as booleans."""
        measured: np.ndarray = self.state != MISSING
        return measured

    @property
    def n_segments(self) -> int:
        """Number of segments."""
        return int(np.count_nonzero(np.diff(self.segment))) + 1

    @property
    def agent_slots(self) -> int:
        """Number of pairs of agent and slot with an arm measured."""
        return int(np.count_nonzero(self.measured.any(axis=2)))

    @property
    def missing(self) -> float:
        """Share of cells where nothing was measured."""
        return float(np.count_nonzero(self.state == MISSING)) / max(1, self.state.size)

    @property
    def good(self) -> float:
        """Share of good among measured cells."""
        n_measured = int(np.count_nonzero(self.measured))
        return float(np.count_nonzero(self.state == self.states - 1)) / max(1, n_measured)

    @property
    def never_measured(self) -> list[tuple[int, int]]:
        """Agent and arm of every arm that an agent never measured."""
        agents, arms = np.nonzero(~self.measured.any(axis=1))
        return [(int(m), int(n)) for m, n in zip(agents, arms, strict=True)]

    def summary(self) -> dict[str, Any]:
        """Return sizes and shares as commands give them with --json."""
        agents, slots, arms = self.state.shape
        return {
            "agents": agents,
            "slots": slots,
            "arms": arms,
            "agent_slots": self.agent_slots,
            "segments": self.n_segments,
            "missing": self.missing,
            "good": self.good,
        }

    def regraded(self, good: str) -> Trace:
        """Return the trace with two states, where good are the states that the rule `good` names.

        `regraded("== 0")` exchanges good and bad; `regraded(">= 2")` makes the upper ones of
        several states good.
        """
        rule = Threshold.parse(good)
        state = np.where(self.measured, rule(self.state).astype(np.int8), np.int8(MISSING))
        made = replace(
            self, state=state, states=2, source=f"{self.source}; good: state {rule}".lstrip("; ")
        )
        check_usable(made, f"--good {good!r}")
        return made


def check_usable(trace: Trace, place: str) -> None:
    """Refuse a trace on which there is nothing to choose or to learn; `place` says which."""
    _, slots, arms = trace.state.shape
    if arms < 2:
        raise TraceError(f"{place}: one arm leaves nothing to choose; a trace has two or more")
    if slots < 2:
        raise TraceError(f"{place}: a trace has 2 slots or more, this has {slots}")
    seen = [s for s in range(trace.states) if np.any(trace.state == s)]
    if not seen:
        raise TraceError(f"{place}: nothing was measured anywhere")
    if len(seen) == 1:
        if trace.states == 2:
            raise TraceError(f"{place}: there is no {('good', 'bad')[seen[0]]} anywhere")
        raise TraceError(f"{place}: there is no state but {seen[0]} anywhere")


def load_trace(path: str | PathLike[str], levels: bool = False) -> Trace:
    """Return the trace of an .npz file; levels: in the states of its array `level`."""
    with fits_memory(path):
        return _loaded(path, levels)


def _loaded(path: str | PathLike[str], levels: bool) -> Trace:
    with ArrayFile(path) as file:
        if "state" not in file.names:
            raise TraceError(
                f"{path}: no trace, as it has no array 'state'; rmab trace makes one of a recording"
            )
        meta = _meta(path, file.read("meta")) if "meta" in file.names else {}
        states = meta.get("states", 2)
        name = "state"
        if levels and ("level" in file.names or states == 2):
            if "level" not in file.names:
                raise TraceError(f"{path}: --levels: it has no array 'level'")
            name = "level"
        state = file.read(name)
        segment = file.read("seg") if "seg" in file.names else None
    place = f"{path}: {name}"
    if state.ndim == 2:
        state = state[None]
    if state.ndim != 3 or state.dtype.kind not in "biu":
        raise TraceError(
            f"{place} must be whole numbers of shape (agents, slots, arms), got shape "
            f"{state.shape} of type {state.dtype}"
        )
    if name == "level":
        states = meta.get("level_states", max(2, int(state.max(initial=1)) + 1))
    try:
        trace = Trace(
            state=state,
            segment=_blocks(segment, state.shape[1]),
            slot_s=meta.get("slot_s"),
            agents=_names(meta.get("agents"), state.shape[0]),
            arms=_names(meta.get("channels", meta.get("arms")), state.shape[2]),
            source=_source(path, meta),
            states=states,
        )
    except TraceError as error:
        raise TraceError(f"{path if name == 'state' else place}: {error}") from None
    check_usable(trace, str(path))
    return trace


def save_trace(trace: Trace, path: str | PathLike[str], levels: Trace | None = None) -> None:
    """Write the trace as an .npz file; levels: the trace in several states, as `level`.

    A trace that has more than two states itself is written as `state` and `level` alike.
    """
    levels = trace if levels is None and trace.states > 2 else levels
    meta = {
        "slot_s": trace.slot_s,
        "agents": list(trace.agents),
        "channels": list(trace.arms),
        "source": trace.source,
        "states": trace.states,
    }
    arrays = {"state": trace.state, "seg": trace.segment}
    if levels is not None:
        if levels.state.shape != trace.state.shape:
            raise TraceError("levels must have the shape of the trace")
        meta["level_states"] = levels.states
        arrays["level"] = levels.state
    with replaced(Path(path)) as file:
        np.savez_compressed(file, meta=np.array(json.dumps(meta)), **arrays)  # type: ignore[arg-type]


def _frozen(array: np.ndarray) -> np.ndarray:
    """Return a view that cannot be written to."""
    view = array.view()
    view.flags.writeable = False
    return view


def _check_states(state: np.ndarray, states: int) -> None:
    """Refuse a state that is not there, by its cell."""
    if state.size and (state.min() < MISSING or state.max() >= states):
        wrong = (state < MISSING) | (state >= states)
        cell = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise TraceError(
            f"state{list(cell)} is {state[cell]}: must be from 0 to {states - 1}, or -1 where "
            "nothing was measured"
        )


def _blocks(segment: np.ndarray | None, slots: int) -> np.ndarray:
    """Return ids 0, 1, ... of the blocks of equal ids, which may come in any order."""
    if segment is None:
        return np.zeros(slots, np.int64)
    if segment.shape != (slots,) or segment.dtype.kind not in "biu":
        raise TraceError(
            f"seg must be a whole number for each of {slots} slots, got shape {segment.shape} "
            f"of type {segment.dtype}"
        )
    return np.concatenate(([0], np.cumsum(segment[1:] != segment[:-1])))[:slots]


def _meta(path: str | PathLike[str], array: np.ndarray) -> dict[str, Any]:
    """Return the JSON object of `meta`."""
    if array.ndim == 0 and array.dtype.kind in "US" and array.dtype.itemsize <= 4 * _MAX_NAMES:
        try:
            meta = json.loads(array.item())
        except (ValueError, RecursionError) as error:
            raise TraceError(f"{path}: meta is not JSON: {error}") from None
        if isinstance(meta, dict):
            return meta
    raise TraceError(f"{path}: meta must be the text of one JSON object")


def is_one_line(name: str) -> bool:
    """Return whether a name has no characters that end lines or steer a terminal."""
    return not any(unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") for c in name)


def _names(listed: Any, n: int) -> tuple[str, ...]:
    """Return the names of agents or arms.

    They are numbers where each agent has names of its own, or a name cannot be printed.
    """
    if isinstance(listed, list) and not any(isinstance(name, list | dict) for name in listed):
        names = tuple(map(str, listed))
        if all(map(is_one_line, names)):
            return names
    return tuple(map(str, range(n)))


def _source(path: str | PathLike[str], meta: dict[str, Any]) -> str:
    parts = [str(meta.get("source", path))]
    if "good" in meta:
        parts.append(f"good: {meta['good']}")
    return "; ".join(parts)
