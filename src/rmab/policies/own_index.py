"""Protocol of learners that keep their own state, per arm and agent, and give an index from it.

Such learners are written for NumPy and JAX arrays alike and import NumPy only: the engine runs them
for many trials, a served agent for itself, by their name in `OWN_INDICES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from rmab.extensions import Catalogue
from rmab.linalg import Array

__all__ = ["OWN_INDICES", "Now", "Observations", "OwnLearner", "index_now", "looked"]

_PUBLISHED = "rmab.policies.published"
# By the policy's name: the class whose fields are its options.
OWN_INDICES: Mapping[str, type[Any]] = Catalogue(
    {
        "ucb": f"{_PUBLISHED}.ucb:MeanRewards",
        "rca": f"{_PUBLISHED}.rca:RegenerativeCycles",
        "wiql": f"{_PUBLISHED}.q_learning:ActionValues",
        "qwi": f"{_PUBLISHED}.q_learning:IndexLearning",
    }
)


class Now(NamedTuple):
    """Data for a choice in a slot; arrays (N, ...), arms first.

    Parameters
    ----------
    state : Array, (N, ...)
        State last observed; of an arm that is always observed, its state in this slot.
    age : Array, (N, ...)
        Slots since; 0: there was no observation.
    stepped : Array of bool, (N, ...)
        Whether `state` is of this slot, and the state of the slot before was observed too.
    slot : Array
        Number of slots before this one.
    uniforms : Array, (2, N, ...)
        Random numbers on (0, 1).
    """

    state: Array
    age: Array
    stepped: Array
    slot: Array
    uniforms: Array


class Observations(NamedTuple):
    """Observations of a slot; arrays (N, ...), arms first.

    Parameters
    ----------
    played, observed : Array of bool, (N, ...)
        Whether each arm was played, and observed.
    state : Array, (N, ...)
        State of each arm, to be read where it was observed.
    reward : Array, (N, ...)
        Pay of each arm.
    slot : Array
        Number of slots before this one.
    """

    played: Array
    observed: Array
    state: Array
    reward: Array
    slot: Array


class OwnLearner(Protocol):
    """Learner with a state of its own, per arm and agent.

    A state is a tuple of arrays that end in the shape it was made for: (N, M agents, R trials) in
    the engine, (N,) in a served agent, where it is kept in the agent's file. All methods work on
    NumPy and JAX arrays alike, element by element along agents and trials, and change nothing in
    place. Besides `init` and `update` it has one of

        index(state, slot) -> (N, ...)     index of every arm in this slot
        index_at(state, now) -> (N, ...)   the same from all that is known before the choice, `Now`
        dynamics(state, draws) -> Moves    dynamics at the start of an episode, from the state that
                                           the aggregation combines over agents

    A learner of an index may also have look(state, now), its state once the arms that are always
    observed show themselves, before the choice; a learner of dynamics may have end_episode(state),
    its state after an episode.
    """

    def init(self, n_states: int, shape: tuple[int, ...]) -> tuple[Array, ...]:
        """Return the state before the first slot; n_states: of the largest arm."""

    def update(self, state: Any, seen: Observations) -> tuple[Array, ...]:
        """Return the state after a slot."""


def looked(own: Any, state: Any, now: Callable[[], Now]) -> Any:
    """Return a learner's state once a slot's first states are shown, before the choice.

    now: makes the data for learners that look.
    """
    return own.look(state, now()) if hasattr(own, "look") else state


def index_now(own: Any, state: Any, slot: Array, now: Callable[[], Now]) -> Array:
    """Return a learner's index of every arm in a slot, (N, ...)."""
    return own.index_at(state, now()) if hasattr(own, "index_at") else own.index(state, slot)
