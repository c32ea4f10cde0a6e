"""Studies: which policies play which arms, for how many slots and trials.

A study is a value, checked once when it is made. `load` reads one from a TOML file. Two tables of
that file are not part of the study: `[figure]`, see rmab.experiments.figure, and `[sweep]`, see
rmab.studies.sweep. The package bundles the studies of the catalogue: `load("catalogue:fading")`.

The fields of `Study` are the keys of the file. Each stands there once, with its default, its label
in reports, a line of help and the words it may take; the reader of files, the report's table of
settings and the command line's help list `KEYS`. A new key is one more field here, and its use.

`rmab.studies.arm_tables` has the `[[arm]]` and `[[agent]]` tables.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from importlib import resources
from importlib.resources.abc import Traversable
from numbers import Integral
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rmab.errors import FederationError, ModelError, StudyError
from rmab.learning.channel.local_posterior import VAGUE_WEIGHT
from rmab.model.arms import Arm, Arms
from rmab.policies.aggregation import AGGREGATIONS, Aggregation, Gossip, aggregation_of
from rmab.policies.capabilities import Conditions
from rmab.policies.episodes import DRAWS, SCHEDULES
from rmab.policies.gossip import DEGREE, GRAPHS
from rmab.policies.options import GOSSIP_OPTIONS
from rmab.policies.policy import Policy
from rmab.policies.refusal import OF_OPTIONS, OF_PRIVACY, refusal
from rmab.policies.registry import OPTIONS, POLICIES, STUDIED, check_options, settings_of
from rmab.privacy.accounting import Budget
from rmab.privacy.advice import cost_warning
from rmab.privacy.settings import LEAST_AGENTS, check_survey
from rmab.studies.arm_tables import arm_table, changed_arms, check_rewards, read_agents, read_arm
from rmab.text import is_number, is_whole, one_of, read_toml, shown

__all__ = [
    "KEYS",
    "Study",
    "StudyKey",
    "from_table",
    "load",
    "read_table",
    "with_bundled_study",
]

_REALISATIONS = ("independent", "shared")
_CATALOGUE = "catalogue:"  # begins the names of bundled studies

_MAX_STATES = 64
_MAX_ENTRIES = 2**22  # of N transition matrices, each as large as the largest
_MAX_WEIGHT = 1e6


class StudyKey(NamedTuple):
    """Description of a key of a study."""

    label: str  # in the report
    about: str  # in the help
    choices: Collection[str] = ()  # the words it may be; empty: it is no word
    symbol: str = ""  # the paper's, if it has one


def _key(
    default: Any,
    label: str,
    about: str,
    choices: Collection[str] = (),
    *,
    symbol: str = "",
    last: bool = False,
    optional: bool = False,
) -> Any:
    """Make a field of `Study`.

    default: called for each study if it is callable; last: a list or table, which stands after the
    plain values in a file; optional: left out of a file where it has its default.
    """
    about_it = {"key": StudyKey(label, about, choices, symbol), "last": last, "optional": optional}
    if callable(default):
        return field(default_factory=default, metadata=about_it)
    return field(default=default, metadata=about_it)


@dataclass(frozen=True, eq=False)
class Study:
    """Policies on arms: M `agents` play K = `plays` of the arms in each of `horizon` slots.

    Parameters
    ----------
    arms
        `Arms`, or a list of `Arm`.
    policies
        Names, or `rmab.Policy` objects.
    options
        Options by policy name.
    weights
        Weight of each agent's counts in the sum, (M,); None: 1 each.
    aggregation, graph, degree, failure
        Sharing of counts, see rmab.policies.aggregation and rmab.policies.gossip.
    agent
        Tables [[agent]] of agents whose arms differ, see rmab.studies.arm_tables.
    privacy
        Table with epsilon and delta, see rmab.privacy.noise, survey, see rmab.privacy.survey, and
        groups, whose sums are released separately.
    """

    arms: Arms
    agents: int = _key(1, "Agents M", "agents that learn together, M", symbol="M")
    plays: int = _key(1, "Plays in a slot K", "arms that each agent plays in a slot, K", symbol="K")
    horizon: int = _key(1000, "Slots T", "slots of a trial, T", symbol="T")
    trials: int = _key(1000, "Trials", "independent repetitions")
    seed: int = _key(0, "Seed", "of all random numbers, a whole number")
    realisations: str = _key(
        "independent",
        "Realisations",
        "whether each agent has arms of its own, or all face the same ones",
        _REALISATIONS,
    )
    schedule: str = _key("paper", "Schedule", "how episodes grow", SCHEDULES)
    policies: Sequence[str | Policy] = _key(
        ("fedtswi", "whittle"), "Policies", "a list of names", last=True
    )
    options: Mapping[str, Mapping[str, Any]] = _key(
        dict, "Options", "tables by policy, as [options.feducb-wi]", last=True
    )
    weights: Sequence[float] | None = _key(
        None,
        "Weights",
        "of the agents' counts in the sum, a number for each agent",
        last=True,
        optional=True,
    )
    draws: str = _key(
        "shared",
        "Draws",
        "whether all agents plan with one draw of the dynamics, or each with its own",
        DRAWS,
    )
    doubt: float = _key(
        VAGUE_WEIGHT,
        "Doubt",
        "chance that an agent's arm is unlike the others', of draws = \"own\"",
        optional=True,
    )
    aggregation: str = _key(
        "sum", "Aggregation", "what agents learn from one another", AGGREGATIONS
    )
    graph: str = _key(
        GRAPHS[0], "Graph", 'who talks to whom, of aggregation = "gossip"', GRAPHS, optional=True
    )
    degree: int = _key(DEGREE, "Degree", 'links of an agent, of graph = "regular"', optional=True)
    failure: float = _key(
        0.0, "Failure", "chance that a link fails in an episode, of gossip", optional=True
    )
    agent: Sequence[Mapping[str, Any]] = _key(
        (), "Agents that differ", "tables of agents whose arms differ", last=True, optional=True
    )

    privacy: Mapping[str, float] | None = _key(
        None,
        "Privacy",
        "a table: epsilon and delta (1e-6) of one slot, for sums released with noise; survey, the "
        "slots of each log that they are made of (all); groups (1) of agents, whose sums are "
        "opened apart",
        last=True,
        optional=True,
    )

    def __post_init__(self) -> None:
        self._check_arms()
        for key, low, high, rule in (
            ("agents", 1, 2**16, "at least 1 and at most 65536"),
            ("plays", 1, len(self.arms), f"between 1 and {len(self.arms)}, the number of arms"),
            ("horizon", 1, 10**6, "at least 1 and at most 1000000"),
            ("trials", 1, 2**32, "at least 1 and at most 2^32"),
            ("seed", 0, 2**64 - 1, "from 0 to 2^64 - 1"),
        ):
            value = getattr(self, key)
            whole = isinstance(value, Integral) and not isinstance(value, bool)
            if not whole or not low <= value <= high:
                raise StudyError(f"{key} must be a whole number {rule}, got {shown(value)}")
            object.__setattr__(self, key, int(value))
        for key, about in KEYS.items():
            if about.choices:
                one_of(key, getattr(self, key), tuple(about.choices))
        alike = [not arm.action_dependent for arm in self.arms]
        if self.realisations == "shared" and not all(alike):
            raise StudyError(
                f"realisations must be 'independent', as arm {alike.index(False) + 1} moves "
                "otherwise when played: agents cannot each move what they share; got 'shared'"
            )
        self._check_agents()
        self._check_policies()
        self._check_options()
        if self.weights is not None:
            self._check_weights()
        self._check_gossip()
        self._check_doubt()
        if self.privacy is not None:
            self._check_privacy()
        self._check_combinations()

    def _check_arms(self) -> None:
        given: Any = self.arms
        if isinstance(given, list | tuple) and given and all(isinstance(a, Arm) for a in given):
            object.__setattr__(self, "arms", Arms(given))
        elif not isinstance(given, Arms):
            raise StudyError(
                f"arms must be a list of rmab.Arm, or made by rmab.channels, got {shown(given)}"
            )
        arms = self.arms
        S = int(arms.sizes.max())
        if S > _MAX_STATES:
            number = int(arms.sizes.argmax()) + 1
            raise StudyError(
                f"arm {number} must have at most {_MAX_STATES} states in a study, got {S}"
            )
        if len(arms) * S * S > _MAX_ENTRIES:
            raise StudyError(
                f"there must be at most {_MAX_ENTRIES // (S * S)} arms where one has {S} states, "
                f"got {len(arms)}"
            )
        check_rewards(arms)

    def _check_agents(self) -> None:
        tables = read_agents(self.agent, self.arms, self.agents)
        object.__setattr__(self, "agent", tables)
        for arms in self.differing_arms if tables else ():
            agent = f"agent {self.agent_arms.index(arms) + 1}, "
            check_rewards(arms, agent)
            for n, (own, arm) in enumerate(zip(arms, self.arms, strict=True), start=1):
                if own is arm:
                    continue
                place = f"{agent}arm {n}"
                if own.kind != arm.kind or arm.is_channel > own.is_channel:
                    raise StudyError(
                        f"{place} must be of the kind of arm {n}: as many states, observed as it "
                        "is, moving alike played or not as it does, and a channel if it is one"
                    )
                moved = not np.array_equal(own.passive, arm.passive)
                if self.realisations == "shared" and moved:
                    raise StudyError(
                        f"realisations must be 'independent', as {place} moves otherwise: what "
                        "agents share moves in one way; got 'shared'"
                    )

    @cached_property
    def agent_arms(self) -> tuple[Arms, ...]:
        """Arms of each agent, (M,), one object for a group; empty where all have `arms`."""
        if not self.agent:
            return ()
        groups: dict[tuple[int, ...], Arms] = {}
        found = []
        for number in range(1, self.agents + 1):
            mine = tuple(n for n, each in enumerate(self.agent) if number in each["agents"])
            if mine not in groups:
                groups[mine] = changed_arms(self.arms, [self.agent[n] for n in mine])
            found.append(groups[mine])
        return tuple(found)

    @property
    def differing_arms(self) -> dict[Arms, int]:
        """Distinct arms of agents, with the number of agents that have them."""
        return dict(Counter(self.agent_arms)) if self.agent else {self.arms: self.agents}

    def _check_policies(self) -> None:
        if isinstance(self.policies, str) or not isinstance(self.policies, Sequence):
            raise StudyError(f"policies must be a list of names, got {shown(self.policies)}")
        if not self.policies:
            raise StudyError("policies must name at least one policy, got an empty list")
        policy: Any
        for policy in self.policies:
            if isinstance(policy, str):
                if policy not in POLICIES:
                    one_of("policies", policy, STUDIED)
            elif not isinstance(policy, Policy) or not policy.name:
                raise StudyError(
                    f"policies must be names or rmab.Policy objects, got {shown(policy)}"
                )
        names = self.policy_names
        for name in names:
            if names.count(name) > 1:
                raise StudyError(f"policies must differ in name, got {name!r} twice")
        object.__setattr__(self, "policies", tuple(self.policies))

    def _check_options(self) -> None:
        if not isinstance(self.options, Mapping):
            raise StudyError(f"options must be a table by policy name, got {shown(self.options)}")
        for name, settings in self.options.items():
            one_of("options", name, STUDIED)
            check_options(name, settings, f"options.{name}")

    def _check_weights(self) -> None:
        if not isinstance(self.weights, list | tuple) or len(self.weights) != self.agents:
            raise StudyError(
                f"weights must be one number for each of {self.agents} agents, "
                f"got {shown(self.weights)}"
            )
        for agent, weight in enumerate(self.weights):
            if not (is_number(weight) and 0 <= weight <= _MAX_WEIGHT):
                raise StudyError(
                    f"weights: agent {agent + 1}'s must be a number from 0 to 1e6, "
                    f"got {shown(weight)}"
                )
        object.__setattr__(self, "weights", tuple(float(w) for w in self.weights))

    def _check_gossip(self) -> None:
        for key in GOSSIP_OPTIONS:
            why = OPTIONS[key].refusal(getattr(self, key))
            if why:
                raise StudyError(f"{key} {why}")
        object.__setattr__(self, "failure", float(self.failure))
        for name in ("", *self.policy_names):
            shares = self.shares(name)
            if not isinstance(shares, Gossip):
                continue
            try:
                shares.links(self.agents)
            except ModelError as error:
                raise StudyError(f"options.{name}: {error}" if name else str(error)) from None

    def _check_doubt(self) -> None:
        if not (is_number(self.doubt) and 0 < self.doubt <= 1):
            raise StudyError(
                f"doubt must be a number above 0 and at most 1, got {shown(self.doubt)}"
            )
        object.__setattr__(self, "doubt", float(self.doubt))

    def _check_privacy(self) -> None:
        given: Any = self.privacy
        if not isinstance(given, Mapping):
            raise StudyError(f"privacy must be a table, got {shown(given)}")
        for key in given:
            one_of("privacy", key, ("epsilon", "delta", "groups", "survey"))
        groups = given.get("groups", 1)
        most = max(1, self.agents // LEAST_AGENTS)
        if not is_whole(groups) or not 1 <= groups <= most:
            raise StudyError(
                f"privacy.groups must be a whole number from 1 to {most}, for {LEAST_AGENTS} of "
                f"{self.agents} agents in each; got {shown(groups)}"
            )
        try:
            check_survey(given.get("survey"), given.get("epsilon"))
        except FederationError as error:
            raise StudyError(str(error)) from None
        if self.survey and self.draws != "own":
            raise StudyError(
                "privacy.survey needs draws = 'own', by which agents learn from all that they saw "
                f"themselves; got {shown(self.draws)}"
            )
        if "epsilon" not in given:
            if "delta" in given or "groups" not in given:
                raise StudyError("privacy.epsilon is missing")
            return
        try:
            _ = self.budget
        except ModelError as error:
            raise StudyError(str(error)) from None
        if self.schedule == "paper":
            raise StudyError(
                "schedule must be 'linear' or 'doubling' with privacy.epsilon, as the ends of "
                "episodes under 'paper' tell about visits; got 'paper'"
            )
        if self.weights is not None:
            raise StudyError("weights cannot go with privacy.epsilon: noise is for counts of 1")

    def _check_combinations(self) -> None:
        """Refuse policies that do not go with the arms, the sharing or the privacy."""
        at = Conditions(
            self.arms.kinds,
            self.plays,
            channels=[arm.is_channel for arm in self.arms],
            aggregation=self.aggregation,
            draws=self.draws,
            weighted=self.weights is not None,
            noise=self.budget is not None,
        )
        refusals = [  # of all options, those of policies that do not play included
            refusal(name, at, given, f"options.{name}", OF_OPTIONS)
            for name, given in self.options.items()
        ]
        for policy in self.policies:
            if isinstance(policy, str):
                given, place = self.options.get(policy), f"options.{policy}"
                refusals.append(refusal(policy, at, given, place))
            else:  # the engine judges the rest
                refusals.append(refusal(policy, at, rules=OF_PRIVACY))
        for why in filter(None, refusals):
            raise StudyError(why)

    @property
    def cost_warning(self) -> str | None:
        """Warning where noise costs few agents much, else None."""
        if self.privacy is None:
            return None
        draws = "survey" if self.survey else self.draws
        return cost_warning(self.budget, self.agents, draws, self.groups)

    @property
    def budget(self) -> Budget | None:
        """Privacy budget of a slot; None: sums are released without noise."""
        table = self.privacy or {}
        given = {key: table[key] for key in ("epsilon", "delta") if key in table}
        return Budget(**given) if given else None

    @property
    def groups(self) -> int:
        """Number G of groups with separate sums; the first has agents 1, 1 + G, 1 + 2 G, ..."""
        return int((self.privacy or {}).get("groups", 1))

    @property
    def survey(self) -> int:
        """Slots of each log that are counted for others; 0: all slots."""
        return int((self.privacy or {}).get("survey") or 0)

    def shares(self, name: str = "") -> Aggregation:
        """Aggregation of the study, or of the policy of that name if its options set one."""
        settings = {key: getattr(self, key) for key in ("aggregation", *GOSSIP_OPTIONS)}
        if name in POLICIES and "aggregation" in POLICIES[name].options:
            own = settings_of(name, self.options.get(name))
            settings |= {key: value for key, value in own.items() if key in settings}
        return aggregation_of(settings.pop("aggregation"), **settings)

    def options_of(self, name: str) -> dict[str, Any]:
        """Options of a policy by name, with the study's settings of gossip if its agents gossip."""
        own = dict(self.options.get(name, {}))
        shares = settings_of(name, own).get("aggregation", self.aggregation)
        if "aggregation" not in POLICIES[name].options or shares != "gossip":
            return own
        said = {key: getattr(self, key) for key in GOSSIP_OPTIONS}
        return {**said, **own, "aggregation": shares}

    @property
    def gossips(self) -> bool:
        """Whether agents gossip under some policy."""
        return any(isinstance(self.shares(name), Gossip) for name in ("", *self.policy_names))

    @property
    def policy_names(self) -> list[str]:
        """Names of the policies in order."""
        return [p if isinstance(p, str) else p.name for p in self.policies]

    def to_table(self) -> dict[str, Any]:
        """Table of a study file, with plain values, of which `from_table` makes an equal study.

        Raises StudyError if the study has a user's policy.
        """
        own = [policy.name for policy in self.policies if isinstance(policy, Policy)]
        if own:
            raise StudyError(
                f"policies: {own[0]!r} is an object of one's own; a file can only have names"
            )
        table = {
            field.name: _plain(getattr(self, field.name))
            for field in _FIELDS
            if not field.metadata["optional"] or getattr(self, field.name) != field.default
        }
        return {**table, "arm": [arm_table(arm) for arm in self.arms]}


# In the order of a file: plain values, then lists and tables.
_FIELDS = sorted(
    (field for field in fields(Study) if field.metadata), key=lambda field: field.metadata["last"]
)
KEYS: Mapping[str, StudyKey] = {field.name: field.metadata["key"] for field in _FIELDS}


def from_table(table: Mapping[str, Any]) -> Study:
    """Make the study of a TOML file's table, without `figure` and `sweep`."""
    for key in table:
        if key not in (*KEYS, "arm"):
            raise StudyError(f"unknown key {shown(key)}; known are {', '.join((*KEYS, 'arm'))}")
    tables = table.get("arm")
    if not isinstance(tables, list) or not tables or not all(isinstance(a, dict) for a in tables):
        got = "none" if tables is None else shown(tables)
        raise StudyError(f"arm must be one or more [[arm]] tables, got {got}")
    arms = []
    for number, arm in enumerate(tables, start=1):
        try:
            arms.append(read_arm(arm))
        except (StudyError, ModelError) as error:
            # `channels` numbers its only arm 1.
            raise StudyError(f"arm {number}: {str(error).removeprefix('arm 1: ')}") from None
    return Study(arms=Arms(arms), **{k: v for k, v in table.items() if k != "arm"})


def _plain(value: Any) -> Any:
    """Convert a value of a study to plain types."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return float(value) if isinstance(value, float) else value  # NumPy's numbers among them


def read_table(path: str | PathLike[str]) -> dict[str, Any]:
    """Read the tables of a TOML file; any failure is a StudyError that names the file."""
    return read_toml(path, _file(path))


def with_bundled_study(table: Mapping[str, Any]) -> dict[str, Any]:
    """Fill a table from the bundled study that its key `study` names; its own keys win."""
    rest = {key: value for key, value in table.items() if key != "study"}
    if "study" not in table:
        return rest
    name = table["study"]
    if not isinstance(name, str) or not name.startswith(_CATALOGUE):
        raise StudyError(f"study must be the name of a bundled one, got {shown(name)}")
    return {**read_table(name), **rest}


def _file(path: str | PathLike[str]) -> Path | Traversable:
    """File of that name, or a bundled one."""
    if not (isinstance(path, str) and path.startswith(_CATALOGUE)):
        return Path(path)
    shipped = {
        file.name.removesuffix(".toml"): file
        for file in resources.files("rmab.studies").joinpath("catalogue").iterdir()
    }
    name = path.removeprefix(_CATALOGUE)
    one_of("catalogue", name, sorted(shipped))
    return shipped[name]


def load(path: str | PathLike[str]) -> Study:
    """Load the study of a TOML file, or a bundled one, as "catalogue:fading".

    A `[sweep]` is ignored: see rmab.load_sweep.
    """
    table = read_table(path)
    for aside in ("figure", "sweep"):
        table.pop(aside, None)
    try:
        return from_table(table)
    except (StudyError, ModelError) as error:
        raise StudyError(f"{path}: {error}") from None
