"""Command `agent`: run an agent with a program's environment, or with simulated arms."""

from __future__ import annotations

import argparse
import json
import logging
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

from rmab.cli.console import BAD_INPUT, DONE, FAILED, INTERRUPTED, line, say
from rmab.errors import FederationError, UnavailableError

if TYPE_CHECKING:
    from rmab.service.agent.agent import Agent
    from rmab.studies.study import Study

__all__ = ["agent"]

_FLUSH_SECONDS = 2.0  # for what is unsent, when asked to end
_POLL_SECONDS = 0.5  # between two checks whether the server is away

# Bugs of a program, which waiting does not mend.
_BUGS = (
    AttributeError,
    ImportError,
    NameError,
    NotImplementedError,
    RecursionError,
    SyntaxError,
    TypeError,
)
# Where an object is made there is no reading yet that could be the cause of these.
_BUGS_IN_MAKING = (*_BUGS, ArithmeticError, AssertionError)

Sense = Callable[[list[int]], Sequence[int]]  # of arms, in a slot


class _Device(NamedTuple):
    """Methods that play arms, and that look at arms which are always observed, if there is one."""

    sense: Sense
    look: Sense | None


class _BugError(FederationError):
    """A bug in the code that observes arms."""


class _Ended(BaseException):
    """The process was asked to end, as by systemd."""


def agent(options: argparse.Namespace) -> int:
    """Play, send, and say how it went."""
    slots, pace, patience = options.slots, options.slot_seconds, options.patience
    token = _token(options.token_file)
    mask_key = None if options.mask_key_file is None else _mask_key(options.mask_key_file)
    study = None if options.simulate is None else _study(options.simulate)
    device = None if options.env is None else _environment(options.env)
    from rmab.service.agent.agent import MAX_BAD_READINGS, Agent

    with (
        _log_lines(),
        Agent(
            options.url,
            token=token,
            file=options.state,
            ca=options.ca,
            patience=patience,
            max_bad_readings=options.max_bad_readings or MAX_BAD_READINGS,
            mask_key=mask_key,
        ) as agent,
    ):
        waits = study is not None and pace is None
        if study is not None:
            device = _simulated(study, agent, token, options.simulate)
        assert device is not None
        if agent.always_observed and device.look is None:
            raise FederationError(
                f"--env {options.env}: must have a method look(arms) that returns states, as "
                f"{len(agent.always_observed)} arms of the federation are always observed"
            )
        code, asked = DONE, False
        try:
            with _ends_when_asked():
                if waits:
                    agent.meet(patience)
                    _play(agent, device, slots, lambda: agent.slot_seconds, patience)
                else:
                    _play(agent, device, slots, lambda: pace)
        except KeyboardInterrupt:
            code = INTERRUPTED
        except _Ended:
            asked = True
        except (UnavailableError, _BugError) as error:  # what was read is sent
            say(line(f"rmab agent: {error}"))
            code = BAD_INPUT if isinstance(error, _BugError) else FAILED
        flushed = agent.flush(patience if code == DONE and agent.slots == slots else _FLUSH_SECONDS)
        _report(agent, as_json=options.json)
        if not flushed:
            say(
                "rmab agent: the server has not acknowledged everything; the rest is kept in "
                f"{line(str(agent.file))} and sent at the next start"
            )
            code = DONE if asked else code or FAILED
        return code


def _play(
    agent: Agent,
    device: _Device,
    slots: int | None,
    pace: Callable[[], float | None],
    patience: float = 0.0,
) -> None:
    """Play that many slots.

    pace: gives the seconds of a slot, None for as long as `sense` takes. patience: how many seconds
    without a server to wait for the next round when an episode is over, as Algorithm 1 does; once
    for each round.
    """
    due = time.monotonic()
    waited = 0
    while slots is None or agent.slots < slots:
        if patience and agent.over and waited != agent.round:
            waited = agent.round
            _wait(agent, patience)
        arms = _choose(agent, device)
        try:
            states = device.sense(arms)
        except Exception as error:  # whatever a device and its driver do
            agent.skip(_raised(device.sense, error))
        else:
            agent.observe(states)
        seconds = pace()
        if seconds is not None:
            due = max(due + seconds, time.monotonic() - seconds)
            time.sleep(max(0.0, due - time.monotonic()))


def _choose(agent: Agent, device: _Device) -> list[int]:
    """The arms to play, after a look at those that are always observed."""
    if not agent.always_observed:
        return agent.choose()
    assert device.look is not None
    try:
        states = device.look(list(agent.always_observed))
    except Exception as error:  # as of `sense`
        return agent.choose(unread=_raised(device.look, error))
    return agent.choose(states)


def _raised(method: Sense, error: Exception) -> str:
    """Return a sentence with an error of the device and its place; raise _BugError for a bug."""
    name = getattr(method, "__name__", "sense")
    said = f"{name} raised {type(error).__name__}: {error}{_place(method, error)}"
    if isinstance(error, _BUGS):
        raise _BugError(f"{said}; this is a bug of the program, which waiting does not mend")
    return said


def _place(method: Sense, error: Exception) -> str:
    """Return the place of an error as " (radio.py, line 12)": the last line of the file that has
    the method, or the method itself where it could not be called."""
    code = getattr(getattr(method, "__func__", method), "__code__", None)
    frames = list(traceback.walk_tb(error.__traceback__))[1:]  # the first is the call here
    if isinstance(error, SyntaxError) and error.filename is not None:
        file, number = error.filename, error.lineno
    elif frames:
        own = [(f.f_code.co_filename, at) for f, at in frames]
        of_file = [each for each in own if code is not None and each[0] == code.co_filename]
        file, number = (of_file or own)[-1]
    elif code is not None:
        file, number = code.co_filename, code.co_firstlineno
    else:
        return ""
    return f" ({Path(file).name}, line {number})"


def _wait(agent: Agent, patience: float) -> None:
    """Wait for the next round, or until the server has been away for that many seconds."""
    until = time.monotonic() + patience
    while not agent.wait(_POLL_SECONDS):
        now = time.monotonic()
        if agent.connected:
            until = now + patience
        elif now >= until:
            return


def _report(agent: Agent, *, as_json: bool) -> None:
    mean = agent.reward / agent.slots if agent.slots else None
    if as_json:
        table: dict[str, Any] = {
            "slots": agent.slots,
            "reward": None if mean is None else round(mean, 6),
            "uploads": agent.uploads,
            "round": agent.round,
            "bad_readings": agent.bad_readings,
        }
        if agent.alike is not None:
            table["alike"] = [round(weight, 6) for weight in agent.alike]
        print(json.dumps(table, allow_nan=False), flush=True)
    else:
        paid = "" if mean is None else f", {mean:.5f} mean reward per slot"
        bad = f", {agent.bad_readings} bad readings" if agent.bad_readings else ""
        print(
            f"{agent.slots} slots{paid}, {agent.uploads} uploads, round {agent.round}{bad}",
            flush=True,
        )


def _token(name: str) -> str:
    """The credential in a file, which is never shown."""
    from rmab.service.admin import read_token

    token = read_token(name)
    _warn_if_open(name)
    return token


def _mask_key(name: str) -> str:
    """The mask key in a file, which is never shown."""
    from rmab.privacy.masks import parse_key
    from rmab.service.admin import read_secret

    what = "the mask key that rmab helper-enroll printed"
    text = read_secret(name, "--mask-key-file", parse_key, what)
    _warn_if_open(name)
    return text


def _warn_if_open(name: str) -> None:
    if Path(name).stat().st_mode & 0o077:
        say(line(f"rmab agent: warning: others can read {name}; chmod 600 closes it to them"))


def _environment(name: str) -> _Device:
    """`sense` and `look` of an object of MODULE:CLASS; every fault is an error of one line.

    A device that is not there may be later; code that is wrong stays so.
    """
    module, _, class_name = name.partition(":")
    if not module or not class_name:
        raise FederationError(f"--env must be like radio:Radio, got {name!r}")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        environment: Any = getattr(import_module(module), class_name)()
    except Exception as error:  # whatever the user's code does
        reason = f"{type(error).__name__}: {error}"
        kind = FederationError if isinstance(error, _BUGS_IN_MAKING) else UnavailableError
        raise kind(f"--env {name}: cannot be made: {reason}") from None
    sense: Any = getattr(environment, "sense", None)
    if not callable(sense):
        raise FederationError(f"--env {name}: must have a method sense(arms) that returns states")
    look: Any = getattr(environment, "look", None)
    return _Device(sense, look if callable(look) else None)


def _study(name: str) -> Study:
    from rmab.studies.study import load

    return load(name)


def _simulated(study: Study, agent: Agent, token: str, name: str) -> _Device:
    """Arms of the study, seeded by it and by the agent's credential, so agents' arms differ."""
    from rmab.model.realisation import SimulatedArms

    states = tuple(arm.states for arm in study.arms)
    if states != agent.arms:
        raise FederationError(
            f"--simulate {name}: must have arms of {_counts(agent.arms)} states, as the federation "
            f"has, got {_counts(states)}"
        )
    for n, kind in enumerate(study.arms.kinds):
        if kind.action_dependent and n not in agent.action_dependent:
            raise FederationError(
                f"--simulate {name}: arm {n + 1} must move alike when played, as the federation "
                "has no action_dependent = true for it"
            )
        if n in agent.always_observed and not kind.fully_observed:
            raise FederationError(
                f'--simulate {name}: arm {n + 1} must be observed "always", as in the federation'
            )
    key_id = int(token.split("_")[1], 16)
    simulated = SimulatedArms(study.arms, (study.seed, key_id))
    return _Device(simulated.sense, simulated.look)


def _counts(states: Sequence[int]) -> str:
    shown = ", ".join(map(str, states[:16]))
    return shown if len(states) <= 16 else f"{shown}, ... ({len(states)} arms)"


@contextmanager
def _log_lines() -> Iterator[None]:
    """Warnings of the agent as lines on standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("rmab agent: %(message)s"))
    log = logging.getLogger("rmab.agent")
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


@contextmanager
def _ends_when_asked() -> Iterator[None]:
    """Let SIGTERM end the play instead of the process, so that unsent counts are sent first."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the system's signature
        raise _Ended

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
