"""Version of a Delta or Iceberg table: its Parquet files and the values fixed by its partitions.

Both come from the table's log; the files are then read like any others. A release identifies its table by the UUID, the
version (the number of a Delta version or an Iceberg snapshot id), the hash of the commit that created it, and the
files' own hashes. A table that has newer versions is still read at that version. A version that requires unsupported
reader features (deleted rows stored next to the files, renamed columns, defaults) is refused, because ignoring them
would count different rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from dpscale.base.errors import DataError, Unreadable
from dpscale.storage.objects import is_url, opening

FIELD = "data.path"
Fixed = tuple[tuple[str, str | None], ...]  # columns with one value for all rows of a file, as texts
NAMES = {"delta": "Delta", "iceberg": "Iceberg"}


@dataclass(frozen=True)
class File:
    """Data file of a version: path, size in bytes, and the columns fixed by its partition."""

    path: str
    size: int
    fixed: Fixed


@dataclass(frozen=True)
class Lake:
    """One version of a table with a log.

    Attributes
    ----------
    kind : str
        "delta" or "iceberg".
    uuid : str
    version : int
        Delta version or Iceberg snapshot id.
    commit : str
        File that created the version.
    root : str
        Folder of the table.
    files : tuple of File
    columns : tuple of str
        Columns that are null if a file lacks them.
    unsure : mapping of str to str
        Columns that cannot be read, with the reason.
    """

    kind: str
    uuid: str
    version: int
    commit: str
    root: str
    files: tuple[File, ...]
    columns: tuple[str, ...]
    unsure: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def summary(self) -> dict[str, Any]:
        """Description of the version for the manifest, as in the table's own log."""
        return {"format": self.kind, "uuid": self.uuid, "version": self.version}

    def identity(self) -> str:
        """Return UUID, version and the current hash of the commit. Raises Unreadable if the commit is missing."""
        try:
            with opening(self.commit) as file:
                digest = hashlib.sha256(file.read()).hexdigest()
        except OSError:
            raise Unreadable(FIELD, f"{self.commit} of version {self.version} no longer exists", "an existing version",
                             "restore it, or start a new run") from None  # fmt: skip
        return f"{self.kind}\0{self.uuid}\0{self.version}\0{digest}"

    def check(self, columns: Sequence[str]) -> None:
        """Raise DataError for a column that cannot be read correctly by its name."""
        for name in columns:
            if name in self.unsure:
                raise DataError(FIELD, f"{NAMES[self.kind]} column {name!r} {self.unsure[name]}",
                                "unchanged columns", "rewrite the table, or leave the column out")  # fmt: skip


def spelled(value: object) -> str | None:
    """Return a partition's value as it would appear in a hive folder name."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, int | float | Decimal):
        return str(value)
    raise DataError(FIELD, f"a partition value of type {type(value).__name__}", "numbers, texts, dates or times",
                    "partition the table by another column")  # fmt: skip


def plain_path(path: str) -> str:
    """Return a local path without its scheme."""
    return path.removeprefix("file://") if path.startswith("file:///") else path.removeprefix("file:")


def below(root: str, name: str) -> str:
    """Return the path of a file in a table's folder."""
    return name if is_url(name) or name.startswith("/") else f"{root.rstrip('/')}/{name}"
