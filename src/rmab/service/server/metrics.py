"""Metrics of a server for Prometheus; docs/operations.md explains each."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

from rmab.service.http.telemetry import ConnectionMetrics

__all__ = ["Metrics"]

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)


class Metrics(ConnectionMetrics):
    """The metrics of one server."""

    def __init__(self) -> None:
        super().__init__()
        self.round = Gauge("rmab_round", "Number of the open round", registry=self.registry)
        self.agents = Gauge(
            "rmab_agents",
            "Agents: enrolled, live (heard of within two deadlines or live_seconds), revoked",
            ["state"],
            registry=self.registry,
        )
        self.outlier = Gauge(
            "rmab_agent_outlier",
            "How unlike the others' an agent's counts are; above 6 is not chance",
            ["agent"],
            registry=self.registry,
        )
        self.uploads = Counter(
            "rmab_uploads", "Uploads by what became of them", ["result"], registry=self.registry
        )
        self.upload_seconds = Histogram(
            "rmab_upload_seconds",
            "Seconds from an upload's last byte to its answer",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.commit_jobs = Histogram(
            "rmab_commit_jobs",
            "Jobs that one commit made durable",
            buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256),
            registry=self.registry,
        )
        self.queue_jobs = Gauge(
            "rmab_queue_jobs", "Jobs that wait for the database", registry=self.registry
        )
        self.rounds_closed = Counter(
            "rmab_rounds_closed", "Rounds closed, by why", ["reason"], registry=self.registry
        )
        self.plan_seconds = Histogram(
            "rmab_plan_seconds",
            "Seconds to plan a round",
            buckets=(0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100),
            registry=self.registry,
        )
        self.longpolls = Gauge(
            "rmab_longpolls", "Agents that wait for the next round", registry=self.registry
        )
        self.openings = Counter(
            "rmab_openings",
            "Sums that the helper was asked to open, by what became of it, or released without one",
            ["result"],
            registry=self.registry,
        )
        self.waiting_slots = Gauge(
            "rmab_waiting_slots",
            "Slots in uploads that no sum has yet that was opened, or released with noise",
            registry=self.registry,
        )
        self.releases_left = Gauge(
            "rmab_releases_left",
            "Releases that are left of a group, where sums have noise",
            ["group"],
            registry=self.registry,
        )
        self.helper_up = Gauge(
            "rmab_helper_up",
            "Whether the helper answered last: 1 or 0; NaN without one",
            registry=self.registry,
        )
        self.helper_up.set(float("nan"))
