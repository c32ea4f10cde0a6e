"""Marks: the slots after which the counts of an agent are masked to be summed.

Every agent that is summed with others must bring the same number of slots
(`rmab.privacy.unmasking`). Agents are not equally fast, so all of them mask their counts after
the same numbers of slots, which are public and depend on nothing that was observed:

    1, 2, ..., 16, 18, 20, ..., 32, 36, 40, ..., 64, 72, ...        m 2^e with m from 8 to 15

One mark is at most an eighth of its slots before the next: sums have at least 8/9 of what the
slowest agent has counted, and an agent that was away for long has few marks to send.

The *position* of an agent is the number of slots that it has masked in all, over its incarnations;
an incarnation begins at the position of the mark that was kept last.
"""

from __future__ import annotations

__all__ = ["is_mark"]

_BITS = 4  # that a mark has beside zeros at its end, at most


def is_mark(position: int) -> bool:
    """Whether counts are masked to be summed at this position."""
    return position > 0 and position % (1 << max(0, position.bit_length() - _BITS)) == 0
