"""A server for the page's tests: its files, and answers to /v1/overview that a test writes."""

import contextlib
import json
import math
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from rmab.service.server.page import ASSETS, asset

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
NOW = 1_800_000_000.0

Answer = dict[str, Any]


# What the server would answer.


def probability(mean: float, width: float) -> dict[str, float]:
    return {"mean": mean, "low": max(0.0, mean - width), "high": min(1.0, mean + width)}


def channel(p01: float, p11: float, reward: float, share: float, width: float = 0.05) -> Answer:
    memory = p11 - p01
    settled = p01 / (1 - memory)
    lines = [
        [reward * (settled + memory**age * (seen - settled)) for age in range(1, 41)]
        for seen in (0, 1)
    ]
    return {
        "states": 2,
        "reward": [0.0, reward],
        "estimate": {"p01": probability(p01, width), "p11": probability(p11, width / 2)},
        "index": {"never": reward * settled, "by_state": lines},
        "plays": round(12_000 * share),
        "share": share,
    }


def fading(share: float) -> Answer:
    rows = [[0.7, 0.2, 0.1], [0.25, 0.5, 0.25], [0.05, 0.25, 0.7]]
    lines = [[0.5 + (s - 1) * 0.4 * 0.8**age for age in range(1, 41)] for s in range(3)]
    return {
        "states": 3,
        "reward": [0.0, 0.5, 1.0],
        "estimate": {"transitions": [[probability(p, 0.08) for p in row] for row in rows]},
        "index": {"never": 0.5, "by_state": lines},
        "plays": round(12_000 * share),
        "share": share,
    }


def machine(share: float) -> Answer:
    """Always observed, and another when it is played."""
    arm = channel(0.3, 0.8, 0.9, share)
    return arm | {
        "reward_passive": [0.2, 0.0],
        "observed": "always",
        "action_dependent": True,
        "estimate": arm["estimate"]
        | {"passive": {k: probability(0.55, 0.1) for k in ("p01", "p11")}},
        "index": {"never": None, "by_state": [[0.25], [0.75]]},
    }


PAPER = [
    channel(0.20, 0.80, 0.4, 0.02, 0.18),
    channel(0.89, 0.17, 0.9, 0.46),
    channel(0.10, 0.90, 0.7, 0.34),
    channel(0.90, 0.16, 0.6, 0.18, 0.08),
]


def agent(lane: int, name: str, **changes) -> Answer:
    found: dict[str, Any] = {"name": name, "lane": lane, "role": "agent", "enrolled": NOW - 9e4}
    found |= {"revoked": None, "last_seen": NOW - 3.2, "episode": 60, "uploads": 60, "refused": 0}
    return (
        found
        | {"slots": 1500 + lane, "reward": 0.93 + 0.01 * math.sin(lane), "live": True}
        | {"forgotten": None, "outlier": 1.0 + math.sin(lane)}
        | changes
    )


def overview(rounds: int = 60, arms=PAPER, agents=None, **changes) -> Answer:
    """A federation in which `rounds` rounds have closed and the next one is open."""
    if agents is None:
        agents = [agent(lane, f"radio-{lane + 1}", episode=rounds + 1) for lane in range(4)]
    rewards = [
        {
            "round": r,
            "slots": 4 * r,
            "reward": 0.98 - 0.45 * math.exp(-r / 12) + 0.25 * math.sin(7.0 * r) / math.sqrt(r),
        }
        for r in range(1, rounds + 1)
    ]
    closed = [
        {
            "round": r,
            "opened": NOW - 3 * (rounds + 1 - r),
            "closed": NOW - 3 * (rounds + 1 - r) + 2.4,
        }
        | {"reason": "deadline" if r % 7 == 0 else "all", "reports": 4, "limit": r}
        for r in range(rounds, max(0, rounds - 49), -1)
    ]
    opened = {"round": rounds + 1, "opened": NOW - 2.4, "closed": None, "reason": None}
    opened |= {"reports": 1, "limit": rounds + 1}
    shown = {"federation": "spectrum", "policy": "fedtswi-gap", "plays": 2, "round": rounds + 1}
    shown |= {"opened": NOW - 2.4, "now": NOW, "limit": rounds + 1, "deadline": 30.0}
    shown |= {"uploads": 4 * rounds, "slots": sum(row["slots"] for row in rewards)}
    shown |= {"reference": 0.9852, "arms": arms, "rewards": rewards, "agents": agents}
    shown |= {"warnings": []}
    return shown | {"rounds": [opened, *closed]} | changes


def many(arms: int, agents: int) -> Answer:
    """Many arms, each an equal part of the plays, and many agents in every state."""
    kinds: list[dict[str, Any]] = [
        {},
        {"episode": 40},
        {
            "last_seen": None,
            "episode": None,
            "uploads": 0,
            "slots": 0,
            "reward": None,
            "live": False,
        },
        {"live": False, "last_seen": NOW - 4000},
        {"revoked": NOW - 60, "live": False, "refused": 12},
    ]
    return overview(
        300,
        [channel(0.1 + 0.8 * n / arms, 0.9 - 0.7 * n / arms, 0.5, 1 / arms) for n in range(arms)],
        [
            agent(
                lane,
                f"site-{lane:04d}",
                **{"episode": 301} | kinds[0 if lane % 20 else lane // 20 % 5],
            )
            for lane in range(agents)
        ],
    )


NOTHING_YET = overview(
    0,
    [
        channel(0.5, 0.5, 0.4, 0.0, 0.475) | {"estimate": None, "index": None, "plays": 0},
        channel(0.5, 0.5, 0.9, 0.0, 0.475) | {"plays": 0},
    ],
    [],
    uploads=0,
    reference=None,
)


class Served:
    """The page's files with the server's headers, and whatever answer a test has set."""

    def __init__(self, port: int = 0) -> None:
        self.answer: Answer | str = overview()
        self.status = 200
        self.asked = 0
        self.goes_on = threading.Event()  # answers wait while it is not set
        self.goes_on.set()
        served = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path = self.path.lstrip("/") or "index.html"
                if path in ASSETS:
                    self.reply(200, *asset(path))
                elif path == "v1/overview":
                    served.asked += 1
                    served.goes_on.wait(300)
                    answer = served.answer
                    body = answer if isinstance(answer, str) else json.dumps(answer)
                    self.reply(served.status, body.encode(), "application/json")
                else:
                    self.reply(404, b"", "text/plain")

            def reply(self, status: int, body: bytes, media_type: str) -> None:
                self.send_response(status)
                self.send_header("Content-Type", media_type)
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Content-Security-Policy", POLICY)
                self.send_header("X-Content-Type-Options", "nosniff")
                self.end_headers()
                with contextlib.suppress(ConnectionError):
                    self.wfile.write(body)

            def log_message(self, *args) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.port = self.server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,))
        self.thread.start()

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()
