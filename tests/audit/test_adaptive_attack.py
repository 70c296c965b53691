"""Likelihood ratios of adaptive runs, and the bounds that follow from them."""

import math

import numpy as np
import pytest

from dpscale.audit.adaptive_attack import (
    MU,
    UNIT_ROWS,
    attained,
    first_selection,
    one_run,
    one_run_epsilon,
    rows_counts,
    single_attribute_counts,
    transcript,
    worst_pair,
)
from dpscale.audit.selftest import DELTA, bound_of


def test_expected_likelihood_ratio_is_one():
    """E exp(ratio) = 1 under the first table; with a small budget the mean of 225 runs is within 0.07."""
    pair = worst_pair(0.5)
    ratios = np.array([transcript(pair, 0, seed).whole for seed in range(225)])
    assert np.exp(ratios).mean() == pytest.approx(1, abs=5 * np.exp(ratios).std() / 15)
    assert ratios.std() > 0.3


def test_cost_of_a_run_is_within_the_claim():
    pair = worst_pair()
    found = transcript(pair, 0, 1)
    assert pair.claimed == pytest.approx(MU)
    assert 0.8 * MU**2 < found.measured_cost < MU**2


def test_ratio_of_first_selection_is_that_of_opposite_scores():
    """The two candidates have equal probability up to half the sensitivity, in opposite directions."""
    signs = [np.array([first_selection(worst_pair(9.0), which, seed)[0] for seed in range(150)]) for which in (0, 1)]
    shares = [(own > 0).mean() for own in signs]
    assert shares[0] == pytest.approx(0.2, abs=0.12)
    assert shares[1] == pytest.approx(0.8, abs=0.12)


def test_planted_sharper_selection_exceeds_claim():
    found = [[first_selection(worst_pair(9.0), which, 2 * seed + which, 6) for seed in range(250)] for which in (0, 1)]
    claim = math.sqrt(max(float(cost) for own in found for _, cost in own))
    null, moved = (np.array([sign for sign, _ in own]) for own in found)
    assert bound_of("", null, moved, DELTA, 5e-4).mu > claim


def test_attack_that_is_blind_fails():
    rng = np.random.default_rng(0)
    assert attained("", [rng.normal(size=4000), rng.normal(3, 1, 4000)], 3.0)[1]
    assert not attained("", [rng.normal(size=4000), rng.normal(2, 1, 4000)], 3.0)[1]
    assert not attained("", [rng.normal(size=4000), rng.normal(4, 1, 4000)], 3.0)[1]


def test_rows_have_as_many_records_as_estimated():
    state = transcript(worst_pair(), 0, 3).state
    assert rows_counts(state, "rows").sum() == round(state.fit.model.total)


def test_rows_of_one_attribute_attain_claim_and_show_a_larger_unit():
    """1,000 runs of each table: the bound is above 0.75 of the claim, and above the claim if the unit has more rows."""
    samples = [
        np.array([single_attribute_counts(which, 2 * run + which, added)[0] for run in range(1000)])
        for which, added in ((0, UNIT_ROWS), (1, UNIT_ROWS), (1, 2 * UNIT_ROWS))
    ]
    assert attained("", samples[:2], MU, 0.75)[1]
    assert bound_of("", samples[0], samples[2], DELTA, 5e-4, ("mu",)).mu > MU


def test_one_run_bound_has_closed_form_without_delta():
    """All r guesses are right with probability (e^ε/(1 + e^ε))^r."""
    chance = 0.05 ** (1 / 300)
    assert one_run_epsilon(1000, 300, 300, delta=0.0) == pytest.approx(math.log(chance / (1 - chance)), rel=1e-9)
    assert one_run_epsilon(1000, 300, 150, delta=0.0) == 0
    assert one_run_epsilon(1000, 300, 300, delta=1e-4) < one_run_epsilon(1000, 300, 300, delta=0.0)


def test_one_run_audit_is_below_claim():
    name, passed, detail = one_run(canaries=400, guessed=200)
    assert passed, (name, detail)
