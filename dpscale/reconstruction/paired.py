"""Pairs of attributes in flat arrays, one after another: what loops over all of them take (`pair_loops`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dpscale.base.arrays import Floats, Integers
from dpscale.base.names import AttributeSet


@dataclass(frozen=True, eq=False)
class Ones:
    """1-ways of equal sums, `total`: attribute i's from at[i] to at[i + 1]; `number` of every attribute's name."""

    values: Floats
    at: Integers
    total: float
    number: Mapping[str, int]

    @classmethod
    def of(cls, ones: Mapping[str, Floats], total: float) -> Ones:
        at = np.cumsum([0, *(len(one_way) for one_way in ones.values())])
        return cls(np.concatenate(list(ones.values())), at, total, {name: i for i, name in enumerate(ones)})


@dataclass(frozen=True, eq=False)
class Paired:
    """Some pairs of attributes, by name."""

    ones: Ones
    names: Sequence[AttributeSet]

    @cached_property
    def pairs(self) -> Integers:
        """(pairs, 2): the attributes by number."""
        number = self.ones.number
        return np.array([(number[one], number[other]) for one, other in self.names], np.int64).reshape(-1, 2)

    @cached_property
    def starts(self) -> Integers:
        """Where each pair's cells begin, and where the last ends."""
        sizes = np.diff(self.ones.at)
        return np.cumsum(np.append(0, sizes[self.pairs[:, 0]] * sizes[self.pairs[:, 1]]))

    @property
    def placed(self) -> tuple[Floats, Integers, float, Integers, Integers]:
        """As the loops take it."""
        return self.ones.values, self.ones.at, self.ones.total, self.pairs, self.starts

    def independent(self) -> Floats:
        """The tables that independence gives."""
        from dpscale.reconstruction import pair_loops

        return np.asarray(pair_loops.products(*self.placed))

    def noisy(self, residuals: Floats, reference: Floats) -> Floats:
        """The noisy tables: their own centred residuals on the margins of what is expected."""
        from dpscale.reconstruction import pair_loops

        return np.asarray(pair_loops.noisy(residuals, reference, self.ones.at, self.pairs, self.starts))

    def fit(self, tables: Floats, rounds: int, tolerance: float) -> Floats:
        """The tables, fitted in place to their 1-ways."""
        from dpscale.reconstruction import pair_loops

        pair_loops.fit_every(tables, *self.placed, rounds, tolerance)
        return tables

    def apart(self, tables: Floats) -> dict[AttributeSet, Floats]:
        """Each pair's table, a view."""
        sizes, cuts = np.diff(self.ones.at)[self.pairs].tolist(), self.starts.tolist()
        spans = zip(self.names, sizes, cuts, cuts[1:], strict=False)
        return {names: tables[first:end].reshape(shape) for names, shape, first, end in spans}
