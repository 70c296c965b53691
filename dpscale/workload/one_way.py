"""One-way families of dpscale in closed form.

The singular values of W, and of F = W(I − u1ᵀ), give lower bounds over all strategies: for any Q of norm at most 1,
(tr QᵀF)²/n ≤ the optimum of FᵀF. A few modes are treated exactly: Q is the polar factor of F restricted to them. The
other modes are those of the plain mean:
    prefix: WC has the modes cos(kπ(i + ½)/n) of cells, sin(kπj/n) of queries and the values σ_k = 1/(2 sin(kπ/2n)), and
        F = WC + d1ᵀ, d_j = j/n − Σ_{i<j} u_i: so FFᵀ = diag(σ²) + zzᵀ with z_k = √n (d's mode k);
    range: its Gram is n + 1 times the inverse of a path's Laplacian, σ_k = √(n + 1)/(2 sin(kπ/(2n + 2))) for the modes
        e_k = sin(kπ(i + 1)/(n + 1)), and F = G^½(I − u1ᵀ) is σ_k(δ_kl − (e_k·u)(e_l·1)) between them;
    circular: the Gram is invariant under rotation, so its root has the plain mean's modes: σ_k = √(n/2)/sin(kπ/n)
        for k = 1 … n − 1, the same at any u, and √(n(n + 1)(2n + 1)/6) of the mean;
    single cells: the singular values of I − u1ᵀ are 1, n − 2 times, and √n |u|. Bounds of families add.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from dpscale.base.numerics import Floats, Integers
from dpscale.workload.family import FIRST, LAST, End, Family, sum_of_intervals
from dpscale.workload.wide import Cut

MODES = 256  # modes k that are exact; the others are those of the plain mean
AT_MOST = End("value", "at_most", "label of the last value that the query counts: all up to it, in the domain's order")
START = End("start", "start", "label of the arc's first value")
END = End("end", "end", "label of the arc's last value")


def _cells(size: int) -> Integers:
    return np.arange(size, dtype=np.int64)


class Marginal(Family):
    """Each cell."""

    name = "marginal"
    is_identity = True
    invariant = True
    has_intervals = True

    def count(self, size: int) -> int:
        return size

    def gram(self, size: int) -> Floats:
        return np.eye(size)

    def trace(self, size: int) -> int:
        return size

    def answers(self, values: Floats, axis: int) -> Floats:
        return values

    def quadratic(self, form: Floats) -> Floats:
        return np.asarray(np.diagonal(form, axis1=-2, axis2=-1))

    def means(self, size: int) -> Floats:
        return np.full(size, 1 / size)

    def times_gram(self, values: Floats) -> Floats:
        return values

    def bounds(self, size: int) -> tuple[Integers, ...]:
        return (_cells(size),)

    def intervals(self, size: int) -> tuple[Integers, Integers]:
        return _cells(size), _cells(size) + 1

    unit_gram = gram

    def plain_value(self, size: int) -> float:
        return (size - 1) ** 2 / size

    def whole_trace(self, size: int) -> float:
        return float(size)

    def centred_trace(self, profile: Floats) -> float:
        return len(profile) - 2 + math.sqrt(len(profile)) * float(np.linalg.norm(profile))

    def block_gram(self, cut: Cut) -> Floats:
        return np.diag(_by_block(cut, [float((weights**2).sum()) for weights in cut.within]))

    def inner_families(self, size: int, cells: int) -> tuple[tuple[Family, float], ...]:
        return ((self, 1.0),)


class Prefix(Family):
    """The cells up to each cell."""

    name = "prefix"
    ends = (AT_MOST,)
    cumulative = True
    has_intervals = True

    def count(self, size: int) -> int:
        return size

    def gram(self, size: int) -> Floats:
        up_to = np.arange(size, 0, -1, dtype=np.float64)
        return np.minimum.outer(up_to, up_to)

    def trace(self, size: int) -> int:
        return size * (size + 1) // 2

    def answers(self, values: Floats, axis: int) -> Floats:
        return np.cumsum(values, axis=axis)

    def quadratic(self, form: Floats) -> Floats:
        return np.asarray(np.diagonal(_both_cumsum(form), axis1=-2, axis2=-1))

    def means(self, size: int) -> Floats:
        return np.asarray((_cells(size) + 1) / size)

    def bounds(self, size: int) -> tuple[Integers, ...]:
        return (_cells(size),)

    def intervals(self, size: int) -> tuple[Integers, Integers]:
        return np.zeros(size, dtype=np.int64), _cells(size) + 1

    def unit_gram(self, size: int) -> Floats:
        weights = np.zeros((size, size))
        weights[0] = 1 / np.arange(1, size + 1)
        return sum_of_intervals(weights)

    def tridiagonal(self, size: int) -> tuple[Floats, float]:
        diagonal = np.full(size - 1, 2.0)
        diagonal[-1] = 1.0
        return diagonal, 1.0

    def times_gram(self, values: Floats) -> Floats:
        return np.cumsum(np.cumsum(values, axis=0)[::-1], axis=0)[::-1]

    def whole_trace(self, size: int) -> float:
        return float((0.5 / np.sin((2 * np.arange(1, size + 1) - 1) * np.pi / (4 * size + 2))).sum())

    def centred_trace(self, profile: Floats) -> float:
        """Return the nuclear norm of the prefix queries centred by `profile`, from their known singular values.

        For equal weights the values are 1 / (2 sin(kπ / 2n)). Another profile changes the matrix by rank one, which
        moves only the first MODES of the values noticeably.

        `missed` is d_j = j/n − Σ_{i<j} u_i of the module, and `moved` are its first modes z_k.
        """
        n = len(profile)
        values = 0.5 / np.sin(np.arange(1, n) * np.pi / (2 * n))
        missed = np.arange(1, n) / n - np.cumsum(profile)[:-1]
        moved = math.sqrt(2) * _sines(missed)[:MODES]
        mixed = np.linalg.eigvalsh(np.diag(values[:MODES] ** 2) + np.outer(moved, moved))
        return float(np.sqrt(np.maximum(mixed, 0)).sum() + values[MODES:].sum())

    def block_gram(self, cut: Cut) -> Floats:
        """Return the Gram matrix of the queries applied to one distribution within each block (shape blocks × blocks).

        A prefix that ends in a block counts its share before the cut, and all later prefixes count 1.
        """
        before = [np.cumsum(weights) for weights in cut.within]
        first = _by_block(cut, [float(part.sum()) for part in before])
        second = _by_block(cut, [float((part**2).sum()) for part in before])
        lengths = cut.lengths
        after = lengths.sum() - np.cumsum(lengths)
        gram = _at_larger(first + after)
        np.fill_diagonal(gram, second + after)

        return gram

    def inner_families(self, size: int, cells: int) -> tuple[tuple[Family, float], ...]:
        return ((self, 1.0),)

    def inner_search_gram(self, size: int, cells: int) -> Floats:
        return self.gram(cells) + size


class Range(Family):
    """All intervals of cells."""

    name = "range"
    ends = (FIRST, LAST)
    cumulative = True
    two_sided = True
    has_intervals = True

    def count(self, size: int) -> int:
        return size * (size + 1) // 2

    def gram(self, size: int) -> Floats:
        cell = _cells(size)
        low, high = np.minimum.outer(cell, cell), np.maximum.outer(cell, cell)
        return ((low + 1) * (size - high)).astype(np.float64)

    def trace(self, size: int) -> int:
        return size * (size + 1) * (size + 2) // 6

    def answers(self, values: Floats, axis: int) -> Floats:
        return _between(values, axis, *_ends(values.shape[axis]))

    def quadratic(self, form: Floats) -> Floats:
        return _between_quadratic(form, *_ends(form.shape[-1]))

    def means(self, size: int) -> Floats:
        low, high = _ends(size)
        return np.asarray((high - low + 1) / size)

    def bounds(self, size: int) -> tuple[Integers, ...]:
        return _ends(size)

    def intervals(self, size: int) -> tuple[Integers, Integers]:
        low, high = _ends(size)
        return low, high + 1

    def unit_gram(self, size: int) -> Floats:
        cell = np.arange(size)
        lengths = np.subtract.outer(-cell, -cell - 1)
        return sum_of_intervals(np.where(lengths > 0, 1 / np.maximum(lengths, 1), 0.0))

    def tridiagonal(self, size: int) -> tuple[Floats, float]:
        diagonal = np.full(size - 1, 2.0)
        diagonal[-1] = 1.5
        return diagonal / (size + 1), 1 / (size + 1)

    def times_gram(self, values: Floats) -> Floats:
        """Return WᵀW times values along the first axis, in O(n).

        Cells i ≤ j are together in i (n + 1 − j) intervals, counted from 1. `below` and `above` are the cumulative sums
        over the other cell.
        """
        n = len(values)
        place = np.arange(1, n + 1).reshape(-1, *[1] * (values.ndim - 1))
        below, above = np.cumsum(place * values, axis=0), np.cumsum(((n + 1 - place) * values)[::-1], axis=0)[::-1]
        return np.asarray((n + 1 - place) * below + place * (above - (n + 1 - place) * values))

    def whole_trace(self, size: int) -> float:
        return float((math.sqrt(size + 1) / (2 * np.sin(np.arange(1, size + 1) * np.pi / (2 * size + 2)))).sum())

    def centred_trace(self, profile: Floats) -> float:
        """Return the nuclear norm of the range queries centred by `profile`, from their known singular values.

        On n cells these are √(n + 1) / (2 sin(kπ / (2n + 2))). Centring is of rank one: it is exact for the first
        MODES of the modes, and only the diagonal is kept for the rest.

        `means` and `totals` are e_k·u and e_k·1 in the modes e_k of the module.
        """
        n = len(profile)
        values = math.sqrt(n + 1) / (2 * np.sin(np.arange(1, n + 1) * np.pi / (2 * n + 2)))
        means, totals = (math.sqrt(2 / (n + 1)) * _sines(vector) for vector in (profile, np.ones(n)))
        first_modes = values[:MODES, None] * (np.eye(min(n, MODES)) - np.outer(means[:MODES], totals[:MODES]))
        diagonal = values[MODES:] * (1 - means[MODES:] * totals[MODES:])
        return float(np.linalg.svd(first_modes, compute_uv=False).sum() + diagonal.sum())

    def block_gram(self, cut: Cut) -> Floats:
        """Average (min + 1)(n − max) over cells: a product for two blocks, and a sum within one.

        An interval contains cells i ≤ j in (i + 1)(n − j) ways. Averages over two blocks factorise; within a block the
        mean of min and max of two cells is the middle ∓ half of their mean distance, `apart`.
        """
        lengths = cut.lengths
        starts = np.cumsum(lengths) - lengths
        middle = _by_block(cut, [float(weights @ np.arange(1, len(weights) + 1)) for weights in cut.within])
        low, high = starts + middle, cut.size + 1 - starts - middle
        gram = np.triu(np.outer(low, high), 1)
        gram += gram.T
        apart = _by_block(cut, [_half_distance(weights) for weights in cut.within])
        np.fill_diagonal(gram, low * high - (cut.size + 1) * apart)

        return gram

    def inner_families(self, size: int, cells: int) -> tuple[tuple[Family, float], ...]:
        return (self, 1.0), (PREFIX, float(size - cells))

    def inner_search_gram(self, size: int, cells: int) -> Floats:
        return _inner_ranges(size, cells)


class Circular(Family):
    """All arcs of the circle of cells, with every start and every length."""

    name = "circular"
    ends = (START, END)
    invariant = True
    cumulative = True
    two_sided = True
    has_intervals = True

    def count(self, size: int) -> int:
        return size * size

    def gram(self, size: int) -> Floats:
        cell = _cells(size)
        return np.asarray(arcs_holding(size)[np.abs(np.subtract.outer(cell, cell))])

    def trace(self, size: int) -> int:
        return size * size * (size + 1) // 2

    def answers(self, values: Floats, axis: int) -> Floats:
        return _between(np.concatenate([values] * 2, axis), axis, *_arcs(values.shape[axis]))

    def quadratic(self, form: Floats) -> Floats:
        return _between_quadratic(np.tile(form, (2, 2)), *_arcs(form.shape[-1]))

    def means(self, size: int) -> Floats:
        start, end = _arcs(size)
        return np.asarray((end - start + 1) / size)

    def bounds(self, size: int) -> tuple[Integers, ...]:
        start, end = _arcs(size)
        return start, end % size

    def intervals(self, size: int) -> tuple[Integers, Integers]:
        start, end = self.bounds(size)
        return start, (end + 1) % size

    def unit_gram(self, size: int) -> Floats:
        """Return QᵀQ with each query scaled to unit norm: an arc of length l has l entries of 1/√l.

        Entry (a, b) sums 1/l over the arcs that contain both cells. At distance d, l − d arcs of length l do so along
        the short way, and l − (size − d) along the other way around the circle.
        """
        cells, lengths = np.arange(size), np.arange(1, size + 1)
        distances = cells[:, None]
        one_way = np.maximum(lengths - distances, 0)
        other_way = np.where(distances > 0, np.maximum(lengths - (size - distances), 0), 0)

        by_distance = ((one_way + other_way) / lengths).sum(axis=1)
        return np.asarray(by_distance[np.abs(np.subtract.outer(cells, cells))])

    def plain_value(self, size: int) -> float:
        values = np.fft.fft(arcs_holding(size)).real
        return float(np.sqrt(np.maximum(values[1:], 0)).sum() ** 2 / size)

    def times_gram(self, values: Floats) -> Floats:
        spectrum = np.fft.rfft(arcs_holding(len(values))).reshape(-1, *[1] * (values.ndim - 1))
        return np.asarray(np.fft.irfft(spectrum * np.fft.rfft(values, axis=0), len(values), axis=0))

    def whole_trace(self, size: int) -> float:
        return math.sqrt(size * (size + 1) * (2 * size + 1) / 6) + self.centred_trace(np.full(size, 1 / size))

    def centred_trace(self, profile: Floats) -> float:
        n = len(profile)
        return float((math.sqrt(n / 2) / np.sin(np.arange(1, n) * np.pi / n)).sum())

    def block_gram(self, cut: Cut) -> Floats:
        """Average n(n + 1)/2 − n d + d² over the distances d of cells of two blocks.

        `middles` and `spreads` are the mean and variance of a cell's position in each block; the mean of d² is the
        squared distance of the middles plus both variances, and that of d within a block is twice the half distance.
        """
        lengths, size = cut.lengths, cut.size
        places = [np.arange(len(weights), dtype=np.float64) for weights in cut.within]
        middle = [float(weights @ at) for weights, at in zip(cut.within, places, strict=True)]
        spread = [float(weights @ (at - m) ** 2) for weights, at, m in zip(cut.within, places, middle, strict=True)]
        middles, spreads = np.cumsum(lengths) - lengths + _by_block(cut, middle), _by_block(cut, spread)
        apart = np.abs(np.subtract.outer(middles, middles))
        np.fill_diagonal(apart, 2 * _by_block(cut, [_half_distance(weights) for weights in cut.within]))
        square = np.subtract.outer(middles, middles) ** 2 + np.add.outer(spreads, spreads)

        return np.asarray(size * (size + 1) / 2 - size * apart + square)

    def inner_families(self, size: int, cells: int) -> tuple[tuple[Family, float], ...]:
        return (RANGE, 2.0), (PREFIX, 2.0 * (size - cells - 1))

    def inner_search_gram(self, size: int, cells: int) -> Floats:
        return _inner_ranges(size, cells)


MARGINAL, PREFIX, RANGE, CIRCULAR = Marginal(), Prefix(), Range(), Circular()


def _inner_ranges(size: int, cells: int) -> Floats:
    """Return the Gram matrix of ranges within a block; the block total has the frequency of least error."""
    prefix = PREFIX.gram(cells)
    both = prefix + prefix[::-1, ::-1]
    return RANGE.gram(cells) + (size - cells) / 2 * both + size**2 / 384


def arcs_holding(size: int) -> Floats:
    """Return the number of arcs that contain both of two cells, by the distance d of the cells.

    An arc of length l contains both (l − d)⁺ times one way round and (l − n + d)⁺ times the other; summed over all
    lengths this is n(n + 1)/2 − d(n − d).
    """
    apart = _cells(size)
    return (size * (size + 1) // 2 - apart * (size - apart)).astype(np.float64)


@lru_cache(maxsize=64)
def _ends(size: int) -> tuple[Integers, Integers]:
    """Return the first and last cell of every interval, ordered by the first."""
    low, high = np.triu_indices(size)
    return low.astype(np.int64), high.astype(np.int64)


@lru_cache(maxsize=64)
def _arcs(size: int) -> tuple[Integers, Integers]:
    """Return the start of every arc and its end on the doubled circle."""
    start = np.repeat(_cells(size), size)
    return start, start + np.tile(_cells(size), size)


def _between(values: Floats, axis: int, low: Integers, high: Integers) -> Floats:
    """Return sums over low … high along an axis."""
    running = np.cumsum(values, axis=axis)
    before = np.concatenate([np.zeros_like(running.take([0], axis)), running], axis=axis)
    return np.asarray(running.take(high, axis) - before.take(low, axis))


def _both_cumsum(form: Floats) -> Floats:
    return np.cumsum(np.cumsum(form, axis=-2), axis=-1)


def _between_quadratic(form: Floats, low: Integers, high: Integers) -> Floats:
    """Return quadratic forms of intervals from the two-sided running sum H of S.

    1[a,b]ᵀ S 1[a,b] = H(b,b) + H(a−1,a−1) − 2 H(a−1,b).
    """
    padded = np.zeros((*form.shape[:-2], form.shape[-1] + 1, form.shape[-1] + 1))
    padded[..., 1:, 1:] = _both_cumsum(form)
    corner = np.diagonal(padded, axis1=-2, axis2=-1)
    return np.asarray(corner[..., high + 1] + corner[..., low] - 2 * padded[..., low, high + 1])


def _sines(values: Floats) -> Floats:
    """Return Σ_i v_i sin(kπ(i + 1)/(n + 1)) for k = 1 … n."""
    n = len(values)
    return np.asarray(-np.fft.rfft(np.concatenate([[0.0], values]), 2 * n + 2)[1 : n + 1].imag)


def _half_distance(weights: Floats) -> float:
    """Return half the mean distance of two cells: the mean position minus the mean of the smaller of two."""
    cells = np.arange(len(weights), dtype=np.float64)
    return float(weights @ np.abs(cells[:, None] - cells) @ weights / 2)


def _by_block(cut: Cut, values: Sequence[float]) -> Floats:
    return np.concatenate([np.full(run.count, value) for run, value in zip(cut.runs, values, strict=True)])


def _at_larger(values: Floats) -> Floats:
    """Return the matrix whose entry (a, b) is the value at max(a, b)."""
    index = np.arange(len(values))
    return np.asarray(values[np.maximum.outer(index, index)])
