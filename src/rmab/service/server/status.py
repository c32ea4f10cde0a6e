"""What people see of a federation: its status in numbers, and all that the page shows.

Indices are those of the open round's plan, estimates of the counts it was planned from; plays,
agents and rewards are of all uploads that are committed. A page asks every second; however many
pages there are, the answer is made at most a few times a second.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rmab.federation.config import Federation
from rmab.service.store.rows import AgentRow, OpenRound, RewardRow, RoundRow
from rmab.service.store.standing import Totals
from rmab.service.store.store import Store

__all__ = ["Overview", "Seen", "Standings"]

MOST_REWARDS, MOST_ROUNDS = 500, 50
KEPT = 0.25  # seconds that an overview is given out again while nothing has changed

Table = dict[str, Any]


class Seen(NamedTuple):
    """What is known of an agent and may not be in the database yet."""

    last_seen: float | None = None
    last_round: int | None = None
    refused: int = 0


class Standings(NamedTuple):
    """What the database has for an overview."""

    agents: list[AgentRow]
    totals: Totals
    visits: npt.NDArray[np.int64]  # (S, N)
    rewards: list[RewardRow]
    rounds: list[RoundRow]

    @classmethod
    def of(cls, store: Store) -> Standings:
        """Read them, as one job of the writer."""
        return cls(
            store.agents(),
            store.totals(),
            store.merged().visits,
            store.rewards(MOST_REWARDS),
            store.rounds(MOST_ROUNDS),
        )


class Overview:
    """Puts them into tables."""

    def __init__(self, federation: Federation) -> None:
        self._federation = federation
        S = max(federation.shape.states)
        self._pays = np.zeros((S, len(federation.arms)))  # (S, N)
        for n, arm in enumerate(federation.arms):
            self._pays[: arm.states, n] = arm.reward
        self._round: OpenRound | None = None
        self._indices: list[Table | None] = []
        self._kept: tuple[float, bytes] | None = None

    def changed(self) -> None:
        """Something happened that the page shows."""
        self._kept = None

    def enter(self, opened: OpenRound) -> None:
        """A round was opened."""
        self._round = opened
        self._indices = _indices(json.loads(opened.plan_json or b"{}"), self._federation)
        self.changed()

    def reward(self, visits: npt.NDArray[np.int64], slots: int) -> float | None:
        """Mean reward of a slot; None without slots."""
        return None if slots < 1 else float((visits * self._pays).sum()) / slots

    def status(
        self, agents: list[AgentRow], totals: Totals, live: int, estimates: list[Table]
    ) -> Table:
        """The federation in numbers."""
        return {
            **self._head(totals),
            "agents": sum(row.role == "agent" and row.revoked is None for row in agents),
            "live": live,
            "arms": estimates,
        }

    def _head(self, totals: Totals) -> Table:
        assert self._round is not None
        return {
            "federation": self._federation.name,
            "policy": self._federation.policy,
            "round": self._round.number,
            "limit": self._round.limit,
            "uploads": totals.uploads,
            "slots": totals.slots,
        }

    def kept(self) -> bytes | None:
        """The last page, if it still holds."""
        if self._kept is None or time.monotonic() > self._kept[0] + KEPT:
            return None
        return self._kept[1]

    def page(
        self,
        found: Standings,
        live: set[str],
        seen: Mapping[str, Seen],
        reports: int,
        now: float,
        estimates: list[Table] | None,
    ) -> bytes:
        """All that the page shows, as JSON; estimates: None before there are any."""
        assert self._round is not None
        known: Sequence[Table | None] = estimates or [None] * len(self._federation.arms)
        plays = found.visits.sum(0)
        total = int(plays.sum())
        arms = [
            {
                "states": arm.states,
                "reward": list(arm.reward),
                "estimate": estimate,
                "index": index,
                "plays": int(plays[n]),
                "share": int(plays[n]) / total if total else 0.0,
            }
            for n, (arm, estimate, index) in enumerate(
                zip(self._federation.arms, known, self._indices, strict=True)
            )
        ]
        table = {
            **self._head(found.totals),
            "plays": self._federation.plays,
            "opened": self._round.opened,
            "now": now,
            "deadline": self._federation.deadline,
            "reference": self._federation.reference,
            "arms": arms,
            "rewards": [row._asdict() for row in found.rewards],
            "agents": [
                agent_table(row, row.name in live, seen.get(row.name, Seen()))
                for row in found.agents
                if row.role == "agent"
            ],
            "rounds": [_round_table(row, reports) for row in found.rounds],
        }
        text = json.dumps(table, separators=(",", ":"), allow_nan=False).encode()
        self._kept = (time.monotonic(), text)
        return text


def agent_table(row: AgentRow, live: bool, seen: Seen) -> Table:
    """An agent or admin, as JSON has it."""
    times = [when for when in (row.last_seen, seen.last_seen) if when is not None]
    numbers = [number for number in (row.last_round, seen.last_round) if number is not None]
    return {
        "name": row.name,
        "lane": row.lane if row.role == "agent" else None,
        "role": row.role,
        "enrolled": row.enrolled,
        "revoked": row.revoked,
        "last_seen": max(times, default=None),
        "episode": max(numbers, default=None),
        "uploads": row.uploads,
        "refused": row.refused + seen.refused,
        "slots": row.slots,
        "reward": row.reward,
        "live": live and row.revoked is None,
    }


def _round_table(row: RoundRow, reports: int) -> Table:
    return {
        "round": row.number,
        "opened": row.opened,
        "closed": row.closed,
        "reason": row.reason,
        "reports": reports if row.reports is None else row.reports,
        "limit": row.limit,
    }


def _indices(plan: Table, federation: Federation) -> list[Table | None]:
    """The index of every arm by state and age, where the plan is a table of them."""
    if plan.get("kind") != "index":
        return [None] * len(federation.arms)
    J = plan["max_age"]
    return [
        {"never": row[0], "by_state": [row[1 + s * J : 1 + (s + 1) * J] for s in range(arm.states)]}
        for arm, row in zip(federation.arms, plan["index"], strict=True)
    ]
