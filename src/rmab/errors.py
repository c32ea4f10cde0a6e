"""Every exception rmab raises on purpose.

    RmabError
    +-- ModelError        an arm, a belief or dynamics that break a rule of the model
    +-- StudyError        a study file, a key or an option that cannot be used
    +-- TooLargeError     an exact computation that does not fit; carries the state count
    +-- ConvergenceError  an iteration that did not reach its tolerance
    +-- FederationError   a federation's file, database, credential or address that cannot be used
    +-- ProtocolError     a message that breaks the protocol: the peer's mistake, not ours
    +-- StorageError      a database that did not keep what it was given
    +-- UnreachableError  a server that could not be reached when it had to be

The message is one line: the place, the value and the rule.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "ConvergenceError",
    "FederationError",
    "ModelError",
    "ProtocolError",
    "RmabError",
    "StorageError",
    "StudyError",
    "TooLargeError",
    "UnreachableError",
]


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


class FederationError(RmabError, ValueError):
    """A federation's file, database, credential or address that cannot be used."""


class ProtocolError(RmabError):
    """A message that breaks the protocol.

    status: the HTTP code that answers it; code: one word for programs; extra: what the answer
    carries besides.
    """

    def __init__(self, status: int, code: str, message: str, **extra: Any) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.extra = extra


class StorageError(RmabError):
    """A database that did not keep what it was given; nothing of it was acknowledged."""


class UnreachableError(RmabError):
    """A server that could not be reached when it had to be."""
