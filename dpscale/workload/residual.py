"""Residual decomposition of queries and marginals, axis by axis on arrays.

A query on the attributes A splits into one piece for every A' ⊆ A: average the axes outside A', centre the axes of A'
(QuerySmasher, section 4; ResidualPlanner, section 4). Pieces of different A' depend on orthogonal parts of the data,
and
    query · marginal(A) = Σ over A' of piece(A') · marginal(A').
The transpose maps a marginal to its residuals: sum the axes outside A', centre the others. The inverse smears the
residuals and adds them. Every function takes an array and axes and never builds a Kronecker product.

*Axes.* Arrays are centred, averaged and summed along axes. An axis may have a profile u with Σu = 1. A total is then
spread over its cells in proportion to u instead of evenly, and a query is averaged with the weights u, so that the two
operations remain transposes of each other.

*Differences.* Marginals are transformed to residuals and back as in AIM+GReM (Fuentes et al., table 1, algorithms 1 and
2). Here a residual on τ has n − 1 entries along each axis: differences to the first slice. `center` retains n entries
that sum to zero; `centered` below converts the former to the latter. `lead` leading axes are an unchanged batch. Here
are also the allocation of privacy cost to residuals and groups of neighbouring cells.

*GReM.* It has one estimate per residual from repeated measurements, and marginals as sums of residuals. GReM-MLE is the
inverse-variance average of each residual (AIM+GReM, algorithm 3). Residuals are stored centred, with n entries along
each of their axes: N(0, σ²) noise on the τ-marginal gives the residual the covariance σ² · (centring projector), so the
precision 1/σ² describes it completely. Residuals that were never measured are zero, which corresponds to a uniform
distribution. GReM-LNN (Mullins et al. 2024) additionally requires the requested marginals to be non-negative: least
squares under local non-negativity, solved here by the alternating direction method of multipliers, whose two steps both
have a closed form.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, reduce
from itertools import accumulate, chain, combinations
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from dpscale.base.numerics import AttributeSet, Floats, Integers

Name = TypeVar("Name")
Profiles = Mapping[int, NDArray[np.float64]]

# most iterations if some residuals were not measured; violation at the end, as a share of the total
ITERATIONS, TOLERANCE = 500, 1e-7
MEASURED_ITERATIONS = 5000  # if all residuals were measured, so that the optimum is unique

__all__ = ["Profiles", "Weights", "center", "kron", "piece", "profile_of", "residual_of", "smear", "subsets"]


def subsets(names: Sequence[Name]) -> list[tuple[Name, ...]]:
    """Return all subsets ordered by size, each in the order of `names`."""
    return list(chain.from_iterable(combinations(names, k) for k in range(len(names) + 1)))


def center(values: NDArray[np.float64], axes: Sequence[int]) -> NDArray[np.float64]:
    """Subtract the mean along each of `axes`."""
    for axis in axes:
        values = values - np.add.reduce(values, axis=axis, keepdims=True) / values.shape[axis]  # faster than mean()
    return values


def piece(
    query: NDArray[np.float64], keep: Sequence[int], lead: int = 0, profiles: Profiles | None = None
) -> NDArray[np.float64]:
    """Return the piece of a query on the axes `keep`: average the other axes, centre these.

    `lead` leading axes (a batch of queries) are unchanged; `keep` and `profiles` count from after them.

    A profile u replaces the plain mean of its axis, Σ u_i q_i.
    """
    axes = range(query.ndim - lead)
    for axis in sorted(axes, key=lambda axis: axis in keep):  # average first, so that fewer cells are centred
        mean = _averaged(query, axis + lead, (profiles or {}).get(axis))
        query = query - mean if axis in keep else mean
    return query.reshape((*query.shape[:lead], *(query.shape[lead + axis] for axis in axes if axis in keep)))


def residual_of(
    marginal: NDArray[np.float64], keep: Sequence[int], profiles: Profiles | None = None, lead: int = 0
) -> NDArray[np.float64]:
    """Return the residual of a marginal on the axes `keep`: sum the other axes, centre these.

    `lead` leading axes (a batch of marginals) are unchanged; `keep` and `profiles` count from after them.
    """
    axes = range(marginal.ndim - lead)
    for axis in sorted(axes, key=lambda axis: axis in keep):
        total, size = marginal.sum(axis=axis + lead, keepdims=True), marginal.shape[axis + lead]
        marginal = marginal - total * _profile(axis, size, len(axes), profiles) if axis in keep else total
    return marginal.reshape([*marginal.shape[:lead], *(marginal.shape[axis + lead] for axis in sorted(keep))])


def smear(
    residual: NDArray[np.float64], keep: Sequence[int], shape: Sequence[int], profiles: Profiles | None = None
) -> NDArray[np.float64]:
    """Spread a residual on the axes `keep` over an array of `shape`.

    An axis outside `keep` without a profile has size 1 in the result and broadcasts.
    """
    full = [size if axis in keep else 1 for axis, size in enumerate(shape)]
    values = np.asarray(residual, dtype=np.float64).reshape(full)
    for axis, size in enumerate(shape):
        if axis not in keep:
            values = values * _profile(axis, size, len(shape), profiles)
    return values


def _averaged(query: NDArray[np.float64], axis: int, profile: NDArray[np.float64] | None) -> NDArray[np.float64]:
    """Return the mean along an axis, weighted by its profile if any; the axis remains with one cell."""
    if profile is None:
        return np.asarray(query.mean(axis=axis, keepdims=True))
    return np.expand_dims(np.tensordot(query, profile, axes=(axis, 0)), axis)


def _profile(axis: int, size: int, ndim: int, profiles: Profiles | None) -> NDArray[np.float64] | float:
    """Return the share of a total of each cell of an axis, in a shape that broadcasts."""
    if profiles is None or axis not in profiles:
        return 1 / size
    return profiles[axis].reshape([-1 if other == axis else 1 for other in range(ndim)])


def kron(matrices: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Return the explicit Kronecker product of matrices; only for few cells."""
    product: NDArray[np.float64] = np.ones((1, 1))
    return reduce(lambda left, right: np.asarray(np.kron(left, right), dtype=np.float64), matrices, product)


Weights = tuple[int, ...]


def profile_of(weights: Weights | None, size: int) -> Floats:
    """Return the profile u, shape (size,), which sums to 1; uniform without weights."""
    return np.full(size, 1 / size) if weights is None else np.array(weights, dtype=np.float64) / sum(weights)


def whole_weights(profile: Floats, bits: int) -> Weights:
    """Return the nearest integers to a profile with sum 2^bits; the largest one absorbs the rounding error.

    For a symmetric profile the middle absorbs it, so that the weights stay symmetric.

    `missing` is what rounding leaves of 2^bits.
    """
    numbers = [int(value) for value in np.rint(np.ldexp(profile, bits))]
    missing, middle = (1 << bits) - sum(numbers), (len(numbers) - 1) // 2
    if not np.array_equal(profile, profile[::-1]):
        numbers[int(np.argmax(profile))] += missing
    else:
        numbers[middle] += missing - missing // 2
        numbers[len(numbers) - 1 - middle] += missing // 2
    return tuple(numbers)


def centred(rows: Integers, weights: Weights) -> Integers:
    """Return M·r − (r·U)·1 for rows along their last axis: integer and orthogonal to U."""
    numbers = np.array(weights, dtype=np.int64)
    return np.asarray(rows * numbers.sum() - (rows @ numbers)[..., None])


# cells of the reduced basis, without those that a common divisor adds; factor of their weights in the basis; δ of the
# Lovász condition
CELLS, HEAVY, LOVASZ = 8, 1 << 24, 0.99


def nearest_centred(rows: Integers, weights: Weights) -> Integers:
    """Return integer rows (…, n) near the given ones that are exactly orthogonal to the weights U; n >= 3.

    `unit` is an integer vector whose product with U is gcd(U), so subtracting a multiple of it makes a row orthogonal.
    `basis` spans the integer vectors orthogonal to U; a rounded combination of them makes that multiple short.

    `missing` = row·U/gcd is the multiple of `unit` to subtract.
    """
    cells, basis, unit = _reduced(weights)
    missing = rows @ (np.array(weights, dtype=np.int64) // math.gcd(*weights))
    long = missing[..., None] * unit
    short = long - np.rint(long @ np.linalg.pinv(basis.astype(np.float64))).astype(np.int64) @ basis
    moved = rows.copy()
    moved[..., cells] -= short
    return moved


@lru_cache(maxsize=1024)
def _reduced(weights: Weights) -> tuple[Integers, Integers, Integers]:
    """Return some cells, a short basis of the integer vectors on them orthogonal to U, and a vector p.

    The vector satisfies p·U = gcd U.

    LLL reduction of the identity with HEAVY · U in the last column makes U·row small first: all rows but one become
    orthogonal to U, and that one has U·row = ±gcd.
    """
    numbers = np.array(weights, dtype=np.int64) // math.gcd(*weights)
    cells = _coprime(numbers)
    start = np.eye(len(cells), len(cells) + 1, dtype=np.int64)
    start[:, -1] = HEAVY * numbers[cells]
    reduced = _lll(start)
    ends = reduced[:, -1] // HEAVY
    unit = reduced[np.flatnonzero(ends)[0]] * ends[np.flatnonzero(ends)[0]]

    return cells, reduced[ends == 0, :-1], unit[:-1]


def _coprime(numbers: Integers) -> Integers:
    """Return cells spread over the axis whose weights have no common divisor."""
    cells = list(np.unique(np.linspace(0, len(numbers) - 1, min(CELLS, len(numbers))).astype(np.int64)))
    for cell in range(len(numbers)):
        common = np.gcd.reduce(numbers[cells])
        if cell not in cells and math.gcd(int(common), int(numbers[cell])) < common:
            cells.append(cell)
    return np.array(cells, dtype=np.int64)


def _lll(basis: Integers) -> Integers:
    """Return the LLL-reduced basis; it is small, so Gram–Schmidt is recomputed for every row.

    `shares` are the coefficients of a row on the Gram–Schmidt vectors before it. A row that is too short relative to
    the one before it (Lovász's condition) is exchanged with it.
    """
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
    """Return the Gram–Schmidt vectors without normalisation."""
    done = basis.astype(np.float64)
    for row in range(1, len(done)):
        before = done[:row]
        for _ in range(2):  # repeated to remove rounding errors
            done[row] -= (before @ done[row]) / (before**2).sum(axis=1) @ before
    return done


def sub(values: Floats, axis: int) -> Floats:
    """Return differences to the first slice: v[1:] − v[0] along `axis`, one entry shorter."""
    first, rest = np.split(values, [1], axis=axis)
    return rest - first


def centered(values: Floats, axis: int) -> Floats:
    """Return u − mean(u) with u = [0, v] along `axis`, one entry longer.

    It is the inverse of `sub` for values that sum to zero.
    """
    zero = np.zeros_like(values.take([0], axis=axis))
    padded = np.concatenate([zero, values], axis=axis)
    return np.asarray(padded - padded.mean(axis=axis, keepdims=True))


def decompose(marginal: Floats, keep: Sequence[int], lead: int = 0) -> Floats:
    """Decomp(μ, γ, τ): sum the axes outside `keep` and apply `sub` to the axes in it. O(|γ| n_γ)."""
    others = tuple(axis for axis in range(lead, marginal.ndim) if axis - lead not in keep)
    values = np.asarray(marginal.sum(axis=others) if others else marginal)
    for axis in range(len(keep)):
        values = sub(values, lead + axis)
    return values


def reconstruct(residual: Floats, keep: Sequence[int], shape: Sequence[int], lead: int = 0) -> Floats:
    """Recon(ζ, τ, γ): centre the axes in `keep` and smear over the others; an array of `shape` after the batch axes."""
    residual = np.asarray(residual)
    for axis in range(len(keep)):
        residual = centered(residual, lead + axis)
    batch = residual.shape[:lead]
    full = [size if axis in keep else 1 for axis, size in enumerate(shape)]
    spread = float(np.prod([size for axis, size in enumerate(shape) if axis not in keep]))
    return np.array(np.broadcast_to(residual.reshape((*batch, *full)) / spread, (*batch, *shape)))


LEAST_SHARE = 1e-3  # share of the cost below which a residual is not measured


def water_fill(worth: Floats, price: Floats, had: Floats) -> Floats:
    """Return the optimal precisions x with Σ p x = 1 by water filling.

    They minimise the error Σ v / (a + x) for the arrays v (`worth`), p (`price`) and a (`had`), all of one shape; v, p
    > 0 and a ≥ 0.

    x = max(level · √(v/p) − a, 0): where x > 0 the slopes v/(a + x)² per price p are equal. Terms enter in the order of
    a/√(v/p); the level is that of the last one that receives something.
    """
    slope = np.sqrt(worth / price)
    order = np.argsort(had / slope)
    paid = 1 + np.cumsum((price * had)[order])
    levels = paid / np.cumsum((price * slope)[order])
    last = np.flatnonzero(levels > (had / slope)[order])[-1]
    return np.asarray(np.maximum(levels[last] * slope - had, 0))


@lru_cache(maxsize=4096)
def prices(sizes: tuple[int, ...]) -> tuple[list[tuple[int, ...]], list[float], list[float]]:
    """Return the subsets τ of the axes, their p_τ (privacy cost at unit precision) and v_τ (error at unit variance).

    v includes the marginal's number of cells in addition to the paper's per-cell scale, which does not change the
    optimum.

    p_τ = Π_{i in τ} (n_i − 1)/n_i, and v_τ = p_τ Π_{i outside τ} n_i⁻².
    """
    spaces = subsets(tuple(range(len(sizes))))
    price = [math.prod((sizes[i] - 1) / sizes[i] for i in space) for space in spaces]
    outside = [math.prod(sizes[i] ** -2.0 for i in range(len(sizes)) if i not in space) for space in spaces]
    return spaces, price, [inside * factor for inside, factor in zip(price, outside, strict=True)]


def shares(
    names: Sequence[str], sizes: Sequence[int], had: Mapping[tuple[str, ...], float], cost: float
) -> list[float]:
    """Return each residual's share p x of a round's privacy cost β, in the order of `subsets(names)`.

    `had` contains the existing precisions. Shares below LEAST_SHARE are set to 0 and redistributed, so that they sum to
    1.
    """
    spaces, price, worth = prices(tuple(sizes))
    before = [had.get(tuple([names[i] for i in space]), 0.0) / cost for space in spaces]
    chosen = list(range(len(spaces)))

    while True:
        # precisions that are added, and their costs as shares of the round's
        added = _fill_few([(worth[i], price[i], before[i]) for i in chosen])
        costs = [price[i] * precision for i, precision in zip(chosen, added, strict=True)]
        large = [i for i, share in zip(chosen, costs, strict=True) if share >= LEAST_SHARE]
        if not large or len(large) == len(chosen):
            *_, total = accumulate(costs)  # in one order of additions, unlike sum() of Python 3.12
            share_of = dict(zip(chosen, costs, strict=True))
            return [share_of.get(i, 0.0) / total for i in range(len(spaces))]
        chosen = large


def _fill_few(items: Sequence[tuple[float, float, float]]) -> list[float]:
    """Return `water_fill` of a few (worth, price, had), for which arrays take most of the time.

    It returns the x_i ≥ 0 with Σ p x = 1 that minimise Σ v / (a + x) for worth v, price p and existing precision a: x =
    max(level √(v/p) − a, 0). `level` is (1 + Σ p a)/Σ p √(v/p) over the terms that receive something. A term receives
    something if the level is above its start a / √(v/p), so terms enter in the order of their starts.
    """
    slopes = [math.sqrt(worth / price) for worth, price, _ in items]
    starts = [had / slope for (_, _, had), slope in zip(items, slopes, strict=True)]
    paid, weight, level = 0.0, 0.0, 0.0
    for i in sorted(range(len(items)), key=starts.__getitem__):
        paid, weight = paid + items[i][1] * items[i][2], weight + items[i][1] * slopes[i]
        # the level with this term included is above its start
        if (1 + paid) / weight > starts[i]:
            level = (1 + paid) / weight
    return [max(level * slope - had, 0.0) for (_, _, had), slope in zip(items, slopes, strict=True)]


def isotropic_parts(sizes: Sequence[int]) -> list[int]:
    """Return each residual's part of β, in the order of `subsets`, for equal independent noise in every cell.

    With noise σ² in every cell the τ-marginal has the noise σ² Π_{i∉τ} n_i, and its residual costs
    p_τ / (σ² Π_{i∉τ} n_i) = Π_{i∈τ} (n_i − 1) / (σ² Π n_i). The parts are Π_{i∈τ} (n_i − 1), which sum to Π n_i.
    """
    return [math.prod(size - 1 for size in inside) for inside in subsets(sizes)]


@dataclass(frozen=True)
class Groups:
    """Groups of neighbouring cells: `starts[g]` is the first cell of group g, and the last group ends at `size`."""

    size: int
    starts: tuple[int, ...]

    @property
    def count(self) -> int:
        return len(self.starts)

    @cached_property
    def labels(self) -> NDArray[np.int64]:
        """Group of every cell, shape (size,)."""
        return np.repeat(np.arange(self.count), self.widths)

    @cached_property
    def widths(self) -> NDArray[np.int64]:
        """Number of cells of every group, shape (count,)."""
        return np.diff([*self.starts, self.size])


def every_cell(size: int) -> Groups:
    """Return groups of a single cell each."""
    return Groups(size, tuple(range(size)))


def by_mass(counts: Floats, least: float, edges: Set[int] = frozenset(), runs: Groups | None = None) -> Groups:
    """Return groups of neighbouring cells with about `least` counts or more, or of whole runs of cells.

    A group with at least three tenths of `least` also ends at an edge or before a cell with `least` counts.

    `mass` counts the cells of the present group. With `runs`, the groups are unions of whole runs. A last group below
    half of `least` joins the one before it, and there are two groups at least.
    """
    # the same on whole runs, whose counts are summed first
    if runs is not None:
        inside = frozenset(np.searchsorted(runs.starts, sorted(edges)).tolist())
        grouped = by_mass(coarsened(counts, [runs]), least, inside)
        return Groups(runs.size, tuple(runs.starts[run] for run in grouped.starts))

    starts, mass = [0], 0.0
    for cell, count in enumerate(counts.tolist()):
        # enough counts, or an edge or a large cell after a group that is not too small
        if cell and (mass >= least or ((count >= least or cell in edges) and mass >= 0.3 * least)):
            starts.append(cell)
            mass = 0.0
        mass += count

    if mass < 0.5 * least and len(starts) > 2:
        starts.pop()
    if len(starts) == 1 and len(counts) > 1:
        starts.append(_halving(counts))
    return Groups(len(counts), tuple(starts))


def _halving(counts: Floats) -> int:
    """Return the position of the cut into two parts of the most equal counts."""
    before = np.cumsum(counts)[:-1]
    return int(np.abs(2 * before - counts.sum()).argmin()) + 1


def coarsened(values: NDArray, groups: Sequence[Groups]) -> NDArray:  # type: ignore[type-arg]
    """Return sums over the groups of every axis; integers remain integers."""
    for axis, grouping in enumerate(groups):
        if grouping.count < grouping.size:
            values = np.add.reduceat(values, grouping.starts, axis=axis)
    return values


def expanded(values: Floats, groups: Sequence[Groups]) -> Floats:
    """Return an array in which every cell has its group's value, along every axis."""
    for axis, grouping in enumerate(groups):
        if grouping.count < grouping.size:
            values = values.take(grouping.labels, axis=axis)
    return values


@dataclass(frozen=True, eq=False)
class Residuals:
    """Immutable estimates of residuals.

    Attributes
    ----------
    sizes : mapping of str to int
        Sizes of the attributes.
    values : mapping of AttributeSet to ndarray
        Centred residual of each set τ, in the shape of τ.
    precisions : mapping of AttributeSet to float
        Precision 1/σ² of each residual.
    """

    sizes: Mapping[str, int]
    values: Mapping[AttributeSet, Floats] = field(default_factory=dict)
    precisions: Mapping[AttributeSet, float] = field(default_factory=dict)

    def precision(self, names: AttributeSet) -> float:
        """Return the precision 1/σ² of a residual's estimate; 0 if it was never measured."""
        return self.precisions.get(names, 0.0)

    def updated(self, measured: Iterable[tuple[AttributeSet, Floats, float]]) -> Residuals:
        """Return the estimates averaged with further measurements (τ, centred values, precision).

        The average of z with precision a and a value with precision b is z + (value − z) b/(a + b), of precision a + b.
        """
        values, precisions = dict(self.values), dict(self.precisions)
        for names, value, precision in measured:
            had = precisions.get(names, 0.0)
            old = values.get(names, 0.0)
            values[names] = np.asarray(old + (value - old) * (precision / (had + precision)))
            precisions[names] = had + precision
        return Residuals(self.sizes, values, precisions)

    def marginal(self, names: AttributeSet) -> Floats:
        """Return the estimated marginal: the sum of its known residuals."""
        total = np.zeros(self.shape(names))
        for residual_set in subsets(names):
            if residual_set in self.values:
                total += spread(self.values[residual_set], residual_set, names, total.shape)
        return total

    def within(self, sets: Iterable[AttributeSet]) -> Residuals:
        """Return the residuals that the marginals of the given sets require."""
        needed = {residual_set for names in sets for residual_set in subsets(names)}
        values = {residual_set: value for residual_set, value in self.values.items() if residual_set in needed}
        return Residuals(self.sizes, values, {residual_set: self.precisions[residual_set] for residual_set in values})

    def shape(self, names: Sequence[str]) -> tuple[int, ...]:
        return tuple(self.sizes[name] for name in names)


@dataclass(frozen=True, eq=False)
class LazyMarginals:
    """Marginals that are updated by the changes of their residuals (AIM+GReM, proposition 4.2).

    The marginal of γ after a round is that before it, plus Recon(z' − z, α, γ) for every α ⊆ γ whose estimate z the
    round changed, in the order of `subsets(γ)`; before the first round it is the sum of its residuals. It is therefore
    a function of the sequence of estimates, regardless of when and in which order marginals are requested.

    Attributes
    ----------
    first : Residuals
        Estimates before the first round.
    changes : tuple of mapping of AttributeSet to ndarray
        Change of each residual that a round changed.
    known : dict of AttributeSet to (int, ndarray)
        Latest requested marginals with their number of rounds; a cache that all rounds share.
    """

    first: Residuals
    changes: tuple[Mapping[AttributeSet, Floats], ...] = ()
    known: dict[AttributeSet, tuple[int, Floats]] = field(default_factory=dict, repr=False)

    def updated(self, before: Residuals, after: Residuals) -> LazyMarginals:
        """Return the marginals after a round that changed the estimates from `before` to `after`."""
        changed = {names: np.asarray(value - before.values.get(names, 0.0))
                   for names, value in after.values.items() if value is not before.values.get(names)}  # fmt: skip
        return LazyMarginals(self.first, (*self.changes, changed), self.known)

    def marginal(self, names: AttributeSet) -> Floats:
        """Return the estimated marginal. The array must not be changed, because later calls start from it.

        `known` has for a set its last marginal and the number of rounds of `changes` that it includes; only the changes
        of later rounds are added. Each change of a residual α ⊆ names is spread over the cells of the marginal.
        """
        rounds, total = self.known.get(names, (0, None))
        # the cache is shared by the objects of all rounds: an object of an earlier round cannot use a later marginal
        if total is None or rounds > len(self.changes):
            rounds, total = 0, self.first.marginal(names)
        inside = subsets(names)

        for changed in self.changes[rounds:]:
            parts = [
                spread(changed[residual_set], residual_set, names, total.shape)
                for residual_set in inside
                if residual_set in changed
            ]
            # a new array, because the old one was returned to callers; further parts are added to the new one in place
            total = total + parts[0] if parts else total
            for part in parts[1:]:
                total += part

        self.known[names] = len(self.changes), total
        return total


def spread(value: Floats, residual_set: AttributeSet, names: AttributeSet, shape: Sequence[int]) -> Floats:
    """Spread a centred residual, that of `residual_set`, over the cells of the marginal of `names` (Recon)."""
    return smear(value, [names.index(name) for name in residual_set], shape)


def non_negative(residuals: Residuals, sets: Sequence[AttributeSet], iterations: int | None = None) -> Residuals:
    """Return the residuals nearest to the measured ones whose marginals `sets` are non-negative (GReM-LNN).

    The distance is weighted by precision, and residuals that were not measured are free. Measured residuals outside
    `sets` do not change. Iterates until the violation is below TOLERANCE of the total, or for `iterations` steps, by
    default ITERATIONS or MEASURED_ITERATIONS.
    """
    inside = {names: subsets(names) for names in sets}
    residual_sets = {residual_set for contained in inside.values() for residual_set in contained}
    spaces = sorted(residual_sets, key=lambda residual_set: (len(residual_set), residual_set))
    step = float(np.median([p for p in residuals.precisions.values()] or [1.0]))
    solution = residuals
    lifted = {names: np.maximum(residuals.marginal(names), 0) for names in sets}
    duals = {names: np.zeros(residuals.shape(names)) for names in sets}
    unique = all(residual_set in residuals.precisions for residual_set in spaces)

    for _ in range(iterations or (MEASURED_ITERATIONS if unique else ITERATIONS)):
        targets = {names: lifted[names] - duals[names] for names in sets}
        solution = _nearest(residuals, spaces, inside, targets, step)
        gap = 0.0
        for names in sets:
            marginal = solution.marginal(names)
            lifted[names] = np.maximum(marginal + duals[names], 0)
            duals[names] += marginal - lifted[names]
            gap = max(gap, float(np.abs(marginal - lifted[names]).max()))

        if gap <= TOLERANCE * max(1.0, float(np.abs(solution.values[()]))):
            break

    return Residuals(residuals.sizes, {**residuals.values, **solution.values}, residuals.precisions)


def _nearest(
    residuals: Residuals,
    spaces: Sequence[AttributeSet],
    inside: Mapping[AttributeSet, Sequence[AttributeSet]],
    targets: Mapping[AttributeSet, Floats],
    step: float,
) -> Residuals:
    """Return, per residual, the weighted average of the measurement and the targets, which have weight step/Πn.

    The residual z minimises precision · |z − measured|² plus Σ over targets of step/Πn · |z − residual of the target|²,
    with n the sizes outside the residual.
    """
    totals: dict[AttributeSet, Floats] = {}
    weights = {residual_set: residuals.precision(residual_set) for residual_set in spaces}
    for residual_set, weight in weights.items():
        totals[residual_set] = (
            weight * residuals.values[residual_set] if weight else np.zeros(residuals.shape(residual_set))
        )

    for names, target in targets.items():
        for residual_set in inside[names]:
            share = step / math.prod(residuals.sizes[name] for name in names if name not in residual_set)
            totals[residual_set] = totals[residual_set] + share * residual_of(
                target, [names.index(name) for name in residual_set]
            )
            weights[residual_set] += share

    values = {residual_set: np.asarray(total / weights[residual_set]) for residual_set, total in totals.items()}
    return Residuals(residuals.sizes, values, residuals.precisions)
