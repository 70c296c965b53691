"""Release of several tables."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from dpscale.api.release import Release
from dpscale.base.errors import JobError
from dpscale.engine.schedulers import Progress, silent
from dpscale.multitable.job import DatabaseJob
from dpscale.multitable.run import DatabaseRun
from dpscale.multitable.runner import charged, run_database
from dpscale.multitable.writer import INDEX
from dpscale.runs.stages.runner import remove_on_error
from dpscale.storage.files import read_text


class DatabaseRelease:
    """Answers and synthetic rows of a finished run of several tables. Reading it costs no budget.

    Parameters
    ----------
    run : DatabaseRun
        Finished run directory; `DatabaseRelease.open` opens one by its path.
    """

    def __init__(self, run: DatabaseRun) -> None:
        if not run.done("synthesize"):
            raise JobError("run directory", f"{run.path} is not finished", "a run of several tables that is done",
                           "run its job again to resume")  # fmt: skip
        self._run = run

    @classmethod
    def open(cls, run_dir: str | Path) -> DatabaseRelease:
        """Open a finished run directory of several tables.

        Parameters
        ----------
        run_dir : str or Path

        Returns
        -------
        DatabaseRelease

        Raises
        ------
        JobError
            If the directory is not a finished run of several tables.
        """
        return cls(DatabaseRun(run_dir))

    @property
    def path(self) -> Path:
        return self._run.path

    @property
    def manifest(self) -> dict[str, Any]:
        return self._run.manifest

    @cached_property
    def tables(self) -> dict[str, Release]:
        """Release of each private table, by name."""
        return {name: Release(table) for name, table in self._run.tables.items()}

    def __repr__(self) -> str:
        return f"DatabaseRelease({self.manifest['release'][:8]}, {', '.join(self._run.job.tables)}, {self.path})"

    def synthetic(self) -> dict[str, Any]:
        """Return synthetic rows of each table and each pair table.

        Returns
        -------
        dict of str to dask.dataframe.DataFrame
        """
        import dask.dataframe as dd

        folder = self.path / "synthetic"
        files: dict[str, list[str]] = json.loads(read_text(folder / INDEX))
        return {name: dd.read_parquet([str(folder / one) for one in own]) for name, own in files.items()}


def run(
    job: str | Path | Mapping[str, Any] | DatabaseJob,
    run_dir: str | Path | None = None,
    client: Any = None,
    scheduler: str | None = None,
    progress: Progress = silent,
) -> DatabaseRelease:
    """Run all stages of a job of several tables and open its release; a finished run is only opened."""
    opened = DatabaseRun.create(job if isinstance(job, DatabaseJob) else DatabaseJob.read(job), run_dir)
    with remove_on_error(opened, charged):
        run_database(opened, client, scheduler, progress)
    return DatabaseRelease(opened)
