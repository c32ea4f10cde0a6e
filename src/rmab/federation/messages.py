"""What goes over the wire, as bytes and as values, and what is possible in it.

An *upload* has all that an incarnation of an agent has counted since it began: for each arm the
pairs of successive looks, counts[c, s, s'] with c = gap - 1 and the last slice for all gaps above
G, and its visits[s], looks by the state they showed. In `slots` slots with K plays each an agent's
looks at an arm are one sequence of at most one look a slot. So, with p = counts summed over gaps,

    looks of all arms <= K slots                 looks of one arm <= slots
    sum of p = looks - 1, or 0 without looks     sum of gaps <= slots - 1, those above G as G + 1
    pairs from s = visits(s), less one for the state seen last
    pairs to s' = visits(s'), less one for the state seen first

The last two lines say that what enters and what leaves a state differ by at most one: for two
states, that crossings 0 to 1 and 1 to 0 do. From one upload of an incarnation to the next nothing
falls, and what is added is possible in the slots that were added.

A *round* tells an agent what to play by: its number, the rule by which the episode ends, and a plan
over information states, rows as in `rmab.model.arms.information_states`: never seen, (0, 1), ...,
(0, J), (1, 1), ...; see `rmab.policies.plans`.

All that comes from the other side is checked here and nowhere else.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rmab.errors import ProtocolError
from rmab.federation.checks import (
    all_integers,
    floats,
    integers,
    listed,
    malformed,
    read_object,
    take,
    whole_number,
)
from rmab.federation.rounds import LONGEST
from rmab.policies.lookahead import DEPTHS, LookaheadTables
from rmab.policies.own_index import OWN_INDICES
from rmab.policies.plans import IndexPlan, LookaheadPlan, OwnPlan, Plan, TurnsPlan
from rmab.reading import is_number, shown

__all__ = [
    "MAX_COUNTS",
    "NAME_RULE",
    "PROTOCOL",
    "Merged",
    "Record",
    "RoundMessage",
    "Shape",
    "Upload",
    "check_growth",
    "is_name",
    "most_bytes",
    "parse_plan",
    "parse_round",
    "parse_upload",
    "plan_table",
]

PROTOCOL = 1
MAX_PLAN_AGES = 4096
MAX_COUNTS = 2**20  # of an upload
NAME_RULE = "1 to 64 letters, digits, dots, hyphens or underscores, the first a letter or digit"
FEW_STATES = 4
Ints = npt.NDArray[np.int64]

_KEYS = (
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
_QUOTES = 2 * len(_KEYS) + 4  # in an upload: of its keys, federation and incarnation


def is_name(text: Any) -> bool:
    """Whether it may name a federation or an agent."""
    return isinstance(text, str) and bool(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", text))


class Shape(NamedTuple):
    """What messages are made of: K, the states of each arm, and G.

    Pairs of successive looks at an arm are counted by their gap, 1 to G slots, and those further
    apart together.
    """

    plays: int
    states: tuple[int, ...]
    gaps: int

    @property
    def kinds(self) -> int:
        """C, how many kinds of pairs are told apart."""
        return self.gaps + 1

    @property
    def n_arms(self) -> int:
        """N."""
        return len(self.states)

    @property
    def size(self) -> int:
        """How many counts an upload has."""
        return self.kinds * sum(states**2 for states in self.states)


class Merged(NamedTuple):
    """Counts (C, S, S, N) and visits (S, N) of all agents, and how many gave any."""

    counts: Ints
    visits: Ints
    agents: int


@dataclass(frozen=True)
class Record:
    """The last upload that was accepted of an incarnation."""

    sequence: int
    round: int
    slots: int
    counts: Ints  # (C, S, S, N)
    visits: Ints  # (S, N)


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
        """Of the content: equal for equal uploads."""
        head = f"{self.incarnation} {self.sequence} {self.round} {self.slots} {self.length} "
        body = np.ascontiguousarray(self.counts).tobytes() + self.visits.tobytes()
        return hashlib.sha256(head.encode() + body).digest()

    def to_json(self, shape: Shape, federation: str) -> bytes:
        """The body of a request."""
        counts = [self.counts[:, :s, :s, arm].tolist() for arm, s in enumerate(shape.states)]
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
        return json.dumps(dict(zip(_KEYS, values, strict=True)), separators=(",", ":")).encode()


def most_bytes(shape: Shape) -> int:
    """The largest body of an upload: every number with all its digits, and room for the rest."""
    numbers = sum(shape.kinds * s * s + s for s in shape.states)
    return 4096 + 24 * numbers


# ---------------------------------------------------------------------------------------- uploads


def parse_upload(body: bytes, shape: Shape, federation: str) -> Upload:
    """The upload in a request's body; ProtocolError if it is none, or not a possible one."""
    table = read_object(body)
    take(table, "the upload", *_KEYS)
    check_protocol(table["protocol"])
    if table["federation"] != federation:
        raise malformed(f"federation must be {federation!r}, got {shown(table['federation'])}")
    incarnation = table["incarnation"]
    if not isinstance(incarnation, str) or not re.fullmatch(r"[0-9a-f]{32}", incarnation):
        raise malformed(f"incarnation must be 32 digits from 0-9 and a-f, got {shown(incarnation)}")
    numbers = {
        key: whole_number(key, table[key], least)
        for key, least in (("sequence", 1), ("round", 1), ("slots", 0), ("length", 0))
    }
    if numbers["length"] > numbers["slots"]:
        raise malformed(
            f"length must be at most slots, {numbers['slots']}, got {numbers['length']}"
        )
    found = _of_like_arms(body, table, shape) or _of_any_arms(table, shape)
    _check_possible(*found, numbers["slots"], shape)
    return Upload(incarnation, **numbers, counts=found[0], visits=found[1])


def _of_like_arms(body: bytes, table: Mapping[str, Any], shape: Shape) -> tuple[Ints, Ints] | None:
    """What `_of_any_arms` gives, fast, of arms with as many states; None where it may refuse."""
    N, S = shape.n_arms, shape.states[0]
    if shape.states.count(S) < N or body.count(b'"') != _QUOTES:
        return None
    if b"true" in body or b"false" in body:
        return None
    counts = all_integers(table["counts"], (N, shape.kinds, S, S))
    visits = all_integers(table["visits"], (N, S))
    if counts is None or visits is None:
        return None
    return np.ascontiguousarray(counts.transpose(1, 2, 3, 0)), np.ascontiguousarray(visits.T)


def _of_any_arms(table: Mapping[str, Any], shape: Shape) -> tuple[Ints, Ints]:
    """Counts and visits, padded, from one list for each arm."""
    S = max(shape.states)
    counts = np.zeros((shape.kinds, S, S, shape.n_arms), np.int64)
    visits = np.zeros((S, shape.n_arms), np.int64)
    listed("counts", table["counts"], shape.n_arms)
    listed("visits", table["visits"], shape.n_arms)
    for arm, s in enumerate(shape.states):
        counts[:, :s, :s, arm] = integers(
            f"counts[{arm}]", table["counts"][arm], (shape.kinds, s, s)
        )
        visits[:s, arm] = integers(f"visits[{arm}]", table["visits"][arm], (s,))
    return counts, visits


def _check_possible(counts: Ints, visits: Ints, slots: int, shape: Shape) -> None:
    """Refuse counts that no sequence of looks gives, in so many slots."""
    # 64-bit sums of numbers up to 2^53 could wrap; no count passes the slots, so that comes first.
    numbers = np.concatenate((counts.reshape(-1, shape.n_arms), visits))  # (C S S + S, N)
    largest = int(numbers.max())
    if largest > slots:
        raise malformed(f"no count may pass slots, {slots}, got {largest}")
    if slots > LONGEST:
        raise malformed(f"slots must be at most {LONGEST}, got {slots}")
    S = len(visits)
    if S <= FEW_STATES:
        sums = _sums(shape.kinds, S) @ numbers  # (2 S + 3, N)
    else:
        sums = _add_up(counts, visits)
    looks, total, span = sums[2 * S :].tolist()
    if sum(looks) > shape.plays * slots:
        raise malformed(
            f"visits must add up to at most {shape.plays} looks in each of {slots} slots, "
            f"got {sum(looks)}"
        )
    rests = sums[: 2 * S]  # visits less pairs from and less pairs to each state
    in_sequence = int(rests.view(np.uint64).max()) <= 1  # a negative one is large without its sign
    for arm in range(shape.n_arms):
        seen = looks[arm]
        if seen > slots:
            raise malformed(
                f"visits[{arm}] must add up to at most one look in each of {slots} slots, "
                f"got {seen}"
            )
        if total[arm] != max(0, seen - 1):
            raise malformed(
                f"counts[{arm}] must add up to {max(0, seen - 1)} pairs of successive looks, as "
                f"there are {seen} looks, got {total[arm]}"
            )
        if seen and span[arm] > slots - 1:
            raise malformed(
                f"counts[{arm}]: the gaps must fit into {slots} slots, but take {span[arm] + 1}"
            )
        if in_sequence:
            continue
        for name, rest in (("from", rests[:S, arm]), ("to", rests[S:, arm])):
            if seen and (int(rest.min()) < 0 or int(rest.max()) > 1):
                state = int(np.argmax(np.abs(rest - 0.5)))
                raise malformed(
                    f"counts[{arm}]: pairs {name} state {state} must be its visits or one less, "
                    f"{int(visits[state, arm])}, got {int(visits[state, arm] - rest[state])}: "
                    "looks at an arm form one sequence"
                )


def _add_up(counts: Ints, visits: Ints) -> Ints:
    """Sums of each arm's numbers, (2 S + 3, N).

    For each state its visits less the pairs from it, then less the pairs to it; looks; pairs; the
    slots that gaps take.
    """
    pairs = counts.sum(0)  # (S, S, N)
    gaps = np.arange(1, len(counts) + 1)
    rest = (visits.sum(0), pairs.sum((0, 1)), gaps @ counts.sum((1, 2)))
    return np.concatenate((visits - pairs.sum(1), visits - pairs.sum(0), np.stack(rest)))


@lru_cache(maxsize=8)
def _sums(kinds: int, S: int) -> Ints:
    """`_add_up` as one matrix, (2 S + 3, C S S + S): faster where there are few states."""
    pairs = np.zeros((2 * S + 3, kinds, S, S), np.int64)
    visits = np.zeros((2 * S + 3, S), np.int64)
    for s in range(S):
        pairs[s, :, s] -= 1
        pairs[S + s, :, :, s] -= 1
        visits[s, s] = visits[S + s, s] = 1
    visits[2 * S] = pairs[2 * S + 1] = 1
    pairs[2 * S + 2] = np.arange(1, kinds + 1)[:, None, None]
    return np.concatenate((pairs.reshape(len(pairs), -1), visits), axis=1)


def check_growth(before: Record | None, upload: Upload, plays: int) -> None:
    """Refuse an upload that cannot follow the incarnation's last one."""
    if before is None:
        return
    if upload.sequence <= before.sequence:
        raise backwards(f"sequence must be above {before.sequence}, got {upload.sequence}")
    if upload.round < before.round:
        raise backwards(f"round must be at least {before.round}, got {upload.round}")
    slots = upload.slots - before.slots
    if slots < 0:
        raise backwards(f"slots must be at least {before.slots}, got {upload.slots}")
    for name, now, then in (
        ("counts", upload.counts, before.counts),
        ("visits", upload.visits, before.visits),
    ):
        if (now < then).any():
            raise backwards(f"{name} must not fall from one upload to the next")
    looks = (upload.visits - before.visits).sum(0)
    if int(looks.max()) > slots or int(looks.sum()) > plays * slots:
        raise malformed(
            f"visits may grow by at most one look at an arm and {plays} in all in each of "
            f"{slots} slots, got {int(looks.max())} and {int(looks.sum())}"
        )


def backwards(detail: str) -> ProtocolError:
    """An upload that takes back what was given."""
    return ProtocolError(409, "backwards", detail)


# ----------------------------------------------------------------------------------------- rounds


@dataclass(frozen=True, eq=False)
class RoundMessage:
    """What a server tells an agent: the round, and all it needs to play in it.

    The episode ends after `slots` slots, or, with a visit_factor, when the visits to some arm and
    state pass visit_factor max(1, those at its start).
    """

    federation: str
    agent: str
    round: int
    slots: int
    visit_factor: int | None
    shape: Shape
    rewards: tuple[tuple[float, ...], ...]  # by arm and state, what a play pays
    plan: Plan

    def to_json(self) -> bytes:
        """The body of an answer."""
        arms = [
            {"states": s, "reward": list(pays)}
            for s, pays in zip(self.shape.states, self.rewards, strict=True)
        ]
        table = {
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
        return json.dumps(table, separators=(",", ":")).encode()


def parse_round(body: bytes) -> RoundMessage:
    """The round in an answer's body; ProtocolError if it is none."""
    keys = ["protocol", "federation", "agent", "round", "episode", "plays", "gaps", "arms", "plan"]
    protocol, federation, agent, number, episode, plays, gaps, arms, plan = take(
        read_object(body), "the round", *keys
    )
    check_protocol(protocol)
    for place, name in (("federation", federation), ("agent", agent)):
        if not is_name(name):
            raise malformed(f"{place} must be a name, got {shown(name)}")
    slots, visits = take(episode, "episode", "slots", "visits")
    if not isinstance(arms, list) or not arms:
        raise malformed(f"arms must be a list of at least one, got {shown(arms)}")
    states, rewards = [], []
    for n, arm in enumerate(arms):
        size, reward = take(arm, f"arms[{n}]", "states", "reward")
        states.append(whole_number(f"arms[{n}].states", size, 2))
        floats(f"arms[{n}].reward", reward, states[-1])
        rewards.append(tuple(map(float, reward)))
    if whole_number("plays", plays, 1) > len(arms):
        raise malformed(f"plays must be at most {len(arms)}, the number of arms, got {plays}")
    shape = Shape(plays, tuple(states), whole_number("gaps", gaps, 1))
    if shape.size > MAX_COUNTS:
        raise malformed(f"arms must have at most {MAX_COUNTS} counts, got {shape.size}")
    return RoundMessage(
        federation=federation,
        agent=agent,
        round=whole_number("round", number, 1),
        slots=whole_number("episode.slots", slots, 1),
        visit_factor=None if visits is None else whole_number("episode.visits", visits, 1),
        shape=shape,
        rewards=tuple(rewards),
        plan=parse_plan(plan, shape),
    )


def check_protocol(version: Any) -> None:
    """Refuse another version of the protocol."""
    if type(version) is not int or version != PROTOCOL:
        raise malformed(f"protocol must be {PROTOCOL}, got {shown(version)}")


# ------------------------------------------------------------------------------------------ plans


def plan_table(plan: Plan) -> dict[str, Any]:
    """A plan as JSON has it; numbers are of single precision and keep all their digits."""
    if isinstance(plan, TurnsPlan):
        return {"kind": "turns", "in_play": plan.in_play.tolist()}
    if isinstance(plan, OwnPlan):
        return {"kind": "own", "learner": plan.learner, "options": dict(plan.options)}
    ages = {"max_age": plan.max_age, "wrap": plan.wrap}
    if isinstance(plan, IndexPlan):
        rows = [
            _written(row[: 1 + s * plan.max_age])
            for row, s in zip(plan.index, plan.states, strict=True)
        ]
        return {"kind": "index", **ages, "index": rows}
    return {
        "kind": "lookahead",
        "depth": plan.depth,
        **ages,
        "shows": [[_written(row) for row in table] for table in plan.tables.observation_probs],
        "gains": [[_written(row) for row in table] for table in plan.tables.gains],
    }


def _written(row: npt.NDArray[np.float32]) -> list[float]:
    """Numbers of single precision by their shortest digits, which lead back to them."""
    return [float(str(number)) for number in row]


def parse_plan(table: Any, shape: Shape) -> Plan:
    """The plan that a server sent; ProtocolError if it is none for these arms."""
    if not isinstance(table, dict) or table.get("kind") not in _PLAN_READERS:
        kind = table.get("kind") if isinstance(table, dict) else table
        raise malformed(f"plan.kind must be one of {', '.join(_PLAN_READERS)}, got {shown(kind)}")
    return _PLAN_READERS[table["kind"]](table, shape)


def _read_ages(age: Any, wrap: Any) -> tuple[int, int]:
    if whole_number("plan.max_age", age, 1) > MAX_PLAN_AGES:
        raise malformed(f"plan.max_age must be at most {MAX_PLAN_AGES}, got {age}")
    if whole_number("plan.wrap", wrap, 0) > age:
        raise malformed(f"plan.wrap must be at most max_age, {age}, got {wrap}")
    return age, wrap


def _read_index(table: dict[str, Any], shape: Shape) -> IndexPlan:
    _, age, wrap, index = take(table, "plan", "kind", "max_age", "wrap", "index")
    max_age, back = _read_ages(age, wrap)
    rows = np.zeros((shape.n_arms, 1 + max(shape.states) * max_age), np.float32)
    for arm, row in enumerate(listed("plan.index", index, shape.n_arms)):
        size = 1 + shape.states[arm] * max_age
        rows[arm, :size] = floats(f"plan.index[{arm}]", row, size)
    return IndexPlan(max_age, back, rows, shape.states)


def _read_turns(table: dict[str, Any], shape: Shape) -> TurnsPlan:
    _, in_play = take(table, "plan", "kind", "in_play")
    for arm, plays in enumerate(listed("plan.in_play", in_play, shape.n_arms)):
        if not isinstance(plays, bool):
            raise malformed(f"plan.in_play[{arm}] must be true or false, got {shown(plays)}")
    return TurnsPlan(np.array(in_play, bool))


def _read_lookahead(table: dict[str, Any], shape: Shape) -> LookaheadPlan:
    keys = ("kind", "depth", "max_age", "wrap", "shows", "gains")
    _, depth, age, wrap, shows, gains = take(table, "plan", *keys)
    if type(depth) is not int or depth not in DEPTHS:
        raise malformed(f"plan.depth must be one of {DEPTHS}, got {shown(depth)}")
    max_age, back = _read_ages(age, wrap)
    S = max(shape.states)

    def tables(place: str, value: Any, length: int) -> tuple[npt.NDArray[np.float32], ...]:
        return tuple(
            np.stack(
                [
                    floats(f"{place}[{i}][{arm}]", row, 1 + S * max_age)
                    for arm, row in enumerate(listed(f"{place}[{i}]", each, shape.n_arms))
                ]
            )
            for i, each in enumerate(listed(place, value, length))
        )

    probs, by_slots = tables("plan.shows", shows, S - 1), tables("plan.gains", gains, depth)
    return LookaheadPlan(depth, max_age, back, LookaheadTables(probs, by_slots, None))


def _read_own(table: dict[str, Any], shape: Shape) -> OwnPlan:  # noqa: ARG001 - as every reader
    _, learner, options = take(table, "plan", "kind", "learner", "options")
    if learner not in OWN_INDICES:
        raise malformed(
            f"plan.learner must be one of {', '.join(OWN_INDICES)}, got {shown(learner)}"
        )
    if not isinstance(options, dict):
        raise malformed(f"plan.options must be an object, got {shown(options)}")
    known = {field.name for field in fields(OWN_INDICES[learner])}
    for key, value in options.items():
        if key not in known or not is_number(value):
            raise malformed(
                f"plan.options must have numbers for {', '.join(sorted(known))} alone, "
                f"got {shown(key)} = {shown(value)}"
            )
    return OwnPlan(learner, options)


_PLAN_READERS: dict[str, Callable[[dict[str, Any], Shape], Plan]] = {
    "index": _read_index,
    "turns": _read_turns,
    "lookahead": _read_lookahead,
    "own": _read_own,
}
