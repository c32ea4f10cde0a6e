"""What is known of the arms in the open round, made when somebody asks, once for each round.

Estimates of looks at all gaps are draws from the posterior and may take seconds, the first of them
several for compilation. So rounds do not wait for them: they are made in a thread of their own. Who
asks for the status waits; the page shows the last that there are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rmab.federation.messages import Merged
from rmab.service.store.rows import OpenRound

__all__ = ["Estimates"]

SHORTLY = 0.5  # seconds that the page waits

Found = list[dict[str, Any]]


class Estimates:
    """Used in one event loop; `make` is called in a thread."""

    def __init__(self, make: Callable[[Merged], Found]) -> None:
        self._make = make
        self._executor = ThreadPoolExecutor(1, "rmab-estimates")
        self._round = 0
        self._work: asyncio.Future[Found] | None = None
        self._last: Found | None = None

    @property
    def busy(self) -> bool:
        """Whether its thread is at work."""
        return self._work is not None and not self._work.done()

    async def of(self, opened: OpenRound) -> Found:
        """Those of a round, which is the open one."""
        while True:
            found = await asyncio.shield(self._asked(opened))
            if self._round >= opened.number:
                return found

    async def last(self, opened: OpenRound) -> Found | None:
        """Those of the open round, or where they take long, of the last that has any."""
        await asyncio.wait({self._asked(opened)}, timeout=SHORTLY)
        return self._last

    def _asked(self, opened: OpenRound) -> asyncio.Future[Found]:
        if self._work is None or (self._round < opened.number and not self.busy):
            loop = asyncio.get_running_loop()
            self._round = opened.number
            self._work = loop.run_in_executor(self._executor, self._make, opened.merged)
            self._work.add_done_callback(self._made)
        return self._work

    def _made(self, done: asyncio.Future[Found]) -> None:
        if done.cancelled() or done.exception() is not None:
            self._work = None  # who asks next tries again
        else:
            self._last = done.result()

    def stop(self, *, patient: bool) -> None:
        """Make no more; `patient` waits for what is being made."""
        self._executor.shutdown(wait=patient, cancel_futures=True)
