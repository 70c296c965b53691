"""The table [data] of a job file: where the records are, how they are kept, and which of them are there."""

from __future__ import annotations

import codecs
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from dpscale.base.display import shown
from dpscale.base.errors import DataError, JobError
from dpscale.base.settings import Settings
from dpscale.privacy.protection import Protection
from dpscale.records.files import Dialect
from dpscale.records.origin import Origin
from dpscale.records.where import EVERYTHING, Where, read_where
from dpscale.storage.objects import check_url

LAKES = ("delta", "iceberg")


def _address(value: str) -> str:
    """A path, or an address without keys in it."""
    try:
        check_url(value)
    except DataError as error:
        raise ValueError(JobError(error.field, error.got, error.takes, error.remedy)) from None
    return value


Address = Annotated[str, AfterValidator(_address)]


class Filed(Settings):
    """How a table's files are written, and which of their rows are there."""

    path: Address
    delimiter: str | None = None
    encoding: str | None = None
    null_values: list[str] | None = None
    header: bool | None = None
    names: list[str] | None = None
    where: str | None = None
    format: Literal["delta", "iceberg", "parquet", "csv", "tsv", "arrow"] | None = None
    version: Annotated[int, Field(ge=0)] | None = None

    @field_validator("delimiter")
    @classmethod
    def _one_letter(cls, value: str | None) -> str | None:
        if value is not None and (len(value) != 1 or not value.isascii() or value in '"\r\n\0'):
            raise ValueError(JobError("data.delimiter", shown(value), "one ASCII character, as ; or a tab",
                                      "convert the files where they have a longer one"))  # fmt: skip
        return value

    @field_validator("encoding")
    @classmethod
    def _known(cls, value: str | None) -> str | None:
        try:
            text = value is None or "".encode(value) is not None
        except (LookupError, ValueError):
            text = False
        if not text:
            raise ValueError(JobError("data.encoding", shown(value), "an encoding of texts, as latin-1", "mend it"))
        return value

    @field_validator("where")
    @classmethod
    def _filter(cls, value: str | None) -> str | None:
        """In the one way to write it, by which jobs are the same."""
        try:
            return None if value is None else str(read_where(value))
        except DataError as error:
            raise ValueError(JobError(error.field, error.got, error.takes, error.remedy)) from None

    @model_validator(mode="after")
    def _named(self) -> Filed:
        """Names are of files without a header, and they have to have them."""
        if (self.header is False) != (self.names is not None):
            raise ValueError("header = false and names go together")
        if self.names is not None and (not all(self.names) or len(set(self.names)) < len(self.names) or not self.names):
            raise ValueError("names takes a name for every column, each once")
        if self.version is not None and not self.lake:
            raise ValueError('version goes with format = "delta" or "iceberg"')
        return self

    @property
    def lake(self) -> str:
        """The kind of a table with a log; empty for plain files."""
        return self.format if self.format in LAKES else ""

    @property
    def dialect(self) -> Dialect:
        """How files are written."""
        encoding = codecs.lookup(self.encoding or "utf-8").name
        return Dialect(self.delimiter or "", encoding, tuple(self.null_values or ()), tuple(self.names or ()),
                       "" if self.lake else self.format or "")  # fmt: skip

    @property
    def matching(self) -> Where:
        """Which rows are there."""
        return read_where(self.where) if self.where else EVERYTHING

    @property
    def origin(self) -> Origin:
        """How they are kept, and which rows of them are there."""
        return Origin(False, self.dialect, self.matching, self.lake, self.version)

    @property
    def noise_record(self) -> dict[str, Any]:
        """What is said beside the path, as a job file has it."""
        return self.model_dump(include=set(Filed.model_fields) - {"path"}, exclude_none=True)


class Hop(Filed):
    """A table that says whose the ids in a column are: its key, and the column of what that belongs to."""

    key: str
    unit: str


class Data(Filed):
    """Where the records are and what one privacy unit is."""

    domain: str
    privacy_unit: Annotated[str, Field(min_length=1)] | None = None
    max_rows_per_unit: Annotated[int, Field(ge=1)] | None = None
    snapshot: Literal["content", "footers"] = "content"
    unit_nulls: Literal["reject", "drop"] | None = None  # None: as before there was the key, also in a job's digest
    unit_through: list[Hop] | None = None
    links: bool | None = None

    @model_validator(mode="after")
    def _both(self) -> Data:
        if (self.privacy_unit is None) != (self.max_rows_per_unit is None):
            raise ValueError("privacy_unit and max_rows_per_unit go together")
        if (self.unit_nulls or self.unit_through) and self.privacy_unit is None:
            raise ValueError("unit_nulls and unit_through go with privacy_unit")
        return self

    @property
    def origin(self) -> Origin:
        """The same; files of two names may be told to count twice."""
        return replace(super().origin, links=bool(self.links))

    @property
    def protects(self) -> Protection:
        """Whom a release of these data protects."""
        unit = self.unit_through[-1].unit if self.unit_through else self.privacy_unit
        return Protection(unit, bound=self.max_rows_per_unit or 1)
