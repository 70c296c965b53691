"""Tables over sets of attributes in one flat vector, row-major, with the arguments of the compiled loops."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dpscale.base.numerics import Floats, Integers, Integers32
from dpscale.synthesis import loops


@dataclass(frozen=True, eq=False)
class SetLayout:
    """Layout of tables over sets of any number of attributes.

    Attributes
    ----------
    sizes : ndarray of int64, shape (d,)
        Number of values of every attribute.
    sets : tuple of tuple of int
        Attributes of each set, ascending.
    """

    sizes: Integers
    sets: tuple[tuple[int, ...], ...]

    @cached_property
    def ends(self) -> Integers:
        """Start of each table, and the end of the last, shape (t + 1,)."""
        return np.cumsum([0, *(math.prod(self.shape(number)) for number in range(len(self.sets)))], dtype=np.int64)

    @property
    def cells(self) -> int:
        """Number of entries of a flat vector."""
        return int(self.ends[-1])

    def shape(self, number: int) -> tuple[int, ...]:
        """Return the shape of a table."""
        return tuple(self.sizes[list(self.sets[number])].tolist())

    def of(self, vector: Floats, number: int) -> Floats:
        """Return a view of a table."""
        return vector[self.ends[number] : self.ends[number + 1]].reshape(self.shape(number))

    def count(self, rows: Integers32, weights: Floats | None = None) -> Floats:
        """Return the number of rows in every cell, flat, or the sum of their weights."""
        counts = np.zeros(self.cells)
        loops.count_sets(rows, np.ones(len(rows)) if weights is None else weights, self.members, counts)
        return counts

    @cached_property
    def members(self) -> Integers:
        """Start of each table, then its attributes with their strides, shape (t, 1 + 2 · most); 0 where unused."""
        lines = np.zeros((len(self.sets), 1 + 2 * max(map(len, self.sets), default=0)), np.int64)
        lines[:, 0] = self.ends[:-1]
        for number, columns in enumerate(self.sets):
            shape = self.shape(number)
            strides = [math.prod(shape[place + 1 :]) for place in range(len(columns))]
            lines[number, 1 : 1 + 2 * len(columns)] = np.stack([columns, strides], axis=1).reshape(-1)
        return lines

    @cached_property
    def degrees(self) -> Integers:
        """Number of sets that contain each attribute, shape (d,)."""
        members = np.array([i for columns in self.sets for i in columns], np.int64)
        return np.bincount(members, minlength=len(self.sizes)).astype(np.int64)

    @cached_property
    def around(self) -> Integers:
        """Tables of every attribute i as arguments of the loops, shape (d, most, 2 + 2 · others); 0 where unused.

        A line is the start of the table and the stride of i, then the other attributes with their strides.
        """
        most, width = max(1, self.degrees.max(initial=0)), max(2, self.members.shape[1] - 1)
        lines = np.zeros((len(self.sizes), most, width), np.int64)
        filled = np.zeros(len(self.sizes), np.int64)
        for columns, row in zip(self.sets, self.members.tolist(), strict=True):
            for place, i in enumerate(columns):
                pair = 1 + 2 * place
                line = [row[0], row[pair + 1], *row[1:pair], *row[pair + 2 :]]
                lines[i, filled[i], : len(line)] = line
                filled[i] += 1

        return lines
