"""Gymnasium environment of one agent that plays K of N arms."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from rmab.envs.drawing import RENDER_MODES, Film
from rmab.envs.game import Choices, Game, Source, check_actions, scene_of
from rmab.errors import StudyError
from rmab.model.arms import Arm, Arms, channels
from rmab.studies.study import Study
from rmab.text import one_of, shown

__all__ = ["ArmsEnv", "ChannelsEnv", "Observation", "trial_of"]

Observation = dict[str, npt.NDArray[np.int64]]

# The paper's case study, Section VI.
PAPER = channels(p01=[0.2, 0.89, 0.1, 0.9], p11=[0.8, 0.17, 0.9, 0.16], reward=[0.4, 0.9, 0.7, 0.6])


class ArmsEnv(gymnasium.Env[Observation, Any]):
    """Arms of any kind, played by one agent.

    study: a `rmab.Study`, its file or bundled name, or arms; or `arms`; without both it is
    catalogue:fading. plays, horizon: in place of the study's. agent: whose realisation it is, from
    0, where the study has several.

    An observation has the information state of every arm: `last_seen`, the state last observed, and
    `age`, the slots since, 0 where it was never observed. An arm that is always observed is in
    (state now, 1); with `fully_observed` all are. An action is one of `rmab.envs.game`: a set of K
    arms by its number, or scores of which the K largest are played. A step pays the slot's rewards.
    Episodes end after `horizon` slots, truncated.

    reset(seed=s) begins with trial 0 of the engine's seed s, and each reset without a seed goes on
    to the next trial. options={"trial": n} names another; without any seed so far it is of the
    study's seed. A first reset without both has a seed by chance.
    """

    metadata = {"render_modes": list(RENDER_MODES), "render_fps": 4}  # noqa: RUF012 - Gymnasium's
    _default: Source = "catalogue:fading"

    def __init__(
        self,
        study: Source | None = None,
        *,
        arms: Arms | list[Arm] | None = None,
        plays: int | None = None,
        horizon: int | None = None,
        agent: int = 0,
        actions: str = "sets",
        fully_observed: bool = False,
        render_mode: str | None = None,
    ) -> None:
        self.study = scene(study, arms, self._default, plays=plays, horizon=horizon)
        if not _is_whole(agent) or not 0 <= agent < self.study.agents:
            raise StudyError(
                f"agent must be from 0 to {self.study.agents - 1}, the last of the study's, "
                f"got {shown(agent)}"
            )
        self.render_mode = checked_mode(render_mode)
        self.choices = Choices(len(self.study.arms), self.study.plays)
        self.observation_space = observation_space(self.study)
        self.action_space = action_space(actions, self.choices)
        self._agent, self._fully_observed = agent, fully_observed
        self._named: tuple[int, int] | None = None
        self._game: Game | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin a trial, see the class."""
        super().reset(seed=seed)
        self._named = trial_of(seed, options, self._named, self.study.seed, self.np_random)
        self._game = Game(
            self.study,
            self._named[0],
            [self._named[1]],
            [self._agent],
            fully_observed=self._fully_observed,
        )
        self._film = Film(self._game, self.study.arms.sizes)
        return self._observation(), self._info()

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Play the arms of an action for a slot."""
        game = self._begun()
        played = self.choices.played(action, ())
        states = game.states[0]
        reward = float(game.play(played[None, None]).sum())
        self._film.add(states, played[None], reward)
        return self._observation(), reward, False, game.over, self._info()

    def render(self) -> Any:
        """Return a picture, a text, or nothing, by `render_mode`."""
        self._begun(over=True)
        return rendered(self._film, self.render_mode)

    @property
    def states(self) -> npt.NDArray[np.int64]:
        """The true states in the slot that comes next, (N,)."""
        return np.array(self._begun(over=True).states[0, 0])

    def _begun(self, *, over: bool = False) -> Game:
        if self._game is None or (self._game.over and not over):
            raise gymnasium.error.ResetNeeded("reset must come first, and again after a trial")
        return self._game

    def _observation(self) -> Observation:
        game = self._begun(over=True)
        return {"last_seen": game.last_seen[0, 0].copy(), "age": game.age[0, 0].copy()}

    def _info(self) -> dict[str, Any]:
        assert self._named is not None
        seed, trial = self._named
        return {"seed": seed, "trial": trial, "slot": self._begun(over=True).slot}


class ChannelsEnv(ArmsEnv):
    """Channels played by one agent: without a study the paper's four. As `ArmsEnv` otherwise."""

    _default = PAPER

    def __init__(self, study: Source | None = None, **others: Any) -> None:
        super().__init__(study, **others)
        for number, arm in enumerate(self.study.arms, start=1):
            if not arm.is_channel:
                raise StudyError(
                    f"arm {number} must be a channel here: two states, observed and paid only when "
                    "played, nothing paid in state 0; rmab/Arms-v0 takes any arms"
                )


# ------------------------------------------------------------------ what all environments have


def scene(
    study: Source | None, arms: Arms | list[Arm] | None, default: Source, **changes: Any
) -> Study:
    """Return the study of an environment: given, of given arms, or the default."""
    if study is not None and arms is not None:
        raise StudyError("study and arms must not both be given")
    given = arms if study is None else study
    return scene_of(default if given is None else given, **changes)


def checked_mode(mode: str | None) -> str | None:
    """Check a mode: one of RENDER_MODES, or None."""
    if mode is not None:
        one_of("render_mode", mode, RENDER_MODES)
    return mode


def rendered(film: Film, mode: str | None) -> Any:
    """Render a game by its mode."""
    if mode == "ansi":
        return film.as_text()
    return film.as_picture() if mode == "rgb_array" else None


def observation_space(study: Study) -> spaces.Space[Any]:
    """The information states of one agent's arms."""
    N = len(study.arms)
    return spaces.Dict(
        {
            "last_seen": spaces.MultiDiscrete(study.arms.sizes),
            "age": spaces.Box(0, study.horizon, (N,), np.int64),
        }
    )


def action_space(actions: str, choices: Choices) -> spaces.Space[Any]:
    """Return the action space of one agent; actions: one of `rmab.envs.game.ACTIONS`."""
    check_actions(actions, choices)
    if actions == "sets":
        return spaces.Discrete(choices.n_sets)
    return spaces.Box(-1.0, 1.0, (choices.n_arms,), np.float32)


def trial_of(
    seed: int | None,
    options: dict[str, Any] | None,
    before: tuple[int, int] | None,
    own_seed: int,
    random: np.random.Generator,
) -> tuple[int, int]:
    """The seed and trial of a reset, from those before it; own_seed: the study's."""
    trial = (options or {}).get("trial")
    if trial is not None and not (_is_whole(trial) and 0 <= trial < 2**32):
        raise StudyError(f"trial must be a whole number from 0 to 2^32 - 1, got {shown(trial)}")
    if seed is not None:
        if not _is_whole(seed) or not 0 <= seed < 2**64:
            raise StudyError(f"seed must be from 0 to 2^64 - 1, got {shown(seed)}")
        return int(seed), int(trial or 0)
    if before is None:
        chosen = own_seed if trial is not None else int(random.integers(2**63))
        return chosen, int(trial or 0)
    return before[0], (before[1] + 1) % 2**32 if trial is None else int(trial)


def _is_whole(value: Any) -> bool:
    """Whether it is a whole number, Python's or NumPy's."""
    return isinstance(value, Integral) and not isinstance(value, bool)
