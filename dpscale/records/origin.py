"""Storage of the data as described in a job: plain files, or a table with a log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from dpscale.base.errors import DataError, DpscaleError
from dpscale.domain import Domain
from dpscale.records.files import PLAIN, Dialect, check_formats
from dpscale.records.lake.version import FIELD, NAMES, Lake
from dpscale.records.table import Partition, Table
from dpscale.records.where import EVERYTHING, Where

PACKAGES = {"delta": "deltalake", "iceberg": "pyiceberg"}


@dataclass(frozen=True)
class Origin:
    """Description of the data's storage in a job.

    Attributes
    ----------
    links : bool
        Whether a file with two names is counted once for each.
    dialect : Dialect
    where : Where
        Row filter.
    format : str
        Format of a table with a log ("delta" or "iceberg"); empty for plain files.
    version : int, optional
        Version of a table with a log. Default: the latest.
    """

    links: bool = False
    dialect: Dialect = PLAIN
    where: Where = EVERYTHING
    format: str = ""
    version: int | None = None

    def table(self, path: Any, domain: Domain) -> Table:
        """Return the table at a path. Raises DataError if there is none."""
        if not self.format:
            return Table.open(path, domain, self.links, self.dialect, self.where).split()
        if not isinstance(path, str):
            if len(path) != 1:
                raise DataError(FIELD, f"{len(path)} paths", f"one {NAMES[self.format]} table", "set its folder")
            path = str(path[0])
        return _table(self.lake(path), domain, self.dialect, self.where)

    def lake(self, path: str) -> Lake:
        """Return the requested version of a table with a log, or the latest."""
        with _telling(path, self.format):
            reader = import_module(f"dpscale.records.lake.{self.format}")
            found: Lake = reader.read(path, self.version)
        if not found.files:
            raise DataError(
                FIELD,
                f"{path} has no file at version {found.version}",
                "a table with records",
                "choose another version",
            )
        return found


def _table(lake: Lake, domain: Domain, dialect: Dialect, where: Where) -> Table:
    check_formats([one.path for one in lake.files], dialect)
    parts = [Partition(one.path, one.fixed, (), one.size, absent=lake.columns) for one in lake.files]
    lake.check(where.columns)
    parts.sort(key=lambda part: part.path)
    return Table(domain, tuple(parts), lake.root, lake).filtered(where).split()


@contextmanager
def _telling(path: str, kind: str) -> Iterator[None]:
    """Replace a library's exceptions by one sentence without their text, which may contain keys."""
    try:
        import_module(PACKAGES[kind])
    except ImportError:
        raise DataError(
            "data.format",
            f"{kind!r}, which requires the missing package {PACKAGES[kind]}",
            "an installed reader",
            f"pip install 'dpscale[{kind}]'",
        ) from None
    try:
        yield
    except DpscaleError:
        raise
    except Exception as error:
        raise DataError(
            FIELD,
            f"{path} cannot be read as a table of {NAMES[kind]} ({type(error).__name__})",
            f"the folder of a {NAMES[kind]} table",
            "check path, version and permissions",
        ) from None
