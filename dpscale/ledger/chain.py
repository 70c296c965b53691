"""Hash chain over the entries of a dataset: caps, releases and rounds, in the order in which they were written.

A link is SHA-256 over the previous link and its entry, so the last link (the head) identifies the whole history: an
entry cannot be changed, removed or inserted without changing the head. Every dataset has its own chain, so that a chain
can be shown without the entries of other datasets. Values that an auditor must not see (the dataset's name, which may
be a path, and digests) enter as a hash with a random salt. The state of a release is not part of its link, because it
changes.

A row of the table `links` stores a link: the dataset, its `place` in the chain (from 1), the table (`entry`) and the
`number` of its entry, the facts, the salt and the digest.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpscale.base.errors import BudgetError
from dpscale.ledger.account import canonical
from dpscale.ledger.store import Database

Row = dict[str, Any]
Tables = Mapping[str, Sequence[Row]]
CONDITION = "condition"  # fact of a release whose guarantee holds between some databases only
FLOATS = ("epsilon", "delta")
CAP = ("epsilon", "delta", "set_at", "currency", "unit", "unit_table", "relation", "bound")
RELEASE = ("release", "cost", "epsilon", "delta", "reserved_at", "unit", "unit_table", "relation", "bound", "public")
# hashed only if they are set
NEWER = {"caps": ("span", "period"), "releases": ("span", "periods"), "rounds": ("part",)}
UNSET = (None, "", "[]")
SHOWN = {"caps": CAP, "releases": RELEASE, "rounds": ("release", "round")}
HIDDEN = {"caps": ("dataset",), "releases": ("dataset", "plan_digest"), "rounds": ("digest",)}
# hashed only if they are set
NEWER_HIDDEN = {"caps": ("analyst",), "releases": ("job", "run_dir", "files", "analyst"), "rounds": ()}


@dataclass(frozen=True)
class Link:
    """Entry in the form that the chain hashes.

    Attributes
    ----------
    entry : str
        Table of the entry: "caps", "releases" or "rounds".
    shown : Row
        Columns that an auditor may see.
    hidden : str
        Salted hash of the other columns.
    facts : mapping of str to str
        Hashes of the release's own files.
    key : str
        Key required to recompute the hash of `facts`.
    """

    entry: str
    shown: Row
    hidden: str
    facts: Mapping[str, str]
    key: str

    @property
    def sealed(self) -> str:
        """Hash with which the facts enter the chain."""
        return sha256([self.key, dict(self.facts)])

    def digest(self, before: str) -> str:
        """Return the hash of this link after the link `before`, which is empty at the start of a chain."""
        return sha256([before, self.entry, self.shown, self.hidden, self.sealed])


def sha256(content: object) -> str:
    """Return the SHA-256, in hexadecimal, of `content` as canonical JSON."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def link_of(entry: str, row: Row, facts: Mapping[str, str], salt: str) -> Link:
    """Return the link of a row, which contains the columns of its table and of its terms or protection.

    SHOWN and HIDDEN list the columns of an entry that a link states and hashes. Columns of later versions (NEWER) enter
    only if they are set, so that links of older entries keep their digests.
    """
    shown = {name: float(row[name]) if name in FLOATS and row.get(name) is not None else row.get(name)
             for name in SHOWN[entry]}  # fmt: skip
    shown |= {name: row[name] for name in NEWER[entry] if row.get(name) not in UNSET}
    hidden = {name: canonical(row[name]) if name == "dataset" else row[name] for name in HIDDEN[entry]}
    hidden |= {name: row[name] for name in NEWER_HIDDEN[entry] if row.get(name) not in UNSET}
    return Link(entry=entry, shown=shown, hidden=sha256([salt, hidden]), facts=facts, key=sha256([salt, "facts"]))


def head(db: Database, dataset: str) -> tuple[int, str]:
    """Return the number of links of a dataset's chain and the last link; (0, "") if there is none."""
    query = "SELECT place, digest FROM links WHERE dataset = ? ORDER BY place DESC LIMIT 1"
    row = db.execute(query, (dataset,)).fetchone()
    return (int(row[0]), str(row[1])) if row else (0, "")


def digest_of(db: Database, release: str) -> str:
    """Return the link of a release. Raises BudgetError if the release is not on the ledger."""
    query = """SELECT links.digest FROM links JOIN releases ON links.number = releases.seq
        WHERE links.entry = 'releases' AND releases.release = ?"""
    if (row := db.execute(query, (release,)).fetchone()) is None:
        raise BudgetError("release", f"{release!r} is not on the ledger", "a release that was charged",
                          "charge it first")  # fmt: skip
    return str(row[0])


def conditions(db: Database, dataset: str) -> list[str]:
    """Return the conditions of the guarantees of a dataset's releases, each once: facts of their links."""
    rows = db.execute("SELECT facts FROM links WHERE dataset = ? ORDER BY place", (canonical(dataset),)).fetchall()
    stated = (json.loads(facts).get(CONDITION, "") for (facts,) in rows)
    return [condition.removeprefix("; ") for condition in dict.fromkeys(stated) if condition]


def contains(db: Database, digest: str) -> bool:
    """Return whether a link is on the ledger."""
    return db.execute("SELECT 1 FROM links WHERE digest = ?", (digest,)).fetchone() is not None


def heads(db: Database) -> dict[str, int]:
    """Return every link of every chain, by its digest, with the number of later links of its chain."""
    links = db.execute("SELECT digest, dataset, place FROM links").fetchall()
    last_places = dict[str, int]()
    for _, dataset, place in links:
        last_places[dataset] = max(place, last_places.get(dataset, 0))
    return {digest: last_places[dataset] - place for digest, dataset, place in links}


def append(db: Database, dataset: str, entry: str, row: Row, facts: Mapping[str, str] | None = None) -> str:
    """Append the link of the entry about to be inserted; `row` as in `link_of`. Returns its digest."""
    return _insert(db, canonical(dataset), entry, _next(db, entry), row, facts or {})


def _next(db: Database, table: str) -> int:
    return int(db.execute(f"SELECT coalesce(max(seq), 0) + 1 FROM {table}").fetchone()[0])


def _insert(db: Database, dataset: str, entry: str, number: int, row: Row, facts: Mapping[str, str]) -> str:
    """Append the link of the entry with a number in its table, and return the digest of the link.

    Its own `seq` is explicit, because a server numbers no rows before its triggers exist.
    """
    (place, before), salt = head(db, dataset), secrets.token_hex(32)
    digest = link_of(entry, row, facts, salt).digest(before)
    db.execute(
        "INSERT INTO links (seq, dataset, place, entry, number, facts, salt, digest) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (_next(db, "links"), dataset, place + 1, entry, number, json.dumps(dict(facts), sort_keys=True), salt, digest),
    )
    return digest


def append_older(db: Database, tables: Tables) -> None:
    """Link the entries of a ledger without a chain: caps, releases, then rounds, each in their order."""
    for (entry, number), row in _entries(tables).items():
        _insert(db, row["of"], entry, number, row, {})


def chain_of(tables: Tables, dataset: str) -> list[tuple[Link, str]]:
    """Return the links of a dataset's chain in order, each with its stored digest."""
    entries = _entries(tables)
    return [(_stored(link, entries), link["digest"]) for link in tables["links"] if link["dataset"] == dataset]


def _stored(link: Row, entries: Mapping[tuple[str, int], Row]) -> Link:
    return link_of(link["entry"], entries[link["entry"], link["number"]], json.loads(link["facts"]), link["salt"])


def _entries(tables: Tables) -> dict[tuple[str, int], Row]:
    """Return every row that has a link, by table and number (`seq`), with the dataset's canonical name as column `of`.

    Columns that a later version stores in another table are included: those of `terms` in caps, of `protections` in
    releases. A row without the column `dataset` belongs to the dataset of its release.
    """
    terms = {row["cap"]: row for row in tables["terms"]}
    protections = {row["release"]: row for row in tables["protections"]}
    dataset_of = {row["release"]: row["dataset"] for row in tables["releases"]}
    further_columns = {
        "caps": lambda row: terms.get(row["seq"], {}),
        "releases": lambda row: protections.get(row["release"], {}),
        "rounds": lambda row: {},
    }
    entries = {}
    for table, columns_of in further_columns.items():
        for row in tables[table]:
            name = canonical(row.get("dataset") or dataset_of.get(row["release"], ""))
            entries[table, row["seq"]] = {**columns_of(row), **row, "of": name}
    return entries


def findings(tables: Tables) -> Iterator[str]:
    """Yield the faults of the chains: links that do not follow their predecessor and entries without a link.

    An entry is removed from `entries` when its link is seen, so that those that remain have none.
    """
    entries, last = _entries(tables), dict[str, tuple[int, str]]()  # place and digest of each dataset's last link
    for link in tables["links"]:
        place, before = last.get(link["dataset"], (0, ""))
        key = link["entry"], link["number"]
        # a link has one entry, and an entry one link
        entry = entries.pop(key, None)
        if entry is None or entry["of"] != link["dataset"] or link["place"] != place + 1:
            yield f"link {link['seq']} of the hash chain has no entry at its place"
            continue
        if link_of(link["entry"], entry, json.loads(link["facts"]), link["salt"]).digest(before) != link["digest"]:
            yield f"entry {link['number']} of {link['entry']} is not the one that the hash chain has"
        last[link["dataset"]] = link["place"], link["digest"]
    for table, number in entries:
        yield f"entry {number} of {table} is not in the hash chain"
