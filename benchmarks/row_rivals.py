"""Rows of other packages beside those of dpscale, in one run and by the same measures; δ = 1e-9.

A table is split: four fifths are the records of a release, the rest is held out. Every run is a process with limits as
in rivals.py and returns as many rows as records within its CPU seconds; fits, files and drawing count. Measures, those
of published benchmarks of private tables that need no further package (row_measures.py):

- mean total variation distance of all 1-, 2- and 3-way marginals of rows and records;
- balanced accuracy on held-out records of four learners trained on rows: logistic regression, tree, forest, boosting;
- propensity: AUC of boosting that distinguishes rows from records; 0.5 is the best result;
- membership: AUC of the distance to the closest row, records of the release against held-out ones; 0.5: no risk seen.

    python benchmarks/adaptive.py --rivals mbi=PYTHON dpsynth=PYTHON dpmm=PYTHON margnet=PYTHON --rows
        [--epsilons 1 10] [--seeds 1]

The options are those of rivals.py. Two rows are references without privacy (rival_records.py). MargNet: commit 8b75032
on the path of a Python with torch==2.13.0, networkx, matplotlib and tomli. PrivPetal (commit 1793df8) makes linked
tables on CUDA devices only, and is reported as such. Never part of CI.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import base
import numpy as np
import rivals
from base import Table, load_table
from row_measures import MEASURES, measure_rows

TABLES = ("adult", "nursery", "titanic")
TARGETS = {"adult": "income>50K", "nursery": "assessment", "titanic": "Survived", "telco": "Churn", "mushroom": "class"}
KEPT_OUT = 0.2
MECHANISMS = (
    ("records", "drawn again"), ("records", "columns alone"), ("dpscale", "weighted-residuals"),
    ("dpscale", "aim-grem"), ("dpscale", "aim-pgm"), ("mbi", "MST"), ("mbi", "mixture"), ("dpsynth", "SWIFT"),
    ("mbi", "AIM"), ("margnet", "MargNet"), ("dpmm", "PrivBayes"), ("dpmm", "MST"), ("dpmm", "AIM"),
)  # fmt: skip
NO_PYTHON = "no Python was given"
NEVER_RUN = {"PrivPetal": "its code needs CUDA devices"}


@dataclass(frozen=True)
class RowRunner(rivals.Runner):
    """Runs that make rows, in a folder for the tables of the releases, and the measures of the rows."""

    place: Path

    def run(self, key: rivals.Key) -> rivals.Record:
        table, held_out = split_table(key[2], key[4], self.data)
        write_table(table, self.place)
        file = self.place / "rows.npy"
        record = self.call(key, self.place, "--rows", file)
        if record["status"] == "done":
            record |= measure_rows(table, held_out, np.load(file), TARGETS[table.name], key[4])
        return record


def split_table(name: str, seed: int, data: Path) -> tuple[Table, Table]:
    """Return the records of a release and the held-out ones."""
    table = load_table(name, data)
    if table is None:
        raise SystemExit(f"{name}: its file is not in {data}; give --data")
    if name not in TARGETS:
        raise SystemExit(f"{name}: no target for the learners; accepted: {', '.join(TARGETS)}")
    codes = np.stack(list(table.columns.values()), axis=1)
    out = np.random.default_rng(seed).random(len(codes)) < KEPT_OUT
    return Table(name, table.sizes, codes[~out]), Table(name, table.sizes, codes[out])


def write_table(table: Table, place: Path) -> None:
    """Write a table in the form that `load_table` reads."""
    (place / "tables").mkdir(exist_ok=True)
    np.savez(place / "tables" / f"{table.name}.npz", names=list(table.sizes), sizes=list(table.sizes.values()),
             codes=np.stack(list(table.columns.values()), axis=1).astype(np.int32))  # fmt: skip


def run(
    given: Sequence[str], tables: Sequence[str], epsilons: Sequence[float], seeds: range, data: Path,
    limits: rivals.Limits, file: Path | None, save: str,
) -> None:  # fmt: skip
    """Run everything that is missing, print it, and save the figures under the name `save`, unless it is empty."""
    pythons = rivals.known_pythons(given) | {"records": sys.executable}
    grid = rivals.Grid([own for own in MECHANISMS if own[0] in pythons], tables, epsilons, seeds,
                       (*MEASURES, "seconds"))  # fmt: skip
    with TemporaryDirectory() as place:
        figures = grid.run(RowRunner(pythons, data, limits, Path(place)), rivals.Records(file, limits))
    missing = NEVER_RUN | {package: NO_PYTHON for package, _ in MECHANISMS if package not in pythons}
    for package, reason in missing.items():
        print(f"{package}: not run: {reason}")
        figures[f"{package}, not run"] = reason
    if save:
        base.save(save, figures)
