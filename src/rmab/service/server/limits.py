"""Limits of a server: waiting times, memory, requests at once."""

from __future__ import annotations

from dataclasses import dataclass, field

from rmab.service.http.connections import HttpLimits
from rmab.service.store.limits import StoreLimits

__all__ = ["ServerLimits"]

_KIB, _MIB = 2**10, 2**20


@dataclass(frozen=True)
class ServerLimits(HttpLimits):
    """Limits of a server; times in seconds, sizes in bytes."""

    # Requests that wait for a round: how long, of all agents, and of one.
    round_wait_seconds: float = 30.0
    round_waits: int = 5000
    round_waits_of_agent: int = 8
    # Uploads that are parsed and not yet committed.
    uploads_in_flight: int = 256
    # Bodies that are being received, a quarter of them of one agent.
    body_room: int = 64 * _MIB
    # What an agent may send at once, as the time in which its rate allows as much: 5000 uploads
    # at 20 a second, 240 incarnations at 60 an hour.
    upload_burst_seconds: float = 250.0
    incarnation_burst_seconds: float = 14_400.0
    # Larger uploads are parsed in a thread.
    parse_inline_bytes: int = 64 * _KIB
    enrolment_bytes: int = 4 * _KIB

    # How long a credential counts as good where it is checked again before anything is written.
    credential_seconds: float = 1.0
    # Between two times that the database is told who was seen.
    sightings_seconds: float = 5.0
    # How long an agent that asks for a round is held before the first one, and whoever is told that
    # a new server answers.
    first_round_seconds: float = 8.0
    greeting_seconds: float = 0.2
    # After a restart, before the planner is loaded.
    prepare_seconds: float = 2.0
    # Until the database first drops what can no longer matter, and between two times that it does,
    # so many agents in one go.
    first_tidy_seconds: float = 10.0
    tidy_seconds: float = 300.0
    tidy_agents: int = 8
    # Between attempts to open or close a round: at first, and at most.
    first_retry_seconds: float = 1.0
    last_retry_seconds: float = 60.0

    # For each step of a request to a helper, and of the first, which the start waits for.
    helper_seconds: float = 20.0
    first_helper_seconds: float = 5.0

    # A page is given out again while nothing has changed, waits for estimates, shows the last ones.
    page_seconds: float = 0.25
    page_estimate_seconds: float = 0.5
    page_rewards: int = 500
    page_rounds: int = 50

    # At least between two times that pages and metrics have agents held against one another.
    outlier_seconds: float = 1.0

    store: StoreLimits = field(default_factory=StoreLimits)
