"""The files of a job's tables and tables of pairs, opened as the job says that they are kept.

A filter makes rows that do not match as if they were not in the files: their links lead nowhere, as those of any key
that no row has. It looks at each row by itself, so a neighbour's files differ by no more rows than before.
"""

from __future__ import annotations

from collections.abc import Mapping

from dpscale.domain import Domain
from dpscale.multitable.job import DatabaseJob, TableSection
from dpscale.records import Table

Files = TableSection | str  # a table of pairs is a path
NO_DOMAIN = Domain({"links": 2})  # of files that are read by their keys alone


def opened(files: Files, domain: Domain = NO_DOMAIN) -> Table:
    """The table there, large files cut to partitions."""
    return Table.open(files, domain).split() if isinstance(files, str) else files.origin.table(files.path, domain)


def latest(job: DatabaseJob) -> dict[str, int]:
    """The latest version of every table with a log of which none is asked for."""
    asked = {name: one for name, one in job.tables.items() if one.lake and one.version is None}
    return {name: one.origin.lake(one.path).version for name, one in asked.items()}


def at_versions(job: DatabaseJob, versions: Mapping[str, int]) -> DatabaseJob:
    """The job at these versions of some tables."""
    tables = {name: one.model_copy(update={"version": versions[name]}) if name in versions else one
              for name, one in job.tables.items()}  # fmt: skip
    return job.model_copy(update={"tables": tables}) if versions else job
