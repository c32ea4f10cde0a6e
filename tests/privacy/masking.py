"""Agents that mask, a helper in memory, and a server that asks it, without network or database."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rmab.errors import ProtocolError
from rmab.privacy.masks import MaskedUpload, MaskKey, Words, make_key, parse_key, vector_size
from rmab.privacy.unmasking import (
    BEGINNING,
    AggregationJob,
    EnrolledAgent,
    JobOutcome,
    Report,
    Watermark,
    answer_job,
)
from rmab.protocol.shape import Shape
from tests.service.support.counting import Counting

FINGERPRINT = "5f" * 32
SHAPE = Shape(2, (2, 2, 2), 2)


class Helper:
    """What `rmab.service.helper` keeps in a database."""

    def __init__(self, least: int = 3) -> None:
        self.least = least
        self.agents: dict[str, EnrolledAgent] = {}
        self.points: dict[tuple[str, str], Watermark] = {}
        self.cohorts: dict[str, str] = {}
        self.answers: list[tuple[str, Words]] = []

    def last(self) -> tuple[int, str]:
        return len(self.answers), self.answers[-1][0] if self.answers else BEGINNING

    def enrolled(self, agent: str) -> EnrolledAgent | None:
        return self.agents.get(agent)

    def watermark(self, agent: str, incarnation: str) -> Watermark | None:
        return self.points.get((agent, incarnation))

    def cohort(self, agent: str) -> str | None:
        return self.cohorts.get(agent)

    def agents_in(self, cohort: str) -> list[str]:
        return [agent for agent, of_agent in self.cohorts.items() if of_agent == cohort]

    def answer(self, number: int) -> tuple[str, Words | None] | None:
        return self.answers[number - 1] if 1 <= number <= len(self.answers) else None

    def keep(self, opening: AggregationJob, opened: JobOutcome) -> None:
        self.answers.append((opening.digest, opened.masks))
        self.points |= opened.watermarks
        self.cohorts |= opened.cohorts

    def enroll(self, name: str, group: int = 1, number: int = 1) -> Agent:
        key = parse_key(make_key())
        assert key is not None
        self.agents[name] = EnrolledAgent(group, MaskKey(key), number, revoked=False)
        return Agent(name, self.agents[name].key)

    def ask(self, *members: Report, **changes: Any) -> Words:
        """Open the next sum, of group 1, or one with these changes."""
        number, digest = self.last()
        opening = AggregationJob(number + 1, digest, 1, tuple(members))._replace(**changes)
        return answer_job(opening, self, FINGERPRINT, vector_size(SHAPE), self.least)

    def refuses(self, *members: Report, **changes: Any) -> str:
        """The word by which it refuses; nothing may have changed."""
        before = (dict(self.points), list(self.answers), dict(self.cohorts))
        with pytest.raises(ProtocolError) as refused:
            self.ask(*members, **changes)
        assert refused.value.status == 409
        assert (self.points, self.answers, self.cohorts) == before
        return refused.value.code


class Agent:
    """One incarnation after another of an agent; uploads have all that it has counted."""

    def __init__(self, name: str, key: MaskKey) -> None:
        self.name, self.key = name, key
        self.lives = 0
        self.restart()

    def restart(self) -> None:
        self.lives += 1
        self.counting = Counting(SHAPE, f"{self.name} {self.lives}")
        self.sequence = 0

    def upload(self, slots: int = 4) -> MaskedUpload:
        self.sequence += 1
        clear = self.counting.upload(self.sequence, slots=slots)
        return self.key.masked(clear, FINGERPRINT, self.name, SHAPE)

    def member(self, slots: int = 4) -> Report:
        return self.named(self.upload(slots))

    def at(self, slots: int) -> Report:
        """Its upload after so many slots in all."""
        return self.member(slots - self.counting.slots)

    def named(self, upload: MaskedUpload) -> Report:
        return Report(
            self.name,
            upload.incarnation,
            upload.sequence,
            upload.slots,
            upload.nonce,
            upload.tag,
        )


def total(*words: Words) -> Words:
    """Their sum modulo 2^64."""
    found: Words = np.sum(np.stack(words), axis=0, dtype=np.uint64)
    return found
