"""Group commit: one thread writes, and jobs that wait are committed together.

A commit costs an fsync, whatever is in it. While one is on its way further jobs arrive; the thread
then takes all that wait, runs them in one transaction, commits, and only then resolves their
futures: what a caller is told has happened is on the disk. So throughput grows with the load, and
nobody waits for company.

A job is a function of the store that reads, decides, and then writes. It has no other effects, for
it may run twice:

    it raises ProtocolError       it has decided before it wrote: it alone fails, with that
    it raises StorageError,       the database is in trouble: all of the batch fail with
    or the commit fails           StorageError, also those that were refused, since they may have
                                  been refused for what is now undone
    it raises anything else       the batch is undone and its jobs run again, each in a transaction
                                  of its own, so that only the culprit fails
"""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from rmab.errors import ProtocolError, StorageError
from rmab.service.store.store import Store

__all__ = ["MOST_TOGETHER", "MOST_WAITING", "Overloaded", "Run", "Writer"]

MOST_TOGETHER = 256  # jobs of one commit
MOST_WAITING = 1024  # jobs in the queue

T = TypeVar("T")
Run = Callable[[Callable[[Store], Any]], Awaitable[Any]]  # runs a job, from an event loop


class Overloaded(StorageError):  # noqa: N818 - a state of the queue, not a fault
    """As many jobs wait as may; the job was not taken."""


class _Entry(Generic[T]):
    """A job, its future, and what came of it until the commit."""

    __slots__ = ("error", "future", "job", "result")

    def __init__(self, job: Callable[[Store], T]) -> None:
        self.job = job
        self.future: Future[T] = Future()
        self.result: T | None = None
        self.error: BaseException | None = None


class Writer:
    """The thread that owns a store; `committed` is told of each commit: jobs and seconds."""

    def __init__(self, store: Store, committed: Callable[[int, float], None] | None = None) -> None:
        self._store = store
        self._committed = committed
        self._queue: SimpleQueue[_Entry[Any] | None] = SimpleQueue()
        self._gate = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="rmab-writer", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Jobs in the queue."""
        return self._queue.qsize()

    def submit(self, job: Callable[[Store], T]) -> Future[T]:
        """Run a job soon; its future resolves when what it wrote is durable."""
        entry = _Entry(job)
        with self._gate:
            if self._closed:
                raise Overloaded("the writer has ended and takes no more jobs")
            if self._queue.qsize() >= MOST_WAITING:
                raise Overloaded(f"{MOST_WAITING} jobs wait for the database, the most that may")
            self._queue.put(entry)
        return entry.future

    def close(self) -> None:
        """Take no more jobs, finish those that wait, close the store."""
        with self._gate:
            if not self._closed:
                self._closed = True
                self._queue.put(None)
        self._thread.join()

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _serve(self) -> None:
        try:
            while True:
                batch, last = self._take()
                if batch:
                    started = time.perf_counter()
                    self._finish(batch)
                    if self._committed is not None:
                        self._committed(len(batch), time.perf_counter() - started)
                if last:
                    return
        finally:
            self._end()

    def _end(self) -> None:
        """Close the store; nobody waits for ever, even if this thread has failed."""
        self._store.close()
        with self._gate:
            self._closed = True
            while not self._queue.empty():
                left = self._queue.get()
                if left is not None and left.future.set_running_or_notify_cancel():
                    left.future.set_exception(StorageError("the writer has ended"))

    def _take(self) -> tuple[list[_Entry[Any]], bool]:
        """The jobs that wait, at least one unless it is the end; and whether it is."""
        batch: list[_Entry[Any]] = []
        entry = self._queue.get()
        while entry is not None:
            if entry.future.set_running_or_notify_cancel():
                batch.append(entry)
            if len(batch) >= MOST_TOGETHER:
                return batch, False
            try:
                entry = self._queue.get_nowait()
            except Empty:
                return batch, False
        return batch, True

    def _finish(self, batch: Sequence[_Entry[Any]]) -> None:
        """Run and commit jobs, and only then tell those who wait for them."""
        self._together(batch)
        for entry in batch:
            if entry.error is None:
                entry.future.set_result(entry.result)
            else:
                entry.future.set_exception(entry.error)

    def _together(self, batch: Sequence[_Entry[Any]]) -> None:
        """Run jobs in one transaction; afterwards each has its result or its error."""
        try:
            with self._store.transaction():
                for entry in batch:
                    entry.error = None
                    try:
                        entry.result = entry.job(self._store)
                    except ProtocolError as error:
                        entry.error = error
        except StorageError as error:
            for entry in batch:
                entry.error = error
        except BaseException as error:
            if len(batch) == 1:
                batch[0].error = error
                return
            for entry in batch:
                self._together([entry])
