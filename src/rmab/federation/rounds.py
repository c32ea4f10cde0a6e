"""Rounds without input or output: lengths of episodes, the stop rule, who is awaited, when to
close.

An episode lasts at most `limit` slots, where limit comes from the previous episode's length, and
under the paper's rule it ends early when, for some agent, arm and state seen,

    N_t(s, a = 1) > 2^M max(1, N_{t_l}(s, a = 1)),                                   eq. (22)

with N_{t_l} the visits at the start of the episode. `linear` and `doubling` drop the second rule:
they are public schedules that reveal nothing about what was seen. All start from T_0 = 1.

These functions are written for NumPy and JAX arrays alike; engine and service call the same.

A served round is a `Coordinator`. It awaits the agents that reported in the previous round and
those that fetched this one, unless they left. A report is an upload of this round from an episode
that had begun (length > 0). The round closes

    all       when all that are awaited have reported, and at least one has;
    deadline  when so many seconds have passed since its first report.

A round without a report stays open: there is nothing new to learn. An agent that misses the
deadline is not awaited again until it fetches a round; its counts come with its next upload.

The next round's episodes last at most next_limit(previous length): under `paper` the longest that
was reported, under the public schedules the limit itself, whoever came late.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from rmab.linalg import Array, array_namespace

__all__ = [
    "DRAWS",
    "FIRST_LENGTH",
    "LONGEST",
    "SCHEDULES",
    "Coordinator",
    "first_limit",
    "most_episodes",
    "next_limit",
    "visit_limit",
    "visits_can_end",
]

FIRST_LENGTH = 1  # T_0
LONGEST = 2**40  # slots: a horizon for agents that have none
SCHEDULES = ("paper", "linear", "doubling")
DRAWS = ("shared", "per-agent")  # one draw of the dynamics for all agents, or one for each


def next_limit(schedule: str, previous_length: Array) -> Array:
    """The most slots the next episode may last."""
    return 2 * previous_length if schedule == "doubling" else previous_length + 1


def visits_can_end(schedule: str, n_agents: int, horizon: int) -> bool:
    """Whether the second stop rule can ever act: a count must pass 2^M within the horizon."""
    return schedule == "paper" and 2**n_agents < horizon


def visit_limit(visits: Array, factor: int, horizon: int) -> Array:
    """The visit counts that end an episode when exceeded, from those at its start.

    factor: 2^M. No count exceeds the horizon, so larger limits are cut to it before they overflow.
    """
    xp = array_namespace(visits)
    factor = min(factor, horizon)
    enough = horizon // factor + 1
    return xp.minimum(factor * xp.clip(visits, 1, enough), horizon)


def most_episodes(
    schedule: str, n_agents: int, n_arms: int, horizon: int, n_states: int = 2
) -> int:
    """A count of episodes that no run can exceed (Lemma 1's argument without its averaging).

    Each (agent, arm, state) can end at most floor(log T / log 2^M) + 1 episodes. Between two such
    ends lengths grow by one, so n of them take at least n(n + 1)/2 slots.
    """
    if schedule == "doubling":
        return math.ceil(math.log2(horizon + 1)) + 1
    ends = 0
    if visits_can_end(schedule, n_agents, horizon):
        ends = n_states * n_arms * n_agents * (math.floor(math.log2(horizon) / n_agents) + 1)
    return min(horizon, math.ceil(math.sqrt(2 * horizon * (ends + 1))) + 1)


def first_limit(schedule: str) -> int:
    """The most slots of the first round's episodes."""
    return int(next_limit(schedule, FIRST_LENGTH))


class Coordinator:
    """One open round.

    limit: the most slots of its episodes; awaited, reports: agents, and lengths by agent, where it
    resumes a round; deadline: seconds. Times are seconds of one clock.
    """

    def __init__(
        self,
        number: int,
        limit: int,
        deadline: float,
        awaited: Iterable[str] = (),
        reports: Mapping[str, int] | None = None,
        now: float = 0.0,
    ) -> None:
        self.number = number
        self.limit = limit
        self.deadline = deadline
        self.awaited = set(awaited)
        self.reports = dict(reports or {})
        self._first_report = now if self.reports else None

    def fetched(self, agent: str) -> None:
        """The agent has this round and plays it."""
        self.awaited.add(agent)

    def reported(self, agent: str, length: int, now: float) -> None:
        """The agent's upload of this round was accepted; length: slots of its episode."""
        if length < 1:
            return
        self.awaited.add(agent)
        self.reports[agent] = max(length, self.reports.get(agent, 0))
        if self._first_report is None:
            self._first_report = now

    def left(self, agent: str) -> None:
        """The agent is not awaited any more."""
        self.awaited.discard(agent)

    def due(self, now: float) -> str | None:
        """Why the round is to close, or None while it stays open."""
        if not self.reports:
            return None
        if self.awaited <= self.reports.keys():
            return "all"
        wakes = self.wakes()
        return "deadline" if wakes is not None and now >= wakes else None

    def wakes(self) -> float | None:
        """When the deadline passes; None before the first report."""
        return None if self._first_report is None else self._first_report + self.deadline

    def next(self, schedule: str) -> Coordinator:
        """The round that follows."""
        length = self.limit
        if schedule == "paper" and self.reports:
            length = min(self.limit, max(self.reports.values()))
        limit = int(next_limit(schedule, length))
        awaited = self.awaited & self.reports.keys()
        return Coordinator(self.number + 1, limit, self.deadline, awaited)
