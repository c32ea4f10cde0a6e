"""Checkpoints: what goes on ends as if it had never been interrupted; what cannot is refused."""

import errno
import io
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rmab
from rmab import Policy, Results, StorageError, Study, StudyError, UnavailableError, run
from rmab.engine import montecarlo
from rmab.engine.tally import Sums
from rmab.files import replaced
from rmab.studies import checkpoint
from rmab.studies.checkpoint import Checkpoint, Job, differences
from rmab.studies.sweep import Sweep
from tests.studies.small import STUDY

LONG = replace(STUDY, trials=200)  # the same programs as those of other tests here
POINT = Path("checkpoint/point-1.npz")
JOB = Path("checkpoint/job.json")


def numbers(results: Results, folder: Path) -> tuple[Any, ...]:
    """All numbers of results, as they are written."""
    results.write(folder)
    assert results.provenance is not None
    curves = [(folder / f"{name}.csv").read_bytes() for name in ("slots", "episodes")]
    return results.summary()["policies"], results.trials, *curves, results.covariance.tolist()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, ...]:
    """The numbers of a run that nothing interrupted."""
    return numbers(run(LONG, batch=32), tmp_path_factory.mktemp("whole"))


def interrupt_after(batches: int) -> Callable[[int], None]:
    def progress(_: int) -> None:
        nonlocal batches
        batches -= 1
        if batches == 0:
            raise KeyboardInterrupt

    return progress


@pytest.fixture
def cut(tmp_path: Path) -> Path:
    """A folder with a checkpoint of 64 of 200 trials."""
    part = run(LONG, interrupt_after(2), batch=32, threads=1, checkpoint=tmp_path / "cut")
    assert part.interrupted
    assert part.trials == 64
    return tmp_path / "cut"


# ---------------------------------------------------------------------------------------- going on


def test_what_goes_on_ends_as_if_never_interrupted(tmp_path, cut, whole):
    done: list[int] = []
    results = run(LONG, done.append, batch=64, threads=2, checkpoint=cut)
    assert done == [64, 64, 64, 8]
    assert not results.interrupted
    assert numbers(results, tmp_path / "out") == whole


def test_it_goes_on_from_every_moment(tmp_path, whole, monkeypatch):
    """Whatever a process that is killed leaves: here a copy after each file was replaced."""
    copies: list[Path] = []
    replace_file = Path.replace

    def replaced(path: Path, target: Path) -> Path:
        before = shutil.copytree(tmp_path / "own", tmp_path / f"copy-{len(copies)}-before")
        moved = replace_file(path, target)
        after = shutil.copytree(tmp_path / "own", tmp_path / f"copy-{len(copies)}-after")
        copies.extend([before, after])
        return moved

    monkeypatch.setattr(checkpoint, "_INTERVAL", 0.0)
    monkeypatch.setattr(checkpoint, "_SHARE", 0)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", replaced)
        run(LONG, batch=32, checkpoint=tmp_path / "own")
    assert len(copies) == 2 * (1 + 7)  # the job, and 7 batches
    for copy in copies[1:]:
        kept = [32 * n for n in range(8)]
        done: list[int] = []
        results = run(LONG, done.append, batch=32, checkpoint=copy)
        assert sum(done) == LONG.trials
        assert done[0] in (*kept, LONG.trials)
        assert numbers(results, copy / "out") == whole


def test_what_is_done_is_not_run_again(tmp_path, cut, whole, monkeypatch):
    first = run(LONG, batch=32, checkpoint=cut)
    monkeypatch.setattr(montecarlo, "batch_runner", None)
    again = run(LONG, batch=32, checkpoint=cut)
    assert numbers(again, tmp_path / "out") == whole
    assert first.provenance is not None
    assert again.provenance is not None
    assert again.provenance.begun == first.provenance.begun
    assert again.provenance.seconds == pytest.approx(first.provenance.seconds, abs=0.5)


def test_a_checkpoint_does_not_grow_with_the_trials(tmp_path):
    for trials in (32, 320):
        run(replace(LONG, trials=trials), batch=32, checkpoint=tmp_path / str(trials))
    small, large = ((tmp_path / str(n) / POINT).stat().st_size for n in (32, 320))
    assert small == large


def test_writing_takes_a_small_share_of_the_time(tmp_path, monkeypatch):
    """Of batches of a second each: the first is kept, then every third, and the last."""
    now = 0.0
    kept: list[float] = []

    def recorded(path: Path) -> Any:
        kept.append(now)
        return replaced(path)

    def tick(_: int) -> None:
        nonlocal now
        now += 1.0

    monkeypatch.setattr("rmab.studies.checkpoint.time.monotonic", lambda: now)
    monkeypatch.setattr(checkpoint, "_INTERVAL", 3.0)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "replaced", recorded)
        run(LONG, tick, batch=32, threads=1, checkpoint=tmp_path)
    assert kept == [0, 0, 3, 6]  # the job, then batches 1, 4 and 7


def test_a_leftover_of_a_write_is_no_harm(tmp_path, cut, whole):
    (cut / f"{POINT}.part").write_bytes(b"half of it")
    assert numbers(run(LONG, batch=32, checkpoint=cut), tmp_path / "out") == whole


# ------------------------------------------------------------------------------------- a full disk


def fails(error: int) -> Callable[[int], None]:
    def fsync(_: int) -> None:
        raise OSError(error, os.strerror(error))

    return fsync


def test_a_full_disk_ends_it_and_leaves_what_was_kept(tmp_path, cut, whole, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("rmab.files.os.fsync", fails(errno.ENOSPC))
        with pytest.raises(StorageError, match=r"point-1.npz cannot be written") as caught:
            run(LONG, batch=32, checkpoint=cut)
    assert "64 trials are kept" in str(caught.value)
    assert f"rmab run --resume {cut}" in str(caught.value)
    assert "disk full" in str(caught.value)
    assert not caught.value.lasting
    assert [path.name for path in (cut / "checkpoint").glob("*.part")] == []
    assert numbers(run(LONG, batch=32, checkpoint=cut), tmp_path / "out") == whole


def test_results_that_cannot_be_written_leave_the_earlier_ones(tmp_path, monkeypatch):
    results = run(replace(LONG, trials=32), batch=32)
    results.write(tmp_path)
    before = (tmp_path / "results.json").read_bytes()
    monkeypatch.setattr("rmab.files.os.fsync", fails(errno.ENOSPC))
    with pytest.raises(OSError, match="No space"):
        replace(results, interrupted=True).write(tmp_path)
    assert (tmp_path / "results.json").read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "episodes.csv",
        "results.json",
        "slots.csv",
    ]


def test_a_folder_that_may_not_be_used_is_no_passing_trouble(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError) as caught:
        run(LONG, batch=32, checkpoint=tmp_path / "file")
    assert caught.value.lasting


# --------------------------------------------------------------------------------- what is refused


def test_one_process_at_a_time(cut):
    with (
        Checkpoint(cut),
        pytest.raises(UnavailableError, match="another process runs a study there"),
    ):
        run(LONG, batch=32, checkpoint=cut)
    assert run(LONG, batch=32, checkpoint=cut).trials == 200


def test_file_systems_without_locks_will_do(tmp_path, monkeypatch):
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr("rmab.files.fcntl.flock", no_locks)
    assert run(replace(LONG, trials=32), batch=32, checkpoint=tmp_path).trials == 32


def rewritten(path: Path, **changes: Any) -> None:
    """The same arrays with some of them changed, in a valid file."""
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    np.savez(path, **{**arrays, **changes})


def _saved(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


SPOILT: dict[str, Callable[[Path], Any]] = {
    "torn": lambda path: path.write_bytes(path.read_bytes()[:-100]),
    "empty": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_text("no archive"),
    "flipped": lambda path: path.write_bytes(path.read_bytes().replace(b"\x40", b"\x41", 1)),
    "an array alone": lambda path: path.write_bytes(_saved(np.zeros(3))),
    "more trials": lambda path: rewritten(path, trials=np.int64(96)),
    "an object": lambda path: rewritten(path, trials=np.array({"n": 3}, object)),
    "another array": lambda path: rewritten(path, more=np.zeros(3)),
    "no digest": lambda path: np.savez(path, trials=np.int64(3)),
}


@pytest.mark.parametrize("how", SPOILT)
def test_a_spoilt_file_is_refused(cut, how):
    SPOILT[how](cut / POINT)
    with pytest.raises(StudyError, match=r"point-1.npz: is torn, of another study, or was") as why:
        run(LONG, batch=32, checkpoint=cut)
    assert "\n" not in str(why.value)
    assert f"remove {cut / 'checkpoint'}" in str(why.value)


def test_a_file_of_another_study_is_refused(tmp_path, cut):
    run(replace(LONG, seed=1), interrupt_after(2), batch=32, checkpoint=tmp_path / "other")
    shutil.copy(tmp_path / "other" / POINT, cut / POINT)
    with pytest.raises(StudyError, match="of another study"):
        run(LONG, batch=32, checkpoint=cut)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '"text"',
        "{}",
        '{"format": 1}',
        '{"format": 2}',
        '{"format": 1, "points": []}',
        '{"format": 1, "points": [{"label": "", "study": {"arm": 3}}]}',
        "\udcff",
        "[" * 100_000,
    ],
)
def test_a_job_that_is_none_is_refused(cut, text):
    (cut / JOB).write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(StudyError, match=r"job.json: is no checkpoint") as why:
        run(LONG, batch=32, checkpoint=cut)
    assert "\n" not in str(why.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": 7}, "its format is 7, and 1 is known"),
        ({"device": "NVIDIA H200"}, "device: 'NVIDIA H200' in the checkpoint, "),
        ({"xla_flags": "--xla_fast"}, "XLA_FLAGS: '--xla_fast' in the checkpoint, "),
        ({"versions": {"rmab": "0.0.1"}}, f"rmab: '0.0.1' in the checkpoint, {rmab.__version__!r}"),
        ({"versions": {"python": "3.99"}}, "jax: none in the checkpoint"),
    ],
)
def test_what_would_end_in_other_bits_is_refused(cut, change, said):
    table = json.loads((cut / JOB).read_text())
    (cut / JOB).write_text(json.dumps(table | change))
    with pytest.raises(StudyError) as why:
        run(LONG, batch=32, checkpoint=cut)
    assert said in str(why.value)


def test_another_python_may_go_on(cut):
    table = json.loads((cut / JOB).read_text())
    table["versions"]["python"] = "3.99"
    (cut / JOB).write_text(json.dumps(table))
    assert run(LONG, batch=32, checkpoint=cut).trials == 200


def test_another_study_is_refused(cut):
    other = replace(LONG, trials=100, options={"fedtswi": {"prior": 2.0}})
    with pytest.raises(StudyError, match="the study has changed: ") as why:
        run(other, batch=32, checkpoint=cut)
    assert "trials: 200 in the checkpoint, 100 now" in str(why.value)
    assert "options.fedtswi: none in the checkpoint, {'prior': 2.0} now" in str(why.value)


def test_a_study_with_policies_of_ones_own_cannot_be_kept(tmp_path):
    mine = Policy("mine", lambda *_: None)
    with pytest.raises(StudyError, match="'mine' is an object of one's own"):
        run(replace(LONG, policies=[mine]), checkpoint=tmp_path)


def test_differences_name_every_key():
    arms = rmab.channels([0.2, 0.3], [0.8, 0.7], 1.0)
    before = Study(arms, agents=2, weights=[1, 2]).to_table()
    now = Study(
        rmab.channels([0.2, 0.4], [0.8, 0.7], 1.0),
        agents=2,
        horizon=7,
        options={"fedtswi": {"prior": 3.0}},
    ).to_table()
    assert differences(before, now, "now") == [
        "horizon: 1000 in the checkpoint, 7 now",
        "options.fedtswi: none in the checkpoint, {'prior': 3.0} now",
        "weights: [1.0, 2.0] in the checkpoint, none now",
        "arm 2.p01: 0.3 in the checkpoint, 0.4 now",
    ]
    assert differences(before, {**now, "arm": now["arm"][:1]}, "now")[-1] == (
        "arms: 2 in the checkpoint, 1 now"
    )
    assert differences(before, before, "now") == []


# ------------------------------------------------------------------- edges, without running a study


def kept_point(folder: Path, study: Study = LONG, trials: int = 32) -> Checkpoint:
    """A checkpoint with a point of so many trials, of made-up sums."""
    begun = Checkpoint(folder)
    job = Job(Sweep(study, {}))
    begun.begin(job)
    sums = np.arange(6.0).reshape(3, 2)
    arrays: dict[str, Any] = {
        "trials": np.int64(trials),
        "seconds": np.float64(2.5),
        **{f"joint/{key}": sums + n for n, key in enumerate(("total", "high", "low"))},
        **{
            f"sums/{n}/reward": np.stack([sums] * len(Sums._fields))
            for n, _ in enumerate(study.policies)
        },
    }
    digest = checkpoint._digest(study, arrays)
    with (folder / POINT).open("wb") as file:
        np.savez(file, **arrays, digest=np.frombuffer(digest, np.uint8))
    return begun


def test_nothing_was_begun_in_an_empty_folder(tmp_path):
    with Checkpoint(tmp_path) as empty:
        assert empty.job() is None
        with pytest.raises(StudyError, match="has no checkpoint to go on from"):
            empty.resume()
        begun = empty.resume_or_begin(Job(Sweep(LONG, {}), file="a.toml"))
        assert empty.job() is not None
        assert empty.resume_or_begin(begun).file == "a.toml"
        point = empty.point(begun, "")
        assert (point.before, point.n_trials, empty.n_trials(begun)) == (None, 0, 0)


def test_the_time_of_what_is_done_stands_still(tmp_path, monkeypatch):
    now = 100.0
    monkeypatch.setattr("rmab.studies.checkpoint.time.monotonic", lambda: now)
    for trials, seconds in ((LONG.trials, 2.5), (LONG.trials - 1, 2.5 + 7.0)):
        with kept_point(tmp_path / str(trials), trials=trials) as begun:
            point = begun.point(begun.resume(), "")
            assert (point.n_trials, point.seconds) == (trials, 2.5)
            now += 7.0
            assert point.seconds == seconds


def test_a_job_that_is_done_gives_way_and_one_that_is_not_stays(tmp_path):
    other = Job(Sweep(replace(LONG, seed=9), {}))
    with kept_point(tmp_path / "done", trials=LONG.trials) as done:
        done.begin(other)
        assert done.resume().sweep.study.seed == 9
        assert not (tmp_path / "done" / POINT).exists()
    with (
        kept_point(tmp_path / "part", trials=1) as part,
        pytest.raises(StudyError, match="has a run of which 1 of 200 trials are done; rmab run"),
    ):
        part.begin(other)
    with kept_point(tmp_path / "none", trials=0) as none:
        none.begin(other)


@pytest.mark.parametrize("change", ["value", "shape", "dtype", "name", "missing", "digest"])
def test_every_change_of_a_point_is_noticed(tmp_path, change):
    with kept_point(tmp_path) as begun:
        job = begun.resume()
        assert begun.point(job, "").n_trials == 32
        with np.load(tmp_path / POINT) as file:
            arrays = {name: file[name] for name in file.files}
        key, total = "joint/total", arrays["joint/total"]
        changed = {
            "value": {key: total + 1},
            "shape": {key: total.reshape(2, 3)},
            "dtype": {key: total.view(np.int64)},
            "name": {"joint/totals": arrays.pop(key)} if change == "name" else {},
            "missing": {},
            "digest": {"digest": arrays["digest"][::-1]},
        }[change]
        if change == "missing":
            del arrays[key]
        with (tmp_path / POINT).open("wb") as file:
            np.savez(file, **{**arrays, **changed})
        with pytest.raises(StudyError, match=r"is torn, of another study, or was changed; to begi"):
            begun.point(job, "")


def test_a_point_that_cannot_be_read_is_trouble_of_the_disk(tmp_path, monkeypatch):
    with kept_point(tmp_path) as begun:
        job = begun.resume()
        opened = Path.open

        def failing(path: Path, *mode: Any) -> Any:
            if path.name == POINT.name:
                raise OSError(errno.EIO, "bad sector")
            return opened(path, *mode)

        monkeypatch.setattr(Path, "open", failing)
        with pytest.raises(StorageError, match=r"point-1\.npz cannot be read: "):
            begun.point(job, "")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": 2}, "its format is 2, and 1 is known"),
        ({"file": 3}, "a name is no text"),
        ({"changes": {"seed": "x"}}, "invalid literal"),
        ({"time": {}}, "no key 'begun'"),
    ],
)
def test_what_is_wrong_with_a_job_is_said(tmp_path, change, said):
    with kept_point(tmp_path) as begun:
        table = json.loads((tmp_path / JOB).read_text())
        (tmp_path / JOB).write_text(json.dumps({**table, **change}))
        with pytest.raises(StudyError, match="is no checkpoint: ") as caught:
            begun.job()
        assert said in str(caught.value)


def test_lines_of_differences_are_few():
    many = {f"key{n}": n for n in range(9)}
    with_one_more = differences(many, {}, "here")
    assert len(with_one_more) == 9
    for lines, tail in (
        (with_one_more[:8], "key7: 7 in the checkpoint, none here"),
        (with_one_more, "and 1 more"),
    ):
        assert checkpoint._some(lines).endswith(tail)
    assert differences({"arm": [{"a": 1}]}, {"arm": [{"a": 1}, {"a": 2}]}, "now") == [
        "arms: 1 in the checkpoint, 2 now"
    ]
    assert differences({"arm": [{"a": 1}, {"a": 1}]}, {"arm": [{"a": 1}, {"a": 2}]}, "now") == [
        "arm 2.a: 1 in the checkpoint, 2 now"
    ]
    assert differences({"arm": []}, {"arm": [{"a": 2}]}, str.upper) == [
        "arm: [] in the checkpoint, [{'a': 2}] ARM"
    ]


def test_keys_of_a_sweep_in_another_order_are_another_study(tmp_path):
    values: dict[str, Any] = {"agents": [1, 2], "seed": [3, 4]}
    with Checkpoint(tmp_path) as begun:
        job = begun.resume_or_begin(Job(Sweep(LONG, values)))
        begun.refuse_changes(job, Sweep(LONG, values), lambda _: "now")
        other = Sweep(LONG, dict(reversed(values.items())))
        with pytest.raises(StudyError, match="the study has changed: "):
            begun.refuse_changes(job, other, lambda _: "now")
