"""Differences and trends between periods: the noise that periods share, against the time plan, and exact slopes."""

import numpy as np
import pytest

from dpscale.base.errors import DomainError, JobError, PlanError
from tests.messages import refused
from tests.periods.growing import MONTHS, frames, make_job, open_release, release, write

KINDS = ("period", "cumulative", "window")


def release_of(folder, **privacy):
    months = frames()
    write(folder, months)
    run = release(make_job(folder, privacy=privacy), folder / "run", MONTHS[:4])
    return open_release(run), run, months


@pytest.fixture(scope="module")
def growing(tmp_path_factory):
    return release_of(tmp_path_factory.mktemp("growing"))


def answers_of(run, kind, numbers):
    """Return the answers of a kind as combinations of the measured values of all periods, from their definition."""
    matrix, whole = run.time_plan.matrix.astype(float), len(run.labels)
    wanted = np.zeros((len(numbers), whole))
    for row, number in zip(wanted, numbers, strict=True):
        row[{"period": number, "cumulative": 0, "window": max(number - 2, 0)}[kind] : number + 1] = 1
    return wanted @ np.linalg.inv(matrix)


@pytest.mark.parametrize("kind", KINDS)
def test_difference_between_periods_has_the_error_of_what_they_share(growing, kind):
    opened, run, _ = growing
    found = opened.difference({"a": 1}, periods=(MONTHS[3], MONTHS[1]), kind=kind)
    single = [opened.at(month, kind).answer("a", query=[0, 1, 0]) for month in (MONTHS[3], MONTHS[1])]
    combined = answers_of(run, kind, [3, 1])
    unit = single[0][1] ** 2 / (combined[0] @ combined[0])
    expected = unit * ((combined[0] - combined[1]) ** 2).sum()
    assert found.estimate == pytest.approx(single[0][0] - single[1][0])
    assert (found.high - found.estimate) / 1.959964 == pytest.approx(expected**0.5, rel=1e-3)


def test_trend_has_the_error_of_its_weights(growing):
    opened, run, _ = growing
    found = opened.trend({"a": 1}, kind="cumulative")
    combined = answers_of(run, "cumulative", range(4))
    precision = np.linalg.inv(combined @ combined.T)
    design = np.stack([np.ones(4), np.arange(4.0)], axis=1)
    covariance = np.linalg.inv(design.T @ precision @ design)
    values = np.array([opened.at(month, "cumulative").answer("a", query=[0, 1, 0]) for month in MONTHS[:4]])
    unit = values[0, 1] ** 2 / (combined[0] @ combined[0])
    assert found.estimate == pytest.approx((covariance @ design.T @ precision @ values[:, 0])[1])
    assert (found.high - found.estimate) / 1.959964 == pytest.approx((unit * covariance[1, 1]) ** 0.5, rel=1e-3)


def test_noiseless_trends_of_counts_and_shares_are_slopes(tmp_path):
    opened, run, months = release_of(tmp_path, privacy_cost=1e12, allow_weak_privacy=True)
    counts = np.array([(frame.a == 1).sum() for frame in months.values()])
    shares = np.array([((frame.a == 1) & (frame.b == 2)).sum() for frame in months.values()]) / counts
    combined = answers_of(run, "period", range(4))
    precision, places = np.linalg.inv(combined @ combined.T), np.arange(4.0)
    design = np.stack([np.ones(4), places], axis=1)
    weights = np.linalg.solve(design.T @ precision @ design, design.T @ precision)[1]
    assert opened.trend({"a": 1}).estimate == pytest.approx(weights @ counts, abs=1e-2)
    found = opened.trend({"a": 1}, share={"b": 2})
    np.testing.assert_allclose(found[:3], weights @ shares, atol=1e-3)
    change = opened.difference({"a": 1}, share={"b": 2}, periods=(MONTHS[2], MONTHS[0]))
    np.testing.assert_allclose(change[:3], shares[2] - shares[0], atol=1e-3)
    sampled = opened.difference({"a": 1}, share={"b": 2}, periods=(MONTHS[2], MONTHS[0]), population=True)
    error = np.sqrt((shares * (1 - shares) / counts)[[0, 2]].sum())
    assert (sampled.high - sampled.low) / 2 / 1.96 == pytest.approx(error, rel=0.05)
    assert sampled.population


def test_conclusions_over_periods_refuse_what_they_cannot_say(growing):
    opened = growing[0]
    with refused(JobError):
        opened.trend({"a": 1}, periods=[MONTHS[0]])
    with refused(JobError):
        opened.trend({"a": 1}, kind="cumulative", population=True)
    with refused(DomainError):
        opened.difference({"a": 1, "month": MONTHS[0]}, periods=(MONTHS[0], MONTHS[1]))


def test_growing_release_shows_itself_without_searches_and_numbers_of_units(growing):
    opened, run, _ = growing
    assert repr(opened).startswith(f"Release({run.manifest['release'][:8]}, ")
    assert opened.searched == {}
    with refused(PlanError):
        opened.units("a")
    with refused(DomainError):
        opened.found("a")
