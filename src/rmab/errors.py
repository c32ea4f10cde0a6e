"""Exceptions that rmab raises on purpose.

    RmabError
    +-- ModelError        an arm, a belief or dynamics that break a rule of the model
    +-- StudyError        a study file, a key or an option that cannot be used
    +-- TraceError        a recording or a trace that cannot be used with these options
    +-- TooLargeError     an exact computation that does not fit; carries the state count
    +-- ConvergenceError  an iteration that did not reach its tolerance
    +-- FederationError   a federation's file, database, credential or address that cannot be used
    +-- ProtocolError     a message that breaks the protocol: the peer's mistake
    +-- UnavailableError  a resource that is missing now and may return: a port, a device
        +-- StorageError      a database that did not store its data
            +-- Overloaded        a full queue of the database's jobs
        +-- UnreachableError  a server that could not be reached when it had to be

The message is one line: the place, the value and the rule. Commands end with 1 where something is
unavailable, so that a supervisor starts them again, and with 2 otherwise, as the error stays until
a person repairs the cause.
"""

from __future__ import annotations

import errno
from typing import Any

__all__ = [
    "ConvergenceError",
    "FederationError",
    "ModelError",
    "Overloaded",
    "ProtocolError",
    "RmabError",
    "StorageError",
    "StudyError",
    "TooLargeError",
    "TraceError",
    "UnavailableError",
    "UnreachableError",
    "how_to_install",
    "is_lasting",
    "system_reason",
]

# Answers of the system that stay until the request or the permissions change.
_LASTING = frozenset(
    {
        errno.ENOENT,
        errno.EEXIST,
        errno.EACCES,
        errno.EPERM,
        errno.EISDIR,
        errno.ENOTDIR,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.EINVAL,
        errno.EAFNOSUPPORT,
        errno.EOPNOTSUPP,
    }
)
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class RmabError(Exception):
    """Base of all errors rmab raises on purpose."""


class ModelError(RmabError, ValueError):
    """An arm, a belief or dynamics that break a rule of the model."""


class StudyError(RmabError, ValueError):
    """A study file, a key or an option that cannot be used."""


class TraceError(RmabError, ValueError):
    """A recording or a trace that cannot be used, or not with these options."""


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

    status: HTTP code of the answer; code: one word for programs; extra: further keys of the answer.
    """

    def __init__(self, status: int, code: str, message: str, **extra: Any) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.extra = extra


class UnavailableError(RmabError):
    """A resource that is missing now and may return: a port, a name's address, a device."""


class StorageError(UnavailableError):
    """A database that neither stored nor acknowledged its data.

    lasting: a retry cannot help until a person repairs the cause, a file without permission say.
    """

    def __init__(self, message: str, *, lasting: bool = False) -> None:
        super().__init__(message)
        self.lasting = lasting


class Overloaded(StorageError):  # noqa: N818 - a state of the queue, not a fault
    """A job that the database's queue did not take: it is full."""


class UnreachableError(UnavailableError):
    """A server that could not be reached when it had to be."""


def how_to_install(extra: str) -> str:
    """Say how an optional part of rmab is installed, as the rest of a sentence."""
    return f"pip install '.[{extra}]' in a checkout of rmab installs it"


def is_lasting(error: OSError) -> bool:
    """Whether the system would answer the same again: a missing file, say, and no full disk."""
    return error.errno in _LASTING


def system_reason(error: OSError) -> str:
    """Return the system's reason in a few words."""
    said = error.strerror or str(error)
    return f"disk full: {said}" if error.errno in _FULL else said
