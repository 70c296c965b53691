"""Sums, means and record weights: queries on the two or three cells of a number (`dpscale.domain.number`).

The sum of a number is low · #low + high · #high, and the number of records with a value is #low + #high. With the
family `sum` every query of another family (default: the cells) is weighted by the number: Σ v over the records that it
counts. `mean` queries the number n of records with a value and their sum, and answers with the ratio
(`dpscale.answers.ratios`). With c the centre of the range, h half of it, t = (s − c n)/h and m = c + h t/n the mean,

    n² Var(m) = h² Var(t − τ n)  to first order,   τ = (m − c)/h in −1 … 1.

So `mean` plans t with the weight of the part, and n with a third of it: the average of τ² if means are uniform on the
range. `variance` also queries q = Σ ((v − c)/h)²; with κ = q/n the variance is h² (κ − τ²), and to first order

    n² Var(h² (κ − τ²)) = h⁴ Var(q − 2τ t − (κ − 2τ²) n),

so the weights of t and n are 4/3 and about 1/5 of that of q. Weights of sums and means refer to answers divided by h,
in which a record is at most 1 from the centre; so they compare with weights of counts.
"""

from __future__ import annotations

import math
import re
from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from itertools import combinations
from typing import Any, ClassVar, Self

import numpy as np
from pydantic import PrivateAttr

from dpscale.base.display import nearest, safe_repr
from dpscale.base.errors import JobError
from dpscale.base.numerics import AttributeSet, Floats, Integers
from dpscale.base.settings import setting
from dpscale.domain import Domain
from dpscale.domain.number import Number
from dpscale.workload.family import End, Family, ProductFamily, QueryFamily, Statistic
from dpscale.workload.listed import LABEL, PREDICATE, QueryTexts
from dpscale.workload.one_way import CIRCULAR, MARGINAL, PREFIX, RANGE

SUM = "sum"
FARTHEST = 10**5  # of the centre of a summed range, in units of half the range
OTHERS: dict[str, Family] = {one.name: one for one in (MARGINAL, PREFIX, RANGE, CIRCULAR)}


class ValueQueries(Family):
    """Queries on the cells of a number, such as its sum, with a weight for each.

    Attributes
    ----------
    listed : tuple of str
        Name of each query.
    rows : tuple of tuple of float
        Entries of each query on the cells.
    unit : float
        Size of an answer that compares with one record.
    """

    name = "values"
    ends = (PREDICATE,)
    listed: tuple[str, ...]
    rows: tuple[tuple[float, ...], ...]
    unit: float = 1.0

    @property
    def texts(self) -> tuple[str, ...]:
        return self.listed

    @property
    def unit_weight(self) -> float:
        return self.unit**-2.0

    @property
    def array(self) -> Floats:
        return np.array(self.rows)

    @property
    def are_counts(self) -> bool:
        return bool(np.isin(self.array, (0, 1)).all())

    @property
    def is_integral(self) -> bool:
        return bool(np.array_equal(self.array, np.rint(self.array)) and np.abs(self.array).max() < 1 << 10)

    def count(self, size: int) -> int:
        return len(self.rows)

    def matrix(self, size: int) -> Floats:
        return self.array

    def answers(self, values: Floats, axis: int) -> Floats:
        return np.moveaxis(np.tensordot(self.array, values, axes=(1, axis)), 0, axis)

    def bounds(self, size: int) -> tuple[Integers, ...]:
        return (np.arange(len(self.rows)),)

    def trace(self, size: int) -> float:
        return float((self.array**2).sum())

    def entry_sum(self, size: int) -> float:
        return float(np.abs(self.array.sum(axis=1)).sum())

    def largest(self, size: int) -> Floats:
        return np.asarray(np.abs(self.array).max(axis=1))


def sum_queries(number: Number) -> ValueQueries:
    """Return the sum of a number as a query on its cells.

    Raises
    ------
    JobError
        If the range is so far from 0 that the sum is nearly a multiple of the number of records.
    """
    low, high = number.cell_ends
    if abs(low + high) / 2 > FARTHEST * number.half_range:
        raise JobError("workload.of", f"the sum of {number.name}, whose range {low:.15g} … {high:.15g} is far from 0",
                       f"a centre of at most {FARTHEST:,} times half the range",
                       'ask for its mean (family = "mean"), or subtract an offset from the column')  # fmt: skip
    return _listed({SUM: number.cell_values}, number.half_range)


def centred_rows(number: Number) -> dict[str, Floats]:
    """Return queries on the cells of a number: the centred sum t, records n and, if measured, the squares t².

    t is (value − centre)/half of the range on the cells of a number, and n is 1 on cells with a value. q is 1 on the
    cells of both ends, because the part of a record there is its t².
    """
    known = np.arange(number.size) != number.null_cell
    low, high = number.cell_ends
    rows = {"t": np.where(known, (number.cell_values - (low + high) / 2) / number.half_range, 0.0), "n": 1.0 * known}
    return rows | ({"q": np.array([1.0, 0, 0, 1, 0])[: number.size]} if number.squares else {})


def centred_queries(number: Number) -> ValueQueries:
    """Return the sum of a number minus the centre of its range, as a query on its cells."""
    return _listed({"t": number.half_range * centred_rows(number)["t"]}, number.half_range)


def number_queries(given: Any, domain: Domain, name: str) -> tuple[Family, QueryTexts] | None:
    """Return the queries that a product lists for a number, and a text for each; None for an attribute."""
    number = domain[name]
    if not isinstance(number, Number):
        return None
    if given not in (SUM, [SUM]):
        raise JobError(f"workload.predicates.{name}", safe_repr(given), f'"{SUM}" for a number', "fix it")
    return sum_queries(number), QueryTexts(listed=(f"{SUM} of {name}",))


def _listed(rows: Mapping[str, Floats], unit: float = 1.0) -> ValueQueries:
    """Return named queries with their entries on the cells."""
    return ValueQueries(listed=tuple(rows), rows=tuple(tuple(map(float, row)) for row in rows.values()), unit=unit)


def number_named(domain: Domain, name: Any, field: str) -> Number:
    """Return a number of the domain; raise JobError if the name is not one."""
    known = [number.name for number in domain.numbers]
    if name not in known:
        got = "missing" if name is None else f"{name!r}, which is no number of the domain"
        raise JobError(field, got, ", ".join(known) or "a number of the domain file",
                       nearest(str(name), known) if known else f"add [numbers.{name or 'NAME'}]")  # fmt: skip

    axis = domain[name]
    assert isinstance(axis, Number)
    return axis


class _NumberFamily(ProductFamily):
    """Product family with axes of numbers, and queries of another family on the others."""

    queries: str = setting(MARGINAL.name, ", ".join(OTHERS), "family of the queries on the attributes")
    label: str | None = setting(None, "a name", "name of the queries in tables and results", pattern=LABEL)

    @property
    def base(self) -> Family:
        """Family of the queries on the attributes."""
        return OTHERS[self.queries]

    @property
    def ends(self) -> tuple[End, ...]:
        return self.base.ends

    def distinct(self, names: Collection[str]) -> Self:
        """Return the family under a title that is not in `names`, with a number if necessary."""
        title, number = self.title, 2
        while title in names:
            title, number = f"{self.title}-{number}", number + 1
        return self if title == self.title else self.model_copy(update={"label": title})

    def checked_for(self, domain: Domain, sets: Sequence[AttributeSet]) -> Self:
        if self.queries not in OTHERS:
            raise JobError("workload.queries", f"{self.queries!r}", ", ".join(OTHERS), nearest(self.queries, OTHERS))
        return self.model_copy()


class _OfNumber(_NumberFamily):
    """Product family with one axis of a number, and queries of another family on the others."""

    of: str | None = setting(None, "the name of a number", "number that is summed")
    _number: Number = PrivateAttr()

    @property
    def title(self) -> str:
        return self.label or (f"{self.name}-{self.of}" if re.match(LABEL, f"{self.name}-{self.of}") else self.name)

    @property
    def parameters(self) -> dict[str, Any]:
        return {"of": self.of, "queries": self.queries, "label": self.title}

    @property
    def axes(self) -> tuple[Family, ...]:
        return (self.base, self.values)

    @property
    @abstractmethod
    def values(self) -> ValueQueries:
        """Queries on the number."""

    def axis(self, attribute: str) -> Family:
        return self.values if attribute == self.of else self.base

    def domain_for(self, domain: Domain) -> Domain:
        return domain.with_squares([self.of or ""]) if self.needs_squares else domain

    def extended(self, domain: Domain, names: AttributeSet) -> AttributeSet:
        return (*names, number_named(domain, self.of, "workload.of").name)

    def shown(self, names: AttributeSet) -> AttributeSet:
        return tuple(name for name in names if name != self.of)

    def label_axis(self, attribute: str) -> Family:
        return QueryTexts(listed=(self.title,)) if attribute == self.of else self.base

    def checked_for(self, domain: Domain, sets: Sequence[AttributeSet]) -> Self:
        made = super().checked_for(domain, sets)
        made._number = number_named(domain, self.of, "workload.of")
        return made


class SumQueries(_OfNumber):
    """Sums of a number over the records that each query counts."""

    name: ClassVar[str] = SUM

    @property
    def values(self) -> ValueQueries:
        return sum_queries(self._number)


class _Statistics(_OfNumber):
    """Statistics that follow from the linear queries in `figures`, and are planned by weighted ones."""

    power: ClassVar[int] = 1
    figures: ClassVar[tuple[str, ...]]
    shares: ClassVar[Mapping[str, float]]

    @property
    def values(self) -> ValueQueries:
        rows = centred_rows(self._number)
        return _listed({name: math.sqrt(share) * rows[name] for name, share in self.shares.items()})

    @property
    def statistic(self) -> Statistic:
        """Power of the column's unit, and centre, half range and limits of the values of the number."""
        low, high = self._number.cell_ends
        number = self._number
        return Statistic(
            power=self.power,
            centre=(low + high) / 2,
            half_range=number.half_range,
            limit=float(number.rows_per_unit),
            clipped=number.clipped,
        )

    @property
    def planned_per_answer(self) -> int:
        return len(self.shares)

    @property
    def linear(self) -> _Figures:
        figures = _Figures(of=self.of, queries=self.queries, label=self.label, figures=self.figures)
        figures._number = self._number
        return figures


class MeanQueries(_Statistics):
    """Means of a number over the records that each query counts."""

    name: ClassVar[str] = "mean"
    figures: ClassVar[tuple[str, ...]] = ("t", "n")
    shares: ClassVar[Mapping[str, float]] = {"t": 1.0, "n": 1 / 3}


class VarianceQueries(_Statistics):
    """Variances of a number over the records that each query counts."""

    name: ClassVar[str] = "variance"
    needs_squares: ClassVar[bool] = True
    power: ClassVar[int] = 2
    figures: ClassVar[tuple[str, ...]] = ("q", "t", "n")
    shares: ClassVar[Mapping[str, float]] = {"q": 1.0, "t": 4 / 3, "n": 1 / 5}


class _Figures(_OfNumber):
    """Linear queries of a statistic, and the sum of each two, whose errors determine the covariances."""

    name: ClassVar[str] = "figures"
    figures: tuple[str, ...] = ()

    @property
    def values(self) -> ValueQueries:
        rows = centred_rows(self._number)
        alone = {name: rows[name] for name in self.figures}
        return _listed(alone | {f"{a} + {b}": rows[a] + rows[b] for a, b in combinations(self.figures, 2)})


class NumberProducts(_NumberFamily):
    """Sums of the product of two numbers, each minus the centre of its range, over the records of each query."""

    name: ClassVar[str] = "moments"

    of: tuple[str, ...] = ()
    _numbers: dict[str, Number] = PrivateAttr(default_factory=dict)

    @property
    def title(self) -> str:
        full = "-".join((self.name, *self.of))
        return self.label or (full if re.match(LABEL, full) else self.name)

    @property
    def parameters(self) -> dict[str, Any]:
        return {"of": list(self.of), "queries": self.queries, "squares": False}

    @property
    def axes(self) -> tuple[Family, ...]:
        return (self.base, *(centred_queries(self._numbers[name]) for name in self.of))

    def axis(self, attribute: str) -> Family:
        return centred_queries(self._numbers[attribute]) if attribute in self.of else self.base

    def extended(self, domain: Domain, names: AttributeSet) -> AttributeSet:
        return (*names, *(number.name for number in domain.numbers if number.name in self.of))

    def shown(self, names: AttributeSet) -> AttributeSet:
        return tuple(name for name in names if name not in self.of)

    def label_axis(self, attribute: str) -> Family:
        return QueryTexts(listed=(self.title,)) if attribute in self.of else self.base

    def checked_for(self, domain: Domain, sets: Sequence[AttributeSet]) -> Self:
        made = super().checked_for(domain, sets)
        made._numbers = {name: number_named(domain, name, "workload.of") for name in self.of}
        return made


class MomentQueries(ProductFamily):
    """Second moments of numbers: the sums and squares of each, and the products of each two (`NumberProducts`)."""

    name: ClassVar[str] = "moments"
    needs_squares: ClassVar[bool] = True

    of: tuple[str, ...] = setting(
        (), "a list of two numbers or more", "numbers of which products are summed", strict=False
    )
    queries: str = setting(MARGINAL.name, ", ".join(OTHERS), "family of the queries on the attributes")

    squares: bool = setting(True, "true or false", "whether sums and squares of each number are queried too")

    @property
    def axes(self) -> tuple[Family, ...]:
        return (OTHERS[self.queries],)

    @property
    def ends(self) -> tuple[End, ...]:
        return OTHERS[self.queries].ends

    def axis(self, attribute: str) -> Family:
        return OTHERS[self.queries]

    @property
    def members(self) -> tuple[QueryFamily, ...]:
        """Families that give the moments: sums and squares of each number, if `squares`, and products of each two."""
        if len(set(self.of)) < 2 or len(set(self.of)) < len(self.of):
            raise JobError("workload.of", safe_repr(list(self.of)), "a list of two numbers or more", "name each once")
        squares = [VarianceQueries(of=name, queries=self.queries) for name in self.of if self.squares]
        return (*squares, *(NumberProducts(of=pair, queries=self.queries) for pair in combinations(self.of, 2)))
