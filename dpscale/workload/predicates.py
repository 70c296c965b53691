"""Predicates on the cells of a domain, such as `age in 18..64 and not sex = 'F'`.

    predicate  = both { "or" both }
    both       = single { "and" single }
    single     = "not" single | "(" predicate ")" | "total" | condition
    condition  = attribute ("=" | "!=" | "<" | "<=" | ">" | ">=") literal
               | attribute ["not"] "in" ( "(" literals ")" | "[" literals "]" | literal ".." literal )
               | attribute ["not"] "between" literal "and" literal
               | attribute "is" ["not"] "null"
    literal    = number | 'text' | date, as 2025-01-31 | true | false

A predicate is evaluated on the labels of cells, never on records. It must therefore select whole cells: a comparison
with a number between the edges of a bin, or with a day within a period, is refused. Ranges include both ends. An order
exists for numbers, bins, codes and dates. The cells of nulls and of outside values match `is null` and `= '(outside)'`
alone, and their negations.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, time
from typing import Any

import numpy as np

from dpscale.base.display import nearest, safe_repr
from dpscale.base.errors import JobError
from dpscale.base.expressions import SIGNS, ConditionReader, Literal, is_former_reading, spelled, spelled_name
from dpscale.base.numerics import AttributeSet, Flags, Floats
from dpscale.domain import Domain
from dpscale.domain.attribute import Attribute, cell_of_literal, cut_at, is_day, name_of, number_of, read_period

FIELD = "workload.predicates"
WORDS = ("and", "or", "not", "in", "between", "is", "null", "total")
MOST_CELLS = 1 << 20  # of a predicate over several attributes
MOST_SHOWN = 40  # letters of a number in a message


@dataclass(frozen=True, eq=False)
class Predicate:
    """Cells that a predicate selects: the attributes that it names, in domain order, and a mask over their cells."""

    attributes: AttributeSet
    mask: Flags


def read_predicate(text: str, domain: Domain) -> Predicate:
    """Return the cells that the text of a predicate selects.

    Parameters
    ----------
    text : str
        In the grammar of the module.
    domain : Domain
        Attributes and labels that the text may name.

    Raises
    ------
    JobError
        If the syntax is wrong, an attribute or label is unknown, or the predicate does not select whole cells.
    """
    # the reader calls itself for every level of parentheses, and ends with an error if there are too many
    with _refusing_deep_nesting(text):
        return _Reader(text, domain).read_to_end()


def read_conjunction(text: str, domain: Domain) -> dict[str, str] | None:
    """Return a predicate per attribute if a predicate is a conjunction of them, else None."""
    with _refusing_deep_nesting(text):
        return _Reader(text, domain).conjuncts()


@contextmanager
def _refusing_deep_nesting(text: str) -> Iterator[None]:
    """Raise JobError for a predicate with too many levels of parentheses or of `not`."""
    try:
        yield
    except RecursionError:
        raise JobError(
            FIELD, f"{safe_repr(text)}, with too many levels of ( or not", "fewer levels", "remove parentheses"
        ) from None


class _Reader(ConditionReader):
    """Reader that evaluates a predicate while it is read."""

    field, takes = FIELD, "attribute = value, joined by and, or, not (=, !=, <, <=, >, >=, in, between, is null)"
    example = "a predicate as age in 18..64 and sex = 'F'"
    words, error, keeps_texts = WORDS, JobError, True

    def __init__(self, text: str, domain: Domain) -> None:
        self.domain = domain
        super().__init__(text)

    def read_to_end(self) -> Predicate:
        """Read the whole text as one predicate."""
        predicate = self.either()
        if self.next.kind != "end":
            self.refuse(self.next, "and, or, or the end")
        return predicate

    def conjuncts(self) -> dict[str, str] | None:
        """Return the parts joined by `and`, by attribute; None if one names several attributes.

        Each part is one condition, `single`; several on one attribute are joined by `and` again.
        """
        texts: dict[str, str] = {}
        while True:
            start = self.next.at
            condition = self.single()
            if len(condition.attributes) > 1 or not (condition.attributes or condition.mask.all()):
                return None

            last = self.tokens[self.place - 1]
            text = self.text[start : last.at + len(last.text)]
            for name in condition.attributes:
                texts[name] = f"{texts[name]} and {text}" if name in texts else text
            if not self.take_if("and"):
                return texts if self.next.kind == "end" else None

    def single(self) -> Predicate:
        """Read a negation, a predicate in parentheses, a condition, or "total", which all records satisfy."""
        if self.take_if("total"):
            return Predicate((), np.ones((), np.bool_))
        predicate: Predicate = super().single()
        return predicate

    def negated(self, one: Predicate) -> Predicate:
        return Predicate(one.attributes, ~one.mask)

    def joined(self, word: str, first: Predicate, second: Predicate) -> Predicate:
        """Return two conditions joined by `word`, "and" or "or", as one over the attributes of both."""
        names = self.domain.ordered(tuple(dict.fromkeys([*first.attributes, *second.attributes])))
        if self.domain.cells(names) > MOST_CELLS and len(names) > 1:
            raise JobError(FIELD, f"{safe_repr(self.text)} on {self.domain.cells(names)} cells of {', '.join(names)}",
                           f"at most {MOST_CELLS} cells", "join conditions on single attributes by and")  # fmt: skip
        masks = (_spread(self.domain, condition, names) for condition in (first, second))
        return Predicate(names, np.logical_and(*masks) if word == "and" else np.logical_or(*masks))

    def condition(self) -> Predicate:
        """Read one condition on an attribute, such as `age >= 18`, and return the cells where it holds.

        `place` is the token at which the condition begins, for messages.
        """
        place = self.next
        name = self.name("the name of an attribute, in `…` if it contains blanks")
        if name not in self.domain.names:
            got = f"attribute {safe_repr(name)} at character {place.at + 1}"
            raise JobError(FIELD, got, "an attribute of the domain", nearest(name, self.domain.names))
        cells = LabelledCells(self.domain[name], self.text)
        return Predicate((name,), self._mask(cells))

    def _mask(self, cells: LabelledCells) -> Flags:
        if self.next.kind == "sign" and self.next.text in SIGNS:
            return cells.compared(self.take().text, self.literal())
        return np.asarray(self.membership(cells))


def _spread(domain: Domain, predicate: Predicate, names: AttributeSet) -> Flags:
    """Return the mask of a predicate with one axis for every attribute in `names`."""
    shape = [domain[name].size if name in predicate.attributes else 1 for name in names]
    return predicate.mask.reshape(shape)


@dataclass(frozen=True, eq=False)
class LabelledCells:
    """Cells of one attribute, compared with literals."""

    attribute: Attribute
    text: str

    def nulls(self) -> Flags:
        """Return the cell of nulls, or no cell."""
        return np.arange(self.attribute.size) == self.attribute.null_cell

    def compared(self, sign: str, value: Literal) -> Flags:
        """Return the cells whose label is in a relation to a literal.

        `listed` are the cells of labels, without those of nulls and outside values, which have no order.
        """
        listed = np.arange(self.attribute.size) < self.attribute.listed
        if sign in ("=", "!="):
            return self._equal(value) ^ (sign == "!=")
        first = self._first(sign, value)  # the listed cells from here on are above the cut
        above = (np.arange(self.attribute.size) >= first) & listed
        return above if sign in (">", ">=") else listed & ~above

    def _equal(self, value: Literal) -> Flags:
        """Return which cells have the value as their label (shape cells); an error names the nearest label."""
        mask = np.zeros(self.attribute.size, np.bool_)
        if self.attribute.kind == "date" and (isinstance(value, datetime) or is_day(value)):
            self._period("=", value)  # refuses a day of a longer period
        fault = None
        try:
            cell = cell_of_literal(self.attribute, value)
        except ValueError as error:
            cell, fault = None, self._error(value, "a text in quotes for a code", f"write {error}")

        # what a new job may state has its meaning in every run
        if cell is None and is_former_reading():
            cell = _former_cell(self.attribute, value)
        if self.attribute.search is not None and not self._is_public(cell):
            raise self._not_public(value)
        if cell is None:
            known = [str(label) for label in self.attribute.labels if label is not None]
            raise fault or self._error(value, "a label of the attribute", nearest(text_of(value), known))

        mask[cell] = True
        return mask

    def _is_public(self, cell: int | None) -> bool:
        """Return whether a searched attribute has a cell before its search: of a public value or of outside values."""
        attribute, search = self.attribute, self.attribute.search
        if cell is None or search is None or is_former_reading():
            return cell is not None
        return cell >= attribute.listed or attribute.labels[cell] in search.public_values

    def _not_public(self, value: Literal) -> JobError:
        """Return the error for a comparison with a cell that only a search can find."""
        name = self.attribute.name
        remedy = f"make the cell public in attributes.{name}, or ask for the counts of all cells of {name}"
        return self._error(value, "a public cell, because a search finds the others", remedy)

    def _first(self, sign: str, value: Literal) -> int:
        """Return the number of listed cells that are below a cut.

        `after` says that a cell of the value itself is below the cut, as for <= and >. Bins are cut at edges, dates at
        periods, and other labels must be numbers in increasing order.
        """
        after = sign in ("<=", ">")  # whether a cell of the value itself is below the cut
        if self.attribute.search is not None and not is_former_reading():
            raise self._not_public(value)
        if self.attribute.kind == "bins":
            return self._edge(sign, value)

        if self.attribute.kind == "date":
            return min(max(self._period(sign, value) + after, 0), self.attribute.listed)

        labels = self.attribute.labels[: self.attribute.listed]
        if isinstance(value, str | datetime) or not all(isinstance(label, int | float) for label in labels):
            raise self._error(value, "an order comparison of numbers, bins or dates", "list the labels with in (…)")
        if any(label >= following for label, following in itertools.pairwise(labels)):
            raise self._error(value, "labels in increasing order for a comparison", "list the labels with in (…)")
        return sum(label <= value if after else label < value for label in labels)

    def _edge(self, sign: str, value: Literal) -> int:
        """Return the number of the bin edge of a comparison: bins can be cut only there.

        The last bin includes its upper edge, so only <= and > may name it.
        """
        edges = self.attribute.edges
        last = value == edges[-1] and sign in ("<=", ">")  # its bin includes the edge
        fits = isinstance(value, int | float) and value in edges and (sign in ("<", ">=") or last)
        if not fits or (value == edges[-1] and not last):
            shown = ", ".join(f"{edge:g}" for edge in edges[:6]) + (", …" if len(edges) > 6 else "")
            takes = f"< or >= with one of its edges ({shown}), or <= the last one"
            raise self._error(value, takes, "move the cut")
        return edges.index(value)  # type: ignore[arg-type]

    def _period(self, sign: str, value: Literal) -> int:
        """Return the cell of the period of a date, which may be outside the domain.

        Raises JobError for what names no period, and for a day at which the comparison would divide one.
        """
        by, name = self.attribute.by, self.attribute.name
        if isinstance(value, datetime) and value.time() != time.min and not is_former_reading():
            raise self._error(value, f"a {by}", "compare with a day")
        try:
            number = read_period(by, value)
            is_of_day = isinstance(value, datetime) or is_day(value)
            day = (value if isinstance(value, datetime) else datetime.fromisoformat(str(value))) if is_of_day else None
        except ValueError:
            raise self._error(value, f"the name of a {by}, or its first or last day", "fix it") from None

        if day is not None and (cut := cut_at(by, sign, day.date())) != day.date() and not is_former_reading():
            if cut is None:
                raise self._error(value, f"a {by} of {name}", f"write {spelled(name_of(by, number))}")
            raise self._error(value, f"a cut between two {by}s of {name}", f"write {cut}")
        return number - self.attribute.low

    def _error(self, value: Literal, takes: str, remedy: str) -> JobError:
        """Return the error for a value; `takes` are the accepted values and `remedy` the advice."""
        is_short = not isinstance(value, str) and len(spelled(value)) <= MOST_SHOWN
        shown = spelled(value) if is_short else safe_repr(value)
        got = f"{shown} for attribute {self.attribute.name!r} in {safe_repr(self.text)}"
        return JobError(FIELD, got, takes, remedy)


def _former_cell(attribute: Attribute, value: Literal) -> int | None:
    """Return the cell that a literal denoted before codes and days were checked: see `former_reading`."""
    if isinstance(value, datetime):
        day = value.date()
        value = str(name_of(attribute.by, number_of(attribute.by, day)) if attribute.kind == "date" else day)
    if isinstance(value, int | float) and not isinstance(value, bool) and value == int(value):
        value = int(value)
    return attribute.cell_of.get(value, attribute.cell_of.get(str(value)))


def text_of(value: Literal) -> str:
    """Return a text itself, and another literal as it is written."""
    return value if isinstance(value, str) else spelled(value)


def cell_predicate(attribute: Attribute, cell: int) -> str:
    """Return the predicate that selects one cell."""
    name, label = spelled_name(attribute.name, WORDS), attribute.labels[cell]
    return f"{name} is null" if label is None else f"{name} = {_label_text(label)}"


def range_predicate(attribute: Attribute, first: int, last: int) -> str:
    """Return the predicate that selects the cells from `first` to `last`."""
    if first == 0 and last == attribute.size - 1:
        return "total"
    end = min(last, attribute.listed - 1)
    listed = [_listed_range(attribute, first, end)] if first <= end else []
    others = range(max(first, attribute.listed), last + 1)  # of outside values and nulls
    return " or ".join([*listed, *(cell_predicate(attribute, cell) for cell in others)])


def _listed_range(attribute: Attribute, first: int, last: int) -> str:
    """Return the text of a condition for the listed cells from `first` to `last`: of bins, of dates or of labels.

    Bins use their edges: the last one includes its upper edge. Dates and whole numbers use a range, other labels a
    list.
    """
    if first == last:
        return cell_predicate(attribute, first)

    name = spelled_name(attribute.name, WORDS)
    if attribute.kind == "bins":
        below = "<=" if last == attribute.listed - 1 else "<"
        return f"{name} >= {attribute.edges[first]!r} and {name} {below} {attribute.edges[last + 1]!r}"

    labels = attribute.labels[first : last + 1]
    if attribute.kind == "date" or all(isinstance(label, int) and not isinstance(label, bool) for label in labels):
        return f"{name} in {_label_text(labels[0])}..{_label_text(labels[-1])}"
    return f"{name} in ({', '.join(map(_label_text, labels))})"


def _label_text(label: Any) -> str:
    return spelled(label) if isinstance(label, bool | int | float | str) else spelled(str(label))


def check_satisfied(predicate: Predicate, text: str, field: str = FIELD) -> None:
    """Raise JobError if no cell satisfies a predicate, so that its count is 0 whatever the records are."""
    if not predicate.mask.any():
        raise JobError(field, f"{safe_repr(text)}, which no cell satisfies", "a condition that some cell satisfies",
                       "correct it")  # fmt: skip


def check_countable(predicate: Predicate, text: str, domain: Domain) -> None:
    """Raise JobError if no cell satisfies a predicate of a job.

    The cells of a searched attribute are those that the search finds, perhaps none of the predicate: its count is 0.
    Conditions of charged runs are not checked again: see `former_reading`.
    """
    if not set(predicate.attributes) & set(domain.discovered) and not is_former_reading():
        check_satisfied(predicate, text)


def query_matrix(predicates: Sequence[str], domain: Domain, name: str) -> Floats:
    """Return predicates on one attribute as a 0/1 matrix, shape (predicates, cells).

    Raises
    ------
    JobError
        If a predicate names another attribute, or no cell satisfies it.
    """
    rows = []
    for text in predicates:
        predicate = read_predicate(text, domain)
        if set(predicate.attributes) - {name}:
            others = ", ".join(attribute for attribute in predicate.attributes if attribute != name)
            raise JobError(f"{FIELD}.{name}", f"{safe_repr(text)}, which names {others}", f"predicates on {name} alone",
                           "move it to its attribute, or write it as a single count in conditions")  # fmt: skip
        check_countable(predicate, text, domain)
        rows.append(np.broadcast_to(predicate.mask, (domain[name].size,)).astype(np.float64))
    return np.stack(rows)
