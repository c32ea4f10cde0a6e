"""The blocks of docs/benchmarks.md: the numbers of the records, between the marks of the page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.documents.blocks import NOT_YET, filled
from benchmarks.records import Part, Row

__all__ = ["FIGURES", "TABLES", "Look", "asked", "number", "page", "table"]

FIGURES = {  # by part: what they show
    "engine": "Ratios to the yardstick, with their limits",
    "growth": "Time for each trial against arms, agents and slots, and memory against trials",
    "indices": "Time for a dense arm against its states, ours and theirs",
    "draws": "Time of a draw by the number of states",
}
Column = Callable[[Row], str]
Columns = Mapping[str, Column]


def number(value: float) -> str:
    """With two or three digits that mean something, and no zero before the point."""
    if value != value:
        return "?"
    size = abs(value)
    if size >= 100 or size == int(size):
        return f"{value:,.0f}"
    if size >= 1:
        return f"{value:.1f}" if size >= 10 else f"{value:.2f}"
    digits = f"{value:.2g}"
    return (f"{float(digits):.10f}".rstrip("0") if "e" in digits else digits).replace("0.", ".", 1)


def with_unit(text: str, unit: str) -> str:
    """A number with its unit, if it has one."""
    return f"{text} a second" if unit == "/s" else f"{text} {unit}".strip()


def asked(row: Row) -> str:
    """The limit in words; nothing where there is none."""
    if row.limit is None:
        return ""
    text = f"{row.limit:,.4g}" if row.limit < 1000 else f"{row.limit:,.0f}"
    return f"at {row.sense} {with_unit(text.removeprefix('0') or '0', row.unit)}"


def limit(row: Row) -> str:
    """What was asked for, and whether it is missed."""
    return f"{asked(row)}: **missed**" if row.missed else asked(row)


def spread(row: Row) -> str:
    """From the lowest to the highest; nothing where only one is known."""
    return "" if row.low == row.high else f"{number(row.low)} to {number(row.high)}"


@dataclass(frozen=True)
class Look:
    """How a table is shown: heads of its first two columns, and the columns of its own."""

    case: str = ""
    value: str = "measured"
    extra: Columns = field(default_factory=dict)


def table(rows: Sequence[Row], look: Look | None = None) -> str:
    """Rows as a Markdown table: case, value, range, limit, and columns of their own.

    Columns that would be empty are left out; so is a table without rows.
    """
    if not rows:
        return NOT_YET
    look = look or Look()
    columns: dict[str, Column] = {
        look.case: lambda row: row.case,
        look.value: lambda row: with_unit(number(row.value), row.unit),
        "range": spread,
        "limit": limit,
        **look.extra,
    }
    filled = {
        head: cells
        for head, column in columns.items()
        if any(cells := [column(row) for row in rows])
    }
    lines = [list(filled), ["---"] * len(filled), *zip(*filled.values(), strict=True)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def duration(microseconds: float) -> str:
    """In µs, or in ms where they are many."""
    short = microseconds < 1000
    return f"{number(microseconds)} µs" if short else f"{number(microseconds / 1000)} ms"


def more(key: str, unit: str = "", form: Callable[[float], str] = number) -> Column:
    """A column of what a row has besides."""

    def cell(row: Row) -> str:
        return with_unit(form(row.number(key)), unit) if key in row.more else ""

    return cell


TRIALS = {"trials": more("trials")}
COST = {**TRIALS, "for each trial": more("microseconds", form=duration)}
# The tables of the parts and how they are shown; in the template they go by their own names.
TABLES: Mapping[str, Mapping[str, Look]] = {
    "engine": {
        "run": Look("`rmab.run`", "times the yardstick", COST),
        "program": Look("program", "times the yardstick", COST),
        "cores": Look("`rmab.run`", "times as fast", TRIALS),
        "start": Look("", "time"),
    },
    "reproduce": {"reproduce": Look("", "time")},
    "growth": {
        "slopes": Look("", "slope", {"episodes at first": more("fewest"), "at last": more("most")}),
        "memory": Look("", "at its most"),
    },
    "cluster": {"cluster": Look("", "trials a second", TRIALS)},
    "gpu": {"gpu": Look("`rmab.run`", "time", {"compilation": more("compilation", "s")})},
    "simulators": {
        "simulators": Look(
            "", "a slot and arm", {**TRIALS, "mean reward": more("reward", form="{:.3f}".format)}
        )
    },
    "indices": {
        "dense": Look(
            "states",
            "ours / theirs",
            {"ours": more("ours_ms", "ms"), "theirs": more("theirs_ms", "ms")},
        ),
        "played": Look(
            "states",
            "theirs / ours",
            {
                "ours, in a batch": more("batch_ms", "ms"),
                "ours, alone": more("alone_ms", "ms"),
                "theirs / ours, alone": more("alone_ratio"),
            },
        ),
        "batch": Look("", "processor time"),
    },
    "draws": {
        "conjugate": Look(
            "",
            "ours / conjugate",
            {"ours": more("ours_us", "µs"), "conjugate": more("conjugate_us", "µs")},
        ),
        "metropolis": Look(
            "",
            "ours / Metropolis",
            {
                "ours": more("ours_us", "µs"),
                "Metropolis": more("metropolis_us", "µs"),
                "steps that a draw is worth": more("worth"),
            },
        ),
    },
    "service": {
        "rates": Look("", "measured", {"of": more("beside", "/s")}),
        "waits": Look(),
        "overload": Look(),
        "polls": Look(),
    },
    "sums": {"sums": Look("", "processor time")},
    "year": {
        "year": Look(
            "",
            "size",
            {
                "restart": more("restart", "s"),
                "size with `--keep`": more("kept", "MB"),
                "restart with it": more("kept_restart", "s"),
            },
        )
    },
}


def page(text: str, parts: Mapping[str, Part]) -> str:
    """The page's text with every block anew."""
    return filled(text, _blocks(parts))


def _blocks(parts: Mapping[str, Part]) -> dict[str, str]:
    """What stands between the marks, by their names."""
    places = {
        "summary": _summary(parts),
        "many_workers": _cluster(parts.get("cluster")),
        "parts": _table_of_parts(parts),
        "played_right": _played_right(parts),
        "pairs": _pairs(parts.get("draws")),
    }
    for name, looks in TABLES.items():
        part = parts.get(name)
        places[f"{name}_how"] = _how(part)
        if name in FIGURES:
            places[f"{name}_figure"] = _figure(name) if part else ""
        for each, look in looks.items():
            places[each] = table(part.tables.get(each, []) if part else [], look)
    return places


def _pairs(part: Part | None) -> str:
    return "" if part is None else f"Each arm has {part.notes['pairs']} pairs of observations."


def _table_of_parts(parts: Mapping[str, Part]) -> str:
    """When, on what and with which versions each part was measured."""
    head = "| part | measured | on | load before | versions |\n|---|---|---|---|---|"
    return "\n".join([head, *(_line(name, part) for name, part in sorted(parts.items()))])


def _summary(parts: Mapping[str, Part]) -> str:
    """How many limits there are, and which are missed."""
    rows = [row for part in parts.values() for each in part.tables.values() for row in each]
    limits = sum(row.limit is not None for row in rows)
    missed = [f"{name}, {case}" for name, part in sorted(parts.items()) for case in part.missed]
    if not missed:
        return f"All {limits} limits are kept."
    verb = "is" if len(missed) == 1 else "are"
    each = "".join(f"\n- {case}" for case in missed)
    return f"Of {limits} limits {len(missed)} {verb} missed:\n{each}"


def _how(part: Part | None) -> str:
    """When, on what and how often."""
    if part is None:
        return ""
    rounds = sorted({row.repetitions for rows in part.tables.values() for row in rows})
    if rounds == [1]:
        often = "measured once"
    else:
        several = [n for n in rounds if n > 1]
        most = "" if len(several) == 1 else f" to {several[-1]}"
        often = f"best of {several[0]}{most}"
    rows = [row for each in part.tables.values() for row in each if "clock" in row.more]
    if rows:
        clock = max(row.number("clock") for row in rows)
        often += f"; by the clock at most {number(clock)} times the processor time"
    return f"Measured on {part.measured}, {part.machine}; {often}."


def _figure(name: str) -> str:
    return f"![{FIGURES[name]}](pictures/benchmark-{name}.svg)"


def _line(name: str, part: Part) -> str:
    named = ", ".join(f"{package} {version}" for package, version in part.versions.items())
    return f"| {name} | {part.measured} | {part.machine} | {number(part.load)} | {named} |"


def _played_right(parts: Mapping[str, Part]) -> str:
    """How theirs does on arms observed when played."""
    if "indices" not in parts:
        return ""
    rows = parts["indices"].tables["played"]
    arms, right, stopped = (
        number(sum(row.number(key) for row in rows)) for key in ("arms", "right", "unfinished")
    )
    return f"Of {arms} such arms it stops with NaN on {stopped}, and is right on {right}."


def _cluster(part: Part | None) -> str:
    """What many workers would do, by the formula, from the cost of a block."""
    if part is None:
        return ""
    notes = {key: float(value or 0) for key, value in part.notes.items()}
    many, block, merge = (notes[key] for key in ("workers", "block_seconds", "merge_seconds"))
    efficiency = min(1.0, block / (many * merge))
    return (
        f"One process merges the blocks. It spends c = {number(1000 * merge)} ms on each "
        f"({number(notes['block_bytes'] / 1000)} kB), and the more workers there are, the longer "
        f"blocks are made: t = {number(block)} s with W = {number(many)}. W workers finish W / t "
        f"blocks a second and 1 / c can be merged, so the efficiency is min(1, t / (W c)): "
        f"{number(efficiency)} with {number(many)} cores, at which the process that merges is "
        f"busy {number(100 * min(1.0, many * merge / block))} % of the time."
    )
