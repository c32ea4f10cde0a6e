"""The command line: parsing, progress and printing; the work is done elsewhere.

Exit codes: 0 done, 1 a failure of ours, 2 bad input, 130 interrupted (what was done is written).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from rmab.errors import RmabError, StudyError

if TYPE_CHECKING:
    from rmab.studies.paper import Drawn
    from rmab.studies.results import Results
    from rmab.studies.study import Study

__all__ = ["main"]

DONE, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130
MAX_AGE = 100_000

EXAMPLE_STUDY = """\
a study file:
  agents = 4
  plays = 2
  horizon = 1000
  trials = 10000
  policies = ["fedtswi", "fedts-myopic", "whittle"]
  [[arm]]
  p01 = 0.20
  p11 = 0.80
  reward = 0.4
  (one [[arm]] table for each arm)
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line, as every other error."""
        self.exit(BAD_INPUT, _line(f"{self.prog}: {message}; see {self.prog} --help") + "\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="rmab",
        description="Restless bandits that learn together.",
        epilog="example:\n  rmab reproduce fig10 --trials 1000 --out results\n\n" + EXAMPLE_STUDY,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="store_true", help="print the version and end")
    commands = parser.add_subparsers(
        dest="command", metavar="COMMAND", title="commands", parser_class=_Parser
    )

    def command(name: str, action: Callable[..., int], about: str, example: str) -> _Parser:
        made: _Parser = commands.add_parser(
            name,
            help=about,
            description=about[0].upper() + about[1:] + ".",
            epilog="example:\n" + example,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        made.set_defaults(action=action)
        return made

    run = command(
        "run",
        _run,
        "simulate the policies of a study",
        "  rmab run study.toml --trials 1000 --out results\n  rmab run study.toml --json\n\n"
        + EXAMPLE_STUDY,
    )
    run.add_argument("study", metavar="STUDY.toml")
    run.add_argument("--trials", metavar="N", help="trials, instead of the study's")
    run.add_argument("--seed", metavar="S", help="seed, instead of the study's")
    run.add_argument(
        "--out", metavar="DIR", help="write results.json, slots.csv, episodes.csv, figure, report"
    )

    value = command(
        "value",
        _value,
        "exact values with known dynamics: optimum, upper bound, each policy",
        "  rmab value study.toml --json",
    )
    value.add_argument("study", metavar="STUDY.toml")

    index = command(
        "index",
        _index,
        "the Whittle index of every information state of every arm",
        "  rmab index study.toml --max-age 5",
    )
    index.add_argument("study", metavar="STUDY.toml")
    index.add_argument("--max-age", metavar="J", default="20", help="highest age (default 20)")

    reproduce = command(
        "reproduce",
        _reproduce,
        "run the paper's figures and write one report",
        "  rmab reproduce\n  rmab reproduce fig06 fig10 --trials 500 --out quick",
    )
    reproduce.add_argument("figures", metavar="FIGURE", nargs="*", help="fig06 ... (default: all)")
    reproduce.add_argument("--trials", metavar="N", help="trials, instead of the paper's 10000")
    reproduce.add_argument(
        "--out", metavar="DIR", default="rmab-paper", help="folder (default rmab-paper)"
    )
    for each in (run, value, index, reproduce):
        each.add_argument("--json", action="store_true", help="one JSON object on standard output")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code. Without argv it is the program `rmab`."""
    code = _main(argv)
    if code == INTERRUPTED and argv is None:
        # Threads in the midst of a batch cannot be stopped, and a plain exit would wait for them.
        sys.stdout.flush()
        os._exit(code)
    return code


def _main(argv: Sequence[str] | None) -> int:
    parser = _parser()
    options = parser.parse_args(argv)
    if options.version:
        from rmab import __version__

        print(f"rmab {__version__}")
        return DONE
    if options.command is None:
        parser.print_help()
        return DONE
    try:
        code: int = options.action(options)
        sys.stdout.flush()
        return code
    except RmabError as error:
        _say(_line(f"rmab {options.command}: {error}"))
        return BAD_INPUT
    except KeyboardInterrupt:
        _say(f"rmab {options.command}: interrupted before anything was finished")
        return INTERRUPTED
    except BrokenPipeError:
        _drop_output()
        return DONE
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "rmab":
            raise  # a fault of ours, not of the installation
        _say(f"rmab {options.command}: needs {error.name}; install it with pip install 'rmab[sim]'")
        return FAILED
    except OSError as error:  # a full disk, say
        _drop_output()
        _say(_line(f"rmab {options.command}: {error}"))
        return FAILED


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _line(text: str) -> str:
    """On one line, though a file's name may have several."""
    return " ".join(text.splitlines())


def _drop_output() -> None:
    """Send what is left for standard output nowhere: the interpreter flushes it as it ends."""
    with suppress(OSError):  # there may be no such file behind it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _whole(option: str, text: str | None, least: int, most: int | None = None) -> int | None:
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


def _load(options: argparse.Namespace) -> Study:
    from rmab.studies.study import load

    study = load(options.study)
    changes: dict[str, Any] = {
        "trials": _whole("--trials", getattr(options, "trials", None), 1),
        "seed": _whole("--seed", getattr(options, "seed", None), 0),
    }
    return replace(study, **{k: v for k, v in changes.items() if v is not None})


@contextmanager
def _progress(total: int, label: str) -> Iterator[Callable[[int], None]]:
    """A bar with the time left, on standard error, where a person can see it."""
    from tqdm import tqdm

    hide = not sys.stderr.isatty()
    with tqdm(total=total, desc=label, unit="trial", leave=False, disable=hide) as bar:

        def advance(done: int) -> None:
            bar.update(done)

        yield advance


def _folder(path: str) -> Path:
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


def _run(options: argparse.Namespace) -> int:
    study = _load(options)
    out = None if options.out is None else _folder(options.out)
    from rmab.studies.running import run

    with _progress(study.trials, Path(options.study).stem) as progress:
        try:
            results = run(study, progress)
        except RmabError as error:
            raise StudyError(f"{options.study}: {error}") from None
    if out is not None:
        from rmab.report.page import write_study

        results.write(out)
        write_study(out, Path(options.study).stem, results)
    if options.json:
        print(json.dumps(results.to_json(), allow_nan=False))
    else:
        print(_results_table(results))
    if out is not None:
        _say(f"written to {out}/: report.html, results.json, slots.csv, episodes.csv, figure")
    if results.interrupted:
        _say(f"interrupted: {results.trials} of {study.trials} trials done, results are of those")
        return INTERRUPTED
    return DONE


def _results_table(results: Results) -> str:
    rows = [["policy", "mean", "se", "final", "episodes", "behind whittle", "se"]]
    for name, r in results.items():
        numbers = [r.mean, r.se, r.final, r.episodes, r.behind, r.behind_se]
        digits = [5, 5, 5, 1, 5, 5]
        rows.append([name, *(f"{x:.{d}f}" for x, d in zip(numbers, digits, strict=True))])
    head = f"{results.trials} trials; average reward per agent and slot, final: last tenth"
    return head + "\n" + _columns(rows)


def _columns(rows: list[list[str]]) -> str:
    """Rows in columns: the first to the left, numbers to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = (
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )
    return "\n".join(lines)


def _value(options: argparse.Namespace) -> int:
    study = _load(options)
    from rmab.studies.running import value

    values = value(study)
    for name, reason in values.reasons.items():
        _say(f"{name}: {reason}")
    if options.json:
        print(json.dumps(values, allow_nan=False))
        return DONE
    best = values["optimum"]
    rows = [["", "value", "of optimum"]]
    for name, number in values.items():
        share = "" if best in (None, 0) or number is None else f"{100 * number / best:.3f} %"
        rows.append([name, "-" if number is None else f"{number:.6f}", share])
    print("long-run average reward per agent and slot, known dynamics\n" + _columns(rows))
    return DONE


def _index(options: argparse.Namespace) -> int:
    study = _load(options)
    max_age = _whole("--max-age", options.max_age, 1, MAX_AGE)
    assert max_age is not None
    from rmab.planning.planners import index_table, whittle_at

    table = index_table(whittle_at, study.arms, max_age)
    arms: list[dict[str, Any]] = [
        {"never_seen": row[0], "index": [row[1 : max_age + 1], row[max_age + 1 :]]}
        for row in table.tolist()
    ]
    if options.json:
        print(json.dumps({"arms": arms}, allow_nan=False))
        return DONE
    print("Whittle index by last seen state and slots since")
    ages = [str(age) for age in range(1, max_age + 1)]
    rows = [["arm", "last seen", *ages]]
    for number, arm in enumerate(arms, start=1):
        rows.append([str(number), "never", f"{arm['never_seen']:z.6f}", *[""] * (max_age - 1)])
        for state, line in enumerate(arm["index"]):
            rows.append(["", str(state), *(f"{w:z.6f}" for w in line)])
    print(_columns(rows))
    return DONE


def _reproduce(options: argparse.Namespace) -> int:
    from rmab.studies.paper import figures

    chosen = figures(options.figures, _whole("--trials", options.trials, 1))
    out = _folder(options.out)
    from rmab.report.page import write_paper
    from rmab.studies.paper import reproduce

    done: list[Drawn] = []
    interrupted = False
    try:
        for figure in chosen:
            with _progress(figure.n_trials, figure.name) as progress:
                drawn = reproduce(figure, progress)
            if drawn is not None:
                done.append(drawn)
                if not options.json:
                    print(f"{figure.name}  {figure.title}")
                    for claim in drawn.claims:
                        print(f"  {claim.verdict}: {claim.text} Measured: {claim.measured}")
            if drawn is None or drawn.interrupted:
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        if not done:
            raise
        interrupted = True
    report = write_paper(out, done)
    if options.json:
        print(json.dumps({figure.name: figure.to_json() for figure in done}, allow_nan=False))
    _say(f"report: {report}")
    if interrupted:
        _say("interrupted: the report has what was done")
        return INTERRUPTED
    return DONE
