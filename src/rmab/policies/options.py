"""Options of policies: default, range and meaning.

The option of one policy stands in that policy's module, beside its entry; `SHARED` has the options
of several policies.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from rmab.policies.aggregation import AGGREGATIONS
from rmab.policies.gossip import GRAPHS, MAX_AGENTS
from rmab.policies.lookahead import DEPTHS
from rmab.policies.policy import POPULATION
from rmab.text import is_number, is_whole, shown

__all__ = [
    "AGES",
    "GAPS",
    "GOSSIP_OPTIONS",
    "LEARNT_PRIOR",
    "SHARED",
    "Option",
    "choice",
    "number",
    "positive",
    "shared",
    "switch",
    "whole",
]

AGES = 4  # slots since an observation that joint plans distinguish by default
GAPS = 32  # G of the policies that learn from observations at any gap, by default
GOSSIP_OPTIONS = ("degree", "failure", "graph")  # of every policy that has `aggregation`
_GAPS_RANGE = (8, 128)  # fewer do not identify two matrices; more take very long to compile
_PRIOR_RANGE = (1e-6, 1e6)
_MAX_LONGEST = 10**9


@dataclass(frozen=True)
class Option:
    """Setting of a policy."""

    default: str  # as a file writes it
    allowed: Callable[[Any], bool]
    rule: str  # the allowed values, in words that follow "must be"
    meaning: str  # the line of help
    names: Collection[str] = ()  # allowed words to which others may add, in place of the rule

    def refusal(self, value: Any) -> str | None:
        """Return why a value is refused, in words that follow the option's name, or None."""
        if self.allowed(value):
            return None
        rule = f"one of {', '.join(self.names)}" if self.names else self.rule
        return f"must be {rule}, got {shown(value)}"


def number(default: str, most: float, meaning: str) -> Option:
    """Return an option that is a number from 0 to `most`."""
    rule = f"a number from 0 to {'1e6' if most == 1e6 else most}"
    return Option(default, lambda v: is_number(v) and 0 <= v <= most, rule, meaning)


def positive(default: str, meaning: str) -> Option:
    """Return an option that is a number above 0, at most 1e6."""
    rule = "a positive number of at most 1e6"
    return Option(default, lambda v: is_number(v) and 0 < v <= 1e6, rule, meaning)


def whole(default: str, low: int, high: int, meaning: str) -> Option:
    """Return an option that is a whole number from `low` to `high`."""
    rule = f"a whole number from {low} to {high}"
    return Option(default, lambda v: is_whole(v) and low <= v <= high, rule, meaning)


def switch(default: str, meaning: str) -> Option:
    """Return an option that is true or false."""
    return Option(default, lambda v: isinstance(v, bool), "true or false", meaning)


def choice(default: str, words: Collection[str], rule: str, meaning: str) -> Option:
    """Return an option that is one of some words."""
    return Option(default, lambda v: isinstance(v, str) and v in words, rule, meaning)


def _is_prior(value: Any) -> bool:
    """Return whether a value is one number or two, as a prior may be."""
    pair = isinstance(value, list | tuple) and len(value) == 2
    low, high = _PRIOR_RANGE
    return all(is_number(x) and low <= x <= high for x in (value if pair else [value]))


SHARED: Mapping[str, Option] = {
    "ages": whole(str(AGES), 2, 64, "ages are told apart up to this many slots in joint plans"),
    "aggregation": Option(
        "the study's; none of rb-tsde, pairs of -robust",
        lambda v: isinstance(v, str) and v in AGGREGATIONS,
        "the name of an aggregation",
        'what agents share: "sum", "none", "pairs", by how alike they are, or "gossip", with '
        "neighbours and without a server",
        AGGREGATIONS,
    ),
    "clip": switch("true", "whether bounds are cut at 1"),
    "degree": whole(
        "the study's, 2", 1, MAX_AGENTS - 1, 'links of an agent that gossips, of graph = "regular"'
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
    "forget": Option(
        "never",
        lambda v: v in ("never", "bank") if isinstance(v, str) else is_number(v) and 0 < v <= 1e12,
        '"never", "bank" or a half-life in slots above 0, at most 1e12',
        'counts lose half their weight in so many slots; "bank": several half-lives, weighed by '
        "what they predict",
    ),
    "gaps": whole(str(GAPS), *_GAPS_RANGE, "gaps are counted separately up to this many slots"),
    "graph": choice(
        "the study's, ring",
        GRAPHS,
        f"one of {', '.join(GRAPHS)}",
        "who talks to whom where agents gossip",
    ),
    "longest": whole("none", 1, _MAX_LONGEST, "no episode has more slots"),
    "plan_by": choice(
        "draw",
        ("draw", "mode"),
        '"draw" or "mode"',
        "what plans are made from: a draw from the posterior (of upper confidence bounds its mean) "
        "or its mode",
    ),
    "prior": Option(
        "1",
        _is_prior,
        "a number, or two numbers for arms of two states, from 1e-6 to 1e6",
        "one number for every state, or [a, b], Beta(a, b), for arms of two states; of policies "
        'that learn from any gap also "population", learnt from all arms',
    ),
    "scale": number(
        "1",
        1e6,
        "a factor of the steps that Restless-UCB explores, of UCWhittle's confidence radii, "
        "of those of coloured UCRL2",
    ),
    "sigma": positive("0.5", "the deviation of rewards that bounds allow for"),
    "tied": switch(
        "false",
        "of arms with tied rows one chance is learnt from all of them, in place of every row alone",
    ),
}

# The prior of policies that learn from observations at any gap.
LEARNT_PRIOR = replace(
    SHARED["prior"],
    allowed=lambda v: v == POPULATION if isinstance(v, str) else _is_prior(v),
    rule=f"{SHARED['prior'].rule}, or {POPULATION!r}",
)


def shared(*names: str) -> dict[str, Option]:
    """Return the options of these names from `SHARED`."""
    return {name: SHARED[name] for name in names}
