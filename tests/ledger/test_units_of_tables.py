"""A privacy unit is a column of a table: equally named columns of two tables do not add up under one cap."""

import pytest

from dpscale.base.errors import BudgetError
from dpscale.ledger import Ledger
from dpscale.privacy.accounting import Cost
from dpscale.privacy.protection import Protection
from tests.audit.test_bundle import run_command
from tests.messages import refused

COST, DIGEST = Cost(gaussian="1/50"), "ab" * 32
CUSTOMER, ORDER, COLUMN = Protection("id", table="customers"), Protection("id", table="orders"), Protection("id")


@pytest.fixture
def ledger(tmp_path):
    with Ledger.open(tmp_path / "ledger.sqlite") as opened:
        yield opened


def charge(ledger, release, protects):
    return ledger.charge("shop", release, COST, DIGEST, protects=protects)


@pytest.mark.parametrize("capped", [False, True])
@pytest.mark.parametrize(("first", "second"), [(CUSTOMER, ORDER), (COLUMN, CUSTOMER), (CUSTOMER, COLUMN)])
def test_units_of_different_tables_are_not_added(ledger, first, second, capped):
    if capped:
        ledger.set_cap("shop", 3.0, 1e-9, protects=COLUMN)
    charge(ledger, "one", first)
    charge(ledger, "again", first)
    with refused(BudgetError) as caught:
        charge(ledger, "two", second)
    assert str(caught.value).count("\n") == 0
    assert len(ledger.summary("shop")["datasets"]["shop"]["releases"]) == 2
    ledger.verify()


def test_cap_on_column_is_enforced_for_first_table(ledger):
    ledger.set_cap("shop", 0.9, 1e-9, protects=COLUMN)
    charge(ledger, "one", CUSTOMER)
    with refused(BudgetError):
        charge(ledger, "two", CUSTOMER)


def test_older_entries_belong_to_table_of_cap(ledger):
    charge(ledger, "one", COLUMN)
    with refused(BudgetError):
        charge(ledger, "two", CUSTOMER)
    ledger.set_cap("shop", 3.0, 1e-9, protects=CUSTOMER)
    charge(ledger, "two", CUSTOMER)
    for other in (ORDER, COLUMN):
        with refused(BudgetError):
            charge(ledger, "three", other)
    summary = ledger.summary("shop")["datasets"]["shop"]
    assert summary["spent"]["squared_mu"] == pytest.approx(2 / 50)
    assert summary["protects"] == "all rows of one customers.id (add/remove)"


def test_unit_of_table_counts_twice_for_rows(ledger):
    charge(ledger, "one", Protection())
    charge(ledger, "two", CUSTOMER)
    assert ledger.summary("shop")["datasets"]["shop"]["spent"]["squared_mu"] == pytest.approx((1 + 4) / 50)


def test_cap_command_requires_unit_with_table(tmp_path):
    cap = ("ledger", "cap", tmp_path / "l.sqlite", "--dataset", "shop", "--epsilon", "1", "--delta", "1e-9")
    assert run_command(*cap, "--table", "customers")[0] == 2
    assert run_command(*cap, "--unit", "id", "--table", "customers")[0] == 0
    assert "customers.id" in run_command("ledger", "show", tmp_path / "l.sqlite")[1]
    with pytest.raises(BudgetError):
        Protection(None, table="customers")
