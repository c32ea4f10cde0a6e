"""docs/observations-at-any-gap.md: calibration, rewards and regret of learning at any gap."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.documents.blocks import Asked, Block, Measurement, Page
from benchmarks.documents.kept import Json, Record, number
from benchmarks.documents.reproduced import PAPER_RUN
from benchmarks.documents.simulated import apart, mean, paper, ran
from benchmarks.documents.words import (
    Estimate,
    bare,
    compared,
    earns,
    fixed,
    listed,
    percent,
    rounded,
    table,
)

import rmab
from benchmarks import horizons
from rmab.experiments.verdict import MIN_SIGMA

__all__ = ["PAGE"]

LEARNERS = ("fedtswi", "fedtswi-gap")
_NAMES = {"fedtswi": "FedTSWI", "fedtswi-gap": "FedTSWI-gap"}
_MEMORIES = (0.8, 0.9, 0.95, 0.98)
_OBSERVATIONS = (10, 1_000, 100_000)  # of a channel whose draws are ranked
_BY_STATE = (([1], [2]), ([2], [1]), ([1, 3], [2, 4]), ([1], [6, 8]), ([3], [4]))
_BY_STATE_OBSERVATIONS = (40, 3_000)
_BLOCK = 1_000  # channels drawn at once
_PAIRS = (30, 300, 10_000)  # of a matrix whose draws are ranked
_GAPS = ("1 to 12", "mostly long", "played often")
_SIZES = (3, 4)
_HORIZON = 100_000
_FOLLOWED = (1, 4, 16, 64)  # agents


# ------------------------------------------------------------------------------------- measurements


def _earns(asked: Asked) -> Json:
    """Rewards on the paper's arms."""
    found = {}
    for agents, plays in ((4, 2), (4, 1), (1, 1)):
        others = ("fedts-myopic-gap", "feducb-wi-gap") if (agents, plays) == (4, 2) else ()
        study = paper(asked, (*LEARNERS, "whittle", *others), agents=agents, plays=plays)
        label = f"M = {agents}, K = {plays}"
        found[label] = ran(asked, study, label)
    return found


def _fading(asked: Asked) -> Json:
    """Channels of four levels."""
    study = rmab.load("catalogue:fading")
    study = replace(study, agents=4, horizon=500, trials=asked.often, seed=asked.seed or 0)
    found = {}
    for plays in (1, 2, 3):
        label = f"K = {plays}"
        one = replace(study, plays=plays, policies=LEARNERS)
        found[label] = ran(asked, one, label)
    return found


_DRAWN = ("fedtswi", "fedtswi-gap", "fedts-lookahead-gap")


def _per_agent(asked: Asked) -> Json:
    """One draw for all agents, and one for each, on the same trials."""
    found: Json = {}
    for plays in (1, 2):
        own, shared = (
            rmab.run(paper(asked, (*_DRAWN, "whittle"), plays=plays, draws=draws))
            for draws in ("per-agent", "shared")
        )
        # Both are behind the same policy on the same trials, which is most of what varies.
        found[f"K = {plays}"] = {
            name: [
                shared[name].behind - own[name].behind,
                float(np.hypot(shared[name].behind_se, own[name].behind_se)),
            ]
            for name in _DRAWN
        }
        asked.say(f"K = {plays}")
    return found


def _channels(asked: Asked) -> Json:
    """Ranks of the truth among draws, as the test suite has them, for more channels."""
    from scipy import stats
    from tests.learning import test_channel_posterior as suite

    drawn = suite.sampler((1.0, 1.0))
    blocks = max(1, asked.often // _BLOCK)

    def least(label: str, observe: Any) -> list[float]:
        """p-values of the ranks of p01, p11, their difference and b0."""
        ranks = np.zeros((4, suite.DRAWN + 1), int)
        for block in range(blocks):
            rng = np.random.default_rng([asked.seed or 0, block, sum(map(ord, label))])
            p01, p11 = rng.uniform(size=(2, suite.WIDTH))
            found = drawn(observe(p01, p11, rng), seed=block)
            for row, (one, truth) in enumerate(
                zip(_quantities(found[:, 0], found[:, 1]), _quantities(p01, p11), strict=True)
            ):
                rank = (one < truth).sum(0)
                ranks[row] += np.bincount(rank, minlength=suite.DRAWN + 1)
        asked.say(label)
        return [float(stats.chisquare(row).pvalue) for row in ranks]

    plain = []
    for pattern in suite.PATTERNS:
        for n in _OBSERVATIONS:

            def observe(p01: Any, p11: Any, rng: Any, n: int = n, how: str = pattern) -> Any:
                return suite.simulated(p01, p11, n, how, rng)

            plain += least(f"{pattern}, {n}", observe)
    by_state = []
    for waits in _BY_STATE:
        for n in _BY_STATE_OBSERVATIONS:

            def wait(p01: Any, p11: Any, rng: Any, n: int = n, waits: Any = waits) -> Any:
                return suite.waiting_by_state(p01, p11, n, waits, rng)

            by_state += least(f"{waits}, {n}", wait)
    return {"drawn": suite.DRAWN, "plain": plain, "by state": by_state}


def _quantities(p01: Any, p11: Any) -> tuple[Any, ...]:
    """p01, p11, the memory and b0."""
    return p01, p11, p11 - p01, p01 / (1 + p01 - p11)


def _matrices(asked: Asked) -> Json:
    """How often entries lie outside central intervals of draws, less what is due."""
    from tests.learning import test_hidden_steps as suite

    found: Json = {"drawn": suite.DRAWN}
    for gaps in _GAPS:
        for size in _SIZES:
            off = [suite.deviation(size, 1.0, n, gaps, asked.often) for n in _PAIRS]
            found[f"{gaps}, S = {size}"] = [list(map(float, pair)) for pair in off]
            asked.say(f"{gaps}, S = {size}")
    return found


def _long(asked: Asked) -> Json:
    """Trials one by one, and the picture of them."""
    width = min(64, asked.often)
    places = horizons.edges(_HORIZON)
    kept: dict[str, Any] = {"edges": np.array(places)}
    found: Json = {"horizon": _HORIZON, "agents": list(_FOLLOWED), "found": {}}
    decades = [10**d for d in range(3, round(np.log10(_HORIZON)) + 1)]
    for agents in _FOLLOWED:
        for name, lost in horizons.losses(agents, 2, _HORIZON, asked.often, width).items():
            kept[f"{name}/{agents}"] = lost.astype(np.float32)
            late = {
                slots: lost[places.index(slots) - 1] / (slots - places[places.index(slots) - 1])
                > horizons.MUCH
                for slots in decades
            }
            total = lost.sum(0)
            behind = late[10_000]
            found["found"][f"{name}, M = {agents}"] = {
                "behind": {str(slots): float(each.mean()) for slots, each in late.items()},
                "mean": float(total.mean()),
                "se": float(total.std(ddof=1) / np.sqrt(total.size)),
                "quantiles": [float(x) for x in np.quantile(total, [0.05, 0.5, 0.95, 0.99])],
                "behind at 10,000": int(behind.sum()),
                "of these at last": int((behind & late[_HORIZON]).sum()),
            }
        asked.say(f"M = {agents}")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "found.npz"
        np.savez(file, **kept)
        horizons.draw([file], asked.docs / "pictures" / "long-horizons.svg")
    return found


# ------------------------------------------------------------------------------------------- blocks


def _memory() -> str:
    def left(memory: float, slots: int) -> str:
        power = memory**slots
        if power >= 1e-4:
            return fixed(power, 1 - int(np.floor(np.log10(power))))
        return f"{power:.0e}".replace("e-0", "e-")

    rows = [
        [f"left after {slots} slots{more}", *(left(m, slots) for m in _MEMORIES)]
        for slots, more in ((33, ", `gaps = 32`"), (129, ", `gaps = 128`"))
    ]
    return (
        table(["memory", *(fixed(m, 2).rstrip("0") for m in _MEMORIES)], rows)
        + f"\n\nSo G = 32 is exact to {left(0.8, 33)} for the paper's arms, whose memories are at "
        f"most {fixed(0.8, 1)} in absolute value. For a memory of {fixed(0.95, 2)}, pairs more "
        "than "
        "32 slots apart are taken as stationary too early, and the draws lean towards what was "
        "observed before the long waits. Use a larger `gaps` for such arms. It costs time and, "
        "above all, compilation; 128 is the maximum."
    )


def _earns_table(record: Record) -> str:
    rows, said = [], []
    for label, found in record.data.items():
        rows.append([label, *(rounded(mean(found, name)) for name in (*LEARNERS, "whittle"))])
        gain = earns("FedTSWI-gap", "FedTSWI", apart(found, "fedtswi-gap", "fedtswi"))
        said.append(f"- {label}: {gain}.")
    first = record.data["M = 4, K = 2"]
    others = listed(
        [
            f"`{name}` earns {rounded(mean(first, name))}"
            for name in ("fedts-myopic-gap", "feducb-wi-gap")
        ]
    )
    head = ["", "FedTSWI", "FedTSWI-gap", "Whittle, known dynamics"]
    return f"{table(head, rows)}\n\n" + "\n".join(said) + f"\n\nAt M = 4, K = 2 {others}."


def _fading_table(record: Record) -> str:
    rows = [
        [
            label,
            *(rounded(mean(found, name)) for name in LEARNERS),
            rounded(apart(found, "fedtswi-gap", "fedtswi"), True),
        ]
        for label, found in record.data.items()
    ]
    return table(["", "FedTSWI", "FedTSWI-gap", "difference"], rows)


def _per_agent_table(record: Record) -> str:
    labels = list(record.data)
    rows = [
        [f"`{name}`", *(rounded(_pair(record.data[label][name]), True) for label in labels)]
        for name in _DRAWN
    ]
    kinds: dict[str, list[str]] = {"more": [], "less": [], "undecided": []}
    for name in _DRAWN:
        for label in labels:
            kinds[compared(*_pair(record.data[label][name]))].append(f"`{name}` at {label}")
    parts = [
        f"{what} for {listed(cases)}"
        for kind, what in (
            ("more", "draws of its own add reward"),
            ("less", "draws of its own cost reward"),
            ("undecided", "a difference is undecided"),
        )
        if (cases := kinds[kind])
    ]
    said = "; ".join(parts)
    return table(["policy", *labels], rows) + (
        f"\n\n{said[0].upper()}{said[1:]}. The errors of the two are taken as "
        "independent, though trials are the same."
    )


def _pair(values: Any) -> Estimate:
    return number(values[0]), number(values[1])


def _channels_table(record: Record) -> str:
    rows, worst = [], {}
    for kind, label, cases in (
        ("plain", "seven patterns of gaps", _OBSERVATIONS),
        ("by state", "gaps by the state last observed, five rules", _BY_STATE_OBSERVATIONS),
    ):
        values = record.data[kind]
        worst[label] = min(values) * len(values)
        many = listed([f"{n:,}" for n in cases])
        rows.append([label, many, str(len(values)), bare(f"{min(values):.1g}")])
    bar = 0.01
    failing = [label for label, chance in worst.items() if chance < bar]
    said = (
        "As many values as these have one so small by chance in more than one case of a hundred: "
        "nothing is found against the draws."
        if not failing
        else f"So small a value is not chance in the row {listed(failing)}: there the draws are "
        "off."
    )
    return (
        table(["gaps", "observations", "p-values", "least"], rows)
        + f"\n\n{said} Each p-value is of one of p01, p11, m and b0 among {record.data['drawn']} "
        "draws, with a uniform prior."
    )


def _matrices_table(record: Record) -> str:
    rows = []
    for gaps in _GAPS:
        cells = []
        for size in _SIZES:
            off = np.array(record.data[f"{gaps}, S = {size}"])
            worst = off.flat[int(np.argmax(np.abs(off)))]
            cells.append(f"{'+' if worst > 0 else ''}{fixed(100 * float(worst), 1)}")
        rows.append([gaps, *cells])
    assert isinstance(record.trials, int)
    errors = [100 * np.sqrt(0.25 / (size * record.trials)) for size in _SIZES]
    return table(["gaps", *(f"S = {size}" for size in _SIZES)], rows) + (
        f"\n\nFor each number the matrices were {record.trials:,}, with {record.data['drawn']} "
        "draws each, "
        f"and {listed([f'{n:,}' for n in _PAIRS])} observations; the standard error of one is at "
        "most "
        f"{listed([fixed(float(x), 1) for x in errors])} points, and the worst of six stands here. "
        "A "
        "negative number means that draws are a little too wide."
    )


# --- regret


def _at(series: Mapping[str, list[Any]], symbol: str, place: float) -> int:
    return int(np.argmin(np.abs(np.array(series[symbol]) - place)))


def _regret(series: Mapping[str, list[Any]], name: str, after: str, place: int) -> Estimate:
    column = f"regret of {name}{after}"
    return number(series[column][place]), number(series[f"{column}, se"][place])


def _growth(found: Mapping[str, Any], figure: str, name: str, after: str, symbol: str) -> str:
    """The power fitted last, where there is one."""
    fits = {
        key: each
        for key, each in found["figures"][figure]["fits"].items()
        if key.startswith(f"{name}{after}, {symbol} = ")
    }
    ends = max((each["end"] for each in fits.values()), default=0.0)
    most = max(found["series"][figure][symbol])
    for each in fits.values():
        if each["end"] == ends == most:
            text = f"{symbol}^{rounded(_pair((each['slope'], each['slope_se'])))}"
            if each["fits"]:
                return text
            poor = fixed(number(each["chi2_per_degree"]), 1)
            return f"{text}, but no power law fits (chi-squared {poor} per degree of freedom)"
    return "–"


def _regret_rows(
    found: Mapping[str, Any], figure: str, symbol: str, afters: list[str], places: list[float]
) -> list[list[str]]:
    series = found["series"][figure]
    rows = []
    for place in places:
        i = _at(series, symbol, place)
        cells = [rounded(_regret(series, n, after, i)) for after in afters for n in LEARNERS]
        rows.append([f"{series[symbol][i]:,.0f}", *cells])
    powers = [_growth(found, figure, n, after, symbol) for after in afters for n in LEARNERS]
    return [*rows, [f"as a power of {symbol}", *powers]]


_BOTH = [", K = 1", ", K = 2"]


def _both_heads(symbol: str) -> list[str]:
    return [symbol, *(f"{_NAMES[n]}{after}" for after in _BOTH for n in LEARNERS)]


def _horizon_table(record: Record) -> str:
    found, figure = record.data, "regret-horizon"
    series = found["series"][figure]
    slots = np.array(series["T"])
    rows = _regret_rows(found, figure, "T", _BOTH, [1e3, 1e4, 1e5])
    said = []
    for after in _BOTH:
        gap = np.array([_regret(series, "fedtswi-gap", after, i) for i in range(len(slots))])
        peak = int(np.argmax(gap[:, 0]))
        below = gap[:, 0] < -MIN_SIGMA * gap[:, 1]
        first = int(np.argmax(below)) if below[-1] else None
        text = f"- {after[2:]}: the regret of FedTSWI-gap is largest near T = {slots[peak]:,.0f}"
        if first is None:
            text += "; at the longest T it is not clearly below zero."
        else:
            first = len(slots) - int(np.argmin(below[::-1])) if not below.all() else 0
            text += (
                f", and clearly below zero from T = {slots[first]:,.0f} on: all slots together "
                "earn "
                "more than under the Whittle policy with known dynamics."
            )
        said.append(text)
    learnt = [
        f"- {_whose(claim['claim'])}: {bare(claim['measured']).partition('. ')[0].rstrip('.')}."
        for claim in found["figures"][figure]["claims"]
        if claim["measured"].startswith("mean squared error")
    ]
    return "\n\n".join(
        [
            table(_both_heads("T"), rows),
            "\n".join(said),
            "FedTSWI cannot learn an arm that it does not play in two consecutive slots:",
            "\n".join(learnt),
        ]
    )


def _whose(claim: str) -> str:
    """Of a claim its learner and its K."""
    learner = "FedTSWI-gap" if "FedTSWI-gap" in claim else "FedTSWI"
    return f"{learner}, {claim.rpartition('(')[2].rstrip(').')}"


def _agents_table(record: Record) -> str:
    rows = _regret_rows(record.data, "regret-agents", "M", _BOTH, [1, 4, 16, 64])
    return table(_both_heads("M"), rows)


def _arms_table(record: Record) -> str:
    figure = "regret-arms"
    series = record.data["series"][figure]
    rows = _regret_rows(record.data, figure, "N", [""], [4, 16, 64])
    for row, place in zip(rows, (4, 16, 64), strict=False):
        i = _at(series, "N", place)
        share = f"share of {LEARNERS[1]}"
        row.append(rounded((number(series[share][i]), number(series[f"{share}, se"][i]))))
    rows[-1].append("")
    return table(["N", "FedTSWI", "FedTSWI-gap", "share"], rows)


def _vanishing(record: Record) -> str:
    series = record.data["series"]
    horizon = series["regret-horizon"]
    slots = horizon["T"]
    first = []
    for after in _BOTH:
        apart_at = [
            _saved(horizon, after, i)[0] > MIN_SIGMA * _saved(horizon, after, i)[1]
            for i in range(len(slots))
        ]
        place = next((i for i, each in enumerate(apart_at) if each), None)
        first.append(
            f"T = {slots[place]:,.0f} ({after[2:]})"
            if place is not None
            else f"the end ({after[2:]})"
        )
    lines = [f"- *In the first slots.* The two are first told apart at {listed(first)}."]
    agents = series["regret-agents"]
    for after in _BOTH:
        few, many = (_saved(agents, after, _at(agents, "M", m)) for m in (1, 64))
        word = compared(many[0] - few[0], few[1] + many[1])
        said = {"more": "more than", "less": "less than", "undecided": "not clearly other than"}[
            word
        ]
        lines.append(
            f"- *With many agents, {after[2:]}.* With 64 agents {rounded(many)} is saved per "
            "agent, "
            f"{said} the {rounded(few)} with one."
        )
    arms = series["regret-arms"]

    def by_play(n: int) -> tuple[float, float]:
        saved, error = _saved(arms, "", _at(arms, "N", n))
        return 4 * saved / n, 4 * error / n

    few, many = by_play(4), by_play(64)
    word = compared(many[0] - few[0], few[1] + many[1])
    said = {"more": "more than", "less": "less than", "undecided": "not clearly other than"}[word]
    lines.append(
        f"- *With many arms.* At N = 64 {rounded(many)} is saved per play, {said} the "
        f"{rounded(few)} at "
        "N = 4."
    )
    lines.append(
        "- *Where every arm is played or observed in every slot.* All observations are then "
        "consecutive, and the two are the same."
    )
    return "\n".join(lines) + "\n\nErrors of the two are added, which bounds that of what is saved."


def _saved(series: Mapping[str, list[Any]], after: str, i: int) -> Estimate:
    """Regret of FedTSWI less that of FedTSWI-gap, and a bound of its error."""
    plain, gap = (_regret(series, name, after, i) for name in LEARNERS)
    return plain[0] - gap[0], plain[1] + gap[1]


# --- trial by trial


def _long_tables(record: Record) -> str:
    data = record.data
    agents, found = data["agents"], data["found"]
    first = found[f"fedtswi, M = {agents[0]}"]["behind"]
    heads = [f"{_NAMES[name]}, M = {m}" for name in LEARNERS for m in agents]
    rows = []
    for slots in first:
        cells = [_share(found[f"{n}, M = {m}"]["behind"][slots]) for n in LEARNERS for m in agents]
        rows.append([f"{int(slots):,}", *cells])
    spread = []
    for m in agents:
        each = found[f"fedtswi, M = {m}"]
        low, median, high, worst = each["quantiles"]
        spread.append(
            [
                str(m),
                rounded((each["mean"], each["se"])),
                *(fixed(x, 0) for x in (median, low, high, worst)),
            ]
        )
    stay = []
    for name in LEARNERS:
        for m in agents:
            each = found[f"{name}, M = {m}"]
            behind, last = each["behind at 10,000"], each["of these at last"]
            if behind:
                stay.append(f"of {_NAMES[name]}, M = {m}, {last} of {behind}")
    said = (
        f"Of the trials that are behind at slot 10,000, {listed(stay)} are behind at the end, too."
        if stay
        else "No trial is behind at slot 10,000."
    )
    assert isinstance(record.trials, int)
    return "\n\n".join(
        [
            f"Each trial is followed to T = {data['horizon']:,} "
            f"({', '.join(f'M = {m}' for m in agents)}; "
            "K = 2, schedule `paper`).",
            f"The share of {record.trials:,} trials that lose more than {fixed(horizons.MUCH, 2)} "
            "a slot "
            "in the window that ends at a slot:",
            table(["slot", *heads], rows),
            said,
            f"The regret of FedTSWI per agent at T = {data['horizon']:,}, over trials:",
            table(["M", "mean", "median", "5 % below", "95 % below", "99 % below"], spread),
        ]
    )


def _share(share: float) -> str:
    return "none" if share == 0 else percent(share, 1)


PAGE = Page(
    "observations-at-any-gap.md",
    blocks={
        "gap-memory": Block(_memory),
        "calibration-channels": Block(_channels_table, ("calibration-channels",)),
        "calibration-matrices": Block(_matrices_table, ("calibration-matrices",)),
        "draws-per-agent": Block(_per_agent_table, ("draws-per-agent",)),
        "gap-earns": Block(_earns_table, ("gap-earns",)),
        "gap-fading": Block(_fading_table, ("gap-fading",)),
        "gap-horizon": Block(_horizon_table, (PAPER_RUN,)),
        "gap-agents": Block(_agents_table, (PAPER_RUN,)),
        "gap-arms": Block(_arms_table, (PAPER_RUN,)),
        "long-horizons": Block(_long_tables, ("long-horizons",)),
        "gap-vanishes": Block(_vanishing, (PAPER_RUN,)),
    },
    measurements={
        "calibration-channels": Measurement(_channels, minutes=2, trials=4_000, unit="channels"),
        "calibration-matrices": Measurement(_matrices, minutes=2, trials=512, unit="matrices"),
        "draws-per-agent": Measurement(_per_agent, minutes=2, trials=4_000),
        "gap-earns": Measurement(_earns, minutes=1.5, trials=10_000),
        "gap-fading": Measurement(_fading, minutes=1, trials=512),
        "long-horizons": Measurement(_long, minutes=3, trials=256),
    },
)
