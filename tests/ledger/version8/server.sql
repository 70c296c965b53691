CREATE SCHEMA dpscale_ledger;

SET LOCAL search_path = dpscale_ledger, pg_catalog, pg_temp;

CREATE TABLE schema_version (version BIGINT PRIMARY KEY, created_at TEXT NOT NULL);

CREATE TABLE numbers (name TEXT PRIMARY KEY, seq BIGINT NOT NULL CHECK (seq >= 0));

CREATE TABLE identity (id TEXT PRIMARY KEY CHECK (length(id) = 32));

CREATE TABLE closed (moved_to TEXT NOT NULL, closed_at TEXT NOT NULL);

CREATE TABLE caps (seq BIGINT PRIMARY KEY, dataset TEXT NOT NULL,
        epsilon DOUBLE PRECISION NOT NULL CHECK (epsilon > 0),
        delta DOUBLE PRECISION NOT NULL CHECK (delta >= 0 AND delta < 1), set_at TEXT NOT NULL);

CREATE TABLE releases (seq BIGINT PRIMARY KEY, release TEXT NOT NULL UNIQUE, dataset TEXT NOT NULL,
        plan_digest TEXT NOT NULL CHECK (length(plan_digest) = 64), cost TEXT NOT NULL,
        epsilon DOUBLE PRECISION, delta DOUBLE PRECISION,
        state TEXT NOT NULL CHECK (state IN ('reserved', 'committed', 'released')),
        reserved_at TEXT NOT NULL, committed_at TEXT, released_at TEXT);

CREATE TABLE rounds (seq BIGINT PRIMARY KEY, release TEXT NOT NULL, part TEXT NOT NULL,
        round BIGINT NOT NULL CHECK (round >= 0), digest TEXT NOT NULL CHECK (length(digest) = 64),
        UNIQUE (release, part, round));

CREATE TABLE protections (seq BIGINT PRIMARY KEY, release TEXT NOT NULL UNIQUE, unit TEXT, relation TEXT NOT NULL CHECK (relation IN ('add/remove', 'replace')),
    bound BIGINT NOT NULL CHECK (bound >= 1),
        public BIGINT NOT NULL CHECK (public IN (0, 1)), unit_table TEXT, span TEXT, periods TEXT,
        job TEXT, run_dir TEXT, files TEXT);

CREATE TABLE terms (seq BIGINT PRIMARY KEY, cap BIGINT NOT NULL UNIQUE,
        currency TEXT NOT NULL CHECK (currency IN ('gdp', 'pure')), unit TEXT, relation TEXT  CHECK (relation IN ('add/remove', 'replace')),
    bound BIGINT  CHECK (bound >= 1), unit_table TEXT,
        span TEXT, period TEXT);

CREATE TABLE links (seq BIGINT PRIMARY KEY, dataset TEXT NOT NULL, place BIGINT NOT NULL CHECK (place >= 1),
    entry TEXT NOT NULL CHECK (entry IN ('caps', 'releases', 'rounds')), number BIGINT NOT NULL,
    facts TEXT NOT NULL, salt TEXT NOT NULL CHECK (length(salt) = 64),
    digest TEXT NOT NULL UNIQUE CHECK (length(digest) = 64), UNIQUE (entry, number), UNIQUE (dataset, place));

CREATE INDEX releases_of_dataset ON releases (dataset);

CREATE INDEX caps_of_dataset ON caps (dataset);

-- rows

INSERT INTO numbers SELECT 'caps', coalesce(max(seq), 0) FROM caps;

INSERT INTO numbers SELECT 'releases', coalesce(max(seq), 0) FROM releases;

INSERT INTO numbers SELECT 'rounds', coalesce(max(seq), 0) FROM rounds;

INSERT INTO numbers SELECT 'protections', coalesce(max(seq), 0) FROM protections;

INSERT INTO numbers SELECT 'terms', coalesce(max(seq), 0) FROM terms;

INSERT INTO numbers SELECT 'links', coalesce(max(seq), 0) FROM links;

CREATE OR REPLACE FUNCTION caps_insert() RETURNS trigger LANGUAGE plpgsql SET search_path = dpscale_ledger, pg_catalog, pg_temp AS $body$BEGIN
    IF EXISTS (SELECT FROM closed) THEN RAISE EXCEPTION 'this ledger is closed'; END IF;
    IF FALSE THEN RAISE EXCEPTION ''; END IF;
    IF NOT EXISTS (SELECT FROM links WHERE entry = 'caps'
            AND number = (SELECT seq + 1 FROM numbers WHERE name = 'caps')) THEN RAISE EXCEPTION 'an entry has a link in the hash chain: update dpscale'; END IF;
    UPDATE numbers SET seq = seq + 1 WHERE name = 'caps' RETURNING seq INTO NEW.seq;
    RETURN NEW; END$body$;

CREATE OR REPLACE FUNCTION releases_insert() RETURNS trigger LANGUAGE plpgsql SET search_path = dpscale_ledger, pg_catalog, pg_temp AS $body$BEGIN
    IF EXISTS (SELECT FROM closed) THEN RAISE EXCEPTION 'this ledger is closed'; END IF;
    IF NEW.state <> 'reserved' OR NEW.committed_at IS NOT NULL OR NEW.released_at IS NOT NULL
            OR NOT EXISTS (SELECT FROM protections WHERE release = NEW.release) THEN RAISE EXCEPTION 'a release is inserted once, as reserved, and says whom it protects'; END IF;
    IF NOT EXISTS (SELECT FROM links WHERE entry = 'releases'
            AND number = (SELECT seq + 1 FROM numbers WHERE name = 'releases')) THEN RAISE EXCEPTION 'an entry has a link in the hash chain: update dpscale'; END IF;
    UPDATE numbers SET seq = seq + 1 WHERE name = 'releases' RETURNING seq INTO NEW.seq;
    RETURN NEW; END$body$;

CREATE OR REPLACE FUNCTION rounds_insert() RETURNS trigger LANGUAGE plpgsql SET search_path = dpscale_ledger, pg_catalog, pg_temp AS $body$BEGIN
    IF EXISTS (SELECT FROM closed) THEN RAISE EXCEPTION 'this ledger is closed'; END IF;
    IF NOT EXISTS (SELECT FROM releases WHERE release = NEW.release AND state = 'reserved') THEN RAISE EXCEPTION 'a round is decided once, of a release that is reserved'; END IF;
    IF NOT EXISTS (SELECT FROM links WHERE entry = 'rounds'
            AND number = (SELECT seq + 1 FROM numbers WHERE name = 'rounds')) THEN RAISE EXCEPTION 'an entry has a link in the hash chain: update dpscale'; END IF;
    UPDATE numbers SET seq = seq + 1 WHERE name = 'rounds' RETURNING seq INTO NEW.seq;
    RETURN NEW; END$body$;

CREATE OR REPLACE FUNCTION protections_insert() RETURNS trigger LANGUAGE plpgsql SET search_path = dpscale_ledger, pg_catalog, pg_temp AS $body$BEGIN
    IF EXISTS (SELECT FROM closed) THEN RAISE EXCEPTION 'this ledger is closed'; END IF;
    IF EXISTS (SELECT FROM releases WHERE release = NEW.release) THEN RAISE EXCEPTION 'whom a release protects is said once, before it is reserved'; END IF;
    IF NEW.periods IS NULL THEN RAISE EXCEPTION 'a release names the periods that it reads, or none: update dpscale'; END IF;
    IF NEW.job IS NULL THEN RAISE EXCEPTION 'a release names its job, or none: update dpscale'; END IF;
    UPDATE numbers SET seq = seq + 1 WHERE name = 'protections' RETURNING seq INTO NEW.seq;
    RETURN NEW; END$body$;

CREATE OR REPLACE FUNCTION terms_insert() RETURNS trigger LANGUAGE plpgsql SET search_path = dpscale_ledger, pg_catalog, pg_temp AS $body$BEGIN
    IF EXISTS (SELECT FROM closed) THEN RAISE EXCEPTION 'this ledger is closed'; END IF;
    IF NEW.cap IS DISTINCT FROM (SELECT max(seq) FROM caps) THEN RAISE EXCEPTION 'the terms of a cap are said once, with it'; END IF;
    IF NEW.period IS NULL THEN RAISE EXCEPTION 'a cap names the period by which it renews, or none: update dpscale'; END IF;
    UPDATE numbers SET seq = seq + 1 WHERE name = 'terms' RETURNING seq INTO NEW.seq;
    RETURN NEW; END$body$;

CREATE OR REPLACE FUNCTION links_insert() RETURNS trigger LANGUAGE plpgsql SET search_path = dpscale_ledger, pg_catalog, pg_temp AS $body$BEGIN
    IF EXISTS (SELECT FROM closed) THEN RAISE EXCEPTION 'this ledger is closed'; END IF;
    IF EXISTS (SELECT FROM links WHERE dataset = NEW.dataset AND place >= NEW.place) THEN RAISE EXCEPTION 'a link is added once, at the end of its chain'; END IF;
    UPDATE numbers SET seq = seq + 1 WHERE name = 'links' RETURNING seq INTO NEW.seq;
    RETURN NEW; END$body$;

CREATE OR REPLACE FUNCTION identity_insert() RETURNS trigger LANGUAGE plpgsql SET search_path = dpscale_ledger, pg_catalog, pg_temp AS $body$BEGIN
    IF EXISTS (SELECT FROM identity) THEN RAISE EXCEPTION 'a ledger has one row of identity'; END IF;
    RETURN NEW; END$body$;

CREATE OR REPLACE FUNCTION closed_insert() RETURNS trigger LANGUAGE plpgsql SET search_path = dpscale_ledger, pg_catalog, pg_temp AS $body$BEGIN
    IF EXISTS (SELECT FROM closed) THEN RAISE EXCEPTION 'a ledger has one row of closed'; END IF;
    RETURN NEW; END$body$;

CREATE OR REPLACE FUNCTION schema_version_update() RETURNS trigger LANGUAGE plpgsql SET search_path = dpscale_ledger, pg_catalog, pg_temp AS $body$BEGIN RAISE EXCEPTION 'rows of % stay as they are', TG_TABLE_NAME; END$body$;

CREATE OR REPLACE FUNCTION numbers_update() RETURNS trigger LANGUAGE plpgsql SET search_path = dpscale_ledger, pg_catalog, pg_temp AS $body$BEGIN
    IF NEW.name <> OLD.name OR NEW.seq <> OLD.seq + 1 THEN RAISE EXCEPTION 'numbers are given in turn'; END IF;
    RETURN NEW; END$body$;

CREATE OR REPLACE FUNCTION identity_update() RETURNS trigger LANGUAGE plpgsql SET search_path = dpscale_ledger, pg_catalog, pg_temp AS $body$BEGIN RAISE EXCEPTION 'rows of % stay as they are', TG_TABLE_NAME; END$body$;

CREATE OR REPLACE FUNCTION closed_update() RETURNS trigger LANGUAGE plpgsql SET search_path = dpscale_ledger, pg_catalog, pg_temp AS $body$BEGIN RAISE EXCEPTION 'rows of % stay as they are', TG_TABLE_NAME; END$body$;

CREATE OR REPLACE FUNCTION caps_update() RETURNS trigger LANGUAGE plpgsql SET search_path = dpscale_ledger, pg_catalog, pg_temp AS $body$BEGIN RAISE EXCEPTION 'rows of % stay as they are', TG_TABLE_NAME; END$body$;

CREATE OR REPLACE FUNCTION releases_update() RETURNS trigger LANGUAGE plpgsql SET search_path = dpscale_ledger, pg_catalog, pg_temp AS $body$BEGIN
    IF EXISTS (SELECT FROM closed) THEN RAISE EXCEPTION 'this ledger is closed'; END IF;
    IF (NEW.seq, NEW.release, NEW.dataset, NEW.plan_digest, NEW.cost, NEW.epsilon, NEW.delta, NEW.reserved_at)
            IS DISTINCT FROM
            (OLD.seq, OLD.release, OLD.dataset, OLD.plan_digest, OLD.cost, OLD.epsilon, OLD.delta, OLD.reserved_at)
        OR NOT ((OLD.state = 'reserved' AND NEW.state = 'committed'
                    AND NEW.committed_at IS NOT NULL AND NEW.released_at IS NULL)
                OR (OLD.state = 'committed' AND NEW.state = 'released'
                    AND NEW.committed_at IS NOT DISTINCT FROM OLD.committed_at AND NEW.released_at IS NOT NULL))
    THEN RAISE EXCEPTION 'a release only moves forward'; END IF;
    RETURN NEW; END$body$;

CREATE OR REPLACE FUNCTION rounds_update() RETURNS trigger LANGUAGE plpgsql SET search_path = dpscale_ledger, pg_catalog, pg_temp AS $body$BEGIN RAISE EXCEPTION 'rows of % stay as they are', TG_TABLE_NAME; END$body$;

CREATE OR REPLACE FUNCTION protections_update() RETURNS trigger LANGUAGE plpgsql SET search_path = dpscale_ledger, pg_catalog, pg_temp AS $body$BEGIN RAISE EXCEPTION 'rows of % stay as they are', TG_TABLE_NAME; END$body$;

CREATE OR REPLACE FUNCTION terms_update() RETURNS trigger LANGUAGE plpgsql SET search_path = dpscale_ledger, pg_catalog, pg_temp AS $body$BEGIN RAISE EXCEPTION 'rows of % stay as they are', TG_TABLE_NAME; END$body$;

CREATE OR REPLACE FUNCTION links_update() RETURNS trigger LANGUAGE plpgsql SET search_path = dpscale_ledger, pg_catalog, pg_temp AS $body$BEGIN RAISE EXCEPTION 'rows of % stay as they are', TG_TABLE_NAME; END$body$;

CREATE OR REPLACE FUNCTION schema_version_delete() RETURNS trigger LANGUAGE plpgsql SET search_path = dpscale_ledger, pg_catalog, pg_temp AS $body$BEGIN RAISE EXCEPTION 'rows of % stay as they are', TG_TABLE_NAME; END$body$;

CREATE OR REPLACE FUNCTION numbers_delete() RETURNS trigger LANGUAGE plpgsql SET search_path = dpscale_ledger, pg_catalog, pg_temp AS $body$BEGIN RAISE EXCEPTION 'rows of % stay as they are', TG_TABLE_NAME; END$body$;

CREATE OR REPLACE FUNCTION identity_delete() RETURNS trigger LANGUAGE plpgsql SET search_path = dpscale_ledger, pg_catalog, pg_temp AS $body$BEGIN RAISE EXCEPTION 'rows of % stay as they are', TG_TABLE_NAME; END$body$;

CREATE OR REPLACE FUNCTION closed_delete() RETURNS trigger LANGUAGE plpgsql SET search_path = dpscale_ledger, pg_catalog, pg_temp AS $body$BEGIN RAISE EXCEPTION 'rows of % stay as they are', TG_TABLE_NAME; END$body$;

CREATE OR REPLACE FUNCTION caps_delete() RETURNS trigger LANGUAGE plpgsql SET search_path = dpscale_ledger, pg_catalog, pg_temp AS $body$BEGIN RAISE EXCEPTION 'rows of % stay as they are', TG_TABLE_NAME; END$body$;

CREATE OR REPLACE FUNCTION releases_delete() RETURNS trigger LANGUAGE plpgsql SET search_path = dpscale_ledger, pg_catalog, pg_temp AS $body$BEGIN RAISE EXCEPTION 'rows of % stay as they are', TG_TABLE_NAME; END$body$;

CREATE OR REPLACE FUNCTION rounds_delete() RETURNS trigger LANGUAGE plpgsql SET search_path = dpscale_ledger, pg_catalog, pg_temp AS $body$BEGIN RAISE EXCEPTION 'rows of % stay as they are', TG_TABLE_NAME; END$body$;

CREATE OR REPLACE FUNCTION protections_delete() RETURNS trigger LANGUAGE plpgsql SET search_path = dpscale_ledger, pg_catalog, pg_temp AS $body$BEGIN RAISE EXCEPTION 'rows of % stay as they are', TG_TABLE_NAME; END$body$;

CREATE OR REPLACE FUNCTION terms_delete() RETURNS trigger LANGUAGE plpgsql SET search_path = dpscale_ledger, pg_catalog, pg_temp AS $body$BEGIN RAISE EXCEPTION 'rows of % stay as they are', TG_TABLE_NAME; END$body$;

CREATE OR REPLACE FUNCTION links_delete() RETURNS trigger LANGUAGE plpgsql SET search_path = dpscale_ledger, pg_catalog, pg_temp AS $body$BEGIN RAISE EXCEPTION 'rows of % stay as they are', TG_TABLE_NAME; END$body$;

CREATE OR REPLACE FUNCTION schema_version_truncate() RETURNS trigger LANGUAGE plpgsql SET search_path = dpscale_ledger, pg_catalog, pg_temp AS $body$BEGIN RAISE EXCEPTION 'rows of % stay as they are', TG_TABLE_NAME; END$body$;

CREATE OR REPLACE FUNCTION numbers_truncate() RETURNS trigger LANGUAGE plpgsql SET search_path = dpscale_ledger, pg_catalog, pg_temp AS $body$BEGIN RAISE EXCEPTION 'rows of % stay as they are', TG_TABLE_NAME; END$body$;

CREATE OR REPLACE FUNCTION identity_truncate() RETURNS trigger LANGUAGE plpgsql SET search_path = dpscale_ledger, pg_catalog, pg_temp AS $body$BEGIN RAISE EXCEPTION 'rows of % stay as they are', TG_TABLE_NAME; END$body$;

CREATE OR REPLACE FUNCTION closed_truncate() RETURNS trigger LANGUAGE plpgsql SET search_path = dpscale_ledger, pg_catalog, pg_temp AS $body$BEGIN RAISE EXCEPTION 'rows of % stay as they are', TG_TABLE_NAME; END$body$;

CREATE OR REPLACE FUNCTION caps_truncate() RETURNS trigger LANGUAGE plpgsql SET search_path = dpscale_ledger, pg_catalog, pg_temp AS $body$BEGIN RAISE EXCEPTION 'rows of % stay as they are', TG_TABLE_NAME; END$body$;

CREATE OR REPLACE FUNCTION releases_truncate() RETURNS trigger LANGUAGE plpgsql SET search_path = dpscale_ledger, pg_catalog, pg_temp AS $body$BEGIN RAISE EXCEPTION 'rows of % stay as they are', TG_TABLE_NAME; END$body$;

CREATE OR REPLACE FUNCTION rounds_truncate() RETURNS trigger LANGUAGE plpgsql SET search_path = dpscale_ledger, pg_catalog, pg_temp AS $body$BEGIN RAISE EXCEPTION 'rows of % stay as they are', TG_TABLE_NAME; END$body$;

CREATE OR REPLACE FUNCTION protections_truncate() RETURNS trigger LANGUAGE plpgsql SET search_path = dpscale_ledger, pg_catalog, pg_temp AS $body$BEGIN RAISE EXCEPTION 'rows of % stay as they are', TG_TABLE_NAME; END$body$;

CREATE OR REPLACE FUNCTION terms_truncate() RETURNS trigger LANGUAGE plpgsql SET search_path = dpscale_ledger, pg_catalog, pg_temp AS $body$BEGIN RAISE EXCEPTION 'rows of % stay as they are', TG_TABLE_NAME; END$body$;

CREATE OR REPLACE FUNCTION links_truncate() RETURNS trigger LANGUAGE plpgsql SET search_path = dpscale_ledger, pg_catalog, pg_temp AS $body$BEGIN RAISE EXCEPTION 'rows of % stay as they are', TG_TABLE_NAME; END$body$;

CREATE TRIGGER caps_insert BEFORE INSERT ON caps FOR EACH ROW EXECUTE FUNCTION caps_insert();

CREATE TRIGGER releases_insert BEFORE INSERT ON releases FOR EACH ROW EXECUTE FUNCTION releases_insert();

CREATE TRIGGER rounds_insert BEFORE INSERT ON rounds FOR EACH ROW EXECUTE FUNCTION rounds_insert();

CREATE TRIGGER protections_insert BEFORE INSERT ON protections FOR EACH ROW EXECUTE FUNCTION protections_insert();

CREATE TRIGGER terms_insert BEFORE INSERT ON terms FOR EACH ROW EXECUTE FUNCTION terms_insert();

CREATE TRIGGER links_insert BEFORE INSERT ON links FOR EACH ROW EXECUTE FUNCTION links_insert();

CREATE TRIGGER identity_insert BEFORE INSERT ON identity FOR EACH ROW EXECUTE FUNCTION identity_insert();

CREATE TRIGGER closed_insert BEFORE INSERT ON closed FOR EACH ROW EXECUTE FUNCTION closed_insert();

CREATE TRIGGER schema_version_update BEFORE UPDATE ON schema_version FOR EACH ROW EXECUTE FUNCTION schema_version_update();

CREATE TRIGGER numbers_update BEFORE UPDATE ON numbers FOR EACH ROW EXECUTE FUNCTION numbers_update();

CREATE TRIGGER identity_update BEFORE UPDATE ON identity FOR EACH ROW EXECUTE FUNCTION identity_update();

CREATE TRIGGER closed_update BEFORE UPDATE ON closed FOR EACH ROW EXECUTE FUNCTION closed_update();

CREATE TRIGGER caps_update BEFORE UPDATE ON caps FOR EACH ROW EXECUTE FUNCTION caps_update();

CREATE TRIGGER releases_update BEFORE UPDATE ON releases FOR EACH ROW EXECUTE FUNCTION releases_update();

CREATE TRIGGER rounds_update BEFORE UPDATE ON rounds FOR EACH ROW EXECUTE FUNCTION rounds_update();

CREATE TRIGGER protections_update BEFORE UPDATE ON protections FOR EACH ROW EXECUTE FUNCTION protections_update();

CREATE TRIGGER terms_update BEFORE UPDATE ON terms FOR EACH ROW EXECUTE FUNCTION terms_update();

CREATE TRIGGER links_update BEFORE UPDATE ON links FOR EACH ROW EXECUTE FUNCTION links_update();

CREATE TRIGGER schema_version_delete BEFORE DELETE ON schema_version FOR EACH ROW EXECUTE FUNCTION schema_version_delete();

CREATE TRIGGER numbers_delete BEFORE DELETE ON numbers FOR EACH ROW EXECUTE FUNCTION numbers_delete();

CREATE TRIGGER identity_delete BEFORE DELETE ON identity FOR EACH ROW EXECUTE FUNCTION identity_delete();

CREATE TRIGGER closed_delete BEFORE DELETE ON closed FOR EACH ROW EXECUTE FUNCTION closed_delete();

CREATE TRIGGER caps_delete BEFORE DELETE ON caps FOR EACH ROW EXECUTE FUNCTION caps_delete();

CREATE TRIGGER releases_delete BEFORE DELETE ON releases FOR EACH ROW EXECUTE FUNCTION releases_delete();

CREATE TRIGGER rounds_delete BEFORE DELETE ON rounds FOR EACH ROW EXECUTE FUNCTION rounds_delete();

CREATE TRIGGER protections_delete BEFORE DELETE ON protections FOR EACH ROW EXECUTE FUNCTION protections_delete();

CREATE TRIGGER terms_delete BEFORE DELETE ON terms FOR EACH ROW EXECUTE FUNCTION terms_delete();

CREATE TRIGGER links_delete BEFORE DELETE ON links FOR EACH ROW EXECUTE FUNCTION links_delete();

CREATE TRIGGER schema_version_truncate BEFORE TRUNCATE ON schema_version FOR EACH STATEMENT EXECUTE FUNCTION schema_version_truncate();

CREATE TRIGGER numbers_truncate BEFORE TRUNCATE ON numbers FOR EACH STATEMENT EXECUTE FUNCTION numbers_truncate();

CREATE TRIGGER identity_truncate BEFORE TRUNCATE ON identity FOR EACH STATEMENT EXECUTE FUNCTION identity_truncate();

CREATE TRIGGER closed_truncate BEFORE TRUNCATE ON closed FOR EACH STATEMENT EXECUTE FUNCTION closed_truncate();

CREATE TRIGGER caps_truncate BEFORE TRUNCATE ON caps FOR EACH STATEMENT EXECUTE FUNCTION caps_truncate();

CREATE TRIGGER releases_truncate BEFORE TRUNCATE ON releases FOR EACH STATEMENT EXECUTE FUNCTION releases_truncate();

CREATE TRIGGER rounds_truncate BEFORE TRUNCATE ON rounds FOR EACH STATEMENT EXECUTE FUNCTION rounds_truncate();

CREATE TRIGGER protections_truncate BEFORE TRUNCATE ON protections FOR EACH STATEMENT EXECUTE FUNCTION protections_truncate();

CREATE TRIGGER terms_truncate BEFORE TRUNCATE ON terms FOR EACH STATEMENT EXECUTE FUNCTION terms_truncate();

CREATE TRIGGER links_truncate BEFORE TRUNCATE ON links FOR EACH STATEMENT EXECUTE FUNCTION links_truncate();
