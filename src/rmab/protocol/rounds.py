"""Open rounds without input or output: awaited agents, and the time to close.

Awaited are the agents that reported in the previous round and those that fetched this one, unless
they left. A report is an upload of this round from an episode that had begun (length > 0). The
round closes

    all       when all that are awaited have reported, and at least one has;
    deadline  when `deadline` seconds have passed since its first report.

A round without a report stays open: there is nothing new to learn. An agent that misses a deadline
is not awaited again until it fetches a round, and one that misses `MOST_MISSED` with no report in
between not until it reports: whoever fetches every round and never reports would hold up all of
them. Counts of who is late come with its next upload.

It stands apart from the server that uses it, so that the protocol is tested without a
network, a database or a clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rmab.policies.episodes import next_limit, round_length

__all__ = ["MOST_MISSED", "Coordinator"]

MOST_MISSED = 2  # deadlines that an agent may miss before it is no longer awaited


class Coordinator:
    """An open round.

    limit: the most slots of its episodes; awaited, reports: agents, and lengths by agent, where it
    resumes a round; missed: deadlines that agents have missed since they last reported; deadline:
    seconds. Times are seconds of one clock.
    """

    def __init__(
        self,
        number: int,
        limit: int,
        deadline: float,
        awaited: Iterable[str] = (),
        reports: Mapping[str, int] | None = None,
        now: float = 0.0,
        missed: Mapping[str, int] | None = None,
    ) -> None:
        self.number = number
        self.limit = limit
        self.deadline = deadline
        self.awaited = set(awaited)
        self.reports = dict(reports or {})
        self.missed = dict(missed or {})
        self._late: set[str] = set()
        self._first_report = now if self.reports else None

    def fetched(self, agent: str) -> None:
        """Note that the agent has this round and plays it."""
        if self.missed.get(agent, 0) < MOST_MISSED:
            self.awaited.add(agent)

    def reported(self, agent: str, length: int, now: float) -> None:
        """Note that the agent's upload of this round was accepted; length: slots of its episode."""
        if length < 1:
            return
        self.awaited.add(agent)
        self.missed.pop(agent, None)
        self.reports[agent] = max(length, self.reports.get(agent, 0))
        if self._first_report is None:
            self._first_report = now

    def left(self, agent: str) -> None:
        """Await the agent no longer."""
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

    def close(self, reason: str) -> None:
        """Close the round, as `due` said; a report until the next one opens is not late."""
        self._late = self.awaited - self.reports.keys() if reason == "deadline" else set()

    def next(self, schedule: str, longest: int | None = None) -> Coordinator:
        """The round that follows; longest: slots that no episode may pass."""
        missed = dict(self.missed)
        for agent in self._late - self.reports.keys():
            missed[agent] = missed.get(agent, 0) + 1
        length = round_length(schedule, self.limit, self.reports.values())
        limit = int(next_limit(schedule, length, longest))
        awaited = self.awaited & self.reports.keys()
        return Coordinator(self.number + 1, limit, self.deadline, awaited, missed=missed)
