"""What learning from every look earns on the paper's arms, at 10,000 trials."""

import pytest

from rmab import Study, channels, run

ARMS = channels([0.2, 0.89, 0.1, 0.9], [0.8, 0.17, 0.9, 0.16], [0.4, 0.9, 0.7, 0.6])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("agents", "plays", "least"), [(4, 2, 0.9800), (4, 1, 0.5765), (1, 1, 0.5675)]
)
def test_a_third_to_a_seventh_of_the_loss_is_left(agents, plays, least):
    policies = ["fedtswi", "fedtswi-gap"]
    study = Study(arms=ARMS, agents=agents, plays=plays, trials=10_000, policies=policies)
    results = run(study)
    assert results["fedtswi-gap"].mean > least
    assert results["fedtswi-gap"].behind < results["fedtswi"].behind / 2.5


@pytest.mark.slow
def test_looking_ahead_ends_above_the_whittle_policy_that_knows():
    policies = ["fedts-lookahead-gap", "whittle"]
    results = run(Study(arms=ARMS, agents=4, plays=2, trials=10_000, policies=policies))
    learnt, known = (results[name] for name in policies)
    assert learnt.final > known.final + learnt.final_se
