"""A client that speaks the protocol from a script, and keeps a transcript.

It needs nothing of the package: what it plays is fixed, whatever the plan, so that a server's plans
and answers are functions of the federation's seed alone.
"""

from __future__ import annotations

import json
from typing import Any

import httpx

from tests.golden.commands import normal, wait_for
from tests.golden.recording import digest

__all__ = ["Counting", "Transcript"]

HEADERS = ("content-type", "www-authenticate", "retry-after", "allow", "connection")
SHOWN = 3  # numbers of a plan's row that a transcript has in full


class Counting:
    """What one incarnation has counted: pairs of successive observations by gap, and visits."""

    def __init__(self, states: list[int], plays: int, gaps: int, incarnation: str) -> None:
        self.states, self.plays, self.gaps = states, plays, gaps
        self.incarnation = incarnation
        self.slots = 0
        self.sequence = 0
        self.visits = [[0] * S for S in states]
        self.counts = [[[[0] * S for _ in range(S)] for _ in range(gaps + 1)] for S in states]
        self._last: dict[int, tuple[int, int]] = {}

    def play(self, slots: int, shift: int = 0) -> None:
        """So many slots; shift: makes agents see different things."""
        N = len(self.states)
        for _ in range(slots):
            self.slots += 1
            for k in range(self.plays):
                arm = (self.slots // 3 + k) % N
                state = ((self.slots * 7 + arm * 3 + shift) // 2) % self.states[arm]
                self.visits[arm][state] += 1
                if arm in self._last:
                    slot, seen = self._last[arm]
                    gap = min(self.slots - slot, self.gaps + 1)
                    self.counts[arm][gap - 1][seen][state] += 1
                self._last[arm] = (self.slots, state)

    def upload(self, federation: str, number: int, length: int) -> dict[str, Any]:
        """The next upload's body."""
        self.sequence += 1
        copied: dict[str, Any] = json.loads(
            json.dumps(
                {
                    "protocol": 1,
                    "federation": federation,
                    "incarnation": self.incarnation,
                    "sequence": self.sequence,
                    "round": number,
                    "slots": self.slots,
                    "length": length,
                    "counts": self.counts,
                    "visits": self.visits,
                }
            )
        )
        return copied


class Transcript:
    """Requests to a server in order, each with its answer, what varies taken out."""

    def __init__(self, url: str) -> None:
        self.entries: list[dict[str, Any]] = []
        self.tokens: dict[str, str] = {}
        self._client = httpx.Client(base_url=url, timeout=120)

    def close(self) -> None:
        self._client.close()

    def wait_for_estimates(self) -> None:
        """Until the status has them: whoever asks it before that is not kept waiting."""
        header = {"Authorization": f"Bearer {self.tokens['eye']}"}

        def there() -> bool:
            answer = self._client.get("/v1/status", headers=header)
            return bool(answer.json()["arms"][0])

        wait_for(there)

    def ask(
        self,
        method: str,
        path: str,
        who: str | None = None,
        body: Any = None,
        *,
        as_told: str = "",
        **headers: str,
    ) -> httpx.Response:
        """Ask as somebody whose token is known. as_told: what the transcript says of the body."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        if who is not None:
            given.setdefault("Authorization", f"Bearer {self.tokens[who]}")
        content = body if isinstance(body, bytes) else None
        if body is not None:
            given.setdefault("Content-Type", "application/json")
            content = content or json.dumps(body, separators=(",", ":")).encode()
        answer = self._client.request(method, path, content=content, headers=given)
        told = f"{method} {path}" + (f" as {who}" if who else "")
        entry: dict[str, Any] = {"request": told + (f": {as_told}" if as_told else "")}
        entry["status"] = answer.status_code
        entry["headers"] = {
            name: answer.headers[name] for name in HEADERS if name in answer.headers
        }
        entry["answer"] = self._shown(answer)
        self.entries.append(entry)
        return answer

    def _shown(self, answer: httpx.Response) -> Any:
        if not answer.content:
            return None
        if "json" not in answer.headers.get("content-type", ""):
            return "not JSON"
        table = answer.json()
        if "openapi" in table:
            return {
                "routes": {
                    path: sorted(methods) for path, methods in sorted(table["paths"].items())
                },
                "digest": digest(json.dumps(table, sort_keys=True).encode()),
            }
        if "plan" in table:
            return table | {"plan": _in_short(table["plan"]), "sha256": digest(answer.content)}
        return _in_short(normal(table))


def _in_short(value: Any) -> Any:
    """The value with long rows of numbers cut: their length, first numbers, last and sum."""
    if isinstance(value, dict):
        return {key: _in_short(found) for key, found in value.items()}
    if not isinstance(value, list):
        return value
    numbers = all(isinstance(x, float) for x in value)
    if numbers and len(value) > 2 * SHOWN:
        return {
            "length": len(value),
            "first": value[:SHOWN],
            "last": value[-1],
            "total": round(sum(value), 6),
        }
    return [_in_short(one) for one in value]
