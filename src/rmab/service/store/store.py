"""Durable state of a federation: credentials, uploads, rounds; alike on both databases.

A `Store` is used by one thread. Inside `with store.transaction():` all changes become durable
together, or none of them; a single call outside makes a transaction of its own.

Its parts hold most of it: `store.uploads`, `store.pace` (rmab.service.store.uploads),
`store.retention` and `store.credentials`, in modules of these names.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rmab.errors import FederationError, StorageError, UnavailableError
from rmab.policies.aggregation import owner_weights
from rmab.privacy.masks import MaskedUpload
from rmab.protocol.config import Federation
from rmab.protocol.growth import Credit, LaneCounts, Merged, check_pace
from rmab.protocol.outliers import STANDS_OUT, compared
from rmab.protocol.round_memory import RoundMemory
from rmab.protocol.shape import Upload
from rmab.service.store.credentials import Credential, Credentials
from rmab.service.store.database import ClaimLostError, Database, Value, connect
from rmab.service.store.limits import StoreLimits
from rmab.service.store.noisy_sums import Releases
from rmab.service.store.retention import Retention
from rmab.service.store.schema import check_owner, prepare, version_of
from rmab.service.store.unmasking import Openings
from rmab.service.store.uploads import Pace, UploadLedger

__all__ = [
    "CLOCK_SECONDS",
    "Act",
    "AgentRow",
    "Erased",
    "Erasure",
    "OpenRound",
    "RewardRow",
    "RoundRow",
    "Store",
    "back_up",
    "claimed_store",
    "default_database",
    "open_store",
]

_DROPPED = "slots of dropped rounds"  # a counter in `meta`
_ESTIMATES = "estimates"  # a text there


CLOCK_SECONDS = 60.0  # by which clocks may differ; what is later is of a clock that was ahead


Ints = npt.NDArray[np.int64]


class AgentRow(NamedTuple):
    """An agent, admin or viewer that was ever enrolled."""

    name: str
    role: str
    lane: int  # -1: it plays nothing
    enrolled: float
    revoked: float | None
    last_seen: float | None
    last_round: int | None  # fetched or reported
    uploads: int
    refused: int
    slots: int
    reward: float | None  # mean per slot, as its visits paid
    forgotten: float | None  # when its counts were last taken out
    owner: str  # that it counts for

    def is_live(self, now: float, seconds: float) -> bool:
        """Return whether it is an agent heard of within `seconds` seconds, and not revoked."""
        if self.role != "agent" or self.revoked is not None or self.last_seen is None:
            return False
        return -CLOCK_SECONDS <= now - self.last_seen <= seconds

    def to_table(self, weights: Mapping[str, float]) -> dict[str, Any]:
        """Return the row as JSON has it, with the owner where that is another name; weights: of
        owners in the federation's file, if any."""
        weighed = bool(weights) and self.role == "agent"
        return {
            "name": self.name,
            "lane": self.lane if self.role == "agent" else None,
            "role": self.role,
            "enrolled": self.enrolled,
            "revoked": self.revoked,
            "last_seen": self.last_seen,
            "episode": self.last_round,
            "uploads": self.uploads,
            "refused": self.refused,
            "slots": self.slots,
            "reward": self.reward,
            "forgotten": self.forgotten,
            **({"owner": self.owner} if self.owner != self.name else {}),
            **({"weight": weights.get(self.owner, 1.0)} if weighed else {}),
        }


class Erasure(NamedTuple):
    """Counts of an agent that were taken out; round: the one that was open.

    number: 1, 2, ... in their order; 0 where there was nothing to take out.
    """

    number: int
    agent: str
    at: float
    round: int
    incarnations: int
    uploads: int
    slots: int
    paid: float  # what its visits had paid, in all
    by_whom: str | None = None

    def to_table(self) -> dict[str, Any]:
        """Return the erasure as JSON has it."""
        return {
            "name": self.agent,
            "incarnations": self.incarnations,
            "uploads": self.uploads,
            "slots": self.slots,
        }


class Act(NamedTuple):
    """A command on the database that the server's log is to tell of."""

    number: int
    at: float
    act: str  # "enrolled" or "revoked"
    name: str
    role: str | None
    owner: str | None
    by_whom: str


class Erased(NamedTuple):
    """Sum of all erasures: the last one's number, slots of all, and the reward of visits since the
    open round began."""

    last: int
    slots: int
    paid: float


class OpenRound(NamedTuple):
    """Round that agents play, with the state that a restarted server needs to go on with it.

    merged: the counts that its plan was made from; by_lane: those of each agent, where a lane's
    plan is made from them; memory: of counts that lose weight.
    """

    number: int
    opened: float
    limit: int
    visit_factor: int | None
    merged: Merged
    plan_json: bytes | None
    by_lane: LaneCounts | None = None
    memory: RoundMemory | None = None


class RoundRow(NamedTuple):
    """A round as history shows it; the last five are None while it is open."""

    number: int
    opened: float
    limit: int
    closed: float | None
    reason: str | None
    reports: int | None
    slots: int | None
    reward: float | None


class RewardRow(NamedTuple):
    """Slots of a closed round's uploads, and the mean reward of a slot."""

    round: int
    slots: int
    reward: float | None


def default_database(federation_file: Path) -> str:
    """Beside the federation's file."""
    return str(federation_file.with_suffix(".db"))


def open_store(
    url: str, federation: Federation, *, create: bool = True, limits: StoreLimits | None = None
) -> Store:
    """The store in a database; FederationError if it cannot be this federation's, and other errors
    where that may pass (`rmab.errors`)."""
    limits = limits or StoreLimits()
    database = connect(url, create=create, limits=limits)
    try:
        prepare(database, federation, create=create)
    except (FederationError, UnavailableError) as error:
        database.close()
        if isinstance(error, StorageError) and error.lasting:
            raise FederationError(str(error)) from None
        raise
    except Exception as error:
        database.close()
        raise FederationError(
            f"database {database.place} cannot be prepared: {type(error).__name__}"
        ) from error
    return Store(database, federation, limits)


def claimed_store(url: str, federation: Federation, limits: StoreLimits | None = None) -> Store:
    """The store in a database, for the one server on it; UnavailableError if another is."""
    store = open_store(url, federation, limits=limits)
    try:
        store.claim()
    except BaseException:
        store.close()
        raise
    return store


def back_up(url: str, federation: Federation, target: Path) -> None:
    """Copy the federation's database into a file, whether a server runs or not.

    Of whatever version it is: a backup comes before a migration.
    """
    database = connect(url, create=False)
    try:
        if version_of(database) == 0:
            raise FederationError(f"database {database.place} has no federation in it yet")
        check_owner(database, federation)
        database.back_up(target)
    finally:
        database.close()


class Store:
    """The durable state of one federation."""

    def __init__(self, database: Database, federation: Federation, limits: StoreLimits) -> None:
        self.database = database
        self.limits = limits
        self.credentials = Credentials(database)
        self.uploads = UploadLedger(database, federation.shape, limits)
        self._shape = federation.shape
        self.pace = Pace(database)
        # Where sums alone are known; None: counts of each agent are.
        self.openings = Openings(database, federation.shape, limits) if federation.masks else None
        # Where sums have noise that is drawn here; None: they have none, or a helper's.
        self.releases = (
            Releases(database, federation, self.uploads) if federation.draws_noise else None
        )
        # Whether what single agents counted is for people to see.
        self._tells_agents = federation.privacy is None
        self._rewards = federation.rewards
        self._idle_rewards = federation.idle_rewards
        self._weights = federation.weights
        self._cap = federation.cap
        self._claimed = False
        self._claims: str | None = ""
        self._inside = False
        self._session = database.sessions
        self._last_erasure = 0
        self._forget()

    def _forget(self) -> None:
        self.credentials.forget()
        self.uploads.forget()
        self.pace.forget()
        self._open_number: int | None = None

    @cached_property
    def retention(self) -> Retention:
        """Retention of uploads."""
        return Retention(self.database, self.uploads, self.limits)

    def claim(self) -> None:
        """Become the one server on this database, for life; UnavailableError if another is."""
        self.database.claim()
        with self._atomic():
            self.database.count_up("claims")
            self._claims = self.database.meta("claims")
        self._claimed = True
        self._forget()

    def close(self) -> None:
        """Give the database back."""
        self.database.close()

    # ---------------------------------------------------------------------------- transactions

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit at the end, or undo all when anything is raised."""
        if self._inside:
            raise RuntimeError("a transaction is open already")
        self._inside = self.credentials.inside = self.uploads.inside = True
        try:
            self.database.begin()
            if self._session != self.database.sessions:
                self._resume()
            self.credentials.begin()
            if self._claimed:
                self._notice_erasures()
            yield
            self.uploads.write()
            self.pace.write()
            self.database.commit()
        except BaseException:
            self._forget()
            self.database.rollback()
            raise
        finally:
            self._inside = self.credentials.inside = self.uploads.inside = False
        if not self._claimed:
            self._forget()

    def _resume(self) -> None:
        """On a new connection: nothing that is remembered may be older than the database.

        A server that has lost its claim for a while has a round and agents in mind that another
        one may have changed. It must not go on with them.
        """
        self._forget()
        if self._claimed and self.database.meta("claims") != self._claims:
            raise ClaimLostError(
                f"database {self.database.place} was served by another process since the "
                "connection was lost; this server must be started again"
            )
        self._session = self.database.sessions

    def _notice_erasures(self) -> None:
        """Other processes may take counts out, too, but not while this transaction is open."""
        self.database.lock_counts()
        last = self.last_erasure()
        if last != self._last_erasure:
            self.uploads.forget()
            self._last_erasure = last

    @contextmanager
    def _atomic(self) -> Iterator[None]:
        """Inside a transaction a part of it, outside one of its own."""
        if self._inside:
            yield
        else:
            with self.transaction():
                yield

    # ------------------------------------------------------------------- agents and credentials

    def enroll(
        self,
        name: str,
        role: str,
        key_id: str,
        secret_hash: bytes,
        now: float,
        owner: str | None = None,
        *,
        by_whom: str | None = None,
    ) -> int:
        """Give a name a credential; return its lane. A name that was revoked keeps role and lane.

        owner: that the name counts for, by default itself; by_whom: the user of a command on the
        database, for the server's log.
        """
        with self._atomic():
            lane = self.credentials.enroll(name, role, key_id, secret_hash, now, owner)
            if by_whom is not None:
                self._note(now, "enrolled", name, role, owner, by_whom)
            return lane

    def revoke(self, name: str, now: float, *, by_whom: str | None = None) -> bool:
        """Take a name's credential back; False if it has none. Its counts stay.

        by_whom: the user of a command on the database.
        """
        with self._atomic():
            done = self.credentials.revoke(name, now)
            if done and by_whom is not None:
                self._note(now, "revoked", name, None, None, by_whom)
            return done

    def _note(
        self, now: float, act: str, name: str, role: str | None, owner: str | None, by_whom: str
    ) -> None:
        """Write an act for the server's log."""
        ((last,),) = self.database.rows("SELECT MAX(number) FROM acts")
        self.database.run(
            "INSERT INTO acts (number, at, act, name, role, owner, by_whom) "
            "VALUES (?, ?, ?, ?, ?, ?, ?)",
            ((last or 0) + 1, now, act, name, role, owner, by_whom),
        )

    def acts(self) -> list[Act]:
        """Return acts of commands on the database that are not in the log; they count as logged
        from now on."""
        with self._atomic():
            rows = self.database.rows(
                "SELECT number, at, act, name, role, owner, by_whom FROM acts ORDER BY number"
            )
            if rows:
                self.database.run("DELETE FROM acts WHERE number <= ?", (rows[-1][0],))
        return [Act(*row) for row in rows]

    def agents(self, now: float = math.inf) -> list[AgentRow]:
        """All that were ever enrolled, revoked ones too: admins, then agents by lane.

        now: by the clock; when an agent was seen after it is of a clock that was ahead, and not
        known.
        """
        tallies = self.uploads.tallies()
        rows = []
        for row in self.database.rows(
            "SELECT name, role, lane, enrolled, revoked, last_seen, last_round, refused, "
            "(SELECT MAX(at) FROM forgotten WHERE agent = name), owner "
            "FROM agents ORDER BY lane, name"
        ):
            name, *_, seen, fetched, refused, forgotten, owner = row
            tally, reward = tallies.get(name), None
            times = (seen, None if tally is None else tally.last_upload)
            past = [at for at in times if at is not None and at <= now + CLOCK_SECONDS]
            if tally is not None:
                fetched = max(tally.last_round, fetched or 0)
                if self._tells_agents:
                    reward = self._paid(tally.visits, tally.idle) / max(1, tally.slots)
            uploads, slots = (tally.uploads, tally.slots) if tally else (0, 0)
            seen = max(past, default=None)
            counted = (uploads, refused, slots, reward)
            rows.append(AgentRow(*(*row[:5], seen, fetched, *counted, forgotten, owner)))
        return rows

    def _paid(self, visits: Ints, idle: Ints | None) -> float:
        """Return the reward of plays, and of idle slots of arms that are always observed."""
        paid = (visits * self._rewards).sum()
        return float(paid if idle is None else paid + (idle * self._idle_rewards).sum())

    def newest(self) -> float:
        """Return the latest time in the database, in seconds since 1970; 0 without any."""
        columns = (
            *(("agents", column) for column in ("enrolled", "revoked", "last_seen")),
            ("credentials", "created"),
            ("incarnations", "updated"),
            ("folded", "updated"),
            *(("rounds", column) for column in ("opened", "closed")),
            ("forgotten", "at"),
        )
        parts = (f"SELECT MAX({column}) AS at FROM {table}" for table, column in columns)
        ((latest,),) = self.database.rows(
            f"SELECT MAX(at) FROM ({' UNION ALL '.join(parts)}) AS times"
        )
        return float(latest or 0.0)

    # ------------------------------------------------------------------------------- forgetting

    def erase(self, name: str, now: float, by_whom: str | None = None) -> Erasure | None:
        """Take all counts of an agent out, for good; None if no agent has this name.

        by_whom: the user, for the log. The open round keeps the counts that it was planned from
        until it closes. FederationError where only sums are known, or released: without the agent,
        the next one would disclose its counts.
        """
        if not self._tells_agents:
            how = "released in sums" if self.openings is None else "in sums alone"
            raise FederationError(
                f"what {name} gave is {how}, as [privacy] asks, and cannot be taken out"
            )
        with self._atomic():
            self.database.lock_counts()
            if not self.database.rows(
                "SELECT name FROM agents WHERE name = ? AND role = 'agent'", (name,)
            ):
                return None
            given = self.uploads.take_out(name)
            paid = self._paid(given.visits, given.idle)
            done = Erasure(0, name, now, self.open_number(), *given[:3], paid, by_whom)
            if given.incarnations:
                done = done._replace(number=self.last_erasure() + 1)
                self.database.run(
                    "INSERT INTO forgotten (number, agent, at, round, incarnations, uploads, "
                    "slots, paid, by_whom, logged) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 0)",
                    done,
                )
        return done

    def last_erasure(self) -> int:
        """Its number; 0 before the first."""
        ((last,),) = self.database.rows("SELECT MAX(number) FROM forgotten")
        return 0 if last is None else int(last)

    def erased(self) -> Erased:
        """All that was taken out until now."""
        ((slots, paid),) = self.database.rows(
            "SELECT SUM(slots), SUM(CASE WHEN round = ? THEN paid ELSE 0 END) FROM forgotten",
            (self.open_number(),),
        )
        return Erased(self.last_erasure(), int(slots or 0), float(paid or 0.0))

    def audit(self) -> list[Erasure]:
        """Return erasures that are not in the log yet; they count as logged from now on."""
        with self._atomic():
            rows = self.database.rows(
                "SELECT number, agent, at, round, incarnations, uploads, slots, paid, by_whom "
                "FROM forgotten WHERE logged = 0 ORDER BY number"
            )
            if rows:
                self.database.run("UPDATE forgotten SET logged = 1 WHERE logged = 0")
        return [Erasure(*row) for row in rows]

    # --------------------------------------------------------------------------------- uploads

    def accept(self, agent: str, upload: Upload, now: float) -> None:
        """Count an upload, in a transaction, after it was found to be new and to fit."""
        self.uploads.accept(agent, upload, now)
        if self.openings is not None:
            assert isinstance(upload, MaskedUpload)
            self.openings.keep(agent, upload)

    def tidy(self, agents: Sequence[str], now: float) -> list[str]:
        """Drop rows of these agents that can no longer matter; those that may have more of them."""
        with self._atomic():
            number = self.open_number()
            left = [agent for agent in agents if self.retention.tidy(agent, number, now)]
            if self.openings is not None:
                for agent in agents:
                    self.openings.tidy(agent)
            return left

    def spent_credit(
        self, credential: Credential, more: int, now: float, slot_seconds: float
    ) -> Credit:
        """Return an owner's credit after an upload with `more` new slots; ProtocolError 429 where
        there is too little."""
        owner, names = credential.owner, self.credentials.owned(credential.owner)
        tallies = self.uploads.tallies()
        tally = tallies.get(credential.name)
        before = 0 if tally is None else tally.slots  # of all incarnations of the agent
        credit = self.pace.credit(owner, now, slot_seconds, names)
        if credit is None:
            owners = self.credentials.owners()
            others = (
                tally.slots
                for name, tally in tallies.items()
                if owners[name] == owner and name != credential.name
            )
            first = Credit.first(credential.since, sum(others) + before, now, slot_seconds)
            credit = self.pace.keep(owner, first.filled(now, slot_seconds, names), changed=False)
        check_pace(before + more, before, credit, slot_seconds, names)
        return credit.spent(more, slot_seconds)

    def merged(self) -> Merged:
        """Return the sum over all incarnations of all agents, revoked ones too. With a helper, of
        unmasked sums; with noise drawn here, as it was released last."""
        return (self.openings or self.releases or self.uploads).merged()

    def counts_by_lane(self) -> LaneCounts:
        """Return the counts of each lane's agent, revoked ones too, of the same moment as `merged`
        in the same transaction."""
        with self._atomic():
            return self._weighed(self.uploads.by_lane(self.lanes()))

    def has_owners(self) -> bool:
        """Return whether some agents count for one owner together."""
        owners = self.credentials.owners()
        return len(set(owners.values())) < len(owners)

    def lanes(self) -> dict[str, int]:
        """Return the lanes of all agents by name."""
        return dict(self.database.rows("SELECT name, lane FROM agents WHERE role = 'agent'"))

    def _weighed(self, by_lane: LaneCounts) -> LaneCounts:
        """With the weights that the federation gives its owners, as far as its cap leaves them;
        agents of one owner share its weight."""
        if not self._weights and self._cap is None and not self.has_owners():
            return by_lane
        owners, lanes = self.credentials.owners(), self.lanes()
        weights = np.ones(len(by_lane.counts))
        of_owner = np.arange(len(by_lane.counts))  # the lane of its owner's first agent
        first: dict[str, int] = {}
        for name, lane in sorted(lanes.items(), key=lambda entry: entry[1]):
            if lane < len(weights):
                weights[lane] = self._weights.get(owners[name], 1.0)
                of_owner[lane] = first.setdefault(owners[name], lane)
        weights = owner_weights(weights, self._sizes(by_lane.counts), of_owner, self._cap)
        if self._cap is not None:
            weights = np.where(self._stand_out(by_lane.counts, of_owner), 0.0, weights)
        return by_lane._replace(weights=weights)

    def _stand_out(self, counts: Ints, of_owner: npt.NDArray[np.intp]) -> npt.NDArray[np.bool_]:
        """Whether the owner of each lane (L,) contradicts a clear majority of owners."""
        named = {str(lane): of_lane for lane, of_lane in enumerate(counts)}
        found = compared(named, self._shape, {str(n): str(of) for n, of in enumerate(of_owner)})
        scores = [found.scores[name] or 0.0 for name in named]
        unlike: npt.NDArray[np.bool_] = np.array(scores) > STANDS_OUT
        return unlike if not found.divided else np.zeros_like(unlike)

    def _sizes(self, counts: Ints) -> Ints:
        """How many pairs (L,) there are in counts (L, C, S, S, N) whose distance is known: those
        further apart tell learners little or nothing."""
        kinds = np.arange(counts.shape[1])[:, None] < self._shape.exact_kinds  # (C, N)
        sizes: Ints = (counts.sum((2, 3)) * kinds).sum((1, 2))
        return sizes

    def visits_by_agent(self) -> dict[str, Ints]:
        """Plays of each agent by the state they showed, (S, N) by name; nothing where that is not
        known, or not for people to see."""
        if not self._tells_agents:
            return {}
        return {name: tally.visits.copy() for name, tally in self.uploads.tallies().items()}

    def counts_by_agent(self) -> dict[str, Ints]:
        """Return the counts of each agent by name; nothing where that is too much to compare, not
        known, or not for people to see."""
        if not self._tells_agents:
            return {}
        with self._atomic():
            return self.uploads.by_agent()

    # ---------------------------------------------------------------------------------- rounds

    def open_round(self, round: OpenRound) -> None:
        """Open a round; the one before must be closed, in the same transaction or earlier."""
        counts, visits = self.uploads.pack(round.merged, round.by_lane)
        with self._atomic():
            if self.database.rows("SELECT number FROM rounds WHERE closed IS NULL"):
                raise RuntimeError(f"round {round.number} cannot open: another one is open")
            self.database.run(
                "INSERT INTO rounds (number, opened, slot_limit, visit_factor, agents, visits, "
                "plan, counts, memory) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    round.number,
                    round.opened,
                    round.limit,
                    round.visit_factor,
                    round.merged.agents,
                    visits,
                    round.plan_json,
                    counts,
                    None if round.memory is None else round.memory.to_bytes(),
                ),
            )
            self._open_number = round.number

    def close_round(
        self,
        number: int,
        closed: float,
        reason: str,
        reports: int,
        slots: int,
        reward: float | None,
    ) -> None:
        """Close the open round, and drop its plan and the counts it was made from."""
        with self._atomic():
            changed = self.database.run(
                "UPDATE rounds SET closed = ?, reason = ?, reports = ?, slots = ?, reward = ?, "
                "agents = NULL, visits = NULL, plan = NULL, counts = NULL, memory = NULL "
                "WHERE number = ? AND closed IS NULL",
                (closed, reason, reports, slots, reward, number),
            )
            if changed == 0:
                raise RuntimeError(f"round {number} cannot close: it is not open")
            self.database.run("DELETE FROM plans WHERE round = ?", (number,))
            self._open_number = None

    def current_round(self) -> OpenRound | None:
        """The open round; None before the first."""
        found = self.database.rows(
            "SELECT number, opened, slot_limit, visit_factor, agents, visits, plan, "
            "counts, memory FROM rounds WHERE closed IS NULL"
        )
        if not found:
            return None
        ((number, opened, limit, factor, agents, visits, plan, counts, memory),) = found
        merged, by_lane = self.uploads.unpack(counts, visits, agents)
        by_lane = None if by_lane is None else self._weighed(by_lane)
        kept = None if memory is None else RoundMemory.from_bytes(memory)
        return OpenRound(number, opened, limit, factor, merged, plan, by_lane, kept)

    def open_number(self) -> int:
        """Return the number of the open round, 0 before the first; asked for with every upload.

        It is remembered as credentials are, and forgotten when a transaction is undone: a round
        that it was to open is not open then.
        """
        if self._open_number is None or not self._inside:
            found = self.database.rows("SELECT number FROM rounds WHERE closed IS NULL")
            self._open_number = int(found[0][0]) if found else 0
        return self._open_number

    def rounds(self, limit: int) -> list[RoundRow]:
        """The last rounds, newest first."""
        found = self.database.rows(
            "SELECT number, opened, slot_limit, closed, reason, reports, slots, reward "
            "FROM rounds ORDER BY number DESC LIMIT ?",
            (limit,),
        )
        return [RoundRow(*row) for row in found]

    def keep_estimates(self, text: str) -> None:
        """Replace the estimates of the arms, as JSON."""
        with self._atomic():
            self.database.set_meta(_ESTIMATES, text)

    def estimates(self) -> str | None:
        """Return the estimates of `keep_estimates`."""
        return self.database.meta(_ESTIMATES)

    def drop_rounds(self) -> None:
        """Drop rounds that were closed long ago; their slots stay counted."""
        with self._atomic():
            which = "FROM rounds WHERE closed IS NOT NULL AND number < ?"
            values = (self.open_number() - self.limits.kept_rounds,)
            slots = self._slots_of(which, values)
            if self.database.run(f"DELETE {which}", values):
                self.database.count_up(_DROPPED, slots)

    def closed_slots(self) -> int:
        """Agent slots that closed rounds have brought, those that were dropped too."""
        with self._atomic():
            kept = self._slots_of("FROM rounds WHERE closed IS NOT NULL")
            return kept + int(self.database.meta(_DROPPED) or 0)

    def _slots_of(self, which: str, values: Sequence[Value] = ()) -> int:
        ((slots,),) = self.database.rows(
            f"SELECT CAST(COALESCE(SUM(slots), 0) AS BIGINT) {which}", values
        )
        return int(slots)

    def rewards(self, limit: int) -> list[RewardRow]:
        """Return slots and rewards of the last closed rounds, oldest first."""
        found = self.database.rows(
            "SELECT number, slots, reward FROM rounds WHERE closed IS NOT NULL "
            "ORDER BY number DESC LIMIT ?",
            (limit,),
        )
        return [RewardRow(*row) for row in reversed(found)]

    def awaited(self, number: int) -> tuple[set[str], Mapping[str, int]]:
        """For a server that goes on with round `number`: who is awaited, and who has reported.

        Awaited are agents that reported in this round or the one before, and those that were
        sighted with this one, unless revoked. Of those that reported in this one, the length of
        the longest episode.
        """
        with self._atomic():
            reports = self.uploads.reports(number)
            rows = self.database.rows("SELECT name, revoked, last_round FROM agents")
        reported = {agent: length for agent, round_, length in reports if round_ == number}
        fetched = {name for name, _, last_round in rows if last_round == number}
        gone = {name for name, revoked, _ in rows if revoked is not None}
        return (fetched | {agent for agent, *_ in reports}) - gone, reported

    def plan(self, number: int, lane: int) -> bytes | None:
        """The plan of one lane, where agents draw for themselves."""
        found = self.database.rows(
            "SELECT plan FROM plans WHERE round = ? AND lane = ?", (number, lane)
        )
        return found[0][0] if found else None

    def save_plan(self, number: int, lane: int, plan_json: bytes) -> None:
        """Keep the plan of one lane; the first one stays."""
        with self._atomic():
            self.database.run(
                "INSERT INTO plans (round, lane, plan) VALUES (?, ?, ?) "
                "ON CONFLICT (round, lane) DO NOTHING",
                (number, lane, plan_json),
            )
