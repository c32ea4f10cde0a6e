"""What the benchmarks measure with: processes of their own, the yardstick, peers, in small."""

import asyncio
import os
from pathlib import Path

import numpy as np
import pytest
from benchmarks.apart import Apart, timed
from benchmarks.bench import main
from benchmarks.draws import Metropolis, Scene, autocorrelation_time, powers
from benchmarks.engine import Case, arms_of, program_once, run_once, yardstick
from benchmarks.growth import trials_for
from benchmarks.indices import dense_row
from benchmarks.load import Load
from benchmarks.service import commits_a_second
from benchmarks.traffic import ServerProcess, server_command, write_federation

from benchmarks import bare_server, engine, gpu, sums
from rmab.engine.montecarlo import batch_size
from rmab.engine.setting import Setting
from rmab.protocol.config import load_federation

SMALL = Case("small", "whittle", horizon=50)


def test_work_apart_has_the_cores_it_is_given_and_no_kept_programs():
    mine = os.sched_getaffinity(0)
    with Apart(1) as process:
        found, cache = process(os.sched_getaffinity, 0), process(os.getenv, "RMAB_CACHE")
    assert len(found) == 1
    assert found <= mine
    assert cache == "off"
    assert os.sched_getaffinity(0) == mine


def test_the_yardstick_grows_with_the_numbers():
    few, many = (min(yardstick(n).processor for _ in range(3)) for n in (2**21, 2**25))
    assert 8 < many / few < 32


def test_processor_time_is_of_this_process():
    took = timed(lambda: sum(range(300_000)))
    assert 0 < took.processor < 2 * took.clock + 0.01


def test_a_whole_run_costs_more_than_its_program():
    run_once(SMALL, 32)
    program_once(SMALL, 32)
    whole, alone = (
        min(once(SMALL, 32).processor for _ in range(3)) for once in (run_once, program_once)
    )
    assert 0 < alone < whole


def test_a_case_counts_one_number_for_each_trial_agent_arm_and_slot():
    assert engine.FEDTSWI.numbers(20_480) == 20_480 * 4 * 4 * 1000
    assert engine.MANY.numbers(1) == 16 * 100 * 1000
    assert engine.MANY.study(128).plays == 20


def test_what_grows_is_run_in_whole_batches():
    setting = Setting.of(arms_of(100), 4, 1000)
    trials = trials_for(Case("", "fedtswi", 100, plays=10))
    assert trials % batch_size(setting) == 0
    assert trials > 0


def test_indices_are_measured_in_turn_with_the_other_package():
    row = dense_row(20, 1.0, rounds=2)
    assert row.repetitions == 2
    assert row.number("apart") < 1e-9
    assert row.value == pytest.approx(row.number("ours_ms") / row.number("theirs_ms"))


@pytest.mark.parametrize("states", [2, 3])
def test_the_metropolis_walk_has_the_posterior_where_it_is_known(states):
    """All pairs consecutive: rows are Dirichlet."""
    scene = Scene(states, 60, 256)
    counts = np.zeros_like(scene.counts)
    counts[0] = scene.counts[0]
    object.__setattr__(scene, "counts", counts)
    rng = np.random.default_rng(1)
    weights = np.moveaxis(1 + counts[0, :, :, 0], -1, 0)
    drawn = rng.standard_gamma(weights, (40, *weights.shape))
    walk = Metropolis(scene, drawn / drawn.sum(-1, keepdims=True))
    total = np.zeros(weights.shape)
    steps = 600
    for _ in range(steps):
        walk.step()
        total += walk.matrices
    mean = weights / weights.sum(-1, keepdims=True)
    assert np.abs(total / steps - mean).mean() < 0.02
    assert np.allclose(walk.matrices.sum(-1), 1)


def test_closed_powers_of_channels_are_those_of_matrices():
    scene = Scene(2, 60, 8)
    rng = np.random.default_rng(2)
    drawn = rng.dirichlet((1, 1), (5, 8, 2))
    walk = Metropolis(scene, drawn)
    laws = powers(walk.matrices)
    counts = np.moveaxis(scene.counts[:32, :, :, 0], -1, 1)
    due = (counts * np.log(laws)).sum((0, 2, 3)) + np.log(walk.matrices).sum((1, 2))
    assert walk._height == pytest.approx(due)


def test_the_autocorrelation_time_of_a_known_process():
    """x' = .8 x + noise: (1 + .8) / (1 - .8) = 9 steps."""
    rng = np.random.default_rng(3)
    series = np.zeros((4000, 64))
    for n in range(1, len(series)):
        series[n] = 0.8 * series[n - 1] + rng.standard_normal(64)
    assert autocorrelation_time(series) == pytest.approx(9, rel=0.12)
    assert autocorrelation_time(rng.standard_normal((4000, 64))) == pytest.approx(1, abs=0.1)


def test_a_bare_server_acknowledges_what_the_generator_sends(tmp_path):
    """With no database and no credential: it is what a server cannot be faster than."""

    async def served():
        write_federation(tmp_path / "federation.toml", "fedtswi")
        federation = load_federation(tmp_path / "federation.toml")
        command = server_command(Path(bare_server.__file__))
        server = ServerProcess(command, tmp_path / "federation.toml", "none", tmp_path)
        await server.start()
        assert await server.ready()
        try:
            load = Load(server, federation, ["token"] * 4)
            return await load.closed(load.senders(0, 4), 0.1)
        finally:
            await server.stop()

    found = asyncio.run(served())
    assert found.uploads >= 4
    assert found.p99_ms > 0


def test_commits_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr("benchmarks.service.COMMIT_SECONDS", 0.05)
    assert commits_a_second(tmp_path, b"x" * 400) > 1


def test_openings_are_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(sums, "AGENTS", 5)
    monkeypatch.setattr(sums, "AWAY", 1)
    openings = sums.Openings(tmp_path, sums.federation(2))
    for _ in range(2):
        openings.turn()
    openings.close()
    assert min(openings.server_ms) > 0
    assert min(openings.helper_ms) > 0
    times, size = sums.agent_ms(sums.federation(2), 1)
    assert times[0] > 0
    assert size > 8 * 2 * (33 * 4 + 2)


def test_without_a_gpu_that_part_says_so(monkeypatch, capsys):
    monkeypatch.setattr("jax.default_backend", lambda: "cpu")
    assert main(["gpu"]) == 2
    assert "there is no GPU" in capsys.readouterr().err
    monkeypatch.setattr("sys.argv", ["gpu.py"])
    assert gpu.main() == 2
