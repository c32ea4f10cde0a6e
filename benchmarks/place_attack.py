"""Where is an agent? What a server finds out from sums, with a helper's rules and without them.

Agents stand at eight places, which differ in their channels. A server knows the channels of every
place, and of every agent the slots that it brought to each sum. By all sums that it was told it
weighs every assignment of places to agents, and guesses. Each attack is a list of openings: the
slots that agents bring, 0 for those who are not in it. Without rules all are opened. With them a
helper is asked, by the code that helpers run (`rmab.privacy.unmasking`); where it refuses an
opening the server tries the next, and in the end one with equal shares of all.

    told   the guess of who is told the places of all agents, and not who stands where
    raw    the guess of who sees the counts of the agent

python -m benchmarks.place_attack prints the table of docs/security.md, with --json its numbers.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from rmab.errors import ProtocolError
from rmab.policies.episodes import FIRST_LENGTH, next_limit
from rmab.privacy.masks import MaskKey, Words
from rmab.privacy.unmasking import (
    BEGINNING,
    AggregationJob,
    EnrolledAgent,
    JobOutcome,
    Report,
    Watermark,
    answer_job,
)

__all__ = ["ATTACKS", "Attack", "Rules", "find", "measure", "opened", "told"]

PLACES, ARMS, PLAYED = 8, 4, 2
LEAST = 3
TRIALS, SEED = 1000, 1
Floats = npt.NDArray[np.float64]
Slots = npt.NDArray[np.int64]  # (openings, agents)


@dataclass(frozen=True)
class Attack:
    """Openings that a server asks for; targets: the agents that it is after."""

    name: str
    about: str
    slots: tuple[tuple[int, ...], ...]
    targets: tuple[int, ...]

    @property
    def agents(self) -> int:
        """How many there are."""
        return len(self.slots[0])


def _unequal_speed(schedule: str) -> tuple[tuple[int, ...], ...]:
    """All that agents have counted since the round before, whose speeds are as 5 to 3 to 2, round
    after round until the slowest has played 700 slots."""
    positions, rows, limit = np.zeros(3), [], FIRST_LENGTH
    while positions[2] < 700:
        before = positions.astype(int)
        positions += np.array((2.5, 1.5, 1.0)) * limit
        rows.append(tuple((positions.astype(int) - before).tolist()))
        limit = next_limit(schedule, limit)
    return tuple(rows)


ALL = (0, 1, 2)
ATTACKS = (
    Attack("one sum", "shares of .50, .30 and .20", ((6000, 3600, 2400),), ALL),
    Attack(
        "sums in turn",
        "three sums, in which each agent has .01 of the slots once and .495 twice",
        ((990, 990, 20), (990, 20, 990), (20, 990, 990)),
        ALL,
    ),
    Attack(
        "changing sets",
        "equal shares in four sums of three of four agents",
        (
            (1000, 1000, 1000, 0),
            (1000, 1000, 0, 1000),
            (1000, 0, 1000, 1000),
            (0, 1000, 1000, 1000),
        ),
        (0, 1, 2, 3),
    ),
    Attack(
        "one leaves",
        "equal shares in two sums, of four agents and without one of them",
        ((3000,) * 4, (3000, 3000, 3000, 0)),
        (3,),
    ),
    Attack(
        "one comes",
        "equal shares in two sums, of three agents and with another",
        ((3000, 3000, 3000, 0), (3000,) * 4),
        (3,),
    ),
    *(
        Attack(
            f"unequal speed, {schedule}",
            f'honest agents whose speeds are as 5 to 3 to 2, schedule = "{schedule}"',
            _unequal_speed(schedule),
            ALL,
        )
        for schedule in ("linear", "doubling")
    ),
)


# ------------------------------------------------------------------------------------ the world


def laws() -> Floats:
    """p01 and p11 of every arm, (place, arm, from): those of the paper, moved by up to .12."""
    rng = np.random.default_rng(3)
    paper = np.array([[0.2, 0.8], [0.89, 0.17], [0.5, 0.6], [0.3, 0.4]])
    return np.clip(paper + rng.uniform(-0.12, 0.12, (PLACES, ARMS, 2)), 0.03, 0.97)


def counted(up: Floats, slots: Slots, rng: np.random.Generator) -> Floats:
    """Pairs of consecutive looks (trial, opening, agent, arm, from, to) of agents who play two arms
    of four at random; up: p01 and p11 (trial, agent, arm, from)."""
    shape = (len(up), *slots.shape, ARMS)
    law = np.broadcast_to(up[:, None], (*shape, 2))
    state = rng.random(shape) < 0.5
    seen = np.zeros(shape, bool)
    pairs = np.zeros((2, 2, *shape), np.int32)
    for slot in range(int(slots.max())):
        left = (slots > slot)[None, :, :, None]
        first = rng.integers(ARMS, size=shape[:-1])
        second = (first + rng.integers(1, ARMS, size=shape[:-1])) % ARMS
        arm = np.arange(ARMS)
        played = ((first[..., None] == arm) | (second[..., None] == arm)) & left
        moved = rng.random(shape) < np.where(state, law[..., 1], law[..., 0])
        both = played & seen
        for a in (False, True):
            for b in (False, True):
                pairs[int(a), int(b)] += both & (state == a) & (moved == b)
        seen, state = played, moved
    return np.moveaxis(pairs, (0, 1), (-2, -1)).astype(float)


def rates(law: Floats) -> Floats:
    """Pairs of each kind that a slot has at each place, (place, arm, from, to)."""
    share = law[..., 0] / (1 - law[..., 1] + law[..., 0])  # of the time in state 1
    stationary = np.stack((1 - share, share), -1)[..., None]
    seen_twice = (PLAYED / ARMS) ** 2
    return seen_twice * stationary * np.stack((1 - law, law), -1)


# ---------------------------------------------------------------------------------- the attacker


def guesses(sums: Floats, slots: Slots, law: Floats) -> npt.NDArray[np.int64]:
    """The likeliest place of every agent, (trial, agent), by sums (trial, opening, arm, from, to)
    to which agents brought these slots, as counts that are nearly Poisson."""
    agents = slots.shape[1]
    rate = rates(law).reshape(PLACES, -1)
    weights = np.zeros((len(sums), agents, PLACES))
    best = np.full(len(sums), -np.inf)
    flat = sums.reshape(len(sums), -1)
    # All assignments, as many at a time as fit.
    places = np.array(list(product(range(PLACES), repeat=agents)))
    for part in np.array_split(places, max(1, len(places) // 4096)):
        expected = np.einsum("oa,hac->hoc", slots.astype(float), rate[part])
        expected = expected.reshape(len(part), -1) + 1e-9
        log = flat @ np.log(expected).T - expected.sum(1)
        top = np.maximum(best, log.max(1))
        weights *= np.exp(best - top)[:, None, None]
        best = top
        likely = np.exp(log - best[:, None])
        for agent in range(agents):
            for place in range(PLACES):
                weights[:, agent, place] += likely[:, part[:, agent] == place].sum(1)
    found: npt.NDArray[np.int64] = weights.argmax(-1)
    return found


def told(agents: int) -> float:
    """How often a guess is right of who is told the places of so many agents, but not whose is
    which: as often as the likeliest of them occurs."""
    sets = np.array(list(product(range(PLACES), repeat=agents)))
    most = (sets[:, :, None] == np.arange(PLACES)).sum(1).max(1)
    return float(most.mean() / agents)


# ------------------------------------------------------------------------------------ the helper


class Rules:
    """A helper in memory, of one group, and agents that upload whenever they are asked to."""

    def __init__(self, agents: int) -> None:
        self._keys = {str(n): MaskKey(bytes([n + 1]) * 32) for n in range(agents)}
        self._points: dict[tuple[str, str], Watermark] = {}
        self._cohorts: dict[str, str] = {}
        self._answers: list[tuple[str, Words]] = []
        self.position = dict.fromkeys(self._keys, 0)

    def last(self) -> tuple[int, str]:
        """Of the openings."""
        return len(self._answers), self._answers[-1][0] if self._answers else BEGINNING

    def enrolled(self, agent: str) -> EnrolledAgent | None:
        """All have a key."""
        return EnrolledAgent(1, self._keys[agent], 1, revoked=False)

    def watermark(self, agent: str, incarnation: str) -> Watermark | None:
        """Where it was opened last."""
        return self._points.get((agent, incarnation))

    def cohort(self, agent: str) -> str | None:
        """The agent's."""
        return self._cohorts.get(agent)

    def agents_in(self, cohort: str) -> list[str]:
        """Of a cohort."""
        return [agent for agent, name in self._cohorts.items() if name == cohort]

    def answer(self, number: int) -> tuple[str, Words | None] | None:
        """None is asked for twice."""
        return self._answers[number - 1] if number <= len(self._answers) else None

    def keep(self, opening: AggregationJob, opened: JobOutcome) -> None:
        """In memory."""
        self._answers.append((opening.digest, opened.masks))
        self._points |= opened.watermarks
        self._cohorts |= opened.cohorts

    def opens(self, slots: Mapping[str, int]) -> bool:
        """Whether it opens the sum of the next slots of these agents."""
        number, before = self.last()
        members = []
        for agent, brought in slots.items():
            to = self.position[agent] + brought
            header = Report(agent, "00" * 16, to, to, bytes(16), b"")
            tag = self._keys[agent].tag(header.header("00" * 32))
            members.append(header._replace(tag=tag))
        try:
            answer_job(
                AggregationJob(number + 1, before, 1, tuple(members)), self, "00" * 32, 4, LEAST
            )
        except ProtocolError:
            return False
        for agent, brought in slots.items():
            self.position[agent] += brought
        return True


def opened(attack: Attack, rules: Rules | None = None) -> Slots:
    """The openings that a helper grants, (openings, agents); with those of equal shares that the
    server asks for in the end. Agents play no further than in the attack."""
    rules = rules or Rules(attack.agents)
    granted = []
    for row in attack.slots:
        slots = {str(n): brought for n, brought in enumerate(row) if brought}
        if rules.opens(slots):
            granted.append(row)
    totals = np.array(attack.slots).sum(0)
    left = totals - np.array([rules.position[str(n)] for n in range(attack.agents)])
    if left.min() > 0:
        rest = {str(n): int(left.min()) for n in range(attack.agents)}
        if rules.opens(rest):
            granted.append((int(left.min()),) * attack.agents)
    return np.array(granted, np.int64).reshape(-1, attack.agents)


# ------------------------------------------------------------------------------------ the table


def find(attack: Attack, slots: Slots, trials: int, seed: int) -> float:
    """How often the place of a target is found, by sums of so many slots."""
    if not len(slots):
        return 1 / PLACES
    rng = np.random.default_rng(seed)
    law = laws()
    places = rng.integers(PLACES, size=(trials, attack.agents))
    counts = counted(law[places], slots, rng)
    right = guesses(counts.sum(2), slots, law) == places
    return float(right[:, list(attack.targets)].mean())


def find_raw(attack: Attack, trials: int, seed: int) -> float:
    """... by the counts of each target."""
    totals = np.array(attack.slots).sum(0)
    found = []
    for target in attack.targets:
        one = Attack("", "", ((int(totals[target]),),), (0,))
        found.append(find(one, np.array(one.slots), trials, seed + target))
    return float(np.mean(found))


def measure(
    trials: int = TRIALS, seed: int = SEED, attacks: Sequence[Attack] = ATTACKS
) -> dict[str, Any]:
    """The table: of each attack how often it finds the place, with what error (one standard error
    at the most)."""
    rows = []
    for attack in attacks:
        granted = opened(attack)
        hidden_among = len(granted[0].nonzero()[0]) if len(granted) else attack.agents
        rows.append(
            {
                "attack": attack.name,
                "about": attack.about,
                "without_rules": find(attack, np.array(attack.slots), trials, seed),
                "with_rules": find(attack, granted, trials, seed),
                "told": told(min(hidden_among, 4)),
                "raw": find_raw(attack, trials, seed),
            }
        )
    return {"trials": trials, "seed": seed, "error": 0.5 / trials**0.5, "attacks": rows}


def table(found: Mapping[str, Any]) -> str:
    """As docs/security.md has it."""
    lines = [
        "| attack | without the rules | with them | told the places, not whose | raw counts |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['about']} | "
        + " | ".join(
            f"{row[key]:.2f}".lstrip("0") for key in ("without_rules", "with_rules", "told", "raw")
        )
        + " |"
        for row in found["attacks"]
    ]
    error = f"{found['error']:.3f}".lstrip("0")
    return "\n".join(
        [*lines, "", f"{found['trials']} trials, seed {found['seed']}; errors are at most {error}."]
    )


if __name__ == "__main__":
    measured = measure()
    print(json.dumps(measured, indent=1) if "--json" in sys.argv else table(measured))
