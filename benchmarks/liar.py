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

A second table has the settings of a careful person (`careful`): slot_seconds = 1, cap = 2 and
draws = "own", and the attacks that are left to a liar then:

    honest rate     as above
    all at once     it was enrolled a day before the others and claims all of it in its first upload
    sleeper         it plays and tells the truth for half of the time, and then lies
    ten names       of one owner, all of which lie

Cost is the reward that honest agents lose, as a share of what they earn on the same trials without
the liar, over all slots and over the second half.

Everything that decides is the server's and the agents' own (store, decision on uploads,
aggregation, planner, laws, rounds, players); there is no network, and the clock is the slot.

    make docs-numbers ARGS=liar                measures the table of docs/security.md
    make liar ARGS='--trials 4 --slots 400'    prints both tables
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rmab.errors import ProtocolError
from rmab.model.arms import channels
from rmab.model.realisation import SimulatedArms
from rmab.policies.episodes import first_limit
from rmab.protocol.config import Federation, KnownArm
from rmab.protocol.messages import RoundMessage
from rmab.protocol.outliers import compared
from rmab.protocol.player import Player
from rmab.protocol.rounds import Coordinator
from rmab.protocol.shape import Shape, Upload
from rmab.service.agent.local_plan import own_plan
from rmab.service.http.tokens import make_token
from rmab.service.server.planning import Counted
from rmab.service.server.uploads import UploadRules, receive
from rmab.service.store.store import Store, claimed_store

if TYPE_CHECKING:
    from rmab.protocol.planner import Planner

__all__ = [
    "ATTACKS",
    "CLAIMS",
    "LIAR",
    "SLOTS",
    "Run",
    "attacked",
    "careful",
    "costs",
    "lie",
    "measure",
    "played",
    "remedies",
]

P01, P11 = (0.20, 0.89, 0.10, 0.90), (0.80, 0.17, 0.90, 0.16)
REWARD = (0.4, 0.9, 0.7, 0.6)
PLAYS, AGENTS, SLOTS, TRIALS = 2, 4, 1000, 20
LOOKS = 20  # of which all but one show what the liar says
SAID_TO_BE_GOOD = (0, 3)  # the two that are worth least
LIAR = "liar"
DAY = 86_400.0
CAREFUL_CAP = 2.0
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
    forgotten_at: the slot from which on it is no more; names: of the liar, all of one owner;
    sleeps: slots for which it plays and tells the truth first; head_start: seconds for which it was
    enrolled before the others.
    """

    claims: int | None
    slot_seconds: float = 0.0
    cap: float | None = None
    forgotten_at: int | None = None
    policy: str = "fedtswi"
    slots: int = SLOTS
    trial: int = 0
    draws: str = "shared"
    names: int = 1
    sleeps: int = 0
    head_start: float = 0.0

    @property
    def liars(self) -> list[str]:
        """Names of the liar."""
        return [LIAR, *(f"{LIAR}-{n}" for n in range(2, self.names + 1))]

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
            draws=self.draws,
        )


@dataclass(frozen=True)
class Outcome:
    """reward: (slots,), means over the honest agents; scores, weights: of all agents, in the end;
    refused: how many of the liar's uploads."""

    reward: np.ndarray
    scores: dict[str, float | None]
    weights: dict[str, float]
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
        self.now = run.head_start
        self.refused = 0
        self._sequence = 0
        self._coordinator = Coordinator(1, first_limit(self.federation.schedule), 30.0)
        names = [f"agent-{m}" for m in range(AGENTS)]
        self._tokens = {name: self._enrolled(name, self.now, name) for name in names}
        self._tokens |= {name: self._enrolled(name, 0.0, LIAR) for name in run.liars}
        # A sleeper plays as the honest do, and what it earns does not count.
        played = [*names, *(run.liars if run.sleeps else ())]
        message = self._message()
        self.players = {
            name: Player(message, f"{m:032x}") for m, name in enumerate(played, start=1)
        }
        self._draw()

    def _enrolled(self, name: str, at: float, owner: str) -> tuple[str, bytes]:
        _, key_id, secret_hash = make_token()
        self.store.enroll(name, "agent", key_id, secret_hash, at, owner)
        return key_id, secret_hash

    def _message(self) -> RoundMessage:
        counted = Counted(self.store.merged(), self.store.counts_by_lane())
        evidence = counted.evidence(self.federation.shares, 0)
        number = self._coordinator.number
        self._told = self.planner.laws(evidence, number) if self.federation.draws == "own" else None
        return RoundMessage(
            federation=self.federation.name,
            agent=LIAR,
            round=number,
            slots=self._coordinator.limit,
            visit_factor=None,
            shape=self.shape,
            rewards=tuple(arm.reward for arm in self.federation.arms),
            plan=self.planner.plan(evidence, number).plan,
        )

    def _draw(self) -> None:
        """Have every player play by its own draw, as agents do that are told laws."""
        if self._told is None:
            return
        for place, player in enumerate(self.players.values()):
            generator = np.random.default_rng([self.run.trial, place, player.round])
            plan, _ = own_plan(self._told, player.message, player.counts, generator)
            player.play_by(plan)

    def play(self) -> Outcome:
        arms = channels(p01=P01, p11=P11, reward=REWARD)
        worlds = [SimulatedArms(arms, (self.run.trial, m)) for m in range(len(self.players))]
        reward = np.zeros(self.run.slots)
        for slot in range(self.run.slots):
            if slot == self.run.forgotten_at:
                self.store.revoke(LIAR, self.now)
                self.store.erase(LIAR, self.now)
            players = zip(self.players.items(), worlds, strict=True)
            for place, ((_, player), world) in enumerate(players):
                before = player.reward
                chosen = player.choose().tolist()
                player.observe(chosen, world.sense(chosen))
                if place < AGENTS:
                    reward[slot] += (player.reward - before) / AGENTS
            self.now += 1.0
            if all(player.over for player in self.players.values()):
                self._close_round(awake=slot + 1 > self.run.sleeps)
        counts, owners = self.store.counts_by_agent(), self.store.credentials.owners()
        scores = compared(counts, self.shape, owners).scores
        weights, lanes = self.store.counts_by_lane().weights, self.store.lanes()
        weighed = {
            name: 1.0 if weights is None or lane >= len(weights) else float(weights[lane])
            for name, lane in lanes.items()
        }
        return Outcome(reward, scores, weighed, self.refused)

    def _close_round(self, *, awake: bool) -> None:
        number = self._coordinator.number
        with self.store.transaction():
            for name, player in self.players.items():
                if awake and name in self.run.liars:
                    continue
                upload = player.upload(number)
                self._receive(name, upload)
                self._coordinator.reported(name, upload.length, self.now)
            if awake and self.run.claims is not None:
                self._sequence += 1
                for place, name in enumerate(self.run.liars):
                    self._lie(name, place, number)
        self._coordinator = self._coordinator.next(self.federation.schedule)
        message = self._message()
        for player in self.players.values():
            player.begin(message)
        self._draw()

    def _lie(self, name: str, place: int, number: int) -> None:
        """Claim what is wanted under an incarnation of its own, or where that is refused as much as
        the refusal names."""
        assert self.run.claims is not None
        slots = max(self.run.claims, next(iter(self.players.values())).slots)
        incarnation = f"{2**128 - 1 - place:032x}"
        tell = partial(
            lie, self.shape, sequence=self._sequence, round=number, incarnation=incarnation
        )
        try:
            self._receive(name, tell(slots))
        except ProtocolError as error:
            self.refused += 1
            before = self.store.uploads.record(name, incarnation)
            told = 0 if before is None else before.slots
            if error.code == "slots" and error.extra["slots"] > 0:
                self._receive(name, tell(told + error.extra["slots"]))

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
            UploadRules(self.federation.slot_seconds),
        )


@cache
def _planner(policy: str, draws: str, trial: int) -> Planner:
    """Compiled once for all remedies, which are no matter of planning."""
    from rmab.protocol.planner import Planner

    return Planner(Run(None, policy=policy, draws=draws, trial=trial).federation)


def played(run: Run) -> Outcome:
    """Play one federation to its end."""
    federation = run.federation
    with tempfile.TemporaryDirectory(prefix="rmab-liar-") as folder:
        store = claimed_store(str(Path(folder) / "liar.db"), federation)
        try:
            return _Federation(run, store, _planner(run.policy, run.draws, run.trial)).play()
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


def careful(policy: str = "fedtswi", slots: int = SLOTS) -> Run:
    """Return a federation with the settings of `rmab new federation`, without a liar."""
    return Run(None, slot_seconds=1.0, cap=CAREFUL_CAP, policy=policy, slots=slots, draws="own")


def attacked(run: Run) -> dict[str, Run]:
    """Return what a liar may do to a federation, by name; all at once is of 2^40 slots."""
    return {
        "honest rate": replace(run, claims=0),
        "all at once": replace(run, claims=2**40, head_start=DAY),
        "sleeper": replace(run, claims=2**40, sleeps=run.slots // 2, head_start=DAY),
        "ten names": replace(run, claims=2**40, names=10, head_start=DAY),
    }


ATTACKS = tuple(attacked(careful()))


def costs(
    policy: str = "fedtswi", trials: int = TRIALS, slots: int = SLOTS, attacks: Sequence[str] = ()
) -> dict[str, Any]:
    """Measure what each attack costs honest agents under the careful settings.

    attacks: of ATTACKS, all where none is named. Of each attack `cost` and `late_cost` are the
    shares of the reward that are lost, over all slots and over the second half, with `se` and
    `late_se`, standard errors over trials; `score` is the least outlier score of the liar and
    `honest_score` the largest of anybody else.
    """
    run = careful(policy, slots)

    def each(one: Run) -> list[Outcome]:
        return [played(replace(one, trial=trial)) for trial in range(trials)]

    truth = each(run)
    found: dict[str, Any] = {
        "policy": policy,
        "trials": trials,
        "slots": slots,
        "agents": AGENTS,
        "settings": {"slot_seconds": run.slot_seconds, "cap": run.cap, "draws": run.draws},
        "reward": float(np.mean([one.reward.mean() for one in truth])),
        "late_reward": float(np.mean([one.late for one in truth])),
        "attacks": {},
    }
    for name, attack in attacked(run).items():
        if attacks and name not in attacks:
            continue
        lied = each(attack)
        liars = set(attack.liars)
        scores = [(who in liars, s) for one in lied for who, s in one.scores.items() if s]
        row: dict[str, Any] = {
            "score": min((s for is_liar, s in scores if is_liar), default=None),
            "honest_score": max((s for is_liar, s in scores if not is_liar), default=None),
        }
        for prefix, of in (("", _whole), ("late_", _late)):
            pairs = [(of(one), of(other)) for one, other in zip(truth, lied, strict=True)]
            lost = np.array([one - other for one, other in pairs]) / np.mean([t for t, _ in pairs])
            row[f"{prefix}cost"] = float(lost.mean())
            row[f"{prefix}se"] = float(lost.std(ddof=1) / np.sqrt(trials)) if trials > 1 else None
        found["attacks"][name] = row
    return found


def _whole(outcome: Outcome) -> float:
    return float(outcome.reward.mean())


def _late(outcome: Outcome) -> float:
    return outcome.late


def measure(
    trials: int, slots: int, policy: str, say: Callable[[str], None]
) -> dict[str, dict[str, Any]]:
    """By remedy and claim the mean of the reward and its standard error, and whether some claim was
    refused; "scores" has the smallest and the largest outlier score, of the honest and of the liar.

    Without a liar nothing is refused and nobody forgotten: that is played once, for all remedies.
    """
    scores: dict[str, list[float]] = {"honest": [], LIAR: []}
    rewards: dict[str, dict[str, Any]] = {}
    honest: Any = None
    for name, remedy in remedies(policy, slots).items():
        rewards[name] = {}
        for claim, claims in CLAIMS.items():
            if claims is None and honest is not None and remedy.cap is None:
                rewards[name][claim] = honest
                continue
            found = [played(replace(remedy, claims=claims, trial=n)) for n in range(trials)]
            late = [each.late for each in found]
            error = float(np.std(late, ddof=1) / np.sqrt(trials)) if trials > 1 else None
            rewards[name][claim] = {
                "reward": [float(np.mean(late)), error],
                "refused": any(each.refused for each in found),
            }
            if claims is None:
                honest = rewards[name][claim]
            for each in found:
                for agent, score in each.scores.items():
                    if score is not None:
                        scores[LIAR if agent == LIAR else "honest"].append(float(score))
            say(f"{name}, {claim}")
    ranges = {who: [min(told), max(told), len(told)] for who, told in scores.items() if told}
    return {"rewards": rewards, "scores": ranges}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print both tables, or all of it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trials", type=int, default=TRIALS)
    parser.add_argument("--slots", type=int, default=SLOTS)
    parser.add_argument("--policy", default="fedtswi")
    parser.add_argument("--careful", action="store_true", help="the second table only")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    options = parser.parse_args(arguments)
    asked = options.policy, options.trials, options.slots
    found: dict[str, Any] = {}
    if not options.careful:
        policy, trials, slots = asked
        say = partial(print, flush=True, file=sys.stderr)
        found["remedies"] = measure(trials, slots, policy, say)
    found["careful"] = costs(*asked)
    if options.json:
        print(json.dumps(found))
        return 0
    if "remedies" in found:
        for name, cells in found["remedies"]["rewards"].items():
            print(name, {claim: each["reward"] for claim, each in cells.items()})
        print("scores", found["remedies"]["scores"])
    print("| attack | cost | in the second half | liar's score | largest of others |")
    print("|---|---|---|---|---|")
    for name, row in found["careful"]["attacks"].items():
        print(
            f"| {name} | {100 * row['cost']:.2f} ± {100 * row['se']:.2f} % "
            f"| {100 * row['late_cost']:.2f} ± {100 * row['late_se']:.2f} % "
            f"| {row['score']} | {row['honest_score']} |"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
