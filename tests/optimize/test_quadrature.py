"""The quadrature of inverse square roots against powers."""

import numpy as np
import pytest

from dpscale.optimize.long_axis import root_quadrature


@pytest.mark.parametrize(("spread", "count"), [(1e2, 32), (1e9, 32), (1e15, 32), (1e16, 64)])
def test_quadrature_gives_inverse_square_roots(spread, count):
    """At 10¹⁵ the elliptic functions of SciPy are wrong by far more."""
    nodes, shares = root_quadrature(1.0, spread, count)
    for value in np.geomspace(1, spread, 50):
        assert (shares / (value + nodes**2)).sum() == pytest.approx(value**-0.5, rel=1e-6)
