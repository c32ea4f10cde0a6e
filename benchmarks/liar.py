"""What one agent that lies costs four that do not, and what the server's remedies save.

Four honest agents and a liar in the paper's setting: four channels, two plays a slot, fedtswi,
1,000 slots of a second each. All are enrolled at the beginning and report when the honest ones end
their episodes. The liar says that in 19 of 20 looks the two best arms were bad and the two others
good. It claims as many slots as the honest have played, or 10^5, or 2^40; where that is refused, as
many as the refusal names. The reward is the mean per honest agent and slot over the second half.

    before          no limit on slots, no cap, nothing is forgotten
    defaults        of a federation's file
    slot_seconds    = 1, the length of a slot
    cap             = 2
    both
    forgotten       defaults; the liar is revoked and forgotten at slot 250

Everything that decides is the server's and the agents' own (store, decision on uploads,
aggregation, planner, rounds, players); there is no network, and the clock is the slot.

    make liar                                  20 trials, about 10 minutes
    make liar ARGS='--trials 4 --slots 400'
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rmab.errors import ProtocolError
from rmab.federation.config import Federation, KnownArm
from rmab.federation.messages import RoundMessage, Shape, Upload
from rmab.federation.outliers import scores_by_name
from rmab.federation.player import Player
from rmab.federation.rounds import Coordinator
from rmab.federation.schedule import first_limit
from rmab.model.arms import channels
from rmab.model.simulated import SimulatedArms
from rmab.service.server.planning import Counted
from rmab.service.server.uploads import receive
from rmab.service.store.store import Store, claimed_store
from rmab.service.tokens import make_token

if TYPE_CHECKING:
    from rmab.federation.planner import Planner

__all__ = ["Run", "lie", "played"]

P01, P11 = (0.20, 0.89, 0.10, 0.90), (0.80, 0.17, 0.90, 0.16)
REWARD = (0.4, 0.9, 0.7, 0.6)
PLAYS, AGENTS, SLOTS, TRIALS = 2, 4, 1000, 20
LOOKS = 20  # of which all but one show what the liar says
SAID_TO_BE_GOOD = (0, 3)  # the two that are worth least
LIAR = "liar"
CLAIMS = {"no liar": None, "honest rate": 0, "10^5 slots": 10**5, "2^40 slots": 2**40}


def lie(
    shape: Shape,
    slots: int,
    good: Sequence[int] = SAID_TO_BE_GOOD,
    *,
    sequence: int = 1,
    round: int = 1,
    length: int = 1,
    incarnation: str = 32 * "f",
) -> Upload:
    """An upload of channels that is possible and not true: in 19 of 20 looks these arms showed 1
    and the others 0. Claims of more slots may follow those of fewer.

    The arms are played K at a time, one group after another, each in an equal part of the slots,
    which are rounded down for that.
    """
    N, K = shape.n_arms, shape.plays
    counts = np.zeros((shape.kinds, 2, 2, N), np.int64)
    visits = np.zeros((2, N), np.int64)
    groups = -(-N // K)
    looks = slots // groups  # of each arm, in consecutive slots; first the rarer state
    slots = looks * groups
    for arm in range(N if looks else 0):
        usual = int(arm in good)
        rare = -(-looks // LOOKS)
        leaves, comes = -(-(looks - 1) // LOOKS), rare - 1
        visits[1 - usual, arm], visits[usual, arm] = rare, looks - rare
        counts[0, 1 - usual, usual, arm], counts[0, usual, 1 - usual, arm] = leaves, comes
        counts[0, usual, usual, arm] = looks - 1 - leaves - comes
    return Upload(incarnation, sequence, round, slots, min(length, slots), counts, visits)


@dataclass(frozen=True)
class Run:
    """One federation with or without a liar.

    claims: slots that the liar claims, 0 for as many as the honest have played, None for no liar;
    forgotten_at: the slot from which on it is no more.
    """

    claims: int | None
    slot_seconds: float = 0.0
    cap: float | None = None
    forgotten_at: int | None = None
    policy: str = "fedtswi"
    slots: int = SLOTS
    trial: int = 0

    @property
    def federation(self) -> Federation:
        arms = tuple(KnownArm(2, (0.0, reward)) for reward in REWARD)
        return Federation(
            "liar",
            PLAYS,
            arms,
            self.policy,
            seed=self.trial,
            slot_seconds=self.slot_seconds,
            cap=self.cap,
        )


@dataclass(frozen=True)
class Outcome:
    """reward: (slots,), means over the honest agents; scores: of all agents, in the end."""

    reward: np.ndarray
    scores: dict[str, float | None]
    refused: int

    @property
    def late(self) -> float:
        """Mean over the second half."""
        return float(self.reward[len(self.reward) // 2 :].mean())


class _Federation:
    """A server and its agents in one thread, slot by slot."""

    def __init__(self, run: Run, store: Store, planner: Planner) -> None:
        self.run, self.store, self.planner = run, store, planner
        self.federation = run.federation
        self.shape = self.federation.shape
        self.now = 0.0
        self.refused = 0
        self._sequence = 0
        self._coordinator = Coordinator(1, first_limit(self.federation.schedule), 30.0)
        names = [f"agent-{m}" for m in range(AGENTS)]
        self._tokens = {name: self._enrolled(name) for name in [*names, LIAR]}
        message = self._message()
        self.players = {name: Player(message, f"{m:032x}") for m, name in enumerate(names, start=1)}

    def _enrolled(self, name: str) -> tuple[str, bytes]:
        _, key_id, secret_hash = make_token()
        self.store.enroll(name, "agent", key_id, secret_hash, self.now)
        return key_id, secret_hash

    def _message(self) -> RoundMessage:
        counted = Counted(self.store.merged(), self.store.counts_by_lane())
        evidence = counted.evidence(self.federation.shares, 0)
        return RoundMessage(
            federation=self.federation.name,
            agent=LIAR,
            round=self._coordinator.number,
            slots=self._coordinator.limit,
            visit_factor=None,
            shape=self.shape,
            rewards=tuple(arm.reward for arm in self.federation.arms),
            plan=self.planner.plan(evidence, self._coordinator.number).plan,
        )

    def play(self) -> Outcome:
        arms = channels(p01=P01, p11=P11, reward=REWARD)
        seeds = [(self.run.trial, m) for m in range(AGENTS)]
        worlds = [SimulatedArms(arms, seed) for seed in seeds]
        reward = np.zeros(self.run.slots)
        for slot in range(self.run.slots):
            if slot == self.run.forgotten_at:
                self.store.revoke(LIAR, self.now)
                self.store.erase(LIAR, self.now)
            for player, world in zip(self.players.values(), worlds, strict=True):
                before = player.reward
                chosen = player.choose().tolist()
                player.observe(chosen, world.sense(chosen))
                reward[slot] += (player.reward - before) / AGENTS
            self.now += 1.0
            if all(player.over for player in self.players.values()):
                self._close_round()
        scores = scores_by_name(self.store.counts_by_agent(), self.shape)
        return Outcome(reward, scores, self.refused)

    def _close_round(self) -> None:
        number = self._coordinator.number
        with self.store.transaction():
            for name, player in self.players.items():
                upload = player.upload(number)
                self._receive(name, upload)
                self._coordinator.reported(name, upload.length, self.now)
            self._lie(number)
        self._coordinator = self._coordinator.next(self.federation.schedule)
        message = self._message()
        for player in self.players.values():
            player.begin(message)

    def _lie(self, number: int) -> None:
        claims = self.run.claims
        if claims is None:
            return
        slots = max(claims, next(iter(self.players.values())).slots)
        self._sequence += 1
        tell = partial(lie, self.shape, sequence=self._sequence, round=number)
        try:
            self._receive(LIAR, tell(slots))
        except ProtocolError as error:
            self.refused += 1
            most = re.search(r"at most (\d+)", str(error))
            if most is not None:
                self._receive(LIAR, tell(int(most[1])))

    def _receive(self, name: str, upload: Upload) -> None:
        key_id, secret_hash = self._tokens[name]
        receive(
            self.store,
            key_id,
            secret_hash,
            upload,
            self._coordinator.number,
            PLAYS,
            self.now,
            slot_seconds=self.federation.slot_seconds,
        )


@cache
def _planner(policy: str, trial: int) -> Planner:
    """Compiled once for all remedies, which are no matter of planning."""
    from rmab.federation.planner import Planner

    return Planner(Run(None, policy=policy, trial=trial).federation)


def played(run: Run) -> Outcome:
    """Play one federation to its end."""
    federation = run.federation
    with tempfile.TemporaryDirectory(prefix="rmab-liar-") as folder:
        store = claimed_store(str(Path(folder) / "liar.db"), federation)
        try:
            return _Federation(run, store, _planner(run.policy, run.trial)).play()
        finally:
            store.close()


def remedies(policy: str, slots: int) -> dict[str, Run]:
    """The rows of the table."""
    before = Run(None, policy=policy, slots=slots)
    default = replace(before, slot_seconds=Federation.slot_seconds)
    return {
        "before": before,
        "defaults": default,
        "slot_seconds = 1": replace(before, slot_seconds=1.0),
        "cap = 2": replace(default, cap=2.0),
        "slot_seconds = 1, cap = 2": replace(before, slot_seconds=1.0, cap=2.0),
        "forgotten": replace(default, forgotten_at=slots // 4),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trials", type=int, default=TRIALS)
    parser.add_argument("--slots", type=int, default=SLOTS)
    parser.add_argument("--policy", default="fedtswi")
    options = parser.parse_args(arguments)
    print("| |", " | ".join(CLAIMS), "|", flush=True)
    print("|---|", "---|" * len(CLAIMS), sep="")
    scores: dict[str, list[Any]] = {"honest": [], LIAR: []}
    for name, remedy in remedies(options.policy, options.slots).items():
        cells = []
        for claims in CLAIMS.values():
            late = []
            for trial in range(options.trials):
                found = played(replace(remedy, claims=claims, trial=trial))
                late.append(found.late)
                for agent, score in found.scores.items():
                    scores[LIAR if agent == LIAR else "honest"].append(score)
            error = np.std(late) / np.sqrt(len(late))
            cells.append(f"{np.mean(late):.3f} ± {error:.3f}".replace("0.", "."))
        print(f"| {name} |", " | ".join(cells), "|", flush=True)
    for who, told in scores.items():
        each = np.array([score for score in told if score is not None])
        if each.size:
            span = f"{each.min():.2f} to {each.max():.2f}"
            print(f"scores, {who}: mean {each.mean():.2f}, {span} ({each.size} of them)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
