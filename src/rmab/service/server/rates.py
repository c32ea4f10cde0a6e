"""How often an agent may do something: a rate, and a burst after it has been quiet.

Of each agent one time is kept, until which what it has done fills its rate: everything it does
moves that on by 1 / rate, and it may be ahead of now by the burst. What is done in spite of that
is owed, and waited for.
"""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["Rate"]


class Rate:
    """What the agents of a server do, each by its name; burst: seconds, in which the rate allows
    as much as may be done at once, if not one."""

    def __init__(self, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._burst = burst
        self._clock = clock
        self._filled: dict[str, float] = {}

    def wait(self, name: str, rate: float) -> float:
        """Seconds until the agent may do it once more, 0 for now; rate: times a second, 0: any."""
        if rate <= 0:
            return 0.0
        now, each = self._clock(), 1 / rate
        filled = max(now, self._filled.get(name, now))
        return max(0.0, filled + each - max(self._burst, each) - now)

    def done(self, name: str, rate: float) -> None:
        """The agent has done it."""
        if rate > 0:
            now = self._clock()
            self._filled[name] = max(now, self._filled.get(name, now)) + 1 / rate
