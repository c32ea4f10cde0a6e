"""Durable state of a helper: mask keys, watermarks of incarnations, its openings.

    meta       name -> value: the schema's version, whose keys these are, a name for this database
    keys       of each agent its mask keys, one of them unrevoked at most, and its group
    servers    key id -> digest of the secret, of the tokens that the server has had
    points     where each incarnation was unmasked last: the next batch goes on from there
    cohorts    of each agent that was unmasked those that were in the same batches so far
    openings   their digests, and of the last ones the answers
    releases   of each group, where sums have noise: slots, and z, from which the noise is made

Points and cohorts are never dropped: one that is forgotten could be unmasked again, or set apart.
For the same reason a backup of this database must never be restored; one that is lost is begun
anew, with new keys.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rmab.errors import FederationError, StorageError, UnavailableError
from rmab.privacy.accounting import Budget, PrivacyAccountant
from rmab.privacy.masks import MaskKey, Words, make_key, parse_key
from rmab.privacy.unmasking import (
    BEGINNING,
    AggregationJob,
    EnrolledAgent,
    JobOutcome,
    Watermark,
    answer_job,
)
from rmab.service.http.tokens import make_token, matches
from rmab.service.store.database import Database, DatabaseLimits, connect
from rmab.service.store.releases import BUDGET, RELEASES, Ledgers, budget_text, check_budget

__all__ = [
    "HelperLimits",
    "HelperStore",
    "KeyRow",
    "Terms",
    "default_database",
    "open_helper_store",
]

_VERSION = "helper schema"  # in `meta`: no server takes such a database for its own
_TABLES = (
    "CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    """CREATE TABLE keys (
        agent TEXT NOT NULL,
        number BIGINT NOT NULL,
        of_group BIGINT NOT NULL,
        enrolled DOUBLE PRECISION NOT NULL,
        revoked DOUBLE PRECISION,
        secret BLOB NOT NULL,
        PRIMARY KEY (agent, number))""",
    """CREATE TABLE servers (
        key_id TEXT PRIMARY KEY,
        secret_hash BLOB NOT NULL,
        created DOUBLE PRECISION NOT NULL,
        revoked DOUBLE PRECISION)""",
    """CREATE TABLE points (
        agent TEXT NOT NULL,
        incarnation TEXT NOT NULL,
        sequence BIGINT NOT NULL,
        slots BIGINT NOT NULL,
        key_number BIGINT NOT NULL,
        nonce BLOB NOT NULL,
        PRIMARY KEY (agent, incarnation))""",
    """CREATE TABLE openings (
        number BIGINT PRIMARY KEY,
        of_group BIGINT NOT NULL,
        at DOUBLE PRECISION NOT NULL,
        members BIGINT NOT NULL,
        digest TEXT NOT NULL,
        answer BLOB)""",
    RELEASES,
)
_COHORTS = "CREATE TABLE cohorts (agent TEXT PRIMARY KEY, cohort TEXT NOT NULL)"
_SCHEMA = 2


@dataclass(frozen=True)
class HelperLimits(DatabaseLimits):
    """Limits of a helper's store."""

    # Openings whose answer is given again.
    kept_answers: int = 64


@dataclass(frozen=True)
class Terms:
    """Terms of a federation that its helper keeps to (`rmab.service.terms`)."""

    federation: str
    fingerprint: str  # digest of its name, plays, arms and gaps
    plays: int  # K
    counts: int  # of an upload
    size: int  # R, all numbers of an upload
    least: int  # agents in an opening
    groups: int
    budget: Budget | None  # privacy of sums with noise; None: they have none
    survey: int  # slots; 0: none
    privacy: Mapping[str, Any]  # table that server and helper must agree on, as JSON has it
    cost_warning: Callable[[int], str | None]  # line where noise costs this many agents much


class KeyRow(NamedTuple):
    """An agent that was ever enrolled, by its last key; incarnations: that were opened; cohort:
    None before it was."""

    name: str
    group: int
    enrolled: float
    revoked: float | None
    incarnations: int
    cohort: str | None


def default_database(federation_file: Path) -> str:
    """Beside the federation's file, and not the server's."""
    return str(federation_file.with_suffix(".helper.db"))


def open_helper_store(url: str, terms: Terms, *, limits: HelperLimits | None = None) -> HelperStore:
    """Return the store in a database, made where there is none; FederationError if the database is
    not this federation's helper's."""
    limits = limits or HelperLimits()
    database = connect(url, create=True, limits=limits)
    try:
        _prepare(database, terms)
    except (FederationError, UnavailableError) as error:
        database.close()
        if isinstance(error, StorageError) and error.lasting:
            raise FederationError(str(error)) from None
        raise
    except BaseException:
        database.close()
        raise
    return HelperStore(database, terms, limits)


def _prepare(database: Database, terms: Terms) -> None:
    database.begin()
    try:
        database.lock_schema()
        tables = database.tables()
        if not tables:
            for statement in (*_TABLES, _COHORTS):
                database.run(statement)
            for name, value in (
                (_VERSION, str(_SCHEMA)),
                ("federation", terms.federation),
                ("fingerprint", terms.fingerprint),
                ("helper", secrets.token_hex(16)),
                ("asked", "0"),
                (BUDGET, budget_text(terms.budget, terms.survey)),
            ):
                database.run("INSERT INTO meta (name, value) VALUES (?, ?)", (name, value))
        version = database.meta(_VERSION) if "meta" in database.tables() else None
        if version is None:
            raise FederationError(
                f"database {database.place} is no helper's: use another one, or an empty one"
            )
        if version == "1":
            _add_cohorts(database)
        elif version != str(_SCHEMA):
            raise FederationError(
                f"database {database.place} has version {version} of a helper's tables, but this "
                f"rmab knows versions up to {_SCHEMA}: use the rmab that wrote it, or a newer one"
            )
        if database.meta("fingerprint") != terms.fingerprint:
            raise FederationError(
                f"database {database.place} has the keys of federation "
                f"{database.meta('federation')!r} as it was; {terms.federation!r} differs in its "
                "name, plays, arms or gaps: use another database"
            )
        check_budget(database, budget_text(terms.budget, terms.survey))
        database.commit()
    except BaseException:
        database.rollback()
        raise


def _add_cohorts(database: Database) -> None:
    """Take all agents of a group that were in any opening for a cohort."""
    database.run(_COHORTS)
    database.run(
        "INSERT INTO cohorts (agent, cohort) SELECT agent, MIN(agent) OVER (PARTITION BY of_group) "
        "FROM keys AS last WHERE number = (SELECT MAX(number) FROM keys WHERE agent = last.agent) "
        "AND EXISTS (SELECT 1 FROM points WHERE points.agent = last.agent)"
    )
    database.set_meta(_VERSION, str(_SCHEMA))


class HelperStore:
    """The durable state of one helper; used by one thread at a time."""

    def __init__(self, database: Database, terms: Terms, limits: HelperLimits) -> None:
        self._database = database
        self._terms = terms
        self._ledgers = (
            None
            if terms.budget is None
            else Ledgers(database, terms.budget, terms.plays, terms.counts)
        )
        self._limits = limits

    def claim(self) -> None:
        """Become the one process that answers from this database; UnavailableError if another
        does."""
        self._database.claim()

    def close(self) -> None:
        """Give the database back."""
        self._database.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit at the end, or undo all when anything is raised."""
        try:
            self._database.begin()
            self._database.count_up("asked")  # whoever else writes waits
            yield
            self._database.commit()
        except BaseException:
            self._database.rollback()
            raise

    @property
    def name(self) -> str:
        """Name of this database; another one has another."""
        return str(self._database.meta("helper"))

    # -------------------------------------------------------------------------------- enrolment

    def enroll(self, name: str, group: int | None, now: float) -> tuple[str, int]:
        """Give an agent a mask key, which is returned once, and its group: the one it had, else
        the smallest, where none is given."""
        groups = self._terms.groups
        if group is not None and not 1 <= group <= groups:
            raise FederationError(
                f"--group must be a whole number from 1 to {groups}, as privacy.groups says, "
                f"got {group}"
            )
        text = make_key()
        with self.transaction():
            found = self._database.rows(
                "SELECT number, of_group, revoked FROM keys WHERE agent = ? "
                "ORDER BY number DESC LIMIT 1",
                (name,),
            )
            number, had, revoked = found[0] if found else (0, None, 0.0)
            if revoked is None:
                raise FederationError(f"{name} is enrolled already; revoke it first")
            if group is not None and group != had and self.cohort(name) is not None:
                raise FederationError(
                    f"{name} was summed with others of group {had} and must stay in it, got "
                    f"--group {group}"
                )
            if group is None:
                group = had if had is not None and had <= groups else self._smallest_group()
            self._database.run(
                "INSERT INTO keys (agent, number, of_group, enrolled, secret) "
                "VALUES (?, ?, ?, ?, ?)",
                (name, number + 1, group, now, parse_key(text)),
            )
        return text, group

    def _smallest_group(self) -> int:
        sizes = dict.fromkeys(range(1, self._terms.groups + 1), 0)
        for group, size in self._database.rows(
            "SELECT of_group, COUNT(*) FROM keys WHERE revoked IS NULL GROUP BY of_group"
        ):
            if group in sizes:
                sizes[group] = size
        return min(sizes, key=lambda group: (sizes[group], group))

    def revoke(self, name: str, now: float) -> None:
        """Take an agent's key back: nothing of it is opened any more."""
        with self.transaction():
            changed = self._database.run(
                "UPDATE keys SET revoked = ? WHERE agent = ? AND revoked IS NULL", (now, name)
            )
            if not changed:
                raise FederationError(f"{name} has no mask key to revoke")

    def enroll_server(self, now: float) -> str:
        """A token for the server, returned once."""
        token, key_id, secret_hash = make_token()
        with self.transaction():
            if self._database.rows("SELECT key_id FROM servers WHERE revoked IS NULL"):
                raise FederationError("the server has a token already; revoke it first")
            self._database.run(
                "INSERT INTO servers (key_id, secret_hash, created) VALUES (?, ?, ?)",
                (key_id, secret_hash, now),
            )
        return token

    def revoke_server(self, now: float) -> None:
        """Take the server's token back."""
        with self.transaction():
            if not self._database.run(
                "UPDATE servers SET revoked = ? WHERE revoked IS NULL", (now,)
            ):
                raise FederationError("the server has no token to revoke")

    def is_server(self, key_id: str, secret_hash: bytes) -> bool:
        """Whether it is the token of the server, and not revoked."""
        found = self._database.rows(
            "SELECT secret_hash FROM servers WHERE key_id = ? AND revoked IS NULL", (key_id,)
        )
        return bool(found) and matches(bytes(found[0][0]), secret_hash)

    def agents(self) -> list[KeyRow]:
        """All that were ever enrolled, by name."""
        return [
            KeyRow(*row)
            for row in self._database.rows(
                "SELECT agent, of_group, enrolled, revoked, "
                "(SELECT COUNT(*) FROM points WHERE points.agent = keys.agent), "
                "(SELECT cohort FROM cohorts WHERE cohorts.agent = keys.agent) FROM keys "
                "WHERE number = (SELECT MAX(number) FROM keys AS all_of "
                "WHERE all_of.agent = keys.agent) ORDER BY agent"
            )
        ]

    # --------------------------------------------------------------------------------- openings

    def open(self, opening: AggregationJob, clock: Callable[[], float] = time.time) -> Words:
        """The masks that answer an opening, which is durable when this returns; ProtocolError 409
        if it may not be opened."""
        self._now = clock()
        with self.transaction():
            return answer_job(
                opening,
                self,
                self._terms.fingerprint,
                self._terms.size,
                self._terms.least,
                None if self._ledgers is None else self._ledgers.of,
            )

    def ledger(self, group: int) -> PrivacyAccountant:
        """Return the releases of a group, where sums have noise."""
        assert self._ledgers is not None
        return self._ledgers.of(group)

    def releases_left(self) -> dict[int, int]:
        """Return the releases that are left, by group; nothing where sums have no noise."""
        if self._ledgers is None:
            return {}
        return {group: self.ledger(group).remaining for group in range(1, self._terms.groups + 1)}

    def last(self) -> tuple[int, str]:
        """Number and digest of the last opening."""
        found = self._database.rows(
            "SELECT number, digest FROM openings ORDER BY number DESC LIMIT 1"
        )
        return (int(found[0][0]), str(found[0][1])) if found else (0, BEGINNING)

    def enrolled(self, agent: str) -> EnrolledAgent | None:
        """The agent of that name by its last key."""
        found = self._database.rows(
            "SELECT number, of_group, revoked, secret FROM keys WHERE agent = ? "
            "ORDER BY number DESC LIMIT 1",
            (agent,),
        )
        if not found:
            return None
        ((number, group, revoked, secret),) = found
        return EnrolledAgent(group, MaskKey(bytes(secret)), number, revoked is not None)

    def watermark(self, agent: str, incarnation: str) -> Watermark | None:
        """Where an incarnation was opened last."""
        found = self._database.rows(
            "SELECT sequence, slots, nonce, key_number FROM points "
            "WHERE agent = ? AND incarnation = ?",
            (agent, incarnation),
        )
        if not found:
            return None
        ((sequence, slots, nonce, key),) = found
        return Watermark(sequence, slots, bytes(nonce), key)

    def cohort(self, agent: str) -> str | None:
        """The name of the agent's cohort; None before its first opening."""
        found = self._database.rows("SELECT cohort FROM cohorts WHERE agent = ?", (agent,))
        return found[0][0] if found else None

    def agents_in(self, cohort: str) -> list[str]:
        """All agents of a cohort."""
        rows = self._database.rows("SELECT agent FROM cohorts WHERE cohort = ?", (cohort,))
        return [agent for (agent,) in rows]

    def answer(self, number: int) -> tuple[str, Words | None] | None:
        """The digest of an opening and, while it is kept, its answer."""
        found = self._database.rows(
            "SELECT digest, answer FROM openings WHERE number = ?", (number,)
        )
        if not found:
            return None
        ((digest, data),) = found
        words = None if data is None else np.frombuffer(data, "<u8").astype(np.uint64, copy=False)
        return digest, words

    def keep(self, opening: AggregationJob, opened: JobOutcome) -> None:
        """Keep an opening, its answer, where each member was opened, and cohorts."""
        for (agent, incarnation), point in opened.watermarks.items():
            self._database.run(
                "INSERT INTO points (agent, incarnation, sequence, slots, key_number, nonce) "
                "VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (agent, incarnation) DO UPDATE SET "
                "sequence = excluded.sequence, slots = excluded.slots, "
                "key_number = excluded.key_number, nonce = excluded.nonce",
                (agent, incarnation, point.sequence, point.slots, point.key, point.nonce),
            )
        for agent, cohort in opened.cohorts.items():
            self._database.run(
                "INSERT INTO cohorts (agent, cohort) VALUES (?, ?) "
                "ON CONFLICT (agent) DO UPDATE SET cohort = excluded.cohort",
                (agent, cohort),
            )
        self._database.run(
            "INSERT INTO openings (number, of_group, at, members, digest, answer) "
            "VALUES (?, ?, ?, ?, ?, ?)",
            (
                opening.number,
                opening.group,
                self._now,
                len(opening.reports),
                opening.digest,
                np.ascontiguousarray(opened.masks, "<u8").tobytes(),
            ),
        )
        if opened.accountant is not None:
            assert self._ledgers is not None
            self._ledgers.keep(opening.group, opened.accountant.releases[-1])
        self._database.run(
            "UPDATE openings SET answer = NULL WHERE number = ?",
            (opening.number - self._limits.kept_answers,),
        )

    def to_table(self) -> dict[str, Any]:
        """Return the helper's terms, last opening and agents, as JSON has them."""
        return {
            "helper": self.name,
            "federation": self._terms.federation,
            "fingerprint": self._terms.fingerprint,
            "privacy": dict(self._terms.privacy),
            "last": self.last()[0],
            **({} if self._ledgers is None else {"releases_left": self.releases_left()}),
            "agents": [
                {
                    "name": row.name,
                    "group": row.group,
                    "cohort": row.cohort,
                    "revoked": row.revoked,
                }
                for row in self.agents()
            ],
        }
