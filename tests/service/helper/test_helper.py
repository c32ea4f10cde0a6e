"""A helper: its store on both databases, its routes, its commands, and what it is told."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import httpx
import numpy as np
import pytest

from rmab.cli import main
from rmab.errors import FederationError, ProtocolError
from rmab.privacy.masks import MaskKey, parse_key, vector_of
from rmab.privacy.settings import Privacy
from rmab.privacy.unmasking import BEGINNING, AggregationJob, Report
from rmab.service.helper.store import HelperLimits, open_helper_store
from rmab.service.http.tokens import parse_token, without_secrets
from rmab.service.server.unmasking import HelperAccess
from rmab.service.store.store import open_store
from rmab.service.terms import terms_of
from tests.service.support.counting import Counting
from tests.service.support.securing import Securing, secured
from tests.service.support.serving import until


@pytest.fixture
def secure(federation):
    return replace(federation, privacy=Privacy("http://127.0.0.1:9", groups=2))


@pytest.fixture
def store(database_url, secure):
    made = open_helper_store(database_url, terms_of(secure), limits=HelperLimits(kept_answers=2))
    yield made
    made.close()


class Agents:
    """Three agents of group 1, and what they have counted."""

    def __init__(self, store, federation):
        self.federation = federation
        self.names = ("a", "b", "c")
        self.countings = [Counting(federation.shape, name) for name in self.names]
        self.keys = []
        for name in self.names:
            key = parse_key(store.enroll(name, 1, 1.0)[0])
            assert key is not None
            self.keys.append(MaskKey(key))
        self.sequence = 0

    def uploads(self):
        self.sequence += 1
        shape, fingerprint = self.federation.shape, self.federation.fingerprint()
        clear = [counting.upload(self.sequence) for counting in self.countings]
        masked = [
            key.masked(upload, fingerprint, name, shape)
            for key, upload, name in zip(self.keys, clear, self.names, strict=True)
        ]
        members = [
            Report(name, up.incarnation, up.sequence, up.slots, up.nonce, up.tag)
            for name, up in zip(self.names, masked, strict=True)
        ]
        x = sum(vector_of(up.counts, up.visits, shape) for up in clear)
        return members, sum(up.masked for up in masked), x


def test_openings_are_durable_and_answered_alike(database_url, secure, store):
    agents = Agents(store, secure)
    before, asked, answers = BEGINNING, [], []
    last_masked = last_x = np.uint64(0)
    for number in range(1, 5):
        members, masked, x = agents.uploads()
        opening = AggregationJob(number, before, 1, tuple(members))
        masks = store.open(opening)
        assert np.array_equal(masked - last_masked - masks, x - last_x)
        last_masked, last_x, before = masked, x, opening.digest
        asked.append(opening)
        answers.append(masks)
    other = open_helper_store(database_url, terms_of(secure))
    try:
        assert other.last() == (4, before)
        for number in (3, 4):
            assert np.array_equal(other.open(asked[number - 1]), answers[number - 1])
        with pytest.raises(ProtocolError, match="kept no more"):
            other.open(asked[0])
        with pytest.raises(ProtocolError, match="another one"):
            other.open(asked[3]._replace(group=2))
        assert other.name == store.name
        assert [row.incarnations for row in other.agents()] == [1, 1, 1]
    finally:
        other.close()


def test_what_is_refused_leaves_nothing(store, secure):
    agents = Agents(store, secure)
    members, *_ = agents.uploads()
    with pytest.raises(ProtocolError) as refused:
        store.open(AggregationJob(1, BEGINNING, 1, tuple(members[:2])))
    assert refused.value.code == "least"
    assert store.last() == (0, BEGINNING)
    assert store.watermark("a", members[0].incarnation) is None


def test_enrolment(store):
    first, group = store.enroll("a", None, 1.0)
    assert group == 1
    assert store.enroll("b", None, 1.0)[1] == 2  # the smaller one
    assert store.enroll("c", 2, 1.0)[1] == 2
    with pytest.raises(FederationError, match="a is enrolled already; revoke it first"):
        store.enroll("a", None, 2.0)
    with pytest.raises(FederationError, match="--group must be a whole number from 1 to 2"):
        store.enroll("d", 3, 1.0)
    store.revoke("c", 3.0)
    with pytest.raises(FederationError, match="c has no mask key to revoke"):
        store.revoke("c", 4.0)
    found = store.enrolled("c")
    assert found is not None
    assert found.revoked
    again, group = store.enroll("c", None, 5.0)
    assert group == 2  # as before
    assert again != first
    found = store.enrolled("c")
    assert (found.number, found.revoked, found.group) == (2, False, 2)
    assert [(row.name, row.group, row.revoked) for row in store.agents()] == [
        ("a", 1, None),
        ("b", 2, None),
        ("c", 2, None),
    ]


def test_who_was_summed_with_others_stays_in_its_group(store, secure):
    agents = Agents(store, secure)
    store.open(AggregationJob(1, BEGINNING, 1, tuple(agents.uploads()[0])))
    store.revoke("a", 2.0)
    with pytest.raises(FederationError, match="a was summed with others of group 1 and must stay"):
        store.enroll("a", 2, 3.0)
    assert store.enroll("a", None, 3.0)[1] == 1
    store.enroll("d", 1, 3.0)
    store.revoke("d", 4.0)
    assert store.enroll("d", 2, 5.0)[1] == 2  # it was in no sum


def test_cohorts_are_durable(database_url, secure, store):
    agents = Agents(store, secure)
    store.enroll("z", 1, 1.0)
    assert [row.cohort for row in store.agents()] == [None] * 4
    store.open(AggregationJob(1, BEGINNING, 1, tuple(agents.uploads()[0])))
    store.close()
    again = open_helper_store(database_url, terms_of(secure))
    assert {row.name: row.cohort for row in again.agents()} == {
        **dict.fromkeys("abc", "a"),
        "z": None,
    }
    assert sorted(again.agents_in("a")) == ["a", "b", "c"]
    table = again.to_table()
    assert [agent["cohort"] for agent in table["agents"]] == ["a", "a", "a", None]
    again.close()


def test_a_database_of_the_version_before_has_who_was_opened_for_a_cohort(
    database_url, secure, store
):
    agents = Agents(store, secure)
    store.enroll("y", 2, 1.0)
    store.enroll("z", 1, 1.0)
    store.open(AggregationJob(1, BEGINNING, 1, tuple(agents.uploads()[0])))
    with store.transaction():
        store._database.run("DROP TABLE cohorts")
        store._database.run("UPDATE meta SET value = '1' WHERE name = 'helper schema'")
    store.close()
    for _ in range(2):
        again = open_helper_store(database_url, terms_of(secure))
        found = {row.name: row.cohort for row in again.agents()}
        assert found == {**dict.fromkeys("abc", "a"), "y": None, "z": None}
        again.close()
    later = open_helper_store(database_url, terms_of(secure))
    with later.transaction():
        later._database.run("UPDATE meta SET value = '3' WHERE name = 'helper schema'")
    later.close()
    with pytest.raises(FederationError, match="knows versions up to 2"):
        open_helper_store(database_url, terms_of(secure))


def test_the_server_has_one_token(store):
    token = store.enroll_server(1.0)
    parsed = parse_token(token)
    assert parsed is not None
    assert store.is_server(*parsed)
    assert not store.is_server(parsed[0], b"x" * 32)
    with pytest.raises(FederationError, match="has a token already"):
        store.enroll_server(2.0)
    store.revoke_server(3.0)
    assert not store.is_server(*parsed)
    assert store.enroll_server(4.0) != token


def test_databases_of_others_are_refused(tmp_path, secure, federation):
    theirs = str(tmp_path / "server.db")
    open_store(theirs, secure).close()
    with pytest.raises(FederationError, match="is no helper's"):
        open_helper_store(theirs, terms_of(secure))
    ours = str(tmp_path / "helper.db")
    open_helper_store(ours, terms_of(secure)).close()
    with pytest.raises(FederationError, match="tables that are no federation's"):
        open_store(ours, secure)
    with pytest.raises(FederationError, match="differs in its name"):
        open_helper_store(ours, terms_of(replace(secure, name="other")))
    with pytest.raises(FederationError, match=r"\[privacy\]"):
        open_helper_store(str(tmp_path / "new.db"), terms_of(federation))


# ------------------------------------------------------------------------------------ the routes


def test_only_the_server_is_answered(tmp_path):
    both = Securing(tmp_path)
    try:
        both.start_helper()
        with httpx.Client(base_url=both.helper_url) as client:
            for path, method in (("/v1/openings", "POST"), ("/v1/agents", "GET")):
                answer = client.request(method, path)
                assert (answer.status_code, answer.json()["error"]) == (401, "credential")
                wrong = {"Authorization": f"Bearer rmab_{'0' * 16}_{'S' * 43}"}
                assert client.request(method, path, headers=wrong).status_code == 401
            assert client.get("/healthz").json() == {"status": "alive"}
            assert client.get("/readyz").json() == {"status": "ready", "opening": 0}
            assert "rmab_helper_last_opening 0.0" in client.get("/metrics").text
            good = {"Authorization": f"Bearer {both.token}"}
            table = client.get("/v1/agents", headers=good).json()
            assert table["privacy"] == {"least": 3, "groups": 1}
            assert (table["last"], table["agents"]) == (0, [])
            kind = good | {"Content-Type": "application/json"}
            for body in (b"", b"{}", b'{"opening":1}'):
                answer = client.post("/v1/openings", content=body, headers=kind)
                assert (answer.status_code, answer.json()["error"]) == (422, "malformed")
            assert client.post("/v1/openings", content=b"{}", headers=good).status_code == 415
    finally:
        both.close()


class Overheard(httpx.AsyncHTTPTransport):
    """Notes what is sent to the helper."""

    def __init__(self):
        super().__init__()
        self.bodies = []

    async def handle_async_request(self, request):
        self.bodies.append((request.method, request.url.path, request.content))
        return await super().handle_async_request(request)


def a_round(both, agents):
    number = both.served.server.rounds.number
    for agent in agents:
        assert agent.fetch(number - 1) is not None
    for agent in agents:
        assert agent.send(agent.play()).status_code == 201
    until(lambda: both.served.server.rounds.number == number + 1)


def test_a_helper_sees_neither_uploads_nor_sums(tmp_path):
    both, overheard = Securing(tmp_path), Overheard()
    try:
        both.start_helper()
        both.start_server(helper=HelperAccess(both.token, transport=overheard))
        agents = [both.agent(name) for name in "abc"]
        a_round(both, agents)
        asked = [json.loads(body) for method, _, body in overheard.bodies if method == "POST"]
        (opening,) = asked
        assert opening.keys() == {"opening", "before", "group", "members"}
        for agent, incarnation, sequence, slots, nonce, tag in opening["members"]:
            assert agent in "abc"
            assert (len(incarnation), sequence, slots) == (32, 2, 2)
            assert (len(nonce), len(tag)) == (32, 64)
        assert {path for _, path, _ in overheard.bodies} == {"/v1/agents", "/v1/openings"}
        assert all(not body for method, _, body in overheard.bodies if method == "GET")
    finally:
        both.close()


def test_an_agent_is_told_plans_alone(tmp_path):
    with secured(tmp_path) as both:
        agents = [both.agent(name) for name in "abc"]
        answers = []
        for agent in agents:
            agent.client.event_hooks["response"] = [lambda answer: answers.append(answer.read())]
        a_round(both, agents)
        agents[0].fetch(1)
        told = {tuple(sorted(json.loads(answer))) for answer in answers}
        round_keys = [
            "agent",
            "arms",
            "episode",
            "federation",
            "gaps",
            "plan",
            "plays",
            "protocol",
            "round",
        ]
        assert told == {tuple(round_keys), ("round", "sequence", "status")}


def test_no_mask_key_is_ever_shown(tmp_path):
    with secured(tmp_path) as both:
        agents = [both.agent(name) for name in "abc"]
        a_round(both, agents)
        key = agents[0].mask_key
        secret = key.removeprefix("rmab-mask-")
        admin = both.served.client(both.served.enroll("root", "admin"))
        said = admin.post("/v1/agents", json={"name": key + "/"}).text
        with httpx.Client(base_url=both.helper_url) as client:
            kind = {"Authorization": f"Bearer {both.token}", "Content-Type": "application/json"}
            body = {
                "opening": 2,
                "before": "0" * 64,
                "group": 1,
                "members": [[key, "", 1, 1, "", ""]],
            }
            said += client.post("/v1/openings", json=body, headers=kind).text
        said += both.log.getvalue() + both.helper_log.getvalue()
        assert "rmab-mask-" in said  # it was quoted, without what is secret
        assert secret[:20] not in said
        assert secret not in without_secrets(f"key {key}.")


# ---------------------------------------------------------------------------------- the commands

FILE = """\
name = "spectrum"
plays = 1
policy = "fedtswi"
[[arm]]
reward = 0.4
[[arm]]
reward = 0.9
[privacy]
helper = "http://127.0.0.1:9080"
groups = 2
"""


def test_the_commands_of_a_helper(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spectrum.toml").write_text(FILE)

    def run(*words, code=0):
        assert main(list(words)) == code
        found = capsys.readouterr()
        if code:
            assert found.err.count("\n") == 1, found.err
        return found.err if code else found.out

    key = run("helper-enroll", "spectrum.toml", "radio-1").strip()
    assert parse_key(key) is not None
    table = json.loads(run("helper-enroll", "spectrum.toml", "radio-2", "--group", "2", "--json"))
    assert (table["name"], table["group"]) == ("radio-2", 2)
    assert parse_key(table["mask_key"]) is not None
    token = run("helper-enroll", "spectrum.toml", "--server").strip()
    assert parse_token(token) is not None
    assert (tmp_path / "spectrum.helper.db").stat().st_mode & 0o077 == 0
    assert run("helper-revoke", "spectrum.toml", "radio-2") == "radio-2 is revoked\n"
    assert run("helper-revoke", "spectrum.toml", "--server") == "the server is revoked\n"
    listed = json.loads(run("helper-agents", "spectrum.toml", "--json"))
    assert [(a["name"], a["group"], a["revoked"] is None) for a in listed["agents"]] == [
        ("radio-1", 1, True),
        ("radio-2", 2, False),
    ]
    assert re.search(r"radio-1 +1 ", run("helper-agents", "spectrum.toml"))
    assert key not in run("helper-agents", "spectrum.toml")
    for words, reason in (
        (("helper-enroll", "spectrum.toml"), "give either NAME"),
        (("helper-enroll", "spectrum.toml", "a", "--server"), "give either NAME"),
        (("helper-enroll", "spectrum.toml", "a b"), "NAME must have"),
        (("helper-enroll", "spectrum.toml", "a", "--group", "0"), "--group must be"),
        (("helper-enroll", "spectrum.toml", "a", "--group", "3"), "--group must be"),
        (("helper-enroll", "spectrum.toml", "radio-1"), "is enrolled already"),
        (("helper", "spectrum.toml", "--host", "0.0.0.0"), "needs --tls-cert"),
        (("server", "spectrum.toml"), "needs --helper-token-file"),
    ):
        assert reason in run(*words, code=2)
    (tmp_path / "a.token").write_text("nonsense\n")
    words = ("server", "spectrum.toml", "--helper-token-file", "a.token")
    assert "--helper-token-file a.token: must have one line" in run(*words, code=2)
    (tmp_path / "clear.toml").write_text(FILE.partition("[privacy]")[0])
    assert "[privacy]" in run("helper", "clear.toml", code=2)
    assert "[privacy]" in run("helper-agents", "clear.toml", code=2)
    (tmp_path / "a.token").write_text(token)
    words = ("server", "clear.toml", "--helper-token-file", "a.token")
    assert "go with a federation that has [privacy]" in run(*words, code=2)
