"""Values without noise of the blocks of a plan on a public guess of the table, of independent groups of attributes.

Estimates from these values have the errors of the plan. So errors of ratios, quantiles and coefficients, which depend
on the table, are expected before any data are read. With the shares p_g of the records in the joint cells of each group
g of attributes and N records, a block of the factors K_a has the values (⊗_a K_a) N ⊗_g p_g, summed over the attributes
of a group that the block lacks. An attribute that is in no guessed group is a group of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce

import numpy as np
from numpy.typing import ArrayLike

from dpscale.base.display import safe_repr
from dpscale.base.errors import JobError
from dpscale.base.numerics import AttributeSet, Floats, Integers
from dpscale.domain import Domain
from dpscale.domain.number import Number
from dpscale.plans.blocks import Block, Blocks

Shares = Mapping[str | AttributeSet, ArrayLike]
NO_SHARES: Shares = {}
SPLINES = np.array([1.0, 2.0, 2.0, 1.0]) / 6  # parts of even values on the cells of a number with squares


@dataclass(frozen=True, eq=False)
class GuessedValues:
    """Values of every block on a guessed table.

    Attributes
    ----------
    domain : Domain
    blocks : Blocks
    rows : float
        Guessed number of records.
    shares : mapping of str or tuple of str to array-like
        Guessed share of the records in each cell, by attribute, or in each joint cell of a tuple of attributes; even
        for the others. Above a level of a hierarchy the shares are those of its leaves.
    """

    domain: Domain
    blocks: Blocks
    rows: float
    shares: Shares = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse a number of rows that is not above 0, and shares that do not fit their attributes."""
        if not self.rows > 0:
            raise JobError("rows", safe_repr(self.rows), "a number above 0", "give a public guess")
        seen: set[str] = set()
        for key in self.shares:
            names = _names(key)
            for name in names:
                self.domain.attribute(name)
            if isinstance(key, tuple):
                self._refuse_levels(names)
            if repeated := sorted(seen & {*names}) or [name for name in names if names.count(name) > 1]:
                raise JobError("shares", f"{repeated[0]} twice", "each attribute once", "leave it out of the others")
            seen.update(names)
            self._given(key)

    def _refuse_levels(self, names: AttributeSet) -> None:
        """Refuse joint shares of numbers and of levels of a hierarchy."""
        for name in names:
            if isinstance(self.domain[name], Number) or self.domain.hierarchy_of(name) is not None:
                raise JobError("shares", f"joint shares with {name}", "attributes that are no numbers and no levels",
                               "give its shares alone")  # fmt: skip

    def __getitem__(self, index: int) -> Floats:
        """Return what a block would measure without noise on the guessed table.

        Factors are applied to the table of each group, before the product of the groups, which may be much larger.
        """
        block = self.blocks[index]
        groups = self._groups(block.attributes)
        tables = [self._table(block, names, table) for names, table in groups]
        product = np.asarray(reduce(np.multiply.outer, tables, np.full((), float(self.rows))))
        order = [name for names, _ in groups for name in names]
        values = np.transpose(product, [order.index(name) for name in block.attributes])
        if block.joint:
            return np.asarray(block.factors[0].apply(values.reshape(-1))).reshape(block.rows)
        return values

    def _groups(self, attributes: AttributeSet) -> list[tuple[AttributeSet, Floats]]:
        """Return the shares of the joint cells of some attributes, by independent groups of them."""
        groups: list[tuple[AttributeSet, Floats]] = []
        for key in self.shares:
            if isinstance(key, tuple) and not set(key).isdisjoint(attributes):
                others = tuple(axis for axis, name in enumerate(key) if name not in attributes)
                inside = tuple(name for name in key if name in attributes)
                groups.append((inside, self._given(key).sum(axis=others)))
        grouped = {name for names, _ in groups for name in names}
        return groups + [((name,), self._share(name)) for name in attributes if name not in grouped]

    def _table(self, block: Block, names: AttributeSet, table: Floats) -> Floats:
        """Return the shares of a group in classes of merged cells; factors are applied unless the block is joint."""
        for axis, name in enumerate(names):
            along = np.moveaxis(table, axis, 0)
            if block.merged is not None and name in block.merged.classes:
                along = _summed_over_classes(along, block.merged.classes[name])
            if not block.joint:
                along = np.asarray(block.factors[block.attributes.index(name)].apply(along))
            table = np.moveaxis(along, 0, axis)
        return table

    def _share(self, name: str) -> Floats:
        """Return the shares of an attribute's cells: guessed, those of the leaves of its hierarchy, or even ones."""
        axis, tree = self.domain[name], self.domain.hierarchy_of(name)
        if isinstance(axis, Number):
            inside = SPLINES if axis.squares else np.full(axis.listed, 1 / axis.listed)
            return np.append(inside, np.zeros(axis.size - axis.listed))
        if name in self.shares:
            return self._given(name)
        if tree is not None and name != tree.leaf:
            return np.asarray(np.bincount(tree.ancestors(name), self._share(tree.leaf), axis.size), np.float64)
        return np.full(axis.size, 1 / axis.size)

    def _given(self, key: str | AttributeSet) -> Floats:
        """Return guessed shares, of sum 1. Raises JobError if they do not fit the cells."""
        names = _names(key)
        shape = tuple(self.domain[name].size for name in names)
        try:
            shares = np.asarray(self.shares[key], np.float64)
        except (TypeError, ValueError):
            shares = np.zeros(0)
        if shares.shape != shape or not (np.isfinite(shares) & (shares >= 0)).all() or not shares.sum() > 0:
            cells = " x ".join(map(str, shape))
            raise JobError("shares", f"those of {', '.join(names)}", f"{cells} numbers of at least 0",
                           "give one for each cell")  # fmt: skip
        return shares / shares.sum()


def _names(key: str | AttributeSet) -> AttributeSet:
    return key if isinstance(key, tuple) else (key,)


def _summed_over_classes(table: Floats, classes: Integers) -> Floats:
    """Return the sums of the entries along the first axis whose cells have the same class."""
    sums = np.zeros((int(classes.max()) + 1, *table.shape[1:]))
    np.add.at(sums, classes, table)
    return sums
