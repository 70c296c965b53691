"""Factors of Gram matrices on residual spaces: rows F with FᵀF = G of trace 1, computed once per distinct factor.

*Terms.* W has the one-way queries of a family, and C centres an axis: I − 11ᵀ/n, or I − u1ᵀ with weights u. A *piece*
of a query on some axes is the query averaged over the other axes and centred along these. An integer *basis* has
integer rows that span the pieces.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial

import numpy as np

from dpscale.base.errors import PlanError
from dpscale.base.numerics import AttributeSet, Floats
from dpscale.workload.family import Family
from dpscale.workload.parts import WorkloadPart
from dpscale.workload.residual import Weights, piece, profile_of
from dpscale.workload.wide import LONG, WideGram, check_wide, is_wide, weighted_piece, wide_scale

RANK_TOLERANCE = 1e-13  # share of the largest eigenvalue below which an eigenvalue is taken as 0
NEGLIGIBLE = 1e-13  # share of the squared queries below which their centred part is a rounding error
# entries of queries × cells up to which an integer basis begins with the queries, not with their Gram matrix
MOST_ENTRIES = 1 << 22
MOST_GRAM = 2600  # cells of pieces of such queries that have a Gram matrix
DENSE_CELLS = 10_000  # of a set above which an array of all queries is not built


@dataclass(frozen=True, eq=False)
class GramFactor:
    """Gram matrix of trace 1 on the cells of some axes, as rows F computed on demand.

    "Centred" refers to the weights of the axes, if they have any.

    Attributes
    ----------
    key : str
        Identifier of the factor.
    make : callable
        Computes F, shape (r, cells).
    basis : ndarray, optional
        Integer rows that span the same space and are exactly centred along every axis; None unless there are fewer such
        rows than the centred space has dimensions.
    spanning : callable, optional
        Computes such rows of one axis; called only if the Gram matrix is singular.
    family : Family, optional
        One-way family whose centred queries have this Gram matrix.
    """

    key: str
    make: Callable[[], Floats]
    basis: Floats | None = None
    spanning: Callable[[], Floats | None] | None = None
    family: Family | None = None

    @cached_property
    def rows(self) -> Floats:
        return self.make()

    @cached_property
    def gram(self) -> Floats:
        return np.asarray(self.rows.T @ self.rows)

    @cached_property
    def integer_basis(self) -> Floats | None:
        """`basis`, or the result of `spanning` if the Gram matrix of one axis is singular on the centred space."""
        if self.spanning is None or len(self.rows) >= self.rows.shape[1] - 1:
            return self.basis
        return self.spanning()


@dataclass(frozen=True, eq=False)
class ArrayGram:
    """Gram matrix of trace 1 of the pieces of queries over too many cells for rows F.

    Attributes
    ----------
    key : str
        Identifier of the factor.
    shape : tuple of int
        Number of pieces and of cells.
    chunks : callable
        Yields the pieces in arrays of some pieces, shape (m, cells), whose sum of squares is 1.
    """

    key: str
    shape: tuple[int, int]
    chunks: Callable[[], Iterator[Floats]]

    @property
    def rows(self) -> Floats:
        """Raise PlanError, because a mechanism with a matrix of the cells takes no more than `DENSE_CELLS`."""
        raise PlanError("workload", f"queries over {self.shape[1]} cells that are no products",
                        f"at most {DENSE_CELLS} cells", "use weighted-fourier, or coarsen the attributes")  # fmt: skip

    @property
    def gram(self) -> Floats:
        return np.asarray(self.rows.T @ self.rows)


AnyGram = GramFactor | WideGram | ArrayGram


@dataclass(frozen=True)
class Axis:
    """Properties of a one-way family on n cells that a Kronecker term uses.

    If the axis has weights u, C is I − u1ᵀ on the right (and its transpose on the left), and `mean_square` is |Wu|².

    Attributes
    ----------
    factor : GramFactor or WideGram
        C WᵀW C scaled to trace 1, so that families that differ by a factor (all families at n = 2) are equal.
    weight : float
        The trace of C WᵀW C.
    mean_square : float
        |W1|²/n², the weight that remains when the axis is averaged.
    """

    factor: GramFactor | WideGram
    weight: float
    mean_square: float


@lru_cache(maxsize=4096)
def axis_of(family: Family, size: int, weights: Weights | None = None) -> Axis:
    """Return the cached axis of a family at a size.

    C is the centring I − u1ᵀ (or I − 11ᵀ/n). With two cells every centred Gram matrix has one direction, so all
    families share a key. A family without a centred part has no rows.
    """
    if family.is_divided(size) or (family.is_identity and weights is None and size > LONG):
        return _wide_axis(family, size, weights)

    gram = family.gram(size)
    diagonal, square = _centred_diagonal(gram, weights)
    weight = float(diagonal.sum())
    if weight <= NEGLIGIBLE * float(np.trace(gram)):  # only multiples of the total
        return Axis(GramFactor(f"nothing/{size}", partial(np.zeros, (0, size))), 0.0, square)

    key = (f"two/{size}" if size == 2 else f"{family.key}/{size}") + named(weights)
    make, spanning = partial(_centred_rows, family, size, weights), partial(_family_basis, family, size, weights)
    return Axis(GramFactor(key, make, spanning=spanning, family=family), weight, square)


def _centred_diagonal(gram: Floats, weights: Weights | None) -> tuple[Floats, float]:
    """Return the diagonal of C G C and the mean square, without the matrix, which a long axis does not need.

    The diagonal of (I − 1uᵀ)G(I − u1ᵀ) is G_ii − 2 (Gu)_i + uᵀGu; for the plain mean, u is 1/n.
    """
    if weights is None:
        return gram.diagonal() - gram.mean(0) - gram.mean(1) + gram.mean(), float(gram.sum()) / len(gram) ** 2
    profile = profile_of(weights, len(gram))
    mean = gram @ profile
    square = float(profile @ mean)
    return gram.diagonal() - mean - mean + square, square


def _centred_rows(family: Family, size: int, weights: Weights | None) -> Floats:
    """Return rows whose Gram matrix is that of a family's centred queries, at trace 1 (shape ranks × cells).

    Centring subtracts from each query its mean over the axis, weighted by `weights` (None: every cell alike).
    """
    if is_wide(size) and 2 * family.count(size) <= size:  # of few queries the Gram matrix has few eigenvectors
        queries = family.matrix(size)
        pieces = queries - (queries @ profile_of(weights, size))[:, None]
        return compressed(pieces / np.linalg.norm(pieces))

    gram = family.gram(size)
    if weights is None:
        centered = gram - gram.mean(0) - gram.mean(1)[:, None] + gram.mean()
    else:
        centered, _ = weighted_piece(gram, profile_of(weights, size))
    return root_of((centered + centered.T) / (2 * float(np.trace(centered))))


def _family_basis(family: Family, size: int, weights: Weights | None) -> Floats | None:
    """Return the centred integer queries of a family, or the rows of its Gram matrix if the queries are too many.

    None if the queries are no integers.
    """
    if not family.is_integral:
        return None
    rows = family.matrix(size) if family.count(size) * size <= MOST_ENTRIES else family.gram(size)
    return _integer_pieces(rows, (0,), (weights,))


def _wide_axis(family: Family, size: int, weights: Weights | None) -> Axis:
    """Return the axis of a family on too many cells for a matrix, by its intervals."""
    check_wide(family, size)
    trace, square = wide_scale(family, size, weights)
    return Axis(
        WideGram(key=f"{family.key}/{size}" + named(weights), size=size, weights=weights, asked=((family, 1 / trace),)),
        trace,
        square,
    )


def named(weights: Weights | None) -> str:
    """Return the part of a key that identifies an axis' weights."""
    return "" if weights is None else f"~{hashlib.sha256(repr(weights).encode()).hexdigest()[:32]}"


def root_of(gram: Floats) -> Floats:
    """Return orthogonal rows F of full row rank with FᵀF = G."""
    values, vectors = np.linalg.eigh(gram)
    positive = values > values[-1] * RANK_TOLERANCE
    return np.asarray((vectors[:, positive] * np.sqrt(values[positive])).T)


def compressed(rows: Floats) -> Floats:
    """Return rows of full row rank with the same Gram matrix, as few as possible.

    For few rows F, FFᵀ = V Λ Vᵀ, and VᵀF has the Gram matrix FᵀF; rows with negligible eigenvalue are left out.
    """
    if len(rows) >= rows.shape[1]:
        return root_of(rows.T @ rows)
    values, vectors = np.linalg.eigh(rows @ rows.T)
    positive = values > values[-1] * RANK_TOLERANCE
    return np.asarray(vectors[:, positive].T @ rows)


AxisWeights = tuple[Weights | None, ...]
_PIECES: dict[tuple[str, tuple[int, ...], AxisWeights], tuple[GramFactor | ArrayGram | None, float]] = {}


def piece_factor(
    part: WorkloadPart, attributes: AttributeSet, keep: tuple[int, ...], weights: AxisWeights
) -> tuple[GramFactor | ArrayGram | None, float]:
    """Return the factor and weight of the pieces of a set's queries on the axes `keep`; (None, 0) if they vanish.

    Parameters
    ----------
    part : WorkloadPart
    attributes : AttributeSet
    keep : tuple of int
        Axes of the residual space.
    weights : tuple of Weights or None
        Weights of every axis of the set.
    """
    key = (part.key(attributes), keep, weights)
    if key not in _PIECES:
        if len(_PIECES) > 512:
            _PIECES.clear()
        _PIECES[key] = _make_piece(part, attributes, keep, weights)
    return _PIECES[key]


def weighted_queries(part: WorkloadPart, attributes: AttributeSet) -> Floats:
    """Return a set's queries, each multiplied by the square root of its weight, shape (m, sizes…)."""
    return part.queries(attributes) * np.sqrt(part.query_weights(attributes)).reshape(-1, *[1] * len(attributes))


def _make_piece(
    part: WorkloadPart, attributes: AttributeSet, keep: tuple[int, ...], weights: AxisWeights
) -> tuple[GramFactor | ArrayGram | None, float]:
    """Return the Gram factor of the workload's piece that depends on exactly the kept axes, and its squared weight.

    The piece averages the queries over the other axes and takes the means over the kept ones out. The factor has trace
    1; without any piece it is None and the weight 0.

    Pieces of all queries, each times the root of its weight, are the rows; a key of one axis depends on the content
    alone, so equal factors are found to be equal.
    """
    if part.domain.cells(attributes) > DENSE_CELLS:
        return _piece_by_chunks(part, attributes, keep)

    weighted = weighted_queries(part, attributes)
    axes = enumerate(zip(weights, weighted.shape[1:], strict=True))
    profiles = {axis: profile_of(of_axis, size) for axis, (of_axis, size) in axes if of_axis is not None}
    pieces = piece(weighted, keep, lead=1, profiles=profiles).reshape(len(weighted), -1)
    weight = float((pieces**2).sum())
    if weight <= NEGLIGIBLE * float((weighted**2).sum()) or not len(weighted):
        return None, 0.0

    rows = compressed(pieces / np.sqrt(weight))
    name = f"{part.key(attributes)}@{','.join(map(str, keep))}" + "".join(map(named, weights))
    basis = _integer_basis(part.basis(attributes), keep, weights) if keep else None
    key = _content_key(rows) + named(weights[keep[0]]) if len(keep) == 1 else name

    return GramFactor(key, lambda: rows, basis), weight


def _piece_by_chunks(
    part: WorkloadPart, attributes: AttributeSet, keep: tuple[int, ...]
) -> tuple[GramFactor | ArrayGram | None, float]:
    """Return the factor and weight of pieces centred by the plain mean, without an array of all queries."""
    weight = math.fsum(float((pieces**2).sum()) for pieces in _chunks(part, attributes, keep, 1.0))
    if weight <= NEGLIGIBLE * part.squared_norm(attributes):
        return None, 0.0

    key = f"{part.key(attributes)}@{','.join(map(str, keep))}"
    cells = math.prod(part.domain.shape(attributes)[axis] for axis in keep)
    if cells > MOST_GRAM:
        return ArrayGram(key, (part.count(attributes), cells), partial(_chunks, part, attributes, keep, weight)), weight
    gram = np.zeros((cells, cells))
    for pieces in _chunks(part, attributes, keep, weight):
        gram += pieces.T @ pieces
    rows = root_of(gram)
    return GramFactor(_content_key(rows) if len(keep) == 1 else key, lambda: rows), weight


def _chunks(part: WorkloadPart, attributes: AttributeSet, keep: tuple[int, ...], weight: float) -> Iterator[Floats]:
    """Yield the pieces of a set's queries on some axes, times the roots of the queries' weights over `weight`."""
    roots, start = np.sqrt(part.query_weights(attributes) / weight), 0
    for queries in part.chunks(attributes):
        flat = piece(queries, keep, lead=1).reshape(len(queries), -1)
        yield flat * roots[start : start + len(flat), None]
        start += len(flat)


def _content_key(rows: Floats) -> str:
    """Return a key that depends only on the Gram matrix.

    For example, the affine family has equal factors on its two axes if their sizes are equal.
    """
    gram = np.round(rows.T @ rows, 11) + 0.0  # no negative zeros
    return f"cells/{hashlib.sha256(gram.tobytes()).hexdigest()}"


def _integer_basis(basis: Floats | None, keep: tuple[int, ...], weights: AxisWeights) -> Floats | None:
    """Return the integer-scaled pieces of integer arrays, or None unless they are fewer than the centred dimensions."""
    if basis is None:
        return None
    flat = _integer_pieces(basis, keep, weights)
    dimensions = int(np.prod([basis.shape[1 + axis] - 1 for axis in keep]))
    return flat if len(flat) < dimensions else None


def _integer_pieces(basis: Floats, keep: tuple[int, ...], weights: AxisWeights) -> Floats:
    """Return the pieces of integer arrays (m, sizes…), scaled to integers, shape (m, remaining cells).

    Averages divide by n or by the sum of the weights along each axis; the product of these, `divisor`, makes them
    integers. With weights, common divisors of a row are removed.
    """
    axes = list(zip(weights, basis.shape[1:], strict=True))
    profiles = {axis: profile_of(of_axis, size) for axis, (of_axis, size) in enumerate(axes) if of_axis is not None}
    divisor = np.prod([float(size if of_axis is None else sum(of_axis)) for of_axis, size in axes])
    pieces = np.rint(piece(basis, keep, lead=1, profiles=profiles) * divisor)  # powers of two: exact
    flat = pieces.reshape(len(pieces), -1)
    if profiles:
        flat = flat // np.maximum(np.gcd.reduce(flat.astype(np.int64), axis=1, keepdims=True), 1)

    return np.asarray(flat)
