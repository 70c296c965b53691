"""Public totals: files, contradictions, exact constraints in plans and estimates, and budgets."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from dpscale.base.errors import PlanError
from dpscale.domain import Domain
from dpscale.mechanisms import plan
from dpscale.reconstruction.base import PlanEvidence
from dpscale.workload import Workload
from tests.hierarchies.small import dense, domain_of, lift, ordered
from tests.messages import refused
from tests.oracles import explicit_workload

SIZES = {"a": 4, "b": 3, "c": 2}


def total_of(folder, domain, names, counts, origin="external"):
    """Write a table of counts and return the domain with it."""
    places = np.unravel_index(np.arange(counts.size), counts.shape) if names else ()
    labels = {name: [domain[name].labels[i] for i in at] for name, at in zip(names, places, strict=True)}
    path = folder / f"{'-'.join(names) or 'all'}.csv"
    pd.DataFrame({**labels, "count": counts.reshape(-1)}).to_csv(path, index=False)
    return domain.with_totals([{"path": str(path), "attributes": list(names), "origin": origin}])


@pytest.fixture
def table():
    return np.random.default_rng(0).integers(0, 50, tuple(SIZES.values()))


@pytest.fixture
def domain(tmp_path, table):
    return total_of(tmp_path, Domain(SIZES), ("a", "b"), table.sum(axis=2))


@pytest.mark.parametrize("mechanism", ["weighted-residuals", "query-smasher", "residual-planner", "weighted-fourier"])
@pytest.mark.parametrize("family", ["marginal", "prefix"])
def test_estimates_are_least_squares_given_the_totals(domain, table, mechanism, family):
    """The dense oracle measures the same rows and has the totals as exact rows."""
    workload = Workload(domain).add(family, degree=2).add("marginal", degree=1)
    made = plan(workload, mechanism=mechanism)
    assert not any(set(names) <= {"a", "b"} for names in made.blocks.sets)
    rng = np.random.default_rng(1)
    values = [rng.normal(size=block.rows) * 10 for block in made.blocks]
    variances = [block.unit_variance for block in made.blocks]
    estimates = PlanEvidence(made, variances, values.__getitem__).least_squares()
    rows, precisions, measured = [np.kron(np.eye(12), np.ones((1, 2)))], [1e9] * 12, list(table.sum(axis=2).reshape(-1))
    for block, value, variance in zip(made.blocks, values, variances, strict=True):
        by_name = dict(zip(block.attributes, block.factors, strict=True))
        own = np.eye(1)
        for name, size in SIZES.items():
            own = np.kron(own, by_name[name].explicit() if name in by_name else np.ones((1, size)))
        rows.append(own)
        precisions += [1 / variance] * len(own)
        measured += list(value.reshape(-1))
    matrix = np.vstack(rows)
    covariance = np.linalg.pinv((matrix.T * precisions) @ matrix, rcond=1e-14)
    best = covariance @ (matrix.T @ (np.array(precisions) * measured))
    queries, _ = explicit_workload(workload)
    found = np.concatenate([estimates.part_answers(part, names)[0].reshape(-1)
                            for part in workload.parts for names in part.sets])  # fmt: skip
    errors = np.concatenate([estimates.part_answers(part, names)[1].reshape(-1)
                             for part in workload.parts for names in part.sets])  # fmt: skip
    np.testing.assert_allclose(found, queries @ best, atol=1e-3)
    np.testing.assert_allclose(errors**2, np.einsum("ij,jk,ik->i", queries, covariance, queries), atol=1e-5)
    np.testing.assert_allclose(estimates.marginal(("a", "b")), table.sum(axis=2), atol=1e-9)
    assert made.variance(("a",), np.ones(4)) == pytest.approx(0, abs=1e-12)


def test_known_residuals_save_budget(domain):
    before = plan(Workload(Domain(SIZES)).add("marginal", degree=2))
    made = plan(Workload(domain).add("marginal", degree=2))
    assert made.error < before.error / 2
    assert made.bound <= made.error <= made.bound * (1 + 1e-6)


@pytest.mark.parametrize("mechanism", ["weighted-residuals", "query-smasher", "residual-planner"])
def test_workload_that_follows_from_the_totals_is_refused(domain, mechanism):
    with refused(PlanError):
        plan(Workload(domain).add("marginal", attributes=[["a"], ["b"]]), mechanism=mechanism)


def test_levels_that_follow_from_the_totals_are_refused(tmp_path):
    plain = domain_of({"place": (3, 7, 20)})
    domain = total_of(tmp_path, plain, ("region",), np.arange(7))
    with refused(PlanError):
        plan(Workload(domain).add("marginal", attributes=[["region"], ["country"]]))


@pytest.mark.parametrize("mechanism", ["identity", "hdmm"])
def test_whole_measurements_are_refused(domain, mechanism):
    with refused(PlanError):
        plan(Workload(domain).add("marginal", degree=2), mechanism=mechanism)


TREES = {
    "regions": (("region",), [["country"], ["region"], ["place"], []]),
    "countries by sex": (("country", "sex"), [["country", "sex"], ["region", "sex"], ["place"]]),
    "regions of mixed degrees": (("region",), [["country", "age", "sex"], ["region", "age"], ["place", "sex"]]),
    "all": ((), [["region", "sex"], ["place"]]),
}


@pytest.mark.parametrize("job", TREES)
def test_estimates_over_a_tree_are_least_squares_given_the_totals(tmp_path, job):
    names, sets = TREES[job]
    plain = domain_of({"place": (3, 7, 20)}, age=3, sex=2)
    true = np.random.default_rng(4).integers(0, 40, 20 * 3 * 2)
    table = (lift(plain, names) @ true).astype(np.int64)
    order = ordered(plain, names)
    shaped = table.reshape(plain.shape(order)).transpose([order.index(n) for n in plain.ordered(names)])
    domain = total_of(tmp_path, plain, plain.ordered(names), shaped)
    made = plan(Workload(domain).add("marginal", attributes=sets))
    assert made.error < plan(Workload(plain).add("marginal", attributes=sets)).error
    rows, precisions, cost = dense(made)
    assert cost.max() <= 1
    rng, values, measured = np.random.default_rng(0), [], []
    for block in made.blocks:
        own = rng.normal(size=block.rows) * 20
        values.append(own)
        axes = [block.attributes.index(name) for name in ordered(domain, block.attributes)]
        measured += list(own.transpose(axes).reshape(-1))
    known = lift(domain, names)
    matrix = np.vstack([known, rows])
    weights = np.append(np.full(len(known), 1e8), precisions)
    covariance = np.linalg.pinv((matrix.T * weights) @ matrix, rcond=1e-14)
    best = covariance @ (matrix.T @ (weights * np.append(table, measured)))
    variances = [block.unit_variance for block in made.blocks]
    estimates = PlanEvidence(made, variances, values.__getitem__).least_squares()
    part = made.workload.parts[0]
    for own in made.workload.sets:
        queries = lift(domain, own)
        order = ordered(domain, own)
        back = [order.index(name) for name in own]
        shape = domain.shape(order)
        answers = (queries @ best).reshape(shape).transpose(back)
        spread = np.einsum("ij,jk,ik->i", queries, covariance, queries).reshape(shape).transpose(back)
        np.testing.assert_allclose(estimates.marginal(own), answers, atol=2e-3)
        np.testing.assert_allclose(made.accuracy.part_variances(part, own), spread, atol=1e-5)
    names = domain.ordered(names)
    np.testing.assert_allclose(estimates.marginal(names), shaped, atol=1e-8)


def test_misfit_of_totals_is_a_chi_square(tmp_path):
    """The statistic has mean and variance of a χ² of 7 degrees if the totals are right, and grows if they are not."""
    plain = domain_of({"place": (3, 7, 20)})
    true = np.random.default_rng(4).integers(50, 400, 20)
    table = (lift(plain, ("region",)) @ true).astype(np.int64)
    made = plan(
        Workload(total_of(tmp_path, plain, ("region",), table)).add("marginal", attributes=[["region"], ["place"]])
    )
    (block,) = made.blocks
    factor, deviation = block.factors[0], np.sqrt(block.unit_variance)
    rng, found, wrong = np.random.default_rng(0), [], []
    for _ in range(2000):
        values = factor.apply(true) / deviation + rng.normal(size=factor.rows)
        found.append(factor.misfit(values, table / deviation)[0])
        wrong.append(factor.misfit(values, (table + 30) / deviation)[0])
    assert factor.misfit(values, table / deviation)[1] == 7
    assert np.mean(found) == pytest.approx(7, abs=4 * np.sqrt(14 / 2000))
    assert np.var(found) == pytest.approx(14, rel=0.2)
    assert np.mean(wrong) > 100
