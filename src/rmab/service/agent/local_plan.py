"""The plan that an agent makes for itself: a draw by its own observations, and indices of it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rmab.learning.channel.local_posterior import PROPOSALS, UNIFORMS, draw_local
from rmab.model.information import Dynamics, information_states
from rmab.planning.channel.whittle import myopic, whittle_at
from rmab.policies.plans import IndexPlan
from rmab.privacy.prior_summaries import SummariesMessage
from rmab.protocol.messages import RoundMessage

__all__ = ["MadePlan", "own_plan"]

_MAX_AGE = 256  # as of the server's own tables of channels
_WRAP = 2  # beliefs of channels with negative memory alternate
_INDEX = {"whittle": whittle_at, "myopic": myopic}


class MadePlan(NamedTuple):
    """Plan of an agent's own draw; alike: by arm, the weight of the others' observations."""

    plan: IndexPlan
    alike: tuple[float, ...]


def own_plan(
    told: SummariesMessage,
    message: RoundMessage,
    counts: npt.NDArray[np.int64],
    generator: np.random.Generator,
) -> MadePlan:
    """A plan for a round; counts: (C, 2, 2, N), all that the agent has counted itself."""
    kinds: npt.NDArray[Any] = counts.astype(np.float64)
    if not told.gaps:  # pairs in consecutive slots alone
        kinds = np.stack([kinds[0], np.zeros_like(kinds[0])])
    n_arms = message.shape.n_arms
    uniforms = generator.random((UNIFORMS, PROPOSALS, n_arms, 1)).clip(1e-12, 1 - 1e-12)
    drawn = draw_local(
        kinds[..., None], told.summaries, uniforms, prior=told.prior, doubt=told.doubt
    )
    states = information_states(_MAX_AGE)
    rewards = np.array([reward[1] for reward in message.rewards])[:, None]
    index = _INDEX[told.index](Dynamics(drawn.p01, drawn.p11, rewards), states)
    table = np.asarray(index, np.float32)
    alike = tuple(float(weight) for weight in drawn.borrowing[:, 0])
    return MadePlan(IndexPlan(_MAX_AGE, _WRAP, table, message.shape.states), alike)
