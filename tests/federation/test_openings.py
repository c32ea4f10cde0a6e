"""A helper opens sums of increments, each once, of enough agents; attacks on that are refused."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from rmab.errors import ProtocolError
from rmab.federation.masks import in_base64, numbers_of, vector_of, vector_size
from rmab.federation.openings import (
    BEGINNING,
    Member,
    Opening,
    Waiting,
    check_sum,
    chosen,
    parse_answer,
    parse_opening,
)
from tests.federation.masking import SHAPE, Agent, Helper, total
from tests.service.support.counting import Counting


@pytest.fixture
def helper() -> Helper:
    return Helper()


@pytest.fixture
def agents(helper) -> list[Agent]:
    return [helper.enroll(name) for name in ("a", "b", "c", "d")]


def clear(agent: Agent) -> np.ndarray:
    """What an agent has counted, by its own ledger."""
    counting = agent.counting
    return vector_of(counting._counts, counting._visits, SHAPE)


def test_an_opening_tells_the_sum_and_then_what_was_added_to_it(helper, agents):
    first = [agent.upload() for agent in agents]
    before = total(*(clear(agent) for agent in agents))
    members = [agent.named(upload) for agent, upload in zip(agents, first, strict=True)]
    masks = helper.ask(*members)
    assert np.array_equal(total(*(upload.masked for upload in first)) - masks, before)
    later = [agent.upload(7) for agent in agents]
    members = [agent.named(upload) for agent, upload in zip(agents, later, strict=True)]
    masks = helper.ask(*members)
    added = total(*(upload.masked for upload in later)) - total(*(u.masked for u in first)) - masks
    assert np.array_equal(added, total(*(clear(agent) for agent in agents)) - before)


def test_too_few_agents_are_not_opened(helper, agents):
    assert helper.refuses(agents[0].member(), agents[1].member()) == "least"


def test_the_same_agent_twice_is_one_agent(helper, agents):
    a, b, _, _ = agents
    one = a.member()
    a.restart()
    assert helper.refuses(one, a.member(), b.member()) == "least"
    same = b.member()
    assert helper.refuses(same, same, agents[2].member(), agents[3].member()) == "member"


@pytest.mark.parametrize(
    "changes",
    [
        {"nonce": bytes(16)},
        {"slots": 5},
        {"sequence": 2},
        {"incarnation": "00" * 16},
        {"agent": "d"},
        {"agent": "nobody"},
        {"tag": bytes(32)},
    ],
)
def test_a_made_up_header_is_refused(helper, agents, changes):
    members = [agent.member() for agent in agents[:3]]
    assert helper.refuses(members[0]._replace(**changes), *members[1:]) == "member"


def test_the_same_interval_is_opened_once(helper, agents):
    members = [agent.member() for agent in agents]
    helper.ask(*members)
    assert helper.refuses(*members) == "member"


def test_a_set_less_one_is_refused(helper, agents):
    members = [agent.member() for agent in agents]
    helper.ask(*members)
    with pytest.raises(ProtocolError) as refused:
        helper.ask(*members[:3])
    assert refused.value.code == "member"
    assert {agent for agent, *_ in refused.value.extra["members"]} == {"a", "b", "c"}
    # Nor from an earlier point to a later one, past what was opened.
    older = [agent.named(agent.upload(0)) for agent in agents]
    assert helper.refuses(*older[:3]) == "member"


def test_empty_uploads_around_one_that_is_not_are_refused(helper, agents):
    empty = [agent.member(0) for agent in agents[1:]]
    assert helper.refuses(agents[0].member(), *empty) == "member"
    helper.ask(*(agent.member() for agent in agents))
    assert helper.refuses(agents[0].member(), *(a.member(0) for a in agents[1:])) == "member"


def test_one_with_500_slots_among_five_with_1_is_refused(helper, agents):
    more = [helper.enroll(name) for name in ("e", "f")]
    small = [agent.member(1) for agent in [*agents[1:], *more]]
    assert len(small) == 5
    assert helper.refuses(agents[0].member(500), *small) == "half"


def test_half_is_of_all_incarnations_of_an_agent_together(helper, agents):
    a, b, c, _ = agents
    first = a.member(4)
    a.restart()
    assert helper.refuses(first, a.member(4), b.member(3), c.member(3)) == "half"
    helper.ask(a.member(4), b.member(3), c.member(3))


def test_revoked_and_of_another_group_are_refused(helper, agents):
    members = [agent.member() for agent in agents]
    helper.agents["a"] = helper.agents["a"]._replace(revoked=True)
    assert helper.refuses(*members) == "member"
    helper.agents["a"] = helper.agents["a"]._replace(revoked=False, group=2)
    assert helper.refuses(*members) == "member"
    assert helper.refuses(*members, group=2) == "member"
    helper.ask(*members[1:])


def test_a_new_key_does_not_go_on_where_the_old_one_was_opened(helper, agents):
    helper.ask(*(agent.member() for agent in agents))
    renewed = helper.enroll("a", number=2)
    agents[0].key = renewed.key
    assert helper.refuses(*(agent.member() for agent in agents)) == "member"
    agents[0].restart()
    helper.ask(*(agent.member() for agent in agents))


def test_a_repeat_gets_the_same_answer_and_another_under_its_number_is_refused(helper, agents):
    members = [agent.member() for agent in agents]
    masks = helper.ask(*members)
    again = {"number": 1, "before": BEGINNING}
    assert np.array_equal(helper.ask(*members, **again), masks)
    assert helper.refuses(*members[:3], **again) == "opening"
    assert helper.refuses(*(agent.member() for agent in agents), **again) == "opening"


def test_openings_follow_one_another(helper, agents):
    helper.ask(*(agent.member() for agent in agents))
    members = [agent.member() for agent in agents]
    assert helper.refuses(*members, number=3) == "opening"
    assert helper.refuses(*members, before=BEGINNING) == "before"
    helper.ask(*members)


def test_a_helper_that_was_set_back_opens_nothing_again(helper, agents):
    """What a server asks it next follows an opening that it has forgotten."""
    helper.ask(*(agent.member() for agent in agents))
    points, answers = dict(helper.points), list(helper.answers)
    helper.ask(*(agent.member() for agent in agents))
    following = dict(zip(("number", "before"), helper.last(), strict=True))
    following["number"] += 1
    helper.points, helper.answers = points, answers
    members = [agent.member() for agent in agents]
    assert helper.refuses(*members, **following) == "opening"
    assert helper.refuses(*members, **{**following, "number": 2}) == "before"


def test_an_agents_file_restored_from_a_backup_opens_nothing_twice(helper, agents):
    """The restored agent sends other counts under a number that was opened."""
    a = agents[0]
    backup = (a.counting, a.sequence)
    helper.ask(*(agent.member() for agent in agents))
    a.restart()
    restored = Counting(SHAPE, "a 1")
    restored.play(6)
    a.counting, a.sequence = restored, backup[1]
    others = [agent.member() for agent in agents[1:]]
    assert helper.refuses(a.member(), *others) == "member"


# ------------------------------------------------------------------------------------- messages


def test_an_opening_is_read_as_it_was_written(agents):
    opening = Opening(7, "ab" * 32, 2, tuple(agent.member() for agent in agents))
    assert parse_opening(opening.to_json()) == opening
    assert opening.digest != opening._replace(number=8).digest


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'"opening":1', b'"opening":0'),
        (b'"before":"00', b'"before":"zz'),
        (b'"group":1', b'"group":0'),
        (b'"members":[[', b'"members":[1,['),
        (b'"members":', b'"more":0,"members":'),
        (b'["a",', b'["a b",'),
        (b'["a",', b'["a","a",'),
    ],
)
def test_what_is_no_opening_is_refused(agents, before, after):
    body = Opening(1, BEGINNING, 1, (agents[0].member(),)).to_json()
    assert before in body
    with pytest.raises(ProtocolError) as refused:
        parse_opening(body.replace(before, after))
    assert refused.value.status == 422


def test_an_answer_is_of_its_opening_and_whole(agents):
    opening = Opening(1, BEGINNING, 1, (agents[0].member(),))
    masks = np.arange(4, dtype=np.uint64)
    body = b'{"opening":1,"masks":"%s"}' % in_base64(masks).encode()
    assert np.array_equal(parse_answer(body, opening, 4), masks)
    for wrong in (body.replace(b"1,", b"2,"), body.replace(b"AAAA", b""), b"{}"):
        with pytest.raises(ProtocolError):
            parse_answer(wrong, opening, 4)


# --------------------------------------------------------------------------------------- server


def waiting(**new: int) -> list[Waiting]:
    return [Waiting(Member(name, "0" * 32, 1, n, b"", b""), 1, n) for name, n in new.items()]


def names(members: tuple[Member, ...]) -> str:
    return "".join(member.agent for member in members)


def test_who_is_opened_together():
    assert names(chosen(waiting(a=1, b=1), 3)) == ""
    assert names(chosen(waiting(a=1, b=1, c=1), 3)) == "abc"
    assert names(chosen(waiting(a=2, b=1, c=1), 3)) == "abc"
    assert names(chosen(waiting(a=1, b=1, c=1), 4)) == ""
    # All wait for the others to catch up with one, unless it is far ahead of them.
    assert names(chosen(waiting(a=9, b=1, c=1, d=1), 3)) == ""
    assert names(chosen(waiting(a=500, b=1, c=1, d=1), 3)) == "bcd"
    assert names(chosen(waiting(a=500, b=1, c=1), 3)) == ""
    assert names(chosen(waiting(a=9000, b=500, c=1, d=1, e=1), 3)) == "cde"


def test_of_an_agent_that_is_far_ahead_its_later_incarnation_is_opened():
    two = [*waiting(a=900, b=2, c=2, d=2)]
    two.append(Waiting(Member("a", "1" * 32, 1, 2, b"", b""), 1, 2))
    found = chosen(two, 3)
    assert names(found) == "abcd"
    assert found[0].incarnation == "1" * 32


def test_a_possible_sum_is_taken_and_an_impossible_one_is_not():
    countings = [Counting(SHAPE, name) for name in "abc"]
    before = [counting.upload(1) for counting in countings]
    after = [counting.upload(2, slots=50) for counting in countings]
    pairs = list(zip(before, after, strict=True))
    counts = np.sum([b.counts - a.counts for a, b in pairs], axis=0)
    visits = np.sum([b.visits - a.visits for a, b in pairs], axis=0)
    assert check_sum(counts, visits, 150, 3, SHAPE) is None
    assert "no count" in str(check_sum(counts, visits, 10, 3, SHAPE))
    assert "no count" in str(check_sum(counts - 40, visits, 150, 3, SHAPE))
    garbage = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, vector_size(SHAPE))
    assert "no count" in str(check_sum(*numbers_of(garbage, SHAPE), 150, 3, SHAPE))
    assert "visits" in str(check_sum(counts, visits + 40, 150, 3, SHAPE))
    assert "pairs" in str(check_sum(0 * counts, visits, 150, 3, SHAPE))
    moved = counts.copy()
    moved[0, 0, :, 0] += moved[0, 1, :, 0]
    moved[0, 1, :, 0] = 0
    assert "to a state" in str(check_sum(moved, visits, 150, 3, SHAPE))
    far = 0 * counts
    far[-1] = counts.sum(0)
    assert "gaps" in str(check_sum(far, visits, 150, 3, SHAPE))


# ---------------------------------------------------------------------------------- exactly once


class Exchange(RuleBasedStateMachine):
    """Agents, a server and a helper that die between all steps; the sum is of what was counted."""

    @initialize()
    def begin(self):
        self.helper = Helper()
        self.agents = [self.helper.enroll(name) for name in "abcd"]
        self.ledger = {}  # (agent, incarnation, sequence) -> clear numbers
        self.latest = {}  # of the server: (agent, incarnation) -> upload
        self.opened = {}  # ... -> upload that was opened last
        self.asked = None  # the opening that was written down, and its uploads
        self.sum = np.zeros(vector_size(SHAPE), np.uint64)

    @rule(which=st.integers(0, 3), slots=st.integers(0, 6))
    def upload(self, which, slots):
        agent = self.agents[which]
        sent = agent.upload(slots)
        self.ledger[agent.name, sent.incarnation, sent.sequence] = clear(agent)
        self.latest[agent.name, sent.incarnation] = sent

    @rule(which=st.integers(0, 3))
    def restart_agent(self, which):
        self.agents[which].restart()

    @rule()
    def write_opening(self):
        if self.asked is not None:
            return
        entries = []
        for (name, incarnation), sent in self.latest.items():
            before = self.opened.get((name, incarnation))
            new = sent.slots - (before.slots if before else 0)
            if new > 0:
                entries.append(Waiting(Agent.named(self._agent(name), sent), 1, new))
        members = chosen(entries, 3)
        if members:
            number, digest = self.helper.last()
            uploads = {m[:2]: self.latest[m[:2]] for m in members}
            self.asked = (Opening(number + 1, digest, 1, members), uploads)

    def _agent(self, name):
        return next(agent for agent in self.agents if agent.name == name)

    @rule(times=st.integers(1, 2), keeps=st.booleans())
    def ask(self, times, keeps):
        """keeps: whether the server lives long enough to keep the answer."""
        if self.asked is None:
            return
        opening, uploads = self.asked
        for _ in range(times):
            masks = self.helper.ask(*opening.members, number=opening.number, before=opening.before)
        if keeps:
            for key, sent in uploads.items():
                before = self.opened.get(key)
                self.sum += sent.masked - (before.masked if before else np.uint64(0))
                self.opened[key] = sent
            self.sum -= masks
            self.asked = None

    @invariant()
    def sums_are_of_the_agents_own_ledgers(self):
        if not hasattr(self, "sum"):
            return
        due = np.zeros_like(self.sum)
        for (name, incarnation), sent in self.opened.items():
            due += self.ledger[name, incarnation, sent.sequence]
        assert np.array_equal(self.sum, due)


TestExactlyOnce = Exchange.TestCase
TestExactlyOnce.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
