"""Studies that run in a moment: one that learns, and one that knows the dynamics."""

from dataclasses import replace

from rmab import Study, channels

HORIZON, TRIALS = 40, 30
STUDY = Study(
    arms=channels(p01=[0.89, 0.2], p11=[0.17, 0.8], reward=[0.9, 0.4]),
    agents=2,
    horizon=HORIZON,
    trials=TRIALS,
    policies=["fedtswi", "whittle"],
)
KNOWN = replace(STUDY, policies=["whittle", "random"])
