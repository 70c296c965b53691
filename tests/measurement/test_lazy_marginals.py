"""Marginals updated by the changes of their residuals (proposition 4.2) against sums of all residuals."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from dpscale.mechanisms.aim.estimators import GremEstimator
from dpscale.mechanisms.aim.setting import PublishedSchedule
from dpscale.mechanisms.aim.state import first_decision, initial_state
from dpscale.privacy.streams import seeded_secret
from dpscale.workload.residual import LazyMarginals, Residuals, center, subsets
from tests.measurement.small import (
    SIZES,
    TRIPLES,
    make_counter,
    make_records,
    make_setting,
    measure_request,
    run_loop,
)

COUNTS = make_counter(make_records())
LAZY, FULL = ((PublishedSchedule(isotropic=True), GremEstimator(lazy)) for lazy in (True, False))


def make_rounds(rounds=12, seed=0):
    """Return the estimates after each of some rounds with random measurements."""
    rng, estimates = np.random.default_rng(seed), [Residuals(SIZES)]

    def measure(names):
        shape = [SIZES[name] for name in names]
        return names, center(rng.normal(size=shape), range(len(shape))), rng.gamma(1.0)

    estimates[0] = estimates[0].updated([measure(names) for names in [(), ("a",), ("c",)]])
    for _ in range(rounds):
        inside = subsets(TRIPLES[rng.integers(len(TRIPLES))])
        measured = [measure(names) for names in inside if rng.random() < 0.6]
        estimates.append(estimates[-1].updated(measured))
    return estimates


def chain(estimates):
    """Return the lazy marginals after each round."""
    made = [LazyMarginals(estimates[0])]
    for before, after in pairwise(estimates):
        made.append(made[-1].updated(before, after))
    return made


def test_marginals_equal_sums_of_residuals_after_every_round():
    estimates = make_rounds()
    for residuals, lazy in zip(estimates, chain(estimates), strict=True):
        for names in TRIPLES:
            np.testing.assert_allclose(lazy.marginal(names), residuals.marginal(names), atol=1e-12)


def test_planted_missing_change_is_detected():
    estimates = make_rounds()
    last = chain(estimates)[-1]
    changes = tuple({names: value for names, value in one.items() if names} for one in last.changes)
    wrong = replace(last, changes=changes, known={})
    assert any(not np.allclose(wrong.marginal(names), estimates[-1].marginal(names)) for names in TRIPLES)


def test_bytes_do_not_depend_on_requests():
    """Every round, only after the last round, and in a random order; and of an earlier round after a later one."""
    estimates = make_rounds()
    each, late, mixed = (chain(estimates) for _ in range(3))
    wanted = {(index, names): lazy.marginal(names).tobytes() for index, lazy in enumerate(each) for names in TRIPLES}
    assert {names: late[-1].marginal(names).tobytes() for names in TRIPLES} == {
        names: wanted[len(estimates) - 1, names] for names in TRIPLES
    }
    rng = np.random.default_rng(5)
    for place in rng.permutation(len(wanted)):
        index, names = list(wanted)[place]
        assert mixed[index].marginal(names).tobytes() == wanted[index, names]


def test_only_marginals_with_changed_residual_are_computed_again():
    first = make_rounds(0)[0]
    second = first.updated([(("a", "b"), center(np.ones((4, 3)) * np.arange(3), (0, 1)), 1.0)])
    lazy = LazyMarginals(first)
    before = {names: lazy.marginal(names) for names in TRIPLES}
    after = lazy.updated(first, second)
    same = {names for names in TRIPLES if after.marginal(names) is before[names]}
    assert same == {names for names in TRIPLES if not {"a", "b"} <= set(names)}


@pytest.mark.parametrize("seed", range(3))
def test_run_selects_same_sets_and_replays_to_same_bytes(seed):
    lazy, full = (run_loop(make_setting(own), COUNTS, seeded_secret(seed)) for own in (LAZY, FULL))
    assert [note.chosen for note in lazy.rounds] == [note.chosen for note in full.rounds]
    setting, secret = make_setting(LAZY), seeded_secret(seed)
    decision, state = first_decision(setting), None
    for chosen in [None, *(note.chosen for note in lazy.rounds)]:
        if state is not None:
            decision = state.decide(state.selection, chosen)
        values = [measure_request(order, COUNTS, secret, order.label) for order in decision.requests]
        state = initial_state(setting, decision, values) if state is None else state.after(decision, values)
    assert state.rounds == lazy.rounds  # although only the selected sets were requested
    for names in TRIPLES:
        assert state.fit.table(names).tobytes() == lazy.fit.table(names).tobytes()
