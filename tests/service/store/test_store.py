"""Credentials and rounds in the store, the same on both databases."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from rmab.errors import FederationError, ProtocolError
from rmab.privacy.settings import Privacy
from rmab.service.http.tokens import make_token
from rmab.service.server.uploads import UploadRules, authenticate, receive
from rmab.service.store.credentials import Credential, Sighting
from rmab.service.store.store import CLOCK_SECONDS, AgentRow, open_store
from tests.service.support.counting import Counting
from tests.service.support.storing import enrolled, given, refused, some_round

# ------------------------------------------------------------------------------------- credentials


def test_lanes_follow_the_order_of_enrolment_and_admins_have_none(opened):
    for name, role, lane in (
        ("a", "agent", 0),
        ("root", "admin", -1),
        ("b", "agent", 1),
        ("c", "agent", 2),
    ):
        assert opened.enroll(name, role, name * 4, b"x" * 32, 1.0) == lane
    assert [(row.name, row.lane) for row in opened.agents()] == [
        ("root", -1),
        ("a", 0),
        ("b", 1),
        ("c", 2),
    ]


def test_enrol_revoke_enrol_again(opened):
    first = enrolled(opened, "alice")
    enrolled(opened, "bob")
    with pytest.raises(FederationError, match="alice is enrolled already"):
        enrolled(opened, "alice")
    assert opened.credentials.credential(first[0])[:-1] == (
        "alice",
        "agent",
        0,
        first[1],
        False,
        1.0,
    )
    assert opened.revoke("alice", 5.0)
    assert not opened.revoke("alice", 6.0)
    assert not opened.revoke("carol", 6.0)
    assert opened.credentials.credential(first[0]).revoked
    second = enrolled(opened, "alice", now=7.0)
    assert opened.credentials.credential(second[0])[:-1] == (
        "alice",
        "agent",
        0,
        second[1],
        False,
        1.0,
    )
    assert opened.credentials.credential(first[0]).revoked
    alice = next(row for row in opened.agents() if row.name == "alice")
    assert (alice.enrolled, alice.revoked) == (7.0, None)


def test_a_name_keeps_its_owner_unless_another_is_given(opened):
    def enrol(owner, now):
        _, key_id, secret_hash = make_token()
        opened.enroll("alice", "agent", key_id, secret_hash, now, owner)
        found = opened.credentials.credential(key_id).owner
        assert opened.credentials.owners()["alice"] == found
        assert next(row for row in opened.agents() if row.name == "alice").owner == found
        opened.revoke("alice", now)
        return found

    assert enrol(None, 1.0) == "alice"
    assert enrol("acme", 2.0) == "acme"
    assert enrol(None, 3.0) == "acme"
    assert enrol("alice", 4.0) == "alice"
    enrolled(opened, "boss", "admin")
    assert set(opened.credentials.owners()) == {"alice"}


def test_what_commands_did_on_the_database_is_told_once(opened):
    _, key_id, secret_hash = make_token()
    opened.enroll("a", "agent", key_id, secret_hash, 1.0, "acme", by_whom="root")
    enrolled(opened, "b")  # by the server, which logs it itself
    opened.revoke("a", 2.0, by_whom="eve")
    assert not opened.revoke("a", 3.0, by_whom="eve")
    first, second = opened.acts()
    assert first[1:] == (1.0, "enrolled", "a", "agent", "acme", "root")
    assert second[1:] == (2.0, "revoked", "a", None, None, "eve")
    assert opened.acts() == []


def test_when_an_agent_was_seen_is_no_time_to_come(opened):
    """Of a clock that was 400 days ahead; what is a minute off may be another machine's clock."""
    enrolled(opened, "a", now=100.0)
    enrolled(opened, "b", now=100.0)
    days = 400 * 86_400.0
    with opened.transaction():
        opened.credentials.sighted([Sighting("a", 200.0 + days, 3, 0), Sighting("b", 230.0, 3, 0)])
    a, b = opened.agents(200.0)
    assert (a.last_seen, b.last_seen) == (None, 230.0)
    assert not a.is_live(200.0, 60.0)
    assert b.is_live(200.0, 60.0)
    assert not a._replace(last_seen=200.0 + days).is_live(200.0, 60.0)
    assert opened.agents()[0].last_seen == 200.0 + days
    assert opened.newest() == 200.0 + days
    with opened.transaction():  # the clock was set right
        opened.credentials.sighted([Sighting("a", 260.0, 3, 0)])
    assert opened.agents(260.0)[0].is_live(260.0, 60.0)
    assert opened.newest() == 260.0


def test_a_name_keeps_its_role(opened):
    enrolled(opened, "alice", "admin")
    opened.revoke("alice", 2.0)
    with pytest.raises(FederationError, match="alice was enrolled as admin"):
        enrolled(opened, "alice", "agent")
    with pytest.raises(FederationError, match="role must be agent, admin or viewer, got 'root'"):
        enrolled(opened, "bob", "root")
    assert len(opened.agents()) == 1


def test_failed_enrolment_leaves_nothing(opened):
    key_id, _ = enrolled(opened, "alice")
    with pytest.raises(Exception, match=r"UNIQUE|unique"):  # the driver's own
        opened.enroll("bob", "agent", key_id, b"x" * 32, 1.0)
    assert [row.name for row in opened.agents()] == ["alice"]
    assert opened.enroll("carol", "agent", "other", b"x" * 32, 1.0) == 1


@pytest.mark.parametrize("inside", [False, True])
def test_credentials_by_role(opened, inside):
    agent, admin = enrolled(opened, "alice"), enrolled(opened, "root", "admin")

    def check(token: tuple[str, bytes], role: str) -> Credential:
        if not inside:
            return authenticate(opened, *token, role)
        with opened.transaction():
            return authenticate(opened, *token, role)

    assert check(agent, "agent").name == "alice"
    assert check(admin, "admin").name == "root"
    opened.revoke("alice", 2.0)
    for key_id, secret_hash, role in (
        (*agent, "agent"),  # revoked
        (*admin, "agent"),
        (agent[0], agent[1], "admin"),
        (admin[0], agent[1], "admin"),  # another's secret
        ("0" * 16, admin[1], "admin"),
    ):
        with pytest.raises(ProtocolError) as caught:
            check((key_id, secret_hash), role)
        assert (caught.value.status, caught.value.code) == (401, "credential")
        assert caught.value.args == (f"a valid credential of role {role} is needed",)


def test_another_process_s_changes_are_seen_at_once(opened, database_url, federation):
    token = enrolled(opened)
    counting = Counting(federation.shape)
    assert given(opened, token, counting.upload(1)) == "new"
    other = open_store(database_url, federation, create=False)
    try:
        assert other.revoke("alice", 3.0)
        assert refused(opened, token, counting.upload(2)).status == 401
        _, key_id, secret_hash = make_token()
        other.enroll("alice", "agent", key_id, secret_hash, 4.0)
        assert given(opened, (key_id, secret_hash), counting.upload(3)) == "new"
        assert other.agents()[0].uploads == 2  # one that has no claim reads what was committed
        assert given(opened, (key_id, secret_hash), counting.upload(4)) == "new"
        assert other.agents()[0].uploads == 3
        assert np.array_equal(other.merged().counts, opened.merged().counts)
    finally:
        other.close()


def test_enrolments_at_once_get_lanes_of_their_own(opened, database_url, federation):
    def enrol(number):
        other = open_store(database_url, federation, create=False)
        try:
            return other.enroll(f"agent{number}", "agent", f"key{number}", b"x" * 32, 1.0)
        finally:
            other.close()

    with ThreadPoolExecutor(8) as pool:
        lanes = list(pool.map(enrol, range(16)))
    assert sorted(lanes) == list(range(16))


# ------------------------------------------------------------------------------------------ rounds


def test_rounds_open_and_close(opened, federation):
    assert opened.current_round() is None
    opened.open_round(some_round(1, federation))
    with pytest.raises(RuntimeError, match="round 2 cannot open: another one is open"):
        opened.open_round(some_round(2, federation))
    with opened.transaction():
        opened.close_round(1, 20.0, "all", 3, 21, 0.75)
        opened.open_round(some_round(2, federation, plan_json=None))
    current = opened.current_round()
    expected = some_round(2, federation, plan_json=None)
    assert current._replace(merged=None) == expected._replace(merged=None)
    assert np.array_equal(current.merged.counts, expected.merged.counts)
    assert np.array_equal(current.merged.visits, expected.merged.visits)
    assert current.merged.agents == 3
    with pytest.raises(RuntimeError, match="round 1 cannot close: it is not open"):
        opened.close_round(1, 30.0, "all", 3, 21, 0.75)
    assert opened.rounds(5) == [
        (2, 10.5, 7, None, None, None, None, None),
        (1, 10.5, 7, 20.0, "all", 3, 21, 0.75),
    ]
    assert [row.number for row in opened.rounds(1)] == [2]
    assert opened.rewards(5) == [(1, 21, 0.75)]


def test_a_round_keeps_the_counts_of_each_lane_that_it_was_opened_from(
    opened, database_url, federation
):
    tokens = [enrolled(opened, f"agent{lane}") for lane in range(3)]
    lives = [Counting(federation.shape, str(lane)) for lane in range(3)]
    for lane in (0, 2):
        given(opened, tokens[lane], lives[lane].upload(1))
    with opened.transaction():
        merged, by_lane = opened.merged(), opened.counts_by_lane()
        opened.open_round(some_round(1, federation, merged=merged, by_lane=by_lane))
    given(opened, tokens[1], lives[1].upload(1))  # comes too late for the round
    opened.close()
    again = open_store(database_url, federation)
    found = again.current_round()
    assert found is not None
    assert found.by_lane is not None
    for kept, was in ((found.merged, merged), (found.by_lane, by_lane)):
        assert np.array_equal(kept.counts, was.counts)
        assert np.array_equal(kept.visits, was.visits)
    assert found.by_lane.counts.shape == (3, *merged.counts.shape)
    assert not found.by_lane.counts[1].any()
    assert again.counts_by_lane().counts[1].any()
    again.close_round(1, 20.0, "all", 2, 6, 0.5)
    assert again.database.rows("SELECT counts, visits FROM rounds") == [(None, None)]
    again.open_round(some_round(2, federation))  # without lanes, as most are
    found = again.current_round()
    assert found is not None
    assert found.by_lane is None
    again.close()


def test_rewards_are_the_last_ones_in_order(opened, federation):
    for number in range(1, 6):
        opened.open_round(some_round(number, federation))
        opened.close_round(number, 20.0 + number, "deadline", 1, 10 * number, None)
    assert opened.rewards(3) == [(3, 30, None), (4, 40, None), (5, 50, None)]
    assert opened.current_round() is None


def test_closing_and_opening_are_one(opened, federation):
    opened.open_round(some_round(1, federation))

    def fail_late():
        with opened.transaction():
            opened.close_round(1, 20.0, "all", 3, 21, 0.75)
            opened.open_round(some_round(2, federation))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_late()
    assert opened.current_round().number == 1
    assert opened.rounds(5)[0].closed is None


def test_plans_of_lanes_last_as_long_as_the_round(opened, federation):
    opened.open_round(some_round(1, federation))
    opened.save_plan(1, 0, b"zero")
    opened.save_plan(1, 3, b"three")
    opened.save_plan(1, 3, b"another")
    assert (opened.plan(1, 0), opened.plan(1, 3), opened.plan(1, 1)) == (b"zero", b"three", None)
    opened.close_round(1, 20.0, "all", 3, 21, 0.75)
    assert opened.plan(1, 3) is None


def test_who_is_awaited(opened, federation):
    tokens = {name: enrolled(opened, name) for name in ("old", "last", "now", "both", "gone")}
    lives = {name: Counting(federation.shape, name) for name in tokens}
    for name, number, slots in (
        ("old", 5, 3),
        ("last", 6, 4),
        ("both", 6, 5),
        ("gone", 6, 6),
        ("now", 7, 8),
        ("both", 7, 7),
        ("both", 7, 2),
        ("gone", 7, 9),
    ):
        upload = lives[name].upload(number * 10 - slots, round=number, slots=slots)
        given(opened, tokens[name], upload, round=number)
    opened.revoke("gone", 9.0)
    assert opened.awaited(7) == ({"last", "now", "both"}, {"now": 8, "both": 7, "gone": 9})
    assert opened.awaited(9) == (set(), {})


# ------------------------------------------------------------------------------------------- edges


def test_a_commit_that_is_undone_leaves_nothing_in_mind(opened, federation):
    """Neither credentials, uploads, credit nor the open round."""
    token = enrolled(opened)

    def undone():
        with opened.transaction():
            opened.open_round(some_round(1, federation))
            upload, rules = Counting(federation.shape).upload(1), UploadRules(slot_seconds=1.0)
            assert receive(opened, *token, upload, 1, 2, 2.0, rules) == "new"
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        undone()
    with opened.transaction():
        assert opened.open_number() == 0
        assert opened.uploads.totals() == (0, 0)
        credential = opened.credentials.credential(token[0])
        left = opened.spent_credit(credential, 10, 2.0, 1.0)
        assert left.seconds == pytest.approx(1.0)  # 10 of the first burst, and one has passed
    assert opened.database.rows("SELECT owner FROM pace") == []


def test_an_agents_own_records_are_asked_for_by_its_name(opened, federation):
    token = enrolled(opened)
    upload = Counting(federation.shape).upload(4)
    given(opened, token, upload)
    assert opened.uploads.record("alice", upload.incarnation).sequence == 4
    assert opened.uploads.record(upload.incarnation, "alice") is None
    assert opened.uploads.digest("alice", upload.incarnation, 4) == upload.digest
    assert opened.uploads.digest("alice", upload.incarnation, 3) is None
    tallies = opened.uploads.tallies()
    assert {name: tally.slots for name, tally in tallies.items()} == {"alice": 3}
    assert opened.retention.agents() == ["alice"]


def row_of(**changes):
    values = dict.fromkeys(AgentRow._fields)
    given_values = {"name": "a", "role": "agent", "lane": 2, "last_seen": 100.0, "owner": "a"}
    return AgentRow(**{**values, **given_values, **changes})


@pytest.mark.parametrize(
    ("changes", "now", "live"),
    [
        ({}, 100.0, True),
        ({}, 130.0, True),
        ({}, 130.1, False),
        ({}, 100.0 - CLOCK_SECONDS, True),
        ({}, 99.9 - CLOCK_SECONDS, False),
        ({"role": "admin"}, 100.0, False),
        ({"revoked": 50.0}, 100.0, False),
        ({"last_seen": None}, 100.0, False),
    ],
)
def test_an_agent_is_live_for_so_many_seconds(changes, now, live):
    assert row_of(**changes).is_live(now, 30.0) == live


def test_a_row_tells_of_owner_and_weight_where_there_are_any():
    plain = row_of().to_table({})
    assert plain["lane"] == 2
    assert not {"owner", "weight"} & set(plain)
    assert row_of(owner="acme").to_table({})["owner"] == "acme"
    assert row_of(owner="acme").to_table({"acme": 3.0})["weight"] == 3.0
    assert row_of().to_table({"acme": 3.0})["weight"] == 1.0
    admin = row_of(role="admin", lane=-1).to_table({"a": 3.0})
    assert (admin["lane"], "weight" in admin) == (None, False)


def owned(opened, name, owner, slots, federation, incarnation=None):
    _, key_id, secret_hash = make_token()
    opened.enroll(name, "agent", key_id, secret_hash, 1.0, owner)
    upload = Counting(federation.shape, incarnation or name).upload(1, slots=slots)
    given(opened, (key_id, secret_hash), upload)


def test_weights_are_of_owners_and_lanes_in_their_order(database_url, federation):
    of = replace(federation, weights={"acme": 3.0, "solo": 0.5})
    opened = open_store(database_url, of)
    opened.claim()
    for name, owner, slots in (("x", "acme", 40), ("solo", None, 30), ("y", "acme", 40)):
        owned(opened, name, owner, slots, federation)
    assert opened.lanes() == {"x": 0, "solo": 1, "y": 2}
    assert opened.has_owners()
    found = opened.counts_by_lane()
    sizes = found.counts[:, :-1].sum((1, 2, 3, 4))
    share = sizes[[0, 2]].max() / sizes[[0, 2]].sum()
    assert found.weights is not None
    np.testing.assert_allclose(found.weights, [3 * share, 0.5, 3 * share])
    opened.close()


@pytest.mark.parametrize("unlike", [0, 1])
def test_who_contradicts_a_clear_majority_weighs_nothing_under_a_cap(
    database_url, federation, unlike, monkeypatch
):
    """Scores are stand-ins: of the second agent, which is unlike the others, or of none."""
    from rmab.service.store import store as module

    capped_federation = replace(federation, cap=3.0)
    opened = open_store(database_url, capped_federation)
    opened.claim()
    for n in range(3):
        owned(opened, f"agent{n}", None, 30, federation)

    def scored(divided):
        def compared(named, shape, owners):
            assert list(owners) == list(named)
            scores = {name: 1e6 if unlike and name == "1" else None for name in named}
            return SimpleNamespace(scores=scores, divided=divided)

        return compared

    monkeypatch.setattr(module, "compared", scored(()))
    weights = opened.counts_by_lane().weights
    assert weights is not None
    assert [weight == 0 for weight in weights] == [False, bool(unlike), False]
    monkeypatch.setattr(module, "compared", scored((1,)))  # no majority is clear
    weights = opened.counts_by_lane().weights
    assert weights is not None
    assert weights.min() > 0
    opened.close()


def test_slots_of_rounds_are_counted_from_the_database(opened, federation):
    assert (opened.closed_slots(), opened.open_number(), opened.newest()) == (0, 0, 0.0)
    opened.open_round(some_round(1, federation))
    assert (opened.closed_slots(), opened.open_number()) == (0, 1)
    opened.close_round(1, 20.0, "all", 3, 21, 0.75)
    assert (opened.closed_slots(), opened.open_number()) == (21, 0)
    assert opened.newest() == 20.0
    opened.keep_estimates("one")
    opened.keep_estimates("two")
    assert opened.estimates() == "two"


def test_erasures_are_numbered_and_of_agents(opened, federation):
    token = enrolled(opened)
    enrolled(opened, "boss", "admin")
    assert (opened.last_erasure(), opened.erase("boss", 1.0), opened.erase("no", 1.0)) == (
        0,
        None,
        None,
    )
    assert opened.erase("alice", 2.0).number == 0  # there was nothing
    assert opened.last_erasure() == 0
    for number, name in ((1, "one"), (2, "two")):
        given(opened, token, Counting(federation.shape, name).upload(1))
        assert opened.erase("alice", 3.0, "boss").number == number
        assert opened.last_erasure() == number
    assert [row.number for row in opened.audit()] == [1, 2]
    assert opened.erased()[:2] == (2, 6)


def test_what_is_in_sums_cannot_be_taken_out(database_url, federation):
    noisy = replace(federation, privacy=Privacy(epsilon=1.0))
    opened = open_store(database_url, noisy)
    enrolled(opened)
    with pytest.raises(FederationError, match="what alice gave is released in sums, as"):
        opened.erase("alice", 1.0)
    assert (opened.visits_by_agent(), opened.counts_by_agent()) == ({}, {})
    assert opened.agents()[0].reward is None
    opened.close()
