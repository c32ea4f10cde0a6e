"""The attacks on agents' places against the helper itself: masks, tags, its database."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from benchmarks.place_attack import ARMS, ATTACKS, Attack, Floats, counted, guesses, laws, told

from rmab.errors import ProtocolError
from rmab.privacy import unmasking as openings
from rmab.privacy.masks import MaskKey, Words, numbers_of, parse_key, vector_size
from rmab.privacy.settings import Privacy
from rmab.privacy.unmasking import AggregationJob, Report
from rmab.protocol.shape import Upload
from rmab.service.helper.store import HelperStore, open_helper_store
from rmab.service.terms import terms_of
from tests.service.support.serving import spectrum

TRIALS = 30  # each a group of the helper's
BY_NAME = {attack.name: attack for attack in ATTACKS}
FEDERATION = spectrum(privacy=Privacy("http://127.0.0.1:9", groups=TRIALS))
SHAPE = FEDERATION.shape


class Server:
    """A server that asks for whatever it likes, of agents that upload at all slots it asks for."""

    def __init__(self, helper: HelperStore, attack: Attack) -> None:
        self.helper, self.attack = helper, attack
        self.keys: dict[str, MaskKey] = {}
        for trial in range(TRIALS):
            for agent in range(attack.agents):
                key = parse_key(helper.enroll(name(trial, agent), trial + 1, 1.0)[0])
                assert key is not None
                self.keys[name(trial, agent)] = MaskKey(key)
        rng = np.random.default_rng(5)
        law = laws()
        self.places = rng.integers(len(law), size=(TRIALS, attack.agents))
        slots = np.array([*attack.slots, self.rest()])
        self.counts = counted(law[self.places], slots, rng)
        # What the server has: of every agent the last masked vector, and the one opened last.
        self.opened: dict[str, Words] = {}
        self.position: dict[str, int] = dict.fromkeys(self.keys, 0)
        self.clear = np.zeros((TRIALS, attack.agents, ARMS, 2, 2))

    def rest(self) -> tuple[int, ...]:
        """Equal shares of all, for which it asks in the end."""
        return (1000,) * self.attack.agents

    def upload(self, trial: int, agent: int, slots: int) -> tuple[Report, Words]:
        """What an agent sends, that has counted `self.clear` in so many slots."""
        counts, visits = numbers_of(np.zeros(vector_size(SHAPE), np.int64), SHAPE)
        counts[0] = np.moveaxis(self.clear[trial, agent], 0, -1)
        of_agent = name(trial, agent)
        clear = Upload(f"{trial:016x}{agent:016x}", slots, 1, slots, 0, counts, visits)
        sent = self.keys[of_agent].masked(clear, FEDERATION.fingerprint(), of_agent, SHAPE)
        member = Report(of_agent, sent.incarnation, sent.sequence, slots, sent.nonce, sent.tag)
        return member, sent.masked

    def ask(self, trial: int, number: int, row: tuple[int, ...]) -> Floats | None:
        """The sum of an opening, (arm, from, to); None if the helper refuses it."""
        who = [agent for agent, brought in enumerate(row) if brought]
        before = self.clear[trial].copy()
        self.clear[trial, who] += self.counts[trial, number, who]
        total, sent = np.zeros(vector_size(SHAPE), np.uint64), {}
        for agent in who:
            key = name(trial, agent)
            member, masked = self.upload(trial, agent, self.position[key] + row[agent])
            sent[key] = member, masked
            total += masked - self.opened.get(key, np.uint64(0))
        last, digest = self.helper.last()
        members = tuple(member for member, _ in sent.values())
        try:
            masks = self.helper.open(AggregationJob(last + 1, digest, trial + 1, members))
        except ProtocolError as error:
            if error.code not in ("shares", "cohort"):
                raise
            self.clear[trial] = before
            return None
        for key, (member, masked) in sent.items():
            self.opened[key], self.position[key] = masked, member.slots
        counts, _ = numbers_of((total - masks).view(np.int64), SHAPE)
        found: Floats = np.moveaxis(counts[0], -1, 0).astype(float)
        return found

    def found(self) -> float:
        """How often the place of a target is found."""
        rows = [*self.attack.slots, self.rest()]
        right = []
        for trial in range(TRIALS):
            sums = [(self.ask(trial, number, row), row) for number, row in enumerate(rows)]
            told = [(each, row) for each, row in sums if each is not None]
            assert told
            slots = np.array([row for _, row in told])
            guess = guesses(np.stack([each for each, _ in told])[None], slots, laws())[0]
            right.append((guess == self.places[trial])[list(self.attack.targets)].mean())
        return float(np.mean(right))


def name(trial: int, agent: int) -> str:
    return f"radio-{trial}-{agent}"


@pytest.fixture
def helper(tmp_path) -> Iterator[HelperStore]:
    store = open_helper_store(str(tmp_path / "helper.db"), terms_of(FEDERATION))
    yield store
    store.close()


KINDS = ("one sum", "sums in turn", "changing sets")


@pytest.mark.parametrize("attack", KINDS)
def test_the_helper_tells_no_place(helper, attack):
    chance = 3 * 0.5 / (2 * TRIALS) ** 0.5
    assert Server(helper, BY_NAME[attack]).found() <= told(3) + chance


@pytest.mark.parametrize("attack", KINDS)
def test_without_the_rules_it_would(helper, attack, monkeypatch):
    for rule in ("_check_shares", "_divided"):
        monkeypatch.setattr(openings, rule, lambda *_: {})
    assert Server(helper, BY_NAME[attack]).found() >= told(3) + 0.2
