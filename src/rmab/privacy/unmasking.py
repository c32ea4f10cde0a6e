"""Openings: which sums of masked uploads a helper opens, and no other.

A server asks for the sum, over members of one group, of the masks between two points of each:
where its incarnation was opened last, or its beginning, and an upload since. The helper computes
both from headers (`rmab.privacy.masks`). What it tells makes a sum of *increments* readable,
each slot of each agent in one sum and no other.

Before it answers, all of this must hold, and what has been opened is kept in the same transaction:

    number, before   the opening follows the last one, which `before` is the digest of. The same
                     opening again gets the same answer, another one under its number 409
    members          enrolled, not revoked, of the group, each incarnation once, with a tag that
                     its key has made of just this header
    further          each goes on from where its incarnation was opened last, with more slots
    least            so many different agents
    shares           every agent brings the same number of slots
    cohort           no agent, and no fewer than `least`, are ever set apart from others

A *cohort* is all agents that have been in the same openings so far. Agents that were in none are no
cohort yet: so many of them, `least` or more, become one by their first opening. An opening has all
of a cohort, or none, or parts it for good: `least` or more are in it, and as many are left out;
fewer only if they are revoked. As every sum so far has had all of a cohort with equal shares, its
agents could change places and nothing that was told would differ, so that nobody can tell which of
them counted what, whatever sums are compared. Without the rule of shares a sum is an equation for
each of its members; without that of cohorts two sums that differ by one agent tell of that agent.

A helper sees neither uploads nor sums: names, sequence numbers, slots and nonces alone.

It stands alone, apart from the helper that uses it: no network, no database, no clock. What a
server does for its part, choosing members and judging a sum, is below.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from rmab.errors import ProtocolError
from rmab.privacy.masks import NONCE_BYTES, TAG_BYTES, Header, MaskKey, Words, read_words
from rmab.privacy.noise import FIRST_SLOTS, Ledger
from rmab.protocol.checks import (
    MAX_WHOLE,
    hexadecimal,
    malformed,
    read_object,
    take,
    whole_number,
)
from rmab.protocol.messages import NAME_RULE, Ints, Shape, is_name
from rmab.text import shown

__all__ = [
    "BEGINNING",
    "MOST_MEMBERS",
    "Enrolled",
    "Kept",
    "Member",
    "Opened",
    "Opening",
    "Point",
    "Together",
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
# So many times as far as a cohort gets with its slowest agents the others must be to go on
# without them.
_FAR_AHEAD = 2


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

    def cohort(self, agent: str) -> str | None:
        """The name of the agent's cohort; None if it was in no opening."""

    def agents_in(self, cohort: str) -> Iterable[str]:
        """All agents of a cohort, revoked or not."""

    def answer(self, number: int) -> tuple[str, Words | None] | None:
        """Of an opening the digest and, while it is kept, the answer; None if there was none."""

    def keep(self, opening: Opening, opened: Opened) -> None:
        """Keep an opening, its answer, where each member was opened, and cohorts."""


class Opened(NamedTuple):
    """What an opening comes to: the sum of masks (R,) to be subtracted, and new points.

    cohorts: by agent, of all whose cohort it makes or parts; a cohort is named by the first of its
    agents. ledger: of the group, with this release; None where sums have no noise. The masks then
    leave the noise in the counts, and visits, which are not released, under their masks.
    """

    masks: Words
    points: Mapping[tuple[str, str], Point]
    cohorts: Mapping[str, str]
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
    brought = _by_agent((member.agent, new) for member, _, new in members)
    if len(brought) < least:
        raise ProtocolError(
            409, "least", f"an opening must have at least {least} agents, got {len(brought)}"
        )
    _check_shares(brought)
    cohorts = _parted(brought.keys(), kept, least)
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
    return Opened(masks, points, cohorts)


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
    return opened._replace(masks=masks, ledger=ledger)


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


def _check_shares(brought: Mapping[str, int]) -> None:
    """Refuse a sum to which agents bring unequal numbers of slots."""
    fewest, most = (pick(brought, key=brought.__getitem__) for pick in (min, max))
    if brought[fewest] != brought[most]:
        raise ProtocolError(
            409,
            "shares",
            "all agents must bring the same number of slots, "
            f"{most} would bring {brought[most]} and {fewest} {brought[fewest]}",
        )


def _parted(agents: Iterable[str], kept: Kept, least: int) -> dict[str, str]:
    """The cohorts that an opening of these agents makes or parts, by agent; ProtocolError where
    it would set too few of them apart."""
    parts: dict[str | None, set[str]] = defaultdict(set)
    for agent in agents:
        parts[kept.cohort(agent)].add(agent)
    found: dict[str, str] = {}
    for cohort, part in parts.items():
        rest = set() if cohort is None else set(kept.agents_in(cohort)) - part
        apart = [side for side in (part, rest) if 0 < len(side) < least]
        if apart and (apart != [rest] or not all(_is_revoked(agent, kept) for agent in rest)):
            raise ProtocolError(
                409,
                "cohort",
                f"at least {least} agents that were in the same openings must be in one together, "
                f"or out of it; it would set apart {', '.join(sorted(apart[0]))}",
            )
        if cohort is None or rest:
            for side in (part, rest):
                found |= dict.fromkeys(side, min(side, default=""))
    return found


def _is_revoked(agent: str, kept: Kept) -> bool:
    of_agent = kept.enrolled(agent)
    return of_agent is None or of_agent.revoked


def _by_agent(entries: Iterable[tuple[str, int]]) -> dict[str, int]:
    found: dict[str, int] = defaultdict(int)
    for agent, slots in entries:
        found[agent] += slots
    return found


# ------------------------------------------------------------------------------------------- server


class Waiting(NamedTuple):
    """What of an agent no opening has yet.

    opened, reach: its positions where it was opened last and after its last upload; marks: of the
    uploads in between that may be opened, the positions, in ascending order; cohort: as the helper
    told, None before the first opening; busy: whether it is in an opening that is not closed.
    """

    agent: str
    group: int
    cohort: str | None
    opened: int
    reach: int
    marks: tuple[tuple[int, Member], ...]
    busy: bool = False

    @property
    def shares(self) -> set[int]:
        """Slots that it may bring to an opening."""
        return {position - self.opened for position, _ in self.marks}

    def members(self, slots: int) -> list[Member]:
        """The uploads by which it brings so many slots: of each incarnation the last."""
        found = {
            member.incarnation: member
            for position, member in self.marks
            if position - self.opened <= slots
        }
        return list(found.values())


class Together(NamedTuple):
    """Agents that may be opened together, with the slots that each brings; nobody if that is 0."""

    slots: int
    agents: Sequence[Waiting]

    @property
    def size(self) -> int:
        """Slots of all of them."""
        return self.slots * len(self.agents)

    @property
    def members(self) -> tuple[Member, ...]:
        """The uploads that are opened."""
        return tuple(member for one in self.agents for member in one.members(self.slots))


def chosen(waiting: Iterable[Waiting], least: int, late: Collection[str] = ()) -> Together:
    """Which agents of one group are opened together now.

    waiting: all agents of the group, those without a mark too; late: those that are not waited for.
    Of a cohort all go to the last mark that all have. Where some have none and are late, or are
    far behind, the others go on without them; as a cohort is never parted into fewer than `least`,
    some of the slowest others stay with them. Cohorts that can bring the same number of slots are
    opened together.
    """
    cohorts: dict[str | None, list[Waiting]] = defaultdict(list)
    for one in sorted(waiting):
        cohorts[one.cohort].append(one)
    parts = []
    for cohort, agents in cohorts.items():
        if cohort is None:
            part = _first_part([one for one in agents if not one.busy], least, late)
        else:
            part = _part(agents, least, late)
        if part.slots > 0:
            parts.append(part)
    if not parts:
        return _NOBODY
    all_of_them = _together([one for part in parts for one in part.agents])
    return max((*parts, all_of_them), key=lambda part: (part.size, len(part.agents)))


_NOBODY = Together(0, ())


def _first_part(agents: Sequence[Waiting], least: int, late: Collection[str]) -> Together:
    """Of agents that were never opened those who are, once no other is waited for."""
    ready = [one for one in agents if one.marks]
    waited_for = any(not one.marks and one.agent not in late for one in agents)
    if len(ready) < least or waited_for:
        return _NOBODY
    return _together(ready)


def _part(agents: Sequence[Waiting], least: int, late: Collection[str]) -> Together:
    """Of a cohort those who are opened now."""
    if any(one.busy for one in agents):
        return _NOBODY
    whole = _together(agents)
    # With an agent that is away stay as many others as may go on when it is revoked.
    fewest = least if len(agents) <= 2 * least else least + 1
    slowest = sorted(
        agents,
        key=lambda one: (one.marks[-1][0] if one.marks else 0, one.agent not in late, one.reach),
    )
    rests = [slowest[apart:] for apart in range(fewest, len(agents) - least + 1)]
    ahead = max(map(_together, rests), key=lambda rest: rest.size, default=_NOBODY)
    if whole.slots == 0:
        away = any(not one.marks and one.agent in late for one in agents)
        return ahead if away else _NOBODY
    opened = agents[0].opened
    return ahead if opened + ahead.slots >= _FAR_AHEAD * (opened + whole.slots) else whole


def _together(agents: Sequence[Waiting]) -> Together:
    """All of these agents, with the most slots that all of them may bring."""
    common = set.intersection(*(one.shares for one in agents))
    return Together(max(common, default=0), agents)


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
    Where an agent's process began anew no pair leads from before to after.
    """
    both = np.concatenate((counts.reshape(-1, shape.n_arms), visits))
    if int(both.min()) < 0 or int(both.max()) > min(slots, MAX_WHOLE):
        return f"no count may be below 0 or pass {slots}, the slots of all members"
    seen = visits.sum(0)
    if int(seen.max()) > slots or int(seen.sum()) > shape.plays * slots:
        return f"visits must be at most one of an arm and {shape.plays} in all in {slots} slots"
    pairs = counts.sum(0)  # (S, S, N)
    gaps = np.arange(1, len(counts) + 1) @ counts.sum((1, 2))
    always = set(shape.always)
    for arm in range(shape.n_arms):
        total = int(pairs[..., arm].sum())
        if arm in always:
            if total > slots:
                return f"arm {arm + 1} must have at most {slots} pairs of consecutive slots"
            continue
        if total > int(seen[arm]):
            return f"arm {arm + 1} must have at most as many pairs as observations"
        if int(gaps[arm]) > slots + members * shape.kinds:
            return f"arm {arm + 1}: the gaps must fit into {slots} slots"
        for rest in (visits - pairs.sum(1), visits - pairs.sum(0)):
            if int(rest[:, arm].min()) < -members:
                return f"arm {arm + 1}: pairs from and to a state must be its visits but for few"
    return None
