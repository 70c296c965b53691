"""Exact convolutions against Python integers."""

import numpy as np
import pytest

from dpscale.plans import circulant
from dpscale.plans.circulant import exact_convolution


@pytest.mark.parametrize("size", [3000, 70_000])
@pytest.mark.parametrize("words", [True, False])
def test_products_are_exact(size, words):
    rng = np.random.default_rng(1)
    known = rng.integers(0, 2**20, size)
    values = rng.integers(-(2**14), 2**14, size) if words else rng.integers(-(2**60), 2**60, size).astype(object)
    found = exact_convolution(known, values[None])[0]
    for place in (0, 1, 77, size // 2, size - 1):
        terms = zip(known[: place + 1][::-1].tolist(), values.tolist(), strict=False)
        assert int(found[place]) == sum(own * value for own, value in terms)


def test_wider_digits_would_not_be_exact(monkeypatch):
    """The planted fault: digits for which the bound of the error is far above 1/4."""
    rng = np.random.default_rng(3)
    known, values = rng.integers(0, 2**30, 20_000), rng.integers(0, 2**45, (1, 20_000)).astype(object)
    exact = exact_convolution(known, values)
    monkeypatch.setattr(circulant, "_digit_bits", lambda rows: 24)
    assert not np.array_equal(exact_convolution(known, values), exact)
