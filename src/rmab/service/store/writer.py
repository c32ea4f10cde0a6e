"""Group commit: one thread writes, and jobs that wait are committed together.

A commit costs an fsync, however large it is. While one is on its way further jobs arrive; the
thread then takes all that wait, runs them in one transaction, commits, and only then resolves their
futures: an acknowledged job is on the disk. So throughput grows with the load, and no job waits for
company.

A job is a function of the store that reads, decides, and then writes. It has no other effects, for
it may run twice:

    it raises ProtocolError       it has decided before it wrote: only it fails, with that
    it raises StorageError,       the database is in trouble: all of the batch fail with
    or the commit fails           StorageError, also those that were refused, since they may have
                                  been refused for a change that is now undone
    it raises anything else       the batch is undone and its jobs run again, each in a transaction
                                  of its own, so that only the culprit fails

`Jobs` is the writer as an event loop sees it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from rmab.errors import Overloaded, ProtocolError, StorageError
from rmab.service.store.credentials import Credential
from rmab.service.store.database import ClaimLostError
from rmab.service.store.store import Store

__all__ = ["Jobs", "Writer"]

T = TypeVar("T")


class _Entry(Generic[T]):
    """Job, its future, and its result or error until the commit."""

    __slots__ = ("error", "future", "job", "result")

    def __init__(self, job: Callable[[Store], T]) -> None:
        self.job = job
        self.future: Future[T] = Future()
        self.result: T | None = None
        self.error: BaseException | None = None


class Writer:
    """Thread that owns a store; `committed` is called with the number of jobs of each commit."""

    def __init__(self, store: Store, committed: Callable[[int], None] | None = None) -> None:
        self._store = store
        self._limits = store.limits
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
        """Run a job soon; its future resolves when its changes are durable."""
        entry = _Entry(job)
        with self._gate:
            if self._closed:
                raise Overloaded("the writer has ended and takes no more jobs")
            most = self._limits.queued_jobs
            if self._queue.qsize() >= most:
                raise Overloaded(f"{most} jobs wait for the database, the most that may")
            self._queue.put(entry)
        return entry.future

    def close(self) -> None:
        """Take no further jobs, finish those that wait, close the store."""
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
                    self._finish(batch)
                    if self._committed is not None:
                        self._committed(len(batch))
                if last:
                    return
        finally:
            self._end()

    def _end(self) -> None:
        """Close the store and fail waiting jobs, even if this thread has failed."""
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
            if len(batch) >= self._limits.batch_jobs:
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


class Jobs:
    """Jobs of one event loop for the writer of a store, once there is one.

    lost: called, in the loop, when another process has taken the database.

    Results come back to the loop all at once: a thread that wakes a loop for each of a hundred
    results makes it go round a hundred times.
    """

    def __init__(self, lost: Callable[[ClaimLostError], None] = lambda _: None) -> None:
        self._lost = lost
        self._writer: Writer | None = None
        self._done: deque[tuple[Future[Any], asyncio.Future[Any]]] = deque()
        self._woken = False  # the loop, to take what is done

    def start(self, store: Store, committed: Callable[[int], None] | None = None) -> None:
        """Take jobs for this store from now on; called in the loop."""
        self._loop = asyncio.get_running_loop()
        self._store = store
        self._writer = Writer(store, committed)

    async def stop(self) -> None:
        """Finish the jobs that wait, and give the database back."""
        if self._writer is not None:
            writer, self._writer = self._writer, None
            await self._loop.run_in_executor(None, writer.close)

    @property
    def running(self) -> bool:
        """Whether jobs are taken."""
        return self._writer is not None

    @property
    def waiting(self) -> int:
        """Jobs in the queue."""
        return 0 if self._writer is None else self._writer.waiting

    async def run(self, job: Callable[[Store], T]) -> T:
        """Run a job in the writer's thread; return when its changes are committed."""
        if self._writer is None:
            raise StorageError("the database is closed")
        here: asyncio.Future[T] = self._loop.create_future()
        there = self._writer.submit(job)
        there.add_done_callback(partial(self._finished, here))
        return await here

    def recent_credential(self, key_id: str, seconds: float) -> Credential | None:
        """Return the credential of a key id, if the writer read it within the last `seconds`."""
        if self._writer is None:
            return None
        return self._store.credentials.recent(key_id, seconds)

    def _finished(self, here: asyncio.Future[Any], done: Future[Any]) -> None:
        """In the writer's thread."""
        self._done.append((done, here))
        if not self._woken:
            self._woken = True
            with contextlib.suppress(RuntimeError):  # the loop has ended before the thread
                self._loop.call_soon_threadsafe(self._return)

    def _return(self) -> None:
        self._woken = False  # first: for what is done from now on the loop is woken again
        while self._done:
            done, here = self._done.popleft()
            error = done.exception()
            if isinstance(error, ClaimLostError):
                self._lost(error)
            if here.done():  # whoever waited was cancelled
                continue
            if error is None:
                here.set_result(done.result())
            else:
                here.set_exception(error)
