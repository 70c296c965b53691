"""Recompute the cost of a release from this folder: python recompute.py [FOLDER]. Exit code 1 if a claim fails.

The script uses only the standard library, so it can be read and run without dpscale. It computes the largest column
norms of every integer strategy in draws.json and strategies.json, from them and from the bounds of links the exact cost
of every draw, and compares it with events.json and with the charge in ledger.json. It then computes the ε of the events
by its own formulas and, if Google's dp-accounting is installed (pip install dp-accounting), by its accountants, and
compares it with the claim.

crosscheck.py compares the files with each other; sensitivities.py computes the cost of a draw from its integers. Events
without Gaussian noise enter Gaussian DP by their μ: ε-DP with 2Φ⁻¹(e^ε/(1 + e^ε)), a selection of range ε with ε/2.
Events of the kind "delta" are additive δ, which add and are subtracted from the δ of a claim.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or __package__:
    from dpscale.audit.evidence.crosscheck import cross_faults, tomllib
    from dpscale.audit.evidence.sensitivities import Events, Fields, check_draws, delta_of_mu, grown_delta, mu_of_pure
else:  # in a bundle, in which no files may be created
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(Path(__file__).parent))  # also where Python is isolated
    from crosscheck import cross_faults, tomllib
    from sensitivities import Events, Fields, check_draws, delta_of_mu, grown_delta, mu_of_pure

ROUNDING = 1e-9  # relative tolerance of sums that contain floats
SMALL = 1e-12  # δ for the accountants of dp-accounting in a pure release
WITHIN = 1e-6  # relative tolerance of a claim, for bounds found by bisection and on grids
DISCRETE = 1e-3  # relative and absolute tolerance: dp-accounting's losses are on a grid, rounded upwards
SPAN = re.compile(r" in one (day|week|month|quarter|year) \(")  # of a promise for the rows of a unit in one period
PURE, MANY = ("laplace", "pure", "selection"), 64  # most distinct Laplace events that are composed one by one


def read(folder: str | Path, name: str) -> Any:
    return json.loads((Path(folder) / name).read_text("utf-8"))


# ---- costs -----------------------------------------------------------------------------------------------------------


def count_events(listed: list[Fields]) -> Events:
    """Return the events listed in events.json with their counts."""
    events = Events()
    for one in listed:
        events[one["kind"], Fraction(one["cost"])] += int(one["count"])
    return events


def has_wrong_multiplier(listed: list[Fields]) -> bool:
    """Return whether a noise multiplier contradicts the exact cost of its event."""
    powers = {"gaussian": -0.5, "laplace": -1.0}
    return any(abs(one["noise_multiplier"] / float(Fraction(one["cost"])) ** powers[one["kind"]] - 1) > ROUNDING
               for one in listed if "noise_multiplier" in one)  # fmt: skip


def ledger_events(ledger: Fields) -> Events:
    """Return the ledger's entries as events in its currency: each a Gaussian mechanism or an ε."""
    added = sum((Events({("delta", additive_delta(row, ledger)): 1}) for row in ledger["releases"]), Events())
    if ledger["currency"].startswith("pure"):
        return sum((Events({("pure", steps(row, ledger) * Fraction(row["cost"]["pure"])): 1})
                    for row in ledger["releases"]), added)  # fmt: skip
    return sum((Events({("gaussian", squared_mu(scale_cost(row["cost"], steps(row, ledger)))): 1})
                for row in ledger["releases"]), added)  # fmt: skip


def additive_delta(row: Fields, ledger: Fields) -> Fraction:
    """Return the additive δ of an entry over the steps of the dataset."""
    cost = row["cost"]
    is_pure = not any(Fraction(cost.get(name) or 0) for name in ("gaussian", "zcdp"))
    pure = float(Fraction(cost.get("pure") or 0)) if is_pure else math.inf
    return grown_delta(Fraction(cost.get("delta") or 0), math.sqrt(squared_mu(cost)), pure, steps(row, ledger))


def period_faults(ledger: Fields) -> Iterator[str]:
    """Yield a fault if the sums of the periods are not those of their entries; there are none without a period."""
    rows, sums = ledger["releases"], ledger.get("periods", {})
    names = {row["cost"].get("period", "") for row in rows}
    if set(sums) != (names if any(names) else set()):
        yield "ledger.json does not list the periods of its entries"
        return
    for name, figures in sums.items():
        own = [row for row in rows if row["cost"].get("period", "") == name]
        squared = sum(squared_mu(scale_cost(row["cost"], steps(row, ledger))) for row in own)
        parts = (
            (figures["squared_mu"], squared),
            (figures.get("additive_delta", 0), sum(additive_delta(row, ledger) for row in own)),
        )
        if any(stated is not None and abs(stated - part) > ROUNDING * part for stated, part in parts):
            yield f"ledger.json has sums of the period {name!r} that differ from its entries"


def steps(row: Fields, ledger: Fields) -> int:
    """Return the number of neighbours under an entry's relation that connect two under the dataset's: group privacy."""
    if not row.get("relation"):
        return 1  # an older entry, assumed to have the dataset's unit
    protects = str(ledger.get("protects"))
    span = SPAN.search(protects)
    shorter = protects.startswith("one row ") or (span is not None and span[1] != row.get("span"))
    units = 2 if row.get("unit") is not None and shorter else 1
    replaced = "(replace)" in protects and row["relation"] == "add/remove"
    return units * (2 if replaced else 1)


def scale_cost(cost: Fields, by: int) -> Fields:
    """Return the cost for `by` steps: ε grows linearly, μ² and ρ quadratically."""
    powers = {"pure": 1, "pure_squares": 2, "gaussian": 2, "zcdp": 2}
    return {name: str(Fraction(cost.get(name) or 0) * by ** powers[name]) for name in powers}


def squared_mu(cost: Fields) -> Fraction:
    """Return an entry's μ². Pure costs enter as one mechanism, or by their parts, each at most ε² π/2."""
    gaussian, zcdp, pure, squares = (
        Fraction(cost.get(name) or 0) for name in ("gaussian", "zcdp", "pure", "pure_squares")
    )
    parts = math.pi / 2 * float(squares)
    return gaussian + Fraction(math.pi * float(zcdp) + (min(mu_of_pure(float(pure)) ** 2, parts) if pure else 0.0))


def covers(one: Events, other: Events) -> bool:
    """Return whether events cost at least as much as others, kind by kind, up to rounding; group privacy adds some."""
    kinds = ("gaussian", "pure", "delta")
    return all(total(one, kind) >= total(other, kind) * Fraction(1 - ROUNDING) for kind in kinds)


def are_listed(events: Events, listed: Events) -> bool:
    """Return whether the events are listed; an additive δ may be listed as more, because it grows by the charged μ."""
    same = Events({event: count for event, count in listed.items() if event[0] != "delta"})
    own = Events({event: count for event, count in events.items() if event[0] != "delta"})
    return same == own and total(events, "delta") <= total(listed, "delta") * Fraction(1 + ROUNDING)


def total(events: Events, *kinds: str) -> Fraction:
    return sum((cost * count for (kind, cost), count in events.items() if kind in kinds), Fraction(0))


AS_GAUSSIAN: dict[str, Callable[[float], float]] = {  # μ² of other events; for zCDP the largest of any event here
    "selection": lambda epsilon: mu_of_pure(epsilon / 2) ** 2,
    "laplace": lambda epsilon: mu_of_pure(epsilon) ** 2,
    "pure": lambda epsilon: mu_of_pure(epsilon) ** 2,
    "zcdp": lambda rho: math.pi * rho,
}
AS_ZCDP: dict[str, Callable[[Fraction], Fraction]] = {
    "gaussian": lambda squared: squared / 2,
    "selection": lambda epsilon: epsilon**2 / 8,
    "laplace": lambda epsilon: epsilon**2 / 2,
    "pure": lambda epsilon: epsilon**2 / 2,
    "zcdp": lambda rho: rho,
}


def as_gaussian(events: Events) -> float:
    """Return the μ² of all events without Gaussian noise."""
    return sum(count * AS_GAUSSIAN[kind](float(cost)) for (kind, cost), count in events.items() if kind in AS_GAUSSIAN)


def as_zcdp(events: Events) -> Fraction:
    return sum((count * AS_ZCDP[kind](cost) for (kind, cost), count in events.items() if kind in AS_ZCDP), Fraction(0))


def charged_and_due(cost: Fields, events: Events) -> tuple[Fraction, Fraction]:
    """Return the charge of a ledger's entry and the cost of the events in its currency; exact if of that kind."""
    gaussian, zcdp, pure = (Fraction(cost.get(name) or 0) for name in ("gaussian", "zcdp", "pure"))
    if zcdp and not gaussian:
        return zcdp, as_zcdp(events)
    if pure and not gaussian:
        squares = sum((cost**2 * count for (kind, cost), count in events.items() if kind in PURE), Fraction(0))
        is_pure = not total(events, "gaussian", "zcdp") and squares <= Fraction(cost.get("pure_squares") or pure**2)
        return (pure if is_pure else Fraction(0)), total(events, *PURE)
    exact, rest = total(events, "gaussian"), as_gaussian(events)
    return gaussian, exact + Fraction(rest * (1 - ROUNDING)) if rest else exact


# ---- ε at δ ----------------------------------------------------------------------------------------------------------


def delta_of_mu_and_pure(mu: float, pure: float, epsilon: float) -> float:
    """Return δ with one additional ε-DP mechanism, whose worst case is randomized response."""
    high = 1 / (1 + math.exp(-pure))
    return high * delta_of_mu(mu, epsilon - pure) + (1 - high) * delta_of_mu(mu, epsilon + pure)


def min_epsilon(delta_of: Callable[[float], float], delta: float) -> float:
    """Return the smallest ε with δ(ε) ≤ δ, from above."""
    low, high = 0.0, 1.0
    while delta_of(high) > delta:
        if high > 500:
            return math.inf
        low, high = high, 2 * high
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (low, middle) if delta_of(middle) <= delta else (middle, high)
    return high


def epsilon_of_rho(rho: float, delta: float) -> float:
    """Return ε of ρ-zCDP (Canonne, Kamath & Steinke 2020, proposition 12), on a grid of orders."""
    orders = (1 + math.exp(step / 1000) for step in range(-12000, 12001))
    return max(0.0, min(a * rho + math.log(1 / (a * delta)) / (a - 1) + math.log1p(-1 / a) for a in orders))


def bounds(events: Events, delta: float) -> dict[str, float]:
    """Return valid bounds of ε for the composed events, by name; none if their additive δ exceeds δ."""
    if (left := Fraction(delta) - total(events, "delta")) < 0:
        return {}
    delta = float(left)
    gaussian, pure, unknown = float(total(events, "gaussian")), float(total(events, *PURE)), total(events, "zcdp")
    found = {} if gaussian or unknown else {"the sum of pure ε": pure}
    if delta > 0:
        mu = math.sqrt(gaussian + as_gaussian(events))
        found["Gaussian DP"] = min_epsilon(partial(delta_of_mu, mu), delta) if mu else 0.0
        found["zCDP"] = epsilon_of_rho(float(as_zcdp(events)), delta)
        if gaussian and pure and not unknown:
            found["Gaussian and pure"] = min_epsilon(partial(delta_of_mu_and_pure, math.sqrt(gaussian), pure), delta)
    return found


def dp_accounting_bounds(events: Events, delta: float) -> dict[str, float]:
    """Return the bounds of Google's accountants; empty if they are not installed or the additive δ exceeds δ."""
    try:
        import dp_accounting as dp
    except ImportError:
        return {}
    if (left := Fraction(delta) - total(events, "delta")) < 0:
        return {}
    delta, events = float(left) or SMALL, Events({one: count for one, count in events.items() if one[0] != "delta"})
    orders = [1 + math.exp(step / 50) for step in range(-300, 601)]
    accountants = {"dp-accounting, PLD": (dp.pld.PLDAccountant(), _as_losses(dp, events)),
                   "dp-accounting, RDP": (dp.rdp.RdpAccountant(orders), _one_by_one(dp, events))}  # fmt: skip
    return {name: one.compose(dp.ComposedDpEvent(parts)).get_epsilon(delta)
            for name, (one, parts) in accountants.items()}  # fmt: skip


def _one_by_one(dp: Any, events: Events) -> list[Any]:
    """Return every mechanism as itself, or as zCDP."""
    kinds: dict[str, Callable[[Fraction], Any]] = {
        "gaussian": lambda squared: dp.GaussianDpEvent(1 / math.sqrt(squared)),
        "laplace": lambda epsilon: dp.LaplaceDpEvent(float(1 / epsilon)),
    }
    return [dp.SelfComposedDpEvent(
                kinds.get(kind, lambda cost, kind=kind: dp.ZCDpEvent(float(AS_ZCDP[kind](cost))))(cost), count)
            for (kind, cost), count in events.items()]  # fmt: skip


def _as_losses(dp: Any, events: Events) -> list[Any]:
    """Return the events for the PLD accountant: one Gaussian event with the total μ², selections and zCDP by μ, pure ε.

    The privacy loss of the worst ε-DP mechanism is ε or −ε, like that of discrete Laplace noise for a shift by one
    step.
    """
    laplace = (
        [] if len(events) > MANY else [(cost, count) for (kind, cost), count in events.items() if kind == "laplace"]
    )
    pure = float(total(events, "pure") + (Fraction(0) if laplace else total(events, "laplace")))
    rest = Events({key: count for key, count in events.items() if key[0] not in ("laplace", "pure")})
    squared = float(total(rest, "gaussian")) + as_gaussian(rest)
    parts = [dp.GaussianDpEvent(1 / math.sqrt(squared))] if squared else []
    parts += [dp.dp_event.DiscreteLaplaceDpEvent(pure, 1)] if pure else []
    return parts + [dp.SelfComposedDpEvent(dp.LaplaceDpEvent(float(1 / cost)), count) for cost, count in laplace]


# ---- all of it -------------------------------------------------------------------------------------------------------


def faults(folder: str | Path) -> list[str]:
    """Return the claims that fail, without dp-accounting; none if all are correct."""
    draws, events, ledger = (read(folder, name) for name in ("draws.json", "events.json", "ledger.json"))
    recomputed, found = drawn_events(folder, draws)
    if not are_listed(recomputed, count_events(events["release"]["events"])):
        found.append("events.json does not list the events of the draws")
    charges = {row["release"]: row["cost"] for row in ledger["releases"]}
    if draws["release"] != events["release"]["name"] or draws["release"] not in charges:
        return [*found, "the release is not on the ledger"]
    if not covers(count_events(events["dataset"]["events"]), ledger_events(ledger)):
        found.append("events.json does not list the events of the ledger")
    if any(has_wrong_multiplier(events[name]["events"]) for name in ("release", "dataset")):
        found.append("events.json has a noise multiplier that contradicts its cost")
    claims = [events["release"]["cost"], events["dataset"]["epsilon"], events["dataset"]["delta"]]
    if claims != [charges[draws["release"]], ledger["spent"]["epsilon"], ledger["spent"]["delta"]]:
        found.append("events.json and the ledger claim different costs")
    paid, due = charged_and_due(charges[draws["release"]], recomputed)
    if due > paid:
        found.append(f"the draws cost {float(due):.9g}, but {float(paid):.9g} was charged")
    added, most = total(recomputed, "delta"), Fraction(charges[draws["release"]].get("delta") or 0)
    if added > most * Fraction(1 + ROUNDING):
        found.append(f"the draws have an additive δ of {float(added):.9g}, but {float(most):.9g} was charged")
    if f"{draws['release']}-allocation" in charges and not (Path(folder) / "allocation.json").exists():
        found.append("the first measurement is on the ledger, but the bundle has no allocation.json")
    found += period_faults(ledger)
    found += [fault for name in ("release", "dataset") if (fault := _above(name, events[name]))]
    return found or cross_faults(folder) + (_period_costs().faults(folder) if is_growing(folder, draws) else [])


def is_growing(folder: str | Path, draws: Fields) -> bool:
    """Return whether a bundle is that of a growing table, by any of its files."""
    planned = "plan/time.json" in read(folder, "run-files.json")
    return planned or "time" in draws or (Path(folder) / "time.json").exists()


def drawn_events(folder: str | Path, draws: Fields) -> tuple[Events, list[str]]:
    """Return the events of the draws, of the whole horizon if the table grows, and faults."""
    factors = read(folder, "strategies.json")["factors"]
    if not is_growing(folder, draws):
        return check_draws(draws, factors)
    if "time" not in draws or not (Path(folder) / "time.json").exists():
        return Events(), ["the plan of the run has weights of periods, but the bundle states no cost of the horizon"]
    events, found = _period_costs().horizon_events(folder, draws, factors)
    return events, list(found)


def _period_costs() -> Any:
    """Return the script for growing tables, which other bundles do not have."""
    return import_module(f"{__package__}.period_costs" if __package__ else "period_costs")


def _above(name: str, claim: Fields) -> str:
    """Return a message if every bound is above the claim; an ε of null claims nothing."""
    if claim["epsilon"] is None:
        return ""
    return _explain_mismatch(
        name, claim, bounds(count_events(claim["events"]), claim["delta"]), claim["epsilon"] * (1 + WITHIN)
    )


def _explain_mismatch(name: str, claim: Fields, found: dict[str, float], most: float) -> str:
    lowest = min(found.values(), default=math.inf)
    fault = f"{name}: ε is {lowest:.9g} at δ = {claim['delta']:g}, but {claim['epsilon']:.9g} is claimed"
    return fault if not lowest <= most else ""


def account(name: str, claim: Fields) -> tuple[dict[str, float], str]:
    """Return the bounds of dp-accounting, and a message if they are above the claim."""
    found = dp_accounting_bounds(count_events(claim["events"]), claim["delta"])
    return found, _explain_mismatch(name, claim, found, claim["epsilon"] * (1 + DISCRETE) + DISCRETE) if found else ""


def main(folder: str | Path) -> int:
    found, events = faults(folder), read(folder, "events.json")
    print("private" if events["private"] else "NOT PRIVATE: the noise has a seed, and anyone can compute it")
    for name in ("release", "dataset"):
        claim = events[name]
        print(f"{name}: ε = {claim['epsilon']} at δ = {claim['delta']:g} is claimed")
        if claim["epsilon"] is None:
            continue
        accounted, wrong = account(name, claim)
        for how, epsilon in (bounds(count_events(claim["events"]), claim["delta"]) | accounted).items():
            print(f"    {how}: ε = {epsilon:.9g}")
        print("" if accounted else "    dp-accounting is not installed: only exact sums and formulas\n", end="")
        found += [f"dp-accounting: {wrong}"] if wrong else []
    print("" if tomllib else "NOT CHECKED: job.toml, domain.toml, checklist.json (requires Python 3.11)\n", end="")
    print("This does not show who made the folder: a consistent change of all files passes. Compare the head of the")
    print("ledger's hash chain (ledger.json, chain.head) with the curator's ledger, or check a signature.")
    print(*(f"FAULT: {one}" for one in found) if found else ["all claims are correct"], sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # a console may have no ε
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent))
