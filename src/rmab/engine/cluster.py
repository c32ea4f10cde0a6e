"""Trials on a Ray cluster: blocks of them go to its workers, and their sums come back.

A worker is a process with one core, or with one GPU where the cluster has some. It compiles the
programs of a study once and runs blocks in one thread. Sums are exact in any order, so results are
those of a run without Ray, bit for bit, on the same kind of device.

A block of a worker that is lost is run again by another. Workers are recruited as the cluster has
room for them, so a node that joins is used. Blocks are as long as keeps this process, which merges
them, idle for most of the time, and become shorter towards the end.

Several pools may be open, in a thread each: the points of a sweep. They share the workers, and a
worker stays with what it has compiled for as long as there is more of it. One thread watches all
calls that are under way; everything it shares with the others is behind one lock.
"""

from __future__ import annotations

import heapq
import itertools
import os
import re
import socket
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Self

from rmab.engine.machine import versions
from rmab.engine.montecarlo import Pool, Trials, Work
from rmab.engine.setting import Setting
from rmab.engine.tally import Batch
from rmab.errors import StudyError, UnavailableError, UnreachableError
from rmab.policies.policy import Policy

__all__ = ["Cluster"]

_WATCH_SECONDS = 0.1  # that a look at the calls under way may last
_DEPTH = 2  # blocks that a worker has at a time: one runs, one waits
_WINDOW = 3  # blocks for each worker that may be done out of order, or under way
_BLOCK_SECONDS = 1.0  # that a block should take, or
_MERGE_SECONDS = 0.02  # this for each worker: ten times what it costs to merge one, about
_CONNECT_SECONDS = 5.0
_START_SECONDS = 120.0  # to wait for a first worker
_RECRUIT_SECONDS = 3.0  # between two looks for room
_GONE_SECONDS = 10.0  # without an answer from the cluster's head
_MOST_LOSSES = 5  # of one block, which then is at fault itself


def _worker_class() -> type:
    """The class of a worker's actor.

    It is local, and so sent as it is: a node without rmab, or with another version of it, can then
    say so.
    """

    class Worker:
        def __init__(self) -> None:
            self.runner: tuple[int, Any] = -1, None  # and the work that it is for
            self.loaded: dict[bytes, Any] = {}

        def hello(self, settings: dict[str, str]) -> tuple[dict[str, str], str]:
            """The versions and the kind of device; settings: what JAX reads when it is loaded."""
            os.environ.update(settings)
            import rmab

            found = {"rmab": rmab.__version__}
            try:
                from rmab.engine.machine import device, versions
            except ImportError:  # an older one
                return found, ""
            from rmab.compilation import keep_compiled

            keep_compiled()
            return versions(), device()

        def work(self, sent: list[Any]) -> Any:
            """What is to be run; parts that were there before are the same objects, so that their
            programs are not compiled again."""
            import pickle

            import ray

            from rmab.engine.cluster import joined

            rest, *parts = ray.get(sent[0])
            for part in parts:
                if part not in self.loaded:
                    self.loaded[part] = pickle.loads(part)
            return joined(pickle.loads(rest), *(self.loaded[part] for part in parts))

        def width(self, _key: int, sent: list[Any]) -> int:
            """Trials of a batch that suit the device."""
            width: int = self.work(sent).trials.width
            return width

        def block(self, key: int, sent: list[Any], start: int, count: int) -> Any:
            """The sums of a block, and the seconds that it took."""
            from rmab.engine.montecarlo import block_runner

            if self.runner[0] != key:
                self.runner = key, block_runner(self.work(sent))
            begun = time.monotonic()
            return self.runner[1](start, count), time.monotonic() - begun

    return Worker


def parted(work: Work) -> list[Any]:
    """Work in parts. All but the first may recur in other work, and programs depend on those."""
    of = work.trials
    rest = of.arms, of.plays, of.n_trials, of.seed, of.batch, of.threads, work.optimum
    return [(rest, list(work.policies)), of.setting, *work.policies.values()]


def joined(first: Any, setting: Setting, *policies: Policy) -> Work:
    """The work from its parts."""
    (arms, plays, n_trials, seed, batch, threads, optimum), names = first
    trials = Trials(arms, plays, setting, n_trials, seed, batch, threads)
    return Work(trials, dict(zip(names, policies, strict=True)), optimum)


@dataclass
class _Task:
    """A call of a method of some worker; it is done if there is an answer or an error."""

    cluster: Cluster
    method: str
    arguments: tuple[Any, ...]
    losses: int = 0
    answer: Any = None
    error: BaseException | None = None
    done: bool = False

    @property
    def place(self) -> tuple[int, int]:
        """The first trials first, whatever they are of."""
        return (self.arguments[2] if len(self.arguments) > 2 else -1, self.arguments[0])

    def finished(self) -> Any:
        """The answer, once it is there."""
        self.cluster.wait_until(lambda: self.done)
        if self.error is not None:
            raise self.error
        return self.answer


@dataclass(eq=False)
class _Worker:
    """One that was asked for, and is used once it has said hello."""

    actor: Any
    key: int = -1  # of the work that it was given last
    calls: dict[Any, _Task | None] = field(default_factory=dict)  # under way; None: its hello


class Cluster:
    """The workers of a Ray cluster, for as long as it is entered.

    address: "auto" finds the Ray that runs on this machine, "local" starts one here, HOST:PORT is a
    cluster's head. A Ray that this process has already been connected to is used and left as it is.
    device: the kind that all workers have, which is that of the first to start.
    """

    def __init__(self, address: str) -> None:
        self.address = _checked(address)
        self.device = ""
        self._calls: dict[Any, _Worker] = {}  # all under way, by reference
        self._workers: set[_Worker] = set()  # that said hello
        self._asked: set[_Worker] = set()  # that did not yet
        self._spare: set[_Worker] = set()  # of another kind of device
        self._free: deque[_Worker] = deque()  # as often as each can take a call
        self._queues: dict[int, list[tuple[tuple[int, int], int, _Task]]] = {}  # by work
        self._order = itertools.count()
        self._keys = itertools.count()
        self._changed = threading.Condition()  # and the lock of all that is shared
        self._watcher = threading.Thread(target=self._watch, name="rmab-ray", daemon=True)
        self._open = 0  # pools
        self._closed = False
        self._error: BaseException | None = None  # that ends all calls
        self._failures = 0  # of workers to start, since one did
        self._room = 0  # for workers
        self._heard = self._recruited = time.monotonic()
        self._silent_since: float | None = None
        self._gone = False
        import ray

        self._ray: Any = ray
        self._exceptions = ray.exceptions
        self._owned = not ray.is_initialized()

    def __enter__(self) -> Self:
        try:
            if self._owned:
                self._connect()
            self._head = self._ray.get_runtime_context().gcs_address
            self._class: Any = self._ray.remote(max_restarts=0)(_worker_class())
            self._recruit()
            self._heard = time.monotonic()
            self._watcher.start()
            self.wait_until(lambda: bool(self._workers))
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def _connect(self) -> None:
        """To the cluster; what Ray says on the way is no concern of the user's."""
        import logging

        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        local: dict[str, Any] = {"include_dashboard": False} if self.address == "local" else {}
        # Ray prints errors of the cluster, some of them long, on standard output, which is ours.
        self._ray._private.worker.print_to_stdstream = lambda *_, **__: None
        try:
            with warnings.catch_warnings():
                # JAX warns of forks; these become programs of Ray's at once.
                warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
                self._ray.init(
                    address=self.address, logging_level=logging.ERROR, log_to_driver=False, **local
                )
        except (ConnectionError, TimeoutError, OSError, RuntimeError, ValueError) as error:
            more = {
                "auto": "; is a Ray running on this machine?",
                "local": "",
            }.get(self.address, "; one that asks for a token needs RAY_AUTH_MODE=token")
            raise UnreachableError(f"--ray {self.address}: {_line(error)}{more}") from None

    def _close(self) -> None:
        with self._changed:
            self._closed = True
        if self._watcher.is_alive():
            self._watcher.join()
        if not self._gone:
            with suppress(Exception):
                for worker in (*self._workers, *self._asked, *self._spare):
                    self._ray.kill(worker.actor)
        if self._owned and self._ray.is_initialized():
            self._ray.shutdown()

    # ------------------------------------------------------------------------------------ workers

    @property
    def n_workers(self) -> int:
        """How many there are now."""
        return len(self._workers)

    @property
    def n_asked(self) -> int:
        """How many there will be, those included that are still starting."""
        return len(self._workers) + len(self._asked)

    @property
    def n_pools(self) -> int:
        """How many share the workers; at least one."""
        return max(1, self._open)

    def _recruit(self) -> None:
        """Ask for as many workers as the cluster has room for: one on each GPU, else one on each
        core."""
        self._recruited = time.monotonic()
        there = self._ray.cluster_resources()
        with self._changed:
            self._ask(there)

    def _ask(self, there: Mapping[str, float]) -> None:
        gpus, cores = int(there.get("GPU", 0)), int(there.get("CPU", 0))
        needs = {"num_cpus": 0, "num_gpus": 1} if gpus else {"num_cpus": 1}
        settings = {"XLA_FLAGS": os.environ.get("XLA_FLAGS", "")}
        if not gpus:  # one thread of XLA's on a core, too
            settings |= dict.fromkeys(("NPROC", "PJRT_NPROC"), "1")
        self._room = gpus or cores
        for _ in range(self._room - len(self._workers | self._asked | self._spare)):
            worker = _Worker(self._class.options(**needs).remote())
            self._asked.add(worker)
            call = worker.actor.hello.remote(settings)
            worker.calls[call] = None
            self._calls[call] = worker

    def _welcome(self, worker: _Worker, known: tuple[dict[str, str], str]) -> None:
        """A worker that said hello is used if its results would be the same as all others'."""
        self._asked.discard(worker)
        self._failures = 0
        there, device = known
        mine = versions()
        differ = [
            f"{name} {there.get(name, 'of unknown version')} there, {mine[name]} here"
            for name in mine
            if name != "python" and there.get(name) != mine[name]
        ]
        if differ:
            raise StudyError(
                f"--ray {self.address}: a worker has other versions: {', '.join(differ)}"
            )
        self.device = self.device or device
        if device == self.device:
            self._workers.add(worker)
            self._free.extend([worker] * _DEPTH)
            return
        if not self._spare:
            said = f"workers on {device} are not used: numbers might differ from {self.device}'s"
            warnings.warn(said, RuntimeWarning, stacklevel=2)
        self._spare.add(worker)  # it stays, so that no other takes its place

    def _lose(self, worker: _Worker, error: BaseException) -> None:
        """Its blocks are for others to run."""
        self._failures += worker in self._asked
        self._workers.discard(worker)
        self._asked.discard(worker)
        self._spare.discard(worker)
        for call, task in worker.calls.items():
            self._calls.pop(call, None)
            if task is not None:
                task.losses += 1
                if task.losses < _MOST_LOSSES:
                    self._put(task)
                else:
                    task.error = UnavailableError(
                        f"workers were lost {task.losses} times with the same trials: "
                        + _line(error)
                    )
                    task.done = True
        worker.calls.clear()
        if self._failures > _MOST_LOSSES * self._room:
            raise UnavailableError(
                f"--ray {self.address}: workers are lost as soon as they start: {_line(error)}"
            )

    # -------------------------------------------------------------------------------------- calls

    def call(self, method: str, *arguments: Any) -> _Task:
        """Have some worker do it; arguments: the key of the work, the work, the first trial..."""
        task = _Task(self, method, arguments)
        with self._changed:
            self._put(task)
            self._assign()
        return task

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """It holds; or the error that ends all calls."""
        with self._changed:
            while not condition():
                if self._error is not None:
                    raise self._error
                self._changed.wait(1.0)

    def end(self, error: BaseException) -> None:
        """No call will be answered any more: whoever waits for one gets the error."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def _put(self, task: _Task) -> None:
        queue = self._queues.setdefault(task.arguments[0], [])
        heapq.heappush(queue, (task.place, next(self._order), task))

    def _assign(self) -> None:
        """Give what waits to workers that are free: more of the same, else the first trials."""
        while self._queues and self._free:
            worker = self._free.popleft()
            if worker not in self._workers:
                continue
            if worker.key not in self._queues:
                worker.key = min(self._queues, key=lambda key: self._queues[key][0])
            queue = self._queues[worker.key]
            _, _, task = heapq.heappop(queue)
            if not queue:
                del self._queues[worker.key]
            call = getattr(worker.actor, task.method).remote(*task.arguments)
            worker.calls[call] = task
            self._calls[call] = worker

    def _watch(self) -> None:
        """The thread that takes answers and gives out what waits, until all is closed."""
        try:
            while not self._closed:
                self._step()
        except BaseException as error:
            self.end(error)

    def _step(self) -> None:
        now = time.monotonic()
        if self._silent_since is not None or now > self._recruited + _RECRUIT_SECONDS:
            self._check_head()
            if self._silent_since is not None:
                time.sleep(0.2)  # Ray would wait for it, and then end this process
                return
            self._recruit()
        if self._workers:
            self._heard = now
        elif now > self._heard + _START_SECONDS:
            raise UnavailableError(
                f"--ray {self.address}: no worker has started for {_START_SECONDS:.0f} s, with "
                f"{self._room} asked for; are all cores in use?"
            )
        with self._changed:
            calls = list(self._calls)
        if not calls:
            time.sleep(_WATCH_SECONDS)
            return
        # Calls that are made meanwhile are seen by the next look.
        ready, _ = self._ray.wait(calls, timeout=_WATCH_SECONDS)
        if ready and len(calls) > 1:
            ready, _ = self._ray.wait(calls, num_returns=len(calls), timeout=0)
        with self._changed:
            for call in ready:
                if call in self._calls:
                    self._take(call)
            self._assign()
            self._changed.notify_all()

    def _take(self, call: Any) -> None:
        worker = self._calls.pop(call)
        task = worker.calls.pop(call)
        try:
            answer = self._ray.get(call, timeout=_GONE_SECONDS)
        except self._exceptions.RayTaskError as error:
            raised = error.cause if isinstance(error.cause, Exception) else error
            if task is None:
                raise StudyError(
                    f"--ray {self.address}: a worker cannot be used: {_line(raised)}"
                ) from None
            task.error, task.done = raised, True
            self._free.append(worker)
            return
        except (self._exceptions.RayError, OSError) as error:
            worker.calls[call] = task
            if isinstance(error, self._exceptions.GetTimeoutError):
                self._calls[call] = worker  # it is on its way
            else:
                self._lose(worker, error)
            return
        if task is None:
            self._welcome(worker, answer)
            return
        self._free.append(worker)
        task.answer, task.done = answer, True

    def _check_head(self) -> None:
        """UnreachableError if the cluster's head, or the part of Ray that runs on this machine, has
        not answered for a while."""
        host, _, port = self._head.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
            with socket.socket(socket.AF_UNIX) as local:
                local.connect(self._ray._private.worker.global_worker.node.raylet_socket_name)
            self._silent_since = None
        except OSError as error:
            now = time.monotonic()
            self._silent_since = self._silent_since or now
            if now > self._silent_since + _GONE_SECONDS:
                self._gone = True
                raise UnreachableError(
                    f"--ray {self.address}: the cluster is gone: {self._head}: {_line(error)}"
                ) from None

    # --------------------------------------------------------------------------------------- pools

    @contextmanager
    def pool(self, work: Work) -> Iterator[Pool]:
        """See rmab.engine.montecarlo.Workers."""
        share = -(-work.trials.n_trials // max(1, self.n_workers))
        mine = replace(work, trials=replace(work.trials, n_trials=share, threads=1))
        parts = [self._ray.cloudpickle.dumps(part) for part in parted(mine)]
        sent = [self._ray.put(parts)]  # in a list, so that it is fetched only where it is needed
        key = next(self._keys)
        with self._changed:
            self._open += 1
        try:
            yield _Blocks(self, key, sent, self.call("width", key, sent).finished())
        finally:
            with self._changed:
                self._open -= 1
                self._queues.pop(key, None)


class _Blocks:
    """A pool of the cluster for some work; see rmab.engine.montecarlo.Pool."""

    def __init__(self, cluster: Cluster, key: int, work: list[Any], width: int) -> None:
        self._cluster = cluster
        self._key = key
        self._work = work
        self._width = width
        self._seconds: float | None = None  # of a batch

    @property
    def window(self) -> int:
        return max(_DEPTH, _WINDOW * self._cluster.n_workers // self._cluster.n_pools)

    def block(self, left: int) -> int:
        """A batch at first; later as many as take the seconds that a block should take."""
        workers = max(1, self._cluster.n_workers)
        batches = 1.0
        if self._seconds is not None:
            batches = max(_BLOCK_SECONDS, _MERGE_SECONDS * workers) / max(self._seconds, 1e-6)
        batches = min(batches, left / (2 * workers * self._width))
        return min(left, max(1, int(batches)) * self._width)

    def submit(self, start: int, count: int) -> _Block:
        task = self._cluster.call("block", self._key, self._work, start, count)
        return _Block(self, task, -(-count // self._width))

    def took(self, seconds: float) -> None:
        """A batch took so long, in one block."""
        self._seconds = seconds if self._seconds is None else (3 * self._seconds + seconds) / 4


@dataclass(frozen=True)
class _Block:
    pool: _Blocks
    task: _Task
    batches: int

    def result(self) -> Batch:
        batch: Batch
        batch, seconds = self.task.finished()
        self.pool.took(seconds / self.batches)
        return batch


def _checked(address: str) -> str:
    """An address that Ray may be asked for; one that nobody listens at is refused at once."""
    if address in ("auto", "local"):
        return address
    found = re.fullmatch(r"(?:ray://)?(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})", address)
    if found is None or not 0 < int(found[2]) < 2**16:
        raise StudyError(f"--ray must be auto, local or HOST:PORT, got {address!r}")
    try:
        at = found[1].strip("[]"), int(found[2])
        socket.create_connection(at, _CONNECT_SECONDS).close()
    except OSError as error:
        raise UnreachableError(f"--ray {address}: no Ray can be reached: {_line(error)}") from None
    return address


def _line(error: BaseException) -> str:
    """What went wrong, on one line that is not long."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else f"{text[:200]}..."
