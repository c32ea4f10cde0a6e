"""docs/security.md: what sums tell, and what a liar costs."""

from __future__ import annotations

import numpy as np
from benchmarks.documents.blocks import Asked, Block, Measurement, Page
from benchmarks.documents.kept import Json, Record, number
from benchmarks.documents.words import (
    compared,
    fixed,
    listed,
    percent,
    rounded,
    short_numbers,
    table,
)

import rmab
from benchmarks import liar, place_attack
from rmab.model.information import stationary_belief

__all__ = ["PAGE"]

_MOST = 0.01  # of the reward, that a liar may cost under careful settings
_REMEDIES = {
    "before": "before: no limit at all",
    "defaults": "by default",
    "slot_seconds = 1": "`slot_seconds = 1`",
    "cap = 2": "`cap = 2`",
    "slot_seconds = 1, cap = 2": "`slot_seconds = 1`, `cap = 2`",
    "forgotten": "by default, forgotten at slot 250",
}


def _liar(asked: Asked) -> Json:
    arms = rmab.channels(p01=liar.P01, p11=liar.P11, reward=liar.REWARD)
    chance = float(np.mean(arms.reward * stationary_belief(arms)) * liar.PLAYS)
    return {
        **liar.measure(asked.often, liar.SLOTS, "fedtswi", asked.say),
        "random": chance,
    }


def _careful(asked: Asked) -> Json:
    """What attacks cost under the settings of `rmab new federation`."""
    found: Json = {}
    for policy in ("fedtswi", "fedtswi-gap"):
        found[policy] = liar.costs(policy, asked.often)
        asked.say(policy)
    return found


def _careful_table(record: Record) -> str:
    rows, above = [], []
    for attack in liar.ATTACKS:
        cells = []
        for policy, found in record.data.items():
            row = found["attacks"][attack]
            for of in ("", "late_"):
                cost, error = number(row[f"{of}cost"]), number(row[f"{of}se"])
                cells.append(f"{rounded((100 * cost, 100 * error), sign=True)} %")
                if compared(cost - _MOST, error) == "more":
                    above.append(f"{attack}, `{policy}`")
        rows.append([attack, *cells])
    heads = [
        f"`{policy}`, {half}" for policy in record.data for half in ("all slots", "second half")
    ]
    limit = percent(_MOST)
    said = (
        f"Clearly above {limit}: {listed(list(dict.fromkeys(above)))}."
        if above
        else f"None is clearly above {limit}."
    )
    return table(["of the reward is lost", *heads], rows) + f"\n\n{said}"


def _places(asked: Asked) -> Json:
    """How often attacks on sums find an agent's place."""
    return place_attack.measure(asked.often, asked.seed or 0)


def _places_table(record: Record) -> str:
    return short_numbers(place_attack.table(record.data))


def _table(record: Record) -> str:
    found = record.data["rewards"]
    claims = list(liar.CLAIMS)
    rows = []
    for name, cells in found.items():
        shown = []
        for claim in claims:
            cell = cells[claim]
            text = rounded([number(x) for x in cell["reward"]])
            shown.append(f"refused; {text}" if cell["refused"] else text)
        rows.append([_REMEDIES.get(name, f"`{name}`"), *shown])
    lines = []
    for name, cells in found.items():
        clear = []
        for claim in claims[1:]:
            lost, error = _lost(cells[claims[0]]["reward"], cells[claim]["reward"])
            if compared(lost, error) == "more":
                clear.append(f"{rounded((lost, error))} ({claim})")
        costs = f"costs {listed(clear)}" if clear else "costs nothing that this many trials show"
        lines.append(f"- {_REMEDIES.get(name, f'`{name}`')}: a liar {costs}.")
    text = "\n\n".join([table(["", *claims], rows), "\n".join(lines)])
    scores = record.data["scores"]
    if len(scores) == 2:
        (_, honest), (_, lying) = sorted(scores.items(), key=lambda item: item[0] != "honest")
        text += (
            f"\n\nRandom play has {fixed(record.data['random'], 3)} (exact). The liar's outlier "
            "score was "
            f"between {fixed(lying[0], 1)} and {fixed(lying[1], 1)}, and those of the honest "
            "between "
            f"{fixed(honest[0], 1)} and {fixed(honest[1], 1)} ({honest[2] + lying[2]:,} scores)"
        )
        apart = lying[0] > honest[1]
        text += (
            ": whoever looks can tell." if apart else ": the two overlap, so looking is not enough."
        )
    return text


def _lost(without: list[float], with_liar: list[float]) -> tuple[float, float]:
    """The difference of means; trials are the same, and their errors added."""
    return (
        number(without[0]) - number(with_liar[0]),
        number(without[1]) + number(with_liar[1]),
    )


PAGE = Page(
    "security.md",
    blocks={
        "place-attack": Block(_places_table, ("place-attack",)),
        "liar": Block(_table, ("liar",)),
        "liar-careful": Block(_careful_table, ("liar-careful",)),
    },
    measurements={
        "place-attack": Measurement(
            _places, minutes=2, trials=place_attack.TRIALS, seed=place_attack.SEED
        ),
        "liar": Measurement(_liar, minutes=3, trials=8, seed=None),
        "liar-careful": Measurement(_careful, minutes=2, trials=8, seed=None),
    },
)
