"""The stores of server and helper, whatever happens in whatever order: each slot is added once."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from rmab.errors import ProtocolError
from rmab.privacy.batches import choose_batch
from rmab.privacy.masks import MaskKey, Words, parse_key, vector_of, vector_size
from rmab.privacy.settings import Privacy
from rmab.service.helper.store import open_helper_store
from rmab.service.store.store import open_store
from rmab.service.store.unmasking import Enrolment
from rmab.service.terms import terms_of
from tests.service.support.counting import Counting
from tests.service.support.serving import spectrum
from tests.service.support.storing import enrolled, given, some_round

FEDERATION = spectrum(privacy=Privacy("http://127.0.0.1:9"))
NAMES = "abcdefg"


class Dying(RuleBasedStateMachine):
    """Both are opened again at any moment; answers get lost, agents begin anew or are revoked."""

    server: Any = None
    helper: Any = None

    @initialize()
    def begin(self):
        self.folder = tempfile.TemporaryDirectory()
        self.open_both()
        self.server.open_round(some_round(1, FEDERATION))
        self.tokens = {name: enrolled(self.server, name) for name in NAMES}
        self.keys: dict[str, MaskKey] = {}
        self.lives = dict.fromkeys(NAMES, 0)
        self.sequence = dict.fromkeys(NAMES, 0)
        self.since = dict.fromkeys(NAMES, 0)
        self.countings: dict[str, Counting] = {}
        for name in NAMES:
            self.enroll(name)
        with self.server.transaction():
            self.server.openings.begin_chain(self.helper.name)
        self.ledger: dict[tuple[str, str, int], Words] = {}
        self.opened: dict[tuple[str, str], int] = {}  # sequence that is in the sum
        self.late: set[str] = set()
        self.masks: Words | None = None  # an answer that the server has and did not keep

    def open_both(self):
        self.open_server()
        self.open_helper()

    def open_server(self):
        if self.server is not None:
            self.server.close()
        self.server = open_store(str(Path(self.folder.name) / "server.db"), FEDERATION)
        self.server.claim()

    def open_helper(self):
        if self.helper is not None:
            self.helper.close()
        self.helper = open_helper_store(
            str(Path(self.folder.name) / "helper.db"), terms_of(FEDERATION)
        )

    def enroll(self, name):
        key = parse_key(self.helper.enroll(name, None, 1.0)[0])
        assert key is not None
        self.keys[name] = MaskKey(key)
        self.restart_agent(name)

    @rule(name=st.sampled_from(NAMES))
    def restart_agent(self, name):
        self.lives[name] += 1
        self.countings[name] = Counting(FEDERATION.shape, f"{name} {self.lives[name]}")
        self.sequence[name] = 0
        self.since[name] = self.server.openings.position(name)

    @rule(name=st.sampled_from(NAMES))
    def renew_key(self, name):
        self.helper.revoke(name, 2.0)
        self.enroll(name)

    @rule(name=st.sampled_from(NAMES), slots=st.integers(0, 5))
    def upload(self, name, slots):
        for part in [1] * slots or [0]:  # many of them are at marks
            if self.send(name, part) is not None:  # the helper has refused it
                self.restart_agent(name)
                assert self.send(name, part) is None

    def send(self, name, slots):
        """An upload; the word by which it is refused, or None."""
        self.sequence[name] += 1
        clear = self.countings[name].upload(self.sequence[name], slots=slots)
        masked = self.keys[name].masked(
            clear, FEDERATION.fingerprint(), name, FEDERATION.shape, self.since[name]
        )
        try:
            assert given(self.server, self.tokens[name], masked) == "new"
        except ProtocolError as error:
            if error.code not in ("ended", "since"):
                raise
            return error.code
        self.ledger[name, clear.incarnation, clear.sequence] = vector_of(
            clear.counts, clear.visits, FEDERATION.shape
        )
        return None

    @rule()
    def all_upload(self):
        for name in NAMES:
            self.upload(name, 3)

    @rule()
    def restart_server(self):
        self.masks = None
        self.open_server()

    @rule()
    def restart_helper(self):
        self.open_helper()

    @rule()
    def write(self):
        with self.server.transaction():
            openings = self.server.openings
            if openings.pending() is None:
                enrolled = {
                    row.name: Enrolment(row.group, row.cohort) for row in self.helper.agents()
                }
                found = choose_batch(openings.waiting(enrolled), 3, self.late)
                if found.size:
                    openings.write(1, found.reports, 1, 1.0)

    @rule(late=st.sets(st.sampled_from(NAMES), max_size=2))
    def be_late(self, late):
        self.late = late

    @rule(lost=st.booleans())
    def ask(self, lost):
        pending = self.server.openings.pending()
        if pending is None:
            return
        try:
            masks = self.helper.open(pending.opening)
        except ProtocolError as error:
            if error.code not in ("member", "least", "shares", "cohort"):
                raise
            with self.server.transaction():
                refused = error.extra.get("members", ())
                self.server.openings.take_back(pending.opening.number, refused)
            return
        self.masks = None if lost else masks

    @rule()
    def answer(self):
        pending = self.server.openings.pending()
        if pending is None or self.masks is None:
            return
        vector = (pending.difference - self.masks).view(np.int64)
        with self.server.transaction():
            self.server.openings.answer(pending.opening.number, vector)
        self.masks = None
        for member in pending.opening.reports:
            self.opened[member.agent, member.incarnation] = member.sequence

    @rule(dies=st.booleans())
    def close_round(self, dies):
        try:
            with self.server.transaction():
                self.server.openings.add()
                if dies:
                    raise InterruptedError
        except InterruptedError:
            self.restart_server()

    @rule()
    def whole_round(self):
        for step in (self.write, lambda: self.ask(lost=False), self.answer):
            step()
        self.close_round(dies=False)

    @invariant()
    def the_sum_is_of_the_agents_own_ledgers(self):
        if not hasattr(self, "masks"):
            return
        due = np.zeros(vector_size(FEDERATION.shape), np.uint64)
        for (name, incarnation), sequence in self.opened.items():
            due += self.ledger[name, incarnation, sequence]
        merged = self.server.merged()
        found = vector_of(merged.counts, merged.visits, FEDERATION.shape)
        assert np.array_equal(found, due)

    def teardown(self):
        if hasattr(self, "masks"):
            self.server.close()
            self.helper.close()
            self.folder.cleanup()


TestExactlyOnce = Dying.TestCase
TestExactlyOnce.settings = settings(max_examples=6, stateful_step_count=40, deadline=None)
