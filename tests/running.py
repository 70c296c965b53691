"""Runs and parts of runs, as tests begin and run them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dpscale.job import Job
from dpscale.runs import runner
from dpscale.runs.linked_tables import LinkedTables
from dpscale.runs.links.measuring import NAMES, stored_draws
from dpscale.runs.opening import begin_run, open_run
from dpscale.runs.periods import stages
from dpscale.runs.table import TablePart


def begin_table(job: Job, path: Any = None, fresh: bool = False) -> TablePart:
    """Create or reopen the run of a job of one table, without checks of its data, and return its table."""
    return begin_run(job, path, fresh, files_accessible=False).table


def begin_linked(job: Any, path: Any = None, fresh: bool = False) -> LinkedTables:
    """Create or reopen the run of a job of several tables, without checks of their data; return its tables."""
    content = begin_run(job, path, fresh, files_accessible=False).content
    assert isinstance(content, LinkedTables)
    return content


def link_values(run: Path, link: str) -> dict[str, Any]:
    """Return the released values of the draws of a link, by name."""
    whole = linked(run)
    section = next(one for one in whole.job.link if one.called == link)
    draws = stored_draws(whole, section)
    return {name: draws.measured(name) for name in NAMES if draws.has(name)}


def linked(path: Any) -> LinkedTables:
    """Return the linked tables of a run directory."""
    content = open_run(path).content
    assert isinstance(content, LinkedTables)
    return content


def run_stages(owner: Any, *given: Any, **options: Any) -> None:
    """Run stages of a run, or of the run of a part."""
    runner.run_stages(getattr(owner, "run", owner), *given, **options)


def open_table(path: Any) -> TablePart:
    """Return the only table of a run directory."""
    table = open_run(path).table
    assert isinstance(table, TablePart)
    return table


def end(owner: Any) -> dict[str, Any]:
    """End a run, or the run of a part."""
    return runner.end(getattr(owner, "run", owner))


def release_next(owner: Any, *given: Any, **options: Any) -> None:
    """Release the next period of a growing table."""
    stages.release_next(getattr(owner, "run", owner), *given, **options)
