"""Openings: which sums of masked uploads a helper opens, and no other.

A server asks for the sum, over members of one group, of the masks between two points of each:
where its incarnation was opened last, or its beginning, and an upload since. The helper computes
both from headers (`rmab.federation.masks`). What it tells makes a sum of *increments* readable,
each slot of each agent in one sum and no other; so no two sums differ by one agent.

Before it answers, all of this must hold, and what has been opened is kept in the same transaction:

    number, before   the opening follows the last one, which `before` is the digest of. The same
                     opening again gets the same answer, another one under its number 409
    members          enrolled, not revoked, of the group, each incarnation once, with a tag that
                     its key has made of just this header
    further          each goes on from where its incarnation was opened last, with more slots
    least            so many different agents
    half             no agent brings more than half of the slots

A helper sees neither uploads nor sums: names, sequence numbers, slots and nonces alone.

It stands alone, apart from the helper that uses it: no network, no database, no clock. What a
server does for its part, choosing members and judging a sum, is below.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from rmab.errors import ProtocolError
from rmab.federation.checks import (
    MAX_WHOLE,
    hexadecimal,
    malformed,
    read_object,
    take,
    whole_number,
)
from rmab.federation.masks import NONCE_BYTES, TAG_BYTES, Header, MaskKey, Words, read_words
from rmab.federation.messages import NAME_RULE, Ints, Shape, is_name
from rmab.federation.release import FIRST_SLOTS, Ledger
from rmab.reading import shown

__all__ = [
    "BEGINNING",
    "MOST_MEMBERS",
    "Enrolled",
    "Kept",
    "Member",
    "Opened",
    "Opening",
    "Point",
    "Waiting",
    "answered",
    "check_sum",
    "chosen",
    "parse_answer",
    "parse_opening",
]

BEGINNING = "0" * 64  # the digest before the first opening
MOST_MEMBERS = 100_000  # incarnations in an opening
_MEMBER_KEYS = ("agent", "incarnation", "sequence", "slots", "nonce", "tag")
# How many times what all others bring together an agent may bring for them to wait until they
# bring as much; one with more is left out.
_MOST_WAITED_FOR = 16


class Member(NamedTuple):
    """An upload that an opening goes up to, by its header."""

    agent: str
    incarnation: str
    sequence: int
    slots: int
    nonce: bytes
    tag: bytes

    def header(self, fingerprint: str) -> Header:
        """What its mask was made for."""
        return Header(
            fingerprint, self.agent, self.incarnation, self.sequence, self.slots, self.nonce
        )

    def to_list(self) -> list[Any]:
        """As JSON has it."""
        return [*self[:4], self.nonce.hex(), self.tag.hex()]


class Opening(NamedTuple):
    """What a server asks a helper for."""

    number: int
    before: str  # digest of the opening before it
    group: int
    members: tuple[Member, ...]

    def to_json(self) -> bytes:
        """The body of a request; the same for the same opening."""
        table = {
            "opening": self.number,
            "before": self.before,
            "group": self.group,
            "members": [member.to_list() for member in self.members],
        }
        return json.dumps(table, separators=(",", ":")).encode()

    @property
    def digest(self) -> str:
        """By which the next one names it."""
        return hashlib.sha256(self.to_json()).hexdigest()


class Point(NamedTuple):
    """Where an incarnation was opened last; key: the number of the key it was masked with."""

    sequence: int
    slots: int
    nonce: bytes
    key: int


class Enrolled(NamedTuple):
    """An agent that has, or had, a mask key; number: of the key, as a name may get another."""

    group: int
    key: MaskKey
    number: int
    revoked: bool


class Kept(Protocol):
    """What a helper remembers; all of its methods are called in one transaction."""

    def last(self) -> tuple[int, str]:
        """Number and digest of the last opening; 0 and `BEGINNING` before the first."""

    def enrolled(self, agent: str) -> Enrolled | None:
        """The agent of that name, revoked or not; None if there was none."""

    def point(self, agent: str, incarnation: str) -> Point | None:
        """Where an incarnation was opened last; None: it never was."""

    def answer(self, number: int) -> tuple[str, Words | None] | None:
        """Of an opening the digest and, while it is kept, the answer; None if there was none."""

    def keep(self, opening: Opening, opened: Opened) -> None:
        """Keep an opening, its answer and where each member was opened."""


class Opened(NamedTuple):
    """What an opening comes to: the sum of masks (R,) to be subtracted, and new points.

    ledger: of the group, with this release; None where sums have no noise. The masks then leave the
    noise in the counts, and visits, which are not released, under their masks.
    """

    masks: Words
    points: Mapping[tuple[str, str], Point]
    ledger: Ledger | None = None


# ------------------------------------------------------------------------------------------- helper


def parse_opening(body: bytes) -> Opening:
    """The opening in a request's body; ProtocolError if it is none."""
    number, before, group, members = take(
        read_object(body), "the opening", "opening", "before", "group", "members"
    )
    if not isinstance(members, list) or not 1 <= len(members) <= MOST_MEMBERS:
        got = len(members) if isinstance(members, list) else shown(members)
        raise malformed(f"members must be a list of 1 to {MOST_MEMBERS}, got {got}")
    return Opening(
        whole_number("opening", number, 1),
        hexadecimal("before", before, 32).hex(),
        whole_number("group", group, 1),
        tuple(_read_member(f"members[{n}]", member) for n, member in enumerate(members)),
    )


def _read_member(place: str, value: Any) -> Member:
    if not isinstance(value, list) or len(value) != len(_MEMBER_KEYS):
        raise malformed(f"{place} must be a list of {', '.join(_MEMBER_KEYS)}, got {shown(value)}")
    agent, incarnation, sequence, slots, nonce, tag = value
    if not is_name(agent):
        raise malformed(f"{place}: agent must have {NAME_RULE}, got {shown(agent)}")
    return Member(
        agent,
        hexadecimal(f"{place}: incarnation", incarnation, 16).hex(),
        whole_number(f"{place}: sequence", sequence, 1),
        whole_number(f"{place}: slots", slots, 0),
        hexadecimal(f"{place}: nonce", nonce, NONCE_BYTES),
        hexadecimal(f"{place}: tag", tag, TAG_BYTES),
    )


def answered(
    opening: Opening,
    kept: Kept,
    fingerprint: str,
    size: int,
    least: int,
    ledger: Callable[[int], Ledger] | None = None,
) -> Words:
    """The masks (R,) that answer an opening, which is kept now, or was; ProtocolError 409 if it may
    not be. size: R, the numbers of an upload; ledger: of a group's releases, where sums have noise.

    Whoever calls tells nothing before what was kept is durable.
    """
    before = kept.answer(opening.number)
    if before is None:
        opened = _decide(opening, kept, fingerprint, size, least)
        if ledger is not None:
            brought = {member: member.slots - _before(member, kept) for member in opening.members}
            opened = _with_noise(opening, opened, brought, ledger(opening.group))
        kept.keep(opening, opened)
        return opened.masks
    digest, masks = before
    if digest != opening.digest or masks is None:
        gone = "its answer is kept no more" if digest == opening.digest else "it was another one"
        raise ProtocolError(
            409,
            "opening",
            f"opening {opening.number} was answered before, and {gone}",
            last=kept.last()[0],
        )
    return masks


def _decide(opening: Opening, kept: Kept, fingerprint: str, size: int, least: int) -> Opened:
    """What a new opening comes to."""
    _check_order(opening, kept)
    members = _checked_members(opening, kept, fingerprint)
    _check_slots({member: new for member, _, new in members}, least)
    masks = np.zeros(size, np.uint64)
    points = {}
    for member, (of_agent, point), _ in members:
        to = member.header(fingerprint)
        masks += of_agent.key.mask(to, size)
        if point is not None:
            before = to._replace(sequence=point.sequence, slots=point.slots, nonce=point.nonce)
            masks -= of_agent.key.mask(before, size)
        points[member.agent, member.incarnation] = Point(
            member.sequence, member.slots, member.nonce, of_agent.number
        )
    return Opened(masks, points)


def _before(member: Member, kept: Kept) -> int:
    point = kept.point(member.agent, member.incarnation)
    return 0 if point is None else point.slots


def _with_noise(
    opening: Opening, opened: Opened, brought: Mapping[Member, int], ledger: Ledger
) -> Opened:
    """The opening as a release of its group; ProtocolError 409 if that is not due."""
    agents = len({member.agent for member in brought})
    slots = (ledger.slots or 0) + sum(brought.values())
    if not ledger.left:
        raise ProtocolError(409, "releases", f"all releases of group {opening.group} are spent")
    if not ledger.is_due(slots, agents):
        least = FIRST_SLOTS * agents if ledger.slots is None else 2 * ledger.slots
        raise ProtocolError(
            409,
            "due",
            f"group {opening.group} is next released with {least} slots, and would have {slots}",
        )
    name = str(opening.number)
    ledger = ledger.released(name, slots, agents)
    masks = np.zeros_like(opened.masks)
    masks[: ledger.size] = opened.masks[: ledger.size] - ledger.added(name).astype(np.uint64)
    return Opened(masks, opened.points, ledger)


def _check_order(opening: Opening, kept: Kept) -> None:
    last, digest = kept.last()
    if opening.number != last + 1:
        raise ProtocolError(
            409, "opening", f"opening must be {last + 1}, got {opening.number}", last=last
        )
    if opening.before != digest:
        raise ProtocolError(
            409, "before", f"before must be the digest of opening {last}, another was", last=last
        )


_Checked = tuple[Member, tuple[Enrolled, Point | None], int]


def _checked_members(opening: Opening, kept: Kept, fingerprint: str) -> list[_Checked]:
    """The members with what is known of them and the slots they bring; ProtocolError, with a list
    of those who may not be in it, if there are any."""
    found: list[_Checked] = []
    refused: list[tuple[Member, str]] = []
    seen: set[tuple[str, str]] = set()
    for member in opening.members:
        key = (member.agent, member.incarnation)
        of_agent, point = kept.enrolled(member.agent), kept.point(*key)
        reason = _refusal(member, opening.group, of_agent, point, fingerprint)
        if key in seen:
            reason = "is in it twice"
        seen.add(key)
        if reason is not None:
            refused.append((member, reason))
        elif of_agent is not None:
            found.append((member, (of_agent, point), member.slots - (point.slots if point else 0)))
    if refused:
        member, reason = refused[0]
        raise ProtocolError(
            409,
            "member",
            f"{len(refused)} of {len(opening.members)} members may not be in it; the first: "
            f"{member.agent} {reason}",
            members=[[member.agent, member.incarnation, reason] for member, reason in refused],
        )
    return found


def _refusal(
    member: Member,
    group: int,
    of_agent: Enrolled | None,
    point: Point | None,
    fingerprint: str,
) -> str | None:
    """Why a member may not be in an opening of this group; None: it may."""
    if of_agent is None:
        return "is not enrolled"
    if of_agent.revoked:
        return "is revoked"
    if of_agent.group != group:
        return f"is of group {of_agent.group}, not of {group}"
    if not of_agent.key.is_tag(member.header(fingerprint), member.tag):
        return "did not make this tag"
    if point is None:
        return None if member.slots > 0 else "brings no slots"
    if point.key != of_agent.number:
        return "has another key since this incarnation was opened"
    if member.sequence <= point.sequence or member.slots <= point.slots:
        return f"must go on from sequence {point.sequence} and {point.slots} slots"
    return None


def _check_slots(brought: Mapping[Member, int], least: int) -> None:
    """Refuse a sum of too few agents, or one in which an agent has more than half of the slots."""
    by_agent = _by_agent((member.agent, slots) for member, slots in brought.items())
    if len(by_agent) < least:
        raise ProtocolError(
            409, "least", f"an opening must have at least {least} agents, got {len(by_agent)}"
        )
    name, most = max(by_agent.items(), key=lambda entry: entry[1])
    total = sum(by_agent.values())
    if 2 * most > total:
        raise ProtocolError(
            409,
            "half",
            f"no agent may bring more than half of {total} slots, {name} would bring {most}",
        )


def _by_agent(entries: Iterable[tuple[str, int]]) -> dict[str, int]:
    found: dict[str, int] = defaultdict(int)
    for agent, slots in entries:
        found[agent] += slots
    return found


# ------------------------------------------------------------------------------------------- server


class Waiting(NamedTuple):
    """The last upload of an incarnation, some of whose slots no opening has yet."""

    member: Member
    group: int
    new: int  # slots since it was opened last


def chosen(waiting: Iterable[Waiting], least: int) -> tuple[Member, ...]:
    """Who of one group may be opened together now; nobody where all must wait.

    Where one agent has more than half of the slots, all wait until the others have as many, unless
    it has so many more that the others go on without it.
    """
    left = sorted(waiting, key=lambda one: (one.member.agent, one.member.incarnation))
    while left:
        by_agent = _by_agent((one.member.agent, one.new) for one in left)
        if len(by_agent) < least:
            return ()
        name, most = max(by_agent.items(), key=lambda entry: entry[1])
        others = sum(by_agent.values()) - most
        if most <= others:
            return tuple(one.member for one in left)
        if most <= _MOST_WAITED_FOR * others:
            return ()
        # The incarnation with most slots goes, perhaps not all of its agent's.
        largest = max((one for one in left if one.member.agent == name), key=lambda one: one.new)
        left.remove(largest)
    return ()


def parse_answer(body: bytes, opening: Opening, size: int) -> Words:
    """The masks (size,) in a helper's answer to an opening; ProtocolError if it is none."""
    number, masks = take(read_object(body), "the answer", "opening", "masks")
    if number != opening.number:
        raise malformed(f"the answer must be to opening {opening.number}, got {shown(number)}")
    return read_words("masks", masks, size)


def check_sum(
    counts: npt.NDArray[np.int64],
    visits: Ints,
    slots: int,
    members: int,
    shape: Shape,
) -> str | None:
    """What is impossible in a sum of increments, None if nothing.

    counts: (C, S, S, N); visits: (S, N); slots, members: that are in it, members by incarnation.
    The first pair of a member's increment may begin before it, so sums are off by a pair for each.
    """
    both = np.concatenate((counts.reshape(-1, shape.n_arms), visits))
    if int(both.min()) < 0 or int(both.max()) > min(slots, MAX_WHOLE):
        return f"no count may be below 0 or pass {slots}, the slots of all members"
    seen = visits.sum(0)
    if int(seen.max()) > slots or int(seen.sum()) > shape.plays * slots:
        return f"visits must be at most one of an arm and {shape.plays} in all in {slots} slots"
    pairs = counts.sum(0)  # (S, S, N)
    gaps = np.arange(1, len(counts) + 1) @ counts.sum((1, 2))
    always, controlled = set(shape.always), set(shape.controlled)
    for arm in range(shape.n_arms):
        total = int(pairs[..., arm].sum())
        if arm in always:
            if total > slots:
                return f"arm {arm + 1} must have at most {slots} pairs of consecutive slots"
            continue
        least = 0 if arm in controlled else int(seen[arm]) - members
        if not least <= total <= int(seen[arm]):
            return f"arm {arm + 1} must have as many pairs as observations but for {members}"
        if int(gaps[arm]) > slots + members * shape.kinds:
            return f"arm {arm + 1}: the gaps must fit into {slots} slots"
        for rest in (visits - pairs.sum(1), visits - pairs.sum(0)):
            off = rest[:, arm]
            if int(off.min()) < -members or (arm not in controlled and int(off.max()) > members):
                return f"arm {arm + 1}: pairs from and to a state must be its visits but for few"
    return None
