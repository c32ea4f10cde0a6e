"""Limits of a server's store and its writer: memory, retention, jobs."""

from __future__ import annotations

from dataclasses import dataclass

from rmab.service.store.database import DatabaseLimits

__all__ = ["StoreLimits"]

_MIB = 2**20
_DAY = 86_400.0


@dataclass(frozen=True)
class StoreLimits(DatabaseLimits):
    """Sizes and times of one store and its writer."""

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
    # Openings of sums that are known of.
    kept_openings: int = 1000
    # Bytes of all agents' counts that are held against one another; more are not.
    compared_bytes: int = 256 * _MIB
    # Jobs of one commit, and jobs in the writer's queue.
    batch_jobs: int = 256
    queued_jobs: int = 1024
