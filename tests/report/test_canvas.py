"""The parts of drawings: what is averaged, what is left out, what files hold."""

import matplotlib as mpl
import numpy as np
import pytest

from rmab.report import canvas, plots
from rmab.studies.results import Curve


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
