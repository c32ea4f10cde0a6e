"""Episode rules: when a policy's episodes end.

    EpisodeRule   the study's schedule (`rmab.policies.episodes`), and eq. (22)
    OwnVisits     a factor of 2 in place of 2^M, and both actions
    Lengths       lengths of its own, in place of a schedule
    PairDoubling  an episode ends when pairs of some kind were seen in it as often as before

Another one is a subclass. Written for NumPy and JAX arrays alike.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from rmab.linalg import Array, array_namespace
from rmab.policies.episodes import (
    FIRST_LENGTH,
    most_episodes,
    next_limit,
    visit_limit,
    visits_can_end,
)

if TYPE_CHECKING:  # which is above
    from rmab.engine.setting import Setting

__all__ = ["EpisodeRule", "Lengths", "OwnVisits", "PairDoubling"]


def by_colour(pairs: Array) -> Array:
    """Return pairs (C, S, S, N, ...) by kind and first state, (C S, N, ...)."""
    return pairs.sum(2).reshape(-1, *pairs.shape[3:])


@dataclass(frozen=True, eq=False)
class EpisodeRule:
    """End an episode after `limit` slots or when watched counts pass their `cap`, as Algorithm 1.

    Parameters
    ----------
    longest
        Most slots of an episode; None: as the schedule says.
    explored
        (evidence, output of the learner) -> whether the next episode explores, (trials,): plays of
        such episodes only are counted as visits. None: all are.
    """

    longest: int | None = field(default=None, kw_only=True)
    explored: Callable[[Any, Any], Array] | None = field(default=None, kw_only=True)

    countless: ClassVar[bool] = False  # there may be as many episodes as slots
    in_step: ClassVar[bool] = True  # trials that watch nothing end their episodes together
    watches_visits: ClassVar[bool] = True  # else pairs
    watches_idle: ClassVar[bool] = False  # slots without a play, of arms that are always observed

    def doublings(self, n_agents: int) -> int:
        """Return log2 of the factor by which visits must grow."""
        return n_agents

    def watches(self, setting: Setting) -> bool:
        """Whether counts can end an episode."""
        return visits_can_end(setting.schedule, self.doublings(setting.n_agents), setting.horizon)

    def most(self, setting: Setting) -> int:
        """Return a number of episodes that no run can exceed."""
        sizes = setting.n_agents, setting.n_arms, setting.horizon, setting.n_states
        longest = self._longest(setting)
        return most_episodes(setting.schedule, *sizes, longest, own_visits=self.watches_idle)

    def own_slots(self, evidence: Any, output: Any) -> Array | int | None:  # noqa: ARG002
        """Return the slots of the next episode, (trials,), where they are not the schedule's."""
        return None

    def limit(self, setting: Setting, slots: Array | None, number: Array, length: Array) -> Array:  # noqa: ARG002
        """Return the most slots of the next episodes, (R,).

        slots: (A, R) own slots of A agents, or None; number, length: (R,) of the episodes before.
        """
        previous = array_namespace(number).where(number == 0, FIRST_LENGTH, length)
        return next_limit(setting.schedule, previous, self._longest(setting))

    def watch(self, visits: Array | None, idle: Array | None, pairs: Callable[[], Array]) -> Any:  # noqa: ARG002
        """Return the counts that may end an episode, (W, N, M, R), or None.

        visits, idle: (S, N, M, R) by state, with and without a play; pairs: gives them,
        (C, S, S, N, ...).
        """
        if visits is None or idle is None:
            return visits
        return array_namespace(visits).concatenate([visits, idle])

    def cap(self, setting: Setting, watched: Array, evidence: Any, *, anew: bool) -> Array:  # noqa: ARG002
        """Return the counts that end an episode when exceeded; watched: those at its start.

        anew: counts of pairs begin anew with every episode.
        """
        factor = 2 ** self.doublings(setting.n_agents)
        most = visit_limit(watched.astype("int32"), factor, setting.horizon)
        return most.astype(watched.dtype)

    def over(self, watched: Array, cap: Array) -> Array:
        """Whether watched counts (W, N, M, R) end an episode, (R,)."""
        return (watched > cap).astype("int8").max((0, 1, 2)) > 0

    def _longest(self, setting: Setting) -> int | None:
        given = [most for most in (setting.longest, self.longest) if most is not None]
        return min(given, default=None)


class OwnVisits(EpisodeRule):
    """End an episode when an agent's own visits of a state of an arm have more than doubled.

    Visits are plays and, of an arm that is always observed, slots without one.
    """

    watches_idle: ClassVar[bool] = True

    def doublings(self, n_agents: int) -> int:  # noqa: ARG002 - an agent by itself
        """Return log2 of the factor by which visits must grow."""
        return 1


@dataclass(frozen=True, eq=False)
class Lengths(EpisodeRule):
    """Lengths of a policy's own for its episodes, in place of the schedule's.

    Parameters
    ----------
    slots
        (evidence, output of the learner) -> slots of the next episode, (trials,).
    complete
        Where agents have evidence of their own, an episode lasts until it is over for every agent;
        else it ends with the first.
    least
        Slots that every episode except the last has, which bounds how many there are.
    """

    slots: Callable[[Any, Any], Array | int]
    complete: bool = False
    least: int = 1

    in_step: ClassVar[bool] = False

    @property
    def countless(self) -> bool:  # type: ignore[override]  # it depends on `least`
        """Whether there may be as many episodes as slots."""
        return self.least == 1

    def watches(self, setting: Setting) -> bool:  # noqa: ARG002
        """Whether counts can end an episode."""
        return False

    def most(self, setting: Setting) -> int:
        """Return a number of episodes that no run can exceed."""
        return -(-setting.horizon // self.least)

    def own_slots(self, evidence: Any, output: Any) -> Array | int | None:
        """Return the slots of the next episode, (trials,)."""
        return self.slots(evidence, output)

    def limit(self, setting: Setting, slots: Array | None, number: Array, length: Array) -> Array:  # noqa: ARG002
        """Return the slots of the next episodes, (R,), see `EpisodeRule`."""
        assert slots is not None
        return slots.max(0) if self.complete else slots.min(0)


class PairDoubling(EpisodeRule):
    """End an episode when it has as many pairs of an arm, first state and gap as all before.

    It holds under all schedules and needs a learner that counts by gap.
    """

    watches_visits: ClassVar[bool] = False

    def watches(self, setting: Setting) -> bool:  # noqa: ARG002 - under all schedules
        """Whether counts can end an episode."""
        return True

    def most(self, setting: Setting) -> int:
        """Return a number of episodes that no run can exceed."""
        return setting.horizon

    def limit(self, setting: Setting, slots: Array | None, number: Array, length: Array) -> Array:  # noqa: ARG002
        """Return the most slots of the next episodes, (R,), see `EpisodeRule`."""
        return array_namespace(length).full_like(length, setting.horizon)

    def watch(self, visits: Array | None, idle: Array | None, pairs: Callable[[], Array]) -> Any:  # noqa: ARG002
        """Return pairs by gap and first state, (C S, N, M or 1, R)."""
        return by_colour(pairs())

    def cap(self, setting: Setting, watched: Array, evidence: Any, *, anew: bool) -> Array:  # noqa: ARG002
        """Return the counts that end an episode when exceeded, see `EpisodeRule`."""
        xp = array_namespace(watched)
        seen = by_colour(evidence.counts)
        seen = seen.reshape(*seen.shape[:2], -1, watched.shape[-1])[:, :, : watched.shape[2]]
        before = xp.zeros_like(watched) if anew else watched
        return before + xp.maximum(seen, 1) - 1
