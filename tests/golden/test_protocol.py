"""Transcripts of served federations: enrolling, rounds, uploads, refusals, what viewers see."""

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.golden.commands import call, rows, server
from tests.golden.recording import compare
from tests.golden.scripted_agent import Counting, Transcript
from tests.golden.studies import one_quick

SPECTRUM = """\
name = "spectrum"
plays = 2
policy = "fedtswi"
schedule = "linear"
deadline = 3600
seed = 7
reference = 1.25
[[arm]]
reward = 0.4
[[arm]]
reward = 0.9
[[arm]]
reward = 0.7
"""
TWO = "[[arm]]\nreward = 0.5\n[[arm]]\nreward = 0.9\n"
FADING = "[[arm]]\nstates = 3\nreward = [0.0, 0.5, 1.0]\n"
HEAD = 'name = "small"\nplays = 1\ndeadline = 3600\nseed = 21\n'
FEDERATIONS = {
    "feducb-wi by the paper's schedule": HEAD + 'policy = "feducb-wi"\nschedule = "paper"\n' + TWO,
    "fedtswi of three states, per-agent draws": HEAD
    + 'policy = "fedtswi"\ndraws = "per-agent"\n'
    + FADING
    + TWO,
    "fedtswi-gap": HEAD + 'policy = "fedtswi-gap"\noptions.gaps = 8\n' + TWO,
    "fedts-lookahead-gap": HEAD
    + 'policy = "fedts-lookahead-gap"\noptions.gaps = 8\noptions.depth = 3\n'
    + TWO,
    "fed1-ucb": HEAD + 'policy = "fed1-ucb"\nhorizon = 400\n' + TWO,
}

# What is kept of a federation, but for times, credentials and the plan.
KEPT = {
    "agents": "name, role, lane, last_round, refused",
    "incarnations": "agent, incarnation, sequence, round, slots, uploads, hex(visits), hex(counts)",
    "uploads": "agent, incarnation, sequence, hex(digest), round, length",
    "rounds": "number, slot_limit, visit_factor, reason, reports, slots, reward, agents, "
    "hex(visits), hex(counts), plan IS NULL, closed IS NULL",
}


@contextmanager
def serving(folder: Path, federation: str) -> Iterator[Transcript]:
    """A server of that federation, and a transcript that knows an admin's and a viewer's token."""
    (folder / "federation.toml").write_text(federation, encoding="utf-8")
    made = {
        name: call("enroll", "federation.toml", name, role, "--json", folder=folder)["out"]["token"]
        for name, role in (("boss", "--admin"), ("eye", "--viewer"))
    }
    with server(folder, "federation.toml") as ready:
        transcript = Transcript(ready["url"])
        transcript.tokens |= made | {"nobody": f"rmab_{'0' * 16}_{'A' * 43}"}
        try:
            yield transcript
        finally:
            transcript.close()


def enrol(transcript: Transcript, name: str) -> httpx.Response:
    answer = transcript.ask("POST", "/v1/agents", "boss", {"name": name}, as_told=name)
    transcript.tokens[name] = answer.json()["token"]
    return answer


def fetch(transcript: Transcript, name: str, after: int = 0) -> Any:
    return transcript.ask("GET", f"/v1/round?after={after}&wait=30", name).json()


def send(transcript: Transcript, name: str, body: Any, told: str = "", **headers: str) -> int:
    answer = transcript.ask(
        "POST", "/v1/uploads", name, body, as_told=told or "an upload", **headers
    )
    return answer.status_code


def counting(message: Any, place: int) -> Counting:
    states = [arm["states"] for arm in message["arms"]]
    return Counting(states, message["plays"], message["gaps"], f"{place:032x}")


@pytest.mark.parametrize("name", one_quick(FEDERATIONS, "fedtswi-gap"))
def test_rounds_of_every_kind_of_plan_are_as_recorded(tmp_path, name):
    """Two agents, two rounds that they close, and the plan of the third."""
    with serving(tmp_path, FEDERATIONS[name]) as transcript:
        agents = ("radio-1", "radio-2")
        counts = {}
        for place, agent in enumerate(agents):
            enrol(transcript, agent)
            counts[agent] = counting(fetch(transcript, agent), place)
        for number in (1, 2):
            for place, agent in enumerate(agents):
                counts[agent].play(10 * number, place)
                body = counts[agent].upload("small", number, 10 * number)
                assert send(transcript, agent, body) == 201
            for agent in agents:
                assert fetch(transcript, agent, number)["round"] == number + 1
        transcript.wait_for_estimates()
        transcript.ask("GET", "/v1/status", "eye")
        transcript.ask("GET", "/v1/overview", "eye")
    compare("protocol", name, transcript.entries)


def test_a_federation_from_enrolling_to_leaving_is_as_recorded(tmp_path):
    with serving(tmp_path, SPECTRUM) as transcript:
        transcript.wait_for_estimates()
        _who_may_ask(transcript)
        _uploads(transcript)
        _viewers(transcript)
    compare("protocol", "a federation", transcript.entries)
    kept = {
        table: rows(tmp_path / "federation.db", f"SELECT {columns} FROM {table} ORDER BY 1, 2, 3")
        for table, columns in KEPT.items()
    }
    compare("protocol", "a federation in its database", kept)


def _who_may_ask(transcript: Transcript) -> None:
    ask = transcript.ask
    for path in ("/healthz", "/readyz", "/openapi.json", "/v1/status"):
        ask("GET", path)
    ask("GET", "/v1/status", "eye")
    ask("GET", "/v1/status", "boss")
    enrol(transcript, "radio-1")
    enrol(transcript, "radio-2")
    for told, body in (
        ("no name", {}),
        ("a bad name", {"name": "-x"}),
        ("a bad role", {"name": "x", "role": "king"}),
        ("an unknown key", {"name": "x", "age": 3}),
        ("no object", b"[]"),
        ("no JSON", b"{"),
        ("too large", b" " * 5000),
    ):
        ask("POST", "/v1/agents", "boss", body, as_told=told)
    ask("POST", "/v1/agents", "boss", {"name": "x"}, as_told="as text", Content_Type="text/plain")
    ask("POST", "/v1/agents", "radio-1", {"name": "x"}, as_told="not an admin")
    ask("POST", "/v1/agents", None, {"name": "x"}, as_told="nobody")
    ask("GET", "/v1/agents")
    ask("GET", "/v1/agents", "boss")
    basic = base64.b64encode(f"any:{transcript.tokens['boss']}".encode()).decode()
    ask("GET", "/v1/agents", as_told="by Basic", Authorization=f"Basic {basic}")
    ask("GET", "/v1/status", as_told="through a proxy", X_Forwarded_For="192.0.2.1")
    ask("GET", "/v1/status", "eye", as_told="through a proxy", X_Forwarded_For="192.0.2.1")
    ask("POST", "/v1/agents", "eye", {"name": "x"}, as_told="a viewer, not an admin")
    other = "http://elsewhere.example"
    ask("POST", "/v1/agents", "boss", {"name": "x"}, as_told="for another page", Origin=other)
    ask("GET", "/healthz", as_told="under another name", Host="elsewhere.example")
    ask("GET", "/v1/nothing")
    ask("PUT", "/v1/uploads")
    ask("GET", "/v1/uploads")
    for who in (None, "nobody", "boss"):
        ask("GET", "/v1/round", who)
        ask("POST", "/v1/uploads", who, {}, as_told="nothing")
        ask("POST", "/v1/leave", who)
    ask("GET", "/v1/round?after=x", "radio-1")
    ask("GET", "/v1/round?after=-1", "radio-1")
    ask("GET", "/v1/round?wait=31", "radio-1")


def _uploads(transcript: Transcript) -> None:
    first = counting(fetch(transcript, "radio-1"), 1)
    second = counting(fetch(transcript, "radio-2"), 2)
    transcript.ask("GET", "/v1/round?after=1", "radio-1")
    first.play(2)
    good = first.upload("spectrum", 1, 2)
    for told, change in (
        ("another protocol", {"protocol": 2}),
        ("another federation", {"federation": "other"}),
        ("a bad incarnation", {"incarnation": "x"}),
        ("sequence 0", {"sequence": 0}),
        ("round 0", {"round": 0}),
        ("slots below 0", {"slots": -1}),
        ("slots that are not whole", {"slots": 1.5}),
        ("slots that are true", {"slots": True}),
        ("more slots than ever", {"slots": 2**53 + 1}),
        ("length above slots", {"length": 9}),
        ("no counts", {"counts": []}),
        ("counts that are words", {"counts": "many"}),
        ("visits above slots", {"visits": [[9, 9]] * 3}),
        ("visits in more than two plays", {"visits": [[1, 1]] * 3}),
        ("visits without pairs", {"visits": [[2, 0], [1, 1], [0, 0]]}),
        ("an unknown key", {"more": 1}),
    ):
        assert send(transcript, "radio-1", good | change, told) == 422
    without = {key: value for key, value in good.items() if key != "visits"}
    assert send(transcript, "radio-1", without, "without visits") == 422
    crossed = good | {
        "slots": 9,
        "counts": [[[[0, 2], [0, 0]], [[0, 0], [0, 0]]]] + [good["counts"][1]] * 2,
    }
    assert send(transcript, "radio-1", crossed | {"visits": [[1, 2]] * 3}, "no sequence") == 422
    for told, body in (("no JSON", b"{"), ("empty", b" "), ("deep", b"[" * 3000)):
        assert send(transcript, "radio-1", body, told) == 422
    assert send(transcript, "radio-1", b" " * 10_000, "too large") == 413
    assert send(transcript, "radio-1", good, "as text", Content_Type="text/plain") == 415
    assert send(transcript, "radio-1", good, "packed", Content_Encoding="gzip") == 415
    assert send(transcript, "radio-1", good | {"round": 5}, "a round to come") == 410
    assert send(transcript, "radio-1", good) == 201
    assert send(transcript, "radio-1", good, "the same again") == 200
    first.play(1)
    other = first.upload("spectrum", 1, 3)
    assert send(transcript, "radio-1", other | {"sequence": 1}, "another under its number") == 409
    assert send(transcript, "radio-1", good | {"sequence": 2, "slots": 1}, "fewer slots") in (
        409,
        422,
    )
    assert send(transcript, "radio-1", other) == 201
    assert send(transcript, "radio-1", good | {"sequence": 3}, "fewer counts") == 409
    transcript.ask("GET", "/v1/status", "eye")
    second.play(2, 1)
    assert send(transcript, "radio-2", second.upload("spectrum", 1, 2)) == 201
    assert fetch(transcript, "radio-1", 1)["round"] == 2
    assert fetch(transcript, "radio-2", 1)["round"] == 2
    assert send(transcript, "radio-1", other, "the same again, its round closed") == 200
    first.play(3)
    late = first.upload("spectrum", 1, 3)
    assert send(transcript, "radio-1", late, "a closed round") == 410
    assert send(transcript, "radio-1", late | {"round": 2}, "the open round instead") == 201
    transcript.ask("POST", "/v1/leave", "radio-2")
    assert fetch(transcript, "radio-1", 2)["round"] == 3


def _viewers(transcript: Transcript) -> None:
    ask = transcript.ask
    for path in ("/v1/status", "/v1/overview", "/readyz", "/"):
        ask("GET", path, "eye")
    ask("GET", "/v1/agents", "boss")
    ask("DELETE", "/v1/agents/radio-2", "radio-1")
    ask("DELETE", "/v1/agents/radio-2", "boss")
    ask("DELETE", "/v1/agents/nobody", "boss")
    ask("GET", "/v1/round", "radio-2")
    ask("POST", "/v1/uploads", "radio-2", {}, as_told="after its credential was revoked")
    metrics = ask("GET", "/metrics", "eye").text
    transcript.entries[-1]["answer"] = sorted(
        line for line in metrics.splitlines() if line.startswith("# TYPE rmab")
    )
    safety = ask("GET", "/healthz").headers
    transcript.entries[-1]["safety"] = {
        name: value for name, value in sorted(safety.items()) if name not in ("date",)
    }
