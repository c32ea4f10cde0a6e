"""Unmasking: the batches of masked uploads whose sum a helper unmasks, and no others.

A server sends an *aggregation job*: the reports of a batch of agents of one group, where a *report*
is the header of a masked upload, one for each incarnation. The helper answers with the sum, over
reports, of the masks between two uploads of the incarnation: its *watermark*, which is the report
up to which it was unmasked, or its beginning, and the new report. It computes both masks from
headers (`rmab.privacy.masks`). Its answer makes a sum of *increments* readable, each slot of each
agent in one sum and no other.

Before it answers, all of this must hold, and new watermarks are kept in the same transaction:

    number, before   the job follows the last one, of which `before` is the digest. The same job
                     again gets the same answer, another one under its number 409
    members          enrolled, not revoked, of the group, each incarnation once, with a tag that
                     its key has made of this header
    further          each goes on from the watermark of its incarnation, with more slots
    least            at least `least` different agents
    shares           every agent brings the same number of slots
    cohort           an agent, or fewer than `least`, are never separated from others

A *cohort* is all agents that have been in the same batches so far. Agents that were in none have no
cohort yet: `least` or more of them become one by their first batch. A batch has all of a cohort, or
none, or divides it for good: `least` or more are in it, and as many are left out; fewer only if
they are revoked. As every sum so far has had all of a cohort with equal shares, its agents could
change places and every published sum would stay the same, so that the counts of one of them cannot
be inferred by comparing sums. Without the rule of shares a sum is an equation for each of its
members; without that of cohorts the difference of two sums may be the counts of one agent.

A helper sees neither uploads nor sums, only names, sequence numbers, slots and nonces.

There is no network, no database and no clock here. The server's half is `rmab.privacy.batches`. On
the wire a job is an `opening`, its reports are `members`.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

from rmab.errors import ProtocolError
from rmab.privacy.accounting import FIRST_SLOTS, PrivacyAccountant
from rmab.privacy.masks import NONCE_BYTES, TAG_BYTES, Header, MaskKey, Words
from rmab.protocol.checks import (
    hexadecimal,
    malformed,
    read_object,
    take,
    whole_number,
)
from rmab.protocol.shape import NAME_RULE, is_name
from rmab.text import shown

__all__ = [
    "BEGINNING",
    "MOST_MEMBERS",
    "AggregationJob",
    "EnrolledAgent",
    "JobOutcome",
    "Report",
    "UnmaskingState",
    "Watermark",
    "answer_job",
    "parse_job",
]

BEGINNING = "0" * 64  # the digest before the first job
MOST_MEMBERS = 100_000  # incarnations in a job
_MEMBER_KEYS = ("agent", "incarnation", "sequence", "slots", "nonce", "tag")


class Report(NamedTuple):
    """Header of a masked upload, up to which a job unmasks its incarnation."""

    agent: str
    incarnation: str
    sequence: int
    slots: int
    nonce: bytes
    tag: bytes

    def header(self, fingerprint: str) -> Header:
        """Return the header that determines the mask."""
        return Header(
            fingerprint, self.agent, self.incarnation, self.sequence, self.slots, self.nonce
        )

    def to_list(self) -> list[Any]:
        """Return the report as JSON has it."""
        return [*self[:4], self.nonce.hex(), self.tag.hex()]


class AggregationJob(NamedTuple):
    """Request of a server: unmask the sum of a batch of reports."""

    number: int
    before: str  # digest of the job before it
    group: int
    reports: tuple[Report, ...]

    def to_json(self) -> bytes:
        """Return the body of a request; equal jobs have equal bodies."""
        table = {
            "opening": self.number,
            "before": self.before,
            "group": self.group,
            "members": [report.to_list() for report in self.reports],
        }
        return json.dumps(table, separators=(",", ":")).encode()

    @property
    def digest(self) -> str:
        """Digest by which the next job names this one."""
        return hashlib.sha256(self.to_json()).hexdigest()


class Watermark(NamedTuple):
    """Last upload up to which an incarnation was unmasked; key: number of its mask key."""

    sequence: int
    slots: int
    nonce: bytes
    key: int


class EnrolledAgent(NamedTuple):
    """An agent with a mask key, or a revoked one; number: of the key, as a name may get another."""

    group: int
    key: MaskKey
    number: int
    revoked: bool


class UnmaskingState(Protocol):
    """Durable state of a helper; its methods are called in one transaction."""

    def last(self) -> tuple[int, str]:
        """Return number and digest of the last job; 0 and `BEGINNING` before the first."""

    def enrolled(self, agent: str) -> EnrolledAgent | None:
        """Return the agent of that name, revoked or not; None if there was none."""

    def watermark(self, agent: str, incarnation: str) -> Watermark | None:
        """Return the watermark of an incarnation; None before it was in a batch."""

    def cohort(self, agent: str) -> str | None:
        """Return the name of the agent's cohort; None before it was in a batch."""

    def agents_in(self, cohort: str) -> Iterable[str]:
        """Return all agents of a cohort, revoked or not."""

    def answer(self, number: int) -> tuple[str, Words | None] | None:
        """Return the digest of a job and, while it is kept, its answer; None without such a job."""

    def keep(self, job: AggregationJob, outcome: JobOutcome, /) -> None:
        """Keep a job, its answer, the new watermarks, and cohorts."""


class JobOutcome(NamedTuple):
    """Outcome of a job: the sum of masks (R,), to be subtracted, and new watermarks.

    cohorts: by agent, those that the job makes or divides; a cohort is named by the first of its
    agents. accountant: of the group, with this release; None where sums have no noise. The masks
    then leave the noise in the counts, and visits, which are not released, under their masks.
    """

    masks: Words
    watermarks: Mapping[tuple[str, str], Watermark]
    cohorts: Mapping[str, str]
    accountant: PrivacyAccountant | None = None


def parse_job(body: bytes) -> AggregationJob:
    """Read the job in a request's body; ProtocolError if it is malformed."""
    number, before, group, members = take(
        read_object(body), "the opening", "opening", "before", "group", "members"
    )
    if not isinstance(members, list) or not 1 <= len(members) <= MOST_MEMBERS:
        got = len(members) if isinstance(members, list) else shown(members)
        raise malformed(f"members must be a list of 1 to {MOST_MEMBERS}, got {got}")
    return AggregationJob(
        whole_number("opening", number, 1),
        hexadecimal("before", before, 32).hex(),
        whole_number("group", group, 1),
        tuple(_read_report(f"members[{n}]", member) for n, member in enumerate(members)),
    )


def _read_report(place: str, value: Any) -> Report:
    if not isinstance(value, list) or len(value) != len(_MEMBER_KEYS):
        raise malformed(f"{place} must be a list of {', '.join(_MEMBER_KEYS)}, got {shown(value)}")
    agent, incarnation, sequence, slots, nonce, tag = value
    if not is_name(agent):
        raise malformed(f"{place}: agent must have {NAME_RULE}, got {shown(agent)}")
    return Report(
        agent,
        hexadecimal(f"{place}: incarnation", incarnation, 16).hex(),
        whole_number(f"{place}: sequence", sequence, 1),
        whole_number(f"{place}: slots", slots, 0),
        hexadecimal(f"{place}: nonce", nonce, NONCE_BYTES),
        hexadecimal(f"{place}: tag", tag, TAG_BYTES),
    )


def answer_job(
    job: AggregationJob,
    state: UnmaskingState,
    fingerprint: str,
    size: int,
    least: int,
    accountant: Callable[[int], PrivacyAccountant] | None = None,
) -> Words:
    """Return the masks (R,) that answer a job, and keep its outcome; ProtocolError 409 if a rule
    forbids it. The caller answers only after the outcome is durable.

    Parameters
    ----------
    fingerprint
        Digest of the federation, 64 hexadecimal digits.
    size
        R, the number of counts and visits in an upload.
    least
        Smallest number of agents in a batch.
    accountant
        Returns the accountant of a group; None where sums have no noise.
    """
    before = state.answer(job.number)
    if before is None:
        outcome, shares = _decide(job, state, fingerprint, size, least)
        if accountant is not None:
            outcome = _with_noise(job, outcome, shares, accountant(job.group))
        state.keep(job, outcome)
        return outcome.masks
    digest, masks = before
    if digest != job.digest or masks is None:
        gone = "its answer is kept no more" if digest == job.digest else "it was another one"
        raise ProtocolError(
            409,
            "opening",
            f"opening {job.number} was answered before, and {gone}",
            last=state.last()[0],
        )
    return masks


def _decide(
    job: AggregationJob, state: UnmaskingState, fingerprint: str, size: int, least: int
) -> tuple[JobOutcome, Mapping[str, int]]:
    """Check a new job and sum its masks; return also the slots that each agent brings."""
    _check_order(job, state)
    reports = _checked_reports(job, state, fingerprint)
    shares: dict[str, int] = defaultdict(int)
    for report, _, new in reports:
        shares[report.agent] += new
    if len(shares) < least:
        raise ProtocolError(
            409, "least", f"an opening must have at least {least} agents, got {len(shares)}"
        )
    _check_shares(shares)
    cohorts = _divided(shares.keys(), state, least)
    masks = np.zeros(size, np.uint64)
    watermarks = {}
    for report, (agent, last), _ in reports:
        to = report.header(fingerprint)
        masks += agent.key.mask(to, size)
        if last is not None:
            before = to._replace(sequence=last.sequence, slots=last.slots, nonce=last.nonce)
            masks -= agent.key.mask(before, size)
        watermarks[report.agent, report.incarnation] = Watermark(
            report.sequence, report.slots, report.nonce, agent.number
        )
    return JobOutcome(masks, watermarks, cohorts), shares


def _with_noise(
    job: AggregationJob,
    outcome: JobOutcome,
    shares: Mapping[str, int],
    accountant: PrivacyAccountant,
) -> JobOutcome:
    """Return the outcome as a release of its group; ProtocolError 409 if that is not due."""
    agents, slots = len(shares), (accountant.slots or 0) + sum(shares.values())
    if not accountant.remaining:
        raise ProtocolError(409, "releases", f"all releases of group {job.group} are spent")
    if not accountant.is_due(slots, agents):
        least = FIRST_SLOTS * agents if accountant.slots is None else 2 * accountant.slots
        raise ProtocolError(
            409,
            "due",
            f"group {job.group} is next released with {least} slots, and would have {slots}",
        )
    name = str(job.number)
    accountant = accountant.released(name, slots, agents)
    masks = np.zeros_like(outcome.masks)
    noise = accountant.new_noise(name).astype(np.uint64)
    masks[: accountant.size] = outcome.masks[: accountant.size] - noise
    return outcome._replace(masks=masks, accountant=accountant)


def _check_order(job: AggregationJob, state: UnmaskingState) -> None:
    last, digest = state.last()
    if job.number != last + 1:
        raise ProtocolError(
            409, "opening", f"opening must be {last + 1}, got {job.number}", last=last
        )
    if job.before != digest:
        raise ProtocolError(
            409, "before", f"before must be the digest of opening {last}, another was", last=last
        )


_Checked = tuple[Report, tuple[EnrolledAgent, Watermark | None], int]


def _checked_reports(
    job: AggregationJob, state: UnmaskingState, fingerprint: str
) -> list[_Checked]:
    """Return reports with their agents, watermarks and new slots; ProtocolError, with a list of
    those that are refused, if there are any."""
    checked: list[_Checked] = []
    refused: list[tuple[Report, str]] = []
    seen: set[tuple[str, str]] = set()
    for report in job.reports:
        key = (report.agent, report.incarnation)
        agent, watermark = state.enrolled(report.agent), state.watermark(*key)
        reason = _refusal(report, job.group, agent, watermark, fingerprint)
        if key in seen:
            reason = "is in it twice"
        seen.add(key)
        if reason is not None:
            refused.append((report, reason))
        elif agent is not None:
            new = report.slots - (watermark.slots if watermark else 0)
            checked.append((report, (agent, watermark), new))
    if refused:
        report, reason = refused[0]
        raise ProtocolError(
            409,
            "member",
            f"{len(refused)} of {len(job.reports)} members may not be in it; the first: "
            f"{report.agent} {reason}",
            members=[[report.agent, report.incarnation, reason] for report, reason in refused],
        )
    return checked


def _refusal(
    report: Report,
    group: int,
    agent: EnrolledAgent | None,
    watermark: Watermark | None,
    fingerprint: str,
) -> str | None:
    """Return the reason why a report may not be in a job of this group, None if it may."""
    if agent is None:
        return "is not enrolled"
    if agent.revoked:
        return "is revoked"
    if agent.group != group:
        return f"is of group {agent.group}, not of {group}"
    if not agent.key.is_tag(report.header(fingerprint), report.tag):
        return "did not make this tag"
    if watermark is None:
        return None if report.slots > 0 else "brings no slots"
    if watermark.key != agent.number:
        return "has another key since this incarnation was opened"
    if report.sequence <= watermark.sequence or report.slots <= watermark.slots:
        return f"must go on from sequence {watermark.sequence} and {watermark.slots} slots"
    return None


def _check_shares(shares: Mapping[str, int]) -> None:
    """Refuse a batch to which agents bring unequal numbers of slots."""
    fewest, most = (pick(shares, key=shares.__getitem__) for pick in (min, max))
    if shares[fewest] != shares[most]:
        raise ProtocolError(
            409,
            "shares",
            "all agents must bring the same number of slots, "
            f"{most} would bring {shares[most]} and {fewest} {shares[fewest]}",
        )


def _divided(agents: Iterable[str], state: UnmaskingState, least: int) -> dict[str, str]:
    """Return the cohorts that a batch of these agents makes or divides, by agent; ProtocolError if
    it would separate too few of them."""
    parts: dict[str | None, set[str]] = defaultdict(set)
    for agent in agents:
        parts[state.cohort(agent)].add(agent)
    cohorts: dict[str, str] = {}
    for cohort, part in parts.items():
        rest = set() if cohort is None else set(state.agents_in(cohort)) - part
        apart = [side for side in (part, rest) if 0 < len(side) < least]
        if apart and (apart != [rest] or not all(_is_revoked(agent, state) for agent in rest)):
            raise ProtocolError(
                409,
                "cohort",
                f"at least {least} agents that were in the same openings must be in one together, "
                f"or out of it; it would set apart {', '.join(sorted(apart[0]))}",
            )
        if cohort is None or rest:
            for side in (part, rest):
                cohorts |= dict.fromkeys(side, min(side, default=""))
    return cohorts


def _is_revoked(agent: str, state: UnmaskingState) -> bool:
    enrolled = state.enrolled(agent)
    return enrolled is None or enrolled.revoked
