"""Caps of analysts: each is a privacy filter on the releases that name the analyst, beside the cap of the dataset."""

from __future__ import annotations

import random
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest
from click.testing import CliRunner

from dpscale.__main__ import main
from dpscale.base.errors import BudgetError, JobError
from dpscale.ledger import Ledger, account as accounts, request as requests
from dpscale.privacy.accounting import Cost
from dpscale.privacy.conversion import gdp_mu
from tests.ledger.conftest import Server
from tests.ledger.test_book import DIGEST, gaussian
from tests.messages import refused

DELTA = 1e-9
TOTAL, ANA, BEN = (gdp_mu(epsilon, DELTA) ** 2 for epsilon in (2.0, 1.5, 1.0))


@pytest.fixture(params=["file", "server"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "file":
        return str(tmp_path / "l.sqlite")
    server: Server = request.getfixturevalue("server")
    return server.database()


def squared(amount: float) -> Cost:
    return Cost(gaussian=Fraction(amount))


def open_capped(place: str) -> Ledger:
    """Return a ledger with a cap of the dataset and of two analysts."""
    ledger = Ledger.open(place)
    ledger.set_cap("visits", 2.0, DELTA)
    ledger.set_cap("visits", 1.5, DELTA, analyst="ana")
    ledger.set_cap("visits", 1.0, DELTA, analyst="ben")
    return ledger


def charge_at_random(ledger: Ledger, seed: int) -> dict[str, float]:
    """Return the squared mu that is admitted for each analyst, whose next budget depends on what was admitted."""
    source, spent = random.Random(seed), {"ana": 0.0, "ben": 0.0}
    for number in range(60):
        who = source.choice(sorted(spent))
        cost = source.uniform(0.001, 0.3) * TOTAL / (1 + 10 * spent[who])
        try:
            ledger.charge("visits", f"{number}", squared(cost), DIGEST, analyst=who)
        except BudgetError:
            continue
        spent[who] += cost
    return spent


def within_caps(spent: dict[str, float]) -> bool:
    return spent["ana"] <= ANA and spent["ben"] <= BEN and sum(spent.values()) <= TOTAL


def test_filters_hold_for_adaptive_budgets(place: str) -> None:
    with open_capped(place) as ledger:
        spent = charge_at_random(ledger, 5)
        ledger.verify()
    assert within_caps(spent)
    assert spent["ben"] > 0.5 * BEN
    assert sum(spent.values()) > 0.8 * TOTAL, "the caps are reached"


def test_planted_filter_without_analysts_overspends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: releases are compared with the cap of the dataset alone."""
    before: Callable[..., object] = accounts.filters
    monkeypatch.setattr(
        requests, "filters", lambda account, periods, protects, analyst: before(account, periods, protects)
    )
    with open_capped(str(tmp_path / "l.sqlite")) as ledger:
        assert any(not within_caps(charge_at_random(ledger, seed)) for seed in (5,))


def test_refusal_names_the_analyst(place: str) -> None:
    with open_capped(place) as ledger:
        ledger.charge("visits", "first", squared(0.9 * BEN), DIGEST, analyst="ben")
        with refused(BudgetError):
            ledger.charge("visits", "second", squared(0.2 * BEN), DIGEST, analyst="ben")
        ledger.charge("visits", "third", squared(0.2 * BEN), DIGEST, analyst="ana")
        found = ledger.summary("visits")["datasets"]["visits"]
    assert {name: one["releases"] for name, one in found["analysts"].items()} == {"ana": 1, "ben": 1}
    assert found["analysts"]["ben"]["spent"]["squared_mu"] == pytest.approx(0.9 * BEN)
    assert found["analysts"]["ben"]["cap"]["epsilon"] == 1.0
    assert found["spent"]["squared_mu"] == pytest.approx(1.1 * BEN)


@pytest.mark.parametrize("analyst", ["", "eve"])
def test_release_of_nobody_or_a_stranger_is_refused(place: str, analyst: str) -> None:
    with open_capped(place) as ledger, refused(BudgetError):
        ledger.charge("visits", "first", gaussian(0.1), DIGEST, analyst=analyst)


def test_release_keeps_its_analyst(place: str) -> None:
    """A charge under another name is another charge."""
    with open_capped(place) as ledger:
        ledger.charge("visits", "first", gaussian(0.1), DIGEST, analyst="ana")
        assert ledger.charge("visits", "first", gaussian(0.1), DIGEST, analyst="ana") == "reserved"
        with refused(BudgetError):
            ledger.charge("visits", "first", gaussian(0.1), DIGEST, analyst="ben")


def test_names_are_sealed_by_the_chain(tmp_path: Path) -> None:
    """Planted: a release moves to another analyst."""
    import sqlite3

    path = tmp_path / "l.sqlite"
    with open_capped(str(path)) as ledger:
        ledger.charge("visits", "first", gaussian(0.1), DIGEST, analyst="ana")
    with sqlite3.connect(path) as db:
        (kept,) = db.execute("SELECT sql FROM sqlite_schema WHERE name = 'protections_update'").fetchone()
        db.execute("DROP TRIGGER protections_update")
        db.execute("UPDATE protections SET analyst = 'ben' WHERE release = 'first'")
        db.execute(kept)
    with Ledger.open(path) as ledger, refused(BudgetError):
        ledger.verify()


def test_cap_of_an_analyst_is_replaced_and_repeated(place: str) -> None:
    with open_capped(place) as ledger:
        assert str(ledger.set_cap("visits", 1.0, DELTA, analyst="ben")).startswith(
            "visits: the cap of ben is epsilon 1"
        )
        ledger.set_cap("visits", 0.5, DELTA, analyst="ben")
        found = ledger.summary("visits")["datasets"]["visits"]
        assert found["cap"]["epsilon"] == 2.0
        assert found["former_caps"] == []
        assert found["analysts"]["ben"]["cap"]["epsilon"] == 0.5
        assert len(ledger.chain("visits")) == 4, "the repeated cap adds no row"


def test_cap_of_an_analyst_has_the_currency_of_the_dataset_and_no_period(place: str) -> None:
    with open_capped(place) as ledger:
        with refused(BudgetError):
            ledger.set_cap("visits", 1.0, 0, "pure", analyst="cem")
        with refused(JobError):
            ledger.set_cap("visits", 1.0, DELTA, period="month", analyst="cem")
        with refused(JobError):
            ledger.set_cap("visits", 1.0, DELTA, analyst=" ")


def test_commands_set_and_show_caps_of_analysts(tmp_path: Path) -> None:
    path, cap = str(tmp_path / "l.sqlite"), ["--dataset", "visits", "--epsilon", "1", "--delta", "1e-9"]
    assert (
        "the cap of ana is epsilon 1"
        in CliRunner().invoke(main, ["ledger", "cap", path, *cap, "--analyst", "ana"]).output
    )
    shown = CliRunner().invoke(main, ["ledger", "show", path]).output
    assert "analyst   ana: cap epsilon 1 at delta 1e-09" in shown
