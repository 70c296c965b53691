"""Query families: their common interface, and families of queries over whole attribute sets."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Collection, Sequence
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Self

from dpscale.base.errors import JobError, PlanError
from dpscale.base.numerics import AttributeSet, Floats
from dpscale.base.settings import Settings
from dpscale.domain import Domain

MOST_ENTRIES = 1 << 28  # of the queries of a joint family
Shape = tuple[int, ...]


class End(NamedTuple):
    """A cell that names a query: its column in files, the end of its column's name in tables, and a description."""

    column: str
    suffix: str
    description: str
    is_text: bool = False  # a text of the query, not the label of a cell


VALUE = End("value", "", "label that the query asks for; null: missing values")
FIRST = End("low", "from", "label of the first value that the query counts, or lower end of the 95 % interval")
LAST = End("high", "to", "label of the last value that the query counts, or upper end of the 95 % interval")


class Statistic(NamedTuple):
    """Statistic of a number that follows from linear queries (`dpscale.workload.sums`).

    Attributes
    ----------
    power : {1, 2}
        Power of the column's unit: 1 for a mean, 2 for a variance.
    centre, half_range : float
        Those of the values of the number's cells.
    limit : float
        Largest distance of a value from the centre, in half ranges.
    clipped : tuple of float
        Upper limits of the parts of a mean that are clipped below and above the range.
    """

    power: int
    centre: float
    half_range: float
    limit: float = 1.0
    clipped: tuple[float, float] = (0.0, 0.0)


class QueryFamily(Settings):
    """Family of queries. Its parameters are fields, which a job and `Workload.add` set by their names.

    Attributes
    ----------
    name : str
        Name in job files, tables and stored results.
    cumulative : bool
        Whether the queries are running sums over the cells of an axis, or differences of two.
    needs_squares : bool
        Whether the squares of a number are queried.
    """

    name: ClassVar[str]
    cumulative: ClassVar[bool] = False
    needs_squares: ClassVar[bool] = False

    @property
    def parameters(self) -> dict[str, Any]:
        """Parameters by name, as in a job file."""
        return self.model_dump(mode="json")

    @property
    def Options(self) -> type[QueryFamily]:  # noqa: N802
        """Model of the parameters."""
        return type(self)

    @cached_property
    def key(self) -> str:
        """Text that identifies the queries: the name with the values of the parameters."""
        return "/".join([self.name, *map(repr, self.parameters.values())])

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return self is other or (type(self) is type(other) and self.key == other.key)  # type: ignore[attr-defined]

    @property
    def title(self) -> str:
        """Name of the queries in tables and stored results."""
        return self.name

    def distinct(self, names: Collection[str]) -> Self:
        """Return the family with a title that is not among `names`, if it has a choice."""
        return self

    def own_sets(self, domain: Domain) -> tuple[AttributeSet, ...] | None:
        """Return the attribute sets that the parameters determine; None if they are given with the family."""
        return None

    def domain_for(self, domain: Domain) -> Domain:
        """Return the domain with the cells that the queries need."""
        return domain

    def extended(self, domain: Domain, names: AttributeSet) -> AttributeSet:
        """Return a requested attribute set with the number that the queries sum, if any."""
        return names

    def shown(self, names: AttributeSet) -> AttributeSet:
        """Return the names that identify a query of a set: without a number that the queries sum."""
        return names

    def checked_for(self, domain: Domain, sets: Sequence[AttributeSet]) -> Self:
        """Return the family with checked parameters; raise JobError for unsuitable attribute sets."""
        return self


class JointFamily(QueryFamily):
    """Family over whole attribute sets.

    Attributes
    ----------
    degree : int or None
        Required number of attributes; None for any.
    invariant : bool
        Whether the plain mean is the best average of every axis, at least in distribution.
    exchangeable : bool
        Whether every query over two attributes of equal size is invariant under their exchange.
    """

    degree: ClassVar[int | None] = None
    invariant: ClassVar[bool] = False
    exchangeable: ClassVar[bool] = False

    @abstractmethod
    def count(self, shape: Shape) -> int:
        """Return the number m of queries on a shape."""

    @abstractmethod
    def queries(self, shape: Shape) -> Floats:
        """Return all queries on a shape, shape (m, *shape)."""

    def levels(self, shape: Shape) -> Floats | None:
        """Return the level sets whose running sums are the queries: 0/1, shape (m, *shape); None if it has none."""
        return None

    def pools(self, sets: int) -> bool:
        """Return whether the attributes of this number of sets are of one kind in the search of axis weights."""
        return True

    def checked_for(self, domain: Domain, sets: Sequence[AttributeSet]) -> Self:
        for attributes in sets:
            if self.degree is not None and len(attributes) != self.degree:
                got = f"{len(attributes)} attributes for family {self.name!r}"
                raise JobError("workload.degree", got, f"{self.degree} attributes", f"write degree = {self.degree}")
        return self

    def check_size(self, shape: Shape) -> None:
        """Raise PlanError if the queries are too many for an array, before it is built."""
        if math.prod(shape) * self.count(shape) > MOST_ENTRIES:
            takes = f"queries of at most {MOST_ENTRIES} entries in total"
            raise PlanError(
                "workload", f"family {self.name} on {math.prod(shape)} cells", takes, "coarsen the attributes"
            )
