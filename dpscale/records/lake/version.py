"""A version of a Delta or Iceberg table: which Parquet files it has, and the values that its partitions fix.

The log of such a table says both; the files are then read as any others. A release knows its table by the UUID, the
version (a Delta version's number, an Iceberg snapshot's) and the hash of the commit that made it, beside the files'
own hashes. A table that moves on is still read at that version. What a version asks of its readers and is not done here
(deleted rows beside the files, renamed columns, defaults) is refused: to pass over it would be to count other rows.
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
Fixed = tuple[tuple[str, str | None], ...]  # columns that all rows of a file share, as texts
NAMES = {"delta": "Delta", "iceberg": "Iceberg"}


@dataclass(frozen=True)
class File:
    """A data file of a version, its bytes, and what its partition fixes."""

    path: str
    size: int
    fixed: Fixed


@dataclass(frozen=True)
class Lake:
    """One version of a table. `commit`: the file that made it; `columns`: those that are null where a file lacks them;
    `unsure`: why others cannot be read."""

    kind: str
    uuid: str
    version: int
    commit: str
    root: str
    files: tuple[File, ...]
    columns: tuple[str, ...]
    unsure: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def told(self) -> dict[str, Any]:
        """What a manifest says of it, which its own log does."""
        return {"format": self.kind, "uuid": self.uuid, "version": self.version}

    def identity(self) -> str:
        """UUID, version and the hash of the commit as it is now; Unreadable where that is gone."""
        try:
            with opening(self.commit) as file:
                digest = hashlib.sha256(file.read()).hexdigest()
        except OSError:
            raise Unreadable(FIELD, f"{self.commit} of version {self.version} is gone", "a version that is kept",
                             "restore it, or start a new run") from None  # fmt: skip
        return f"{self.kind}\0{self.uuid}\0{self.version}\0{digest}"

    def check(self, columns: Sequence[str]) -> None:
        """DataError for a column that cannot be read rightly by its name."""
        for name in columns:
            if name in self.unsure:
                raise DataError(FIELD, f"{NAMES[self.kind]} column {name!r} {self.unsure[name]}",
                                "columns as they were made", "rewrite the table, or leave the column out")  # fmt: skip


def spelled(value: Any) -> str | None:
    """A partition's value as a folder's name would have it."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, int | float | Decimal):
        return str(value)
    raise DataError(FIELD, f"a partition's value of type {type(value).__name__}", "numbers, texts, dates or times",
                    "partition the table by another column")  # fmt: skip


def plain_path(path: str) -> str:
    """A local path without its scheme."""
    return path.removeprefix("file://") if path.startswith("file:///") else path.removeprefix("file:")


def below(root: str, name: str) -> str:
    """The path of a file in a table's folder."""
    return name if is_url(name) or name.startswith("/") else f"{root.rstrip('/')}/{name}"
