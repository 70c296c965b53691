"""Features of a row: centred one-hots of its attributes, as integers with exactly bounded norms.

Centred uniformly (1 − 1/n at the value, −1/n elsewhere), two rows differ in squared norm by at most Σ_i 2, and the
bounds U (largest squared norm) and g (smallest inner product of two rows) are those of the whole domain. Centred at the
public shares of values, most rows are nearer to 0; longer rows are then shortened to `clip`, and U = clip², g = −clip².
An attribute of two values has one column. All entries are truncated towards 0 to steps of 2^-BITS, which increases no
norm; later computations use the truncated numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np

from dpscale.base.numerics import Floats, Integers, NDArray
from dpscale.privacy.protection import REPLACE

FEW_CELLS = 1 << 16  # cells of an array that is cheaper than a sort of any number of rows


@dataclass(frozen=True, eq=False)
class Side:
    """One table as an end of links.

    Attributes
    ----------
    sizes : tuple of int
        Number of values of every attribute.
    profiles : ndarray, shape (k, d)
        Distinct rows.
    counts : ndarray, shape (k,)
        Number of rows of each profile.
    of : ndarray, shape (n,)
        Profile of every row. Of a table whose rows are not in memory, it has one row for each profile.
    """

    sizes: tuple[int, ...]
    profiles: Integers
    counts: Floats
    of: Integers

    @classmethod
    def made(cls, rows: NDArray[np.integer], sizes: Sequence[int]) -> Side:
        """Return the side of a table from its rows, codes of shape (n, d)."""
        profiles, profile_of_row = distinct(rows, sizes)
        counts = np.bincount(profile_of_row, minlength=len(profiles)).astype(float)
        return cls(tuple(map(int, sizes)), profiles, counts, profile_of_row)

    @property
    def rows(self) -> int:
        return int(self.counts.sum())

    @cached_property
    def ones(self) -> tuple[Floats, ...]:
        """Share of every value, attribute by attribute."""
        return tuple(
            np.bincount(self.profiles[:, i], self.counts, minlength=size) / max(self.rows, 1)
            for i, size in enumerate(self.sizes)
        )

    @cached_property
    def shares(self) -> Floats:
        """Share of rows of each profile, shape (k,)."""
        return self.counts / max(self.rows, 1)


def distinct(rows: NDArray[np.integer], sizes: Sequence[int]) -> tuple[Integers, Integers]:
    """Return the sorted distinct rows, (k, d), and the index of each row among them, (n,).

    Rows become mixed-radix numbers if these fit 62 bits, and are otherwise compared as rows.
    """
    if math.prod(map(int, sizes)) >= 1 << 62:
        profiles, index = np.unique(rows, axis=0, return_inverse=True)
        return profiles.astype(np.int64), index.reshape(-1)

    codes = np.zeros(len(rows), np.int64)
    for i, size in enumerate(sizes):
        codes = codes * int(size) + rows[:, i]
    occurring, index = _distinct_codes(codes, math.prod(map(int, sizes)))
    return np.stack(np.unravel_index(occurring, tuple(map(int, sizes))), axis=1).astype(np.int64), index.reshape(-1)


def _distinct_codes(codes: Integers, cells: int) -> tuple[Integers, Integers]:
    """Return the sorted distinct codes and the index of each code among them; few possible codes need no sort."""
    if cells > max(FEW_CELLS, len(codes)):
        occurring, index = np.unique(codes, return_inverse=True)
        return occurring, index
    occurs = np.zeros(cells, np.bool_)
    occurs[codes] = True
    return np.flatnonzero(occurs), (np.cumsum(occurs) - 1)[codes]


BITS = 12  # bits after the binary point of an entry
STEP = 2.0**-BITS  # unit of integer features


@dataclass(frozen=True, eq=False)
class Features:
    """Feature map of a table.

    Attributes
    ----------
    sizes : tuple of int
        Number of values of every attribute.
    ones : tuple of ndarray
        Public shares of the values of every attribute.
    clip : float or None
        Bound of the norm; None for uniform centring.
    """

    sizes: tuple[int, ...]
    ones: tuple[Floats, ...]
    clip: float | None

    @classmethod
    def of_side(cls, side: Side, clip: float | None) -> Features:
        return cls(side.sizes, side.ones, clip)

    @cached_property
    def attributes(self) -> Integers:
        """Attribute of every column, shape (k,)."""
        return np.concatenate([np.full(1 if size == 2 else size, i) for i, size in enumerate(self.sizes)]).astype(
            np.int64
        )

    @cached_property
    def cells(self) -> Floats:
        """Weight of every column's error in cells, shape (k,); a binary attribute's column represents both values."""
        return np.array([math.sqrt(2) if self.sizes[i] == 2 else 1.0 for i in self.attributes])

    def centred(self, codes: NDArray[np.integer]) -> Floats:
        """Return one-hots centred at the public shares, before clipping and truncation, shape (n, k)."""
        pairs = zip(self.sizes, self.ones, strict=True)
        return np.concatenate([_one_hots(*pair)[codes[:, i]] for i, pair in enumerate(pairs)], axis=1)

    def whole(self, codes: NDArray[np.integer]) -> Integers:
        """Return the features in steps of 2^-BITS, shape (n, k).

        `tables` have a row for each value: its centred one-hot in integer steps. With a bound, longer rows are
        shortened to `clip` before they are truncated. `codes` are the values of rows; `clip` is the bound of the length
        of a row, and `squared` that of its squared length in steps.
        """
        if self.clip is None:
            tables = [_cut(_one_hots(size, np.full(size, 1 / size))) for size in self.sizes]
            return np.concatenate([table[codes[:, i]] for i, table in enumerate(tables)], axis=1)
        table = self.centred(codes)
        lengths = np.sqrt((table**2).sum(axis=1))
        return _within(_cut(table * np.minimum(1, self.clip / np.maximum(lengths, 1e-12))[:, None]), self.squared)

    @cached_property
    def squared(self) -> int:
        """U, the largest squared norm of a row, in steps of 2^-2·BITS."""
        if self.clip is not None:
            return math.floor(self.clip**2 * 4**BITS)
        return sum(norm for norm, _ in map(_uniform_bounds, self.sizes))

    @cached_property
    def least(self) -> int:
        """g, the smallest inner product of two rows."""
        return -self.squared if self.clip is not None else sum(inner for _, inner in map(_uniform_bounds, self.sizes))


def _one_hots(size: int, centre: Floats) -> Floats:
    """Return the columns of every value, shape (values, columns)."""
    table = np.eye(size) - centre
    return table[:, 1:] * math.sqrt(2) if size == 2 else table


def _cut(table: Floats) -> Integers:
    return np.trunc(table / STEP).astype(np.int64)


def _uniform_bounds(size: int) -> tuple[int, int]:
    """Return the squared norm of a value's columns and the inner product of two values' columns, as integers.

    With n values, a centred one-hot has 1 − 1/n once (`present`) and −1/n otherwise (`absent`), truncated to steps: the
    squared norm is own² + (n − 1) other², the product of two values 2 own other + (n − 2) other². Two values have one
    column.
    """
    if size == 1:
        return 0, 0

    table = _cut(_one_hots(2, np.full(2, 0.5))) if size == 2 else None
    if table is not None:
        return int((table**2).max()), int(table[0, 0] * table[1, 0])

    size = int(size)  # an unbounded int, so that bounds are exact
    present, absent = math.trunc((1 - 1 / size) / STEP), math.trunc(-1 / size / STEP)
    return present**2 + (size - 1) * absent**2, 2 * present * absent + (size - 2) * absent**2


def _within(table: Integers, squared: int) -> Integers:
    """Reduce rows by a step towards 0 if floating-point rounding made their squared norm too large."""
    while len(over := np.flatnonzero((table**2).sum(axis=1) > squared)):
        table[over] -= np.sign(table[over])
    return table


Precisions = Sequence[Fraction]
Bounds = tuple[int | Fraction, int | Fraction]


def squared_distance(relation: str, u: Bounds, v: Bounds, precisions: Precisions) -> Fraction:
    """Return the largest squared change by one link. `u`, `v`: (U, g) and (V, h); `precisions`: π_u, π_v, π_uv.

    Adding a link adds (φ, ψ, φψᵀ): at most π_u U + π_v V + π_uv UV. Replacing one moves both rows, or one of them: |φ −
    φ'|² ≤ 2 (U − g), and |φψᵀ − φ'ψᵀ|² ≤ 2 (U − g) V.
    """
    (big_u, g), (big_v, h), (pu, pv, puv) = u, v, precisions
    alone = pu * big_u + pv * big_v + puv * big_u * big_v
    if relation != REPLACE:
        return Fraction(alone)

    both_ends = pu * (big_u - g) + pv * (big_v - h) + puv * (big_u * big_v - g * h)
    first_end = (big_u - g) * (pu + puv * big_v)
    second_end = (big_v - h) * (pv + puv * big_u)
    return Fraction(max(2 * both_ends, 2 * first_end, 2 * second_end, alone))
