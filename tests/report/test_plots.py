"""Drawings: of studies and figures, whole or interrupted, with their bands and laws."""

from dataclasses import replace

import numpy as np
import pytest

from rmab.experiments.regret_growth import GAP, PLAIN
from rmab.report import canvas, plots
from rmab.report.figures_page import draw
from rmab.report.style import label


def test_a_study_is_drawn_with_its_bands(small):
    figure = plots.study(small.several)
    reward, regret = figure.axes
    assert reward.get_ylabel() == "Average reward"
    assert reward.get_xscale() == "log"  # a policy learns, so the first slots matter
    edges = canvas.bin_edges(small.several.study.horizon, logarithmic=True)
    for (name, result), line, band in zip(
        small.several.items(), reward.get_lines(), reward.collections, strict=True
    ):
        assert line.get_label() == label(name)
        _, curve = canvas.binned(result.slots, edges)
        assert np.asarray(line.get_ydata()).tolist() == curve.mean.tolist()
        corners = np.asarray(band.get_paths()[0].vertices)
        assert corners[:, 1].max() == pytest.approx((curve.mean + 1.96 * curve.se).max())
    last = [float(np.asarray(line.get_ydata())[-1]) for line in regret.get_lines()]
    assert last == [result.regret.mean[-1] for result in small.several.values()]


def test_policies_with_odd_names_stay_in_the_legend(small):
    (own, _) = small.several.values()
    names = ("", "_hidden", "$\\frac{")
    odd = replace(small.several, policies=dict.fromkeys(names, own))
    figure = plots.study(odd)
    legend = [text.get_text().strip() for text in figure.legends[0].get_texts()]
    assert legend == list(names)


def test_variants_are_lines_or_panels(small):
    drawn = {each.name: draw(each) for each in small.drawn}
    assert len(drawn["fig06"].axes) == 1
    labels = [line.get_label() for line in drawn["fig08"].axes[0].get_lines()]
    assert labels == ["M = 1", "M = 2", "M = 4", "M = 8", "M = 16"]
    assert drawn["fig07"].axes[0].get_yscale() == "log"
    assert [axes.get_title() for axes in drawn["fig09a"].axes[:2]] == [
        "The paper's rates",
        "Equal rates",
    ]
    assert drawn["fig11"].axes[0].get_ylabel() == "Regret per slot"
    assert "D = 2.565" in drawn["theory"].axes[1].get_title()
    assert {text.get_text() for text in drawn["fig13"].axes[0].texts} == {"leave alone", "play"}


def test_episodes_that_do_not_count_are_not_drawn(small):
    """Of the errors by arm, and of the rewards by variant."""
    for name in ("fig06", "fig07"):
        drawn = next(each for each in small.drawn if each.name == name)
        (result,) = drawn.results[0].values()
        assert result.full_episodes < len(result.episode_trials)
        for line in draw(drawn).axes[0].get_lines():
            places = np.asarray(line.get_xdata()).tolist()
            assert places == list(range(1, result.full_episodes + 1))


def test_exact_values_are_level_lines(small):
    fig09b = next(each for each in small.drawn if each.name == "fig09b")
    lines = {line.get_label(): line for line in draw(fig09b).axes[0].get_lines()}
    assert set(np.asarray(lines["Exact optimum"].get_ydata())) == {1.25}
    assert set(np.asarray(lines["Lagrangian bound"].get_ydata())) == {1.5}


def test_what_was_interrupted_is_drawn(small):
    for each in small.drawn:
        if each.results:
            stopped = replace(each, results=each.results[:1], values=[], series={}, claims=[])
            assert draw(stopped).axes


def test_one_trial_has_no_bands_but_is_drawn(small, tmp_path):
    def alone(curve):
        return replace(curve, se=np.full_like(curve.se, np.nan))

    one = {
        name: replace(result, slots=alone(result.slots), regret=alone(result.regret))
        for name, result in small.several.items()
    }
    canvas.save(plots.study(replace(small.several, policies=one)), tmp_path, "one", "")


# ---------------------------------------------------------------------------------- regret against


def scaled(small, name):
    return next(each for each in small.drawn if each.name == name)


def y(line):
    return np.asarray(line.get_ydata(), float)


def test_regret_is_drawn_with_its_laws_and_shares(small):
    drawn = scaled(small, "regret-agents")
    figure = draw(drawn)
    first, second, below, _ = figure.axes
    assert [axes.get_title() for axes in (first, second)] == ["K = 1", "K = 2"]
    assert (first.get_xscale(), first.get_yscale(), below.get_yscale()) == ("log", "log", "linear")
    assert below.get_xlabel() == "Agents M"
    final = drawn.results[0][PLAIN].regret.mean[-1]
    plain, gap, *laws, theorem = first.get_lines()
    places = np.asarray(plain.get_xdata(), float)
    assert places.tolist() == [1, 2, 4, 8, 16, 32, 64]
    np.testing.assert_allclose(y(plain), final)
    np.testing.assert_allclose(y(gap), final / 2)
    for law, level in zip(laws, (final, final / 2), strict=True):
        np.testing.assert_allclose(y(law), level)  # all studies are the same: level
    np.testing.assert_allclose(y(theorem), final / np.sqrt(places))
    np.testing.assert_allclose(y(below.get_lines()[0]), 0.5)
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == [label(PLAIN), label(GAP), "As 1/√M (Theorem 1)"]
    slopes = [text.get_text().replace("\N{MINUS SIGN}", "") for text in first.texts]
    assert slopes == [f"{label(name)}: M^0.00" for name in (PLAIN, GAP)]


def test_regret_over_the_slots_is_that_of_the_run(small):
    drawn = scaled(small, "regret-horizon")
    plain, gap, *_ = draw(drawn).axes[0].get_lines()
    slots = np.asarray(plain.get_xdata()).astype(int)
    assert slots[-1] == drawn.results[0].study.horizon
    np.testing.assert_array_equal(y(plain), drawn.results[0][PLAIN].regret.mean[slots - 1])
    np.testing.assert_allclose(y(gap), y(plain) / 2)


def test_arms_have_one_column(small):
    above, below = draw(scaled(small, "regret-arms")).axes
    assert below.get_xlabel() == "Arms N"
    assert [tick for tick in below.get_xticks() if tick >= 1] == [4, 8, 16, 32, 64]
    assert above.get_ylabel() == "Regret per agent"
