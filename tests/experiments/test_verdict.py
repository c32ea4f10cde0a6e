"""Verdicts: one rule for every claim, careful with few trials and with many effects."""

import math

import numpy as np
import pytest

from rmab.experiments.verdict import (
    MIN_TRIALS,
    Claim,
    Effect,
    Estimate,
    Verdict,
    decide,
    sigmas,
)

MANY = 10**8
HELD, EXCEEDED, CONTRADICTED, UNDECIDED, NOTED = Verdict


def effect(value, se=0.01, claimed=0.0, direction="above", within=None, trials=MANY):
    return Effect("it", value, se, claimed, direction, within, trials)


def test_the_words():
    assert [str(word) for word in Verdict] == [
        "held",
        "exceeded",
        "contradicted",
        "undecided",
        "noted",
    ]


@pytest.mark.parametrize(
    ("value", "word"),
    [(0.041, HELD), (0.039, UNDECIDED), (-0.039, UNDECIDED), (-0.041, CONTRADICTED)],
)
def test_a_bound_needs_four_standard_errors(value, word):
    assert effect(value).verdict() == word
    assert effect(5 + value, claimed=5).verdict() == word
    assert effect(5 - value, claimed=5, direction="below").verdict() == word


@pytest.mark.parametrize(
    ("value", "word"),
    [
        (13.94, CONTRADICTED),
        (13.97, UNDECIDED),
        (14.05, HELD),
        (15.99, HELD),
        (16.03, HELD),  # 15 % it is, if not clearly more
        (16.05, EXCEEDED),
        (41.0, EXCEEDED),
    ],
)
def test_an_amount_is_held_or_exceeded_in_its_direction(value, word):
    assert effect(value, claimed=15, within=1).verdict() == word
    assert effect(-value, claimed=-15, direction="below", within=1).verdict() == word


@pytest.mark.parametrize(
    ("value", "word"),
    [(0.0, HELD), (0.95, HELD), (-0.95, HELD), (0.97, UNDECIDED), (-1.05, CONTRADICTED)],
)
def test_a_value_about_another(value, word):
    assert effect(3 + value, claimed=3, direction="about", within=1).verdict() == word


def test_a_value_about_another_needs_to_know_how_near():
    with pytest.raises(ValueError, match="about 3 needs within"):
        effect(3.0, claimed=3, direction="about")


def test_computed_values_are_decided_by_their_sign():
    assert effect(1e-12, 0.0, trials=None).verdict() == HELD
    assert effect(-1e-12, 0.0, trials=None).verdict() == CONTRADICTED
    assert effect(0.0, 0.0, trials=None).verdict() == UNDECIDED


@pytest.mark.parametrize("unknown", [{"value": math.nan}, {"value": 1.0, "se": math.nan}])
def test_what_is_not_known_decides_nothing(unknown):
    assert effect(**unknown).verdict() == UNDECIDED
    assert None in effect(**unknown).to_json().values()


def test_few_trials_need_more_standard_errors():
    needed = [sigmas(n) for n in (8, 20, 100, 1000, 10_000)]
    assert needed == sorted(needed, reverse=True)
    assert needed[1] == pytest.approx(10.0, abs=0.05)
    assert needed[-1] == pytest.approx(4.2, abs=0.05)
    assert effect(0.06, trials=20).verdict() == UNDECIDED
    assert effect(0.06, trials=1000).verdict() == HELD


@pytest.mark.parametrize("trials", [1, 2, MIN_TRIALS - 1])
def test_very_few_trials_decide_nothing(trials):
    """Not even where all of them had the same outcome, so that their error is 0."""
    assert effect(1.0, 0.0, trials=trials).verdict() == UNDECIDED
    assert effect(-1.0, 0.0, trials=trials).verdict() == UNDECIDED
    assert Claim("It is.", "1.", [effect(1.0, 0.0, trials=trials)]).found == (
        f"1. Undecided: {trials} trials are too few, {MIN_TRIALS} or more are needed."
    )


# ----------------------------------------------------------------------------- several effects


def test_a_claim_holds_if_all_of_it_does():
    up, down, little = effect(1.0), effect(-1.0), effect(0.0)
    assert decide([up, up]) == HELD
    assert decide([up, little]) == UNDECIDED
    assert decide([up, little, down]) == CONTRADICTED
    assert decide([]) == NOTED


def test_a_claim_is_exceeded_if_all_of_it_is():
    more, same = effect(41, claimed=15, within=1), effect(15, claimed=15, within=1)
    assert decide([more, more]) == EXCEEDED
    assert decide([more, same]) == HELD


def test_a_law_that_does_not_fit_holds_nothing():
    assert decide([effect(1.0)], fits=False) == UNDECIDED
    assert decide([effect(-1.0)], fits=False) == CONTRADICTED
    assert Claim("It grows.", "1.", [effect(1.0)], fits=False).found == (
        "1. Undecided: no power law fits."
    )


def test_the_worst_of_many_effects_contradicts_no_sooner_than_one():
    """200 true claims, each exactly at its bound: the worst of them is 3 standard errors off."""
    rng = np.random.default_rng(7)
    worst = rng.standard_normal((20_000, 200)).min(1)
    alone = np.mean(worst < -sigmas(MANY))
    together = np.mean(worst < -sigmas(MANY, tests=200))
    assert alone > 0.003
    assert together < 0.0005
    at_4_5 = effect(-0.045)
    assert decide([at_4_5]) == CONTRADICTED
    assert decide([at_4_5, *[effect(1.0)] * 199]) == UNDECIDED


# ------------------------------------------------------------------------ true claims, few trials

LAWS = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "skewed": lambda rng, shape: rng.exponential(size=shape) - 1,
    "very skewed": lambda rng, shape: rng.lognormal(0, 1, shape) - math.exp(0.5),
    "one in twenty": lambda rng, shape: (
        (rng.random(shape) < 0.05) - 0.05 + 0.1 * rng.standard_normal(shape)
    ),
}


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("trials", [2, 5, 8, 20, 50, 200])
@pytest.mark.parametrize("side", [1, -1])
def test_few_trials_contradict_no_true_claim(law, trials, side):
    """Claims that are just true: the mean is the bound itself. Four of the errors of so few trials
    would contradict some in a hundred."""
    outcomes = side * LAWS[law](np.random.default_rng(trials), (4000, trials))
    mean, se = outcomes.mean(1), outcomes.std(1, ddof=1) / math.sqrt(trials)
    needed = sigmas(trials)
    contradicted = mean + needed * se < 0
    assert contradicted.mean() <= 0.001
    worst = int(np.argmin(mean / se))
    found = effect(float(mean[worst]), float(se[worst]), trials=trials).verdict()
    assert found == (CONTRADICTED if contradicted[worst] else UNDECIDED)


def test_four_standard_errors_of_few_skewed_trials_would_contradict_true_claims():
    outcomes = LAWS["one in twenty"](np.random.default_rng(0), (4000, 20))
    mean, se = outcomes.mean(1), outcomes.std(1, ddof=1) / math.sqrt(20)
    assert np.mean(mean + 4 * se < 0) > 0.015


# --------------------------------------------------------------------------------------- in words


def test_a_claim_as_json():
    claim = Claim("It is 15.", "41.", [effect(41.0, claimed=15, within=1, trials=100)])
    assert claim.to_json() == {
        "claim": "It is 15.",
        "measured": "41.",
        "verdict": "exceeded",
        "held": None,
        "effects": [
            {
                "of": "it",
                "value": 41.0,
                "se": 0.01,
                "claimed": 15,
                "direction": "above",
                "within": 1,
                "trials": 100,
            }
        ],
    }


@pytest.mark.parametrize(
    ("effects", "held"),
    [([effect(1.0)], True), ([effect(-1.0)], False), ([effect(0.0)], None), ([], None)],
)
def test_held_says_the_same_as_the_verdict(effects, held):
    table = Claim("", "", effects).to_json()
    assert table["held"] is held
    assert (table["verdict"] == "held") is (held is True)
    assert (table["verdict"] == "contradicted") is (held is False)


def test_an_undecided_claim_says_what_is_missing():
    near, far = effect(0.02, trials=10_000), effect(1.0, trials=10_000)
    assert Claim("", "0.02.", [far, near]).found == (
        "0.02. Undecided: it: 2.0 standard errors from the bound, where 4.2 decide with 10,000 "
        "trials."
    )
    assert Claim("", "0.02.", [near, near]).found.endswith("with 10,000 trials (and 1 more).")
    amount = effect(14.02, claimed=15, within=1, trials=10_000)
    assert "it: 2.0 standard errors from the bound" in Claim("", "14.", [amount]).found
    assert Claim("", "1.", [far]).found == "1."
    unknown = effect(math.nan, 0.0, trials=None)
    assert Claim("", "1.", [unknown]).found == "1. Undecided: it: not known."


def test_differences_of_estimates():
    one, other = Estimate(3.0, 0.3), Estimate(1.0, 0.4)
    assert one.less(other) == pytest.approx((2.0, 0.7))
    assert one.apart(other) == pytest.approx((2.0, 0.5))
    assert one.times(-2) == pytest.approx((-6.0, 0.6))


def test_the_fewest_trials_that_decide():
    assert math.isfinite(sigmas(MIN_TRIALS))
    assert sigmas(MIN_TRIALS - 1) == math.inf
    found = Claim("", "0.", [effect(0.0, trials=MIN_TRIALS)]).found
    assert found == (
        f"0. Undecided: it: 0.0 standard errors from the bound, where {sigmas(MIN_TRIALS):.1f} "
        f"decide with {MIN_TRIALS} trials."
    )


def test_a_computed_value_at_its_bound_has_no_errors_to_count():
    assert Claim("", "0.", [effect(0.0, 0.0, trials=None)]).found == (
        "0. Undecided: it: 0.0 standard errors from the bound, where 4.0 decide."
    )
    exact = {"claimed": 1.0, "within": 0.5, "se": 0.0, "trials": None}
    words = [effect(value, **exact).verdict() for value in (0.25, 0.5, 0.75, 1.5, 1.75)]
    assert words == [CONTRADICTED, UNDECIDED, HELD, HELD, EXCEEDED]


def test_an_effect_about_a_value_is_never_exceeded():
    about = {"claimed": 1.0, "within": 0.0, "se": 0.0, "trials": None, "direction": "about"}
    assert effect(1.0, **about).verdict() == UNDECIDED
    assert effect(1.5, **about).verdict() == CONTRADICTED
    with pytest.raises(ValueError, match="it: an effect about 0 needs within"):
        effect(1.0, direction="about")
