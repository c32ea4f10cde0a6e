"""Whittle and myopic indices are nearly optimal for different arms (Fig. 9b)."""

import numpy as np

from rmab.experiments.estimates import add_exact_values, paired, with_error
from rmab.experiments.figure import FigureResult
from rmab.experiments.verdict import Claim, Effect

__all__ = ["judge"]

_CLOSE = 0.99  # least share of the optimum that is "close"


def judge(done: FigureResult) -> list[Claim]:
    add_exact_values(done)
    results, exact = done.results[0], done.values[0]
    best = exact["optimum"] or np.nan
    shares = {
        name: (exact[name] or np.nan) / best
        for name in ("whittle", "myopic", "fixed", "fixed-best", "random")
    }
    parts = ", ".join(f"{name} {100 * (1 - x):.3f} % below" for name, x in shares.items())
    worse = [paired(results, name, "fixed") for name in ("whittle", "myopic")]
    more = ", ".join(f"{effect.of}: {with_error((effect.value, effect.se))}" for effect in worse)
    return [
        Claim(
            "Whittle and myopic come close to the optimum for different arms.",
            f"exact optimum {best:.5f}: {parts}. Asked is {100 * (1 - _CLOSE):.0f} %.",
            [
                Effect(f"{name} as a share of the optimum", shares[name], 0.0, _CLOSE)
                for name in ("whittle", "myopic")
            ],
        ),
        Claim("The fixed selection is worse than both.", f"simulated, {more}.", worse),
    ]
