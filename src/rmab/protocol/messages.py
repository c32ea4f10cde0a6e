"""Messages on the wire, as bytes and as values: uploads, rounds and plans.

An *upload* has all that an incarnation of an agent has counted since it began: for each arm the
pairs of successive observations, counts[c, s, s'] with c = gap - 1 and the last slice for all gaps
above G, and its visits[s], plays by the state they showed. An arm that is always observed has the
pairs of consecutive slots, c = 0 those with a play at the first and c = 1 those without.
`rmab.protocol.uploads` is the server's side of it.

A *round* has all that an agent plays by: its number, the rule by which the episode ends, and a plan
over information states, rows as in `rmab.model.beliefs.information_states`: never observed, (0, 1),
..., (0, J), (1, 1), ...; see `rmab.policies.plans`. All that comes from a server is checked here.

An arm that is observed when played, moves alike and pays when played alone has two keys in a round,
`states` and `reward`. Others have more (`_KIND_KEYS`), which agents that do not know them refuse.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rmab.model.beliefs import OBSERVED
from rmab.policies.plans import PLANS, Plan
from rmab.protocol import checks
from rmab.protocol.checks import floats, malformed, read_object, take, whole_number
from rmab.text import shown

__all__ = [
    "MAX_COUNTS",
    "NAME_RULE",
    "PROTOCOL",
    "UPLOAD_KEYS",
    "RoundMessage",
    "Shape",
    "Upload",
    "check_protocol",
    "fingerprint_of",
    "is_name",
    "parse_plan",
    "parse_round",
    "plan_table",
]

PROTOCOL = 1
MAX_COUNTS = 2**20  # of an upload
_KIND_KEYS = ("reward_passive", "observed", "action_dependent")  # of an arm that is not as most are
NAME_RULE = "1 to 64 letters, digits, dots, hyphens or underscores, the first a letter or digit"
Ints = npt.NDArray[np.int64]

UPLOAD_KEYS = (
    "protocol",
    "federation",
    "incarnation",
    "sequence",
    "round",
    "slots",
    "length",
    "counts",
    "visits",
)


def is_name(text: Any) -> bool:
    """Whether it may name a federation or an agent."""
    return isinstance(text, str) and bool(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", text))


class Shape(NamedTuple):
    """Shape of messages: K, the states of each arm, G, and the arms that are not as most are.

    Pairs of successive observations of an arm are counted separately by their gap, 1 to G slots,
    and those further apart together. always: the arms that are observed in every slot, in ascending
    order; controlled: likewise those that move otherwise when they are played.
    """

    plays: int
    states: tuple[int, ...]
    gaps: int
    always: tuple[int, ...] = ()
    controlled: tuple[int, ...] = ()

    @property
    def kinds(self) -> int:
        """C, the most kinds of pairs that are counted separately of an arm."""
        return 2 if len(self.always) == self.n_arms else self.gaps + 1

    @property
    def kinds_by_arm(self) -> list[int]:
        """Number of kinds of pairs that are counted separately of each arm."""
        kinds = [self.gaps + 1] * self.n_arms
        for arm in self.always:
            kinds[arm] = 2
        return kinds

    @property
    def exact_kinds(self) -> list[int]:
        """Number of kinds of pairs of each arm, the first ones, with a known gap: all except those
        more than G slots apart."""
        kinds = [self.gaps] * self.n_arms
        for arm in self.always:
            kinds[arm] = 2
        return kinds

    @property
    def n_arms(self) -> int:
        """N."""
        return len(self.states)

    @property
    def size(self) -> int:
        """Number of counts of an upload."""
        arms = zip(self.kinds_by_arm, self.states, strict=True)
        return sum(kinds * states**2 for kinds, states in arms)

    def idle(self, counts: Ints) -> Ints:
        """(S, N): slots in which arms that are always observed were left alone, by their state;
        counts: (C, S, S, N). The last slot of all is not in it, as no pair begins there."""
        idle = np.zeros(counts.shape[2:], counts.dtype)
        which = list(self.always)
        idle[:, which] = counts[1][:, :, which].sum(1)
        return idle


def fingerprint_of(
    name: str,
    shape: Shape,
    rewards: Sequence[Sequence[float]],
    idle_rewards: Sequence[Sequence[float]] | None,
) -> str:
    """Return a digest of the meaning of a federation's counts: no others can be added to them.

    rewards, idle_rewards: of a play and of none, by arm and state; None: nothing. That of most
    arms is as it was before there were others.
    """
    always, controlled = set(shape.always), set(shape.controlled)
    arms: list[list[Any]] = []
    for n, states in enumerate(shape.states):
        arm: list[Any] = [states, [float(pay) for pay in rewards[n]]]
        idle = [0.0] * states if idle_rewards is None else [float(pay) for pay in idle_rewards[n]]
        if any(idle) or n in always or n in controlled:
            arm += [idle, OBSERVED[n in always], n in controlled]
        arms.append(arm)
    meaning = [name, shape.plays, arms, shape.gaps]
    return hashlib.sha256(json.dumps(meaning).encode()).hexdigest()


@dataclass(frozen=True, eq=False)
class Upload:
    """Cumulative counts of one incarnation of an agent; arms of fewer states are padded with 0."""

    incarnation: str  # 32 hexadecimal digits
    sequence: int  # 1, 2, ...
    round: int
    slots: int  # in all
    length: int  # of them in this round's episode
    counts: Ints  # (C, S, S, N)
    visits: Ints  # (S, N)

    @cached_property
    def digest(self) -> bytes:
        """Digest of the content: equal for equal uploads."""
        head = f"{self.incarnation} {self.sequence} {self.round} {self.slots} {self.length} "
        body = np.ascontiguousarray(self.counts).tobytes() + self.visits.tobytes()
        return hashlib.sha256(head.encode() + body).digest()

    def to_json(self, shape: Shape, federation: str) -> bytes:
        """The body of a request."""
        counts = [
            self.counts[:kinds, :s, :s, arm].tolist()
            for arm, (kinds, s) in enumerate(zip(shape.kinds_by_arm, shape.states, strict=True))
        ]
        visits = [self.visits[:s, arm].tolist() for arm, s in enumerate(shape.states)]
        values = (
            PROTOCOL,
            federation,
            self.incarnation,
            self.sequence,
            self.round,
            self.slots,
            self.length,
            counts,
            visits,
        )
        return json.dumps(
            dict(zip(UPLOAD_KEYS, values, strict=True)), separators=(",", ":")
        ).encode()


# ----------------------------------------------------------------------------------------- rounds


@dataclass(frozen=True, eq=False)
class RoundMessage:
    """Message of a server to an agent: the round, and all it needs to play in it.

    The episode ends after `slots` slots, or, with a visit_factor, when the visits to some arm and
    state pass visit_factor max(1, those at its start). survey: the slots with which an incarnation
    begins and of which counts are given, 0: counts of all slots are (`rmab.privacy.survey`).
    """

    federation: str
    agent: str
    round: int
    slots: int
    visit_factor: int | None
    shape: Shape
    rewards: tuple[tuple[float, ...], ...]  # by arm and state, what a play pays
    plan: Plan
    idle_rewards: tuple[tuple[float, ...], ...] | None = None  # likewise no play; None: nothing
    survey: int = 0

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the federation."""
        return fingerprint_of(self.federation, self.shape, self.rewards, self.idle_rewards)

    def to_json(self) -> bytes:
        """The body of an answer."""
        always, controlled = set(self.shape.always), set(self.shape.controlled)
        arms = [
            self._arm_table(n, always=n in always, controlled=n in controlled)
            for n in range(self.shape.n_arms)
        ]
        table: dict[str, Any] = {
            "protocol": PROTOCOL,
            "federation": self.federation,
            "agent": self.agent,
            "round": self.round,
            "episode": {"slots": self.slots, "visits": self.visit_factor},
            "plays": self.shape.plays,
            "gaps": self.shape.gaps,
            "arms": arms,
            "plan": plan_table(self.plan),
        }
        if self.survey:
            table["survey"] = self.survey
        return json.dumps(table, separators=(",", ":")).encode()

    def _arm_table(self, n: int, *, always: bool, controlled: bool) -> dict[str, Any]:
        """An arm as JSON has it; of one that is as most are, without keys that others have."""
        states = self.shape.states[n]
        table: dict[str, Any] = {"states": states, "reward": list(self.rewards[n])}
        idle = [0.0] * states if self.idle_rewards is None else list(self.idle_rewards[n])
        if any(idle) or always or controlled:
            table |= zip(_KIND_KEYS, (idle, OBSERVED[always], controlled), strict=True)
        return table


def parse_round(body: bytes) -> RoundMessage:
    """The round in an answer's body; ProtocolError if it is none."""
    keys = ["protocol", "federation", "agent", "round", "episode", "plays", "gaps", "arms", "plan"]
    table = read_object(body)
    survey = table.pop("survey", None) if isinstance(table, dict) else None
    protocol, federation, agent, number, episode, plays, gaps, arms, plan = take(
        table, "the round", *keys
    )
    check_protocol(protocol)
    for place, name in (("federation", federation), ("agent", agent)):
        if not is_name(name):
            raise malformed(f"{place} must be a name, got {shown(name)}")
    slots, visits = take(episode, "episode", "slots", "visits")
    if not isinstance(arms, list) or not arms:
        raise malformed(f"arms must be a list of at least one, got {shown(arms)}")
    read = [_read_arm(f"arms[{n}]", arm) for n, arm in enumerate(arms)]
    if whole_number("plays", plays, 1) > len(arms):
        raise malformed(f"plays must be at most {len(arms)}, the number of arms, got {plays}")
    shape = Shape(
        plays,
        tuple(arm.states for arm in read),
        whole_number("gaps", gaps, 1),
        tuple(n for n, arm in enumerate(read) if arm.always),
        tuple(n for n, arm in enumerate(read) if arm.controlled),
    )
    if shape.size > MAX_COUNTS:
        raise malformed(f"arms must have at most {MAX_COUNTS} counts, got {shape.size}")
    if survey is not None and (shape.always or shape.controlled):
        raise malformed("survey must not be given unless arms move alike and are seen when played")
    return RoundMessage(
        federation=federation,
        agent=agent,
        round=whole_number("round", number, 1),
        slots=whole_number("episode.slots", slots, 1),
        visit_factor=None if visits is None else whole_number("episode.visits", visits, 1),
        shape=shape,
        rewards=tuple(arm.reward for arm in read),
        plan=parse_plan(plan, shape),
        idle_rewards=tuple(arm.idle_reward for arm in read),
        survey=0 if survey is None else whole_number("survey", survey, 1),
    )


class _Arm(NamedTuple):
    """An arm in a round."""

    states: int
    reward: tuple[float, ...]
    idle_reward: tuple[float, ...]
    always: bool
    controlled: bool


def _read_arm(place: str, table: Any) -> _Arm:
    plain = isinstance(table, dict) and not table.keys() & _KIND_KEYS
    keys = ("states", "reward") if plain else ("states", "reward", *_KIND_KEYS)
    size, reward, *kind = take(table, place, *keys)
    states = whole_number(f"{place}.states", size, 2)
    idle, observed, controlled = kind or ([0.0] * states, OBSERVED[0], False)
    for key, given in (("reward", reward), ("reward_passive", idle)):
        floats(f"{place}.{key}", given, states)
    if observed not in OBSERVED:
        raise malformed(
            f"{place}.observed must be one of {', '.join(OBSERVED)}, got {shown(observed)}"
        )
    if not isinstance(controlled, bool):
        raise malformed(f"{place}.action_dependent must be true or false, got {shown(controlled)}")
    pays, idle_pays = (tuple(map(float, given)) for given in (reward, idle))
    return _Arm(states, pays, idle_pays, observed == "always", controlled)


def check_protocol(version: Any) -> None:
    """Refuse another version of the protocol."""
    if type(version) is not int or version != PROTOCOL:
        raise malformed(f"protocol must be {PROTOCOL}, got {shown(version)}")


# ------------------------------------------------------------------------------------------ plans


def plan_table(plan: Plan) -> dict[str, Any]:
    """Return a plan as JSON has it."""
    return plan.to_json()


def parse_plan(table: Any, shape: Shape) -> Plan:
    """The plan that a server sent; ProtocolError if it is none for these arms."""
    if not isinstance(table, dict) or table.get("kind") not in PLANS:
        kind = table.get("kind") if isinstance(table, dict) else table
        raise malformed(f"plan.kind must be one of {', '.join(PLANS)}, got {shown(kind)}")
    return PLANS[table["kind"]].from_json(table, shape, checks)
