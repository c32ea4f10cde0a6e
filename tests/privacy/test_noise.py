"""Sums released with noise: how much, when, and what is kept."""

import math
from dataclasses import replace
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import erfcx

from rmab.errors import FederationError, ModelError
from rmab.privacy.accounting import (
    _SMOOTHING,
    Budget,
    PrivacyAccountant,
    cell_noise,
    is_due,
    noise_multiplier,
    sensitivity_squared,
)
from rmab.privacy.denoising import denoised
from rmab.privacy.noise import GRID, MOST_RELEASES, discrete_gaussian, factor, mixing
from rmab.protocol.player import Player
from rmab.protocol.shape import Shape
from tests.protocol.test_messages import message_of

SLOTS = 7
# z(epsilon, delta) of Phi(mu/2 - e/mu) - exp(e) Phi(-mu/2 - e/mu), in arithmetic of 110 digits; and
# by dp-accounting 0.6.0 from Renyi divergences, which ask for more (4001 orders, 1.007 to 404).
ACCOUNTED = {
    (0.5, 1e-6): (8.057618480725, 8.676632),
    (1.0, 1e-6): (4.224678889327, 4.530877),
    (2.0, 1e-6): (2.230476271186, 2.381592),
    (8.0, 1e-6): (0.652935384358, 0.6892923),
    (0.1, 1e-3): (17.404396203031, 20.566800),
    (1.0, 1e-3): (2.574657018637, 2.901534),
    (20.0, 1e-9): (0.359812086655, 0.3728135),
    (100.0, 1e-6): (0.097837223974, 0.1004574),
}
LEAST_DELTA = 1e-300
NORM = sum(step * step for step in factor()) / GRID**2  # ||c||^2


def rounded_normal(seed):
    """Draws like z, fast, by no exact sampler: for what concerns bookkeeping alone."""
    rng = np.random.default_rng(seed)

    def draw(budget, plays, size):
        return np.rint(rng.normal(0, GRID * budget.scale(plays), size)).astype(int).tolist()

    return draw


def doubling(ledger, releases, draw, members=3):
    """The ledger with so many releases more."""
    for _ in range(releases):
        number = len(ledger.releases)
        ledger = ledger.released(str(number), 8 * members * 2**number, members, draw)
    return ledger


# -------------------------------------------------------------------------------- how much noise


@pytest.mark.parametrize(("budget", "accounts"), ACCOUNTED.items())
def test_the_noise_is_what_an_exact_account_asks_for_and_no_more(budget, accounts):
    exact, renyi = accounts
    z = noise_multiplier(*budget)
    assert exact < z < exact * (1 + 2e-9)
    assert 0.8 < z / renyi < 0.98


def test_the_noise_is_never_less_than_an_exact_gaussian_needs():
    normal = np.vectorize(lambda x: 0.5 * math.erfc(-x / math.sqrt(2)))
    for epsilon, delta in [*ACCOUNTED, (1e-9, 1e-6), (1e-3, 1e-12), (50, 1e-3)]:
        mu = 1 / noise_multiplier(epsilon, delta)
        first, second = normal([mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu])
        assert first - (math.exp(epsilon) * second if second else 0) <= delta


@pytest.mark.parametrize(("epsilon", "delta"), [(100, LEAST_DELTA), (1e-6, LEAST_DELTA), (1, 1e-9)])
def test_a_delta_of_any_size_is_met(epsilon, delta):
    """By Mills ratios, whose difference keeps its digits far in the tail."""
    mu = 1 / noise_multiplier(epsilon, delta)
    a = mu / 2 - epsilon / mu
    far = math.sqrt(math.pi / 2) * erfcx((np.array([0, mu]) - a) / math.sqrt(2))
    log_delta = math.log(far[0] - far[1]) - a * a / 2 - math.log(2 * math.pi) / 2
    assert log_delta == pytest.approx(math.log(delta), abs=1e-5)


# ------------------------------------------------------------------------- noise on a grid, exactly


def loss_delta(epsilon, probability, loss):
    """delta at epsilon of a privacy loss with these probabilities."""
    return float(np.sum(probability * np.maximum(-np.expm1(np.minimum(epsilon - loss, 0)), 0)))


@pytest.mark.parametrize("budget", [Budget(e, d) for e, d in ACCOUNTED])
def test_noise_on_the_grid_is_as_private_as_asked_for(budget):
    """All probabilities of a discrete Gaussian that is shifted by the whole sensitivity, added up
    one by one."""
    sigma = GRID * budget.scale(2)
    shift = math.floor(GRID * math.sqrt(sensitivity_squared(2) * NORM))
    y = np.arange(-math.ceil(40 * sigma), math.ceil(40 * sigma) + 1)
    weight = np.exp(-((y / sigma) ** 2) / 2)
    found = loss_delta(
        budget.epsilon, weight / weight.sum(), (shift * shift + 2.0 * shift * y) / (2 * sigma**2)
    )
    assert 0.9 * budget.delta < found <= budget.delta


@pytest.mark.parametrize(("apart", "least"), [(0, 0.9), (1, 1e-3)])
def test_noise_on_the_grid_is_as_private_for_pairs_of_several_cells_and_releases(apart, least):
    """One arm's pairs as they change most, u in the first release and v so many releases later.

    The loss is (|d|^2 + 2 d y) / (2 sigma^2), d what is added to C g. d y has whole values and a
    characteristic function that is a product, of which the law is the Fourier transform.
    """
    budget = Budget(100.0)
    sigma, c = GRID * budget.scale(1), np.array(factor())
    u, v = np.array([-1, 1, 0]), np.array([-1, 0, 1])
    later = np.concatenate([np.zeros(apart, int), c[: MOST_RELEASES - apart]])
    d = np.outer(c, u) + np.outer(later, v)
    squared = int((d * d).sum())
    assert squared <= GRID**2 * sensitivity_squared(1) * NORM
    size = 2**21
    assert size > 24 * sigma * math.sqrt(squared)
    angle = 2 * math.pi * np.arange(size // 2 + 1) / size
    log_chance = np.zeros(len(angle))
    for step, times in zip(*np.unique(np.abs(d), return_counts=True), strict=True):
        turned = (step * angle + math.pi) % (2 * math.pi) - math.pi  # the next peak is too far
        log_chance -= times * (sigma * turned) ** 2 / 2
    law = np.fft.irfft(np.exp(log_chance), size)
    y = np.fft.fftfreq(size, 1 / size)
    found = loss_delta(budget.epsilon, law, (squared + 2 * y) / (2 * sigma**2))
    assert least * budget.delta < found <= budget.delta


def test_a_discrete_gaussian_of_two_steps_has_the_same_sum_wherever_it_stands():
    """What the proof needs of `_SMOOTHING`: its sum over the grid is the integral to 1e-33."""
    steps = np.arange(-60, 61)
    for place in np.linspace(0, 1, 11):
        total = math.fsum(np.exp(-((steps - place) ** 2) / (2 * _SMOOTHING**2)))
        assert total == pytest.approx(_SMOOTHING * math.sqrt(2 * math.pi), rel=1e-15)
    assert 4 * math.exp(-2 * (math.pi * _SMOOTHING) ** 2) < 1e-33
    for epsilon in (0.5, 100):
        exact = GRID * noise_multiplier(epsilon, 1e-6) * math.sqrt(6 * NORM)
        assert (GRID * Budget(epsilon).scale(1)) ** 2 == pytest.approx(exact**2 + 4, rel=1e-12)


def test_noise_that_passes_every_count_is_refused():
    with pytest.raises(ModelError, match=r"^privacy.epsilon = 1e-12 asks for noise .* any count$"):
        Budget(1e-12, 1e-300)


@pytest.mark.parametrize("epsilon", [0, -1, 100.001, math.inf, math.nan, "1", True, None])
def test_an_epsilon_out_of_range_is_refused(epsilon):
    with pytest.raises(ModelError, match=r"^privacy\.epsilon must be .* at most 100, got "):
        Budget(epsilon)


@pytest.mark.parametrize("delta", [0, -1e-6, 1.01e-3, 1, "small", False])
def test_a_delta_out_of_range_is_refused(delta):
    with pytest.raises(ModelError, match=r"^privacy\.delta must be .* at most 0\.001, got "):
        Budget(1.0, delta)


def test_the_ends_of_the_ranges_are_allowed():
    assert Budget(100, 1e-3).scale(1) < Budget(1e-6).scale(1)


def test_the_factorisation_is_exact():
    c = [Fraction(step, GRID) for step in factor()]
    b = mixing()
    assert c[:4] == [1, Fraction(1, 2), Fraction(96, 256), Fraction(80, 256)]
    for j in range(MOST_RELEASES):  # B C = A
        assert sum(b[i] * c[j - i] for i in range(j + 1)) == 1
        assert abs(c[j] - Fraction(math.comb(2 * j, j), 4**j)) <= Fraction(1, 2 * GRID)
        assert GRID**j % b[j].denominator == 0
    assert float(sum(x * x for x in c)) == pytest.approx(2.2384, abs=1e-4)


# ------------------------------------------------------------------------------- the sensitivity


def counted(log, gaps, arms=1):
    """What each slot of a log adds to the counts, (slots, cells); a log has for each slot what each
    arm showed, None: nothing."""
    player = Player(message_of(Shape(arms, (2,) * arms, gaps)), "0" * 32)
    before, found = player.counts.copy(), []
    for slot in log:
        shown = [(arm, state) for arm, state in enumerate(slot) if state is not None]
        player.observe([arm for arm, _ in shown], [state for _, state in shown])
        found.append((player.counts - before).ravel())
        before = player.counts.copy()
    return np.array(found)


def one_arm(gaps):
    return {
        log: counted([(state,) for state in log], gaps)
        for log in product((None, 0, 1), repeat=SLOTS)
    }


@pytest.mark.parametrize("gaps", [1, SLOTS])
def test_no_slot_changes_counts_by_more_than_the_sensitivity(gaps):
    """Over all logs of 7 slots of an arm. A slot changes what two slots add to the counts, u and v,
    which may be of any two releases r <= r': |u|^2 G_rr + |v|^2 G_r'r' + 2 uv G_rr', G = C^T C."""
    counts = one_arm(gaps)
    shown: set[tuple[int, int, int]] = set()
    lost: set[tuple[int, int, int]] = set()
    for log, mine in counts.items():
        for slot, state in product(range(SLOTS), (None, 0, 1)):
            if state == log[slot]:
                continue
            change = counts[(*log[:slot], state, *log[slot + 1 :])] - mine
            later = np.flatnonzero(change.any(1) & (np.arange(SLOTS) > slot))
            assert not change[:slot].any()
            assert len(later) <= 1
            u, v = change[slot], change[later].sum(0)
            kinds = lost if state is None or log[slot] is None else shown
            kinds.add((int(u @ u), int(v @ v), int(u @ v)))
    c = np.array(factor(), float)
    columns = [np.pad(c, (r, 0))[:MOST_RELEASES] for r in range(MOST_RELEASES)]
    gram = np.array(columns) @ np.array(columns).T
    own = np.diag(gram)

    def largest(kinds):
        return max(
            float((uu * own[:, None] + vv * own + 2 * uv * gram).max()) for uu, vv, uv in kinds
        )

    assert largest(shown) == 6 * gram[0, 0]  # another state
    assert largest(lost) == 5 * gram[0, 0]  # a state, and nothing
    assert max(uu + vv + 2 * uv for uu, vv, uv in shown | lost) == sensitivity_squared(1)


def test_two_arms_of_a_slot_change_counts_by_twice_as_much():
    logs = product(product((0, 1), repeat=2), repeat=3)
    counts = {log: counted(log, 2, arms=2).sum(0) for log in logs}
    changes = [
        ((counts[log] - counts[(log[0], other, log[2])]) ** 2).sum()
        for log in counts
        for other in product((0, 1), repeat=2)
    ]
    assert max(changes) == sensitivity_squared(2)


# ------------------------------------------------------------------------------------ when it is


def test_a_sum_is_released_when_its_slots_have_doubled():
    assert not is_due(23, 3, None)
    assert is_due(24, 3, None)
    assert not is_due(47, 9, 24)  # whoever joined meanwhile
    assert is_due(48, 3, 24)


def test_a_release_that_is_not_due_is_refused():
    ledger = PrivacyAccountant(Budget(1.0), 2, 4)
    with pytest.raises(FederationError, match=r"at least 24 slots, got 23"):
        ledger.released("a", 23, 3, rounded_normal(0))
    ledger = ledger.released("a", 30, 3, rounded_normal(0))
    with pytest.raises(FederationError, match=r"at least 60 slots, got 59"):
        ledger.released("b", 59, 3, rounded_normal(0))
    assert not ledger.is_due(59, 3)
    assert ledger.is_due(60, 3)


def test_the_41st_release_is_refused():
    ledger = doubling(PrivacyAccountant(Budget(1.0), 2, 3), MOST_RELEASES, rounded_normal(1))
    assert ledger.remaining == 0
    assert not ledger.is_due(2**60, 3)
    with pytest.raises(FederationError, match=r"all 40 releases"):
        ledger.released("one more", 2**60, 3, rounded_normal(1))
    assert ledger.released("39", 24 * 2**39, 3) == ledger  # a repeat is none


# ----------------------------------------------------------------------------------- what is kept


def test_a_repeat_has_the_same_noise():
    ledger = doubling(PrivacyAccountant(Budget(1.0), 2, 8), 3, rounded_normal(2))
    before = [ledger.noise(str(n)) for n in range(3)]
    again = ledger.released("1", 48, 3, rounded_normal(3))
    assert again == ledger
    later = doubling(replace(ledger), 2, rounded_normal(4))
    for n in range(3):
        np.testing.assert_array_equal(later.noise(str(n)), before[n])
    with pytest.raises(FederationError, match=r"release 1 had 48 slots, got 49"):
        ledger.released("1", 49, 3)
    with pytest.raises(FederationError, match=r"no release 7"):
        ledger.noise("7")


@given(st.integers(1, MOST_RELEASES), st.integers(0, 10**6))
@settings(max_examples=20, deadline=None)
def test_the_noise_is_that_of_the_factorisation_and_sums_of_increments_have_it(releases, seed):
    ledger = doubling(PrivacyAccountant(Budget(3.0), 1, 2), releases, rounded_normal(seed))
    b, z = mixing(), [release.noise for release in ledger.releases]
    total = np.zeros(2, int)
    for t in range(releases):
        exact = [
            sum(b[t - s] * Fraction(z[s][cell], GRID) for s in range(t + 1)) for cell in (0, 1)
        ]
        noise = ledger.noise(str(t))
        assert noise.tolist() == [math.floor(x + Fraction(1, 2)) for x in exact]
        total += ledger.new_noise(str(t))
        np.testing.assert_array_equal(total, noise)


def test_half_way_noise_is_rounded_as_whole_counts_are_added():
    def half(budget, plays, size):
        return [GRID // 2, -GRID // 2, 3 * GRID // 2, -3 * GRID // 2]

    ledger = PrivacyAccountant(Budget(1.0), 2, 4).released("a", 100, 3, half)
    assert ledger.noise("a").tolist() == [1, 0, 2, -1]


# ---------------------------------------------------------------------------- OpenDP, and learners


def test_opendp_draws_noise_of_the_right_size():
    pytest.importorskip("opendp")
    budget = Budget(1.0)
    z = np.array(discrete_gaussian(budget, 2, 4000), float) / GRID
    assert abs(z.mean()) < 5 * budget.scale(2) / math.sqrt(4000)
    assert z.std() == pytest.approx(budget.scale(2), rel=5 / math.sqrt(8000))
    assert budget.scale(2) == pytest.approx(4.224679 * math.sqrt(12 * 2.2383881), rel=1e-6)
    assert len(set((z * GRID).astype(int) % 16)) == 16  # on the whole grid


@pytest.mark.parametrize(("share", "refused"), [(1.0, False), (0.999, True), (0.5, True)])
def test_a_draw_for_which_opendp_accounts_more_than_asked_for_is_refused(
    monkeypatch, share, refused
):
    """OpenDP may draw less than it was asked for; its own account then says so."""
    opendp = pytest.importorskip("opendp.prelude")
    asked, scales, make = Budget(2.0), [], opendp.m.make_gaussian

    def made(domain, metric, scale):
        scales.append(scale)
        return make(domain, metric, scale=share * scale)

    monkeypatch.setattr(opendp.m, "make_gaussian", made)
    if refused:
        with pytest.raises(FederationError, match=r"OpenDP would not draw as much noise as"):
            discrete_gaussian(asked, 2, 5)
    else:
        assert len(discrete_gaussian(asked, 2, 5)) == 5
    assert scales == [pytest.approx(GRID * asked.scale(2), rel=1e-11)]
    assert scales[0] > GRID * asked.scale(2)


def test_the_noise_of_a_cell_is_as_foretold():
    budget = Budget(2.0)
    ledger = doubling(PrivacyAccountant(budget, 2, 20_000), 6, rounded_normal(5))
    assert ledger.cell_noise() == cell_noise(budget, 2, 6)
    assert ledger.noise("5").std() == pytest.approx(ledger.cell_noise(), rel=0.02)
    assert PrivacyAccountant(budget, 2, 3).cell_noise() == 0


def test_without_opendp_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "opendp.prelude", None)
    with pytest.raises(FederationError, match=r"pip install '\.\[privacy\]'"):
        discrete_gaussian(Budget(1.0), 1, 1)


def test_rows_of_noise_alone_are_left_out_and_others_weighed():
    counts = np.zeros((1, 2, 2, 3))
    counts[0, :, :, 0] = [[20, 7], [-9, 30]]
    counts[0, :, :, 1] = [[400, 400], [-30, 900]]
    counts[0, :, :, 2] = [[4e6, 4e6], [1e6, 9e6]]
    found = denoised(counts, 20.0)
    assert not found[0, 0, :, 0].any()  # 27 < sqrt(2) 20
    assert not found[0, 1, :, 0].any()
    np.testing.assert_allclose(found[0, 0, :, 1], 400 * 200 / (200 + 400 * 0.5))
    assert found[0, 1, 0, 1] == 0
    # It may well be 1, but the noise does not say so: p = 20 / 940, and 900 is worth 32.
    assert found[0, 1, 1, 1] == pytest.approx(900 * 18.743 / (18.743 + 400 * 0.95836), rel=1e-3)
    np.testing.assert_allclose(found[..., 2], counts[..., 2], rtol=5e-4)
    clear = np.abs(counts)
    np.testing.assert_allclose(denoised(clear, 1e-6), clear, rtol=1e-5)
    counts[0, :, :, 0] = [[30, 41], [-9, 79]]  # 2.5 sqrt(2) 20 = 70.7
    assert denoised(counts, 20.0, least=2.5)[0, :, 1, 0].astype(bool).tolist() == [True, False]
    assert denoised(counts, 20.0)[0, :, 1, 0].astype(bool).tolist() == [True, True]
