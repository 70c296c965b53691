"""What links are read from: the files as they were when the release began, before, while and after they are read."""

from __future__ import annotations

import hashlib
import json

from dpscale.base.errors import DataError
from dpscale.engine import Engine
from dpscale.measurement.tags import snapshot_tag
from dpscale.multitable.counted import with_counts
from dpscale.multitable.job import TableSection
from dpscale.multitable.linking import ExactLinks, keyed, read_links
from dpscale.multitable.opened import opened
from dpscale.multitable.run import DatabaseRun
from dpscale.records import Table
from dpscale.records.layout import Layout, differing, layout
from dpscale.records.snapshot import Stamps, snapshot, stamps


def read_all(run: DatabaseRun, engine: Engine) -> dict[str, ExactLinks]:
    """Every link of the job, held against it before anything is spent."""
    for name in run.whom.steps if run.whom.replaces else ():
        if run.job.key(name):
            keyed(engine, run.job, name)  # keys that two rows have, also of a table that no link reads
    found: dict[str, ExactLinks] = {}
    for link in run.job.link:
        found[link.called] = with_counts(run.job, link, read_links(engine, run.job, link, run.whom), found)
    return found


def files_of(run: DatabaseRun) -> list[Table]:
    """All tables that links are read from."""
    tables = [opened(one, run.job.domains[name]) for name, one in run.job.tables.items()]
    return tables + [opened(one.via) for one in run.job.link if one.via]


def stamped(run: DatabaseRun) -> list[Stamps]:
    """Which files there are now."""
    return [stamps(one) for one in files_of(run)]


def check_unchanged(run: DatabaseRun, seen: list[Stamps]) -> None:
    """DataError where a file is not the one that it was before the snapshot was taken."""
    if stamped(run) != seen:
        raise DataError("data.path", "the files changed while they were read", "the same files",
                        "restore them, or start a new run in another directory")  # fmt: skip


def snapshot_of(run: DatabaseRun, engine: Engine) -> str:
    """The data's name under the secret; DataError where they are not those that the release began with."""
    tables = files_of(run)
    content = json.dumps([snapshot(table, False, engine.each("snapshot")) for table in tables])
    tag = snapshot_tag(run.secret(), hashlib.sha256(content.encode()).hexdigest())
    if run.manifest["snapshot"] not in (None, tag):
        raise DataError("data.path", "the files changed since this release was begun", "the same files",
                        "restore them, or start a new run in another directory")  # fmt: skip
    run.update(snapshot=tag, data=_layouts(run))
    return tag


def check_repeat(run: DatabaseRun) -> None:
    """DataError where what was measured is of files that are others by now: of a run that goes on, or is asked again.

    Of files that are gone nothing can be said, nor of a run that did not write down what they were.
    """
    known, now = run.manifest.get("data"), _layouts(run)
    for name, before in (known or {}).items() if run.done("measure") else ():
        found = now.get(name)
        if before and found and (others := differing(before, found)):
            raise DataError(f"{name}.{'via' if name.startswith('link') else 'path'}",
                            f"measured from other data ({', '.join(others)} differ{'s' * (len(others) == 1)}); "
                            "nothing read or spent", "the files as they were",
                            "restore them, or start a new run in another directory")  # fmt: skip


def _layouts(run: DatabaseRun) -> dict[str, Layout | None]:
    """Of every table and table of pairs size, time and number of its files, or its version."""
    found = {f"tables.{name}": _layout(one) for name, one in run.job.tables.items()}
    return found | {f"link {one.called}": layout(one.via) for one in run.job.link if one.via}


def _layout(table: TableSection) -> Layout | None:
    """Of a table with a log the version."""
    return {"version": table.version} if table.version is not None else layout(table.path, named=table.dialect.format)
