"""Public tables of exact totals, such as the population by region, that estimates, rows and published tables respect.

A total is a count for every cell of some attributes. It determines each residual inside these attributes exactly, so no
budget is spent on that residual. A total at a level of a hierarchy implies the totals at the levels above. Two totals
that contradict each other on a table that follows from both are refused.

With the origin "external" a total is known without the records. With the origin "same records" it was computed from
them, so its publication was a release without noise: the privacy guarantee is then limited to databases that agree on
it. Such databases differ in at least two records, one removed and one added with the same values of the attributes of
the total, so their distance is twice the epsilon, or the mu, of one record.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from dpscale.base.arrow import arrow_csv, pa, pq
from dpscale.base.display import display_path, nearest, safe_repr
from dpscale.base.errors import DomainError
from dpscale.base.numerics import AttributeSet, Integers
from dpscale.domain.attribute import Attribute
from dpscale.domain.hierarchy import Hierarchy, level_axes, margin_cells
from dpscale.domain.rules import DomainConstraint, possible
from dpscale.storage.files import place

EXTERNAL, SAME = ORIGINS = ("external", "same records")
AGREE = "between databases that agree on the public totals of"
TWICE = ", which differ in two records at least: twice the epsilon, or the mu, of one record is between them"
KEYS = {"path", "attributes", "count", "column", "origin", "sha256"}
COUNTED = ("rows", "units")
MOST_CELLS = 10_000_000  # of a table of totals


class TotalsDomain(Protocol):
    """Part of a domain that totals need."""

    @property
    def rules(self) -> Sequence[DomainConstraint]: ...
    @property
    def hierarchies(self) -> Sequence[Hierarchy]: ...
    def __getitem__(self, name: str, /) -> Attribute: ...
    def attribute(self, name: str, /) -> Attribute: ...
    def ordered(self, names: Sequence[str], /) -> AttributeSet: ...
    def shape(self, names: Sequence[str], /) -> tuple[int, ...]: ...
    def cells(self, names: Sequence[str], /) -> int: ...
    def hierarchy_of(self, name: str, /) -> Hierarchy | None: ...


@dataclass(frozen=True, eq=False)
class PublicTotal:
    """Exact counts of all cells of some attributes.

    Attributes
    ----------
    names : AttributeSet
        In domain order.
    counts : ndarray of int64
        One axis for each attribute.
    origin : str
        "external" or "same records".
    counted : str
        "rows" or "units".
    path : str
        File that it was read from.
    column : str
        Column of the counts.
    """

    names: AttributeSet
    counts: Integers
    origin: str
    counted: str
    path: str
    column: str = "count"

    def describe(self) -> dict[str, Any]:
        """Return the total as a table of a domain file.

        Returns
        -------
        dict
        """
        return {"path": self.path, "attributes": list(self.names), "count": self.counted, "origin": self.origin,
                "column": self.column, "sha256": self.digest}  # fmt: skip

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the attributes and counts, in hexadecimal."""
        content = f"{self.names}{self.counts.shape}{self.origin}{self.counted}".encode()
        return hashlib.sha256(content + np.ascontiguousarray(self.counts, "<i8").tobytes()).hexdigest()


def read_total(table: Any, domain: TotalsDomain, folder: Path | None) -> PublicTotal:
    """Return the total of a table [[totals]].

    The fields are checked before the file is read: its path, its attributes, its origin (see the module) and whether it
    counts rows or units. Names are in the order of the domain.

    Parameters
    ----------
    table : mapping
    domain : Domain
    folder : Path or None
        Folder from which a relative path starts; None for the current one.

    Raises
    ------
    DomainError
        If a field, or a row of the file, is invalid.
    """
    if not isinstance(table, Mapping) or not KEYS.issuperset(table):
        unknown = "not a table" if not isinstance(table, Mapping) else f"the key {sorted(set(table) - KEYS)[0]!r}"
        raise DomainError("totals", unknown, ", ".join(sorted(KEYS)), "fix it")

    path, stated = table.get("path"), table.get("attributes")
    if not isinstance(path, str) or not path.endswith((".csv", ".parquet")):
        raise DomainError("totals.path", safe_repr(path), "the path of a CSV or Parquet file", "fix it")
    if not isinstance(stated, list | tuple) or not all(isinstance(entry, str) for entry in stated):
        raise DomainError("totals.attributes", safe_repr(stated), "a list of attributes", "fix it")

    names = domain.ordered(stated)
    # refuses names that are no attributes
    for name in names:
        domain.attribute(name)
    origin, counted = table.get("origin"), table.get("count", COUNTED[0])
    if origin not in ORIGINS:
        raise DomainError("totals.origin", "missing" if origin is None else safe_repr(origin), " or ".join(ORIGINS),
                          'write "same records" if the totals were computed from the records of the table')  # fmt: skip
    if counted not in COUNTED:
        raise DomainError("totals.count", safe_repr(counted), " or ".join(COUNTED), "fix it")
    if domain.cells(names) > MOST_CELLS:
        raise DomainError("totals.attributes", f"{domain.cells(names):,} cells", f"at most {MOST_CELLS:,}", "use fewer")

    where = place(path if folder is None or "://" in path else folder / path, "totals.path")
    column = table.get("column", "count")
    counts = _counts(_read(where), names, column, domain, display_path(where))
    total = PublicTotal(names=names, counts=counts, origin=origin, counted=counted, path=str(where), column=column)
    # the hash is written at the first reading, so that a run does not continue with other totals
    if table.get("sha256", total.digest) != total.digest:
        raise DomainError("totals.path", f"{display_path(where)}, which was changed", "the file as it was first read",
                          "restore it, or start a new run")  # fmt: skip
    return total


def condition_of(totals: Iterable[PublicTotal]) -> str:
    """Return the condition that totals from the same records add to the guarantee; "" if there is none."""
    named = [" x ".join(total.names) or "all records" for total in totals if total.origin == SAME]
    return f"; the guarantee holds {AGREE} {', '.join(named)}{TWICE}" if named else ""


def is_condition(note: str) -> bool:
    """Return whether a note of a ledger is a condition that `condition_of` made for one of its releases."""
    return AGREE in note


def total_name(digest: str) -> str:
    """Return the name of the copy of a total's file in a run directory."""
    return f"totals-{digest[:16]}.parquet"


def total_bytes(total: PublicTotal, domain: TotalsDomain) -> bytes:
    """Return a Parquet file from which the same total is read."""
    cells = np.unravel_index(np.arange(total.counts.size), total.counts.shape) if total.names else ()
    columns = {name: _labels(domain[name], at) for name, at in zip(total.names, cells, strict=True)}
    buffer = io.BytesIO()
    pq.write_table(pa.table({**columns, total.column: total.counts.reshape(-1)}), buffer, compression="zstd")
    return buffer.getvalue()


def _labels(attribute: Attribute, cells: Integers) -> Any:
    """Return the labels of cells as texts; null for the cell of nulls."""
    texts = [None if label is None else str(label) for label in attribute.labels]
    return pa.array(texts, pa.string()).take(pa.array(cells))


def _read(path: Path) -> Any:
    """Return the table in a file; texts of a CSV file are not converted."""
    try:
        content = pa.BufferReader(path.read_bytes())
        if path.name.endswith(".parquet"):
            return pq.read_table(content)
        header = arrow_csv.open_csv(pa.BufferReader(path.read_bytes())).schema.names
        texts = arrow_csv.ConvertOptions(column_types=dict.fromkeys(header, pa.string()), strings_can_be_null=False)
        return arrow_csv.read_csv(content, convert_options=texts)
    except (OSError, pa.ArrowException):
        raise DomainError(
            "totals.path", f"cannot read {display_path(path)}", "a CSV or Parquet file", "check the path"
        ) from None


def _counts(table: Any, names: AttributeSet, column: Any, domain: TotalsDomain, path: str) -> Integers:
    """Return the counts of all cells. Raises DomainError for an unknown label, a repeat or a missing cell.

    The number of a cell is its position in row-major order. A cell that the rules exclude may be absent, and must be
    zero.
    """
    if missing := [wanted for wanted in (*names, column) if wanted not in table.column_names]:
        raise DomainError("totals.path", f"no column {missing[0]!r} in {path}", ", ".join(table.column_names),
                          nearest(str(missing[0]), table.column_names))  # fmt: skip

    shape = domain.shape(names)
    cells = np.zeros(table.num_rows, np.int64)
    for name, size in zip(names, shape, strict=True):
        cells = cells * size + _cells(domain.attribute(name), table[name].to_pylist(), path)
    values = _integers(table[column].to_pylist(), path)
    counts_of_cell = np.bincount(cells, minlength=int(np.prod(shape, dtype=int)))
    allowed = possible(domain.rules, names, shape).reshape(-1) if names else np.ones(1, np.bool_)
    if (counts_of_cell > 1).any():
        raise _wrong_cell("two counts of", int(np.argmax(counts_of_cell > 1)), names, domain, path)
    if ((counts_of_cell == 0) & allowed).any():
        raise _wrong_cell("no count of", int(np.argmax((counts_of_cell == 0) & allowed)), names, domain, path)

    counts = np.zeros(len(counts_of_cell), np.int64)
    counts[cells] = values
    if (counts[~allowed] > 0).any():
        raise _wrong_cell("records in the impossible", int(np.argmax((counts > 0) & ~allowed)), names, domain, path)
    return counts.reshape(shape)


def _cells(attribute: Attribute, labels: Sequence[Any], path: str) -> Integers:
    """Return the cell of each label of a file of public totals; raise DomainError for an unknown one.

    A label None or "" is a null. `path` names the file in errors.
    """
    known = attribute.cell_of
    cells = np.array(
        [attribute.null_cell if label in (None, "") else known.get(label, -1) for label in labels], np.int64
    )
    if (cells < 0).any():
        unknown = labels[int(np.argmax(cells < 0))]
        shown = "a null" if unknown in (None, "") else safe_repr(unknown)
        raise DomainError("totals.path", f"{shown} in {path}", f"labels of {attribute.name}",
                          nearest(str(unknown), map(str, attribute.labels)))  # fmt: skip
    return cells


def _integers(values: Sequence[Any], path: str) -> Integers:
    """Return the counts of a file of public totals as integers of at least 0; raise DomainError for others."""
    try:
        counts = np.array([int(str(value)) for value in values], np.int64)
    except (ValueError, OverflowError):
        raise DomainError(
            "totals.path", f"a count in {path} that is no whole number", "whole numbers of at least 0", "fix it"
        ) from None

    if len(counts) and int(counts.min()) < 0:
        raise DomainError("totals.path", f"the count {int(counts.min())} in {path}", "counts of at least 0", "fix it")
    return counts


def _wrong_cell(problem: str, cell: int, names: AttributeSet, domain: TotalsDomain, path: str) -> DomainError:
    got = f"{problem} {describe_cell(domain, names, cell)} in {path}"
    return DomainError("totals.path", got, "one count for each possible combination", "fix the file")


def describe_cell(domain: TotalsDomain, names: AttributeSet, cell: int) -> str:
    """Return the labels of a cell of a table, for messages."""
    places = np.unravel_index(cell, domain.shape(names)) if names else ()
    labels = (f"{name} {domain[name].labels[int(place)]!r}" for name, place in zip(names, places, strict=True))
    return ", ".join(labels) or "all records"


def coarsen(domain: TotalsDomain, counts: Integers, names: AttributeSet, wanted: Sequence[str]) -> Integers | None:
    """Return the table over `wanted` that follows from one over `names`; None if it does not follow.

    Parameters
    ----------
    domain : Domain
    counts : ndarray
        One axis for each of `names`.
    names, wanted : AttributeSet
        In domain order. A wanted attribute is one of `names`, or a level above one.
    """
    if (axes_and_cells := level_axes(domain, names, wanted)) is None:
        return None
    table = np.zeros(domain.shape(wanted), counts.dtype)
    np.add.at(table.reshape(-1), margin_cells(counts.shape, *axes_and_cells), counts.reshape(-1))
    return table


def check_totals(domain: TotalsDomain, totals: Sequence[PublicTotal]) -> None:
    """Raise DomainError if two totals contradict each other on a table that follows from both.

    `common_set` are the attributes, or levels above, of which both totals have a table; `coarsen` sums a total to it,
    and is None if it cannot.
    """
    for first, second in combinations(totals, 2):
        names = common_set(domain, first.names, second.names)
        tables = [coarsen(domain, total.counts, total.names, names) for total in (first, second)]
        if tables[0] is None or tables[1] is None or (tables[0] == tables[1]).all():
            continue
        cell = int(np.argmax((tables[0] != tables[1]).reshape(-1)))
        values = [f"{int(table.reshape(-1)[cell])} in {display_path(total.path)}"
                  for table, total in zip(tables, (first, second), strict=True) if table is not None]  # fmt: skip
        raise DomainError("totals", f"{describe_cell(domain, names, cell)}: {' and '.join(values)}",
                          "totals that agree", "correct one of the files")  # fmt: skip


def common_set(domain: TotalsDomain, first: AttributeSet, second: AttributeSet) -> AttributeSet:
    """Return the largest set whose table follows from both sets, in domain order.

    Of a hierarchy both sets may name different levels: the table at the higher one follows from both.
    """
    common = [name for name in first if name in second]
    for hierarchy in domain.hierarchies:
        levels = [
            max((hierarchy.position(name) for name in names if name in hierarchy.names), default=-1)
            for names in (first, second)
        ]
        if min(levels) >= 0 and levels[0] != levels[1]:
            common = [name for name in common if name not in hierarchy.names] + [hierarchy.names[min(levels)]]
    return domain.ordered(common)
