"""The tables of benchmarks/adaptive.py: real ones from ../shared/data, and two generated ones.

All values are coded 0 … n−1. Sizes and bins are fixed here or come with the data, as in a public schema.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from functools import lru_cache
from itertools import combinations
from pathlib import Path

import numpy as np

DATA = Path(__file__).parents[2] / "shared" / "data"
DEGREE = 3
KEPT_CELLS = 1 << 27
Names = tuple[str, ...]
AGE_LIKE, MONEY = np.arange(0, 96, 4), np.array([-1e4, 0, 1, 2e3, 5e3, *np.arange(1e4, 1e5, 1e4), 1.2e5, 1.5e5, 2e5])
ACS_BINS = {
    "AGEP": AGE_LIKE[1:],
    "PINCP": MONEY,
    "POVPIP": np.arange(1, 502, 25),
    "DENSITY": np.array([50, 100, 500, 1000, 2000, 3000, 4000, 6000, 1e4, 2e4, 4e4]),
    "PWGTP": np.array([10, 20, 40, 60, 80, 100, 150, 200, 300]),
    "WGTP": np.array([1, 20, 40, 60, 80, 100, 150, 200, 300]),
}


class Table:
    """A coded table with sizes; its marginals are counted on demand, and cached if they have few cells."""

    def __init__(self, name: str, sizes: dict[str, int], codes: np.ndarray, cached_cells: int = KEPT_CELLS) -> None:
        self.name, self.sizes, self.names = name, sizes, tuple(sizes)
        self.columns = {own: np.ascontiguousarray(codes[:, i], dtype=np.int64) for i, own in enumerate(sizes)}
        self.rows = len(codes)
        self.targets = tuple(combinations(self.names, DEGREE))
        cells = sum(int(np.prod([sizes[one] for one in own])) for own in self.targets)
        self.counts: Callable[[Names], np.ndarray] = (
            lru_cache(None)(self.counted) if cells <= cached_cells else self.counted
        )

    def counted(self, names: Names) -> np.ndarray:
        if not names:
            return np.array(self.rows)
        shape = [self.sizes[name] for name in names]
        cells = self.columns[names[0]]
        for name in names[1:]:
            cells = cells * self.sizes[name] + self.columns[name]
        return np.bincount(cells, minlength=int(np.prod(shape))).reshape(shape)

    def error(self, marginal: Callable[[Names], np.ndarray], targets: tuple[Names, ...] | None = None) -> float:
        """Return the mean over the targets of ‖μ̂ − μ‖₁ / N."""
        selected = targets or self.targets
        return float(np.mean([np.abs(marginal(names) - self.counts(names)).sum() / self.rows for names in selected]))


def load_coded(name: str, folder: Path) -> Table:
    """Load a folder with a coded CSV and its domain file."""
    sizes = json.loads((folder / f"{name}-domain.json").read_text())
    with open(folder / f"{name}.csv", newline="") as file:
        header = next(csv.reader(file))
        codes = np.loadtxt(file, delimiter=",", dtype=np.int64)
    return Table(name, sizes, codes[:, [header.index(own) for own in sizes]])


def load_acs(folder: Path) -> Table:
    """Load ACS national 2019: categories from its dictionary, numbers in ACS_BINS, "N" as a separate value."""
    schema = json.loads((folder / "national2019.json").read_text())["schema"]
    with open(folder / "national2019.csv", newline="") as file:
        header, *records = list(csv.reader(file))
    sizes, codes = {}, []
    for name, column in zip(header, zip(*records, strict=True), strict=True):
        if name in ACS_BINS:
            numbers = np.array([np.nan if value == "N" else float(value) for value in column])
            own = np.where(np.isnan(numbers), 0, 1 + np.searchsorted(ACS_BINS[name], numbers, side="right"))
            size = len(ACS_BINS[name]) + 2
        else:
            values = [str(value) for value in schema[name]["values"]]
            own, size = np.array([values.index(value) for value in column]), len(values)
        sizes[name] = size
        codes.append(own)
    return Table("acs", sizes, np.stack(codes, axis=1))


KEPT = ("adult", "acs", "salary", "titanic", "krkopt", "mushroom", "nltcs", "nursery", "taxi", "syn_big2000",
        "syn_bin60", "syn_dup", "syn_indep", "syn_n1000", "syn_perm", "syn_xor")  # fmt: skip


GENERATED = ("loans", "census")
LINKED = ("telco", "acs23")  # real tables with strongly linked attributes
CONSTRUCTED = ("equal columns", "skipped block")


def construct_table(name: str, rows: int = 20_000, seed: int = 5) -> Table:
    """Return eight equal binary columns; or eight questions that 30 % of the records skip, and two more attributes."""
    rng = np.random.default_rng(seed)
    if name == "equal columns":
        column = (rng.random(rows) < 0.3).astype(np.int64)
        return Table(name, {f"x{i}": 2 for i in range(8)}, np.repeat(column[:, None], 8, axis=1))
    skipped = rng.random(rows) < 0.3
    common = 1 + rng.integers(0, 2, (rows, 1))
    answers = np.where(rng.random((rows, 8)) < 0.6, common, rng.integers(1, 5, (rows, 8)))
    answers[skipped] = 0
    others = np.stack([rng.integers(0, 2, rows) | skipped, rng.integers(0, 5, rows)], axis=1)
    sizes = {f"q{i}": 5 for i in range(8)} | {"sex": 2, "region": 5}
    return Table(name, sizes, np.concatenate([answers, others], axis=1))


def load_table(name: str, data: Path = DATA) -> Table | None:
    """Load one of KEPT, or return None if its file is absent."""
    if (packed := data / "tables" / f"{name}.npz").exists():
        with np.load(packed) as found:
            sizes = dict(zip(found["names"].tolist(), found["sizes"].tolist(), strict=True))
            return Table(name, sizes, found["codes"].astype(np.int64))
    folder = data / ("acs_national2019" if name == "acs" else name)
    if not folder.exists():
        return None
    return load_acs(folder) if name == "acs" else load_coded(name, folder)


def generate_table(shape: str, seed: int = 0) -> Table:
    """Return a generated table.

    `loans`: 43 attributes of 30 to 60 values, 42,535 rows. `census`: 66 attributes of 2 to 6 values, 378,817 rows.
    The latent class of a record determines the location of the values of every attribute; in a chain of blocks an
    attribute also depends on the previous one. Values are skewed like those of real columns.
    """
    rng = np.random.default_rng(seed)
    count, rows, least, most = {"loans": (43, 42_535, 30, 60), "census": (66, 378_817, 2, 6)}[shape]
    sizes = {f"x{i:02}": int(rng.integers(least, most + 1)) for i in range(count)}
    classes = 6
    of = rng.choice(classes, size=rows, p=rng.dirichlet(np.full(classes, 3.0)))
    columns: list[np.ndarray] = []
    for index, size in enumerate(sizes.values()):
        centers, widths = rng.uniform(0, 1, classes), rng.uniform(0.03, 0.25, classes)
        place = centers[of] + widths[of] * rng.standard_normal(rows)
        if index % 4:  # leans on the attribute before it
            before = columns[-1] / (list(sizes.values())[index - 1] - 1)
            place = np.where(rng.random(rows) < 0.7, before + 0.05 * rng.standard_normal(rows), place)
        bent = np.abs(np.clip(place, -1, 2)) ** rng.uniform(1, 2)
        columns.append(np.clip((bent * size).astype(np.int64), 0, size - 1))
    return Table(shape, sizes, np.stack(columns, axis=1))


def subsets_of(names: Names) -> list[Names]:
    return [subset for size in range(len(names) + 1) for subset in combinations(names, size)]
