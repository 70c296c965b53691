"""Budgets of periods on the ledger: promises, refusals, statements, the hash chain, copies and commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dpscale.base.errors import BudgetError, JobError
from dpscale.ledger import Ledger, chain, rows
from dpscale.privacy.accounting import Cost
from dpscale.privacy.protection import REPLACE, Protection
from tests.audit.test_bundle import run_command
from tests.ledger.period_model import PROMISES
from tests.ledger.test_book import DELTA, DIGEST, gaussian
from tests.ledger.test_period_caps import ledger, place  # noqa: F401
from tests.messages import refused

ROW, MONTH, YEAR, UNIT = (PROMISES[name] for name in ("row", "month", "year", "all"))
NOT_RENEWABLE = ("a promise for one row, or for all rows of one unit in one month: one person with rows in several"
                 " months would have the cap of each")  # fmt: skip


# Promises


def test_cap_by_period_is_refused_for_units_over_all_time(ledger: Ledger) -> None:  # noqa: F811
    ledger.set_cap("capped", 3.0, DELTA, protects=UNIT)
    ledger.charge("charged", "r1", gaussian(0.1), DIGEST, protects=UNIT)
    ledger.charge("mixed", "r2", gaussian(0.1), DIGEST, protects=ROW)
    ledger.charge("mixed", "r3", gaussian(0.1), DIGEST, protects=UNIT)
    ledger.charge("replaced", "r4", gaussian(0.1), DIGEST, protects=Protection(relation=REPLACE))
    for name in ("capped", "charged", "mixed"):
        for protects in (None, ROW, MONTH):
            with pytest.raises(BudgetError) as caught:
                ledger.set_cap(name, 1.0, DELTA, protects=protects, period="month")
            assert str(caught.value) == (
                f"cap.period: a cap for each month on dataset {name!r}, which protects all rows of one person"
                f" (add/remove); expected {NOT_RENEWABLE}; set a cap without a period, on the total"
            )
    with refused(BudgetError):
        ledger.set_cap("replaced", 1.0, DELTA, period="year")
    ledger.verify()


def test_release_for_units_over_all_time_is_refused_under_cap_by_period(ledger: Ledger) -> None:  # noqa: F811
    ledger.set_cap("shop", 1.0, DELTA, period="month")  # no unit yet
    with pytest.raises(BudgetError) as caught:
        ledger.charge("shop", "r1", gaussian(0.1), DIGEST, protects=UNIT, periods=["2026-02"])
    assert str(caught.value) == (
        "data.privacy_unit: a release that protects all rows of one person (add/remove) on dataset 'shop', which has a"
        f" cap for each month; expected {NOT_RENEWABLE}; name another dataset, with a cap on the total"
    )
    ledger.charge("shop", "r2", gaussian(0.1), DIGEST, protects=MONTH, periods=["2026-02"])
    for protects, said in ((ROW, "one row"), (Protection("person", span="day"), "in more than one day"),
                           (Protection("household", span="month"), "do not add")):  # fmt: skip
        with refused(BudgetError) as caught:
            ledger.charge("shop", "r3", gaussian(0.1), DIGEST, protects=protects, periods=["2026-02"])
        assert said in str(caught.value)
    with refused(BudgetError):
        ledger.set_cap("shop", 1.0, DELTA, protects=UNIT)
    with refused(BudgetError):
        ledger.set_cap("shop", 1.0, DELTA, period="year")
    ledger.charge("shop", "r3", gaussian(0.1), DIGEST, protects=YEAR, periods=["2026"])
    [month] = ledger.summary("shop", by_period=True)["datasets"]["shop"]["by_period"].values()
    squared = float(gaussian(0.1).squared_mu)
    assert month["protects"] == "all rows of one person in one month (add/remove)"
    assert month["periods"]["2026-02"]["squared_mu"] == pytest.approx(5 * squared)  # once, and once in two steps
    assert month["periods"]["2026-03"]["squared_mu"] == pytest.approx(4 * squared)
    assert month["other"]["squared_mu"] == 0


def test_promise_over_all_time_bounds_each_period_without_caps(ledger: Ledger) -> None:  # noqa: F811
    ledger.charge("shop", "r1", gaussian(0.1), DIGEST, protects=MONTH)
    ledger.charge("shop", "r2", gaussian(0.1), DIGEST, protects=UNIT)
    shown = ledger.summary("shop")["datasets"]["shop"]
    assert shown["spent"]["squared_mu"] == pytest.approx(5 * float(gaussian(0.1).squared_mu))
    assert shown["protects"] == "all rows of one person in one month (add/remove)"
    ledger.charge("other", "r3", gaussian(0.1), DIGEST, protects=UNIT)
    with refused(BudgetError):
        ledger.charge("other", "r4", gaussian(0.1), DIGEST, protects=MONTH)


# Budgets of periods


def test_year_of_months_costs_each_month_once_and_the_year_once(ledger: Ledger) -> None:  # noqa: F811
    ledger.set_cap("shop", 0.9, DELTA, period="month", protects=ROW)
    ledger.set_cap("shop", 0.5, DELTA, period="year")
    months = [f"2026-{month:02}" for month in range(1, 13)]
    ledger.charge("shop", "r1", gaussian(0.49), DIGEST, periods=months)
    with refused(BudgetError):
        ledger.charge("shop", "r2", gaussian(0.3), DIGEST, 0.3, DELTA, periods=["2026-07"])
    ledger.charge("shop", "r2", gaussian(0.49), DIGEST, periods=["2027"])
    shown = ledger.summary("shop", by_period=True)["datasets"]["shop"]
    assert shown["cap"] is None
    assert [cap["period"] for cap in shown["period_caps"]] == ["month", "year"]
    squared = float(gaussian(0.49).squared_mu)
    assert shown["spent"]["squared_mu"] == pytest.approx(2 * squared)
    for by, number in (("month", 24), ("year", 2)):
        periods = shown["by_period"][by]["periods"]
        assert len(periods) == number
        assert [one["squared_mu"] for one in periods.values()] == pytest.approx([squared] * number)


def test_monthly_releases_renew_the_budget_and_the_total_does_not(ledger: Ledger) -> None:  # noqa: F811
    ledger.set_cap("shop", 0.5, DELTA, period="month", protects=ROW)
    for month in range(1, 13):
        ledger.charge("shop", f"r{month}", gaussian(0.49), DIGEST, periods=[f"2026-{month:02}"])
    ledger.set_cap("shop", 1.85, DELTA)
    with pytest.raises(BudgetError) as refused:
        ledger.charge("shop", "r13", gaussian(0.49), DIGEST, 0.49, DELTA, periods=["2027-01"])
    assert "cap of epsilon 1.85 at delta 1e-09 in gdp, which protects one row (add/remove); " in str(refused.value)
    with pytest.raises(BudgetError) as refused:
        ledger.charge("shop", "r13", gaussian(0.49), DIGEST, 0.49, DELTA)
    assert " of dataset 'shop', remaining" in str(refused.value), "the total is named first"


def test_refusal_names_period_spending_remainder_and_promise(ledger: Ledger) -> None:  # noqa: F811
    ledger.set_cap("shop", 1.0, DELTA, period="month", protects=Protection("person"))
    ledger.charge("shop", "r1", gaussian(0.3), DIGEST, protects=MONTH, periods=["2026-01"])
    ledger.charge("shop", "r2", gaussian(0.9), DIGEST, protects=MONTH, periods=["2026-02"])
    with pytest.raises(BudgetError) as caught:
        ledger.charge("shop", "r3", gaussian(0.5), DIGEST, 0.5, DELTA, protects=MONTH, periods=["2026-01", "2026-02"])
    assert str(caught.value) == (
        "privacy.epsilon: requested epsilon 0.5 at delta 1e-09 of dataset 'shop' in 2026-02, spent epsilon 0.9 and"
        " remaining epsilon 0.411549 at delta 1e-09 of its cap of epsilon 1 at delta 1e-09 in gdp for each month, which"
        " protects all rows of one person in one month (add/remove); expected at most epsilon 0.411549 at delta 1e-09,"
        " the largest that would fit; ask for epsilon = 0.411549 or raise the cap"
    )
    ledger.charge("shop", "r3", gaussian(0.411549), DIGEST, protects=MONTH, periods=["2026-02"])
    with refused(BudgetError):
        ledger.charge("shop", "r4", gaussian(0.2), DIGEST, 0.2, DELTA, protects=MONTH, periods=["2026-02"])
    with refused(BudgetError):
        ledger.charge("shop", "r5", gaussian(0.1), DIGEST, protects=MONTH, periods=["2030"], public=True)
    ledger.charge("shop", "r6", gaussian(0.95), DIGEST, protects=MONTH, periods=["2026-03"])


def test_release_without_periods_is_charged_to_every_period(ledger: Ledger) -> None:  # noqa: F811
    ledger.set_cap("shop", 1.0, DELTA, period="year", protects=ROW)
    ledger.charge("shop", "r1", gaussian(0.95), DIGEST)
    for periods in ([], ["1999-12-31"], ["2026-W01"], [2026]):
        with refused(BudgetError):
            ledger.charge("shop", "r2", gaussian(0.5), DIGEST, 0.5, DELTA, periods=periods)
    with refused(BudgetError):
        ledger.charge("shop", "r2", gaussian(0.5), DIGEST, 0.5, DELTA)


def test_release_cannot_be_charged_again_for_other_periods(ledger: Ledger) -> None:  # noqa: F811
    for release, periods in (("r1", ["2026-02"]), ("r2", [])):
        assert ledger.charge("shop", release, gaussian(0.1), DIGEST, periods=periods) == "reserved"
        assert ledger.charge("shop", release, gaussian(0.1), DIGEST, periods=periods * 2) == "reserved"
        with refused(BudgetError):
            ledger.charge("shop", release, gaussian(0.1), DIGEST, periods=["2026-03"])
    with refused(BudgetError):
        ledger.charge("shop", "r3", Cost(gaussian="1/100", period="2026-02"), DIGEST, periods=["2026-03"])
    with refused(JobError):
        ledger.charge("shop", "r4", gaussian(0.1), DIGEST, periods=["February"])


def test_cap_set_again_is_one_row_and_a_raised_one_is_an_odometer(ledger: Ledger) -> None:  # noqa: F811
    for epsilon in (1.0, 1.0, 2.0):
        change = ledger.set_cap("shop", epsilon, DELTA, period="month", protects=ROW)
        ledger.charge("shop", "r1", gaussian(0.5), DIGEST, periods=["2026-02"])
    assert str(change) == (
        "shop: the cap for each month of the data, which protects one row, is epsilon 2 at delta 1e-09 in gdp, spent is"
        " at most 0.5 (2026-02); for what was charged before it (1) the cap is an odometer, not a filter"
    )
    shown = ledger.summary("shop", by_period=True)["datasets"]["shop"]
    assert [cap["epsilon"] for cap in shown["period_caps"]] == [1.0, 2.0]
    month = shown["by_period"]["month"]
    assert (month["periods"]["2026-02"]["charged_before"], month["other"]["charged_before"]) == (1, 0)
    below = ledger.set_cap("shop", 0.3, DELTA, period="month")
    assert "which is above it: nothing more is admitted in 2026-02" in str(below)
    ledger.charge("shop", "r2", gaussian(0.25), DIGEST, periods=["2026-03"])


def test_all_caps_of_a_dataset_have_one_currency(ledger: Ledger) -> None:  # noqa: F811
    ledger.set_cap("shop", 1.0, DELTA)
    with refused(JobError):
        ledger.set_cap("shop", 1.0, 0, period="month")
    with refused(BudgetError):
        ledger.set_cap("shop", 1.0, DELTA, "pure", period="month")
    ledger.set_cap("pure", 1.0, 0, period="month", protects=ROW)
    ledger.charge("pure", "r1", Cost(pure="1/2"), DIGEST, periods=["2026-01"])
    ledger.charge("pure", "r2", Cost(pure="1/2"), DIGEST, periods=["2026-02"])
    with refused(BudgetError):
        ledger.charge("pure", "r3", gaussian(0.1), DIGEST, periods=["2026-03"])
    with refused(BudgetError):
        ledger.charge("pure", "r4", Cost(pure="3/4"), DIGEST, 0.75, periods=["2026-02"])


@pytest.mark.parametrize("period", ["week", "quarter", "", 7])
def test_other_periods_of_caps_are_refused(ledger: Ledger, period: Any) -> None:  # noqa: F811
    with refused(JobError):
        ledger.set_cap("shop", 1.0, DELTA, period=period)
    with refused(JobError):
        ledger.set_cap("shop", 1.0, DELTA, period="month", protects=Protection("person", span="day"))


def test_sums_of_months_are_shown_without_a_cap(ledger: Ledger) -> None:  # noqa: F811
    ledger.charge("shop", "r1", gaussian(0.1), DIGEST, periods=["2026-W09"])
    ledger.charge("shop", "r2", gaussian(0.1), DIGEST)
    ledger.charge("years", "r3", gaussian(0.1), DIGEST, periods=["2026", "2027"])
    ledger.charge("none", "r4", gaussian(0.1), DIGEST)
    shown = {name: one["by_period"] for name, one in ledger.summary(by_period=True)["datasets"].items()}
    assert list(shown["shop"]["month"]["periods"]) == ["2026-02", "2026-03"]
    assert shown["shop"]["month"]["periods"]["2026-02"]["releases"] == 2
    assert shown["shop"]["month"]["cap"] is None
    assert list(shown["years"]["year"]["periods"]) == ["2026", "2027"]
    assert shown["none"] == {}
    assert all("by_period" not in one for one in ledger.summary()["datasets"].values())


# The entries


def test_hash_chain_covers_spans_periods_and_caps(ledger: Ledger) -> None:  # noqa: F811
    """Planted: each new column is changed after the charge."""
    ledger.set_cap("shop", 1.0, DELTA, period="month", protects=Protection("person"))
    ledger.charge("shop", "r1", gaussian(0.1), DIGEST, protects=MONTH, periods=["2026-02", "2026-03"])
    tables = ledger._read(rows.history).tables
    assert not list(chain.findings(tables))
    for table, column, others in (("protections", "span", [None, "year"]), ("protections", "periods", ["[]", None]),
                                  ("terms", "span", [None]), ("terms", "period", ["", "year"])):  # fmt: skip
        for other in others:
            [row] = tables[table]
            [found] = chain.findings({**tables, table: [row | {column: other}]})
            assert "is not the one that the hash chain has" in found


def test_moved_history_has_the_same_budgets(place: str, tmp_path: Path) -> None:  # noqa: F811
    with Ledger.open(tmp_path / "first.sqlite") as opened:
        opened.set_cap("shop", 1.0, DELTA, period="month", protects=Protection("person"))
        opened.charge("shop", "r1", gaussian(0.9), DIGEST, protects=MONTH, periods=["2026-02"])
        before = opened.summary(by_period=True)["datasets"]
    assert run_command("ledger", "copy", tmp_path / "first.sqlite", place)[0] == 0
    with Ledger.open(place, create=False) as opened:
        opened.verify()
        assert opened.summary(by_period=True)["datasets"] == before
        with refused(BudgetError):
            opened.charge("shop", "r2", gaussian(0.9), DIGEST, 0.9, DELTA, protects=MONTH, periods=["2026-W07"])
        opened.charge("shop", "r2", gaussian(0.9), DIGEST, protects=MONTH, periods=["2026-W15"])
        opened.verify()


def test_commands_set_and_show_caps_by_period(place: str) -> None:  # noqa: F811
    cap = ("ledger", "cap", place, "--dataset", "shop", "--epsilon", "1", "--delta", "1e-9")
    assert run_command(*cap, "--period", "month", "--unit", "person")[:2] == (
        0,
        "shop: the cap for each month of the data, which protects all rows of one person in one month, is epsilon 1 at"
        " delta 1e-09 in gdp, spent is at most 0\n",
    )
    assert run_command(*cap, "--unit", "person", "--span", "month")[0] == 0
    code, _, error = run_command(*cap, "--unit", "person")
    assert (code, "a cap on the total that protects all rows of one person (add/remove)" in error) == (3, True)
    assert run_command(*cap, "--span", "month")[0] == run_command(*cap, "--period", "week")[0] == 2
    with Ledger.open(place) as opened:
        opened.charge("shop", "r1", gaussian(0.9), DIGEST, protects=MONTH, periods=["2026-02", "2026-03"])
    shown = run_command("ledger", "show", place, "--by", "period")[1]
    assert "  cap/month epsilon 1 at delta 1e-09, since " in shown
    assert "  by month  each month protects all rows of one person in one month (add/remove), cap epsilon 1 at" in shown
    assert "    2026-02: epsilon 0.9 at delta 1e-09 (squared mu 0.0270764), left squared mu 0.00603" in shown
    assert "    any other month: epsilon 0 at delta 1e-09 (squared mu 0), left squared mu 0.0331148" in shown
    assert ", reads 2026-02, 2026-03, reserved" in shown
    assert "by month" not in run_command("ledger", "show", place)[1]
    listed = json.loads(run_command("ledger", "show", place, "--by", "period", "--json")[1])
    assert list(listed["datasets"]["shop"]["by_period"]["month"]["periods"]) == ["2026-02", "2026-03"]
    assert listed["datasets"]["shop"]["releases"][0]["periods"] == ["2026-02", "2026-03"]
