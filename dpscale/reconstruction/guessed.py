"""Values without noise of the blocks of a plan on a public guess of the table, in which attributes are independent.

Estimates from these values have the errors of the plan. So errors of ratios, quantiles and coefficients, which depend
on the table, are expected before any data are read. With the share p_a of the records in each cell of attribute a and N
records, a block of the factors K_a has the values N ⊗_a K_a p_a.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce

import numpy as np

from dpscale.base.display import safe_repr
from dpscale.base.errors import JobError
from dpscale.base.numerics import Floats
from dpscale.domain import Domain
from dpscale.domain.number import Number
from dpscale.plans.blocks import Block, Blocks

Shares = Mapping[str, Sequence[float]]
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
    shares : mapping of str to sequence of float
        Guessed share of the records in each cell, by attribute; even for the others. Above a level of a hierarchy the
        shares are those of its leaves.
    """

    domain: Domain
    blocks: Blocks
    rows: float
    shares: Shares = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse a number of rows that is not above 0, and shares that do not fit their attribute."""
        if not self.rows > 0:
            raise JobError("rows", safe_repr(self.rows), "a number above 0", "give a public guess")
        for name in self.shares:
            self.domain.attribute(name)
            self._share(name)

    def __getitem__(self, index: int) -> Floats:
        """Return what a block would measure without noise, if attributes were independent with the guessed shares."""
        block = self.blocks[index]
        cells = [self._cells(block, name) for name in block.attributes]
        if block.joint:
            whole = reduce(np.multiply.outer, cells, np.full((), float(self.rows)))
            return np.asarray(block.factors[0].apply(whole.reshape(-1))).reshape(block.rows)
        vectors = [np.asarray(factor.apply(own)) for factor, own in zip(block.factors, cells, strict=True)]
        return np.asarray(reduce(np.multiply.outer, vectors, np.full((), float(self.rows))))

    def _cells(self, block: Block, name: str) -> Floats:
        """Return the share of the records in each cell of an attribute, or in each class of merged cells."""
        share = self._share(name)
        if block.merged is None or name not in block.merged.classes:
            return share
        return np.asarray(np.bincount(block.merged.classes[name], share), np.float64)

    def _share(self, name: str) -> Floats:
        """Return the shares of an attribute's cells: guessed, those of the leaves of its hierarchy, or even ones."""
        axis, tree = self.domain[name], self.domain.hierarchy_of(name)
        if isinstance(axis, Number):
            inside = SPLINES if axis.squares else np.full(axis.listed, 1 / axis.listed)
            return np.append(inside, np.zeros(axis.size - axis.listed))
        if name in self.shares:
            given = np.asarray(self.shares[name], np.float64)
            if given.shape != (axis.size,) or not (given >= 0).all() or not given.sum() > 0:
                raise JobError("shares", f"those of {name}", f"{axis.size} numbers of at least 0",
                               "give one for each cell")  # fmt: skip
            return given / given.sum()
        if tree is not None and name != tree.leaf:
            return np.asarray(np.bincount(tree.ancestors(name), self._share(tree.leaf), axis.size), np.float64)
        return np.full(axis.size, 1 / axis.size)
