"""The program `rmab`: parsing, then the command; the work is done elsewhere.

Exit codes: 0 done, 1 a failure that may pass, 2 what will never work (bad input, a package that is
missing), 130 interrupted (what was done is written).
"""

from __future__ import annotations

import _thread
import argparse
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from rmab.cli import agent, arena, backtest, federation, helper, studies, traces
from rmab.cli.console import (
    BAD_INPUT,
    DONE,
    FAILED,
    INTERRUPTED,
    Parser,
    drop_output,
    joined,
    line,
    say,
)
from rmab.errors import RmabError, StorageError, UnavailableError, system_reason

__all__ = ["main"]

_STRIKE_SECONDS = 0.02  # until a Ctrl-C that came at a bad time is tried again
_MOST_STRIKES = 250  # 5 seconds: a policy's module may do anything while it is imported
_SERVED = (*federation.COMMANDS, *helper.COMMANDS)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="rmab",
        description="Restless bandits that learn together.",
        epilog="example:\n  rmab reproduce fig10 --trials 1000 --out results\n\n"
        + studies.EXAMPLE_STUDY
        + "\nrmab run --help lists all keys of a study, the policies and their options\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="store_true", help="print the version and end")
    commands = parser.add_subparsers(
        dest="command", metavar="COMMAND", title="commands", parser_class=Parser
    )

    def command(
        name: str,
        action: Callable[..., int],
        about: str,
        example: str,
        details: Callable[[], str] = str,
    ) -> Parser:
        made: Parser = commands.add_parser(
            name,
            help=about,
            description=about[0].upper() + about[1:] + ".",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        made.closing = lambda: f"example:\n{example}{details()}"
        made.set_defaults(action=action)
        return made

    studies.add_commands(command)
    arena.add_commands(command)
    traces.add_commands(command)
    backtest.add_commands(command)
    federation.add_commands(command)
    helper.add_commands(command)
    agent.add_agent(command)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code. Without argv it is the program `rmab`."""
    code = _main(argv)
    if argv is None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is done
    if code == INTERRUPTED and argv is None:
        # Threads in the midst of a batch cannot be stopped, and a plain exit would wait for them.
        sys.stdout.flush()
        os._exit(code)
    return code


@contextmanager
def _interruptible() -> Iterator[None]:
    """Ctrl-C ends what runs, wherever it strikes.

    Amid an import it would leave a module half made, at worst one in C: it waits until that is
    done. Where Python drops an exception, as in what garbage collection calls, it comes again.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    struck = 0

    def strike(_: int, frame: FrameType | None) -> None:
        nonlocal struck
        struck += 1
        if struck < _MOST_STRIKES and _is_importing(frame):
            threading.Timer(_STRIKE_SECONDS, _thread.interrupt_main).start()
        else:
            struck = _MOST_STRIKES  # what was put off for long, or comes from a user in a hurry
            raise KeyboardInterrupt

    def dropped(raised: sys.UnraisableHookArgs) -> None:
        if raised.exc_type is KeyboardInterrupt:
            threading.Timer(_STRIKE_SECONDS, _thread.interrupt_main).start()
        else:
            report(raised)

    report, sys.unraisablehook = sys.unraisablehook, dropped
    is_ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_ours:  # and not ignored, say
        signal.signal(signal.SIGINT, strike)
    try:
        yield
    finally:
        if is_ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.unraisablehook = report


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def _main(argv: Sequence[str] | None) -> int:
    parser = _parser()
    words = sys.argv[1:] if argv is None else list(argv)
    options = parser.parse_args(joined(words))
    options.words = words
    if options.version:
        from rmab import __version__

        print(f"rmab {__version__}")
        return DONE
    if options.command is None:
        parser.print_help()
        return DONE
    try:
        with _interruptible():
            code: int = options.action(options)
        sys.stdout.flush()
        return code
    except RmabError as error:
        say(line(f"rmab {options.command}: {error}"))
        lasting = isinstance(error, StorageError) and error.lasting
        return FAILED if isinstance(error, UnavailableError) and not lasting else BAD_INPUT
    except KeyboardInterrupt:
        say(f"rmab {options.command}: interrupted before anything was finished")
        return INTERRUPTED
    except BrokenPipeError:
        drop_output()
        return DONE
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "rmab":
            raise  # a fault of ours, not of the installation
        extra = "server" if options.command in _SERVED else "sim"
        extra = "ray" if error.name == "ray" else extra
        say(
            f"rmab {options.command}: needs {error.name}; install it with pip install "
            f"'rmab[{extra}]'"
        )
        return BAD_INPUT
    except OSError as error:  # a full disk, say
        drop_output()
        at = "" if error.filename is None else f"{error.filename}: "
        say(line(f"rmab {options.command}: {at}{system_reason(error)}"))
        return FAILED
