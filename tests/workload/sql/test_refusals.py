"""Wrong SQL ends in one sentence with the place, the reason and the nearest form."""

import pytest

import dpscale as dp
from dpscale.base.errors import JobError
from dpscale.workload.sql.selection import select
from dpscale.workload.sql.statements import read_statements
from tests.messages import refused

DOMAIN = dp.Domain.from_dict({
    "attributes": {
        "age": {"kind": "integer", "low": 0, "high": 90},
        "sex": {"kind": "categories", "values": ["F", "M"]},
        "income": {"kind": "bins", "edges": [0, 10, 20, 50]},
        "month": {"kind": "date", "by": "month", "low": "2024-01", "high": "2024-12"},
        "code": {"kind": "categories", "values": ["A1", "A2", "B1"], "nulls": "category", "outside": "category"},
        "zone": {"kind": "categories", "values": ["01", "1", "7"]},
        "wide": {"kind": "coded", "size": 70000},
        "broad": {"kind": "coded", "size": 70000},
    },
    "numbers": {"fare": {"low": 0, "high": 100}},
})  # fmt: skip
WRONG = {  # statement: part that is underlined, words of the reason or remedy
    "SELECT COUNT(* FROM t": ("FROM", "correct the syntax"),
    "SELECT sexx, COUNT(*) FROM t GROUP BY sexx": ("sexx", "did you mean 'sex'"),
    "SELECT COUNT(*)": ("SELECT", "FROM"),
    "SELECT MAX(age) FROM t": ("MAX(age)", "QUANTILE_CONT"),
    "SELECT MIN(fare) FROM t": ("MIN(fare)", "QUANTILE_CONT"),
    "SELECT * FROM t": ("*", "COUNT(*)"),
    "SELECT sex FROM t GROUP BY sex": ("SELECT", "add COUNT(*)"),
    "SELECT age, COUNT(*) FROM t GROUP BY sex": ("age", "GROUP BY age"),
    "SELECT COUNT(*) FROM t WHERE fare > 10": ("fare", "bins with from = 'fare'"),
    "SELECT fare, COUNT(*) FROM t GROUP BY fare": ("fare", "bins with from = 'fare'"),
    "SELECT COUNT(*) FROM t WHERE sex = 'X'": ("sex = 'X'", "there are: F, M"),
    "SELECT COUNT(*) FROM t WHERE sex IN ('F', 'Q')": ("sex IN ('F', 'Q')", "there are: F, M"),
    "SELECT COUNT(*) FROM t WHERE zone = 01": ("zone = 01", "write '01'"),
    "SELECT COUNT(*) FROM t WHERE zone IN (7, 1)": ("zone IN (7, 1)", "write '1'"),
    "SELECT SUM(CASE zone WHEN 1.0 THEN 1 END) FROM t": ("zone WHEN 1.0", "write '01'"),
    "SELECT COUNT(*) FROM t WHERE zone = 007": ("zone = 007", "write '7'"),
    "SELECT COUNT(*) FROM t WHERE income < 15": ("income < 15", "move the cut"),
    "SELECT COUNT(*) FROM t WHERE month >= DATE '2024-01-15'": ("month >= DATE '2024-01-15'", "write 2024-01-01"),
    "SELECT COUNT(*) FROM t WHERE month = DATE '2024-01-15'": ("month = DATE '2024-01-15'", "date_trunc('month'"),
    "SELECT date_trunc('day', month) AS d, COUNT(*) FROM t GROUP BY d": ("date_trunc('day', month)", "whole months"),
    "SELECT AVG(income) FROM t": ("AVG(income)", "bins"),
    "SELECT SUM(sex) FROM t": ("SUM(sex)", "count it"),
    "SELECT SUM(fare * age) FROM t": ("fare * age", 'family = "moments"'),
    "SELECT AVG(fare) - COUNT(*) FROM t": ("AVG(fare) - COUNT(*)", "subtract them"),
    "SELECT AVG(fare) / AVG(age) FROM t": ("AVG(fare) / AVG(age)", "divide them"),
    "SELECT COUNT(DISTINCT sex) FROM t": ("COUNT(DISTINCT sex)", "leave DISTINCT out"),
    "SELECT SUM(DISTINCT age) FROM t": ("SUM(DISTINCT age)", "without DISTINCT"),
    "SELECT DISTINCT sex, COUNT(*) FROM t GROUP BY sex": ("", "leave it out"),
    "SELECT COUNT(*) OVER () FROM t": ("COUNT(*)", "without OVER"),
    "SELECT COUNT(*) FROM t WHERE age > sex": ("age > sex", "values of one type"),
    "SELECT COUNT(*) FROM t WHERE wide < 5 OR broad < 7": ("wide < 5 OR broad < 7", "AND"),
    "SELECT COUNT(*) FROM t WHERE age > 50 AND age < 20": ("age > 50 AND age < 20", "some cell satisfies"),
    "SELECT COUNT(*) FROM t WHERE age LIKE '1%'": ("age LIKE '1%'", "compare numbers"),
    "SELECT soundex(code) AS s, COUNT(*) FROM t GROUP BY s": ("soundex(code)", "use one of these"),
    "SELECT age + wide AS s, COUNT(*) FROM t GROUP BY s": ("age + wide", "one attribute"),
    "SELECT sex, COUNT(*) FROM t GROUP BY 3": ("3", "from 1 to 2"),
    "SELECT COUNT(*) FROM t GROUP BY COUNT(*)": ("COUNT(*)", "group by attributes"),
    "SELECT COUNT(*) AS n, COUNT(*) AS n FROM t": ("n", "another name"),
    "SELECT COUNT(*) FROM t LIMIT 2.5": ("", "a whole number"),
    "SELECT COUNT(*) FROM a LEFT JOIN b USING (k)": ("", "rows with a partner"),
    "SELECT COUNT(*) FROM (SELECT sex, COUNT(*) FROM t GROUP BY sex)": ("COUNT(*)", "filters or renames"),
    "SELECT COUNT(*) FROM t UNION SELECT COUNT(*) FROM t": ("", "a statement of its own"),
    "INSERT INTO t VALUES (1)": ("", "write SELECT"),
    "DROP TABLE t": ("", "write SELECT"),
    "SELECT QUANTILE_CONT(age, 1.5) FROM t": ("QUANTILE_CONT(age, 1.5)", "between 0 and 1"),
    "SELECT MEDIAN(fare) FROM t": ("MEDIAN(fare)", "bins with from = 'fare'"),
    "SELECT COUNT(*) / 0 FROM t": ("0", "other than 0"),
    "SELECT COUNT(*) * COUNT(*) FROM t": ("COUNT(*) * COUNT(*)", "multiply by a number"),
    "SELECT sex, COUNT(*) FROM t GROUP BY sex HAVING MAX(age) > 3": ("MAX(age)", "QUANTILE_CONT"),
    "SELECT COUNT(*) FROM t WHERE month > 'soon'": ("month > 'soon'", "month"),
    "SELECT wide, broad, COUNT(*) FROM t GROUP BY wide, broad": ("", "fewer attributes"),
    "SELECT SUM(code) FROM t": ("SUM(code)", "numbers"),
    "SELECT COUNT(age, sex) FROM t": ("COUNT(age, sex)", "count one column"),
    "SELECT 1 FROM t": ("", "add COUNT(*)"),
    "SELECT COUNT(*) FROM t TABLESAMPLE 10%": ("t", "a whole table"),
    "SELECT COUNT(*) FROM t WHERE age BETWEEN SYMMETRIC 5 AND 1 OR sex = 'F'": ("age BETWEEN", "order the two ends"),
    "SELECT age // 10 AS age, COUNT(*) FROM t GROUP BY age": ("age // 10", "an expression of GROUP BY"),
    "SELECT SUM(CAST(age / 4 AS INTEGER)) FROM t": ("CAST(age / 4 AS INTEGER)", "does not fit"),
    "SELECT CAST(AVG(age) AS INTEGER) FROM t": ("CAST(AVG(age) AS INTEGER)", "ROUND"),
    "SELECT SUM(a) FROM t AS q(z, a)": ("t AS q(z, a)", "an alias without names"),
    "WITH q(a) AS (SELECT age FROM t) SELECT SUM(a) FROM q": ("q(a) AS", "an alias without names"),
    "SELECT SUM(age) FROM (SELECT * REPLACE (wide AS age) FROM t) q": ("* REPLACE", "* without changes"),
    "SELECT SUM(age) FROM (SELECT *, wide AS age FROM t) q": ("wide", "rename age"),
    "SELECT age, COUNT(*) FROM t GROUP BY age LIMIT 10%": ("10", "LIMIT"),
    "SELECT trim(sex, 'F') AS w, COUNT(*) FROM t GROUP BY w": ("trim(sex, 'F')", "one argument"),
    "SELECT concat(code, 'x') AS w, COUNT(*) FROM t GROUP BY w": ("concat(code, 'x')", "use one of these"),
    "SELECT COALESCE(SUM(age), 0) FROM t": ("COALESCE(SUM(age), 0)", "ask for its parts"),
    "SELECT COUNT(*) FROM read_csv('a.csv')": ("read_csv('a.csv')", "the name of a table"),
    "SELECT ROUND(age, age) AS w, COUNT(*) FROM t GROUP BY w": ("age", "a constant"),
    "SELECT QUANTILE_CONT(age) FROM t": ("QUANTILE_CONT(age)", "QUANTILE_CONT(x, 0.9)"),
    "SELECT age, COUNT(*) FROM t GROUP BY 1e400": ("1e400", "from 1 to 2"),
    "SELECT COUNT(*) FROM t JOIN u USING (age)": ("u", "[tables.NAME]"),
    "SELECT COUNT(*) FROM t JOIN t AS q USING (age)": ("t AS q", "each table once"),
    "WITH u AS (SELECT * FROM u WHERE age > 3) SELECT COUNT(*) FROM t JOIN u USING (k)": (
        "u",
        "filter its rows by WHERE",
    ),
    "SELECT sex, COUNT(*) FROM t GROUP BY sex HAVING sex LIKE 'F%'": ("sex LIKE 'F%'", "WHERE"),
    "SELECT sex, COUNT(*) FROM t GROUP BY sex HAVING sex > 5": ("sex > 5", "texts with texts"),
    "SELECT month, COUNT(*) FROM t GROUP BY month HAVING month > '2024-03-01'": ("month >", "in WHERE"),
    "SELECT sex, COUNT(*) FROM t GROUP BY sex HAVING COUNT(*) % 2 = 0": ("COUNT(*) % 2", "select the expression"),
    "SELECT CASE WHEN age > 2 THEN 'a' ELSE 1 END AS w, COUNT(*) FROM t GROUP BY w": ("age > 2", "one type"),
    "SELECT COUNT(*) FROM t WHERE COALESCE(month, DATE '2024-01-01') > DATE '2024-03-01'": ("month", "truncate it"),
    "SELECT ROUND(AVG(age), 400) FROM t": ("ROUND(AVG(age), 400)", "at most 15 digits"),
    "SELECT COUNT(code + 1) FROM t": ("code + 1", "cast them"),
    "SELECT MEDIAN(wide) FROM t": ("MEDIAN(wide)", "use bins"),
    "SELECT 1e400 * COUNT(*) FROM t": ("1e400", "write a number"),
    "SELECT wide, COUNT(*) FILTER (WHERE sex = 'F') / COUNT(*) FILTER (WHERE age > 3) FROM t GROUP BY wide": (
        "",
        "differ on several attributes",
    ),
    "SELECT COUNT(*) FILTER (WHERE wide < 5) / COUNT(*) FILTER (WHERE broad < 7) FROM t": ("", "cells of"),
    "SELECT SUM(CASE WHEN code = 'A1' AND age > 3 THEN 1 ELSE 2 END) FROM t": (
        "code = 'A1' AND age > 3",
        "one attribute",
    ),
    "SELECT x.age, COUNT(*) FROM t GROUP BY x.age": ("x.age", "a table of the query: t"),
}


def refusal_of(text):
    with pytest.raises(JobError) as caught:
        dp.Workload(DOMAIN).add_sql(text)
    return caught.value


@pytest.mark.parametrize("text", WRONG)
def test_sentence_has_the_place_and_the_nearest_form(text):
    error, (part, words) = refusal_of(text), WRONG[text]
    sentence, [written, marks] = str(error), error.__notes__[1].split("\n")
    assert words in sentence
    assert "\n" not in sentence
    assert f"line 1, character {marks.index('^') + 1}" in sentence
    assert written == text
    assert part in text[marks.index("^") : len(marks)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no statement"),
        ("-- nothing", "no statement"),
        ("SELECT 'a FROM t", "close the quote"),
        ("-- name: a b\nSELECT COUNT(*) FROM t", "letters, digits"),
        ("-- name: a\nSELECT COUNT(*) FROM t;\n-- name: a\nSELECT COUNT(*) FROM t", "'a' twice"),
        ("-- weight: -1\nSELECT COUNT(*) FROM t", "a number above 0"),
        ("-- name: mean\nSELECT COUNT(*) FROM t", "a name that is no family"),
        (5, "a text of SELECT statements"),
    ],
)
def test_wrong_text_is_refused(text, words):
    assert words in str(refusal_of(text))


def test_quotient_of_integers_of_a_dialect_is_refused():
    for text in ("SELECT SUM(age / 2) FROM t", "SELECT COUNT(*) FILTER (WHERE age > 2) / COUNT(*) FROM t"):
        with refused(JobError):
            dp.Workload(DOMAIN).add_sql(text, dialect="postgres")
        dp.Workload(DOMAIN).add_sql(text.replace(" / ", " * 1.0 / "), dialect="postgres")


def test_thousands_of_conditions_are_refused():
    assert "IN (" in str(refusal_of(f"SELECT COUNT(*) FROM t WHERE {' OR '.join(['age = 1'] * 5000)}"))


def test_error_of_a_later_line_is_underlined_there():
    error = refusal_of("SELECT sex,\n  MAX(age)\nFROM t GROUP BY sex")
    assert "at line 2, character 3" in str(error)
    assert error.__notes__[1] == "  MAX(age)\n  ^^^^^^^^"


def test_statements_keep_their_text_names_and_weights():
    text = "-- name: one\n-- weight: 2\nSELECT COUNT(*) FROM t;\n\n-- plain\nSELECT COUNT(*) FROM t -- last\n;"
    first, second = read_statements(text, weight=3.0)
    assert (first.name, first.weight, second.name, second.weight) == ("one", 6.0, "query-2", 3.0)
    assert second.text.startswith("-- plain")


def test_semicolon_in_a_text_divides_nothing():
    [statement] = read_statements("SELECT COUNT(*) FROM t WHERE code = 'A1;' OR code = 'A1'")
    with pytest.raises(JobError):
        select(statement, DOMAIN)
