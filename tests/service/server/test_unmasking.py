"""Which agents a server waits for before it asks for a sum."""

from __future__ import annotations

from typing import Any

from rmab.privacy.batches import AgentBacklog
from rmab.privacy.unmasking import Report
from rmab.service.server.unmasking import Lateness

MARK = (1, Report("a", "0" * 32, 1, 1, b"", b""))


def agents(cohort: str | None = "a", **reach: int) -> list[AgentBacklog]:
    return [
        AgentBacklog(name, 1, cohort, 0, reached, (MARK,) if reached else ())
        for name, reached in reach.items()
    ]


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def made(seconds: float = 60.0) -> tuple[Lateness, Any]:
    clock = Clock()
    return Lateness(seconds, clock), clock


def test_who_brings_nothing_for_three_rounds_is_late():
    lateness, _ = made()
    found = [lateness.late(agents(a=5, b=5 + n), n, 3) for n in range(10, 15)]
    assert found == [set(), set(), set(), {"a"}, {"a"}]
    assert lateness.late(agents(a=6, b=99), 15, 3) == set()
    assert lateness.late(agents(a=6, b=99), 17, 3) == set()
    assert lateness.late(agents(a=6, b=99), 18, 3) == {"a", "b"}


def test_a_round_that_is_tried_again_is_one_round():
    """While the helper is away."""
    lateness, _ = made()
    for _ in range(9):
        assert lateness.late(agents(a=5), 10, 3) == set()


def test_who_begins_anew_over_and_over_is_late():
    """An agent that the helper refuses each time comes no further than before."""
    lateness, _ = made()
    found = [lateness.late(agents(a=n % 2), n, 3) for n in range(1, 6)]
    assert found[-1] == {"a"}


def test_before_the_first_opening_agents_have_time_as_well():
    lateness, clock = made(60.0)
    new = agents(None, a=1, b=1, c=1, d=0)
    for number in range(1, 9):
        assert lateness.late(new, number, 3) == set()
    clock.now += 60
    assert lateness.late(new, 9, 3) == {"a", "b", "c", "d"}
    # From when there are as many as an opening needs, in a row.
    lateness, clock = made(60.0)
    lateness.late(new, 1, 3)
    clock.now += 60
    lateness.late(agents(None, a=1, b=1, c=0, d=0), 4, 3)
    assert lateness.late(new, 5, 3) == set()
    clock.now += 60
    assert lateness.late(new, 7, 3) == set()
    assert lateness.late(new, 8, 3) == {"a", "b", "c", "d"}


def test_groups_and_cohorts_have_their_own_time():
    lateness, clock = made(60.0)
    both = [*agents(None, a=1, b=1, c=1), *agents("x", x=4)]
    both += [one._replace(group=2) for one in agents(None, d=1)]
    lateness.late(both, 1, 3)
    clock.now += 60
    assert lateness.late(both, 4, 3) == {"a", "b", "c", "x", "d"}
