"""Factors of Gram matrices on residual spaces: rows F with FᵀF = G, of trace 1, made once for each distinct one."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from dpscale.names import AttributeSet
from dpscale.residual import piece
from dpscale.workload.families import FAMILIES, Array
from dpscale.workload.parts import ExplicitPart, JointPart

RANK_TOLERANCE = 1e-13
NEGLIGIBLE = 1e-13


@dataclass(frozen=True, eq=False)
class GramFactor:
    """A Gram of trace 1 as rows F, (r, cells), on the cells of some axes; equal keys mean equal factors.

    `basis`: integer rows, exactly centred along every axis, that span the same space; None where there are none with
    fewer rows than the centred space has dimensions.
    """

    key: str
    rows: Array
    basis: Array | None = None

    @cached_property
    def gram(self) -> Array:
        return np.asarray(self.rows.T @ self.rows)


@dataclass(frozen=True)
class Axis:
    """What a Kronecker term needs of a one-way family on n cells.

    `factor`: of C WᵀW C, scaled to trace 1 so that families that differ by a factor only (all of them at n = 2) are
    equal; `weight` is that trace; `mean_square` is |W1|²/n², the weight left when the axis is averaged away.
    """

    factor: GramFactor
    weight: float
    mean_square: float


@lru_cache(maxsize=4096)
def axis_of(family: str, size: int) -> Axis:
    """The axis of a family at a size, made once."""
    gram = FAMILIES[family].gram(size)
    centered = gram - gram.mean(0) - gram.mean(1)[:, None] + gram.mean()
    weight = float(np.trace(centered))
    key = f"two/{size}" if size == 2 else f"{family}/{size}"
    return Axis(GramFactor(key, root_of((centered + centered.T) / (2 * weight))), weight, float(gram.sum()) / size**2)


def root_of(gram: Array) -> Array:
    """Rows F of full row rank, orthogonal to each other, with FᵀF = G."""
    values, vectors = np.linalg.eigh(gram)
    kept = values > values[-1] * RANK_TOLERANCE
    return np.asarray((vectors[:, kept] * np.sqrt(values[kept])).T)


def compressed(rows: Array) -> Array:
    """Rows of full row rank with the same Gram, as few as there can be."""
    if len(rows) >= rows.shape[1]:
        return root_of(rows.T @ rows)
    values, vectors = np.linalg.eigh(rows @ rows.T)
    kept = values > values[-1] * RANK_TOLERANCE
    return np.asarray(vectors[:, kept].T @ rows)


_PIECES: dict[tuple[str, tuple[int, ...]], tuple[GramFactor | None, float]] = {}


def piece_factor(
    part: JointPart | ExplicitPart, attributes: AttributeSet, keep: tuple[int, ...]
) -> tuple[GramFactor | None, float]:
    """The factor of the pieces that the queries of a set leave on the axes `keep`, and its weight; None where zero."""
    key = (part.key(attributes), keep)
    if key not in _PIECES:
        if len(_PIECES) > 512:
            _PIECES.clear()
        _PIECES[key] = _make_piece(part, attributes, keep)
    return _PIECES[key]


def _make_piece(
    part: JointPart | ExplicitPart, attributes: AttributeSet, keep: tuple[int, ...]
) -> tuple[GramFactor | None, float]:
    queries = part.queries(attributes)
    weighted = queries * np.sqrt(part.query_weights(attributes)).reshape(-1, *[1] * len(attributes))
    pieces = piece(weighted, keep, lead=1).reshape(len(queries), -1)
    weight = float((pieces**2).sum())
    if weight <= NEGLIGIBLE * float((weighted**2).sum()) or not len(queries):
        return None, 0.0
    rows = compressed(pieces / np.sqrt(weight))
    name = f"{part.key(attributes)}@{','.join(map(str, keep))}"
    basis = _integer_basis(part.basis(attributes), keep) if keep else None
    return GramFactor(_content_key(rows) if len(keep) == 1 else name, rows, basis), weight


def _content_key(rows: Array) -> str:
    """A key by content: what affine leaves on its first axis and on its second is the same where the sizes are."""
    gram = np.round(rows.T @ rows, 11) + 0.0  # no negative zeros
    return f"cells/{hashlib.sha256(gram.tobytes()).hexdigest()}"


def _integer_basis(basis: Array | None, keep: tuple[int, ...]) -> Array | None:
    """Pieces of integer arrays, times what makes them whole; only where they are fewer than the centred space."""
    if basis is None:
        return None
    pieces = np.rint(piece(basis, keep, lead=1) * np.prod(basis.shape[1:]))
    flat = pieces.reshape(len(pieces), -1)
    dimensions = int(np.prod([basis.shape[1 + axis] - 1 for axis in keep]))
    return flat if len(flat) < dimensions else None
