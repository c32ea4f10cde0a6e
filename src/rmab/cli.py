"""The command line: parsing, progress and printing; the work is done elsewhere.

Exit codes: 0 done, 1 a failure of ours, 2 bad input, 130 interrupted (what was done is written).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from rmab.errors import RmabError, StudyError

if TYPE_CHECKING:
    from rmab.studies.figure import Drawn
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
  policies = ["fedtswi", "fedtswi-gap", "whittle"]
  [[arm]]
  p01 = 0.20
  p11 = 0.80
  reward = 0.4
  [[arm]]
  passive = [[0.9, 0.1, 0.0], [0.2, 0.6, 0.2], [0.0, 0.3, 0.7]]
  active = [[0.7, 0.3, 0.0], [0.1, 0.6, 0.3], [0.0, 0.1, 0.9]]
  reward = [0.0, 0.5, 1.0]
  observed = "when_played"
  (one [[arm]] table for each arm: a two-state channel by p01, p11 and reward,
  any other by its transitions; active is as passive if left out, rewards are
  reward or reward_active, when played, and reward_passive, observed is
  "when_played" or "always")

further keys, above the arms: seed, weights, realisations ("independent" or "shared"),
  schedule ("paper", "linear", "doubling"), draws ("shared" or "per-agent")
policies that learn as the paper does:
  fedtswi, fedts-myopic, feducb-wi, feducb-myopic, fed1-ucb
that learn from every two successive looks at an arm, whatever the gap between them:
  fedtswi-gap, fedts-myopic-gap, feducb-wi-gap, fedts-lookahead-gap
that know the dynamics:
  whittle, myopic, lookahead, optimal, fixed, fixed-best, random
options, as in options.fedtswi-gap.gaps = 64: prior (fedts..., feducb...), gaps (...-gap),
  depth (lookahead), clip (feducb...), sigma (fed1-ucb)
"""

INDEX_JSON = """with --json, {"arms": [...]} has for each arm
  indexable   true, false, or null where that is undecided
  index       one number for each state of an arm that is always seen; for one seen
              only when played a list for each last seen state, by age from 1
  never_seen  of an arm seen only when played: before the first look
  reason      why indexable is not true
  witness     where it is false: passive is better at the subsidy low, active at high,
              in this state (or last_seen and age; null and 0: never seen)
an infinite index is the string "inf" or "-inf"
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

    index = command(
        "index",
        _index,
        "the Whittle index of every state of every arm, and whether it is indexable",
        "  rmab index study.toml --max-age 5\n  rmab index catalogue:machine --discount 0.9\n\n"
        + INDEX_JSON,
    )
    index.add_argument(
        "--max-age", metavar="J", default="20", help="highest age of what was seen (default 20)"
    )
    index.add_argument(
        "--discount", metavar="D", help="of reward, above 0 and below 1 (default: average reward)"
    )

    reproduce = command(
        "reproduce",
        _reproduce,
        "run the paper's figures and those beyond it, and write one report",
        "  rmab reproduce\n  rmab reproduce fig06 fig10 --trials 500 --out quick\n"
        "  rmab reproduce regret-horizon regret-agents regret-arms",
    )
    reproduce.add_argument(
        "figures", metavar="FIGURE", nargs="*", help="fig06, regret-horizon, ... (default: all)"
    )
    reproduce.add_argument("--trials", metavar="N", help="trials, instead of each figure's own")
    reproduce.add_argument(
        "--out", metavar="DIR", default="rmab-paper", help="folder (default rmab-paper)"
    )
    for each in (run, value, index):
        each.add_argument(
            "study", metavar="STUDY.toml", help="a study file, or catalogue:NAME of those included"
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

    try:
        values = value(study)
    except RmabError as error:
        raise StudyError(f"{options.study}: {error}") from None
    for name, reason in values.reasons.items():
        _say(f"{name}: {reason}")
    if options.json:
        print(json.dumps(values, allow_nan=False))
        return DONE
    best = values["optimum"]
    gains = best is None or best > 0  # else a share would be of costs
    rows = [["", "value", "of optimum" if gains else "below optimum"]]
    for name, number in values.items():
        apart = ""
        if best is not None and number is not None:
            apart = f"{100 * number / best:.3f} %" if gains else f"{best - number:z.6f}"
        rows.append([name, "-" if number is None else f"{number:.6f}", apart])
    print("long-run average reward per agent and slot, known dynamics\n" + _columns(rows))
    return DONE


def _index(options: argparse.Namespace) -> int:
    study = _load(options)
    max_age = _whole("--max-age", options.max_age, 1, MAX_AGE)
    assert max_age is not None
    discount = _discount(options.discount)
    from rmab.studies.indexing import arm_indices

    arms = []
    for number, arm in enumerate(study.arms, start=1):
        try:
            arms.append(arm_indices(arm, max_age, discount))
        except RmabError as error:
            raise StudyError(f"{options.study}: arm {number}: {error}") from None
    if options.json:
        print(json.dumps({"arms": arms}, allow_nan=False))
    else:
        print(_index_table(arms, discount))
    return DONE


def _discount(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < 1:
        raise StudyError(f"--discount must be a number above 0 and below 1, got {text!r}")
    return number


def _index_table(arms: list[dict[str, Any]], discount: float | None) -> str:
    """The indices of all arms in one table, then the verdict on each."""
    rows = [["arm", "seen"]]
    verdicts = []
    for number, arm in enumerate(arms, start=1):
        if "never_seen" in arm:
            lines = [["never", arm["never_seen"]]]
            lines += [[str(state), *ages] for state, ages in enumerate(arm["index"])]
        else:
            lines = [[f"now {state}", index] for state, index in enumerate(arm["index"])]
        for place, (label, *indices) in enumerate(lines):
            first = "" if place else str(number)
            rows.append([first, label, *(f"{float(index):z.6f}" for index in indices)])
        verdict = {True: "indexable", False: "not indexable: ", None: "undecided: "}
        verdicts.append(f"arm {number}: {verdict[arm['indexable']]}{arm.get('reason', '')}")
    width = max(map(len, rows))
    rows[0] += [str(age) for age in range(1, width - 1)]
    rows = [[*row, *[""] * (width - len(row))] for row in rows]
    reward = "average reward" if discount is None else f"discount {discount:g}"
    head = f"Whittle index, {reward}, by the state last seen and slots since, or the state now"
    return "\n".join([head, _columns(rows), *verdicts])


def _reproduce(options: argparse.Namespace) -> int:
    from rmab.studies.reproduce import figures, reproduce

    chosen = figures(options.figures, _whole("--trials", options.trials, 1))
    out = _folder(options.out)
    from rmab.report.page import write_paper

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
