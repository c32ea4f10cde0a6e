"""Samples of tables whose cells are texts: long and wide ones.

Long: a row for each sample, with the columns time, arm and value, and agent if there are several.
Wide: a row for each time, with the column time and one for each arm.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rmab.errors import TraceError
from rmab.text import shown
from rmab.traces.readers.options import RecordingOptions
from rmab.traces.samples import Samples, Series, natural_order
from rmab.traces.trace import is_one_line

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Columns", "Rows", "find_columns", "read_rows"]

_SHOWN_COLUMNS = 12

Rows = tuple[npt.NDArray[np.int64], "pd.DataFrame"]  # lines (rows,), and the texts of the cells


class Columns(NamedTuple):
    """Places of a table's columns; `values` has the column of values, or those of the arms."""

    time: int
    agent: int | None
    arm: int | None
    values: dict[int, str]


def find_columns(where: str, header: Iterable[str], options: RecordingOptions) -> Columns:
    """Return the columns of a header, or refuse it; `where` names its file and line."""
    names = [name.strip() for name in header]
    place: dict[str, int] = {}
    for usual in ("time", "agent", "arm", "value"):
        asked = getattr(options, usual)
        if (asked or usual) in names:
            place[usual] = names.index(asked or usual)
        elif asked is not None:
            raise _no_column(where, asked, names, f" (--{usual})")
    wide = not {"arm", "value"} & place.keys()
    for usual in ("time",) if wide else ("time", "arm", "value"):
        if usual not in place:
            raise _no_column(where, usual, names, f"; --{usual} names another")
    for i, name in enumerate(names):
        if name and name in names[:i]:
            raise TraceError(f"{where}: two columns have the name {shown(name)}")
        if name:
            try:
                _name(name)
            except ValueError as error:
                raise TraceError(f"{where}: {error}") from None
    values = (
        {place["value"]: ""}
        if not wide
        else {
            # A column without a name is an index that some program wrote.
            i: name
            for i, name in enumerate(names)
            if name and i not in place.values()
        }
    )
    return Columns(place["time"], place.get("agent"), place.get("arm"), values)


def _no_column(where: str, name: str, names: list[str], more: str) -> TraceError:
    some = ", ".join(names[:_SHOWN_COLUMNS]) + ", ..." * (len(names) > _SHOWN_COLUMNS)
    return TraceError(f"{where}: no column {name!r}{more}; columns are {some}")


def _name(text: str, kind: str = "column") -> str:
    """Return the name of an agent or an arm, unless it would spoil each line it is printed in."""
    if not text:
        raise ValueError(f"{kind} has no name")
    if not is_one_line(text):
        raise ValueError(f"the name {shown(text)} has characters that cannot be printed")
    return text


def read_rows(
    path: str, columns: Columns, blocks: Iterable[Rows], options: RecordingOptions
) -> Samples:
    """Return the samples of a table that is given in blocks of rows."""
    import pandas as pd

    clock, not_finite = options.clock, 0
    names = list(columns.values.values())
    frames = []
    for lines, texts in blocks:
        cells = _TextCells(texts)
        frame = {"line": lines, "agent": np.array(["0"], object).repeat(len(lines))}
        if columns.agent is not None:
            frame["agent"] = cells.parsed(columns.agent, lambda text: _name(text, "agent"), object)
        if columns.arm is not None:
            frame["arm"] = cells.parsed(columns.arm, lambda text: _name(text, "arm"), object)
        frame["time"] = cells.parsed(columns.time, clock.read, np.int64)
        for place, name in columns.values.items():
            where = f"column {name!r}: " if name else ""
            frame[f"value {name}"] = cells.parsed(place, options.number, np.float64, where)
        if cells.errors:
            row, reason = min(cells.errors, key=lambda error: error[0])
            raise TraceError(f"{path}: line {lines[row]}: {reason}")
        not_finite += cells.not_finite
        frames.append(pd.DataFrame(frame))
    table = pd.concat(frames) if frames else pd.DataFrame()
    if not len(table) or not names:
        raise TraceError(f"{path}: a trace has 2 slots or more, and here is no row with a sample")
    long = columns.arm is not None
    agents = natural_order(list(table["agent"].unique()))
    arms = natural_order(list(table["arm"].unique())) if long else names
    agent_place, arm_place = ({x: i for i, x in enumerate(order)} for order in (agents, arms))
    series = {}
    for key, rows in table.groupby(["agent", "arm"] if long else ["agent"], sort=False):
        times, lines = rows["time"].to_numpy(), rows["line"].to_numpy()
        for name in names:
            pair = agent_place[str(key[0])], arm_place[str(key[1]) if long else name]
            series[pair] = Series(times, rows[f"value {name}"].to_numpy(), lines)
    return Samples(tuple(agents), tuple(arms), series, True, not_finite)


class _TextCells:
    """Cells of a table, of which each text of a column is parsed once.

    errors: row and reason of the first bad cell of each column.
    not_finite: number of cells that are NaN or infinite.
    """

    def __init__(self, texts: pd.DataFrame) -> None:
        self._texts = texts
        self.errors: list[tuple[int, str]] = []
        self.not_finite = 0

    def parsed(
        self, column: int, parse: Callable[[str], Any], kind: type, where: str = ""
    ) -> npt.NDArray[Any]:
        """Return the values (rows,) of a column; None, and a number not finite, is NaN."""
        import pandas as pd

        place, texts = pd.factorize(self._texts[column].to_numpy())
        values: list[Any] = []
        for text in texts:
            try:
                values.append(parse(text.strip()))
            except ValueError as error:
                self.errors.append((int(np.argmax(place == len(values))), f"{where}{error}"))
                values += [0] * (len(texts) - len(values))
                break
        if kind is np.float64:
            times = np.bincount(place, minlength=len(values))
            infinite = [x is not None and not math.isfinite(x) for x in values]
            self.not_finite += int(times[infinite].sum())
            values = [math.nan if bad else x for x, bad in zip(values, infinite, strict=True)]
        return np.array(values, kind)[place]
