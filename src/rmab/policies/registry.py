"""The policies by name: what makes them, their options, their labels and colours.

One table, which studies, the service, the report, the command line and the docs read. A new policy
is one entry in it and the function that makes it, named as "module:function" and imported when it
is first used: reading a study's file, or running an agent, loads no solver.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from types import MappingProxyType
from typing import Any

from rmab.errors import StudyError
from rmab.model.arms import CHANNEL, ArmKind
from rmab.policies.aggregation import (
    AGGREGATIONS,
    Aggregation,
    Alone,
    aggregation_of,
    compares_agents,
)
from rmab.policies.gossip import GRAPHS, MAX_AGENTS
from rmab.policies.lookahead import DEPTHS
from rmab.policies.policy import POPULATION, Policy
from rmab.text import is_number, is_whole, shown

__all__ = [
    "AGES",
    "GAPS",
    "GOSSIP_OPTIONS",
    "GROUPS",
    "KNOWN",
    "LEARNERS",
    "OPTIONS",
    "POLICIES",
    "SERVED",
    "STUDIED",
    "TELL_NOTHING",
    "Entry",
    "Option",
    "check_arms",
    "check_kinds",
    "check_noise",
    "check_noisy_means",
    "check_options",
    "check_own_draws",
    "named",
    "settings_of",
]

GAPS = 32  # G of the policies that learn from observations at any gap, unless told otherwise
_GAPS_RANGE = (8, 128)  # fewer do not identify two matrices; more take very long to compile
_PRIOR_RANGE = (1e-6, 1e6)
_MAX_LONGEST = 10**9
GOSSIP_OPTIONS = ("degree", "failure", "graph")  # of every policy that has `aggregation`
AGES = 4  # up to which joint plans tell ages apart, unless told otherwise
_MAX_CODES, _MAX_SETS = 100_000, 100  # of joint plans, each made anew in every episode
_MAX_SUPPORT = 49  # points a side: what a server of 64 trials and 256 arms weighs takes 200 MB


Refusal = Callable[[Sequence[ArmKind], int, Mapping[str, Any]], str | None]


@dataclass(frozen=True)
class Option:
    """A setting of policies: its default as files show it, what is allowed, what it means."""

    default: str
    allowed: Callable[[Any], bool]
    rule: str
    meaning: str


def _is_prior(value: Any) -> bool:
    """Whether it is one number or two, as a prior may be."""
    pair = isinstance(value, list | tuple) and len(value) == 2
    low, high = _PRIOR_RANGE
    return all(is_number(x) and low <= x <= high for x in (value if pair else [value]))


OPTIONS: Mapping[str, Option] = {
    "ages": Option(
        str(AGES),
        lambda v: is_whole(v) and 2 <= v <= 64,
        "a whole number from 2 to 64",
        "ages are told apart up to this many slots in joint plans",
    ),
    "aggregation": Option(
        "the study's; none of rb-tsde, pairs of -robust",
        lambda v: isinstance(v, str) and v in AGGREGATIONS,
        "the name of an aggregation",
        'what agents share: "sum", "none", "pairs", by how alike they are, or "gossip", with '
        "neighbours and without a server",
    ),
    "c": Option(
        "2",
        lambda v: is_number(v) and 0 <= v <= 1e6,
        "a number from 0 to 1e6",
        "how much an arm gains by being played seldom",
    ),
    "clip": Option(
        "true", lambda v: isinstance(v, bool), "true or false", "whether bounds are cut at 1"
    ),
    "degree": Option(
        "the study's, 2",
        lambda v: is_whole(v) and 1 <= v < MAX_AGENTS,
        f"a whole number from 1 to {MAX_AGENTS - 1}",
        'links of an agent that gossips, of graph = "regular"',
    ),
    "delta": Option(
        "0.001",
        lambda v: is_number(v) and 0 < v < 1,
        "a number between 0 and 1",
        "the chance with which confidence radii may fail",
    ),
    "depth": Option(
        "2",
        lambda v: is_whole(v) and v in DEPTHS,
        f"one of {', '.join(map(str, DEPTHS))}",
        "lookahead depth in slots",
    ),
    "failure": Option(
        "the study's, 0",
        lambda v: is_number(v) and 0 <= v < 1,
        "a number from 0 to below 1",
        "chance that a link of agents that gossip fails in an episode",
    ),
    "exploration": Option(
        "10",
        lambda v: is_number(v) and 0 < v <= 1e6,
        "a positive number of at most 1e6",
        "D: each arm is explored for at least D ln t of t slots",
    ),
    "exponent": Option(
        "2/3",
        lambda v: is_number(v) and 0 <= v <= 1,
        "a number from 0 to 1",
        "the power of the horizon with which exploration grows",
    ),
    "epsilon": Option(
        "none",
        lambda v: is_number(v) and 0 < v <= 100,
        "a number above 0 and at most 100",
        "of the Laplace noise that agents add to each phase's means, in studies alone",
    ),
    "equal": Option(
        "false",
        lambda v: isinstance(v, bool),
        "true or false",
        "whether all arms are known to be equal, and learnt as one",
    ),
    "explore": Option(
        "0.1",
        lambda v: is_number(v) and 0 <= v <= 1,
        "a number from 0 to 1",
        "the chance that a slot's arms are chosen at random",
    ),
    "forget": Option(
        "never",
        lambda v: v in ("never", "bank") if isinstance(v, str) else is_number(v) and 0 < v <= 1e12,
        '"never", "bank" or a half-life in slots above 0, at most 1e12',
        'counts lose half their weight in so many slots; "bank": several half-lives, weighed by '
        "what they predict",
    ),
    "gaps": Option(
        str(GAPS),
        lambda v: is_whole(v) and _GAPS_RANGE[0] <= v <= _GAPS_RANGE[1],
        f"a whole number from {_GAPS_RANGE[0]} to {_GAPS_RANGE[1]}",
        "gaps are counted separately up to this many slots",
    ),
    "graph": Option(
        "the study's, ring",
        lambda v: isinstance(v, str) and v in GRAPHS,
        f"one of {', '.join(GRAPHS)}",
        "who talks to whom where agents gossip",
    ),
    "index_rate": Option(
        "0.2",
        lambda v: is_number(v) and 0 <= v <= 1,
        "a number from 0 to 1",
        "by how much of an advantage indices move at first",
    ),
    "L": Option(
        "1",
        lambda v: is_number(v) and 0 <= v <= 1e6,
        "a number from 0 to 1e6",
        "how much an arm gains by having been counted seldom",
    ),
    "longest": Option(
        "none",
        lambda v: is_whole(v) and 1 <= v <= _MAX_LONGEST,
        f"a whole number from 1 to {_MAX_LONGEST}",
        "no episode has more slots",
    ),
    "plan_by": Option(
        "draw",
        lambda v: isinstance(v, str) and v in ("draw", "mode"),
        '"draw" or "mode"',
        "what plans are made from: a draw from the posterior (of upper confidence bounds its mean) "
        "or its mode",
    ),
    "planner": Option(
        "whittle",
        lambda v: isinstance(v, str) and v in ("whittle", "myopic", "fixed"),
        '"whittle", "myopic" or "fixed"',
        "what a draw is planned by: Whittle indices, expected rewards, or the best fixed arms",
    ),
    "prior": Option(
        "1",
        _is_prior,
        "a number, or two numbers for arms of two states, from 1e-6 to 1e6",
        "one number for every state, or [a, b], Beta(a, b), for arms of two states; of policies "
        'that learn from any gap also "population", learnt from all arms',
    ),
    "pulls": Option(
        "100",
        lambda v: is_whole(v) and 1 <= v <= 10**6,
        "a whole number from 1 to 1000000",
        "pulls of every arm in play by every agent in a phase",
    ),
    "radius": Option(
        "1",
        lambda v: is_number(v) and 0 <= v <= 1e6,
        "a number from 0 to 1e6",
        "how much of the confidence radius is added; 0: none",
    ),
    "scale": Option(
        "1",
        lambda v: is_number(v) and 0 <= v <= 1e6,
        "a number from 0 to 1e6",
        "a factor of the steps that Restless-UCB explores, of UCWhittle's confidence radii, "
        "of those of coloured UCRL2",
    ),
    "rate": Option(
        "0.1",
        lambda v: is_number(v) and 0 <= v <= 1,
        "a number from 0 to 1",
        "by how much of an error values move at first",
    ),
    "sigma": Option(
        "0.5",
        lambda v: is_number(v) and 0 < v <= 1e6,
        "a positive number of at most 1e6",
        "the deviation of rewards that bounds allow for",
    ),
    "sigma_c": Option(
        "0.02",
        lambda v: is_number(v) and 0 <= v <= 1e6,
        "a number from 0 to 1e6",
        "the deviation of agents' mean rewards that bounds allow for",
    ),
    "support": Option(
        "9",
        lambda v: is_whole(v) and 2 <= v <= _MAX_SUPPORT,
        f"a whole number from 2 to {_MAX_SUPPORT}",
        "n, the grid has p01 and p11 at 1/(n + 1), ..., n/(n + 1)",
    ),
    "tied": Option(
        "false",
        lambda v: isinstance(v, bool),
        "true or false",
        "of arms with tied rows one chance is learnt from all of them, in place of every row alone",
    ),
}


@dataclass(frozen=True)
class Entry:
    """A policy by name.

    group: which of GROUPS it belongs to; maker: "module:function", called with the name, the
    horizon and the options; summary: one line for people; label, colour, dash, marker: how it is
    drawn, wherever it is; preset: defaults of its own, of options and of what a study says
    otherwise; refuses: why it cannot play arms of these kinds, K of them, with these settings, in
    words that follow its name, or None; served: whether a federation may run it.
    """

    group: str
    maker: str
    options: tuple[str, ...]
    summary: str
    label: str
    colour: str
    dash: str | tuple[int, tuple[int, ...]] = "-"
    marker: str = ""
    preset: Mapping[str, Any] = field(default_factory=dict)
    refuses: Refusal | None = None
    served: bool = True

    def __post_init__(self) -> None:
        if "aggregation" in self.options:  # what may be set of one of them
            whole = sorted({*self.options, *GOSSIP_OPTIONS})
            object.__setattr__(self, "options", tuple(whole))


def _other_than_channels(
    kinds: Sequence[ArmKind],
    plays: int,  # noqa: ARG001 - as every refusal
    settings: Mapping[str, Any],  # noqa: ARG001 - as every refusal
) -> str | None:
    """Of a policy that is for channels."""
    other = [number for number, kind in enumerate(kinds, 1) if kind != CHANNEL]
    if not other:
        return None
    return (
        f"is for channels alone, and arm {other[0]} is not of two states, observed when played, "
        "moving alike played or not"
    )


def _unequal_or_hidden(
    kinds: Sequence[ArmKind], plays: int, settings: Mapping[str, Any]
) -> str | None:
    """Of one table for equal arms, which are always observed."""
    hidden = _observed_when_played(kinds, plays, settings)
    other = [number for number, kind in enumerate(kinds, 1) if kind.states != kinds[0].states]
    if hidden or not other or not settings.get("equal"):
        return hidden
    return (
        f"has one table for all arms, with equal = true, and arm {other[0]} has "
        f"{kinds[other[0] - 1].states} states, arm 1 {kinds[0].states}"
    )


def _observed_when_played(
    kinds: Sequence[ArmKind],
    plays: int,  # noqa: ARG001 - as every refusal
    settings: Mapping[str, Any],  # noqa: ARG001 - as every refusal
) -> str | None:
    """Of a policy that is for arms that are always observed."""
    other = [number for number, kind in enumerate(kinds, 1) if not kind.fully_observed]
    if not other:
        return None
    return f"is for arms that are always observed, and arm {other[0]} is observed when played"


def _too_large_together(
    kinds: Sequence[ArmKind], plays: int, settings: Mapping[str, Any]
) -> str | None:
    """Of a policy that plans for all arms together."""
    ages = settings.get("ages", AGES)
    codes = math.prod(k.states if k.fully_observed else 1 + k.states * ages for k in kinds)
    sets = math.comb(len(kinds), plays)
    if codes <= _MAX_CODES and sets <= _MAX_SETS:
        return None
    number = f"{codes:,}" if codes < 10**12 else f"about 10^{math.log10(codes):.0f}"
    return (
        f"is for few arms: ages up to {ages} give {number} joint information states and {sets:,} "
        f"sets of {plays} arms, and at most {_MAX_CODES:,} and {_MAX_SETS:,} are planned for"
    )


def _no_few_channels(
    kinds: Sequence[ArmKind], plays: int, settings: Mapping[str, Any]
) -> str | None:
    """Of a policy that plans for all channels together."""
    return _other_than_channels(kinds, plays, settings) or _too_large_together(
        kinds, plays, settings
    )


def _other_than_two_observed_states(
    kinds: Sequence[ArmKind], plays: int, settings: Mapping[str, Any]
) -> str | None:
    """Of a policy that is for arms of two states that are always observed."""
    why = _observed_when_played(kinds, plays, settings)
    other = [number for number, kind in enumerate(kinds, 1) if kind.states != 2]
    if why or not other:
        return why
    return f"is for arms of two states, and arm {other[0]} has {kinds[other[0] - 1].states}"


def _other_than_alike(
    kinds: Sequence[ArmKind],
    plays: int,  # noqa: ARG001 - as every refusal
    settings: Mapping[str, Any],  # noqa: ARG001 - as every refusal
) -> str | None:
    """Of a policy that is for arms observed when played that move alike."""
    for number, kind in enumerate(kinds, 1):
        if kind.fully_observed:
            return f"is for arms that are observed when played, and arm {number} always is"
        if kind.action_dependent:
            return f"is for arms that move alike played or not, and arm {number} does not"
    return None


# Of entries, in the order in which people are told of them.
GROUPS: Mapping[str, str] = {
    "paper": "the paper's learners (consecutive observations)",
    "gap": "learn from observations at any gap",
    "published": "other published learners, to compare with",
    "known": "know the dynamics",
    "rules": "learn nothing and know nothing",
    "hindsight": "see the states, in a back-test alone",
}

TELL_NOTHING = ("ucb", "rca", "qwi", "wiql")  # each agent learns by itself, whatever is shared
# What learns from sums with noise, and what agents may draw by themselves.
_THOMPSON_INDEX = ("fedtswi", "fedts-myopic", "fedtswi-gap", "fedts-myopic-gap")
_MAKERS = "rmab.policies.builtin:"
_PUBLISHED = "rmab.policies.published:"
_THOMPSON = ("aggregation", "prior", "tied")
_UCB = ("aggregation", "clip", "prior")
_GAP = ("aggregation", "forget", "gaps", "longest", "plan_by", "prior")
_ROBUST: Mapping[str, Any] = MappingProxyType(
    {
        "forget": "bank",
        "longest": 50,
        "prior": POPULATION,
        "aggregation": "pairs",
        "draws": "per-agent",
    }
)

# The colours (Okabe and Ito, Tol) suit colour-blind readers. Learners have whole lines with
# markers, those to compare with lines that are hardly broken; policies that know the dynamics have
# dashes.
_BROKEN = (0, (8, 1))
POLICIES: Mapping[str, Entry] = {
    "fedtswi": Entry(
        "paper", _MAKERS + "thompson_whittle", _THOMPSON,
        "Thompson sampling and Whittle indices, Algorithm 1",
        "FedTSWI", "#d55e00", "-", "o",
    ),
    "fedts-myopic": Entry(
        "paper", _MAKERS + "thompson_myopic", _THOMPSON,
        "Thompson sampling and the expected reward of a play",
        "FedTS-Myopic", "#0072b2", "-", "s",
    ),
    "feducb-wi": Entry(
        "paper", _MAKERS + "ucb_whittle", _UCB,
        "upper confidence bounds and Whittle indices",
        "FedUCB-WI", "#e69f00", "-", "^",
    ),
    "feducb-myopic": Entry(
        "paper", _MAKERS + "ucb_myopic", _UCB,
        "upper confidence bounds and the expected reward of a play",
        "FedUCB-Myopic", "#56b4e9", "-", "D",
    ),
    "fedtswi-gap": Entry(
        "gap", _MAKERS + "thompson_whittle_gap", _GAP,
        "FedTSWI from observations at any gap",
        "FedTSWI-gap", "#117733", "-", "P",
    ),
    "fedts-myopic-gap": Entry(
        "gap", _MAKERS + "thompson_myopic_gap", _GAP,
        "FedTS-Myopic from observations at any gap",
        "FedTS-Myopic-gap", "#004488", "-", "X",
    ),
    "feducb-wi-gap": Entry(
        "gap", _MAKERS + "ucb_whittle_gap", ("aggregation", "clip", *_GAP[1:]),
        "FedUCB-WI from observations at any gap",
        "FedUCB-WI-gap", "#aa4499", "-", "<",
    ),
    "fedts-lookahead-gap": Entry(
        "gap", _MAKERS + "thompson_lookahead_gap", ("aggregation", "depth", *_GAP[1:]),
        "Thompson sampling at any gap and a lookahead",
        "FedTS-Lookahead-gap", "#661100", "-", "*",
    ),
    "fedtswi-robust": Entry(
        "gap", _MAKERS + "thompson_whittle_gap", _GAP,
        "FedTSWI-gap for arms that change and agents that differ",
        "FedTSWI-robust", "#4477aa", "-", "h", _ROBUST,
    ),
    "fedts-myopic-robust": Entry(
        "gap", _MAKERS + "thompson_myopic_gap", _GAP,
        "FedTS-Myopic-gap for arms that change and agents that differ",
        "FedTS-Myopic-robust", "#ee6677", "-", "p", _ROBUST,
    ),
    "fedce-myopic-robust": Entry(
        "gap", _MAKERS + "thompson_myopic_gap", _GAP,
        "the same by the posterior's mode, without draws",
        "FedCE-Myopic-robust", "#228833", "-", "d", {**_ROBUST, "plan_by": "mode"},
    ),
    "fed1-ucb": Entry(
        "paper", _MAKERS + "fed1_ucb", ("aggregation", "epsilon", "sigma"),
        "Fed1-UCB: arms are eliminated until K remain",
        "Fed1-UCB", "#cc79a7", "-", "v",
    ),
    "ts-grid": Entry(
        "published", _PUBLISHED + "ts_grid", ("aggregation", "gaps", "planner", "support"),
        "Thompson sampling on a grid of channels, from observations at any gap",
        "TS on a grid", "#6699cc", _BROKEN, "8",
        refuses=_other_than_channels, served=False,
    ),
    "rb-tsde": Entry(
        "published", _PUBLISHED + "rb_tsde", _THOMPSON[:2],
        "RB-TSDE: Thompson sampling and Whittle indices, each agent alone",
        "RB-TSDE", "#994455", _BROKEN, "H",
        {"aggregation": "none"}, served=False,
    ),
    "restless-ucb": Entry(
        "published", _PUBLISHED + "restless_ucb", ("aggregation", "exponent", "radius", "scale"),
        "Restless-UCB: arms are explored in turn, then Whittle indices of upper bounds",
        "Restless-UCB", "#997700", _BROKEN, "<",
        refuses=_other_than_alike, served=False,
    ),
    "ucw-value": Entry(
        "published", _PUBLISHED + "ucw_value", ("aggregation", "delta", "scale"),
        "UCWhittle: Whittle indices of the dynamics with the largest value",
        "UCW-value", "#ee8866", _BROKEN, "^",
        refuses=_observed_when_played, served=False,
    ),
    "ucw-penalty": Entry(
        "published", _PUBLISHED + "ucw_penalty", ("aggregation", "delta", "scale"),
        "UCWhittle: the largest Whittle index of each state",
        "UCW-penalty", "#bbcc33", _BROKEN, "s",
        refuses=_other_than_two_observed_states, served=False,
    ),
    "ucw-extreme": Entry(
        "published", _PUBLISHED + "ucw_extreme", ("aggregation", "delta", "scale"),
        "UCWhittle: Whittle indices where plays do as much as they may",
        "UCW-extreme", "#99ddff", _BROKEN, "D",
        refuses=_observed_when_played, served=False,
    ),
    "dsee": Entry(
        "published", _PUBLISHED + "dsee", ("aggregation", "exploration"),
        "DSEE: blocks of exploration, and of the arms with the best mean reward",
        "DSEE", "#aaaa00", _BROKEN, "P",
        served=False,
    ),
    "fed2-ucb": Entry(
        "published", _PUBLISHED + "fed2_ucb", ("pulls", "sigma", "sigma_c"),
        "Fed2-UCB: more agents join in every phase, until K arms remain",
        "Fed2-UCB", "#6f4c9b", _BROKEN, "v",
        served=False,
    ),
    "ucb": Entry(
        "published", _PUBLISHED + "ucb", ("c",),
        "mean reward plus sqrt(c ln t / plays), each agent alone, every slot",
        "UCB", "#999999", _BROKEN, ">",
    ),
    "tsde": Entry(
        "published", _PUBLISHED + "tsde", ("ages", "aggregation", "prior"),
        "Thompson sampling and the joint optimum of the draw, for few arms",
        "TSDE", "#bb5566", _BROKEN, "4", refuses=_too_large_together, served=False,
    ),
    "colored-ucrl2": Entry(
        "published", _PUBLISHED + "colored_ucrl2", ("ages", "aggregation", "delta", "scale"),
        "the joint optimum of the best channels within confidence intervals, for few",
        "Coloured UCRL2", "#8855cc", _BROKEN, "3", refuses=_no_few_channels, served=False,
    ),
    "rca": Entry(
        "published", _PUBLISHED + "rca", ("L",),
        "RCA: UCB on mean rewards of whole cycles between visits of a state, block by block",
        "RCA", "#bbaa44", _BROKEN, "x",
    ),
    "qwi": Entry(
        "published", _PUBLISHED + "qwi", ("equal", "explore", "index_rate", "rate"),
        "Q-learning of the Whittle index of every state, each agent alone",
        "QWI", "#6633aa", _BROKEN, "1", refuses=_unequal_or_hidden, served=False,
    ),
    "wiql": Entry(
        "published", _PUBLISHED + "wiql", (),
        "Q-learning; arms by what a play adds to the value, each agent alone",
        "WIQL", "#dd9977", _BROKEN, "2", refuses=_observed_when_played,
    ),
    "whittle": Entry(
        "known", _MAKERS + "whittle", (),
        "Whittle indices of the true dynamics", "WI policy", "#009e73", "--",
    ),
    "myopic": Entry(
        "known", _MAKERS + "myopic", (),
        "the expected reward of a play", "Myopic policy", "#332288", ":",
    ),
    "lookahead": Entry(
        "known", _MAKERS + "lookahead", ("depth",),
        "K arms chosen together, a few slots ahead",
        "Lookahead policy", "#44aa99", (0, (5, 1)),
    ),
    "optimal": Entry(
        "known", _MAKERS + "optimal", (),
        "the exact joint optimum, for few arms", "Optimal", "#000000", "-.",
    ),
    "fixed": Entry(
        "known", _MAKERS + "fixed", (),
        "always the K arms that are good most often",
        "Fixed selection", "#7f7f7f", (0, (6, 2, 1, 2, 1, 2)),
    ),
    "fixed-best": Entry(
        "known", _MAKERS + "fixed_best", (),
        "always the K arms that pay most on average",
        "Fixed selection, best pay", "#882255", (0, (3, 1, 1, 1)),
    ),
    "random": Entry(
        "known", _MAKERS + "at_random", (),
        "any K arms", "Random selection", "#999933", (0, (1, 2)),
    ),
    "stay": Entry(
        "rules", _MAKERS + "stay", (),
        "an arm while it is good, else the one unobserved longest",
        "Stay", "#cc6677", (0, (4, 1, 1, 1)),
    ),
    "round-robin": Entry(
        "rules", _MAKERS + "round_robin", (),
        "the arms unobserved longest", "Round robin", "#88ccee", (0, (2, 2)),
    ),
    "genie": Entry(
        "hindsight", _MAKERS + "genie", (),
        "the arms that pay most in each slot", "Genie", "#225555", (0, (1, 1)),
    ),
}  # fmt: skip


def _of_groups(*groups: str) -> tuple[str, ...]:
    return tuple(name for name, entry in POLICIES.items() if entry.group in groups)


LEARNERS = _of_groups("paper", "gap", "published")
SERVED = tuple(name for name in LEARNERS if POLICIES[name].served)  # what a federation may have
KNOWN = _of_groups("known")
STUDIED = (*LEARNERS, *KNOWN, *_of_groups("rules"))  # what a study may have


def check_options(name: str, settings: Any, place: str) -> None:
    """Refuse options that the policy of that name does not take, or not with these values."""
    if not isinstance(settings, Mapping):
        raise StudyError(f"{place} must be a table, got {shown(settings)}")
    known = POLICIES[name].options
    for key, value in settings.items():
        if key not in known:
            has = f"has {', '.join(known)}" if known else "takes no options"
            raise StudyError(f"{place}: unknown key {shown(key)}; {name} {has}")
        option = OPTIONS[key]
        learns_prior = key == "prior" and "gaps" in known
        if learns_prior and isinstance(value, str) and value == POPULATION:
            continue
        if not option.allowed(value):
            rule = f"one of {', '.join(AGGREGATIONS)}" if key == "aggregation" else option.rule
            rule = f"{rule}, or {POPULATION!r}" if learns_prior else rule
            raise StudyError(f"{place}.{key} must be {rule}, got {shown(value)}")


def check_kinds(
    name: str,
    options: Mapping[str, Any] | None,
    kinds: Sequence[ArmKind],
    aggregation: str,
    place: str,
) -> None:
    """Refuse settings of a policy that are for channels where other arms are among these kinds.

    aggregation: where the policy has none of its own; place: that of its options.
    """
    settings = settings_of(name, options)
    shares = settings.get("aggregation", aggregation)
    wanted = {"forget": "bank", "prior": POPULATION}
    found = [key for key, value in wanted.items() if settings.get(key) == value]
    if "aggregation" in POLICIES[name].options and compares_agents(AGGREGATIONS[shares]):
        found.append("aggregation")
    if settings.get("tied") and not any(kind.tie for kind in kinds):
        raise StudyError(
            f"{place}.tied of {name} must be false, as no arm says by tied_passive or tied_active "
            "what its rows have in common; got true"
        )
    other = [number for number, kind in enumerate(kinds, 1) if kind != CHANNEL]
    if found and other:
        value = wanted.get(found[0], shares)
        raise StudyError(
            f"{place}.{found[0]} of {name} must not be {shown(value)}, as arm {other[0]} is not of "
            "two states, observed when played, moving alike played or not"
        )


def check_noisy_means(
    name: str, options: Mapping[str, Any] | None, aggregation: str, place: str, *, weights: bool
) -> None:
    """Refuse fed1-ucb's epsilon where its noise would not be that of M agents, or of one.

    aggregation: where the policy has none of its own; weights: whether agents have some.
    """
    settings = settings_of(name, options)
    if "epsilon" not in settings:
        return
    shares = settings.get("aggregation", aggregation)
    why = None
    if weights:
        why = "goes without weights: the noise of each agent's means is for agents that count alike"
    elif shares not in ("sum", "none"):
        why = f"goes with aggregation 'sum' or 'none', got {shown(shares)}"
    if why:
        raise StudyError(f"{place}.epsilon of {name} {why}")


def check_noise(
    name: str,
    options: Mapping[str, Any] | None,
    kinds: Sequence[ArmKind],
    aggregation: str,
) -> None:
    """Refuse a policy that cannot learn from sums with noise (`rmab.privacy.noise`).

    aggregation: where the policy has none of its own. Who learns nothing from other agents needs no
    sums.
    """
    settings = settings_of(name, options)
    shares = AGGREGATIONS[settings.get("aggregation", aggregation)]
    entry = POLICIES[name]
    learns = entry.group in ("paper", "gap", "published")
    if not learns or isinstance(shares, Alone):
        return
    other = [number for number, kind in enumerate(kinds, 1) if kind != CHANNEL]
    why = None
    if name not in _THOMPSON_INDEX:
        names = ", ".join(_THOMPSON_INDEX)
        why = f"reads more than counts of pairs, or is no Thompson index policy; {names} may be"
    elif other:
        why = f"learns from noise where all arms are channels, and arm {other[0]} is none"
    elif not shares.running:
        why = "needs a sum over agents, and its aggregation needs what each has counted"
    elif settings.get("forget", "never") != "never":
        why = "forgets, and what is released has all that was ever counted"
    elif settings.get("prior") == POPULATION:
        why = "learns its prior, and would take noise for arms that differ"
    if why:
        raise StudyError(f"privacy.epsilon: {name!r} {why}")


def check_arms(
    name: str, options: Mapping[str, Any] | None, kinds: Sequence[ArmKind], plays: int
) -> None:
    """Refuse arms that the policy of that name is not for."""
    refuses = POLICIES[name].refuses
    why = refuses and refuses(kinds, plays, settings_of(name, options))
    if why:
        raise StudyError(f"policies: {name!r} {why}")


def check_own_draws(
    name: str,
    options: Mapping[str, Any] | None,
    channels: Sequence[bool],
    aggregation: Aggregation,
) -> None:
    """Refuse draws = "own" where the agents of the learner of that name cannot draw so.

    channels: whether each arm is one; aggregation: what agents share under it.
    """
    settings = settings_of(name, options)
    other = [number for number, channel in enumerate(channels, 1) if not channel]
    why = None
    if name not in _THOMPSON_INDEX:
        why = (
            f"as {name} does not draw, or not for an index; these do: {', '.join(_THOMPSON_INDEX)}"
        )
    elif other:
        why = f"as arm {other[0]} is no channel"
    elif settings.get("plan_by") == "mode":
        why = f"as {name} with plan_by = 'mode' does not draw"
    elif settings.get("forget", "never") != "never" or settings.get("prior") == POPULATION:
        why = f"as {name} forgets counts or learns its prior"
    elif not aggregation.shared:
        why = f"as agents share no sum under {name}; aggregation must be 'sum'"
    if why:
        raise StudyError(f"draws must not be 'own', {why}")


def settings_of(name: str, options: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What the policy of that name is set to: its own defaults, and these options over them."""
    return {**POLICIES[name].preset, **(options or {})}


def named(name: str, horizon: int, options: Mapping[str, Any] | None = None) -> Policy:
    """The policy of that name with its options, already checked."""
    chosen = settings_of(name, options)
    gossip = {key: chosen.pop(key) for key in GOSSIP_OPTIONS if key in chosen}
    if gossip and "aggregation" in chosen:
        chosen["aggregation"] = aggregation_of(chosen["aggregation"], **gossip)
    settings = {k: tuple(v) if isinstance(v, list) else v for k, v in chosen.items()}
    return _named(name, horizon, tuple(sorted(settings.items())))


# The same object for the same policy, so that its compiled program is found again.
@lru_cache(maxsize=256)
def _named(name: str, horizon: int, options: tuple[tuple[str, Any], ...]) -> Policy:
    module, function = POLICIES[name].maker.split(":")
    policy: Policy = getattr(import_module(module), function)(name, horizon, **dict(options))
    return policy
