"""The tables, their version, and how a database of an older version becomes one of this.

    meta          name -> value: the schema's version, whose counts these are, how often the
                  database was claimed and credentials changed, estimates of the arms
    agents        who was ever enrolled: name, role, lane, and the owner that it counts for
    credentials   key id -> digest of the secret; a name may have had several, one unrevoked
    incarnations  the last upload accepted of each incarnation of each agent: what is summed
    folded        of each agent the sum of its incarnations that have ended, in one row
    ended         of those that may still be heard of, the last upload's sequence and digest
    uploads       the ledger: digests of accepted uploads, by (agent, incarnation, sequence), so
                  that a repeat is known from a conflict; of each incarnation the last, and others
                  while they may matter (rmab.service.store.retention)
    rounds        the last rounds; the open one with its plan and the counts it was made from: their
                  sum, followed by those of lane 0, 1, ... where plans are made from them; and what
                  is kept of counts that lose weight (rmab.protocol.round_memory)
    plans         of the open round by lane, where agents draw for themselves
    forgotten     whose counts were taken out, when and how many: the audit
    gone          incarnations whose counts were taken out: they must not come back
    pace          of each owner, for how much playing time it may still claim slots
                  (rmab.service.store.uploads)
    acts          who was enrolled or revoked by a command on the database, for the server's log
    masked        of a federation with a helper, of each incarnation: where it began and how far it
                  has come, the upload that an opening is asked for and the one that was opened last
    marks         masked uploads at marks that no opening has yet (rmab.privacy.masks)
    positions     of each agent that was opened, up to which position
    openings      sums that a helper was asked to open, and what came of it; of a server that draws
                  the noise itself, sums that it released
    sums          what was opened, by group (rmab.service.store.unmasking), or released last
    releases      of a server that draws the noise: slots, and z, from which the noise is made
                  (rmab.service.store.releases)

Version v is reached from v - 1 by MIGRATIONS[v - 1], version 1 from an empty database; all that is
missing is done in one transaction. A version that this program does not know is refused: an older
program would not know what it leaves undone. Bytes of counts are little-endian 64-bit integers in
the shape that the federation gives them; where there are several of that shape, one after another.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import NamedTuple

from rmab.errors import FederationError
from rmab.protocol.config import Federation
from rmab.service.store.database import Database
from rmab.service.store.releases import BUDGET, RELEASES, budget_text, check_budget

__all__ = ["MIGRATIONS", "check_owner", "prepare", "version_of"]

_MODE, _SUMS, _NOISE = "mode", "sums", "noise"  # in `meta`, of a federation with [privacy]
_HAS = {
    None: "counts of single agents",
    _SUMS: "sums alone",
    _NOISE: "counts that are released with noise",
}

# Large columns come last: SQLite then finds the small ones without reading them.
_VERSION_1 = (
    "CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    """CREATE TABLE agents (
        name TEXT PRIMARY KEY,
        role TEXT NOT NULL CHECK (role IN ('agent', 'admin')),
        lane BIGINT NOT NULL,
        enrolled DOUBLE PRECISION NOT NULL,
        revoked DOUBLE PRECISION,
        last_seen DOUBLE PRECISION,
        last_round BIGINT,
        refused BIGINT NOT NULL)""",
    "CREATE UNIQUE INDEX agents_by_lane ON agents (lane) WHERE role = 'agent'",
    """CREATE TABLE credentials (
        key_id TEXT PRIMARY KEY,
        agent TEXT NOT NULL REFERENCES agents (name),
        secret_hash BLOB NOT NULL,
        created DOUBLE PRECISION NOT NULL,
        revoked DOUBLE PRECISION)""",
    "CREATE UNIQUE INDEX credentials_in_use ON credentials (agent) WHERE revoked IS NULL",
    """CREATE TABLE incarnations (
        agent TEXT NOT NULL REFERENCES agents (name),
        incarnation TEXT NOT NULL,
        sequence BIGINT NOT NULL,
        round BIGINT NOT NULL,
        slots BIGINT NOT NULL,
        uploads BIGINT NOT NULL,
        updated DOUBLE PRECISION NOT NULL,
        visits BLOB NOT NULL,
        counts BLOB NOT NULL,
        PRIMARY KEY (agent, incarnation))""",
    """CREATE TABLE uploads (
        agent TEXT NOT NULL,
        incarnation TEXT NOT NULL,
        sequence BIGINT NOT NULL,
        digest BLOB NOT NULL,
        round BIGINT NOT NULL,
        length BIGINT NOT NULL,
        received DOUBLE PRECISION NOT NULL,
        PRIMARY KEY (agent, incarnation, sequence),
        FOREIGN KEY (agent, incarnation) REFERENCES incarnations (agent, incarnation))""",
    "CREATE INDEX uploads_by_round ON uploads (round)",
    """CREATE TABLE rounds (
        number BIGINT PRIMARY KEY,
        opened DOUBLE PRECISION NOT NULL,
        slot_limit BIGINT NOT NULL,
        visit_factor BIGINT,
        closed DOUBLE PRECISION,
        reason TEXT,
        reports BIGINT,
        slots BIGINT,
        reward DOUBLE PRECISION,
        agents BIGINT,
        visits BLOB,
        plan BLOB,
        counts BLOB)""",
    "CREATE INDEX rounds_open ON rounds (number) WHERE closed IS NULL",
    """CREATE TABLE plans (
        round BIGINT NOT NULL REFERENCES rounds (number),
        lane BIGINT NOT NULL,
        plan BLOB NOT NULL,
        PRIMARY KEY (round, lane))""",
    "INSERT INTO meta (name, value) VALUES ('claims', '0')",
    "INSERT INTO meta (name, value) VALUES ('credentials', '0')",
)


class _Check(NamedTuple):
    """Change of the rule that a column keeps to."""

    table: str
    column: str
    before: str
    after: str


Migration = Iterable[str | _Check]

# A third role: viewers.
_VIEWERS = (
    _Check(
        "agents",
        "role",
        "role IN ('agent', 'admin')",
        "role IN ('agent', 'admin', 'viewer')",
    ),
)
# Retention of uploads. round: the last of their uploads; floor: incarnations of this round and
# before are not told apart any longer, so that of these rounds none is taken for a new one.
_FOLDING = (
    """CREATE TABLE folded (
        agent TEXT PRIMARY KEY REFERENCES agents (name),
        incarnations BIGINT NOT NULL,
        uploads BIGINT NOT NULL,
        slots BIGINT NOT NULL,
        round BIGINT NOT NULL,
        updated DOUBLE PRECISION NOT NULL,
        floor BIGINT NOT NULL,
        visits BLOB NOT NULL,
        counts BLOB NOT NULL)""",
    """CREATE TABLE ended (
        agent TEXT NOT NULL REFERENCES agents (name),
        incarnation TEXT NOT NULL,
        sequence BIGINT NOT NULL,
        digest BLOB NOT NULL,
        round BIGINT NOT NULL,
        folded DOUBLE PRECISION NOT NULL,
        PRIMARY KEY (agent, incarnation))""",
    "INSERT INTO meta (name, value) VALUES ('slots of dropped rounds', '0')",
)


# Counts of an agent can be taken out.
_FORGETTING = (
    """CREATE TABLE forgotten (
        number BIGINT PRIMARY KEY,
        agent TEXT NOT NULL REFERENCES agents (name),
        at DOUBLE PRECISION NOT NULL,
        round BIGINT NOT NULL,
        incarnations BIGINT NOT NULL,
        uploads BIGINT NOT NULL,
        slots BIGINT NOT NULL,
        paid DOUBLE PRECISION NOT NULL,
        logged BIGINT NOT NULL)""",
    """CREATE TABLE gone (
        agent TEXT NOT NULL REFERENCES agents (name),
        incarnation TEXT NOT NULL,
        PRIMARY KEY (agent, incarnation))""",
)
# Memory of an open round, for counts that lose weight.
_MEMORY = ("ALTER TABLE rounds ADD COLUMN memory BLOB",)
# Uploads may be masked, and sums of them unmasked.
_OPENINGS = (
    """CREATE TABLE masked (
        agent TEXT NOT NULL REFERENCES agents (name),
        incarnation TEXT NOT NULL,
        sequence BIGINT NOT NULL,
        slots BIGINT NOT NULL,
        asked_sequence BIGINT,
        asked_slots BIGINT,
        opened_sequence BIGINT NOT NULL,
        opened_slots BIGINT NOT NULL,
        refused_sequence BIGINT NOT NULL,
        refused TEXT,
        nonce BLOB NOT NULL,
        tag BLOB NOT NULL,
        masked BLOB NOT NULL,
        asked BLOB,
        opened BLOB,
        PRIMARY KEY (agent, incarnation))""",
    """CREATE TABLE openings (
        chain TEXT NOT NULL,
        number BIGINT NOT NULL,
        of_group BIGINT NOT NULL,
        round BIGINT NOT NULL,
        at DOUBLE PRECISION NOT NULL,
        agents BIGINT NOT NULL,
        members BIGINT NOT NULL,
        slots BIGINT NOT NULL,
        result TEXT NOT NULL,
        digest TEXT NOT NULL,
        request BLOB,
        words BLOB,
        PRIMARY KEY (chain, number))""",
    """CREATE TABLE sums (
        of_group BIGINT PRIMARY KEY,
        slots BIGINT NOT NULL,
        words BLOB NOT NULL)""",
    "INSERT INTO meta (name, value) VALUES ('impossible openings', '0')",
)


# Owners of agents, credit for slots, and a log of who enrolled and revoked.
_OWNERS = (
    "ALTER TABLE agents ADD COLUMN owner TEXT",
    "UPDATE agents SET owner = name",
    """CREATE TABLE pace (
        owner TEXT PRIMARY KEY,
        seconds DOUBLE PRECISION NOT NULL,
        at DOUBLE PRECISION NOT NULL)""",
    """CREATE TABLE acts (
        number BIGINT PRIMARY KEY,
        at DOUBLE PRECISION NOT NULL,
        act TEXT NOT NULL,
        name TEXT NOT NULL,
        role TEXT,
        owner TEXT,
        by_whom TEXT NOT NULL)""",
    "ALTER TABLE forgotten ADD COLUMN by_whom TEXT",
)


# Masked uploads are unmasked at marks. Incarnations of before did not begin at one, and agents
# begin others; an opening that is asked for or answered is still added.
_MARKS = (
    "CREATE TABLE positions (agent TEXT PRIMARY KEY REFERENCES agents (name), "
    "opened BIGINT NOT NULL)",
    "INSERT INTO positions (agent, opened) SELECT DISTINCT agent, 0 FROM masked "
    "WHERE opened_slots > 0 OR asked_slots > 0",
    "DROP TABLE masked",
    """CREATE TABLE masked (
        agent TEXT NOT NULL REFERENCES agents (name),
        incarnation TEXT NOT NULL,
        since BIGINT NOT NULL,
        slots BIGINT NOT NULL,
        opened_slots BIGINT NOT NULL,
        asked_slots BIGINT,
        ended BIGINT NOT NULL,
        refused TEXT,
        asked BLOB,
        opened BLOB,
        PRIMARY KEY (agent, incarnation))""",
    """CREATE TABLE marks (
        agent TEXT NOT NULL,
        incarnation TEXT NOT NULL,
        slots BIGINT NOT NULL,
        sequence BIGINT NOT NULL,
        nonce BLOB NOT NULL,
        tag BLOB NOT NULL,
        masked BLOB NOT NULL,
        PRIMARY KEY (agent, incarnation, slots),
        FOREIGN KEY (agent, incarnation) REFERENCES masked (agent, incarnation))""",
)


MIGRATIONS: tuple[Migration, ...] = (
    _VERSION_1,
    _VIEWERS,
    _FOLDING,
    _FORGETTING,
    _MEMORY,
    _OPENINGS,
    (RELEASES,),
    _OWNERS,
    _MARKS,
)


def prepare(database: Database, federation: Federation, *, create: bool) -> None:
    """Make the tables, or bring them to this version, and check whose counts are in them.

    A database in use is not changed under the server that uses it: that takes the claim.
    """
    migrations = MIGRATIONS
    _check_version(database, len(migrations))
    moving = 0 < version_of(database) < len(migrations)
    if moving:
        database.claim()
    try:
        database.begin()
        try:
            database.lock_schema()
            _migrate(database, federation, migrations, create=create)
            check_owner(database, federation)
            database.commit()
        except BaseException:
            database.rollback()
            raise
    finally:
        if moving:
            database.release()


def version_of(database: Database) -> int:
    """The version of the tables; 0 for a database without any."""
    tables = database.tables()
    if not tables:
        return 0
    found = database.meta("schema") if "meta" in tables else None
    if found is None or not found.isdecimal():
        raise FederationError(
            f"database {database.place} has tables that are no federation's; use an empty one"
        )
    return int(found)


def _migrate(
    database: Database,
    federation: Federation,
    migrations: Sequence[Migration],
    *,
    create: bool,
) -> None:
    version = version_of(database)
    _check_version(database, len(migrations))
    if version == 0 and not create:
        raise FederationError(
            f"database {database.place} has no federation in it yet; `rmab server` makes one"
        )
    for step in chain.from_iterable(migrations[version:]):
        if isinstance(step, _Check):
            database.change_check(*step)
        else:
            database.run(step)
    if version == 0:
        for name, value in (
            ("schema", ""),
            ("federation", federation.name),
            ("fingerprint", federation.fingerprint()),
            *_told_mode(federation),
        ):
            database.run("INSERT INTO meta (name, value) VALUES (?, ?)", (name, value))
    if version < len(migrations):
        database.run("UPDATE meta SET value = ? WHERE name = 'schema'", (str(len(migrations)),))


def _check_version(database: Database, newest: int) -> None:
    version = version_of(database)
    if version > newest:
        raise FederationError(
            f"database {database.place} has schema version {version}, but this rmab knows versions "
            f"up to {newest}: use the rmab that wrote it, or a newer one"
        )


def check_owner(database: Database, federation: Federation) -> None:
    """Refuse another federation's database."""
    if database.meta("fingerprint") != federation.fingerprint():
        raise FederationError(
            f"database {database.place} has the counts of federation "
            f"{database.meta('federation')!r} as it was when they were counted; "
            f"{federation.name!r} differs in its name, plays, arms or gaps: use another database"
        )
    mode = dict(_told_mode(federation)).get(_MODE)
    found = database.meta(_MODE)
    if found != mode:
        asks = "as there is no [privacy]" if mode is None else "as [privacy] asks"
        raise FederationError(
            f"database {database.place} has {_HAS.get(found, found)}, but {federation.name!r} is "
            f"to have {_HAS[mode]}, {asks}: use another database"
        )
    if mode == _NOISE:
        check_budget(database, _budget(federation))


def _told_mode(federation: Federation) -> list[tuple[str, str]]:
    """Return the entries of [privacy] in `meta`."""
    if federation.masks:
        return [(_MODE, _SUMS)]
    if federation.draws_noise:
        return [(_MODE, _NOISE), (BUDGET, _budget(federation))]
    return []


def _budget(federation: Federation) -> str:
    return budget_text(federation.budget, federation.survey)
