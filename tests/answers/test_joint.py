"""Intervals that hold at once hold as often as they say, by brute force over an explicit covariance."""

import numpy as np
import pytest

import dpscale as dp
from dpscale.reconstruction import joint_intervals
from dpscale.reconstruction.joint_intervals import half_width, simultaneous_width
from tests.answers.exact import estimates, measurement_plan

DOMAIN = dp.Domain({"a": 4, "b": 3, "c": 2})
ASKED = [("marginal", ("a", "b")), ("prefix", ("a",)), ("marginal", ("b", "c"))]


def covariance(plan, queries):
    """Of queries over (a, b), from variances of single queries alone: polarisation."""
    at = [plan.variance(("a", "b"), query) for query in queries]
    both = [[plan.variance(("a", "b"), p + q) for q in queries] for p in queries]
    return (np.array(both) - np.add.outer(at, at)) / 2


@pytest.mark.parametrize("mechanism", ["query-smasher", "residual-planner-plus", "hdmm"])
def test_all_cells_are_inside_as_often_as_the_level_says(mechanism):
    plan = measurement_plan(DOMAIN, ASKED, mechanism)
    found = estimates(plan, np.zeros((4, 3, 2)))
    width = simultaneous_width(found, plan.workload.parts[0], ("a", "b"), 0.95, "release")
    cov = covariance(plan, np.eye(12).reshape(12, 4, 3))
    errors = np.random.default_rng(0).multivariate_normal(np.zeros(12), cov, 40_000, check_valid="ignore")
    maxima = np.abs(errors / np.sqrt(np.diag(cov))).max(axis=1)
    assert abs((maxima <= width).mean() - 0.95) < 0.015
    assert (maxima <= 0.85 * width).mean() < 0.9
    assert (maxima <= half_width(0.95, "gaussian")).mean() < 0.8  # what single intervals would do


def test_the_width_is_one_of_the_release_and_of_nothing_else():
    plan = measurement_plan(DOMAIN, ASKED)
    here, there = (estimates(plan, np.full((4, 3, 2), count)) for count in (0, 50))
    part, names = plan.workload.parts[0], ("a", "b")
    assert simultaneous_width(here, part, names, 0.9, "x") == simultaneous_width(there, part, names, 0.9, "x")
    assert simultaneous_width(here, part, names, 0.9, "x") != simultaneous_width(here, part, names, 0.9, "y")


def test_laplace_intervals_are_those_of_one_variable_or_wider():
    assert half_width(0.95, "laplace") == pytest.approx(np.log(20) / np.sqrt(2))
    assert half_width(0.5, "laplace") == half_width(0.5, "gaussian") == pytest.approx(0.67449, abs=1e-5)


def test_batches_draw_the_same_law(monkeypatch):
    found = estimates(measurement_plan(DOMAIN, ASKED), np.zeros((4, 3, 2)))
    part = found.workload.parts[0]
    whole = simultaneous_width(found, part, ("a", "b"), 0.95, "release")
    monkeypatch.setattr(joint_intervals, "BATCH", 1000)
    assert simultaneous_width(found, part, ("a", "b"), 0.95, "release") == pytest.approx(whole, rel=0.05)
