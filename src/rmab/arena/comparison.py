"""Comparison of two runs of the arena, mean by mean."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rmab.arena.records import ArenaOutcome, Json
from rmab.arena.scores import SIGMA, Standing
from rmab.text import shown

__all__ = ["ArenaComparison", "compare"]


@dataclass(frozen=True)
class ArenaComparison:
    """Comparison of two runs.

    differ: a line for each difference in setting; rows: by problem and policy both means, their
    difference, its standard error, and the difference in standard errors (`sigma`).
    """

    differ: list[str]
    rows: list[Json]

    @property
    def apart(self) -> list[Json]:
        """Rows whose means differ by more than chance."""
        return [row for row in self.rows if _is_apart(row)]

    @property
    def in_short(self) -> str:
        """Summary in one line."""
        if not self.rows:
            return "nothing to compare: no policy played the same problem in both"
        worst = max(self.rows, key=lambda row: abs(row["sigma"] or 0.0))
        return (
            f"{len(self.rows)} means compared, {len(self.apart)} differ by more than "
            f"{SIGMA:g} standard errors; the most: {worst['policy']} on {worst['problem']}, "
            f"{worst['difference']:+.5f}"
            + (f" ({worst['sigma']:+.1f} standard errors)" if worst["sigma"] is not None else "")
        )

    def to_json(self) -> Json:
        """Table for --json."""
        return {"differ": self.differ, "rows": self.rows, "apart": len(self.apart)}


def _is_apart(row: Mapping[str, Any]) -> bool:
    return row["sigma"] is not None and abs(row["sigma"]) > SIGMA


def compare(ours: ArenaOutcome, theirs: ArenaOutcome) -> ArenaComparison:
    """Compare two runs.

    Standard errors are those of independent trials; for runs of one seed, whose trials are the
    same, they are an upper bound.
    """
    differ = [
        f"{name}: {mine} here, {other} there"
        for name, mine, other in _unlike(_setting(ours), _setting(theirs))
    ]
    mine, others = ({p.name: p for p in run.problems} for run in (ours, theirs))
    differ += [f"{name}: only here" for name in mine if name not in others]
    differ += [f"{name}: only there" for name in others if name not in mine]
    rows = []
    for name, here in mine.items():
        there = others.get(name)
        if there is None:
            continue
        unlike = _unlike(
            {**here.study, "trials": here.trials}, {**there.study, "trials": there.trials}
        )
        differ += [f"{name}: {key} is {a} here, {b} there" for key, a, b in unlike]
        for here_alone, one, other in (("here", here, there), ("there", there, here)):
            alone = [n for n in one.standings if n not in other.standings]
            if alone:
                differ.append(f"{name}: only {here_alone}: {', '.join(alone)}")
        if {key for key, *_ in unlike} - {"trials", "seed"}:
            differ.append(f"{name}: another problem there, so nothing is compared")
            continue
        for policy, standing in here.standings.items():
            if policy in there.standings:
                rows.append(_row(name, policy, standing, there.standings[policy]))
    return ArenaComparison(differ, rows)


def _setting(run: ArenaOutcome) -> Json:
    versions = run.made.get("versions") or {}
    return {**versions, "device": run.made.get("device")}


def _unlike(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    def said(table: Mapping[str, Any], key: str) -> str:
        return "none" if table.get(key) is None else shown(table[key])

    keys = [key for key in dict.fromkeys((*one, *other)) if one.get(key) != other.get(key)]
    return [(key, said(one, key), said(other, key)) for key in keys]


def _row(problem: str, policy: str, here: Standing, there: Standing) -> Json:
    apart = here.mean - there.mean
    se = None if here.se is None or there.se is None else math.hypot(here.se, there.se)
    return {
        "problem": problem,
        "policy": policy,
        "here": here.mean,
        "there": there.mean,
        "difference": apart,
        "se": se,
        "sigma": None if se is None else apart / se if se else 0.0 if apart == 0 else None,
    }
