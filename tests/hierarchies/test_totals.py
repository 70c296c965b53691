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
from tests.oracles import explicit_workload

SIZES = {"a": 4, "b": 3, "c": 2}


def total_of(folder, domain, names, counts, origin="external"):
    """Write a table of counts and return the domain with it."""
    places = np.unravel_index(np.arange(counts.size), counts.shape)
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


@pytest.mark.parametrize("mechanism", ["identity", "hdmm"])
def test_whole_measurements_are_refused(domain, mechanism):
    with pytest.raises(PlanError, match="several residuals together"):
        plan(Workload(domain).add("marginal", degree=2), mechanism=mechanism)
