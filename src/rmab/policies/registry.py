"""Policies by name: the paper's, this project's, the published learners', and other packages'.

One table, which studies, the service, the report, the command line and the docs read. A policy is
an entry and its maker, named as "module:function" and imported when it is first used: reading a
study's file loads no solver. Entries of published learners stand in their modules
(`rmab.policies.published`), entries of other packages in the group `rmab.policies` of entry points.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from importlib import import_module
from types import MappingProxyType
from typing import Any

from rmab.errors import StudyError
from rmab.extensions import Catalogue, load
from rmab.policies.aggregation import aggregation_of
from rmab.policies.capabilities import Capabilities
from rmab.policies.entry import GROUPS, Entry
from rmab.policies.options import GOSSIP_OPTIONS, LEARNT_PRIOR, Option, shared
from rmab.policies.policy import POPULATION, Policy
from rmab.text import shown

__all__ = [
    "KNOWN",
    "LEARNERS",
    "OPTIONS",
    "POLICIES",
    "SERVED",
    "STUDIED",
    "check_options",
    "described_options",
    "named",
    "settings_of",
]

_PUBLISHED = (  # modules of rmab.policies.published, in the order of help and pages
    "fed1_ucb", "grid", "rb_tsde", "restless_ucb", "ucwhittle", "dsee", "fed2_ucb", "ucb", "tsde",
    "coloured_ucrl2", "rca", "q_learning",
)  # fmt: skip
_HELP_ORDER = (
    "ages", "aggregation", "c", "clip", "degree", "delta", "depth", "failure", "exploration",
    "exponent", "epsilon", "equal", "explore", "forget", "gaps", "graph", "index_rate", "L",
    "longest", "plan_by", "planner", "prior", "pulls", "radius", "scale", "rate", "sigma",
    "sigma_c", "support", "tied",
)  # fmt: skip
_MAKERS = "rmab.policies.builtin:"
_THOMPSON = shared("aggregation", "prior", "tied")
_UCB = shared("aggregation", "clip", "prior")
_GAP = {**shared("aggregation", "forget", "gaps", "longest", "plan_by"), "prior": LEARNT_PRIOR}
_ROBUST: Mapping[str, Any] = MappingProxyType(
    {
        "forget": "bank",
        "longest": 50,
        "prior": POPULATION,
        "aggregation": "pairs",
        "draws": "per-agent",
    }
)
_SAMPLES_INDEX = Capabilities(noise=True, local_draws=True)  # Thompson sampling and an index
_KNOWS = Capabilities("nothing")

# The colours (Okabe and Ito, Tol) suit colour-blind readers. Learners have whole lines with
# markers, published ones lines that are hardly broken; policies that know the dynamics have dashes.
_LEARNING: Mapping[str, Entry] = {
    "fedtswi": Entry(
        "paper", _MAKERS + "thompson_whittle", _THOMPSON,
        "Thompson sampling and Whittle indices, Algorithm 1",
        "FedTSWI", "#d55e00", "-", "o", capabilities=_SAMPLES_INDEX,
    ),
    "fedts-myopic": Entry(
        "paper", _MAKERS + "thompson_myopic", _THOMPSON,
        "Thompson sampling and the expected reward of a play",
        "FedTS-Myopic", "#0072b2", "-", "s", capabilities=_SAMPLES_INDEX,
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
        "FedTSWI-gap", "#117733", "-", "P", capabilities=_SAMPLES_INDEX,
    ),
    "fedts-myopic-gap": Entry(
        "gap", _MAKERS + "thompson_myopic_gap", _GAP,
        "FedTS-Myopic from observations at any gap",
        "FedTS-Myopic-gap", "#004488", "-", "X", capabilities=_SAMPLES_INDEX,
    ),
    "feducb-wi-gap": Entry(
        "gap", _MAKERS + "ucb_whittle_gap", {**_GAP, **shared("clip")},
        "FedUCB-WI from observations at any gap",
        "FedUCB-WI-gap", "#aa4499", "-", "<",
    ),
    "fedts-lookahead-gap": Entry(
        "gap", _MAKERS + "thompson_lookahead_gap", {**_GAP, **shared("depth")},
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
}  # fmt: skip
_NOT_LEARNING: Mapping[str, Entry] = {
    "whittle": Entry(
        "known", _MAKERS + "whittle", {},
        "Whittle indices of the true dynamics", "WI policy", "#009e73", "--", capabilities=_KNOWS,
    ),
    "myopic": Entry(
        "known", _MAKERS + "myopic", {},
        "the expected reward of a play", "Myopic policy", "#332288", ":", capabilities=_KNOWS,
    ),
    "lookahead": Entry(
        "known", _MAKERS + "lookahead", shared("depth"),
        "K arms chosen together, a few slots ahead",
        "Lookahead policy", "#44aa99", (0, (5, 1)), capabilities=_KNOWS,
    ),
    "optimal": Entry(
        "known", _MAKERS + "optimal", {},
        "the exact joint optimum, for few arms", "Optimal", "#000000", "-.",
        capabilities=Capabilities("nothing", one_law=True),
    ),
    "fixed": Entry(
        "known", _MAKERS + "fixed", {},
        "always the K arms that are good most often",
        "Fixed selection", "#7f7f7f", (0, (6, 2, 1, 2, 1, 2)), capabilities=_KNOWS,
    ),
    "fixed-best": Entry(
        "known", _MAKERS + "fixed_best", {},
        "always the K arms that pay most on average",
        "Fixed selection, best pay", "#882255", (0, (3, 1, 1, 1)), capabilities=_KNOWS,
    ),
    "random": Entry(
        "known", _MAKERS + "at_random", {},
        "any K arms", "Random selection", "#999933", (0, (1, 2)), capabilities=_KNOWS,
    ),
    "stay": Entry(
        "rules", _MAKERS + "stay", {},
        "an arm while it is good, else the one unobserved longest",
        "Stay", "#cc6677", (0, (4, 1, 1, 1)), capabilities=_KNOWS,
    ),
    "round-robin": Entry(
        "rules", _MAKERS + "round_robin", {},
        "the arms unobserved longest", "Round robin", "#88ccee", (0, (2, 2)), capabilities=_KNOWS,
    ),
    "genie": Entry(
        "hindsight", _MAKERS + "genie", {},
        "the arms that pay most in each slot", "Genie", "#225555", (0, (1, 1)),
        capabilities=Capabilities("states"),
    ),
}  # fmt: skip


def _published() -> Iterator[tuple[str, Entry]]:
    for module in _PUBLISHED:
        yield from import_module(f"rmab.policies.published.{module}").ENTRIES.items()


_OWN = {**_LEARNING, **dict(_published()), **_NOT_LEARNING}
POLICIES: Catalogue[Entry] = Catalogue(
    _OWN,
    "rmab.policies",
    f"an rmab.policies.entry.Entry of a group in {', '.join(GROUPS)}",
    lambda each: isinstance(each, Entry) and each.group in GROUPS,
)
_OPTIONS = {
    key: option for entry in reversed(_OWN.values()) for key, option in entry.options.items()
}
OPTIONS: Mapping[str, Option] = {name: _OPTIONS[name] for name in _HELP_ORDER}


class _Names(Collection[str]):
    """Names of the policies of some groups, in the order of `POLICIES`.

    Membership loads no entry of another package, unless it is one's name; iteration loads all.
    """

    def __init__(self, *groups: str, served: bool = False) -> None:
        self._groups, self._served = groups, served

    def _has(self, entry: Entry) -> bool:
        return entry.group in self._groups and (entry.capabilities.served or not self._served)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in POLICIES and self._has(POLICIES[name])

    def __iter__(self) -> Iterator[str]:
        return (name for name, entry in POLICIES.items() if self._has(entry))

    def __len__(self) -> int:
        return sum(1 for _ in self)


_LEARN = ("paper", "gap", "published")
LEARNERS = _Names(*_LEARN)
SERVED = _Names(*_LEARN, served=True)  # policies that a federation may have
KNOWN = _Names("known")
STUDIED = _Names(*_LEARN, "known", "rules")  # policies that a study may have


def described_options() -> dict[str, Option]:
    """Return the options of all policies by name, other packages' last."""
    everyones = {
        key: option for entry in POLICIES.values() for key, option in entry.options.items()
    }
    return {**OPTIONS, **{key: everyones[key] for key in everyones if key not in OPTIONS}}


def check_options(name: str, settings: Any, place: str) -> None:
    """Refuse options that the policy of that name does not take, or not with these values."""
    if not isinstance(settings, Mapping):
        raise StudyError(f"{place} must be a table, got {shown(settings)}")
    known = POLICIES[name].options
    for key, value in settings.items():
        if key not in known:
            has = f"has {', '.join(known)}" if known else "takes no options"
            raise StudyError(f"{place}: unknown key {shown(key)}; {name} {has}")
        why = known[key].refusal(value)
        if why:
            raise StudyError(f"{place}.{key} {why}")


def settings_of(name: str, options: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the settings of a policy by name: its own defaults, and these options over them."""
    return {**POLICIES[name].preset, **(options or {})}


def named(name: str, horizon: int, options: Mapping[str, Any] | None = None) -> Policy:
    """Return the policy of that name with its options, already checked; horizon: in slots."""
    chosen = settings_of(name, options)
    gossip = {key: chosen.pop(key) for key in GOSSIP_OPTIONS if key in chosen}
    if gossip and "aggregation" in chosen:
        chosen["aggregation"] = aggregation_of(chosen["aggregation"], **gossip)
    settings = {k: tuple(v) if isinstance(v, list) else v for k, v in chosen.items()}
    return _named(name, horizon, tuple(sorted(settings.items())))


# The same object for the same policy, so that its compiled program is found again.
@lru_cache(maxsize=256)
def _named(name: str, horizon: int, options: tuple[tuple[str, Any], ...]) -> Policy:
    entry, given = POLICIES[name], dict(options)
    aggregation = given.pop("aggregation", None)
    with POLICIES.used(name):
        policy: Policy = load(entry.maker)(name, horizon, **given)
        if aggregation is None:
            return policy
        return replace(policy, sharing=replace(policy.sharing, aggregation=aggregation))
