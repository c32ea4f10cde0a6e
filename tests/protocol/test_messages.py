"""What goes over the wire: all that a player sends is accepted, nothing impossible is."""

import json
import random
import re
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmab.errors import ProtocolError
from rmab.policies.plans import IndexPlan, LookaheadPlan, OwnPlan, TurnsPlan
from rmab.policies.rules.rule import MAX_PLAN_AGES
from rmab.protocol.growth import Record, check_growth
from rmab.protocol.messages import (
    MAX_COUNTS,
    RoundMessage,
    parse_plan,
    parse_round,
    plan_table,
)
from rmab.protocol.player import Player
from rmab.protocol.shape import Shape, is_name
from rmab.protocol.uploads import most_bytes, parse_upload

NAME = "test"
SHAPES = (
    Shape(1, (2, 2), 1),
    Shape(2, (2, 2, 2, 2), 1),
    Shape(2, (2, 2, 2), 8),
    Shape(1, (3, 2), 4),
)


def message_of(shape: Shape, *, number: int = 1, slots: int = 5, factor: int | None = None):
    """A round in which the arms take turns."""
    rewards = tuple(tuple(0.5 * s for s in range(S)) for S in shape.states)
    plan = TurnsPlan(np.ones(shape.n_arms, bool))
    return RoundMessage(NAME, "radio", number, slots, factor, shape, rewards, plan)


def played(shape: Shape, seed: int, slots: int) -> Player:
    """A player that has looked at random arms."""
    rng = np.random.default_rng(seed)
    player = Player(message_of(shape), f"{seed:032x}")
    for _ in range(slots):
        arms = rng.permutation(shape.n_arms)[: rng.integers(0, shape.plays + 1)]
        player.observe(arms.tolist(), [int(rng.integers(shape.states[a])) for a in arms])
    return player


def body_of(shape: Shape, seed: int = 3, slots: int = 60) -> Any:
    return json.loads(played(shape, seed, slots).upload(4).to_json(shape, NAME))


def refusal(table, shape: Shape) -> ProtocolError:
    body = table if isinstance(table, bytes) else json.dumps(table).encode()
    with pytest.raises(ProtocolError) as caught:
        parse_upload(body, shape, NAME)
    return caught.value


@given(st.sampled_from(SHAPES), st.integers(0, 10**6), st.integers(0, 200))
@settings(max_examples=200)
def test_all_that_a_player_counts_is_possible_and_comes_back_as_it_was(shape, seed, slots):
    sent = played(shape, seed, slots).upload(7)
    body = sent.to_json(shape, NAME)
    assert len(body) <= most_bytes(shape)
    got = parse_upload(body, shape, NAME)
    assert got.digest == sent.digest
    assert (got.sequence, got.slots, got.length) == (7, slots, slots)
    np.testing.assert_array_equal(got.counts, sent.counts)
    # Pairs by states are one path: what enters a state and what leaves it differ by one at most.
    pairs = got.counts.sum(0)
    assert np.abs(pairs.sum(1) - pairs.sum(0)).max(initial=0) <= 1


@given(st.sampled_from(SHAPES), st.integers(0, 10**6), st.integers(1, 60), st.integers(1, 60))
@settings(max_examples=100)
def test_an_upload_may_follow_an_earlier_one_of_its_incarnation(shape, seed, first, more):
    before, after = (
        played(shape, seed, first).upload(1),
        played(shape, seed, first + more).upload(2),
    )
    record = Record(1, 1, before.slots, before.counts, before.visits)
    check_growth(record, after, shape.plays)
    with pytest.raises(ProtocolError) as caught:
        check_growth(
            Record(1, 1, after.slots, after.counts, after.visits),
            replace(before, sequence=2),
            shape.plays,
        )
    assert (caught.value.status, caught.value.code) == (409, "backwards")


def record_of(upload, **changes) -> Record:
    fields = ("sequence", "round", "slots", "counts", "visits")
    return Record(**{**{k: getattr(upload, k) for k in fields}, **changes})


@pytest.mark.parametrize(
    ("changes", "status", "word"),
    [
        ({"sequence": 9}, 409, "sequence must be above 9, got 5"),
        ({"round": 3}, 409, "round must be at least 3, got 1"),
        ({"slots": 61}, 409, "slots must be at least 61, got 60"),
        ({"slots": 58}, 422, "at most one observation of an arm and 2 in all in each of 2 slots"),
    ],
)
def test_what_cannot_follow_is_refused(changes, status, word):
    shape = SHAPES[1]
    upload = played(shape, 3, 60).upload(5)
    empty = {"counts": np.zeros_like(upload.counts), "visits": np.zeros_like(upload.visits)}
    before = record_of(upload, **{"sequence": 4, **empty, **changes})
    with pytest.raises(ProtocolError, match=word) as caught:
        check_growth(before, upload, shape.plays)
    assert caught.value.status == status


IMPOSSIBLE = {
    "crossings": (
        lambda t: (
            t["counts"][0][0][0].__setitem__(1, t["counts"][0][0][0][1] + 2),
            t["visits"][0].__setitem__(0, t["visits"][0][0] + 1),
            t["visits"][0].__setitem__(1, t["visits"][0][1] + 1),
            t.update(slots=t["slots"] + 9),
        ),
        "observations of an arm form one sequence",
    ),
    "more observations than plays": (
        lambda t: t.update(slots=t["slots"] // 4, length=1),
        "at most",
    ),
    "a pair without observations": (
        lambda t: t["counts"][1][1][0].__setitem__(0, t["counts"][1][1][0][0] + 1),
        r"counts\[1\] must add up to",
    ),
    "gaps that do not fit": (
        lambda t: t.update(slots=t["visits"][0][0] + t["visits"][0][1], length=1),
        "at most|fit into",
    ),
    "a negative count": (
        lambda t: t["counts"][0][0][0].__setitem__(0, -1),
        r"counts\[0\]\[0\]\[0\]\[0\]",
    ),
    "a fraction": (lambda t: t["counts"][0][0][0].__setitem__(0, 1.0), "whole number"),
    "true": (lambda t: t["visits"][0].__setitem__(0, True), "whole number"),
    "a huge count": (lambda t: t["visits"][0].__setitem__(0, 2**53 + 1), "whole number"),
    "a large count": (lambda t: t["visits"][0].__setitem__(0, 2**53), "pass slots"),
    "too few arms": (lambda t: t["counts"].pop(), "counts must be a list of 4, got 3"),
    "ragged": (lambda t: t["counts"][2][0][1].pop(), "nested lists of 2 x 2 x 2"),
    "another protocol": (lambda t: t.update(protocol=2), "protocol must be 1, got 2"),
    "another federation": (lambda t: t.update(federation="x"), "federation must be 'test'"),
    "no incarnation": (lambda t: t.pop("incarnation"), "incarnation is missing"),
    "an incarnation that is none": (lambda t: t.update(incarnation="A" * 32), "32 digits"),
    "sequence 0": (lambda t: t.update(sequence=0), "sequence must be a whole number from 1"),
    "a length beyond the slots": (
        lambda t: t.update(length=t["slots"] + 1),
        "length must be at most slots",
    ),
    "an unknown key": (lambda t: t.update(more=1), "unknown key 'more'"),
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_an_upload_that_cannot_be_is_refused_with_the_place_and_the_rule(name):
    shape = SHAPES[1]
    table = body_of(shape)
    change, rule = IMPOSSIBLE[name]
    change(table)
    error = refusal(table, shape)
    assert (error.status, error.code) == (422, "malformed")
    assert len(str(error).splitlines()) == 1
    assert re.search(rule, str(error)), str(error)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b'{"a": NaN}',
        b'{"a": 1, "a": 2}',
        b"[" * 100_000,
        b'{"sequence": ' + b"9" * 5000 + b"}",
        json.dumps({"protocol": 1}).encode("utf-16"),
    ],
)
def test_a_body_that_is_no_json_object_is_refused(body):
    assert refusal(body, SHAPES[0]).status == 422


# ------------------------------------------------------------------------------ the parser, fuzzed

WORDS = ["", "1", "counts", "\u0000", "0" * 32, "\ud800", "é", 'a"b']


def junk(rng: random.Random, depth: int = 0):
    """A JSON value of any kind."""
    kind = rng.randrange(9 if depth < 3 else 6)
    if kind == 0:
        return rng.choice([None, True, False])
    if kind == 1:
        return rng.choice([-1, 0, 1, 2**31, 2**53, 2**53 + 1, 2**64, -(2**70), 10**30])
    if kind == 2:
        return rng.choice([0.0, 1.0, -0.5, 1e300, 5e-324, float("inf"), float("nan")])
    if kind == 3:
        return rng.choice(WORDS)
    if kind < 6:
        return rng.randrange(30)
    if kind == 6:
        return {rng.choice(WORDS): junk(rng, depth + 1) for _ in range(rng.randrange(3))}
    return [junk(rng, depth + 1) for _ in range(rng.randrange(4))]


def containers(value: Any) -> list[Any]:
    """All lists and objects in a JSON value, itself the first."""
    found = [value]
    for each in found:
        inner = each.values() if isinstance(each, dict) else each
        found += [x for x in inner if isinstance(x, dict | list)]
    return found


def change(rng: random.Random, table: dict[str, Any]) -> None:
    """One change somewhere: another value, one less, one more, two swapped."""
    where = rng.choice(containers(table))
    keys = list(where) if isinstance(where, dict) else list(range(len(where)))
    how = rng.randrange(5)
    if how == 0 and isinstance(where, list):
        where.append(junk(rng))
    elif how == 1 and keys:
        del where[rng.choice(keys)]
    elif how == 2 and len(keys) > 1:
        one, other = rng.sample(keys, 2)
        where[one], where[other] = where[other], where[one]
    elif keys:
        where[rng.choice(keys)] = rng.randrange(40) if rng.random() < 0.5 else junk(rng)


def mutant(seed: int, base: bytes) -> bytes:
    """A real upload, changed at a few places of its values or its bytes."""
    rng = random.Random(seed)
    table = json.loads(base)
    for _ in range(rng.randrange(4)):
        change(rng, table)
    body = json.dumps(table).encode()
    for _ in range(rng.choice([0, 0, 0, 1, 3])):
        at = rng.randrange(len(body) + 1)
        body = body[:at] + rng.randbytes(rng.randrange(3)) + body[at + rng.randrange(3) :]
    return body


def refused(body: bytes, shape: Shape) -> ProtocolError | None:
    try:
        upload = parse_upload(body, shape, NAME)
    except ProtocolError as error:
        return error
    assert json.loads(upload.to_json(shape, NAME)) == json.loads(body)
    looks = upload.visits.sum(0)
    assert looks.max() <= upload.slots
    assert looks.sum() <= shape.plays * upload.slots
    assert (upload.counts.sum((0, 1, 2)) == np.maximum(looks - 1, 0)).all()
    pairs = upload.counts.sum(0)
    assert np.abs(pairs.sum(1) - pairs.sum(0)).max() <= 1
    return None


BASE = played(SHAPES[0], 3, 12).upload(4).to_json(SHAPES[0], NAME)
LARGER = played(SHAPES[3], 3, 40).upload(4).to_json(SHAPES[3], NAME)
taken: Counter[bool] = Counter()


def fuzz(seed: int, base: bytes, shape: Shape) -> None:
    error = refused(mutant(seed, base), shape)
    taken[error is None] += 1
    if error is not None:
        assert error.status == 422
        assert len(str(error).splitlines()) == 1
        assert len(str(error)) < 500


@given(st.integers(0, 2**64))
@settings(max_examples=1_000)
def test_the_parser_takes_what_is_possible_and_refuses_all_else(seed):
    for number in range(20):  # twenty thousand bodies in all
        fuzz(seed * 20 + number, BASE, SHAPES[0])


def test_the_bodies_tried_are_of_both_kinds():
    for seed in range(400):
        fuzz(seed, BASE, SHAPES[0])
    assert taken[True] >= 20
    assert taken[False] >= 20


@pytest.mark.slow
@given(st.integers(0, 2**64))
@settings(max_examples=10_000)
def test_the_parser_on_a_million_bodies(seed):
    for number in range(100):
        fuzz(seed * 100 + number, LARGER, SHAPES[3])


# ------------------------------------------------------------------------------------------ rounds


@given(st.sampled_from(SHAPES), st.integers(0, 10**6), st.integers(1, 20))
@settings(max_examples=60)
def test_a_round_comes_back_to_the_last_bit(shape, seed, max_age):
    rng = np.random.default_rng(seed)
    index = rng.normal(size=(shape.n_arms, 1 + max(shape.states) * max_age)).astype(np.float32)
    for arm, S in enumerate(shape.states):
        index[arm, 1 + S * max_age :] = 0
    plan = IndexPlan(
        max_age, 0, (index * 10.0 ** rng.integers(-30, 30)).astype(np.float32), shape.states
    )
    sent = replace(message_of(shape), plan=plan)
    got = parse_round(sent.to_json())
    assert isinstance(got.plan, IndexPlan)
    np.testing.assert_array_equal(got.plan.index, plan.index)
    assert (got.shape, got.rewards, got.slots) == (sent.shape, sent.rewards, sent.slots)


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (lambda t: t.update(round=0), "round must be a whole number from 1"),
        (lambda t: t.update(plays=3), "plays must be at most 2"),
        (
            lambda t: t["plan"].update(kind="magic"),
            "plan.kind must be one of index, turns, lookahead",
        ),
        (lambda t: t["plan"].update(in_play=[True]), "plan.in_play must be a list of 2, got 1"),
        (lambda t: t["arms"][0].update(reward=[0, "1"]), r"arms\[0\].reward\[1\] must be a number"),
        (lambda t: t["episode"].update(slots=None), "episode.slots must be a whole number"),
        (lambda t: t.update(agent="a b"), "agent must be a name"),
    ],
)
def test_an_agent_refuses_a_round_that_is_none(change, rule):
    table = json.loads(message_of(SHAPES[0]).to_json())
    change(table)
    with pytest.raises(ProtocolError, match=rule):
        parse_round(json.dumps(table).encode())


def round_table(**changes) -> dict[str, Any]:
    table: dict[str, Any] = json.loads(message_of(SHAPES[0]).to_json())
    return table | changes


ARM = {"states": 2, "reward": [0, 1]}
KIND = {"reward_passive": [0, 0], "observed": "when_played", "action_dependent": False}


@pytest.mark.parametrize(
    "changes",
    [
        {"plays": 2},
        {"survey": 1},
        {"arms": [ARM, {**ARM, **KIND}], "survey": 1},
        {"arms": [ARM, {**ARM, **KIND, "observed": "always"}]},
        {"episode": {"slots": 1, "visits": 1}},
        {"gaps": MAX_COUNTS // 8 - 1},  # two arms of four numbers a gap, and those further apart
    ],
)
def test_a_round_at_the_edges_is_read(changes):
    parse_round(json.dumps(round_table(**changes)).encode())


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"plays": 0}, "plays must be a whole number from 1"),
        ({"gaps": 0}, "gaps must be a whole number from 1"),
        ({"gaps": MAX_COUNTS // 8}, f"arms must have at most {MAX_COUNTS} counts, got"),
        ({"arms": []}, "arms must be a list of at least one, got"),
        ({"arms": {}}, "arms must be a list of at least one, got"),
        ({"arms": [{**ARM, "states": 1}, ARM]}, r"arms\[0\].states must be a whole number from 2"),
        ({"arms": [ARM, {**ARM, "reward": [1]}]}, r"arms\[1\].reward must be a list of 2, got 1"),
        (
            {"arms": [ARM, {**ARM, **KIND, "reward_passive": [1]}]},
            r"arms\[1\].reward_passive must be a list of 2, got 1",
        ),
        (
            {"arms": [ARM, {**ARM, **KIND, "observed": "never"}]},
            r"arms\[1\].observed must be one of when_played, always, got 'never'",
        ),
        (
            {"arms": [ARM, {**ARM, **KIND, "action_dependent": 1}]},
            r"arms\[1\].action_dependent must be true or false, got 1",
        ),
        ({"survey": 0}, "survey must be a whole number from 1"),
        (
            {"survey": 1, "arms": [ARM, {**ARM, **KIND, "observed": "always"}]},
            "survey must not be given",
        ),
        (
            {"survey": 1, "arms": [ARM, {**ARM, **KIND, "action_dependent": True}]},
            "survey must not be given",
        ),
        ({"episode": {"slots": 0, "visits": None}}, "episode.slots must be a whole number from 1"),
        ({"episode": {"slots": 1, "visits": 0}}, "episode.visits must be a whole number from 1"),
        ({"protocol": True}, "protocol must be 1"),
        ({"federation": "-a"}, "federation must be a name"),
    ],
)
def test_a_round_beyond_the_edges_is_refused(changes, rule):
    with pytest.raises(ProtocolError, match=rule):
        parse_round(json.dumps(round_table(**changes)).encode())


def test_names_of_federations_and_agents():
    assert all(is_name(name) for name in ("a", "9.b-C_d", "x" * 64))
    assert not any(is_name(name) for name in ("", "x" * 65, ".a", "-a", "_a", "a b", "a\n", "ä", 3))


# ------------------------------------------------------------------------------------------- plans

SEEN = Shape(1, (2, 2), 1, always=(1,))
ROW = [0.0] * 5
INDEX = {"kind": "index", "max_age": 2, "wrap": 2, "index": [ROW, ROW]}
LOOKAHEAD = {
    "kind": "lookahead",
    "depth": 2,
    "max_age": 2,
    "wrap": 0,
    "shows": [[ROW, ROW]],
    "gains": [[ROW, ROW]] * 2,
}
OWN = {"kind": "own", "learner": "ucb", "options": {}}


def test_plans_come_back():
    oldest = {"max_age": MAX_PLAN_AGES, "index": [[0.5] * (1 + 2 * MAX_PLAN_AGES)] * 2}
    for table in (INDEX, INDEX | oldest, INDEX | {"wrap": 0}, LOOKAHEAD, OWN):
        assert plan_table(parse_plan(table, SHAPES[0])) == table
    found = parse_plan(LOOKAHEAD | {"passive": [[ROW, ROW]]}, SEEN)
    assert isinstance(found, LookaheadPlan)
    assert found.always == (1,)
    assert found.tables.passive_probs is not None
    wiql = parse_plan({"kind": "own", "learner": "qwi", "options": {}}, SHAPES[0])
    assert isinstance(wiql, OwnPlan)
    ragged = Shape(1, (3, 2), 1)
    rows = parse_plan(INDEX | {"index": [[1.0] * 7, [2.0] * 5]}, ragged)
    assert isinstance(rows, IndexPlan)
    assert rows.index.tolist() == [[1.0] * 7, [2.0] * 5 + [0.0] * 2]


@pytest.mark.parametrize(
    ("table", "rule"),
    [
        ([], "plan.kind must be one of index, turns, lookahead, own, got"),
        ({}, "plan.kind must be one of"),
        (INDEX | {"max_age": 0}, "plan.max_age must be a whole number from 1"),
        (INDEX | {"max_age": MAX_PLAN_AGES + 1}, f"plan.max_age must be at most {MAX_PLAN_AGES}"),
        (INDEX | {"wrap": 3}, "plan.wrap must be at most max_age, 2, got 3"),
        (INDEX | {"wrap": -1}, "plan.wrap must be a whole number from 0"),
        (INDEX | {"index": [ROW]}, "plan.index must be a list of 2, got 1"),
        (INDEX | {"index": [ROW, ROW[1:]]}, r"plan.index\[1\] must be a list of 5, got 4"),
        (INDEX | {"index": [ROW, [*ROW, 0.0]]}, r"plan.index\[1\] must be a list of 5, got 6"),
        ({"kind": "turns", "in_play": [True, 1]}, r"in_play\[1\] must be true or false, got 1"),
        (LOOKAHEAD | {"depth": 4}, "plan.depth must be one of"),
        (LOOKAHEAD | {"depth": True}, "plan.depth must be one of"),
        (LOOKAHEAD | {"depth": 1}, "plan.gains must be a list of 1, got 2"),
        (LOOKAHEAD | {"shows": []}, "plan.shows must be a list of 1, got 0"),
        (LOOKAHEAD | {"shows": [[ROW]]}, r"plan.shows\[0\] must be a list of 2, got 1"),
        (LOOKAHEAD | {"gains": [[ROW, ROW], [ROW, []]]}, r"gains\[1\]\[1\] must be a list of 5"),
        (LOOKAHEAD | {"max_age": 1, "wrap": 2}, "plan.wrap must be at most max_age, 1"),
        (LOOKAHEAD | {"passive": [[ROW, ROW]]}, "plan: unknown key 'passive'"),
        (OWN | {"learner": "whittle"}, "plan.learner must be one of ucb, rca, wiql, qwi, got"),
        (OWN | {"options": []}, "plan.options must be an object"),
        (OWN | {"options": {"more": 1}}, "plan.options must have numbers for"),
        (OWN | {"options": {"exploration": "1"}}, "plan.options must have numbers for"),
    ],
)
def test_a_plan_that_is_none_is_refused(table, rule):
    with pytest.raises(ProtocolError, match=rule):
        parse_plan(table, SHAPES[0])


def test_a_plan_for_arms_in_plain_sight_says_how_they_move_alone():
    with pytest.raises(ProtocolError, match="plan: passive is missing"):
        parse_plan(LOOKAHEAD, SEEN)
