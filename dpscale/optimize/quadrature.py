"""Quadrature of inverse square roots: λ^−½ as a sum of w/(λ + s²) for λ between two numbers."""

from __future__ import annotations

import math

import numpy as np

from dpscale.base.numerics import Floats, special

CONVERGED = 1e-8  # relative difference of the two means, of which the error is the square


def root_quadrature(least: float, largest: float, count: int) -> tuple[Floats, Floats]:
    """Return nodes s and weights w with λ^{−½} = Σ w/(λ + s²) for λ between two numbers.

    The trapezoid rule for λ^{−½} = (2/π) ∫ ds/(λ + s²) after the substitution s = √least · sn(u)/cn(u) of elliptic
    functions with the complementary parameter least/largest, at the midpoints of `count` parts of the quarter period.
    With the cotangent cn/sn and dn, ds = √least · dn/cn² du, and 1/cn² = 1 + (cn/sn)⁻².

    Parameters
    ----------
    least, largest : float
        The numbers.
    count : int
        Number of nodes.

    References
    ----------
    Hale, Higham and Trefethen, 2008.
    """
    spread = least / largest
    quarter = special.ellipkm1(spread)
    cotangents, delta = _elliptic((np.arange(1, count + 1) - 0.5) * quarter / count, spread)
    shares = 2 * quarter * math.sqrt(least) / (math.pi * count) * delta * (1 + cotangents**-2.0)
    return math.sqrt(least) / cotangents, shares


def _elliptic(places: Floats, complement: float) -> tuple[Floats, Floats]:
    """Return cn/sn and dn at the places for the parameter 1 − complement, by Bulirsch's transformation (1965).

    The function of SciPy takes the parameter itself, which rounds it, and approximates parameters near 1.

    From 1 and √complement, arithmetic and geometric means a (`means`) and b (`roots`) are taken until they are equal to
    M (`middle`). There cn/sn is a cotangent, M/tan(M·place) up to the factor M, and dn is 1. From the last pair back to
    the first, ratio ← ratio · dn and dn ← (b + p)/(a + p), where p is the old ratio times its quotient by the later
    mean.
    """
    means, roots, root, mean = list[float](), list[float](), complement, 1.0
    while True:
        root = math.sqrt(root)
        means, roots, middle = [*means, mean], [*roots, root], (mean + root) / 2
        if abs(mean - root) <= CONVERGED * mean:
            break
        root, mean = root * mean, middle

    ratio, delta = middle / np.tan(middle * places), np.ones(len(places))
    last = ratio / middle
    for own, known in zip(reversed(means), reversed(roots), strict=True):
        product = last * ratio
        ratio = ratio * delta
        delta = (known + product) / (own + product)
        last = ratio / own

    return ratio, delta
