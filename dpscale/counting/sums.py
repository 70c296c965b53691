"""Counts on the cells of numbers, to which a record belongs in parts, and of other attributes.

A record adds its parts to the cells of a number (`dpscale.domain.number`), and with several numbers their products. One
number without squares needs only the records with a value, the sum of their steps and the number of nulls. A joint
holds these three in the bits of one 64-bit word, so that a row costs one addition; words are emptied before a field can
overflow:

    c = ⌊(64 − bits of R)/fields⌋ bits for each number of records, the other bits for the sum of at most 2^c − 1 rows.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np

from dpscale.base.numerics import Integers, LazyModule, NDArray, Words
from dpscale.counting.program import NumberSteps, Steps
from dpscale.domain import Number

kernels = LazyModule("dpscale.counting.kernels")  # numba

BLOCK = 1 << 14  # rows whose parts and counters stay in the cache
WORD = 64  # bits of the word that holds the sums of a cell
FEWEST = 1 << 15  # rows between two times at which words are emptied; below it parts are added one by one


class SumCounter:
    """Counter of the sets with the same numbers; private, so its repr shows no counts.

    Parameters
    ----------
    sums : NumberSteps
    flat : ndarray of int64
        Counters of all sets of the program.
    """

    def __init__(self, sums: NumberSteps, flat: Integers) -> None:
        """Allocate joint counters beside those in `flat`; words are used if `Packing.of` returns a packing."""
        self._sums, self._flat, self._rows = sums, flat, 0
        self._joint = np.zeros(sums.joint_cells, dtype=np.int64)
        self._packing = Packing.of(sums)
        self._words = np.zeros(sums.joint_cells // sums.cells if self._packing else 0, dtype=np.uint64)

    def __repr__(self) -> str:
        return f"SumCounter of {self._sums.joint_cells} cells"

    def add(self, codes: NDArray[Any], total: int) -> None:
        """Count rows; `codes` has shape (attributes, rows), and `total` rows have been added with them.

        `_packing`, if not None, adds sum and number of records of joints in one word. Otherwise parts are added in
        blocks of BLOCK rows.
        """
        sums = self._sums
        if self._packing and sums.joints:
            self._add_words(codes, self._packing)
        one_by_one = (sums.direct, self._flat), *([] if self._packing else [(sums.joints, self._joint)])
        if sums.direct or len(sums.alone) or not self._packing:
            for first in range(0, codes.shape[1], BLOCK):
                self._add_parts(codes[:, first : first + BLOCK], one_by_one, total)

    def finish(self) -> None:
        """Add the joints to the counters of the sets."""
        self._empty_words()
        if self._sums.folds:
            self._sums.folds.apply(self._joint, self._flat)

    def _add_words(self, codes: NDArray[Any], packing: Packing) -> None:
        """Add the numbers of rows to sums, several of which are packed in a word.

        Words are emptied into the counters before a sum can overflow.

        `packing.most` is the number of rows after which a field of a word could overflow.
        """
        for first in range(0, codes.shape[1], packing.most):
            block = codes[:, first : first + packing.most]
            if self._rows + block.shape[1] > packing.most:
                self._empty_words()
            self._rows += block.shape[1]
            words = packing.words(block[self._sums.columns[0]])

            for steps in self._sums.joints:
                length = min(block.shape[1], steps.block)
                for start in range(0, block.shape[1], length):
                    part = slice(start, start + length)
                    kernels.add_words(
                        block[:, part], words[part], steps.columns, steps.sizes, steps.starts, steps.shared,
                        steps.offsets // self._sums.cells, self._words, steps.levels(length),
                    )  # fmt: skip

    def _empty_words(self) -> None:
        """Add the words to the joint counters and set them to 0, before a field of a word can overflow."""
        if self._packing and self._rows:
            self._packing.unpack(self._words, self._joint.reshape(-1, self._sums.cells))
            self._words[:] = 0
        self._rows = 0

    def _add_parts(
        self, codes: NDArray[Any], groups: tuple[tuple[tuple[Steps, ...], Integers], ...], total: int
    ) -> None:
        """Add the parts of records on the cells of the numbers to the counters of each set.

        The parts of several numbers multiply. `groups` has pairs of steps and counters; `total` is the number of rows
        so far.

        `parts` has shape (rows, cells of the numbers).
        """
        numbers = zip(self._sums.columns, self._sums.numbers, strict=True)
        parts = reduce(_multiply, [number.parts(codes[column]) for column, number in numbers])
        for steps, counters in groups:
            for step in steps:
                if step.is_small(total):
                    for places in step.places(codes, parts.shape[1]):
                        np.add.at(counters, places[:, None] + np.arange(parts.shape[1]), parts)
                    continue
                kernels.add_parts(codes, parts, step.columns, step.sizes, step.starts, step.shared, step.offsets,
                                  counters, step.levels(BLOCK))  # fmt: skip

        sums = parts.sum(axis=0)
        for place in self._sums.alone.tolist():
            self._flat[place : place + len(sums)] += sums


class Packing:
    """Fields of a word: records with a value, nulls if they are skipped, and the sum of steps in the lowest bits.

    Attributes
    ----------
    most : int
        Largest number of rows between two times at which words are emptied.
    """

    def __init__(self, number: Number) -> None:
        """Divide a word into fields: the counts of records and of nulls have `_width` bits, the sum has the rest.

        A record adds at most `number.steps` to the sum. So the sum of 2^`_width` − 1 records needs `_width` bits more
        than `number.steps` has. This field and the counts, `number.size` fields in all, fit into WORD bits.
        """
        fields = number.size
        self.number, self._width = number, (WORD - number.steps.bit_length()) // fields
        self.most = (1 << self._width) - 1
        self._record, self._null = 1 << (WORD - self._width), 1 << (WORD - 2 * self._width)
        self._sum = (1 << (WORD - self._width * (fields - 1))) - 1

    @classmethod
    def of(cls, sums: NumberSteps) -> Packing | None:
        """Return the packing of the only number; None for several numbers, squares or too many steps.

        `most` is the number of rows that a word can count before it overflows; below FEWEST the packing does not pay.
        """
        if len(sums.numbers) > 1 or sums.numbers[0].squares:
            return None
        packing = cls(sums.numbers[0])
        return packing if packing.most >= FEWEST else None

    def words(self, codes: NDArray[Any]) -> Words:
        """Return the addend of each row to the word of its cell.

        An addend is the step of the value plus `_record`, the unit of the count of records; a missing value, whose code
        is above the steps, adds `_null` only.
        """
        steps = codes.astype(np.uint64)
        if self.number.null_cell < 0:
            return steps + np.uint64(self._record)
        return np.where(steps > self.number.steps, np.uint64(self._null), steps + np.uint64(self._record))

    def unpack(self, words: Words, counts: Integers) -> None:
        """Add words to counts, shape (cells, cells of the number).

        The highest bits of a word are the number of records, the next ones that of nulls, and the lowest the sum of
        steps. A record adds its steps to the cell of the high end and the rest of `number.steps` to that of the low
        end.
        """
        records, sums = (words >> np.uint64(WORD - self._width)).astype(np.int64), words & np.uint64(self._sum)
        high = self.number.high_part(sums.astype(np.int64), records)
        counts[:, 1] += high
        counts[:, 0] += self.number.steps * records - high
        if self.number.null_cell >= 0:
            nulls = (words >> np.uint64(WORD - 2 * self._width)) & np.uint64(self.most)
            counts[:, 2] += self.number.steps * nulls.astype(np.int64)


def _multiply(left: Integers, right: Integers) -> Integers:
    """Return the parts of each row on the cells of two sets of numbers."""
    return (left[:, :, None] * right[:, None, :]).reshape(len(left), -1)
