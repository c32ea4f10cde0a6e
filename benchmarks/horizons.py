"""Regret to a million slots, trial by trial: how it is spread, and which trials stay behind.

`rmab.run` gives means over trials. This runs the engine's programs and keeps, for each trial, what
a policy loses to Whittle with known dynamics in windows of slots that grow tenfold every ten. Both
face the same realisations: in a window in which an agent orders the arms as Whittle does the loss
is 0 exactly, so what is left is not noise.

Python, NumPy and JAX are all that running needs.

    PYTHONPATH=src python benchmarks/horizons.py --agents 1 4 --trials 1024 --out FILE.npz
    python benchmarks/horizons.py --draw FILE.npz ... --out PICTURE.svg      takes Matplotlib
"""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from rmab.engine.environment import truth
from rmab.engine.montecarlo import default_threads
from rmab.engine.program import simulator
from rmab.engine.setting import Setting
from rmab.model.arms import channels
from rmab.policies.registry import named
from rmab.rng.variates import seed_words

PAPER = channels([0.20, 0.89, 0.10, 0.90], [0.80, 0.17, 0.90, 0.16], [0.4, 0.9, 0.7, 0.6])
POLICIES = ("fedtswi", "fedtswi-gap")
MUCH = 0.01  # loss a slot: that of a wrong order of two arms, or more
FIRST_SHOWN = 300


def edges(horizon: int) -> list[int]:
    """Where windows begin and end: ten to a decade."""
    steps = np.logspace(0, np.log10(horizon), 1 + round(10 * np.log10(horizon)))
    return [0, *np.unique(np.round(steps).astype(int)).tolist()]


@jax.jit
def window_sums(rewards: Array, known: Array) -> Array:
    """What Whittle earns more than a policy in each window, (windows, R), from rewards (T, R)."""
    behind, places = known - rewards, edges(rewards.shape[0])
    return jnp.stack([behind[a:b].sum(0) for a, b in pairwise(places)])


def losses(agents: int, plays: int, horizon: int, trials: int, width: int) -> dict[str, Any]:
    """By policy: what each trial loses in each window, per agent, (windows, trials)."""
    setting, world = Setting.of(PAPER, agents, horizon), truth(PAPER)
    names = ("whittle", *POLICIES)
    programs = {name: simulator(setting, named(name, horizon), width) for name in names}

    def batch(start: int) -> dict[str, Any]:
        who = jnp.arange(start, start + width, dtype=jnp.uint32)
        given = seed_words(0), who, world, jnp.int32(plays), None
        known = programs["whittle"](*given).rewards
        return {
            name: np.asarray(window_sums(programs[name](*given).rewards, known)) / agents
            for name in POLICIES
        }

    with ThreadPoolExecutor(default_threads()) as pool:
        parts = list(pool.map(batch, range(0, trials, width)))
    return {name: np.concatenate([part[name] for part in parts], 1) for name in POLICIES}


def power_of_ten(x: float, _: int) -> str:
    """A tick's label, in text: the style takes no mathematics."""
    return "10" + "⁰¹²³⁴⁵⁶⁷⁸⁹"[round(np.log10(x))]


def draw(files: list[Path], picture: Path) -> None:
    """Regret, and the share of trials that lose much in a window; a row for each M."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import FuncFormatter

    from rmab.report.style import STYLE, line_styles

    styles, rows = line_styles(POLICIES), []
    for file in files:
        with np.load(file) as found:
            ends = found["edges"]
            agents = sorted({int(key.split("/")[1]) for key in found.files if "/" in key})
            rows += [(m, ends, {n: found[f"{n}/{m}"] for n in POLICIES}) for m in agents]
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(
            len(rows), 2, figsize=(9, 3.3 * len(rows)), squeeze=False, layout="constrained"
        )
        for (left, right), (agents_, ends, lost) in zip(axes, rows, strict=True):
            slots, width = ends[1:], np.diff(ends)[:, None]
            for name, values in lost.items():
                style = styles[name]
                regret = np.quantile(values.cumsum(0), [0.05, 0.25, 0.5, 0.75, 0.95], axis=1)
                left.fill_between(slots, regret[0], regret[4], color=style.colour, alpha=0.12)
                left.fill_between(slots, regret[1], regret[3], color=style.colour, alpha=0.25)
                left.plot(slots, regret[2], color=style.colour, label=style.label)
                share = (values / width > MUCH).mean(1)
                shown = slots >= FIRST_SHOWN  # shorter windows are noise
                right.plot(slots[shown], share[shown], color=style.colour, label=style.label)
            left.set(xscale="log", xlabel="slot", ylabel=f"regret, M = {agents_}")
            left.set_yscale("symlog", linthresh=10)
            right.set(xscale="log", xlabel="slot", ylabel=f"trials that lose > {MUCH} a slot")
            right.set_ylim(0)
            for axis in (left.xaxis, right.xaxis):
                axis.set_major_formatter(FuncFormatter(power_of_ten))
            left.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,.0f}"))
            left.legend(loc="upper left")
        figure.savefig(picture, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--agents", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--plays", type=int, default=2)
    parser.add_argument("--horizon", type=int, default=10**6)
    parser.add_argument("--trials", type=int, default=1024)
    parser.add_argument("--width", type=int, default=64, help="trials at once in a thread")
    parser.add_argument(
        "--draw", type=Path, nargs="+", metavar="FILE", help="what was found before"
    )
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if options.draw:
        draw(options.draw, options.out)
        return
    found: dict[str, Any] = {"edges": np.array(edges(options.horizon))}
    for agents in options.agents:
        begun = time.perf_counter()
        lost = losses(agents, options.plays, options.horizon, options.trials, options.width)
        for name, values in lost.items():
            found[f"{name}/{agents}"] = values.astype(np.float32)
        print(
            f"M = {agents}: {time.perf_counter() - begun:.0f} s on {jax.devices()[0].device_kind}"
        )
        np.savez_compressed(options.out, **found)


if __name__ == "__main__":
    main()
