"""Back-test: rewards that policies would have earned on a trace.

- Agent m plays on recording m. Agents do not disturb each other: recorded states stay as they are.
- An arm may be played in a slot only if it was measured there. Where fewer than K were, all are
  played; where none was, the agent skips the slot. Ages grow in every slot.
- A play shows the state and pays its reward.
- At the first slot of a segment every arm is never observed, and no pair of observations crosses
  one. Knowledge of a learner stays.
- Ties go to the lower arm.
- The average reward is that of all (agent, slot) with an arm measured.

A policy that knows the dynamics knows the trace: chains that were fitted to all of its slots, for
each agent and arm (`rmab.traces.fitted_chains`). So it is a reference and no rival. `@pooled`
after its name: fitted to all agents together; `@segment`: for each segment by itself. `fixed` and
`fixed-best` rank arms by the shares of their states. `genie` is the clairvoyant oracle.

Runs of a learner differ only in its draws. The standard error over runs is the luck in one run. The
luck in the trace itself is in an interval over blocks of slots (`rmab.traces.outcome`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from rmab.compilation import kept_compiled
from rmab.engine.montecarlo import default_threads
from rmab.engine.setting import Setting
from rmab.errors import StudyError, TraceError
from rmab.model.arms import Arm, Arms
from rmab.policies.capabilities import Conditions
from rmab.policies.policy import Policy
from rmab.policies.refusal import OF_RECORDINGS, refusal
from rmab.policies.registry import LEARNERS, OPTIONS, POLICIES, STUDIED, named
from rmab.studies.run import setting_of_study
from rmab.studies.study import Study
from rmab.text import is_number, one_of, shown
from rmab.traces.fitted_chains import segment_starts, state_shares, transition_matrices
from rmab.traces.outcome import Backtest, PolicyRewards, Timeline
from rmab.traces.replay import FittedDynamics, Replay, ReplayedStates
from rmab.traces.trace import Trace, check_usable

__all__ = ["backtest", "rewards_of_replicates", "rewards_of_rules", "steps"]

Floats = npt.NDArray[np.float64]
States = npt.NDArray[np.int8]

SCHEDULE = "linear"
_MAX_AGENTS = 2**16  # as in a study
_SHARES = ("fixed", "fixed-best")  # know the shares of states
_FITTED = ("whittle", "myopic", "lookahead", *_SHARES)
_SUFFIXES = ("pooled", "segment")
_REFERENCES = {"stay": "stay", "fixed": "fixed-best"}
_ON_A_TRACE = Conditions((), recorded=True)
_MAX_STUDY_SLOTS = 10**6
_RUN_ELEMENTS = 1 << 20  # arms x agents x runs at once


class _Name(NamedTuple):
    """Policy by its name, with the name before a suffix in `base`, or a policy object."""

    name: str
    base: str
    pooled: bool = False
    by_segment: bool = False
    own: Policy | None = None


class _Chosen(NamedTuple):
    """A policy of a back-test."""

    given: _Name
    policy: Policy

    @property
    def name(self) -> str:
        return self.given.name

    @property
    def learns(self) -> bool:
        return self.given.base in LEARNERS or self.policy.learns or self.policy.rule.learns

    @property
    def fitted(self) -> bool:
        """Return whether it knows the trace."""
        return self.policy.rule.fits and not self.learns

    @property
    def drawn(self) -> bool:
        """Return whether runs differ."""
        forget = self.policy.learner.forget
        picks = forget is not None and len(forget.half_lives) > 1  # one of several experts
        draws = self.policy.learns and (self.policy.learner.randomised or picks)
        return draws or self.policy.rule.draws


def backtest(
    trace: Trace,
    policies: Sequence[str | Policy] = ("stay", "fedtswi-gap", "whittle"),
    *,
    plays: int = 1,
    runs: int = 8,
    seed: int = 0,
    reward: float | Sequence[float] | None = None,
    same: int | str | None = None,
    agents: int | None = None,
    schedule: str = SCHEDULE,
    draws: str = "shared",
    aggregation: str = "sum",
    longest: int | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    progress: Callable[[int], None] | None = None,
) -> Backtest:
    """Return the rewards that policies would have earned on a trace.

    Ctrl-C returns the policies that are done, with `interrupted` set.

    Parameters
    ----------
    trace : Trace
        Recordings that the agents play on.
    policies : sequence of str or Policy
        Names, with @pooled or @segment after those that know the dynamics, or policy objects.
    progress : callable, optional
        Called with the number of runs just done.
    plays : int, default 1
        Arms K that each agent plays in a slot.
    runs, seed : int, default 8 and 0
        Number of runs of policies that draw, and their seed.
    reward : float or sequence of float, optional
        Reward of the good state, or of each state; default: 1 for the highest of two, and from 0
        to 1 in equal steps for more.
    same, agents : int or str, int, optional
        Recording, by number or name, on which this number of agents plays.
    schedule, draws, aggregation, options
        As in a study.
    longest : int, optional
        Largest number of slots of a learner's episode.
    """
    check_usable(trace, "the trace")
    trace = _with_agents(trace, same, agents)
    if not trace.agent_slots:
        raise TraceError("nothing was measured anywhere")
    field = _Field.of(trace, _rewards_of(reward, trace.states))
    names = _named(policies)
    study = field.study(
        names,
        plays=plays,
        trials=runs,
        seed=seed,
        schedule=schedule,
        draws=draws,
        aggregation=aggregation,
        options=options or {},
    )
    if longest is not None and not OPTIONS["longest"].allowed(longest):
        raise StudyError(f"longest must be {OPTIONS['longest'].rule}, got {shown(longest)}")
    # References of differences come first, so that they are there whenever it is interrupted.
    everyone = {name: _Name(name, name) for name in _REFERENCES.values()}
    everyone.update({each.name: each for each in names})
    earned = {}
    interrupted = False
    try:
        for each, rewards in _played(field, study, list(everyone.values()), longest, progress):
            earned[each.name] = PolicyRewards(rewards, each.learns, each.fitted, each.drawn)
    except KeyboardInterrupt:
        has_some = any(each.name in earned for each in names)
        if not has_some or not earned.keys() >= set(_REFERENCES.values()):
            raise
        interrupted = True
    return Backtest(
        trace=trace,
        plays=study.plays,
        runs=study.trials,
        seed=study.seed,
        timeline=field.timeline,
        earned={each.name: earned[each.name] for each in names if each.name in earned},
        references={key: earned[name] for key, name in _REFERENCES.items()},
        interrupted=interrupted,
    )


def steps(policies: Sequence[str | Policy], runs: int) -> int:
    """Return the runs that a back-test reports as done, of all its policies."""
    names = {each.name for each in _named(policies)}
    return runs * len(names.union(_REFERENCES.values()))


def rewards_of_rules(trace: Trace, plays: int, policies: Sequence[str]) -> dict[str, float]:
    """Return the average reward of policies that neither learn nor draw."""
    state = np.moveaxis(trace.state, 0, -1)[..., None]
    found = rewards_of_replicates(state, trace.segment, plays, policies, trace.states)
    return {name: float(rewards[0]) for name, rewards in found.items()}


def rewards_of_replicates(
    state: States,
    segment: npt.NDArray[Any],
    plays: int,
    policies: Sequence[str],
    n_states: int = 2,
) -> dict[str, Floats]:
    """Return the average rewards (R,) on R traces with common holes at once.

    state: (T slots, N arms, M agents, R); segment: (T,). Chains are fitted to each trace by itself.
    """
    field = _Field(state, segment, n_states, _rewards_of(None, n_states))
    names = _named(policies)
    study = field.study(names, plays=plays, trials=state.shape[-1], schedule=SCHEDULE)
    total = field.timeline.slots.sum()
    return {
        each.name: rewards.sum((0, 1)) / total for each, rewards in _played(field, study, names)
    }


# ------------------------------------------------------------------------------------ the recording


class _Field:
    """R traces of one shape, (T, N, M, R), with the reward of each state, (S,)."""

    def __init__(
        self, state: States, segment: npt.NDArray[Any], n_states: int, rewards: Floats
    ) -> None:
        self.state = state
        self.n_states = n_states
        self.rewards = rewards
        self.starts = segment_starts(segment)
        measured = np.any(state[..., 0] >= 0, axis=1)  # (T, M)
        self.timeline = Timeline.of(self.starts, np.asarray(measured))

    @classmethod
    def of(cls, trace: Trace, rewards: Floats) -> _Field:
        state = np.moveaxis(trace.state, 0, -1)[..., None]
        return cls(state, trace.segment, trace.states, rewards)

    @cached_property
    def arms(self) -> Arms:
        """Arms with the chains of all agents together."""
        steps = transition_matrices(self.state, self.starts, self.n_states, pooled=True)[
            ..., 0, 0, 0
        ]
        return Arms([Arm(law, reward=self.rewards) for law in np.moveaxis(steps, -1, 0)])

    @cached_property
    def recording(self) -> ReplayedStates:
        begins = np.zeros(len(self.state), bool)
        begins[self.starts] = True
        kind = bool if self.n_states == 2 else np.int8
        return ReplayedStates(
            state=jnp.asarray(np.maximum(self.state, 0).astype(kind)),
            measured=jnp.asarray(self.state[..., :1] >= 0),
            starts=jnp.asarray(begins),
            window=jnp.asarray(self.timeline.window, jnp.int32),
        )

    def dynamics(self, given: _Name) -> FittedDynamics:
        """Return the fitted dynamics that a policy knows."""
        fit = state_shares if given.base in _SHARES else transition_matrices
        steps = fit(
            self.state,
            self.starts,
            self.n_states,
            pooled=given.pooled,
            by_segment=given.by_segment,
        )
        which = np.zeros(len(self.state), np.int32)
        if given.by_segment:
            which[self.starts[1:]] = 1
            which = np.cumsum(which, dtype=np.int32)
        return FittedDynamics(steps, which)

    def study(self, names: Sequence[_Name], **settings: Any) -> Study:
        """Return a study of this size, which refuses unsuitable policies and settings."""
        horizon, _, n_agents, _ = self.state.shape
        policies = {
            each.base: each.own or each.base for each in names if each.own or each.base in STUDIED
        }
        return Study(
            arms=self.arms,
            agents=n_agents,
            horizon=min(horizon, _MAX_STUDY_SLOTS),
            policies=list(policies.values()) or ["stay"],
            **settings,
        )


def _with_agents(trace: Trace, same: int | str | None, agents: int | None) -> Trace:
    """Return the trace with several agents on one recording, if that is asked for."""
    if same is None:
        if agents is not None:
            raise TraceError("--agents needs --same: the recording that so many agents play on")
        return trace
    place = _agent(trace, same)
    count = 1 if agents is None else agents
    if not 1 <= count <= _MAX_AGENTS:
        raise TraceError(f"--agents must be from 1 to {_MAX_AGENTS}, got {shown(count)}")
    name = trace.agents[place]
    if not trace.measured[place].any():
        raise TraceError(f"--same {same}: agent {name} measured nothing")
    return replace(
        trace,
        state=np.repeat(trace.state[place : place + 1], count, axis=0),
        agents=tuple(f"{name} ({number})" for number in range(1, count + 1)),
    )


def _agent(trace: Trace, same: int | str) -> int:
    """Return the number of an agent that is given by name, or by number from 0."""
    names = trace.agents
    short = isinstance(same, int) or (same.isdecimal() and len(same) < len(str(len(names))) + 4)
    number = int(same) if short else -1
    if 0 <= number < len(names):
        return number
    if same in names:
        return names.index(same)
    listed = f"0 to {len(names) - 1}" if len(names) > 1 else "0"
    some = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
    said = same if isinstance(same, str) and len(same) <= 80 else shown(same)
    raise TraceError(f"--same {said}: there is no such agent; there are {listed}: {some}")


def _rewards_of(reward: float | Sequence[float] | None, n_states: int) -> Floats:
    """Return the reward of each state, (S,)."""
    if reward is None:
        return np.linspace(0, 1, n_states)
    listed = [reward] if is_number(reward) else list(reward)  # type: ignore[arg-type]
    if not all(is_number(each) for each in listed):
        raise TraceError(f"--reward must be numbers, got {shown(reward)}")
    if len(listed) == 1 and n_states == 2:
        listed = [0.0, *listed]
    if len(listed) != n_states:
        one = "one number, of good, or two, of bad and good"
        rule = one if n_states == 2 else f"{n_states} numbers, one for each state"
        raise TraceError(f"--reward must be {rule}, got {len(listed)}")
    return np.asarray(listed, float)


# --------------------------------------------------------------------------------- the policies


def _named(policies: Sequence[str | Policy]) -> list[_Name]:
    """Return the policies that were asked for, with their suffixes."""
    if isinstance(policies, str) or not policies:
        raise StudyError(f"policies must be a list of names, got {shown(policies)}")
    found = [_owned(each) if isinstance(each, Policy) else _parsed(each) for each in policies]
    names = [each.name for each in found]
    for name in names:
        if names.count(name) > 1:
            raise StudyError(f"policies must differ in name, got {name!r} twice")
    return found


def _owned(policy: Policy) -> _Name:
    _check_on_trace(policy)
    if policy.name in POLICIES:
        raise StudyError(f"policies: a policy of one's own must not be named {policy.name!r}")
    return _Name(policy.name, policy.name, own=policy)


def _check_on_trace(policy: str | Policy) -> None:
    why = refusal(policy, _ON_A_TRACE, rules=OF_RECORDINGS)
    if why:
        raise StudyError(why)


def _parsed(given: str) -> _Name:
    base, *suffixes = given.split("@")
    if base in POLICIES:
        _check_on_trace(base)
    else:
        playing = (n for n in POLICIES if not refusal(n, _ON_A_TRACE, rules=OF_RECORDINGS))
        one_of("policies", base, tuple(playing))
    for suffix in suffixes:
        one_of(f"policies: {given}: after @", suffix, _SUFFIXES)
    if suffixes and base not in _FITTED:
        raise StudyError(
            f"policies: {given}: @{suffixes[0]} is for those that know the dynamics: "
            f"{', '.join(_FITTED)}"
        )
    return _Name(given, base, "pooled" in suffixes, "segment" in suffixes)


def _played(
    field: _Field,
    study: Study,
    names: Sequence[_Name],
    longest: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Iterator[tuple[_Chosen, Floats]]:
    """Yield each policy with its rewards (W, M, runs); one run if all are alike."""
    slots, n_arms, n_agents, traces = field.state.shape
    setting = replace(
        setting_of_study(study),
        horizon=slots,
        longest=longest,
    )
    if setting.channels:  # they need no tables, and one program serves all traces of a shape
        setting = replace(setting, max_age=Setting.max_age)
    windows = len(field.timeline.slots)
    replay = Replay(field.arms, study.plays, setting, field.recording, windows, study.seed)
    width = max(1, _RUN_ELEMENTS // (n_arms * n_agents))
    chosen = [
        _Chosen(each, each.own or named(each.base, slots, study.options_of(each.base)))
        for each in names
    ]

    for given in names:
        if given.own is not None:
            given.own.rule.check(given.own.name, field.arms)

    def play(each: _Chosen) -> Floats:
        dynamics = field.dynamics(each.given) if each.fitted else None
        if traces > 1:
            return replay.rewards(each.policy, dynamics, 0, traces)
        runs = study.trials if each.drawn else 1
        parts = [
            replay.rewards(each.policy, dynamics, first, min(width, runs - first))
            for first in range(0, runs, width)
        ]
        return np.concatenate(parts, -1)

    executor = ThreadPoolExecutor(default_threads())
    try:
        with kept_compiled():
            waiting = [executor.submit(play, each) for each in chosen]
            for each, future in zip(chosen, waiting, strict=True):
                rewards = future.result()
                if progress is not None:
                    progress(study.trials)
                yield each, rewards
    finally:
        # What is under way cannot be stopped; whoever was interrupted should not wait for it.
        executor.shutdown(wait=False, cancel_futures=True)
