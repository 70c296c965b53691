"""Public schema of a table: the attributes of a record and the values that each can take.

A domain is *public*: it comes from a file, never from the records. Every attribute is discrete. Its cells are numbered
0 … size−1 in the order of the file, followed by one cell for outside values and one for nulls if the file defines them.

The index of ordered axes gives sizes of marginals, columns and positions by name.

*Attributes of a domain that is written in Python: sizes, lists of values, bins and dates.*
A value of `Domain(name=value)` is a number of codes, a list of values, `bool`, an `Attribute`, or the content of a
table [attributes.NAME] of a domain file, which `bins` and `dates` return; or a number, which `number` returns.

>>> bins(0, 20, 5)
{'kind': 'bins', 'edges': [0, 5, 10, 15, 20], 'outside': 'reject'}
>>> dates("2019-03", "2019-12", by="month")
{'kind': 'date', 'by': 'month', 'low': '2019-03', 'high': '2019-12', 'outside': 'reject'}
"""

from __future__ import annotations

import hashlib
import json
import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cached_property
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import tomli_w

from dpscale.base.display import MOST, display_path, html_table, nearest, safe_repr
from dpscale.base.errors import DomainError
from dpscale.base.nesting import MOST_LEVELS, is_too_deep
from dpscale.base.numerics import AttributeSet, Integers
from dpscale.domain.attribute import WORDS, Attribute, check_size
from dpscale.domain.domain_schema import EXAMPLE, coded, from_tables, located_tree
from dpscale.domain.hierarchy import Hierarchy, hierarchies_of
from dpscale.domain.number import TOTAL, Number, checked_number, read_numbers
from dpscale.domain.public_totals import PublicTotal, check_totals, coarsen, read_total, total_bytes, total_name
from dpscale.domain.rule_text import checked_text
from dpscale.domain.rules import (
    ValueRule,
    check_contradictions,
    check_rules,
    closed,
    follows,
    implied_rules,
    read_constraints,
    with_dependencies,
)
from dpscale.domain.schema_values import check_keys, check_names, check_names_list
from dpscale.domain.search import NodeSearch
from dpscale.domain.text_format import FORMATS, TextFormat, read_formats
from dpscale.domain.tree import stored_name, tree_bytes
from dpscale.storage.files import is_path, place, read_text, toml_fault

EXPECTED = "a number of codes, a list of values, bool, dp.bins, dp.dates, dp.number, or a table of a domain file"
MOST_BINS = 1_000_000  # from low to high by a width
NUMBER = "number"  # kind of a value that `number` returns


def bins(low: float, high: float, width: float, outside: str = "reject", nulls: str = "reject") -> dict[str, Any]:
    """Return bins of equal width from `low` to `high`.

    Parameters
    ----------
    low, high : float
        Ends of the first and the last bin.
    width : float
        Width of each bin; `high - low` is a multiple of it.
    outside : {"reject", "clip", "category", "drop"}
        What happens to a number outside: it is refused, moved to the nearest bin, counted in a cell of its own, or not
        counted.
    nulls : {"reject", "category", "drop"}
        What happens to a null: it is refused, counted in a cell of its own, or its row is not counted.

    Returns
    -------
    dict
        Content of a table [attributes.NAME] of a domain file.

    Raises
    ------
    DomainError
        If the ends are not increasing numbers, or the width does not divide their distance.

    Examples
    --------
    >>> bins(0, 1, 0.25)["edges"]
    [0, 0.25, 0.5, 0.75, 1]
    >>> bins(0, 10, 10, outside="clip", nulls="category")
    {'kind': 'bins', 'edges': [0, 10], 'outside': 'clip', 'nulls': 'category'}
    """
    for name, value in {"low": low, "high": high, "width": width}.items():
        if isinstance(value, bool) or not isinstance(value, Real) or not abs(value) < float("inf"):
            raise DomainError(f"bins.{name}", safe_repr(value), "a finite number", "write dp.bins(0, 100, 5)")

    first, last, step = (Fraction(str(value)) for value in (low, high, width))
    if last <= first or step <= 0:
        raise DomainError("bins", f"low {low:g}, high {high:g}, width {width:g}", "low below high and a width above 0",
                          "write dp.bins(0, 100, 5)")  # fmt: skip

    count = (last - first) / step
    if count.denominator != 1 or count > MOST_BINS:
        raise DomainError("bins.width", f"{width:g}", f"a part of {high - low:g}, the distance from low to high",
                          "change high or width")  # fmt: skip

    edges = [first + step * i for i in range(count.numerator + 1)]
    numbers = [int(edge) if edge.denominator == 1 else float(edge) for edge in edges]
    return {"kind": "bins", "edges": numbers, **_policies(outside, nulls)}


def _policies(outside: str, nulls: str) -> dict[str, str]:
    """Return the keys for values that a kind does not list."""
    return {"outside": outside, **({} if nulls == "reject" else {"nulls": nulls})}


def dates(first: str, last: str, by: str = "day", outside: str = "reject", nulls: str = "reject") -> dict[str, Any]:
    """Return the periods of a calendar from `first` to `last`.

    Parameters
    ----------
    first, last : str
        First and last period, such as "2019-03-01", "2019-03" or "2019".
    by : str
        "year", "quarter", "month", "week", "day" or another period of a domain file.
    outside : {"reject", "clip", "category", "drop"}
        What happens to a date outside.
    nulls : {"reject", "category", "drop"}
        What happens to a null.

    Returns
    -------
    dict
        Content of a table [attributes.NAME] of a domain file. The domain checks it.

    Examples
    --------
    >>> dates("2019", "2021", by="year", outside="drop")
    {'kind': 'date', 'by': 'year', 'low': '2019', 'high': '2021', 'outside': 'drop'}
    """
    return {"kind": "date", "by": by, "low": first, "high": last, **_policies(outside, nulls)}


def number(
    low: float, high: float, step: float = 1, outside: str = "clip", nulls: str = "reject", column: str | None = None
) -> dict[str, Any]:
    """Return a number for sums and means, with the range to which its values are clipped.

    Parameters
    ----------
    low, high : float
        Ends of the range, in units of the column.
    step : float
        Values are rounded to multiples of it.
    outside : {"clip", "reject", "drop"}
        Policy for a value outside: it is moved to the nearest end, refused, or its row is not counted.
    nulls : {"reject", "skip", "zero", "drop"}
        Policy for a null: it is refused, its row counts without a value, it is 0, or its row is not counted.
    column : str, optional
        Column of the values; default: the name of the number. An attribute may have the same column.

    Returns
    -------
    dict
        Content of a table [numbers.NAME] of a domain file. The domain checks it.

    Examples
    --------
    >>> number(0, 400, step=0.01)
    {'kind': 'number', 'low': 0, 'high': 400, 'step': 0.01, 'outside': 'clip'}
    """
    steps = {} if step == 1 else {"step": step}
    source = {} if column is None else {"from": column}
    return {"kind": NUMBER, "low": low, "high": high, **steps, **source, **_policies(outside, nulls)}


def axes_of(attributes: object, columns: Mapping[str, object]) -> tuple[Attribute, ...]:
    """Return the attributes of a domain from the arguments of its constructor.

    Raises
    ------
    DomainError
        If a value is none of those that a domain takes.
    """
    if attributes is None and columns:
        return _named(columns)
    if isinstance(attributes, str) or not isinstance(attributes, Iterable):
        raise DomainError("attributes", safe_repr(attributes), "values by name, or attributes",
                          'write dp.Domain(a=10, b=["x", "y"]), or read a file: Domain.read(path)')  # fmt: skip
    if isinstance(attributes, Mapping):
        return _named({**attributes, **columns})

    axes = tuple(attributes)
    if strange := [axis for axis in axes if not isinstance(axis, Attribute)]:
        raise DomainError("attributes", f"an item of type {type(strange[0]).__name__}",
                          "values by name, or attributes", 'write them as {"a": 10}')  # fmt: skip
    return axes + _named(columns)


def _named(columns: Mapping[Any, object]) -> tuple[Attribute, ...]:
    return tuple(attribute for name, value in columns.items() for attribute in _attributes(name, value))


def _attributes(name: Any, value: object) -> list[Attribute]:
    """Return the attributes of one column: its own, and those of its parents.

    A value is an Attribute, bool, a table of the domain file, a number of cells, or a list of values. Arrays and frames
    are refused because their values may be those of records; a pair of numbers because it may be a range.
    """
    if isinstance(value, Attribute):
        return [value]
    if value is bool:
        return from_tables({name: {"kind": "boolean"}})
    if isinstance(value, Mapping) and value.get("kind") == NUMBER:
        return [*read_numbers({name: {key: text for key, text in value.items() if key != "kind"}})]
    if isinstance(value, Mapping):
        return from_tables({name: dict(value)})
    dimensions: Any = getattr(value, "ndim", 0)
    if hasattr(value, "__array__") and dimensions:
        raise DomainError(f"attributes.{name}", f"an object of type {type(value).__name__}, whose values may be those"
                          " of records", "public values, as a list that you wrote",
                          f'write dp.Domain({name}=["x", "y"]),' " or review a draft of dp.sketch_domain")  # fmt: skip
    if isinstance(value, tuple) and len(value) == len(("low", "high")) and _are_ends(*value):
        low, high = value
        raise DomainError(f"attributes.{name}", f"({low}, {high}), which may be two values or a range",
                          "a list for two values, or a table for whole numbers of a range",
                          f'write [{low}, {high}], or {{"kind": "integer", "low": {low}, "high": {high}}}')  # fmt: skip
    if isinstance(value, Integral) or hasattr(value, "__index__"):
        return [coded(name, value)]  # type: ignore[arg-type]
    if isinstance(value, list | tuple | range):  # anything else may contain records
        return from_tables({name: {"kind": "categories", "values": list(value)}})
    raise DomainError(f"attributes.{name}", safe_repr(value), EXPECTED, f"write dp.Domain({name}=10) or a list")


def _are_ends(low: object, high: object) -> bool:
    """Return whether two values may be the ends of a range."""
    return isinstance(low, Integral) and isinstance(high, Integral) and int(high) > int(low) + 1


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
        """Return the attribute or number of a name. Raises DomainError with the nearest name if there is none."""
        if not isinstance(name, str):
            raise DomainError("attributes", safe_repr(name), "the name of an attribute", 'write "age"')
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
        named_alike = [axis.name for axis in self.axes if axis.columns == (axis.name,) and axis.search is None]
        return frozenset(name for name in named_alike if read.count(name) == 1)

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
        if repeated := [name for name in names if names.count(name) > 1]:
            raise DomainError("attributes", f"{repeated[0]!r} more than once", "distinct names", "drop the repeat")
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


TOTALS = "totals"
RULE = "rule"
REVIEWED, DISCOVERED = "reviewed", "discovered"


def texts_of(tables: object) -> list[str]:
    """Return the texts of tables [[rule]]. Raises DomainError for others."""
    if not isinstance(tables, list) or not all(isinstance(table, Mapping) and set(table) == {RULE} for table in tables):
        raise DomainError(RULE, "not a list of tables with the key rule", "tables [[rule]]",
                          'write [[rule]] and below it rule = "discharge >= admission"')  # fmt: skip
    return [table[RULE] for table in tables]


class Domain(AxisIndex):
    """Ordered set of attributes.

    Parameters
    ----------
    attributes : mapping of str to object, or iterable of Attribute, optional
        Values as in `columns`, or attributes.
    rules : sequence of str
        Public rules between attributes that all records satisfy, such as "discharge >= admission".
    public_totals : sequence of PublicTotal
        Exact totals of the records (`public_totals`).
    formats : mapping of str to (str or mapping)
        Patterns of the columns of synthetic rows that are no attributes, such as "[A-Z]{2}[0-9]{6}", or tables with
        `pattern` and `unique`.
    **columns
        Values of each attribute: a number of codes, a list, `bool`, `bins`, `dates`, `number`, or a table of a domain
        file.

    Examples
    --------
    >>> Domain(borough=["Bronx", "Queens"], passengers=10).shape(("borough", "passengers"))
    (2, 10)
    >>> Domain({"a": 10, "b": 20}).shape(("a", "b"))
    (10, 20)
    >>> Domain({"part": 5, "whole": 9}, rules=["part <= whole"]).rules[0].names
    ('part', 'whole')
    """

    def __init__(
        self,
        attributes: Mapping[str, object] | Iterable[Attribute] | None = None,
        /,
        rules: Sequence[str] = (),
        public_totals: Sequence[PublicTotal] = (),
        formats: Mapping[str, object] | None = None,
        **columns: object,
    ) -> None:
        """Create a domain; the parameters are those of the class."""
        super().__init__(axes_of(attributes, columns))
        self._read_rules(rules)
        self.public_totals = tuple(public_totals)
        check_totals(self, self.public_totals)
        self.formats: tuple[TextFormat, ...] = read_formats(formats or {})
        modelled = {*self.axis_names, *self.columns(self.axis_names)}
        if taken := [text_format.name for text_format in self.formats if text_format.name in modelled]:
            raise DomainError(f"{FORMATS}.{taken[0]}", "the column of an attribute or a number", "another column",
                              "remove the format, or the attribute")  # fmt: skip

    def _read_rules(self, texts: Sequence[str]) -> None:
        """Read rules and their consequences; check that they do not contradict each other.

        `value_rules` compare values; other rules exclude cells. `closed` adds what rules imply together, and `follows`
        the dependencies of attributes on each other.
        """
        if isinstance(texts, str) or not isinstance(texts, Sequence):
            raise DomainError("rules", safe_repr(texts), "a list of texts", 'write rules=["discharge >= admission"]')
        self.rule_texts = tuple(dict.fromkeys(map(checked_text, texts)))
        read = {text: read_constraints(text, self.__getitem__) for text in self.rule_texts}
        all_rules = [rule for rules_of_text in read.values() for rule in rules_of_text]
        check_contradictions(read, self._sizes, {axis.name: axis.listed for axis in self.axes})

        self.value_rules = tuple(rule for rule in all_rules if isinstance(rule, ValueRule))
        rules = with_dependencies([rule for rule in all_rules if rule.names], self._sizes) + follows(self.attributes)
        check_rules(rules, self._sizes)
        self.rules = closed((*rules, *implied_rules(all_rules)))

    def with_rules(self, texts: Sequence[str]) -> Domain:
        """Return the domain with further rules.

        Parameters
        ----------
        texts : sequence of str
            Rules as in the constructor.

        Returns
        -------
        Domain

        Raises
        ------
        DomainError
            If a rule is invalid, or contradicts another one.

        Examples
        --------
        >>> Domain(a=3, b=3).with_rules(["a <= b"]).rule_texts
        ('a <= b',)
        """
        return self._copy(rules=(*self.rule_texts, *texts)) if texts else self

    def _copy(self, **changes: Any) -> Domain:
        """Return the domain with other axes, rules, public totals or marks.

        `marks` state a review or a search of the domain; no constructor takes them, so they are copied afterwards.
        """
        parts = {"axes": self.axes, "rules": self.rule_texts, "totals": self.public_totals, "marks": self._marks}
        changed_parts = parts | changes
        copied = Domain(
            changed_parts["axes"],
            changed_parts["rules"],
            changed_parts["totals"],
            {text_format.name: text_format.describe() for text_format in self.formats},
        )
        copied._marks = changed_parts["marks"]
        return copied

    @cached_property
    def _marks(self) -> dict[str, Any]:
        """Entries `reviewed` and `discovered` of the domain file."""
        return {}

    @classmethod
    def read(cls, path: str | Path, *, draft: bool = False) -> Domain:
        """Read a domain file.

        Parameters
        ----------
        path : str or Path
            TOML file.
        draft : bool
            Accept a draft that nobody has reviewed, for a private check of the data.

        Returns
        -------
        Domain

        Raises
        ------
        DomainError
            If the file cannot be read or is not a valid domain.

        Examples
        --------
        >>> with open("domain.toml", "w") as file:
        ...     _ = file.write('attributes.sex = {kind = "categories", values = ["F", "M"]}')
        >>> Domain.read("domain.toml").names
        ('sex',)
        """
        if not is_path(path):
            raise DomainError("domain", safe_repr(path), "the path of a domain file", "pass one")

        try:
            content = tomllib.loads(read_text(place(path, "domain")))
        except OSError as error:
            reason = error.strerror or "unreadable"
            got = f"cannot read {display_path(path)} ({reason})"
            raise DomainError("domain", got, "a domain file", "check the path") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
            got = f"{display_path(path)} is not TOML{toml_fault(error, path)}"
            raise DomainError("domain", got, "a domain file", "fix the syntax") from None

        if is_too_deep(content):
            got = f"{display_path(path)} has more than {MOST_LEVELS} nested levels"
            raise DomainError("domain", got, "a domain file", "check its brackets")

        where = place(path, "domain")
        if draft and content.get(REVIEWED) is False:
            content = {name: value for name, value in content.items() if name != REVIEWED}
        return cls.from_dict(content, where.parent)._located(where)

    def _located(self, path: Path) -> Domain:
        """Return the domain with the absolute paths and the hashes of the files of its trees of codes.

        `path` is that of the domain file, to whose folder the files are relative.
        """
        trees = {axis.name: axis for axis in self.searches if isinstance(axis.search, NodeSearch)}
        if not trees:
            return self
        located = {name: replace(tree, search=located_tree(tree, path.parent)) for name, tree in trees.items()}
        return self._with(located)

    @property
    def discovered(self) -> tuple[str, ...]:
        """Attributes and numbers whose cells were found by a search, or will be."""
        return tuple(self._marks.get(DISCOVERED, ())) or tuple(axis.name for axis in self.searches)

    def _with(self, changed: Mapping[str, Attribute], **marks: Any) -> Domain:
        """Return the domain with other attributes in the places of some."""
        axes = [changed.get(axis.name, axis) for axis in self.axes]
        return self._copy(axes=axes, marks={**self._marks, **marks})

    def with_totals(self, tables: Sequence[Mapping[str, Any]], folder: Path | None = None) -> Domain:
        """Return the domain with public totals of some records.

        Parameters
        ----------
        tables : sequence of mapping
            Tables [[totals]] of a job: path, attributes, origin and, if they differ from their defaults, count and
            column.
        folder : Path, optional
            Folder from which relative paths start; default: the current one.

        Returns
        -------
        Domain

        Raises
        ------
        DomainError
            If a total is invalid, or contradicts another one.
        """
        read = [read_total(table, self, folder) for table in tables]
        return self._copy(totals=(*self.public_totals, *read)) if read else self

    def without(self, name: str) -> Domain:
        """Return the domain without an attribute.

        Parameters
        ----------
        name : str

        Returns
        -------
        Domain

        Raises
        ------
        DomainError
            If the domain has no such attribute, or a rule contains it.

        Examples
        --------
        >>> Domain(a=3, b=2).without("a").names
        ('b',)
        """
        self[name]
        for rule in (*self.rules, *self.value_rules):
            if name in rule.names or (isinstance(rule, ValueRule) and name in rule.numbers):
                raise DomainError("domain", f"a rule that contains {name!r}", "rules of other attributes", "remove it")
        return self._copy(axes=[axis for axis in self.axes if axis.name != name])

    @cached_property
    def without_totals(self) -> Domain:
        """The domain without public totals."""
        return self._copy(totals=()) if self.public_totals else self

    def known_table(self, names: AttributeSet) -> Integers | None:
        """Return the exact table of an attribute set that follows from a public total; None if none does.

        Parameters
        ----------
        names : AttributeSet
            In domain order.

        Returns
        -------
        ndarray of int64, or None
        """
        if not self.public_totals:
            return None
        if names not in self._known:
            tables = (coarsen(self, total.counts, total.names, names) for total in self.public_totals)
            self._known[names] = next((table for table in tables if table is not None), None)
        return self._known[names]

    @cached_property
    def _known(self) -> dict[AttributeSet, Integers | None]:
        return {}

    def with_found(self, found: Mapping[str, Attribute]) -> Domain:
        """Return the domain with the cells that a search has found.

        Parameters
        ----------
        found : mapping of str to Attribute
            The attributes without a search, by name.

        Returns
        -------
        Domain
        """
        known = {}
        for name, attribute in found.items():
            # words of values that were not found are dropped
            has_words = bool(attribute.words.labels)
            known[name] = replace(attribute, words=attribute.words.among(attribute.labels)) if has_words else attribute
        return self._with(known, **{DISCOVERED: list(found)})

    @classmethod
    def from_dict(cls, content: Mapping[str, Any], folder: Path | None = None) -> Domain:
        """Create a domain from the parsed content of a domain file.

        Parameters
        ----------
        content : mapping
        folder : Path, optional
            Folder from which relative paths of hierarchies start; default: the current one.

        Returns
        -------
        Domain

        Raises
        ------
        DomainError
            If the content is not a valid domain, or is a draft that has not been reviewed.

        Examples
        --------
        >>> Domain.from_dict({"attributes": {"age": {"kind": "integer", "low": 18, "high": 99}}})["age"].size
        82
        """
        check_keys(content, {"attributes", "numbers", TOTALS, REVIEWED, DISCOVERED, RULE, FORMATS}, "domain file")
        if content.get(REVIEWED, True) is not True:
            known = "true, after public bounds have replaced those that `dpscale domain sketch` took from the records"
            raise DomainError(REVIEWED, safe_repr(content[REVIEWED]), known, "review the file, then set it")

        tables = content.get("attributes", {})
        if not isinstance(tables, Mapping):
            raise DomainError(
                "attributes", "not a table", "tables [attributes.NAME]", f"such as [attributes.age] with {EXAMPLE}"
            )

        axes = [*from_tables(tables, folder), *read_numbers(content.get("numbers", {}))]
        domain = cls(axes, texts_of(content.get(RULE, [])), formats=content.get(FORMATS, {}))
        domain._marks = {name: content[name] for name in (REVIEWED, DISCOVERED) if name in content}
        return domain.with_totals(content.get(TOTALS, []), folder)

    def to_dict(self) -> dict[str, Any]:
        """Return the content of a domain file that defines this domain.

        Levels of a hierarchy above its leaf are stated by the table of the leaf, if the domain has it.

        Returns
        -------
        dict

        Examples
        --------
        >>> Domain(a=3).to_dict()["attributes"]["a"]["size"]
        3
        """
        numbers = {"numbers": {number.name: number.describe() for number in self.numbers}} if self.numbers else {}
        rules = {RULE: [{RULE: text} for text in self.rule_texts]} if self.rule_texts else {}
        leaves = {
            attribute.level.tree
            for attribute in self.attributes
            if attribute.level is not None and attribute.level.is_leaf
        }
        stated = [
            attribute
            for attribute in self.attributes
            if attribute.level is None or attribute.level.is_leaf or attribute.level.tree not in leaves
        ]
        totals = {TOTALS: [total.describe() for total in self.public_totals]} if self.public_totals else {}
        formats = (
            {FORMATS: {text_format.name: text_format.describe() for text_format in self.formats}}
            if self.formats
            else {}
        )

        attributes = {a.name: a.describe() for a in stated}
        return {"attributes": attributes, **numbers, **formats, **rules, **self._marks, **totals}

    def to_files(self, name: str = "domain.toml") -> dict[str, bytes]:
        """Return a domain file and copies of the files of its hierarchies, for one folder.

        Parameters
        ----------
        name : str
            Name of the domain file.

        Returns
        -------
        dict of str to bytes
            Contents by name, the domain file last.

        Examples
        --------
        >>> list(Domain(a=3).to_files("a.toml"))
        ['a.toml']
        """
        content = self.to_dict()
        for table in content["attributes"].values():
            if table["kind"] == "hierarchy":
                table["file"] = stored_name(table["sha256"])
        for table in content.get(TOTALS, ()):
            table["path"] = total_name(table["sha256"])
        return {**self.tree_files(), name: tomli_w.dumps(content).encode()}

    def tree_files(self) -> dict[str, bytes]:
        """Return copies of the files of hierarchies and public totals by the names that `to_files` states.

        Returns
        -------
        dict of str to bytes
        """
        trees = [
            attribute.level.tree
            for attribute in self.attributes
            if attribute.level is not None and attribute.level.is_leaf
        ]
        totals = {total_name(total.digest): total_bytes(total, self) for total in self.public_totals}
        return {stored_name(tree.digest): tree_bytes(tree) for tree in trees} | totals

    @property
    def reviewed(self) -> bool:
        """Whether the domain is a draft from data that a person has reviewed."""
        return REVIEWED in self._marks

    def for_rows_per_unit(self, rows: int) -> Domain:
        """Return the domain for units of some rows, on which numbers with bounded totals depend.

        Parameters
        ----------
        rows : int
            Largest number of rows of a unit.

        Returns
        -------
        Domain
        """
        changed = {total.name: checked_number(replace(total, rows_per_unit=rows)) for total in self.totals}
        return self._with(changed) if changed else self

    def with_squares(self, names: Iterable[str]) -> Domain:
        """Return the domain with the squares of the named numbers, which variances need.

        Parameters
        ----------
        names : iterable of str
            Other names are ignored.

        Returns
        -------
        Domain

        Raises
        ------
        DomainError
            If a number has too many steps for exact sums of squares.
        """
        chosen = {number.name for number in self.numbers if not number.squares} & set(names)
        if not chosen:
            return self
        return self._with({number.name: checked_number(replace(number, squares=True)) for number in self.numbers
                           if number.name in chosen})  # fmt: skip

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the domain, in hexadecimal; of hierarchies, the content of the file and not its path.

        Formats and words are left out: they change nothing that is measured.
        """
        content = self.to_dict()
        content.pop(FORMATS, None)
        for table in (*content["attributes"].values(), *content.get("numbers", {}).values()):
            for key in (*WORDS, *(["file"] if table.get("kind") == "hierarchy" else [])):
                table.pop(key, None)

        for table in content.get(TOTALS, ()):
            table.pop("path")
        text = json.dumps(content, sort_keys=False, default=str)
        return hashlib.sha256(text.encode()).hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Domain) and self._identity == other._identity

    @property
    def _identity(self) -> tuple[object, ...]:
        return self.axes, self.rule_texts, tuple(total.digest for total in self.public_totals), self.formats

    def __hash__(self) -> int:
        return hash(self.axes)

    def __repr__(self) -> str:
        return f"Domain({{{', '.join(f'{a.name!r}: {a.size}' for a in self.attributes)}}})"

    def _repr_html_(self) -> str:
        """Return the domain as a table for a notebook: the first MOST attributes and numbers."""
        shown = self.attributes[:MOST]
        of_which = f", of which the first {MOST} are" if len(shown) < len(self) else ""
        rows = [(attribute.name, attribute.kind, attribute.extent, f"{attribute.size:,}") for attribute in shown]
        numbers = [(number.name, number.kind, number.extent, "—") for number in self.numbers[:MOST]]
        return html_table(
            f"Domain of {len(self)} attributes{of_which}", ("name", "kind", "values", "cells"), rows + numbers, labels=3
        )
