"""Data of a job: location, format and filter of the records, the privacy unit, and the places of all files.

The paths of a job are absolute after reading. Its identity has them as the job file states them, so that it stays when
the folder is moved or copied. `places` of a job maps the absolute paths to those relative ones; paths that are stated
as absolute are not in it, except those below the folder of a job file.
"""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from dpscale.base.display import nearest, safe_repr
from dpscale.base.errors import DataError, JobError
from dpscale.base.settings import Settings
from dpscale.contributions.links import Columns, column_name
from dpscale.ledger.location import is_address
from dpscale.ledger.rows import DEFAULT, is_there
from dpscale.records.files import Dialect
from dpscale.records.formats import format_distribution, format_names
from dpscale.records.frames import FRAME
from dpscale.records.origin import Origin
from dpscale.records.where import EVERYTHING, Where, read_where
from dpscale.storage.databases import is_database, stated_address
from dpscale.storage.objects import check_url, common_folder, is_url, located, real, relative_path, slashed

LAKES = ("delta", "iceberg")
Key = str | list[str]
Name = Annotated[str, Field(min_length=1)]
UnitKey = Name | Annotated[list[Name], Field(min_length=2)]
IN_DATABASE = ("database", "table", "query", "partition_by")
PATHS = ("path", "domain", "via", "file", "after", "ledger")  # keys whose values are paths
ELSEWHERE = ("domain", "ledger")  # paths outside the identity: of the domain, whose digest is in it, and of the ledger
Places = dict[str, str]


def key_columns(key: Key | None) -> Columns:
    """Return the columns of a key as a tuple."""
    return () if key is None else (key,) if isinstance(key, str) else tuple(key)


def plain_key(columns: Columns) -> Key:
    """Return the columns of a key as a job file contains them."""
    return columns[0] if len(columns) == 1 else list(columns)


def _address(value: str) -> str:
    """Return a path or an address; refuse an address that contains credentials."""
    try:
        check_url(value)
    except DataError as error:
        raise ValueError(JobError(error.field, error.got, error.takes, error.remedy)) from None
    return value


Address = Annotated[str, AfterValidator(_address)]


def _list_formats(schema: dict[str, Any]) -> None:
    """Add the accepted formats to the JSON Schema of `format`."""
    schema["anyOf"][0]["enum"] = [*LAKES, *format_names()]


class Filed(Settings):
    """Format of a table's files and the filter of its rows.

    The path of rows in a database is their address, which follows from the keys in IN_DATABASE.
    """

    path: Address
    delimiter: str | None = None
    encoding: str | None = None
    null_values: list[str] | None = None
    header: bool | None = None
    names: list[str] | None = None
    decimal: str | None = None
    thousands: str | None = None
    escape: str | None = None
    comment: str | None = None
    skip_lines: Annotated[int, Field(ge=0)] | None = None
    missing_columns: Literal["null"] | None = None  # None: refused, and omitted from the digest of a job
    where: str | None = None
    database: str | None = None
    table: str | None = None
    query: str | None = None
    partition_by: str | None = None
    format: Annotated[str | None, Field(json_schema_extra=_list_formats)] = None
    version: Annotated[int, Field(ge=0)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _in_database(cls, content: Any) -> Any:
        """Replace the keys of a database by the address that is the path of its rows.

        IN_DATABASE are the keys that state a database; together they give an address. FRAME is the path of a data
        frame.
        """
        stated = content if isinstance(content, Mapping) else {}
        keys = {name: stated[name] for name in IN_DATABASE if stated.get(name) is not None}
        if not keys:
            return content
        try:
            if content.get("path") not in (None, FRAME):
                raise DataError("data.path", "given together with a database", "one of them", "leave one out")
            others = {name: value for name, value in content.items() if name not in keys}
            return {**others, "path": stated_address(keys)}
        except DataError as error:
            raise ValueError(JobError(error.field, error.got, error.takes, error.remedy)) from None

    @field_validator("delimiter")
    @classmethod
    def _one_letter(cls, value: str | None) -> str | None:
        """Refuse a delimiter that is not one ASCII character, or that is a quote or the end of a line."""
        if value is not None and (len(value) != 1 or not value.isascii() or value in '"\r\n\0'):
            raise ValueError(JobError("data.delimiter", safe_repr(value), "one ASCII character, for example ; or a tab",
                                      "convert files with a longer delimiter"))  # fmt: skip
        return value

    @field_validator("decimal", "thousands", "escape")
    @classmethod
    def _one_mark(cls, value: str | None, info: ValidationInfo) -> str | None:
        """Refuse a mark that is not one character of those that its setting permits; an escape may be any."""
        takes = {"decimal": "a comma or a point", "thousands": "a point, comma, blank, apostrophe or _",
                 "escape": "one ASCII character, for example \\"}[str(info.field_name)]  # fmt: skip
        marks = {"decimal": ",.", "thousands": ".,'_ \u00a0\u202f"}.get(str(info.field_name), "")
        if value is not None and (len(value) != 1 or value in '"\r\n\0' or (marks and value not in marks)):
            raise ValueError(JobError(f"data.{info.field_name}", safe_repr(value), takes, "fix it"))
        return value

    @field_validator("comment")
    @classmethod
    def _mark_of_comments(cls, value: str | None) -> str | None:
        """Refuse a mark that is empty, or has a quote or the end of a line."""
        if value is not None and (not value or '"' in value or "\n" in value):
            raise ValueError(
                JobError("data.comment", safe_repr(value), "the beginning of lines, for example #", "fix it")
            )
        return value

    @field_validator("format")
    @classmethod
    def _known_format(cls, value: str | None) -> str | None:
        """Return the format. Raises ValueError for a name that no module and no installed distribution has."""
        names = [*LAKES, *format_names()]
        if value is not None and value not in names:
            raise ValueError(JobError("data.format", safe_repr(value), ", ".join(names), nearest(value, names)))
        return value

    @field_validator("encoding")
    @classmethod
    def _known(cls, value: str | None) -> str | None:
        """Refuse an encoding that Python does not know, or that is not one of texts."""
        try:
            text = value is None or "".encode(value) is not None
        except (LookupError, ValueError):
            text = False
        if not text:
            raise ValueError(
                JobError("data.encoding", safe_repr(value), "a text encoding, for example latin-1", "fix it")
            )
        return value

    @field_validator("where")
    @classmethod
    def _filter(cls, value: str | None) -> str | None:
        """Return the canonical form of the filter, which identifies the job."""
        try:
            return None if value is None else str(read_where(value))
        except DataError as error:
            raise ValueError(JobError(error.field, error.got, error.takes, error.remedy)) from None

    @model_validator(mode="after")
    def _named(self) -> Filed:
        """Refuse settings of a text file that contradict each other, and a version of other files."""
        if (self.header is False) != (self.names is not None):
            given = "false without names" if self.names is None else "given without header = false"
            remedy = 'add names = ["a", "b"]' if self.names is None else "add header = false, or leave names out"
            raise ValueError(JobError(f"data.{'header' if self.names is None else 'names'}", given,
                                      "both, for a file whose first line has no names", remedy))  # fmt: skip
        if self.names is not None and (not all(self.names) or len(set(self.names)) < len(self.names) or not self.names):
            repeated = [name for name in self.names if name and self.names.count(name) > 1]
            got = f"{repeated[0]!r} more than once" if repeated else "an empty name" if self.names else "an empty list"
            raise ValueError(JobError("data.names", got, "a distinct name for each column", "name all columns"))
        marks = [mark for mark in (self.delimiter, self.thousands) if mark is not None]
        # a point is the decimal mark unless another is stated
        marks += [self.decimal or "."] if self.decimal or self.thousands else []
        if len(set(marks)) < len(marks):
            raise ValueError("decimal, thousands and delimiter must differ")
        if self.version is not None and not self.lake:
            raise ValueError('version requires format = "delta" or "iceberg"')
        return self

    @property
    def lake(self) -> str:
        """Format of a table with a log; empty for plain files."""
        return self.format if self.format is not None and self.format in LAKES else ""

    @property
    def distribution(self) -> str:
        """Name and version of the distribution that registers the format; "" for a format of dpscale."""
        return format_distribution(self.format) if self.format and not self.lake else ""

    @property
    def dialect(self) -> Dialect:
        """Dialect of the files; settings that the job leaves out are empty or 0.

        A lake table states the format of its files itself.
        """
        encoding = codecs.lookup(self.encoding or "utf-8").name
        return Dialect(
            delimiter=self.delimiter or "",
            encoding=encoding,
            null_values=tuple(self.null_values or ()),
            names=tuple(self.names or ()),
            format="" if self.lake else self.format or "",
            decimal=self.decimal or "",
            thousands=self.thousands or "",
            escape=self.escape or "",
            comment=self.comment or "",
            skip_lines=self.skip_lines or 0,
        )

    @property
    def matching(self) -> Where:
        """Filter of the rows."""
        return read_where(self.where) if self.where else EVERYTHING

    @property
    def origin(self) -> Origin:
        """Format, version and filter of the table."""
        fills = self.missing_columns is not None
        return Origin(
            links=False, dialect=self.dialect, where=self.matching, format=self.lake, version=self.version, fills=fills
        )

    @property
    def format_settings(self) -> dict[str, Any]:
        """All settings except the path, as a job file contains them."""
        return self.model_dump(include=set(Filed.model_fields) - {"path"}, exclude_none=True)


class Hop(Filed):
    """Table that maps the ids of a column to privacy units: its key column, and the column of the unit."""

    key: Key
    unit: Key

    @property
    def columns(self) -> tuple[Columns, Columns]:
        """Columns of the key and of the unit."""
        return key_columns(self.key), key_columns(self.unit)


class UnitSettings(Filed):
    """Records of a table and definition of its privacy unit."""

    domain: str
    privacy_unit: UnitKey | None = None
    max_rows_per_unit: Annotated[int, Field(ge=1)] | None = None
    unit_nulls: Literal["reject", "drop"] | None = None  # None: omitted from the digest of a job
    unit_through: list[Hop] | None = None
    unit_type: Literal["text", "number"] | None = None

    @model_validator(mode="after")
    def _both(self) -> UnitSettings:
        """Refuse a unit without a bound of its rows, and settings of a unit without a unit."""
        if (self.privacy_unit is None) != (self.max_rows_per_unit is None):
            raise ValueError("privacy_unit and max_rows_per_unit require each other")
        if (self.unit_nulls or self.unit_through or self.unit_type) and self.privacy_unit is None:
            raise ValueError("unit_nulls, unit_through and unit_type require privacy_unit")
        return self

    @property
    def unit_name(self) -> str | None:
        """Column with the ids of privacy units, in the last table of `unit_through` if there is one."""
        columns = self.unit_through[-1].columns[1] if self.unit_through else self.unit_columns
        return column_name(columns) if columns else None

    @property
    def unit_columns(self) -> Columns | None:
        """Columns of the table with the ids of privacy units, or with keys of `unit_through`."""
        return None if self.privacy_unit is None else key_columns(self.privacy_unit)

    @property
    def unit_column(self) -> str | None:
        """Column with the ids of the unit, which partitions make from the columns of a key."""
        return None if self.unit_columns is None else column_name(self.unit_columns, self.unit_type or "")

    @property
    def distributions(self) -> list[str]:
        """Name and version of the distributions of the formats of the table and of `unit_through`."""
        return [files.distribution for files in (self, *(self.unit_through or ())) if files.distribution]

    def resolved_hops(self, folder: Path) -> list[Hop] | None:
        """Return `unit_through` with absolute paths; relative paths start at `folder`."""
        hops = self.unit_through
        return hops and [hop.model_copy(update={"path": located(folder, hop.path)}) for hop in hops]

    @property
    def unit_settings(self) -> dict[str, Any]:
        """Definition of the privacy unit, as a job file contains it."""
        names = {"privacy_unit", "max_rows_per_unit", "unit_nulls", "unit_through", "unit_type"}
        return self.model_dump(include=names, exclude_none=True)


def below(content: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the content of a job file with paths below its folder relative to it."""

    def relative(key: str, value: str) -> str:
        inside = key in PATHS and os.path.isabs(value) and Path(os.path.normpath(value)).is_relative_to(folder)
        return relative_path(value, folder) if inside else value

    return _mapped(content, relative)


def places_of(stated: Mapping[str, Any], read: Mapping[str, Any]) -> Places:
    """Return the absolute paths of a job that was read, mapped to the relative ones that it states.

    Both contents have the same texts in the same order, except that paths are absolute in the one that was read.
    """
    places = {}
    for before, after in zip(_texts(stated), _texts(read), strict=True):
        if before != after and is_database(before):
            places[after] = before
        elif before != after:
            places[after] = slashed(os.path.normpath(before.removeprefix("file://")))
    return {after: path for after, path in places.items()
            if is_database(path) or not (os.path.isabs(path) or is_url(path))}  # fmt: skip


def relocated(content: Mapping[str, Any], places: Mapping[str, str], folder: str) -> dict[str, Any]:
    """Return the content of a job whose files are in another folder now; `places` are those of the content."""
    return _mapped(content, lambda _, value: moved(value, places, folder))


def moved(path: str, places: Mapping[str, str], folder: str) -> str:
    """Return the path of a file of a job whose folder was moved; `places` maps former paths to relative ones."""
    return located(Path(folder), places[path]) if path in places else path


def identity_of(content: Mapping[str, Any], places: Mapping[str, str]) -> dict[str, Any]:
    """Return the content of a job without absolute paths of its folder, and without the paths in ELSEWHERE."""
    changed: dict[str, Any] = _mapped(content, lambda _, value: places.get(value, value), ELSEWHERE)
    if str(changed["privacy"].get("dataset")).startswith(DEFAULT):  # follows from the places
        del changed["privacy"]["dataset"]
    return changed


def mapped(content: Mapping[str, Any], texts: Places) -> Any:
    """Return the content of a job with these texts in place of others."""
    return _mapped(content, lambda _, value: texts.get(value, value))


def default_dataset(paths: list[str], ledger: str, places: Mapping[str, str]) -> str:
    """Return the name of data for which a job states none: the path from the folder of the ledger.

    All jobs of a ledger give the same files the same name, which stays when their common folder is moved. With a
    ledger on a server the path is that from the folder of the job.
    """
    common = files_of(paths)
    if not os.path.isabs(common):
        return common
    if is_address(ledger):
        name = places.get(paths[0], common) if len(paths) == 1 else common
    else:
        name = relative_path(common, os.path.realpath(os.path.dirname(ledger)))
    return name if name.startswith(DEFAULT) or os.path.isabs(name) else f"./{name}"


def files_of(paths: list[str]) -> str:
    """Return the absolute path of files, or their common folder; an address is unchanged."""
    return real(paths[0]) if len(paths) == 1 else common_folder([real(path) for path in paths] or ["/"])


def folder_of_run(manifest: Mapping[str, Any], run: Path) -> str:
    """Return the folder of the job of a run: at its place from the run directory if the files are there."""
    near = os.path.normpath(os.path.join(str(run), manifest["from_run"])) if manifest["from_run"] else ""
    if near and any(is_there(located(Path(near), place)) for place in manifest["places"].values()):
        return near
    return str(manifest["folder"])


def is_left(manifest: Mapping[str, Any], run: Path, folder: Path) -> bool:
    """Return whether the files of a run's job are no longer where its manifest states, and the job is elsewhere now."""
    if not manifest.get("places") or not manifest.get("folder"):
        return False
    known = folder_of_run(manifest, run)
    gone = not any(is_there(located(Path(known), path)) for path in manifest["places"].values())
    return gone and real(known) != real(str(folder))


def is_of_folder(manifest: Mapping[str, Any], run: Path, folder: Path) -> bool:
    """Return whether a run is that of the job in a folder: of its files, or of files that are no longer there."""
    return real(folder_of_run(manifest, run)) == real(str(folder)) or is_left(manifest, run, folder)


def place_entries(folder: Path, places: Mapping[str, str], run: Path) -> dict[str, Any]:
    """Return the entries of a manifest from which `folder_of_run` finds the files of a job."""
    near = is_url(str(run)) or is_url(str(folder))
    return {"folder": str(folder), "from_run": "" if near else relative_path(folder, run), "places": dict(places)}


def _mapped(content: Any, change: Any, without: tuple[str, ...] = (), key: str = "") -> Any:
    """Return a content with every text replaced by change(key, text); texts with a key of `without` are left out.

    The key of a text in a list is that of the list.
    """
    if isinstance(content, Mapping):
        return {name: _mapped(value, change, without, str(name)) for name, value in content.items()
                if not (name in without and isinstance(value, str))}  # fmt: skip
    if isinstance(content, list | tuple):
        return [_mapped(value, change, without, key) for value in content]
    return change(key, content) if isinstance(content, str) else content


def _texts(content: Any) -> Iterator[str]:
    """Yield the texts of a content in order."""
    if isinstance(content, Mapping):
        for value in content.values():
            yield from _texts(value)
    elif isinstance(content, list | tuple):
        for value in content:
            yield from _texts(value)
    elif isinstance(content, str):
        yield content
