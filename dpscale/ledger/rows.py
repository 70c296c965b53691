"""Rows of the ledger: SQL that reads accounts and inserts entries, the job of a release, and consistency checks.

A row of a release names its job by a digest, its run directory and its files; by them a job that was released before
is recognised. The caller manages the transaction.
"""

from __future__ import annotations

import difflib
import fnmatch
import os
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from dpscale.base.errors import BudgetError
from dpscale.ledger import chain
from dpscale.ledger.account import Account, Cap, Periods, Row, canonical, cost_from_text, periods_to_text
from dpscale.ledger.schema import ROWS, STATES, VERSION
from dpscale.ledger.store import Database
from dpscale.privacy.protection import Protection

TERMS = ("currency", "unit", "relation", "bound", "unit_table", "span", "period", "analyst")
CAPS = f"""SELECT caps.*, {", ".join(TERMS)} FROM caps LEFT JOIN terms ON terms.cap = caps.seq
    WHERE caps.dataset = ? ORDER BY caps.seq"""
RELEASES = """SELECT releases.*, unit, relation, bound, public, unit_table, span, periods, job, run_dir, files,
    analyst FROM releases
    LEFT JOIN protections ON protections.release = releases.release WHERE dataset = ? ORDER BY releases.seq"""
ABSENT = {"rounds": {"part": ""}}  # columns that rows of earlier versions lack, and are not null
SLIPS = 2  # letters by which near names of datasets differ at most
DEFAULT = ("./", "../")  # beginnings of the names of datasets for which the job states none


@dataclass(frozen=True)
class JobEntry:
    """Job of a release.

    Attributes
    ----------
    digest : str
        Version of the digest, a colon, and the digest of the normalised job; empty if it is not known.
    run : str
        Release id of the run, with which the ids of its parts begin.
    run_dir : str
        Path of the run directory.
    files : str
        Absolute path of the data, by which a default name of the dataset is recognised; empty for a stated name.
    fresh : bool
        Whether the run is a new release of a job that was released before.
    """

    digest: str = ""
    run: str = ""
    run_dir: str = ""
    files: str = ""
    fresh: bool = False

    def is_of(self, release: str) -> bool:
        """Return whether a release is the run, or a part of it."""
        return release == self.run or release.startswith(f"{self.run}-")


NO_JOB = JobEntry()


def is_there(files: str) -> bool:
    """Return whether files exist, or their folder for a pattern; addresses are taken as existing."""
    if "://" in files:
        return True
    fixed = files
    while any(letter in fixed for letter in "*?["):
        fixed = os.path.dirname(fixed)
    return os.path.lexists(fixed)


def repeated_release(release: str, reserved_at: str, run_dir: str) -> BudgetError:
    """Return the refusal of a second release of the same job and dataset."""
    where = f" in {run_dir}" if run_dir else ""
    got = f"this job was charged on {reserved_at[:10]} by release {release!r}{where}; nothing read or spent"
    return BudgetError("run", got, "one release of a job and a dataset", "open that run directory, or start a new"
                       " release with its own charge by --fresh (Python: fresh=True)")  # fmt: skip


@dataclass(frozen=True)
class History:
    """Complete content of a ledger.

    Attributes
    ----------
    name : str
        Identifier of the ledger, drawn at random for a new one.
    tables : mapping of str to sequence of Row
        Rows of every table, in order.
    """

    name: str = field(default_factory=lambda: secrets.token_hex(16))
    tables: Mapping[str, Sequence[Row]] = field(default_factory=dict)


def now() -> str:
    """Return the current time: UTC, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def rows(db: Database, query: str, values: tuple[str, ...] = ()) -> list[Row]:
    """Return the rows of a query as dictionaries by column name."""
    cursor = db.execute(query, values)
    return [dict(zip([column[0] for column in cursor.description], row, strict=True)) for row in cursor]


def names(db: Database) -> list[str]:
    """Return the datasets' names as they were written."""
    return [name for (name,) in db.execute("SELECT dataset FROM releases UNION SELECT dataset FROM caps")]


def account(db: Database, dataset: str) -> Account:
    """Return the account of a canonical dataset name.

    Older versions wrote names in other Unicode forms; their rows are included.
    """
    written_names = [name for name in names(db) if canonical(name) == dataset]
    caps = sorted((row for name in written_names for row in rows(db, CAPS, (name,))), key=_number)
    releases = sorted((row for name in written_names for row in rows(db, RELEASES, (name,))), key=_number)
    total = [row for row in caps if not row["period"] and not row["analyst"]]
    personal = [row for row in caps if row["analyst"]]
    return Account(
        name=dataset, caps=total, releases=releases, renewing=[row for row in caps if row["period"]], personal=personal
    )


def recorded_name(db: Database, dataset: str, job: JobEntry, release: str) -> str:
    """Return the name under which the ledger has the data of a default name; the name itself if it has none.

    A default name is a path that dpscale derives if the job states no dataset; it changes with the folders. The
    recorded one is the name of the same release; the path of the files, which older versions used as a name; the name
    of a release of these files; or that of a release of the same job whose files no longer exist, because they moved.
    """
    if not dataset.startswith(DEFAULT):
        return dataset
    if same := db.execute("SELECT dataset FROM releases WHERE release = ?", (release,)).fetchone():
        return canonical(same[0])
    known = {canonical(name) for name in names(db)}
    if dataset in known or not job.files:
        return dataset
    if canonical(job.files) in known:
        return canonical(job.files)
    query = """SELECT dataset, job, files FROM releases JOIN protections ON protections.release = releases.release
        WHERE files <> '' ORDER BY releases.seq"""
    recorded = [(canonical(name), digest, files) for name, digest, files in db.execute(query).fetchall()]
    same_files = [name for name, _, files in recorded if files == job.files]
    moved = [name for name, digest, files in recorded
             if digest == job.digest and name.startswith(DEFAULT) and not is_there(files)]  # fmt: skip
    return next(iter([*same_files, *moved]), dataset)


def earlier_release(db: Database, dataset: str, job: JobEntry) -> Row | None:
    """Return the first release of the same job and dataset by another run; None if there is none."""
    if not job.digest:
        return None
    earlier = [row for row in account(db, dataset).releases
               if row["job"] == job.digest and not job.is_of(row["release"])]  # fmt: skip
    return earlier[0] if earlier else None


def _number(row: Row) -> int:
    return int(row["seq"])


def check_known(db: Database, dataset: str, files: str = "") -> None:
    """Raise BudgetError if the name, or the path of the files, is new and similar to the name of a capped dataset.

    Without this check, a typing error would bypass the cap.
    """
    capped = {canonical(name) for (name,) in db.execute("SELECT DISTINCT dataset FROM caps")}
    if near := known_near(db, dataset, capped) or (files and known_near(db, canonical(files), capped)):
        raise BudgetError(
            "privacy.dataset",
            f"{dataset!r}, which is new and similar to {near!r}, which has a cap",
            "a consistent dataset name",
            f"write {near!r}, or set a cap for this name too",
        )


def known_near(db: Database, dataset: str, others: set[str] | None = None) -> str | None:
    """Return a dataset, among `others` or all, with a name similar to `dataset`; None if there is none.

    None too if `dataset` is itself on the ledger.

    A new name that is similar to a known one may be a mistake, which would begin a new budget.
    """
    known = {canonical(name) for name in names(db)}
    if dataset in known:
        return None
    candidates = sorted(known if others is None else others)
    return next((name for name in candidates if _near(name, dataset)), None)


def _folded(name: str) -> str:
    return "".join(letter for letter in name.casefold() if letter.isalnum())


def _near(known: str, new: str) -> bool:
    """Return whether names differ by at most two letters and in no digit (2025 and 2026 are two datasets).

    Case and signs do not count. A new name with a slash must be equal otherwise. Two paths are also near if one may
    contain the files of the other.
    """
    if _is_path(known) and _is_path(new) and (_covers(known, new) or _covers(new, known)):
        return True
    known, new, slips = _folded(known), _folded(new), 0 if "/" in new else SLIPS
    if _digits(known) != _digits(new):
        return False
    # the ratio of two names of n letters with k different ones is 1 - k / n
    least_ratio = 1 - slips / max(len(known), len(new), 2 * SLIPS)
    return difflib.SequenceMatcher(None, known, new, autojunk=False).ratio() >= least_ratio


def _is_path(name: str) -> bool:
    """Return whether a name is a path; relative ones start at one folder."""
    return name.startswith(DEFAULT) or os.path.isabs(name)


def _covers(path: str, other: str) -> bool:
    """Return whether a path, folder or glob contains or matches `other`, or both are globs of one folder."""
    before_glob, other_before_glob = (re.split(r"[*?\[]", text, maxsplit=1)[0] for text in (path, other))
    if before_glob == path:  # no glob
        return other == path or other.startswith(path.rstrip("/") + "/")
    are_globs_of_one_folder = before_glob == other_before_glob and other_before_glob != other
    return fnmatch.fnmatchcase(other, path) or are_globs_of_one_folder


def _digits(name: str) -> str:
    return "".join(letter for letter in name if letter.isdigit())


def cap_row(cap: Cap, protects: Protection | None, period: str = "", analyst: str = "") -> Row:
    """Return the row of a cap set now, with its currency, privacy unit, the period by which it renews, and analyst.

    The columns of the privacy unit are NULL if the cap states none.
    """
    unit_values = (None,) * 5
    if protects:
        unit_values = (protects.unit, protects.relation, protects.bound, protects.table, protects.span)  # type: ignore[assignment]
    values = cap.epsilon, cap.delta, now(), cap.currency, *unit_values, period, analyst
    return dict(zip(("epsilon", "delta", "set_at", *TERMS), values, strict=True))


def insert_cap(db: Database, dataset: str, row: Row) -> None:
    """Insert a cap with its link in the hash chain; columns of later versions are in the table `terms`."""
    chain.append(db, dataset, "caps", {**row, "dataset": dataset})
    values = dataset, row["epsilon"], row["delta"], row["set_at"]
    db.execute("INSERT INTO caps (dataset, epsilon, delta, set_at) VALUES (?, ?, ?, ?)", values)
    (cap,) = db.execute("SELECT max(seq) FROM caps").fetchone()
    _insert(db, "terms", {"cap": cap, **{name: row[name] for name in TERMS}})


def insert_release(
    db: Database,
    entry: tuple[str, str, str, str],
    figures: tuple[float | None, float | None],
    protects: Protection,
    public: bool,
    facts: Mapping[str, str],
    periods: Periods = (),
    job: JobEntry = NO_JOB,
    analyst: str = "",
) -> None:
    """Insert a reserved release with its link in the hash chain.

    Parameters
    ----------
    entry : tuple of str
        Release, dataset, plan digest and cost.
    figures : tuple of float or None
        Epsilon and delta of the job.
    protects : Protection
        Privacy unit.
    public : bool
        Whether anyone can compute the noise.
    facts : mapping of str to str
        Hashes of the release's files that an auditor may see, for the hash chain.
    periods : tuple of str
        Labels of the periods that the release reads; every period if empty.
    job : JobEntry
        Job of the release, its run directory and its files.
    analyst : str
        Who asks for the release.
    """
    unit_values = {"unit": protects.unit, "relation": protects.relation, "bound": protects.bound, "public": int(public),
            "unit_table": protects.table, "span": protects.span, "periods": periods_to_text(periods),
            "job": job.digest, "run_dir": job.run_dir, "files": job.files, "analyst": analyst}  # fmt: skip
    row = dict(zip(("release", "dataset", "plan_digest", "cost", "epsilon", "delta"), (*entry, *figures), strict=True))
    row["reserved_at"] = now()
    chain.append(db, entry[1], "releases", {**row, **unit_values}, facts)
    _insert(db, "protections", {"release": entry[0], **unit_values})
    _insert(db, "releases", {**row, "state": "reserved"})


def decision(db: Database, release: str, part: str, number: int) -> str | None:
    """Return the digest of a decision of a part of a release; None if it is not recorded."""
    query = "SELECT digest FROM rounds WHERE release = ? AND part = ? AND round = ?"
    row = db.execute(query, (release, part, number)).fetchone()
    return None if row is None else str(row[0])


def insert_round(db: Database, release: str, part: str, number: int, digest: str) -> None:
    """Insert a decision of a part of a release; the ledger refuses it unless the release is reserved."""
    row = {"release": release, "part": part, "round": number, "digest": digest}
    if known := db.execute("SELECT dataset FROM releases WHERE release = ?", (release,)).fetchone():
        chain.append(db, known[0], "rounds", row)
    _insert(db, "rounds", row)


def _insert(db: Database, table: str, row: Row) -> None:
    marks = ", ".join("?" * len(row))
    db.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})", tuple(row.values()))


def identity(db: Database) -> str:
    """Return the ledger's identifier."""
    return str(db.execute("SELECT id FROM identity").fetchone()[0])


def schema_version(db: Database) -> int:
    """Return the version that is recorded last; 0 if it is not a number."""
    version = db.execute("SELECT max(version) FROM schema_version").fetchone()[0]
    return version if isinstance(version, int) else 0


def insert_version(db: Database, version: int = VERSION) -> None:
    """Record a version of the schema."""
    db.execute("INSERT INTO schema_version (version, created_at) VALUES (?, ?)", (version, now()))


def history(db: Database, tables: Sequence[str] = ROWS) -> History:
    """Return all rows of the ledger, or of the tables that its version has."""
    return History(identity(db), {table: rows(db, f"SELECT * FROM {table} ORDER BY seq") for table in tables})


def insert_history(db: Database, history: History, version: int = VERSION) -> None:
    """Write a history to a new ledger that has its tables but not yet its triggers."""
    insert_version(db, version)
    db.execute("INSERT INTO identity (id) VALUES (?)", (history.name,))
    for table, entries in history.tables.items():
        for row in entries:
            _insert(db, table, ABSENT.get(table, {}) | row)


def closed(db: Database) -> tuple[str, str] | None:
    """Return the location of a closed ledger's history and the time of its closing; None if the ledger is open."""
    row = db.execute("SELECT moved_to, closed_at FROM closed").fetchone()
    return None if row is None else (str(row[0]), str(row[1]))


def moved_to(db: Database) -> str | None:
    """Return the location of a closed ledger's history; None if the ledger is open."""
    return (closed(db) or (None,))[0]


def insert_closed(db: Database, target: str, at: str = "") -> None:
    """Close the ledger permanently, now or at a recorded time."""
    db.execute("INSERT INTO closed (moved_to, closed_at) VALUES (?, ?)", (target, at or now()))


def findings(tables: Mapping[str, Sequence[Row]], last: dict[str, int]) -> list[str]:
    """Return the faults of the rows: gaps in their numbers (removed rows), invalid costs and invalid states.

    `last` has the number of the last row of each table, which the ledger counts independently of the rows.
    """
    faults = []
    for table in ROWS:
        if [row["seq"] for row in tables[table]] != list(range(1, last.get(table, 0) + 1)):
            faults.append(f"the rows of {table} are not numbered as they were written")
    # rows of other tables whose release was removed
    known = {row["release"] for row in tables["releases"]}
    for table, what in (("rounds", "has decided rounds"), ("protections", "protects somebody")):
        strangers = sorted({row["release"] for row in tables[table]} - known)
        faults += [f"release {name!r} {what} and is not there" for name in strangers]
    faults += [f"release {row['release']!r} {fault}" for row in tables["releases"] if (fault := _fault(row))]
    return faults + list(chain.findings(tables))


def _fault(row: Row) -> str:
    """Return what is wrong with the row of a release, as the end of a sentence; empty if nothing is.

    The times of a release (reserved, committed, released) must be set up to its state and no further.
    """
    try:
        is_cost = bool(cost_from_text(row["cost"]))  # a cost of 0 is false
    except BudgetError:
        is_cost = False
    times = [row[f"{state}_at"] is not None for state in STATES]
    if not is_cost:
        return "has no valid cost"
    if not re.fullmatch("[0-9a-f]{64}", str(row["plan_digest"])):
        return "has no valid plan digest"
    if row["state"] not in STATES or times != [place <= STATES.index(row["state"]) for place in range(3)]:
        return "has times that do not fit its state"
    return ""
