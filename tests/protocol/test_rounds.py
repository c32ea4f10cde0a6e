"""When a round closes, and what the next one is like."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmab.policies.episodes import first_limit
from rmab.protocol.rounds import Coordinator


def opened(*agents: str, limit: int = 5, deadline: float = 30.0) -> Coordinator:
    round_ = Coordinator(3, limit, deadline)
    for agent in agents:
        round_.fetched(agent)
    return round_


def test_a_round_closes_when_all_that_fetched_it_have_reported():
    round_ = opened("a", "b")
    round_.reported("a", 5, now=10.0)
    assert round_.due(10.0) is None
    round_.reported("b", 5, now=11.0)
    assert round_.due(11.0) == "all"


def test_a_round_closes_so_many_seconds_after_its_first_report():
    round_ = opened("a", "b", deadline=30)
    assert round_.wakes() is None
    assert round_.due(1e9) is None  # nobody has told anything: there is nothing to learn
    round_.reported("a", 5, now=100.0)
    assert round_.wakes() == 130.0
    assert round_.due(129.9) is None
    assert round_.due(130.0) == "deadline"


def test_who_missed_the_deadline_is_not_awaited_until_it_fetches():
    round_ = opened("a", "b")
    round_.reported("a", 5, now=0.0)
    following = round_.next("linear")
    following.reported("a", 6, now=40.0)
    assert following.due(40.0) == "all"
    following.fetched("b")
    assert following.due(40.0) is None


def after_deadlines(missed: int) -> Coordinator:
    """A round after so many whose deadline `silent` has missed, though it fetched each."""
    round_ = opened()
    for _ in range(missed):
        round_.fetched("silent")
        round_.reported("a", 5, now=0.0)
        assert round_.due(29.0) is None
        assert round_.due(30.0) == "deadline"
        round_.close("deadline")
        round_ = round_.next("linear")
    return round_


def test_who_misses_two_deadlines_is_not_awaited_until_it_reports():
    for missed, due in ((0, None), (1, None), (2, "all"), (2, "all")):
        round_ = after_deadlines(missed)
        round_.fetched("silent")
        round_.reported("a", 5, now=0.0)
        assert round_.due(0.0) == due
    round_.reported("silent", 0, now=0.0)  # late counts are no report
    following = round_.next("linear")
    following.fetched("silent")
    assert following.awaited == {"a"}
    following.reported("silent", 5, now=0.0)
    again = following.next("linear")
    assert again.awaited == {"silent"}
    again.fetched("silent")
    again.reported("a", 5, now=0.0)
    assert again.due(0.0) is None


def test_only_a_deadline_can_be_missed():
    round_ = after_deadlines(1)
    round_.fetched("silent")
    round_.reported("silent", 5, now=0.0)
    round_.close("all")
    round_.fetched("new")  # while the next round is planned
    following = round_.next("linear")
    assert following.missed == {}
    round_ = after_deadlines(1)
    round_.fetched("silent")
    round_.reported("a", 5, now=0.0)
    round_.close("deadline")
    round_.reported("silent", 5, now=31.0)  # just in time
    assert round_.next("linear").missed == {}


def test_who_reported_is_awaited_before_it_fetches():
    round_ = opened("a", "b")
    for agent in "ab":
        round_.reported(agent, 5, now=0.0)
    following = round_.next("linear")
    following.fetched("a")
    following.reported("a", 6, now=0.0)
    assert following.due(0.0) is None


def test_who_leaves_is_not_awaited():
    round_ = opened("a", "b")
    round_.reported("a", 5, now=0.0)
    round_.left("b")
    assert round_.due(0.0) == "all"


def test_counts_of_an_episode_that_has_not_begun_are_no_report():
    round_ = opened("a")
    round_.reported("a", 0, now=0.0)
    assert round_.due(1e9) is None


def test_a_resumed_round_waits_a_whole_deadline_from_now():
    round_ = Coordinator(3, 5, 30.0, {"a", "b"}, {"a": 5}, now=1000.0)
    assert round_.due(1029.0) is None
    assert round_.due(1030.0) == "deadline"


@pytest.mark.parametrize(
    ("schedule", "first", "after"), [("paper", 2, 4), ("linear", 2, 6), ("doubling", 2, 10)]
)
def test_the_next_limit_is_the_schedule_s(schedule, first, after):
    assert first_limit(schedule) == first
    round_ = opened("a", "b", limit=5)
    round_.reported("a", 3, now=0.0)  # ended early, by the paper's second rule
    round_.reported("b", 2, now=0.0)
    following = round_.next(schedule)
    assert (following.number, following.limit) == (4, after)


@given(
    st.lists(
        st.tuples(st.sampled_from(["fetch", "report", "leave"]), st.sampled_from("abc")),
        max_size=30,
    )
)
def test_a_round_is_due_exactly_when_nobody_is_awaited(steps):
    round_ = opened()
    awaited, reported = set(), set()
    for step, agent in steps:
        if step == "fetch":
            round_.fetched(agent)
            awaited.add(agent)
        elif step == "leave":
            round_.left(agent)
            awaited.discard(agent)
        else:
            round_.reported(agent, 1, now=0.0)
            awaited.add(agent)
            reported.add(agent)
        assert (round_.due(0.0) == "all") == (bool(reported) and not awaited - reported)
