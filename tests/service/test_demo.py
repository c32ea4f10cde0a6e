"""The demo: real server and agents, simulated arms, and nothing left of it."""

import json
import os
import signal
import subprocess
import tempfile
import threading

import httpx
import pytest

from rmab.service.demo import AGENTS, Demo
from tests.service.support.processes import RMAB
from tests.service.support.serving import PATIENCE, Flat, spectrum, until


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where temporary folders are made."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def test_the_demo_plays_and_leaves_nothing(folder):
    before = threading.active_count()
    planner = Flat(spectrum())
    with Demo(slot_seconds=0, planner=planner) as demo:
        assert demo.reference == pytest.approx(0.98520, abs=5e-6)
        assert list(folder.iterdir())
        steps = list(demo.play(30))
        assert httpx.get(f"{demo.url}/", timeout=PATIENCE).status_code == 200
        shown = httpx.get(f"{demo.url}/v1/overview", timeout=PATIENCE).json()
    assert [step.slot for step in steps] == list(range(1, 31))
    assert steps[-1].round == 7  # after episodes of 2, 3, ..., 7 slots 27 have passed
    assert shown["round"] == 7
    assert shown["reference"] == demo.reference
    assert shown["slots"] == AGENTS * 27
    assert [agent["name"] for agent in shown["agents"]] == [f"agent-{n}" for n in range(1, 5)]
    # What was uploaded and what was played agree: the arms are always the first two.
    paid = sum(row["slots"] * row["reward"] for row in shown["rewards"])
    assert paid == pytest.approx(AGENTS * 27 * steps[26].reward)
    assert list(folder.iterdir()) == []
    until(lambda: threading.active_count() <= before)  # others may have ended
    with pytest.raises(httpx.ConnectError):
        httpx.get(demo.url)


def test_the_command_ends_on_an_interrupt(folder):
    started = subprocess.Popen(
        [*RMAB, "demo", "--slots", "100000", "--no-browser"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(folder), "JAX_PLATFORMS": "cpu"},
    )
    try:
        assert started.stdout is not None
        page = started.stdout.readline()
        url = page.removeprefix("the page: ").strip()
        assert "reward" in started.stdout.readline()
        assert httpx.get(url, timeout=PATIENCE).status_code == 200
        # With known dynamics on the page, and the paper's learner at work.
        shown = httpx.get(f"{url}v1/overview", timeout=PATIENCE).json()
        assert shown["reference"] == pytest.approx(0.98520, abs=5e-6)
        started.send_signal(signal.SIGINT)
        out, err = started.communicate(timeout=300)
    finally:
        if started.poll() is None:
            started.kill()
            started.communicate()
    assert started.returncode == 130, err
    assert "with known dynamics" in out.splitlines()[-1]
    assert "Traceback" not in err
    assert list(folder.iterdir()) == []
    with pytest.raises(httpx.ConnectError):
        httpx.get(url)


@pytest.mark.slow
def test_the_command_as_json(folder, monkeypatch, capsys):
    from rmab.cli import main
    from rmab.service import demo as demo_module

    made = Demo

    def quick(port):
        return made(port, 0.0, planner=Flat(spectrum()))

    monkeypatch.setattr(demo_module, "Demo", quick)
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert main(["demo", "--slots", "5", "--json"]) == 0
    finally:
        signal.signal(signal.SIGTERM, before)
    out, err = capsys.readouterr()
    told = json.loads(out)
    assert told["slots"] == 5
    assert told["round"] == 2  # its three slots are over, and nobody has chosen since
    assert f"the page: {told['url']}/" in err
    assert main(["demo", "--slots", "0"]) == 2
