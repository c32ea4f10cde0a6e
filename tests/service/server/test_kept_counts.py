"""A served federation whose counts lose weight: what is kept is stored with the round."""

from dataclasses import replace

import numpy as np
import pytest

from rmab.protocol.round_memory import RoundMemory
from tests.service.support.serving import ByHand, Flat, Planned, served, spectrum, until


class Keeping(Flat):
    """Keeps half of what it had and all that is new, added up; plans tell how much that is."""

    def __init__(self, federation):
        super().__init__(federation)
        self.lengths = []

    def plan(self, merged, number, lane=0, each=None, memory=None):
        assert each is not None
        planned = super().plan(merged, number, lane).plan
        index = np.array(planned.index)
        index[:, 0] = memory.counts.sum()
        return Planned(replace(planned, index=index), None)

    def remember(self, memory, before, now, length):
        self.lengths.append(length)
        new = now.counts.sum() - (0 if before is None else before.counts.sum())
        old = 0 if memory is None else memory.counts.sum()
        counts = np.full((1, 1, 1, 1, 1, 1), old / 2 + new, np.float32)
        return RoundMemory(counts, counts[0, 0], np.zeros(1, np.float32), np.zeros(0, np.float32))


@pytest.fixture
def federation():
    return spectrum(policy="fedtswi-gap", options={"forget": 100, "gaps": 8, "longest": 3})


def test_what_is_kept_survives_a_restart_on_both_databases(tmp_path, database_url, federation):
    with served(tmp_path, federation, Keeping(federation), database=database_url) as live:
        a = live.agent("a")
        assert a.fetch().plan.index[0, 0] == 0
        sent = []
        for number in (1, 2, 3):
            upload = a.play()
            sent.append(int(upload.counts.sum()))
            assert a.send(upload).status_code == 201
            told = a.fetch(after=number, wait=10).plan.index[0, 0]
        kept = (sent[0] / 2 + sent[1] - sent[0]) / 2 + sent[2] - sent[1]
        assert told == kept
        assert live.planner.lengths == [0, 2, 3, 3]  # no episode is longer than 3
    with served(tmp_path, federation, Keeping(federation), database=database_url) as again:
        back = ByHand(again, "a", a.token)
        assert back.fetch().plan.index[0, 0] == kept
        assert again.planner.lengths == []
        upload = back.play()
        assert back.send(upload).status_code == 201
        told = back.fetch(after=4, wait=10).plan.index[0, 0]
        assert told == kept / 2 + int(upload.counts.sum())  # of a new incarnation


def test_a_database_of_before_goes_on(tmp_path, federation):
    """Its open round has nothing kept: what was counted until now begins with its whole weight."""
    plain = spectrum(policy="fedtswi-gap", options={"gaps": 8})
    with served(tmp_path, plain) as live:
        a = live.agent("a")
        a.fetch()
        first = a.play()
        assert a.send(first).status_code == 201
        until(lambda: live.server.rounds.number == 2)
    with served(tmp_path, federation, Keeping(federation)) as again:
        back = ByHand(again, "a", a.token)
        back.fetch()
        upload = back.play()
        assert back.send(upload).status_code == 201
        told = back.fetch(after=2, wait=10).plan.index[0, 0]
        assert told == int(first.counts.sum()) + int(upload.counts.sum())
