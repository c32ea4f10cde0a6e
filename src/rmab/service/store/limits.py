"""What a store bounds: time that it waits, memory that it holds, jobs that it takes."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["StoreLimits"]

_MIB = 2**20
_DAY = 86_400.0


@dataclass(frozen=True)
class StoreLimits:
    """Sizes and times of one store and its writer."""

    # How long a transaction waits for another process's, in seconds (SQLite).
    busy_seconds: float = 20.0
    # How long a claim waits: PostgreSQL notices a moment later that a session's process has ended.
    claim_seconds: float = 3.0
    # Pages of 4 KiB after which SQLite's log is copied into the file: 16 MB.
    checkpoint_pages: int = 4000
    # Of SQLite's cache: a batch of uploads fits, so nothing is written before the commit.
    cache_kibibytes: int = 16_384
    # Rows in one statement.
    statement_rows: int = 64
    # Bytes of uploads that wait for the commit, and of last records that are remembered.
    waiting_bytes: int = 32 * _MIB
    remembered_bytes: int = 64 * _MIB
    # An incarnation has ended once its agent has uploaded so much later under another one. It is
    # told apart from others until its agent has uploaded so much later than it was folded.
    ended_seconds: float = _DAY
    told_apart_seconds: float = 30 * _DAY
    # How long an upload is known that is not the last of its incarnation.
    repeat_seconds: float = 3600.0
    # Incarnations folded in one go, and closed rounds that are kept.
    fold_rows: int = 64
    kept_rounds: int = 10_000
    # Openings of sums that are known of, and those whose answer a helper gives again.
    kept_openings: int = 1000
    kept_answers: int = 64
    # Bytes of all agents' counts that are held against one another; more are not.
    compared_bytes: int = 256 * _MIB
    # Jobs of one commit, and jobs in the writer's queue.
    batch_jobs: int = 256
    queued_jobs: int = 1024
