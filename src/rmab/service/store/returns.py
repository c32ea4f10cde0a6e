"""From the writer's thread back to the event loop, all jobs of a commit at once.

A thread that wakes a loop for each of a hundred results makes it go round a hundred times.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from concurrent.futures import Future
from typing import Any, TypeVar

__all__ = ["Returns"]

T = TypeVar("T")


class Returns:
    """Futures of another thread as futures of this loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._done: deque[tuple[Future[Any], asyncio.Future[Any]]] = deque()
        self._told = False  # the loop, that some are done

    def of(self, there: Future[T]) -> asyncio.Future[T]:
        """What `there` comes to, to be awaited."""
        here: asyncio.Future[T] = self._loop.create_future()
        there.add_done_callback(lambda done: self._finished(done, here))
        return here

    def _finished(self, done: Future[Any], here: asyncio.Future[Any]) -> None:
        """In the other thread."""
        self._done.append((done, here))
        if not self._told:
            self._told = True
            with contextlib.suppress(RuntimeError):  # the loop has ended before the thread
                self._loop.call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        self._told = False  # first: what is done from now on is told of again
        while self._done:
            done, here = self._done.popleft()
            if here.done():  # whoever waited was cancelled
                continue
            error = done.exception()
            if error is None:
                here.set_result(done.result())
            else:
                here.set_exception(error)
