"""Factors of Gram matrices on residual spaces: rows F with FᵀF = G, of trace 1, made once for each distinct one."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial

import numpy as np

from dpscale.base.arrays import Floats
from dpscale.base.display import AttributeSet
from dpscale.workload.families import FAMILIES
from dpscale.workload.parts import ExplicitPart, JointPart
from dpscale.workload.residual import Weights, piece, profile_of
from dpscale.workload.wide import LONG, WideGram, is_wide, known_wide, weighted_piece, wide_scale

RANK_TOLERANCE = 1e-13
NEGLIGIBLE = 1e-13
MOST_ENTRIES = 1 << 22


@dataclass(frozen=True, eq=False)
class GramFactor:
    """A Gram of trace 1 as rows F, (r, cells), on the cells of some axes, by what makes them; a key names one factor.

    `basis`: integer rows, exactly centred along every axis, that span the same space; None where there are none with
    fewer rows than the centred space has dimensions. "Centred" is by the weights of the axes, where they have some.
    `spanning`: makes such rows, of one axis, for a Gram that may be singular; they are made only where it is.
    """

    key: str
    make: Callable[[], Floats]
    basis: Floats | None = None
    spanning: Callable[[], Floats] | None = None

    @cached_property
    def rows(self) -> Floats:
        return self.make()

    @cached_property
    def gram(self) -> Floats:
        return np.asarray(self.rows.T @ self.rows)

    @cached_property
    def integer_basis(self) -> Floats | None:
        """`basis`, or `spanning` where the Gram of one axis is singular on the centred space."""
        if self.spanning is None or len(self.rows) >= self.rows.shape[1] - 1:
            return self.basis
        return self.spanning()


@dataclass(frozen=True)
class Axis:
    """What a Kronecker term needs of a one-way family on n cells.

    `factor`: of C WᵀW C, scaled to trace 1 so that families that differ by a factor only (all of them at n = 2) are
    equal; `weight` is that trace; `mean_square` is |W1|²/n², the weight left when the axis is averaged away. Where the
    axis has weights, C is I − u1ᵀ on the right (and its transpose on the left), and the rest is |Wu|².
    """

    factor: GramFactor | WideGram
    weight: float
    mean_square: float


@lru_cache(maxsize=4096)
def axis_of(family: str, size: int, weights: Weights | None = None) -> Axis:
    """The axis of a family at a size, made once."""
    if is_wide(size) or (family == "marginal" and weights is None and size > LONG):
        return _wide_axis(family, size, weights)
    gram = FAMILIES[family].gram(size)
    if weights is None:
        centered, square = gram - gram.mean(0) - gram.mean(1)[:, None] + gram.mean(), float(gram.sum()) / size**2
    else:
        centered, square = weighted_piece(gram, profile_of(weights, size))
    weight = float(np.trace(centered))
    if weight <= NEGLIGIBLE * float(np.trace(gram)):  # multiples of the total alone
        return Axis(GramFactor(f"nothing/{size}", partial(np.zeros, (0, size))), 0.0, square)
    key = (f"two/{size}" if size == 2 else f"{family}/{size}") + named(weights)
    make, spanning = (
        partial(root_of, (centered + centered.T) / (2 * weight)),
        partial(_family_basis, family, size, weights),
    )
    return Axis(GramFactor(key, make, spanning=spanning), weight, square)


def _family_basis(family: str, size: int, weights: Weights | None) -> Floats:
    """The queries of a family, or the rows of its Gram where they are too many, whole and centred."""
    own = FAMILIES[family]
    rows = own.matrix(size) if own.count(size) * size <= MOST_ENTRIES else own.gram(size)
    return _integer_pieces(rows, (0,), (weights,))


def _wide_axis(family: str, size: int, weights: Weights | None) -> Axis:
    known_wide(family, size)
    whole, square = wide_scale(family, size, weights)
    return Axis(WideGram(f"{family}/{size}" + named(weights), size, weights, ((family, 1 / whole),)), whole, square)


def named(weights: Weights | None) -> str:
    """What a key says of an axis' weights."""
    return "" if weights is None else f"~{hashlib.sha256(repr(weights).encode()).hexdigest()[:32]}"


def root_of(gram: Floats) -> Floats:
    """Rows F of full row rank, orthogonal to each other, with FᵀF = G."""
    values, vectors = np.linalg.eigh(gram)
    kept = values > values[-1] * RANK_TOLERANCE
    return np.asarray((vectors[:, kept] * np.sqrt(values[kept])).T)


def compressed(rows: Floats) -> Floats:
    """Rows of full row rank with the same Gram, as few as there can be."""
    if len(rows) >= rows.shape[1]:
        return root_of(rows.T @ rows)
    values, vectors = np.linalg.eigh(rows @ rows.T)
    kept = values > values[-1] * RANK_TOLERANCE
    return np.asarray(vectors[:, kept].T @ rows)


AxisWeights = tuple[Weights | None, ...]
_PIECES: dict[tuple[str, tuple[int, ...], AxisWeights], tuple[GramFactor | None, float]] = {}


def piece_factor(
    part: JointPart | ExplicitPart, attributes: AttributeSet, keep: tuple[int, ...], weights: AxisWeights
) -> tuple[GramFactor | None, float]:
    """The factor of the pieces that the queries of a set leave on the axes `keep`, and its weight; None where zero.

    `weights`: of every axis of the set.
    """
    key = (part.key(attributes), keep, weights)
    if key not in _PIECES:
        if len(_PIECES) > 512:
            _PIECES.clear()
        _PIECES[key] = _make_piece(part, attributes, keep, weights)
    return _PIECES[key]


def weighted_queries(part: JointPart | ExplicitPart, attributes: AttributeSet) -> Floats:
    """A set's queries, (m, sizes…), each times the root of its weight."""
    return part.queries(attributes) * np.sqrt(part.query_weights(attributes)).reshape(-1, *[1] * len(attributes))


def _make_piece(
    part: JointPart | ExplicitPart, attributes: AttributeSet, keep: tuple[int, ...], weights: AxisWeights
) -> tuple[GramFactor | None, float]:
    weighted = weighted_queries(part, attributes)
    queries, pairs = weighted, enumerate(zip(weights, weighted.shape[1:], strict=True))
    profiles = {axis: profile_of(own, size) for axis, (own, size) in pairs if own is not None}
    pieces = piece(weighted, keep, lead=1, profiles=profiles).reshape(len(queries), -1)
    weight = float((pieces**2).sum())
    if weight <= NEGLIGIBLE * float((weighted**2).sum()) or not len(queries):
        return None, 0.0
    rows = compressed(pieces / np.sqrt(weight))
    name = f"{part.key(attributes)}@{','.join(map(str, keep))}" + "".join(map(named, weights))
    basis = _integer_basis(part.basis(attributes), keep, weights) if keep else None
    key = _content_key(rows) + named(weights[keep[0]]) if len(keep) == 1 else name
    return GramFactor(key, lambda: rows, basis), weight


def _content_key(rows: Floats) -> str:
    """A key by content: what affine leaves on its first axis and on its second is the same where the sizes are."""
    gram = np.round(rows.T @ rows, 11) + 0.0  # no negative zeros
    return f"cells/{hashlib.sha256(gram.tobytes()).hexdigest()}"


def _integer_basis(basis: Floats | None, keep: tuple[int, ...], weights: AxisWeights) -> Floats | None:
    """Pieces of integer arrays, times what makes them whole; only where they are fewer than the centred space."""
    if basis is None:
        return None
    flat = _integer_pieces(basis, keep, weights)
    dimensions = int(np.prod([basis.shape[1 + axis] - 1 for axis in keep]))
    return flat if len(flat) < dimensions else None


def _integer_pieces(basis: Floats, keep: tuple[int, ...], weights: AxisWeights) -> Floats:
    """Pieces of integer arrays, (m, sizes…), times what makes them whole: (m, cells that are kept)."""
    pairs = list(zip(weights, basis.shape[1:], strict=True))
    profiles = {axis: profile_of(own, size) for axis, (own, size) in enumerate(pairs) if own is not None}
    whole = np.prod([float(size if own is None else sum(own)) for own, size in pairs])
    pieces = np.rint(piece(basis, keep, lead=1, profiles=profiles) * whole)  # by powers of two: exact
    flat = pieces.reshape(len(pieces), -1)
    if profiles:
        flat = flat // np.maximum(np.gcd.reduce(flat.astype(np.int64), axis=1, keepdims=True), 1)
    return np.asarray(flat)
