"""Every exception rmab raises on purpose.

    RmabError
    +-- ModelError        an arm, a belief or dynamics that break a rule of the model
    +-- StudyError        a study file, a key or an option that cannot be used
    +-- TooLargeError     an exact computation that does not fit; carries the state count
    +-- ConvergenceError  an iteration that did not reach its tolerance

The message is one line: the place, the value and the rule.
"""

from __future__ import annotations

__all__ = ["ConvergenceError", "ModelError", "RmabError", "StudyError", "TooLargeError"]


class RmabError(Exception):
    """Base of all errors rmab raises on purpose."""


class ModelError(RmabError, ValueError):
    """An arm, a belief or dynamics that break a rule of the model."""


class StudyError(RmabError, ValueError):
    """A study file, a key or an option that cannot be used."""


class TooLargeError(RmabError):
    """An exact computation whose state space does not fit; `states` is its size."""

    def __init__(self, message: str, states: int) -> None:
        super().__init__(message)
        self.states = states


class ConvergenceError(RmabError):
    """An iteration that did not reach its tolerance."""
