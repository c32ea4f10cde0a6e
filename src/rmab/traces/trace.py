"""A trace: what several agents measured of several arms, slot by slot."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

__all__ = ["Trace", "load_trace"]


@dataclass(frozen=True, eq=False)
class Trace:
    """States of arms over slots, by agent.

    state: (agents, slots, arms) int8, 0..states-1, -1 where nothing was measured; segment:
    (slots,) ids, non-decreasing; slot_s: seconds of a slot, None where that is not known.
    """

    state: npt.NDArray[np.int8]
    segment: npt.NDArray[np.int64]
    slot_s: float | None
    arms: tuple[str, ...]
    agents: tuple[str, ...]
    source: str
    states: int = 2

    @property
    def measured(self) -> npt.NDArray[np.bool_]:
        """(agents, slots, arms): whether a state was measured."""
        return self.state >= 0


def load_trace(path: str | Path, levels: bool = False) -> Trace:
    """Read a trace from an .npz file."""
    with np.load(path, allow_pickle=False) as file:
        state = file["level" if levels else "state"]
        segment = file["seg"].astype(np.int64)
        meta = json.loads(str(file["meta"]))
    arms = meta["channels"]
    if isinstance(arms[0], list):
        arms = [f"arm{i}" for i in range(state.shape[2])]
    return Trace(
        state,
        segment,
        meta["slot_s"],
        tuple(map(str, arms)),
        tuple(map(str, meta["agents"])),
        meta["source"],
        int(state.max()) + 1 if levels else 2,
    )
