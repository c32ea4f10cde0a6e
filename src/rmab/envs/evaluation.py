"""Evaluation of any callable on exactly the engine's trials, beside the engine's policies.

A callable is given an observation as the environments give it and says a choice as they take it:

    policy(observation) -> action

Where it has a method `reset`, that is called before every trial; where it has `observe`, that is
called after every slot, observe(observation, action, reward, next observation), so that it may
learn. Several agents are played by one callable, or each by its own: a mapping from `agent_0`,
`agent_1`, ... Trials are then played one after the other. A callable that is `batched` is given all
trials and agents at once, arrays (trials x agents, N), and answers for all of them: a network is
then asked once a slot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rmab.envs.game import Choices, Game, Source, study_of
from rmab.errors import StudyError
from rmab.policies.policy import Policy
from rmab.policies.rules.external import OutsideRule
from rmab.studies.results import Results
from rmab.studies.run import run
from rmab.studies.study import Study

if TYPE_CHECKING:
    from rmab.engine.montecarlo import Trials

__all__ = ["as_policy", "evaluate"]

Player = Callable[[Any], Any]
Players = Player | Mapping[str, Player]
Rewards = npt.NDArray[np.float32]


def evaluate(
    policy: Players,
    study: Source,
    *,
    name: str = "agent",
    trials: int | None = None,
    batched: bool = False,
    fully_observed: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Results:
    """A study's results with those of a callable, on the same trials, under `name`.

    `results[name].mean` and `.se` are its reward per agent and slot, `results.difference(name,
    "whittle")` is paired trial by trial. trials: in place of the study's. fully_observed: the
    callable is shown the states of all arms before it chooses, which no policy of the engine is.
    """
    given = study_of(study)
    mine = as_policy(policy, name, batched=batched, fully_observed=fully_observed)
    whole = replace(
        given, policies=(*given.policies, mine), trials=given.trials if trials is None else trials
    )
    return run(whole, progress)


def as_policy(
    policy: Players, name: str = "agent", *, batched: bool = False, fully_observed: bool = False
) -> Policy:
    """A callable as a policy that a study in Python may have beside others."""
    if not name:
        raise StudyError("name must not be empty")
    if batched and not callable(policy):
        raise StudyError("a policy that is batched must be one callable for all agents")
    play: Any = _in_batches if batched else _one_by_one

    def named(trials: Trials, numbers: Sequence[int]) -> Rewards:
        try:
            rewards: Rewards = play(policy, fully_observed, trials, numbers)
        except StudyError as error:
            raise StudyError(f"policy {name}: {error}") from None
        return rewards

    return Policy(name, rule=OutsideRule(named))


def _scene(trials: Trials) -> Study:
    setting = trials.setting
    return Study(
        arms=trials.arms,
        agents=setting.n_agents,
        plays=trials.plays,
        horizon=setting.horizon,
        realisations="shared" if setting.shared else "independent",
        seed=trials.seed,
        policies=("random",),
        agent=[{"agents": m, "arms": arms} for m, arms in enumerate(trials.each, start=1)],
    )


def _in_batches(
    policy: Player, fully_observed: bool, trials: Trials, numbers: Sequence[int]
) -> Rewards:
    study = _scene(trials)
    choices = Choices(len(study.arms), study.plays)
    agents = range(study.agents)
    game = Game(study, study.seed, numbers, agents, **_how(fully_observed))
    size = len(numbers) * study.agents
    rewards = np.zeros((study.horizon, len(numbers)), np.float32)
    for slot in range(study.horizon):
        observation = {
            "last_seen": game.last_seen.reshape(size, -1).copy(),
            "age": game.age.reshape(size, -1).copy(),
        }
        played = choices.played(policy(observation), (size,))
        rewards[slot] = _summed(game.play(played.reshape(game.age.shape)))
    return rewards


def _one_by_one(
    policy: Players, fully_observed: bool, trials: Trials, numbers: Sequence[int]
) -> Rewards:
    study = _scene(trials)
    choices = Choices(len(study.arms), study.plays)
    players, how = _players(policy, study.agents), _how(fully_observed)
    rewards = np.zeros((study.horizon, len(numbers)), np.float32)
    for place, number in enumerate(numbers):
        agents = range(study.agents)
        game = Game(study, study.seed, [number], agents, **how)
        for player in _each_once(players):
            if hasattr(player, "reset"):
                player.reset()
        before = _observations(game)
        for slot in range(study.horizon):
            said = [player(seen) for player, seen in zip(players, before, strict=True)]
            played = np.stack([choices.played(action, ()) for action in said])
            paid = game.play(played[None])
            rewards[slot, place] = _summed(paid)[0]
            after = _observations(game)
            for agent, player in enumerate(players):
                if hasattr(player, "observe"):
                    pay = float(paid[0, agent].sum(dtype=np.float64))
                    player.observe(before[agent], said[agent], pay, after[agent])
            before = after
    return rewards


def _how(fully_observed: bool) -> dict[str, Any]:
    """Return options of games: rewards are the engine's, in single precision."""
    return {"fully_observed": fully_observed, "pays": np.float32}


def _players(policy: Players, agents: int) -> list[Any]:
    """Return the player of each agent."""
    if callable(policy):
        return [policy] * agents
    if not isinstance(policy, Mapping):
        raise StudyError(
            "policy must be a callable, or a mapping from agents to callables, "
            f"got {type(policy).__name__}"
        )
    names = [f"agent_{number}" for number in range(agents)]
    for name in names:
        if not callable(policy.get(name)):
            raise StudyError(f"policy must have a callable for {name}, one of {agents} agents")
    return [policy[name] for name in names]


def _each_once(players: Sequence[Any]) -> list[Any]:
    return list({id(player): player for player in players}.values())


def _observations(game: Game) -> list[dict[str, npt.NDArray[np.int64]]]:
    """Return the observation of each agent, in one trial."""
    return [
        {"last_seen": seen.copy(), "age": age.copy()}
        for seen, age in zip(game.last_seen[0], game.age[0], strict=True)
    ]


def _summed(paid: Rewards) -> Rewards:
    """Sum rewards (R, M, N) over agents and arms, (R,), in the engine's order and precision."""
    total = np.zeros(len(paid), np.float32)
    for arm in range(paid.shape[2]):
        for agent in range(paid.shape[1]):
            total += paid[:, agent, arm]
    return total
