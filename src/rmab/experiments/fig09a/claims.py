"""Whittle and myopic indices are optimal for identical arms (Fig. 9a)."""

import numpy as np

from rmab.experiments.estimates import add_exact_values
from rmab.experiments.figure import FigureResult
from rmab.experiments.verdict import Claim, Effect

__all__ = ["judge"]

_SAME = 1e-6  # largest difference of exact values per slot that are equal


def judge(done: FigureResult) -> list[Claim]:
    add_exact_values(done)
    claims = []
    for variant, results, exact in zip(
        done.figure.variants, done.results, done.values, strict=True
    ):
        best = exact["optimum"] or np.nan
        gaps = {name: best - (exact[name] or np.nan) for name in ("whittle", "myopic")}
        apart = ", ".join(
            "{} {:+.5f} ± {:.5f}".format(name, *results.difference(name, "optimal"))
            for name in gaps
        )
        claims.append(
            Claim(
                f"Whittle, myopic and optimal are equal for identical arms ({variant.label}).",
                f"exact optimum {best:.6f}, Whittle {gaps['whittle']:.2e} and myopic "
                f"{gaps['myopic']:.2e} below it; simulated, less optimal: {apart}.",
                [
                    Effect(f"{name} below the optimum", gap, 0.0, _SAME, "below")
                    for name, gap in gaps.items()
                ],
            )
        )
    return claims
