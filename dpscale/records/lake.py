"""Version of a Delta or Iceberg table: its Parquet files and the values fixed by its partitions.

Both come from the table's log; the files are then read like any others. A release identifies its table by the UUID, the
version (the number of a Delta version or an Iceberg snapshot id), the hash of the commit that created it, and the
files' own hashes. A table that has newer versions is still read at that version. A version that requires unsupported
reader features (deleted rows stored next to the files, renamed columns, defaults) is refused, because ignoring them
would count different rows.

*Delta.*
The files of a version are in the transaction log (package deltalake).

*Iceberg.*
The files of a snapshot are in its metadata files (package pyiceberg). No catalog is used: the path is a metadata file
or the table's folder, whose metadata file with the highest number is used. Columns are read by name, so a name must
denote the same field in all schemas up to the snapshot's.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any
from urllib.parse import unquote

from dpscale.base.arrow import pa
from dpscale.base.errors import DataError, Unreadable
from dpscale.storage.objects import is_url, listed, opening

FIELD = "data.path"
Fixed = tuple[tuple[str, str | None], ...]  # columns with one value for all rows of a file, as texts
NAMES = {"delta": "Delta", "iceberg": "Iceberg"}

DONE = {
    "timestampNtz",
    "v2Checkpoint",
    "vacuumProtocolCheck",
}  # features that need no action, or that deltalake implements
WORDS = {"deletionVectors": "deleted rows beside its files", "columnMapping": "renamed columns",
         "typeWidening": "widened types"}  # fmt: skip

NUMBERED = re.compile(r"v?(\d+)\b.*\.metadata\.json")
READER = {
    "py-io-impl": "pyiceberg.io.fsspec.FsspecFileIO"
}  # takes credentials from the environment, like other readers
EPOCH = datetime(1970, 1, 1)  # timestamps are microseconds since then


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


def read_delta(path: str, version: int | None) -> Lake:
    """Return a version of the table in a folder (default: the latest).

    `commit` is the file of the log that created the version; the columns of partitions are in names of folders.
    """
    from deltalake import DeltaTable
    from deltalake.exceptions import TableNotFoundError

    try:
        table = DeltaTable(path)
    except TableNotFoundError:
        raise DataError(FIELD, f"no Delta table at {path}", "a folder with _delta_log", "check the path") from None

    latest = table.version()
    if version is not None and not 0 <= version <= latest:
        raise DataError("data.version", f"{version}", f"0 to {latest}", "set one of them, or none for the latest")

    if version is not None:
        table = DeltaTable(path, version=version)
    _check_protocol(table)
    root = plain_path(path) if is_url(path) else path
    names = [field["name"] for field in json.loads(table.schema().to_json())["fields"]]
    number = table.version()
    commit = below(root, f"_delta_log/{number:020}.json")
    columns = tuple(name for name in names if name not in table.metadata().partition_columns)

    return Lake(
        kind="delta",
        uuid=str(table.metadata().id),
        version=number,
        commit=commit,
        root=root,
        files=_files(table, root),
        columns=columns,
    )


def _check_protocol(table: Any) -> None:
    """Raise DataError if the version requires a reader feature that is not supported."""
    protocol = table.protocol()
    missing = set(protocol.reader_features or ()) - DONE
    if (
        protocol.min_reader_version == 2
        or table.metadata().configuration.get("delta.columnMapping.mode", "none") != "none"
    ):
        missing.add("columnMapping")

    if missing:
        features = " and ".join(WORDS.get(feature, f"the feature {feature}") for feature in sorted(missing))
        raise DataError(FIELD, f"a Delta table with {features}", "a table without reader features",
                        "write its rows to another table (in Spark: CREATE TABLE … AS SELECT)")  # fmt: skip


def _files(table: Any, root: str) -> tuple[File, ...]:
    """Return the files of a Delta table with their sizes and partition values."""
    actions = pa.table(table.get_add_actions(flatten=True))
    keys = [name for name in actions.column_names if name.startswith("partition.")]
    rows = actions.select(["path", "size_bytes", *keys]).to_pylist()
    files = tuple(
        File(
            below(root, unquote(row["path"])),
            row["size_bytes"],
            tuple((key.removeprefix("partition."), spelled(row[key])) for key in keys),
        )
        for row in rows
    )
    # a shallow clone refers to files of another table
    if {plain_path(file.path) for file in files} != {plain_path(uri) for uri in table.file_uris()}:
        raise DataError(
            FIELD,
            "a Delta table with files of another table",
            "a table with its own files",
            "copy it (a shallow clone has no files)",
        )
    return files


def read_iceberg(path: str, version: int | None) -> Lake:
    """Return a snapshot of the table (default: the current one).

    `columns` are those that may be missing in a file, because they are not required: they are null there.
    """
    from pyiceberg.table import StaticTable

    table = StaticTable.from_metadata(_metadata(path), properties=READER if is_url(path) else {})
    snapshot = table.current_snapshot() if version is None else table.snapshot_by_id(version)
    if snapshot is None:
        got = f"no snapshot {version}" if version is not None else "a table without a snapshot"
        raise DataError("data.version", got, "the id of a snapshot", "see the history of the table")

    schema = table.schema() if snapshot.schema_id is None else table.schemas()[snapshot.schema_id]
    unsure = _unsure([earlier for earlier in table.metadata.schemas if earlier.schema_id <= schema.schema_id])
    columns = tuple(field.name for field in schema.fields if not field.required and field.name not in unsure)
    files = tuple(_file(table, schema, task) for task in table.scan(snapshot_id=snapshot.snapshot_id).plan_files())

    return Lake(
        kind="iceberg",
        uuid=str(table.metadata.table_uuid),
        version=snapshot.snapshot_id,
        commit=plain_path(snapshot.manifest_list),
        root=plain_path(table.location()),
        files=files,
        columns=columns,
        unsure=unsure,
    )


def _metadata(path: str) -> str:
    """Return the metadata file at a path, or the latest one below it.

    Raises DataError if two writers created a file with the latest number.
    """
    if path.endswith(".metadata.json"):
        return path

    folder = f"{path.rstrip('/')}/metadata"
    names = [entry.url for entry in listed(folder)] if is_url(path) else _in_folder(folder)
    numbered = sorted((int(match[1]), name) for name in names if (match := NUMBERED.fullmatch(os.path.basename(name))))
    if not numbered:
        raise DataError(
            FIELD, f"no Iceberg table at {path}", "a folder with metadata/, or a metadata file", "check the path"
        )
    if len(numbered) > 1 and numbered[-1][0] == numbered[-2][0]:
        raise DataError(
            FIELD,
            f"two metadata files with the number {numbered[-1][0]}; only a catalog knows the current one",
            "a metadata file",
            "name it: PATH/metadata/….metadata.json",
        )
    return numbered[-1][1]


def _in_folder(folder: str) -> list[str]:
    return [os.path.join(folder, name) for name in os.listdir(folder)] if os.path.isdir(folder) else []


def _unsure(schemas: Sequence[Any]) -> dict[str, str]:
    """Return the columns that cannot be read by name, with the reason.

    These are names shared by two fields, renamed fields, and fields with a default.

    `schemas` are those up to the snapshot's. A field keeps its id when it is renamed, so a name with two ids or an id
    with two names is ambiguous.
    """
    ids_of: dict[str, set[int]] = {}
    names_of: dict[int, set[str]] = {}
    unsure = {}
    for column in (column for schema in schemas for column in schema.fields):
        ids_of.setdefault(column.name, set()).add(column.field_id)
        names_of.setdefault(column.field_id, set()).add(column.name)
        if column.initial_default is not None:
            unsure[column.name] = "was added with a default"

    renamed = {name for name, ids in ids_of.items() if len(ids) > 1 or any(len(names_of[id_]) > 1 for id_ in ids)}
    return unsure | dict.fromkeys(sorted(renamed), "was renamed or recreated after some files were written")


def _file(table: Any, schema: Any, task: Any) -> File:
    """Return a data file of a scan task. Raises DataError if deletions apply to it."""
    if task.delete_files:
        raise DataError(FIELD, "an Iceberg table with delete files", "a table without delete files",
                        "compact it (in Spark: CALL system.rewrite_data_files), and name the new snapshot")  # fmt: skip
    data_file = task.file
    return File(plain_path(data_file.file_path), data_file.file_size_in_bytes, _fixed(table, schema, data_file))


def _fixed(table: Any, schema: Any, file: Any) -> Fixed:
    """Return the column values fixed by a file's partition; only identity transforms fix a value."""
    spec = table.specs()[file.spec_id]
    identities = [(schema.find_field(field.source_id), file.partition[place]) for place, field in enumerate(spec.fields)
             if str(field.transform) == "identity" and field.source_id in schema.field_ids]  # fmt: skip
    return tuple((column.name, spelled(_value(column.field_type, value))) for column, value in identities)


def _value(kind: object, value: object) -> object:
    """Return a partition's value as a Python object; Iceberg stores dates in days and times in microseconds."""
    if not isinstance(value, int) or isinstance(value, bool):
        return value
    if str(kind) == "date":
        return date(1970, 1, 1) + timedelta(days=value)
    return EPOCH + timedelta(microseconds=value) if str(kind).startswith("timestamp") else value


READERS: dict[str, Callable[[str, int | None], Lake]] = {"delta": read_delta, "iceberg": read_iceberg}
