"""Searches for the cells of attributes, one module for each kind of `dpscale.domain.search`.

A module has three functions: `plan(attribute, terms)` returns a plan with its exact `cost` and the `record` that
determines its draws; `search(plan, reader)` reads the rows, draws the noise, and returns the attribute with its cells
and the other released values; `summarize(attribute, released)` returns these for readers. The noise follows from the
secret, the record and the data, so a repeated search returns the same result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from dpscale.base.errors import JobError
from dpscale.base.numerics import Integers
from dpscale.discovery.reading import SearchRows
from dpscale.domain import Attribute, Domain
from dpscale.privacy.accounting import Cost
from dpscale.privacy.secret import SecretFile
from dpscale.records.table import Partition

if TYPE_CHECKING:
    from dpscale.engine.schedulers import Engine

SEARCHES: dict[str, str] = {
    "values": "dpscale.runs.searches.values",
    "edges": "dpscale.runs.searches.edges",
    "ends": "dpscale.runs.searches.ends",
    "nodes": "dpscale.runs.searches.nodes",
}


@dataclass(frozen=True)
class SearchTerms:
    """Terms of one search.

    Attributes
    ----------
    share : Fraction
        Squared mu.
    delta : Fraction
        Largest additive delta.
    rows_per_unit : int
        Contribution bound.
    public_rows : int, optional
        Number of rows, if it is public.
    groups : int
        Largest number of groups by which the attribute is summed, if it is a number.
    remaining : Fraction
        Squared mu of the release after the searches.
    """

    share: Fraction
    delta: Fraction
    rows_per_unit: int
    public_rows: int | None
    groups: int
    remaining: Fraction


class SearchPlan(Protocol):
    """Plan of a search."""

    @property
    def cost(self) -> Cost:
        """Exact cost to one privacy unit."""

    @property
    def record(self) -> dict[str, Any]:
        """Everything that determines the draws, in text and integers."""


Found = tuple[Attribute, dict[str, Any]]


@dataclass(frozen=True)
class SearchSummary:
    """Released values of a search, for readers.

    Attributes
    ----------
    title : str
        The cells that were searched, as the end of a sentence.
    facts : tuple of str
        Sentences.
    cells : tuple of (str, float, float)
        Label, estimated number of records and standard error of each found cell.
    """

    title: str
    facts: tuple[str, ...]
    cells: tuple[tuple[str, float, float], ...] = ()


@dataclass(frozen=True)
class SearchReader:
    """Access of a search to the rows and the noise key.

    Attributes
    ----------
    engine : Engine
    rows : SearchRows
    groups : sequence of tuple of Partition
        Partitions of each worker.
    dropped : mapping
        Rows of a partition that exceed the contribution bound, or handles of them.
    types : mapping of str to str
        "text" or "integer" for columns whose values are searched.
    secret : SecretFile
    head : mapping
        Release and snapshot, which begin every noise record.
    memory : int
        Memory setting, in bytes.
    unit : str, optional
        Column of the privacy unit.
    through : sequence
        Parts of the map from the values of this column to units, or handles of them.
    """

    engine: Engine
    rows: SearchRows
    groups: Sequence[tuple[Partition, ...]]
    dropped: Mapping[Partition, Any]
    types: Mapping[str, str]
    secret: SecretFile
    head: Mapping[str, Any]
    memory: int
    unit: str | None = None
    through: Sequence[Any] = ()

    def items(self, *arguments: Any) -> list[tuple[Any, ...]]:
        """Return the arguments of a task for each group: the given ones, its partitions and their dropped rows."""
        from dpscale.engine.counting import dropped_rows

        return [(*arguments, group, *dropped_rows(group, self.dropped)) for group in self.groups]

    def total(self, function: Callable[..., Any], request: Any, label: str) -> Integers:
        """Return the sum, over all rows, of the array that a function of the request and partitions returns."""
        handles = self.engine.reduce(function, self.items(request), 1, label)  # one array, so one handle
        [total] = self.engine.map(ExactCounts, [(handle,) for handle in handles], label)
        return np.asarray(total.values)


@dataclass(frozen=True, eq=False)
class ExactCounts:
    """Exact counts on their way to the driver. Private, so its repr shows nothing."""

    values: Integers = field(repr=False)


def plan_search(attribute: Attribute, terms: SearchTerms) -> SearchPlan:
    """Return the plan of an attribute's search."""
    found: SearchPlan = _module(attribute).plan(attribute, terms)
    return found


def perform_search(attribute: Attribute, plan: SearchPlan, reader: SearchReader) -> Found:
    """Read the rows, draw the noise and return the attribute with its cells."""
    found: Found = _module(attribute).search(plan, reader)
    return found


def summarize_searches(declared: Domain, found: Domain, released: Mapping[str, Any]) -> dict[str, SearchSummary]:
    """Return the summary of every search by attribute; `released` is the content of the record of a run."""
    return {one.name: _module(one).summarize(found[one.name], released[one.name]) for one in declared.searches}


def _module(attribute: Attribute) -> Any:
    """Return the module that performs the search of an attribute. Raises JobError for an unknown kind."""
    kind = attribute.search.kind if attribute.search is not None else ""
    if kind not in SEARCHES:
        raise JobError("domain", f"a search of kind {kind!r} for {attribute.name}", ", ".join(SEARCHES), "fix it")
    return import_module(SEARCHES[kind])
