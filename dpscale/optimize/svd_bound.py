"""The SVD bound: what no strategy can go below (Li and Miklau; HDMM, definition 11, theorems 5 and 12).

    SVDB(G) = (Σ √λ)² / n over the eigenvalues λ of the Gram G, (n, n),
at most tr(G (AᵀA)⁺) for every strategy A of sensitivity 1, L1 or L2. On a Kronecker product it is the product of the
factors' bounds. In a union whose Grams commute on every attribute (marginals and circular ranges always do) the common
eigenspaces of the axes give the eigenvalues of the whole: Σ_k w_k Π_i λ_ki. Otherwise products that do commute are
bounded together and the bounds added, for (tr G^½)² is superadditive; that is valid, but further from the optimum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpscale.base.arrays import Floats
from dpscale.optimize.implicit import Implicit, Product

COMMUTES = 1e-9
MOST_SPACES = 1 << 22


@dataclass(frozen=True)
class SvdBound:
    """The bound; `exact` where it is the SVD bound of the whole workload, not a sum of the bounds of its groups."""

    value: float
    exact: bool


def svd_of_gram(gram: Floats) -> float:
    """The bound of one explicit Gram."""
    return float(np.sqrt(np.maximum(np.linalg.eigvalsh(gram), 0.0)).sum() ** 2 / len(gram))


def svd_bound(union: Implicit) -> SvdBound:
    """The bound of a union of products, exact where all its Grams commute."""
    groups = commuting_groups(union)
    values = [_common(union, group) for group in groups]
    if len(groups) == 1 and values[0] is not None:
        return SvdBound(values[0], True)
    split = [value if value is not None else _apart(group) for value, group in zip(values, groups, strict=True)]
    return SvdBound(math.fsum(split), False)


def commuting_groups(union: Implicit) -> list[tuple[Product, ...]]:
    """The products in groups within which the Grams of every attribute commute, each in the first group it fits."""
    commute = _Commuting(union)
    groups: list[list[Product]] = []
    taken: list[list[set[str]]] = []
    for product in sorted(union.products, key=lambda one: -one.weight * _size(one)):
        for group, keys in zip(groups, taken, strict=True):
            if all(commute(i, key, keys[i]) for i, key in enumerate(product.keys)):
                group.append(product)
                for seen, key in zip(keys, product.keys, strict=True):
                    seen.add(key)
                break
        else:
            groups.append([product])
            taken.append([{key} for key in product.keys])
    return [tuple(group) for group in groups]


def _size(product: Product) -> float:
    return math.prod(float(np.trace(axis.gram)) for axis in product.axes)


class _Commuting:
    """Whether a Gram on an axis commutes with some others; each pair is tried once."""

    def __init__(self, union: Implicit) -> None:
        self.grams = [union.distinct(i) for i in range(len(union.sizes))]
        self.known: dict[tuple[int, frozenset[str]], bool] = {}

    def __call__(self, axis: int, key: str, others: set[str]) -> bool:
        return all(self._pair(axis, key, other) for other in others)

    def _pair(self, axis: int, first: str, second: str) -> bool:
        pair = (axis, frozenset((first, second)))
        if pair not in self.known:
            product = self.grams[axis][first] @ self.grams[axis][second]
            self.known[pair] = bool(np.abs(product - product.T).max() <= COMMUTES * np.abs(product).max())
        return self.known[pair]


def _common(union: Implicit, group: Sequence[Product]) -> float | None:
    """The bound of products that commute on every axis; None where they have too many eigenspaces."""
    if len(group) == 1:
        return _apart(group)
    spaces = [eigenspaces({p.keys[i]: p.axes[i].gram for p in group}) for i in range(len(union.sizes))]
    if math.prod(len(sizes) for _, sizes in spaces) > MOST_SPACES:
        return None
    values, counts = np.zeros([len(sizes) for _, sizes in spaces]), np.ones(())
    for product in group:
        term = np.array(product.weight)
        for key, (levels, _) in zip(product.keys, spaces, strict=True):
            term = np.multiply.outer(term, levels[key])
        values += term
    for _, sizes in spaces:
        counts = np.multiply.outer(counts, sizes)
    roots = float((counts * np.sqrt(np.maximum(values, 0.0))).sum())
    return roots**2 / math.prod(float(sizes.sum()) for _, sizes in spaces)


def eigenspaces(grams: dict[str, Floats]) -> tuple[dict[str, Floats], Floats]:
    """The common eigenspaces of Grams that commute: each Gram's eigenvalue on every space, and the dimensions."""
    draws = np.random.default_rng(0).random(len(grams)) + 0.5
    mixed = np.sum([draw * gram / np.trace(gram) for draw, gram in zip(draws, grams.values(), strict=True)], axis=0)
    levels, vectors = np.linalg.eigh(mixed)
    starts = np.flatnonzero(np.diff(levels, prepend=-np.inf) > COMMUTES * levels[-1])
    dimensions = np.diff(np.append(starts, len(levels))).astype(np.float64)
    spectra = {
        key: np.add.reduceat((vectors * (gram @ vectors)).sum(axis=0), starts) / dimensions
        for key, gram in grams.items()
    }
    return spectra, dimensions


def _apart(group: Sequence[Product]) -> float:
    """The sum of the products' own bounds, each the product of its factors' (theorem 5)."""
    known: dict[str, float] = {}
    for product in group:
        for axis in product.axes:
            if axis.key not in known:
                known[axis.key] = svd_of_gram(axis.gram)
    return math.fsum(product.weight * math.prod(known[key] for key in product.keys) for product in group)
