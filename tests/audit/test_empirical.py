"""Empirical lower bounds of mu and epsilon on two neighbouring tables never exceed the claim, unless a violation is
planted.

Power (3,000 releases of either table with separate keys, claimed mu = 1): the bound is 0.2 ± 0.04 below the true
mu; noise scaled by 0.7 has a true mu of 1.43, and a sensitivity wrong by sqrt 2 one of 1.41. So a planted violation
is missed with probability below 1e-5, and a correct mechanism is refuted with probability below 1e-4 (Clopper &
Pearson). The seeds are fixed. The long form has 30,000 releases and also detects noise scaled by 0.9.
"""

import numpy as np
import pytest

from dpscale.audit.selftest import (
    MECHANISMS,
    NEEDED,
    PLANTED,
    PURE,
    WEAKER,
    attack,
    case_of,
    clopper_pearson,
    noise_scaled,
    selftest,
    worst_pair,
)
from tests.selection import mostly_slow

DELTA = 1e-3


def is_refuted(case, tables, **settings) -> bool:
    found = attack(case, *tables, delta=DELTA, **settings)
    return found.mu > case.claimed**0.5 or found.epsilon > case_epsilon(case)


def case_epsilon(case) -> float:
    from dpscale.privacy.accounting import Cost

    return Cost(gaussian=case.draws.amount).epsilon(DELTA)


@pytest.mark.parametrize("mechanism", mostly_slow(MECHANISMS, list(MECHANISMS)[:2]))
def test_correct_release_is_not_refuted(mechanism):
    case = case_of(mechanism)
    found = attack(case, *worst_pair(case), releases=2000, delta=DELTA)
    assert 0.5 < found.mu <= case.claimed**0.5
    assert found.epsilon <= case_epsilon(case)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("mechanism", "sizes"), [*((name, (2, 3)) for name in MECHANISMS), ("identity", (2,))])
def test_correct_pure_release_is_not_refuted(mechanism, sizes):
    case = case_of(mechanism, sizes, noise="laplace")
    found = attack(case, *worst_pair(case), releases=2000, delta=0.0)
    assert 0 < found.epsilon <= case.claimed
    assert found.epsilon > 0.4 or len(sizes) > 1


@pytest.mark.parametrize("name", WEAKER)
def test_planted_violation_of_pure_epsilon_is_refuted(name):
    case = case_of("identity", (2,), noise="laplace")
    found = attack(PLANTED[name](case), *worst_pair(case), releases=PURE, delta=0.0)
    assert found.epsilon > case.claimed


@pytest.mark.parametrize("name", PLANTED)
@pytest.mark.parametrize("mechanism", ["residual-planner", pytest.param("query-smasher", marks=pytest.mark.slow)])
def test_planted_violation_is_refuted(name, mechanism):
    case = case_of(mechanism)
    tables = worst_pair(case)
    if name == "a data-dependent domain":
        empty = tables[0] * 0
        tables = empty, empty + np.eye(*empty.shape, dtype=np.int64) * np.array([1, 0, 0])
    assert is_refuted(PLANTED[name](case), tables, releases=NEEDED[name])


@pytest.mark.slow  # its parts are tested one by one
def test_selftest_passes():
    checks = selftest()
    assert len(checks) >= 3 * 3 + len(PLANTED)
    assert [name for name, passed, _ in checks if not passed] == []


def test_clopper_pearson_bounds_have_coverage():
    """With 5,000 binomial samples at error 5 %, each side misses at most 5.5 % and at least 0.5 % of the time."""
    hits = np.random.default_rng(0).binomial(50, 0.3, 5000)
    bounds = {int(h): clopper_pearson(int(h), 50, 0.05) for h in set(hits)}
    low = np.mean([bounds[int(h)][0] > 0.3 for h in hits])
    high = np.mean([bounds[int(h)][1] < 0.3 for h in hits])
    assert 0.005 < low <= 0.055
    assert 0.005 < high <= 0.055


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_long_attack_detects_noise_scale_of_90_percent(mechanism):
    case = case_of(mechanism)
    tables = worst_pair(case)
    assert not is_refuted(case, tables, releases=30_000)
    assert is_refuted(noise_scaled(case, 0.9), tables, releases=30_000)
