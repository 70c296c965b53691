"""TermSum queries of a grouping set: for each term a matrix on every attribute, whose products are the queries.

A row of the matrix of an attribute is a group of its cells, without those that the condition of the term excludes,
times the entries of the term on that attribute. A condition on several attributes together is no product; the queries
are then an array over all cells. Levels of one hierarchy are written on the finest of them.

Queries that differ on one attribute only have sums that are products too. So the covariance of the terms of a ratio
follows from the errors of products, and nothing is built over the cells of all attributes.

*Terms.* A *key* is an expression of GROUP BY, with a group for each cell of its attribute. `places` are the numbers of
the keys of the set.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any, NoReturn

import numpy as np

from dpscale.base.numerics import AttributeSet, Flags, Floats, Integers
from dpscale.domain.attribute import Attribute
from dpscale.workload.families import ProductQueries
from dpscale.workload.family import Family
from dpscale.workload.listed import MOST_ENTRIES, TOTAL, ExplicitPart, ListedQueries, NamedQueries, QueryTexts
from dpscale.workload.one_way import MARGINAL
from dpscale.workload.parts import WorkloadPart, part_of
from dpscale.workload.predicates import MOST_CELLS
from dpscale.workload.sql.aggregates import (
    SHARE_OF_COUNT,
    Quotient,
    Rank,
    RatioSum,
    Rounded,
    Spread,
    Term,
    TermSum,
    Value,
)
from dpscale.workload.sql.conditions import CellCondition, spread
from dpscale.workload.sql.selection import SelectQuery, terms_of
from dpscale.workload.sums import ValueQueries

MOST_ROWS = 1 << 20  # of a grouping set
MOST_SINGLE = 1 << 14  # rows that are answered one by one
SHARES_OF_VARIANCE = (1.0, 4 / 3, 1 / 5)  # weights of squares, sums and counts, see `workload.sums`


@dataclass(frozen=True, eq=False)
class Matrix:
    """Queries on one attribute, shape (rows, cells); the cells themselves without an array."""

    array: Floats | None

    def dense(self, size: int) -> Floats:
        """Return the queries as an array."""
        return np.eye(size) if self.array is None else self.array

    def equals(self, other: Matrix) -> bool:
        """Return whether two are the same queries."""
        if self.array is None or other.array is None:
            return self.array is other.array
        return np.array_equal(self.array, other.array)


@dataclass(frozen=True, eq=False)
class TermProduct:
    """Queries of a term: a matrix for each attribute, and conditions on several attributes together."""

    matrices: dict[str, Matrix]
    joint: CellCondition


class GroupedQueries:
    """Grouping set of a selection.

    Parameters
    ----------
    selection : SelectQuery
    places : tuple of int
        Keys of the set.
    """

    def __init__(self, selection: SelectQuery, places: tuple[int, ...]) -> None:
        self.selection, self.domain, self.places = selection, selection.domain, places
        self._products: dict[Term, TermProduct] = {}

    @cached_property
    def _levels(self) -> dict[str, str]:
        """For each level that the grouping set uses, the finest used level of its hierarchy."""
        used = {self.selection.keys[place].attribute for place in self.places} | self.selection.where.names
        for output in self.selection.columns:
            if output.value is not None:
                terms = terms_of(output.value)
                used |= {name for term in terms for name in (*term.condition.names, term.axis) if name}
                rank = rank_of(output.value)
                if rank is not None:
                    used |= {rank.attribute, *rank.condition.names}

        finest: dict[str, str] = {}
        for hierarchy in self.domain.hierarchies:
            levels = sorted((name for name in used if name in hierarchy.names), key=hierarchy.position)
            finest |= {name: levels[-1] for name in levels}
        return finest

    def _cells(self, name: str) -> Integers:
        """Return the cell of an attribute for each cell of the level on which it is written."""
        finest = self._levels.get(name, name)
        hierarchy = self.domain.hierarchy_of(name)
        if finest == name or hierarchy is None:
            return np.arange(self.domain[name].size)
        return hierarchy.ancestors(name, finest)

    def lifted(self, condition: CellCondition) -> CellCondition:
        """Return a condition on the levels on which its attributes are written.

        Several attributes may be levels of one hierarchy, whose finest level represents them (`_once`).
        """
        factors: dict[AttributeSet, Flags] = {}
        for names, flags in condition.factors.items():
            for axis, name in enumerate(names):
                flags = flags.take(self._cells(name), axis=axis)
            finest, flags = self._once([self._levels.get(name, name) for name in names], flags)
            factors[finest] = factors[finest] & flags if finest in factors else flags
        return CellCondition(factors)

    def _once(self, names: list[str], flags: Flags) -> tuple[AttributeSet, Flags]:
        """Return flags with one axis for each name, in domain order; axes of one name are the same cell.

        Two axes with one name refer to the same cell, so only the diagonal of both is left.
        """
        for name in [name for name in dict.fromkeys(names) if names.count(name) > 1]:
            while names.count(name) > 1:
                first, last = names.index(name), len(names) - 1 - names[::-1].index(name)
                flags = np.diagonal(flags, axis1=first, axis2=last)
                # the diagonal's axis is the last one
                names = [other for axis, other in enumerate(names) if axis not in (first, last)] + [name]
        ordered = self.domain.ordered(names)
        return ordered, np.ascontiguousarray(flags.transpose([names.index(name) for name in ordered]))

    @cached_property
    def _axes(self) -> dict[str, tuple[Integers, Integers]]:
        """For each attribute with a key, the row of each of its cells (−1: none) and the key groups of each row.

        Several keys on one hierarchy share the axis of its finest level. The key groups have the shape (keys, rows).

        `kinds` are the distinct columns of key groups over the admitted cells: each is a row of the axis.
        """
        by_name: dict[str, list[int]] = {}
        for place in self.places:
            name = self.selection.keys[place].attribute
            by_name.setdefault(self._levels.get(name, name), []).append(place)
        where, axes = self.lifted(self.selection.where), {}
        for name in self.domain.ordered(by_name):
            groups = np.stack([self.selection.keys[place].groups[self._cells(self.selection.keys[place].attribute)]
                               for place in by_name[name]])  # fmt: skip
            allowed = where.factors.get((name,), np.ones(groups.shape[1], np.bool_)) & (groups >= 0).all(axis=0)
            rows = np.full(groups.shape[1], -1)
            kinds, rows[allowed] = np.unique(groups[:, allowed], axis=1, return_inverse=True)
            axes[name] = rows, kinds
        return axes

    @cached_property
    def attributes(self) -> AttributeSet:
        """Attributes of the keys, in domain order."""
        return tuple(self._axes)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Number of groups on each attribute."""
        return tuple(kinds.shape[1] for _, kinds in self._axes.values())

    @cached_property
    def groups(self) -> dict[int, Integers]:
        """Group of each row of the set, in row-major order of the attributes, for each key.

        A row of the set is one combination of rows of its attributes, `shape` of them; `grids[axis]` has the row on one
        axis for each combination, and `groups_of_rows`, shape (keys, rows), the groups of the keys on this axis.
        """
        groups = {}
        grids = np.indices(self.shape).reshape(len(self.shape), math.prod(self.shape))
        by_name: dict[str, list[int]] = {name: [] for name in self.attributes}
        for place in self.places:
            name = self.selection.keys[place].attribute
            by_name[self._levels.get(name, name)].append(place)
        for axis, name in enumerate(self.attributes):
            _, groups_of_rows = self._axes[name]
            for number, place in enumerate(by_name[name]):
                groups[place] = groups_of_rows[number][grids[axis]]
        return groups

    @cached_property
    def order(self) -> Integers:
        """Rows of the set in the order of its keys, without those that WHERE excludes.

        `places` are the positions in GROUP BY of the keys of this set, and `groups[place]` has the group of every row
        under such a key. `lexsort` sorts by its last array first, hence the reversal. Without keys there is one row,
        for all records.
        """
        keys = [self.groups[place] for place in reversed(self.places)]
        order = np.lexsort(keys) if keys else np.arange(1)
        return order[self._possible[order]]

    @cached_property
    def _possible(self) -> Flags:
        """Whether WHERE admits some cell of each row, as far as its conditions on several attributes are concerned.

        A condition on several attributes admits a row if it holds for some cell of the row, that is, some cell of each
        attribute with a key and of all others: `any` over the axes without keys and over the cells of every row.
        """
        flags = np.ones(math.prod(self.shape), np.bool_)
        for names, allowed in self.lifted(self.selection.where).factors.items():
            shared = [name for name in names if name in self._axes]
            if len(names) == 1 or not shared:
                continue
            admits = allowed.any(axis=tuple(axis for axis, name in enumerate(names) if name not in shared))
            for axis, name in enumerate(shared):
                rows, kinds = self._axes[name]
                admits = np.stack([np.take(admits, np.flatnonzero(rows == row), axis=axis).any(axis=axis)
                                 for row in range(kinds.shape[1])], axis=axis)  # fmt: skip
            sizes = [size if name in shared else 1 for name, size in zip(self.attributes, self.shape, strict=True)]
            flags &= np.broadcast_to(admits.reshape(sizes), self.shape).reshape(-1)
        return flags

    def check(self) -> None:
        """Raise JobError for too many rows."""
        if (count := math.prod(self.shape)) > MOST_ROWS:
            self.refuse(f"at most {MOST_ROWS:,} rows of a grouping set", "group by fewer attributes, or by ranges",
                         f"which has {count:,} rows")  # fmt: skip

    def refuse(self, takes: str, remedy: str, got: str) -> NoReturn:
        """Raise the error of the whole statement."""
        self.selection.statement.refuse(self.selection.statement.tree, takes, remedy, got)

    def product(self, term: Term) -> TermProduct:
        """Return the queries of a term: a matrix for each attribute, whose product they are, and joint conditions.

        `single` are the conditions on one attribute each, 0/1 factors of its cells, `joint` those on several; `entries`
        is the attribute whose values are summed (`term.row`), empty for a count.
        """
        condition = self.lifted(term.condition)
        single = {names[0]: flags for names, flags in condition.factors.items() if len(names) == 1}
        joint = CellCondition({names: flags for names, flags in condition.factors.items() if len(names) > 1})
        entries = self._levels.get(term.axis, term.axis)
        matrices = {}
        for name in self.domain.ordered({*self.attributes, *single, *joint.names, *([entries] if entries else [])}):
            size = self.domain[name].size
            factor = np.ones(size)
            if name in single:
                factor = factor * single[name]
            if name == entries:
                factor = factor * term.row[self._cells(term.axis)]
            matrices[name] = self._matrix(name, factor)
        return TermProduct(matrices, joint)

    def _matrix(self, name: str, factor: Floats) -> Matrix:
        """Return the matrix that sums cells by groups, each cell times its factor: one row for each group.

        An attribute without a key has one row. A matrix without an array is the identity.
        """
        if name not in self._axes:
            return Matrix(factor[None])
        rows, kinds = self._axes[name]
        count, size = kinds.shape[1], len(rows)
        if count == size and (factor == 1).all() and np.array_equal(rows, np.arange(size)):
            return Matrix(None)
        if count * size > MOST_ENTRIES:
            self.refuse(f"at most {MOST_ENTRIES:,} entries of the groups of {name}", "group by all its values, or by"
                         " longer ranges", f"with {count:,} groups of {size:,} cells")  # fmt: skip
        array = np.zeros((count, size))
        cells = np.flatnonzero(rows >= 0)
        array[rows[cells], cells] = factor[cells]
        return Matrix(array)

    def rank_terms(self, rank: Rank) -> tuple[Attribute, list[Term]]:
        """Return the attribute of a quantile and the numbers of records up to each of its listed cells."""
        attribute = self.domain[rank.attribute]
        up_to = np.tri(attribute.listed, attribute.size)
        return attribute, [Term(rank.condition, rank.attribute, row) for row in up_to]

    def combined(self, values: Sequence[TermSum]) -> tuple[AttributeSet, dict[str, Matrix], str, Floats] | None:
        """Return combinations of terms as products, if their terms differ on one attribute at most.

        `by_term` has the matrix of each term on an attribute; a term without the attribute has the row of ones, which
        sums over it. Products with factors over several attributes (`joint`) are no products of matrices: None. So are
        differences on two attributes, and matrices that are too large.

        Returns
        -------
        names : AttributeSet
        matrices : mapping of str to Matrix
            Of the other attributes.
        differing : str
            The attribute; empty if all terms are equal, and the combinations multiples of a query.
        arrays : ndarray, shape (values, rows, cells)
            Queries of each combination on this attribute; without one the factors, shape (values, 1, 1).
        """
        terms = list({term.key: term for value in values for _, term in value.terms}.values())
        products = {term.key: self.product(term) for term in terms}
        if not terms or any(product.joint.factors for product in products.values()):
            return None
        names = self.domain.ordered({name for product in products.values() for name in product.matrices})
        matrices, differing = dict[str, Matrix](), []
        for name in names:
            by_term = {}
            for key, product in products.items():
                by_term[key] = product.matrices.get(name) or self._matrix(name, np.ones(self.domain[name].size))
            first = next(iter(by_term.values()))
            # equal for all terms, so that it is a common factor of the product
            if all(first.equals(matrix) for matrix in by_term.values()):
                matrices[name] = first
            else:
                differing.append((name, by_term))

        if len(differing) > 1:
            return None
        if not differing:
            factors = [sum(factor for factor, _ in value.terms) for value in values]
            return names, matrices, "", np.array(factors)[:, None, None]
        [(name, by_term)] = differing
        size = self.domain[name].size
        if any(matrix.array is None for matrix in by_term.values()) and size**2 > MOST_ENTRIES:
            return None
        # the sum of the terms' matrices, times their factors, on the differing attribute
        arrays = np.stack([reduce(np.add, [factor * by_term[term.key].dense(size) for factor, term in value.terms])
                           for value in values])  # fmt: skip
        return names, matrices, name, arrays

    def part(self, matrices: dict[str, Matrix], weight: float = 1.0) -> WorkloadPart:
        """Return the products of matrices as a part of a workload.

        Without any matrix the part is the total, which is a query on any attribute.
        """
        families: dict[str, Any] = {}
        for name, matrix in matrices.items():
            texts = QueryTexts(listed=tuple(self._texts(name, matrix)))
            families[name] = NamedQueries(self._family(name, matrix), texts)
        names = self.domain.ordered(families)
        families = families or {self.domain.names[0]: TOTAL}
        queries = ProductQueries(predicates=families, label=self.selection.name)
        return part_of(queries, self.domain, (names,), (weight,))

    def has_levels(self, names: Iterable[str]) -> bool:
        """Return whether an attribute is a level of a hierarchy."""
        return any(self.domain.hierarchy_of(name) is not None for name in names)

    def planned_part(self, matrices: dict[str, Matrix], weight: float) -> WorkloadPart:
        """Return products as they are planned: on levels of hierarchies by all cells, with the same sum of weights.

        Matrices on levels are replaced by all cells, with the weight scaled so that the sum of squared entries remains.
        """
        planned = dict(matrices)
        for name, matrix in matrices.items():
            if matrix.array is not None and self.has_levels([name]):
                planned[name] = Matrix(None)
                weight *= float((matrix.array**2).sum()) / matrix.array.shape[1]
        return self.part(planned, weight)

    def _family(self, name: str, matrix: Matrix) -> Family:
        """Return the family of one-way queries on an attribute or number whose matrix is this one."""
        if matrix.array is None:
            return MARGINAL
        if name in self.domain.number_names:
            texts = tuple(f"query {number}" for number in range(len(matrix.array)))
            return ValueQueries(listed=texts, rows=tuple(tuple(map(float, row)) for row in matrix.array))
        return ListedQueries.of(matrix.array)

    def _texts(self, name: str, matrix: Matrix) -> Iterator[str]:
        """Yield a text for each query on an attribute.

        A matrix has the groups repeated, so labels repeat too; without groups the only query is the selected cells.
        """
        count = self.domain[name].size if matrix.array is None else len(matrix.array)
        labels = self._group_texts(name)
        for number in range(count):
            yield labels[number % len(labels)] if labels else f"{name}: selected"

    def _group_texts(self, name: str) -> list[str]:
        """Return the text of each row of an attribute's axis, for example "sex = F"; empty if no key is on it.

        The keys on the axis are those of the attribute and of coarser levels of its hierarchy.
        """
        if name not in self._axes:
            return []
        _, groups = self._axes[name]  # shape (keys on the axis, rows)
        keys = [self.selection.keys[place] for place in self.places]
        on_axis = [key for key in keys if self._levels.get(key.attribute, key.attribute) == name]

        texts = []
        for row in groups.T.tolist():
            equations = [f"{key.text} = {key.labels[group]}" for key, group in zip(on_axis, row, strict=True)]
            texts.append(" and ".join(equations))
        return texts

    def array(self, names: AttributeSet, value: TermSum, row: int | None = None) -> Floats:
        """Return the queries of a combination over the cells of some attributes.

        Each term is a product over the axes: one axis for each key of the rows (`lead` of them), and one for each
        attribute. A matrix of an attribute that is a key has an axis of both kinds.

        Parameters
        ----------
        names : AttributeSet
            All attributes of its terms.
        value : TermSum
        row : int, optional
            Only the query of one row, shape (sizes…); otherwise shape (rows, sizes…).
        """
        place = None if row is None else dict(zip(self.attributes, np.unravel_index(row, self.shape), strict=True))
        total = np.zeros(())
        for factor, term in value.terms:
            if term not in self._products:  # read again for each row
                self._products[term] = self.product(term)
            product = self._products[term]
            lead = len(self.shape) if place is None else 0  # axes of the rows
            queries = np.full((1,) * (lead + len(names)), factor)
            for axis, name in enumerate(names):
                matrix = product.matrices.get(name) or self._matrix(name, np.ones(self.domain[name].size))
                dense = matrix.dense(self.domain[name].size)
                shape = [1] * (lead + len(names))
                shape[lead + axis] = dense.shape[1]
                if name in self._axes and place is None:
                    shape[self.attributes.index(name)] = dense.shape[0]
                elif name in self._axes:
                    dense = dense[place[name]]  # type: ignore[index]
                queries = queries * dense.reshape(shape)
            # conditions on several attributes together
            for joint, flags in product.joint.factors.items():
                queries = queries * spread(self.domain, joint, names, flags)
            total = total + queries
        sizes = self.domain.shape(names)
        if row is not None:
            return np.broadcast_to(total, sizes)
        return np.broadcast_to(total, (*self.shape, *sizes)).reshape((math.prod(self.shape), *sizes))

    def names_of(self, values: Sequence[TermSum]) -> AttributeSet:
        """Return the attributes of combinations and of the keys."""
        names = set(self.attributes)
        for value in values:
            for _, term in value.terms:
                names |= self.product(term).matrices.keys()
        return self.domain.ordered(names)


def unrounded(value: Value) -> Value:
    """Return a value without ROUND."""
    return unrounded(value.value) if isinstance(value, Rounded) else value


def rank_of(value: Value) -> Rank | None:
    """Return the quantile that a value is, if it is one."""
    inner = unrounded(value)
    return inner if isinstance(inner, Rank) else None


def blocks_of(selection: SelectQuery) -> list[GroupedQueries]:
    """Return the grouping sets of a selection. Raises JobError for too many rows."""
    blocks = [GroupedQueries(selection, places) for places in selection.sets]
    for block in blocks:
        block.check()
    return blocks


def operands(value: Value) -> list[TermSum]:
    """Return the combinations from whose estimates and covariance a value follows."""
    match value:
        case TermSum():
            linear = [value]
        case Quotient():
            linear = [value.above, value.below]
        case RatioSum():
            linear = [operand for ratio in value.ratios for operand in operands(ratio)]
        case Spread():
            linear = [value.squares, value.sums, value.counts]
        case Rounded():
            linear = operands(value.value)
        case _:
            linear = []
    return [operand for operand in linear if operand.terms]  # without constants


def _check_single(block: GroupedQueries, value: Value) -> None:
    """Raise JobError for too many rows or cells of a value whose rows are answered one by one."""
    parts = operands(value)
    names = block.names_of(parts)
    levels = block.has_levels(names)
    if not parts or (block.combined(parts) is not None and not levels):
        return
    rows, cells = math.prod(block.shape), block.domain.cells(names)
    if rows > MOST_SINGLE or (cells > MOST_CELLS and not levels):
        takes = f"at most {MOST_SINGLE:,} rows, and {MOST_CELLS:,} cells, of terms that differ on several attributes"
        got = f"with {rows:,} rows over {cells:,} cells of {', '.join(names)}"
        block.refuse(takes, "group by fewer attributes", got)


def planned(value: Value) -> list[tuple[TermSum, float]]:
    """Return the linear queries from which a value follows, with their weights for answers of unit size.

    Weights are unit⁻²: an answer of unit size counts like one record. The count of a ratio has a smaller share, because
    its error matters only as far as the ratio differs from the middle of its range. A ratio without a known range
    (infinite `ends`) has no middle, so its count has the whole weight; a factor `scale` of a ratio scales its errors.
    Parts of a variance have the fixed SHARES_OF_VARIANCE.
    """
    match value:
        case TermSum():
            return [(value, unit_of(value) ** -2.0)] if value.terms else []
        case Quotient():
            share = SHARE_OF_COUNT if math.isfinite(value.ends[0]) else 1.0
            return [(value.above, unit_of(value.above) ** -2.0), (value.below, share * unit_of(value.below) ** -2.0)]
        case RatioSum():
            return [(linear, weight * ratio.scale**2) for ratio in value.ratios for linear, weight in planned(ratio)]
        case Spread():
            parts = (value.squares, value.sums, value.counts)
            return list(zip(parts, SHARES_OF_VARIANCE, strict=True))
        case Rounded():
            return planned(value.value)
    return []


def unit_of(value: TermSum) -> float:
    """Return the size of an answer that compares with one record."""
    return max((abs(factor) * term.unit for factor, term in value.terms), default=1.0)


def workload_parts(selection: SelectQuery) -> list[WorkloadPart]:
    """Return the queries of a selection as parts of a workload, each distinct query once for each grouping set.

    A column needs some linear queries with weights (`planned`). A query that several columns need has the sum of their
    weights, times that of the statement.
    """
    parts: list[WorkloadPart] = []
    for block in blocks_of(selection):
        weights: dict[Any, tuple[TermSum, float]] = {}  # of each query, the sum over the columns that need it
        for output in selection.columns:
            if output.value is None:
                continue
            _check_single(block, output.value)
            for linear, weight in planned(output.value):
                # a constant needs no records
                if not linear.terms:
                    continue
                key = tuple((factor, term.key) for factor, term in linear.terms)
                _, known_weight = weights.get(key, (linear, 0.0))
                weights[key] = linear, known_weight + weight
            rank = rank_of(output.value)
            if rank is not None:
                parts.append(_rank_part(block, rank))

        for linear, weight in weights.values():
            parts.append(_linear_part(block, linear, weight * selection.statement.weight))
    return parts


def _linear_part(block: GroupedQueries, linear: TermSum, weight: float) -> WorkloadPart:
    """Return a combination of terms as a part of a workload: as a product if it is one, otherwise as an array.

    Queries on levels of hierarchies that are no product are planned by all cells.

    `combined` returns the terms as one product with matrices that differ on one attribute at most. The order: a
    product; a combination over levels, planned by all cells with the same sum of weights; an array over all cells.
    """
    as_product = block.combined([linear])
    if as_product is not None:
        names, matrices, differing, arrays = as_product
        if differing:
            matrices = matrices | {differing: Matrix(arrays[0])}
        else:
            weight *= float(arrays[0, 0, 0]) ** 2
        return block.planned_part({name: matrices[name] for name in names}, weight)

    if block.has_levels(block.names_of([linear])):
        cells = {name: Matrix(None) for name in block.names_of([linear])}
        return block.part(cells, weight * math.prod(block.shape) / block.domain.cells(list(cells)))
    names, statement = block.names_of([linear]), block.selection.statement
    entries = math.prod(block.shape) * block.domain.cells(names)
    if entries > MOST_ENTRIES:
        statement.refuse(statement.tree, f"at most {MOST_ENTRIES:,} entries of queries that OR or differences join",
                         "join conditions by AND, or group by fewer attributes",
                         f"with {entries:,} entries over {', '.join(names)}")  # fmt: skip
    array = block.array(names, linear)
    texts = tuple(f"{statement.name}: row {row}" for row in range(len(array)))
    return ExplicitPart(
        domain=block.domain,
        attributes=names,
        array=array,
        each=np.full(len(array), weight),
        origin=None,
        title=statement.name,
        query_texts=texts,
    )


def _rank_part(block: GroupedQueries, rank: Rank) -> WorkloadPart:
    """Return the counts up to each value of an attribute, from which a quantile follows, as a part of a workload."""
    attribute, terms = block.rank_terms(rank)
    weight = block.selection.statement.weight / attribute.listed
    combined, statement = block.combined([TermSum(((1.0, term),)) for term in terms]), block.selection.statement
    if combined is None:
        statement.refuse(statement.tree, "a quantile by groups of other attributes", "group by other attributes")
    names, matrices, differing, arrays = combined
    if (terms and differing != rank.attribute) or rank.attribute in block.attributes:
        statement.refuse(statement.tree, "a quantile by groups of other attributes", "group by other attributes")
    each = matrices | {differing: Matrix(arrays[:, 0])}
    return block.planned_part({name: each[name] for name in names}, weight)
