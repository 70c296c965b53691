"""Check the evidence of a release in this folder: python recompute.py [FOLDER]. Exit code 1 if a claim fails.

The script uses only the standard library, so it can be read and run without dpscale. The evidence is a list of records,
one for every draw and selection (records.json). sensitivities.py recomputes the sensitivity and the cost of each from
its integers. This script adds the costs and compares the sums with the costs of the parts (parts.json) and with the
charges on the ledger (ledger.json). Job, domains and facts of the parts must have the hashes that the charge sealed in
the hash chain of the ledger; every file of noisy values must have exactly the draws in its name.

It then computes the ε of the events by its own formulas and, if Google's dp-accounting is installed (pip install
dp-accounting), by its accountants, and compares it with the claim in claims.json. Events without Gaussian noise enter
Gaussian DP by their μ: ε-DP with 2Φ⁻¹(e^ε/(1 + e^ε)), a selection of range ε with ε/2. Events of the kind "delta" are
additive δ, which add and are subtracted from the δ of a claim.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or __package__:
    from dpscale.audit.evidence.checklist import answers, caps_in_force
    from dpscale.audit.evidence.sensitivities import (
        Events,
        Fields,
        Owner,
        check_records,
        delta_of_mu,
        grown_delta,
        is_grouped,
        is_selection,
        mu_of_pure,
        shape_faults,
        strategy_faults,
    )
else:  # in a bundle, in which no files may be created
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(Path(__file__).parent))  # also where Python is isolated
    from checklist import answers, caps_in_force
    from sensitivities import (
        Events,
        Fields,
        Owner,
        check_records,
        delta_of_mu,
        grown_delta,
        is_grouped,
        is_selection,
        mu_of_pure,
        shape_faults,
        strategy_faults,
    )

FILES = ("records", "strategies", "parts", "claims", "ledger", "selftest", "checklist", "run-files", "versions")
ROUNDING = 1e-9  # relative tolerance of sums that contain floats
TAILS = 1e-8  # relative tolerance of tails of the noise
SMALL = 1e-12  # δ for the accountants of dp-accounting in a pure release
WITHIN = 1e-6  # relative tolerance of a claim, for bounds found by bisection and on grids
DISCRETE = 1e-3  # relative and absolute tolerance: dp-accounting's losses are on a grid, rounded upwards
SPENT = Fraction(9, 10)  # least share of its cost that the draws of a part without selections have
SPAN = re.compile(r" in one (day|week|month|quarter|year) \(")  # of a promise for the rows of a unit in one period
VALUES = re.compile(r"(?:^|/)(\d{3,})-(\d{8,})-(\d{8,})\.parquet$")  # decision, first place and end of the places
PURE, MANY = ("laplace", "pure", "selection"), 64  # most distinct Laplace events that are composed one by one
SEALED = ("job", "parts")  # hashes that the charge of this version seals


def read(folder: str | Path, name: str) -> Any:
    return json.loads((Path(folder) / name).read_text("utf-8"))


def read_files(folder: str | Path) -> Fields:
    """Return the contents of the JSON files by their names without ends."""
    return {name: read(folder, f"{name}.json") for name in FILES}


def faults(folder: str | Path) -> list[str]:
    """Return the claims that fail, without dp-accounting; none if all are correct.

    The events of the draws ((kind, exact cost), with counts) are computed from their integers and compared with what
    the parts and the ledger say they cost. The first two faults make all other checks meaningless and are returned at
    once.
    """
    files = read_files(folder)
    records, parts, factors = (
        files["records"]["records"],
        files["parts"],
        files["strategies"]["factors"],
    )
    release = files["records"]["release"]
    charges = {row["release"]: row for row in files["ledger"]["releases"]}
    if release != files["claims"]["release"]["name"] or release not in charges:
        return ["the release is not on the ledger"]
    if unknown := {record["part"] for record in records} - set(parts):
        return [f"records.json has draws of {min(unknown)}, which is no part of the release"]

    # strategies first, then draws, parts, entries and files, and last the claims and the ledger
    problems = list(strategy_faults(factors))
    spent, wrong = check_records(records, parts, factors)
    problems += wrong
    for record in records:
        problems += shape_faults(record, parts[record["part"]], factors)
    problems += [*_part_faults(files, spent), *_entry_faults(files, spent, charges), *_value_faults(files)]
    problems += [
        *_claim_faults(files),
        *_promise_faults(files, charges),
        *ledger_faults(files["ledger"]),
        *_chain_faults(files, Path(folder)),
    ]
    return [*problems, *_selftest_faults(files["selftest"]), *_checklist_faults(files)]


# ---- sums of costs ---------------------------------------------------------------------------------------------------


def _part_faults(files: Fields, spent: Mapping[Owner, Events]) -> Iterator[str]:
    """Yield parts whose draws are not those that were charged: missing ones, or at another cost or distribution.

    `spent` has the events of the draws by part and by the end of the ledger's entry that pays. The facts of a part are
    those that the charge sealed: bounds of its draws, number of thresholds, and the distribution of its noise (`law`).
    A part with selections may stop before it spends its cost.
    """
    records = files["records"]["records"]
    for name, part in files["parts"].items():
        part_records = [record for record in records if record["part"] == name]
        drawn = {record["bound"] for record in part_records if isinstance(record.get("bound"), str)}
        # a bound with a number of values is one of a draw that the part must have
        if missing := [bound for bound, facts in part["bounds"].items() if "values" in facts and bound not in drawn]:
            yield f"{name} lacks the draw of {missing[0]}"
        if sum("threshold" in record for record in part_records) != part.get("thresholds", 0):
            yield f"{name} has another number of thresholds than it was charged for"
        # noise of the part's own entry; selections and other entries may differ
        laws = {
            "laplace" if "laplace" in record else "gaussian"
            for record in part_records
            if not (is_selection(record) or record["entry"])
        }
        if laws - {part["law"]}:
            yield f"{name} has another noise than it was charged for"
        if lone := sorted(entry for owner, entry in spent if owner == name and entry not in part["costs"]):
            yield f"{name} has draws under an entry {lone[0]!r} of the ledger, which charged nothing for it"
        for entry, cost in part["costs"].items():
            selects = any(is_selection(record) for record in part_records if record["entry"] == entry)
            may_stop = "selected" in part or selects
            yield from _cost_faults(name, entry, cost, spent.get((name, entry), Events()), may_stop)


def _cost_faults(name: str, entry: str, cost: Fields, events: Events, may_stop: bool) -> Iterator[str]:
    """Yield a fault if the draws of a part cost more than was charged, or much less unless they may stop early."""
    where = f"the draws of {name}" + (f" under the entry {entry[1:]}" if entry else "")
    yield from _sum_faults(where, cost, events)
    paid, due = charged_and_due(cost, events)
    if due < SPENT * paid and not may_stop:
        yield f"{where} cost only {float(due / paid):.3g} of what the part was charged"


def _entry_faults(files: Fields, spent: Mapping[Owner, Events], charges: Mapping[str, Fields]) -> Iterator[str]:
    """Yield entries of the release on the ledger that no draws have, or that cost less than their draws or parts.

    A release has an entry of its own name, and entries with an end such as "-domain". `spent` has the events by part
    and by this end.
    """
    release, parts = files["records"]["release"], files["parts"].values()
    # "" is the entry of the release itself
    ends = {entry for part in parts for entry in part["costs"]}
    ends_on_ledger = {
        name.removeprefix(release) for name in charges if name == release or name.startswith(f"{release}-")
    }
    if odd := sorted(ends.symmetric_difference(ends_on_ledger)):
        yield f"the entry {release}{odd[0]} is {'in no record' if odd[0] in ends_on_ledger else 'not on the ledger'}"
        return
    for entry in sorted(ends):
        cost, events = charges[release + entry]["cost"], Events()
        # all draws of all parts that this entry pays
        for (_, end), end_events in spent.items():
            events += end_events if end == entry else Events()
        yield from _sum_faults(f"the draws of the entry {entry[1:]}" if entry else "the draws", cost, events)
        for kind in ("gaussian", "pure"):
            whole = sum((Fraction(part["costs"][entry].get(kind) or 0) for part in parts if entry in part["costs"]),
                        Fraction(0))  # fmt: skip
            charged = Fraction(cost.get(kind) or 0)
            # a part may cost a little less than its share was planned to, and never more than was charged
            if not charged * Fraction(1 - WITHIN) <= whole <= charged * Fraction(1 + ROUNDING):
                yield f"the parts cost {float(whole):.9g}, but {float(charged):.9g} was charged"


def _sum_faults(what: str, cost: Fields, events: Events) -> Iterator[str]:
    """Yield a fault if events cost more than a charge, or have a larger additive δ."""
    paid, due = charged_and_due(cost, events)
    if due > paid:
        yield f"{what} cost {float(due):.9g}, but {float(paid):.9g} was charged"
    added, most = total(events, "delta"), Fraction(cost.get("delta") or 0)
    if added > most * Fraction(1 + TAILS):
        yield f"{what} have an additive δ of {float(added):.9g}, but {float(most):.9g} was charged"


def events_of(files: Fields) -> dict[str, Events]:
    """Return the events of the release, from its records, and of all releases of its dataset, from the ledger."""
    spent, _ = check_records(files["records"]["records"], files["parts"], files["strategies"]["factors"])
    # the entry of the release itself has no end
    release = sum((of_part for (_, end), of_part in spent.items() if not end), Events())
    return {"release": release, "dataset": ledger_events(files["ledger"])}


def _claim_faults(files: Fields) -> Iterator[str]:
    """Yield contradictions of the claims to the ledger, and claims below all bounds."""
    claims, ledger, events = files["claims"], files["ledger"], events_of(files)
    stated = [claims["release"]["cost"], claims["dataset"]["epsilon"], claims["dataset"]["delta"]]
    if stated != [own_entry(files)["cost"], ledger["spent"]["epsilon"], ledger["spent"]["delta"]]:
        yield "claims.json and the ledger claim different costs"
    yield from (fault for name in ("release", "dataset") if (fault := _above(name, claims[name], events[name])))


def _promise_faults(files: Fields, charges: Mapping[str, Fields]) -> Iterator[str]:
    """Yield contradictions of the claim to what the entries of the release promise: ε at δ, unit, secret noise.

    The smallest bound of ε for the composed costs of all entries must be at most the promised one.
    """
    own_row, claim, release = own_entry(files), files["claims"]["release"], files["records"]["release"]
    entries = [entry for name, entry in charges.items() if name == release or name.startswith(f"{release}-")]
    # noise is secret or has a public seed, so exactly one of the two is true
    if bool(own_row.get("public")) == files["claims"]["private"]:
        yield "claims.json and the ledger's entry disagree on whether the noise has a seed"
    if len({(entry.get("unit"), entry.get("unit_table"), entry.get("relation")) for entry in entries}) > 1:
        yield "the entries of the release protect different units"
    for name, part in files["parts"].items():
        if "outer" in part and part["outer"]["names"] != (own_row.get("periods") or []):
            yield f"{name} and the ledger's entry name different rows of a matrix"
    # neither states an ε that could be compared
    if own_row.get("epsilon") is None or claim["epsilon"] is None:
        return

    if claim["epsilon"] > own_row["epsilon"] * (1 + WITHIN):
        yield "the claim is above the epsilon of the ledger's entry"
    if claim["delta"] != (own_row.get("delta") or 0.0):
        yield "the claim has a different delta than the ledger's entry"
    # a composition of all charges, without those of no cost
    whole = Events()
    for entry in entries:
        for kind in ("gaussian", "pure", "delta"):
            whole[kind, Fraction(entry["cost"].get(kind) or 0)] += 1
    whole = Events({event: count for event, count in whole.items() if event[1]})
    if not min(bounds(whole, claim["delta"]).values(), default=math.inf) <= own_row["epsilon"] * (1 + WITHIN):
        yield "the entries of the release cost more than the epsilon that they promise"


def own_entry(files: Fields) -> Fields:
    """Return the release's entry on the ledger."""
    return dict(next(row for row in files["ledger"]["releases"] if row["release"] == files["records"]["release"]))


def share_of_draws(files: Fields) -> Fraction:
    """Return the cost of the draws other than selections as a share of the charge."""
    cost, events = own_entry(files)["cost"], events_of(files)["release"]
    drawn = Events({event: count for event, count in events.items() if event[0] in ("gaussian", "laplace")})
    paid, due = charged_and_due(cost, drawn)
    return due / paid if paid else Fraction(1)


def unverified(folder: str | Path) -> list[str]:
    """Return a sentence for each fact that these checks accept without verification.

    `selected` parts end when their draws have used the budget; `grouped` draws measure groups of cells that an earlier
    decision chose.
    """
    files = read_files(folder)
    records, parts, factors = (
        files["records"]["records"],
        files["parts"],
        files["strategies"]["factors"],
    )
    sentences = list[str]()
    # strategies, and the levels of nested ones
    pieces = [part for factor in factors.values() for part in (factor, *factor.get("levels", ()))]
    if alone := sum("columns" in part for part in pieces):
        sentences.append(f"the sensitivities of {alone} strategies, of which the bundle contains only column norms")
    # a bound that is neither a name nor absent was planned from released values
    decided = dict.fromkeys(record["part"] for record in records if not isinstance(record.get("bound"), str | None))
    sentences += [f"bounds and noise of draws of {name} that were planned from released values" for name in decided]
    sentences += [
        f"the additive δ of {name}, which parts.json states" for name, part in parts.items() if "delta" in part
    ]
    chosen = {record["part"] for record in records if is_selection(record)}
    sentences += [f"that {name} ends before its draws cost what it was charged" for name, part in parts.items()
              if "selected" in part and name not in chosen]  # fmt: skip
    if lacking := [name for name in SEALED if name not in files["ledger"]["chain"]["opened"]["facts"]]:
        sentences.append(f"{' and '.join(lacking)}: the ledger's entry of this release seals no hash of them")
    if grouped := sum(is_grouped(record, parts[record["part"]], factors) for record in records):
        sentences.append(f"the cells of {grouped} draws of later decisions, which are groups of the domain's cells")
    # most of the cost is that of selections, whose noise is in no record
    if chosen and (share := share_of_draws(files)) < Fraction(1, 2):
        sentences.append(f"the noise: the draws other than selections cost only {float(share):.3g} of the charge")
    return sentences


# ---- events ----------------------------------------------------------------------------------------------------------


def ledger_events(ledger: Fields) -> Events:
    """Return the ledger's entries as events in its currency: each a Gaussian mechanism or an ε.

    Costs are those over the steps that connect two neighbours of the dataset. Additive δ are events of kind "delta".
    """
    events = Events()
    for row in ledger["releases"]:
        events["delta", additive_delta(row, ledger)] += 1
        if ledger["currency"].startswith("pure"):
            events["pure", steps(row, ledger) * Fraction(row["cost"]["pure"])] += 1
        else:
            events["gaussian", squared_mu(scale_cost(row["cost"], steps(row, ledger)))] += 1
    return events


def additive_delta(row: Fields, ledger: Fields) -> Fraction:
    """Return the additive δ of an entry, grown by group privacy to the unit of the dataset (`steps`)."""
    cost = row["cost"]
    is_pure = not any(Fraction(cost.get(name) or 0) for name in ("gaussian", "zcdp"))
    pure = float(Fraction(cost.get("pure") or 0)) if is_pure else math.inf
    return grown_delta(Fraction(cost.get("delta") or 0), math.sqrt(squared_mu(cost)), pure, steps(row, ledger))


def steps(row: Fields, ledger: Fields) -> int:
    """Return the number of neighbours under an entry's relation that connect two under the dataset's: group privacy.

    A neighbour under the dataset's relation may replace a unit (one removal and one addition), or be defined by a row
    or a shorter span, of which a unit needs two.
    """
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
    """Return an entry's μ². Pure costs enter as one mechanism, or by their parts, each at most ε² π/2.

    The smaller of both is valid. A cost of ρ-zCDP enters by π ρ.
    """
    gaussian, zcdp, pure, squares = (
        Fraction(cost.get(name) or 0) for name in ("gaussian", "zcdp", "pure", "pure_squares")
    )
    parts = math.pi / 2 * float(squares)
    return gaussian + Fraction(math.pi * float(zcdp) + (min(mu_of_pure(float(pure)) ** 2, parts) if pure else 0.0))


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
    """Return the charge of a ledger's entry and the cost of the events in its currency; exact if of that kind.

    The currency is μ² if the entry has a Gaussian cost, else ρ (zCDP) or pure ε. An entry in pure ε pays for nothing
    (its charge counts as 0) if an event is not pure, or if Σ ε² of the events exceeds what was charged for it.
    """
    gaussian, zcdp, pure = (Fraction(cost.get(name) or 0) for name in ("gaussian", "zcdp", "pure"))
    if zcdp and not gaussian:
        return zcdp, as_zcdp(events)
    if pure and not gaussian:
        # Σ ε² of the pure events, which the charge states as well
        squares = sum((cost**2 * count for (kind, cost), count in events.items() if kind in PURE), Fraction(0))
        is_pure = not total(events, "gaussian", "zcdp") and squares <= Fraction(cost.get("pure_squares") or pure**2)
        return (pure if is_pure else Fraction(0)), total(events, *PURE, "gaussian", "zcdp")
    # Gaussian events have an exact μ²; those of others are floats, with their rounding
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
    """Return valid bounds of ε for the composed events, by name; none if their additive δ exceeds δ.

    The additive δ is subtracted from δ first; the bounds are those at the rest. Each bound is valid, so the smallest
    may be claimed.
    """
    if (left := Fraction(delta) - total(events, "delta")) < 0:
        return {}
    delta = float(left)
    # Σ μ², Σ ε, and Σ ρ of events that are known by their ρ only
    gaussian, pure, unknown = float(total(events, "gaussian")), float(total(events, *PURE)), total(events, "zcdp")
    by_name = {} if gaussian or unknown else {"the sum of pure ε": pure}
    if delta > 0:
        mu = math.sqrt(gaussian + as_gaussian(events))
        by_name["Gaussian DP"] = min_epsilon(partial(delta_of_mu, mu), delta) if mu else 0.0
        by_name["zCDP"] = epsilon_of_rho(float(as_zcdp(events)), delta)
        if gaussian and pure and not unknown:
            by_name["Gaussian and pure"] = min_epsilon(partial(delta_of_mu_and_pure, math.sqrt(gaussian), pure), delta)
    return by_name


def dp_accounting_bounds(events: Events, delta: float) -> dict[str, float]:
    """Return the bounds of Google's accountants; empty if they are not installed or the additive δ exceeds δ.

    δ pays for the additive δ first. The orders α of the Rényi accountant are 1 + e^(step / 50), from 1.002 to about
    160 000.
    """
    try:
        import dp_accounting as dp
    except ImportError:
        return {}
    if (left := Fraction(delta) - total(events, "delta")) < 0:
        return {}
    delta = float(left) or SMALL
    events = Events({event: count for event, count in events.items() if event[0] != "delta"})
    orders = [1 + math.exp(step / 50) for step in range(-300, 601)]
    accountants = {"dp-accounting, PLD": (dp.pld.PLDAccountant(), _as_losses(dp, events)),
                   "dp-accounting, RDP": (dp.rdp.RdpAccountant(orders), _one_by_one(dp, events))}  # fmt: skip
    return {name: accountant.compose(dp.ComposedDpEvent(parts)).get_epsilon(delta)
            for name, (accountant, parts) in accountants.items()}  # fmt: skip


def _one_by_one(dp: Any, events: Events) -> list[Any]:
    """Return every event as its own mechanism (Gaussian or Laplace), or as one of zCDP, with its count.

    The noise of a Gaussian mechanism with cost μ² is 1/μ in units of its sensitivity, that of a Laplace mechanism 1/ε.
    """
    composed = []
    for (kind, cost), count in events.items():
        if kind == "gaussian":
            event = dp.GaussianDpEvent(1 / math.sqrt(cost))
        elif kind == "laplace":
            event = dp.LaplaceDpEvent(float(1 / cost))
        else:
            event = dp.ZCDpEvent(float(AS_ZCDP[kind](cost)))
        composed.append(dp.SelfComposedDpEvent(event, count))
    return composed


def _as_losses(dp: Any, events: Events) -> list[Any]:
    """Return the events for the PLD accountant: one Gaussian event with the total μ², selections and zCDP by μ, pure ε.

    The privacy loss of the worst ε-DP mechanism is ε or −ε, like that of discrete Laplace noise for a shift by one
    step. Laplace draws are composed as such if there are few of them; many are added to the pure ε.
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


# ---- the ledger ------------------------------------------------------------------------------------------------------


def ledger_faults(ledger: Fields) -> Iterator[str]:
    """Yield contradictions between the totals in ledger.json and its rows."""
    rows, cap = ledger["releases"], ledger.get("cap")
    # the first cap or entry that names a relation decides which unit the dataset protects
    stated = [row for row in (*caps_in_force(ledger).values(), *rows) if row.get("relation")]
    # older entries do not name the table of the unit; a single name is that of all
    tables = {row.get("unit_table") for row in rows if stated and row.get("unit") == stated[0].get("unit")}
    if len(tables) == 1 and not stated[0].get("unit_table"):
        stated[0] = {**stated[0], "unit_table": tables.pop()}
    if ledger.get("protects") != (protected(stated[0]) if stated else None):
        yield "ledger.json and its rows have different privacy units"
    # without any Gaussian or zCDP cost the total can be stated in pure ε
    pure = all(not Fraction(row["cost"].get(name) or 0) for row in rows for name in ("gaussian", "zcdp"))
    currency = (cap or {}).get("currency") or ("pure" if pure else "gdp")
    # the text of a currency begins with its name
    if not str(ledger["currency"]).startswith(f"{currency}:"):
        yield "ledger.json has its total in a different currency than its cap or its rows"
    if cap and cap["delta"] != ledger["spent"]["delta"]:
        yield "ledger.json has its total at a different delta than its cap"
    yield from period_faults(ledger)


def period_faults(ledger: Fields) -> Iterator[str]:
    """Yield a fault if the sums of the periods are not those of their entries; there are none without a period.

    The sums are μ² and additive δ. They are floats, compared with a relative tolerance.
    """
    rows, sums = ledger["releases"], ledger.get("periods", {})
    names = {row["cost"].get("period", "") for row in rows}
    if set(sums) != (names if any(names) else set()):
        yield "ledger.json does not list the periods of its entries"
        return
    for name, figures in sums.items():
        entries = [row for row in rows if row["cost"].get("period", "") == name]
        squared = sum(squared_mu(scale_cost(row["cost"], steps(row, ledger))) for row in entries)
        parts = (
            (figures["squared_mu"], squared),
            (figures.get("additive_delta", 0), sum(additive_delta(row, ledger) for row in entries)),
        )
        if any(stated is not None and abs(stated - part) > ROUNDING * part for stated, part in parts):
            yield f"ledger.json has sums of the period {name!r} that differ from its entries"


def protected(row: Fields) -> str:
    """Return the privacy unit of an entry in words."""
    name = row.get("unit") if row.get("unit_table") is None else f"{row['unit_table']}.{row['unit']}"
    name = f"{name} in one {row['span']}" if row.get("span") else name
    return f"{'one row' if row.get('unit') is None else f'all rows of one {name}'} ({row['relation']})"


def chained(content: Any) -> str:
    """Return the SHA-256 of canonical JSON, a link of the ledger's hash chain."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _chain_faults(files: Fields, folder: Path) -> Iterator[str]:
    """Yield broken links of the hash chain, entries that are not rows of ledger.json, and hashes other than sealed.

    A link is the hash of the link before, the entry, its public columns, and the hashes of its hidden columns and
    facts. The opened link shows the facts of this release: hashes of the plan, the job, the domains and the parts.
    """
    ledger = files["ledger"]
    if (chain := ledger.get("chain")) is None:
        yield "ledger.json has no hash chain"
        return
    # recompute the chain from its beginning
    before = ""
    for link in chain["entries"]:
        before = chained([before, link["entry"], link["shown"], link["hidden"], link["facts"]])
    if before != chain["head"]:
        yield "ledger.json has a hash chain that does not end in its head"
    caps = [*ledger["former_caps"], *filter(None, [ledger.get("cap")]), *ledger.get("period_caps", ())]
    # the public columns of the chain's entries are the rows of ledger.json, in the same order
    for kind, listed in {"caps": caps, "releases": ledger["releases"]}.items():
        shown = [link["shown"] for link in chain["entries"] if link["entry"] == kind]
        shown = sorted(shown, key=lambda row: "period" in row)  # caps on the total, then those that renew
        if len(shown) != len(listed) or not all(map(_same, listed, shown)):
            yield f"ledger.json and its hash chain have different {kind}"

    # the sealed facts: the entry has only their hash with a key, which the opened link states
    opened, release = chain["opened"], files["records"]["release"]
    links = [link for link in chain["entries"] if link["shown"].get("release") == release]
    if [link["facts"] for link in links if link["entry"] == "releases"] != [chained([opened["key"], opened["facts"]])]:
        yield "ledger.json and its hash chain have different hashes of the statement of the release"
    # the hashes of the files here must be the sealed ones; a condition is no file
    plan = [f"{name}\0{digest}\n" for name, digest in sorted(files["run-files"].items()) if name.startswith("plan/")]
    here = {"plan": hashlib.sha256("".join(plan).encode()).hexdigest()}
    here |= {path.stem: hashlib.sha256(path.read_bytes()).hexdigest()
             for path in (*folder.glob("*.toml"), folder / "parts.json")}  # fmt: skip
    names: Fields = {"plan": "the plan", "parts": "parts.json"}
    wrong = (
        names.get(name, f"{name}.toml")
        for name, digest in opened["facts"].items()
        if name != "condition" and here.get(name) != digest
    )
    yield from (f"{name} differs from the one that was charged" for name in wrong)


def _same(row: Fields, shown: Fields) -> bool:
    """Return whether a row of ledger.json is the entry of a link; the row fills in fields that older entries omit."""
    for name, value in {**dict.fromkeys(("span", "period", "periods")), **shown}.items():
        filled = value is None and name in ("public", "currency")
        if not filled and row.get(name) != (json.loads(value) if value and name in ("cost", "periods") else value):
            return False
    return True


# ---- the rest --------------------------------------------------------------------------------------------------------


def _value_faults(files: Fields) -> Iterator[str]:
    """Yield a fault if the run lacks a file of a draw, or has a file of values without exactly its draws.

    The name of a file of values states its decision, the first place of its draws and the end of them.
    """
    drawn = defaultdict[str, list[tuple[int, int]]](list)
    for record in files["records"]["records"]:
        if "file" in record:
            drawn[record["file"]].append((int(record["decision"]), int(record["place"])))
    if lacking := set(drawn) - set(files["run-files"]):
        yield f"run-files.json lacks {min(lacking)}, which records.json refers to"
    for name in files["run-files"]:
        # files of a former plan ("earlier/") are not part of the release
        if name not in drawn and VALUES.search(name) and not name.startswith("earlier/"):
            yield f"run-files.json has {name}, which belongs to no draw"
    for name, draws_of_file in drawn.items():
        if len(set(draws_of_file)) != len(draws_of_file):
            yield "a draw is listed twice"
        # a decision's draws are numbered, so that the name states how many there are
        if parts_of_name := VALUES.search(name):
            decision, first, end = map(int, parts_of_name.groups())
            if sorted(draws_of_file) != [(decision, place) for place in range(first, end)]:
                yield f"{name} does not have the draws in its name"
    if lacking := {part["domain"] for part in files["parts"].values() if "domain" in part} - _domains(files):
        yield f"the ledger's entry seals no {min(lacking)}"


def _domains(files: Fields) -> set[str]:
    """Return the domain files that the charge sealed; those that the parts state if it sealed no facts of parts."""
    facts = files["ledger"].get("chain", {}).get("opened", {}).get("facts", {})
    stated = {part["domain"] for part in files["parts"].values() if "domain" in part}
    return {f"{name}.toml" for name in facts} if "parts" in facts else stated


def _selftest_faults(selftest: Fields) -> Iterator[str]:
    """Yield a fault if the selftest has no checks, one name twice, or a verdict other than that of its checks."""
    names = [check["name"] for check in selftest["checks"]]
    valid = all(isinstance(check["passed"], bool) for check in selftest["checks"])
    if not names or len(set(names)) < len(names) or not valid:
        yield "selftest.json has no checks, or a duplicate or invalid one"
    elif selftest["passed"] is not all(check["passed"] for check in selftest["checks"]):
        yield "selftest.json and its checks disagree on whether it passed"


def _checklist_faults(files: Fields) -> Iterator[str]:
    """Yield the first answer that does not follow from the other files."""
    expected, listed = answers(files), files["checklist"]
    for row, other in zip(expected, listed, strict=False):
        if row != other:
            place = f" of {row['part']}" if "part" in row else ""
            yield f"checklist.json contradicts the other files on {row['question']!r}{place}"
            return
    if len(expected) != len(listed):
        yield "checklist.json lacks answers, or has answers that dpscale does not write"


# ---- output ----------------------------------------------------------------------------------------------------------


def _above(name: str, claim: Fields, events: Events) -> str:
    """Return a message if every bound is above the claim; an ε of null claims nothing."""
    if claim["epsilon"] is None:
        return ""
    return _explain_mismatch(name, claim, bounds(events, claim["delta"]), claim["epsilon"] * (1 + WITHIN))


def _explain_mismatch(name: str, claim: Fields, found: dict[str, float], most: float) -> str:
    """Return a message if the smallest bound of ε is above `most`, the claim with a tolerance; "" if not."""
    lowest = min(found.values(), default=math.inf)
    fault = f"{name}: ε is {lowest:.9g} at δ = {claim['delta']:g}, but {claim['epsilon']:.9g} is claimed"
    return fault if not lowest <= most else ""  # NaN is a fault


def account(name: str, claim: Fields, events: Events) -> tuple[dict[str, float], str]:
    """Return the bounds of dp-accounting, and a message if they are above the claim."""
    found = dp_accounting_bounds(events, claim["delta"])
    return found, _explain_mismatch(name, claim, found, claim["epsilon"] * (1 + DISCRETE) + DISCRETE) if found else ""


def main(folder: str | Path) -> int:
    """Print every claim beside the bounds of ε that follow from the draws, then the faults.

    Returns the exit code: 1 if there are faults.
    """
    problems, files = faults(folder), read_files(folder)
    claims, events = files["claims"], events_of(files)
    print("private" if claims["private"] else "NOT PRIVATE: the noise has a seed, and anyone can compute it")
    # the release alone, and all releases of its dataset together
    for name in ("release", "dataset"):
        claim = claims[name]
        print(f"{name}: ε = {claim['epsilon']} at δ = {claim['delta']:g} is claimed")
        if claim["epsilon"] is None:
            continue
        accounted, wrong = account(name, claim, events[name])
        for how, epsilon in (bounds(events[name], claim["delta"]) | accounted).items():
            print(f"    {how}: ε = {epsilon:.9g}")
        print("" if accounted else "    dp-accounting is not installed: only exact sums and formulas\n", end="")
        problems += [f"dp-accounting: {wrong}"] if wrong else []
    print("This does not show who made the folder: a consistent change of all files passes. Compare the head of the")
    print("ledger's hash chain (ledger.json, chain.head) with the curator's ledger, or check a signature.")
    print(*(f"FAULT: {problem}" for problem in problems) if problems else ["all claims are correct"], sep="\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # a console may have no ε
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent))
