"""Uploads, and the shape that they have: names, arms, counts.

An *upload* has all that an incarnation of an agent has counted since it began: for each arm the
pairs of successive observations, counts[c, s, s'] with c = gap - 1 and the last slice for all gaps
above G, and its visits[s], plays by the state they showed. An arm that is always observed has the
pairs of consecutive slots, c = 0 those with a play at the first and c = 1 those without.
`rmab.protocol.uploads` checks uploads at the server.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rmab.protocol.checks import malformed
from rmab.text import shown

__all__ = [
    "NAME_RULE",
    "PROTOCOL",
    "UPLOAD_KEYS",
    "Ints",
    "Shape",
    "Upload",
    "check_protocol",
    "is_name",
]

PROTOCOL = 1
NAME_RULE = "1 to 64 letters, digits, dots, hyphens or underscores, the first a letter or digit"
Ints = npt.NDArray[np.int64]

UPLOAD_KEYS = (
    "protocol",
    "federation",
    "incarnation",
    "sequence",
    "round",
    "slots",
    "length",
    "counts",
    "visits",
)


def is_name(text: Any) -> bool:
    """Return whether a text may name a federation or an agent."""
    return isinstance(text, str) and bool(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", text))


def check_protocol(version: Any) -> None:
    """Refuse another version of the protocol."""
    if type(version) is not int or version != PROTOCOL:
        raise malformed(f"protocol must be {PROTOCOL}, got {shown(version)}")


class Shape(NamedTuple):
    """Sizes of messages: K, the states of each arm, G, and the arms of other kinds than channels.

    Pairs of successive observations of an arm are counted by their gap, 1 to G slots, and pairs
    further apart in one class. always: the arms that are observed in every slot, in ascending
    order; controlled: the action-dependent arms, in ascending order.
    """

    plays: int
    states: tuple[int, ...]
    gaps: int
    always: tuple[int, ...] = ()
    controlled: tuple[int, ...] = ()

    @property
    def kinds(self) -> int:
        """C, the largest number of kinds of pairs of an arm."""
        return 2 if len(self.always) == self.n_arms else self.gaps + 1

    @property
    def kinds_by_arm(self) -> list[int]:
        """Number of kinds of pairs of each arm."""
        kinds = [self.gaps + 1] * self.n_arms
        for arm in self.always:
            kinds[arm] = 2
        return kinds

    @property
    def exact_kinds(self) -> list[int]:
        """Number of kinds of pairs of each arm, from the first, that have one known gap."""
        kinds = [self.gaps] * self.n_arms
        for arm in self.always:
            kinds[arm] = 2
        return kinds

    @property
    def n_arms(self) -> int:
        """N, the number of arms."""
        return len(self.states)

    @property
    def size(self) -> int:
        """Number of counts in an upload."""
        arms = zip(self.kinds_by_arm, self.states, strict=True)
        return sum(kinds * states**2 for kinds, states in arms)

    def idle(self, counts: Ints) -> Ints:
        """Return slots without a play of the arms that are always observed, by state, (S, N).

        counts: (C, S, S, N). The last slot is missing, as no pair begins there.
        """
        idle = np.zeros(counts.shape[2:], counts.dtype)
        which = list(self.always)
        idle[:, which] = counts[1][:, :, which].sum(1)
        return idle


@dataclass(frozen=True, eq=False)
class Upload:
    """Cumulative counts of one incarnation of an agent; arms of fewer states are padded with 0."""

    incarnation: str  # 32 hexadecimal digits
    sequence: int  # 1, 2, ...
    round: int
    slots: int  # in all
    length: int  # of them in this round's episode
    counts: Ints  # (C, S, S, N)
    visits: Ints  # (S, N)

    @cached_property
    def digest(self) -> bytes:
        """Digest of the content: equal for equal uploads."""
        head = f"{self.incarnation} {self.sequence} {self.round} {self.slots} {self.length} "
        body = np.ascontiguousarray(self.counts).tobytes() + self.visits.tobytes()
        return hashlib.sha256(head.encode() + body).digest()

    def to_json(self, shape: Shape, federation: str) -> bytes:
        """Return the body of a request."""
        counts = [
            self.counts[:kinds, :s, :s, arm].tolist()
            for arm, (kinds, s) in enumerate(zip(shape.kinds_by_arm, shape.states, strict=True))
        ]
        visits = [self.visits[:s, arm].tolist() for arm, s in enumerate(shape.states)]
        head = PROTOCOL, federation, self.incarnation
        values = *head, self.sequence, self.round, self.slots, self.length, counts, visits
        table = dict(zip(UPLOAD_KEYS, values, strict=True))
        return json.dumps(table, separators=(",", ":")).encode()
