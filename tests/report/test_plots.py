"""Drawings: what is averaged, what is left out, and that files are whole and always the same."""

from dataclasses import replace

import matplotlib as mpl
import numpy as np
import pytest

from rmab.policies.settings import KNOWN, LEARNERS
from rmab.report import canvas, plots
from rmab.report.style import label, line_styles
from rmab.studies.results import Curve
from rmab.studies.scaling import GAP, PLAIN


@pytest.mark.parametrize("horizon", [1, 2, 60, 1000])
@pytest.mark.parametrize("logarithmic", [False, True])
def test_bins_cover_every_slot_once(horizon, logarithmic):
    edges = canvas.bin_edges(horizon, logarithmic)
    assert edges[0] == 0
    assert edges[-1] == horizon
    assert (np.diff(edges) > 0).all()


def test_a_bin_has_the_mean_and_the_mean_error_of_its_slots():
    curve = Curve(np.array([1.0, 2.0, 3.0, 7.0]), np.array([0.1, 0.3, 0.5, 0.7]))
    x, binned = canvas.binned(curve, np.array([0, 1, 4]))
    np.testing.assert_allclose(x, [1, 3])
    np.testing.assert_allclose(binned.mean, [1, 4])
    np.testing.assert_allclose(binned.se, [0.1, 0.5])


def test_episodes_that_few_trials_finished_are_left_out():
    reached = np.array([10.0, 10, 6, 4, 1])
    assert canvas.kept_episodes(reached, 10).tolist() == [0, 1]
    assert canvas.kept_episodes(np.array([10.0]), 10).tolist() == [0]  # one episode is all there is


def test_every_policy_has_a_style_of_its_own(small):
    names = [*LEARNERS, *KNOWN]
    each = list(line_styles(names).values())
    assert len({style.label for style in each}) == len(names)
    assert not {style.label for style in each} & set(names)  # all have more than a name
    assert len({style.colour for style in each}) == len(names)
    assert len({(style.dash, style.marker) for style in each}) == len(names)
    assert all(style.marker for style in each[: len(LEARNERS)])
    assert label("fedtswi") == "FedTSWI"
    assert label(small.odd) == small.odd


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
    drawn = {each.name: plots.paper(each) for each in small.drawn}
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


def test_a_variant_shows_what_it_leaves_out_from_the_first(small):
    fig12 = next(each for each in small.drawn if each.name == "fig12")
    second = replace(fig12.results[1], policies={"whittle": fig12.results[1]["whittle"]})
    figure = plots.paper(replace(fig12, results=[fig12.results[0], second]))
    left, right = figure.axes[:2]
    assert [line.get_label() for line in left.get_lines()] == [small.odd, "WI policy"]
    assert [line.get_label() for line in right.get_lines()] == [small.odd, "WI policy"]


def test_exact_values_are_level_lines(small):
    fig09b = next(each for each in small.drawn if each.name == "fig09b")
    lines = {line.get_label(): line for line in plots.paper(fig09b).axes[0].get_lines()}
    assert set(np.asarray(lines["Exact optimum"].get_ydata())) == {1.25}
    assert set(np.asarray(lines["Lagrangian bound"].get_ydata())) == {1.5}


def test_what_was_interrupted_is_drawn(small):
    for each in small.drawn:
        if each.results:
            stopped = replace(each, results=each.results[:1], values=[], series={}, claims=[])
            assert plots.paper(stopped).axes


def test_one_trial_has_no_bands_but_is_drawn(small, tmp_path):
    def alone(curve):
        return replace(curve, se=np.full_like(curve.se, np.nan))

    one = {
        name: replace(result, slots=alone(result.slots), regret=alone(result.regret))
        for name, result in small.several.items()
    }
    canvas.save(plots.study(replace(small.several, policies=one)), tmp_path, "one", "")


def test_drawing_changes_no_setting_of_matplotlib(small, tmp_path):
    before = dict(mpl.rcParams)
    canvas.save(plots.study(small.several), tmp_path, "figure", "")
    assert dict(mpl.rcParams) == before


def test_text_of_a_drawing_stays_text(small, tmp_path):
    inline = canvas.save(plots.study(small.several), tmp_path, "figure", 'say "<this>"')
    assert inline.startswith('<svg role="img" aria-label="say &quot;&lt;this&gt;&quot;" ')
    assert "&lt;b&gt;&amp;$x</text>" in inline
    assert small.odd not in inline
    assert "Verdana" in inline


# ---------------------------------------------------------------------------------- regret against


def scaled(small, name):
    return next(each for each in small.drawn if each.name == name)


def y(line):
    return np.asarray(line.get_ydata(), float)


def test_regret_is_drawn_with_its_laws_and_shares(small):
    drawn = scaled(small, "regret-agents")
    figure = plots.paper(drawn)
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
    plain, gap, *_ = plots.paper(drawn).axes[0].get_lines()
    slots = np.asarray(plain.get_xdata()).astype(int)
    assert slots[-1] == drawn.results[0].study.horizon
    np.testing.assert_array_equal(y(plain), drawn.results[0][PLAIN].regret.mean[slots - 1])
    np.testing.assert_allclose(y(gap), y(plain) / 2)


def test_arms_have_one_column(small):
    above, below = plots.paper(scaled(small, "regret-arms")).axes
    assert below.get_xlabel() == "Arms N"
    assert [tick for tick in below.get_xticks() if tick >= 1] == [4, 8, 16, 32, 64]
    assert above.get_ylabel() == "Regret per agent"
