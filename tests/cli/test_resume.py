"""`rmab run --resume`: a long study goes on after Ctrl-C, kill -9 and a full disk."""

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmab.studies.study import from_table
from tests.cli.commands import Ran, interrupt, toml

STUDY = {"policies": '["whittle", "random"]', "trials": "160"}


def numbers(folder: Path) -> list[bytes | str]:
    """Every number that was written."""
    table = json.loads((folder / "results.json").read_text())
    curves = [(folder / f"{name}.csv").read_bytes() for name in ("slots", "episodes")]
    return [json.dumps([table["policies"], table["trials"], table["study"]]), *curves]


@pytest.fixture(autouse=True)
def _one_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of 32, one at a time: programs are compiled once."""
    monkeypatch.setattr("rmab.engine.montecarlo.batch_size", lambda _: 32)
    monkeypatch.setattr("rmab.engine.montecarlo.default_threads", lambda: 1)


@pytest.fixture
def cut(
    call: Callable[..., Ran],
    study: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    """A run that Ctrl-C ended after 64 of 160 trials."""
    with monkeypatch.context() as patch:
        interrupt(patch, 3)
        ran = call("run", study(toml(STUDY)), "--out", tmp_path / "out", "--json")
    assert ran.code == 130
    assert ran.json["trials"] == 64
    assert f"64 of 160 trials done, results are of those; rmab run --resume {tmp_path / 'out'}" in (
        ran.err
    )
    return tmp_path / "out"


@pytest.fixture
def whole(call: Callable[..., Ran], study: Callable[[str], Path], tmp_path: Path) -> Path:
    """The same run, not interrupted."""
    assert call("run", study(toml(STUDY)), "--out", tmp_path / "whole").code == 0
    return tmp_path / "whole"


# ---------------------------------------------------------------------------------------- going on


def test_it_goes_on_after_ctrl_c(call, cut, whole):
    ran = call("run", "--resume", cut, "--json")
    assert ran.code == 0
    assert ran.json["interrupted"] is False
    assert ran.json == json.loads((cut / "results.json").read_text())
    assert numbers(cut) == numbers(whole)
    assert "160 trials" in (cut / "report.html").read_text(encoding="utf-8")


def test_a_run_that_is_done_is_written_again(call, whole):
    before = numbers(whole)
    ran = call("run", "--resume", whole)
    assert ran.code == 0
    assert ran.err.startswith("all trials were done before; written to ")
    assert numbers(whole) == before


def test_it_goes_on_without_the_study_file(call, cut, whole, tmp_path):
    (tmp_path / "study.toml").unlink()
    assert call("run", "--resume", cut).code == 0
    assert numbers(cut) == numbers(whole)


def test_what_the_command_said_instead_of_the_file_still_holds(call, study, tmp_path, monkeypatch):
    path = study(toml(STUDY))
    with monkeypatch.context() as patch:
        interrupt(patch, 2)
        assert call("run", path, "--trials", "96", "--seed", "3", "--out", tmp_path).code == 130
    ran = call("run", path, "--resume", tmp_path, "--seed", "3", "--json")
    assert ran.code == 0
    assert (ran.json["trials"], ran.json["seed"]) == (96, 3)


def test_one_process_at_a_time(call, cut):
    from rmab.studies.checkpoint import Checkpoint

    with Checkpoint(cut):
        ran = call("run", "--resume", cut)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == f"rmab run: {cut}: another process runs a study there\n"


@pytest.mark.parametrize("fails", ["point-1.npz", "slots.csv"])
def test_a_full_disk_is_one_line_and_a_failure_that_may_pass(call, cut, whole, monkeypatch, fails):
    from rmab import files

    replaced = files.replaced

    def full(path: Path) -> Any:
        if path.name == fails:
            raise OSError(28, "No space left on device")
        return replaced(path)

    with monkeypatch.context() as patch:
        patch.setattr("rmab.studies.checkpoint.replaced", full)
        patch.setattr("rmab.studies.results.replaced", full)
        ran = call("run", "--resume", cut)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.count("\n") == 1
    assert "cannot be written" in ran.err
    assert "disk full: No space left on device" in ran.err
    assert f"rmab run --resume {cut}" in ran.err
    assert call("run", "--resume", cut).code == 0
    assert numbers(cut) == numbers(whole)


# ------------------------------------------------------------------------------- in other processes

SLOWLY = """
import sys, time
from rmab.cli import main
from rmab.engine import montecarlo, tally

def reduce(*arguments):
    time.sleep(.02)
    return tally.reduce_batch(*arguments)

montecarlo.reduce_batch = reduce
montecarlo.batch_size = lambda _: 32
montecarlo.default_threads = lambda: 1
sys.exit(main())
"""
LIMITED = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
"""


def started(program: str, *words: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, words)],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@pytest.mark.parametrize(
    "end", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
def test_a_process_that_is_ended_at_any_moment(call, study, tmp_path, end):
    """Its batches are slow; where it ends is up to chance, the numbers are not."""
    path = study(toml({**STUDY, "trials": "8000"}))
    out = tmp_path / "out"
    process = started(SLOWLY, "run", path, "--out", out)
    until = time.monotonic() + 120
    while not (out / "checkpoint" / "point-1.npz").exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.01)
    time.sleep(random.random())
    process.send_signal(end)
    _, err = process.communicate(timeout=60)
    assert process.returncode == (-9 if end == signal.SIGKILL else 130), err
    ran = call("run", path, "--out", out)
    ran.assert_refused(f"rmab run --resume {out} goes on", "to begin anew, remove")
    assert call("run", "--resume", out).code == 0
    assert call("run", path, "--out", tmp_path / "whole").code == 0
    assert numbers(out) == numbers(tmp_path / "whole")


def test_a_limit_on_the_size_of_files(study, tmp_path):
    """As a full disk: the job is written, the sums are not."""
    process = started(LIMITED + SLOWLY, "run", study(toml(STUDY)), "--out", tmp_path / "out")
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (1, ""), err
    assert err.count("\n") == 1
    assert "point-1.npz cannot be written (no trials are kept yet" in err


# ---------------------------------------------------------------------------------- what is refused


def test_a_changed_study_is_refused(call, cut, study):
    path = study(toml({**STUDY, "trials": "4000", "horizon": "50"}))
    before = numbers(cut)
    for words in (["--resume", cut], [path, "--resume", cut]):
        ran = call("run", *words)
        ran.assert_refused(
            f"trials: 160 in the checkpoint, 4000 in {path}",
            f"horizon: 40 in the checkpoint, 50 in {path}",
        )
    assert numbers(cut) == before


def test_changed_options_are_refused(call, cut):
    ran = call("run", "--resume", cut, "--trials", "5", "--seed", "9")
    ran.assert_refused(
        "trials: 160 in the checkpoint, 5 by --trials", "seed: 0 in the checkpoint, 9 by --seed"
    )
    assert call("run", "--resume", cut, "--trials", "160").code == 0


def test_a_study_file_that_is_broken_now_is_refused(call, cut, study):
    study("plays = [")
    call("run", "--resume", cut).assert_refused("study.toml", "not valid TOML")


def test_an_unfinished_run_is_not_overwritten(call, cut, tmp_path):
    ran = call("run", tmp_path / "study.toml", "--out", cut)
    ran.assert_refused(
        "64 of 160 trials are done",
        f"rmab run --resume {cut} goes on",
        f"to begin anew, remove {cut / 'checkpoint'}",
    )


def test_a_finished_run_is_begun_anew(call, whole, study):
    ran = call("run", study(toml({**STUDY, "trials": "32"})), "--out", whole, "--json")
    assert ran.code == 0
    assert ran.json["trials"] == 32


def test_what_is_no_checkpoint_is_refused(call, tmp_path):
    for folder in (tmp_path, tmp_path / "nowhere", ""):
        call("run", "--resume", folder).assert_refused("--resume", "no checkpoint to go on from")
    assert not (tmp_path / "nowhere").exists()
    (tmp_path / "checkpoint").mkdir()
    call("run", "--resume", tmp_path).assert_refused("no checkpoint to go on from")


def test_words_that_do_not_go_together(call, cut):
    call("run", "--resume", cut, "--out", cut).assert_refused("--resume and --out exclude")
    call("run").assert_refused("arguments are required: STUDY.toml", "--help")


# ------------------------------------------------------------------------ what results.json carries


def test_results_carry_all_that_it_takes_to_run_them_again(whole, tmp_path):
    import jax

    import rmab

    table = json.loads((whole / "results.json").read_text())
    assert table["command"] == f"rmab run {tmp_path / 'study.toml'} --out {whole}"
    assert table["seed"] == table["study"]["seed"] == 0
    assert from_table(table["study"]).to_table() == table["study"]
    versions = table["versions"]
    assert versions["rmab"] == rmab.__version__
    assert versions["jax"] == jax.__version__
    assert {"jaxlib", "numpy", "python"} <= set(versions)
    assert table["device"]
    assert table["threads"] >= 1
    assert table["time"]["begun"].endswith("Z")
    assert table["time"]["seconds"] > 0
    page = (whole / "report.html").read_text(encoding="utf-8")
    assert f"Made on {table['device']}, {table['threads']} thread" in page


def test_a_resumed_run_says_when_it_was_begun(call, cut):
    begun = json.loads((cut / "results.json").read_text())
    ended = call("run", "--resume", cut, "--json").json
    assert ended["time"]["begun"] == begun["time"]["begun"]
    assert ended["time"]["seconds"] > begun["time"]["seconds"]
    assert ended["command"] == begun["command"]
