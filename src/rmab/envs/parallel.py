"""M agents that play K of N arms each, as a PettingZoo parallel environment."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from pettingzoo import ParallelEnv

from rmab.envs.arms import (
    PAPER,
    Observation,
    action_space,
    checked_mode,
    observation_space,
    rendered,
    scene,
    trial_of,
)
from rmab.envs.drawing import RENDER_MODES, Film
from rmab.envs.game import Choices, Game, Source
from rmab.errors import StudyError
from rmab.model.arms import Arm, Arms
from rmab.studies.study import Study

__all__ = ["ParallelArmsEnv"]

_DEFAULT = Study(arms=PAPER, agents=4)
_CHANGES = {"agents", "plays", "horizon", "realisations"}  # in place of the study's

Infos = dict[str, dict[str, Any]]


class ParallelArmsEnv(ParallelEnv[str, Observation, Any]):
    """Arms of any kind, played by the agents `agent_0`, `agent_1`, ... of a study.

    Without a study or arms there are four agents on the paper's channels. agents, plays, horizon,
    realisations: in place of the study's. With realisations "independent"
    every agent has arms of its own, with "shared" all face the same ones; agents never get in one
    another's way. All else is as in `rmab.envs.ArmsEnv`: observations, actions, rewards, seeds.
    """

    metadata = {"name": "rmab_arms_v0", "render_modes": list(RENDER_MODES), "render_fps": 4}  # noqa: RUF012 - PettingZoo's

    def __init__(
        self,
        study: Source | None = None,
        *,
        arms: Arms | list[Arm] | None = None,
        actions: str = "sets",
        fully_observed: bool = False,
        render_mode: str | None = None,
        **changes: Any,
    ) -> None:
        for key in changes.keys() - _CHANGES:
            raise TypeError(f"ParallelArmsEnv() got an unexpected keyword argument {key!r}")
        self.study = scene(study, arms, _DEFAULT, **changes)
        self.render_mode = checked_mode(render_mode)
        self.choices = Choices(len(self.study.arms), self.study.plays)
        self.possible_agents = [f"agent_{number}" for number in range(self.study.agents)]
        self.agents: list[str] = []
        self.observation_spaces = {
            agent: observation_space(self.study) for agent in self.possible_agents
        }
        self.action_spaces = {
            agent: action_space(actions, self.choices) for agent in self.possible_agents
        }
        self._fully_observed = fully_observed
        self._named: tuple[int, int] | None = None
        self._random = np.random.default_rng()
        self._game: Game | None = None

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        """Return the observation space of an agent."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> spaces.Space[Any]:
        """Return the action space of an agent."""
        return self.action_spaces[agent]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Observation], Infos]:
        """Begin a trial, by the rule of `ArmsEnv`."""
        self._named = trial_of(seed, options, self._named, self.study.seed, self._random)
        self.agents = self.possible_agents.copy()
        self._game = Game(
            self.study,
            self._named[0],
            [self._named[1]],
            range(self.study.agents),
            fully_observed=self._fully_observed,
        )
        self._film = Film(self._game, self.study.arms.sizes)
        return self._observations(), self._infos()

    def step(
        self, actions: dict[str, Any]
    ) -> tuple[dict[str, Observation], dict[str, float], dict[str, bool], dict[str, bool], Infos]:
        """All agents play for a slot."""
        game, agents = self._begun(), self.agents
        if not agents:
            raise gymnasium.error.ResetNeeded("reset must come again after a trial")
        for agent in agents:
            if agent not in actions:
                raise StudyError(f"actions must have one for each agent, got none for {agent}")
        played = np.stack([self.choices.played(actions[agent], ()) for agent in agents])
        states = game.states[0]
        paid = game.play(played[None])[0].sum(-1)
        self._film.add(states, played, float(paid.sum()))
        answer = (
            self._observations(),
            {agent: float(paid[n]) for n, agent in enumerate(agents)},
            dict.fromkeys(agents, False),
            dict.fromkeys(agents, game.over),
            self._infos(),
        )
        if game.over:
            self.agents = []
        return answer

    def render(self) -> Any:
        """Return a picture, a text, or nothing, by `render_mode`."""
        self._begun()
        return rendered(self._film, self.render_mode)

    def close(self) -> None:
        """Close nothing: nothing is open."""

    @property
    def states(self) -> npt.NDArray[np.int64]:
        """The true states in the slot that comes next, (M, N)."""
        return np.array(self._begun().states[0])

    def _begun(self) -> Game:
        if self._game is None:
            raise gymnasium.error.ResetNeeded("reset must come first")
        return self._game

    def _observations(self) -> dict[str, Observation]:
        game = self._begun()
        return {
            agent: {"last_seen": game.last_seen[0, n].copy(), "age": game.age[0, n].copy()}
            for n, agent in enumerate(self.possible_agents)
        }

    def _infos(self) -> Infos:
        assert self._named is not None
        seed, trial = self._named
        return {
            agent: {"seed": seed, "trial": trial, "slot": self._begun().slot}
            for agent in self.possible_agents
        }
