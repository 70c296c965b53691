"""Multi-table metadata of SDV (Synthetic Data Vault): conversion to a draft of a job, and from a job.

https://docs.sdv.dev/sdv/concepts/metadata/metadata-json: `tables` of columns with an `sdtype` and a `primary_key`, and
`relationships` between a parent's key and a child's columns; a key of several columns is a list. The foreign key of a
one-to-one link is an alternate key of the child. Public tables, bounds and policies have no place there. No data are
read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from dpscale.base.display import nearest
from dpscale.base.errors import JobError
from dpscale.domain.attribute import Attribute
from dpscale.job.job import Job
from dpscale.job.sections import LinkSection

VERSIONS = ("V1", "V2", "MULTI_TABLE_V1")
KINDS = ("categorical", "boolean", "numerical", "datetime")
NUMBERS = ("integer", "bins")
NAME = re.compile(r"[\w-]{1,64}")
ENDS = ("parent_table_name", "parent_primary_key", "child_table_name", "child_foreign_key")
FIRST = """# Draft from SDV metadata. Before you run it, write the domain files (possible values of attributes, from
# public knowledge and never from the data), set the bounds max_degree and the budget, declare the public_attributes of
# tables whose rows belong to no unit, and check the protected unit with `dpscale plan`."""
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
    """Raise JobError for metadata of another version, with invalid names of tables, or with incomplete relations.

    ENDS are the keys of a relationship: table and key of the parent, table and key of the child.
    """
    has_tables = isinstance(content, dict) and isinstance(content.get("tables"), dict) and content["tables"]
    if not has_tables or content.get("METADATA_SPEC_VERSION") not in VERSIONS:
        raise JobError("metadata", "no tables, or an unknown version", f"SDV's metadata of {' or '.join(VERSIONS)}",
                       "save it with a newer SDV")  # fmt: skip
    for name in content["tables"]:
        if not NAME.fullmatch(name):
            raise JobError("metadata.tables", f"the name {name!r}", "letters, digits, _ and -", "rename the table")
    tables, keys = ENDS[::2], ENDS[1::2]  # the entries of a relationship, for the parent and for the child
    for relationship in content.get("relationships", []):
        of_parent, of_child = (columns_of(relationship.get(key)) for key in keys)
        named = all(isinstance(relationship.get(table), str) for table in tables)
        # both ends must name a table and as many columns
        if not named or not of_parent or len(of_parent) != len(of_child):
            raise JobError("metadata.relationships", "a missing end, or a key with several columns at one end only",
                           ", ".join(ENDS), "fix it, or remove it")  # fmt: skip
        for table in tables:
            if relationship[table] not in content["tables"]:
                raise JobError("metadata.relationships", f"a table {relationship[table]!r}",
                               ", ".join(content["tables"]), "fix it")  # fmt: skip


def columns_of(key: Any) -> tuple[str, ...]:
    """Return the columns of a key, a name or a list of names; empty for anything else."""
    columns = tuple(key) if isinstance(key, list) else (key,)
    return columns if all(isinstance(column, str) for column in columns) else ()


def _key(columns: Sequence[str]) -> str | list[str]:
    return columns[0] if len(columns) == 1 else list(columns)


def draft(content: Content, data: str | Path, public: Sequence[str] = (), unit: str | None = None) -> str:
    """Return a job file with comments on the remaining decisions.

    Parameters
    ----------
    content : mapping
        Content of a metadata file (`read_metadata`).
    data : path
        Folder of the tables' files.
    public : sequence of str
        Public tables.
    unit : str, optional
        The protected table.

    Returns
    -------
    str

    Raises
    ------
    JobError
        If a named table is not in the metadata.
    """
    # tables with two parents, no attributes and no children are pairs of a link
    parents = {relation["parent_table_name"] for relation in content.get("relationships", [])}
    bare = [name for name in content["tables"] if name not in parents and not _attributes(content, name)]
    pairs = [name for name in bare if len(_relations(content, name)) == 2]
    others = [name for name in content["tables"] if name not in pairs]
    for name in public:
        if name not in others:
            raise JobError("--public", repr(name), ", ".join(others), nearest(name, others))
    if unit is not None and unit not in others:
        raise JobError("--unit", repr(unit), ", ".join(others), nearest(unit, others))

    tables = {name: _table(name, content["tables"][name], data, name in public) for name in others}
    named = {} if unit is None else {"unit": unit}
    job = {"tables": tables, "link": _links(content, pairs, data, public, unit),
           "privacy": {"epsilon": 1.0, "delta": 1e-9, "ledger": "ledger.sqlite", **named}}  # fmt: skip
    return "\n".join([FIRST, *_notes(content, pairs, public, unit), "", tomli_w.dumps(job)])


def _relations(content: Content, child: str) -> list[dict[str, Any]]:
    return [relation for relation in content.get("relationships", []) if relation["child_table_name"] == child]


def _attributes(content: Content, name: str) -> dict[str, str]:
    """Return the columns that can be attributes, with their sdtypes; keys and identifying columns are excluded."""
    table = content["tables"][name]
    keys = {*columns_of(table.get("primary_key"))}
    keys |= {column for relation in _relations(content, name) for column in columns_of(relation["child_foreign_key"])}
    columns = {column: str(sdtype.get("sdtype")) for column, sdtype in table.get("columns", {}).items()}
    return {column: kind for column, kind in columns.items() if column not in keys and kind in KINDS}


def _table(name: str, described: Content, data: str | Path, public: bool) -> dict[str, Any]:
    columns = columns_of(described.get("primary_key"))
    key = {"key": _key(columns)} if columns else {}
    return {"path": _place(data, name), "domain": f"{name}.domain.toml", **key} | ({"public": True} if public else {})


def _place(data: str | Path, name: str) -> str:
    """Return the folder or file named after a table, whichever exists; by default the CSV file that SDV writes."""
    found = (Path(data) / f"{name}{ending}" for ending in ("", ".parquet", ".csv"))
    return str(next((path for path in found if path.exists()), Path(data) / f"{name}.csv"))


def _links(
    content: Content, pairs: list[str], data: str | Path, public: Sequence[str], unit: str | None
) -> list[dict[str, Any]]:
    """Return the links of a job: one for each table of pairs, which has two relationships, and one for each other.

    If there are only links by pairs, between private tables, each protects both ends.
    """
    links: list[dict[str, Any]] = []
    only_pairs = all(relation["child_table_name"] in pairs for relation in content.get("relationships", []))
    both = not public and unit is None and only_pairs
    for name in content["tables"]:
        relations = _relations(content, name)
        if name in pairs:
            links.append(_link_of_pairs(name, relations, data, public, unit) | ({"protects": "both"} if both else {}))
            continue
        for relation in relations:
            columns = columns_of(relation["child_foreign_key"])
            called = name if len(relations) == 1 else re.sub(r"[^\w-]", "_", "-".join((name, *columns)))[:64]
            links.append({"name": called, "parent": relation["parent_table_name"], "child": name,
                          "child_key": _key(columns), **_kind(content["tables"][name], columns, name in public),
                          **_self(relation)})  # fmt: skip
    return links


def _kind(table: Content, columns: tuple[str, ...], public: bool) -> dict[str, Any]:
    """Return the kind of a link: a foreign key that is a key of the child occurs once; public rows have no bound."""
    keys = [table.get("primary_key"), *(table.get("alternate_keys") or ())]
    single = columns in map(columns_of, keys)
    return {"kind": "one-to-one"} if single else {"kind": "one-to-many", **({} if public else {"max_degree": 10})}


def _self(relation: Content) -> dict[str, Any]:
    """Return the policy of a link within one table, in which some row has no parent."""
    return {"nulls": "keep"} if relation["parent_table_name"] == relation["child_table_name"] else {}


def _link_of_pairs(
    name: str, found: list[dict[str, Any]], data: str | Path, public: Sequence[str], unit: str | None
) -> dict[str, Any]:
    """Return the link of a table of pairs with the relationships `found`.

    Its parent is the table of the unit if that is an end, otherwise a private table. The bound of 10 is a proposal,
    which the user has to check.
    """
    ends = {relation["parent_table_name"]: relation for relation in found}
    private = [relation for relation in found if relation["parent_table_name"] not in public]
    to_parent = ends.get(unit or "") or (private or found)[0]
    to_child = next((relation for relation in found if relation is not to_parent), to_parent)
    return {"name": name, "kind": "many-to-many", "parent": to_parent["parent_table_name"],
            "child": to_child["parent_table_name"], "via": _place(data, name), "max_degree": 10,
            "parent_key": _key(columns_of(to_parent["child_foreign_key"])),
            "child_key": _key(columns_of(to_child["child_foreign_key"]))}  # fmt: skip


def _notes(content: Content, pairs: list[str], public: Sequence[str], unit: str | None) -> list[str]:
    """Return comments on the tables that may be protected, and on the content of every domain file.

    A table that is the child of no private table may be protected; several of them require a choice.
    """
    relations = content.get("relationships", [])
    children = {relation["child_table_name"] for relation in relations
                if relation["parent_table_name"] not in public and not _self(relation)}  # fmt: skip
    roots = [name for name in content["tables"] if name not in {*children, *pairs, *public}]
    choice = (f"# Only one of {', '.join(roots)} can be the protected table: set public = true for public tables, or"
              " privacy.unit for the protected one.")  # fmt: skip
    notes = [choice] if len(roots) > 1 and unit is None else []
    for name in (name for name in content["tables"] if name not in pairs):
        sdtype = ", ".join(f"{column} ({kind})" for column, kind in _attributes(content, name).items())
        notes.append(f"# {name}.domain.toml: {sdtype or 'no attribute found, but one is required'}")
    return notes


def metadata(job: Job) -> dict[str, Any]:
    """Return SDV metadata of a job's output: attributes and keys. Other columns of public tables are unknown here.

    A link has a relationship for its foreign key, and a link by a table of pairs one for each end; such a table has the
    name of the link.
    """
    tables = {name: _table_metadata(job, name) for name in job.tables}
    relationships = []
    for link in job.foreign_keys:
        child = link.child if link.via is None else link.called
        table, key = tables.setdefault(child, {"columns": {}}), () if link.via else job.key(child)
        # a foreign key has columns of the parent only
        for parent, columns in zip((link.parent, link.child), _columns(job, link), strict=False):
            table["columns"] |= {column: {"sdtype": "id"} for column in columns}
            ends = parent, _key(job.key(parent)), child, _key(columns)
            relationships.append(dict(zip(ENDS, ends, strict=True)))
            if link.kind == "one-to-one" and columns != key:
                table["alternate_keys"] = [*table.get("alternate_keys", ()), _key(columns)]
    return {"METADATA_SPEC_VERSION": "V1", "tables": tables, "relationships": relationships}


def _columns(job: Job, link: LinkSection) -> list[tuple[str, ...]]:
    """Return the columns with keys of the parent and, in a table of pairs, of the child."""
    first, second = job.ends(link)
    return [first] if link.via is None else [first, second]


def _table_metadata(job: Job, name: str) -> dict[str, Any]:
    key, domain = job.key(name), job.domains[name]
    columns = {column: {"sdtype": "id"} for column in key} | {axis: sdtype_of(domain[axis]) for axis in domain.names}
    return {**({"primary_key": _key(key)} if key else {}), "columns": columns}


def sdtype_of(attribute: Attribute) -> dict[str, str]:
    """Return the metadata of a column with the values of an attribute.

    Parameters
    ----------
    attribute : Attribute

    Returns
    -------
    dict
        `sdtype`: numerical, datetime, boolean or categorical.
    """
    sdtype = {"boolean": "boolean", "date": "datetime"}.get(attribute.kind, "categorical")
    return {"sdtype": "numerical" if attribute.kind in NUMBERS else sdtype}
