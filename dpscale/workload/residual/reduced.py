"""Whole rows made orthogonal to weights U at the price of a few units, by a reduced basis of what is orthogonal to U.

A row r misses by d = r·U. On eight cells of the axis the whole vectors x with x·U = 0 have a short basis (their lattice
has determinant |U|, spread over seven dimensions), and some p has p·U = 1 (or the common divisor of U): d·p, taken to
its remainder by the basis (Babai's rounding), is a vector of a few units that is subtracted. The basis is reduced as by
Lenstra, Lenstra and Lovász (1982).
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from dpscale.base.arrays import Floats, Integers
from dpscale.workload.residual.weights import Weights

CELLS, HEAVY, LOVASZ = 8, 1 << 24, 0.99


def nearest_centred(rows: Integers, weights: Weights) -> Integers:
    """Rows (…, n) near those given that are orthogonal to U, exactly; n of at least 3."""
    cells, basis, unit = _reduced(weights)
    missing = rows @ (np.array(weights, dtype=np.int64) // math.gcd(*weights))
    long = missing[..., None] * unit
    short = long - np.rint(long @ np.linalg.pinv(basis.astype(np.float64))).astype(np.int64) @ basis
    moved = rows.copy()
    moved[..., cells] -= short
    return moved


@lru_cache(maxsize=1024)
def _reduced(weights: Weights) -> tuple[Integers, Integers, Integers]:
    """Some cells, a short basis of the whole vectors there that are orthogonal to U, and one p with p·U = gcd U."""
    numbers = np.array(weights, dtype=np.int64) // math.gcd(*weights)
    cells = _coprime(numbers)
    start = np.eye(len(cells), len(cells) + 1, dtype=np.int64)
    start[:, -1] = HEAVY * numbers[cells]
    reduced = _lll(start)
    ends = reduced[:, -1] // HEAVY
    unit = reduced[np.flatnonzero(ends)[0]] * ends[np.flatnonzero(ends)[0]]
    return cells, reduced[ends == 0, :-1], unit[:-1]


def _coprime(numbers: Integers) -> Integers:
    """Cells spread over the axis whose weights have no common divisor."""
    cells = list(np.unique(np.linspace(0, len(numbers) - 1, min(CELLS, len(numbers))).astype(np.int64)))
    for cell in range(len(numbers)):
        common = np.gcd.reduce(numbers[cells])
        if cell not in cells and math.gcd(int(common), int(numbers[cell])) < common:
            cells.append(cell)
    return np.array(cells, dtype=np.int64)


def _lll(basis: Integers) -> Integers:
    """The basis reduced; small, so Gram–Schmidt is made anew for every row."""
    basis, row = basis.copy(), 1
    while row < len(basis):
        before = _orthogonal(basis[:row])
        lengths = (before**2).sum(axis=1)
        for other in reversed(range(row)):
            share = before[other] @ basis[row].astype(np.float64) / lengths[other]
            basis[row] -= int(np.rint(share)) * basis[other]
        shares = before @ basis[row].astype(np.float64) / lengths
        rest = basis[row] - shares @ before
        if rest @ rest >= (LOVASZ - shares[-1] ** 2) * lengths[-1]:
            row += 1
        else:
            basis[[row - 1, row]] = basis[[row, row - 1]]
            row = max(row - 1, 1)
    return basis


def _orthogonal(basis: Integers) -> Floats:
    """Gram–Schmidt without lengths."""
    done = basis.astype(np.float64)
    for row in range(1, len(done)):
        before = done[:row]
        for _ in range(2):  # once more for what rounding left
            done[row] -= (before @ done[row]) / (before**2).sum(axis=1) @ before
    return done
