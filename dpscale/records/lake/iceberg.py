"""Files of an Iceberg table snapshot, from its metadata files (package pyiceberg).

No catalog is used: the path is a metadata file or the table's folder, whose metadata file with the highest number is
used. Columns are read by name, so a name must denote the same field in all schemas up to the snapshot's.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from datetime import date, datetime, timedelta
from typing import Any

from dpscale.base.errors import DataError
from dpscale.records.lake import FIELD, File, Fixed, Lake, plain_path, spelled
from dpscale.storage.objects import is_url, listed

NUMBERED = re.compile(r"v?(\d+)\b.*\.metadata\.json")
READER = {
    "py-io-impl": "pyiceberg.io.fsspec.FsspecFileIO"
}  # takes credentials from the environment, like other readers
EPOCH = datetime(1970, 1, 1)  # timestamps are microseconds since then


def read(path: str, version: int | None) -> Lake:
    """Return a snapshot of the table (default: the current one).

    `columns` are those that may be missing in a file, because they are not required: they are null there.
    """
    from pyiceberg.table import StaticTable

    table = StaticTable.from_metadata(_metadata(path), properties=READER if is_url(path) else {})
    found = table.current_snapshot() if version is None else table.snapshot_by_id(version)
    if found is None:
        got = f"no snapshot {version}" if version is not None else "a table without a snapshot"
        raise DataError("data.version", got, "the id of a snapshot", "see the history of the table")

    schema = table.schema() if found.schema_id is None else table.schemas()[found.schema_id]
    unsure = _unsure([one for one in table.metadata.schemas if one.schema_id <= schema.schema_id])
    columns = tuple(field.name for field in schema.fields if not field.required and field.name not in unsure)
    files = tuple(_file(table, schema, task) for task in table.scan(snapshot_id=found.snapshot_id).plan_files())

    return Lake(
        kind="iceberg",
        uuid=str(table.metadata.table_uuid),
        version=found.snapshot_id,
        commit=plain_path(found.manifest_list),
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
    names = [one.url for one in listed(folder)] if is_url(path) else _in_folder(folder)
    found = sorted((int(match[1]), name) for name in names if (match := NUMBERED.fullmatch(os.path.basename(name))))
    if not found:
        raise DataError(
            FIELD, f"no Iceberg table at {path}", "a folder with metadata/, or a metadata file", "check the path"
        )
    if len(found) > 1 and found[-1][0] == found[-2][0]:
        raise DataError(
            FIELD,
            f"two metadata files with the number {found[-1][0]}; only a catalog knows the current one",
            "a metadata file",
            "name it: PATH/metadata/….metadata.json",
        )
    return found[-1][1]


def _in_folder(folder: str) -> list[str]:
    return [os.path.join(folder, name) for name in os.listdir(folder)] if os.path.isdir(folder) else []


def _unsure(schemas: Sequence[Any]) -> dict[str, str]:
    """Return the columns that cannot be read by name, with the reason.

    These are names shared by two fields, renamed fields, and fields with a default.

    `schemas` are those up to the snapshot's. A field keeps its id when it is renamed, so a name with two ids or an id
    with two names is ambiguous.
    """
    named: dict[str, set[int]] = {}
    called: dict[int, set[str]] = {}
    unsure = {}
    for one in (field for schema in schemas for field in schema.fields):
        named.setdefault(one.name, set()).add(one.field_id)
        called.setdefault(one.field_id, set()).add(one.name)
        if one.initial_default is not None:
            unsure[one.name] = "was added with a default"

    renamed = {name for name, ids in named.items() if len(ids) > 1 or any(len(called[own]) > 1 for own in ids)}
    return unsure | dict.fromkeys(sorted(renamed), "was renamed or recreated after some files were written")


def _file(table: Any, schema: Any, task: Any) -> File:
    """Return a data file of a scan task. Raises DataError if deletions apply to it."""
    if task.delete_files:
        raise DataError(FIELD, "an Iceberg table with delete files", "a table without delete files",
                        "compact it (in Spark: CALL system.rewrite_data_files), and name the new snapshot")  # fmt: skip
    one = task.file
    return File(plain_path(one.file_path), one.file_size_in_bytes, _fixed(table, schema, one))


def _fixed(table: Any, schema: Any, file: Any) -> Fixed:
    """Return the column values fixed by a file's partition; only identity transforms fix a value."""
    spec = table.specs()[file.spec_id]
    known = [(schema.find_field(field.source_id), file.partition[place]) for place, field in enumerate(spec.fields)
             if str(field.transform) == "identity" and field.source_id in schema.field_ids]  # fmt: skip
    return tuple((one.name, spelled(_value(one.field_type, value))) for one, value in known)


def _value(kind: object, value: object) -> object:
    """Return a partition's value as a Python object; Iceberg stores dates in days and times in microseconds."""
    if not isinstance(value, int) or isinstance(value, bool):
        return value
    if str(kind) == "date":
        return date(1970, 1, 1) + timedelta(days=value)
    return EPOCH + timedelta(microseconds=value) if str(kind).startswith("timestamp") else value
