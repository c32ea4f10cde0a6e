"""UCB1 on restless channels by SMPyBandits; run by the Python that has it, see `simulators`.

Prints one JSON object: processor seconds of each trial, and the mean reward a slot.

    python their_simulator.py TRIALS SLOTS P01,... P11,... REWARD,...
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import sys
import time


def main() -> int:
    """Run the trials one after the other, as its own loop does, without what it records."""
    trials, slots = int(sys.argv[1]), int(sys.argv[2])
    p01, p11, rewards = ([float(x) for x in text.split(",")] for text in sys.argv[3:6])
    with contextlib.redirect_stdout(io.StringIO()):
        mab = importlib.import_module("SMPyBandits.Environment.MAB")
        policies = importlib.import_module("SMPyBandits.Policies")
        arms = importlib.import_module("SMPyBandits.Arms")
        chains = [
            {(0, 0): 1 - up, (0, pays): up, (pays, 0): 1 - stay, (pays, pays): stay}
            for up, stay, pays in zip(p01, p11, rewards)  # noqa: B905 - any Python
        ]
        params = {"rested": False, "transitions": chains, "steadyArm": arms.Bernoulli}
        bandit = mab.MarkovianMAB({"arm_type": "Markovian", "params": params})
    policy = policies.UCB(len(p01))
    took, total = [], 0.0
    for _ in range(trials):
        begun = time.process_time()
        policy.startGame()
        for slot in range(slots):
            arm = policy.choice()
            bandit.draw(arm, slot)
            # What `draw` returns is the state of the arm that moved last, not of this one.
            paid = bandit.states[arm]
            policy.getReward(arm, paid)
            total += paid
        took.append(time.process_time() - begun)
    print(json.dumps({"seconds": took, "reward": total / (trials * slots)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
