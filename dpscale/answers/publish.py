"""Published tables: integer tables that add up, as CSV, Parquet or one Excel workbook, with a codebook and a readme."""

from __future__ import annotations

import io
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array, vstack

from dpscale.answers import statistics
from dpscale.answers.published_numbers import (
    STATISTIC,
    UNRELIABLE,
    NumberTable,
    codebook_rows,
    column_notes,
    flag_values,
    number_tables,
)
from dpscale.answers.tables import EXTRAPOLATED, FIGURES, Answered, column, texts
from dpscale.base.arrow import arrow_csv, pa, pq, without_dictionaries
from dpscale.base.errors import JobError, PlanError
from dpscale.base.numerics import AttributeSet, Floats, Integers, NDArray
from dpscale.domain import Domain
from dpscale.domain.structural_zeros import possible
from dpscale.storage.files import write_whole

MOST_CELLS = 20_000
MOST_SETS = 2000


@dataclass(frozen=True, eq=False)
class Published:
    """Integer tables by attribute set, standard errors (nan if unknown), and omitted sets with reasons.

    `listed` has the answers of queries that are listed by predicates, by label and attributes: values without a margin
    in common, each rounded alone. `numbers` has sums, means and other statistics of numbers.
    """

    total: int
    tables: Mapping[AttributeSet, Integers]
    errors: Mapping[AttributeSet, Floats]
    left_out: Mapping[AttributeSet, str]
    listed: Sequence[tuple[str, pa.Table]] = ()
    numbers: Sequence[NumberTable] = ()


def publish(answered: Answered, requested: Sequence[AttributeSet]) -> Published:
    """Return integer tables for the sets. Raises PlanError if not even the total is estimated."""
    total = max(round(statistics.total(answered, 0.95).estimate), 0)
    whole: dict[AttributeSet, Integers] = {(): np.array(total)}
    errors, left = dict[AttributeSet, Floats](), dict[AttributeSet, str]()
    domain = answered.estimates.workload.domain
    for names in closed(requested):
        if domain.cells(names) > MOST_CELLS:
            left[names] = f"it has more than {MOST_CELLS:,} cells"
            continue
        try:
            estimate, errors[names] = answered.cells(names)
        except PlanError:
            left[names] = "the workload does not determine its cells"
            continue
        found = adjust_to_constraints(
            estimate, names, below(names, whole), possible(domain.rules, names, domain.shape(names))
        )
        if found is None:
            left[names] = "no integer table with the margins of the other tables was found"
        else:
            whole[names] = found
    tables = {names: whole[names] for names in requested if names in whole and names}
    left = {names: why for names, why in left.items() if names in requested}
    numbers = [*number_tables(answered, requested, tables, MOST_CELLS)]
    return Published(total, tables, errors, left, [*_listed(answered, requested)], numbers)


def _listed(answered: Answered, requested: Sequence[AttributeSet]) -> Iterator[tuple[str, pa.Table]]:
    """Yield the queries that are listed by predicates over the sets: counts as non-negative integers."""
    for part, names, table in answered.listed(0.95):
        by = tuple(name for name in names if name not in part.domain.number_names)
        if by and by not in requested:
            continue
        values = table["estimate"].to_numpy()
        values = np.maximum(np.rint(values), 0).astype(np.int64) if part.are_counts else np.round(values, 2)
        named = table.select([name for name in table.column_names if name not in (*FIGURES, EXTRAPOLATED)])
        named = named.append_column("count" if part.are_counts else "value", pa.array(values))
        errors = pa.array(np.round(table["std_error"].to_numpy(), 2), from_pandas=True)
        yield "-".join([part.name, *names]), named.append_column("std_error", errors)


def closed(requested: Iterable[AttributeSet]) -> list[AttributeSet]:
    """Return the sets, their single attributes and the pairwise intersections, smallest first."""
    found = dict.fromkeys(names for names in requested if names)
    for one, other in combinations(list(found), 2):
        found[tuple(name for name in one if name in other)] = None
    found.update(dict.fromkeys((name,) for names in list(found) for name in names))
    return sorted((names for names in found if names), key=len)


def below(names: AttributeSet, whole: Mapping[AttributeSet, Integers]) -> dict[AttributeSet, Integers]:
    """Return the largest integer tables over subsets of a set."""
    inside = [own for own in whole if set(own) < set(names)]
    return {own: whole[own] for own in inside if not any(set(own) < set(other) for other in inside)}


def chosen(answered: Answered, sets: Sequence[Sequence[str]], degree: int | None) -> list[AttributeSet]:
    """Return the named sets, or all sets of the workload with a degree.

    Raises
    ------
    JobError
        For too many sets, or if none is small enough.
    """
    domain = answered.estimates.workload.domain
    named = [domain.ordered(names) for names in sets] or [
        names for names in _counted_sets(answered) if names and degree in (None, len(names))
    ]
    named = list(dict.fromkeys(named))
    fit = sum(domain.cells(names) <= MOST_CELLS for names in named)
    has_totals = degree is None and any(names and not set(names) - domain.number_names
                                        for names in answered.estimates.workload.sets)  # fmt: skip
    if not (fit or (has_totals and not named)) or len(named) > MOST_SETS:
        got = f"{len(named):,} sets, {fit:,} of them of up to {MOST_CELLS:,} cells"
        raise JobError("publish", got, f"1 to {MOST_SETS:,} sets", "select some with --set age,sex or --degree 2")
    return named


def _counted_sets(answered: Answered) -> list[AttributeSet]:
    """Return the sets of the workload without numbers, which tables of counts do not have."""
    numbers = answered.estimates.workload.domain.number_names
    sets = answered.estimates.workload.sets
    return list(dict.fromkeys(tuple(name for name in names if name not in numbers) for names in sets))


README, CODEBOOK, BOOK = "README.txt", "codebook.csv", "tables.xlsx"
DESCRIPTION = ("Post-processing of a differentially private release: computed from its noisy answers alone, without the"
               " data and without further privacy cost. Counts are estimates, not the true numbers.")  # fmt: skip
MOST_NAME = 60
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # first characters of a formula in a spreadsheet
NUMBER = re.compile(r"[+-]?\d+(\.\d*)?([eE][+-]?\d+)?")


def write_published(
    folder: Path, domain: Domain, published: Published, release: str, limit: float, formats: Sequence[str]
) -> list[str]:
    """Write all files of a publication and return their names.

    An older publication is replaced; a folder with other files is refused.
    """
    _emptied(folder)
    tables = {name: labelled(domain, published, names, limit) for name, names in _names(published.tables)}
    tables |= {name: flagged(table, limit) for name, table in _listed_names(published)}
    tables |= {name: flag_values(one, limit) for name, one in _number_names(published)}
    for kind in formats:
        FORMATS[kind](folder, tables, release)
    _csv(folder / CODEBOOK, codebook(domain, published))
    write_whole(folder / README, readme(published, release, limit, dict(_names(published.tables))).encode())
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def labelled(domain: Domain, published: Published, names: AttributeSet, limit: float) -> pa.Table:
    """Return an Arrow table of labels, `count`, `std_error` and `flag`.

    The flag is `unreliable` if the error is more than `limit` times the count.
    """
    counts = published.tables[names].reshape(-1)
    errors = np.broadcast_to(published.errors[names], published.tables[names].shape).reshape(-1)
    cells = np.unravel_index(np.arange(counts.size), published.tables[names].shape)
    own = {name: column(domain[name], at) for name, at in zip(names, cells, strict=True)}
    own |= {"count": counts, "std_error": pa.array(np.round(errors, 2), from_pandas=True)}
    return flagged(pa.table(own), limit)


def flagged(table: pa.Table, limit: float) -> pa.Table:
    """Return a table of values and errors with the column `flag`."""
    value = table["count" if "count" in table.column_names else "value"].to_numpy()
    errors = table["std_error"].to_numpy()
    flags = np.where(errors > limit * np.maximum(np.abs(value), 1), UNRELIABLE, "")
    return table.append_column("flag", pa.array(flags.tolist(), pa.string()))


def _listed_names(published: Published) -> Iterator[tuple[str, pa.Table]]:
    """Yield file names and tables of listed queries, numbered after the other tables."""
    for number, (name, table) in enumerate(published.listed, start=len(published.tables) + 1):
        yield _file_name(number, name), table


def _number_names(published: Published) -> Iterator[tuple[str, NumberTable]]:
    """Yield file names and tables of statistics of numbers, after all others."""
    for number, one in enumerate(published.numbers, start=len(published.tables) + len(published.listed) + 1):
        yield _file_name(number, one.title.replace(" of ", "-").replace(" by ", "-")), one


def _file_name(number: int, name: str) -> str:
    """Return a file name without an ending, in characters that every file system accepts."""
    return f"{number:03d}-" + re.sub(r"[^A-Za-z0-9]+", "-", name)[:MOST_NAME].strip("-")


def codebook(domain: Domain, published: Published) -> pa.Table:
    """Return an Arrow table of every published attribute: kind, cells and labels; and the ranges of numbers."""
    sets = [*published.tables, *(one.by for one in published.numbers)]
    names = [name for name in domain.names if any(name in own for own in sets)]
    rows = [(name, domain[name].kind, cell, label) for name in names for cell, label in enumerate(texts(domain[name]))]
    every = [*rows, *codebook_rows(published.numbers)]
    return pa.Table.from_pylist([dict(zip(("attribute", "kind", "cell", "label"), row, strict=True)) for row in every])


def readme(published: Published, release: str, limit: float, files: Mapping[str, AttributeSet]) -> str:
    """Return the text that describes the tables, their computation, and the omitted sets."""
    listed = [f"  {name}: {', '.join(names)}" for name, names in files.items()]
    listed += [f"  {name}: listed queries, each rounded alone" for name, _ in _listed_names(published)]
    listed += [f"  {name}: {one.description}" for name, one in _number_names(published)]
    out = [f"  {', '.join(names)}: {why}" for names, why in published.left_out.items()] or ["  none"]
    numbers = column_notes(limit) if published.numbers else []
    return "\n".join([
        f"Tables of release {release}", "", DESCRIPTION, "",
        f"Total: {published.total:,}. All counts are non-negative integers, and tables add up: common margins of two",
        "tables are equal. Combinations that the domain declares impossible are 0. For this, estimates are",
        "truncated at zero, fitted to the margins of smaller tables and rounded, so small counts are biased.",
        "For sums of many cells use the answers of the release.", "",
        "count      the published number",
        "std_error  standard error of the underlying estimate; empty: unknown",
        f"flag       '{UNRELIABLE}' if the standard error is more than {limit:g} times the count (or than {limit:g},"
        " for a count of 0)", *numbers,
        "", "Labels are in codebook.csv.", "", "Tables", *listed, "", "Omitted", *out, "",
    ])  # fmt: skip


def _names(tables: Mapping[AttributeSet, Any]) -> Iterator[tuple[str, AttributeSet]]:
    """Yield file names without an ending: a number and the attributes."""
    for number, names in enumerate(tables, start=1):
        yield _file_name(number, "-".join(names)), names


def _emptied(folder: Path) -> None:
    """Create the folder, or remove an older publication in it. Raises JobError for any other folder with files."""
    if folder.exists() and any(folder.iterdir()):
        if not (folder / README).is_file() or not (folder / CODEBOOK).is_file():
            raise JobError("--out", f"{folder} contains other files", "a new or empty folder, or an older publication",
                           "choose another folder")  # fmt: skip
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)


def _csv(path: Path, table: pa.Table) -> None:
    out = io.BytesIO()
    arrow_csv.write_csv(_escaped(without_dictionaries(table)), out)
    write_whole(path, out.getvalue())


def _all_csv(folder: Path, tables: Mapping[str, pa.Table], release: str) -> None:
    for name, table in tables.items():
        _csv(_place(folder, "csv") / f"{name}.csv", table)


def _all_parquet(folder: Path, tables: Mapping[str, pa.Table], release: str) -> None:
    for name, table in tables.items():
        out = io.BytesIO()
        own = {"description": DESCRIPTION, "release": release, **(table.schema.metadata or {})}
        pq.write_table(table.replace_schema_metadata(own), out)
        write_whole(_place(folder, "parquet") / f"{name}.parquet", out.getvalue())


def _excel(folder: Path, tables: Mapping[str, pa.Table], release: str) -> None:
    """Write one workbook: a sheet with a description, and one for each table."""
    try:
        from openpyxl import Workbook
    except ImportError:
        raise JobError("--format", "xlsx, without openpyxl", "csv or parquet, or the extra dpscale[excel]",
                       "pip install 'dpscale[excel]'") from None  # fmt: skip
    book = Workbook(write_only=True)
    first = book.create_sheet("about")
    about = [f"{name}: {_statistic(table)}" if _statistic(table) else name for name, table in tables.items()]
    for line in (f"Tables of release {release}", DESCRIPTION, *about):
        first.append([line])
    for name, table in tables.items():
        sheet = book.create_sheet(name[:31])
        plain = _escaped(without_dictionaries(table))
        sheet.append(plain.column_names)
        for row in zip(*plain.to_pydict().values(), strict=True):
            sheet.append(list(row))
    out = io.BytesIO()
    book.save(out)
    write_whole(folder / BOOK, out.getvalue())


def _statistic(table: pa.Table) -> str:
    """Return the description of a statistic of a number; "" for another table."""
    return str((table.schema.metadata or {}).get(STATISTIC, b"").decode())


def _escaped(table: pa.Table) -> pa.Table:
    """Put an apostrophe before headers and texts that a spreadsheet would read as formulas; numbers stay numbers."""
    columns = [
        pa.array([_text(value) for value in own.to_pylist()], pa.string()) if pa.types.is_string(own.type) else own
        for own in table.columns
    ]
    return pa.table(columns, names=[_text(name) for name in table.column_names])


def _text(value: str | None) -> str | None:
    """Escape a text that starts like a formula, unless it is a number such as -5."""
    return f"'{value}" if value and value[0] in FORMULA and not NUMBER.fullmatch(value) else value


def _place(folder: Path, kind: str) -> Path:
    (folder / kind).mkdir(exist_ok=True)
    return folder / kind


FORMATS: dict[str, Callable[[Path, Mapping[str, pa.Table], str], None]] = {
    "csv": _all_csv,
    "parquet": _all_parquet,
    "xlsx": _excel,
}


FURTHER = (0, 1, 4, np.inf)  # units beyond rounding down or up, tried in this order
SEED = 1e-3  # share of a cell's mean that truncated cells start with, so that they can grow again
SWEEPS, CLOSE, NODES = 2000, 1e-7, 500


def adjust_to_constraints(
    estimate: Floats, names: AttributeSet, margins: Mapping[AttributeSet, Integers], possible: NDArray[np.bool_]
) -> Integers | None:
    """Return integers near an estimate with given margins.

    Parameters
    ----------
    estimate : ndarray
        One axis for each of `names`.
    names : AttributeSet
    margins : mapping of AttributeSet to ndarray of int
        Integer tables over subsets of `names`; () is the total.
    possible : ndarray of bool
        False for cells that must be 0.

    Returns
    -------
    ndarray of int, or None
        None if no table has these margins, or none was found.
    """
    groups = [(_groups(estimate.shape, names, own), table.reshape(-1)) for own, table in margins.items()]
    fitted = proportional(estimate, groups, possible)
    return next((found for more in FURTHER if (found := _rounded(fitted, groups, possible, more)) is not None), None)


Groups = Sequence[tuple[NDArray[np.int64], Integers]]


def proportional(estimate: Floats, groups: Groups, possible: NDArray[np.bool_]) -> Floats:
    """Return a non-negative table near the truncated estimate whose margins are fitted by up to `SWEEPS` sweeps."""
    table = np.maximum(estimate, 0.0).reshape(-1)
    table = (table + SEED * max(table.mean(), 1.0)) * possible.reshape(-1)
    for _ in range(SWEEPS):
        off = 0.0
        for group, target in groups:
            sums = np.bincount(group, table, len(target))
            off = max(off, float(np.abs(sums - target).max()))
            table = table * np.divide(target, sums, out=np.zeros(len(target)), where=sums > 0)[group]
        if off < CLOSE:
            break
    return table.reshape(estimate.shape)


def _groups(shape: tuple[int, ...], names: AttributeSet, own: AttributeSet) -> NDArray[np.int64]:
    """Return for every cell of a table the cell of the margin to which it belongs, both row-major."""
    cells = np.arange(int(np.prod([shape[names.index(name)] for name in own], dtype=int)))
    sizes = [shape[i] if name in own else 1 for i, name in enumerate(names)]
    return np.ascontiguousarray(np.broadcast_to(cells.reshape(sizes), shape)).reshape(-1)


def _rounded(fitted: Floats, groups: Groups, possible: NDArray[np.bool_], more: float) -> Integers | None:
    """Return integers at most `more` units beyond rounding down or up; None if there are none."""
    flat = fitted.reshape(-1)
    near = np.where(np.abs(flat - np.rint(flat)) < CLOSE, np.rint(flat), flat)
    low = np.maximum(np.floor(near) - more, 0)
    high = np.where(possible.reshape(-1), np.ceil(near) + more, 0)
    cost = np.where(near - np.floor(near) < 0.5, 1.0, -1.0) * (1 + np.abs(2 * (near - np.floor(near)) - 1))
    matrix, wanted = _margins(groups, flat.size), np.concatenate([own for _, own in groups])
    found = milp(cost, integrality=np.ones(flat.size) if len(groups) > 2 else None, bounds=Bounds(low, high),
                 constraints=LinearConstraint(matrix, wanted, wanted), options={"node_limit": NODES})  # fmt: skip
    if found.x is None:
        return None
    whole = np.rint(found.x).astype(np.int64)
    return whole.reshape(fitted.shape) if (matrix @ whole == wanted).all() else None


def _margins(groups: Groups, cells: int) -> csr_array:
    """Return the matrix of the margins, with one row for each cell of a margin."""
    one = np.ones(cells)
    return vstack([csr_array((one, (group, np.arange(cells))), shape=(len(own), cells)) for group, own in groups])
