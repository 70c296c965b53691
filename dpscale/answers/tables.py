"""Tables: the answers of a family over one attribute set with labels, standard errors and intervals.

An interval is estimate ± w · standard error. For one answer w is the normal quantile (for Laplace noise that of one
Laplace variable, where it is wider); `joint` has all rows hold at once (`reconstruct.intervals`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from dpscale.base.arrays import Floats, Integers
from dpscale.base.display import AttributeSet, nearest, percent, shown, whole
from dpscale.base.errors import JobError, PlanError
from dpscale.domain import Domain
from dpscale.domain.attribute import Attribute
from dpscale.reconstruction.base import Estimates
from dpscale.reconstruction.estimates import LeastSquaresEstimates
from dpscale.reconstruction.joint_intervals import MOST_JOINT, half_width
from dpscale.reconstruction.model_answers import at_once, tells_at_once
from dpscale.workload import FAMILIES, ExplicitPart, Family, Part, ProductPart

MISSING = "(missing)"
FIGURES = ("estimate", "std_error", "low", "high")
ENDS = {"prefix": ("at_most",), "range": ("from", "to"), "circular": ("start", "end")}


def are_numbers(attribute: Attribute) -> bool:
    """Whether every cell is named by a whole number."""
    return all(type(label) is int for label in attribute.labels)


def texts(attribute: Attribute) -> list[str]:
    """A text for every cell, no two alike."""
    found = [MISSING if label is None else str(label) for label in attribute.labels]
    return [f"{text} (cell {cell})" if found.index(text) < cell else text for cell, text in enumerate(found)]


def column(attribute: Attribute, cells: Integers) -> Any:
    """The labels of some cells, an Arrow array: whole numbers, or texts in the order of the domain."""
    import pyarrow as pa

    if are_numbers(attribute):
        return pa.array(np.array(attribute.labels, np.int64)[cells])
    labels = pa.array(texts(attribute), pa.string())
    return pa.DictionaryArray.from_arrays(pa.array(cells, pa.int32()), labels, ordered=attribute.kind != "categories")


def named(domain: Domain, part: Part, attributes: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Names and contents of the columns that tell the queries of a part over one set apart, row-major in that order.

    `age` where a query asks for a value; `age_at_most`, `age_from` and `age_to`, `age_start` and `age_end` where it
    asks for several; `query`, a number, where queries are no products.
    """
    if not isinstance(part, ProductPart):
        yield "query", _arrow(np.arange(part.count(part.domain.ordered(attributes))))
        return
    families = [part.families((name,))[0] for name in attributes]
    counts = [family.count(domain[name].size) for family, name in zip(families, attributes, strict=True)]
    for axis, (name, family) in enumerate(zip(attributes, families, strict=True)):
        before, after = int(np.prod(counts[:axis], dtype=int)), int(np.prod(counts[axis + 1 :], dtype=int))
        for end, cells in zip(_ends(name, family), family.bounds(domain[name].size).values(), strict=True):
            yield end, column(domain[name], np.tile(np.repeat(cells, after), before))


def _ends(name: str, family: Family) -> list[str]:
    """One column's name, or two; none of them that of a figure."""
    own = [f"{name}_{end}" for end in ENDS.get(family.name, ())] or [name]
    return [f"{one}_" if one in FIGURES else one for one in own]


def _arrow(values: Any) -> Any:
    import pyarrow as pa

    return pa.array(values)


MOST_ROWS = 10_000_000
EXTRAPOLATED = "extrapolated"  # a column of tables of models alone
FRAMES: dict[str, Callable[[Any], Any]] = {
    "pandas": lambda table: table.to_pandas(),
    "arrow": lambda table: table,
    "polars": lambda table: _polars(table),
}


@dataclass(frozen=True, eq=False)
class Answered:
    """What is estimated. `release`: its public name, which seeds what is simulated."""

    estimates: Estimates
    release: str

    def table(self, attributes: Sequence[str], family: str | None, level: float, joint: bool) -> Any:
        """An Arrow table of one row a query, row-major in the order of `attributes`."""
        import pyarrow as pa

        names = checked_names(attributes)
        ordered = self.estimates.workload.domain.ordered(names)
        part = self.part(ordered, family)
        answers, errors = self._along(part, ordered, names)
        half = self.half(part, ordered, errors, level, joint)
        columns = dict(named(self.estimates.workload.domain, part, names))
        columns |= dict(zip(FIGURES, (answers, errors, answers - half, answers + half), strict=True))
        extrapolated = self.estimates.extrapolates(ordered)
        return pa.table(columns if extrapolated is None else columns | {EXTRAPOLATED: [extrapolated] * len(answers)})

    def part(self, names: AttributeSet, family: str | None) -> Part:
        """The queries of a family over a set: as asked for, or any of a family of products where all cells are told.

        No family: the cells, where they are told; else the first family that the workload has over the set.
        """
        mine = [part for part in self.estimates.workload.parts if names in part.sets]
        asked = [part for part in mine if part.name == (family or "marginal")]
        if not asked and (family is None or family in FAMILIES):
            asked = self._cells(names, family, mine)
        if not asked:
            known = sorted({part.name for part in mine} | set(FAMILIES))
            raise JobError("family", f"{shown(family)} over {', '.join(names)}", "a family that was asked over them",
                           nearest(str(family), known))  # fmt: skip
        if asked[0].count(names) > MOST_ROWS:
            raise JobError("family", f"{asked[0].count(names):,} queries", f"at most {MOST_ROWS:,} rows of a table",
                           "ask for single ones by Release.answer")  # fmt: skip
        return asked[0]

    def cells(self, names: AttributeSet) -> tuple[Floats, Floats]:
        """Estimates and standard errors of all cells of a set, an axis per attribute; PlanError where some are unknown.

        Cells that were asked with a weight each are answered as equal ones: a weight of 0 leaves no answer.
        """
        part = self.part(names, "marginal")
        if not isinstance(part, ProductPart):
            (part,) = self._cells(names, "marginal", [])
        return self.estimates.part_answers(part, names)

    def _cells(self, names: AttributeSet, family: str | None, mine: list[Part]) -> list[Part]:
        try:
            self.estimates.marginal(names)
        except PlanError:
            if mine and family is None:
                return mine
            raise
        numeric = frozenset[str]()
        return [ProductPart(self.estimates.workload.domain, family or "marginal", (names,), (1.0,), numeric)]

    def half(self, part: Part, names: AttributeSet, errors: Floats, level: float, joint: bool) -> Floats:
        """Half widths of intervals."""
        check_level(level)
        if not joint:
            return half_width(level, self.estimates.noise) * errors
        if not tells_at_once(self.estimates):
            raise PlanError("joint", "estimates whose errors are not told", "least squares, or simulated errors",
                            'leave it out, or set reconstruct.errors = "simulated" in an aim-grem job')  # fmt: skip
        if isinstance(self.estimates, LeastSquaresEstimates) and part.count(names) > MOST_JOINT:
            raise JobError("joint", f"{part.count(names):,} queries", f"at most {MOST_JOINT:,} that hold at once",
                           "leave it out, or ask for a smaller set")  # fmt: skip
        return at_once(self.estimates, part, names, errors, level, self.release)

    def linear(self, names: Sequence[str], queries: Floats) -> tuple[Floats, Floats]:
        """Estimates and standard errors of linear queries, shape (m, sizes of `names`); PlanError where not all cells
        are told."""
        self.estimates.marginal(names)
        domain = self.estimates.workload.domain
        ordered = domain.ordered(names)
        if getattr(self.estimates, "errors", None) is not None:  # simulated: told one by one
            pairs = np.array([self.estimates.answer(names, query) for query in queries])
            return pairs[:, 0], pairs[:, 1]
        turned = np.ascontiguousarray(queries.transpose([0, *(1 + list(names).index(name) for name in ordered)]))
        return self.estimates.part_answers(ExplicitPart(domain, ordered, turned, np.ones(len(turned))), ordered)

    def _along(self, part: Part, ordered: AttributeSet, names: AttributeSet) -> tuple[Floats, Floats]:
        """Answers and errors, flat, with the axes of products in the order of `names`."""
        answers, errors = self.estimates.part_answers(part, ordered)
        if isinstance(part, ProductPart):
            order = [ordered.index(name) for name in names]
            answers, errors = answers.transpose(order), errors.transpose(order)
        return answers.reshape(-1), errors.reshape(-1)


def checked_names(attributes: Sequence[str]) -> AttributeSet:
    """The names as a tuple; JobError for a text, which would be taken letter by letter."""
    if isinstance(attributes, str):
        raise JobError("attributes", shown(attributes), "a list of names", f"write [{attributes!r}]")
    return tuple(attributes)


def check_level(level: float) -> None:
    """JobError unless intervals can hold with such a probability."""
    if isinstance(level, bool) or not isinstance(level, int | float) or not 0 < level < 1:
        raise JobError("level", shown(level), "a probability between 0 and 1", "such as 0.95")


def framed(table: Any, frame: str) -> Any:
    """An Arrow table as `pandas`, `polars` or as it is."""
    if frame not in FRAMES:
        raise JobError("frame", shown(frame), ", ".join(FRAMES), nearest(str(frame), FRAMES))
    return FRAMES[frame](table)


def _polars(table: Any) -> Any:
    try:
        import polars
    except ImportError:
        raise JobError("frame", "polars, which is not installed", "pandas or arrow", "pip install polars") from None
    return polars.from_arrow(table)


LONGEST, SIDE = 400, 14  # cells of an attribute that is shown, and of one of a pair
LOOKED_AT = 80
LEVEL = 0.95


@dataclass(frozen=True, eq=False)
class Shown:
    """A table: its attributes, the labels of each, estimates and half widths of intervals (nan: none told), and how far
    it is from saying nothing."""

    names: AttributeSet
    labels: tuple[list[str], ...]
    values: Floats
    half: Floats
    departure: float


def singles(answered: Answered, most: int) -> list[Shown]:
    """One-way tables of attributes that were asked, the most telling first."""
    return _best(answered, [(name,) for name in _requested_sets(answered, LONGEST)], most)


def pairs(answered: Answered, most: int) -> list[Shown]:
    """Two-way tables, the most telling first, no attribute in two of them before every other way is used up."""
    found = _best(answered, _pairs(answered), LOOKED_AT)
    fresh, held = list[Shown](), set[str]()
    for one in found:
        if not held & set(one.names):
            fresh.append(one)
            held |= set(one.names)
    return [*fresh, *(one for one in found if one not in fresh)][:most]


def sentence(shown: Shown) -> str:
    """The cell that stands out: of one attribute the largest, of two the one that most exceeds independence."""
    total = float(shown.values.sum())
    beyond = shown.values if shown.values.ndim == 1 else shown.values - expected(shown.values)
    cell = np.unravel_index(int(np.argmax(beyond)), shown.values.shape)
    named = " and ".join(f"{name} = {own[at]}" for name, own, at in zip(shown.names, shown.labels, cell, strict=True))
    half = f" ± {whole(float(shown.half[cell]))}" if np.isfinite(shown.half[cell]) else ""
    told = f"{named}: {whole(float(shown.values[cell]))}{half} records"
    if shown.values.ndim == 1:
        return f"{told}, {percent(float(shown.values[cell]) / total)} of all"
    return f"{told}, where chance alone would have {whole(float(expected(shown.values)[cell]))}"


def _best(answered: Answered, sets: Sequence[AttributeSet], most: int) -> list[Shown]:
    return sorted(_shown_tables(answered, sets[:LOOKED_AT]), key=lambda one: -one.departure)[:most]


def _requested_sets(answered: Answered, longest: int) -> list[str]:
    domain = answered.estimates.workload.domain
    held = dict.fromkeys(name for names in answered.estimates.workload.sets for name in names)
    return [name for name in held if domain[name].size <= longest]


def _pairs(answered: Answered) -> list[AttributeSet]:
    """Pairs inside sets that were asked."""
    fits = set(_requested_sets(answered, SIDE))
    found: dict[AttributeSet, None] = {}
    for names in answered.estimates.workload.sets:
        found.update(dict.fromkeys(combinations([name for name in names if name in fits], 2)))
        if len(found) > LOOKED_AT:
            break
    return list(found)


def _shown_tables(answered: Answered, sets: Iterable[AttributeSet]) -> Iterator[Shown]:
    """The tables of sets whose cells are told."""
    domain, half = answered.estimates.workload.domain, half_width(LEVEL, answered.estimates.noise)
    for names in sets:
        try:
            values, errors = answered.cells(names)
        except PlanError:
            continue
        labels = tuple(texts(domain[name]) for name in names)
        yield Shown(names, labels, values, half * errors, departure(values, errors))


def departure(values: Floats, errors: Floats) -> float:
    """How far a table is from saying nothing, beyond its noise, as a share; 0 where nothing is told."""
    total = float(values.sum())
    if total <= 0:
        return 0.0
    dull = expected(values)
    excess = float(((values - dull) ** 2).sum() - (np.nan_to_num(errors) ** 2).sum())
    return max(excess, 0.0) / float((dull**2).sum())


def expected(values: Floats) -> Floats:
    """What says nothing: all cells alike, or of two attributes independence."""
    if values.ndim == 1:
        return np.full_like(values, values.mean())
    return np.outer(values.sum(axis=1), values.sum(axis=0)) / values.sum()
