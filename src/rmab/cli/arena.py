"""Command `arena`: every policy on every problem, side by side."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import sys
from collections.abc import Collection, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from rmab.cli.console import DONE, INTERRUPTED, columns, folder, progress, say
from rmab.errors import StudyError

if TYPE_CHECKING:
    from rmab.arena.comparison import ArenaComparison
    from rmab.arena.problems import ArenaProblem
    from rmab.arena.records import ArenaOutcome, ProblemOutcome
    from rmab.arena.run import Arena

__all__ = ["arena"]


def arena(options: argparse.Namespace) -> int:
    trials, seed, names = options.trials, options.seed, _names(options.policies)
    if options.list:
        return _list(options)
    from rmab.arena.comparison import compare
    from rmab.arena.records import load_outcome

    theirs = None if options.compare is None else load_outcome(Path(options.compare))
    on, stored = options.problems, Path(options.out) / "arena.json"
    played: dict[str, Collection[str]] = {}  # by problem, where theirs says it
    no_run = not (on or names or options.policy) and trials is None and seed is None
    if options.page and (options.resume or not no_run):
        raise StudyError("--page takes the run that DIR has: it needs no problems and no settings")
    if options.page or (theirs is not None and no_run and stored.is_file()):
        ours = load_outcome(stored)
        beside = None if theirs is None else compare(ours, theirs)
        return _finish(options, folder(options.out), ours, beside, begun=False)
    if theirs is not None and not (on or names or options.policy):
        on, names, trials, seed = _as_theirs(theirs, trials, seed)
        played = {problem.name: problem.standings for problem in theirs.problems}
    from rmab.arena.contestants import contestants, own_contestant
    from rmab.arena.problems import load_problems
    from rmab.arena.run import Arena

    own = [own_contestant(source, _found(source)) for source in options.policy]
    everyone = contestants(names, own)
    chosen = load_problems(on, trials, seed)
    arena = Arena(everyone, {p.name: played.get(p.name, names or ()) for p in chosen})
    arena.check_own(chosen)
    out = folder(options.out)
    ours = _run(options, arena, chosen, out)
    return _finish(options, out, ours, None if theirs is None else compare(ours, theirs))


def _names(given: Sequence[str] | None) -> list[str] | None:
    if given is None:
        return None
    # A comma within brackets belongs to the value of an option.
    found = [name for text in given for name in re.split(r",(?![^\[]*\])", text) if name]
    if not found:
        raise StudyError("--policies must name at least one policy, got none")
    return found


def _as_theirs(
    theirs: ArenaOutcome, trials: int | None, seed: int | None
) -> tuple[list[str], list[str], int | None, int | None]:
    """Problems, policies, trials and seed to run as somebody else did."""
    from rmab.arena.problems import PROBLEMS
    from rmab.policies.registry import STUDIED

    names = [p.name for p in theirs.problems if p.name in PROBLEMS]
    known = [n for n in theirs.policies if n.partition("@")[0] in STUDIED]
    counts = {p.study.get("trials") for p in theirs.problems}
    seeds = {p.study.get("seed") for p in theirs.problems}
    if not names:
        raise StudyError("--compare: none of its problems is known here; name some to run")
    return (
        names,
        known,
        counts.pop() if trials is None and len(counts) == 1 else trials,
        seeds.pop() if seed is None and len(seeds) == 1 else seed,
    )


def _found(source: str) -> object:
    """Return the object MODULE:NAME."""
    module, _, name = source.partition(":")
    if not (module and name):
        raise StudyError(f"--policy must be like mine:policy, got {source!r}")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: object = getattr(import_module(module), name)
    except (Exception, SystemExit) as error:  # whatever the user's code does
        reason = f"{type(error).__name__}: {error}"
        raise StudyError(f"--policy {source}: cannot be found: {reason}") from None
    return found


def _list(options: argparse.Namespace) -> int:
    from rmab.arena.problems import load_problems

    found = load_problems(options.problems)
    if options.json:
        listed = [{"name": p.name, "reason": p.reason, **_sizes(p)} for p in found]
        print(json.dumps({"problems": listed}, allow_nan=False))
        return DONE
    rows = [["problem", "reason", "N", "K", "M", "T", "trials"]]
    rows += [[p.name, p.reason, *map(str, _sizes(p).values())] for p in found]
    print(columns(rows, 2))
    return DONE


def _sizes(problem: ArenaProblem) -> dict[str, int]:
    s = problem.study
    return {
        "arms": len(s.arms),
        "plays": s.plays,
        "agents": s.agents,
        "horizon": s.horizon,
        "trials": s.trials,
    }


def _run(
    options: argparse.Namespace, arena: Arena, chosen: Sequence[ArenaProblem], out: Path
) -> ArenaOutcome:
    """All problems; Ctrl-C ends with those that are done."""
    from rmab.arena.records import ArenaOutcome
    from rmab.studies.provenance import Provenance

    made = Provenance(shlex.join(["rmab", *options.words]))
    done: list[ProblemOutcome] = []
    interrupted = False
    try:
        for number, problem in enumerate(chosen, start=1):
            found = arena.stored(problem, out, made) if options.resume else None
            if found is None:
                total = arena.steps(problem)
                with progress(total, f"{problem.name} ({number}/{len(chosen)})") as advance:
                    found = arena.run(problem, advance)
                found.write(out)
            done.append(found)
            if not options.json:
                print(_problem_table(found), flush=True)
            if found.interrupted:
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        if not done:
            raise
        interrupted = True
    seconds = sum(each.made.get("time", {}).get("seconds", 0.0) for each in done)
    return ArenaOutcome(done, replace(made, seconds=seconds).to_json(), interrupted)


def _finish(
    options: argparse.Namespace,
    out: Path,
    ours: ArenaOutcome,
    beside: ArenaComparison | None,
    *,
    begun: bool = True,
) -> int:
    """Write and print; begun: something was run, and not all of it was there before."""
    from rmab.report.arena_page import write_arena

    page = write_arena(out, ours, beside)
    if options.json:
        more = {} if beside is None else {"compare": beside.to_json()}
        print(json.dumps({**ours.to_json(), **more}, allow_nan=False))
    else:
        if begun or options.page:
            print(_verdicts(ours))
        if beside is not None:
            print(_compared(beside))
    say(f"page: {page}")
    if ours.interrupted and begun:
        again = shlex.join(["rmab", *options.words, *([] if options.resume else ["--resume"])])
        n = len(ours.problems)
        say(f"interrupted: {n} problem{'' if n == 1 else 's'} done; {again} goes on")
        return INTERRUPTED
    return DONE


def _verdicts(ours: ArenaOutcome) -> str:
    """A line for each policy; those that no problem took have a heading of their own."""
    lines = [f"{name}: {text}" for name, text in ours.verdicts.items() if ours.of(name)]
    nowhere = [name for name in ours.verdicts if not ours.of(name)]
    refused = ["", "refused by every problem:", *(f"  {name}" for name in nowhere)]
    return "\n".join(["", *lines, *(refused if nowhere else [])])


def _problem_table(found: ProblemOutcome) -> str:
    """A row for each policy, from the best to the worst."""
    head = ["policy", "mean", "se", "final", "regret", "share", "first", "rank", "tied", "stuck"]
    rows = [[*head, "ms"]]
    for name, s in found.standings.items():
        rows.append(
            [
                name,
                f"{s.mean:.5f}",
                "-" if s.se is None else f"{s.se:.5f}",
                f"{s.final:.5f}",
                f"{s.regret:.1f}",
                "-" if s.score is None else f"{100 * s.score:z.1f} %",
                found.place(name),
                "-" if s.rank is None else str(s.rank),
                str(len(s.tied)) if s.tied else "",
                "-" if s.failed is None else f"{100 * s.failed:.0f} %",
                "-" if s.seconds is None else f"{1000 * s.seconds:.3g}",
            ]
        )
    part = " (interrupted)" if found.interrupted else ""
    trials = f"{found.trials} trial{'' if found.trials == 1 else 's'}"
    about = f"\n{found.name}: {found.reason}\n{found.size}; {trials}{part}"
    refused = [f"  {name}: {why}" for name, why in found.refused.items()]
    return "\n".join(
        [
            about,
            columns(rows),
            *found.ranks_explained,
            *(["refused:", *refused] if refused else []),
        ]
    )


def _compared(beside: ArenaComparison) -> str:
    rows = [["problem", "policy", "here", "there", "difference", "se", "sigma"]]
    for row in beside.rows:
        se, sigma = row["se"], row["sigma"]
        rows.append(
            [
                row["problem"],
                row["policy"],
                f"{row['here']:.5f}",
                f"{row['there']:.5f}",
                f"{row['difference']:+.5f}",
                "-" if se is None else f"{se:.5f}",
                "-" if sigma is None else f"{sigma:+.1f}",
            ]
        )
    table = [columns(rows, 2)] if beside.rows else []
    return "\n".join(
        [
            "",
            *(beside.differ or ["the same versions, problems and policies"]),
            *table,
            beside.in_short,
        ]
    )
