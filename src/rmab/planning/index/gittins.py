"""Gittins indices by state elimination.

A rested arm moves by P and pays r(s) when played; left alone it freezes and pays nothing. Its
Gittins index, as a reward rate, is the largest reward per slot that a play from s can have, both
discounted, over all times to stop:

    G(s) = max over stopping times tau >= 1 of  E sum_{t < tau} beta^t r / E sum_{t < tau} beta^t.

The state with the largest r has it for its index, and from below it is only ever passed through. So
it is eliminated: a visit to a state s goes on, with the chance P(s, z), through z until that is
left, which adds to the reward and to the time of a visit, and to where it leads. Among the states
that remain the largest ratio of reward and time is again an index. Rewards are counted from the
smallest, and the chance of leaving z is summed, not taken from 1: nothing is ever subtracted, so
that every index keeps its digits however near beta comes to 1.

With beta = 1 these are the limits of the discounted indices, and a state z that is never left adds
an infinite reward and time: states that may come to it have its index. Whether one policy is then
best for every start is the verdict, as for Whittle indices.

It stands alone as a method of its own: it shares no step with those for Whittle indices.

References: I. M. Sonin, "A generalized Gittins index for a Markov chain and its recursive
calculation", Stat. Prob. Letters 78(12), 2008; J. C. Gittins, "Bandit processes and dynamic
allocation indices", JRSS B 41(2), 1979.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rmab.arrays import FloatArray

__all__ = ["eliminate"]


def eliminate(P: FloatArray, rewards: FloatArray, beta: float) -> tuple[FloatArray, list[int]]:
    """Gittins indices, (S,), and with beta = 1 the last state of each closed class.

    P: (S, S), rows sum to 1; rewards: (S,); 0 < beta <= 1. The index of the last state of a closed
    class is the average reward of the class.

    >>> eliminate(np.array([[0.5, 0.5], [0.0, 1.0]]), np.array([0.0, 1.0]), 0.5)[0].round(6)
    array([0.333333, 1.      ])
    """
    least = float(rewards.min())
    P, reward, time = beta * P, rewards - least, np.ones(len(P))
    ended = np.full(len(P), 1 - beta)  # the chance that a visit is the last, by discounting
    index, last = np.empty(len(P)), []
    left = np.arange(len(P))
    while left.size:
        ratio = reward[left] / time[left]
        z = int(left[ratio.argmax()])
        index[z] = ratio.max()
        left = left[left != z]
        leaves = ended[z] + P[z, left].sum()
        if leaves == 0:
            last.append(z)
            left = _take(P, left, z, index)
            continue
        through = P[left, z] / leaves
        P[np.ix_(left, left)] += np.outer(through, P[z, left])
        reward[left] += through * reward[z]
        time[left] += through * time[z]
        ended[left] += through * ended[z]
    return index + least, last


def _take(
    P: FloatArray, left: npt.NDArray[np.intp], z: int, index: FloatArray
) -> npt.NDArray[np.intp]:
    """Give states that may come to z its index, and return the others."""
    ahead = [z]
    while ahead:
        comes = P[left, ahead.pop()] > 0
        index[left[comes]] = index[z]
        ahead += left[comes].tolist()
        left = left[~comes]
    return left
