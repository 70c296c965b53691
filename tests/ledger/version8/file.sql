CREATE TABLE schema_version (version INTEGER PRIMARY KEY, created_at TEXT NOT NULL);

CREATE TABLE caps (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        dataset TEXT NOT NULL,
        epsilon REAL NOT NULL CHECK (epsilon > 0),
        delta REAL NOT NULL CHECK (delta >= 0 AND delta < 1),
        set_at TEXT NOT NULL);

CREATE TABLE releases (
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
        released_at TEXT);

CREATE INDEX releases_of_dataset ON releases (dataset);

CREATE INDEX caps_of_dataset ON caps (dataset);

CREATE TABLE identity (id TEXT PRIMARY KEY CHECK (length(id) = 32));

CREATE TABLE rounds (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        release TEXT NOT NULL,
        round INTEGER NOT NULL CHECK (round >= 0),
        digest TEXT NOT NULL CHECK (length(digest) = 64),
        UNIQUE (release, round));

CREATE TABLE protections (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        release TEXT NOT NULL UNIQUE,
        unit TEXT,
        relation TEXT NOT NULL CHECK (relation IN ('add/remove', 'replace')),
        bound INTEGER NOT NULL CHECK (bound >= 1),
        public INTEGER NOT NULL CHECK (public IN (0, 1)));

CREATE TABLE terms (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        cap INTEGER NOT NULL UNIQUE,
        currency TEXT NOT NULL CHECK (currency IN ('gdp', 'pure')),
        unit TEXT,
        relation TEXT CHECK (relation IN ('add/remove', 'replace')),
        bound INTEGER CHECK (bound >= 1));

CREATE TABLE closed (moved_to TEXT NOT NULL, closed_at TEXT NOT NULL);

ALTER TABLE protections ADD COLUMN unit_table TEXT;

ALTER TABLE terms ADD COLUMN unit_table TEXT;

CREATE TABLE links (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        dataset TEXT NOT NULL,
        place INTEGER NOT NULL CHECK (place >= 1),
        entry TEXT NOT NULL CHECK (entry IN ('caps', 'releases', 'rounds')),
        number INTEGER NOT NULL,
        facts TEXT NOT NULL,
        salt TEXT NOT NULL CHECK (length(salt) = 64),
        digest TEXT NOT NULL UNIQUE CHECK (length(digest) = 64),
        UNIQUE (entry, number),
        UNIQUE (dataset, place));

ALTER TABLE protections ADD COLUMN span TEXT;

ALTER TABLE protections ADD COLUMN periods TEXT;

ALTER TABLE terms ADD COLUMN span TEXT;

ALTER TABLE terms ADD COLUMN period TEXT;

ALTER TABLE protections ADD COLUMN job TEXT;

ALTER TABLE protections ADD COLUMN run_dir TEXT;

ALTER TABLE protections ADD COLUMN files TEXT;

DROP TRIGGER IF EXISTS rounds_insert;

DROP TRIGGER IF EXISTS rounds_update;

DROP TRIGGER IF EXISTS rounds_delete;

DROP TRIGGER IF EXISTS rounds_closed;

DROP TRIGGER IF EXISTS rounds_linked;

CREATE TABLE decisions (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        release TEXT NOT NULL,
        part TEXT NOT NULL,
        round INTEGER NOT NULL CHECK (round >= 0),
        digest TEXT NOT NULL CHECK (length(digest) = 64),
        UNIQUE (release, part, round));

INSERT INTO decisions SELECT seq, release, '', round, digest FROM rounds ORDER BY seq;

DELETE FROM sqlite_sequence WHERE name = 'decisions';

INSERT INTO sqlite_sequence SELECT 'decisions', seq FROM sqlite_sequence WHERE name = 'rounds';

DROP TABLE rounds;

ALTER TABLE decisions RENAME TO rounds;

-- rows

CREATE TRIGGER releases_insert BEFORE INSERT ON releases
        WHEN NEW.state IS NOT 'reserved' OR NEW.committed_at IS NOT NULL OR NEW.released_at IS NOT NULL
            OR EXISTS (SELECT 1 FROM releases WHERE release = NEW.release OR seq = NEW.seq)
        BEGIN SELECT RAISE(ABORT, 'a release is inserted once, as reserved'); END;

CREATE TRIGGER releases_update BEFORE UPDATE ON releases
        WHEN NOT (NEW.seq IS OLD.seq AND NEW.release IS OLD.release AND NEW.dataset IS OLD.dataset
            AND NEW.plan_digest IS OLD.plan_digest AND NEW.cost IS OLD.cost AND NEW.epsilon IS OLD.epsilon
            AND NEW.delta IS OLD.delta AND NEW.reserved_at IS OLD.reserved_at
            AND ((OLD.state = 'reserved' AND NEW.state = 'committed'
                    AND NEW.committed_at IS NOT NULL AND NEW.released_at IS NULL)
                OR (OLD.state = 'committed' AND NEW.state = 'released'
                    AND NEW.committed_at IS OLD.committed_at AND NEW.released_at IS NOT NULL)))
        BEGIN SELECT RAISE(ABORT, 'a release only moves forward'); END;

CREATE TRIGGER releases_delete BEFORE DELETE ON releases
        BEGIN SELECT RAISE(ABORT, 'releases are never deleted'); END;

CREATE TRIGGER caps_insert BEFORE INSERT ON caps WHEN EXISTS (SELECT 1 FROM caps WHERE seq = NEW.seq)
        BEGIN SELECT RAISE(ABORT, 'caps are never replaced'); END;

CREATE TRIGGER caps_update BEFORE UPDATE ON caps
        BEGIN SELECT RAISE(ABORT, 'a cap is changed by a new row'); END;

CREATE TRIGGER caps_delete BEFORE DELETE ON caps
        BEGIN SELECT RAISE(ABORT, 'caps are never deleted'); END;

CREATE TRIGGER identity_insert BEFORE INSERT ON identity WHEN EXISTS (SELECT 1 FROM identity)
        BEGIN SELECT RAISE(ABORT, 'a ledger has one name'); END;

CREATE TRIGGER identity_update BEFORE UPDATE ON identity
        BEGIN SELECT RAISE(ABORT, 'a ledger keeps its name'); END;

CREATE TRIGGER identity_delete BEFORE DELETE ON identity
        BEGIN SELECT RAISE(ABORT, 'a ledger keeps its name'); END;

CREATE TRIGGER rounds_insert BEFORE INSERT ON rounds
        WHEN EXISTS (SELECT 1 FROM rounds WHERE seq = NEW.seq
                OR (release = NEW.release AND part = NEW.part AND round = NEW.round))
            OR NOT EXISTS (SELECT 1 FROM releases WHERE release = NEW.release AND state = 'reserved')
        BEGIN SELECT RAISE(ABORT, 'a round is decided once, of a release that is reserved'); END;

CREATE TRIGGER rounds_update BEFORE UPDATE ON rounds
        BEGIN SELECT RAISE(ABORT, 'a round is decided once'); END;

CREATE TRIGGER rounds_delete BEFORE DELETE ON rounds
        BEGIN SELECT RAISE(ABORT, 'rounds are never deleted'); END;

CREATE TRIGGER protections_insert BEFORE INSERT ON protections
        WHEN EXISTS (SELECT 1 FROM protections WHERE release = NEW.release OR seq = NEW.seq)
            OR EXISTS (SELECT 1 FROM releases WHERE release = NEW.release)
        BEGIN SELECT RAISE(ABORT, 'whom a release protects is said once, before it is reserved'); END;

CREATE TRIGGER releases_protect BEFORE INSERT ON releases
        WHEN NOT EXISTS (SELECT 1 FROM protections WHERE release = NEW.release)
        BEGIN SELECT RAISE(ABORT, 'a release says whom it protects: update dpscale'); END;

CREATE TRIGGER protections_update BEFORE UPDATE ON protections
        BEGIN SELECT RAISE(ABORT, 'whom a release protects stays'); END;

CREATE TRIGGER protections_delete BEFORE DELETE ON protections
        BEGIN SELECT RAISE(ABORT, 'whom a release protects is never deleted'); END;

CREATE TRIGGER terms_insert BEFORE INSERT ON terms
        WHEN EXISTS (SELECT 1 FROM terms WHERE cap = NEW.cap OR seq = NEW.seq)
            OR NEW.cap IS NOT (SELECT max(seq) FROM caps)
        BEGIN SELECT RAISE(ABORT, 'the terms of a cap are said once, with it'); END;

CREATE TRIGGER terms_update BEFORE UPDATE ON terms
        BEGIN SELECT RAISE(ABORT, 'the terms of a cap stay'); END;

CREATE TRIGGER terms_delete BEFORE DELETE ON terms
        BEGIN SELECT RAISE(ABORT, 'the terms of a cap are never deleted'); END;

CREATE TRIGGER closed_insert BEFORE INSERT ON closed WHEN EXISTS (SELECT 1 FROM closed)
        BEGIN SELECT RAISE(ABORT, 'a ledger is closed once'); END;

CREATE TRIGGER closed_update BEFORE UPDATE ON closed
        BEGIN SELECT RAISE(ABORT, 'a ledger is closed for good'); END;

CREATE TRIGGER closed_delete BEFORE DELETE ON closed
        BEGIN SELECT RAISE(ABORT, 'a ledger is closed for good'); END;

CREATE TRIGGER caps_closed BEFORE INSERT ON caps WHEN EXISTS (SELECT 1 FROM closed)
        BEGIN SELECT RAISE(ABORT, 'this ledger is closed'); END;

CREATE TRIGGER releases_closed BEFORE INSERT ON releases WHEN EXISTS (SELECT 1 FROM closed)
        BEGIN SELECT RAISE(ABORT, 'this ledger is closed'); END;

CREATE TRIGGER rounds_closed BEFORE INSERT ON rounds WHEN EXISTS (SELECT 1 FROM closed)
        BEGIN SELECT RAISE(ABORT, 'this ledger is closed'); END;

CREATE TRIGGER protections_closed BEFORE INSERT ON protections WHEN EXISTS (SELECT 1 FROM closed)
        BEGIN SELECT RAISE(ABORT, 'this ledger is closed'); END;

CREATE TRIGGER terms_closed BEFORE INSERT ON terms WHEN EXISTS (SELECT 1 FROM closed)
        BEGIN SELECT RAISE(ABORT, 'this ledger is closed'); END;

CREATE TRIGGER releases_stay BEFORE UPDATE ON releases WHEN EXISTS (SELECT 1 FROM closed)
        BEGIN SELECT RAISE(ABORT, 'this ledger is closed'); END;

CREATE TRIGGER links_insert BEFORE INSERT ON links
        WHEN EXISTS (SELECT 1 FROM links WHERE seq = NEW.seq OR digest = NEW.digest
                OR (entry = NEW.entry AND number = NEW.number) OR (dataset = NEW.dataset AND place >= NEW.place))
            OR EXISTS (SELECT 1 FROM closed)
        BEGIN SELECT RAISE(ABORT, 'a link is added once, at the end of its chain'); END;

CREATE TRIGGER links_update BEFORE UPDATE ON links
        BEGIN SELECT RAISE(ABORT, 'a link stays as it is'); END;

CREATE TRIGGER links_delete BEFORE DELETE ON links
        BEGIN SELECT RAISE(ABORT, 'links are never deleted'); END;

CREATE TRIGGER caps_linked BEFORE INSERT ON caps
        WHEN NOT EXISTS (SELECT 1 FROM links WHERE entry = 'caps'
            AND number = (SELECT coalesce(max(seq), 0) + 1 FROM caps))
            AND NOT EXISTS (SELECT 1 FROM closed)
        BEGIN SELECT RAISE(ABORT, 'an entry has a link in the hash chain: update dpscale'); END;

CREATE TRIGGER releases_linked BEFORE INSERT ON releases
        WHEN NOT EXISTS (SELECT 1 FROM links WHERE entry = 'releases'
            AND number = (SELECT coalesce(max(seq), 0) + 1 FROM releases))
            AND NOT EXISTS (SELECT 1 FROM closed)
        BEGIN SELECT RAISE(ABORT, 'an entry has a link in the hash chain: update dpscale'); END;

CREATE TRIGGER rounds_linked BEFORE INSERT ON rounds
        WHEN NOT EXISTS (SELECT 1 FROM links WHERE entry = 'rounds'
            AND number = (SELECT coalesce(max(seq), 0) + 1 FROM rounds))
            AND NOT EXISTS (SELECT 1 FROM closed)
        BEGIN SELECT RAISE(ABORT, 'an entry has a link in the hash chain: update dpscale'); END;

CREATE TRIGGER protections_periods BEFORE INSERT ON protections WHEN NEW.periods IS NULL
        BEGIN SELECT RAISE(ABORT, 'a release names the periods that it reads, or none: update dpscale'); END;

CREATE TRIGGER terms_period BEFORE INSERT ON terms WHEN NEW.period IS NULL
        BEGIN SELECT RAISE(ABORT, 'a cap names the period by which it renews, or none: update dpscale'); END;

CREATE TRIGGER protections_job BEFORE INSERT ON protections WHEN NEW.job IS NULL
        BEGIN SELECT RAISE(ABORT, 'a release names its job, or none: update dpscale'); END;
