"""Limits of an agent: how long it waits and tries, how much it takes and keeps."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["AgentLimits"]

_MIB = 2**20


@dataclass(frozen=True)
class AgentLimits:
    """Times are in seconds, sizes in bytes."""

    # Between attempts: at first, and at most; each time twice as long.
    first_pause: float = 0.2
    longest_pause: float = 60.0
    # Of Retry-After, as far as it is believed.
    longest_asked: float = 600.0
    # That the server is asked to hold a request for the next round, and at least between two such
    # requests, where it does not hold them.
    round_wait: float = 20.0
    between_requests: float = 1.0
    # Rounds that may close in a row, each before its upload, without a pause.
    closed_rounds: int = 3
    # Of an answer: its size, and the time-outs that it may take as a whole, however it trickles in.
    answer_bytes: int = 64 * _MIB
    answer_timeouts: int = 10
    # In the end: that `close` waits for what is unsent, for the goodbye, and for all together.
    close_seconds: float = 2.0
    leave_seconds: float = 2.0
    stop_seconds: float = 10.0
    # Slots that are kept one by one, at most, before they become a snapshot.
    fold_slots: int = 4096
    # Of the file's log: after which it is moved into the database, and beyond which slots wait.
    tidy_bytes: int = 2 * _MIB
    log_bytes: int = 8 * _MIB
    # Between two lines of the log about the same thing.
    quiet_seconds: float = 60.0
