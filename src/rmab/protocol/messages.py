"""Rounds and plans, as bytes and as values; uploads are in `rmab.protocol.shape`.

A *round* has all that an agent plays by: its number, the rule by which the episode ends, and a plan
over information states, rows as in `rmab.model.information.information_states`: never observed,
(0, 1),
..., (0, J), (1, 1), ...; see `rmab.policies.plans`. All that comes from a server is checked here.

An arm that is observed when played, moves alike and pays when played alone has two keys in a round,
`states` and `reward`. Others have more (`_KIND_KEYS`), which agents that do not know them refuse.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from rmab.model.information import OBSERVED
from rmab.policies.plans import PLANS, Plan
from rmab.protocol import checks
from rmab.protocol.checks import floats, malformed, read_object, take, whole_number
from rmab.protocol.shape import (
    PROTOCOL,
    Shape,
    check_protocol,
    is_name,
)
from rmab.text import shown

__all__ = [
    "MAX_COUNTS",
    "RoundMessage",
    "fingerprint_of",
    "parse_plan",
    "parse_round",
    "plan_table",
]

MAX_COUNTS = 2**20  # of an upload
_KIND_KEYS = ("reward_passive", "observed", "action_dependent")  # of an arm that is not as most are


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
