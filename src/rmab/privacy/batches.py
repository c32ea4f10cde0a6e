"""Batches: the agents that a server asks to have unmasked together, and the check of their sum.

The rules that a helper applies to a batch are in `rmab.privacy.unmasking`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rmab.privacy.masks import Words, read_words
from rmab.privacy.unmasking import AggregationJob, Report
from rmab.protocol.checks import MAX_WHOLE, malformed, read_object, take
from rmab.protocol.shape import Ints, Shape
from rmab.text import shown

__all__ = ["AgentBacklog", "ReportBatch", "check_sum", "choose_batch", "parse_answer"]

# The faster agents of a cohort leave its slowest behind when they can be unmasked to this multiple
# of the position that the whole cohort can reach.
_FAR_AHEAD = 2


class AgentBacklog(NamedTuple):
    """Uploads of an agent that are not unmasked yet.

    unmasked, reach: its positions at its watermark and after its last upload; marks: position and
    report of the uploads in between at marks, in ascending order; cohort: from the helper, None
    before the first batch; busy: whether it is in a job that is not closed.
    """

    agent: str
    group: int
    cohort: str | None
    unmasked: int
    reach: int
    marks: tuple[tuple[int, Report], ...]
    busy: bool = False

    @property
    def shares(self) -> set[int]:
        """Numbers of slots that it may bring to a batch."""
        return {position - self.unmasked for position, _ in self.marks}

    def reports(self, slots: int) -> list[Report]:
        """Return the reports by which it brings `slots`: of each incarnation the last."""
        last = {
            report.incarnation: report
            for position, report in self.marks
            if position - self.unmasked <= slots
        }
        return list(last.values())


class ReportBatch(NamedTuple):
    """Agents that may be unmasked together; slots: the share of each, 0 for an empty batch."""

    slots: int
    agents: Sequence[AgentBacklog]

    @property
    def size(self) -> int:
        """Slots of all agents."""
        return self.slots * len(self.agents)

    @property
    def reports(self) -> tuple[Report, ...]:
        """Reports of all agents."""
        return tuple(report for agent in self.agents for report in agent.reports(self.slots))


def choose_batch(
    backlogs: Iterable[AgentBacklog], least: int, late: Collection[str] = ()
) -> ReportBatch:
    """Choose the agents of one group that are unmasked together now.

    A cohort goes to the last mark that all of it have. Where some have none and are late, or are
    far behind, the others go on without them; as a cohort is never divided into fewer than `least`,
    some of the slowest others stay with them. Cohorts that can bring the same number of slots share
    a batch.

    Parameters
    ----------
    backlogs
        All agents of the group, including agents without a mark.
    least
        Smallest number of agents in a batch.
    late
        Names of the agents that a batch does not wait for.
    """
    cohorts: dict[str | None, list[AgentBacklog]] = defaultdict(list)
    for backlog in sorted(backlogs):
        cohorts[backlog.cohort].append(backlog)
    batches = []
    for cohort, agents in cohorts.items():
        if cohort is None:
            batch = _first_batch([agent for agent in agents if not agent.busy], least, late)
        else:
            batch = _batch_of_cohort(agents, least, late)
        if batch.slots > 0:
            batches.append(batch)
    if not batches:
        return _EMPTY
    joined = _joined([agent for batch in batches for agent in batch.agents])
    return max((*batches, joined), key=lambda batch: (batch.size, len(batch.agents)))


_EMPTY = ReportBatch(0, ())


def _first_batch(agents: Sequence[AgentBacklog], least: int, late: Collection[str]) -> ReportBatch:
    """Return the batch of agents without a cohort, once no other is waited for."""
    ready = [agent for agent in agents if agent.marks]
    waited_for = any(not agent.marks and agent.agent not in late for agent in agents)
    if len(ready) < least or waited_for:
        return _EMPTY
    return _joined(ready)


def _batch_of_cohort(
    agents: Sequence[AgentBacklog], least: int, late: Collection[str]
) -> ReportBatch:
    """Return the batch of the agents of a cohort that are unmasked now."""
    if any(agent.busy for agent in agents):
        return _EMPTY
    whole = _joined(agents)
    # With an agent that is away stay as many others as may go on when it is revoked.
    fewest = least if len(agents) <= 2 * least else least + 1
    slowest = sorted(
        agents,
        key=lambda one: (one.marks[-1][0] if one.marks else 0, one.agent not in late, one.reach),
    )
    rests = [slowest[apart:] for apart in range(fewest, len(agents) - least + 1)]
    ahead = max(map(_joined, rests), key=lambda rest: rest.size, default=_EMPTY)
    if whole.slots == 0:
        away = any(not agent.marks and agent.agent in late for agent in agents)
        return ahead if away else _EMPTY
    unmasked = agents[0].unmasked
    return ahead if unmasked + ahead.slots >= _FAR_AHEAD * (unmasked + whole.slots) else whole


def _joined(agents: Sequence[AgentBacklog]) -> ReportBatch:
    """Return the batch of all these agents, with the most slots that all of them may bring."""
    common = set.intersection(*(agent.shares for agent in agents))
    return ReportBatch(max(common, default=0), agents)


def parse_answer(body: bytes, job: AggregationJob, size: int) -> Words:
    """Read the masks (size,) in a helper's answer to a job; ProtocolError if it is malformed."""
    number, masks = take(read_object(body), "the answer", "opening", "masks")
    if number != job.number:
        raise malformed(f"the answer must be to opening {job.number}, got {shown(number)}")
    return read_words("masks", masks, size)


def check_sum(
    counts: npt.NDArray[np.int64],
    visits: Ints,
    slots: int,
    members: int,
    shape: Shape,
) -> str | None:
    """Return the reason why a sum of increments is impossible, None if it is possible.

    The first pair of a member's increment may begin before it, so sums are off by a pair for each.
    Where an agent's process began anew no pair leads from before to after.

    Parameters
    ----------
    counts, visits
        The sum, (C, S, S, N) and (S, N).
    slots
        Slots of all members.
    members
        Number of incarnations in the sum.
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
