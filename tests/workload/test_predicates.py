"""Predicates against Python's own evaluation of the same condition on the label of every cell, and their errors."""

import itertools
import operator
from datetime import date

import numpy as np
import pytest

import dpscale as dp
from dpscale.base.expressions import former_reading
from dpscale.domain import Domain
from dpscale.domain.attribute import PERIODS, Attribute, number_of
from dpscale.workload.families import one_way_family
from dpscale.workload.listed import axis_queries
from dpscale.workload.predicates import cell_predicate, range_predicate, read_conjunction, read_predicate
from tests.messages import refused

DOMAIN = Domain([
    Attribute("age", "integer", low=0, high=9, nulls="category"),
    Attribute("sex", "categories", values=("F", "M", "it's"), outside="category"),
    Attribute("income", "bins", edges=(0.0, 10.0, 50.0, 100.0), nulls="category"),
    Attribute("day", "date", low=660, high=663, by="month"),
    Attribute("code", "categories", values=("10", "2", "x y")),
    Attribute("born in", "boolean", values=(False, True)),
])  # fmt: skip
LABELS = {one.name: one.labels for one in DOMAIN.attributes}


def cells(name, condition):
    return np.array([condition(label) for label in LABELS[name]])


def number(label):
    return isinstance(label, int) and not isinstance(label, bool)


CASES = [
    ("age = 3", "age", lambda x: x == 3),
    ("age != 3", "age", lambda x: x != 3),
    ("age < 4", "age", lambda x: number(x) and x < 4),
    ("age<=4", "age", lambda x: number(x) and x <= 4),
    ("age > 8.5", "age", lambda x: number(x) and x > 8.5),
    ("age >= -1", "age", number),
    ("age in 2..4", "age", lambda x: number(x) and 2 <= x <= 4),
    ("age not in 2..4", "age", lambda x: not (number(x) and 2 <= x <= 4)),
    ("age between 2 and 4 or age = 9", "age", lambda x: number(x) and (2 <= x <= 4 or x == 9)),
    ("not (age < 3 or age > 5) and age != 4", "age", lambda x: not (number(x) and (x < 3 or x > 5)) and x != 4),
    ("age is null", "age", lambda x: x is None),
    ("age is not null", "age", lambda x: x is not None),
    ("age in (1, 3, 5)", "age", lambda x: x in (1, 3, 5)),
    ("age in [7]", "age", lambda x: x == 7),
    ("sex = 'F'", "sex", lambda x: x == "F"),
    ("sex IN ('F', 'it''s')", "sex", lambda x: x in ("F", "it's")),
    ('sex = "it\'s"', "sex", lambda x: x == "it's"),
    ("sex = '(outside)'", "sex", lambda x: x == "(outside)"),
    ("sex is null", "sex", lambda x: False),
    ("income < 50", "income", lambda x: x in ("[0, 10)", "[10, 50)")),
    ("income >= 10 and income <= 100", "income", lambda x: x in ("[10, 50)", "[50, 100]")),
    ("income = '[10, 50)'", "income", lambda x: x == "[10, 50)"),
    ("income > 100", "income", lambda x: False),
    ("day >= 2025-02-01", "day", lambda x: x >= "2025-02"),
    ("day in 2025-01-01..2025-02-28", "day", lambda x: "2025-01" <= x <= "2025-02"),
    ("day > 2025-01-31 and day <= '2025-03-31'", "day", lambda x: "2025-01" < x <= "2025-03"),
    ("day = '2025-03'", "day", lambda x: x == "2025-03"),
    ("day < '2024-06'", "day", lambda x: False),
    ("code = '10'", "code", lambda x: x == "10"),
    ("code in (2, 10)", "code", lambda x: x in ("2", "10")),
    ("`born in` = true", "born in", lambda x: x is True),
]


CODES = ("1", "01", "1.0", "1e0", "+1", "7", "007", "-2", "10", "0.50", ".5", "x")
NUMBERS = ("1", "01", "1.0", "1e0", "+1", "7", "7.0", "007", "-2", "-02", "10", "1e1", "0.50", ".5", "0.5", "00")


@pytest.mark.parametrize("seed", range(40))
def test_number_denotes_the_code_that_is_written_like_it_and_no_other_one(seed):
    """A number denotes a text only if it is written like it, and no other text is the same number."""
    labels = np.random.default_rng(seed).choice(CODES, 4, replace=False).tolist()
    domain = Domain([Attribute("code", "categories", values=tuple(labels))])
    for number in NUMBERS:
        alike = [label for label in labels if label != "x" and float(label) == float(number)]
        for text in (f"code = {number}", f"code in ({number}, {number})", f"not code != {number}"):
            if alike == [number]:
                assert read_predicate(text, domain).mask.tolist() == [label == number for label in labels]
            else:
                expected = "a text in quotes for a code; write '" if alike else "a label of the attribute"
                with pytest.raises(dp.JobError, match=expected):
                    read_predicate(text, domain)


def test_codes_that_no_number_denotes():
    domain = Domain([
        Attribute("answer", "categories", values=("True", "false", "FALSE")),
        Attribute("sent", "categories", values=("2024-01-31", "2024-01-31T10:00", "2024-02-01T00:00")),
        Attribute("share", "categories", values=(0.5, 1.0, 2.0)),
    ])  # fmt: skip
    for text, cells in {
        "answer = true": [0], "answer = 'FALSE'": [2], "sent = 2024-01-31": [0], "share = 01": [1], "share = .50": [0],
        "share in (2, 1.0)": [1, 2],
    }.items():  # fmt: skip
        assert np.flatnonzero(read_predicate(text, domain).mask).tolist() == cells, text
    for text in ("answer = false", "sent = 2024-01-31T10:00", "sent = 2024-02-01", "sent = 2024-01-31T11:00"):
        with refused(dp.JobError):
            read_predicate(text, domain)


ORDER = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
SIGNS = ORDER | {"=": operator.eq, "!=": operator.ne}


@pytest.mark.parametrize("by", PERIODS)
@pytest.mark.parametrize("sign", SIGNS)
def test_day_is_compared_with_every_day_of_a_period_or_refused(by, sign):
    middle = date(2024, 2, 29)
    low = number_of(by, middle) - 1
    one = Attribute("d", "date", low=low, high=low + 2, by=by)
    days = [[one for one in map(date.fromordinal, range(middle.toordinal() - 800, middle.toordinal() + 800))
             if number_of(by, one) == number] for number in range(low, low + 3)]  # fmt: skip
    read = refused = 0
    for day in itertools.chain.from_iterable(days):
        wanted = [{SIGNS[sign](one, day) for one in cell} for cell in days]
        for literal in (f"{day}", f"'{day}'"):
            if max(map(len, wanted)) == 1 and (by == "day" or sign in ORDER):
                read += 1
                found = read_predicate(f"d {sign} {literal}", Domain([one])).mask.tolist()
                assert [{one} for one in found] == wanted, day
            else:
                refused += 1
                with pytest.raises(dp.JobError, match=rf"a cut between two {by}s of d; write 20|a {by} of d; write"):
                    read_predicate(f"d {sign} {literal}", Domain([one]))
    assert (read > 0) == (by == "day" or sign in ORDER)  # at the ends of periods
    assert (refused > 0) == (by != "day")


def test_last_period_of_the_calendar_has_an_end():
    for by in PERIODS:
        number = number_of(by, date.max)
        one = Domain([Attribute("d", "date", low=number - 1, high=number, by=by)])
        assert read_predicate("d <= 9999-12-31", one).mask.all()


@pytest.mark.parametrize(("text", "name", "condition"), CASES, ids=[text for text, *_ in CASES])
def test_predicate_equals_condition_on_labels(text, name, condition):
    found = read_predicate(text, DOMAIN)
    assert found.attributes == (name,)
    np.testing.assert_array_equal(found.mask, cells(name, condition))


def test_predicate_over_several_attributes():
    found = read_predicate("(age < 3 or sex = 'F') and not code = 'x y'", DOMAIN)
    assert found.attributes == ("age", "sex", "code")
    expected = [
        ((number(age) and age < 3) or sex == "F") and code != "x y"
        for age, sex, code in itertools.product(LABELS["age"], LABELS["sex"], LABELS["code"])
    ]
    np.testing.assert_array_equal(found.mask.reshape(-1), expected)


def test_conjunction_is_divided_by_attribute():
    assert read_conjunction("age >= 2 and sex = 'F' and (age < 5 or age = 9)", DOMAIN) == {
        "age": "age >= 2 and (age < 5 or age = 9)", "sex": "sex = 'F'",
    }  # fmt: skip
    assert read_conjunction("age >= 2 or sex = 'F'", DOMAIN) is None
    assert read_conjunction("age >= 2 or age = 0", DOMAIN) is None  # a single product would lose `or`
    assert read_conjunction("total", DOMAIN) == {}
    assert read_conjunction("not total", DOMAIN) is None


def test_predicate_of_cells_and_ranges_selects_them():
    for one in DOMAIN.attributes:
        for first, last in itertools.combinations_with_replacement(range(one.size), 2):
            text = cell_predicate(one, first) if first == last else range_predicate(one, first, last)
            expected = (np.arange(one.size) >= first) & (np.arange(one.size) <= last)
            np.testing.assert_array_equal(np.broadcast_to(read_predicate(text, DOMAIN).mask, one.size), expected, text)


@pytest.mark.parametrize("family", ["marginal", "prefix", "range", "circular"])
def test_texts_of_families_select_their_queries(family):
    for one in DOMAIN.attributes:
        made, named = axis_queries(family, DOMAIN, one.name, one_way_family)
        matrix = one_way_family(family).matrix(one.size)
        assert made.count(one.size) == named.count(one.size) == len(matrix)
        for text, query in zip(named.texts, matrix, strict=True):
            np.testing.assert_array_equal(np.broadcast_to(read_predicate(text, DOMAIN).mask, one.size), query, text)


@pytest.mark.parametrize("text", [
    "",
    "age",
    "age = ",
    "agee = 3",
    "age = 77",
    "age = 3 sex = 'F'",
    "age == 3",
    "age = 'three",
    "age in 2",
    "age in (1, 'F')",
    "sex < 'M'",
    "code < 3",
    "income < 20",
    "income <= 50",
    "income > 0",
    "day < 'spring'",
    "day < 2025-02-15",
    "day <= 2025-02-15",
    "day between 2025-01-01 and 2025-02-15",
    "day = 2025-02-01",
    "day in (2025-02-28)",
    "day = '2025-02-01'",
    "day >= 2025-02-01T10:00",
    "day < '2025-02-31'",
    "(age = 3",
    "age = 3)",
    "age = 1e999",
    "day = 2025-02-30",
    "age like 3",
])  # fmt: skip
def test_wrong_predicate_gets_one_sentence(text):
    with refused(dp.JobError) as caught:
        read_predicate(text, DOMAIN)
    assert str(caught.value).count("\n") == 0


def test_predicate_over_too_many_cells_is_refused():
    domain = Domain({"a": 2000, "b": 2000})
    with refused(dp.JobError):
        read_predicate("a < 5 or b < 5", domain)
    assert set(read_conjunction("a < 5 and b < 5", domain)) == {"a", "b"}


def test_charged_run_reads_a_condition_of_a_new_job_as_the_job():
    """The former reading of the time is the label of its day; it holds for what new jobs refuse alone."""
    domain = dp.Domain({"sent": ["2024-01-31", "2024-01-31T10:00:00", "01", "1", "2"]})
    text = "sent = 2024-01-31T10:00:00"
    new = read_predicate(text, domain).mask
    assert new.tolist() == [False, True, False, False, False]
    with former_reading(is_charged=True):
        assert (read_predicate(text, domain).mask == new).all()
        assert read_predicate("sent = 01", domain).mask.tolist() == [False, False, False, True, False]
    with refused(dp.JobError):
        read_predicate("sent = 01", domain)
