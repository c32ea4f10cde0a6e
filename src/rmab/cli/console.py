"""Shared by all commands: exit codes, help, lines for people, tables, numbers from options."""

from __future__ import annotations

import argparse
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import StringIO
from pathlib import Path
from typing import NoReturn, Protocol

from rmab.errors import StudyError

__all__ = [
    "BAD_INPUT",
    "DONE",
    "FAILED",
    "INTERRUPTED",
    "TERMINATED",
    "Commands",
    "Parser",
    "columns",
    "drop_output",
    "folder",
    "joined",
    "line",
    "progress",
    "say",
    "whole",
]

_NEGATIVE = re.compile(r"-\.?[0-9]")

DONE, FAILED, BAD_INPUT, INTERRUPTED, TERMINATED = 0, 1, 2, 130, 143

_LINE_SECONDS = 30.0  # between lines of progress where there is no terminal
_LINE = (
    "{desc}: {n_fmt} of {total_fmt} {unit}s, {percentage:.0f} %, {elapsed} passed, {remaining} left"
)


class Parser(argparse.ArgumentParser):
    """A parser whose closing text may be a function, called when help is asked for."""

    closing: Callable[[], str] | None = None

    def format_help(self) -> str:
        if self.closing is not None:
            self.epilog = self.closing()
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        """One line, as every other error."""
        self.exit(BAD_INPUT, line(f"{self.prog}: {message}; see {self.prog} --help") + "\n")


def joined(words: list[str]) -> list[str]:
    """The words, with "--levels", "-95,-80" as "--levels=-95,-80".

    argparse takes a single negative number for an option's value, and a list of them for an
    option.
    """
    made: list[str] = []
    for word in words:
        last = made[-1] if made else ""
        if _NEGATIVE.match(word) and last.startswith("--") and len(last) > 2 and "=" not in last:
            made[-1] = f"{last}={word}"
        else:
            made.append(word)
    return made


class Commands(Protocol):
    """Adds a command: its name, what runs it, what it is about, examples of its use, and further
    help that is put together only when it is asked for."""

    def __call__(
        self,
        name: str,
        action: Callable[[argparse.Namespace], int],
        about: str,
        example: str,
        details: Callable[[], str] = ...,
        /,
    ) -> Parser: ...


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def line(text: str) -> str:
    """On one line, though a file's name may have several."""
    return " ".join(text.splitlines())


def drop_output() -> None:
    """Discard what is left for standard output, which the interpreter flushes as it ends."""
    with suppress(OSError):  # it may have no file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def whole(option: str, text: str | None, least: int, most: int | None = None) -> int | None:
    """An option's whole number, or None where it was not given."""
    if text is None:
        return None
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least or (most is not None and number > most):
        rule = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise StudyError(f"{option} must be a whole number {rule}, got {text!r}")
    return number


def columns(rows: list[list[str]], texts: int = 1) -> str:
    """Rows in columns: the first ones, with texts, to the left, numbers to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = (
        "  ".join(
            cell.ljust(width) if i < texts else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )
    return "\n".join(lines)


@contextmanager
def progress(total: int, label: str, unit: str = "trial") -> Iterator[Callable[[int], None]]:
    """Show how far long work is, on standard error: a bar in a terminal, else a line every 30 s.

    Yields the function to call with the number of units just done.
    """
    from tqdm import tqdm

    def advance(done: int) -> None:
        bar.update(done)

    if sys.stderr.isatty():
        with tqdm(total=total, desc=label, unit=unit, leave=False) as bar:
            yield advance
        return
    ended = threading.Event()
    unseen, never = StringIO(), float("inf")
    bar = tqdm(total=total, desc=label, unit=unit, bar_format=_LINE, file=unseen, mininterval=never)

    def say_lines() -> None:
        while not ended.wait(_LINE_SECONDS):
            say(str(bar))

    teller = threading.Thread(target=say_lines, daemon=True)
    teller.start()
    try:
        yield advance
    finally:
        ended.set()
        teller.join()


def folder(path: str) -> Path:
    """The output folder, made and tried now so that a bad one is refused before the work."""
    import tempfile

    if not path:
        raise StudyError("--out must name a folder, got ''")
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise StudyError(f"--out {path}: must be a folder to write to: {reason}") from None
    return folder
