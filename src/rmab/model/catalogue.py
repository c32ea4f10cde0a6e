"""A small catalogue of arms: channels, machines, age of information, adherence.

Each function returns an `rmab.Arm` of S states, numbered from 0. Most are *ladders*: chains that
move by at most one state in a slot,

    P[x, x + 1] = up,    P[x, x - 1] = down,    P[x, x] = the rest,

where a step over either end stays at that end. `docs/catalogue.md` says when to use which, and
`rmab run catalogue:NAME` runs a bundled study of each.

                        states, from 0 on              observed       a play
    gilbert_elliott     bad, good                      when played    sends
    client              slow, fast                     when played    has it take part
    fading              levels, worst first            when played    sends at the level's rate
    machine             wear, as new first             always         restarts it as new
    hidden_restart      slots since the last play      always         restarts it, unseen
    age_of_information  ages 1, 2, ..., max_age        always         tries to fetch an update
    adherence           lapsed, ..., adherent          when played    calls, and lifts

References:

- E. N. Gilbert, "Capacity of a burst-noise channel", Bell Syst. Tech. J. 39, 1960; E. O. Elliott,
  "Estimates of error rates for codes on burst-noise channels", Bell Syst. Tech. J. 42, 1963.
- H. S. Wang and N. Moayeri, "Finite-state Markov channel: a useful model for radio communication
  channels", IEEE Trans. Veh. Technol. 44(1), 1995.
- K. E. Avrachenkov and V. S. Borkar, "Whittle index based Q-learning for restless bandits with
  average reward", Automatica 139, 2022: the restart problem.
- I. Kadota, A. Sinha, E. Uysal-Biyikoglu, R. Singh and E. Modiano, "Scheduling policies for
  minimizing age of information in broadcast wireless networks", IEEE/ACM Trans. Netw. 26(6), 2018.
- N. Akbarzadeh and A. Mahajan, "Partially observable restless bandits with restarts: indexability
  and computation of Whittle index", CDC 2022.
- W. Xia et al., "Multi-armed bandit based client scheduling for federated learning", IEEE Trans.
  Wireless Comm. 19(11), 2020.
- A. Mate, J. A. Killian, H. Xu, A. Perrault and M. Tambe, "Collapsing bandits and their application
  to public health interventions", NeurIPS 2020.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np
import numpy.typing as npt

from rmab.arrays import FloatArray, IntArray
from rmab.errors import ModelError
from rmab.model.arms import Arm

__all__ = [
    "adherence",
    "age_of_information",
    "client",
    "fading",
    "gilbert_elliott",
    "hidden_restart",
    "machine",
]

Numbers = Sequence[float] | npt.NDArray[np.floating[Any]]

_MAX_STATES = 4096
_ROUNDING = 1e-12  # chances that sum to 1 in decimals may exceed it by this in binary


def gilbert_elliott(
    p01: float, p11: float, reward: float = 1.0, good: float = 1.0, bad: float = 0.0
) -> Arm:
    """Return a channel that is bad (state 0) or good (state 1), observed when played.

    p01, p11: chance of good next after bad, after good; good, bad: chance that sending succeeds in
    that state; a success pays `reward`, and rewards are expected ones. Gilbert (1960) has good = 1;
    Elliott (1963) has both. With bad = 0 and good = 1 it is the paper's channel.

    >>> gilbert_elliott(0.2, 0.8, reward=2, good=0.9, bad=0.1).reward_active.tolist()
    [0.2, 1.8]
    """
    _check_chances(p01=p01, p11=p11, good=good, bad=bad)
    if bad > good:
        raise ModelError(f"bad must be at most good, {good}, got {bad}")
    pays = _number("reward", reward, 0.0)
    return Arm([[1 - p01, p01], [1 - p11, p11]], reward=[bad * pays, good * pays])


def client(p01: float, p11: float, fast: float, slow: float, deadline: float = 1.0) -> Arm:
    """Return a client of federated learning, its link slow (0) or fast (1), seen in its rounds.

    p01, p11: chance of a fast link in the next round, after slow, after fast; fast, slow: time of a
    round in that state. A round pays 1 - time / deadline, and nothing past the deadline. Xia et
    al. (2020), who have rounds independent of one another.

    >>> client(0.2, 0.8, fast=0.25, slow=1.5).reward_active.tolist()
    [0.0, 0.75]
    """
    _check_chances(p01=p01, p11=p11)
    least = _number("fast", fast, 0.0)
    most, ends = _number("slow", slow, least), _number("deadline", deadline, 0.0)
    if ends == 0:
        raise ModelError("deadline must be a positive number, got 0")
    pays = [max(0.0, 1 - time / ends) for time in (most, least)]
    return Arm([[1 - p01, p01], [1 - p11, p11]], reward=pays)


def fading(levels: int, up: float, down: float | None = None, rates: Numbers | None = None) -> Arm:
    """Return a channel whose quality climbs and falls by levels, observed when played.

    up, down: chance to be one level better or worse in the next slot, down as up if not given;
    rates: (levels,) reward of sending at each level, worst first, not falling. They are k /
    (levels - 1) at level k if not given; log2(1 + SNR) of measured levels is another choice. Wang
    and Moayeri (1995).

    >>> fading(3, up=0.2, down=0.1).passive.round(12).tolist()
    [[0.8, 0.2, 0.0], [0.1, 0.7, 0.2], [0.0, 0.1, 0.9]]
    """
    S = _whole("levels", levels)
    falls = up if down is None else down
    _check_sum(up=up, down=falls)
    pays = _ladder_values("rates", rates, S, np.linspace(0, 1, S), rising=True)
    return Arm(_ladder(S, up=up, down=falls), reward=pays)


def machine(
    states: int,
    wear: float,
    reward: Numbers | None = None,
    repair_cost: float = 0.0,
    renewal: float = 0.0,
) -> Arm:
    """Return a machine that wears, as new in state 0, and is restored by a play; fully observed.

    wear: chance to wear by one state in a slot, the worst state stays; renewal: chance that it
    becomes as new without a play; reward: (states,) of a slot without a play, not rising with wear,
    1 - x / (states - 1) in state x if not given. A play earns nothing and costs
    `repair_cost`. The restart problem of Avrachenkov and Borkar (2022) has 5 states, wear .9,
    renewal .1 and reward .9^(x + 1).

    >>> machine(3, wear=0.2, repair_cost=0.5).reward_active.tolist()
    [-0.5, -0.5, -0.5]
    """
    S = _whole("states", states)
    _check_sum(wear=wear, renewal=renewal)
    earns = _ladder_values("reward", reward, S, np.linspace(1, 0, S), rising=False)
    cost = _number("repair_cost", repair_cost, 0.0)
    worse, as_new = _next(S), np.zeros(S, np.int64)
    return Arm(
        _moves((worse, wear), (as_new, renewal)),
        _moves((as_new, 1.0)),
        reward_passive=earns,
        reward_active=np.full(S, -cost),
        observed="always",
        tied_passive=[*([x] for x in range(1, S)), []] if 0 < wear < 1 else None,
    )


def hidden_restart(
    moves: npt.ArrayLike,
    start: Numbers,
    reward: Numbers,
    cost: float = 0.0,
    max_age: int = 32,
) -> Arm:
    """Return an arm whose states are hidden: a play restarts it from a known distribution.

    moves: (S, S) transitions without a play; start: (S,) distribution of the state after a play;
    reward: (S,) of a slot without a play; a play costs `cost`. The states of the returned arm are
    the number x of slots since the last play, up to max_age - 1, where it stays; they are fully
    observed, and in state x a slot earns start moves^x reward. Model A of Akbarzadeh and Mahajan
    (2022).

    >>> arm = hidden_restart([[0.8, 0.2], [0, 1]], [1, 0], [1, 0], cost=0.3, max_age=3)
    >>> arm.reward_passive.round(12).tolist()
    [1.0, 0.8, 0.64]
    """
    ages = _whole("max_age", max_age)
    price = _number("cost", cost, 0.0)
    try:
        hidden = Arm(moves, reward_passive=reward)
        same: Any = [start] * hidden.states
        state = Arm(same, reward_passive=reward).passive[0]
    except ModelError as error:
        said = str(error).replace("passive row 0", "start").replace("reward_passive", "reward")
        raise ModelError(said.replace("passive", "moves")) from None
    earns = np.zeros(ages)
    for age in range(ages):
        earns[age] = state @ hidden.reward_passive
        state = state @ hidden.passive
    older, restarted = _next(ages), np.zeros(ages, np.int64)
    return Arm(
        _moves((older, 1.0)),
        _moves((restarted, 1.0)),
        reward_passive=earns,
        reward_active=np.full(ages, -price),
        observed="always",
    )


def age_of_information(max_age: int, success: float, weight: float = 1.0) -> Arm:
    """Return a source whose updates are fetched over a channel that may fail; age fully observed.

    State x is age x + 1, up to max_age, where it stays. A play delivers with chance `success`: the
    age is then 1, and one slot more otherwise, as without a play. Every slot, played or not, costs
    weight x age. Kadota et al. (2018); their index without a limit to the age h is
    weight x h (1 + success (h - 1) / 2).

    >>> age_of_information(3, success=0.8).active.round(12).tolist()
    [[0.8, 0.2, 0.0], [0.8, 0.0, 0.2], [0.8, 0.0, 0.2]]
    """
    S = _whole("max_age", max_age)
    _check_chances(success=success)
    pays = -_number("weight", weight, 0.0) * np.arange(1.0, S + 1)
    older, fresh = _next(S), np.zeros(S, np.int64)
    return Arm(
        _moves((older, 1.0)),
        _moves((fresh, success), (older, 1 - success)),
        reward_passive=pays,
        reward_active=pays,
        observed="always",
        tied_active=[[0]] * S if 0 < success < 1 else None,
    )


def adherence(
    wane: float,
    lift: float,
    regain: float = 0.0,
    slip: float = 0.0,
    states: int = 3,
    reward: Numbers | None = None,
) -> Arm:
    """Return a person whose adherence wanes unless someone calls; a call observes it.

    States run from lapsed (0) to adherent (states - 1); with 3 the middle one is wavering. In a
    slot without a call adherence falls by one state with chance `wane` and rises by one with
    `regain`; with a call it rises with chance `lift` and falls with `slip`. A call does no harm:
    lift >= regain and slip <= wane. reward: (states,) of a slot, called or not, not falling; 1 if
    adherent and 0 otherwise if not given. With two states these are the collapsing bandits of Mate
    et al. (2020).

    >>> adherence(wane=0.3, lift=0.6).active.round(12).tolist()
    [[0.4, 0.6, 0.0], [0.0, 0.4, 0.6], [0.0, 0.0, 1.0]]
    """
    S = _whole("states", states)
    _check_sum(wane=wane, regain=regain)
    _check_sum(lift=lift, slip=slip)
    if lift < regain:
        raise ModelError(f"lift must be at least regain, {regain}, got {lift}")
    if slip > wane:
        raise ModelError(f"slip must be at most wane, {wane}, got {slip}")
    worth = _ladder_values("reward", reward, S, np.eye(S)[-1], rising=True)
    return Arm(
        _ladder(S, up=regain, down=wane),
        _ladder(S, up=lift, down=slip),
        reward_passive=worth,
        reward_active=worth,
    )


def _moves(*moves: tuple[IntArray, float]) -> FloatArray:
    """Return the chain that makes each move, targets by state, with its chance, or stays."""
    here = np.arange(moves[0][0].size)
    matrix = np.zeros((here.size, here.size))
    rest = max(0.0, 1 - sum(chance for _, chance in moves))
    for targets, chance in (*moves, (here, rest)):
        matrix[here, targets] += chance
    return matrix


def _ladder(S: int, *, up: float, down: float) -> FloatArray:
    """Return the chain that climbs one state with chance up and falls one with chance down."""
    return _moves((_next(S), up), (np.maximum(np.arange(S) - 1, 0), down))


def _next(S: int) -> IntArray:
    """Return the state above each, (S,); the last has none."""
    return np.minimum(np.arange(S) + 1, S - 1)


def _number(name: str, value: Any, least: float) -> float:
    if not (_is_real(value) and math.isfinite(value) and value >= least):
        raise ModelError(
            f"{name} must be a finite number of at least {least:g}, got {_shown(value)}"
        )
    return float(value)


def _shown(value: Any) -> str:
    """Format a value for a message: on one line and short."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:60]}..."


def _is_real(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _whole(name: str, value: Any) -> int:
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not whole or not 2 <= value <= _MAX_STATES:
        raise ModelError(
            f"{name} must be a whole number from 2 to {_MAX_STATES}, got {_shown(value)}"
        )
    return int(value)


def _check_chances(**chances: Any) -> None:
    for name, value in chances.items():
        if not (_is_real(value) and 0 <= value <= 1):
            raise ModelError(f"{name} must be a number from 0 to 1, got {_shown(value)}")


def _check_sum(**chances: Any) -> None:
    """Check chances of events that exclude each other."""
    _check_chances(**chances)
    if sum(chances.values()) > 1 + _ROUNDING:
        names, values = " + ".join(chances), " + ".join(str(x) for x in chances.values())
        raise ModelError(f"{names} must be at most 1, got {values}")


def _ladder_values(
    name: str, given: Numbers | None, S: int, default: FloatArray, *, rising: bool
) -> FloatArray:
    """Return the value of each state, (S,), monotone in the state."""
    if given is None:
        return default
    if not isinstance(given, list | tuple | np.ndarray) or len(given) != S:
        raise ModelError(f"{name} must be {S} numbers, one for each state, got {_shown(given)}")
    for state, value in enumerate(given):
        if not (_is_real(value) and math.isfinite(value)):
            raise ModelError(f"{name}: state {state} must be a finite number, got {_shown(value)}")
    values = np.array(given, dtype=np.float64)
    wrong = np.diff(values) < 0 if rising else np.diff(values) > 0
    for state in np.flatnonzero(wrong)[:1]:
        word = "fall" if rising else "rise"
        raise ModelError(
            f"{name} must not {word} from state to state, got {values[state]} in state {state} "
            f"and {values[state + 1]} in state {state + 1}"
        )
    return values
