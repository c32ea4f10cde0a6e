"""One policy of one of the frozen studies: its numbers, or why it is refused."""

from __future__ import annotations

from typing import Any

import numpy as np

import rmab
from tests.golden.recording import compare, digest
from tests.golden.studies import STUDIES

__all__ = ["check", "outcome"]

CURVES = ("slots", "regret", "episode_length", "episode_reward", "episode_regret", "episode_error")


def check(study: str, policy: str, file: str = "") -> dict[str, Any]:
    """The outcome of the policy, after it was compared with the policy's entry in the study's file,
    unless another is named."""
    found = outcome(study, policy)
    compare(file or study, policy, found)
    return found


def outcome(study: str, policy: str) -> dict[str, Any]:
    """Of the policy, run beside `whittle` for the paired difference, or why it is refused."""
    names = list(dict.fromkeys((policy, "whittle")))
    try:
        results = rmab.run(STUDIES[study](names))
    except rmab.RmabError as error:
        return {"refused": f"{type(error).__name__}: {error}"}
    one = results[policy]
    parts = [_bytes(one.episode_trials), _bytes(results.covariance)]
    parts += [_bytes(x) for x in results.difference(policy, "whittle")]
    for name in CURVES:
        curve = getattr(one, name)
        parts += [b"none"] if curve is None else [_bytes(curve.mean), _bytes(curve.se)]
    summary = one.summary()
    parts += [_bytes(x) for x in summary.values()]
    errors = one.episode_error
    return summary | {
        "regret": float(one.regret.mean[-1]),
        "regret_se": float(one.regret.se[-1]),
        "error": None if errors is None else round(float(errors.mean[0].sum()), 4),
        "sha256": digest(b"".join(parts)),
    }


def _bytes(numbers: Any) -> bytes:
    """Their shape, kind and raw bytes."""
    array = np.ascontiguousarray(numbers)
    return f"{array.dtype.str} {array.shape} ".encode() + array.tobytes()
