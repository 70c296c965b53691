"""Caps that renew by the period of the data: admission against a plain model, races, refusals and statements."""

from __future__ import annotations

import json
import multiprocessing
import random
import re
import threading
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from dpscale.base.errors import BudgetError
from dpscale.ledger import Ledger, account as account_module, request
from dpscale.ledger.account import Account
from dpscale.privacy.accounting import Cost, gdp_mu
from dpscale.privacy.protection import Protection
from tests.ledger.conftest import Server
from tests.ledger.period_model import PROMISES, Charge, Model, random_charge, violations
from tests.ledger.test_book import DELTA, DIGEST, open_database, run_processes

SOURCES = {"row": ["row"], "rows and units": ["row", "row", "month", "year", "all"],
           "unit": ["month", "month", "year", "row"], "unit of years": ["year", "month"]}  # fmt: skip


@pytest.fixture(params=["file", "server"])
def place(request: Any, tmp_path: Path) -> str:
    if request.param == "file":
        return str(tmp_path / "ledger.sqlite")
    server: Server = request.getfixturevalue("server")
    return server.database()


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(tmp_path / "ledger.sqlite") as opened:
        yield opened


def charge(ledger: Ledger, release: str, one: Charge, **named: Any) -> str:
    cost = Cost(gaussian=one.squared_mu, delta=one.delta)
    return ledger.charge("shop", release, cost, DIGEST, delta=DELTA, protects=PROMISES[one.promise],
                         periods=one.periods, **named)  # fmt: skip


# Admission against the model


def random_caps(generator: random.Random, kind: str) -> list[tuple[str, float]]:
    """Return periods and epsilons of caps; a unit in one year has only caps by year."""
    by_period = {"unit": ["month"], "unit of years": ["year"]}.get(kind)
    by_period = by_period or generator.choice([["month"], ["month", "year"], ["year"]])
    total = [("", generator.uniform(1.2, 2.5))] if generator.random() < 0.6 else []
    return [*((period, generator.uniform(0.4, 1.2)) for period in by_period), *total]


def differences(ledger: Ledger, seed: int, charges: int = 40) -> Iterator[str]:
    """Yield where the ledger and the model disagree on a random sequence of charges and caps."""
    generator = random.Random(seed)
    kind = generator.choice(list(SOURCES))
    model = Model(unit=kind.startswith("unit"))
    additive = Fraction(DELTA) / 8 if kind == "row" else Fraction(0)
    caps = random_caps(generator, kind)
    for number in range(charges):
        if number == 0 or (generator.random() < 0.05 and kind != "rows and units"):
            for period, epsilon in caps:
                raised = epsilon * generator.choice([0.7, 1, 1.3])
                protects = Protection("person") if model.unit and period else None if model.unit else Protection()
                ledger.set_cap("shop", raised, DELTA, protects=protects, period=period or None)
                if model.caps.get(period, (0,))[0] != raised:
                    model.set_cap(period, raised, DELTA)
        one = random_charge(generator, SOURCES[kind], additive)
        expected = model.admits(one)
        try:
            charge(ledger, f"r{number}", one)
            admitted = True
        except BudgetError as refused:
            admitted = False
            yield from wrong_figures(model, one, str(refused))
        if admitted:
            model.charges.append(one)
        if admitted != expected:
            yield f"seed {seed}, charge {number}: {one} is {'admitted' if admitted else 'refused'}"
            break
    yield from (f"seed {seed}: {period} {label} is above its cap" for period, label in violations(model)
                if not any(before for *_, before in model.caps.values()))  # fmt: skip


def wrong_figures(model: Model, one: Charge, message: str) -> Iterator[str]:
    """Yield a stated largest request that the model does not admit, or that is not the largest."""
    if (found := re.search(r"ask for epsilon = ([^\s,;]+)", message)) is None:
        return
    for factor, expected in ((1, True), (1.01, False)):
        mu = gdp_mu(float(found[1]) * factor, DELTA - float(one.delta))
        if model.admits(Charge(Fraction(mu) ** 2, one.delta, one.periods, one.promise)) is not expected:
            yield f"{message} is wrong for {factor} times the figure"


@pytest.mark.sampled(8)
@pytest.mark.parametrize("seed", range(24))
def test_admission_equals_model(ledger: Ledger, seed: int) -> None:
    assert list(differences(ledger, seed)) == []
    ledger.verify()


def first_month_only(patch: pytest.MonkeyPatch) -> None:
    real = account_module.renewals_of
    patch.setattr(account_module, "renewals_of", lambda labels, by: frozenset(sorted(real(labels, by))[:1]))


def releases_without_periods_read_nothing(patch: pytest.MonkeyPatch) -> None:
    real = account_module.periods_of_row
    patch.setattr(account_module, "periods_of_row", lambda row: real(row) or ("1999-01",))


def total_cap_only(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(request, "filters", lambda account, *_: [account])


def total_cap_ignored(patch: pytest.MonkeyPatch) -> None:
    real = account_module.filters
    patch.setattr(request, "filters", lambda *arguments: [one for one in real(*arguments) if one.renewal])


def every_promise_in_one_step(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Account, "steps", lambda *_: 1)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "fault",
    [
        first_month_only,
        releases_without_periods_read_nothing,
        total_cap_only,
        total_cap_ignored,
        every_promise_in_one_step,
    ],
)
def test_model_detects_planted_faults(tmp_path: Path, fault: Callable[[pytest.MonkeyPatch], None]) -> None:
    """Planted: one rule of admission is broken. The records of some period then have more than the cap."""
    with pytest.MonkeyPatch.context() as patch:
        fault(patch)
        for seed in range(24):
            with Ledger.open(tmp_path / f"{seed}.sqlite") as ledger:
                found = "".join(differences(ledger, seed))
            if "is admitted" in found and "above its cap" in found:
                return
    pytest.fail("no sequence detects it")


# Races


def race_for_periods(
    number: int, barrier: threading.Barrier, answers: multiprocessing.Queue[str], place: str, promises: list[str]
) -> None:
    generator, refused = random.Random(f"race {number}"), []
    with Ledger.open(place, timeout=300) as ledger:
        barrier.wait()
        for turn in range(12):
            one = random_charge(generator, promises, Fraction(0))
            try:
                charge(ledger, f"p{number}.{turn}", one)
            except BudgetError:
                refused.append([str(one.squared_mu), one.periods, one.promise])
    answers.put(json.dumps(refused))


def stored_charges(place: str) -> list[Charge]:
    """Return the charges in the order of the database, read without the ledger."""
    query = """SELECT cost, periods, span FROM releases
        JOIN protections ON protections.release = releases.release ORDER BY releases.seq"""
    with open_database(place) as db:  # type: ignore[arg-type]
        rows = db.execute(query).fetchall()
    return [Charge(Fraction(json.loads(cost)["gaussian"]), periods=tuple(json.loads(periods)), promise=span or "row")
            for cost, periods, span in rows]  # fmt: skip


@pytest.mark.sampled(2)
@pytest.mark.parametrize("unit", [False, True])
def test_concurrent_processes_charge_as_the_model(place: str, unit: bool) -> None:
    """In the order of the ledger the model admits every charge, and at the end it refuses every refused one."""
    model = Model(unit=unit)
    caps = {"month": 0.6, "": 1.6} | ({} if unit else {"year": 0.9})
    with Ledger.open(place) as ledger:
        for period, epsilon in caps.items():
            protects = Protection("person") if unit and period else None if unit else Protection()
            ledger.set_cap("shop", epsilon, DELTA, protects=protects, period=period or None)
            model.set_cap(period, epsilon, DELTA)
    answers = run_processes(race_for_periods, place, ["month", "year"] if unit else ["row", "month"], count=6)
    stored = stored_charges(place)
    for one in stored:
        assert model.admits(one)
        model.charges.append(one)
    refused = [Charge(Fraction(cost), periods=tuple(periods), promise=promise)
               for answer in answers for cost, periods, promise in json.loads(answer)]  # fmt: skip
    assert len(stored) + len(refused) == 6 * 12
    assert min(len(stored), len(refused)) > 5
    assert not [one for one in refused if model.admits(one)]
    assert list(violations(model)) == []
    with Ledger.open(place) as ledger:
        ledger.verify()
