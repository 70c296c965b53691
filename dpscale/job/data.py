"""Table [data] of a job file: location, format and filter of the records, and the privacy unit."""

from __future__ import annotations

import codecs
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from dpscale.base.display import nearest, safe_repr
from dpscale.base.errors import DataError, JobError
from dpscale.base.settings import Settings
from dpscale.contributions.links import Columns, column_name
from dpscale.privacy.protection import Protection
from dpscale.records.files import Dialect
from dpscale.records.formats import format_distribution, format_names
from dpscale.records.origin import Origin
from dpscale.records.where import EVERYTHING, Where, read_where
from dpscale.storage.objects import check_url, located

LAKES = ("delta", "iceberg")
Key = str | list[str]
Name = Annotated[str, Field(min_length=1)]
UnitKey = Name | Annotated[list[Name], Field(min_length=2)]


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
    """Format of a table's files and the filter of its rows."""

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
    format: Annotated[str | None, Field(json_schema_extra=_list_formats)] = None
    version: Annotated[int, Field(ge=0)] | None = None

    @field_validator("delimiter")
    @classmethod
    def _one_letter(cls, value: str | None) -> str | None:
        if value is not None and (len(value) != 1 or not value.isascii() or value in '"\r\n\0'):
            raise ValueError(JobError("data.delimiter", safe_repr(value), "one ASCII character, for example ; or a tab",
                                      "convert files with a longer delimiter"))  # fmt: skip
        return value

    @field_validator("decimal", "thousands", "escape")
    @classmethod
    def _one_mark(cls, value: str | None, info: ValidationInfo) -> str | None:
        takes = {"decimal": "a comma or a point", "thousands": "a point, comma, blank, apostrophe or _",
                 "escape": "one ASCII character, for example \\"}[str(info.field_name)]  # fmt: skip
        marks = {"decimal": ",.", "thousands": ".,'_ \u00a0\u202f"}.get(str(info.field_name), "")
        if value is not None and (len(value) != 1 or value in '"\r\n\0' or (marks and value not in marks)):
            raise ValueError(JobError(f"data.{info.field_name}", safe_repr(value), takes, "fix it"))
        return value

    @field_validator("comment")
    @classmethod
    def _mark_of_comments(cls, value: str | None) -> str | None:
        if value is not None and (not value or '"' in value or "\n" in value):
            raise ValueError(
                JobError("data.comment", safe_repr(value), "the beginning of lines, for example #", "fix it")
            )
        return value

    @field_validator("format")
    @classmethod
    def _known_format(cls, value: str | None) -> str | None:
        names = [*LAKES, *format_names()]
        if value is not None and value not in names:
            raise ValueError(JobError("data.format", safe_repr(value), ", ".join(names), nearest(value, names)))
        return value

    @field_validator("encoding")
    @classmethod
    def _known(cls, value: str | None) -> str | None:
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
        """Refuse names without `header = false`, and the reverse."""
        if (self.header is False) != (self.names is not None):
            raise ValueError("header = false and names require each other")
        if self.names is not None and (not all(self.names) or len(set(self.names)) < len(self.names) or not self.names):
            raise ValueError("names must contain one distinct name per column")
        marks = [mark for mark in (self.delimiter, self.thousands) if mark is not None]
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
        """Dialect of the files."""
        encoding = codecs.lookup(self.encoding or "utf-8").name
        return Dialect(self.delimiter or "", encoding, tuple(self.null_values or ()), tuple(self.names or ()),
                       "" if self.lake else self.format or "", self.decimal or "", self.thousands or "",
                       self.escape or "", self.comment or "", self.skip_lines or 0)  # fmt: skip

    @property
    def matching(self) -> Where:
        """Filter of the rows."""
        return read_where(self.where) if self.where else EVERYTHING

    @property
    def origin(self) -> Origin:
        """Format, version and filter of the table."""
        fills = self.missing_columns is not None
        return Origin(False, self.dialect, self.matching, self.lake, self.version, fills=fills)

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
        return [one.distribution for one in (self, *(self.unit_through or ())) if one.distribution]

    def resolved_hops(self, folder: Path) -> list[Hop] | None:
        """Return `unit_through` with absolute paths; relative paths start at `folder`."""
        hops = self.unit_through
        return hops and [hop.model_copy(update={"path": located(folder, hop.path)}) for hop in hops]

    @property
    def unit_settings(self) -> dict[str, Any]:
        """Definition of the privacy unit, as a job file contains it."""
        names = {"privacy_unit", "max_rows_per_unit", "unit_nulls", "unit_through", "unit_type"}
        return self.model_dump(include=names, exclude_none=True)


class Data(UnitSettings):
    """Location of the records and definition of the privacy unit."""

    snapshot: Literal["content", "footers"] = "content"
    links: bool | None = None
    period: Annotated[str, Field(min_length=1)] | None = None

    @property
    def origin(self) -> Origin:
        """Format, version and filter of the table, and whether hard and symbolic links count as separate files."""
        return replace(super().origin, links=bool(self.links), period=self.period or "")

    @property
    def protects(self) -> Protection:
        """Privacy unit of a release of these data."""
        return Protection(self.unit_name, bound=self.max_rows_per_unit or 1)
