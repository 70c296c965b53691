"""Rows that cannot be are mended: the attribute that gives way takes a cell that is possible beside the others.

Estimates of data that obey the rules leave few such rows. The cell is drawn by the attribute's 1-way among the possible
ones; a row that no cell of any attribute in its rules can mend becomes a copy of one that is possible.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from dpscale.base.arrays import Floats, Integers32
from dpscale.base.errors import PlanError
from dpscale.domain.impossible import Column, Excludes, speaking
from dpscale.reconstruction.pairwise.chance import Chance

ROUNDS = 8


class Possible:
    """The rules over the attributes that rows have; one that names another attribute says nothing here."""

    def __init__(self, rules: Sequence[Excludes], names: Sequence[str], ones: Mapping[str, Floats]) -> None:
        self._names = list(names)
        self._rules = speaking(rules, names)
        self._shares = [ones[name] / ones[name].sum() for name in names]

    def broken(self, rows: Integers32) -> NDArray[np.bool_]:
        """(n,): which rows cannot be."""
        wrong = np.zeros(len(rows), np.bool_)
        for rule in self._rules:
            wrong |= rule.broken(self._columns(rows))
        return wrong

    def _columns(self, rows: Integers32) -> Column:
        return lambda name: rows[:, self._names.index(name)]

    def mended(self, rows: Integers32, chance: Chance) -> Integers32:
        """The rows with every impossible one mended. PlanError where none of them is possible."""
        rows = rows.copy()
        for number in range(ROUNDS):
            for rule in self._rules:
                wrong = np.flatnonzero(rule.broken(self._columns(rows)))
                if len(wrong):
                    column = self._names.index(rule.names[-1 - number % len(rule.names)])
                    rows[wrong, column] = self._drawn(rows[wrong], column, chance)
            if not self.broken(rows).any():
                return rows
        return self._copied(rows, chance)

    def _drawn(self, rows: Integers32, column: int, chance: Chance) -> Integers32:
        """A possible cell of one attribute for each row, where there is one."""
        weights = np.tile(np.maximum(self._shares[column], 1e-12), (len(rows), 1))
        name = self._names[column]
        for rule in self._rules:
            if name in rule.names:
                weights[rule.forbidden(name, self._columns(rows), weights.shape[1])] = 0
        reach = np.cumsum(weights, axis=1)
        points = chance.uniforms(len(rows)) * reach[:, -1]
        found = np.minimum((reach <= points[:, None]).sum(axis=1), weights.shape[1] - 1)
        return np.where(reach[:, -1] > 0, found, rows[:, column]).astype(np.int32)

    def _copied(self, rows: Integers32, chance: Chance) -> Integers32:
        wrong = self.broken(rows)
        sound = np.flatnonzero(~wrong)
        if not len(sound):
            raise PlanError("impossible", "rules that no row of these estimates can keep", "rules that leave something",
                            "look for one that names too many values")  # fmt: skip
        chosen = sound[(chance.uniforms(int(wrong.sum())) * len(sound)).astype(np.int64)]
        rows[wrong] = rows[chosen]
        return rows
