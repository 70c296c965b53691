"""Tables of a ledger, version by version, with triggers that make it append-only, in SQLite and in PostgreSQL.

Rows are never deleted or replaced, and a release only moves forward from reserved to committed to released. Version 2
added the ledger's identifier and the decisions of adaptive releases. Version 3 added the privacy unit of a release,
whether its noise is public, and the currency of a cap. Version 4 added closing a ledger whose history was moved.
Version 5 added the table of a privacy unit and the hash chain over all entries of a dataset. Version 6 added the span
of a privacy unit, the periods that a release reads, and the period by which a cap renews; clients of older versions,
which would take a cap for each period as a cap on the total, add nothing to it. Version 7 added the job of a release,
its run directory and its files, by which a second release of the same job is refused. Version 8 added the part of a
release to its decisions, which are numbered by part; those of earlier versions have the part "". Version 9 added the
analyst of a release and of a cap.

A server has the same tables at the same version, in a schema of their own; `server_upgrade` upgrades the versions that
a server can have. The table `numbers` contains the last row number of every other table, which SQLite stores
internally. A trigger assigns the number in the row's own transaction, so numbers have no gaps and a gap reveals a
removed row. (A sequence would leave a gap after every rolled-back transaction.)
"""

from __future__ import annotations

import re

APPLICATION_ID = int.from_bytes(b"dpsL", "big")
VERSION = 9  # current version
ROWS = ("caps", "releases", "rounds", "protections", "terms", "links")  # the tables whose rows are numbered
ROWS_OF_FOUR = ROWS[:5]  # those that existed in version 4
LINKED = ("caps", "releases", "rounds")  # the tables whose rows are links of a chain
STATES = ("reserved", "committed", "released")

FIRST = (
    """CREATE TABLE schema_version (version INTEGER PRIMARY KEY, created_at TEXT NOT NULL)""",
    """CREATE TABLE caps (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        dataset TEXT NOT NULL,
        epsilon REAL NOT NULL CHECK (epsilon > 0),
        delta REAL NOT NULL CHECK (delta >= 0 AND delta < 1),
        set_at TEXT NOT NULL)""",
    """CREATE TABLE releases (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        release TEXT NOT NULL UNIQUE,
        dataset TEXT NOT NULL,
        plan_digest TEXT NOT NULL CHECK (length(plan_digest) = 64),
        cost TEXT NOT NULL,
        epsilon REAL,
        delta REAL,
        state TEXT NOT NULL CHECK (state IN ('reserved', 'committed', 'released')),
        reserved_at TEXT NOT NULL,
        committed_at TEXT,
        released_at TEXT)""",
    """CREATE INDEX releases_of_dataset ON releases (dataset)""",
    """CREATE INDEX caps_of_dataset ON caps (dataset)""",
    # REPLACE deletes rows without firing the delete triggers, so refuse a second row for a key before the insert
    """CREATE TRIGGER releases_insert BEFORE INSERT ON releases
        WHEN NEW.state IS NOT 'reserved' OR NEW.committed_at IS NOT NULL OR NEW.released_at IS NOT NULL
            OR EXISTS (SELECT 1 FROM releases WHERE release = NEW.release OR seq = NEW.seq)
        BEGIN SELECT RAISE(ABORT, 'a release is inserted once, as reserved'); END""",
    """CREATE TRIGGER releases_update BEFORE UPDATE ON releases
        WHEN NOT (NEW.seq IS OLD.seq AND NEW.release IS OLD.release AND NEW.dataset IS OLD.dataset
            AND NEW.plan_digest IS OLD.plan_digest AND NEW.cost IS OLD.cost AND NEW.epsilon IS OLD.epsilon
            AND NEW.delta IS OLD.delta AND NEW.reserved_at IS OLD.reserved_at
            AND ((OLD.state = 'reserved' AND NEW.state = 'committed'
                    AND NEW.committed_at IS NOT NULL AND NEW.released_at IS NULL)
                OR (OLD.state = 'committed' AND NEW.state = 'released'
                    AND NEW.committed_at IS OLD.committed_at AND NEW.released_at IS NOT NULL)))
        BEGIN SELECT RAISE(ABORT, 'a release only moves forward'); END""",
    """CREATE TRIGGER releases_delete BEFORE DELETE ON releases
        BEGIN SELECT RAISE(ABORT, 'releases are never deleted'); END""",
    """CREATE TRIGGER caps_insert BEFORE INSERT ON caps WHEN EXISTS (SELECT 1 FROM caps WHERE seq = NEW.seq)
        BEGIN SELECT RAISE(ABORT, 'caps are never replaced'); END""",
    """CREATE TRIGGER caps_update BEFORE UPDATE ON caps
        BEGIN SELECT RAISE(ABORT, 'a cap is changed by a new row'); END""",
    """CREATE TRIGGER caps_delete BEFORE DELETE ON caps
        BEGIN SELECT RAISE(ABORT, 'caps are never deleted'); END""",
)
SECOND = (
    """CREATE TABLE identity (id TEXT PRIMARY KEY CHECK (length(id) = 32))""",
    """CREATE TRIGGER identity_insert BEFORE INSERT ON identity WHEN EXISTS (SELECT 1 FROM identity)
        BEGIN SELECT RAISE(ABORT, 'a ledger has one name'); END""",
    """CREATE TRIGGER identity_update BEFORE UPDATE ON identity
        BEGIN SELECT RAISE(ABORT, 'a ledger keeps its name'); END""",
    """CREATE TRIGGER identity_delete BEFORE DELETE ON identity
        BEGIN SELECT RAISE(ABORT, 'a ledger keeps its name'); END""",
    """CREATE TABLE rounds (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        release TEXT NOT NULL,
        round INTEGER NOT NULL CHECK (round >= 0),
        digest TEXT NOT NULL CHECK (length(digest) = 64),
        UNIQUE (release, round))""",
    """CREATE TRIGGER rounds_insert BEFORE INSERT ON rounds
        WHEN EXISTS (SELECT 1 FROM rounds WHERE (release = NEW.release AND round = NEW.round) OR seq = NEW.seq)
            OR NOT EXISTS (SELECT 1 FROM releases WHERE release = NEW.release AND state = 'reserved')
        BEGIN SELECT RAISE(ABORT, 'a round is decided once, of a release that is reserved'); END""",
    """CREATE TRIGGER rounds_update BEFORE UPDATE ON rounds
        BEGIN SELECT RAISE(ABORT, 'a round is decided once'); END""",
    """CREATE TRIGGER rounds_delete BEFORE DELETE ON rounds
        BEGIN SELECT RAISE(ABORT, 'rounds are never deleted'); END""",
)
THIRD = (
    """CREATE TABLE protections (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        release TEXT NOT NULL UNIQUE,
        unit TEXT,
        relation TEXT NOT NULL CHECK (relation IN ('add/remove', 'replace')),
        bound INTEGER NOT NULL CHECK (bound >= 1),
        public INTEGER NOT NULL CHECK (public IN (0, 1)))""",
    """CREATE TRIGGER protections_insert BEFORE INSERT ON protections
        WHEN EXISTS (SELECT 1 FROM protections WHERE release = NEW.release OR seq = NEW.seq)
            OR EXISTS (SELECT 1 FROM releases WHERE release = NEW.release)
        BEGIN SELECT RAISE(ABORT, 'whom a release protects is said once, before it is reserved'); END""",
    """CREATE TRIGGER releases_protect BEFORE INSERT ON releases
        WHEN NOT EXISTS (SELECT 1 FROM protections WHERE release = NEW.release)
        BEGIN SELECT RAISE(ABORT, 'a release says whom it protects: update dpscale'); END""",
    """CREATE TRIGGER protections_update BEFORE UPDATE ON protections
        BEGIN SELECT RAISE(ABORT, 'whom a release protects stays'); END""",
    """CREATE TRIGGER protections_delete BEFORE DELETE ON protections
        BEGIN SELECT RAISE(ABORT, 'whom a release protects is never deleted'); END""",
    """CREATE TABLE terms (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        cap INTEGER NOT NULL UNIQUE,
        currency TEXT NOT NULL CHECK (currency IN ('gdp', 'pure')),
        unit TEXT,
        relation TEXT CHECK (relation IN ('add/remove', 'replace')),
        bound INTEGER CHECK (bound >= 1))""",
    """CREATE TRIGGER terms_insert BEFORE INSERT ON terms
        WHEN EXISTS (SELECT 1 FROM terms WHERE cap = NEW.cap OR seq = NEW.seq)
            OR NEW.cap IS NOT (SELECT max(seq) FROM caps)
        BEGIN SELECT RAISE(ABORT, 'the terms of a cap are said once, with it'); END""",
    """CREATE TRIGGER terms_update BEFORE UPDATE ON terms
        BEGIN SELECT RAISE(ABORT, 'the terms of a cap stay'); END""",
    """CREATE TRIGGER terms_delete BEFORE DELETE ON terms
        BEGIN SELECT RAISE(ABORT, 'the terms of a cap are never deleted'); END""",
)
FOURTH = (
    """CREATE TABLE closed (moved_to TEXT NOT NULL, closed_at TEXT NOT NULL)""",
    """CREATE TRIGGER closed_insert BEFORE INSERT ON closed WHEN EXISTS (SELECT 1 FROM closed)
        BEGIN SELECT RAISE(ABORT, 'a ledger is closed once'); END""",
    """CREATE TRIGGER closed_update BEFORE UPDATE ON closed
        BEGIN SELECT RAISE(ABORT, 'a ledger is closed for good'); END""",
    """CREATE TRIGGER closed_delete BEFORE DELETE ON closed
        BEGIN SELECT RAISE(ABORT, 'a ledger is closed for good'); END""",
    *(
        f"""CREATE TRIGGER {table}_closed BEFORE INSERT ON {table} WHEN EXISTS (SELECT 1 FROM closed)
        BEGIN SELECT RAISE(ABORT, 'this ledger is closed'); END"""
        for table in ROWS_OF_FOUR
    ),
    """CREATE TRIGGER releases_stay BEFORE UPDATE ON releases WHEN EXISTS (SELECT 1 FROM closed)
        BEGIN SELECT RAISE(ABORT, 'this ledger is closed'); END""",
)
FIFTH = (
    """ALTER TABLE protections ADD COLUMN unit_table TEXT""",
    """ALTER TABLE terms ADD COLUMN unit_table TEXT""",
    """CREATE TABLE links (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        dataset TEXT NOT NULL,
        place INTEGER NOT NULL CHECK (place >= 1),
        entry TEXT NOT NULL CHECK (entry IN ('caps', 'releases', 'rounds')),
        number INTEGER NOT NULL,
        facts TEXT NOT NULL,
        salt TEXT NOT NULL CHECK (length(salt) = 64),
        digest TEXT NOT NULL UNIQUE CHECK (length(digest) = 64),
        UNIQUE (entry, number),
        UNIQUE (dataset, place))""",
    """CREATE TRIGGER links_insert BEFORE INSERT ON links
        WHEN EXISTS (SELECT 1 FROM links WHERE seq = NEW.seq OR digest = NEW.digest
                OR (entry = NEW.entry AND number = NEW.number) OR (dataset = NEW.dataset AND place >= NEW.place))
            OR EXISTS (SELECT 1 FROM closed)
        BEGIN SELECT RAISE(ABORT, 'a link is added once, at the end of its chain'); END""",
    """CREATE TRIGGER links_update BEFORE UPDATE ON links
        BEGIN SELECT RAISE(ABORT, 'a link stays as it is'); END""",
    """CREATE TRIGGER links_delete BEFORE DELETE ON links
        BEGIN SELECT RAISE(ABORT, 'links are never deleted'); END""",
    *(
        f"""CREATE TRIGGER {table}_linked BEFORE INSERT ON {table}
        WHEN NOT EXISTS (SELECT 1 FROM links WHERE entry = '{table}'
            AND number = (SELECT coalesce(max(seq), 0) + 1 FROM {table}))
            AND NOT EXISTS (SELECT 1 FROM closed)
        BEGIN SELECT RAISE(ABORT, 'an entry has a link in the hash chain: update dpscale'); END"""
        for table in LINKED
    ),
)
COLUMNS_OF_SIX = (("protections", "span"), ("protections", "periods"), ("terms", "span"), ("terms", "period"))
SIXTH = (
    *(f"ALTER TABLE {table} ADD COLUMN {column} TEXT" for table, column in COLUMNS_OF_SIX),
    """CREATE TRIGGER protections_periods BEFORE INSERT ON protections WHEN NEW.periods IS NULL
        BEGIN SELECT RAISE(ABORT, 'a release names the periods that it reads, or none: update dpscale'); END""",
    """CREATE TRIGGER terms_period BEFORE INSERT ON terms WHEN NEW.period IS NULL
        BEGIN SELECT RAISE(ABORT, 'a cap names the period by which it renews, or none: update dpscale'); END""",
)
COLUMNS_OF_SEVEN = (("protections", "job"), ("protections", "run_dir"), ("protections", "files"))
SEVENTH = (
    *(f"ALTER TABLE {table} ADD COLUMN {column} TEXT" for table, column in COLUMNS_OF_SEVEN),
    """CREATE TRIGGER protections_job BEFORE INSERT ON protections WHEN NEW.job IS NULL
        BEGIN SELECT RAISE(ABORT, 'a release names its job, or none: update dpscale'); END""",
)
EIGHTH = (
    *(f"DROP TRIGGER IF EXISTS rounds_{name}" for name in ("insert", "update", "delete", "closed", "linked")),
    """CREATE TABLE decisions (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        release TEXT NOT NULL,
        part TEXT NOT NULL,
        round INTEGER NOT NULL CHECK (round >= 0),
        digest TEXT NOT NULL CHECK (length(digest) = 64),
        UNIQUE (release, part, round))""",
    """INSERT INTO decisions SELECT seq, release, '', round, digest FROM rounds ORDER BY seq""",
    # the last number, which reveals a removed last row
    """DELETE FROM sqlite_sequence WHERE name = 'decisions'""",
    """INSERT INTO sqlite_sequence SELECT 'decisions', seq FROM sqlite_sequence WHERE name = 'rounds'""",
    """DROP TABLE rounds""",
    """ALTER TABLE decisions RENAME TO rounds""",
    """CREATE TRIGGER rounds_insert BEFORE INSERT ON rounds
        WHEN EXISTS (SELECT 1 FROM rounds WHERE seq = NEW.seq
                OR (release = NEW.release AND part = NEW.part AND round = NEW.round))
            OR NOT EXISTS (SELECT 1 FROM releases WHERE release = NEW.release AND state = 'reserved')
        BEGIN SELECT RAISE(ABORT, 'a round is decided once, of a release that is reserved'); END""",
    *(sql for sql in (*SECOND, *FOURTH, *FIFTH) if re.match(r"CREATE TRIGGER rounds_(?!insert)", sql)),
)
COLUMNS_OF_NINE = (("protections", "analyst"), ("terms", "analyst"))
NINTH = (
    *(f"ALTER TABLE {table} ADD COLUMN {column} TEXT" for table, column in COLUMNS_OF_NINE),
    """CREATE TRIGGER protections_analyst BEFORE INSERT ON protections WHEN NEW.analyst IS NULL
        BEGIN SELECT RAISE(ABORT, 'a release names its analyst, or none: update dpscale'); END""",
    """CREATE TRIGGER terms_analyst BEFORE INSERT ON terms WHEN NEW.analyst IS NULL
        BEGIN SELECT RAISE(ABORT, 'a cap names its analyst, or none: update dpscale'); END""",
)
# statements that each version adds
STEPS = {1: FIRST, 2: SECOND, 3: THIRD, 4: FOURTH, 5: FIFTH, 6: SIXTH, 7: SEVENTH, 8: EIGHTH, 9: NINTH}


def schema(version: int) -> tuple[str, ...]:
    """Return all statements that create a ledger of that version."""
    return tuple(statement for step in range(1, version + 1) for statement in STEPS[step])


def table_statements() -> list[str]:
    """Return the statements that create the tables and indexes of the current version."""
    return [statement for statement in schema(VERSION) if not makes_trigger(statement)]


def trigger_statements() -> list[str]:
    """Return the statements that create the triggers of the current version."""
    # by name: a later version replaces the trigger of an earlier one
    named = {statement.split()[2]: statement for statement in schema(VERSION) if makes_trigger(statement)}
    return list(named.values())


def makes_trigger(statement: str) -> bool:
    return statement.startswith("CREATE TRIGGER")


FIRST_VERSION = 4  # first version that supported PostgreSQL
CHAINED_VERSION = 5  # version that introduced the hash chain
PARTED_VERSION = 8  # version that introduced the parts of decisions
SCHEMA = "dpscale_ledger"
PATH = f"{SCHEMA}, pg_catalog, pg_temp"
PROTECTS = """unit TEXT, relation TEXT {0} CHECK (relation IN ('add/remove', 'replace')),
    bound BIGINT {0} CHECK (bound >= 1)"""
LINKS = """seq BIGINT PRIMARY KEY, dataset TEXT NOT NULL, place BIGINT NOT NULL CHECK (place >= 1),
    entry TEXT NOT NULL CHECK (entry IN ('caps', 'releases', 'rounds')), number BIGINT NOT NULL,
    facts TEXT NOT NULL, salt TEXT NOT NULL CHECK (length(salt) = 64),
    digest TEXT NOT NULL UNIQUE CHECK (length(digest) = 64), UNIQUE (entry, number), UNIQUE (dataset, place)"""
TABLES = {
    "schema_version": "version BIGINT PRIMARY KEY, created_at TEXT NOT NULL",
    "numbers": "name TEXT PRIMARY KEY, seq BIGINT NOT NULL CHECK (seq >= 0)",
    "identity": "id TEXT PRIMARY KEY CHECK (length(id) = 32)",
    "closed": "moved_to TEXT NOT NULL, closed_at TEXT NOT NULL",
    "caps": """seq BIGINT PRIMARY KEY, dataset TEXT NOT NULL,
        epsilon DOUBLE PRECISION NOT NULL CHECK (epsilon > 0),
        delta DOUBLE PRECISION NOT NULL CHECK (delta >= 0 AND delta < 1), set_at TEXT NOT NULL""",
    "releases": """seq BIGINT PRIMARY KEY, release TEXT NOT NULL UNIQUE, dataset TEXT NOT NULL,
        plan_digest TEXT NOT NULL CHECK (length(plan_digest) = 64), cost TEXT NOT NULL,
        epsilon DOUBLE PRECISION, delta DOUBLE PRECISION,
        state TEXT NOT NULL CHECK (state IN ('reserved', 'committed', 'released')),
        reserved_at TEXT NOT NULL, committed_at TEXT, released_at TEXT""",
    "rounds": """seq BIGINT PRIMARY KEY, release TEXT NOT NULL, part TEXT NOT NULL,
        round BIGINT NOT NULL CHECK (round >= 0), digest TEXT NOT NULL CHECK (length(digest) = 64),
        UNIQUE (release, part, round)""",
    "protections": f"""seq BIGINT PRIMARY KEY, release TEXT NOT NULL UNIQUE, {PROTECTS.format("NOT NULL")},
        public BIGINT NOT NULL CHECK (public IN (0, 1)), unit_table TEXT, span TEXT, periods TEXT,
        job TEXT, run_dir TEXT, files TEXT, analyst TEXT""",
    "terms": f"""seq BIGINT PRIMARY KEY, cap BIGINT NOT NULL UNIQUE,
        currency TEXT NOT NULL CHECK (currency IN ('gdp', 'pure')), {PROTECTS.format("")}, unit_table TEXT,
        span TEXT, period TEXT, analyst TEXT""",
    "links": LINKS,
}
ROW, BEFORE, INSERT, DELETE, UPDATE, TRUNCATE = 1, 2, 4, 8, 16, 32  # bits of pg_trigger.tgtype
EVENTS = {INSERT: "INSERT", DELETE: "DELETE", UPDATE: "UPDATE", TRUNCATE: "TRUNCATE"}
KEPT = "BEGIN RAISE EXCEPTION 'rows of % stay as they are', TG_TABLE_NAME; END"
INSERTED = {  # table -> (condition under which a row is refused, message)
    "caps": ("FALSE", ""),
    "releases": (
        """NEW.state <> 'reserved' OR NEW.committed_at IS NOT NULL OR NEW.released_at IS NOT NULL
            OR NOT EXISTS (SELECT FROM protections WHERE release = NEW.release)""",
        "a release is inserted once, as reserved, and says whom it protects",
    ),
    "rounds": (
        "NOT EXISTS (SELECT FROM releases WHERE release = NEW.release AND state = 'reserved')",
        "a round is decided once, of a release that is reserved",
    ),
    "protections": (
        "EXISTS (SELECT FROM releases WHERE release = NEW.release)",
        "whom a release protects is said once, before it is reserved",
    ),
    "terms": (
        "NEW.cap IS DISTINCT FROM (SELECT max(seq) FROM caps)",
        "the terms of a cap are said once, with it",
    ),
    "links": (
        "EXISTS (SELECT FROM links WHERE dataset = NEW.dataset AND place >= NEW.place)",
        "a link is added once, at the end of its chain",
    ),
}
UNLINKED = """NOT EXISTS (SELECT FROM links WHERE entry = '{0}'
            AND number = (SELECT seq + 1 FROM numbers WHERE name = '{0}'))"""
NO_LINK = "an entry has a link in the hash chain: update dpscale"
UNNAMED = {  # version -> table -> (condition under which a client of an earlier version is refused, message)
    6: {
        "protections": ("NEW.periods IS NULL", "a release names the periods that it reads, or none: update dpscale"),
        "terms": ("NEW.period IS NULL", "a cap names the period by which it renews, or none: update dpscale"),
    },
    7: {"protections": ("NEW.job IS NULL", "a release names its job, or none: update dpscale")},
    9: {
        "protections": ("NEW.analyst IS NULL", "a release names its analyst, or none: update dpscale"),
        "terms": ("NEW.analyst IS NULL", "a cap names its analyst, or none: update dpscale"),
    },
}
FORWARD = """BEGIN
    IF EXISTS (SELECT FROM closed) THEN RAISE EXCEPTION 'this ledger is closed'; END IF;
    IF (NEW.seq, NEW.release, NEW.dataset, NEW.plan_digest, NEW.cost, NEW.epsilon, NEW.delta, NEW.reserved_at)
            IS DISTINCT FROM
            (OLD.seq, OLD.release, OLD.dataset, OLD.plan_digest, OLD.cost, OLD.epsilon, OLD.delta, OLD.reserved_at)
        OR NOT ((OLD.state = 'reserved' AND NEW.state = 'committed'
                    AND NEW.committed_at IS NOT NULL AND NEW.released_at IS NULL)
                OR (OLD.state = 'committed' AND NEW.state = 'released'
                    AND NEW.committed_at IS NOT DISTINCT FROM OLD.committed_at AND NEW.released_at IS NOT NULL))
    THEN RAISE EXCEPTION 'a release only moves forward'; END IF;
    RETURN NEW; END"""
ONCE = """BEGIN
    IF EXISTS (SELECT FROM {0}) THEN RAISE EXCEPTION 'a ledger has one row of {0}'; END IF;
    RETURN NEW; END"""
ONWARD = """BEGIN
    IF NEW.name <> OLD.name OR NEW.seq <> OLD.seq + 1 THEN RAISE EXCEPTION 'numbers are given in turn'; END IF;
    RETURN NEW; END"""


def _numbered(table: str, version: int) -> str:
    """Return the body of the trigger that checks a row before it is inserted and gives it the next number.

    Each check is an SQL condition and the text with which a row that satisfies it is refused: the check of every
    version (INSERTED), and those that later versions added.
    """
    refused, why = INSERTED[table]
    checks = [(UNLINKED.format(table), NO_LINK)] if table in LINKED and version > FIRST_VERSION else []
    checks += [by_table[table] for added, by_table in UNNAMED.items() if table in by_table and version >= added]
    added_checks = "".join(f"\n    IF {condition} THEN RAISE EXCEPTION '{text}'; END IF;" for condition, text in checks)
    return f"""BEGIN
    IF EXISTS (SELECT FROM closed) THEN RAISE EXCEPTION 'this ledger is closed'; END IF;
    IF {refused} THEN RAISE EXCEPTION '{why}'; END IF;{added_checks}
    UPDATE numbers SET seq = seq + 1 WHERE name = '{table}' RETURNING seq INTO NEW.seq;
    RETURN NEW; END"""


def rows_of(version: int) -> tuple[str, ...]:
    """Return the tables whose rows are numbered."""
    return ROWS_OF_FOUR if version == FIRST_VERSION else ROWS


def _triggers(version: int) -> dict[tuple[str, str, int], str]:
    """Return (table, name, pg_trigger.tgtype) -> body of the trigger function.

    The type is a sum of flags: for each row, before, and the event.

    KEPT refuses a change or removal, ONCE a second row, FORWARD every change of a release but that of its state, and
    ONWARD a number that is not the next one.
    """
    rows = rows_of(version)
    tables = [table for table in TABLES if table in rows or table not in ROWS]
    bodies = {(table, "insert", ROW | BEFORE | INSERT): _numbered(table, version) for table in rows}
    bodies |= {(table, "insert", ROW | BEFORE | INSERT): ONCE.format(table) for table in ("identity", "closed")}
    bodies |= {(table, "update", ROW | BEFORE | UPDATE): KEPT for table in tables}
    bodies |= {(table, "delete", ROW | BEFORE | DELETE): KEPT for table in tables}
    bodies |= {(table, "truncate", BEFORE | TRUNCATE): KEPT for table in tables}
    bodies[("releases", "update", ROW | BEFORE | UPDATE)] = FORWARD
    bodies[("numbers", "update", ROW | BEFORE | UPDATE)] = ONWARD  # and these two replace KEPT
    return {(table, f"{table}_{event}", kind): body for (table, event, kind), body in bodies.items()}


# of a ledger in PostgreSQL of each version
TRIGGERS = {version: _triggers(version) for version in range(FIRST_VERSION, VERSION + 1)}


def server_tables() -> list[str]:
    """Return the statements that create the schema and its tables."""
    return [f"CREATE SCHEMA {SCHEMA}", f"SET LOCAL search_path = {PATH}",
            *(f"CREATE TABLE {name} ({columns})" for name, columns in TABLES.items()),
            "CREATE INDEX releases_of_dataset ON releases (dataset)",
            "CREATE INDEX caps_of_dataset ON caps (dataset)"]  # fmt: skip


def server_triggers(before: int | None = None) -> list[str]:
    """Return the statements that initialise the row numbers and create the triggers.

    A trigger that already exists only needs its function replaced.

    Parameters
    ----------
    before : int, optional
        Version whose triggers and numbers already exist.
    """
    existing = TRIGGERS[before] if before else {}
    tables = rows_of(VERSION) if before is None else [table for table in ROWS if table not in rows_of(before)]
    numbers = [f"INSERT INTO numbers SELECT '{table}', coalesce(max(seq), 0) FROM {table}" for table in tables]
    functions = [
        f"CREATE OR REPLACE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql SET search_path = {PATH}"
        f" AS $body${body}$body$"
        for (_, name, _), body in TRIGGERS[VERSION].items()
    ]
    triggers = [
        f"CREATE TRIGGER {name} BEFORE {_event(kind)} ON {table} FOR EACH {'ROW' if kind & ROW else 'STATEMENT'}"
        f" EXECUTE FUNCTION {name}()"
        for table, name, kind in TRIGGERS[VERSION]
        if (table, name, kind) not in existing
    ]
    return numbers + functions + triggers


def server_upgrade(before: int) -> list[str]:
    """Return the statements that add what a version lacks: columns, and tables with the user rights of the releases."""
    chained = ["ALTER TABLE protections ADD COLUMN unit_table TEXT", "ALTER TABLE terms ADD COLUMN unit_table TEXT",
               f"CREATE TABLE links ({LINKS})", RIGHTS]  # fmt: skip
    steps = (6, COLUMNS_OF_SIX), (7, COLUMNS_OF_SEVEN), (9, COLUMNS_OF_NINE)
    missing = [column for version, added in steps if before < version for column in added]
    columns = [f"ALTER TABLE {table} ADD COLUMN {column} TEXT" for table, column in missing]
    parts = [
        "ALTER TABLE rounds ADD COLUMN part TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE rounds ALTER COLUMN part DROP DEFAULT",
        "ALTER TABLE rounds DROP CONSTRAINT rounds_release_round_key",
        "ALTER TABLE rounds ADD UNIQUE (release, part, round)",
    ]
    chained = chained if before < CHAINED_VERSION else []
    return [*chained, *columns, *(parts if before < PARTED_VERSION else [])]


RIGHTS = f"""DO $body$ DECLARE who text; may text; BEGIN
    FOR who, may IN SELECT DISTINCT CASE grantee WHEN 'PUBLIC' THEN 'PUBLIC' ELSE quote_ident(grantee) END,
            privilege_type::text
        FROM information_schema.table_privileges
        WHERE table_schema = '{SCHEMA}' AND table_name = 'releases'
            AND privilege_type IN ('SELECT', 'INSERT', 'UPDATE')
    LOOP EXECUTE 'GRANT ' || may || ' ON links TO ' || who; END LOOP; END $body$"""


def _event(kind: int) -> str:
    return next(word for bit, word in EVENTS.items() if kind & bit)


# The triggers in the server's catalogue, which every user of the schema may read
CATALOGUE = f"""
    SELECT relname, tgname, tgtype::int, prosrc FROM pg_catalog.pg_trigger
        JOIN pg_catalog.pg_class ON pg_class.oid = tgrelid JOIN pg_catalog.pg_proc ON pg_proc.oid = tgfoid
        WHERE relnamespace = '{SCHEMA}'::regnamespace AND NOT tgisinternal
            AND tgenabled IN ('O', 'A') AND tgqual IS NULL
    """


def expected_catalogue(version: int = VERSION) -> set[tuple[str, str, int, str]]:
    """Return the result of the query CATALOGUE for an unmodified ledger."""
    return {(table, name, kind, body) for (table, name, kind), body in TRIGGERS[version].items()}
