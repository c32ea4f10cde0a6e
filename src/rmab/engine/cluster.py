"""Trials on a Ray cluster: blocks of them are tasks of Ray's, and their sums come back.

A task has one core, or one GPU where the cluster has some, and runs in one thread. Ray gives it to
a worker, a process that keeps its compiled programs and its GPU. Ray runs it again if the worker is
lost, or the node (it takes 15 s to believe that), and uses nodes that join. Sums are exact in any
order, so results are those of a run without Ray, bit for bit, on the same kind of device; a worker
on another kind is refused.

Blocks are as long as keeps this process, which merges them, idle for most of the time, and become
shorter towards the end. Several pools may be open, in a thread each: the points of a sweep.
"""

from __future__ import annotations

import logging
import os
import pickle
import re
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any, NamedTuple, Self

from rmab.compilation import keep_compiled
from rmab.engine.device import device, versions
from rmab.engine.montecarlo import Pool, Work, block_runner
from rmab.engine.tally import Batch
from rmab.errors import StudyError, UnavailableError, UnreachableError

__all__ = ["Cluster"]

_WINDOW = 3  # blocks for each worker that may be done out of order, or under way
_BLOCK_SECONDS = 1.0  # that a block should take, or
_MERGE_SECONDS = 0.02  # this for each worker: ten times what it costs to merge one, about
_CONNECT_SECONDS = 5.0
_START_SECONDS = 120.0  # to wait for a worker
_LOOK_SECONDS = 3.0  # between two looks at the cluster
_WAIT_SECONDS = 0.5  # for an answer, until it is asked whether to wait on
_GONE_SECONDS = 10.0  # without an answer from the cluster's head
_LOSSES = 5  # of one block, which then is at fault itself


class _Answer(NamedTuple):
    """Answer of a task: the kind of device, the width of a batch that suits it, and the sums of a
    block with the seconds that it took."""

    device: str
    width: int = 0
    seconds: float = 0.0
    sums: Batch | None = None


def _task(settings: Mapping[str, str], mine: Mapping[str, str]) -> Callable[..., _Answer | str]:
    """Return the function of a worker; settings: environment variables of JAX; mine: our versions.
    It is local, and so sent as it is: a node without rmab can say so, too."""

    def task(*arguments: Any) -> _Answer | str:
        os.environ.update(settings)
        from importlib.metadata import version

        try:
            import rmab

            found = {n: rmab.__version__ if n == "rmab" else version(n) for n in mine}
        except ImportError as error:
            return f"a worker cannot be used: {error}"
        differ = [f"{n} {found[n]} there, {mine[n]} here" for n in mine if found[n] != mine[n]]
        if differ:
            return f"a worker has other versions: {', '.join(differ)}"
        from rmab.engine.cluster import answer

        return answer(*arguments)

    return task


def answer(parts: tuple[bytes, ...] = (), start: int = 0, count: int = 0) -> _Answer:
    """Answer to a block of trials of some work; one without trials only compiles."""
    if not parts:
        return _Answer(_device())
    width, run = _compiled(parts)
    begun = time.monotonic()
    sums = run(start, count) if count else None
    return _Answer(_device(), width, time.monotonic() - begun, sums)


@cache
def _device() -> str:
    keep_compiled()
    return device()


# A policy that recurs in other work is the same object, so its programs are not compiled again.
_policy = lru_cache(maxsize=256)(pickle.loads)


@lru_cache(maxsize=16)
def _compiled(parts: tuple[bytes, ...]) -> tuple[int, Callable[[int, int], Batch]]:
    _device()
    work, names = pickle.loads(parts[0])
    work = replace(work, policies=dict(zip(names, map(_policy, parts[1:]), strict=True)))
    return work.trials.width, block_runner(work)


class Cluster:
    """Ray cluster, for as long as it is entered.

    address: "auto" finds the Ray that runs on this machine, "local" starts one here, HOST:PORT is a
    cluster's head. A Ray that this process has already been connected to is used and left as it is.
    device: the kind that all workers must have; n_workers: the cluster's GPUs, or else cores.
    """

    def __init__(self, address: str) -> None:
        self.address = _checked(address)
        self.device = ""
        self.n_workers = 0
        self.pools: list[_Blocks] = []  # that share the workers
        self._lock = threading.Lock()  # of looks at the cluster
        self._next_look = 0.0
        self._error: BaseException | None = None  # that ends all waiting
        import ray

        self._ray: Any = ray
        self._owned = not ray.is_initialized()

    def __enter__(self) -> Self:
        try:
            if self._owned:
                self._connect()
            self._head = self._ray.get_runtime_context().gcs_address
            self._seen = time.monotonic()
            settings = {"XLA_FLAGS": os.environ.get("XLA_FLAGS", "")}
            if self._ray.cluster_resources().get("GPU"):
                self._kind, needs = "GPU", {"num_cpus": 0, "num_gpus": 1}
                settings["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # an idle worker may have some
            else:
                self._kind, needs = "CPU", {"num_cpus": 1}
                settings |= dict.fromkeys(("NPROC", "PJRT_NPROC"), "1")  # threads of XLA
            self._look()
            mine = {name: found for name, found in versions().items() if name != "python"}
            options = {**needs, "max_calls": 0, "max_retries": _LOSSES - 1}
            self.submit = self._ray.remote(**options)(_task(settings, mine)).remote
            # All workers load JAX now. The first is waited for; others are checked with a block.
            first, *_ = [self.submit() for _ in range(max(1, self.n_workers))]
            self.device = self.answer(first).device
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._owned and self._ray.is_initialized():
            self._ray.shutdown()

    def _connect(self) -> None:
        """Connect to the cluster, without the messages that Ray prints meanwhile."""
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        how: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
        if self.address == "local":
            how["include_dashboard"] = False
        # Ray prints errors of the cluster, some of them long, on standard output, which is ours.
        self._ray._private.worker.print_to_stdstream = lambda *_, **__: None
        try:
            with warnings.catch_warnings():
                # JAX warns of forks; these become programs of Ray's at once.
                warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
                self._ray.init(self.address, **how)
        except (OSError, RuntimeError, ValueError) as error:
            why = {"auto": "; is a Ray running on this machine?", "local": ""}
            token = "; one that asks for a token needs RAY_AUTH_MODE=token"
            more = why.get(self.address, token)
            raise UnreachableError(f"--ray {self.address}: {_line(error)}{more}") from None

    def answer(self, task: Any) -> _Answer:
        """Wait for the answer of a task; an error is raised as it was raised there."""
        found: _Answer | str | None = None
        while found is None:
            self._look()
            try:
                found = self._ray.get(task, timeout=_WAIT_SECONDS)
            except self._ray.exceptions.GetTimeoutError:
                continue
            except self._ray.exceptions.RayTaskError as error:
                raise error.cause if isinstance(error.cause, Exception) else error from None
            except (self._ray.exceptions.RayError, OSError) as error:
                self._next_look = 0.0  # the whole cluster may be gone
                self._look()
                raise UnavailableError(
                    f"workers were lost {_LOSSES} times with the same trials: {_line(error)}"
                ) from None
        if isinstance(found, str):
            raise StudyError(f"--ray {self.address}: {found}")
        if found.device != (self.device or found.device):
            raise StudyError(
                f"--ray {self.address}: a worker has {found.device}, others have {self.device}: "
                "numbers might differ, so all nodes must be of one kind"
            )
        return found

    def end(self, error: BaseException) -> None:
        """Whoever waits for an answer gets the error."""
        self._error = self._error or error

    def _look(self) -> None:
        """Raise the error that ends all waiting, and look at the cluster every few seconds.

        Ray itself would wait for its head, and then end this process.
        """
        with self._lock:
            until = time.monotonic() + _GONE_SECONDS
            while self._error is None and (now := time.monotonic()) >= self._next_look:
                try:
                    _reach(self._head)
                    with socket.socket(socket.AF_UNIX) as here:
                        node = self._ray._private.worker.global_worker.node
                        here.connect(node.raylet_socket_name)
                except OSError as error:
                    if now > until:
                        gone = f"the cluster is gone: {self._head}: {_line(error)}"
                        self.end(UnreachableError(f"--ray {self.address}: {gone}"))
                    time.sleep(0.2)
                    continue
                self.n_workers = int(self._ray.cluster_resources().get(self._kind, 0))
                if self.device and self.n_workers:
                    self._seen = now
                elif now > self._seen + _START_SECONDS:
                    none = f"no worker has started for {_START_SECONDS:.0f} s"
                    why = f"are all of its {self.n_workers} {self._kind}s in use?"
                    self.end(UnavailableError(f"--ray {self.address}: {none}; {why}"))
                self._next_look = now + _LOOK_SECONDS
            if self._error is not None:
                raise self._error

    @contextmanager
    def pool(self, work: Work) -> Iterator[Pool]:
        """See rmab.engine.montecarlo.Workers."""
        share = -(-work.trials.n_trials // max(1, self.n_workers))
        trials = replace(work.trials, n_trials=share, threads=1)
        rest = replace(work, trials=trials, policies={}), list(work.policies)
        dumps = self._ray.cloudpickle.dumps
        parts = self._ray.put(tuple(map(dumps, (rest, *work.policies.values()))))
        blocks = _Blocks(self, parts, self.answer(self.submit(parts)).width)
        self.pools.append(blocks)
        try:
            yield blocks
        finally:
            self.pools.remove(blocks)


@dataclass(eq=False)
class _Blocks:
    """A pool of the cluster for some work; see rmab.engine.montecarlo.Pool."""

    cluster: Cluster
    parts: Any
    width: int
    seconds: float | None = None  # of a batch

    @property
    def window(self) -> int:
        return max(2, _WINDOW * self.cluster.n_workers // len(self.cluster.pools))

    def block(self, left: int) -> int:
        """Return the trials of the next block: a batch at first, later by its seconds."""
        workers = max(1, self.cluster.n_workers)
        batches = 1.0
        if self.seconds is not None:
            batches = max(_BLOCK_SECONDS, _MERGE_SECONDS * workers) / max(self.seconds, 1e-6)
        batches = min(batches, left / (2 * workers * self.width))
        return min(left, max(1, int(batches)) * self.width)

    def submit(self, start: int, count: int) -> _ClusterBlock:
        return _ClusterBlock(self, self.cluster.submit(self.parts, start, count), count)


@dataclass(frozen=True)
class _ClusterBlock:
    pool: _Blocks
    task: Any
    count: int

    def result(self) -> Batch:
        pool, found = self.pool, self.pool.cluster.answer(self.task)
        seconds = found.seconds / -(-self.count // pool.width)
        pool.seconds = seconds if pool.seconds is None else (3 * pool.seconds + seconds) / 4
        assert found.sums is not None
        return found.sums


def _checked(address: str) -> str:
    """Check an address of Ray; one without a listener is refused at once."""
    if address in ("auto", "local"):
        return address
    found = re.fullmatch(r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})", address)
    if found is None or not 0 < int(found[1]) < 2**16:
        raise StudyError(f"--ray must be auto, local or HOST:PORT, got {address!r}")
    try:
        _reach(address)
    except OSError as error:
        raise UnreachableError(f"--ray {address}: no Ray can be reached: {_line(error)}") from None
    return address


def _reach(address: str) -> None:
    host, _, port = address.rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()


def _line(error: BaseException) -> str:
    """Return an error on one short line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else f"{text[:200]}..."
