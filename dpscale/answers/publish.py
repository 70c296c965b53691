"""Published tables as files: CSV, Parquet or one Excel book, with a codebook and a readme that says what they are."""

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
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array, vstack

from dpscale.answers import statistics
from dpscale.answers.tables import Answered, column, texts
from dpscale.base.arrays import Floats, Integers
from dpscale.base.display import AttributeSet
from dpscale.base.errors import JobError, PlanError
from dpscale.domain import Domain
from dpscale.domain.structural_zeros import possible
from dpscale.storage.files import write_whole

MOST_CELLS = 20_000
MOST_SETS = 2000


@dataclass(frozen=True, eq=False)
class Published:
    """Whole tables by set, their standard errors (nan: none told), and the sets that were left out, with why."""

    total: int
    tables: Mapping[AttributeSet, Integers]
    errors: Mapping[AttributeSet, Floats]
    left_out: Mapping[AttributeSet, str]


def publish(answered: Answered, requested: Sequence[AttributeSet]) -> Published:
    """Whole numbers for the sets; PlanError where not even the total is told."""
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
            left[names] = "its cells were not asked for"
            continue
        found = adjust_to_constraints(
            estimate, names, below(names, whole), possible(domain.rules, names, domain.shape(names))
        )
        if found is None:
            left[names] = "no whole numbers of it add up with the other tables"
        else:
            whole[names] = found
    kept = {names: whole[names] for names in requested if names in whole and names}
    return Published(total, kept, errors, {names: why for names, why in left.items() if names in requested})


def closed(requested: Iterable[AttributeSet]) -> list[AttributeSet]:
    """The sets, their attributes alone and what any two have in common, small ones first."""
    found = dict.fromkeys(names for names in requested if names)
    for one, other in combinations(list(found), 2):
        found[tuple(name for name in one if name in other)] = None
    found.update(dict.fromkeys((name,) for names in list(found) for name in names))
    return sorted((names for names in found if names), key=len)


def below(names: AttributeSet, whole: Mapping[AttributeSet, Integers]) -> dict[AttributeSet, Integers]:
    """The largest settled tables over parts of a set."""
    inside = [own for own in whole if set(own) < set(names)]
    return {own: whole[own] for own in inside if not any(set(own) < set(other) for other in inside)}


def chosen(answered: Answered, sets: Sequence[Sequence[str]], degree: int | None) -> list[AttributeSet]:
    """The sets named, else all asked, or those of some degree; JobError for too many, or where none is small enough."""
    domain = answered.estimates.workload.domain
    named = [domain.ordered(names) for names in sets] or [
        names for names in answered.estimates.workload.sets if names and degree in (None, len(names))
    ]
    named = list(dict.fromkeys(named))
    fit = sum(domain.cells(names) <= MOST_CELLS for names in named)
    if not fit or len(named) > MOST_SETS:
        got = f"{len(named):,} sets, {fit:,} of them of up to {MOST_CELLS:,} cells"
        raise JobError("publish", got, f"1 to {MOST_SETS:,} of them", "name some by --set age,sex or --degree 2")
    return named


README, CODEBOOK, BOOK = "README.txt", "codebook.csv", "tables.xlsx"
WHAT = ("Free post-processing of a differentially private release: made of its noisy answers alone, without the data, "
        "and at no further cost of privacy. Counts are estimates, not the true numbers.")  # fmt: skip
UNRELIABLE = "unreliable"
MOST_NAME = 60
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what starts a formula where a spreadsheet opens the file
NUMBER = re.compile(r"[+-]?\d+(\.\d*)?([eE][+-]?\d+)?")


def write_published(
    folder: Path, domain: Domain, published: Published, release: str, limit: float, formats: Sequence[str]
) -> list[str]:
    """All files of a publication; their names. One that was there before is replaced, anything else is refused."""
    _emptied(folder)
    tables = {name: labelled(domain, published, names, limit) for name, names in _names(published.tables)}
    for kind in formats:
        FORMATS[kind](folder, tables, release)
    _csv(folder / CODEBOOK, codebook(domain, published.tables))
    write_whole(folder / README, readme(published, release, limit, dict(_names(published.tables))).encode())
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def labelled(domain: Domain, published: Published, names: AttributeSet, limit: float) -> Any:
    """An Arrow table: labels, `count`, `std_error` and `flag`, which says `unreliable` where the error is more than
    `limit` times the count."""
    import pyarrow as pa

    counts = published.tables[names].reshape(-1)
    errors = np.broadcast_to(published.errors[names], published.tables[names].shape).reshape(-1)
    cells = np.unravel_index(np.arange(counts.size), published.tables[names].shape)
    own = {name: column(domain[name], at) for name, at in zip(names, cells, strict=True)}
    flags = np.where(errors > limit * np.maximum(counts, 1), UNRELIABLE, "")
    return pa.table(
        own | {"count": counts, "std_error": pa.array(np.round(errors, 2), from_pandas=True), "flag": flags.tolist()}
    )


def codebook(domain: Domain, tables: Mapping[AttributeSet, Any]) -> Any:
    """An Arrow table: every attribute that is published, its kind, its cells and their labels."""
    import pyarrow as pa

    names = [name for name in domain.names if any(name in own for own in tables)]
    rows = [(name, domain[name].kind, cell, label) for name in names for cell, label in enumerate(texts(domain[name]))]
    return pa.Table.from_pylist([dict(zip(("attribute", "kind", "cell", "label"), row, strict=True)) for row in rows])


def readme(published: Published, release: str, limit: float, files: Mapping[str, AttributeSet]) -> str:
    """What the tables are, how they were made, and which were left out."""
    listed = [f"  {name}: {', '.join(names)}" for name, names in files.items()]
    out = [f"  {', '.join(names)}: {why}" for names, why in published.left_out.items()] or ["  none"]
    return "\n".join([
        f"Tables of release {release}", "", WHAT, "",
        f"Total: {published.total:,}. All counts are whole and not negative, and tables add up: what two of them have",
        "in common is the same in both. Combinations that the domain declares impossible are 0. To get there estimates",
        "were cut at zero, fitted to the margins of smaller tables and rounded, so small counts are not unbiased;",
        "for sums of many cells use the release's answers.", "",
        "count      the published number",
        "std_error  standard error of the estimate that it was made of; empty: not told",
        f"flag       '{UNRELIABLE}' where the standard error is more than {limit:g} times the count (or than {limit:g},"
        " for a count of 0)", "", "Labels are in codebook.csv.", "", "Tables", *listed, "", "Left out", *out, "",
    ])  # fmt: skip


def _names(tables: Mapping[AttributeSet, Any]) -> Iterator[tuple[str, AttributeSet]]:
    """File names without an ending: a number and the attributes, as far as every file system takes them."""
    for number, names in enumerate(tables, start=1):
        yield f"{number:03d}-" + re.sub(r"[^A-Za-z0-9]+", "-", "-".join(names))[:MOST_NAME].strip("-"), names


def _emptied(folder: Path) -> None:
    """A new folder, or one that holds a publication, which goes; JobError for any other that is not empty."""
    if folder.exists() and any(folder.iterdir()):
        if not (folder / README).is_file() or not (folder / CODEBOOK).is_file():
            raise JobError("--out", f"{folder} holds other files", "a new or empty folder, or an older publication",
                           "choose another folder")  # fmt: skip
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)


def _csv(path: Path, table: Any) -> None:
    from pyarrow import csv

    out = io.BytesIO()
    csv.write_csv(_escaped(_plain(table)), out)
    write_whole(path, out.getvalue())


def _all_csv(folder: Path, tables: Mapping[str, Any], release: str) -> None:
    for name, table in tables.items():
        _csv(_place(folder, "csv") / f"{name}.csv", table)


def _all_parquet(folder: Path, tables: Mapping[str, Any], release: str) -> None:
    import pyarrow.parquet as pq

    for name, table in tables.items():
        out = io.BytesIO()
        pq.write_table(table.replace_schema_metadata({"description": WHAT, "release": release}), out)
        write_whole(_place(folder, "parquet") / f"{name}.parquet", out.getvalue())


def _excel(folder: Path, tables: Mapping[str, Any], release: str) -> None:
    """One book: a sheet that says what it is, and one a table."""
    try:
        from openpyxl import Workbook
    except ImportError:
        raise JobError("--format", "xlsx, without openpyxl", "csv or parquet, or the extra dpscale[excel]",
                       "pip install 'dpscale[excel]'") from None  # fmt: skip
    book = Workbook(write_only=True)
    first = book.create_sheet("about")
    for line in (f"Tables of release {release}", WHAT, *tables):
        first.append([line])
    for name, table in tables.items():
        sheet = book.create_sheet(name[:31])
        plain = _escaped(_plain(table))
        sheet.append(plain.column_names)
        for row in zip(*plain.to_pydict().values(), strict=True):
            sheet.append(list(row))
    out = io.BytesIO()
    book.save(out)
    write_whole(folder / BOOK, out.getvalue())


def _escaped(table: Any) -> Any:
    """Headers and texts that a spreadsheet would read as formulas, behind an apostrophe; numbers stay numbers."""
    import pyarrow as pa

    columns = [
        pa.array([_text(value) for value in own.to_pylist()], pa.string()) if pa.types.is_string(own.type) else own
        for own in table.columns
    ]
    return pa.table(columns, names=[_text(name) for name in table.column_names])


def _text(value: str | None) -> str | None:
    """A text as it is, unless it starts like a formula; one that is a number, as -5, is read as a number."""
    return f"'{value}" if value and value[0] in FORMULA and not NUMBER.fullmatch(value) else value


def _plain(table: Any) -> Any:
    """With texts instead of dictionaries of them."""
    import pyarrow as pa

    fields = [pa.field(one.name, pa.string()) if pa.types.is_dictionary(one.type) else one for one in table.schema]
    return table.cast(pa.schema(fields))


def _place(folder: Path, kind: str) -> Path:
    (folder / kind).mkdir(exist_ok=True)
    return folder / kind


FORMATS: dict[str, Callable[[Path, Mapping[str, Any], str], None]] = {
    "csv": _all_csv,
    "parquet": _all_parquet,
    "xlsx": _excel,
}


FURTHER = (0, 1, 4, np.inf)  # units beyond rounding down or up, one after the other
SEED = 1e-3  # of what margins expect of a cell: what is cut off may come back
SWEEPS, CLOSE, NODES = 2000, 1e-7, 500


def adjust_to_constraints(
    estimate: Floats, names: AttributeSet, margins: Mapping[AttributeSet, Integers], possible: NDArray[np.bool_]
) -> Integers | None:
    """The table over `names`, an axis each; None where no table has these margins, or none was found.

    `margins`: whole tables over subsets of the names, of which () is the total; `possible`: False for cells that are 0.
    """
    groups = [(_groups(estimate.shape, names, own), table.reshape(-1)) for own, table in margins.items()]
    fitted = proportional(estimate, groups, possible)
    return next((found for more in FURTHER if (found := _rounded(fitted, groups, possible, more)) is not None), None)


Groups = Sequence[tuple[NDArray[np.int64], Integers]]


def proportional(estimate: Floats, groups: Groups, possible: NDArray[np.bool_]) -> Floats:
    """A table ≥ 0 near the estimate cut at zero, with these margins as far as the sweeps come."""
    table = np.maximum(estimate, 0.0).reshape(-1)
    table = (table + SEED * max(table.mean(), 1.0)) * possible.reshape(-1)
    for _ in range(SWEEPS):
        off = 0.0
        for group, wanted in groups:
            has = np.bincount(group, table, len(wanted))
            off = max(off, float(np.abs(has - wanted).max()))
            table = table * np.divide(wanted, has, out=np.zeros(len(wanted)), where=has > 0)[group]
        if off < CLOSE:
            break
    return table.reshape(estimate.shape)


def _groups(shape: tuple[int, ...], names: AttributeSet, own: AttributeSet) -> NDArray[np.int64]:
    """Of every cell of a table the cell of the margin that it counts in, both row-major."""
    cells = np.arange(int(np.prod([shape[names.index(name)] for name in own], dtype=int)))
    sizes = [shape[i] if name in own else 1 for i, name in enumerate(names)]
    return np.ascontiguousarray(np.broadcast_to(cells.reshape(sizes), shape)).reshape(-1)


def _rounded(fitted: Floats, groups: Groups, possible: NDArray[np.bool_], more: float) -> Integers | None:
    """Whole numbers at most so many units beyond rounding down or up; None where there are none."""
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
    """The sums that margins are, a row a margin's cell."""
    one = np.ones(cells)
    return vstack([csr_array((one, (group, np.arange(cells))), shape=(len(own), cells)) for group, own in groups])
