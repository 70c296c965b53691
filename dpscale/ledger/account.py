"""Account of one dataset on the ledger: its privacy unit, its composed spending and the budget left under its caps.

A dataset has a privacy filter for its total cap, one for each period of the data under a cap that renews by month or
by year, and one for the releases of each analyst under a cap of their own. A release names the periods whose records it
reads by the labels of a date attribute: days, weeks, months, quarters or years. A label is in every month, or year,
with which it has a day in common.

A row, and all rows of a unit in one period, are in one period of the data. Releases that read no record of a period
tell nothing about it, so the releases that read a period compose to a filter of their own, and each of them costs that
period its whole cost once. A release that names no period is charged to every period. A release is admitted if every
filter that applies to it admits it.

*Cap of a privacy filter.* It has figures, what it admits, and the largest request that still fits.

*Terms.* A *promise* is the privacy unit of a release or cap (`Protection`); its *span* is the period in which all rows
of a unit are protected together. `by` is the length of a period, "month" or "year", by which a cap renews. A cost for
one privacy unit counts for a larger one in several *steps*, as group privacy says.
"""

from __future__ import annotations

import json
import math
import re
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from decimal import ROUND_DOWN, Context
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any

from dpscale.base.display import safe_repr
from dpscale.base.errors import BudgetError, JobError
from dpscale.domain.attribute import NAMES, first_day, name_of, number_of, read_period
from dpscale.privacy.accounting import CURRENCIES, GDP, PURE, Cost, Spending
from dpscale.privacy.protection import ADD_REMOVE, REPLACE, Protection, checked_steps

MOST = 1e12  # largest epsilon of a cap or budget: a larger one overflows later and gives no privacy
RESERVED = 0.5  # of the cap's delta, for additive deltas: it costs 4 % of the squared mu at epsilon 1 and delta 1e-9
STEPS = 24  # bisections of the scale: finer than the displayed digits
FINEST = Fraction(1, 2**60)  # a request that does not fit at this scale does not fit at all

Row = dict[str, Any]
SEEDED = re.compile(r"seed-?\d+-[0-9a-f]{24}")  # release name of a run with a seed
RENEWALS = ("month", "year")  # periods by which a cap renews
TAKES = "labels of a date attribute, such as 2026-02-28, 2026-W09, 2026-02, 2026-Q1 or 2026"
Periods = tuple[str, ...]


@dataclass(frozen=True)
class Cap:
    """Upper limit, as (epsilon, delta)-DP, on the composition of all releases of a dataset.

    Attributes
    ----------
    epsilon : float
        Finite number above 0.
    delta : float
        Number in [0, 1).
    currency : str
        Unit of composition: "gdp" (squared mu of Gaussian DP) or "pure" (epsilon of pure DP). The default is "pure" if
        delta is 0 and "gdp" otherwise.
    reserved : float
        Part of delta for additive deltas in "gdp", fixed by the first release, because a cap that exchanges delta for
        squared mu later is not a privacy filter (docs/privacy.md). In "pure" it is all of delta.
    """

    epsilon: float
    delta: float
    currency: str = ""
    reserved: float = 0.0

    def __post_init__(self) -> None:
        """Check the figures; the default currency is that of Gaussian noise (GDP) if delta is above 0."""
        if not (_is_number(self.epsilon) and math.isfinite(self.epsilon) and self.epsilon > 0):
            raise JobError(
                "cap.epsilon", f"got {safe_repr(self.epsilon)}", "a finite number > 0", "set the total limit"
            )
        if not (_is_number(self.delta) and 0 <= self.delta < 1):
            raise JobError(
                "cap.delta", f"got {safe_repr(self.delta)}", "a number >= 0 and < 1", "1e-9 is a usual choice"
            )
        for name in ("epsilon", "delta"):
            object.__setattr__(self, name, float(getattr(self, name)))
        object.__setattr__(self, "currency", self.currency or (GDP if self.delta else PURE))
        if self.currency not in CURRENCIES:
            raise JobError(
                "cap.currency", f"got {safe_repr(self.currency)}", " or ".join(CURRENCIES), "name one of them"
            )
        # Gaussian noise has no guarantee at δ = 0
        if self.currency == GDP and not self.delta:
            raise JobError("cap.currency", "gdp at delta 0", "pure, or a delta > 0", "leave it out, or set a delta")

    @property
    def boundless(self) -> bool:
        """Whether epsilon exceeds the largest supported value; older versions accepted such caps."""
        return self.epsilon > MOST

    def admits(self, spending: Spending) -> bool:
        """Return whether `spending` is within the cap."""
        return spending.delta <= self.additive and self.spent_epsilon(spending) <= self.epsilon

    @property
    def additive(self) -> float:
        """Largest sum of additive deltas."""
        return self.reserved if self.currency == GDP else self.delta

    def spent_epsilon(self, spending: Spending) -> float:
        """Return the epsilon of a history at the cap's delta."""
        return spending.epsilon(self.currency, self.delta, self.reserved)

    def __str__(self) -> str:
        return f"epsilon {self.epsilon:.6g} at delta {self.delta:.6g} in {self.currency}"


def new_cap(epsilon: float, delta: float, currency: str) -> Cap:
    """Return a new cap. Raises JobError if a figure is invalid or epsilon exceeds 1e12."""
    cap = Cap(epsilon, delta, currency)
    if cap.boundless:
        raise JobError("cap.epsilon", f"got {cap.epsilon:g}", f"a number > 0, at most {MOST:g}", "set the total limit")
    return cap


@dataclass(frozen=True)
class Limit:
    """Cap of a filter with the history that it composes.

    Attributes
    ----------
    cap : Cap
    history : Spending
        Composition of all earlier releases.
    steps : int
        Number of group-privacy steps at which a request counts.
    """

    cap: Cap
    history: Spending
    steps: int = 1

    def admits(self, cost: Cost, public: bool = False) -> bool:
        """Return whether the history composed with this cost is within the cap."""
        return self.cap.admits(self.history.plus(cost.for_group(self.steps), public))

    def implies(self, other: Limit) -> bool:
        """Return whether the other limit admits every cost that this one admits.

        True if the caps are the same and this history has spent at least as much; otherwise it is not certain.
        """
        ours, theirs = self.history, other.history
        is_same_cap = (self.cap, self.steps) == (other.cap, other.steps)
        spent_more = ours.squared_mu >= theirs.squared_mu and ours.pure >= theirs.pure and ours.delta >= theirs.delta
        return is_same_cap and spent_more and ours.approximate >= theirs.approximate and ours.public >= theirs.public


def binding(limits: Iterable[Limit]) -> list[Limit]:
    """Return the limits that decide: without those that another one implies."""
    deciding = list[Limit]()
    for limit in limits:
        if not any(other.implies(limit) for other in deciding):
            deciding = [*(other for other in deciding if not limit.implies(other)), limit]
    return deciding


def largest_epsilon(limits: Sequence[Limit], kind: Cost, delta: float) -> float:
    """Return the largest epsilon, at `delta`, of one more request that all limits admit; 0 if there is none.

    The request has a cost proportional to `kind`, with the same additive delta. The result has six digits, rounded
    down, so the cost of exactly this epsilon is admitted.

    Parameters
    ----------
    limits : sequence of Limit
    kind : Cost
        Cost whose multiples are tried.
    delta : float
        Delta at which the result is stated.
    """
    scale = _largest_scale(limits, kind)
    epsilon = kind.scaled(scale).epsilon_or_inf(delta) if scale else 0.0
    # a margin for the rounding of the conversion
    return shown_below(epsilon * (1 - 1e-9)) if math.isfinite(epsilon) else 0.0


@lru_cache(maxsize=1024)
def remaining_epsilon(cap: Cap, history: Spending) -> float:
    """Return the largest epsilon, at the cap's delta, of one more Gaussian release.

    The release is pure if the currency of the cap is pure.
    """
    kind = Cost(gaussian=Fraction(1)) if cap.currency == GDP else Cost(pure=Fraction(1))
    return largest_epsilon([Limit(cap, history)], kind, cap.delta)


def _largest_scale(limits: Sequence[Limit], kind: Cost) -> Fraction:
    """Return about the largest s such that all limits admit the cost s · kind, by bisection; 0 below FINEST."""
    limits = binding(limits)

    def fits(scale: Fraction) -> bool:
        return all(limit.admits(kind.scaled(scale)) for limit in limits)

    # a power of two that fits while its double does not
    low = Fraction(1)
    while not fits(low):
        low /= 2
        if low < FINEST:
            return Fraction(0)
    while fits(low * 2):
        low *= 2

    step = low  # low fits, and low + step does not
    for _ in range(STEPS):
        step /= 2
        low = low + step if fits(low + step) else low
    return low


def shown_below(value: float) -> float:
    """Round `value` down to six significant digits."""
    return float(Context(prec=6, rounding=ROUND_DOWN).create_decimal(value))


def checked_request(epsilon: float | None, delta: float | None) -> tuple[float | None, float | None]:
    """Return the epsilon and delta stated in the job. Raises BudgetError if a given one is invalid."""
    if epsilon is not None and not (_is_number(epsilon) and math.isfinite(epsilon) and epsilon > 0):
        raise BudgetError(
            "privacy.epsilon", f"got {safe_repr(epsilon)}", "a finite number > 0", "set it, or leave it out"
        )
    if delta is not None and not (_is_number(delta) and 0 <= delta < 1):
        raise BudgetError(
            "privacy.delta", f"got {safe_repr(delta)}", "a number >= 0 and < 1", "set it, or leave it out"
        )
    return epsilon, delta


def _is_number(value: object) -> bool:
    """Return whether `value` is a number in the range of a float."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return isinstance(value, float) or abs(value) <= sys.float_info.max


@dataclass(frozen=True)
class CapChange:
    """Result of setting a cap.

    Attributes
    ----------
    dataset : str
    cap : Cap
    spent_epsilon : float
        Epsilon of the history, at the cap's delta; the largest of all periods for a cap that renews.
    charged_before : int
        Number of earlier releases; for them the cap is an odometer, not a filter.
    near : str, optional
        Known dataset with a similar name, if this dataset is new.
    period : {"month", "year"}, optional
        Period of the data by which the cap renews.
    fullest : str
        Label of the period with the largest epsilon.
    promise : str
        Promise of a cap that renews, if it is known.
    analyst : str
        Whose releases the cap bounds; empty for all.
    below_spent : bool
        Whether the history already exceeds the cap, so that no further release is admitted.
    """

    dataset: str
    cap: Cap
    spent_epsilon: float
    charged_before: int
    near: str | None = None
    period: str | None = None
    fullest: str = ""
    promise: str = ""
    analyst: str = ""

    @property
    def below_spent(self) -> bool:
        return self.spent_epsilon > self.cap.epsilon

    def __str__(self) -> str:
        """Return the cap, the spent epsilon and remarks as one line of text."""
        scope = f" for each {self.period} of the data" if self.period else f" of {self.analyst}" * bool(self.analyst)
        scope += f", which protects {self.promise}," if self.promise else ""
        text = f"{self.dataset}: the cap{scope} is {self.cap}, "
        text += f"spent is at most {self.spent_epsilon:.6g}" if self.period else f"spent is {self.spent_epsilon:.6g}"
        text += f" ({self.fullest})" if self.period and self.charged_before else ""
        if self.below_spent:
            text += f", which is above it: nothing more is admitted{f' in {self.fullest}' if self.period else ''}"
        if self.charged_before:
            text += f"; for what was charged before it ({self.charged_before}) the cap is an odometer, not a filter"
        if self.near:
            text += f"; it is a new dataset beside {self.near!r}"
        return text


def cost_to_text(cost: Cost) -> str:
    """Serialise a cost as canonical JSON of exact fractions; equal costs have equal texts."""
    try:
        return json.dumps(cost.to_dict(), sort_keys=True)
    except ValueError as error:  # Python refuses to print integers of more than a few thousand digits
        raise BudgetError("cost", "got a fraction of thousands of digits", "fractions of fewer digits",
                          "round it up with Cost.coarsened()") from error  # fmt: skip


@lru_cache(maxsize=4096)
def cost_from_text(text: str) -> Cost:
    """Parse a cost written by `cost_to_text`."""
    try:
        return Cost.from_dict(json.loads(text))
    except (ValueError, TypeError) as error:
        raise BudgetError("cost", "got a row that is not a cost", "a row of the ledger",
                          "restore the ledger from a copy") from error  # fmt: skip


def canonical(name: str) -> str:
    """Return a dataset name in the form used for comparison: stripped, Unicode NFC."""
    return unicodedata.normalize("NFC", name.strip())


@dataclass(frozen=True)
class Account:
    """Ledger rows of one dataset, or those that the filter of one period of its data composes.

    Attributes
    ----------
    name : str
        Canonical name of the dataset.
    caps : sequence of Row
        Caps in the order in which they were set, with currency and privacy unit where known.
    releases : sequence of Row
        Releases in the order in which they were charged, with their privacy unit where known.
    renewing : sequence of Row
        Caps that renew by period, in the order in which they were set; empty in the account of a period.
    personal : sequence of Row
        Caps of analysts, in the order in which they were set; empty in the account of an analyst.
    renewal : {"month", "year"}, optional
        Period by which the caps renew, in the account of a period.
    period : str
        Label of the period, in the account of a period.
    promise : Protection, optional
        Privacy unit to which the costs are converted, in the account of a period or analyst.
    analyst : str
        Name, in the account of an analyst.
    """

    name: str
    caps: Sequence[Row]
    releases: Sequence[Row]
    renewing: Sequence[Row] = ()
    personal: Sequence[Row] = ()
    renewal: str | None = None
    period: str = ""
    promise: Protection | None = None
    analyst: str = ""

    @cached_property
    def cap(self) -> Cap | None:
        """Cap in force: the last one set, or None."""
        return cap_of(self.caps[-1]) if self.caps else None

    def limit(self, cost: Cost | None = None) -> Cap | None:
        """Return the cap in force with the part of its delta that is reserved for additive deltas.

        The releases up to the first one after the cap decide: if one of them has an additive delta, `RESERVED` of the
        cap's delta is reserved, otherwise nothing. `cost` is a request, which may be that first release. None without a
        cap.
        """
        if self.cap is None or self.cap.currency == PURE:
            return self.cap
        before = self.charged_before
        # the JSON of a cost has the key "delta" only if it has an additive delta
        has_delta = any('"delta"' in row["cost"] for row in self.releases[: before + 1])
        has_delta |= cost is not None and bool(cost.delta) and len(self.releases) == before
        return replace(self.cap, reserved=self.cap.delta * RESERVED if has_delta else 0.0)

    @property
    def renewing_now(self) -> dict[str, Row]:
        """Row of the cap in force for each length of period by which caps renew, the shorter one first."""
        latest = {row["period"]: row for row in self.renewing}
        return {by: latest[by] for by in RENEWALS if by in latest}

    @cached_property
    def protects(self) -> Protection | None:
        """Privacy unit of all releases: that of the cap or else of the first release that states one.

        None if neither states one.
        """
        if self.renewal or self.promise:
            return self.promise
        rows = (*self.caps[-1:], *self.renewing_now.values(), *self.releases)
        stated = next(filter(None, map(protection_of, rows)), None)
        return stated and self.with_table(stated)

    def with_table(self, protection: Protection, request: Protection | None = None) -> Protection:
        """Return a privacy unit with the table that all releases for its column name, or else that of the request.

        Two releases may name the same column of different tables; without exactly one table the unit stays without one.
        `request` is the privacy unit of a request.
        """
        if protection.unit is None or protection.table:
            return protection
        tables = {row["unit_table"] for row in self.releases if row["unit"] == protection.unit}
        if not tables and request is not None and request.unit == protection.unit:
            return replace(protection, table=request.table)
        return replace(protection, table=tables.pop()) if len(tables) == 1 else protection

    @property
    def currency(self) -> str:
        """Currency of the cap; without a cap, "pure" if the history is pure and "gdp" otherwise."""
        if self.cap:
            return self.cap.currency
        return PURE if self.releases and not self.spent.approximate else GDP

    def admission(self, cost: Cost, protects: Protection | None) -> Limit | None:
        """Return the limit with which a request is compared; None without a cap.

        Raises BudgetError if the request protects a unit whose cost does not add to the others.
        """
        steps, cap = self.steps(protects), self.limit(cost)
        return Limit(cap, self.spent, steps) if cap else None

    @cached_property
    def spent(self) -> Spending:
        """Composition of all releases."""
        return self._sum(self.releases)

    @property
    def reserved(self) -> Spending:
        """Composition of the releases whose noise is not completely drawn."""
        return self._sum(row for row in self.releases if row["state"] == "reserved")

    @cached_property
    def periods(self) -> dict[str, Spending]:
        """Composition of the releases of each period, in order; empty if no release has one.

        The period is that of the cost. It is "" for a cost for no single period, which may concern every period.
        """
        rows_by_period = dict[str, list[Row]]()
        for row in self.releases:
            period = cost_from_text(row["cost"]).period if '"period"' in row["cost"] else ""
            rows_by_period.setdefault(period, []).append(row)
        if not any(rows_by_period):  # no label but ""
            return {}
        return {period: self._sum(rows_by_period[period]) for period in sorted(rows_by_period)}

    @property
    def charged_before(self) -> int:
        """Number of releases charged before the cap was set; for them the cap is not a privacy filter."""
        return sum(row["reserved_at"] < self.caps[-1]["set_at"] for row in self.releases) if self.caps else 0

    def steps(self, protection: Protection | None) -> int:
        """Return the number of group-privacy steps at which a release with that promise counts here.

        It is 1 if the release or the account states no promise. Raises BudgetError if the number is not certain.
        """
        if protection is None or self.protects is None:
            return 1
        if self.renewal:
            self.check_renewable(protection, self.renewal)
            return checked_steps(protection, self.protects, self.name, f"its cap for each {self.renewal}")
        return checked_steps(protection, self.with_table(self.protects, protection), self.name)

    def check_renewable(self, protection: Protection, by: str) -> None:
        """Raise BudgetError for a release whose promise is not bounded by the caps for each month, or year."""
        if not renewable(protection):
            got = f"a release that protects {protection} on dataset {self.name!r}, which has a cap for each {by}"
            remedy = "name another dataset, with a cap on the total"
            raise not_renewable(protection, by, got, "data.privacy_unit", remedy)

    def counted(self, row: Row) -> Cost:
        """Return the cost of a release, given its row, in terms of the dataset's privacy unit.

        A release whose unit has no table is assigned the table named by the cap; the person who set the cap is
        responsible for that.
        """
        protection, cap = protection_of(row), protection_of(self.caps[-1]) if self.caps else None
        if protection and cap and cap.table and protection.unit == cap.unit and not protection.table:
            protection = replace(protection, table=cap.table)
        return cost_from_text(row["cost"]).for_group(self.steps(protection))

    def of_analyst(self, name: str) -> Account:
        """Return the account of an analyst: the caps and releases that name them."""
        caps, releases = ([row for row in rows if row["analyst"] == name] for rows in (self.personal, self.releases))
        return Account(self.name, caps, releases, promise=self.protects, analyst=name)

    @property
    def analysts(self) -> dict[str, Account]:
        """Accounts of the analysts that caps or releases name, by name."""
        names = {row["analyst"] for row in (*self.personal, *self.releases) if row["analyst"]}
        return {name: self.of_analyst(name) for name in sorted(names)}

    def check_analyst(self, name: str) -> None:
        """Raise BudgetError for a release of nobody, or of a stranger, if the dataset has caps of analysts."""
        known = sorted({row["analyst"] for row in self.personal})
        if known and name not in known:
            got = f"{name!r}, who has no cap" if name else f"none, but dataset {self.name!r} has caps of analysts"
            raise BudgetError("privacy.analyst", got, f"an analyst with a cap: {', '.join(known)}",
                              "name them, or set a cap by `dpscale ledger cap … --analyst NAME`")  # fmt: skip

    def check_recorded(self) -> None:
        """Raise BudgetError if older releases do not state their privacy unit and the cap does not state it either."""
        in_force = (*self.caps[-1:], *self.renewing_now.values())
        if any(not row["relation"] for row in in_force) and any(not row["relation"] for row in self.releases):
            raise BudgetError(
                "privacy.dataset",
                f"{self.name!r}, whose older releases do not state their privacy unit",
                "a cap that states it",
                "run `dpscale ledger cap … --unit row`, or with the column of the unit",
            )

    def _sum(self, rows: Iterable[Row]) -> Spending:
        """Return the composition of some releases, each counted in the unit that the account protects."""
        spending = Spending()
        for row in rows:
            spending = spending.plus(self.counted(row), is_public(row))
        return spending


def renewable(protects: Protection) -> bool:
    """Return whether a cap for each period may bound this promise: one row, or the rows of one unit in one period."""
    return protects.relation != REPLACE and (protects.unit is None or protects.span is not None)


def not_renewable(protects: Protection, by: str, got: str, field: str, remedy: str) -> BudgetError:
    """Return the error for a promise that caps for each month, or year, do not bound."""
    reason = (f"a replaced row may move to another {by}" if protects.relation == REPLACE else
              f"one {protects.unit} with rows in several {by}s would have the cap of each")  # fmt: skip
    return BudgetError(field, got, f"a promise for one row, or for all rows of one unit in one {by}: {reason}", remedy)


def is_public(row: Row) -> bool:
    """Return whether anyone can compute the noise of a release; for rows without this flag, its name decides."""
    return bool(row["public"] or (row["public"] is None and SEEDED.fullmatch(row["release"])))


def cap_of(row: Row) -> Cap:
    """Return the cap of a row; rows older than currencies have the currency implied by their delta."""
    return Cap(row["epsilon"], row["delta"], row["currency"] or "")


def protection_of(row: Row) -> Protection | None:
    """Return the privacy unit of a row; None for rows of ledger versions that did not record it."""
    if not row["relation"]:
        return None
    return Protection(
        unit=row["unit"], relation=row["relation"], bound=row["bound"] or 1, table=row["unit_table"], span=row["span"]
    )


def checked_periods(periods: object) -> Periods:
    """Return the labels of periods, sorted, each once. Raises JobError if one is not the name of a period."""
    if isinstance(periods, str) or not isinstance(periods, Sequence):
        raise JobError("periods", f"got {safe_repr(periods)}", f"a list of {TAKES}", 'pass a list, as ["2026-02"]')
    # a year may be a number
    labels = [f"{name:04}" if isinstance(name, int) and not isinstance(name, bool) else name for name in periods]
    for label in labels:
        if not isinstance(label, str):
            raise _unknown(label)
        _days(label)  # raises JobError if no period has this label
    return tuple(sorted(set(labels)))


def checked_renewal(period: object) -> str:
    """Return the period by which a cap renews. Raises JobError if caps do not renew by it."""
    if period not in RENEWALS:
        raise JobError("cap.period", f"got {safe_repr(period)}", " or ".join(RENEWALS),
                       "name one of them, or leave it out")  # fmt: skip
    return str(period)


def periods_to_text(periods: Periods) -> str:
    """Serialise labels as JSON; a release that reads no named period has an empty list."""
    return json.dumps(list(periods))


def periods_of_text(text: str | None) -> Periods:
    """Parse a text written by `periods_to_text`; rows of older ledgers have none."""
    return tuple(json.loads(text)) if text else ()


@lru_cache(maxsize=4096)
def renewals_of(periods: Periods, by: str) -> frozenset[int]:
    """Return the numbers of the months, or years, that have a day in common with one of the periods."""
    numbers = set[int]()
    for first, last in map(_days, periods):
        numbers.update(range(number_of(by, first), number_of(by, last) + 1))
    return frozenset(numbers)


def renewal_name(by: str, number: int) -> str:
    """Return the label of a month or year."""
    return str(name_of(by, number))


def shown_renewal(labels: Iterable[str]) -> str:
    """Return the period by which sums are shown without a cap by period: years if all labels are years."""
    return "year" if all(re.fullmatch(NAMES["year"][0], label) for label in labels) else "month"


@lru_cache(maxsize=16384)
def _days(label: str) -> tuple[date, date]:
    """Return the first and the last day of a period. Raises JobError if no period has this label."""
    # the forms of labels exclude each other: a label of one form is that of a day, a week, a month, …, or of nothing
    for by, (form, _) in NAMES.items():
        if re.fullmatch(form, label, re.ASCII):
            try:
                number = read_period(by, label)
            except ValueError:
                break
            return first_day(by, number), _last_day(by, number)
    raise _unknown(label)


def _unknown(label: object) -> JobError:
    return JobError("periods", f"got {safe_repr(label)}", TAKES, "name every period as the date attribute does")


def _last_day(by: str, number: int) -> date:
    """Return the last day of a period with a number in its calendar; `by` is its length, as month or year."""
    try:
        return first_day(by, number + 1) - timedelta(days=1)
    except (ValueError, OverflowError):  # the calendar ends
        return date.max


def filters(account: Account, periods: Periods, protects: Protection, analyst: str = "") -> Iterator[Account]:
    """Yield the accounts whose caps a release has to pass: of the periods that it reads, its analyst, and the total.

    Periods that were read by the same releases have the same account and are yielded once, under the first label.

    Parameters
    ----------
    account : Account
    periods : tuple of str
        Labels of the periods that the release reads; every period if empty.
    protects : Protection
        Promise of the release.
    analyst : str
        Who asks for the release.

    Raises
    ------
    BudgetError
        If the caps of periods do not bound the promise of the release.
    """
    if analyst:
        yield account.of_analyst(analyst)
    for by in account.renewing_now:
        yielded = set[tuple[int, ...]]()  # numbers of the releases of the accounts
        for of_period in period_accounts(account, by, periods, protects).values():
            numbers = tuple(row["seq"] for row in of_period.releases)
            if numbers not in yielded:
                yielded.add(numbers)
                yield of_period
    yield account


def period_accounts(
    account: Account, by: str, periods: Periods = (), protects: Protection | None = None
) -> dict[str, Account]:
    """Return the accounts of months or years by label, in their order; that of a label has the releases that read it.

    A release without periods reads every one.

    Parameters
    ----------
    account : Account
        Account of the dataset.
    by : {"month", "year"}
    periods : tuple of str
        Labels of the periods that are returned. If empty, all that a release names are returned, and "" for every other
        one.
    protects : Protection, optional
        Promise of a request.
    """
    # numbers of the months (or years) that a release reads, with its row; None: every one
    reads = list[tuple[frozenset[int] | None, Row]]()
    for row in account.releases:
        labels = periods_of_row(row)
        reads.append((renewals_of(labels, by) if labels else None, row))
    named = renewals_of(periods, by)
    if not named:
        named = frozenset[int]().union(*(months for months, _ in reads if months is not None))

    # without a cap for each such period the costs stay in the privacy unit of the dataset
    renewal = by if by in account.renewing_now else None
    promise = promise_of(account, by, protects) if renewal else account.protects
    caps = [row for row in account.renewing if row["period"] == by]

    def account_of(number: int | None) -> Account:
        """Return the account of a month (or year), with the releases that read it; None: one that none names."""
        releases = [row for months, row in reads if months is None or number in months]
        label = f"any other {by}" if number is None else renewal_name(by, number)
        return Account(account.name, caps, releases, renewal=renewal, period=label, promise=promise)

    accounts = {renewal_name(by, number): account_of(number) for number in sorted(named)}
    return accounts if periods else accounts | {"": account_of(None)}


def promise_of(account: Account, by: str, protects: Protection | None = None) -> Protection | None:
    """Return the promise that a cap for each month, or year, bounds: one row, or all rows of one unit in one of them.

    None if no cap and no release states a privacy unit.

    Parameters
    ----------
    account : Account
    by : {"month", "year"}
    protects : Protection, optional
        Promise of a request, which decides if neither a cap nor an earlier release states one.

    Raises
    ------
    BudgetError
        If the promise of the request, or of the dataset, is not bounded by such caps.
    """
    stated = stated_promises(account)
    requested = [protects] if protects else []
    for promise in [*stated, *requested]:
        account.check_renewable(promise, by)
    cap = account.renewing_now.get(by)
    of_cap = protection_of(cap) if cap else None
    promise_now = of_cap or next(iter(stated), protects)
    return promise_now and renewed(account.with_table(promise_now, protects), by)


def stated_promises(account: Account) -> list[Protection]:
    """Return the privacy units that the caps in force and the releases of a dataset state, in order of precedence."""
    rows = (*account.caps[-1:], *account.renewing_now.values(), *account.releases)
    return [promise for row in rows if (promise := protection_of(row))]


def renewed(protects: Protection, by: str) -> Protection:
    """Return the promise for one month, or year, of a promise for rows or for units."""
    if protects.unit is None:
        return Protection(relation=ADD_REMOVE)
    return replace(protects, span=by, bound=1)


def periods_of_row(row: Row) -> Periods:
    """Return the labels of the periods that a release reads."""
    return periods_of_text(row["periods"])
