"""A server that is pretended, and agents at work on it.

It keeps to the protocol with the real messages and the real checks, and can be told to misbehave
for the next requests. What counts in the end: the server's sum over all incarnations is what the
agents themselves wrote down, each look once.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import numpy as np

from rmab.errors import ProtocolError
from rmab.policies.plans import IndexPlan
from rmab.protocol.growth import Record, check_growth
from rmab.protocol.messages import RoundMessage
from rmab.protocol.shape import Shape
from rmab.protocol.uploads import parse_upload
from rmab.service.agent.limits import AgentLimits
from rmab.service.agent.state_file import AgentFile

URL = "http://127.0.0.1:1"
SECRET = "S" * 43
TOKEN = f"rmab_{'0' * 16}_{SECRET}"
SHAPE = Shape(2, (2, 2, 2, 3), 4)
# Agents that try again at once, and wait only briefly when they are closed.
QUICK = AgentLimits(
    first_pause=0.002, longest_pause=0.01, between_requests=0.01, close_seconds=0.02
)
REWARDS = ((0.0, 0.4), (0.0, 0.9), (0.0, 0.7), (0.0, 0.5, 1.0))


def index_message(number, slots, *, agent="one", federation="spectrum", shape=SHAPE):
    """A round whose table is drawn by its number."""
    J = 6
    index = np.random.default_rng(number).random((shape.n_arms, 1 + max(shape.states) * J))
    plan = IndexPlan(J, 0, index.astype(np.float32), shape.states)
    return RoundMessage(
        federation, agent, number, slots, None, shape, REWARDS[: shape.n_arms], plan
    )


def tally(looks, shape=SHAPE):
    """Counts by hand: (C, S, S, N) and (S, N) of slots [(arms, states), ...]."""
    S = max(shape.states)
    counts = np.zeros((shape.kinds, S, S, shape.n_arms), np.int64)
    visits = np.zeros((S, shape.n_arms), np.int64)
    last: dict[int, tuple[int, int]] = {}
    for slot, (arms, states) in enumerate(looks):
        for arm, state in zip(arms, states, strict=True):
            if arm in last:
                gap = slot - last[arm][0]
                counts[min(gap, shape.kinds) - 1, last[arm][1], state, arm] += 1
            visits[state, arm] += 1
            last[arm] = slot, state
    return counts, visits


class PretendServer:
    """The protocol, in memory. `faults` answer the next requests instead: each is called with the
    method and a function that does what a good server would, and returns (status, body, headers),
    or raises."""

    def __init__(self, slots=3):
        self.token = TOKEN
        self.number = 1
        self.slots = slots
        self.records = {}  # incarnation -> Record
        self.uploads = []  # all that were accepted
        self.ledger = {}  # (incarnation, sequence) -> digest
        self.left = 0
        self.requests = 0
        self.faults: deque[Any] = deque()
        self.always = None  # a fault for every request
        self.advances = True  # a report opens the next round
        self.message = index_message
        self.credit = None  # slots that are taken beyond those it has, if there is a limit

    def answer(self, method, path, query, body, authorization):
        self.requests += 1
        fault = self.faults.popleft() if self.faults else self.always
        if fault is None:
            return self.serve(method, path, query, body, authorization)
        return fault(method, lambda: self.serve(method, path, query, body, authorization))

    def serve(self, method, path, query, body, authorization):
        if authorization != f"Bearer {self.token}":
            return 401, {"error": "credential", "detail": "unknown"}, {}
        if path == "/v1/round":
            if self.number <= int(query.get("after", 0)):
                return 204, None, {}
            return 200, self.message(self.number, self.slots).to_json(), {}
        if path == "/v1/leave":
            self.left += 1
            return 200, {"round": self.number}, {}
        assert (method, path) == ("POST", "/v1/uploads")
        try:
            return self.receive(parse_upload(body, SHAPE, "spectrum"))
        except ProtocolError as error:
            return error.status, {"error": error.code, "detail": str(error), **error.extra}, {}

    def receive(self, upload):
        key = (upload.incarnation, upload.sequence)
        before = self.records.get(upload.incarnation)
        if self.ledger.get(key) == upload.digest:
            return 200, {"status": "repeat", "sequence": upload.sequence, "round": self.number}, {}
        if key in self.ledger:
            raise ProtocolError(409, "conflict", "another body")
        if upload.round != self.number:
            raise ProtocolError(410, "round", "closed", round=self.number)
        check_growth(before, upload, SHAPE.plays)
        slots = upload.slots - (before.slots if before else 0)
        if self.credit is not None:
            if slots > self.credit:
                raise ProtocolError(429, "slots", "too many", slots=self.credit)
            self.credit -= slots
        self.ledger[key] = upload.digest
        self.uploads.append(upload)
        self.records[upload.incarnation] = Record(
            upload.sequence, upload.round, upload.slots, upload.counts, upload.visits
        )
        if self.advances and upload.length > 0:
            self.number += 1
        return 201, {"status": "new", "sequence": upload.sequence, "round": self.number}, {}

    @property
    def counts(self):
        return sum(record.counts for record in self.records.values())

    @property
    def visits(self):
        return sum(record.visits for record in self.records.values())

    @property
    def slots_in_all(self):
        return sum(record.slots for record in self.records.values())

    def transport(self):
        async def handle(request):
            query = dict(request.url.params)
            wait = min(float(query.get("wait", 0)), 0.2)
            until = time.monotonic() + wait
            while True:
                found = self.answer(
                    request.method,
                    request.url.path,
                    query,
                    request.content,
                    request.headers.get("authorization"),
                )
                if asyncio.iscoroutine(found):
                    found = await found
                status, body, headers = found
                if status != 204 or time.monotonic() > until:
                    break
                await asyncio.sleep(0.002)
            content = json.dumps(body).encode() if isinstance(body, dict) else body
            return httpx.Response(status, content=content or b"", headers=headers)

        return httpx.MockTransport(handle)


class Playing:
    """An agent at work on arms of random states; `looks` is its own book."""

    def __init__(self, agent, seed=0):
        self.agent = agent
        self.looks = []
        self._rng = np.random.default_rng(seed)

    def slots(self, number, *, wait=False):
        for _ in range(number):
            arms = self.agent.choose()
            states = [int(self._rng.integers(SHAPE.states[arm])) for arm in arms]
            self.agent.observe(states)
            self.looks.append((arms, states))
            if wait and self.agent.over:
                assert self.agent.wait(20)
        return self


def server_is_away(method, good):
    raise httpx.ConnectError("refused")


def assert_told(server, *books):
    """The server has what was written down in these books, one for each incarnation."""
    parts = [tally(looks) for looks in books]
    np.testing.assert_array_equal(server.counts, sum(counts for counts, _ in parts))
    np.testing.assert_array_equal(server.visits, sum(visits for _, visits in parts))
    assert server.slots_in_all == sum(len(looks) for looks in books)


def lost_answer(method, good):
    good()
    raise httpx.ReadError("reset")


def answers(status, body=b"", **headers):
    return lambda method, good: (
        status,
        body,
        {key.replace("_", "-"): value for key, value in headers.items()},
    )


def assert_file_empty(path):
    file = AgentFile(path)
    assert [kept for kept in file.earlier() if kept.has_more or kept.upload] == []
    file.close()


class RealServer:
    """The pretended server over HTTP on loopback."""

    def __init__(self, pretend):
        lock = threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _answer(self):
                url = httpx.URL(self.path)
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                query = dict(url.params)
                until = time.monotonic() + min(float(query.get("wait", 0)), 1.0)
                while True:
                    with lock:
                        try:
                            status, said, headers = pretend.answer(
                                self.command,
                                url.path,
                                query,
                                body,
                                self.headers.get("authorization"),
                            )
                        except httpx.HTTPError:  # the connection breaks
                            self.close_connection = True
                            return
                    if status != 204 or time.monotonic() > until:
                        break
                    time.sleep(0.005)
                content = json.dumps(said).encode() if isinstance(said, dict) else said or b""
                self.send_response(status)
                for key, value in {**headers, "content-length": str(len(content))}.items():
                    self.send_header(key, value)
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = _answer  # noqa: N815 - http.server's names

            def log_message(self, *args):
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request, client_address):
                pass  # a client that was killed

        self.http = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.01,))
        self.thread.start()

    def close(self):
        self.http.shutdown()
        self.thread.join()
        self.http.server_close()
