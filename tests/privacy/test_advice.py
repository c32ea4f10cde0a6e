"""When a federation is warned of what noise costs it."""

import math

import pytest

from rmab.privacy.accounting import Budget, noise_multiplier
from rmab.privacy.advice import cost_warning, enough_agents


@pytest.mark.parametrize(
    ("epsilon", "draws", "groups", "few", "many"),
    [
        # Loss measured (docs/privacy.md): alone .0100; own .0097 and .0065, shared .050.
        (1.0, "own", 1, 4, 16),
        (8.0, "own", 1, 1, 4),
        # Alone .021; shared .062 and .025, .011.
        (1.0, "shared", 1, 16, 64),
        (1.0, "per-agent", 1, 16, 64),
        # Each group has noise of its own.
        (1.0, "own", 4, 16, 64),
        (0.5, "own", 1, 16, 18),
    ],
)
def test_few_agents_are_warned_and_many_are_not(epsilon, draws, groups, few, many):
    budget = Budget(epsilon)
    told = cost_warning(budget, few, draws, groups)
    assert told is not None
    assert "\n" not in told
    enough = enough_agents(budget, draws, groups)
    assert few < enough <= many
    assert f"{few} agent" in told
    assert f"{enough} or more gain" in told
    assert cost_warning(budget, enough, draws, groups) is None
    assert ('draws = "own"' in told) == (draws != "own")


def test_without_noise_nobody_is_warned():
    assert cost_warning(None, 1, "shared") is None


@pytest.mark.parametrize(
    ("draws", "times"), [("own", 2), ("shared", 5), ("per-agent", 5), ("survey", 7)]
)
def test_enough_agents_are_so_many_times_the_noise(draws, times):
    for epsilon, groups in ((0.5, 1), (1.0, 1), (1.0, 9), (8.0, 4)):
        z = noise_multiplier(epsilon, Budget(epsilon).delta)
        enough = enough_agents(Budget(epsilon), draws, groups)
        assert enough == max(2, math.ceil(times * z * math.sqrt(groups)))
    assert enough_agents(Budget(50.0), draws) == 2  # one agent has nobody to gain from


def test_words_of_the_warning():
    assert "leaves few agents little" in str(cost_warning(Budget(1.0), 0, "own"))
    assert "leaves 1 agent little" in str(cost_warning(Budget(1.0), 1, "own"))
    assert "a survey cost 3 agents about as much" in str(cost_warning(Budget(1.0), 3, "survey"))
