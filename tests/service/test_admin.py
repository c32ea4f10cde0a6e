"""Enrolling, revoking and listing: on the database, over HTTP, never as an agent."""

import json
import re
import socket
from typing import Any

import httpx
import pytest

from rmab.cli import main
from rmab.errors import FederationError, UnreachableError
from rmab.service.admin import Admin, DatabaseAdmin, HttpAdmin, check_name, is_url, read_token
from tests.service.support.processes import SPECTRUM
from tests.service.support.serving import served, spectrum

TOKEN = r"rmab_[0-9a-f]{16}_[A-Za-z0-9_-]{43}"
SOME_TOKEN = "rmab_0123456789abcdef_" + 43 * "x"


@pytest.fixture
def live(tmp_path):
    (tmp_path / "federation.toml").write_text(SPECTRUM)
    with served(tmp_path, spectrum()) as running:
        yield running


@pytest.fixture(params=["database", "http"])
def admin(request, live):
    """An admin of each kind on a running server."""
    if request.param == "database":
        made: Admin = DatabaseAdmin(live.federation, live.database)
    else:
        made = HttpAdmin(live.url, live.enroll("boss", "admin"))
    with made:
        yield made


def test_a_credential_comes_and_goes(live, admin):
    token = admin.enroll("radio", "agent")
    assert re.fullmatch(TOKEN, token)
    client = live.client(token)
    assert client.get("/v1/round").status_code == 200
    with pytest.raises(FederationError, match="radio is enrolled already"):
        admin.enroll("radio", "agent")
    (row,) = [row for row in admin.agents() if row["name"] == "radio"]
    assert row["role"] == "agent"
    assert row["revoked"] is None
    admin.revoke("radio")
    assert live.client(token).get("/v1/leave").status_code in (401, 405)
    with pytest.raises(FederationError, match="radio"):
        admin.revoke("radio")
    (row,) = [row for row in admin.agents() if row["name"] == "radio"]
    assert row["revoked"] >= row["enrolled"]
    assert admin.enroll("radio", "agent") != token


def test_an_agents_credential_does_no_admins_work(live):
    with HttpAdmin(live.url, live.enroll("radio")) as admin:
        for work in (
            admin.agents,
            lambda: admin.revoke("radio"),
            lambda: admin.enroll("x", "admin"),
        ):
            with pytest.raises(FederationError, match="an admin's credential is needed"):
                work()
    with (
        HttpAdmin(live.url, SOME_TOKEN) as admin,
        pytest.raises(FederationError, match="an admin's credential is needed"),
    ):
        admin.agents()


def test_tokens_are_not_sent_in_the_clear():
    for url in ("http://example.org", "http://192.0.2.1:8080", "http://127.0.0.1.example.org"):
        with pytest.raises(FederationError, match="must be https"):
            HttpAdmin(url, SOME_TOKEN)
    for url in ("https://", "http://", "http://[::1"):
        with pytest.raises(FederationError, match="URL"):
            HttpAdmin(url, SOME_TOKEN)
    with pytest.raises(FederationError, match=r"--ca missing\.pem"):
        HttpAdmin("https://example.org", SOME_TOKEN, "missing.pem")
    assert is_url("HTTPS://x")
    assert not is_url("federation.toml")


def test_a_server_that_is_away_or_no_server(tmp_path):
    with socket.socket() as idle:  # it keeps its port, and does not listen
        idle.bind(("127.0.0.1", 0))
        port = idle.getsockname()[1]
        with (
            HttpAdmin(f"http://127.0.0.1:{port}", SOME_TOKEN) as admin,
            pytest.raises(UnreachableError, match="could not be reached"),
        ):
            admin.agents()


@pytest.mark.parametrize(
    ("status", "kind"),
    [(429, UnreachableError), (408, UnreachableError), (503, UnreachableError)]
    + [(status, FederationError) for status in (401, 404, 409, 421, 422)],
)
def test_which_refusals_may_pass(status, kind):
    with HttpAdmin("http://127.0.0.1:1", SOME_TOKEN) as admin:
        answer = httpx.Response(status, json={"error": "x", "detail": "some reason"})
        admin._client = httpx.Client(
            base_url="http://127.0.0.1:1", transport=httpx.MockTransport(lambda _: answer)
        )
        with pytest.raises(kind, match="some reason"):
            admin.agents()


def test_names_and_token_files(tmp_path):
    assert check_name("radio-1.north_2") == "radio-1.north_2"
    for name in ("", "-x", "a b", "ä", "x" * 65, "../x", "x\n"):
        with pytest.raises(FederationError, match="NAME must have"):
            check_name(name)
    file = tmp_path / "token"
    for text in ("", "x", SOME_TOKEN + SOME_TOKEN, f"{SOME_TOKEN}\n{SOME_TOKEN}", "ü"):
        file.write_text(text)
        with pytest.raises(FederationError, match="must have one line") as refused:
            read_token(str(file))
        assert SOME_TOKEN not in str(refused.value)
    file.write_text(SOME_TOKEN + "\n")
    assert read_token(str(file)) == SOME_TOKEN
    with pytest.raises(FederationError, match="cannot be read"):
        read_token(str(tmp_path / "missing"))


def run(capsys, *words):
    code = main([str(word) for word in words])
    out, err = capsys.readouterr()
    return code, out, err


def test_the_commands_on_a_file(tmp_path, live, capsys):
    file = tmp_path / "federation.toml"
    code, out, err = run(capsys, "enroll", file, "radio")
    assert (code, err) == (0, "")
    assert re.fullmatch(TOKEN + "\n", out)  # alone
    assert live.client(out.strip()).get("/v1/round").status_code == 200
    code, out, err = run(capsys, "enroll", file, "radio")
    assert (code, out) == (2, "")
    assert err == "rmab enroll: radio is enrolled already; revoke it first\n"
    code, out, err = run(capsys, "enroll", file, "boss", "--admin", "--json")
    made = json.loads(out)
    assert (code, made["name"], made["role"]) == (0, "boss", "admin")
    code, out, err = run(capsys, "agents", file)
    lines = out.splitlines()
    heads = ["name", "role", "enrolled", "last", "seen", "live", "uploads", "outlier", "revoked"]
    assert lines[0].split() == heads
    assert {line.split()[0] for line in lines[1:]} == {"radio", "boss"}
    assert made["token"] not in out
    assert run(capsys, "revoke", file, "radio") == (0, "radio is revoked\n", "")
    code, out, err = run(capsys, "revoke", file, "radio")
    assert (code, err) == (2, "rmab revoke: radio has no credential to revoke\n")
    code, out, err = run(capsys, "agents", file, "--json")
    rows = {row["name"]: row for row in json.loads(out)["agents"]}
    assert rows["radio"]["revoked"] is not None
    assert rows["boss"]["revoked"] is None


def test_a_viewer_reads_and_does_nothing_else(tmp_path, capsys):
    file = tmp_path / "federation.toml"
    file.write_text(SPECTRUM)
    code, out, err = run(capsys, "enroll", file, "--viewer", "prometheus")
    assert (code, err) == (0, "")
    assert re.fullmatch(TOKEN + "\n", out)
    secret = tmp_path / "viewer.token"
    secret.write_text(out)
    with served(tmp_path, spectrum(), open=False) as live:
        assert live.client(out.strip()).get("/metrics").status_code == 200
        boss = tmp_path / "admin.token"
        boss.write_text(live.enroll("boss", "admin"))
        words = ("eye", "--viewer", "--json", "--token-file", boss)
        code, out, _ = run(capsys, "enroll", live.url, *words)
        assert (code, json.loads(out)["role"]) == (0, "viewer")
        assert live.client(json.loads(out)["token"]).get("/").status_code == 200
        for command, *name in (("agents",), ("enroll", "third"), ("revoke", "boss")):
            code, out, err = run(capsys, command, live.url, *name, "--token-file", secret)
            assert (code, out) == (2, "")
            assert "an admin's credential is needed" in err
    code, out, _ = run(capsys, "agents", file)
    assert [line.split()[1] for line in out.splitlines()[1:]] == ["admin", "viewer", "viewer"]
    with pytest.raises(SystemExit) as ended:
        run(capsys, "enroll", file, "both", "--viewer", "--admin")
    assert ended.value.code == 2
    assert "not allowed with" in capsys.readouterr().err
    revoked = run(capsys, "revoke", file, "eye")
    assert revoked == (0, "eye is revoked\n", "")
    assert run(capsys, "enroll", file, "eye")[0] == 2  # a name keeps its role


def test_the_commands_on_a_server(tmp_path, live, capsys):
    secret, agent = tmp_path / "admin.token", tmp_path / "agent.token"
    secret.write_text(live.enroll("boss", "admin") + "\n")
    agent.write_text(live.enroll("radio") + "\n")
    code, out, err = run(capsys, "enroll", live.url, "second", "--token-file", secret)
    assert (code, err) == (0, "")
    assert live.client(out.strip()).get("/v1/round").status_code == 200
    code, out, err = run(capsys, "agents", live.url, "--token-file", secret)
    assert {line.split()[0] for line in out.splitlines()[1:]} == {"boss", "radio", "second"}
    assert run(capsys, "revoke", live.url, "second", "--token-file", secret)[0] == 0
    code, out, err = run(capsys, "revoke", live.url, "second", "--token-file", secret)
    assert (code, "no agent 'second'" in err) == (2, True)
    for words in (("agents",), ("enroll", "third"), ("revoke", "radio")):
        command, *name = words
        code, out, err = run(capsys, command, live.url, *name, "--token-file", agent)
        assert (code, out) == (2, "")
        assert "an agent's is not enough" in err
        assert len(err.splitlines()) == 1
    bad: Any = (
        ((live.url, "x"), "needs --token-file"),
        ((live.url, "x", "--token-file", secret, "--database", "y.db"), "goes with a federation's"),
        ((tmp_path / "federation.toml", "x", "--token-file", secret), "goes with a URL"),
        ((tmp_path / "missing.toml", "x"), "missing.toml"),
        ((tmp_path / "federation.toml", "no name"), "NAME must have"),
    )
    for words, hint in bad:
        code, out, err = run(capsys, "enroll", *words)
        assert (code, out, hint in err) == (2, "", True), err


@pytest.mark.parametrize("over", ["the file", "the server"])
def test_the_commands_that_forget(tmp_path, live, capsys, over):
    secret = tmp_path / "admin.token"
    secret.write_text(live.enroll("boss", "admin") + "\n")
    where = [tmp_path / "federation.toml"]
    if over == "the server":
        where = [live.url, "--token-file", secret]
    agents = {name: live.agent(name) for name in "abc"}
    for agent in agents.values():
        agent.fetch()
    for agent in agents.values():
        assert agent.send(agent.play()).status_code == 201
    assert run(capsys, "agents", *where, "--forget", "a") == (
        0,
        "a is forgotten (uploads: 1, slots: 2)\n",
        "",
    )
    code, out, err = run(capsys, "agents", *where, "--forget", "a", "--json")
    nothing = {"incarnations": 0, "uploads": 0, "slots": 0}
    assert (code, json.loads(out), err) == (0, {"name": "a", "forgotten": True, **nothing}, "")
    assert run(capsys, "revoke", *where, "b") == (0, "b is revoked\n", "")
    for name in "bc":
        told = f"{name} is revoked and forgotten (uploads: 1, slots: 2)\n"
        assert run(capsys, "revoke", *where, name, "--forget") == (0, told, "")
    code, out, _ = run(capsys, "revoke", *where, "c", "--forget", "--json")
    due = {"name": "c", "revoked": True, "forgotten": True, **nothing}
    assert (code, json.loads(out)) == (0, due)
    for name in ("d", "boss"):  # unknown, and no agent
        for words in (("agents", *where, "--forget", name), ("revoke", *where, name, "--forget")):
            code, out, err = run(capsys, *words)
            assert (code, out) == (2, "")
            assert len(err.splitlines()) == 1
    code, out, _ = run(capsys, "agents", *where, "--json")
    rows = {row["name"]: row for row in json.loads(out)["agents"]}
    assert [rows[name]["slots"] for name in "abc"] == [0, 0, 0]
    assert [rows[name]["revoked"] is None for name in "abc"] == [True, False, False]
    assert rows["boss"]["revoked"] is None
    assert all(rows[name]["forgotten"] >= rows[name]["enrolled"] for name in "abc")


def test_enrolling_before_the_first_start(tmp_path, capsys):
    file = tmp_path / "federation.toml"
    file.write_text(SPECTRUM)
    code, out, _ = run(capsys, "enroll", file, "radio")
    assert code == 0
    with served(tmp_path, spectrum()) as live:
        assert live.client(out.strip()).get("/v1/round").status_code == 200
    code, out, err = run(capsys, "server", file, "--host", "0.0.0.0")
    assert (code, out) == (2, "")
    assert (
        err == "rmab server: host 0.0.0.0 is not loopback and so needs --tls-cert and --tls-key\n"
    )
    code, out, err = run(capsys, "server", file, "--port", "65536")
    assert (code, "--port" in err) == (2, True)


def test_an_agent_is_enrolled_for_its_owner(tmp_path, live, capsys):
    file, boss = tmp_path / "federation.toml", tmp_path / "boss.token"
    boss.write_text(live.enroll("boss", "admin"))
    over = ("--token-file", boss)
    code, out, err = run(capsys, "enroll", file, "radio-1", "--owner", "acme", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["owner"] == "acme"
    assert run(capsys, "enroll", live.url, "radio-2", "--owner", "acme", *over)[0] == 0
    assert run(capsys, "enroll", file, "lone")[0] == 0
    for where in ((file,), (live.url, *over)):
        code, out, _ = run(capsys, "agents", *where, "--json")
        rows = {row["name"]: row.get("owner") for row in json.loads(out)["agents"]}
        assert rows == {"boss": None, "radio-1": "acme", "radio-2": "acme", "lone": None}
        lines = [line.split() for line in run(capsys, "agents", *where)[1].splitlines()]
        assert lines[0][:3] == ["name", "owner", "role"]
        assert {line[0]: line[1] for line in lines[1:]} == {
            "boss": "boss",
            "radio-1": "acme",
            "radio-2": "acme",
            "lone": "lone",
        }
    for words, told in (
        (("--owner=-x",), "--owner must have "),
        (("--owner", "acme", "--admin"), "--owner goes with an agent, not with --admin"),
    ):
        code, out, err = run(capsys, "enroll", file, "other", *words)
        assert (code, out) == (2, "")
        assert told in err
