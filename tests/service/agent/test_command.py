"""`rmab agent`: what it prints, how it ends, what it refuses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from rmab.cli import main
from rmab.service.agent.state_file import AgentFile
from tests.service.support.fake_server import (
    SECRET,
    TOKEN,
    PretendServer,
    RealServer,
    answers,
    server_is_away,
)

STUDY = """\
plays = 2
seed = 3
policies = ["whittle"]
[[arm]]
p01 = 0.2
p11 = 0.8
reward = 0.4
[[arm]]
p01 = 0.89
p11 = 0.17
reward = 0.9
[[arm]]
p01 = 0.1
p11 = 0.9
reward = 0.7
[[arm]]
passive = [[0.9, 0.1, 0.0], [0.2, 0.6, 0.2], [0.0, 0.3, 0.7]]
reward = [0.0, 0.5, 1.0]
"""

RADIO = """\
class Radio:
    slots = 0

    def sense(self, arms):
        Radio.slots += 1
        if Radio.slots == 5:
            {fifth}
        return [0 for _ in arms]

class Blind:
    pass

class Broken:
    def __init__(self):
        raise RuntimeError("no antenna")

class Unplugged:
    def __init__(self):
        open("/dev/no-such-radio")

class Wrong:
    def __init__(self, port):
        pass
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder to work in, with a token, a study and an environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "my.token").write_text(TOKEN + "\n")
    (tmp_path / "my.token").chmod(0o600)
    (tmp_path / "study.toml").write_text(STUDY)
    (tmp_path / "my_radio.py").write_text(RADIO.format(fifth="pass"))
    yield tmp_path
    sys.modules.pop("my_radio", None)


def agent(url, *more):
    return main(["agent", url, "--token-file", "my.token", *more])


def test_simulated_arms_round_after_round(server, real, folder, capsys):
    assert agent(real.url, "--simulate", "study.toml", "--slots", "20", "--json") == 0
    out, err = capsys.readouterr()
    table = json.loads(out)
    assert list(table) == ["slots", "reward", "uploads", "round", "bad_readings"]
    assert table["slots"] == 20
    assert table["round"] >= 7  # three slots each: it waited for every one
    assert table["uploads"] == len(server.uploads)
    assert server.slots_in_all == 20
    rewards = ((0.0, 0.4), (0.0, 0.9), (0.0, 0.7), (0.0, 0.5, 1.0))
    paid = sum(
        int(server.visits[s, n]) * rewards[n][s] for n in range(4) for s in range(len(rewards[n]))
    )
    assert table["reward"] == pytest.approx(paid / 20)
    assert err == ""
    assert len(list((folder / "state" / "rmab").glob("agent-*.db"))) == 1


class Clock:
    """Time that passes only where it is slept through."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.mark.parametrize(
    ("told", "more", "seconds"),
    [
        ("5", [], 5.0),
        ("0.25", [], 0.25),
        ("5", ["--slot-seconds", "2"], 2.0),
        ("5", ["--slot-seconds", "0"], 0.0),
        ("soon", [], 0.0),
        ("-1", [], 0.0),
        ("nan", [], 0.0),
        ("inf", [], 0.0),
        (None, [], 0.0),
    ],
)
def test_simulated_arms_keep_to_the_pace_that_the_server_tells(
    server, real, folder, monkeypatch, told, more, seconds
):
    clock = Clock()
    monkeypatch.setattr("rmab.cli.agent.time", clock)

    def telling(method, good):
        status, body, headers = good()
        return status, body, headers if told is None else {"rmab-slot-seconds": told, **headers}

    server.always = telling
    assert agent(real.url, "--simulate", "study.toml", "--slots", "20", *more) == 0
    assert clock.now - 1000 == pytest.approx(20 * seconds, abs=2 * seconds)


def test_a_device_is_not_held_to_that_pace(server, real, folder, monkeypatch):
    clock = Clock()
    monkeypatch.setattr("rmab.cli.agent.time", clock)
    server.always = lambda method, good: (*good()[:2], {"rmab-slot-seconds": "5"})
    assert agent(real.url, "--env", "my_radio:Radio", "--slots", "20") == 0
    assert clock.now == 1000


def test_simulated_arms_know_the_pace_before_they_begin(server, real, folder, monkeypatch):
    """Also with a file that has a round from before, by which they could play at once."""
    clock = Clock()
    monkeypatch.setattr("rmab.cli.agent.time", clock)
    more = ("--simulate", "study.toml", "--state", "own.db", "--slots", "2")
    assert agent(real.url, *more) == 0
    assert clock.now == 1000
    server.always = lambda method, good: (*good()[:2], {"rmab-slot-seconds": "5"})
    assert agent(real.url, *more) == 0
    assert clock.now >= 1005


def test_the_same_for_people(real, folder, capsys):
    assert agent(real.url, "--simulate", "study.toml", "--slots", "4", "--state", "own.db") == 0
    out = capsys.readouterr().out
    assert out.startswith("4 slots, ")
    assert "mean reward per slot" in out
    assert (folder / "own.db").exists()


def test_no_slots_are_allowed(real, folder, capsys):
    assert agent(real.url, "--simulate", "study.toml", "--slots", "0", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "slots": 0,
        "reward": None,
        "uploads": 0,
        "round": 1,
        "bad_readings": 0,
    }


def test_an_environment_of_ones_own(server, real, folder, capsys):
    assert agent(real.url, "--env", "my_radio:Radio", "--slots", "7", "--json") == 0
    assert json.loads(capsys.readouterr().out)["reward"] == 0.0
    assert server.visits[0].sum() == 14
    assert server.visits[1:].sum() == 0


def test_a_pace_is_kept_to_and_no_round_waited_for(server, real, folder, capsys):
    server.advances = False
    code = agent(real.url, "--simulate", "study.toml", "--slots", "9", "--slot-seconds", "0.001")
    assert code == 0
    assert server.slots_in_all == 9


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--env", "my_radio"], "must be like radio:Radio, got 'my_radio'"),
        (["--env", "no_such_radio:Radio"], "ModuleNotFoundError: No module named"),
        (["--env", "my_radio:Nothing"], "AttributeError"),
        (["--env", "my_radio:Wrong"], "TypeError: "),
        (["--env", "my_radio:Blind"], "must have a method sense(arms)"),
        (["--simulate", "nothing.toml"], "no such file"),
        (["--simulate", "catalogue:fading"], "must have arms of 2, 2, 2, 3 states"),
        (["--simulate", "study.toml", "--slots", "-1"], "--slots must be a whole number"),
        (["--simulate", "study.toml", "--patience", "long"], "--patience must be a number"),
        (["--simulate", "study.toml", "--slot-seconds", "nan"], "--slot-seconds must be"),
        (["--simulate", "study.toml", "--ca", "none.pem"], "no certificates can be read"),
        (["--simulate", "study.toml", "--state", "my.token/x"], "cannot be used as the agent's"),
        (["--simulate", "study.toml", "--max-bad-readings", "0"], "--max-bad-readings must be"),
        (["--simulate", "study.toml", "--max-bad-readings", "x"], "--max-bad-readings must be"),
    ],
)
def test_what_cannot_be_used_is_told_in_one_line(real, folder, capsys, more, message):
    assert agent(real.url, *more) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("rmab agent: ")
    assert message in err
    assert err.count("\n") == 1


def test_one_of_env_and_simulate_is_needed(folder):
    with pytest.raises(SystemExit) as ended:
        agent("http://127.0.0.1:1")
    assert ended.value.code == 2


@pytest.mark.parametrize("text", ["", "no token", TOKEN + "\n" + TOKEN, "é"])
def test_a_token_file_that_has_none_is_refused_and_not_shown(folder, capsys, text):
    (folder / "my.token").write_text(text)
    assert agent("http://127.0.0.1:1", "--simulate", "study.toml") == 2
    err = capsys.readouterr().err
    assert "--token-file my.token" in err
    assert SECRET not in err


def test_a_token_that_others_can_read_is_warned_of(real, folder, capsys):
    (folder / "my.token").chmod(0o644)
    assert agent(real.url, "--simulate", "study.toml", "--slots", "1") == 0
    assert "others can read my.token" in capsys.readouterr().err


def test_a_server_that_is_not_there_at_the_start(server, real, folder, capsys):
    server.always = server_is_away
    assert agent(real.url, "--simulate", "study.toml", "--patience", "0.2") == 1
    assert "gave no round within 0.2 s" in capsys.readouterr().err


def test_a_credential_that_is_refused(server, real, folder, capsys):
    server.always = answers(401, {"error": "credential", "detail": "unknown or revoked"})
    assert agent(real.url, "--simulate", "study.toml") == 2
    err = capsys.readouterr().err
    assert "refuses the credential" in err
    assert SECRET not in err


def test_what_cannot_be_sent_in_the_end_is_kept_and_told(server, real, folder, capsys):
    more = ("--simulate", "study.toml", "--state", "own.db", "--slots", "2", "--json")
    assert agent(real.url, *more) == 0
    capsys.readouterr()
    server.always = server_is_away
    assert agent(real.url, *more, "--patience", "0.2") == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["slots"] == 2
    assert "kept in own.db and sent at the next start" in err
    file = AgentFile(folder / "own.db")
    assert len(file.earlier()) == 1
    file.close()
    server.always = None
    assert agent(real.url, *more) == 0
    assert server.slots_in_all == 6


@pytest.mark.parametrize(
    ("fifth", "seen", "told"),
    [
        (
            "raise OSError('antenna fell off')",
            0,
            "sense raised OSError: antenna fell off (my_radio",
        ),
        ("return 1 / 0", 0, "sense raised ZeroDivisionError: division by zero (my_radio.py, line"),
        ("raise TimeoutError('no answer')", 0, "sense raised TimeoutError: no answer (my_radio"),
        ("return [int('-')]", 0, "sense raised ValueError: invalid literal"),
        ("return None", 0, "states must be a list, one for each of 2 arms, got None"),
        ("return [0]", 0, "one state for each of 2 arms, got [0]"),
        ("return [float('nan')] * 2", 0, "a state must be a whole number, got nan"),
        ("return [9 for _ in arms]", 0, "the state must lie from 0 to"),
        ("return [1, float('nan')]", 1, "a state must be a whole number, got nan"),
    ],
)
def test_a_bad_reading_is_skipped_counted_and_logged(
    server, real, folder, capsys, fifth, seen, told
):
    (folder / "my_radio.py").write_text(RADIO.format(fifth=fifth))
    assert agent(real.url, "--env", "my_radio:Radio", "--slots", "8", "--json") == 0
    out, err = capsys.readouterr()
    table = json.loads(out)
    assert (table["slots"], table["bad_readings"]) == (8, 1)
    assert told in err
    assert "a bad reading is skipped (1 so far)" in err
    assert server.slots_in_all == 8
    assert server.visits.sum() == 7 * 2 + seen
    assert server.visits[1].sum() == seen


@pytest.mark.parametrize(("most", "slots"), [((), 4 + 10), (("--max-bad-readings", "3"), 4 + 3)])
def test_bad_readings_in_a_row_end_it_with_1(server, real, folder, capsys, most, slots):
    text = RADIO.replace("== 5", ">= 5").format(fifth="raise OSError('antenna fell off')")
    (folder / "my_radio.py").write_text(text)
    assert agent(real.url, "--env", "my_radio:Radio", "--json", *most) == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["slots"] == slots  # they have passed, and are sent
    assert server.slots_in_all == slots
    assert server.visits.sum() == 4 * 2
    assert f"rmab agent: {slots - 4} bad readings in a row, the most that may be; the last:" in err


def test_bad_readings_between_good_ones_do_not_end_it(server, real, folder, capsys):
    text = RADIO.replace("== 5", "% 3").format(fifth="return []")
    (folder / "my_radio.py").write_text(text)
    more = ("--slots", "30", "--max-bad-readings", "3")
    assert agent(real.url, "--env", "my_radio:Radio", *more) == 0
    assert capsys.readouterr().out.endswith(", 20 bad readings\n")


@pytest.mark.parametrize(
    ("fifth", "told"),
    [
        ("return [self.slot for _ in arms]", "AttributeError: 'Radio' object has no attribute"),
        ("return int(None)", "TypeError: int() argument must be"),
        ("return [state for _ in arms]", "NameError: name 'state' is not defined"),
        ("import no_such_driver", "ModuleNotFoundError: No module named 'no_such_driver'"),
        ("import json; return json.loads(5)", "TypeError: the JSON object must be"),
        ("raise NotImplementedError('measure')", "NotImplementedError: measure"),
    ],
)
def test_a_bug_in_sense_ends_it_with_2_and_the_place(server, real, folder, capsys, fifth, told):
    (folder / "my_radio.py").write_text(RADIO.format(fifth=fifth))
    assert agent(real.url, "--env", "my_radio:Radio", "--slots", "8", "--json") == 2
    out, err = capsys.readouterr()
    assert err.startswith(f"rmab agent: sense raised {told}")
    assert "(my_radio.py, line 7); this is a bug of the program" in err
    assert err.count("\n") == 1
    assert json.loads(out)["slots"] == 4
    assert server.slots_in_all == 4  # what was observed before is sent


def test_a_sense_that_cannot_be_called_is_a_bug(real, folder, capsys):
    text = RADIO.replace("def sense(self, arms):", "def sense(self):")
    (folder / "my_radio.py").write_text(text.format(fifth="pass"))
    assert agent(real.url, "--env", "my_radio:Radio", "--slots", "8") == 2
    err = capsys.readouterr().err
    assert "sense raised TypeError: Radio.sense() takes 1 positional argument but 2" in err
    assert "(my_radio.py, line 4)" in err


def test_a_module_of_sense_that_is_no_python_is_a_bug(real, folder, capsys):
    (folder / "broken_driver.py").write_text("a = 1\ndef\n")
    (folder / "my_radio.py").write_text(RADIO.format(fifth="import broken_driver"))
    assert agent(real.url, "--env", "my_radio:Radio", "--slots", "8") == 2
    assert "(broken_driver.py, line 2); this is a bug" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["Broken", "Unplugged"])
def test_a_device_that_is_not_there_may_come(real, folder, capsys, name):
    assert agent(real.url, "--env", f"my_radio:{name}") == 1
    err = capsys.readouterr().err
    assert err.startswith(f"rmab agent: --env my_radio:{name}: cannot be made: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_asked_to_end_it_sends_the_rest_and_says_how_it_went(server, real, folder, sent, code):
    program = "import sys; from rmab.cli import main; sys.exit(main())"
    options = "--token-file my.token --simulate study.toml --slot-seconds 0.01 --json"
    process = subprocess.Popen(
        [sys.executable, "-c", program, "agent", real.url, *options.split()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    while server.slots_in_all < 6:
        time.sleep(0.01)
        assert process.poll() is None
    process.send_signal(sent)
    out, err = process.communicate(timeout=300)
    assert process.returncode == code, err
    assert json.loads(out)["slots"] == server.slots_in_all
    assert server.left == 1
    assert b"Traceback" not in err


def test_agents_see_arms_of_their_own(server, folder, capsys):
    """By their credentials, though the study is the same."""
    books = []
    for number in (0, 1):
        pretend = PretendServer()
        other = TOKEN.replace("0" * 16, f"{number:016x}")
        pretend.token = other
        (folder / "my.token").write_text(other)
        made = RealServer(pretend)
        try:
            assert agent(made.url, "--simulate", "study.toml", "--slots", "80") == 0
        finally:
            made.close()
        books.append(pretend.counts.tolist())
    assert books[0] != books[1]  # all transitions of 80 slots: equal ones hardly ever


def test_help_has_examples(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["agent", "--help"])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert "--env radio:Radio" in out
    assert "def sense(self, arms):" in out
