"""Games as text and as pictures, with only NumPy."""

from __future__ import annotations

from collections import deque

import numpy as np
import numpy.typing as npt

from rmab.envs.game import Game
from rmab.model.information import NEVER

__all__ = ["RENDER_MODES", "Film"]

RENDER_MODES = ("rgb_array", "ansi")

_SLOTS = 60  # of a picture
_CELL, _GAP = 10, 2  # pixels of a slot of an arm, and between them
_WHITE, _MARK = 255, (213, 94, 0)
_WORST, _BEST = np.array([226, 229, 233]), np.array([0, 114, 178])  # colours of the states

Pixels = npt.NDArray[np.uint8]


class Film:
    """The last slots of a game in one trial: true states and plays."""

    def __init__(self, game: Game, sizes: npt.NDArray[np.int64]) -> None:
        self.game = game
        self.total = 0.0  # rewards of all agents
        self._sizes = sizes
        self._past: deque[tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]] = deque(
            maxlen=_SLOTS
        )

    def add(
        self, states: npt.NDArray[np.int64], played: npt.NDArray[np.bool_], reward: float
    ) -> None:
        """Add a slot, (M, N) each, and its reward."""
        self._past.append((states.copy(), played.copy()))
        self.total += reward

    def as_text(self) -> str:
        """Return the information state of every arm, its true state, and the last plays."""
        game = self.game
        last = self._past[-1][1] if self._past else np.zeros(game.age.shape[1:], bool)
        lines = [
            f"trial {game.trials[0]}, slot {game.slot} of {game.horizon}, "
            f"reward so far {self.total:.4g}",
            "agent  arm  last seen  age  state  played",
        ]
        for agent, arm in np.ndindex(*last.shape):
            age = int(game.age[0, agent, arm])
            seen = "-" if age == NEVER else str(game.last_seen[0, agent, arm])
            lines.append(
                f"{agent + 1:>5}  {arm + 1:>3}  {seen:>9}  {age if age else '-':>3}  "
                f"{game.states[0, agent, arm]:>5}  {'*' if last[agent, arm] else ''}".rstrip()
            )
        return "\n".join(lines)

    def as_picture(self) -> Pixels:
        """(height, width, 3): a row for each arm of each agent, a column for each of the last
        slots; dark is a high state, a mark a play."""
        M, N = self.game.age.shape[1:]
        pitch, panel = _CELL + _GAP, N * (_CELL + _GAP) + _CELL
        height, width = M * panel + _GAP, _SLOTS * pitch + _GAP
        picture = np.full((height, width, 3), _WHITE, np.uint8)
        share = np.arange(self._sizes.max())[None] / np.maximum(self._sizes - 1, 1)[:, None]
        colours = (_WORST + np.minimum(share, 1)[..., None] * (_BEST - _WORST)).astype(np.uint8)
        for column, (states, played) in enumerate(self._past):
            x = _GAP + column * pitch
            for agent, arm in np.ndindex(M, N):
                y = _GAP + agent * panel + arm * pitch
                picture[y : y + _CELL, x : x + _CELL] = colours[arm, states[agent, arm]]
                if played[agent, arm]:
                    inset = slice(y + _CELL // 4, y + _CELL - _CELL // 4)
                    picture[inset, x + _CELL // 4 : x + _CELL - _CELL // 4] = _MARK
        return picture
