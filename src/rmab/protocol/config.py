"""Configuration of a federation: its arms without their dynamics, and how it learns.

It is a TOML file:

    name = "spectrum"
    plays = 2                   # K arms in each slot
    policy = "fedtswi"          # one that learns
    schedule = "linear"         # lengths of episodes: "paper", "linear", "doubling"
    draws = "shared"            # of the dynamics: one for all agents, "per-agent", or "own"
    doubt = 0.1                 # of "own": weight of the vague component in an agent's prior
    aggregation = "sum"         # what agents share: all counts, "none", or "pairs", by likeness
    deadline = 30               # seconds from a round's first report until it closes
    slot_seconds = 1            # the shortest slot: no agent claims more slots than time allows
    cap = 2                     # no owner weighs more than twice the median one; default: no cap
    seed = 0
    [options]                   # of the policy: prior, gaps, ...
    gaps = 64
    [[arm]]
    reward = 0.4                # two states: what a play pays in state 1
    [[arm]]
    states = 3
    reward = [0.0, 0.5, 1.0]
    [[arm]]
    observed = "always"         # not only when it is played
    action_dependent = true     # it moves otherwise when it is played
    reward_active = [0.0, 1.0]  # of a play, as `reward`
    reward_passive = [0.0, 0.2] # of a slot without one
    [weights]                   # of owners' counts in the sum, by name; 1 where none is given
    radio-1 = 2.0
    [privacy]                   # the server learns only sums, with noise if there is epsilon;
    helper = "https://helper.example:9443"  # without a helper it draws the noise:
    epsilon = 1.0                           # rmab.privacy.settings, rmab.privacy.survey

Further keys: `horizon`, the slots that fed1-ucb's phases are made for; `reference`, a reward to
compare with on the page; `live_seconds`, for which an agent is shown as live after its last request
(two deadlines); and limits on one agent, `uploads_per_second` and `incarnations_per_hour`, 0 for no
limit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from os import PathLike
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from rmab.errors import FederationError, StudyError
from rmab.learning.channel.local_posterior import VAGUE_WEIGHT
from rmab.model.arms import CHANNEL, OBSERVED, WAITS, ArmKind
from rmab.policies.aggregation import (
    AGGREGATIONS,
    Aggregation,
    compares_agents,
    mixes_evidence,
)
from rmab.policies.capabilities import Conditions
from rmab.policies.episodes import DRAWS, SCHEDULES
from rmab.policies.options import GAPS, GOSSIP_OPTIONS
from rmab.policies.policy import POPULATION
from rmab.policies.refusal import refusal
from rmab.policies.registry import POLICIES, SERVED, check_options, settings_of
from rmab.privacy.accounting import Budget
from rmab.privacy.advice import cost_warning
from rmab.privacy.settings import Privacy, privacy_of
from rmab.protocol.messages import MAX_COUNTS, fingerprint_of
from rmab.protocol.shape import NAME_RULE, Shape, is_name
from rmab.text import is_number, one_of, read_toml, shown

__all__ = ["Federation", "KnownArm", "load_federation"]

_MAX_ARMS, _MAX_STATES = 4096, 64
_MAX_LIVE_SECONDS = 31_536_000  # a year
_REWARDS = (1e-30, 1e30)  # range of single precision
_SLOT_SECONDS = 1e-4  # default: shorter than a slot of any agent that plays without waiting
_LARGEST_CAP = 1e6
_MAX_WEIGHT = 1e6
_NUMBERS: tuple[tuple[str, Callable[[float], bool], str], ...] = (
    ("deadline", lambda x: 0 < x <= 86_400, "a number of seconds above 0 and at most 86400"),
    (
        "slot_seconds",
        lambda x: x == 0 or 1e-9 <= x <= 86_400,
        "0 for no limit, or from 1e-9 to 86400",
    ),
    ("cap", lambda x: 1 <= x <= _LARGEST_CAP, f"a number from 1 to {_LARGEST_CAP:g}"),
    *(
        (key, lambda x: x == 0 or 1e-6 <= x <= 1e6, "0 for no limit, or from 1e-6 to 1e6")
        for key in ("uploads_per_second", "incarnations_per_hour")
    ),
    (
        "live_seconds",
        lambda x: 0 < x <= _MAX_LIVE_SECONDS,
        f"a number of seconds above 0 and at most {_MAX_LIVE_SECONDS}",
    ),
    ("doubt", lambda x: 0 < x <= 1, "a number above 0 and at most 1"),
    ("reference", lambda _: True, "a number"),
)
_ARM_KEYS = ("states", "reward", "reward_active", "reward_passive", "observed", "action_dependent")


@dataclass(frozen=True)
class KnownArm:
    """Arm with unknown dynamics.

    reward, reward_passive: reward of a slot in each state with a play and without one, by default
    0; observed: one of OBSERVED; action_dependent: whether plays change its dynamics.
    """

    states: int
    reward: tuple[float, ...]
    reward_passive: tuple[float, ...] = ()
    observed: str = OBSERVED[0]
    action_dependent: bool = False

    def __post_init__(self) -> None:
        if not self.reward_passive:
            object.__setattr__(self, "reward_passive", (0.0,) * self.states)

    @property
    def kind(self) -> ArmKind:
        """Kind of arm, as learners distinguish them."""
        return ArmKind(self.states, self.observed == "always", self.action_dependent)

    @property
    def pays_when_idle(self) -> bool:
        """Return whether a slot without a play may pay."""
        return any(self.reward_passive)

    @property
    def is_channel(self) -> bool:
        """Return whether it is a channel: two states, reward 0 in state 0, no cost in 1."""
        plain = self.kind == CHANNEL
        return plain and not self.pays_when_idle and self.reward[0] == 0 and self.reward[1] >= 0


@dataclass(frozen=True)
class Federation:
    """Federation, checked at construction."""

    name: str
    plays: int
    arms: tuple[KnownArm, ...]
    policy: str = "fedtswi"
    schedule: str = "linear"
    draws: str = "shared"
    doubt: float = VAGUE_WEIGHT
    aggregation: str = "sum"
    deadline: float = 30.0
    slot_seconds: float = _SLOT_SECONDS  # 0: no limit
    cap: float | None = None
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    horizon: int = 10**6
    reference: float | None = None
    live_seconds: float | None = None
    uploads_per_second: float = 20.0
    incarnations_per_hour: float = 60.0
    weights: Mapping[str, float] = field(default_factory=dict)
    privacy: Privacy | None = None

    def __post_init__(self) -> None:
        if not is_name(self.name):
            raise FederationError(f"name must have {NAME_RULE}, got {shown(self.name)}")
        if not 1 <= len(self.arms) <= _MAX_ARMS:
            raise FederationError(f"there must be 1 to {_MAX_ARMS} arms, got {len(self.arms)}")
        for key, low, high, rule in (
            ("plays", 1, len(self.arms), f"between 1 and {len(self.arms)}, the number of arms"),
            ("seed", 0, 2**64 - 1, "from 0 to 2^64 - 1"),
            ("horizon", 1, 10**9, "from 1 to 10^9"),
        ):
            value = getattr(self, key)
            if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
                raise FederationError(f"{key} must be a whole number {rule}, got {shown(value)}")
        for key, allowed, rule in _NUMBERS:
            value = getattr(self, key)
            if value is None and getattr(type(self), key) is None:
                continue
            if not (is_number(value) and allowed(value)):
                raise FederationError(f"{key} must be {rule}, got {shown(value)}")
        try:
            one_of("policy", self.policy, SERVED)
            one_of("schedule", self.schedule, SCHEDULES)
            one_of("draws", self.draws, DRAWS)
            one_of("aggregation", self.aggregation, tuple(AGGREGATIONS))
            check_options(self.policy, self.options, "options")
            self._check_sharing()
        except StudyError as error:
            raise FederationError(str(error)) from None
        self._check_weights()
        if self.privacy is not None:
            self._check_sums()
        at = Conditions(
            self.kinds,
            self.plays,
            channels=[arm.is_channel for arm in self.arms],
            aggregation=self.aggregation,
            draws=self.draws,
            noise=self.budget is not None,
            served=True,
        )
        why = refusal(self.policy, at, self.options)
        if why:
            raise FederationError(why)
        if self.shape.size > MAX_COUNTS:
            raise FederationError(
                f"an upload must have at most {MAX_COUNTS} counts, got {self.shape.size}: fewer "
                "arms, states or gaps"
            )
        object.__setattr__(self, "options", MappingProxyType(dict(self.options)))
        object.__setattr__(self, "weights", MappingProxyType(dict(self.weights)))

    def _check_weights(self) -> None:
        if not isinstance(self.weights, Mapping):
            raise FederationError(
                f"weights must be a table of numbers by agent, got {shown(self.weights)}"
            )
        for name, weight in self.weights.items():
            if not is_name(name):
                raise FederationError(
                    f"weights: an agent's name must have {NAME_RULE}, got {shown(name)}"
                )
            if not (is_number(weight) and 0 <= weight <= _MAX_WEIGHT):
                raise FederationError(
                    f"weights: that of {name} must be a number from 0 to 1e6, got {shown(weight)}"
                )

    def _check_sums(self) -> None:
        """Refuse settings that need the counts of each agent where there are only sums."""
        if self.schedule == "paper":
            raise FederationError(
                'schedule must be "linear" or "doubling" with [privacy]: the ends of episodes '
                'under "paper" tell about visits'
            )
        needs = {
            f"aggregation = {shown(self._aggregation)}": not self.shares.running,
            "weights": bool(self.weights),
            "cap": self.cap is not None,
            f"options.forget = {shown(self.settings.get('forget'))}": self.forgets,
            f"options.prior = {shown(POPULATION)}": self.settings.get("prior") == POPULATION,
        }
        for key, needed in needs.items():
            if needed:
                raise FederationError(
                    f"{key} cannot go with [privacy]: it needs the counts of each agent, and "
                    f"{'the server learns' if self.masks else 'plans are made from'} sums alone"
                )
        if self.survey and self.draws != "own":
            raise FederationError(
                f'privacy.survey needs draws = "own", by which agents learn from all that they saw '
                f"themselves; got {shown(self.draws)}"
            )

    @property
    def paces(self) -> bool:
        """Return whether `slot_seconds` limits the slots that agents may claim."""
        return self.slot_seconds > _SLOT_SECONDS

    @property
    def budget(self) -> Budget | None:
        """Privacy budget of sums; None: they have no noise."""
        return None if self.privacy is None else self.privacy.budget

    @property
    def survey(self) -> int:
        """Number of slots of a log that are counted for others; 0: all are."""
        return 0 if self.privacy is None else self.privacy.survey or 0

    @property
    def masks(self) -> bool:
        """Return whether agents mask uploads, and the server learns sums that a helper unmasks."""
        return self.privacy is not None and self.privacy.helper is not None

    @property
    def draws_noise(self) -> bool:
        """Return whether the server gets counts and draws the noise in sums for others."""
        return self.privacy is not None and self.privacy.helper is None

    def cost_warning(self, agents: int) -> str | None:
        """Return a line of warning where noise costs `agents` much, else None."""
        groups = 1 if self.privacy is None else self.privacy.groups
        draws = str(self.settings.get("draws", self.draws))
        return cost_warning(self.budget, agents, "survey" if self.survey else draws, groups)

    @property
    def _aggregation(self) -> str:
        return str(self.settings.get("aggregation", self.aggregation))

    @property
    def heard_seconds(self) -> float:
        """Seconds for which an agent counts as live after its last request."""
        return 2 * self.deadline if self.live_seconds is None else self.live_seconds

    @property
    def gaps(self) -> int:
        """G: the option of policies that learn from observations at any gap, else 1; and at least
        the waits from which action-dependent arms observed when played are learnt."""
        by_gap = "gaps" in POLICIES[self.policy].options
        hidden = any(kind.action_dependent and not kind.fully_observed for kind in self.kinds)
        own = int(self.options.get("gaps", GAPS)) if by_gap else 1
        return max(own, WAITS) if hidden else own

    @property
    def settings(self) -> Mapping[str, Any]:
        """Options of the policy, with its defaults."""
        return settings_of(self.policy, self.options)

    def _check_sharing(self) -> None:
        """Refuse aggregations that have no server."""
        settings = {"aggregation": self.aggregation, **self.options}
        place = "options." if "aggregation" in self.options else ""
        if mixes_evidence(AGGREGATIONS[settings["aggregation"]]):
            served = [name for name, each in AGGREGATIONS.items() if not mixes_evidence(each)]
            raise StudyError(
                f"{place}aggregation must be one of {', '.join(served)}, got "
                f"{shown(settings['aggregation'])}: a federation has a server"
            )
        for key in GOSSIP_OPTIONS:
            if key in self.options:
                raise StudyError(f"options.{key} is of gossip, and a federation has a server")

    @property
    def shares(self) -> Aggregation:
        """Aggregation, by the policy's option, else by the federation's key."""
        return AGGREGATIONS[self._aggregation]

    @property
    def plan_per_agent(self) -> bool:
        """Return whether each agent has a plan of its own draw, or of its own evidence."""
        return self.settings.get("draws", self.draws) == "per-agent" or not self.shares.shared

    @property
    def longest(self) -> int | None:
        """Most slots of an episode; None: by the schedule."""
        found: int | None = self.settings.get("longest")
        return found

    @property
    def forgets(self) -> bool:
        """Return whether counts lose weight, so that they are kept from round to round."""
        return bool(self.settings.get("forget", "never") != "never")

    @property
    def recalls(self) -> bool:
        """Return whether plans are made from more than summed counts."""
        learnt = self.settings.get("prior") == POPULATION
        return self.forgets or learnt or compares_agents(self.shares)

    @property
    def needs_each(self) -> bool:
        """Return whether plans are made from the counts of each agent instead of their sum."""
        alike = not self.weights and self.cap is None
        return not (self.shares.running and alike) or self.forgets

    @property
    def rewards(self) -> npt.NDArray[np.float64]:
        """Rewards of a play by state and arm, (S, N); 0 for states that an arm does not have."""
        return self._by_state([arm.reward for arm in self.arms])

    @property
    def idle_rewards(self) -> npt.NDArray[np.float64]:
        """Rewards of a slot without a play, (S, N)."""
        return self._by_state([arm.reward_passive for arm in self.arms])

    def _by_state(self, rewards: Sequence[Sequence[float]]) -> npt.NDArray[np.float64]:
        pays = np.zeros((max(arm.states for arm in self.arms), len(self.arms)))
        for n, of_arm in enumerate(rewards):
            pays[: len(of_arm), n] = of_arm
        return pays

    @property
    def shape(self) -> Shape:
        """Shape of messages."""
        return Shape(
            self.plays,
            tuple(arm.states for arm in self.arms),
            self.gaps,
            tuple(n for n, kind in enumerate(self.kinds) if kind.fully_observed),
            tuple(n for n, kind in enumerate(self.kinds) if kind.action_dependent),
        )

    @property
    def kinds(self) -> tuple[ArmKind, ...]:
        """Kind of each arm."""
        return tuple(arm.kind for arm in self.arms)

    @property
    def channels(self) -> bool:
        """Return whether all arms are channels."""
        return all(arm.is_channel for arm in self.arms)

    def fingerprint(self) -> str:
        """Return a digest of the meaning of counts: counts are added only if digests agree."""
        return fingerprint_of(
            self.name,
            self.shape,
            [arm.reward for arm in self.arms],
            [arm.reward_passive for arm in self.arms],
        )


def load_federation(path: str | PathLike[str]) -> Federation:
    """Read a federation from a TOML file."""
    try:
        table = read_toml(path)
    except StudyError as error:
        raise FederationError(str(error)) from None
    try:
        return _from_table(table)
    except FederationError as error:
        raise FederationError(f"{path}: {error}") from None


def _from_table(table: Mapping[str, Any]) -> Federation:
    known = [field.name for field in fields(Federation) if field.name != "arms"]
    for key in table:
        if key not in (*known, "arm"):
            raise FederationError(
                f"unknown key {shown(key)}; known are {', '.join((*known, 'arm'))}"
            )
    for key in ("name", "plays", "policy"):
        if key not in table:
            raise FederationError(f"{key} is missing")
    tables = table.get("arm")
    if not isinstance(tables, list) or not tables or not all(isinstance(a, dict) for a in tables):
        got = "none" if tables is None else shown(tables)
        raise FederationError(f"arm must be one or more [[arm]] tables, got {got}")
    arms = tuple(_arm(number, arm) for number, arm in enumerate(tables, start=1))
    given = {key: value for key, value in table.items() if key not in ("arm", "privacy")}
    if "privacy" in table:
        given["privacy"] = privacy_of(table["privacy"])
    return Federation(arms=arms, **given)


def _arm(number: int, table: Mapping[str, Any]) -> KnownArm:
    try:
        return _known_arm(table)
    except (FederationError, StudyError) as error:
        raise FederationError(f"arm {number}: {error}") from None


def _known_arm(table: Mapping[str, Any]) -> KnownArm:
    for key in table:
        if key not in _ARM_KEYS:
            hint = " (dynamics are learnt)" if key in ("p01", "p11", "passive", "active") else ""
            raise FederationError(
                f"unknown key {shown(key)}{hint}; known are {', '.join(_ARM_KEYS)}"
            )
    states = table.get("states", 2)
    if not isinstance(states, int) or isinstance(states, bool) or not 2 <= states <= _MAX_STATES:
        raise FederationError(
            f"states must be a whole number from 2 to {_MAX_STATES}, got {shown(states)}"
        )
    if "reward" in table and "reward_active" in table:
        raise FederationError("reward and reward_active are the same: only one may be given")
    observed = table.get("observed", OBSERVED[0])
    one_of("observed", observed, OBSERVED)
    action_dependent = table.get("action_dependent", False)
    if not isinstance(action_dependent, bool):
        raise FederationError(
            f"action_dependent must be true or false, got {shown(action_dependent)}"
        )
    idle: Any = table.get("reward_passive", [0.0] * states)
    name = "reward_active" if "reward_active" in table else "reward"
    pays: Any = table.get(name, [0.0] * states if "reward_passive" in table else None)
    if states == 2 and is_number(pays):
        pays = [0.0, pays]
    return KnownArm(
        states,
        _rewards(name, pays, states, or_one="a number, or " if states == 2 else ""),
        _rewards("reward_passive", idle, states),
        observed,
        action_dependent,
    )


def _rewards(key: str, pays: Any, states: int, or_one: str = "") -> tuple[float, ...]:
    """Read a reward for each state."""
    if not isinstance(pays, list) or len(pays) != states or not all(map(is_number, pays)):
        raise FederationError(
            f"{key} must be {or_one}a list of {states} numbers, one for each state, "
            f"got {shown(pays)}"
        )
    for state, pay in enumerate(pays):
        if pay != 0 and not _REWARDS[0] <= math.fabs(pay) <= _REWARDS[1]:
            raise FederationError(
                f"{key} of state {state} must be 0 or from 1e-30 to 1e30 in size, got {pay}"
            )
    return tuple(float(pay) for pay in pays)
