"""docs/traces.md: what policies earn on measured traces, and where laws are known to change.

The traces are not part of this repository. Those that the page tells of are pam25_ping, cml_fade,
smd_health and grenoble_k7; "inspect" is smd_health with good and bad exchanged: which machine to
look at.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.documents.blocks import Asked, Block, Measurement, NotFound, Page
from benchmarks.documents.kept import Json, Record, number
from benchmarks.documents.simulated import mean, ran
from benchmarks.documents.words import compared, fixed, listed, percent, plus, rounded, table

import rmab
from benchmarks import changing_laws
from rmab.policies.registry import POLICIES
from rmab.report.backtest_page import draw_differences
from rmab.report.canvas import save
from rmab.studies.study import Study
from rmab.traces.outcome import Backtest

__all__ = ["PAGE", "Case", "against_stay", "of_backtest", "rewards"]

TRACES = "../shared/traces"


class Case(NamedTuple):
    """A trace by its name on the page; good: what is so, if not as the file says."""

    name: str
    file: str
    good: str | None = None


PING, FADE = Case("pam25_ping", "pam25_ping"), Case("cml_fade", "cml_fade")
HEALTH, INSPECT = Case("smd_health", "smd_health"), Case("inspect", "smd_health", "== 0")
GRENOBLE = Case("grenoble_k7", "grenoble_k7")
RULES = (
    *("random", "round-robin", "fixed-best@pooled", "fixed-best", "stay"),
    *("myopic", "whittle", "genie"),
)
SEVERAL = ("stay", "myopic", "whittle", "genie")  # two plays
FITTED = ("stay", "whittle", "whittle@pooled", "whittle@segment", "myopic@segment")
LEARNERS = (
    *("fedtswi", "fedtswi-gap", "fedtswi-robust", "fedts-myopic-robust", "fedce-myopic-robust"),
)
DRAWN = (PING, GRENOBLE)  # the page has pictures of these
_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "none": {},
    "`gaps = 128`": {"gaps": 128},
    '`plan_by = "mode"`': {"plan_by": "mode"},
}


# ------------------------------------------------------------------------------------- measurements


def _trace(asked: Asked, case: Case) -> rmab.Trace:
    assert asked.folder is not None
    path = asked.folder / f"{case.file}.npz"
    if not path.exists():
        raise NotFound(f"{path} is not there: the traces are not part of this repository")
    trace = rmab.load_trace(path)
    return trace if case.good is None else trace.regraded(case.good)


def _tested(
    asked: Asked,
    case: Case,
    policies: Sequence[str],
    plays: int = 1,
    options: Mapping[str, Mapping[str, Any]] | None = None,
) -> Backtest:
    options = dict(options or {})
    if case is GRENOBLE:  # 19 slots have nothing to forget
        robust = [name for name in policies if name in POLICIES and name.endswith("-robust")]
        options |= {name: {"forget": "never"} for name in robust}
    found = rmab.backtest(
        _trace(asked, case),
        policies,
        plays=plays,
        runs=asked.often,
        seed=asked.seed or 0,
        options=options,
    )
    asked.say(f"{case.name}, K = {plays}")
    return found


def of_backtest(found: Backtest, over: str | None = None) -> Json:
    """The plain numbers of a back-test; over: also the 95 % interval of differences to a rule."""
    policies: Json = {}
    for name, each in found.earned.items():
        policies[name] = {"mean": [found.mean[name], found.se[name] if each.drawn else None]}
        if over is not None:
            apart = found.over(name, over)
            policies[name]["over"] = [apart.low, apart.high]
    return {"agent slots": found.trace.agent_slots, "policies": policies}


def _rules(asked: Asked) -> Json:
    each = {
        case.name: _tested(asked, case, RULES) for case in (PING, FADE, HEALTH, INSPECT, GRENOBLE)
    }
    return {name: of_backtest(found) for name, found in each.items()}


def _two_plays(asked: Asked) -> Json:
    return {case.name: of_backtest(_tested(asked, case, SEVERAL, plays=2)) for case in (PING, FADE)}


def _laws(asked: Asked) -> Json:
    return {PING.name: of_backtest(_tested(asked, PING, FITTED), "stay")}


def _learners(asked: Asked) -> Json:
    """And the pictures of differences to stay."""
    found = {}
    for case in (PING, FADE, INSPECT, GRENOBLE):
        learnt = _tested(asked, case, LEARNERS)
        found[case.name] = of_backtest(learnt, "stay")
        if case in DRAWN:
            shown = [x for x in RULES if x not in ("random", "round-robin", "stay")]
            rules = _tested(asked, case, shown)
            both = replace(rules, earned={**rules.earned, **learnt.earned})
            _draw(asked.docs / "pictures", case.name, both)
    return found


def _draw(pictures: Path, name: str, both: Backtest) -> None:
    """Differences to stay, of rules and of learners on the same trace."""
    with tempfile.TemporaryDirectory() as folder:
        about = f"How much more than stay policies earned on {name}."
        save(draw_differences(both), Path(folder), f"backtest-{name}", about)
        file = f"backtest-{name}.svg"
        (pictures / file).write_bytes((Path(folder) / file).read_bytes())


def _inspected(asked: Asked) -> Json:
    """The robust learner with other options on smd_health, which machine to look at."""
    name = "fedtswi-robust"
    found: Json = {}
    for label, options in _OPTIONS.items():
        one = _tested(asked, INSPECT, [name], options={name: options})
        found[label] = of_backtest(one, "stay")["policies"][name]
    return found


def _fitted(asked: Asked) -> Json:
    """Bits by model."""
    found: Json = {}
    for case in (PING, FADE, HEALTH):
        fit = rmab.fit_trace(_trace(asked, case))
        found[case.name] = {
            "bits": fit.bits,
            "share": fit.share,
            "best": fit.best,
            "order": fit.order_in_words,
            "errors": list(fit.errors),
        }
        asked.say(case.name)
    return found


def _changing(asked: Asked) -> Json:
    """Gains where laws change."""
    policies: Mapping[str, tuple[str, Mapping[str, Any]]] = {
        "gap": ("fedtswi-gap", {}),
        "robust": ("fedtswi-robust", {}),
    }
    found: Json = {}
    for case in changing_laws.CHANGING:
        earned = changing_laws.earned(case, policies, asked.often)
        found[case.name] = {
            "mean": {label: float(each.mean()) for label, each in earned.items()},
            "gain": list(changing_laws.gain(earned["robust"], earned["gap"])),
        }
        asked.say(case.name)
    return found


_HOW = ("none", "sum", "pairs")


def _agreeing(asked: Asked) -> Json:
    """Gains where agents differ."""
    policies = {how: ("fedtswi-robust", {"aggregation": how}) for how in _HOW}
    found: Json = {}
    for case in changing_laws.AGREEING:
        earned = changing_laws.earned(case, policies, asked.often)
        better = max(("none", "sum"), key=lambda how: earned[how].mean())
        alone = earned["none"].mean(1)
        found[case.name] = {
            "mean": {label: float(each.mean()) for label, each in earned.items()},
            "gain": list(changing_laws.gain(earned["pairs"], earned[better])),
            "worst": {how: float((earned[how].mean(1) / alone - 1).min()) for how in _HOW},
        }
        asked.say(case.name)
    return found


_SHARED: Mapping[str, Mapping[str, Any]] = {
    "each learns alone": {"aggregation": "none"},
    "all pool their counts and play by one draw": {},
    "all pool their counts and each has a draw of its own": {"draws": "per-agent"},
}


def _same_arms(asked: Asked) -> Json:
    """16 agents that share one realisation of the paper's arms, all rewards 1."""
    arms = rmab.channels([0.2, 0.89, 0.1, 0.9], [0.8, 0.17, 0.9, 0.16], 1.0)
    return {
        label: ran(
            asked,
            Study(
                arms=arms,
                agents=16,
                plays=1,
                horizon=1000,
                trials=asked.often,
                seed=asked.seed or 0,
                realisations="shared",
                policies=("fedtswi-gap",),
                **keys,
            ),
            label,
        )
        for label, keys in _SHARED.items()
    }


# ------------------------------------------------------------------------------------------- blocks


def rewards(found: Mapping[str, Any], policies: Sequence[str]) -> str:
    """Rows by trace, columns by policy; the interval over stay where it was asked for."""
    head = ["trace", "agent-slots", *(f"`{name}`" for name in policies)]
    rows = []
    for name, each in found.items():
        cells = [_reward(each["policies"][policy]) for policy in policies]
        rows.append([name, f"{each['agent slots']:,}", *cells])
    return table(head, rows)


def _reward(each: Mapping[str, Any]) -> str:
    value, error = each["mean"]
    text = fixed(number(value), 4) + ("" if error is None else f" ± {fixed(error, 4)}")
    if "over" in each:
        low, high = each["over"]
        known = low is not None and high is not None
        text += f" ({plus(low, 4)} to {plus(high, 4)})" if known else " (undecided)"
    return text


def _mean(found: Mapping[str, Any], trace: str, policy: str) -> float:
    return number(found[trace]["policies"][policy]["mean"][0])


def _rules_table(record: Record) -> str:
    found = record.data
    shares = {name: _mean(found, name, "stay") / _mean(found, name, "genie") for name in found}
    near = [f"{percent(x, 1)} on {name}" for name, x in shares.items()]
    best = {
        name: max((n for n in RULES if n != "genie"), key=lambda n: _mean(found, name, n))
        for name in found
    }
    first = listed([f"`{policy}` on {name}" for name, policy in best.items()])
    return rewards(found, RULES) + (
        f"\n\n`stay` learns nothing. Of what the genie earns it has {listed(near)}. Without the "
        "genie most "
        f"is earned by {first}."
    )


def _two_table(record: Record) -> str:
    return rewards(record.data, SEVERAL)


def _over(each: Mapping[str, Any]) -> str:
    """How a policy stands to stay, by the interval; without one nothing is decided."""
    low, high = (number(x) for x in each["over"])
    return "more" if low > 0 else "less" if high < 0 else "undecided"


def against_stay(found: Mapping[str, Any], policies: Sequence[str]) -> str:
    """In words, by trace."""
    lines = []
    for trace, each in found.items():
        kinds: dict[str, list[str]] = {"more": [], "less": [], "undecided": []}
        for name in policies:
            kinds[_over(each["policies"][name])].append(f"`{name}`")
        parts = [
            f"{text} {listed(names)}"
            for text, names in (
                ("more than `stay`:", kinds["more"]),
                ("less than `stay`:", kinds["less"]),
                ("undecided:", kinds["undecided"]),
            )
            if names
        ]
        lines.append(f"- {trace}: {'; '.join(parts)}.")
    return "\n".join(lines)


def _laws_table(record: Record) -> str:
    others = [name for name in FITTED if name != "stay"]
    return f"{rewards(record.data, others)}\n\n{against_stay(record.data, others)}"


def _learners_table(record: Record) -> str:
    return (
        f"{rewards(record.data, LEARNERS)}\n\nBy the 95 % intervals of the difference to "
        "`stay`:\n\n"
        f"{against_stay(record.data, LEARNERS)}"
    )


def _inspect_table(record: Record) -> str:
    found = record.data
    rows = [
        [label, _reward(each), {"more": "more", "less": "less"}.get(_over(each), "undecided")]
        for label, each in found.items()
    ]
    plain, mode = (found[label]["mean"] for label in ("none", '`plan_by = "mode"`'))
    apart = mode[0] - plain[0], (number(mode[1]) ** 2 + number(plain[1]) ** 2) ** 0.5
    word = compared(*apart)
    said = {
        "more": "Plans made from the mode, which draw nothing, earn more",
        "less": "Plans made from the mode, which draw nothing, earn less",
        "undecided": "Whether plans made from the mode earn more is undecided",
    }[word]
    return table(["options", "reward (over `stay`)", "than `stay`"], rows) + (
        f"\n\n{said}: {rounded(apart, True)}."
    )


_MODELS = ("order1", "order2", "ages", "regimes", "flicker")


def _bits_table(record: Record) -> str:
    rows = []
    for name, each in record.data.items():
        bits = {model: number(value) for model, value in each["bits"].items()}
        shares = [percent(number(each["share"][model])) for model in _MODELS]
        best = bits[each["best"]]
        rows.append([name, *(fixed(x, 3) for x in (bits["iid"], bits["order1"], best)), *shares])
    head = [
        "trace",
        *("bits a slot: `iid`", "`order1`", "best"),
        "share of `order1`",
        *(f"`{model}`" for model in _MODELS[1:]),
    ]
    good_when_bad = number(record.data[PING.name]["errors"][0])
    return table(head, rows) + (
        f"\n\nOn {PING.name} `flicker` sees good in {percent(good_when_bad)} of the slots of the "
        "hidden bad "
        "state."
    )


def _twins(record: Record) -> str:
    order = record.data[PING.name]["order"]
    return f"Of {PING.name} the page says: {order[0].upper()}{order[1:].rstrip('.')}."


_CHANGING = {
    "exchange": "all arms exchange laws every 1,000 slots, T = 8,000",
    "renewal": "each arm draws a new law, rate 1/1,000",
    "drift": "log odds drift (1,000 slots, sd 1)",
    "stationary, these arms": "stationary: these arms, T = 2,000",
    "stationary, the paper's": "stationary: the paper's",
    "stationary, uniform": "stationary: uniform",
}


def _percents(estimate: Sequence[float]) -> str:
    return f"{rounded((number(estimate[0]), number(estimate[1])), True)} %"


def _changing_table(record: Record) -> str:
    rows = [
        [
            _CHANGING[name],
            *(fixed(each["mean"][label], 4) for label in ("gap", "robust")),
            _percents(each["gain"]),
            compared(*map(number, each["gain"])),
        ]
        for name, each in record.data.items()
    ]
    head = ["", "`fedtswi-gap`", "`fedtswi-robust`", "gain", "the robust one earns"]
    return table(head, rows)


def _agreeing_table(record: Record) -> str:
    rows = [
        [
            name,
            *(fixed(each["mean"][how], 4) for how in _HOW),
            _percents(each["gain"]),
            *(f"{plus(100 * each['worst'][how], 1)} %" for how in ("pairs", "sum")),
        ]
        for name, each in record.data.items()
    ]
    head = [
        *("", "`none`", "`sum`", "`pairs`", "gain of `pairs`"),
        *("worst agent, `pairs`", "worst agent, `sum`"),
    ]
    return table(head, rows)


def _same_table(record: Record) -> str:
    rows = [[label, rounded(mean(found, "fedtswi-gap"))] for label, found in record.data.items()]
    return table(["16 agents see the same", "`fedtswi-gap` earns"], rows)


def _little(rules: Record, learners: Record) -> str:
    stay, genie = (_mean(rules.data, PING.name, name) for name in ("stay", "genie"))
    best = max(LEARNERS, key=lambda name: _mean(learners.data, PING.name, name))
    more = _mean(learners.data, PING.name, best) - stay
    return (
        f"On {PING.name}, with three arms, the genie that sees all states earns {fixed(genie, 4)} "
        "and `stay` "
        f"{fixed(stay, 4)}; the best learner, `{best}`, earns {plus(more, 4)} beside `stay`."
    )


def _from_traces(
    measure: Callable[[Asked], Json], minutes: float, runs: int | None = 4
) -> Measurement:
    seed = None if runs is None else 0
    command = 'make traces TRACES=DIR ARGS="{}"'
    return Measurement(measure, minutes, runs, seed, TRACES, "runs", command)


PAGE = Page(
    "traces.md",
    blocks={
        "traces-fit": Block(_bits_table, ("traces-fit",)),
        "traces-twins": Block(_twins, ("traces-fit",)),
        "traces-rules": Block(_rules_table, ("traces-rules",)),
        "traces-two-plays": Block(_two_table, ("traces-two-plays",)),
        "traces-laws": Block(_laws_table, ("traces-laws",)),
        "traces-learners": Block(_learners_table, ("traces-learners",)),
        "traces-inspect": Block(_inspect_table, ("traces-inspect",)),
        "changing-laws": Block(_changing_table, ("changing-laws",)),
        "agents-differ": Block(_agreeing_table, ("agents-differ",)),
        "same-arms": Block(_same_table, ("same-arms",)),
        "traces-little": Block(_little, ("traces-rules", "traces-learners")),
    },
    measurements={
        "traces-fit": _from_traces(_fitted, minutes=2, runs=None),
        "traces-rules": _from_traces(_rules, minutes=1),
        "traces-two-plays": _from_traces(_two_plays, minutes=0.3),
        "traces-laws": _from_traces(_laws, minutes=0.3),
        "traces-learners": _from_traces(_learners, minutes=6),
        "traces-inspect": _from_traces(_inspected, minutes=3),
        "changing-laws": Measurement(_changing, minutes=3, trials=8, unit="runs"),
        "agents-differ": Measurement(_agreeing, minutes=2, trials=8, unit="runs"),
        "same-arms": Measurement(_same_arms, minutes=0.5, trials=64),
    },
)
