"""Streams and figures of a release of each kind stay the same."""

from fractions import Fraction
from unittest import mock

import numpy as np
import pytest

from dpscale.measurement import measurement
from dpscale.privacy import draws
from tests.golden.kinds import CASES, read_case, run_case


@pytest.mark.parametrize("case", CASES)
def test_release_draws_frozen_streams(case, tmp_path):
    """Records and drawn values are equal exactly; figures to 1e-6, because fits end at a tolerance."""
    expected = read_case(case)
    drawn, figures = run_case(case, tmp_path)
    assert drawn == expected["drawn"]
    assert list(figures) == list(expected["figures"])
    for name, values in figures.items():
        frozen = np.array(expected["figures"][name])
        np.testing.assert_allclose(values, frozen, rtol=1e-6, atol=1e-6 * np.abs(frozen).max(), err_msg=name)


def test_planted_change_of_label_is_detected(tmp_path):
    open_stream = measurement.open_stream

    def renamed(secret, purpose, record):
        return open_stream(secret, purpose, {**record, "part": "table"})

    with mock.patch.object(measurement, "open_stream", renamed):
        drawn, _ = run_case("refined", tmp_path)
    frozen = read_case("refined")["drawn"]
    assert len(drawn) == len(frozen)
    assert not {values for _, values in drawn} & {values for _, values in frozen}


def test_planted_change_of_scale_is_detected(tmp_path):
    sampled = draws.discrete_gaussian

    def smaller(stream, variance, size):
        return sampled(stream, Fraction(variance, 2), size)

    with mock.patch.object(draws, "discrete_gaussian", smaller):
        drawn, _ = run_case("refined", tmp_path)
    frozen = read_case("refined")["drawn"]
    assert [label for label, _ in drawn] == [label for label, _ in frozen]
    assert not {values for _, values in drawn} & {values for _, values in frozen}


def test_planted_change_of_counts_is_detected(tmp_path):
    projected = measurement.project

    def one_more(marginal, block):
        exact = projected(marginal, block)
        exact.counts[(0,) * exact.counts.ndim] += 1
        return exact

    with mock.patch.object(measurement, "project", one_more):
        drawn, figures = run_case("refined", tmp_path)
    frozen = read_case("refined")
    assert drawn == frozen["drawn"]
    assert figures != frozen["figures"]
