"""The files of a job's tables and tables of pairs, opened as the job says that they are kept.

A filter makes rows that do not match as if they were not in the files: their links lead nowhere, as those of any key
that no row has. It looks at each row by itself, so a neighbour's files differ by no more rows than before.
"""

from __future__ import annotations

from dpscale.database.job import TableSection
from dpscale.domain import Domain
from dpscale.tables import Table

Files = TableSection | str  # a table of pairs is a path
NO_DOMAIN = Domain({"links": 2})  # of files that are read by their keys alone


def opened(files: Files, domain: Domain = NO_DOMAIN) -> Table:
    """The table there, large files cut to partitions."""
    return Table.open(files, domain).split() if isinstance(files, str) else files.origin.table(files.path, domain)
