"""What the server measures, for Prometheus. Each name is explained in docs/operations.md."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

__all__ = ["Metrics"]

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)


class Metrics:
    """The measures of one server, in a registry of its own."""

    media_type = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        self.round = Gauge("rmab_round", "Number of the open round", registry=self.registry)
        self.agents = Gauge(
            "rmab_agents",
            "Agents: enrolled, live (the round waits for them or has heard of them), revoked",
            ["state"],
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
        self.requests = Counter(
            "rmab_http_requests",
            "Requests by route and status code",
            ["route", "code"],
            registry=self.registry,
        )
        self.longpolls = Gauge(
            "rmab_longpolls", "Agents that wait for the next round", registry=self.registry
        )
        self.connections = Gauge("rmab_connections", "Open connections", registry=self.registry)
        self.dropped = Counter(
            "rmab_dropped_connections",
            "Connections closed because their peer was too slow",
            registry=self.registry,
        )

    def text(self) -> bytes:
        """All of them, as Prometheus reads them."""
        return generate_latest(self.registry)
