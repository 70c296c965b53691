"""Symmetries of a Gram matrix, which cut its convex problem into small blocks.

Reversing every axis, or swapping two axes of one size, often leaves a Gram G unchanged (prefix, range, affine, abs and
their sums). The problem is convex, so its weights μ can then be taken constant on the orbits of the cells, and
D^½ G D^½ falls apart into a block for each sign that the commuting symmetries can have. A block's rows are given on one
cell of each orbit; on the others they are the same up to the sign.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from dpscale.workload.factors import root_of

Array = NDArray[np.float64]
Cells = NDArray[np.int64]
TOLERANCE = 1e-10


@dataclass(frozen=True)
class Block:
    """Rows on the orbits, (r, orbits), and their sign on every cell: ±1, or 0 where they vanish."""

    rows: Array
    sign: Array


@dataclass(frozen=True)
class Blocks:
    """A Gram in blocks; `orbit[c]` is the orbit of cell c."""

    blocks: tuple[Block, ...]
    orbit: Cells

    def expand(self, block: Block, rows: Array) -> Array:
        """Rows on the orbits as rows on all cells."""
        return np.asarray(rows[:, self.orbit] * block.sign)


def split(gram: Array, shape: tuple[int, ...]) -> Blocks:
    """The blocks of a Gram on the cells of `shape`."""
    group = _group([turn for turn in _candidates(shape) if _leaves(gram, turn)], len(gram))
    images = np.stack([cells for cells, _ in group])
    representative = images.min(axis=0)
    cells, orbit = np.unique(representative, return_inverse=True)
    blocks = []
    for character in product((1, -1), repeat=len(group[0][1])):
        block = _block(gram, group, cells, orbit.astype(np.int64), character)
        if block is not None:
            blocks.append(block)
    return Blocks(tuple(blocks), orbit.astype(np.int64))


def _candidates(shape: tuple[int, ...]) -> list[Cells]:
    """Involutions of the cells that commute: reverse all axes, swap pairs of axes of one size."""
    cells = np.arange(int(np.prod(shape))).reshape(shape)
    found = [np.flip(cells).reshape(-1)]
    free = list(range(len(shape)))
    while len(free) > 1:
        first = free.pop(0)
        partner = next((axis for axis in free if shape[axis] == shape[first]), None)
        if partner is not None:
            free.remove(partner)
            found.append(np.swapaxes(cells, first, partner).reshape(-1))
    return found


def _leaves(gram: Array, turn: Cells) -> bool:
    """Whether the Gram is unchanged when the cells are permuted."""
    return bool(np.abs(gram[np.ix_(turn, turn)] - gram).max() <= TOLERANCE * np.abs(gram).max())


def _group(turns: list[Cells], size: int) -> list[tuple[Cells, tuple[int, ...]]]:
    """All products of the involutions of so many cells, each with the exponents that it is made of."""
    group = []
    for exponents in product((0, 1), repeat=len(turns)):
        image = np.arange(size)
        for turn, exponent in zip(turns, exponents, strict=True):
            image = turn[image] if exponent else image
        group.append((image, exponents))
    return group


def _block(
    gram: Array, group: list[tuple[Cells, tuple[int, ...]]], cells: Cells, orbit: Cells, character: tuple[int, ...]
) -> Block | None:
    """The block of one character: rows R with RᵀR the Gram in the orthonormal basis of its functions."""
    weights = [float(np.prod([c**e for c, e in zip(character, exponents, strict=True)])) for _, exponents in group]
    sign = np.zeros(len(orbit))
    for (image, _), weight in zip(group, weights, strict=True):
        np.add.at(sign, image[cells], weight)
    sizes = np.bincount(orbit, minlength=len(cells))
    sign = np.sign(np.rint(sign))  # 0 where an element that fixes the cell would turn its sign
    if not sign.any():
        return None
    own = sum(w * gram[np.ix_(image[cells], cells)] for (image, _), w in zip(group, weights, strict=True)) / len(group)
    live = sign[cells] != 0
    reduced = np.sqrt(np.outer(sizes, sizes)) * own * np.outer(live, live)
    values = np.linalg.eigvalsh(reduced)
    if values[-1] <= TOLERANCE * np.abs(gram).max():
        return None
    return Block(root_of((reduced + reduced.T) / 2) / np.sqrt(sizes), sign * sign[cells][orbit])
