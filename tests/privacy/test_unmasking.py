"""A helper opens sums of increments, each once, of enough agents; attacks on that are refused."""

from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from rmab.errors import ProtocolError
from rmab.privacy.batches import AgentBacklog, ReportBatch, check_sum, choose_batch, parse_answer
from rmab.privacy.masks import in_base64, is_mark, numbers_of, vector_of, vector_size
from rmab.privacy.unmasking import BEGINNING, AggregationJob, Report, parse_job
from tests.privacy.masking import FINGERPRINT, SHAPE, Agent, Helper, total
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


def at(slots: int, *agents: Agent) -> list[Report]:
    """Their uploads after so many slots in all."""
    return [agent.at(slots) for agent in agents]


def test_empty_uploads_around_one_that_is_not_are_refused(helper, agents):
    empty = [agent.member(0) for agent in agents[1:]]
    assert helper.refuses(agents[0].member(), *empty) == "member"
    helper.ask(*at(4, *agents))
    assert helper.refuses(agents[0].member(), *(a.member(0) for a in agents[1:])) == "member"


@pytest.mark.parametrize("slots", [(500, 1, 1, 1), (5, 3, 2, 2), (4, 4, 4, 3), (99, 99, 2, 99)])
def test_unequal_shares_are_refused(helper, agents, slots):
    members = [agent.at(n) for agent, n in zip(agents, slots, strict=True)]
    with pytest.raises(ProtocolError, match="must bring the same number of slots") as refused:
        helper.ask(*members)
    assert (refused.value.status, refused.value.code) == (409, "shares")


def test_shares_are_counted_since_the_last_opening(helper, agents):
    helper.ask(*at(8, *agents[:3]))
    more = [helper.enroll(name) for name in "xyz"]
    assert helper.refuses(*at(12, *agents[:3]), *at(12, *more)) == "shares"
    helper.ask(*at(20, *agents[:3]), *at(12, *more))


def test_shares_are_of_all_incarnations_of_an_agent_together(helper, agents):
    a, b, c, _ = agents
    first = a.member(4)
    a.restart()
    assert helper.refuses(first, *at(4, a, b, c)) == "shares"
    helper.ask(first, a.at(6), *at(10, b, c))


def test_slots_that_a_server_lies_about_open_nothing(helper, agents):
    """Masks and tags are of the slots that the agent had."""
    members = [agent.at(n) for agent, n in zip(agents, (500, 1, 1, 1), strict=True)]
    lies = [member._replace(slots=9) for member in members]
    assert helper.refuses(*lies) == "member"
    assert helper.refuses(members[0]._replace(slots=1), *members[1:]) == "member"
    true, lie = (one.header(FINGERPRINT) for one in (members[0], lies[0]))
    assert not np.array_equal(agents[0].key.mask(true, 4), agents[0].key.mask(lie, 4))


def test_the_same_slots_are_not_opened_by_way_of_an_earlier_mark(helper, agents):
    """A mark that was passed over, or one that was opened."""
    early = at(4, *agents)
    helper.ask(*at(8, *agents))
    assert helper.refuses(*early) == "member"
    helper.ask(*at(12, *agents))


# ---------------------------------------------------------------------------------------- cohorts


@pytest.fixture
def eight(helper) -> list[Agent]:
    """A cohort of eight, a to h, each opened up to slot 4."""
    made = [helper.enroll(name) for name in "abcdefgh"]
    helper.ask(*at(4, *made))
    return made


def parts(helper: Helper) -> set[str]:
    """The cohorts, by the names of their agents."""
    return {"".join(sorted(helper.agents_in(name))) for name in helper.cohorts.values()}


@pytest.mark.parametrize(
    ("asked", "word"),
    [
        ("abcdefg", "cohort"),
        ("cdefgh", "cohort"),
        ("abc", None),
        ("abcde", None),
        ("ab", "least"),
        ("abcdefgh", None),
    ],
)
def test_fewer_than_least_are_never_set_apart(helper, eight, asked, word):
    members = [agent.at(8) for agent in eight if agent.name in asked]
    if word is not None:
        assert helper.refuses(*members) == word
        return
    helper.ask(*members)
    rest = "".join(sorted(set("abcdefgh") - set(asked)))
    assert parts(helper) == {asked, rest} - {""}


def test_what_was_parted_stays_so(helper, eight):
    a, b, c, *others = eight
    helper.ask(*at(8, *others))
    assert parts(helper) == {"abc", "defgh"}
    for few in ([a], [a, b]):
        assert helper.refuses(*at(8, *few), *at(12, *others)) == "cohort"
    for few in (others[1:], others[2:]):
        assert helper.refuses(*at(12, *few)) == "cohort"
    # Both parts in one opening, with equal shares, are parts no less.
    helper.ask(*at(12, *others), *at(8, a, b, c))
    assert parts(helper) == {"abc", "defgh"}
    assert helper.refuses(*at(12, a, b), *at(16, *others)) == "cohort"


@pytest.mark.parametrize("many", [1, 2, 3])
def test_who_is_new_comes_with_as_many_as_an_opening_needs(helper, eight, many):
    """Sums before and after one agent comes would tell of it."""
    new = [helper.enroll(name) for name in "xyz"[:many]]
    members = [*at(8, *eight), *at(4, *new)]
    if many < 3:
        assert helper.refuses(*members) == "cohort"
    else:
        helper.ask(*members)
        assert parts(helper) == {"abcdefgh", "xyz"}


def revoke(helper: Helper, *names: str) -> None:
    for name in names:
        helper.agents[name] = helper.agents[name]._replace(revoked=True)


def test_the_others_go_on_without_who_was_revoked(helper, agents):
    """That is for a person at the helper to do: a server cannot."""
    helper.ask(*at(4, *agents))
    members = at(8, *agents[:3])
    assert helper.refuses(*members) == "cohort"
    revoke(helper, "d")
    helper.ask(*members)
    assert parts(helper) == {"abc", "d"}


def test_who_was_revoked_takes_no_other_along(helper, eight):
    revoke(helper, "h")
    assert helper.refuses(*at(8, *eight[:6])) == "cohort"
    assert helper.refuses(*at(8, *eight[:2])) == "least"
    revoke(helper, "g")
    helper.ask(*at(12, *eight[:6]))


def test_revoked_and_of_another_group_are_refused(helper, agents):
    members = [agent.member() for agent in agents]
    revoke(helper, "a")
    assert helper.refuses(*members) == "member"
    helper.agents["a"] = helper.agents["a"]._replace(revoked=False, group=2)
    assert helper.refuses(*members) == "member"
    assert helper.refuses(*members, group=2) == "member"
    helper.ask(*members[1:])


def test_a_new_key_does_not_go_on_where_the_old_one_was_opened(helper, agents):
    helper.ask(*(agent.member() for agent in agents))
    renewed = helper.enroll("a", number=2)
    agents[0].key = renewed.key
    assert helper.refuses(*at(8, *agents)) == "member"
    agents[0].restart()
    helper.ask(agents[0].at(4), *at(8, *agents[1:]))


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
    opening = AggregationJob(7, "ab" * 32, 2, tuple(agent.member() for agent in agents))
    assert parse_job(opening.to_json()) == opening
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
    body = AggregationJob(1, BEGINNING, 1, (agents[0].member(),)).to_json()
    assert before in body
    with pytest.raises(ProtocolError) as refused:
        parse_job(body.replace(before, after))
    assert refused.value.status == 422


def test_an_answer_is_of_its_opening_and_whole(agents):
    opening = AggregationJob(1, BEGINNING, 1, (agents[0].member(),))
    masks = np.arange(4, dtype=np.uint64)
    body = b'{"opening":1,"masks":"%s"}' % in_base64(masks).encode()
    assert np.array_equal(parse_answer(body, opening, 4), masks)
    for wrong in (body.replace(b"1,", b"2,"), body.replace(b"AAAA", b""), b"{}"):
        with pytest.raises(ProtocolError):
            parse_answer(wrong, opening, 4)


# --------------------------------------------------------------------------------------- server


def waiting(cohort: Any = "a", opened: Any = 0, **reach: int) -> list[AgentBacklog]:
    """Agents of a cohort that have masked at every mark up to these positions."""
    return [
        AgentBacklog(
            name,
            1,
            cohort,
            opened,
            position,
            tuple(
                (mark, Report(name, "0" * 32, mark, mark, b"", b""))
                for mark in filter(is_mark, range(opened + 1, position + 1))
            ),
        )
        for name, position in reach.items()
    ]


def together(found: ReportBatch) -> tuple[str, int]:
    return "".join(one.agent for one in found.agents), found.slots


def test_who_was_never_opened_is_waited_for_unless_it_is_late():
    assert together(choose_batch(waiting(None, a=1, b=1), 3)) == ("", 0)
    assert together(choose_batch(waiting(None, a=1, b=1, c=1), 3)) == ("abc", 1)
    assert together(choose_batch(waiting(None, a=1, b=1, c=1), 4)) == ("", 0)
    assert together(choose_batch(waiting(None, a=1, b=1, c=1, d=0), 3)) == ("", 0)
    assert together(choose_batch(waiting(None, a=1, b=1, c=1, d=0), 3, {"d"})) == ("abc", 1)
    assert together(choose_batch(waiting(None, a=1, b=1, c=0, d=0), 3, {"c", "d"})) == ("", 0)


def test_all_go_to_the_last_mark_that_all_have():
    found = choose_batch(waiting(a=70, b=21, c=40), 3)
    assert together(found) == ("abc", 20)
    assert [member.slots for member in found.reports] == [20, 20, 20]
    assert together(choose_batch(waiting(opened=20, a=70, b=21, c=40), 3)) == ("", 0)
    assert together(choose_batch(waiting(opened=20, a=70, b=25, c=40), 3)) == ("abc", 4)


def test_of_each_incarnation_the_last_upload_is_opened():
    early = Report("a", "0" * 32, 1, 3, b"", b"")
    late = [Report("a", "1" * 32, n, n, b"", b"") for n in (1, 2)]
    one = AgentBacklog("a", 1, "a", 0, 5, ((3, early), (4, late[0]), (5, late[1])))
    assert one.reports(5) == [early, late[1]]
    assert one.reports(4) == [early, late[0]]
    assert one.reports(3) == [early]


def test_the_others_go_on_without_one_that_is_late():
    seven = dict.fromkeys("bcdefgh", 24)
    assert together(choose_batch(waiting(opened=20, a=20, **seven), 3)) == ("", 0)
    # Three stay with it, who can go on without it when it is revoked.
    assert together(choose_batch(waiting(opened=20, a=20, **seven), 3, {"a"})) == ("efgh", 4)
    six = dict.fromkeys("bcdef", 24)
    assert together(choose_batch(waiting(opened=20, a=20, **six), 3, {"a"})) == ("def", 4)
    five = dict.fromkeys("bcde", 24)
    assert together(choose_batch(waiting(opened=20, a=20, **five), 3, {"a"})) == ("", 0)


def test_who_stays_with_one_that_is_late_are_the_slowest():
    ahead = {"b": 30, "c": 26, "d": 30, "e": 24, "f": 30, "g": 30, "h": 25}
    found = choose_batch(waiting(opened=20, a=20, **ahead), 3, {"a"})
    assert together(found) == ("bdfg", 10)


def test_who_is_away_together_keeps_nobody_else():
    found = choose_batch(waiting(opened=20, a=20, b=20, c=20, d=24, e=24, f=24), 3, {"a", "b", "c"})
    assert together(found) == ("def", 4)


def test_the_others_go_on_without_one_that_is_far_behind():
    ahead = dict.fromkeys("bcdefgh", 47)
    assert together(choose_batch(waiting(opened=20, a=24, **ahead), 3)) == ("abcdefgh", 4)
    ahead = dict.fromkeys("bcdefgh", 48)
    assert together(choose_batch(waiting(opened=20, a=24, **ahead), 3)) == ("efgh", 28)


def test_cohorts_that_bring_as_much_are_opened_together():
    first, second = waiting("a", 24, a=32, b=32, c=32), waiting("x", 40, x=48, y=48, z=48)
    assert together(choose_batch([*second, *first], 3)) == ("abcxyz", 8)
    third = waiting("x", 40, x=44, y=44, z=44)
    assert together(choose_batch([*third, *first], 3)) == ("abcxyz", 4)
    fourth = waiting("x", 128, x=144, y=144, z=144)
    assert together(choose_batch([*fourth, *first], 3)) == ("xyz", 16)


def test_a_cohort_is_opened_once_before_a_round_closes():
    busy = [one._replace(busy=True) for one in waiting(a=9, b=9, c=9)]
    assert together(choose_batch(busy, 3)) == ("", 0)
    assert together(choose_batch([*busy, *waiting("x", x=2, y=2, z=2)], 3)) == ("xyz", 2)


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
    assert "pairs" in str(check_sum(counts, visits // 2, 150, 3, SHAPE))
    assert check_sum(0 * counts, visits, 150, 3, SHAPE) is None  # a process for each slot
    moved = counts.copy()
    moved[0, 0, :, 0] += moved[0, 1, :, 0]
    moved[0, 1, :, 0] = 0
    assert "to a state" in str(check_sum(moved, visits, 150, 3, SHAPE))
    far = 0 * counts
    far[-1] = counts.sum(0)
    assert "gaps" in str(check_sum(far, visits, 150, 3, SHAPE))


@pytest.mark.parametrize("which", [0, 1])
def test_each_member_may_have_one_pair_from_before_its_increment(which):
    """Pairs from a state, or to it, are at most its visits and one for each member."""
    counts, visits = np.zeros((3, 2, 2, 3), np.int64), np.zeros((2, 3), np.int64)
    visits[:, 0] = 2, 4
    counts[0, 0, 1, 0] = 4
    if which:
        visits[:, 0], counts[0, :, :, 0] = (4, 2), [[0, 4], [0, 0]]
    assert check_sum(counts, visits, 6, 2, SHAPE) is None
    assert "to a state" in str(check_sum(counts, visits, 6, 1, SHAPE))


# ---------------------------------------------------------------------------------- exactly once


class Exchange(RuleBasedStateMachine):
    """Agents, a server and a helper that die between all steps; the sum is of what was counted."""

    @initialize()
    def begin(self):
        self.helper = Helper()
        self.agents = {name: self.helper.enroll(name) for name in "abcd"}
        self.ledger = {}  # (agent, incarnation, sequence) -> clear numbers
        self.sent = {}  # likewise -> upload
        self.since = dict.fromkeys("abcd", 0)  # position at which the incarnation began
        # Position and upload, by agent.
        self.marks: dict[str, list[tuple[int, Report]]] = {name: [] for name in "abcd"}
        self.position = dict.fromkeys("abcd", 0)  # that was opened
        self.opened = {}  # (agent, incarnation) -> upload that was opened last
        self.asked = None  # what was written down
        self.sum = np.zeros(vector_size(SHAPE), np.uint64)

    @rule(name=st.sampled_from("abcd"), slots=st.integers(1, 6))
    def upload(self, name, slots):
        agent = self.agents[name]
        for _ in range(slots):
            sent = agent.upload(1)
            key = (name, sent.incarnation, sent.sequence)
            self.ledger[key], self.sent[key] = clear(agent), sent
            position = self.since[name] + sent.slots
            if is_mark(position):
                self.marks[name].append((position, agent.named(sent)))

    @rule()
    def all_upload(self):
        for name in self.agents:
            self.upload(name, 2)

    @rule(name=st.sampled_from("abcd"))
    def restart_agent(self, name):
        self.agents[name].restart()
        self.since[name] = max([self.position[name], *(mark for mark, _ in self.marks[name])])

    @rule()
    def write_opening(self):
        if self.asked is not None:
            return
        found = choose_batch(
            [
                AgentBacklog(
                    name,
                    1,
                    self.helper.cohort(name),
                    self.position[name],
                    0,
                    tuple(self.marks[name]),
                )
                for name in self.agents
            ],
            3,
        )
        if found.size:
            number, digest = self.helper.last()
            self.asked = AggregationJob(number + 1, digest, 1, found.reports), found

    @rule(times=st.integers(1, 2), keeps=st.booleans())
    def ask(self, times, keeps):
        """keeps: whether the server lives long enough to keep the answer."""
        if self.asked is None:
            return
        opening, found = self.asked
        for _ in range(times):
            masks = self.helper.ask(*opening.reports, number=opening.number, before=opening.before)
        if keeps:
            for member in opening.reports:
                sent = self.sent[member[:3]]
                before = self.opened.get(member[:2])
                self.sum += sent.masked - (before.masked if before else np.uint64(0))
                self.opened[member[:2]] = sent
            for one in found.agents:
                to = self.position[one.agent] = one.unmasked + found.slots
                self.marks[one.agent] = [each for each in self.marks[one.agent] if each[0] > to]
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

    @invariant()
    def all_were_opened_as_far(self):
        if hasattr(self, "sum"):
            brought = dict.fromkeys(self.agents, 0)
            for (name, _), sent in self.opened.items():
                brought[name] += sent.slots
            assert brought == self.position
            assert len(set(brought.values())) == 1


TestExactlyOnce = Exchange.TestCase
TestExactlyOnce.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
