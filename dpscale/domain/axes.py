"""Ordered attributes and numbers of a table, looked up by name: sizes of marginals, columns and positions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cached_property

from dpscale.base.display import nearest
from dpscale.base.errors import DomainError
from dpscale.domain.attribute import Attribute, check_size
from dpscale.domain.hierarchy import Hierarchy, hierarchies_of
from dpscale.domain.number import TOTAL, Number
from dpscale.domain.schema_values import check_names, check_names_list


class AxisIndex:
    """Attributes and numbers in order, by name.

    Parameters
    ----------
    axes : iterable of Attribute
        Numbers follow the attributes in any order.
    """

    def __init__(self, axes: Iterable[Attribute]) -> None:
        """Check names and sizes; the parameters are those of the class."""
        axes = tuple(axes)
        self.attributes = tuple(axis for axis in axes if not isinstance(axis, Number))
        self.numbers = tuple(axis for axis in axes if isinstance(axis, Number))
        self.axes = self.attributes + self.numbers
        if not self.attributes:
            raise DomainError("attributes", "none given", "at least one attribute", "add an [attributes.NAME] table")

        self._by_name = {a.name: a for a in self.axes}
        self._sizes = {a.name: a.size for a in self.axes}
        self._position = {a.name: i for i, a in enumerate(self.axes)}
        for attribute in self.attributes:
            check_size(attribute)
        check_names([a.name for a in self.axes])

    def __getitem__(self, name: str) -> Attribute:
        try:
            return self._by_name[name]
        except KeyError:
            raise DomainError(
                "attributes", f"no attribute {name!r}", "a name of the domain", nearest(name, self.axis_names)
            ) from None

    def __len__(self) -> int:
        return len(self.attributes)

    def is_shared(self, column: str) -> bool:
        """Return whether several attributes and numbers have their values in one column.

        Parameters
        ----------
        column : str

        Returns
        -------
        bool
        """
        return sum(column in self.columns([axis.name]) for axis in self.axes) > 1

    def columns(self, names: Iterable[str]) -> list[str]:
        """Return the columns from which attributes are read, each once.

        Parameters
        ----------
        names : iterable of str
            Attributes.

        Returns
        -------
        list of str
        """
        return list(dict.fromkeys(column for name in names for column in self[name].columns))

    @cached_property
    def alone(self) -> frozenset[str]:
        """Attributes read from the column of the same name, which no other attribute uses."""
        read = [column for axis in self.axes for column in axis.columns]
        own = [axis.name for axis in self.axes if axis.columns == (axis.name,) and axis.search is None]
        return frozenset(name for name in own if read.count(name) == 1)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the attributes, without numbers."""
        return tuple(a.name for a in self.attributes)

    @cached_property
    def axis_names(self) -> tuple[str, ...]:
        """Names of the attributes, then of the numbers: everything that a marginal can have an axis of."""
        return tuple(axis.name for axis in self.axes)

    @cached_property
    def number_names(self) -> frozenset[str]:
        return frozenset(number.name for number in self.numbers)

    def denominator(self, names: Iterable[str]) -> int:
        """Return the number of parts into which the cells of a marginal divide a record; 1 without numbers.

        Parameters
        ----------
        names : iterable of str

        Returns
        -------
        int
        """
        return math.prod(self._by_name[name].denominator for name in names)

    def attribute(self, name: str) -> Attribute:
        """Return an attribute.

        Parameters
        ----------
        name : str

        Returns
        -------
        Attribute

        Raises
        ------
        DomainError
            If the name is unknown or that of a number.
        """
        if name in self.number_names:
            raise DomainError("attributes", f"the number {name!r}", "an attribute", nearest(name, self.names))
        return self[name]

    def shape(self, names: Sequence[str]) -> tuple[int, ...]:
        """Return the numbers of cells of the named attributes.

        Parameters
        ----------
        names : sequence of str

        Returns
        -------
        tuple of int
            Sizes in the order of `names`.
        """
        check_names_list(names)
        try:
            return tuple([self._sizes[name] for name in names])
        except KeyError:  # look up each attribute for its error message
            return tuple(self[name].size for name in names)

    def cells(self, names: Sequence[str]) -> int:
        """Return the number of cells of the marginal on the named attributes.

        Parameters
        ----------
        names : sequence of str

        Returns
        -------
        int
        """
        return math.prod(self.shape(names))

    def cells_each(self, sets: Iterable[Sequence[str]]) -> list[int]:
        """Return the numbers of cells of several marginals.

        Parameters
        ----------
        sets : iterable of sequence of str
            Attribute sets.

        Returns
        -------
        list of int
        """
        return [math.prod(map(self._sizes.__getitem__, names)) for names in sets]

    def ordered(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return attribute names in the domain's order.

        Parameters
        ----------
        names : iterable of str

        Returns
        -------
        tuple of str

        Raises
        ------
        DomainError
            If a name is repeated or unknown.
        """
        check_names_list(names)
        names = tuple(names)
        for name in names:
            self[name]
        if len(set(names)) != len(names):
            raise DomainError("attributes", f"{', '.join(names)} repeats a name", "distinct names", "drop the repeat")
        return tuple(sorted(names, key=self._position.__getitem__))

    @cached_property
    def searches(self) -> tuple[Attribute, ...]:
        """Attributes and numbers whose cells are assumed, until a search finds them."""
        return tuple(axis for axis in self.axes if axis.search is not None)

    @cached_property
    def hierarchies(self) -> tuple[Hierarchy, ...]:
        """Hierarchies of attributes: levels of public trees, and nested parents of an attribute."""
        return hierarchies_of(self.attributes)

    def hierarchy_of(self, name: str) -> Hierarchy | None:
        """Return the hierarchy with a level of some name.

        Parameters
        ----------
        name : str

        Returns
        -------
        Hierarchy or None
        """
        return next((hierarchy for hierarchy in self.hierarchies if name in hierarchy.names), None)

    @cached_property
    def totals(self) -> tuple[Number, ...]:
        """Numbers whose ends bound the total of a privacy unit."""
        return tuple(number for number in self.numbers if number.per_unit == TOTAL)
