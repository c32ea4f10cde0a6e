"""Requests that wait for a round: bounded, of all agents and of each, and let go all at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from rmab.errors import ProtocolError

__all__ = ["Waiting"]

MOST = 5000  # of all agents
MOST_EACH = 8  # of one: it cannot take all the places


class Waiting:
    """Who waits, by agent."""

    def __init__(self) -> None:
        self.count = 0
        self.released = False
        self._turns: dict[str, set[asyncio.Future[bool]]] = {}

    @property
    def names(self) -> set[str]:
        """Agents that wait."""
        return set(self._turns)

    async def wait(self, name: str, seconds: float) -> bool:
        """Wait until woken; what it was woken with, or False when the time is over."""
        if seconds <= 0 or self.released:
            return False
        turns = self._turns.setdefault(name, set())
        if self.count >= MOST or len(turns) >= MOST_EACH:
            raise ProtocolError(503, "overload", "too many requests wait for a round; try again")
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[bool] = loop.create_future()
        alarm = loop.call_later(seconds, _wake, (turn,), False)
        turns.add(turn)
        self.count += 1
        try:
            return await turn
        finally:
            alarm.cancel()
            self.count -= 1
            turns.discard(turn)
            if not turns and self._turns.get(name) is turns:
                del self._turns[name]

    def wake(self, name: str, newer: bool) -> None:
        """Wake what waits of an agent."""
        _wake(self._turns.get(name, ()), newer)

    def wake_all(self, newer: bool) -> None:
        """Wake all."""
        for turns in list(self._turns.values()):
            _wake(turns, newer)

    def release(self) -> None:
        """Let all go; from now on nobody waits."""
        self.released = True
        self.wake_all(False)


def _wake(turns: Iterable[asyncio.Future[bool]], newer: bool) -> None:
    for turn in list(turns):
        if not turn.done():
            turn.set_result(newer)
