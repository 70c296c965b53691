"""Conditions on records as products of sets of cells.

A condition joined by AND is a product: the cells of each attribute that it admits. OR and NOT over several attributes
are one set of cells of these attributes together. NOT is moved to single comparisons first, which are unknown for
nulls, so that a record counts where the condition is true.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from dpscale.base.numerics import AttributeSet, Flags
from dpscale.domain import Domain
from dpscale.workload.predicates import MOST_CELLS
from dpscale.workload.sql.cells import CellValues
from dpscale.workload.sql.scope import Scope
from dpscale.workload.sql.statements import exp


@dataclass(frozen=True, eq=False)
class CellCondition:
    """TermProduct of sets of cells of disjoint attribute sets; without factors every record satisfies it.

    Attributes
    ----------
    factors : mapping of AttributeSet to ndarray of bool
        With one axis for each attribute of a set, in domain order.
    """

    factors: Mapping[AttributeSet, Flags] = field(default_factory=dict)

    @cached_property
    def key(self) -> tuple[object, ...]:
        """Value that is equal for equal conditions."""
        return tuple(sorted((names, flags.tobytes()) for names, flags in self.factors.items()))

    @property
    def names(self) -> set[str]:
        """Attributes of the condition."""
        return {name for names in self.factors for name in names}

    @property
    def never(self) -> bool:
        """Whether no cell satisfies the condition."""
        return any(not flags.any() for flags in self.factors.values())

    def within(self, other: CellCondition) -> bool:
        """Return whether every record that satisfies the condition plainly satisfies another one too."""
        return all(names in self.factors and not (self.factors[names] & ~flags).any()
                   for names, flags in other.factors.items())  # fmt: skip


ALWAYS = CellCondition()


class Conditions:
    """Conditions of a statement.

    Parameters
    ----------
    scope : Scope
    """

    def __init__(self, scope: Scope) -> None:
        self.scope, self.domain = scope, scope.domain

    def read(self, node: Any, negated: bool = False) -> CellCondition:
        """Return the records for which a condition is true, or false.

        A condition without attributes is a constant; one on several attributes is a comparison or a range, which is
        read as two comparisons.

        Raises
        ------
        JobError
            If the condition cannot be evaluated on the cells of the domain.
        """
        match node:
            case exp.Paren() | exp.Where():
                return self.read(node.this, negated)
            case exp.Not():
                return self.read(node.this, not negated)
            case exp.And() | exp.Or():
                left, right = self.read(node.left, negated), self.read(node.right, negated)
                join = self.both if isinstance(node, exp.And) != negated else self.either  # NOT exchanges AND and OR
                return join(node, left, right)
            case exp.Between() if len(self.scope.names(node)) > 1 and not node.args.get("symmetric"):
                low, high = (make(this=node.this, expression=node.args[end])
                             for make, end in ((exp.GTE, "low"), (exp.LTE, "high")))  # fmt: skip
                return self.read(exp.And(this=low, expression=high), negated)
        names = self.scope.names(node)
        if len(names) > 1:
            return self._compared(node, names, negated)

        # one attribute: the truth of the condition in each cell
        truth = CellValues(self.scope, self.domain[names[0]] if names else None).truth(node)
        chosen = (~truth if negated else truth).true
        if not names:
            return ALWAYS if chosen[0] else self.nothing()
        return ALWAYS if chosen.all() else CellCondition({names: chosen})

    def is_never(self, condition: CellCondition) -> bool:
        """Return whether no cell satisfies a condition, whatever cells the searches of its attributes find.

        Those that were found may satisfy none of the condition: then its count is 0.
        """
        searched = set(self.domain.discovered)
        return any(not flags.any() and searched.isdisjoint(names) for names, flags in condition.factors.items())

    def nothing(self) -> CellCondition:
        """Return the condition that no record satisfies."""
        name = self.domain.names[0]
        return CellCondition({(name,): np.zeros(self.domain[name].size, np.bool_)})

    def both(self, node: Any, *parts: CellCondition) -> CellCondition:
        """Return the conjunction of conditions; factors with a common attribute are joined."""
        factors: dict[AttributeSet, Flags] = {}
        for part in parts:
            for names, flags in part.factors.items():
                overlapping = [others for others in factors if set(others) & set(names)]
                for others in overlapping:
                    names, flags = self._joined(node, (names, flags), (others, factors.pop(others)), np.logical_and)
                factors[names] = flags
        return CellCondition(factors)

    def either(self, node: Any, *parts: CellCondition) -> CellCondition:
        """Return the disjunction of conditions, over all their attributes together."""
        possible = [part for part in parts if not part.never]
        if not possible:
            return self.nothing()
        if any(not part.factors for part in possible):
            return ALWAYS
        names, flags = self._whole(node, possible[0])
        for part in possible[1:]:
            names, flags = self._joined(node, (names, flags), self._whole(node, part), np.logical_or)
        return ALWAYS if flags.all() else CellCondition({names: flags})

    def known(self, name: str) -> CellCondition:
        """Return the records whose attribute is not null."""
        attribute = self.domain[name]
        if attribute.null_cell < 0:
            return ALWAYS
        return CellCondition({(name,): np.arange(attribute.size) != attribute.null_cell})

    def _whole(self, node: Any, part: CellCondition) -> tuple[AttributeSet, Flags]:
        """Return a condition as one array of flags over the cells of all its attributes."""
        first, *rest = part.factors.items()
        for other in rest:
            first = self._joined(node, first, other, np.logical_and)
        return first

    def _joined(
        self, node: Any, first: tuple[AttributeSet, Flags], second: tuple[AttributeSet, Flags], join: Any
    ) -> tuple[AttributeSet, Flags]:
        """Return two conditions joined by a function of flags, over the cells of the attributes of both.

        `join` is the function, such as AND of flags; `spread` repeats flags over the attributes that a condition lacks.
        """
        (names, flags), (other_names, other_flags) = first, second
        union = self.domain.ordered({*names, *other_names})
        self._check_cells(node, union)
        return union, join(
            spread(self.domain, names, union, flags), spread(self.domain, other_names, union, other_flags)
        )

    def _check_cells(self, node: Any, names: AttributeSet) -> None:
        """Raise JobError for a condition over several attributes with too many cells together."""
        cells = self.domain.cells(names)
        if cells > MOST_CELLS and len(names) > 1:
            self.scope.statement.refuse(node, f"at most {MOST_CELLS:,} cells of attributes that OR joins",
                                        "join conditions on single attributes by AND, or list values with IN",
                                        f"over {cells:,} cells of {', '.join(names)}")  # fmt: skip

    def _compared(self, node: Any, names: AttributeSet, negated: bool) -> CellCondition:
        """Return the records for which a comparison of two attributes is true, or false if `negated`.

        `names` are the two attributes in the order of the domain. The condition is an array over all pairs of their
        cells.
        """
        if type(node).__name__ not in ("EQ", "NEQ", "LT", "LTE", "GT", "GTE"):
            self.scope.statement.refuse(node, "a condition on one attribute, or a comparison of two",
                                        "join conditions by AND and OR")  # fmt: skip
        sides = [self.scope.names(side) for side in (node.left, node.right)]
        if any(len(side) != 1 for side in sides):
            self.scope.statement.refuse(node, "a comparison of two attributes", "compare one attribute at a time")
        self._check_cells(node, names)
        values = [CellValues(self.scope, self.domain[side[0]]).values(part)
                  for side, part in zip(sides, (node.left, node.right), strict=True)]  # fmt: skip
        first, second = values
        pairs = [(a, b) for a in first for b in second]
        truth = CellValues(self.scope, None).compared(node, [a for a, _ in pairs], [b for _, b in pairs])
        # a comparison that is unknown is neither, so it counts in no case
        chosen = (~truth if negated else truth).true.reshape(len(first), len(second))
        # axes in the order of the domain
        return CellCondition({names: chosen if sides[0] + sides[1] == names else chosen.T})


def spread(domain: Domain, names: AttributeSet, wanted: AttributeSet, flags: Flags) -> Flags:
    """Return flags over some attributes with one axis for every attribute of a larger set."""
    shape = [domain[name].size if name in names else 1 for name in wanted]
    return np.broadcast_to(flags.reshape(shape), domain.shape(wanted))
