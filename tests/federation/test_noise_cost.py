"""When a federation is warned of what noise costs it."""

import pytest

from rmab.federation.noise_cost import cost_warning, enough_agents
from rmab.federation.release import Budget


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
