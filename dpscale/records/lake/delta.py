"""Files of a Delta table version, from its transaction log (package deltalake)."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import unquote

from dpscale.base.arrow import pa
from dpscale.base.errors import DataError
from dpscale.records.lake import FIELD, File, Lake, below, plain_path, spelled
from dpscale.storage.objects import is_url

DONE = {
    "timestampNtz",
    "v2Checkpoint",
    "vacuumProtocolCheck",
}  # features that need no action, or that deltalake implements
WORDS = {"deletionVectors": "deleted rows beside its files", "columnMapping": "renamed columns",
         "typeWidening": "widened types"}  # fmt: skip


def read(path: str, version: int | None) -> Lake:
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
    names = [one["name"] for one in json.loads(table.schema().to_json())["fields"]]
    made = table.version()
    commit = below(root, f"_delta_log/{made:020}.json")
    columns = tuple(name for name in names if name not in table.metadata().partition_columns)

    return Lake(
        kind="delta",
        uuid=str(table.metadata().id),
        version=made,
        commit=commit,
        root=root,
        files=_files(table, root),
        columns=columns,
    )


def _check_protocol(table: Any) -> None:
    """Raise DataError if the version requires a reader feature that is not supported."""
    protocol = table.protocol()
    asked = set(protocol.reader_features or ()) - DONE
    if (
        protocol.min_reader_version == 2
        or table.metadata().configuration.get("delta.columnMapping.mode", "none") != "none"
    ):
        asked.add("columnMapping")

    if asked:
        features = " and ".join(WORDS.get(one, f"the feature {one}") for one in sorted(asked))
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
    if {plain_path(file.path) for file in files} != {plain_path(one) for one in table.file_uris()}:
        raise DataError(
            FIELD,
            "a Delta table with files of another table",
            "a table with its own files",
            "copy it (a shallow clone has no files)",
        )
    return files
