"""kill -9, again and again, under load: what was acknowledged is there, and nothing is there twice.

A real server, and agents that upload as fast as they can, each with a ledger of its own of what it
sent and what was acknowledged. The server is killed and started again on the same database; the
agents go on, and what was not answered is sent again as it was. Between a kill and the next start
the database is compared with the ledgers:

    ledger   every acknowledged upload is in it with its digest; every upload in it was sent, and
             was not refused; none is there twice
    record   of each incarnation is the last of its uploads in the ledger
    sums     merged counts are the sum of the records; so are uploads, slots and agents
    rounds   the number of the open round never falls, and is at least what any agent was told;
             the plan of a round, and the counts it was made from, never change

and an answer to what is sent again must agree with what was found: 200 if the upload is in the
ledger, 201 if it is not, or 410 if the round has closed meanwhile. The counts of an upload that was
refused for its round come with the next one.

Kills come at an acknowledgement, at any moment, while the server starts, and, in runs where rounds
close, about the moment that one does and just after it. In the other runs an agent that reported
once and stays away keeps the second round open, so that nothing is planned and restarts are quick.
Which kind comes when depends on the seed alone: all in turn, in an order that is drawn each time
anew, and first the one that every run needs. So a slow machine makes no run empty.

    make crash                                             1,000 restarts
    make crash ARGS='--restarts 100 --seed 7'              fewer, others
    make crash ARGS='--database postgresql://...'          in schemas of that database
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from urllib.parse import quote

import numpy as np
import uvloop
from benchmarks.traffic import ServerProcess, Wire, enroll, server_command, write_federation

from rmab.protocol.config import load_federation
from rmab.service.store.store import OpenRound, Store, open_store
from tests.slow.ledgers import Broken, Life, check_database, same_round

__all__ = ["Run", "Tally", "crash"]

POLICY = "feducb-myopic"  # quickly planned
AGENTS, LIVES_EACH = 4, 2  # at a time, each on a connection of its own
ABSENT = "absent"  # the agent that keeps a round open
RESTARTS_A_RUN = 50
PATIENCE = 300.0  # seconds for anything that must happen, on a busy machine
KINDS = ("acknowledgement", "moment", "moment", "start")  # of kills, in turn
CLOSING_KINDS = ("closed", "closed", "closing", "closing", *KINDS)


@dataclass(frozen=True)
class Run:
    """One database and its restarts; `closing`: whether rounds close."""

    restarts: int
    seed: int
    closing: bool = False
    database: str | None = None  # PostgreSQL; None: SQLite
    server: str | None = None  # a Python file to start in place of rmab


@dataclass
class Tally:
    """What happened."""

    restarts: int = 0
    acknowledged: int = 0
    repeats: int = 0
    rounds: int = 0
    kept: int = 0  # uploads without an answer that were found in the database
    not_kept: int = 0  # and that were not
    kills: Counter[str] = field(default_factory=Counter)

    def __add__(self, other: Tally) -> Tally:
        return Tally(**{name: mine + vars(other)[name] for name, mine in vars(self).items()})

    def line(self) -> str:
        """For people."""
        kills = ", ".join(f"{count} {name}" for name, count in sorted(self.kills.items()))
        return (
            f"{self.restarts} restarts (kills: {kills}), {self.acknowledged} uploads acknowledged, "
            f"{self.rounds} rounds closed; of those without an answer {self.kept} were kept, "
            f"{self.not_kept} were not"
        )


def crash(run: Run, folder: Path, progress: Callable[[Tally], None] = lambda _: None) -> Tally:
    """Kill a server so many times; Broken if it lost anything or counted anything twice.

    The folder may be that of an earlier run: what was compiled is kept there, nothing else.
    """
    for old in folder.glob("federation*"):
        old.unlink()
    with (
        _database(run, folder) as database,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        return runner.run(_Crash(run, folder, database, progress).play())


class _Crash:
    """One run. What agents did before the server was killed is done when `look` is called."""

    def __init__(
        self, run: Run, folder: Path, database: str, progress: Callable[[Tally], None]
    ) -> None:
        self.run = run
        self.folder = folder
        self.database = database
        self.progress = progress
        self.rng = np.random.default_rng((run.seed, run.closing))
        self.order = np.random.default_rng((run.seed, run.closing, 1))  # of kills
        self.kinds = list((CLOSING_KINDS if run.closing else KINDS)[:1])  # the next is last
        self.tally = Tally()
        file = folder / "federation.toml"
        write_federation(file, POLICY)
        self.federation = load_federation(file)
        self.server = ServerProcess(server_command(run.server), file, database, folder)
        self.lives: list[Life] = []
        self.active: list[Life] = []
        self.tokens: dict[str, str] = {}
        self.round: OpenRound | None = None
        self.start_seconds = 1.0
        self.kill_after: int | None = None  # acknowledgements

    async def play(self) -> Tally:
        """All of it."""
        names = [f"agent{n}" for n in range(AGENTS)]
        self.tokens = enroll(self.database, self.federation, [*names, ABSENT])
        for name in names:
            for _ in range(LIVES_EACH):
                self._live(name)
        try:
            await self._begin()
            while self.tally.restarts < self.run.restarts:
                await self._once()
                self.tally.restarts += 1
                self.progress(self.tally)
            await self._end()
        finally:
            if self.server.running:
                self.server.kill()
                await self.server.ended()
        return self.tally

    def _live(self, name: str) -> Life:
        life = Life(name, self.tokens[name], self.federation, self.rng, self._acknowledged)
        self.lives.append(life)
        self.active.append(life)
        return life

    def _acknowledged(self, repeat: bool) -> None:
        """Called by a life, at the moment that an answer arrives."""
        self.tally.acknowledged += 1
        self.tally.repeats += repeat
        if self.kill_after is not None:
            self.kill_after -= 1
            if self.kill_after <= 0:
                self.server.kill()

    # ------------------------------------------------------------------------------------ phases

    async def _start(self) -> None:
        """A server that answers; FAILED to start is a failure of what is tested."""
        began = time.perf_counter()
        await self.server.start()
        if not await self.server.ready():
            raise Broken(f"the server did not start again: {self._last_words()}")
        self.start_seconds = time.perf_counter() - began

    async def _begin(self) -> None:
        """The first round, and where rounds must stay open the second."""
        if self.run.closing:
            return
        absent = Life(ABSENT, self.tokens[ABSENT], self.federation, self.rng, lambda _: None)
        self.lives.append(absent)
        await self._start()
        everybody = [absent, *(self.active[n * LIVES_EACH] for n in range(AGENTS))]
        wires = [await Wire.connect(self.server.url) for _ in everybody]
        for each, wire in zip(everybody, wires, strict=True):
            await each.fetch(wire)
        for each, wire in zip(everybody, wires, strict=True):
            await each.report(wire)
        await self._until(lambda: absent.fetch(wires[0]), lambda: absent.round == 2)
        for wire in wires:
            wire.close()
        await self._stop()

    async def _once(self) -> None:
        """Start the server, let the agents go on, kill it at some moment, look."""
        if not self.kinds:
            kinds = CLOSING_KINDS if self.run.closing else KINDS
            self.kinds = [kinds[at] for at in self.order.permutation(len(kinds))]
        kind = self.kinds.pop()
        self.tally.kills[kind] += 1
        if kind == "start":
            await self.server.start()
            await asyncio.sleep(self.rng.uniform(0, 1.1 * self.start_seconds))
        else:
            await self._start()
            self.kill_after = None
            if kind == "acknowledgement":
                self.kill_after = int(self.order.integers(1, 30))
            await self._load(self._moment(kind))
        self.server.kill()
        await self.server.ended()
        self._look()
        if self.rng.random() < 0.3:  # an agent that lost its file, with what it had not sent
            lost = self.active.pop(int(self.rng.integers(len(self.active))))
            self._live(lost.agent)

    async def _load(self, moment: Awaitable[None]) -> None:
        """All agents at work until that moment, or until the server is gone."""
        tasks = [asyncio.ensure_future(life.work(self.server.url)) for life in self.active]
        timer = asyncio.ensure_future(moment)
        try:
            # A life ends with the connection, or with an answer that must not be.
            done, _ = await asyncio.wait(
                [timer, *tasks], timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED
            )
            self.server.kill()
            await self.server.ended()
            await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE)
            if not done:
                raise Broken(f"nothing happened in {PATIENCE:g} seconds: {self._last_words()}")
        finally:
            for task in (timer, *tasks):
                task.cancel()
            await asyncio.gather(timer, *tasks, return_exceptions=True)

    async def _moment(self, kind: str) -> None:
        """Return when it is time; at an acknowledgement the server is killed there and then."""
        if kind == "moment":
            await asyncio.sleep(self.rng.exponential(0.2))
        elif kind == "acknowledgement":
            await asyncio.Event().wait()
        else:
            told = max(1, *(life.told for life in self.active))  # 1 opens without any closing
            delay = self.rng.exponential(0.003)
            until = time.monotonic() + self.rng.uniform(0, 4 * self.start_seconds)
            while max(life.told for life in self.active) <= told:
                await asyncio.sleep(0.001)
                if kind == "closing" and time.monotonic() > until:
                    return
            if kind == "closed":
                await asyncio.sleep(delay)

    async def _end(self) -> None:
        """What was not answered is sent again to one more server, which is then stopped."""
        await self._start()
        self.kill_after = None
        await asyncio.gather(*(life.settle(self.server.url) for life in self.active))
        await self._stop()
        if any(sent.unanswered for life in self.active for sent in life.ledger.values()):
            raise Broken("an upload has no answer in the end")

    async def _stop(self) -> None:
        if await self.server.stop() != 0:
            raise Broken(f"the server did not end well: {self._last_words()}")
        self._look()

    async def _until(self, step: Callable[[], Awaitable[None]], done: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE
        while not done():
            if time.monotonic() > end:
                raise Broken(f"a round did not close: {self._last_words()}")
            await step()
            await asyncio.sleep(0.01)

    def _last_words(self) -> str:
        return (self.folder / "server.log").read_text()[-600:]

    # ---------------------------------------------------------------------------------- looking

    def _look(self) -> None:
        """Compare the database with the ledgers, while no server runs."""
        with self._store() as store:
            found = check_database(store, self.lives)
            current = store.current_round()
        self.tally.kept += found.kept
        self.tally.not_kept += found.not_kept
        told = max((life.told for life in self.lives), default=0)
        number = 0 if current is None else current.number
        if number < told:
            raise Broken(f"the open round is {number}, but an agent was told of {told}")
        if self.round is None or current is None:
            if self.round is not None:
                raise Broken(f"round {self.round.number} was open, and now none is")
        elif number < self.round.number:
            raise Broken(f"the open round went back from {self.round.number} to {number}")
        elif number == self.round.number and not same_round(self.round, current):
            raise Broken(f"round {number} is not what it was before the restart")
        self.tally.rounds = max(0, number - 1)
        self.round = current

    @contextmanager
    def _store(self) -> Iterator[Store]:
        """The database as the kill left it.

        Of SQLite a copy, so that the next server finds the log that it must recover from. In
        PostgreSQL the claim is waited for: a commit may be under way after its client has gone.
        """
        if self.run.database is None:
            with tempfile.TemporaryDirectory(dir=self.folder) as copy:
                for suffix in ("", "-wal"):
                    file = Path(self.database + suffix)
                    if file.exists():
                        shutil.copyfile(file, Path(copy) / file.name)
                store = open_store(str(Path(copy) / Path(self.database).name), self.federation)
                try:
                    yield store
                finally:
                    store.close()
            return
        store = open_store(self.database, self.federation)
        try:
            store.claim()
            yield store
        finally:
            store.close()


@contextmanager
def _database(run: Run, folder: Path) -> Iterator[str]:
    """An empty one."""
    if run.database is None:
        yield str(folder / "federation.db")
        return
    import psycopg

    name = f"crash_{run.seed}_{time.time_ns()}"
    with psycopg.connect(run.database, autocommit=True) as admin:
        admin.execute(f"CREATE SCHEMA {name}".encode())
        mark = "&" if "?" in run.database else "?"
        yield f"{run.database}{mark}options={quote(f'-csearch_path={name}')}"
        admin.execute(f"DROP SCHEMA {name} CASCADE".encode())


def main() -> int:
    """Run after run, until there were so many restarts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--restarts", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--database", metavar="URL", help="postgresql://... (default: SQLite)")
    parser.add_argument("--server", metavar="FILE", help="a Python file to start in place of rmab")
    options = parser.parse_args()
    total, began = Tally(), time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="rmab-crash-"))
    while total.restarts < options.restarts:
        number = total.restarts // RESTARTS_A_RUN
        run = Run(
            restarts=min(RESTARTS_A_RUN, options.restarts - total.restarts),
            seed=options.seed + number,
            closing=number % 5 == 4,
            database=options.database,
            server=options.server,
        )
        try:
            total += crash(run, folder, partial(_progress, total))
        except Broken as error:
            print(f"\nFAILED in run {number + 1} (seed {run.seed}): {error}")
            print(f"the database and the server's log are in {folder}")
            return 1
        rate = total.restarts / (time.monotonic() - began)
        print(f"{CLEAR}{total.line()} ({rate:.2f} restarts a second)", flush=True)
    shutil.rmtree(folder)
    print("nothing lost, nothing counted twice")
    return 0


CLEAR = "\r\x1b[K" if sys.stdout.isatty() else ""


def _progress(before: Tally, tally: Tally) -> None:
    """A line that is written over, where there is somebody to look at it."""
    done = before + tally
    if CLEAR:
        text = f"restart {done.restarts}, {done.acknowledged} uploads acknowledged"
        print(f"{CLEAR}{text}", end="", flush=True)


if __name__ == "__main__":
    sys.exit(main())
