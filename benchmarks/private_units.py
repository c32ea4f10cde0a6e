"""What units of privacy that survive feedback cost: M agents, K of N channels, T slots.

A unit survives feedback if a changed reading changes what is counted within known bounds, however
agents play on. Loss of reward per agent and slot against Whittle indices with known dynamics, on
the same states, of

    alone         nobody is told anything
    all slots     counts of all slots without noise, and with noise for one slot among logs with the
                  same plays, which does not survive feedback
    survey        counts of the first slots, played by a schedule (`rmab.privacy.survey`)
    windows       agents forget all they saw at the beginning of each window and draw from what was
                  released only; noise is for all pairs of a window
    whole agents  noise for all pairs of one agent up to one release
    released      the best K arms by their stationary laws, which no reading changes

A small program beside the engine's: laws are of pairs in consecutive slots, released at 8, 16, 32,
... slots; draws are the agent's own (`rmab.learning.channel.local_posterior`).

    python -m benchmarks.private_units              # about three minutes on one core
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import digamma, polygamma

from rmab.learning.channel.local_posterior import (
    PROPOSALS,
    UNIFORMS,
    PosteriorSummaries,
    draw_local,
)
from rmab.model.arms import Dynamics, channels
from rmab.model.information import NEVER, InformationStates, information_states, row_of
from rmab.planning.channel.whittle import whittle_at
from rmab.privacy.accounting import DELTA, FIRST_SLOTS, noise_multiplier, sensitivity_squared
from rmab.privacy.denoising import LEAST_FOR_SUMMARIES, denoised
from rmab.privacy.noise import GRID, factor, mixing
from rmab.privacy.survey import scheduled

__all__ = ["UNITS", "Unit", "measure", "rewards", "table"]

ARMS = channels([0.2, 0.89, 0.1, 0.9], [0.8, 0.17, 0.9, 0.16], [0.4, 0.9, 0.7, 0.6])
N, PLAYS, GAPS, SLOTS, AGENTS, EPSILON = len(ARMS), 2, 8, 1000, 16, 1.0
AGES, WRAP = 32, 2

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Unit:
    """What agents give and how they play.

    given: slots of which pairs are given, None: all, 0: none; squared: Delta^2, 0: no noise;
    window: slots after which an agent forgets all that it saw, 0: never; fixed: arms that are
    played in all slots.
    """

    given: int | None
    squared: float = 0.0
    window: int = 0
    fixed: tuple[int, ...] = ()


def _window(slots: int) -> Unit:
    """In one world all pairs of K arms are in one cell of each, in the other in other cells."""
    return Unit(None, 2 * PLAYS * (slots - 1) ** 2, slots)


_SLOT = float(sensitivity_squared(PLAYS))
_BEST = np.argsort(-(ARMS.reward * ARMS.p01 / (1 + ARMS.p01 - ARMS.p11)))[:PLAYS]
UNITS: Mapping[str, Unit] = {
    "alone": Unit(0),
    "all slots, no noise": Unit(None),
    "all slots, noise for one slot, same plays": Unit(None, _SLOT),
    "a survey of 8 slots": Unit(8, _SLOT),
    "a survey of 16 slots": Unit(16, _SLOT),
    "a survey of 32 slots": Unit(32, _SLOT),
    "windows of 4 slots": _window(4),
    "windows of 8 slots": _window(8),
    "windows of 16 slots": _window(16),
    "whole agents": Unit(None, 2.0 * (PLAYS * SLOTS) ** 2),
    "released only": Unit(0, fixed=tuple(sorted(_BEST.tolist()))),
}


def rewards(
    unit: Unit | None, agents: int, trials: int, seed: int = 0, *, slots: int = SLOTS
) -> Floats:
    """Mean reward of an agent in a slot, by trial; unit: None for known dynamics."""
    lanes = agents * trials
    world, noise, luck = (np.random.default_rng([seed, lane]) for lane in range(3))
    p01, p11, pay = (np.asarray(x)[:, None] for x in (ARMS.p01, ARMS.p11, ARMS.reward))
    state = (world.random((N, lanes)) < p01 / (1 + p01 - p11)).astype(np.int64)
    seen, age = np.zeros((N, lanes), np.int64), np.full((N, lanes), NEVER)
    own = np.zeros((GAPS + 1, 2, 2, N, lanes), np.float32)
    given = np.zeros((2, 2, N, lanes), np.float32)
    teller = _Teller(agents, unit, noise)
    earned, over, number = np.zeros(lanes), 0, 0
    index = _index(p01, p11) if unit is None else None
    for slot in range(slots):
        if unit is not None and slot == over:
            number += 1
            over += number + 1
            uniforms = luck.random((UNIFORMS, PROPOSALS, N, lanes)).clip(1e-7, 1 - 1e-7)
            counts = own * 0 if unit.window else own
            drawn = draw_local(counts, teller.laws, uniforms.astype(np.float32))
            index = _index(drawn.p01, drawn.p11)
        if unit is not None and unit.window and slot % unit.window == 0:
            age[:] = NEVER
        played = _chosen(unit, index, seen, age, slot, agents)
        earned += (pay * state * played).sum(0)
        arm, lane = np.nonzero(played & (age != NEVER))
        pair = seen[arm, lane], state[arm, lane], arm, lane
        np.add.at(own, (np.minimum(age[arm, lane], GAPS + 1) - 1, *pair), 1)
        if unit is not None and (unit.given is None or slot < unit.given):
            close = age[arm, lane] == 1
            np.add.at(given, tuple(part[close] for part in pair), 1)
        seen = np.where(played, state, seen)
        age = np.where(played, 1, age + (age != NEVER))
        state = (world.random((N, lanes)) < np.where(state == 1, p11, p01)).astype(np.int64)
        teller.after(slot + 1, given)
    by_trial: Floats = earned.reshape(trials, agents).mean(1) / slots
    return by_trial


def _index(p01: Any, p11: Any) -> Any:
    """(N, lanes or 1, rows)."""
    arms = Dynamics(p01[..., None], p11[..., None], np.asarray(ARMS.reward)[:, None, None])
    return np.asarray(whittle_at(arms, information_states(AGES)))


def _chosen(unit: Unit | None, index: Any, seen: Any, age: Any, slot: int, agents: int) -> Any:
    """A mask (N, lanes)."""
    shape = seen.shape
    if unit is not None and unit.fixed:
        return np.broadcast_to(np.isin(np.arange(N), unit.fixed)[:, None], shape)
    if unit is not None and unit.given is not None and slot < unit.given:
        return scheduled(slot, np.arange(shape[1]) % agents, N, PLAYS)
    rows = row_of(InformationStates(seen, age), AGES, WRAP)[..., None]
    values = np.take_along_axis(np.broadcast_to(index, (*shape, index.shape[2])), rows, 2)[..., 0]
    rank = np.argsort(np.argsort(-values, 0, kind="stable"), 0, kind="stable")
    return rank < PLAYS


class _Teller:
    """Who releases sums; laws: what agents are told of them."""

    def __init__(self, agents: int, unit: Unit | None, noise: np.random.Generator) -> None:
        self.agents, self.unit, self.noise = agents, unit, noise
        self.laws: PosteriorSummaries | None = None
        self._z: list[Any] = []
        self._next = FIRST_SLOTS

    def after(self, slots: int, given: Any) -> None:
        """Release the sum if it is due."""
        if self.unit is None or self.unit.given == 0 or slots < self._next:
            return
        self._next *= 2
        total = given.reshape(2, 2, N, -1, self.agents).sum(-1)
        if self.unit.squared:
            norm = math.sqrt(sum(step * step for step in factor())) / GRID
            sigma = noise_multiplier(EPSILON, DELTA) * math.sqrt(self.unit.squared) * norm
            self._z.append(self.noise.normal(0, sigma, total.shape))
            b = [float(x) for x in mixing()[: len(self._z)]]
            total = total + sum(x * z for x, z in zip(b, reversed(self._z), strict=True))
            s = sigma * math.sqrt(sum(x * x for x in b))
            total = denoised(total[None], s, least=LEAST_FOR_SUMMARIES)[0]
        good, bad = total[:, 1] + 1, total[:, 0] + 1  # (2, N, trials), by the state before
        mean, spread = digamma(good) - digamma(bad), polygamma(1, good) + polygamma(1, bad)
        both = np.stack([spread[0], np.zeros_like(spread[0]), spread[1]])
        self.laws = PosteriorSummaries(*(np.repeat(x, self.agents, -1)[None] for x in (mean, both)))


def measure(trials: int = 64, seed: int = 0) -> dict[str, Any]:
    """Loss of each unit and its standard error."""
    known = rewards(None, AGENTS, trials, seed)
    rows = []
    for name, unit in UNITS.items():
        lost = known - rewards(unit, AGENTS, trials, seed)
        error = float(lost.std(ddof=1) / math.sqrt(trials)) if trials > 1 else math.nan
        rows.append({"unit": name, "loss": float(lost.mean()), "se": error})
    return {"agents": AGENTS, "epsilon": EPSILON, "trials": trials, "seed": seed, "rows": rows}


def table(measured: Mapping[str, Any]) -> str:
    """The rows as a table of a document."""
    lines = ["| counted, and the unit of its noise | loss |", "|---|---|"]
    lines += [
        f"| {row['unit']} | {row['loss']:.4f} ± {row['se']:.4f} |" for row in measured["rows"]
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure and print as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--trials", type=int, default=64)
    print(json.dumps(measure(parser.parse_args().trials), indent=1))


if __name__ == "__main__":
    main()
