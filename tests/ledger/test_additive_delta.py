"""Releases with an additive delta and a period on the ledger: caps, group privacy, refusals, sums of periods."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray

from dpscale.__main__ import main
from dpscale.base.errors import BudgetError
from dpscale.cli.ledger import ledger_text
from dpscale.ledger import Ledger, chain, rows
from dpscale.ledger.account import RESERVED, Cap, Limit, cost_to_text, largest_epsilon
from dpscale.privacy.accounting import GDP, PURE, Cost, Spending, float_above
from dpscale.privacy.conversion import epsilon_of_mu, gaussian_power, gdp_mu
from dpscale.privacy.protection import ADD_REMOVE, REPLACE, Protection
from tests.ledger import test_filter as adversary
from tests.ledger.test_book import DELTA, DIGEST, ledger, path, release_rows  # noqa: F401
from tests.messages import refused

HALF = Fraction(DELTA) / 2
PERSON, ROW = Protection("person", ADD_REMOVE, 3), Protection()


def failing(epsilon: float, additive: Fraction = HALF, period: str = "", delta: float = DELTA) -> Cost:
    """Return the cost of Gaussian noise with an additive delta that is (epsilon, delta)-DP."""
    mu = gdp_mu(epsilon, float(Fraction(delta) - additive))
    return Cost(gaussian=Fraction(mu) ** 2, delta=additive, period=period)


# Rows


def test_row_carries_additive_delta_and_period(ledger: Ledger, path: str) -> None:  # noqa: F811
    cost = failing(1, period="2026-02")
    ledger.charge("adult", "r1", cost, DIGEST, 1.0, DELTA)
    ledger.charge("adult", "r2", Cost(gaussian="1/4"), DIGEST)
    stored = {name: json.loads(text) for name, (text, _) in release_rows(path).items()}  # type: ignore[arg-type]
    assert (stored["r1"]["delta"], stored["r1"]["period"]) == (str(HALF), "2026-02")
    assert set(stored["r2"]) == {"gaussian", "zcdp", "pure", "pure_squares"}
    assert ledger.charge("adult", "r1", cost, DIGEST) == "reserved"  # the same charge is free
    for other in (replace(cost, delta=HALF / 2), replace(cost, period=""), replace(cost, period="2026-03")):
        with refused(BudgetError):
            ledger.charge("adult", "r1", other, DIGEST)
    ledger.verify()
    shown = next(link.shown for link, _ in ledger.chain("adult") if link.shown["release"] == "r1")
    assert json.loads(shown["cost"]) == cost.to_dict()


def test_links_of_rows_without_both_are_unchanged() -> None:
    """The digest was computed before costs had an additive delta and a period."""
    row = {"release": "r1", "dataset": "adult", "plan_digest": DIGEST, "cost": cost_to_text(Cost(gaussian="1/4")),
           "epsilon": 1.0, "delta": DELTA, "reserved_at": "2026", "unit": None, "unit_table": None,
           "relation": ADD_REMOVE, "bound": 1, "public": 0}  # fmt: skip
    before = '{"gaussian": "1/4", "pure": "0", "pure_squares": "0", "zcdp": "0"}'
    assert row["cost"] == before
    assert chain.link_of("releases", row, {}, "ab").digest("") == LINK
    more = row | {"cost": cost_to_text(Cost(gaussian="1/4", period="2026-02"))}
    assert chain.link_of("releases", more, {}, "ab").digest("") != LINK


LINK = "5617f6d293f00c92711a5c30c9d8252b8df97058619fe3d3a721729e0b2da3ba"


def test_stored_row_without_its_period_or_delta_is_detected(ledger: Ledger) -> None:  # noqa: F811
    """Planted: the period, or the additive delta, is removed from the row after the charge."""
    cost = failing(1, period="2026-02")
    ledger.charge("adult", "r1", cost, DIGEST)
    tables = ledger._read(rows.history).tables
    assert not list(chain.findings(tables))
    for other in (replace(cost, period=""), replace(cost, delta=Fraction(0)), replace(cost, period="2026-03")):
        [row] = tables["releases"]
        forged = {**tables, "releases": [row | {"cost": cost_to_text(other)}]}
        assert list(chain.findings(forged)) == ["entry 1 of releases is not the one that the hash chain has"]


# Caps


def test_cap_counts_additive_deltas(ledger: Ledger) -> None:  # noqa: F811
    """Two releases whose mu fits a thousand times use up the half of the cap's delta that is for additive deltas."""
    ledger.set_cap("adult", 1.0, DELTA)
    small = Cost(gaussian="1/1000000", delta=Fraction(DELTA) * 2 / 10)
    ledger.charge("adult", "r1", small, DIGEST)
    ledger.charge("adult", "r2", small, DIGEST)
    with pytest.raises(BudgetError) as caught:
        ledger.charge("adult", "r3", small, DIGEST)
    assert str(caught.value) == (
        "privacy.delta: requested additive delta 2e-10 of dataset 'adult', remaining additive delta 1e-10 of its cap of"
        " epsilon 1 at delta 1e-09 in gdp; expected at most 1e-10; lower it, or set another cap before"
        " the release"
    )
    ledger.charge("adult", "r3", replace(small, delta=Fraction(0)), DIGEST)
    ledger.charge("adult", "r4", replace(small, delta=HALF / 5), DIGEST)  # exactly what is left
    with refused(BudgetError):
        ledger.charge("adult", "r5", small, DIGEST, reserve=False)


def test_additive_delta_reduces_the_epsilon_left(ledger: Ledger) -> None:  # noqa: F811
    ledger.set_cap("adult", 1.0, DELTA)
    ledger.charge("adult", "r1", Cost(gaussian="1/1000000", delta=HALF / 2), DIGEST)
    shown = ledger.summary("adult")["datasets"]["adult"]
    squared = Fraction(gdp_mu(1.0, float(HALF))) ** 2 - Fraction(1, 10**6)
    assert shown["remaining"] == pytest.approx(float(squared), rel=1e-9)
    assert shown["spent"]["additive_delta"] == float_above(HALF / 2)
    assert "reserved for additive deltas: 5e-10 of the cap's delta" in shown["notes"]
    most = gdp_mu(1.0, DELTA) ** 2 - 1e-6  # fits if the additive delta is ignored
    with refused(BudgetError) as caught:
        ledger.charge("adult", "r2", Cost(gaussian=Fraction(most)), DIGEST, delta=DELTA)
    fits = float(str(caught.value).split("ask for epsilon = ")[1].split()[0])
    assert shown["remaining_epsilon"] == pytest.approx(fits, rel=1e-5)
    assert fits == pytest.approx(epsilon_of_mu(math.sqrt(squared), DELTA), rel=1e-4)
    ledger.charge("adult", "r2", Cost(gaussian=Fraction(gdp_mu(fits, DELTA)) ** 2), DIGEST)


def test_first_release_decides_whether_the_cap_reserves_delta(ledger: Ledger) -> None:  # noqa: F811
    """Later an exchange of delta for mu would depend on released values."""
    ledger.set_cap("adult", 1.0, DELTA)
    failing_release = Cost(gaussian="1/1000000", delta=HALF / 2)
    ledger.charge("adult", "r1", Cost(gaussian="1/1000000"), DIGEST)
    with refused(BudgetError):
        ledger.charge("adult", "r2", failing_release, DIGEST)
    most = Fraction(gdp_mu(1.0, DELTA)) ** 2
    assert ledger.charge("adult", "r2", Cost(gaussian=most - Fraction(1, 10**5)), DIGEST, reserve=False) == "admitted"
    change = ledger.set_cap("adult", 1.1, DELTA)
    assert change.charged_before == 1
    ledger.charge("adult", "r2", failing_release, DIGEST)  # the first release after this cap
    assert ledger.set_cap("adult", 1.1, DELTA).spent_epsilon > change.spent_epsilon  # the same cap: nothing changes
    assert len(ledger.summary("adult")["datasets"]["adult"]["former_caps"]) == 1
    ledger.set_cap("adult", 1.2, DELTA)
    ledger.charge("adult", "r3", Cost(gaussian="1/1000000"), DIGEST)  # earlier additive deltas still count
    shown = ledger.summary("adult")["datasets"]["adult"]
    assert shown["remaining"] == pytest.approx(gdp_mu(1.2, float(HALF)) ** 2 - 3e-6, rel=1e-9)
    assert shown["spent"]["epsilon"] == epsilon_of_mu(math.sqrt(3e-6), float(HALF))


def test_suggested_epsilon_of_failing_release_is_admitted(ledger: Ledger) -> None:  # noqa: F811
    ledger.set_cap("adult", 1.0, DELTA)
    ledger.charge("adult", "r1", Cost(gaussian="1/10000", delta=HALF / 4), DIGEST)
    with refused(BudgetError) as caught:
        ledger.charge("adult", "r2", failing(2, HALF / 2), DIGEST, 2.0, DELTA)
    fits = float(str(caught.value).split("ask for epsilon = ")[1].split()[0])
    assert 0.9 < fits < 1
    with pytest.raises(BudgetError):
        ledger.charge("adult", "r2", failing(fits * 1.001, HALF / 2), DIGEST, fits, DELTA)
    ledger.charge("adult", "r2", failing(fits, HALF / 2), DIGEST, fits, DELTA)


@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_pure_cap_admits_additive_delta_up_to_its_delta(ledger: Ledger, delta: float) -> None:  # noqa: F811
    ledger.set_cap("adult", 1.0, delta, "pure")
    cost = Cost(pure="1/4", delta=Fraction(1, 2 * 10**6))
    if not delta:
        with refused(BudgetError):
            ledger.charge("adult", "r1", cost, DIGEST)
        return
    ledger.charge("adult", "r1", cost, DIGEST)
    ledger.charge("adult", "r2", replace(cost, delta=Fraction(1e-6) - cost.delta), DIGEST)  # exactly the cap's delta
    with refused(BudgetError):
        ledger.charge("adult", "r3", cost, DIGEST)
    ledger.charge("adult", "r3", Cost(pure="1/2"), DIGEST)
    assert ledger.summary("adult")["datasets"]["adult"]["spent"]["epsilon"] == 1.0


def test_planted_cap_that_ignores_the_delta_is_detected(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    with monkeypatch.context() as patch:
        patch.setattr(Cap, "additive", property(lambda cap: 1.0))
        patch.setattr("dpscale.privacy.accounting.delta_left", lambda delta, additive: delta)
        with pytest.raises(pytest.fail.Exception):
            test_cap_counts_additive_deltas(ledger)


def test_largest_epsilon_is_zero_where_the_delta_is_used_up() -> None:
    cap, kind = Cap(1.0, DELTA, reserved=float(HALF)), failing(0.5)
    assert largest_epsilon([Limit(cap, Spending())], kind, DELTA) > 0.9
    assert largest_epsilon([Limit(Cap(1.0, DELTA), Spending())], kind, DELTA) == 0
    assert largest_epsilon([Limit(cap, Spending().plus(failing(0.5)))], kind, DELTA) == 0
    assert largest_epsilon([Limit(cap, Spending(), steps=2)], kind, DELTA) == 0  # the delta grows above the cap
    assert largest_epsilon([Limit(cap, Spending())], kind, float(HALF) / 2) == 0


# Group privacy


def test_release_for_units_counts_for_rows_with_grown_delta(ledger: Ledger) -> None:  # noqa: F811
    """A release that protects persons counts for rows at two steps: twice mu, and delta plus its power at mu."""
    ledger.set_cap("adult", 10.0, 1e-6, protects=ROW)
    cost = Cost(gaussian="1/4", delta=Fraction(1, 10**8))
    ledger.charge("adult", "r1", cost, DIGEST, protects=PERSON)
    shown = ledger.summary("adult")["datasets"]["adult"]["spent"]
    grown = 1e-8 + gaussian_power(1e-8, 0.5)
    assert shown["squared_mu"] == 1.0
    assert shown["additive_delta"] == pytest.approx(grown, rel=1e-12)
    assert grown > 5e-8  # planted: 1e-8 and 2e-8 are a delta that does not grow, or grows like a repetition
    assert shown["epsilon"] == epsilon_of_mu(1.0, 5e-7)


def test_cap_refuses_a_delta_that_grows_above_it(ledger: Ledger) -> None:  # noqa: F811
    """Four steps: a replaced row of another unit. The entry's own delta and four times it would be below the cap."""
    ledger.set_cap("adult", 100.0, 1e-6, protects=Protection(None, REPLACE))
    cost = Cost(gaussian="1/4", delta=Fraction(1, 10**8))
    grown = cost.for_group(4).delta
    assert grown > 1e-6 > 4 * cost.delta
    with refused(BudgetError):
        ledger.charge("adult", "r1", cost, DIGEST, protects=PERSON)
    ledger.charge("adult", "r1", cost, DIGEST, protects=Protection())


# Statements


def test_periods_are_summed_and_all_count(ledger: Ledger) -> None:  # noqa: F811
    ledger.set_cap("adult", 1.0, DELTA)
    for number, period in enumerate(["2026-02", "2026-01", "", "2026-02"]):
        ledger.charge("adult", f"r{number}", Cost(gaussian="1/100000", delta=HALF / 8, period=period), DIGEST)
    found = ledger.periods("adult")
    assert list(found) == ["", "2026-01", "2026-02"]
    assert {name: one.squared_mu * 10**5 for name, one in found.items()} == {"": 1, "2026-01": 1, "2026-02": 2}
    assert found["2026-02"].delta == HALF / 4
    shown = ledger.summary("adult")["datasets"]["adult"]
    assert shown["spent"]["squared_mu"] == float_above(Fraction(4, 10**5))  # periods are not taken as disjoint
    assert shown["periods"]["2026-02"]["additive_delta"] == float_above(HALF / 4)
    assert shown["periods"]["2026-02"]["epsilon"] == found["2026-02"].epsilon(GDP, DELTA, DELTA / 2)
    text = ledger_text(ledger.summary())
    assert "period    2026-02: epsilon" in text
    assert "period    none: epsilon" in text
    assert "r0, epsilon" in text
    assert ", additive delta 6.25e-11, period 2026-02, reserved" in text
    with pytest.raises(BudgetError):
        ledger.charge("adult", "r9", Cost(gaussian=Fraction(gdp_mu(1.0, DELTA)) ** 2, period="2026-03"), DIGEST)


def test_ledger_without_both_shows_neither(ledger: Ledger) -> None:  # noqa: F811
    ledger.charge("adult", "r1", Cost(gaussian="1/4"), DIGEST)
    shown = ledger.summary("adult")["datasets"]["adult"]
    assert ledger.periods("adult") == {}
    assert "periods" not in shown
    assert set(shown["spent"]) == {"epsilon", "delta", "squared_mu", "pure_epsilon"}
    assert not [word for word in ("period", "additive") if word in ledger_text(ledger.summary())]


def test_statement_without_cap_adds_the_additive_deltas(ledger: Ledger) -> None:  # noqa: F811
    """At the delta of its releases nothing could be said: their additive deltas use it up."""
    for number in range(3):
        ledger.charge("adult", f"r{number}", failing(0.2), DIGEST, 0.2, DELTA)
    spent = ledger.summary("adult")["datasets"]["adult"]["spent"]
    assert spent["delta"] == pytest.approx(DELTA + 1.5 * DELTA)
    assert spent["epsilon"] == pytest.approx(epsilon_of_mu(math.sqrt(3) * gdp_mu(0.2, DELTA / 2), DELTA), rel=1e-6)
    ledger.charge("pure", "p1", Cost(pure="1/2", delta="1/1000"), DIGEST)
    shown = ledger.summary("pure")["datasets"]["pure"]
    assert shown["spent"] | {"squared_mu": 0} == {
        "epsilon": 0.5, "delta": 0.001, "squared_mu": 0, "pure_epsilon": 0.5, "additive_delta": 0.001,
    }  # fmt: skip
    assert shown["currency"].startswith(PURE)
    assert shown["releases"][0]["own"] == {"epsilon": 0.5, "delta": 0.001}


def test_command_shows_both(ledger: Ledger, path: str) -> None:  # noqa: F811
    ledger.charge("adult", "r1", failing(1, period="2026-02"), DIGEST, 1.0, DELTA)
    ledger.close()
    shown = CliRunner().invoke(main, ["ledger", "show", str(path)])
    assert shown.exit_code == 0
    assert "additive delta 5e-10" in shown.stdout
    assert "period 2026-02" in shown.stdout
    listed = json.loads(CliRunner().invoke(main, ["ledger", "show", str(path), "--json"]).stdout)
    assert listed["datasets"]["adult"]["periods"]["2026-02"]["epsilon"] == pytest.approx(1, rel=1e-9)


@pytest.mark.parametrize("period", ['"delta"', '\\"delta":', '{"period": "x"}', "Février 2026", '"'])
def test_period_with_quotes_is_no_additive_delta(ledger: Ledger, period: str) -> None:  # noqa: F811
    """The fields of a row are recognised in its text."""
    ledger.set_cap("adult", 1.0, DELTA)
    ledger.charge("adult", "r1", Cost(gaussian="1/1000000", period=period), DIGEST)
    assert list(ledger.periods("adult")) == [period]
    assert ledger._read(lambda db: rows.account(db, "adult")).limit() == Cap(1.0, DELTA)


# Adaptive adversaries


@dataclass(frozen=True)
class FailingRelease(adversary.Release):
    """A release that shows everything with some probability: an outcome of infinite loss."""

    base: adversary.Release

    @classmethod
    def of(cls, base: adversary.Release, chance: Fraction) -> FailingRelease:
        shown = float(chance)
        chances, losses = np.append(base.chances * (1 - shown), shown), np.append(base.losses, math.inf)
        return cls(replace(base.cost, delta=chance), chances, losses, base)

    def delta(self, epsilon: NDArray[np.float64]) -> NDArray[np.float64]:
        return (1 - float(self.cost.delta)) * self.base.delta(epsilon) + float(self.cost.delta)


def reserving_rule(cap: Cap) -> adversary.AdmissionRule:
    """Return the rule of the ledger for a dataset whose first release has an additive delta."""
    return adversary.ledger_rule(replace(cap, reserved=cap.delta * RESERVED))


def ignoring_rule(cap: Cap) -> adversary.AdmissionRule:
    """Return the planted rule: the additive deltas are not counted."""

    def admits(history: list[adversary.Release]) -> bool:
        spending = sum_of(history)
        return cap.admits(replace(spending, delta=Fraction(0)))

    return admits


def exchanging_rule(cap: Cap) -> adversary.AdmissionRule:
    """Return the planted rule: the additive deltas so far are subtracted from the cap's delta, nothing is reserved."""

    def admits(history: list[adversary.Release]) -> bool:
        return sum_of(history).epsilon(GDP, cap.delta) <= cap.epsilon

    return admits


def sum_of(history: list[adversary.Release]) -> Spending:
    spending = Spending()
    for release in history:
        spending = spending.plus(release.cost)
    return spending


def worst_delta(rule: adversary.AdmissionRule, first: adversary.Release, cap: Cap) -> float:
    """Return the delta of an adversary who chooses kind, size and additive delta of a second release by the first."""
    left = max(Fraction(cap.delta) - first.cost.delta, Fraction(0))
    seconds = list[adversary.Release]()
    for chance in (left * share / 10 for share in (0, 1, 2, 3, 5, 7, 9)):
        for kind in adversary.KINDS:
            low, high = Fraction(0), Fraction(4)
            for _ in range(30):
                middle = (low + high) / 2
                tried = [first, FailingRelease.of(adversary.KINDS[kind](middle), chance)]
                low, high = (middle, high) if rule(tried) else (low, middle)
            if low:
                seconds.append(FailingRelease.of(adversary.KINDS[kind](low), chance))
    after = adversary.integrate_over(first, lambda left: np.max([one.delta(left) for one in seconds], axis=0))
    return float(after(np.array([cap.epsilon]))[0])


@pytest.mark.sampled(5)
@pytest.mark.parametrize("cap", adversary.CAPS, ids=str)
@pytest.mark.parametrize(("kind", "share", "chance"), [("gaussian", 0.2, 0.3), ("gaussian", 0.6, 0.1),
                                                       ("response", 0.4, 0.5), ("selection", 0.5, 0.0)])  # fmt: skip
def test_adaptive_additive_deltas_stay_within_cap(cap: Cap, kind: str, share: float, chance: float) -> None:
    first = first_release(cap, kind, share, chance)
    assert worst_delta(reserving_rule(cap), first, cap) <= cap.delta * (1 + 1e-4)


def first_release(cap: Cap, kind: str, share: float, chance: float) -> FailingRelease:
    base = adversary.first_release(reserving_rule(cap), kind, share)
    return FailingRelease.of(base, Fraction(chance) * Fraction(cap.delta))


@pytest.mark.slow
def test_search_detects_planted_rules() -> None:
    cap = Cap(1.0, 1e-6)
    first = first_release(cap, "gaussian", 0.5, 0.5)
    assert worst_delta(ignoring_rule(cap), first, cap) > 1.3 * cap.delta
    for share in (0.5, 0.8):
        first = first_release(cap, "gaussian", share, 0.0)
        assert worst_delta(exchanging_rule(cap), first, cap) > 1.1 * cap.delta
        assert worst_delta(reserving_rule(cap), first, cap) <= cap.delta * (1 + 1e-4)
