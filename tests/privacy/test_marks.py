"""Marks: the same for everybody, close together, and few."""

from itertools import pairwise

from rmab.privacy.masks import is_mark


def test_marks_are_what_the_protocol_says():
    expected = [*range(1, 17), *range(18, 33, 2), *range(36, 65, 4), *range(72, 129, 8)]
    assert [n for n in range(129) if is_mark(n)] == expected


def test_a_mark_is_at_most_an_eighth_before_the_next():
    marks = [n for n in range(1, 5000) if is_mark(n)]
    for mark, following in pairwise(marks):
        assert following - mark <= max(1, mark / 8)
    assert len(marks) < 100
    assert not is_mark(0)
    assert is_mark(2**40)
    assert not is_mark(2**40 + 1)
