"""Common functions of the database pipelines: tables to Parquet, a run, its summary, an optional private comparison.

The data are not part of dpscale: a pipeline takes the folder of the data, and its docstring names the source. The
domain files of the jobs are written from code books and not from the records.
"""

from __future__ import annotations

import argparse
import csv
import shutil
from collections.abc import Callable, Iterable, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import dpscale as dp

Rows = list[dict[str, Any]]
Tables = Mapping[str, Rows]
HERE = Path(__file__).parent
PRIVATE = "\nPRIVATE, not to be published: mean total variation of cross marginals against the data, in percent"


def main(
    name: str, jobs: tuple[str, ...], prepare: Callable[[Path, int | None], Tables], generated: bool = False
) -> None:
    """Run the command of one pipeline; generated data have no source."""
    parser = argparse.ArgumentParser(description=f"{name}, end to end")
    if not generated:
        parser.add_argument("source", type=Path, help="where the data are")
    parser.add_argument("--job", choices=jobs, default=jobs[0])
    parser.add_argument("--rows", type=int, help="of the protected table only so many rows, with all that is theirs")
    parser.add_argument("--run-dir", type=Path)
    parser.add_argument("--compare", action="store_true", help="PRIVATE: hold the release against the data")
    given = parser.parse_args()
    place = HERE.parent / f"dpscale-{name}"
    job, run = HERE / name / f"{given.job}.toml", f"{given.job}-{given.rows or 'all'}"
    try:
        write(place, prepare(getattr(given, "source", place), given.rows))
        release = dp.run(job, given.run_dir or place / "runs" / run)
        print(summary(release))
        if given.compare:
            print(compare_links(job, release))
    except FileNotFoundError as error:
        raise SystemExit(
            f"{name}: there is no {error.filename}; the first lines of the script say what it takes"
        ) from None
    except dp.DpscaleError as error:
        raise SystemExit(f"{name}: {error}") from None


def write(place: Path, tables: Tables) -> None:
    """Write one Parquet file per table; all columns are numbers or texts."""
    shutil.rmtree(place / "data", ignore_errors=True)
    (place / "data").mkdir(parents=True)
    for name, rows in tables.items():
        if not rows:
            raise SystemExit(f"no row of {name} belongs to so few: take more --rows")
        pq.write_table(pa.Table.from_pylist(rows), place / "data" / f"{name}.parquet")


def read_texts(path: Path, delimiter: str, names: str | None = None) -> Rows:
    """Read the rows of a Latin-1 text file; `names` are the columns of a file without header."""
    with open(path, encoding="latin-1", newline="") as file:
        return list(csv.DictReader(file, names.split() if names else None, delimiter=delimiter))


def parse_number(text: str) -> float | None:
    """Return a text as a number, or None if it is none."""
    try:
        return float(text)
    except ValueError:
        return None


def select_related(rows: Iterable[dict[str, Any]], column: str, to: Rows, key: str | None = None) -> Rows:
    """Return the rows whose key in a column is a key of another table."""
    keys = {row[key or column] for row in to}
    return [row for row in rows if row[column] in keys]


def summary(release: dp.Release) -> str:
    """Return the released rows of every table and the path of the report."""
    counts = [f"{name:>14}: {len(frame):,} rows" for name, frame in release.synthetic().items()]
    return "\n".join([*counts, f"report: {release.path / 'report.html'}"])


def compare_links(job: Path, release: dp.Release) -> str:
    """Compare links with released links and with random links, by attributes of both ends."""
    from dpscale.engine.schedulers import resolve
    from dpscale.job import Job
    from dpscale.job.neighbours import neighbour_relation
    from dpscale.runs.links.link_data import read_links

    ours, rng, lines = Job.read(job), np.random.default_rng(0), [PRIVATE]
    theirs, engine = released_job(ours, release), resolve(scheduler="threads")
    for one, other in zip(ours.link, theirs.link, strict=True):
        true, made = (
            read_links(engine, read, link, neighbour_relation(read)) for read, link in ((ours, one), (theirs, other))
        )
        random = [rng.integers(0, max(len(rows), 1), len(made.rows)) for rows in (made.parents, made.children)]
        if one.via is None:
            random[1] = made.rows[:, 1]
        ends = [cells(exact, at) for exact, at in ((true, true.rows), (made, made.rows), (made, np.stack(random, 1)))]
        found = [100 * variation(ends[0], end, sizes(ours, one)) for end in ends[1:]]
        lines.append(f"{one.called:>14}: {found[0]:.2f} (links at random: {found[1]:.2f}), "
                     f"{len(made.rows):,} links for {len(true.rows):,}")  # fmt: skip
    engine.close()
    return "\n".join(lines)


def released_job(job: Any, release: dp.Release) -> Any:
    """Return the same job on the released tables."""
    folder = release.path / "synthetic"
    tables = {
        name: one.model_copy(update={"path": str(folder / name / "*.parquet")}) for name, one in job.tables.items()
    }
    links = [one.model_copy(update={"via": str(folder / one.called / "*.parquet")} if one.via else {"nulls": "drop"})
             for one in job.link]  # fmt: skip
    return job.model_copy(update={"tables": tables, "link": links})


def cells(exact: Any, rows: Any) -> tuple[Any, Any]:
    return exact.parents[rows[:, 0]], exact.children[rows[:, 1]]


def sizes(job: Any, link: Any) -> tuple[list[int], list[int]]:
    one, other = ([job.domains[name][column].size for column in job.domains[name].names]
                  for name in (link.parent, link.child))  # fmt: skip
    return one, other


def variation(true: tuple[Any, Any], made: tuple[Any, Any], of: tuple[list[int], list[int]]) -> float:
    """Return the mean total variation over all sets of three attributes of both ends (two if both have one)."""
    (one, other), found = of, []
    sets = [((i,), pair) for i in range(len(one)) for pair in combinations(range(len(other)), 2)]
    sets += [(pair, (j,)) for pair in combinations(range(len(one)), 2) for j in range(len(other))]
    for ours, theirs in sets or [((0,), (0,))]:
        shape = [one[i] for i in ours] + [other[j] for j in theirs]
        shares = [histogram(ends, ours, theirs, shape) for ends in (true, made)]
        found.append(0.5 * np.abs(shares[0] - shares[1]).sum())
    return float(np.mean(found))


def histogram(ends: tuple[Any, Any], ours: Any, theirs: Any, shape: list[int]) -> Any:
    columns = [*ends[0][:, list(ours)].T, *ends[1][:, list(theirs)].T]
    counts = np.bincount(np.ravel_multi_index(columns, shape), minlength=int(np.prod(shape)))
    return counts / max(counts.sum(), 1)
