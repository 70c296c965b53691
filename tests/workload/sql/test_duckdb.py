"""Generated SELECT statements have the answers of DuckDB on the exact data, at negligible noise.

Documented rules: groups without records have rows too, a value outside the domain is the group (outside), ratios of
empty groups are missing, and a sum of no values is 0.
"""

import math
import random
from datetime import date, timedelta

import duckdb
import numpy as np
import pandas as pd
import pytest

import dpscale as dp

ROWS = 3000
STATEMENTS, NIGHTLY = 80, 1250  # of each schema


class Schema:
    """Columns with the conditions, groups and numeric arguments that a generator chooses from."""

    def __init__(self, conditions, groups, numbers, quantiles=(), source="t"):
        self.conditions, self.groups, self.numbers, self.quantiles = conditions, groups, numbers, quantiles
        self.source = source

    def condition(self, draw, depth=2):
        kind = draw.random()
        if depth == 0 or kind < 0.55:
            return draw.choice(self.conditions)
        if kind < 0.65:
            return f"NOT ({self.condition(draw, depth - 1)})"
        word = "AND" if kind < 0.85 else "OR"
        return f"({self.condition(draw, depth - 1)} {word} {self.condition(draw, depth - 1)})"

    def aggregate(self, draw):
        number, condition = draw.choice(self.numbers), self.condition(draw, 1)
        forms = [
            f"COUNT(*) FILTER (WHERE {condition})", f"SUM({number})", f"AVG({number})", f"COUNT({number})",
            f"SUM(CASE WHEN {draw.choice(self.conditions)} THEN {number} ELSE 0 END)",
            f"AVG(CASE WHEN {draw.choice(self.conditions)} THEN 1.0 ELSE 0.0 END)",
            f"100.0 * COUNT(*) FILTER (WHERE {condition}) / COUNT(*)",
            f"COUNT(*) - COUNT(*) FILTER (WHERE {condition})", f"SUM({number}) / COUNT(*)",
            f"AVG({number}) FILTER (WHERE {draw.choice(self.conditions)})", f"SUM(2 * {number})",
            f"AVG({number}) FILTER (WHERE {draw.choice(self.conditions)}) - AVG({number})",
            f"STDDEV_SAMP({number})", f"VAR_POP({number})",
            f"COUNT(CASE WHEN {draw.choice(self.conditions)} THEN 1 END)",
        ]  # fmt: skip
        return draw.choice(forms)

    def statement(self, draw, name):
        """Return a statement whose WHERE some record satisfies; others are refused."""
        groups = draw.sample(self.groups, draw.choice([0, 1, 1, 2, 2]))
        aggregates = [self.aggregate(draw) for _ in range(draw.choice([1, 2, 3]))]
        columns = [f"{group} AS g{place}" for place, group in enumerate(groups)]
        columns += ["COUNT(*) AS n", *(f"{one} AS v{place}" for place, one in enumerate(aggregates))]
        text = f"SELECT {', '.join(columns)} FROM {self.source}"
        if draw.random() < 0.6:
            text += f" WHERE {self.condition(draw)}"
        if groups:
            listed = ", ".join(f"g{place}" for place in range(len(groups)))
            form = draw.choice(["{}", "{}", "{}", "ROLLUP ({})", "CUBE ({})"])
            text += f" GROUP BY {form.format(listed)}"
        return f"-- name: {name}\n{text}"


def numbers_table(rows, rng):
    frame = pd.DataFrame({
        "age": rng.integers(0, 24, rows), "score": rng.integers(0, 5, rows).astype(object),
        "fare": rng.integers(0, 401, rows) / 4, "tip": rng.integers(0, 41, rows) / 2.0,
        "sex": rng.choice(["F", "M"], rows),
    })  # fmt: skip
    frame.loc[rng.random(rows) < 0.1, "score"] = None
    frame.loc[rng.random(rows) < 0.1, "tip"] = np.nan
    frame["score"] = frame["score"].astype("Int64")
    return frame


NUMBERS = Schema(
    ["age < 10", "age BETWEEN 5 AND 20", "score = 3", "score <> 2", "score IN (1, 2)", "score IS NULL", "sex = 'F'",
     "score IS NOT NULL", "age % 2 = 0", "score >= 2", "age NOT IN (1, 2, 3)", "age + 1 > 15", "score > 4"],
    ["sex", "score", "CASE WHEN age < 10 THEN 'young' WHEN age < 20 THEN 'middle' ELSE 'old' END", "age // 10",
     "score >= 2", "COALESCE(score, -1)"],
    ["age", "score", "fare", "tip"],
)  # fmt: skip
NUMBERS_DOMAIN = {
    "attributes": {
        "age": {"kind": "integer", "low": 0, "high": 23},
        "score": {"kind": "integer", "low": 0, "high": 4, "nulls": "category"},
        "sex": {"kind": "categories", "values": ["F", "M"]},
    },
    "numbers": {
        "fare": {"low": 0, "high": 100, "step": 0.25},
        "tip": {"low": 0, "high": 20, "step": 0.5, "nulls": "skip"},
    },
}


def dates_table(rows, rng):
    days = [date(2023, 12, 20) + timedelta(int(one)) for one in rng.integers(0, 24, rows)]
    months = [date(2024, int(one), 1) for one in rng.integers(1, 13, rows)]
    frame = pd.DataFrame({"day": days, "month_of": months, "code": rng.choice(["A10", "A11", "B20", "C3", None], rows)})
    frame["visits"] = rng.integers(0, 4, rows)
    frame["old"] = rng.random(rows) < 0.3
    return frame


DATES = Schema(
    ["day >= DATE '2024-01-01'", "day < '2024-01-07'", "day BETWEEN DATE '2023-12-28' AND DATE '2024-01-05'",
     "code LIKE 'A%'", "code NOT LIKE 'A%'", "code IS NULL", "code IN ('B20', 'C3')", "old", "NOT old", "old = true",
     "year(day) = 2024", "month_of >= DATE '2024-07-01'", "quarter(month_of) IN (1, 4)", "substr(code, 1, 1) = 'A'",
     "visits = 0", "extract(month FROM day) = 1", "length(code) = 3", "old IS NOT FALSE"],
    ["date_trunc('month', day)", "year(day)", "code", "substr(code, 1, 1)", "old", "quarter(month_of)", "visits",
     "extract(dow FROM day)", "upper(code) || '!'", "CASE WHEN code IS NULL THEN 'none' ELSE left(code, 1) END"],
    ["visits", "CAST(old AS INTEGER)", "CASE WHEN old THEN visits END"],
)  # fmt: skip
DATES_DOMAIN = {
    "attributes": {
        "day": {"kind": "date", "by": "day", "low": "2023-12-20", "high": "2024-01-12"},
        "month_of": {"kind": "date", "by": "month", "low": "2024-01", "high": "2024-12"},
        "code": {"kind": "categories", "values": ["A10", "A11", "B20", "C3"], "nulls": "category"},
        "visits": {"kind": "integer", "low": 0, "high": 3},
        "old": {"kind": "boolean"},
    }
}


def trees_table(rows, rng):
    towns = rng.choice(["Graz", "Linz", "Wien", "Bonn", "Ulm"], rows)
    country = {"Graz": "AT", "Linz": "AT", "Wien": "AT", "Bonn": "DE", "Ulm": "DE"}
    return pd.DataFrame({
        "town": towns, "country": [country[one] for one in towns], "size": rng.integers(0, 6, rows),
        "kind": rng.choice(["x", "y", "z"], rows),
    })  # fmt: skip


TREES = Schema(
    ["country = 'AT'", "town IN ('Bonn', 'Graz')", "town <> 'Ulm'", "size > 2", "kind = 'x'", "kind IN ('x', 'y')",
     "town LIKE '%n%'", "size BETWEEN 1 AND 4", "size = 0"],
    ["country", "town", "kind", "size", "size > 3", "CASE town WHEN 'Wien' THEN 'capital' ELSE 'other' END"],
    ["size", "2 * size", "CASE WHEN kind = 'x' THEN size ELSE 0 END"],
)  # fmt: skip
TREES_DOMAIN = {
    "attributes": {
        "town": {"kind": "categories", "values": ["Graz", "Linz", "Wien", "Bonn", "Ulm"],
                 "parent": {"country": {"AT": ["Graz", "Linz", "Wien"], "DE": ["Bonn", "Ulm"]}}},
        "size": {"kind": "integer", "low": 0, "high": 5},
        "kind": {"kind": "categories", "values": ["x", "y", "z"]},
    }
}  # fmt: skip
TABLES = {
    "numbers": (NUMBERS, numbers_table, NUMBERS_DOMAIN),
    "dates": (DATES, dates_table, DATES_DOMAIN),
    "trees": (TREES, trees_table, TREES_DOMAIN),
}


FIXED = (  # expressions that resemble columns, three-valued HAVING, scopes of WITH
    "SELECT age + 1 AS g0, COUNT(*) AS n FROM t GROUP BY age + 1 HAVING age + 1 > 3",
    "SELECT k AS g0, COUNT(*) AS n FROM (SELECT age + 1 AS k FROM t) AS q GROUP BY k HAVING k > 3",
    "SELECT -age AS g0, COUNT(*) AS n FROM t GROUP BY -age HAVING -age < -2",
    "SELECT score AS g0, COUNT(*) AS n FROM t GROUP BY score HAVING NOT score > 2",
    "SELECT score AS g0, COUNT(*) AS n FROM t GROUP BY score HAVING score NOT IN (1, 2)",
    "SELECT score AS g0, COUNT(*) AS n FROM t GROUP BY score HAVING NOT (score > 2 OR COUNT(*) < 0)",
    "SELECT score AS g0, COUNT(*) AS n FROM t GROUP BY score HAVING score NOT BETWEEN 0 AND 2 OR COUNT(*) > 500",
    "SELECT sex || 'A' AS g0, sex || 'a' AS g1, COUNT(*) AS n FROM t GROUP BY g0, g1",
    "SELECT sex AS g0, COUNT(*) AS n FROM t GROUP BY GROUPING SETS ((sex), (sex), ())",
    "SELECT (age - 12) // 5 AS g0, (age - 12) % 5 AS g1, COUNT(*) AS n FROM t GROUP BY g0, g1",
    "SELECT sex AS g0, COUNT(*) AS n, COUNT(*) / (COUNT(*) FILTER (WHERE age > 3) - COUNT(*)) AS v0 FROM t GROUP BY g0",
    "SELECT COUNT(*) AS n, SUM(age * age) AS v0, SUM(CAST(score AS BOOLEAN)) AS v1, COUNT(age + 1) AS v2 FROM t",
    "WITH q AS (SELECT age, sex FROM t WHERE age > 2), r AS (SELECT * FROM q) SELECT COUNT(*) AS n, SUM(age) AS v0"
    " FROM (WITH q AS (SELECT age FROM t WHERE age > 9) SELECT age FROM r) AS z",
    # joint conditions that a null makes unknown, in CASE whose other records add nothing
    "SELECT COUNT(*) AS n, COUNT(CASE WHEN score > 2 AND age > 9 THEN 1 END) AS v0,"
    " AVG(CASE WHEN score IS NOT NULL AND age > 9 THEN fare ELSE NULL END) AS v1,"
    " SUM(CASE WHEN score > 2 AND age > 9 THEN fare ELSE (0) END) AS v2,"
    " SUM(2 * CASE WHEN sex = 'F' THEN CASE WHEN score > 2 AND age > 9 THEN fare ELSE 0 END ELSE 1 END) AS v3 FROM t",
    "WITH q AS (SELECT *, age // 6 AS d FROM t) SELECT d AS g0, COUNT(*) AS n FROM q WHERE sex = 'F' GROUP BY d",
)


def statements(schema, seed, count):
    draw = random.Random(seed)
    return [schema.statement(draw, f"s{place}") for place in range(count)]


def plain(value):
    """Return a label as a text that is equal in both systems."""
    if value is None or value is pd.NaT or value != value:
        return None
    if isinstance(value, bool | np.bool_):
        return str(bool(value))
    if isinstance(value, int | float | np.integer | np.floating):
        return f"{float(value):g}"
    return str(value)[:10] if hasattr(value, "year") else str(value)


def rows_of(frame, least=0.5):
    """Return the values of the rows with records, by the labels of their groups."""
    groups = [name for name in frame.columns if name.startswith("g") and "_" not in name]
    values = [name for name in frame.columns if name.startswith(("n", "v")) and "_" not in name]
    found = {}
    for row in frame.to_dict("records"):
        if row["n"] >= least or not groups:
            key = tuple(plain(row[name]) for name in groups)
            found.setdefault(key, []).append(
                [float("nan") if pd.isna(row[name]) else float(row[name]) for name in values]
            )
    return {key: sorted(rows, key=lambda row: (-row[0], row[1:2])) for key, rows in found.items()}


def differences(texts, release, connection):
    """Return the statements whose rows differ from those of DuckDB."""
    wrong = []
    for text in texts:
        name = text.split("\n")[0].removeprefix("-- name: ")
        exact, mine = rows_of(connection.execute(text).df()), rows_of(release.query(name))
        same = exact.keys() == mine.keys() and all(
            len(exact[key]) == len(mine[key])
            and all(_close(a, b) for one, other in zip(exact[key], mine[key], strict=True)
                    for a, b in zip(one, other, strict=True))
            for key in exact
        )  # fmt: skip
        if not same:
            wrong.append((text, exact, mine))
    return wrong


def _close(exact, mine):
    """Return whether an estimate is the exact value; missing estimates are those of empty groups or of one record."""
    if math.isnan(exact):
        return math.isnan(mine) or abs(mine) < 1e-2
    return math.isclose(exact, mine, rel_tol=1e-3, abs_tol=2e-2)


def kept(texts, domain):
    """Return the statements whose WHERE some cell satisfies; others are refused."""
    found = []
    for text in texts:
        try:
            dp.Workload(domain).add_sql(text)
            found.append(text)
        except dp.JobError as error:
            if "some cell satisfies" not in str(error):
                raise
    return found


def released(texts, frame, domain, folder):
    """Return the release of statements on a table, at negligible noise."""
    (folder / "t.domain.toml").write_bytes(domain.to_files("t.domain.toml")["t.domain.toml"])
    frame.to_parquet(folder / "t.parquet")
    job = {
        "data": {"path": str(folder / "t.parquet"), "domain": str(folder / "t.domain.toml")},
        "workload": [{"query": ";\n".join(texts)}],
        "mechanism": {"name": "residual-planner"},  # plans in closed form; queries are in the span of its marginals
    }
    return dp.run(job | privacy(folder), run_dir=folder / "run")


def privacy(folder, **more):
    negligible = {"privacy_cost": 1e12, "allow_weak_privacy": True, "ledger": str(folder / "ledger.sqlite")}
    return {"privacy": negligible | more}


def check(name, seed, count, folder):
    """Assert that the statements of a schema have the rows of DuckDB."""
    schema, table, content = TABLES[name]
    domain = dp.Domain.from_dict(content).with_squares(["fare", "tip"])
    fixed = [f"-- name: f{place}\n{text}" for place, text in enumerate(FIXED)] if name == "numbers" else []
    frame, texts = table(ROWS, np.random.default_rng(5)), kept([*statements(schema, seed, count), *fixed], domain)
    assert len(texts) > 0.9 * count
    release = released(texts, frame, domain, folder)
    connection = duckdb.connect().register("t", frame)
    wrong = differences(texts, release, connection)
    assert not wrong, f"{len(wrong)} of {len(texts)}: {wrong[0]}"


@pytest.mark.parametrize("name", TABLES)
def test_statements_have_the_rows_of_duckdb(name, tmp_path):
    check(name, 7, STATEMENTS, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("part", range(16))
def test_many_statements_have_the_rows_of_duckdb(name, part, tmp_path):
    check(name, 100 + part, NIGHTLY // 16, tmp_path)


def test_planted_difference_is_detected(tmp_path):
    """A negated condition that loses its negation changes rows."""
    text = "-- name: s0\nSELECT sex AS g0, COUNT(*) AS n FROM t WHERE score <> 2 GROUP BY g0"
    frame = numbers_table(ROWS, np.random.default_rng(5))
    release = released([text], frame, dp.Domain.from_dict(NUMBERS_DOMAIN), tmp_path)
    connection = duckdb.connect().register("t", frame)
    assert differences([text], release, connection) == []
    assert differences([text.replace("<>", "=")], release, connection)


HOSPITAL = Schema(
    ["p.age < 40", "p.sex = 'F'", "e.kind = 'inpatient'", "e.kind <> 'emergency'", "e.month BETWEEN 3 AND 8",
     "e.month IN (1, 12)", "p.age >= 65", "e.kind LIKE '%patient'"],
    ["p.sex", "e.kind", "e.month", "(e.month + 2) // 3", "CASE WHEN p.age < 40 THEN 'young' ELSE 'old' END"],
    ["e.month", "CASE WHEN p.sex = 'F' THEN e.month ELSE 0 END"],
    source="encounters e JOIN patients p USING (patient)",
)  # fmt: skip
HOSPITAL_DOMAINS = {
    "patients": {"age": {"kind": "bins", "edges": [0, 40, 65, 100]},
                 "sex": {"kind": "categories", "values": ["F", "M"]}},
    "encounters": {"month": {"kind": "integer", "low": 1, "high": 12},
                   "kind": {"kind": "categories", "values": ["emergency", "inpatient", "outpatient"]}},
}  # fmt: skip


def hospital(rows, rng):
    """Return patients and at most six encounters of each."""
    count = rows // 4
    patients = pd.DataFrame({"patient": [f"P{one}" for one in range(count)], "age": rng.integers(0, 95, count),
                             "sex": rng.choice(["F", "M"], count)})  # fmt: skip
    encounters = pd.DataFrame({
        "encounter": np.arange(rows), "patient": [f"P{one}" for one in rng.integers(0, count, rows)],
        "month": rng.integers(1, 13, rows), "kind": rng.choice(["emergency", "inpatient", "outpatient"], rows),
    })  # fmt: skip
    return {"patients": patients, "encounters": encounters.groupby("patient").head(6)}


def test_joins_have_the_rows_of_duckdb(tmp_path):
    check_joins(7, STATEMENTS, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(50))
def test_many_joins_have_the_rows_of_duckdb(part, tmp_path):
    check_joins(100 + part, NIGHTLY // 50, tmp_path)


@pytest.mark.parametrize("text", [
    "SELECT SUM(e.fee) AS v1, AVG(e.fee) AS v2, 1 AS n",  # reads no attribute
    "SELECT SUM(e.fee) AS v1, COUNT(*) AS n",
    "SELECT p.sex AS g, AVG(e.fee) AS v1, COUNT(*) AS n",
])  # fmt: skip
def test_numbers_of_joins_are_those_of_duckdb(text, tmp_path):
    frames = hospital(ROWS, np.random.default_rng(5))
    encounters = frames["encounters"]
    frames["encounters"] = encounters.assign(fee=np.random.default_rng(6).integers(0, 200, len(encounters)))
    tables = write_tables(frames, HOSPITAL_DOMAINS, tmp_path, encounters={"fee": {"low": 0, "high": 200}})
    link = {"kind": "one-to-many", "parent": "patients", "child": "encounters", "child_key": "patient", "max_degree": 6}
    query = f"-- name: fees\n{text} FROM {HOSPITAL.source}" + (" GROUP BY p.sex" if "p.sex" in text else "")
    job = {"tables": tables, "link": [link], "workload": [{"query": query}]}
    release = dp.run(job | privacy(tmp_path, unit="patients", dataset="hospital"), run_dir=tmp_path / "run")
    connection = duckdb.connect()
    for name, frame in frames.items():
        connection.register(name, frame)
    assert not differences([query], release, connection)


def write_tables(frames, domains, folder, **numbers):
    """Write tables and their domain files, and return their sections of a job."""
    tables = {}
    for name, frame in frames.items():
        frame.to_parquet(folder / f"{name}.parquet")
        file = f"{name}.domain.toml"
        domain = dp.Domain.from_dict({"attributes": domains[name], "numbers": numbers.get(name, {})})
        (folder / file).write_bytes(domain.to_files(file)[file])
        tables[name] = {"path": str(folder / f"{name}.parquet"), "domain": str(folder / file), "key": name[:-1],
                        "workload": [{"family": "marginal", "degree": 2}]}  # fmt: skip
    return tables


def check_joins(seed, count, tmp_path):
    """Assert that statements on the join of two tables have the rows of DuckDB."""
    frames, texts = hospital(ROWS, np.random.default_rng(5)), statements(HOSPITAL, seed, count)
    tables = write_tables(frames, HOSPITAL_DOMAINS, tmp_path)
    joined = dp.Domain.from_dict({
        "attributes": {f"{name}.{own}": keys for name, table in HOSPITAL_DOMAINS.items() for own, keys in table.items()}
    })  # fmt: skip
    chosen = kept(texts, joined)
    link = {"kind": "one-to-many", "parent": "patients", "child": "encounters", "child_key": "patient", "max_degree": 6}
    job = {"tables": tables, "link": [link], "workload": [{"query": ";\n".join(chosen)}],
           "joins": {"encounters-patients": {"mechanism": {"name": "residual-planner"}}}}  # fmt: skip
    release = dp.run(job | privacy(tmp_path, unit="patients", dataset="hospital"), run_dir=tmp_path / "run")
    connection = duckdb.connect()
    for name, frame in frames.items():
        connection.register(name, frame)
    wrong = differences(chosen, release, connection)
    assert not wrong, f"{len(wrong)} of {len(chosen)}: {wrong[0]}"
