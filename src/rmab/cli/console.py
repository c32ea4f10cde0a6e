"""Exit codes, parsers, lines for people, tables and progress of all commands."""

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
from typing import Any, NoReturn

from rmab.errors import StudyError

__all__ = [
    "BAD_INPUT",
    "DONE",
    "FAILED",
    "INTERRUPTED",
    "TERMINATED",
    "Parser",
    "columns",
    "drop_output",
    "folder",
    "joined",
    "line",
    "progress",
    "say",
]

_NEGATIVE = re.compile(r"-\.?[0-9]")

DONE, FAILED, BAD_INPUT, INTERRUPTED, TERMINATED = 0, 1, 2, 130, 143

_LINE_SECONDS = 30.0  # between lines of progress where there is no terminal
_LINE = (
    "{desc}: {n_fmt} of {total_fmt} {unit}s, {percentage:.0f} %, {elapsed} passed, {remaining} left"
)


class Parser(argparse.ArgumentParser):
    """Parser of a command, with help that ends as `rmab.cli.help` says, and errors of one line."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, **settings)

    def format_help(self) -> str:
        from rmab.cli.help import closing

        self.epilog = closing(self.prog.partition(" ")[2])
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        """End with one line on standard error."""
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


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def line(text: str) -> str:
    """Return the text on one line; the name of a file may have several."""
    return " ".join(text.splitlines())


def drop_output() -> None:
    """Discard the rest of standard output, which the interpreter flushes as it ends."""
    with suppress(OSError):  # it may have no file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


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
