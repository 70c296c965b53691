"""Croissant file of a publication, which describes its tables to machines that find and load them.

Croissant (MLCommons, version 1.0) is a JSON-LD vocabulary on top of schema.org. A publication is a `Dataset` whose
`distribution` lists the files with their SHA-256, and whose `recordSet` describes the columns of each table, with types
of schema.org. The description contains names of files and columns, which the publication shows as well, and the words
of domain file and job for readers. It has no web address, which the publisher adds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dpscale.base.arrow import pa
from dpscale.base.display import escape_formula

FILE = "croissant.json"
CONFORMS = "http://mlcommons.org/croissant/1.0"
ENCODINGS = {".csv": "text/csv", ".parquet": "application/x-parquet", ".txt": "text/plain",
             ".xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"}  # fmt: skip
TERMS = [
    "citeAs",
    "column",
    "equivalentProperty",
    "extract",
    "field",
    "fileObject",
    "fileProperty",
    "fileSet",
    "format",
    "includes",
    "isLiveDataset",
    "jsonPath",
    "key",
    "md5",
    "parentField",
    "path",
    "recordSet",
    "references",
    "regex",
    "repeated",
    "replace",
    "samplingRate",
    "separator",
    "source",
    "subField",
    "transform",
]
CONTEXT: dict[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "sc": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "dct": "http://purl.org/dc/terms/",
    "conformsTo": "dct:conformsTo",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
    **{term: f"cr:{term}" for term in TERMS},
}
COLUMNS = {
    "count": "published number of records",
    "value": "published value",
    "std_error": "standard error of the estimate that the value comes from; empty: unknown",
    "flag": "'unreliable' if the error is large for the value, 'minimum' if the count is below that of publication",
}


def describe(
    folder: Path,
    files: list[str],
    tables: Mapping[str, pa.Table],
    release: str,
    description: str,
    about: Mapping[str, str] = MappingProxyType({}),
    meanings: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return the Croissant description of a publication.

    Parameters
    ----------
    folder : Path
    files : list of str
        Files of the publication, relative to the folder.
    tables : mapping of str to pyarrow.Table
        Tables by file name without an ending.
    release : str
        Public name of the release.
    description : str
        Text for people.
    about : mapping of str to str
        Words of the job for readers.
    meanings : mapping of str to str
        Descriptions of attributes and numbers.

    Returns
    -------
    dict
        JSON-LD.
    """
    return {
        "@context": CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": CONFORMS,
        "name": f"release-{release}",
        **_published_by(about),
        "description": " ".join([*([about["notes"]] if "notes" in about else []), description]),
        "version": "1.0.0",
        "distribution": [_file(folder, name) for name in files],
        "recordSet": [_records(name, table, source, COLUMNS | dict(meanings)) for name, table in tables.items()
                      if (source := _source(name, files)) is not None],
    }  # fmt: skip


def _published_by(about: Mapping[str, str]) -> dict[str, Any]:
    """Return headline, licence and publisher in terms of schema.org."""
    contact = (
        {"contactPoint": {"@type": "sc:ContactPoint", "description": about["contact"]}} if "contact" in about else {}
    )
    publisher = {"@type": "sc:Organization", "name": about.get("publisher", ""), **contact}
    found = {"headline": about.get("title"), "license": about.get("licence")}
    return {key: text for key, text in found.items() if text} | (
        {"publisher": publisher, "creator": publisher} if about.get("publisher") or contact else {}
    )


def _file(folder: Path, name: str) -> dict[str, Any]:
    """Return the Croissant description of a file: its name, size, format and SHA-256."""
    content = (folder / name).read_bytes()
    return {
        "@type": "cr:FileObject",
        "@id": name,
        "name": name,
        "contentUrl": name,
        "contentSize": f"{len(content)} B",
        "encodingFormat": ENCODINGS.get(Path(name).suffix, "application/octet-stream"),
        "sha256": hashlib.sha256(content).hexdigest(),
    }


def _source(name: str, files: list[str]) -> str | None:
    """Return the file that has a table of its own; None if it is only a sheet of a workbook."""
    return next((file for file in (f"parquet/{name}.parquet", f"csv/{name}.csv") if file in files), None)


def _records(name: str, table: pa.Table, file: str, meanings: Mapping[str, str]) -> dict[str, Any]:
    fields = [_field(name, own, file, meanings) for own in table.schema]
    return {"@type": "cr:RecordSet", "@id": name, "name": name, "field": fields}


def _field(table: str, column: pa.Field, file: str, meanings: Mapping[str, str]) -> dict[str, Any]:
    """Return the Croissant description of a column of a table in a file."""
    header = escape_formula(column.name) if file.endswith(".csv") else column.name  # as the files have it
    description = {"description": meanings[column.name]} if column.name in meanings else {}
    return {
        "@type": "cr:Field",
        "@id": f"{table}/{column.name}",
        "name": column.name,
        **description,
        "dataType": _type_of(column.type),
        "source": {"fileObject": {"@id": file}, "extract": {"column": header}},
    }


def _type_of(kind: pa.DataType) -> str:
    """Return the type of schema.org."""
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    if pa.types.is_boolean(value):
        return "sc:Boolean"
    if pa.types.is_integer(value):
        return "sc:Integer"
    if pa.types.is_floating(value):
        return "sc:Float"
    return "sc:Date" if pa.types.is_date(value) else "sc:Text"
