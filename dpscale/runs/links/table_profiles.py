"""Profiles of the rows of synthetic and public tables, counted and stored part by part, for links in blocks.

Rows of a part are drawn again identically to the table's files. Each is stored as one number, the position of its cells
in row-major order, in the narrowest type. The files follow from released values; they are kept until the tables are
written, because each draw costs as much as the writing of rows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import cast

import numpy as np

from dpscale.base.numerics import Integers, Integers32, NDArray, ParallelMap
from dpscale.relational.features import Side
from dpscale.runs.estimates import model_folder, open_sampler
from dpscale.runs.linked_tables import LinkedTables
from dpscale.runs.links.public_tables import public_tables
from dpscale.runs.stages.row_numbers import read_array, write_array
from dpscale.runs.stages.synthesize import drawn_rows
from dpscale.runs.table import TablePart
from dpscale.storage.files import is_local, listed, present, read_text, remove
from dpscale.synthesis.draw import RowPart, split_rows

FOLDER = "profiles"  # of a run, while tables are linked
Counted = tuple[Integers, Integers]  # distinct numbers of the rows of a part, ascending, and how often each occurs


@dataclass(frozen=True, eq=False)
class TableProfiles:
    """Rows of a table by profile.

    Attributes
    ----------
    sizes : tuple of int
        Number of values of every attribute.
    kinds : ndarray, shape (k,)
        Numbers of the distinct rows, ascending.
    counts : ndarray, shape (k,)
        Number of rows of each.
    files : tuple of Path
    ends : tuple of int
        Row after the last of every file.
    """

    sizes: tuple[int, ...]
    kinds: Integers
    counts: Integers
    files: tuple[Path, ...]
    ends: tuple[int, ...]

    @property
    def rows(self) -> int:
        return self.ends[-1] if self.ends else 0

    @cached_property
    def side(self) -> Side:
        """The table as an end of links, with one row for each profile in `of`."""
        profiles = np.stack(np.unravel_index(self.kinds, self.sizes), axis=1).astype(np.int64)
        return Side(
            sizes=self.sizes, profiles=profiles, counts=self.counts.astype(float), of=np.arange(len(self.kinds))
        )

    def of(self, first: int, last: int) -> Integers32:
        """Return the profile of each row from `first` up to but excluding `last`.

        The files have the number of each row's profile; `kinds` is sorted, so that its place is found by bisection.
        """
        found = np.empty(last - first, np.int32)
        for file, begun, end in zip(self.files, (0, *self.ends), self.ends, strict=False):
            if begun < last and first < end:
                numbers = read_array(file)[max(first - begun, 0) : last - begun]
                start = max(begun - first, 0)
                found[start : start + len(numbers)] = np.searchsorted(self.kinds, numbers)
        return found


def count_profiles(run: LinkedTables, name: str, each: ParallelMap) -> TableProfiles:
    """Return the profiles (distinct rows) of a table with their numbers of rows.

    The rows of each part of a synthetic table are drawn in a task, which writes their profiles into a file.

    The number of a profile is the position of its cells in row-major order. `tag` names files by everything on which
    the rows depend.
    """
    domain = run.closed_job.domains[name]
    sizes = tuple(int(domain[attribute].size) for attribute in domain.names)
    counted: list[tuple[Path, int, Counted]]  # of each part its file, number of rows, and its profiles and their counts
    if name in run.tables:
        table = run.tables[name]
        index = json.loads(read_text(table.path / "synthetic" / "_rows.json"))
        # the parts of the synthetic rows, as they are drawn again
        parts = split_rows(index["rows"], index["parts"])
        text = json.dumps([run.manifest["release"], name, index["rows"], index["parts"], index["method"]])
        tag = hashlib.sha256(text.encode()).hexdigest()[:16]
        items = [(str(table.path), str(model_folder(table)), index["method"], sizes, part,
                  run.path / FOLDER / f"{name}-{tag}-{part.number}.npy") for part in parts]  # fmt: skip
        counted = list(each(_draw_part, items))
    else:
        file = run.path / FOLDER / f"{name}.npy"
        # a public table has its rows in memory
        numbers = np.ravel_multi_index(tuple(public_tables(run)[name][0].T), sizes).astype(np.int64)
        counted = [(file, len(numbers), _stored(file, numbers, sizes))]

    profiles = np.unique(np.concatenate([in_part for _, _, (in_part, _) in counted]))
    counts = np.zeros(len(profiles), np.int64)
    for _, _, (in_part, numbers_of_rows) in counted:
        # each part's counts, at the places of its profiles among all
        counts[np.searchsorted(profiles, in_part)] += numbers_of_rows
    ends = tuple(int(end) for end in np.cumsum([rows for _, rows, _ in counted]))
    return TableProfiles(
        sizes=sizes, kinds=profiles, counts=counts, files=tuple(file for file, _, _ in counted), ends=ends
    )


def _draw_part(item: tuple[str, str, str, tuple[int, ...], RowPart, Path]) -> tuple[Path, int, Counted]:
    """Draw the rows of a part, unless they are stored, and return their file, their number and their profiles.

    An item is (run directory, folder of the model, method of sampling, sizes of the attributes, part, file). A row is
    stored as the number of its cell in row-major order.
    """
    path, folder, method, sizes, part, file = item
    if present(file):
        return file, part.count, _counted(read_array(file))
    run, sampler = open_sampler(path, folder, method)
    rows = drawn_rows(cast(TablePart, run), sampler, part)
    columns = tuple(rows[:, sampler.names.index(name)] for name in run.domain.names)
    return file, part.count, _stored(file, np.ravel_multi_index(columns, sizes).astype(np.int64), sizes)


def _stored(file: Path, numbers: Integers, sizes: Sequence[int]) -> Counted:
    """Store the numbers of rows and count them."""
    write_array(file, numbers.astype(np.min_scalar_type(int(np.prod(sizes, dtype=object)) - 1)))
    return _counted(numbers)


def _counted(numbers: NDArray[np.integer]) -> Counted:
    kinds, counts = np.unique(numbers, return_counts=True)
    return kinds.astype(np.int64), counts.astype(np.int64)


def remove_profiles(run: LinkedTables) -> None:
    """Remove the files, once the tables are written."""
    folder = run.path / FOLDER
    for name in listed(folder) if present(folder) else []:
        remove(folder / name)
    if is_local(folder) and present(folder):
        folder.rmdir()
