"""A run's table, as the measure stage reads it: the columns it needs, the rows that count, and the files unchanged."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpscale.base.errors import DataError
from dpscale.base.names import AttributeSet
from dpscale.domain import Domain
from dpscale.engine import Engine
from dpscale.engine.bounding import handed, read_through, rows_beyond, survey_units
from dpscale.engine.counting import Pass, partition_groups, run_pass
from dpscale.engine.frames import frame_table
from dpscale.measurement.tags import snapshot_tag
from dpscale.privacy.secret import read_secret
from dpscale.records import Table
from dpscale.records.frames import FRAME
from dpscale.records.layout import layout
from dpscale.records.snapshot import Stamps, snapshot, stamps
from dpscale.records.table import Partition
from dpscale.runs.data import origin_of
from dpscale.runs.frames import frame_tag
from dpscale.runs.run import Run


def open_table(run: Run, names: Sequence[str], engine: Engine) -> Table:
    """The table of a run's files, or of the frame that it was given."""
    data = run.job.data
    wanted = [*run.domain.columns(names), *([data.privacy_unit] if data.privacy_unit else [])]
    if run.frame is not None:
        return frame_table(run.frame, run.domain, wanted, engine, data.matching)
    if data.path == FRAME:
        raise DataError("data", "none: this run is of a frame", "the frame that it began with",
                        "give it again by dp.run(job, data=frame)")  # fmt: skip
    table = origin_of(run).table(data.path, run.domain)
    table.require(wanted)
    return table


def columns_of(domain: Domain, counted: Sequence[AttributeSet]) -> list[str]:
    """The attributes that are measured: only their columns are read."""
    used = {name for attributes in counted for name in attributes} or {domain.names[0]}
    return [name for name in domain.names if name in used]


def snapshot_of(run: Run, table: Table, engine: Engine) -> str:
    """The snapshot's name under the secret; DataError when the data changed since the release was begun.

    Where the secret is destroyed nothing can be drawn any more, and the data need not be read again.
    """
    begun = run.manifest["snapshot"]
    if begun is not None and run.held_secret() is None:
        return str(begun)
    data, lake = run.job.data, table.lake
    known = {"version": lake.version} if lake else layout(data.path, data.matching, data.dialect.format)
    content = content_hash(run, table, engine)
    tag = snapshot_tag(read_secret(run.secret_path), content)
    if begun not in (None, tag):
        raise _changed("the files changed since this release was begun")
    if begun is None or run.manifest.get("data") != known:
        run.update(snapshot=tag, data=known, **({"table": table.lake.told} if table.lake else {}))
    if run.frame is not None and "frame" not in run.manifest:
        run.update(frame=frame_tag(run.manifest["release"], content, create=True))
    return tag


def content_hash(run: Run, table: Table, engine: Engine) -> str:
    """The hash of all that counting follows from: the table's files, those that say whose rows are, and the filter."""
    footers, each = run.job.data.snapshot == "footers", engine.each("snapshot")
    hops = run.job.data.unit_through or []
    contents = [snapshot(one, footers, each) for one in (table, *_hops(run))]
    contents += [str(run.job.data.matching)] if run.job.data.matching else []
    contents += [f"{number}: {hop.matching}" for number, hop in enumerate(hops) if hop.matching]
    return contents[0] if len(contents) == 1 else hashlib.sha256("".join(contents).encode()).hexdigest()


@dataclass(frozen=True, eq=False)
class Reader:
    """Counts passes over the table. `seen`: its files as they were when the stage began; `columns`: all it reads."""

    run: Run
    engine: Engine
    table: Table
    seen: Stamps
    columns: list[str]
    groups: list[Any]
    dropped: Mapping[Partition, Any] | None

    @classmethod
    def of(cls, run: Run, engine: Engine, table: Table, seen: Stamps, columns: list[str]) -> Reader:
        groups = partition_groups(table.partitions, engine.workers)
        return cls(run, engine, table, seen, columns, groups, _dropped(run, engine, table, groups, columns))

    def first(self, one: Pass) -> list[Any]:
        """Handles of a pass that also holds every column against the domain."""
        return self.count(one, self.columns)

    def count(self, one: Pass, checked: Sequence[str] = ()) -> list[Any]:
        """Handles of the exact counts of a pass. Every pass reads what drops rows, so that all leave out the same."""
        dropping = [name for name in self.columns if self.run.domain[name].drops]
        handles = run_pass(self.engine, one, self.groups, [*checked, *dropping], self.dropped)
        self.check_unchanged()
        return handles

    def check_unchanged(self) -> None:
        """DataError when a file is not the one that it was; counts lost with a worker may be read from it again."""
        if stamps(self.table) != self.seen:
            raise _changed("the files changed while they were read")


def _changed(got: str) -> DataError:
    return DataError(
        "data.path", got, "the same files", "restore them, or end this run and start a new one with --fresh"
    )


def _dropped(
    run: Run, engine: Engine, table: Table, groups: Sequence[Any], names: Sequence[str]
) -> Mapping[Partition, Any] | None:
    data = run.job.data
    if data.privacy_unit is None or data.max_rows_per_unit is None:
        return None
    rows = survey_units(engine, table.partitions, data.privacy_unit)
    hops = [(one, hop.key, hop.unit) for one, hop in zip(_hops(run), data.unit_through or [], strict=True)]
    through = read_through(engine, hops) if hops else None
    found = rows_beyond(engine, run.domain, groups, data.privacy_unit, data.max_rows_per_unit, rows,
                        run.job.engine.bytes, names, data.unit_nulls == "drop", through)  # fmt: skip
    return handed(engine, found)


def _hops(run: Run) -> list[Table]:
    """The tables that say whose rows are."""
    return [one.origin.table(one.path, run.domain) for one in run.job.data.unit_through or []]
