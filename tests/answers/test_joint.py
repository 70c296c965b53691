"""Coverage of simultaneous intervals, by brute force over an explicit covariance matrix."""

import numpy as np
import pytest

import dpscale as dp
from dpscale.reconstruction import joint_intervals
from dpscale.reconstruction.joint_intervals import half_width, simultaneous_width
from tests.answers.exact import estimates, measurement_plan

DOMAIN = dp.Domain({"a": 4, "b": 3, "c": 2})
QUERIES = [("marginal", ("a", "b")), ("prefix", ("a",)), ("marginal", ("b", "c"))]


def covariance(plan, queries):
    """Return the covariance of queries over (a, b) from variances of single queries, by polarisation."""
    at = [plan.variance(("a", "b"), query) for query in queries]
    both = [[plan.variance(("a", "b"), p + q) for q in queries] for p in queries]
    return (np.array(both) - np.add.outer(at, at)) / 2


@pytest.mark.parametrize("mechanism", ["query-smasher", "residual-planner-plus", "hdmm"])
def test_simultaneous_width_has_nominal_coverage(mechanism):
    plan = measurement_plan(DOMAIN, QUERIES, mechanism)
    found = estimates(plan, np.zeros((4, 3, 2)))
    width = simultaneous_width(found, plan.workload.parts[0], ("a", "b"), 0.95, "release")
    cov = covariance(plan, np.eye(12).reshape(12, 4, 3))
    errors = np.random.default_rng(0).multivariate_normal(np.zeros(12), cov, 40_000, check_valid="ignore")
    maxima = np.abs(errors / np.sqrt(np.diag(cov))).max(axis=1)
    assert abs((maxima <= width).mean() - 0.95) < 0.015
    assert (maxima <= 0.85 * width).mean() < 0.9
    assert (maxima <= half_width(0.95, "gaussian")).mean() < 0.8  # what single intervals would do


def test_simultaneous_width_depends_on_release_id_only():
    plan = measurement_plan(DOMAIN, QUERIES)
    here, there = (estimates(plan, np.full((4, 3, 2), count)) for count in (0, 50))
    part, names = plan.workload.parts[0], ("a", "b")
    assert simultaneous_width(here, part, names, 0.9, "x") == simultaneous_width(there, part, names, 0.9, "x")
    assert simultaneous_width(here, part, names, 0.9, "x") != simultaneous_width(here, part, names, 0.9, "y")


def test_laplace_half_width_matches_closed_form():
    assert half_width(0.95, "laplace") == pytest.approx(np.log(20) / np.sqrt(2))
    assert half_width(0.5, "laplace") == half_width(0.5, "gaussian") == pytest.approx(0.67449, abs=1e-5)


def test_batched_simulation_gives_same_width(monkeypatch):
    found = estimates(measurement_plan(DOMAIN, QUERIES), np.zeros((4, 3, 2)))
    part = found.workload.parts[0]
    whole = simultaneous_width(found, part, ("a", "b"), 0.95, "release")
    monkeypatch.setattr(joint_intervals, "BATCH", 1000)
    assert simultaneous_width(found, part, ("a", "b"), 0.95, "release") == pytest.approx(whole, rel=0.05)
