"""The three promises of a release, the steps between them, and the months and years of the labels of periods."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import date, timedelta
from itertools import product

import pytest

from dpscale.base.errors import BudgetError, JobError
from dpscale.domain.attribute import PERIODS, name_of, number_of
from dpscale.ledger.account import checked_periods, renewal_name, renewals_of
from dpscale.privacy.protection import REPLACE, WITHIN, Protection, steps
from tests.messages import refused

ROW, UNIT = Protection(), Protection("person")
DAY, WEEK, MONTH, QUARTER, YEAR = (Protection("person", bound=3, span=span) for span in PERIODS)
PROMISES = {"row": ROW, "month": MONTH, "year": YEAR, "all": UNIT}
Table = tuple[int, ...]  # rows of one person in each month
YEARS = ((0, 1), (2,))  # months of each year


# Steps, by brute force


def groups(name: str, months: int, years: tuple[tuple[int, ...], ...]) -> list[tuple[int, ...]]:
    """Return the sets of months whose rows of one person are added or removed together."""
    return {"month": [(one,) for one in range(months)], "year": list(years), "all": [tuple(range(months))]}[name]


def neighbours(table: Table, name: str, rows: int, years: tuple[tuple[int, ...], ...]) -> Iterator[Table]:
    """Yield the neighbours of a table under a promise, by its definition."""
    if name == "row":
        for place, change in product(range(len(table)), (-1, 1)):
            near = (*table[:place], table[place] + change, *table[place + 1 :])
            if 0 <= near[place] <= rows:
                yield near
        return
    for group in groups(name, len(table), years):
        present = any(table[place] for place in group)
        for counts in [(0,) * len(group)] if present else product(range(rows + 1), repeat=len(group)):
            near_list = list(table)
            for place, count in zip(group, counts, strict=True):
                near_list[place] = count
            if any(counts) != present:
                yield tuple(near_list)


def largest_distance(entry: str, dataset: str, rows: int, years: tuple[tuple[int, ...], ...]) -> int:
    """Return the largest distance, in steps of the entry's promise, of two neighbours under the dataset's promise."""
    tables = list(product(range(rows + 1), repeat=sum(map(len, years))))
    worst = 0
    for table in tables:
        wanted = set(neighbours(table, dataset, rows, years))
        frontier, seen, number = {table}, {table}, 0
        while wanted - seen:
            number += 1
            frontier = {near for one in frontier for near in neighbours(one, entry, rows, years)} - seen
            seen |= frontier
        worst = max(worst, number)
    return worst


@pytest.mark.parametrize("entry", PROMISES)
@pytest.mark.parametrize("dataset", PROMISES)
def test_steps_between_promises_equal_brute_force(entry: str, dataset: str) -> None:
    """A pair without a number of steps has a distance that grows with the rows of a person, or with its months."""
    number = steps(PROMISES[entry], PROMISES[dataset])
    distances = [largest_distance(entry, dataset, 2, YEARS), largest_distance(entry, dataset, 3, YEARS)]
    if number is not None:
        assert distances == [number, number]
        return
    longer = [largest_distance(entry, dataset, 2, years) for years in (((0, 1, 2), (3,)), ((0, 1), (2,), (3,)))]
    assert max(distances[1], *longer) > distances[0]


def test_finer_promise_never_bounds_coarser_one() -> None:
    for promise, finer in ((UNIT, (YEAR, MONTH, WEEK, DAY, ROW)), (YEAR, (MONTH, QUARTER, DAY)), (MONTH, (DAY, WEEK))):
        assert [steps(one, promise) for one in finer] == [None] * len(finer)
    assert [steps(one, DAY) for one in (UNIT, YEAR, QUARTER, MONTH, WEEK, DAY)] == [2, 2, 2, 2, 2, 1]
    assert steps(MONTH, WEEK) is None, "a week may be in two months"
    assert steps(MONTH, Protection("other", span="month")) is None
    assert steps(MONTH, Protection(relation=REPLACE)) == 4


def test_spans_are_the_periods_of_date_attributes() -> None:
    """A period contains a shorter one if no shorter one begins in one and ends in another."""
    days = [date(2023, 1, 1) + timedelta(days=one) for one in range(4 * 366)]
    names = {by: [number_of(by, day) for day in days] for by in PERIODS}
    assert tuple(WITHIN) == PERIODS
    for short, long in product(PERIODS, PERIODS):
        places: dict[int, set[int]] = {}
        for one, other in zip(names[short], names[long], strict=True):
            places.setdefault(one, set()).add(other)
        nested = short != long and all(len(found) == 1 for found in places.values())
        coarser = len(set(names[short])) > len(set(names[long]))
        assert (long in WITHIN[short]) == (nested and coarser)


def test_promises_have_different_words() -> None:
    texts = [str(one) for one in (ROW, MONTH, UNIT)]
    assert texts == ["one row (add/remove)", "all rows of one person in one month (add/remove)",
                     "all rows of one person (add/remove)"]  # fmt: skip


@pytest.mark.parametrize(
    "fields",
    [
        {"span": "month"},
        {"unit": "person", "span": "decade"},
        {"unit": "person", "span": ["month"]},
        {"unit": "person", "relation": REPLACE, "span": "month"},
    ],
)
def test_invalid_span_is_refused(fields: dict[str, object]) -> None:
    with refused(BudgetError):
        Protection(**fields)  # type: ignore[arg-type]


# Labels


def test_months_and_years_of_labels_equal_those_of_their_days() -> None:
    days = [date(2022, 1, 1) + timedelta(days=one) for one in range(6 * 365)]
    generator = random.Random(39)
    for by in PERIODS:
        places: dict[str, list[date]] = {}
        for day in days:
            places.setdefault(str(name_of(by, number_of(by, day))), []).append(day)
        inner = [label for label, own in places.items() if own[0].year >= 2023 and own[-1].year <= 2026]
        for label in generator.sample(inner, min(len(inner), 60)):
            months = {12 * (day.year - 1970) + day.month - 1 for day in places[label]}
            assert renewals_of((label,), "month") == months
            assert renewals_of((label,), "year") == {month // 12 for month in months}


def test_week_is_in_both_of_its_months_and_years() -> None:
    weeks = ("2026-W01", "2026-W09")
    names = {by: {renewal_name(by, one) for one in renewals_of(weeks, by)} for by in ("month", "year")}
    assert names == {"month": {"2025-12", "2026-01", "2026-02", "2026-03"}, "year": {"2025", "2026"}}
    assert renewals_of(("9999-12-31", "9999"), "year") == renewals_of(("9999",), "year")
    assert renewals_of((), "month") == frozenset()


def test_labels_are_sorted_and_listed_once() -> None:
    assert checked_periods(["2026-03", "2026-02", "2026-03"]) == ("2026-02", "2026-03")
    assert checked_periods([2026, 987]) == ("0987", "2026")


@pytest.mark.parametrize(
    "periods",
    ["2026-02", ["2026-13"], ["2026-02-30"], ["2025-W53"], ["february"], [None], [True], [["2026"]], 7, ["٢٠٢٦"]],
)
def test_invalid_labels_are_refused(periods: object) -> None:
    with refused(JobError) as caught:
        checked_periods(periods)
    assert str(caught.value).count("\n") == 0
