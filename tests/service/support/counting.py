"""Uploads as an agent makes them, from looks at arms that show random states."""

from __future__ import annotations

import hashlib

import numpy as np

from rmab.protocol.shape import Shape, Upload


class Counting:
    """One incarnation of an agent that plays at random; the same looks for the same name."""

    def __init__(self, shape: Shape, name: str = "one") -> None:
        self.incarnation = hashlib.sha256(name.encode()).hexdigest()[:32]
        self._rng = np.random.default_rng(int(self.incarnation, 16))
        self._shape = shape
        S = max(shape.states)
        self._counts = np.zeros((shape.kinds, S, S, shape.n_arms), np.int64)
        self._visits = np.zeros((S, shape.n_arms), np.int64)
        self._last: dict[int, tuple[int, int]] = {}  # arm -> slot and state
        self._slots = 0

    @property
    def slots(self) -> int:
        """So far."""
        return self._slots

    def play(self, slots: int) -> None:
        """Look at K arms in each of so many slots."""
        for _ in range(slots):
            for arm in self._rng.permutation(self._shape.n_arms)[: self._shape.plays].tolist():
                state = int(self._rng.integers(self._shape.states[arm]))
                if arm in self._last:
                    slot, before = self._last[arm]
                    kind = min(self._slots - slot, self._shape.kinds) - 1
                    self._counts[kind, before, state, arm] += 1
                self._visits[state, arm] += 1
                self._last[arm] = (self._slots, state)
            self._slots += 1

    def upload(self, sequence: int, round: int = 1, slots: int = 3) -> Upload:
        """Play on, and tell of all so far."""
        self.play(slots)
        return Upload(
            self.incarnation,
            sequence,
            round,
            self._slots,
            slots,
            self._counts.copy(),
            self._visits.copy(),
        )
