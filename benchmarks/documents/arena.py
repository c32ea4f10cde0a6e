"""docs/what-works-when.md: what the arena showed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, cast

from benchmarks.documents.blocks import Asked, Block, Measurement, NotFound, Page
from benchmarks.documents.kept import Json, Record, number
from benchmarks.documents.words import (
    Estimate,
    bare,
    compared,
    fixed,
    listed,
    percent,
    rounded,
    table,
    times,
)

from rmab.arena.records import ArenaOutcome, ProblemOutcome, load_outcome
from rmab.errors import StudyError
from rmab.studies.json_tables import to_table

__all__ = ["PAGE"]

ARENA = "arena"
CHANNELS = (
    *("paper-k1-m1", "paper-k2-m1", "paper-k1-m4", "paper-k2-m4", "paper-k1-m16", "paper-k2-m16"),
    *("identical", "whittle-loses", "jt4", "slow", "c1", "ht", "ge5", "n64", "n256"),
)
MOVED = ("rb-4", "ucwhittle", "circulant", "restart", "machine", "fading", "adherence")
OURS = (
    *("fedtswi", "fedtswi-gap", "fedts-myopic-gap", "fedts-lookahead-gap"),
    *("fedtswi-robust", "fedts-myopic-robust", "fedce-myopic-robust"),
)
_SHORT = "paper-"  # heads leave it out
_BAND = 2 * 1.96  # standard errors from the lower to the upper end of a band

Problem = Mapping[str, Any]
Place = Literal["ahead", "behind", "tied"]


# ------------------------------------------------------------------------------------- measurement


def _taken(asked: Asked) -> Record:
    """A record of what `rmab arena` wrote."""
    assert asked.folder is not None
    path = asked.folder / "arena.json"
    if not path.exists():
        raise NotFound(f"{path} is not there: `make arena` writes it")
    try:
        outcome = load_outcome(path)
    except StudyError as error:
        raise NotFound(str(error)) from None
    made = outcome.made
    trials = sorted({each.trials for each in outcome.problems})
    asked.say(f"{len(outcome.problems)} problems")
    return Record(
        command="make arena",
        version=made["versions"]["rmab"],
        date=made["time"]["begun"][:10],
        device=made["device"],
        seed=outcome.problems[0].study["seed"],
        trials=trials[0] if len(trials) == 1 else f"{trials[0]:,} to {trials[-1]:,} trials",
        seconds=made["time"]["seconds"],
        data={
            "verdicts": _verdicts(outcome),
            "labels": outcome.policies,
            "problems": {each.name: _problem(each) for each in outcome.problems},
        },
    )


def _verdicts(outcome: ArenaOutcome) -> dict[str, str]:
    """Of those that learn, from the largest median share."""
    learn = {
        n
        for p in outcome.problems
        for n, each in p.standings.items()
        if not each.uses_true_dynamics
    }
    return {name: line for name, line in outcome.verdicts.items() if name in learn}


def _problem(problem: ProblemOutcome) -> Json:
    kept = ("knows", "mean", "se", "final", "final_se", "share", "share_se", "rank", "stuck")
    return {
        "trials": problem.trials,
        "best known": problem.best_known,
        "leaders": problem.leaders,
        "exact": problem.exact,
        "policies": {
            name: {
                **{key: item for key, item in to_table(each).items() if key in kept},
                "seconds": each.seconds,
                "regret": each.regret,
                "regret_se": None
                if each.regret_high is None or each.regret_low is None
                else (each.regret_high - each.regret_low) / _BAND,
                # Who is tied with whom is kept of the learners that the page compares.
                **({"tied": each.tied} if name in (*OURS, "ts-grid", "tsde") else {}),
            }
            for name, each in problem.standings.items()
        },
    }


# ------------------------------------------------------------------------------------------ reading


class _Arena:
    """What the record has, by problem and policy; a policy that did not play is None."""

    def __init__(self, record: Record) -> None:
        self.problems: Mapping[str, Problem] = record.data["problems"]
        self.labels: Mapping[str, str] = record.data["labels"]
        self.verdicts: Mapping[str, str] = record.data["verdicts"]

    def played(self, policy: str, among: Sequence[str] = (*CHANNELS, *MOVED)) -> list[str]:
        """Problems that a policy played, in the page's order."""
        return [
            name
            for name in among
            if name in self.problems and policy in self.problems[name]["policies"]
        ]

    def shown(self, policy: str) -> str:
        name, _, setting = policy.partition("@")
        if setting == "aggregation=gossip":
            return f"`{name}`, gossip on a ring"
        if setting == "aggregation=none":
            return f"`{name}`, each alone"
        return f"`{name}`, `{setting.replace('=', ' = ')}`" if setting else f"`{name}`"

    def of(self, problem: str, policy: str) -> Mapping[str, Any] | None:
        policies: Mapping[str, Any] = self.problems.get(problem, {"policies": {}})["policies"]
        return policies.get(policy)

    def share(self, problem: str, policy: str) -> float:
        each = self.of(problem, policy)
        return number(None if each is None else each["share"])

    def shares(self, policy: str, among: Sequence[str]) -> str:
        """From the smallest to the largest, in per cent."""
        found = [x for p in among if (x := self.share(p, policy)) == x]
        if not found:
            return "–"
        low, high = (fixed(100 * x, 0) for x in (min(found), max(found)))
        return f"{high} %" if low == high else f"{low} to {high} %"

    def regret(self, problem: str, policy: str) -> Estimate | None:
        each = self.of(problem, policy)
        return None if each is None else (number(each["regret"]), number(each["regret_se"]))

    def stuck(self, problem: str, policy: str) -> float:
        each = self.of(problem, policy)
        return number(None if each is None else each["stuck"])

    def leads(self, policy: str, among: Sequence[str] = (*CHANNELS, *MOVED)) -> list[str]:
        """Problems on which a policy is first, or tied with the first."""
        return [p for p in self.played(policy, among) if policy in self.problems[p]["leaders"]]

    def place(self, problem: str, one: str, other: str) -> Place:
        """How a learner whose ties are kept stands to another."""
        mine, theirs = self.of(problem, one), self.of(problem, other)
        assert mine is not None, (problem, one)
        assert theirs is not None, (problem, other)
        if other in mine["tied"]:
            return "tied"
        return "ahead" if mine["mean"] > theirs["mean"] else "behind"

    def against(self, one: str, other: str, among: Sequence[str]) -> dict[Place, list[str]]:
        """Problems on which one is ahead of another, behind or tied."""
        found: dict[Place, list[str]] = {"ahead": [], "tied": [], "behind": []}
        both = [p for p in self.played(one, among) if self.of(p, other) is not None]
        for problem in both:
            found[self.place(problem, one, other)].append(problem)
        return found

    def slower(self, one: str, other: str, among: Sequence[str]) -> float:
        """The median over problems of how many times the time of another a trial takes."""
        ratios = sorted(
            mine["seconds"] / theirs["seconds"]
            for p in among
            if (mine := self.of(p, one))
            and (theirs := self.of(p, other))
            and mine["seconds"]
            and theirs["seconds"]
        )
        return ratios[len(ratios) // 2] if ratios else float("nan")

    def above_whittle(self) -> dict[str, list[str]]:
        """Problems by how a lookahead stands to Whittle, both with known dynamics."""
        found: dict[str, list[str]] = {"more": [], "less": [], "undecided": []}
        for problem in self.played("lookahead"):
            regret = self.regret(problem, "lookahead")
            assert regret is not None
            found[compared(-regret[0], regret[1])].append(problem)
        return found


def _code(names: Sequence[str]) -> str:
    return listed([f"`{name}`" for name in names]) if names else "no problem"


def _against(arena: _Arena, one: str, other: str, among: Sequence[str]) -> str:
    """How one stands to another, which is named where it is mentioned first."""
    found = arena.against(one, other, among)
    parts: list[str] = []
    for word, place in (("ahead of", "ahead"), ("tied with", "tied"), ("behind", "behind")):
        places = found[cast(Place, place)]
        if places:
            named = "it" if parts else arena.shown(other)
            parts.append(f"{word} {named} on {_code(places)}")
    return listed(parts) if parts else f"not compared with {arena.shown(other)}"


# ------------------------------------------------------------------------------------------- blocks


def _block(text: Callable[[_Arena], str]) -> Block:
    return Block(lambda record: text(_Arena(record)), (ARENA,))


def _in_short(arena: _Arena) -> str:
    channels = arena.played("fedtswi", CHANNELS)
    moved = arena.played("fedtswi", MOVED)
    first = arena.leads("fedtswi-gap", CHANNELS)
    grid = arena.slower("ts-grid", "fedtswi-gap", channels)
    lines = [
        "- **Channels, observed when played.** `fedtswi-gap`, which learns from observations at "
        "any gap, has "
        f"{arena.shares('fedtswi-gap', channels)} of the distance from random to the best policy "
        "that knows the "
        f"dynamics; `fedtswi`, from consecutive ones only, {arena.shares('fedtswi', channels)}. "
        "`fedtswi-gap` is "
        f"first or tied with the first on {len(first)} of {len(channels)} problems. `ts-grid` is "
        f"{_against(arena, 'ts-grid', 'fedtswi-gap', CHANNELS)}, in {times(grid)} times its time.",
        "- **Planning ahead.** `fedts-lookahead-gap` is first or tied with the first on "
        f"{_code(arena.leads('fedts-lookahead-gap'))}.",
    ]
    for problem in moved:
        leaders = arena.problems[problem]["leaders"]
        lines.append(
            f"- **`{problem}`** (plays move arms, or arms have several states): first is "
            f"{arena.shown(leaders[0])} with {percent(arena.share(problem, leaders[0]))}"
            + (
                f"; tied with it are {listed([arena.shown(n) for n in leaders[1:]])}."
                if leaders[1:]
                else "."
            )
        )
    above = arena.above_whittle()
    lines.append(
        "- **Whittle that knows the dynamics is not the ceiling**: a lookahead of two slots earns "
        "more on "
        f"{_code(above['more'])} and less on {_code(above['less'])}; on "
        f"{_code(above['undecided'])} the "
        "difference is undecided."
    )
    return "\n".join(lines)


def _words(arena: _Arena) -> str:
    rows = [[arena.shown(name), bare(line)] for name, line in arena.verdicts.items()]
    return table(["policy", "verdict"], rows)


_YARDSTICKS = ("whittle", "lookahead", "myopic", "fixed-best")


def _shares(arena: _Arena, among: Sequence[str]) -> str:
    problems = [name for name in among if name in arena.problems]
    rows = []
    for policy in (*_YARDSTICKS, *arena.verdicts):
        if not arena.played(policy, problems):
            continue
        cells = []
        for problem in problems:
            share = arena.share(problem, policy)
            text = "" if share != share else fixed(100 * share, 0)
            led = policy in arena.problems[problem]["leaders"]
            cells.append(f"**{text}**" if led and text else text)
        known = ", known" if policy in _YARDSTICKS else ""
        rows.append([f"{arena.shown(policy)}{known}", *cells])
    return table(["policy", *(name.removeprefix(_SHORT) for name in problems)], rows)


def _channel_notes(arena: _Arena) -> str:
    lines = []
    for problem in arena.played("fedtswi-gap", ("paper-k1-m1", "paper-k2-m1", "paper-k1-m16")):
        cells = [
            f"{arena.shown(name)} {rounded(regret)}"
            for name in ("fedtswi", "fedtswi-gap", "ts-grid", "feducb-wi", "ucb")
            if (regret := arena.regret(problem, name)) is not None
        ]
        lines.append(f"- Regret on `{problem}`: {listed(cells)}.")
    if arena.played("tsde"):
        lines.append(
            "- **The joint optimum of a draw.** `tsde` is "
            f"{_against(arena, 'tsde', 'fedtswi', CHANNELS)}, in "
            f"{times(arena.slower('tsde', 'fedtswi', CHANNELS))} times the time of a trial."
        )
    stuck = {
        name: arena.stuck("paper-k1-m1", name)
        for name in ("ucb", "rca", "dsee", "fedtswi", "fedtswi-gap")
        if arena.of("paper-k1-m1", name)
    }
    if stuck:
        cells = [f"{arena.shown(name)} {percent(x)}" for name, x in stuck.items()]
        lines.append(
            "- **Learners of the best fixed arms** fail where arms must be changed. Failed trials "
            "on "
            f"`paper-k1-m1`: {listed(cells)}."
        )
    for problem, why in (
        ("identical", "nothing tells arms apart"),
        ("slow", "channels forget slowly"),
        ("c1", "two channels"),
        ("ht", "a bad state pays nearly as much as a good one"),
        ("ge5", "a fixed arm is best"),
        ("n64", "many arms"),
        ("n256", "many arms"),
    ):
        if problem in arena.problems:
            leaders = arena.problems[problem]["leaders"]
            tied = (
                f", tied with it {listed([arena.shown(n) for n in leaders[1:]])}"
                if leaders[1:]
                else ""
            )
            lines.append(
                f"- `{problem}` ({why}): first is {arena.shown(leaders[0])}{tied}, with "
                f"{arena.shares(leaders[0], [problem])} of the distance; `fedtswi` has "
                f"{arena.shares('fedtswi', [problem])}, `stay` {arena.shares('stay', [problem])}, "
                "`ucb` "
                f"{arena.shares('ucb', [problem])}."
            )
    return "\n".join(lines)


def _agents(arena: _Arena) -> str:
    shown = ("fedtswi@aggregation=none", "fedtswi", "fedtswi@aggregation=gossip", "fedtswi-gap")
    rows = []
    for problem in (
        *(p for p in CHANNELS if p.startswith(_SHORT)),
        "machine",
        "fading",
        "adherence",
    ):
        if problem not in arena.problems:
            continue
        cells = [
            "" if (regret := arena.regret(problem, name)) is None else rounded(regret)
            for name in shown
        ]
        rows.append([f"`{problem}`", *cells])
    head = [
        "regret",
        "each alone",
        "with a server",
        "gossip on a ring",
        "`fedtswi-gap`, with a server",
    ]
    lines = []
    if arena.played("fedtswi@aggregation=gossip"):
        lines.append(
            "With a server `fedtswi` is "
            f"{_against(arena, 'fedtswi', 'fedtswi@aggregation=gossip', (*CHANNELS, *MOVED))}."
        )
    return "\n\n".join([table(head, rows), *lines])


def _moved_notes(arena: _Arena) -> str:
    lines = []
    for one, other, what in (
        ("fedtswi", "ucw-value@scale=0.1", "optimism with a tenth of the published radius"),
        ("fedtswi", "feducb-wi", "upper confidence bounds"),
        ("fedtswi", "rb-tsde", "watching passive visits, too"),
        ("fedtswi", "qwi", "a learner without a model"),
        ("fedtswi", "wiql", "a learner without a model"),
    ):
        if any(arena.against(one, other, MOVED).values()):
            lines.append(f"- `{one}` is {_against(arena, one, other, MOVED)} ({what}).")
    myopic = {p: arena.share(p, "myopic") for p in arena.played("myopic", MOVED)}
    poor = [f"`{p}` {percent(x)}" for p, x in myopic.items() if x < 0.5]
    good = [f"`{p}` {percent(x)}" for p, x in myopic.items() if x >= 0.5]
    if myopic:
        lines.append(
            "- A myopic plan sees no use in a play that pays nothing now. With known dynamics it "
            "has less than "
            f"half of the distance on {listed(poor)}, and more on {listed(good)}."
        )
    return "\n".join(lines)


def _behind(arena: _Arena) -> str:
    rows = []
    for name in OURS:
        places = arena.played(name)
        behind = [p for p in places if p not in arena.leads(name)]
        if not places:
            continue
        cells = [f"`{p}` ({arena.shown(arena.problems[p]['leaders'][0])})" for p in behind]
        slower = arena.slower(name, "fedtswi-gap", places)
        rows.append(
            [f"`{name}`", f"{len(behind)} of {len(places)}", ", ".join(cells), times(slower)]
        )
    lines = []
    for name in OURS[1:]:
        if arena.played(name) and name != "fedtswi-gap":
            found = _against(arena, name, "fedtswi-gap", (*CHANNELS, *MOVED))
            lines.append(f"- `{name}` is {found}.")
    below = arena.against("fedtswi", "feducb-wi", (*CHANNELS, *MOVED))
    lines.append(
        "- `fedtswi`, the paper's, is behind `feducb-wi`, one of its own baselines, on "
        f"{_code(below['behind'])}; "
        f"ahead of it on {_code(below['ahead'])}."
    )
    head = [
        "learner",
        "behind the first",
        "on (the first there)",
        "times the time of `fedtswi-gap`",
    ]
    return table(head, rows) + "\n\n" + "\n".join(lines)


def _published(arena: _Arena) -> str:
    rows = []

    def add(claim: str, *parts: str) -> None:
        known = [part for part in parts if part]
        if known:
            rows.append([claim, "; ".join(known)])

    def shares(policy: str, among: Sequence[str]) -> str:
        cells = [f"{percent(arena.share(p, policy))} on `{p}`" for p in arena.played(policy, among)]
        return f"{arena.shown(policy)} {listed(cells)}" if cells else ""

    def means(one: str, other: str, among: Sequence[str]) -> str:
        cells = []
        for p in arena.played(one, among):
            mine, theirs = arena.of(p, one), arena.of(p, other)
            if mine and theirs:
                both = [rounded((number(x["mean"]), number(x["se"]))) for x in (mine, theirs)]
                cells.append(f"{both[0]} and {both[1]} on `{p}`")
        return f"with and without it {listed(cells)}" if cells else ""

    add(
        "Restless-UCB's optimistic radius helps",
        means(
            "restless-ucb",
            "restless-ucb@radius=0",
            ("paper-k1-m1", "paper-k2-m1", "c1", "ht", "fading"),
        ),
    )
    add(
        "Restless-UCB is for horizons in use",
        shares("restless-ucb", ("paper-k1-m1", "whittle-loses", "ge5", "n64")),
    )
    add(
        "UCWhittle's confidence radius",
        shares("ucw-value", MOVED[:4]),
        shares("ucw-value@scale=0.1", MOVED[:4]),
        shares("ucw-extreme", MOVED[:4]),
    )
    add(
        "Coloured UCRL2 learns the optimum",
        shares("colored-ucrl2", ("paper-k2-m1", "whittle-loses")),
        shares("colored-ucrl2@scale=0.1", ("paper-k2-m1", "whittle-loses")),
    )
    clients = ("paper-k1-m1", "paper-k1-m4", "paper-k1-m16", "paper-k2-m16", "ge5")
    add(
        "Fed1-UCB and Fed2-UCB learn with several clients",
        shares("fed1-ucb", clients),
        shares("fed2-ucb", clients),
    )
    add("WIQL learns Whittle indices", shares("wiql", ("rb-4", "ucwhittle", "restart")))
    for problem in ("paper-k2-m1", "paper-k1-m1"):
        if problem in arena.problems:
            exact = arena.problems[problem]["exact"]
            optimum, whittle, fixed_best = (
                number(exact.get(key)) for key in ("optimum", "whittle", "fixed-best")
            )
            add(
                f"the paper, on `{problem}`: Whittle is close to the optimum, and earns more than "
                "fixed arms",
                f"Whittle is {fixed(optimum - whittle, 4)} below the optimum and "
                f"{percent(whittle / fixed_best - 1, 1)} above the best fixed arms (exact)",
            )
    return table(["claim", "what came out"], rows)


def _errors(arena: _Arena) -> str:
    lines = []
    for group, among in (("channels", CHANNELS), ("other arms", MOVED)):
        errors = [
            100 * number(each["share_se"])
            for p in among
            if p in arena.problems
            for each in arena.problems[p]["policies"].values()
            if each["share_se"] is not None and not each["knows"]
        ]
        if errors:
            middle = sorted(errors)[len(errors) // 2]
            lines.append(
                f"- Of a share on {group} the standard error is {fixed(middle, 1)} points in the "
                "median over "
                f"learners and problems, and at most {fixed(max(errors), 1)}."
            )
    return "\n".join(lines)


PAGE = Page(
    "what-works-when.md",
    blocks={
        "arena-short": _block(_in_short),
        "arena-words": _block(_words),
        "arena-channels": _block(lambda arena: _shares(arena, CHANNELS)),
        "arena-channels-notes": _block(_channel_notes),
        "arena-agents": _block(_agents),
        "arena-moved": _block(lambda arena: _shares(arena, MOVED)),
        "arena-moved-notes": _block(_moved_notes),
        "arena-behind": _block(_behind),
        "arena-published": _block(_published),
        "arena-errors": _block(_errors),
    },
    measurements={ARENA: Measurement(_taken, minutes=0, folder="results/arena")},
)
