"""What a store bounds: time that it waits, memory that it holds, jobs that it takes."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["StoreLimits"]

_MIB = 2**20


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
    # Bytes of all agents' counts that are held against one another; more are not.
    compared_bytes: int = 256 * _MIB
    # Jobs of one commit, and jobs in the writer's queue.
    batch_jobs: int = 256
    queued_jobs: int = 1024
