"""Measured in a process of its own, on as many cores as it is given.

With one core nothing can use two: neither XLA's threads nor BLAS's. The processor time of such a
process is what it costs, however busy the machine is.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any, NamedTuple, ParamSpec, TypeVar

__all__ = ["Apart", "Took", "cores", "timed"]

P = ParamSpec("P")
T = TypeVar("T")


class Took(NamedTuple):
    """Seconds: of the process on its cores, and by the clock."""

    processor: float
    clock: float


def timed(work: Callable[[], Any]) -> Took:
    """How long this takes."""
    processor, clock = time.process_time(), time.perf_counter()
    work()
    return Took(time.process_time() - processor, time.perf_counter() - clock)


def cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0))


class Apart:
    """A process that does work on `cores` cores; as a context manager it ends with the block."""

    def __init__(self, cores: int, environment: Mapping[str, str] | None = None) -> None:
        self._pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"))
        all_cores, before = os.sched_getaffinity(0), dict(os.environ)
        # A process inherits both from the thread that starts it, before it imports anything.
        os.sched_setaffinity(0, sorted(all_cores)[-cores:])
        # What is compiled is compiled here, and BLAS has read its threads when NumPy is imported.
        os.environ.update({"RMAB_CACHE": "off", "OPENBLAS_NUM_THREADS": str(cores)})
        os.environ.update(environment or {})
        try:
            self._pool.submit(os.getpid).result()
        finally:
            os.sched_setaffinity(0, all_cores)
            os.environ.clear()
            os.environ.update(before)

    def __enter__(self) -> Apart:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def __call__(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What the work gives there; it and its arguments must be such as can be pickled."""
        return self._pool.submit(work, *args, **kwargs).result()
