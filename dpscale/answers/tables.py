"""Labelled tables of the answers of one query family over one attribute set, with standard errors and intervals.

An interval is estimate ± w · standard error. For a single answer, w is the normal quantile; with Laplace noise it is
the quantile of one Laplace variable if that is larger. With `joint`, all intervals of a table cover their values
simultaneously (`dpscale.reconstruction.joint_intervals`).

*Texts for readers.* They are titles, labels of the domain file, and bins in words. Files for machines have those of
`texts`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, islice, pairwise
from typing import Any

import numpy as np

from dpscale.answers.ratios import Figures, figures_of
from dpscale.base.arrow import pa
from dpscale.base.display import nearest, safe_repr
from dpscale.base.errors import JobError, PlanError
from dpscale.base.numerics import AttributeSet, Floats, Integers
from dpscale.domain import Domain
from dpscale.domain.attribute import Attribute, key_of
from dpscale.reconstruction.base import Estimates
from dpscale.reconstruction.estimates import LeastSquaresEstimates
from dpscale.reconstruction.joint_intervals import MOST_JOINT, half_width
from dpscale.reconstruction.model_answers import has_simultaneous_intervals, simultaneous_widths
from dpscale.reconstruction.simulated_errors import MOST_ENTRIES
from dpscale.workload import MARGINAL, TOTAL, ExplicitPart, Family, WorkloadPart, family_names, one_way_family, part_of

MISSING = "(missing)"
FIGURES = ("estimate", "std_error", "low", "high")
STATISTICS = (*FIGURES, "q", "reason")  # columns of tables of statistics


def texts(attribute: Attribute) -> list[str]:
    """Return a distinct text label for every cell: its label as text, with a number if an earlier cell has the text."""
    labels = [MISSING if label is None else str(label) for label in attribute.labels]
    first = {text: cell for cell, text in reversed(list(enumerate(labels)))}  # first cell with each text
    if len(first) == len(labels):
        return labels
    taken = set(labels)
    for cell, text in enumerate(labels):
        if first[text] < cell:
            labels[cell] = next(longer for longer in _numbered(text, cell) if longer not in taken)
            taken.add(labels[cell])
    return labels


def _numbered(text: str, cell: int) -> Iterator[str]:
    """Yield texts with the number of a cell, each longer than the one before."""
    while True:
        text = f"{text} (cell {cell})"
        yield text


def column(attribute: Attribute, cells: Integers) -> pa.Array:
    """Return labels of `cells` as an Arrow array: integers, or a dictionary of texts in domain order.

    Labels that are all integers form an array of integers. A dictionary is ordered unless its labels are categories or
    nodes.
    """
    if all(type(label) is int for label in attribute.labels):
        return pa.array(np.array(attribute.labels, np.int64)[cells])
    labels, ordered = pa.array(texts(attribute), pa.string()), attribute.kind not in ("categories", "hierarchy")
    return pa.DictionaryArray.from_arrays(pa.array(cells, pa.int32()), labels, ordered=ordered)


def named(domain: Domain, part: WorkloadPart, attributes: Sequence[str]) -> Iterator[tuple[str, pa.Array]]:
    """Yield name and values of the columns that identify the queries of a part over one attribute set.

    Rows are in row-major order of `attributes`. A query for one value of `age` has the column `age`; a query for
    several values has `age_at_most`, or `age_from` and `age_to`, or `age_start` and `age_end`. A listed query has its
    predicate in the column `age`. Queries that are not products are numbered in the column `query`.
    """
    if not part.factorizes:
        numbers = np.arange(part.count(part.domain.ordered(attributes)))
        yield "query", _texts(part.query_texts, numbers) if part.query_texts else pa.array(numbers)
        return

    attributes = part.shown(tuple(attributes))
    families = part.label_families(attributes)
    counts = [family.count(domain[name].size) for family, name in zip(families, attributes, strict=True)]

    for axis, (name, family) in enumerate(zip(attributes, families, strict=True)):
        before, after = int(np.prod(counts[:axis], dtype=int)), int(np.prod(counts[axis + 1 :], dtype=int))
        for title, end, cells in zip(_ends(name, family), family.ends, family.bounds(domain[name].size), strict=True):
            # row-major order: a query of this axis is repeated for those of later axes, and all for those of earlier
            # ones
            which = np.tile(np.repeat(cells, after), before)
            yield title, _texts(family.texts, which) if end.is_text else column(domain[name], which)


def _texts(texts: Sequence[str], which: Integers) -> pa.Array:
    """Return texts of queries as a column; several queries may have one text."""
    code = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    codes = np.array([code[text] for text in texts], np.int32)[which]
    return pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(list(code), pa.string()))


def _ends(name: str, family: Family) -> list[str]:
    """Return one or two column names that differ from the names in `FIGURES`."""
    return [label_name(f"{name}_{end.suffix}" if end.suffix else name) for end in family.ends]


MOST_ROWS = 10_000_000  # queries of a family over one attribute set that become a table
EXTRAPOLATED = "extrapolated"  # column that only tables of model estimates have
FRAMES: dict[str, Callable[[pa.Table], Any]] = {
    "pandas": lambda table: table.to_pandas(),
    "arrow": lambda table: table,
    "polars": lambda table: _polars(table),
}


@dataclass(frozen=True, eq=False)
class Answered:
    """Estimates with the labels of their domain.

    Attributes
    ----------
    estimates : estimates of one release.
    release : public id of the release; it seeds the simulation of joint intervals.
    selected : names of the SELECT statements of the job, whose rows are shown by themselves.
    """

    estimates: Estimates
    release: str
    selected: frozenset[str] = frozenset()

    def table(self, attributes: Sequence[str], family: str | None, level: float, joint: bool) -> pa.Table:
        """Return an Arrow table with one row per query, in row-major order of `attributes`.

        `family` selects the parts of the workload, `level` is the probability of the intervals, and `joint` makes it
        hold for all rows together, which requires a single part.
        """
        names = checked_names(attributes)
        ordered = self.estimates.workload.domain.ordered(names)
        parts = self._parts(ordered, family)
        if joint and len(parts) > 1:
            raise JobError("joint", f"{len(parts)} parts named {parts[0].name!r} over {', '.join(ordered)}", "one part",
                           "leave it out, or give the parts different labels")  # fmt: skip

        tables = [self._part_table(part, ordered, names, level, joint) for part in parts]
        return tables[0] if len(tables) == 1 else pa.concat_tables(tables).unify_dictionaries()

    def _parts(self, names: AttributeSet, family: str | None) -> list[WorkloadPart]:
        """Return the part of a family over a set, with other parts of the same label.

        Listed queries of several parts with the same label are returned together; other parts are alone.
        """
        first = self.part(names, family)
        labelled = first.query_texts or any(end.is_text for end in first.ends)
        if not labelled:
            return [first]
        same_label = [part for part in self._over(names) if part.name == first.name]
        return [part for part in same_label if part.factorizes == first.factorizes]

    def listed(self, level: float) -> Iterator[tuple[WorkloadPart, AttributeSet, pa.Table]]:
        """Yield the tables of the queries that the workload lists by predicates, small ones only.

        Parts in `selected` are statements, which have their rows elsewhere. Tables of more than MOST_ROWS queries are
        left out.
        """
        for part in self.estimates.workload.parts:
            if part.name in self.selected:
                continue
            if part.query_texts or any(end.is_text for end in part.ends):
                for names in part.sets:
                    if part.weighs and part.count(names) <= MOST_ROWS:
                        yield part, names, self._part_table(part, names, names, level, False)

    def _part_table(
        self, part: WorkloadPart, ordered: AttributeSet, names: AttributeSet, level: float, joint: bool
    ) -> pa.Table:
        """Return the answers of a part on a set as a table: labels, estimates, errors and intervals.

        `ordered` has the attributes in the order of the domain, `names` in the order of the columns.
        """
        figures = self._figures(part, ordered, level, joint)
        if part.factorizes:
            order = [ordered.index(name) for name in names]
            figures = Figures(*(figure.reshape(figure.shape[: len(order)]).transpose(order) for figure in figures))

        columns = dict(named(self.estimates.workload.domain, part, names))
        columns |= {name: figure.reshape(-1) for name, figure in zip(FIGURES, figures, strict=True)}
        extrapolated, rows = self.estimates.extrapolates(part.extended(ordered)), figures.estimates.size
        return pa.table(columns if extrapolated is None else columns | {EXTRAPOLATED: [extrapolated] * rows})

    def _figures(self, part: WorkloadPart, ordered: AttributeSet, level: float, joint: bool) -> Figures:
        """Return the figures of a part over a set, with one axis per attribute for products.

        `joint` intervals, which hold for all queries together, exist for linear queries only. `part.extended` adds the
        number of a part to the set.
        """
        answers, errors = self.estimates.part_answers(part.linear, part.extended(ordered))
        if joint and part.statistic is None:
            half = self.half(part, part.extended(ordered), errors.reshape(-1), level, joint).reshape(errors.shape)
            return Figures(estimates=answers, errors=errors, low=answers - half, high=answers + half)
        if joint:
            raise JobError("joint", part.name, "linear queries", "leave it out")

        check_level(level)
        return figures_of(part, answers, errors, half_width(level, self.estimates.noise))

    def _over(self, names: AttributeSet) -> list[WorkloadPart]:
        """Return the parts with planned queries over a set of attributes, and over a number for sums."""
        return [part for part in self.estimates.workload.parts if is_planned(part, part.extended(names))]

    def part(self, names: AttributeSet, family: str | None) -> WorkloadPart:
        """Return the queries of a family over an attribute set.

        These are the queries of the workload, or any product family if the estimates answer all cells of the set.
        Without `family`, the cells are used if they are estimated, otherwise the workload's first family over the set.
        """
        of_workload = self._over(names)
        matching = [part for part in of_workload if part.name == (family or MARGINAL.name)]
        if not matching and (other := one_way_family(family)) is not None:
            matching = self._cells(names, other, of_workload if family is None else [])
        if not matching:
            known = sorted({part.name for part in of_workload} | set(family_names()))
            raise JobError("family", f"{safe_repr(family)} over {', '.join(names)}", "a family of the workload",
                           nearest(str(family), known))  # fmt: skip
        if (count := matching[0].count(matching[0].extended(names))) > MOST_ROWS:
            raise JobError("family", f"{count:,} queries", f"at most {MOST_ROWS:,} rows of a table",
                           "use Release.answer for single queries")  # fmt: skip
        return matching[0]

    def cells(self, names: AttributeSet) -> tuple[Floats, Floats]:
        """Return estimates and standard errors of all cells of a set, with one axis per attribute.

        Per-cell weights of the workload are ignored, so that a cell with weight 0 is answered too.
        Raises PlanError if some cells are not estimated.
        """
        part = self.part(names, MARGINAL.name)
        if not part.factorizes:
            (part,) = self._cells(names, MARGINAL, [])
        return self.estimates.part_answers(part, names)

    def error_parts(self, attributes: Sequence[str]) -> pa.Table:
        """Return the parts of the standard errors of the cells of a set, and the name of the largest part.

        Estimates without parts have a single one, the noise. Axes are transposed to the order of `attributes`.
        """
        names = checked_names(attributes)
        ordered = self.estimates.workload.domain.ordered(names)
        in_domain_order = self.estimates.error_parts(ordered) or {"noise": self.cells(ordered)[1]}
        order = [ordered.index(name) for name in names]
        parts = {name: part.transpose(order).reshape(-1) for name, part in in_domain_order.items()}
        largest = np.argmax(np.stack(list(parts.values())), axis=0)
        columns = dict(named(self.estimates.workload.domain, self.part(ordered, MARGINAL.name), names))
        return pa.table(columns | parts | {"largest": _texts(list(parts), largest)})

    def _cells(self, names: AttributeSet, family: Family, others: list[WorkloadPart]) -> list[WorkloadPart]:
        """Return a family over a set whose cells are all estimated, else the other parts if there are any.

        PlanError means that the measurements do not determine the cells.
        """
        try:
            self.estimates.marginal(names)
        except PlanError:
            if others:
                return others
            raise
        return [part_of(family, self.estimates.workload.domain, (names,), (1.0,))]

    def half(self, part: WorkloadPart, names: AttributeSet, errors: Floats, level: float, joint: bool) -> Floats:
        """Return half widths of the intervals at `level`; see the module for `joint`.

        With `joint` the intervals of all queries hold together at this probability; this requires standard errors, and
        at most MOST_JOINT queries for least squares.
        """
        check_level(level)
        if not joint:
            return half_width(level, self.estimates.noise) * errors
        if not has_simultaneous_intervals(self.estimates):
            raise PlanError("joint", "estimates without standard errors", "least squares, or simulated errors",
                            "leave it out, or leave reconstruct.errors of an aim-grem job out")  # fmt: skip
        if isinstance(self.estimates, LeastSquaresEstimates) and part.count(names) > MOST_JOINT:
            raise JobError("joint", f"{part.count(names):,} queries", f"at most {MOST_JOINT:,} jointly",
                           "leave it out, or use a smaller set")  # fmt: skip
        return simultaneous_widths(self.estimates, part, names, errors, level, self.release)

    def linear(self, names: Sequence[str], queries: Floats) -> tuple[Floats, Floats]:
        """Return estimates and standard errors of `queries`, shape (m, sizes of `names`).

        Raises PlanError if not all cells of the set are estimated.
        """
        self.estimates.marginal(names)
        return self._linear(names, queries)

    def spanned(self, names: Sequence[str], queries: Floats) -> tuple[Floats, Floats]:
        """Return estimates and standard errors as `linear` does, of queries in the row space of the measurements.

        A sum of the queries with generic weights, the same in every call, is in the row space only if all queries are.
        Raises PlanError if it is not.
        """
        weights = np.random.default_rng(0).uniform(0.5, 1.5, len(queries))
        self.estimates.answer(names, np.tensordot(weights, queries, 1))
        return self._linear(names, queries)

    def _linear(self, names: Sequence[str], queries: Floats) -> tuple[Floats, Floats]:
        """Return answers and standard errors of queries on attributes (shape queries × cells of each) in any order.

        `transposed` has the axes in the order of the domain, in which estimates are stored.
        """
        domain = self.estimates.workload.domain
        ordered = domain.ordered(names)
        simulated = getattr(self.estimates, "errors", None) is not None
        if simulated and queries.size > MOST_ENTRIES:  # simulated errors of many queries exist one by one only
            pairs = np.array([self.estimates.answer(names, query) for query in queries])
            return pairs[:, 0], pairs[:, 1]

        transposed = np.ascontiguousarray(queries.transpose([0, *(1 + list(names).index(name) for name in ordered)]))
        return self.estimates.part_answers(
            ExplicitPart(domain=domain, attributes=ordered, array=transposed, each=np.ones(len(transposed))), ordered
        )


def is_planned(part: WorkloadPart, names: AttributeSet) -> bool:
    """Return whether a part has a set with a positive weight; other sets are not answered."""
    return any(planned == names and weight > 0 for planned, weight in zip(part.sets, part.weights, strict=True))


def label_name(name: str, others: Sequence[str] = FIGURES) -> str:
    """Return the column of an attribute's labels, which differs from other columns of the table."""
    return f"{name}_" if name in others else name


def checked_names(attributes: str | Sequence[str]) -> AttributeSet:
    """Return the names as a tuple; a text is the name of one attribute. Raises JobError for other objects."""
    names = (attributes,) if isinstance(attributes, str) else attributes
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise JobError("attributes", safe_repr(attributes), "names of attributes", 'write ["age", "sex"]')
    return tuple(names)


def check_names_are_texts(*names: str) -> None:
    """Raise JobError unless each name, of an attribute or a number, is a text."""
    for name in names:
        if not isinstance(name, str):
            raise JobError("attribute", safe_repr(name), "the name of one attribute or number", 'write "age"')


def check_level(level: float) -> None:
    """Raise JobError unless `level` is a probability strictly between 0 and 1."""
    if isinstance(level, bool) or not isinstance(level, int | float) or not 0 < level < 1:
        raise JobError("level", safe_repr(level), "a probability between 0 and 1", "such as 0.95")


def framed(table: pa.Table, frame: str) -> Any:
    """Convert an Arrow table to the requested frame type, one of `FRAMES`."""
    if frame not in FRAMES:
        raise JobError("frame", safe_repr(frame), ", ".join(FRAMES), nearest(str(frame), FRAMES))
    return FRAMES[frame](table)


def _polars(table: pa.Table) -> Any:
    """Return an Arrow table as a polars data frame. Raises JobError if polars is not installed."""
    try:
        import polars
    except ImportError:
        raise JobError("frame", "polars, which is not installed", "pandas or arrow", "pip install polars") from None
    return polars.from_arrow(table)


LONGEST, SIDE = 400, 14  # largest number of cells of an attribute in a one-way table, and in a two-way table
LOOKED_AT = 80  # attribute sets, or pairs, from which the shown tables are chosen
LEVEL = 0.95  # probability of intervals where none is given


@dataclass(frozen=True, eq=False)
class Shown:
    """A one-way or two-way table of the report.

    Attributes
    ----------
    names : attributes of the table.
    labels : labels of the cells, per attribute.
    values, errors, half : estimates, their standard errors and half widths of their intervals (nan without an error),
        with one axis per attribute.
    """

    names: AttributeSet
    labels: tuple[list[str], ...]
    values: Floats
    errors: Floats
    half: Floats


def listed_counts(answered: Answered, most: int) -> tuple[list[dict[str, Any]], int]:
    """Return the first queries that the workload lists by predicates, with their estimates, and the number of all.

    `most` is the number of queries to return. A query by conditions on attributes has a column for each, of which those
    of all records are left out of its text.
    """
    rows, number = list[dict[str, Any]](), 0
    for part, names, table in answered.listed(LEVEL):
        number += len(table)
        word_columns = table.columns[: 1 if part.query_texts else len(part.shown(names))]
        texts_of = [column.to_pylist() for column in word_columns]
        figures = [table[name].to_pylist() for name in FIGURES]
        for at in range(min(len(table), most - len(rows))):
            words = [column[at] for column in texts_of if column[at] != TOTAL] or [TOTAL]
            # estimate, standard error, low and high
            estimate, _, _, high = (figure[at] for figure in figures)
            half = high - estimate if np.isfinite(high) else None
            rows.append({"family": part.name, "text": " and ".join(words), "estimate": estimate, "half": half})

    return rows, number


def requested(answered: Answered, most: int) -> list[Shown]:
    """Return the first tables of one or two attributes that the workload asks, in its order.

    `longest` are the most cells of an attribute of a table, by the number of its attributes.
    """
    workload, longest = answered.estimates.workload, {1: LONGEST, 2: SIDE}
    domain = workload.domain

    def fits(names: AttributeSet) -> bool:
        has_numbers = not domain.number_names.isdisjoint(names)
        return len(names) in longest and not has_numbers and max(domain.shape(names)) <= longest[len(names)]

    weighted = (pair for part in workload.parts for pair in zip(part.sets, part.weights, strict=True))
    asked = (names for names, weight in weighted if weight > 0 and fits(names))
    return list(islice(shown_tables(answered, dict.fromkeys(islice(asked, LOOKED_AT))), most))


def singles(answered: Answered, most: int) -> list[Shown]:
    """Return the `most` one-way tables of the workload's attributes that differ most from uniform."""
    sets = [(name,) for name in requested_attributes(answered, LONGEST)[:LOOKED_AT]]
    return sorted(shown_tables(answered, sets), key=lambda table: -departure(table))[:most]


def requested_attributes(answered: Answered, longest: int) -> list[str]:
    """Return the attributes in the workload with at most so many cells."""
    domain = answered.estimates.workload.domain
    requested = dict.fromkeys(name for names in answered.estimates.workload.sets for name in names)
    return [name for name in requested if name not in domain.number_names and domain[name].size <= longest]


def requested_pairs(answered: Answered) -> list[AttributeSet]:
    """Return the attribute pairs within the sets of the workload, up to about `LOOKED_AT`."""
    fits = set(requested_attributes(answered, SIDE))
    pairs: dict[AttributeSet, None] = {}
    for names in answered.estimates.workload.sets:
        pairs.update(dict.fromkeys(combinations([name for name in names if name in fits], 2)))
        if len(pairs) > LOOKED_AT:
            break
    return list(pairs)


def shown_tables(answered: Answered, sets: Iterable[AttributeSet]) -> Iterator[Shown]:
    """Yield the tables of the sets whose cells are estimated."""
    domain, half = answered.estimates.workload.domain, half_width(LEVEL, answered.estimates.noise)
    for names in sets:
        try:
            values, errors = answered.cells(names)
        except PlanError:
            continue
        labels = tuple(texts(domain[name]) for name in names)
        yield Shown(names=names, labels=labels, values=values, errors=errors, half=half * errors)


def departure(table: Shown) -> float:
    """Return the squared distance of a table from equal counts, less its error variance, relative to them."""
    mean = float(table.values.mean())
    excess = float(((table.values - mean) ** 2).sum() - (np.nan_to_num(table.errors) ** 2).sum())
    return max(excess, 0.0) / (table.values.size * mean**2) if mean > 0 else 0.0


def title_of(domain: Domain, name: str) -> str:
    """Return the title of an attribute or a number; its name without one."""
    return domain[name].words.title or name if name in domain.axis_names else name


def titles_of(domain: Domain, names: Sequence[str]) -> tuple[str, ...]:
    """Return the titles of attributes, with the units in which they are stated."""
    units = [domain[name].words.unit for name in names]
    return tuple(title_of(domain, name) + f" ({unit})" * bool(unit) for name, unit in zip(names, units, strict=True))


def words_of(attribute: Attribute) -> list[str]:
    """Return a distinct text for every cell: its label, or a bin in words, or the value."""
    labels = attribute.words.labels
    bins = _bins(attribute.edges) if attribute.kind == "bins" and attribute.listed > 1 else []
    plain = [*bins, *texts(attribute)[len(bins) :]]
    words = [labels.get(key_of(label), text) for label, text in zip(attribute.labels, plain, strict=True)]
    return words if len(set(words)) == len(words) else texts(attribute)


def _bins(edges: Sequence[float]) -> list[str]:
    """Return bins as "25 to 34" between whole edges, which are read as completed units; as "0.5 to under 1" else."""
    if not all(float(edge).is_integer() for edge in edges):
        return [f"{_edge(a)} to under {_edge(b)}" for a, b in pairwise(edges[:-1])] + [
            f"{_edge(edges[-2])} to {_edge(edges[-1])}"
        ]
    # the last whole value of each bin; the last edge belongs to its bin
    lasts = [*(edge - 1 for edge in edges[1:-1]), edges[-1]]
    return [_edge(a) if a == b else f"{_edge(a)} to {_edge(b)}" for a, b in zip(edges, lasts, strict=False)]


def _edge(edge: float) -> str:
    text = f"{edge:,.0f}" if abs(edge) >= 10_000 and float(edge).is_integer() else f"{edge:g}"
    return (text if float(text.replace(",", "")) == edge else repr(edge)).replace("-", "−")
