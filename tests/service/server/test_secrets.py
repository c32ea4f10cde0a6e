"""No secret is written anywhere: not by the server, not by the agent, whatever goes wrong."""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import subprocess
import sys

import httpx
import pytest

import rmab
from rmab.protocol.config import load_federation
from rmab.service.server import uploads
from tests.service.support.processes import Machine, environment
from tests.service.support.serving import PATIENCE, ByHand, served, spectrum

# A server that writes every refusal into its log, however many there are in a second.
WITHOUT_LIMIT = (
    sys.executable,
    "-c",
    "from rmab.service.http import telemetry; telemetry.REFUSALS_A_SECOND = 10**9; "
    "from rmab.cli import main; raise SystemExit(main())",
)
STUDY = "plays = 1\npolicies = ['whittle']\n" + 4 * (
    "[[arm]]\np01 = 0.3\np11 = 0.6\nreward = 1.0\n"
)


def forms(token: str) -> list[bytes]:
    """What must not be found: the secret or its beginning, plain and as HTTP Basic has it."""
    secret = token.split("_", 2)[2]
    basic = [base64.b64encode(f"{name}:{token}".encode()) for name in ("", "any", "admin")]
    return [secret[:12].encode(), secret.encode(), *basic]


def assert_nowhere(tokens, places):
    """places: name -> bytes."""
    for where, content in places.items():
        for token in tokens:
            for form in forms(token):
                assert form not in content, f"a secret is in {where}"


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    """All that goes well and wrong with a server and its agents; who had which token, and what was
    written meanwhile."""
    folder = tmp_path_factory.mktemp("secrets")
    machine = Machine(folder, environment(tmp_path_factory), WITHOUT_LIMIT)
    federation = load_federation(machine.folder / "spectrum.toml")
    tokens, places = {}, {}
    with served(machine.folder, federation) as live:  # so that the process plans nothing
        for name, role in (("radio", "agent"), ("idle", "agent"), ("boss", "admin")):
            tokens[name] = live.enroll(name, role)
    (machine.folder / "federation.db").rename(machine.folder / "spectrum.db")
    (machine.folder / "study.toml").write_text(STUDY)
    wrong = tokens["radio"][:-4] + ("AAAA" if not tokens["radio"].endswith("AAAA") else "BBBB")
    bodies = []

    with machine.serve("--verbose") as server:
        with httpx.Client(base_url=server.url, timeout=PATIENCE) as client:

            def ask(method, path, token, scheme="Bearer", **more):
                value = token
                if scheme == "Basic":
                    value = base64.b64encode(f"any:{token}".encode()).decode()
                headers = {"Authorization": f"{scheme} {value}"} | more.pop("headers", {})
                answer = client.request(method, path, headers=headers, **more)
                if answer.status_code >= 300:
                    bodies.append(answer.content + str(answer.headers).encode())
                return answer

            assert ask("GET", "/v1/round", tokens["idle"]).status_code == 200
            made = ask("POST", "/v1/agents", tokens["boss"], json={"name": "second"})
            tokens["second"] = made.json()["token"]
            tokens["wrong"] = wrong
            for token in (wrong, tokens["boss"], "rmab_" + "x" * 60, tokens["radio"] + "="):
                for scheme in ("Bearer", "Basic", "Token"):
                    assert ask("GET", "/v1/round", token, scheme).status_code == 401
            radio = tokens["radio"]
            for body in (b"{", b"[]", b'"%s"' % radio.encode(), b"\xff" + radio.encode()):
                kind = {"content-type": "application/json"}
                answer = ask("POST", "/v1/uploads", radio, content=body, headers=kind)
                assert answer.status_code == 422
            for key in ("incarnation", "federation", "round", radio):
                upload = {
                    "protocol": 1,
                    "federation": "spectrum",
                    "incarnation": "0" * 32,
                    "sequence": 1,
                    "round": 1,
                    "slots": 0,
                    "length": 0,
                    "counts": [],
                    "visits": [],
                } | {key: radio}
                assert ask("POST", "/v1/uploads", radio, json=upload).status_code == 422
            assert ask("POST", "/v1/uploads", radio, content=radio).status_code == 415
            for place in (f"/{radio}", f"/v1/{radio}/round", f"/v1/agents/{radio}"):
                assert ask("DELETE", place, tokens["boss"]).status_code in (404, 405)
            assert ask("GET", f"/v1/round?after={radio}", radio).status_code == 422
            assert ask("GET", f"/v1/round?token={radio}", wrong).status_code == 401
            for table in ({"name": radio}, {"name": "x", "role": radio}, {radio: 1}):
                answer = ask("POST", "/v1/agents", tokens["boss"], json=table)
                assert answer.status_code == 422
            assert ask("GET", "/v1/round", radio, headers={"Host": radio}).status_code == 421
        first = machine.rmab(
            *("agent", server.url, "--token-file", machine.token_file("second", tokens["second"])),
            *("--simulate", "study.toml", "--slots", "2", "--slot-seconds", "0", "--json"),
        )
        assert first.returncode == 0, first.stderr
        places["the agent command's output"] = (first.stdout + first.stderr).encode()
        bad = machine.rmab(
            *("agent", server.url, "--token-file", machine.token_file("wrong", wrong)),
            *("--simulate", "study.toml", "--slots", "2", "--json"),
        )
        assert bad.returncode == 2
        places["a refused agent's output"] = (bad.stdout + bad.stderr).encode()
        for path in (machine.folder / "state" / "rmab").iterdir():
            places[f"the agent's file {path.name}"] = path.read_bytes()
        for name in ("spectrum.db", "spectrum.db-wal"):  # as it is while the server runs
            places[f"{name}, open"] = (machine.folder / name).read_bytes()
    places["the server's log"] = machine.log.read_bytes()
    for path in machine.folder.glob("spectrum.db*"):
        places[path.name] = path.read_bytes()
    places["the listing of agents"] = machine.rmab(
        "agents", "spectrum.toml", "--json"
    ).stdout.encode()
    places["answers"] = b"\n".join(bodies)
    return tokens, places


def test_no_secret_is_in_logs_files_or_answers(story):
    tokens, places = story
    assert_nowhere(tokens.values(), places)


def test_the_database_has_digests(story):
    tokens, places = story
    for name in ("radio", "second", "boss"):
        key_id, secret = tokens[name][5:21], tokens[name][22:]
        assert key_id.encode() in places["spectrum.db"]
        assert hashlib.sha256(secret.encode()).digest() in places["spectrum.db"]


def test_the_log_tells_of_all_that_nevertheless(story):
    events = [json.loads(line) for line in story[1]["the server's log"].splitlines()]
    statuses = {event.get("status") for event in events}
    assert {200, 201, 401, 404, 415, 421, 422} <= statuses
    assert not any("left_out" in event for event in events)
    assert any(event["event"] == "enrolled" for event in events)
    assert any(event.get("agent") == "radio" for event in events)


def test_no_secret_is_in_what_an_agent_logs(tmp_path, caplog):
    """Its own lines and httpx's, at the most talkative."""
    caplog.set_level(logging.DEBUG)
    with served(tmp_path, spectrum()) as live:
        token = live.enroll("radio")
        with rmab.Agent(live.url, token=token, file=tmp_path / "a.db") as agent:
            for _ in range(5):
                agent.observe([1] * len(agent.choose()))
            assert agent.flush(20)
            boss = live.enroll("boss", "admin")
            assert live.client(boss).delete("/v1/agents/radio").status_code == 204
            for _ in range(5):
                agent.observe([1] * len(agent.choose()))
            assert not agent.flush(0.5)
        places = {
            f"{record.name} at {record.pathname}": record.getMessage().encode()
            for record in caplog.records
        }
        for path in tmp_path.glob("a.db*"):
            places[path.name] = path.read_bytes()
        places["server's log"] = live.log.getvalue().encode()
    assert "refuses the credential" in caplog.text
    assert_nowhere([token, boss], places)


def test_no_secret_is_told_of_a_fault(tmp_path, monkeypatch):
    with served(tmp_path, spectrum()) as live:
        agent = ByHand(live, "radio", live.enroll("radio"))
        agent.fetch()

        def fails(*arguments):
            raise RuntimeError(f"{agent.token} {arguments}")

        monkeypatch.setattr(uploads, "receive", fails)
        answer = agent.send(agent.play())
        assert answer.status_code == 500
        assert answer.json()["error"] == "fault"
        log = live.log.getvalue()
    assert "fault" in log
    assert_nowhere([agent.token], {"answer": answer.content, "log": log.encode()})


def test_no_secret_is_in_what_commands_refuse(tmp_path, tmp_path_factory):
    machine = Machine(tmp_path, environment(tmp_path_factory))
    token = machine.enroll("radio")
    (tmp_path / "two.token").write_text(f"{token}\n{token}\n")
    (tmp_path / "short.token").write_text(token[:-1])
    runs: list[subprocess.CompletedProcess[str]] = [
        machine.rmab("agents", "http://127.0.0.1:1", "--token-file", "two.token"),
        machine.rmab("agent", "http://127.0.0.1:1", "--token-file", "short.token", "--env", "a:B"),
        machine.rmab(
            *("agents", "http://127.0.0.1:1", "--token-file"), machine.token_file("good", token)
        ),
    ]
    assert [done.returncode for done in runs] == [2, 2, 1]
    for done in runs:
        assert_nowhere([token], {"its output": (done.stdout + done.stderr).encode()})
