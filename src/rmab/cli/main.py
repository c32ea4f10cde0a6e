"""Entry point of the program `rmab`: parse the words, load the command, run it.

Exit codes: 0 done, 1 a failure that may pass, 2 a lasting failure (bad input, a missing package),
130 interrupted, 143 ended by SIGTERM (finished results are written in both cases).
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from types import FrameType
from typing import Any

from rmab.cli.console import (
    BAD_INPUT,
    DONE,
    FAILED,
    INTERRUPTED,
    TERMINATED,
    Parser,
    drop_output,
    joined,
    line,
    say,
)
from rmab.cli.options import Command, add_options, commands, read_values
from rmab.errors import (
    RmabError,
    StorageError,
    UnavailableError,
    how_to_install,
    system_reason,
)

__all__ = ["main"]

_STRIKE_SECONDS = 0.02  # until a Ctrl-C that came at a bad time is tried again
_MOST_STRIKES = 250  # 5 seconds: a policy's module may do anything while it is imported
_SERVED = ("federation", "helper")  # modules whose commands need the packages of a server


@dataclass
class _Signals:
    """The last signal that asked a command to end."""

    last: int = signal.SIGINT

    def code(self, code: int) -> int:
        """Return the exit code of a command that ended with this one."""
        return TERMINATED if code == INTERRUPTED and self.last == signal.SIGTERM else code


def _parser(asked: str | None = None) -> Parser:
    """Return the parser of the program, with the options of one command; None: of all."""
    parser = Parser(prog="rmab", description="Restless bandits that learn together.")
    parser.add_argument("--version", action="store_true", help="print the version and end")
    _add_commands(parser, commands(), "command", asked, title="commands")
    return parser


def _add_commands(
    parser: Parser, table: Mapping[str, Command], dest: str, asked: str | None, **settings: Any
) -> None:
    below = parser.add_subparsers(dest=dest, metavar=dest.upper(), parser_class=Parser, **settings)
    for name, command in table.items():
        about = f"{command.about[0].upper()}{command.about[1:]}."
        made = below.add_parser(name, help=command.about, description=about)
        if asked in (None, name):
            add_options(made, command.options)
            if command.kinds:
                _add_commands(made, command.kinds, "kind", None, required=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code. Without argv it is the program `rmab`."""
    code = _main(argv)
    if argv is None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is done
    if code in (INTERRUPTED, TERMINATED) and argv is None:
        # Threads in the midst of a batch cannot be stopped, and a plain exit would wait for them.
        sys.stdout.flush()
        os._exit(code)
    return code


@contextmanager
def _interruptible() -> Iterator[_Signals]:
    """Let Ctrl-C and SIGTERM end a command at any time; yield the one that came last.

    Both raise KeyboardInterrupt. In the middle of an import this would leave a module half made,
    at worst one in C, so the signal waits until the import is done. Where Python drops an
    exception, as in a callback of the garbage collector, the signal comes again. A signal that is
    ignored or has another handler already stays so.
    """
    signals = _Signals()
    if threading.current_thread() is not threading.main_thread():
        yield signals
        return
    struck, lock, over = 0, threading.RLock(), threading.Event()
    main_thread = threading.main_thread().ident
    assert main_thread is not None

    def strike(number: int, frame: FrameType | None) -> None:
        nonlocal struck
        signals.last = number
        with lock:
            struck += 1
        if struck < _MOST_STRIKES and _is_importing(frame):
            strike_again(number)
        else:
            struck = _MOST_STRIKES  # one put off for long, or one more from an impatient user
            raise KeyboardInterrupt

    def strike_again(number: int) -> None:
        threading.Thread(target=send, args=(number, struck), daemon=True).start()

    def send(number: int, handled: int) -> None:
        # Until it is handled: one that comes just before the main thread sleeps does not wake it.
        while not over.wait(_STRIKE_SECONDS):
            with lock:
                if over.is_set() or struck != handled:
                    return
                signal.pthread_kill(main_thread, number)

    def dropped(raised: sys.UnraisableHookArgs) -> None:
        if raised.exc_type is KeyboardInterrupt:
            strike_again(signals.last)
        else:
            report(raised)

    report, sys.unraisablehook = sys.unraisablehook, dropped
    defaults = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    taken = {n: before for n, before in defaults.items() if signal.getsignal(n) is before}
    for number in taken:
        signal.signal(number, strike)
    try:
        yield signals
    finally:
        with lock:
            over.set()
        for number, before in taken.items():
            signal.signal(number, before)
        sys.unraisablehook = report


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def _main(argv: Sequence[str] | None) -> int:
    words = sys.argv[1:] if argv is None else list(argv)
    parser = _parser(next((word for word in words if not word.startswith("-")), ""))
    options = parser.parse_args(joined(words))
    options.words = words
    if options.version:
        from rmab import __version__

        print(f"rmab {__version__}")
        return DONE
    if options.command is None:
        parser.print_help()
        return DONE
    command, signals = commands()[options.command], _Signals()
    try:
        read_values(command.options, options)
        with _interruptible() as signals:
            module = import_module(f"rmab.cli.{command.module}")
            code: int = getattr(module, options.command.replace("-", "_"))(options)
        sys.stdout.flush()
        return signals.code(code)
    except RmabError as error:
        say(line(f"rmab {options.command}: {error}"))
        lasting = isinstance(error, StorageError) and error.lasting
        return FAILED if isinstance(error, UnavailableError) and not lasting else BAD_INPUT
    except KeyboardInterrupt:
        say(f"rmab {options.command}: interrupted before anything was finished")
        return signals.code(INTERRUPTED)
    except BrokenPipeError:
        drop_output()
        return DONE
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "rmab":
            raise  # a fault of ours, not of the installation
        extra = "server" if command.module in _SERVED else "sim"
        extra = "ray" if error.name == "ray" else extra
        say(f"rmab {options.command}: needs {error.name}; {how_to_install(extra)}")
        return BAD_INPUT
    except OSError as error:  # a full disk, say
        drop_output()
        at = "" if error.filename is None else f"{error.filename}: "
        say(line(f"rmab {options.command}: {at}{system_reason(error)}"))
        return FAILED
