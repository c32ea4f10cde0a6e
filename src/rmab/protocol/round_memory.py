"""Memory of a server that forgets, from round to round, as arrays and as bytes of the database.

A round's counts lose weight by the half-lives of experts (`rmab.learning.forgetting`), so they are
no longer sums of agents' uploads: they are a function of the memory before the round,
of the counts in it and of its length, and are stored with the round that was planned from them.
"""

from __future__ import annotations

import io
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from rmab.errors import StorageError

__all__ = ["RoundMemory"]

_Floats = npt.NDArray[np.float32]


class RoundMemory(NamedTuple):
    """Memory of L agents by lane and B experts, as `rmab.learning.forgetting.Memory` has it.

    counts: (C, S, S, N, L, B); visits: (S, N, L, B); log_weights: (B,); modes: (2, N, E, B), those
    of the round's start, E = 1 where agents share their evidence, else L; without an entry where
    there is one expert.
    """

    counts: _Floats
    visits: _Floats
    log_weights: _Floats
    modes: _Floats

    def to_bytes(self) -> bytes:
        """Return the bytes for the database."""
        file = io.BytesIO()
        arrays: dict[str, Any] = {key: np.asarray(x, "<f4") for key, x in self._asdict().items()}
        np.savez(file, **arrays)
        return file.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes) -> RoundMemory:
        """Return the memory of which `to_bytes` made the bytes."""
        try:
            with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
                return cls(*(np.asarray(arrays[key], np.float32) for key in cls._fields))
        except (OSError, ValueError, KeyError, BadZipFile) as error:
            raise StorageError(
                f"what a round keeps of forgotten counts is damaged: {error}"
            ) from None

    def heaviest(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Counts (C, S, S, N) and visits (S, N) of all agents by the expert of most weight."""
        best = int(self.log_weights.argmax())
        return self.counts[..., best].sum(-1), self.visits[..., best].sum(-1)
