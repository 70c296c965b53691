"""Symmetries of a Gram matrix, which split its convex problem into small blocks.

Reversing every axis, or exchanging two axes of one size, often leaves a Gram matrix G unchanged (prefix, range, affine,
abs and their sums). The problem is convex, so its weights μ can then be chosen constant on the orbits of the cells, and
D^½ G D^½ splits into one block per character (combination of signs) of the commuting symmetries. A block's rows are
stored on one cell of each orbit; on the other cells they are equal up to the sign.

Cells whose columns of F are equal up to the sign, as those that no query distinguishes, form one orbit too:
F diag(μ) Fᵀ depends on the sum of their weights alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product

import numpy as np

from dpscale.base.numerics import Floats, Integers
from dpscale.workload.factors import compressed, root_of

TOLERANCE, EQUAL = 1e-10, 1e-9  # of the largest entry: of probes, and of equal columns
PROBES = 3  # random vectors on which a symmetry is tested


@dataclass(frozen=True)
class SymmetryBlock:
    """Rows on the orbits, (r, orbits), and their sign on every cell: ±1, or 0 where they vanish."""

    rows: Floats
    sign: Floats


@dataclass(frozen=True)
class SymmetryBlocks:
    """Blocks of a Gram matrix; `orbit[c]` is the orbit of cell c."""

    blocks: tuple[SymmetryBlock, ...]
    orbit: Integers

    def expand(self, block: SymmetryBlock, rows: Floats) -> Floats:
        """Expand rows on the orbits to rows on all cells."""
        return np.asarray(rows[:, self.orbit] * block.sign)

    def only(self, orbits: Integers) -> SymmetryBlocks:
        """Return the blocks restricted to some orbits, for search only, not for expansion."""
        return SymmetryBlocks(
            tuple(SymmetryBlock(block.rows[:, orbits], block.sign) for block in self.blocks), self.orbit
        )


@dataclass(frozen=True)
class _Orbits:
    """Orbits of a group of commuting involutions.

    Attributes
    ----------
    orbit : ndarray of int64, shape (cells,)
        Orbit of every cell.
    members : ndarray of int64, shape (largest, orbits)
        Cells of every orbit in increasing order, and then the number of all cells.
    signs : tuple of ndarray, shape (cells,)
        For every character, the sign on every cell, or 0 where its functions vanish.
    """

    orbit: Integers
    members: Integers
    signs: tuple[Floats, ...]

    @cached_property
    def roots(self) -> Floats:
        """Square roots of the numbers of cells of the orbits."""
        return np.asarray(np.sqrt(np.bincount(self.orbit)))


def split(rows: Floats, shape: tuple[int, ...]) -> SymmetryBlocks:
    """Return the blocks of a Gram matrix given by its rows, (r, cells), on the cells of `shape`.

    `kept` says for each candidate symmetry whether it leaves G = FᵀF unchanged. Every character of the group of these
    has one block; blocks of norm 0 are omitted. With more rows than cells, G itself is the smaller matrix to project.
    """
    kept = tuple(_leaves(rows, permutation) for permutation in _candidates(shape))
    orbits = _orbits(shape, kept)
    if len(rows) > rows.shape[1]:
        gram = rows.T @ rows
        blocks = [_block_of_gram(gram, orbits, sign) for sign in orbits.signs]
    else:
        blocks = [_block(rows, orbits, sign) for sign in orbits.signs]
    return _merged(SymmetryBlocks(tuple(block for block in blocks if block is not None), orbits.orbit))


def _merged(blocks_before: SymmetryBlocks) -> SymmetryBlocks:
    """Return blocks on fewer orbits: those with equal columns in all blocks, up to a common sign, are one.

    Columns are compared by a random combination of their entries (`probes`): equal columns have equal absolute probes,
    so neighbours in sorted order are the candidates, which are then compared entry by entry.
    """
    columns = (
        np.concatenate([block.rows for block in blocks_before.blocks]) if blocks_before.blocks else np.zeros((0, 0))
    )
    largest = np.abs(columns).max(initial=0.0)
    probes = np.random.default_rng(0).normal(size=len(columns)) @ columns
    order = np.argsort(np.abs(probes), kind="stable")
    near = np.diff(np.abs(probes)[order]) <= TOLERANCE * largest
    if not near.any():
        return blocks_before

    signs = np.where(probes < 0, -1.0, 1.0)
    left, right = order[:-1][near], order[1:][near]
    # of the candidates, those that are equal entry by entry
    near[near] = np.abs(columns[:, left] * signs[left] - columns[:, right] * signs[right]).max(0) <= EQUAL * largest
    same = np.empty(len(order), np.int64)
    # successive equal columns have one number
    same[order] = np.cumsum(np.concatenate([[True], ~near])) - 1
    _, first, orbit = np.unique(same, return_index=True, return_inverse=True)
    # sign of each cell relative to the first cell of its orbit
    sign = (signs * signs[first][orbit])[blocks_before.orbit]
    blocks = tuple(SymmetryBlock(block.rows[:, first], block.sign * sign) for block in blocks_before.blocks)
    return SymmetryBlocks(blocks, np.asarray(orbit[blocks_before.orbit], np.int64))


@lru_cache(maxsize=32)
def _candidates(shape: tuple[int, ...]) -> tuple[Integers, ...]:
    """Return commuting involutions of the cells: reversal of all axes, and exchanges of pairs of axes of one size.

    Each is a permutation of the cells as an array, shape (cells,), that is its inverse. An axis is exchanged at most
    once, so that all of them commute.
    """
    cells = np.arange(int(np.prod(shape))).reshape(shape)
    involutions = [np.flip(cells).reshape(-1)]
    free = list(range(len(shape)))

    while len(free) > 1:
        first = free.pop(0)
        partner = next((axis for axis in free if shape[axis] == shape[first]), None)
        if partner is not None:
            free.remove(partner)
            involutions.append(np.swapaxes(cells, first, partner).reshape(-1))

    return tuple(involutions)


def _leaves(rows: Floats, permutation: Integers) -> bool:
    """Return whether the permutation of the cells leaves the Gram matrix unchanged, tested on random vectors.

    G is unchanged if P G x = G P x for vectors x, with the permutation matrix P; G x is computed as Fᵀ(F x).
    """
    probes = np.random.default_rng(0).normal(size=(rows.shape[1], PROBES))
    straight = rows.T @ (rows @ probes)
    permuted = rows.T @ (rows @ probes[permutation])
    return bool(np.abs(straight[permutation] - permuted).max() <= TOLERANCE * np.abs(straight).max())


@lru_cache(maxsize=32)
def _orbits(shape: tuple[int, ...], kept: tuple[bool, ...]) -> _Orbits:
    """Return the orbits under the candidates that are kept.

    The least cell among the images of a cell represents its orbit. `members` lists the cells by their rank within an
    orbit, with the number of cells as padding; `rank` is the position in sorted order less the start of the orbit.
    """
    size = int(np.prod(shape))
    group = _group([image for image, own in zip(_candidates(shape), kept, strict=True) if own], size)
    representative = np.stack([image for image, _ in group]).min(axis=0)
    cells, orbit = np.unique(representative, return_inverse=True)
    order, counts = np.argsort(orbit, kind="stable"), np.bincount(orbit)
    members = np.full((counts.max(), len(cells)), size)
    rank = np.arange(size) - np.repeat(np.cumsum(counts) - counts, counts)
    members[rank, orbit[order]] = order
    signs = tuple(_signs(group, cells, orbit, character) for character in product((1, -1), repeat=sum(kept)))

    return _Orbits(orbit.astype(np.int64), members, signs)


def _group(permutations: list[Integers], size: int) -> list[tuple[Integers, tuple[int, ...]]]:
    """Return all products of the involutions, each with its exponents.

    `permutations` are commuting involutions of the cells, so each occurs in a product at most once.
    """
    group = []
    for exponents in product((0, 1), repeat=len(permutations)):
        image = np.arange(size)
        for permutation, exponent in zip(permutations, exponents, strict=True):
            image = permutation[image] if exponent else image
        group.append((image, exponents))
    return group


def _signs(
    group: list[tuple[Integers, tuple[int, ...]]], cells: Integers, orbit: Integers, character: tuple[int, ...]
) -> Floats:
    """Return the sign of a character's functions on every cell, 0 if an element that fixes the cell changes it.

    A function of the character χ has at the image g(c) the value χ(g) times that at c. The sum of χ(g) over the
    elements with g(c) = c is 0 if one of them changes the sign.
    """
    sign = np.zeros(len(orbit))
    for image, exponents in group:
        np.add.at(sign, image[cells], float(np.prod([c**e for c, e in zip(character, exponents, strict=True)])))
    return np.sign(np.rint(sign))


def _block(rows: Floats, orbits: _Orbits, sign: Floats) -> SymmetryBlock | None:
    """Return the block of one character: the rows projected on the functions that transform by it, compressed."""
    projected = _projected(rows, orbits, sign)
    if (projected**2).sum() <= TOLERANCE * (rows**2).sum():
        return None
    return SymmetryBlock(compressed(projected) / orbits.roots, sign)


def _block_of_gram(gram: Floats, orbits: _Orbits, sign: Floats) -> SymmetryBlock | None:
    """Return the block of one character from the Gram matrix, which is smaller than rows that outnumber the cells.

    `sign` is the character: the sign of each cell under the permutations. A block without queries is None; the rows are
    divided by the roots of the sizes of the orbits.
    """
    projected = _projected(_projected(gram, orbits, sign).T, orbits, sign)
    if np.trace(projected) <= TOLERANCE * np.trace(gram):
        return None
    return SymmetryBlock(root_of(projected) / orbits.roots, sign)


def _projected(rows: Floats, orbits: _Orbits, sign: Floats) -> Floats:
    """Return rows projected on the functions of a character, shape (r, orbits).

    Entry o of a row is Σ over the cells c of the orbit o of sign_c · row_c, divided by √(cells of the orbit), so that
    the functions of the orbits are orthonormal. Padding refers to the last row of `signed`, which is 0.
    """
    signed = np.zeros((len(sign) + 1, len(rows)))  # cells as rows, because whole rows are selected
    np.multiply(rows.T, sign[:, None], out=signed[:-1])
    total = signed[orbits.members[0]]
    for members in orbits.members[1:]:
        total += signed[members]
    return np.asarray(total.T / orbits.roots)
