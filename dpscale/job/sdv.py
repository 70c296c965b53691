"""Multi-table metadata of SDV (Synthetic Data Vault), version V1: conversion to a draft of a job, and from a job.

https://docs.sdv.dev/sdv/concepts/metadata/metadata-json: `tables` of columns with an `sdtype` and a `primary_key`, and
`relationships` between a parent's key and a child's column. No data are read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w

from dpscale.base.errors import JobError
from dpscale.domain.attribute import Attribute
from dpscale.job.tables import CompositeJob, LinkSection

VERSIONS = ("V1", "MULTI_TABLE_V1")
KINDS = ("categorical", "boolean", "numerical", "datetime")
NUMBERS = ("integer", "bins")
NAME = re.compile(r"[\w-]{1,64}")
ENDS = ("parent_table_name", "parent_primary_key", "child_table_name", "child_foreign_key")
FIRST = """# Draft from SDV metadata. Before you run it, write the domain files (possible values of attributes, from
# public knowledge and never from the data), set the bounds max_degree and the budget, and check the protected unit with
# `dpscale plan`."""
Content = Mapping[str, Any]


def read_metadata(path: str | Path) -> dict[str, Any]:
    """Return the content of a metadata file; raise JobError if it does not describe several tables."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise JobError("metadata", f"cannot read {path} ({error.strerror})", "a JSON file", "check the path") from None
    except ValueError:
        raise JobError("metadata", f"{path} is not JSON", "metadata saved by SDV", "save it again") from None
    _check(content)
    return content  # type: ignore[no-any-return]


def _check(content: Any) -> None:
    whole = isinstance(content, dict) and isinstance(content.get("tables"), dict) and content["tables"]
    if not whole or content.get("METADATA_SPEC_VERSION") not in VERSIONS:
        raise JobError("metadata", "no tables, or an unknown version", f"SDV's metadata of {' or '.join(VERSIONS)}",
                       "save it with a newer SDV")  # fmt: skip
    for name in content["tables"]:
        if not NAME.fullmatch(name):
            raise JobError("metadata.tables", f"the name {name!r}", "letters, digits, _ and -", "rename the table")
    for one in content.get("relationships", []):
        if any(not isinstance(one.get(end), str) for end in ENDS):
            raise JobError("metadata.relationships", "a key of several columns, or a missing end", ", ".join(ENDS),
                           "fix it, or remove it")  # fmt: skip
        if left := next((one[end] for end in ENDS[::2] if one[end] not in content["tables"]), None):
            raise JobError("metadata.relationships", f"a table {left!r}", ", ".join(content["tables"]), "fix it")


def draft(content: Content, data: str | Path) -> str:
    """Return a job file with comments on the remaining decisions."""
    pairs = _tables_of_pairs(content)
    tables = {name: _table(name, one, data) for name, one in content["tables"].items() if name not in pairs}
    job = {"tables": tables, "link": _links(content, pairs, data),
           "privacy": {"epsilon": 1.0, "delta": 1e-9, "ledger": "ledger.sqlite"}}  # fmt: skip
    return "\n".join([FIRST, *_notes(content, pairs), "", tomli_w.dumps(job)])


def _relations(content: Content, child: str) -> list[dict[str, str]]:
    return [one for one in content.get("relationships", []) if one["child_table_name"] == child]


def _attributes(content: Content, name: str) -> dict[str, str]:
    """Return the columns that can be attributes, with their sdtypes; keys and identifying columns are excluded."""
    table = content["tables"][name]
    keys = {table.get("primary_key"), *(one["child_foreign_key"] for one in _relations(content, name))}
    columns = {column: str(sdtype.get("sdtype")) for column, sdtype in table.get("columns", {}).items()}
    return {column: kind for column, kind in columns.items() if column not in keys and kind in KINDS}


def _tables_of_pairs(content: Content) -> list[str]:
    """Return the tables with two parents, no attributes and no children."""
    parents = {one["parent_table_name"] for one in content.get("relationships", [])}
    bare = [name for name in content["tables"] if name not in parents and not _attributes(content, name)]
    return [name for name in bare if len(_relations(content, name)) == 2]


def _table(name: str, one: Content, data: str | Path) -> dict[str, Any]:
    key = {"key": one["primary_key"]} if isinstance(one.get("primary_key"), str) else {}
    return {"path": _place(data, name), "domain": f"{name}.domain.toml", **key}


def _place(data: str | Path, name: str) -> str:
    """Return the folder or file named after a table, whichever exists; by default the CSV file that SDV writes."""
    found = (Path(data) / f"{name}{ending}" for ending in ("", ".parquet", ".csv"))
    return str(next((path for path in found if path.exists()), Path(data) / f"{name}.csv"))


def _links(content: Content, pairs: list[str], data: str | Path) -> list[dict[str, Any]]:
    links: list[dict[str, Any]] = []
    for name in content["tables"]:
        found = _relations(content, name)
        if name in pairs:
            one, other = found
            links.append({"name": name, "kind": "many-to-many", "parent": one["parent_table_name"],
                          "child": other["parent_table_name"], "via": _place(data, name), "max_degree": 10,
                          "parent_key": one["child_foreign_key"], "child_key": other["child_foreign_key"]})  # fmt: skip
            continue
        for one in found:
            called = name if len(found) == 1 else re.sub(r"[^\w-]", "_", f"{name}-{one['child_foreign_key']}")[:64]
            links.append({"name": called, "kind": "one-to-many", "parent": one["parent_table_name"], "child": name,
                          "child_key": one["child_foreign_key"], "max_degree": 10})  # fmt: skip
    return links


def _notes(content: Content, pairs: list[str]) -> list[str]:
    """Return comments on the tables that may be protected, and on the content of every domain file."""
    children = {one["child_table_name"] for one in content.get("relationships", [])}
    roots = [name for name in content["tables"] if name not in children]
    choice = f"# Only one of {', '.join(roots)} can be the protected table: set public = true for public tables."
    notes = [choice] if len(roots) > 1 else []
    for name in (name for name in content["tables"] if name not in pairs):
        sdtype = ", ".join(f"{column} ({kind})" for column, kind in _attributes(content, name).items())
        notes.append(f"# {name}.domain.toml: {sdtype or 'no attribute found, but one is required'}")
    return notes


def metadata(job: CompositeJob) -> dict[str, Any]:
    """Return SDV metadata of a job's output: attributes and keys. Other columns of public tables are unknown here."""
    if several := next((name for name in job.tables if len(job.key(name)) > 1), None):
        raise JobError(f"tables.{several}.key", "several columns", "a key of one column, as required by SDV",
                       "omit the table from the metadata")  # fmt: skip
    tables = {name: _table_metadata(job, name) for name in job.tables}
    relationships = []
    for link in job.link:
        for parent, column in zip((link.parent, link.child), _columns(job, link), strict=False):
            child = link.child if link.via is None else link.called
            tables.setdefault(child, {"columns": {}})["columns"][column] = {"sdtype": "id"}
            relationships.append(dict(zip(ENDS, (parent, job.key(parent)[0], child, column), strict=True)))
    return {"METADATA_SPEC_VERSION": "V1", "tables": tables, "relationships": relationships}


def _columns(job: CompositeJob, link: LinkSection) -> list[str]:
    """Return the columns with keys of the parent and, in a table of pairs, of the child."""
    first, second = job.ends(link)
    return [first[0]] if link.via is None else [first[0], second[0]]


def _table_metadata(job: CompositeJob, name: str) -> dict[str, Any]:
    key, domain = job.key(name), job.domains[name]
    columns = {**{one: {"sdtype": "id"} for one in key}, **{one: _sdtype(domain[one]) for one in domain.names}}
    return {**({"primary_key": key[0]} if key else {}), "columns": columns}


def _sdtype(attribute: Attribute) -> dict[str, str]:
    sdtype = {"boolean": "boolean", "date": "datetime"}.get(attribute.kind, "categorical")
    return {"sdtype": "numerical" if attribute.kind in NUMBERS else sdtype}
