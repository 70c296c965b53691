"""Source of the counts of a table: rows and columns with integer weights, and the tag of their content.

    counts(S) = Σ over rows of weight · 1[row in cell of S],   rows beyond the contribution bound left out.

The tag is a hash of the content under the noise key. It is in every label of noise, so that other data give other
noise. Data that change during a release are refused: before the charge nothing is spent, and afterwards the noise of
the first content would be added to other counts.

*Files.*
The same content is recognised under other names and times. The tag of a file is a keyed hash of its size and content
and of the columns in its folder names, by the key of the user (`manifest.keyed_tags`), so that nobody else can compare
guesses with it. `files.json` has the tags of every table.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from dpscale.base.errors import DataError, JobError
from dpscale.base.numerics import AttributeSet
from dpscale.contributions.links import column_name, with_key_ids
from dpscale.contributions.unit_shards import UnitMap
from dpscale.contributions.unit_totals import TotalRequest
from dpscale.contributions.units import Bound, has_counted_row
from dpscale.counting.count import Dropped
from dpscale.counting.grouped import has_counted_group
from dpscale.domain import Domain
from dpscale.engine.contribution_bounds import (
    KEYS_SENT,
    clip_unit_totals,
    read_unit_lookup,
    rows_beyond,
    send_dropped_rows,
    survey_units,
)
from dpscale.engine.counting import Pass, partition_groups, run_pass
from dpscale.engine.frames import frame_table
from dpscale.job.sections import TableSection
from dpscale.privacy.secret import read_secret, snapshot_tag
from dpscale.records import Table
from dpscale.records.frames import FRAME, FramePartition
from dpscale.records.origin import Fingerprint, Stamps, as_seen, fingerprints, joint_digest, layout, snapshot, stamps
from dpscale.records.table import Partition
from dpscale.runs.charge import ensure_noise_key
from dpscale.runs.earlier import check_same_data
from dpscale.runs.manifest import frame_tag, keyed_tags
from dpscale.runs.run import Run
from dpscale.runs.table import TablePart, origin_of
from dpscale.storage.files import present, read_text, write_whole

if TYPE_CHECKING:
    from dpscale.engine.schedulers import Engine

FILES = "files.json"
MOST_NAMED = 3  # files that a message names
Prints = Mapping[str, tuple[Table, Sequence[Fingerprint]]]


@dataclass(eq=False)
class Source:
    """Rows and columns that a table counts: its files or its frame, as they are when they are opened.

    Attributes
    ----------
    part : TablePart
    engine : Engine
    names : sequence of str
        Attributes whose columns are read.
    tables : list of Table
        The table, and those that define the privacy unit.
    file_stamps : list of Stamps
        State of their files before they were read.
    snapshot : str
        Tag of the data.
    """

    part: TablePart
    engine: Engine
    names: Sequence[str]
    tables: list[Table]
    file_stamps: list[Stamps]
    snapshot: str

    @classmethod
    def of(cls, part: TablePart, names: Sequence[str], engine: Engine) -> Source:
        """Open the columns of some attributes; the run has a noise key afterwards, if its noise is not drawn.

        The run's `snapshot` tag of the data is recorded, or compared with the recorded one. Raises DataError without a
        row.
        """
        tables = [open_table(part, names, engine), *unit_tables(part), *part.lookup_tables]
        grouped = part.job.engine.count_in_database is True
        engine.check_file_access(part.path, tables[0].files)
        ensure_noise_key(part.key_owner)
        file_stamps = [stamps(table) for table in tables]
        if part.checks_rows and not is_open_to_no_rows(part.run):
            unit = part.job.data.unit_column if part.job.data.unit_nulls == "drop" else None
            check_rows_exist(tables[0], names, engine, unit=unit, grouped=grouped)
        return cls(part, engine, names, tables, file_stamps, snapshot_of(part, tables[0], engine))

    @property
    def table(self) -> Table:
        return self.tables[0]

    @property
    def head(self) -> dict[str, str]:
        """Fields that the labels of searches and of numbers of units begin with."""
        return {"release": self.part.release, "snapshot": self.snapshot}

    @cached_property
    def groups(self) -> list[Any]:
        """Partitions of the table that a task reads together."""
        return partition_groups(self.table.partitions, self.engine.workers)

    @cached_property
    def dropped(self) -> Mapping[Partition, Any] | None:
        """Rows that exceed the contribution bound; None without a bound."""
        return rows_beyond_bound(self.part, self.engine, self.table, self.groups, self.names)

    def check_unchanged(self) -> None:
        """Raise DataError if a file changed; counts lost with a worker may be read from it again."""
        if [stamps(table) for table in self.tables] != self.file_stamps:
            raise changed_files("the files changed while they were read")

    def count(self, sets: Pass, checked: Sequence[str] = ()) -> list[Any]:
        """Return handles of the exact counts of a pass; the columns `checked` are compared with the domain.

        Every pass reads the columns whose values can drop a row, so that all passes omit the same rows.
        """
        dropping = [name for name in self.names if self.part.domain[name].drops]
        weights = self.part.record_weights
        names, grouped = [*checked, *dropping], self.part.job.engine.count_in_database is True
        handles = run_pass(self.engine, sets, self.groups, names, self.dropped, weights, grouped)
        self.check_unchanged()
        return handles


def open_table(run: TablePart, names: Sequence[str], engine: Engine) -> Table:
    """Return the table of the run's files or of its data frame."""
    data = run.job.data
    wanted = [*run.domain.columns(names), *([data.unit_column] if data.unit_column else [])]
    wanted += run.record_weights.columns if run.record_weights else []
    if run.frame is not None:
        check_frame_unit(data)
        return frame_table(run.frame, run.domain, wanted, engine, data.matching)
    if data.path == FRAME:
        raise DataError("data", "none, but this run reads a data frame", "the frame with which it started",
                        "pass it again: dp.run(job, data=frame)")  # fmt: skip
    files = as_seen(origin_of(run).table(data.path, run.domain), engine.each("snapshot"))
    table = run.restrict(with_key_ids(files, data.unit_columns, rule=data.unit_type or ""), engine)
    table.require(wanted)
    return table


def columns_of(domain: Domain, counted: Sequence[AttributeSet]) -> list[str]:
    """Return the attributes that are measured; only their columns are read."""
    used = {name for attributes in counted for name in attributes} or {domain.names[0]}
    return [name for name in domain.axis_names if name in used]


def attributes_read(run: TablePart) -> list[str]:
    """Return the attributes whose columns some stage reads: of the workload, of searches and of distinct units."""
    used = {name for part in run.workload.parts for attributes in part.sets for name in attributes}
    used |= {attribute.name for attribute in run.declared.searches}
    used |= {name for attributes in run.unit_counts or () for name in attributes}
    return [name for name in run.declared.axis_names if name in used]


def snapshot_of(run: TablePart, table: Table, engine: Engine) -> str:
    """Return the tag of the data under the noise key; raise DataError if the data changed since the release began.

    The manifest has the tag at the start of the release (`snapshot`). Files whose tag differs are compared one by one:
    renamed files are accepted, and the message names others. If the noise key is destroyed, nothing can be drawn and
    the data are not read again.
    """
    first_snapshot = run.manifest["snapshot"]
    if first_snapshot is not None and run.read_matching_key() is None:
        return str(first_snapshot)
    data, lake = run.job.data, table.lake
    # where the data are: the version of a lake table, or files and their format
    layout_now = {"version": lake.version} if lake else layout(data.path, data.matching, data.dialect.format)
    prints = file_prints(run, table, engine)
    # stages of searches and distinct units read other columns of a frame than the measurement, but hash the same ones
    if run.frame is not None and first_snapshot is None and (run.declared.searches or run.unit_counts):
        run.update(hashed=run.manifest.get("hashed") or attributes_read(run))
    # a frame is compared by all its columns if an earlier call or the refined release hashed them
    whole = run.frame is not None and ("hashed" in run.manifest or "names" in (run.refines or {}))
    content = frame_content(run, engine) if whole else content_hash(run, table, engine, prints)
    # a refined release must have the data of the earlier one
    check_same_data(run, frame_content(run, engine, earlier=True) if whole else content)

    tag = snapshot_tag(read_secret(run.secret_path), content)
    if first_snapshot not in (None, tag):
        # other data than files cannot be compared further
        if not prints:
            raise changed_files("the records changed since this release started")
        check_same_files(run, prints, run.run.is_charged)
        tag = str(first_snapshot)
    # facts of the data for later calls
    if prints and not run.folder:
        record_tags(run, prints)
    if first_snapshot is None or run.manifest.get("data") != layout_now:
        run.update(snapshot=tag, data=layout_now, **({"table": table.lake.summary} if table.lake else {}))
    entry = "content" if run.frame is None else "frame"
    if entry not in run.manifest and not run.folder:
        run.update(**{entry: frame_tag(run.manifest["release"], content, create=True)})
    return tag


def file_prints(run: TablePart, table: Table, engine: Engine) -> Prints:
    """Return the fingerprints of the files of the table and of the privacy units; empty for other data than files."""
    if not table.root or run.record_weights is not None or run.lookup_tables:
        return {}
    unit_names = [f"data.unit_through {number}" for number, _ in enumerate(run.job.data.unit_through or [], 1)]
    each, prints = engine.each("snapshot"), {}
    for name, source in zip(["data.path", *unit_names], (table, *unit_tables(run)), strict=True):
        prints[name] = source, fingerprints(source, run.uses_footers, each)
    return prints


def content_hash(run: TablePart, table: Table, engine: Engine, prints: Prints | None = None) -> str:
    """Return the hash of the data that counts depend on: the table's files, those of the privacy units, and filters.

    Filters are part of the content, because they change the counted rows.
    """
    content = run.content_hash(table, engine)  # None unless the kind of part has a rule of its own
    if content is not None:
        return content
    hops, each = run.job.data.unit_through or [], engine.each("snapshot")
    contents = [joint_digest(source, of_files) for source, of_files in (prints or {}).values()]
    if not contents:
        sources = (table, *unit_tables(run), *run.lookup_tables)
        contents = [snapshot(source, run.uses_footers, each) for source in sources]
    contents += [str(run.job.data.matching)] if run.job.data.matching else []
    contents += [f"{number}: {hop.matching}" for number, hop in enumerate(hops) if hop.matching]
    return contents[0] if len(contents) == 1 else hashlib.sha256("".join(contents).encode()).hexdigest()


def frame_content(run: TablePart, engine: Engine, earlier: bool = False) -> str:
    """Return the hash of a frame over the columns that a run and the releases that it refines read.

    Parameters
    ----------
    run : TablePart
    engine : Engine
    earlier : bool
        Only over the columns that were hashed for the earlier releases.
    """
    names = set((run.refines or {}).get("names", ()))
    if not (earlier and names):
        names.update(run.manifest.get("hashed") or columns_of(run.domain, run.measurement_plan.counted_sets))
    ordered = [name for name in run.domain.axis_names if name in names]
    return content_hash(run, open_table(run, ordered, engine), engine)


def is_open_to_no_rows(run: Run) -> bool:
    """Return whether a run may release data without rows: it is allowed to, or its charge is behind it."""
    return bool(run.manifest.get("empty")) or run.is_charged


def check_rows_exist(
    table: Table,
    names: Sequence[str],
    engine: Engine,
    field: str = "data.path",
    unit: str | None = None,
    grouped: bool = False,
) -> None:
    """Raise DataError if no row of a table is counted.

    Files whose footers state no rows were written as an empty table, which is released, with a warning.

    Parameters
    ----------
    table : Table
    names : sequence of str
        Attributes whose values may drop a row.
    engine : Engine
    field : str
        Name of the setting with the table's path.
    unit : str, optional
        Column whose rows without an id are dropped.
    grouped : bool
        Whether the database counts.
    """
    dropping = any(table.domain[name].drops for name in names) or any(part.where for part in table.partitions)
    # a frame was read for its hash, which counts its rows
    seen = [partition.seen for partition in table.partitions if isinstance(partition, FramePartition)]
    if unit is None and not dropping and any(read and read.rows for read in seen):
        return

    domain = engine.broadcast(table.domain, "presence")
    # function and further arguments of a task
    seek, more = (has_counted_group, ()) if grouped else (has_counted_row, (unit,))
    # usually the first partition has such a row, so the others are read after it
    first, *rest = table.partitions
    for partitions in ([first], rest):
        items = [((partition,), domain, list(names), *more) for partition in partitions]
        if any(engine.map(seek, items, "presence")):
            return
    if states_no_rows(table):
        warnings.warn(f"{field}: the files of {table.root} state that they have no rows", UserWarning, stacklevel=2)
        return
    raise no_rows(field)


def states_no_rows(table: Table) -> bool:
    """Return whether the footers of all files state that they have no rows."""
    return bool(table.root) and all(part.format.typed and part.row_bound() == 0 for part in table.partitions)


def no_rows(field: str) -> DataError:
    """Return the error for data without a row that is counted."""
    return DataError(field, "no row that is counted; nothing is charged", "data with rows",
                     'check the files, where, and rules with "drop", or release the empty table with --empty'
                     " (Python: empty=True)")  # fmt: skip


def changed_files(got: str) -> DataError:
    """Return the error for data that changed since the release began."""
    return DataError(
        "data.path", got, "the same files", "restore them, or end this run and start a new one with --fresh"
    )


def decision(run: TablePart, source: Source, records: list[dict[str, Any]], domain: Domain) -> dict[str, Any]:
    """Return everything that determines the draws with some records, as the journal records it.

    Records, domain, data, noise key and release id determine the noise. The job also determines the counts that it is
    added to, for example by a filter or the privacy unit: the same noise on other counts would reveal their difference.
    """
    manifest, weights = run.manifest, run.record_weights
    return {
        "records": records,
        "domain": domain.digest,
        "snapshot": source.snapshot,
        "key": manifest["secret_tag"],
        "release": run.release,
        "job": manifest["job_sha256"],
        "weights": None if weights is None else list(weights.weights),
    }


def rows_beyond_bound(
    run: TablePart, engine: Engine, table: Table, groups: Sequence[Any], names: Sequence[str]
) -> Mapping[Partition, Any] | None:
    """Return the rows of each partition that are not counted, so that no unit exceeds its bounds; None without a bound.

    These are a unit's rows after the first `run.contribution_bound`. Rows whose numbers exceed the total that the
    domain permits for a unit are clipped as well. Many rows are sent to the workers once, and the result has handles
    to them.
    """
    data = run.job.data
    if (unit := data.unit_column) is None or data.max_rows_per_unit is None:
        return None
    dropped = rows_beyond_rank(run, engine, table, groups, names, run.contribution_bound)
    totals = tuple(total for total in run.domain.totals if total.name in names)
    if totals:
        request = TotalRequest(domain=run.domain, names=tuple(names), numbers=totals, unit=unit)
        dropped = clip_unit_totals(engine, request, groups, dropped, run.job.engine.bytes, _read_lookup(run, engine))
    return send_dropped_rows(engine, dropped)


def rows_beyond_rank(
    run: TablePart, engine: Engine, table: Table, groups: Sequence[Any], names: Sequence[str], bound: Bound
) -> Dropped:
    """Return the rows of each unit beyond a bound, and those without a unit if they are dropped."""
    data, unit = run.job.data, str(run.job.data.unit_column)
    rows, through = survey_units(engine, table.partitions, unit), _read_lookup(run, engine, table)
    return rows_beyond(engine, run.domain, groups, unit, bound, rows, run.job.engine.bytes, names,
                       data.unit_nulls == "drop", through)  # fmt: skip


def unit_lookup(run: TablePart, engine: Engine) -> list[Any]:
    """Return handles of the parts of the map from the unit's column to units; none if the column has the units."""
    found = _read_lookup(run, engine)
    return engine.scatter(found.cut(KEYS_SENT), "units") if found is not None else []


def _read_lookup(run: TablePart, engine: Engine, table: Table | None = None) -> UnitMap | None:
    """Return the map from keys in the data to privacy units, through other tables; None if rows state their unit.

    A hop is a table with its columns of a key and of what it maps to: the key of the next table, or the unit. If the
    data are given as `table`, the type of their keys is compared with that of the first hop.
    """
    through, rule = run.job.data.unit_through or [], run.job.data.unit_type or ""
    hops = []
    for looked_up, hop in zip(unit_tables(run), through, strict=True):
        key, maps_to = hop.columns
        hops.append((looked_up, column_name(key, rule), column_name(maps_to, rule)))
    data = None if table is None else (table, str(run.job.data.unit_column))
    return read_unit_lookup(engine, hops, data) if hops else None


def unit_tables(run: TablePart) -> list[Table]:
    """Return the tables through which keys in the data are mapped to privacy units, in order."""
    rule = run.job.data.unit_type or ""
    return [with_key_ids(hop.origin.table(hop.path, run.domain), *hop.columns, rule=rule)
            for hop in run.job.data.unit_through or []]  # fmt: skip


def check_frame_unit(data: TableSection) -> None:
    """Raise JobError for a unit of several columns of a data frame, or one with a stated type."""
    if data.unit_type is not None:
        raise JobError("data.unit_type", f"{data.unit_type!r} for a data frame", "files, whose types may differ",
                       "convert the column of the frame and leave unit_type out")  # fmt: skip
    if len(data.unit_columns or ()) > 1:
        raise JobError("data.privacy_unit", f"the columns {data.unit_column} of a data frame", "one column",
                       "combine them into one")  # fmt: skip


@dataclass(frozen=True)
class Comparison:
    """Comparison of the files of a run with those that it has read.

    Attributes
    ----------
    text : str
        What differs; empty for the same content.
    known : bool
        Whether the contents could be compared.
    """

    text: str
    known: bool = True

    @property
    def same(self) -> bool:
        return self.known and not self.text


def record_tags(run: Any, prints: Prints) -> None:
    """Write the keyed tags of the contents of each table's files, unless they are recorded or no key can be created.

    `prints` maps a table's name to the table and the fingerprints of its files.
    """
    if present(run.path / FILES):
        return
    release, recorded = run.manifest["release"], {}
    for name, (table, fingerprints_of_files) in prints.items():
        tags = keyed_tags(_contents(release, table, fingerprints_of_files), create=True)
        if tags is None:
            return
        recorded[name] = {"key": tags[0], "tags": tags[1]}
    write_whole(run.path / FILES, json.dumps(recorded).encode())


def compare_files(run: Any, prints: Prints | None = None) -> Comparison:
    """Return the comparison of the files, which are read if their fingerprints are not given, with the recorded tags.

    Names and times of files do not count. `prints` maps a table's name to the table and the fingerprints (path, size,
    hash) of its files. Tags under another key cannot be compared.
    """
    if not present(run.path / FILES):
        return Comparison("their content has no recorded fingerprint", known=False)
    recorded = json.loads(read_text(run.path / FILES))
    if prints is None:
        footers = run.content.uses_footers
        prints = {name: (table, fingerprints(table, footers)) for name, table in run.content.open_data().items()}
    texts = []
    for name, (table, fingerprints_of_files) in prints.items():
        before = recorded.get(name)
        now = keyed_tags(_contents(run.manifest["release"], table, fingerprints_of_files))
        # without the same key equal contents have other tags
        if before is None or now is None or before["key"] != now[0]:
            return Comparison("the fingerprint of their content was computed with the key of another user", known=False)
        texts.append(_difference(before["tags"], now[1], [path for path, *_ in fingerprints_of_files]))
    return Comparison("; ".join(filter(None, texts)))


def check_same_files(run: Any, prints: Prints, charged: bool) -> None:
    """Raise DataError unless the files have the contents that the run has recorded when it began.

    `charged` selects the remedy: a charged run may be restored or ended, others may be removed. `prints` maps a table's
    name to the table and the fingerprints of its files.
    """
    comparison = compare_files(run, prints)
    if not comparison.same:
        what = comparison.text if comparison.known else "their names or contents"
        got = f"the files changed since this release started ({what})"
        remedy = ("restore them, or end this run and start a new one with --fresh" if charged else
                  f"restore them, or remove {run.path}, which has charged nothing, and run the job again")  # fmt: skip
        raise DataError("data.path", got, "the same files", remedy)


def _contents(release: str, table: Table, prints: Sequence[Fingerprint]) -> list[str]:
    """Return what the tag of each file identifies: columns in its folder names, size and content, not the name."""
    fixed = {part.path: part.fixed for part in table.partitions}
    return [json.dumps(["file", release, fixed[path], size, content]) for path, size, content in prints]


def _difference(before: Sequence[str], now: Sequence[str], paths: Sequence[str]) -> str:
    """Return how many files changed, with the names of those that differ now; empty for the same contents.

    Parameters
    ----------
    before, now : sequence of str
        Tags of the contents of the files then and now, in any order; equal contents have equal tags.
    paths : sequence of str
        Paths of the files now.
    """
    missing = Counter(before)
    missing.subtract(now)
    gone = sum(count for count in missing.values() if count > 0)  # contents that no file has now

    remaining, names = Counter(before), list[str]()  # names of files whose contents are new
    for tag, path in zip(now, paths, strict=True):
        if remaining[tag] <= 0:
            names.append(os.path.basename(path))
        remaining[tag] -= 1
    if not gone and not names:
        return ""
    shown = ", ".join(sorted(names)[:MOST_NAMED]) + (", …" if len(names) > MOST_NAMED else "")
    # a missing and a new content are one changed file
    changed = min(gone, len(names))
    parts = [f"{changed:,} of {len(before):,} files changed"] if changed else []
    parts += [f"{gone - changed:,} of {len(before):,} files missing"] if gone > changed else []
    parts += [f"{len(names) - changed:,} more than the {len(before):,} files"] if len(names) > changed else []
    return ", ".join(parts) + (f": {shown}" if names else "")
