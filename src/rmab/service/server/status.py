"""Status of a federation for people: in numbers, and all that the page shows.

Indices are those of the open round's plan, estimates of the counts it was planned from; plays,
agents and rewards are of all uploads that are committed. A page asks every second; however many
pages there are, the answer is made at most a few times a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rmab.errors import StorageError
from rmab.policies.plans import Plan
from rmab.protocol.config import Federation, KnownArm
from rmab.protocol.messages import plan_table
from rmab.protocol.outliers import OutlierScores, compared
from rmab.service.server.metrics import Metrics
from rmab.service.server.rounds import Rounds
from rmab.service.store.store import AgentRow, RewardRow, RoundRow, Store
from rmab.service.store.unmasking import GroupRow, WaitingRow
from rmab.service.store.uploads import UploadTotals

__all__ = ["Status"]

Table = dict[str, Any]

_NOTHING = OutlierScores({}, ())
_REST = 20.0  # of the time that scores take, before they are made again


class _KeptPage(NamedTuple):
    """A page that may be given out again: until when, and while nothing has changed."""

    until: float
    changes: int
    page: bytes


class _PageRows(NamedTuple):
    """Rows of the database for a page."""

    agents: list[AgentRow]
    totals: UploadTotals
    visits: npt.NDArray[np.int64] | None  # (S, N); None: they are not released
    rewards: list[RewardRow]
    rounds: list[RoundRow]


class _OpenedSums(NamedTuple):
    """Openings and releases in the database.

    groups: their last one; waiting: agents with slots in none; impossible: how many were dropped;
    left: releases that are left, by group, where the server draws the noise.
    """

    groups: dict[int, GroupRow]
    waiting: list[WaitingRow]
    waiting_slots: int
    impossible: int
    left: dict[int, int]


class Status:
    """The federation of these rounds, as JSON has it."""

    def __init__(self, rounds: Rounds) -> None:
        self._rounds = rounds
        self._limits = rounds.limits
        self._outliers = _Outliers(rounds)
        self._kept: _KeptPage | None = None
        self._indices: tuple[Plan, list[Table | None]] | None = None  # of the plan they are of

    @property
    def _federation(self) -> Federation:
        """The federation now: some of it may change."""
        return self._rounds.federation

    async def numbers(self) -> Table:
        """The federation in numbers, at once: estimates that take long are of an earlier round, or
        not there yet."""
        rounds = self._rounds
        estimates = await rounds.planning.estimated(
            rounds.current, self._limits.page_estimate_seconds
        )
        now = rounds.clock()
        rows, totals = await rounds.jobs.run(
            lambda store: (store.agents(now), store.uploads.totals())
        )
        return {
            **self._head(totals),
            **await self._privacy(),
            "agents": sum(row.role == "agent" and row.revoked is None for row in rows),
            "live": len(self._live(rows)),
            "arms": estimates or [None] * len(self._federation.arms),
        }

    async def agents(self) -> list[Table]:
        """All that were ever enrolled."""
        now = self._rounds.clock()
        rows = await self._rounds.jobs.run(lambda store: store.agents(now))
        return self._agents(rows, await self._outliers.now())

    async def measure(self, metrics: Metrics) -> None:
        """Bring the gauges up to date, with the database's numbers if it answers."""
        with contextlib.suppress(StorageError):
            now = self._rounds.clock()
            rows = await self._rounds.jobs.run(lambda store: store.agents(now))
            revoked = [row.revoked is not None for row in rows if row.role == "agent"]
            metrics.agents.labels("enrolled").set(revoked.count(False))
            metrics.agents.labels("revoked").set(revoked.count(True))
            metrics.agents.labels("live").set(len(self._live(rows)))
            found = await self._outliers.lately(self._limits.page_estimate_seconds)
            metrics.outlier.clear()
            for name, score in found.scores.items():
                if score is not None:
                    metrics.outlier.labels(name).set(score)
            if self._federation.privacy is not None:
                opened = await self._rounds.jobs.run(_opened)
                metrics.waiting_slots.set(opened.waiting_slots)
                for group, left in self._left(opened).items():
                    metrics.releases_left.labels(str(group)).set(left)
        metrics.longpolls.set(self._rounds.polls.count)
        if self._rounds.jobs.running:
            metrics.queue_jobs.set(self._rounds.jobs.waiting)

    async def page(self) -> bytes:
        """All that the page shows, as JSON."""
        rounds, kept = self._rounds, self._kept
        if kept and kept.changes == rounds.changes and time.monotonic() <= kept.until:
            return kept.page
        changes = rounds.changes
        now = rounds.clock()
        found = await rounds.jobs.run(lambda store: self._read(store, now))
        estimates = await rounds.planning.estimated(
            rounds.current, self._limits.page_estimate_seconds
        )
        alike = await self._outliers.lately(self._limits.page_estimate_seconds)
        table = self._page(found, now, estimates, alike) | await self._privacy()
        page = json.dumps(table, separators=(",", ":"), allow_nan=False).encode()
        self._kept = _KeptPage(time.monotonic() + self._limits.page_seconds, changes, page)
        return page

    def _read(self, store: Store, now: float) -> _PageRows:
        """A job."""
        return _PageRows(
            store.agents(now),
            store.uploads.totals(),
            None if self._federation.budget is not None else store.merged().visits,
            store.rewards(self._limits.page_rewards),
            store.rounds(self._limits.page_rounds),
        )

    def _page(
        self, found: _PageRows, now: float, estimates: list[Table] | None, alike: OutlierScores
    ) -> Table:
        """estimates: None before there are any; alike: agents held against one another."""
        federation, opened = self._federation, self._rounds.current
        known: Sequence[Table | None] = estimates or [None] * len(federation.arms)
        plays = None if found.visits is None else found.visits.sum(0)
        total = 0 if plays is None else int(plays.sum())
        arms = [
            {
                "states": arm.states,
                "reward": list(arm.reward),
                **_kind_table(arm),
                "estimate": estimate,
                "index": index,
                "plays": None if plays is None else int(plays[n]),
                "share": None if plays is None else int(plays[n]) / total if total else 0.0,
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
            "warnings": [*self._rounds.warnings(), *_camps(alike)],
            "agents": self._agents([row for row in found.agents if row.role == "agent"], alike),
            "rounds": [_round_table(row, self._rounds.reports) for row in found.rounds],
        }

    async def _privacy(self) -> Table:
        """Return openings or releases by group, waiting slots, noise, releases left and the
        helper's state; nothing without [privacy]."""
        privacy = self._federation.privacy
        if privacy is None:
            return {}
        opening, found = self._rounds.opening, await self._rounds.jobs.run(_opened)
        budget, left = privacy.budget, self._left(found)
        nothing = dict.fromkeys(GroupRow._fields)
        helper = None if opening is None else {"url": privacy.helper, **opening.state._asdict()}
        return {
            "privacy": {
                "mode": "noise" if opening is None else "sums",
                "least": None if opening is None else privacy.least,
                "epsilon": None if budget is None else budget.epsilon,
                "delta": None if budget is None else budget.delta,
                "releases_left": min(left.values(), default=None),
                "groups": [
                    {
                        **(found.groups[group]._asdict() if group in found.groups else nothing),
                        "group": group,
                        "releases_left": left.get(group),
                    }
                    for group in range(1, privacy.groups + 1)
                ],
                "waiting": [row._asdict() for row in found.waiting],
                "waiting_slots": found.waiting_slots,
                "impossible": found.impossible,
                "helper": helper,
            }
        }

    def _left(self, found: _OpenedSums) -> Mapping[int, int]:
        """Return releases that are left, by group; none before the helper has answered."""
        opening = self._rounds.opening
        return found.left if opening is None else opening.releases_left

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

    def _head(self, totals: UploadTotals) -> Table:
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

    def _agents(self, rows: Sequence[AgentRow], alike: OutlierScores) -> list[Table]:
        """Return agents and admins, with sightings that the database may not have yet."""
        presence = self._rounds.presence
        live = self._live(rows)
        return [
            {
                **presence.updated(row).to_table(self._federation.weights),
                "outlier": alike.scores.get(row.name),
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

    A score is for people (`rmab.protocol.outliers`). So uploads and rounds do not wait for any:
    all are made together, in a thread, when somebody asks and something has changed. Pages and
    metrics ask all the time, whatever it costs; they are given the last scores, and new ones are
    made for them only after a while that is long against the time that they take.
    """

    def __init__(self, rounds: Rounds) -> None:
        self._rounds = rounds
        self._work: asyncio.Task[OutlierScores] | None = None
        self._started = 0  # how often
        self._changes = -1  # as of which the work is
        self._last = _NOTHING
        self._rests_until = 0.0

    async def now(self) -> OutlierScores:
        """Return scores of the counts that are committed now, also by other processes."""
        asked = self._started
        while self._work is not None and not self._work.done():
            await asyncio.wait({self._work})
        if self._work is None or self._started == asked:
            self._start()
        assert self._work is not None
        return await asyncio.shield(self._work)

    async def lately(self, seconds: float) -> OutlierScores:
        """Return the last scores, waiting at most `seconds` for newer ones."""
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

    async def _make(self) -> OutlierScores:
        started = time.monotonic()
        counts, owners = await self._rounds.jobs.run(
            lambda store: (store.counts_by_agent(), store.credentials.owners())
        )
        found = await asyncio.to_thread(compared, counts, self._rounds.federation.shape, owners)
        now = time.monotonic()
        least = self._rounds.limits.outlier_seconds
        self._rests_until = now + max(least, _REST * (now - started))
        return found

    def _made(self, done: asyncio.Task[OutlierScores]) -> None:
        if done.cancelled() or done.exception() is not None:
            self._work = None  # who asks next tries again
        else:
            self._last = done.result()


def _opened(store: Store) -> _OpenedSums:
    """Job: the openings, or releases where the server draws the noise."""
    openings, releases = store.openings, store.releases
    if releases is not None:
        last, left = releases.group(), releases.left()
        groups = {} if last is None else {last.group: last}
        return _OpenedSums(groups, [], releases.waiting_slots(), 0, {1: left})
    assert openings is not None
    waiting = openings.waiting_rows()
    return _OpenedSums(
        {row.group: row for row in openings.groups()},
        waiting,
        sum(row.slots for row in waiting),
        openings.impossible(),
        {},
    )


def _camps(alike: OutlierScores) -> list[str]:
    """A warning where agents contradict one another and no majority is clear."""
    if not alike.divided:
        return []
    arms = ", ".join(str(arm + 1) for arm in alike.divided)
    one = "arm" if len(alike.divided) == 1 else "arms"
    return [
        f"Two camps: agents contradict one another about {one} {arms}, and no majority is clear. "
        "The outlier scores do not say which of them are right."
    ]


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
    """Return the keys of an arm that is not as most are."""
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
