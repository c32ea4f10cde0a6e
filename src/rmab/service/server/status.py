"""What people see of a federation: its status in numbers, and all that the page shows.

Indices are those of the open round's plan, estimates of the counts it was planned from; plays,
agents and rewards are of all uploads that are committed. A page asks every second; however many
pages there are, the answer is made at most a few times a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rmab.errors import StorageError
from rmab.federation.config import Federation, KnownArm
from rmab.federation.messages import plan_table
from rmab.federation.outliers import scores_by_name
from rmab.policies.plans import Plan
from rmab.service.server.rounds import Rounds
from rmab.service.server.telemetry import Metrics
from rmab.service.store.openings import GroupRow, WaitingRow
from rmab.service.store.store import AgentRow, RewardRow, RoundRow, Store
from rmab.service.store.uploads import Totals

__all__ = ["Status"]

Table = dict[str, Any]
Scores = dict[str, float | None]  # by agent

_REST = 20.0  # of the time that scores take, before they are made again


class _Kept(NamedTuple):
    """A page that may be given out again: until when, and while nothing has changed."""

    until: float
    changes: int
    page: bytes


class _Found(NamedTuple):
    """What the database has for a page."""

    agents: list[AgentRow]
    totals: Totals
    visits: npt.NDArray[np.int64]  # (S, N)
    rewards: list[RewardRow]
    rounds: list[RoundRow]


class Status:
    """The federation of these rounds, as JSON has it."""

    def __init__(self, rounds: Rounds) -> None:
        self._rounds = rounds
        self._limits = rounds.limits
        self._outliers = _Outliers(rounds)
        self._kept: _Kept | None = None
        self._indices: tuple[Plan, list[Table | None]] | None = None  # of the plan they are of

    @property
    def _federation(self) -> Federation:
        """As it is now: some of it may change."""
        return self._rounds.federation

    async def numbers(self) -> Table:
        """The federation in numbers, at once: estimates that take long are of an earlier round, or
        not there yet."""
        rounds = self._rounds
        estimates = await rounds.planning.estimated(
            rounds.current, self._limits.page_estimate_seconds
        )
        rows, totals = await rounds.jobs.run(lambda store: (store.agents(), store.totals()))
        return {
            **self._head(totals),
            **await self._privacy(),
            "agents": sum(row.role == "agent" and row.revoked is None for row in rows),
            "live": len(self._live(rows)),
            "arms": estimates or [None] * len(self._federation.arms),
        }

    async def agents(self) -> list[Table]:
        """All that were ever enrolled."""
        rows = await self._rounds.jobs.run(lambda store: store.agents())
        return self._agents(rows, await self._outliers.now())

    async def measure(self, metrics: Metrics) -> None:
        """Bring the gauges up to date, with what the database tells if it answers."""
        with contextlib.suppress(StorageError):
            rows = await self._rounds.jobs.run(lambda store: store.agents())
            revoked = [row.revoked is not None for row in rows if row.role == "agent"]
            metrics.agents.labels("enrolled").set(revoked.count(False))
            metrics.agents.labels("revoked").set(revoked.count(True))
            metrics.agents.labels("live").set(len(self._live(rows)))
            scores = await self._outliers.lately(self._limits.page_estimate_seconds)
            metrics.outlier.clear()
            for name, score in scores.items():
                if score is not None:
                    metrics.outlier.labels(name).set(score)
            if self._rounds.opening is not None:
                _, waiting, _ = await self._rounds.jobs.run(_opened)
                metrics.waiting_slots.set(sum(row.slots for row in waiting))
        metrics.longpolls.set(self._rounds.polls.count)
        if self._rounds.jobs.running:
            metrics.queue_jobs.set(self._rounds.jobs.waiting)

    async def page(self) -> bytes:
        """All that the page shows, as JSON."""
        rounds, kept = self._rounds, self._kept
        if kept and kept.changes == rounds.changes and time.monotonic() <= kept.until:
            return kept.page
        changes = rounds.changes
        found = await rounds.jobs.run(self._read)
        now = rounds.clock()
        estimates = await rounds.planning.estimated(
            rounds.current, self._limits.page_estimate_seconds
        )
        scores = await self._outliers.lately(self._limits.page_estimate_seconds)
        table = self._page(found, now, estimates, scores) | await self._privacy()
        page = json.dumps(table, separators=(",", ":"), allow_nan=False).encode()
        self._kept = _Kept(time.monotonic() + self._limits.page_seconds, changes, page)
        return page

    def _read(self, store: Store) -> _Found:
        """A job."""
        return _Found(
            store.agents(),
            store.totals(),
            store.merged().visits,
            store.rewards(self._limits.page_rewards),
            store.rounds(self._limits.page_rounds),
        )

    def _page(
        self, found: _Found, now: float, estimates: list[Table] | None, scores: Scores
    ) -> Table:
        """estimates: None before there are any."""
        federation, opened = self._federation, self._rounds.current
        known: Sequence[Table | None] = estimates or [None] * len(federation.arms)
        plays = found.visits.sum(0)
        total = int(plays.sum())
        arms = [
            {
                "states": arm.states,
                "reward": list(arm.reward),
                **_kind_table(arm),
                "estimate": estimate,
                "index": index,
                "plays": int(plays[n]),
                "share": int(plays[n]) / total if total else 0.0,
            }
            for n, (arm, estimate, index) in enumerate(
                zip(federation.arms, known, self._open_indices(), strict=True)
            )
        ]
        return {
            **self._head(found.totals),
            "plays": federation.plays,
            "opened": None if opened is None else opened.opened,
            "now": now,
            "deadline": federation.deadline,
            "reference": federation.reference,
            "arms": arms,
            "correlation": self._correlation(),
            "rewards": [row._asdict() for row in found.rewards],
            "agents": self._agents([row for row in found.agents if row.role == "agent"], scores),
            "rounds": [_round_table(row, self._rounds.reports) for row in found.rounds],
        }

    async def _privacy(self) -> Table:
        """Where the server learns sums alone: of whom, which were opened, what waits, and how the
        helper is."""
        opening, privacy = self._rounds.opening, self._federation.privacy
        if opening is None or privacy is None:
            return {}
        groups, waiting, impossible = await self._rounds.jobs.run(_opened)
        state = opening.state
        return {
            "privacy": {
                "mode": "sums",
                "least": privacy.least,
                "groups": [
                    groups[group]._asdict()
                    if group in groups
                    else dict.fromkeys(GroupRow._fields) | {"group": group}
                    for group in range(1, privacy.groups + 1)
                ],
                "waiting": [row._asdict() for row in waiting],
                "waiting_slots": sum(row.slots for row in waiting),
                "impossible": impossible,
                "helper": {"url": privacy.helper, **state._asdict()},
            }
        }

    def _correlation(self) -> Table | None:
        """How alike rounds turn out for agents, and whether draws of their own would help; None
        before there is enough to tell."""
        together = self._rounds.together
        rho = together.correlation
        if rho is None:
            return None
        shares = self._federation.settings.get("draws", self._federation.draws) == "shared"
        advised = together.correlated and shares and self._federation.shares.shared
        return {"value": round(rho, 4), "correlated": together.correlated, "advised": advised}

    def _head(self, totals: Totals) -> Table:
        opened = self._rounds.current
        return {
            "federation": self._federation.name,
            "policy": self._federation.policy,
            "round": self._rounds.number,
            "limit": None if opened is None else opened.limit,
            "uploads": totals.uploads,
            "slots": totals.slots,
        }

    def _live(self, rows: Sequence[AgentRow]) -> set[str]:
        return self._rounds.live(map(self._rounds.presence.updated, rows))

    def _agents(self, rows: Sequence[AgentRow], scores: Scores) -> list[Table]:
        """Agents and admins, with what the database may not know yet."""
        presence = self._rounds.presence
        live = self._live(rows)
        return [
            {
                **presence.updated(row).to_table(self._federation.weights),
                "outlier": scores.get(row.name),
                "live": row.name in live,
            }
            for row in rows
        ]

    def _open_indices(self) -> list[Table | None]:
        plan = self._rounds.planning.shown_plan
        if plan is None:
            return [None] * len(self._federation.arms)
        if self._indices is None or self._indices[0] is not plan:
            self._indices = (plan, _indices(plan, self._federation))
        return self._indices[1]


class _Outliers:
    """Scores of agents whose counts are unlike the others', as of late; used in one event loop.

    A score is for people (`rmab.federation.outliers`). So uploads and rounds do not wait for any:
    all are made together, in a thread, when somebody asks and something has changed. Pages and
    metrics ask all the time, whatever it costs; they are given the last scores, and new ones are
    made for them only after a while that is long against the time that they take.
    """

    def __init__(self, rounds: Rounds) -> None:
        self._rounds = rounds
        self._work: asyncio.Task[Scores] | None = None
        self._started = 0  # how often
        self._changes = -1  # as of which the work is
        self._last: Scores = {}
        self._rests_until = 0.0

    async def now(self) -> Scores:
        """Those of what is committed now, by other processes too."""
        asked = self._started
        while self._work is not None and not self._work.done():
            await asyncio.wait({self._work})
        if self._work is None or self._started == asked:
            self._start()
        assert self._work is not None
        return await asyncio.shield(self._work)

    async def lately(self, seconds: float) -> Scores:
        """The last that were made, waiting so many seconds at most if newer ones are."""
        done = self._work is None or self._work.done()
        if done and self._changes < self._rounds.changes and time.monotonic() >= self._rests_until:
            self._start()
        if self._work is not None:
            await asyncio.wait({self._work}, timeout=seconds)
        return self._last

    def _start(self) -> None:
        self._started += 1
        self._changes = self._rounds.changes
        self._work = asyncio.ensure_future(self._make())
        self._work.add_done_callback(self._made)

    async def _make(self) -> Scores:
        started = time.monotonic()
        counts = await self._rounds.jobs.run(lambda store: store.counts_by_agent())
        found = await asyncio.to_thread(scores_by_name, counts, self._rounds.federation.shape)
        now = time.monotonic()
        least = self._rounds.limits.outlier_seconds
        self._rests_until = now + max(least, _REST * (now - started))
        return found

    def _made(self, done: asyncio.Task[Scores]) -> None:
        if done.cancelled() or done.exception() is not None:
            self._work = None  # who asks next tries again
        else:
            self._last = done.result()


def _opened(store: Store) -> tuple[dict[int, GroupRow], list[WaitingRow], int]:
    """A job: groups that were opened, slots that wait, and how many sums were impossible."""
    openings = store.openings
    assert openings is not None
    groups = {row.group: row for row in openings.groups()}
    return groups, openings.waiting_rows(), openings.impossible()


def _round_table(row: RoundRow, reports: int) -> Table:
    return {
        "round": row.number,
        "opened": row.opened,
        "closed": row.closed,
        "reason": row.reason,
        "reports": reports if row.reports is None else row.reports,
        "limit": row.limit,
    }


def _kind_table(arm: KnownArm) -> Table:
    """What is to be told of an arm that is not as most are."""
    told: Table = {}
    if arm.pays_when_idle:
        told["reward_passive"] = list(arm.reward_passive)
    if arm.kind.fully_observed:
        told["observed"] = arm.observed
    if arm.action_dependent:
        told["action_dependent"] = True
    return told


def _indices(plan: Plan, federation: Federation) -> list[Table | None]:
    """The index of every arm by state and age, where the plan is a table of them."""
    table = plan_table(plan)
    if table["kind"] != "index":
        return [None] * len(federation.arms)
    J = table["max_age"]

    def by_state(arm: KnownArm, row: Sequence[float]) -> Table:
        always = arm.kind.fully_observed
        ages = 1 if always else J
        lines = [row[1 + s * J : 1 + s * J + ages] for s in range(arm.states)]
        return {"never": None if always else row[0], "by_state": lines}

    return [by_state(arm, row) for arm, row in zip(federation.arms, table["index"], strict=True)]
