"""Scores of agents whose counts are unlike the others', as of late; used in one event loop.

A score is for people (`rmab.federation.outliers`). So uploads and rounds do not wait for any: all
are made together, in a thread, when somebody asks and something has changed. Pages and metrics ask
all the time, whatever it costs; they are given the last scores, and new ones are made for them only
after a while that is long against the time that they take.
"""

from __future__ import annotations

import asyncio
import time

from rmab.federation.outliers import scores_by_name
from rmab.service.server.rounds import Rounds

__all__ = ["Outliers", "Scores"]

_REST = 20.0  # of the time that scores take, before they are made again

Scores = dict[str, float | None]  # by agent


class Outliers:
    """The scores of one federation's agents."""

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
