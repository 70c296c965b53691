"""Protection of ledger entries: privacy units, neighbouring relations, currencies and dataset names of releases that
add up.
"""

from __future__ import annotations

import sqlite3
import unicodedata
from collections.abc import Iterator
from contextlib import closing
from fractions import Fraction
from pathlib import Path

import pytest

from dpscale.base.errors import BudgetError, JobError
from dpscale.ledger import Ledger, schema
from dpscale.ledger.account import cost_to_text
from dpscale.privacy.accounting import Cost, gdp_mu
from dpscale.privacy.protection import ADD_REMOVE, REPLACE, Protection, steps
from tests.messages import refused

DIGEST = "ab" * 32
ROW, PERSON, OTHER = Protection(), Protection("person", bound=5), Protection("household")
REPLACED = Protection("person", REPLACE)
COST = Cost(gaussian="1/100")


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(tmp_path / "budget.sqlite") as opened:
        yield opened


def spent_squared_mu(ledger: Ledger, dataset: str = "adult") -> float:
    return float(ledger.summary(dataset)["datasets"][dataset]["spent"]["squared_mu"])


@pytest.mark.parametrize(
    ("first", "second"),
    [(PERSON, ROW), (PERSON, OTHER), (PERSON, REPLACED), (REPLACED, ROW), (ROW, REPLACED)],
)
def test_release_for_other_unit_is_refused(ledger: Ledger, first: Protection, second: Protection) -> None:
    ledger.charge("adult", "one", COST, DIGEST, protects=first)
    with refused(BudgetError):
        ledger.charge("adult", "two", COST, DIGEST, protects=second)
    assert spent_squared_mu(ledger) == pytest.approx(0.01)


def test_contribution_bounds_may_differ(ledger: Ledger) -> None:
    """All rows of a person are protected for any contribution bound."""
    ledger.charge("adult", "one", COST, DIGEST, protects=PERSON)
    ledger.charge("adult", "two", COST, DIGEST, protects=Protection("person", bound=1))
    assert spent_squared_mu(ledger) == pytest.approx(0.02)


def test_unit_release_counts_twice_for_rows(ledger: Ledger) -> None:
    """An added row is a person removed and added again with the row: twice mu, four times its square, twice epsilon."""
    ledger.charge("adult", "one", COST, DIGEST, protects=ROW)
    ledger.charge("adult", "two", COST, DIGEST, protects=PERSON)
    assert spent_squared_mu(ledger) == pytest.approx(0.05)
    ledger.set_cap("pure", 1.0, 0, protects=ROW)
    ledger.charge("pure", "three", Cost(pure="1/2"), DIGEST, protects=PERSON)
    with refused(BudgetError):
        ledger.charge("pure", "four", Cost(pure="1/100"), DIGEST, protects=ROW)


def table_distance(one: tuple[int, ...], other: tuple[int, ...], relation: Protection) -> int | None:
    """Return the distance of two tables of rows by person, by breadth-first search over all small tables."""
    frontier, seen, number = {one}, {one}, 0
    while other not in seen and number < 5:
        frontier = {near for table in frontier for near in neighbours(table, relation)} - seen
        seen |= frontier
        number += 1
    return number if other in seen else None


PEOPLE, ROWS = (1, 2), 3


def neighbours(table: tuple[int, ...], relation: Protection) -> Iterator[tuple[int, ...]]:
    """Yield neighbouring tables; a table is the number of rows of each of two people, and replacement keeps the number
    of people.
    """
    for place in range(len(PEOPLE)):
        for count in range(ROWS + 1):
            near = (*table[:place], count, *table[place + 1 :])
            if relation.unit is None:
                if abs(count - table[place]) == 1:
                    yield near
            elif relation.relation == ADD_REMOVE:
                if (count == 0) != (table[place] == 0):
                    yield near
            elif count and table[place]:
                yield near


@pytest.mark.parametrize(("entry", "dataset"), [(PERSON, ROW), (PERSON, REPLACED), (PERSON, PERSON), (ROW, ROW)])
def test_steps_equal_largest_distance_of_neighbours(entry: Protection, dataset: Protection) -> None:
    tables = [(a, b) for a in range(ROWS + 1) for b in range(ROWS + 1)]
    distances = [table_distance(table, near, entry) for table in tables for near in neighbours(table, dataset)]
    assert max(number for number in distances if number is not None) == steps(entry, dataset)
    assert None not in distances


def test_cap_fixes_the_protected_unit(ledger: Ledger) -> None:
    ledger.set_cap("adult", 1.0, 1e-9, protects=PERSON)
    with refused(BudgetError):
        ledger.charge("adult", "one", COST, DIGEST, protects=ROW)
    ledger.charge("adult", "two", COST, DIGEST, protects=PERSON)
    summary = ledger.summary("adult")["datasets"]["adult"]
    assert summary["protects"] == "all rows of one person (add/remove)"
    assert (summary["releases"][0]["unit"], summary["releases"][0]["relation"], summary["releases"][0]["bound"]) == (
        "person",
        "add/remove",
        5,
    )
    with refused(BudgetError):
        ledger.set_cap("adult", 2.0, 1e-9, protects=OTHER)
    ledger.verify()


# Currencies


def test_currency_is_fixed_after_first_charge(ledger: Ledger) -> None:
    ledger.set_cap("adult", 1.0, 1e-9, "pure")
    ledger.set_cap("adult", 1.0, 1e-9, "gdp")
    ledger.charge("adult", "one", COST, DIGEST)
    with refused(BudgetError):
        ledger.set_cap("adult", 1.0, 1e-9, "pure")
    change = ledger.set_cap("adult", 2.0, 1e-9)
    assert (change.cap.currency, change.charged_before) == ("gdp", 1)
    assert "odometer, not a filter" in str(change)
    with refused(JobError):
        ledger.set_cap("adult", 2.0, 0)


def test_delta_zero_means_pure_cap(ledger: Ledger) -> None:
    assert ledger.set_cap("adult", 1.0, 0).cap.currency == "pure"
    with refused(BudgetError):
        ledger.charge("adult", "one", COST, DIGEST)
    for number in range(4):
        ledger.charge("adult", f"r{number}", Cost(pure="1/4"), DIGEST)
    with refused(BudgetError):
        ledger.charge("adult", "one", Cost(pure="1/10000"), DIGEST)
    summary = ledger.summary("adult")["datasets"]["adult"]
    assert (summary["spent"]["epsilon"], summary["remaining"], summary["currency"]) == (
        1.0,
        0.0,
        "pure: epsilon of pure DP",
    )


def test_mixed_history_reports_larger_epsilon(ledger: Ledger) -> None:
    ledger.charge("adult", "one", Cost(gaussian="1/100"), DIGEST)
    ledger.charge("adult", "two", Cost(pure="613/1000"), DIGEST)
    summary = ledger.summary("adult")["datasets"]["adult"]
    assert summary["spent"]["epsilon"] > 3.5  # at 1e-9; what was realised comes to about 1.1
    assert any("counted together in gdp" in note for note in summary["notes"])
    assert any("odometer" in note for note in summary["notes"])


def test_small_pure_costs_add_up_exactly(ledger: Ledger) -> None:
    """A thousand blocks with epsilon 1/1000 cost far less than one release with epsilon 1 in gdp."""
    ledger.set_cap("adult", 1.0, 1e-6)
    parts = Cost.total([Cost(pure=Fraction(1, 1000))] * 1000)
    ledger.charge("adult", "one", parts, DIGEST)
    with refused(BudgetError):
        ledger.charge("adult", "two", Cost(pure=1), DIGEST)


# Seeds


def test_release_with_public_noise_is_marked_and_refused_under_cap(ledger: Ledger) -> None:
    ledger.set_cap("capped", 100.0, 1e-3)
    with refused(BudgetError):
        ledger.charge("capped", "one", COST, DIGEST, public=True)
    ledger.charge("adult", "two", COST, DIGEST, public=True)
    summary = ledger.summary("adult")["datasets"]["adult"]
    assert summary["spent"]["epsilon"] is None
    assert summary["releases"][0]["public"]
    assert any("seed" in note for note in summary["notes"])
    assert ledger.set_cap("adult", 100.0, 1e-3).below_spent
    with refused(BudgetError):
        ledger.charge("adult", "three", COST, DIGEST)


# Names


@pytest.mark.parametrize("spelling", [" adult é ", unicodedata.normalize("NFD", "adult é")])
def test_dataset_name_is_normalized(ledger: Ledger, spelling: str) -> None:
    ledger.set_cap("adult é", 0.6, 1e-9)
    ledger.charge(spelling, "one", COST, DIGEST)
    with refused(BudgetError):
        ledger.charge(spelling, "two", Cost(gaussian="1/10"), DIGEST)
    assert list(ledger.summary()["datasets"]) == ["adult é"]


@pytest.mark.parametrize("slip", ["Adult-2026", "adult 2026", "adlut-2026", "adult_2026", "adults-2026"])
def test_misspelled_name_of_capped_dataset_is_refused(ledger: Ledger, slip: str) -> None:
    ledger.set_cap("adult-2026", 1.0, 1e-9)
    with refused(BudgetError):
        ledger.charge(slip, "one", COST, DIGEST, reserve=False)
    ledger.set_cap(slip, 1.0, 1e-9)  # meant
    ledger.charge(slip, "one", COST, DIGEST)


@pytest.mark.parametrize("other", ["adult-2025", "census-2026", "/data/adult-2026"])
def test_dissimilar_name_is_accepted(ledger: Ledger, other: str) -> None:
    ledger.set_cap("adult-2026", 1.0, 1e-9)
    ledger.set_cap("/data/bdult-2026", 1.0, 1e-9)
    assert ledger.charge(other, "one", COST, DIGEST) == "reserved"


# What a hostile review found


def write_version_2(path: Path, release: str) -> None:
    """Write a ledger of version 2, which records neither privacy units nor seeds, with one release."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}")
        for statement in schema.schema(2):
            db.execute(statement)
        db.execute("INSERT INTO identity VALUES (?)", ("ab" * 16,))
        db.execute("INSERT INTO schema_version VALUES (2, 'long ago')")
        db.execute(
            "INSERT INTO releases (release, dataset, plan_digest, cost, state, reserved_at)"
            " VALUES (?, 'adult', ?, ?, 'reserved', '2020')",
            (release, DIGEST, cost_to_text(COST)),
        )


def test_older_seeded_release_is_public_after_upgrade(tmp_path: Path) -> None:
    write_version_2(tmp_path / "old.sqlite", "seed7-" + "ab" * 12)
    with Ledger.open(tmp_path / "old.sqlite") as ledger:
        assert ledger.summary()["datasets"]["adult"]["spent"]["epsilon"] is None
        assert ledger.set_cap("adult", 1.0, 1e-9, protects=ROW).below_spent
        ledger.verify()


def test_older_releases_need_unit_of_cap(tmp_path: Path) -> None:
    write_version_2(tmp_path / "old.sqlite", "0123")
    with Ledger.open(tmp_path / "old.sqlite") as ledger:
        ledger.set_cap("adult", 1.0, 1e-9)
        with refused(BudgetError):
            ledger.charge("adult", "one", COST, DIGEST, protects=PERSON)
        ledger.set_cap("adult", 1.0, 1e-9, protects=PERSON)
        ledger.charge("adult", "one", COST, DIGEST, protects=PERSON)


def test_epsilon_suggested_for_unit_release_is_admitted(ledger: Ledger) -> None:
    ledger.set_cap("adult", 3.0, 1e-9, protects=ROW)
    cost = Cost(gaussian=Fraction(gdp_mu(2.0, 1e-9)) ** 2)
    with refused(BudgetError) as caught:
        ledger.charge("adult", "one", cost, DIGEST, 2.0, 1e-9, protects=PERSON)
    fits = float(str(caught.value).split("ask for epsilon = ")[1].split()[0])
    assert fits < 1.6
    smaller = Cost(gaussian=Fraction(gdp_mu(fits, 1e-9)) ** 2)
    ledger.charge("adult", "one", smaller, DIGEST, fits, 1e-9, protects=PERSON)
    summary = ledger.summary("adult")["datasets"]["adult"]
    assert summary["releases"][0]["squared_mu"] == pytest.approx(4 * smaller.gaussian)


@pytest.mark.parametrize("path", ["/d/data", "/d/data/*.parquet", "/d/data/t.parque?", "/d", "/d/*/t.parquet"])
def test_overlapping_path_to_capped_files_is_refused(ledger: Ledger, path: str) -> None:
    ledger.set_cap("/d/data/t.parquet", 1.0, 1e-9)
    with refused(BudgetError):
        ledger.charge(path, "one", COST, DIGEST)


@pytest.mark.parametrize("path", ["/d/data/u.parquet", "/d/data/u*.parquet", "/d/other", "/e"])
def test_path_to_other_files_is_accepted(ledger: Ledger, path: str) -> None:
    ledger.set_cap("/d/data/t.parquet", 1.0, 1e-9)
    assert ledger.charge(path, "one", COST, DIGEST) == "reserved"


def test_cap_on_similar_name_names_existing_dataset(ledger: Ledger) -> None:
    ledger.charge("census", "one", COST, DIGEST)
    assert "a new dataset beside 'census'" in str(ledger.set_cap("cenus", 1.0, 1e-9))
    assert "beside" not in str(ledger.set_cap("census", 1.0, 1e-9))


def test_release_without_protection_cannot_be_inserted(ledger: Ledger) -> None:
    """An older process that had the file open before the upgrade tries to insert a release."""
    with (
        closing(sqlite3.connect(ledger.path, isolation_level=None)) as db,
        pytest.raises(sqlite3.IntegrityError, match="update dpscale"),
    ):
        db.execute(
            "INSERT INTO releases (release, dataset, plan_digest, cost, state, reserved_at)"
            " VALUES ('old', 'adult', ?, ?, 'reserved', 'now')",
            (DIGEST, cost_to_text(COST)),
        )
