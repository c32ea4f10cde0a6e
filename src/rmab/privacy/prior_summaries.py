"""Posterior summaries that a server sends to agents for local draws, as bytes and as values.

    {"protocol": 1, "federation": "spectrum", "round": 7, "index": "whittle", "gaps": 32,
     "prior": [1.0, 1.0], "doubt": 0.1,
     "laws": [{"of": "all", "mean": [[u, v], ...], "covariance": [[uu, uv, vv], ...]}]}

A summary (`laws` on the wire) has mean and covariance of the log odds (u, v) of each arm's
(p01, p11), under the posterior of all counts when the round opened.
`rmab.learning.channel.local_posterior` makes an agent's prior of it. gaps: the largest gap of pairs
that are learnt from, 0: consecutive slots only.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rmab.learning.channel.local_posterior import PosteriorSummaries
from rmab.protocol.checks import floats, listed, malformed, read_object, take, whole_number
from rmab.protocol.shape import Shape, check_protocol, is_name
from rmab.text import is_number, shown

__all__ = ["INDICES", "SummariesMessage", "parse_summaries"]

INDICES = ("whittle", "myopic")  # indices that an agent can compute
_MAX_LAWS = 64
_FARTHEST = 100.0  # largest log odds, and variance of log odds, of a summary
_LEAST_VARIANCE = 1e-12


@dataclass(frozen=True, eq=False)
class SummariesMessage:
    """Summaries of N arms in one trial, with their names."""

    federation: str
    round: int
    index: str
    gaps: int
    prior: tuple[float, float]
    doubt: float
    names: tuple[str, ...]
    summaries: PosteriorSummaries

    def to_json(self) -> bytes:
        """Return the body of an answer."""
        rows = zip(self.names, *(np.asarray(x)[..., 0] for x in self.summaries), strict=True)
        table = {
            "protocol": 1,
            "federation": self.federation,
            "round": self.round,
            "index": self.index,
            "gaps": self.gaps,
            "prior": list(self.prior),
            "doubt": self.doubt,
            "laws": [
                {
                    "of": name,
                    "mean": [[float(f"{x:.7g}") for x in arm] for arm in mean.T],
                    "covariance": [[float(f"{x:.7g}") for x in arm] for arm in covariance.T],
                }
                for name, mean, covariance in rows
            ],
        }
        return json.dumps(table, separators=(",", ":"), allow_nan=False).encode()


def parse_summaries(body: bytes, shape: Shape) -> SummariesMessage:
    """Read the summaries in an answer's body, of these arms; ProtocolError if malformed."""
    keys = ("protocol", "federation", "round", "index", "gaps", "prior", "doubt", "laws")
    protocol, federation, number, index, gaps, prior, doubt, laws = take(
        read_object(body), "the laws", *keys
    )
    check_protocol(protocol)
    if not is_name(federation):
        raise malformed(f"federation must be a name, got {shown(federation)}")
    if index not in INDICES:
        raise malformed(f"index must be one of {', '.join(INDICES)}, got {shown(index)}")
    if whole_number("gaps", gaps, 0) not in (0, shape.gaps):
        raise malformed(f"gaps must be 0 or {shape.gaps}, as in the round, got {gaps}")
    a, b = (float(x) for x in floats("prior", prior, 2))
    if not (a > 0 and b > 0):
        raise malformed(f"prior must be two numbers above 0, got {shown(prior)}")
    if not (is_number(doubt) and 0 < doubt <= 1):
        raise malformed(f"doubt must be a number above 0 and at most 1, got {shown(doubt)}")
    if not isinstance(laws, list) or not 1 <= len(laws) <= _MAX_LAWS:
        raise malformed(f"laws must be a list of 1 to {_MAX_LAWS}, got {shown(laws)}")
    names: list[str] = []
    means: list[npt.NDArray[np.float64]] = []
    covariances: list[npt.NDArray[np.float64]] = []
    for place, law in enumerate(laws):
        name, mean, covariance = take(law, f"laws[{place}]", "of", "mean", "covariance")
        if not is_name(name):
            raise malformed(f"laws[{place}].of must be a name, got {shown(name)}")
        names.append(name)
        for key, value, size, found in (
            ("mean", mean, 2, means),
            ("covariance", covariance, 3, covariances),
        ):
            at = f"laws[{place}].{key}"
            rows = [
                floats(f"{at}[{arm}]", row, size)
                for arm, row in enumerate(listed(at, value, shape.n_arms))
            ]
            found.append(np.array(rows, np.float64).T)
        uu, uv, vv = covariances[-1]
        spread = np.minimum(uu, vv) > _LEAST_VARIANCE
        if not (spread & (uv * uv < uu * vv)).all():
            raise malformed(f"laws[{place}].covariance must be positive definite for every arm")
        if max(np.abs(means[-1]).max(), np.maximum(uu, vv).max()) > _FARTHEST:
            raise malformed(f"laws[{place}] must have numbers of at most {_FARTHEST:g} in size")
    return SummariesMessage(
        federation=federation,
        round=whole_number("round", number, 1),
        index=index,
        gaps=gaps,
        prior=(a, b),
        doubt=float(doubt),
        names=tuple(names),
        summaries=PosteriorSummaries(np.array(means)[..., None], np.array(covariances)[..., None]),
    )
