"""Fed2-UCB: agents that join by phase, and arms that are dropped by the mean of their means.

In phase p = 1, 2, ... another 2^p agents join, as long as there are more; every agent that has
joined pulls every arm in play f times. An arm's mean is the mean of the agents' own means, since
agents' arms may differ: each is a draw whose deviation is sigma_c. With M agents of n_m pulls of an
arm each the bound on it is

    B = sqrt(sigma^2 eta ln T) + sqrt(sigma_c^2 ln T / M),   eta = (1 / M^2) sum over m of 1 / n_m,

and an arm is dropped whose mean + B lies under the K-th best one's mean - B. When K arms are left,
all agents play them.

Reference: C. Shi and C. Shen, "Federated multi-armed bandits", AAAI 2021.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from rmab.linalg import Array, array_namespace
from rmab.policies.capabilities import Capabilities
from rmab.policies.entry import BROKEN, Entry
from rmab.policies.options import number, shared, whole
from rmab.policies.policy import Lengths, Policy
from rmab.policies.published.fed1_ucb import phase_slots
from rmab.policies.rules.turns import WaitingTurnsRule

if TYPE_CHECKING:
    from rmab.learning.evidence import Evidence
    from rmab.rng.variates import Draws

__all__ = ["ENTRIES", "joining_survivors"]

_MOST_PHASES = 20  # in which agents join: a study has at most 2^16 agents


def joining_survivors(
    evidence: Evidence, _draws: Draws, *, pulls: int, horizon: int, sigma: float, sigma_c: float
) -> tuple[Array, Array]:
    """Return 1 for the arms that an agent is to pull, 0 for the others, (N, M R) twice; an agent
    that has not joined has 0 for all.

    The evidence is each agent's own, of `evidence.lanes` agents. The number of the episode is the
    phase's, and an arm in play is one whose pulls by the first agent, which has joined from the
    start, are within half a phase of the most.
    """
    xp = array_namespace(evidence.visits)
    n_arms, M = evidence.visits.shape[1], evidence.lanes

    def apart(numbers: Array) -> Array:
        """(N, M R) -> (N, M, R)."""
        return numbers.reshape(n_arms, M, -1)

    pulled = apart(evidence.visits.sum(0))
    paid = apart((evidence.rewards * evidence.visits).sum(0))
    phase = evidence.episode.reshape(M, -1)[0]  # (R,) that begins
    most = pulled.max(0)  # (M, R)
    joined = most > 0
    agents = xp.maximum(joined.sum(0), 1)  # (R,)
    playing = pulled[:, 0] >= most[0] - pulls / 2  # (N, R)
    mean = xp.where(joined, paid / xp.maximum(pulled, 1), 0).sum(1) / agents
    level = xp.log(float(horizon))
    eta = xp.where(joined, 1 / xp.maximum(most, 1), 0).sum(0) / agents**2
    width = xp.sqrt(sigma**2 * eta * level) + xp.sqrt(sigma_c**2 * level / agents)
    ranked = xp.sort(xp.where(playing, mean, -xp.inf), axis=0)[::-1]
    kth_best = xp.take(ranked, evidence.plays - 1, axis=0)
    alive = playing & (mean + width >= kth_best - width)
    there = 2 ** (xp.minimum(phase, _MOST_PHASES) + 1) - 2  # agents that have joined when it begins
    there = xp.where(alive.sum(0) <= evidence.plays, M, there)
    in_play = alive[:, None] & (xp.arange(M)[:, None] < there)
    arms = in_play.astype(xp.float32).reshape(n_arms, -1)
    return arms, arms


def fed2_ucb(
    name: str, horizon: int, *, pulls: int = 100, sigma: float = 0.5, sigma_c: float = 0.02
) -> Policy:
    """Return Fed2-UCB."""
    return Policy(
        name,
        rule=WaitingTurnsRule(),
        learner=partial(
            joining_survivors, pulls=pulls, horizon=horizon, sigma=sigma, sigma_c=sigma_c
        ),
        randomised=False,
        lengths=Lengths(partial(phase_slots, pulls=pulls, horizon=horizon), complete=True),
        aggregation="none",  # the server reads each agent's own means
    )


_OPTIONS = {
    "pulls": whole("100", 1, 10**6, "pulls of every arm in play by every agent in a phase"),
    **shared("sigma"),
    "sigma_c": number("0.02", 1e6, "the deviation of agents' mean rewards that bounds allow for"),
}
ENTRIES = {
    "fed2-ucb": Entry(
        "published", f"{__name__}:fed2_ucb", _OPTIONS,
        "Fed2-UCB: more agents join in every phase, until K arms remain",
        "Fed2-UCB", "#6f4c9b", BROKEN, "v", capabilities=Capabilities(served=False),
    ),
}  # fmt: skip
