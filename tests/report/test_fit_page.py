"""fit.html: verdicts and pictures on one page, which says in words what matters."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from rmab.report.fit_page import _CAPTIONS, _STATES, PICTURES, _effective, _settings, write_fit
from rmab.traces.fit import POLICIES, ReplicatedReward, fit_trace
from tests.traces.made import chain, trace_of

NAME = "a <b>&$x"


@pytest.fixture(scope="module")
def fitted():
    """A chain with holes and names that could be markup; policies change places on it."""
    state = chain(agents=2, arms=3, slots=1200)
    state[1, 100:300, 2] = -1
    names = {"arms": ("<i>", "$y$", "_z"), "agents": ("&a", "b")}
    twins = {"stay": 0.959, "myopic": 0.971, "whittle": 0.973, "genie": 0.999}
    trace = {"stay": 0.9809, "myopic": 0.9814, "whittle": 0.9745, "genie": 0.999}
    earned = {name: ReplicatedReward(trace[name], np.full(20, twins[name])) for name in POLICIES}
    return replace(fit_trace(trace_of(state, slot_s=0.1, **names)), earned=earned)


@pytest.fixture(scope="module")
def folder(fitted, tmp_path_factory):
    """Where its page was written: drawing takes longer than all else."""
    folder = tmp_path_factory.mktemp("fit")
    write_fit(folder, NAME, fitted)
    return folder


@pytest.fixture(scope="module")
def page(folder):
    return (folder / "fit.html").read_text(encoding="utf-8")


def test_the_page_has_verdicts_pictures_and_arms(folder, page, fitted):
    assert page.count("<svg ") == len(PICTURES) == 6
    for verdict in fitted.verdicts:
        assert f">{verdict.question}</th>" in page
        assert _settings(verdict.so) in page
    assert "2 agents, 1,200 slots of 0.1 s, 3 arms, 5 segments" in page
    assert "a &lt;b&gt;&amp;$x" in page
    assert "<i>" not in page
    assert "&lt;i&gt;" in page
    assert json.loads((folder / "fit.json").read_text(encoding="utf-8")) == fitted.to_json()


def test_the_page_needs_no_other_file(folder, page):
    assert "<script" not in page
    assert not re.findall(r'(?:src|xlink:href)="(?!#|data:)', page)
    targets = set(re.findall(r'<a href="([^"#]+)"', page))
    assert targets == {"fit.json", *(f"{name}.png" for name in PICTURES)}
    assert all((folder / name).exists() for name in targets)


def test_no_significance_is_claimed(page):
    assert not re.search(r"p-value|significan", page, re.IGNORECASE)


def test_a_reversal_is_said_in_words(page):
    assert '<p class="note">The order reverses. On its twins whittle earns more' in page
    assert "the trace pays: stay more, myopic more, whittle more." in page


@pytest.mark.slow
def test_the_same_fit_is_the_same_page(tmp_path, page, fitted):
    assert write_fit(tmp_path, NAME, fitted).read_text(encoding="utf-8") == page


def test_a_trace_of_which_little_is_known_has_its_page(tmp_path):
    """One agent, three states, and never two arms in one slot."""
    state = np.where(np.arange(40)[:, None] < 20, [[2, -1]], [[-1, 1]])[None].copy()
    state[0, ::3] -= state[0, ::3] > 0
    fit = fit_trace(trace_of(state, states=3))
    page = write_fit(tmp_path, "short", fit).read_text(encoding="utf-8")
    assert "not known" in page
    assert page.count("<svg ") == 6
    assert "3 states, of which the highest is good" in page
    assert "by powers m^k" not in page  # which is of two states


def test_options_and_settings_are_not_broken_over_lines():
    whole = '<code class="whole">{}</code>'.format
    said = _settings("Take --how any-bad, or a -robust policy; set longest = 50.")
    assert said == (
        f"Take {whole('--how any-bad')}, or a {whole('-robust')} policy; "
        f"set {whole('longest = 50')}."
    )
    assert whole("forget = &quot;bank&quot;") in _settings('Set forget = "bank".')
    assert whole("fedce-myopic-robust") in _settings("beside stay and fedce-myopic-robust.")
    assert _settings("a back-test <b>") == "a back-test &lt;b&gt;"


def test_a_formula_stands_only_beside_its_own_result(fitted):
    """A correlation below 0 counts as 0, and agents that measured nothing do not count."""
    for rho, words in (
        (0.5, "rho = 0.50 between agents, M = 2 agents are worth M / (1 + (M - 1) rho) = 1.3."),
        (-0.2, "rho = -0.20 between agents, M = 2 agents are worth 2.0: none is lost"),
    ):
        made = replace(fitted)
        made.__dict__["correlation"] = rho
        assert words in _effective(made)
    assert "M / (1" not in _effective(made)


def test_the_caption_names_the_colours_that_are_drawn():
    red, green, blue = (int(_STATES[-1][i : i + 2], 16) for i in (1, 3, 5))
    assert blue > green > red
    assert "dark" not in _CAPTIONS["strip"]
    assert "blue is good, orange is bad" in _CAPTIONS["strip"]
