"""Budget ledger: a durable, append-only record of the privacy cost of every release, shared by all jobs.

A release is charged before any noise is drawn. `charge` reserves its whole cost in one transaction, which reads the
dataset's history, composes it with the request and inserts the reservation or refuses. `commit` records that all noise
is drawn and `publish` that the result was released. Charging the same release again is free, because it can only draw
the same noise again; to ensure this, an adaptive release also records the decision of every round with `decide`, and
no round can be decided twice. Costs are never refunded or deleted.

The ledger belongs to the driver, outside Dask. It is a SQLite file in WAL mode, whose processes share memory: use a
local disk of one machine, never a network file system, and copy it with SQLite's own backup or while no job runs. In a
process that has the ledger open, no other code may open the file, not even to hash it, because closing that descriptor
would drop SQLite's locks. If drivers move between machines, the ledger is a schema of a PostgreSQL database with the
same rows and rules. The ledger writes no log; it reports only errors and its summary.

*Reading.*
A reading transaction sees one state of the ledger. Writing ones are those of `Ledger`, which adds charges and caps.
`statement` formats an account: its caps, its spending, what is left, and its releases, ready for JSON. Its *figures*
are a dict with the epsilon at a delta and the exact amounts of a `Spending`, the composition of costs.
"""

from __future__ import annotations

import json
import math
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fractions import Fraction
from types import MappingProxyType, TracebackType
from typing import Any, Self

from dpscale.base.display import figure, html_table, power
from dpscale.base.errors import BudgetError
from dpscale.ledger import chain, rows as ledgerrows, transfer
from dpscale.ledger.account import (
    MOST,
    Account,
    CapChange,
    Row,
    canonical,
    checked_periods,
    cost_from_text,
    is_public,
    period_accounts,
    periods_of_row,
    periods_of_text,
    remaining_epsilon,
    shown_renewal,
)
from dpscale.ledger.chain import Link, chain_of
from dpscale.ledger.location import resolved
from dpscale.ledger.request import CapRequest, Request, checked_name
from dpscale.ledger.rows import NO_JOB, JobEntry, findings, repeated_release
from dpscale.ledger.sqlite_store import LINKED as LINKED_VERSION
from dpscale.ledger.store import FIELD, Database, Result, Store, repeated
from dpscale.privacy.accounting import CURRENCIES, PURE, STATED_DELTA, Cost, Spending, delta_left, float_above
from dpscale.privacy.conversion import gdp_mu
from dpscale.privacy.protection import Protection

TIMEOUT = 30.0  # seconds to wait for another process's transaction
UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)  # of a value

ONE_ROW = Protection()


class LedgerReader:
    """Open ledger, without the methods that change it.

    Parameters
    ----------
    store : Store
        Database.
    """

    def __init__(self, store: Store) -> None:
        self.path = store.path
        self._store, self._pid, self._lock = store, os.getpid(), threading.RLock()

    @classmethod
    def open(cls, path: str | os.PathLike[str], create: bool = True, timeout: float = TIMEOUT) -> Self:
        """Open the ledger at a path or PostgreSQL address.

        Parameters
        ----------
        path : str or path-like
            File, or address `postgresql://HOST/DATABASE`.
        create : bool
            Create the ledger if it does not exist.
        timeout : float
            Seconds to wait for other processes and for an unreachable server.

        Returns
        -------
        Ledger

        Raises
        ------
        JobError
            If there is no ledger, or something else is there.

        Examples
        --------
        >>> import dpscale as dp
        >>> with dp.Ledger.open("ledger.sqlite") as ledger:
        ...     _ = ledger.set_cap("survey", epsilon=2.0, delta=1e-9)
        ...     round(ledger.summary("survey")["datasets"]["survey"]["remaining_epsilon"], 3)
        2.0
        """
        return cls(transfer.opened(resolved(os.getcwd(), path), create, timeout))

    def __repr__(self) -> str:
        return f"Ledger({str(self.path)!r})"

    def _repr_html_(self) -> str:
        return statement_html(self.summary())

    @property
    def name(self) -> str:
        """Random identifier of the ledger, drawn when it was created and preserved by its copies."""
        return self._read(ledgerrows.identity)

    def close(self) -> None:
        """Close the connection; all charges remain."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def is_decided(self, release: str, part: str, number: int) -> bool:
        """Return whether a decision of a release is recorded; without one nothing was drawn for it.

        Parameters
        ----------
        release : str
            Public id of the release.
        part : str
            Name of the part.
        number : int
            Number of the decision among those of the part.

        Returns
        -------
        bool
        """
        return self._read(lambda db: ledgerrows.decision(db, release, part, number)) is not None

    def check_first(self, dataset: str, job: JobEntry) -> None:
        """Raise BudgetError if another run has released the same job and dataset.

        Parameters
        ----------
        dataset : str
        job : JobEntry
            Job of the run that would be charged.
        """

        def act(db: Database) -> Any:
            transfer.check_open(db, self.path)
            name = ledgerrows.recorded_name(db, checked_name("dataset", dataset), job, job.run)
            return ledgerrows.earlier_release(db, name, job)

        if (row := self._read(act)) is not None:
            raise repeated_release(row["release"], row["reserved_at"], row["run_dir"])

    def digest_of(self, release: str) -> str:
        """Return the hash-chain link of a release. Raises BudgetError if the release is not on the ledger.

        Parameters
        ----------
        release : str
            Public id of the release.

        Returns
        -------
        str
            SHA-256 in hexadecimal.
        """
        return self._read(lambda db: chain.digest_of(db, release))

    def check_contains(self, release: str, digest: str) -> None:
        """Raise BudgetError if the hash chain lacks the link that a run received when it was charged.

        Parameters
        ----------
        release : str
            Public id of the release.
        digest : str
            The link.
        """
        if not self._read(lambda db: chain.contains(db, digest)):
            raise BudgetError(FIELD, f"{self.path} lacks the entry of release {release!r}, which it contained: its"
                              " history was truncated or replaced", "the whole history, with its -wal file",
                              "restore it from a copy; do not use this one")  # fmt: skip

    def chain(self, dataset: str) -> list[tuple[Link, str]]:
        """Return the links of a dataset's hash chain with their digests.

        Raises BudgetError if the ledger is damaged.

        Parameters
        ----------
        dataset : str

        Returns
        -------
        list of Link and str
        """

        def act(db: Database) -> list[tuple[Link, str]]:
            self._check_chained(db)
            return chain_of(ledgerrows.history(db).tables, canonical(dataset))

        return self._read_sound(act)

    def heads(self) -> dict[str, int]:
        """Return every link of every chain with the number of later links.

        Raises BudgetError if the ledger is damaged.

        Returns
        -------
        dict of str to int
        """

        def act(db: Database) -> dict[str, int]:
            self._check_chained(db)
            return chain.heads(db)

        return self._read_sound(act)

    def summary(self, dataset: str | None = None, by_period: bool = False) -> dict[str, Any]:
        """Return the spending of one dataset or of all, ready for JSON; an epsilon that is not finite is null.

        Raises BudgetError if the ledger is damaged.

        The head is the last link of the dataset's hash chain; ledgers before LINKED_VERSION have none.

        Parameters
        ----------
        dataset : str, optional
        by_period : bool
            Whether to add `by_period`, the spending of each month or year of the data.

        Returns
        -------
        dict
            `datasets` has an entry for each dataset, with `spent`, `cap`, `remaining_epsilon` and `releases`.
        """

        def act(db: Database) -> dict[str, Any]:
            """Return the statements of the chosen datasets from one state of the ledger."""
            names = {canonical(name) for name in ledgerrows.names(db)}
            if dataset is not None and canonical(dataset) not in names:
                raise BudgetError("dataset", f"{dataset!r} is not in {self.path}", "a dataset charged or capped before",
                                  "check the name with `dpscale ledger show`")  # fmt: skip
            chosen = names if dataset is None else {canonical(dataset)}
            version = ledgerrows.schema_version(db)
            datasets = {}
            for name in sorted(chosen):
                stated = statement(ledgerrows.account(db, name), STATED_DELTA)
                _, head = chain.head(db, name) if version >= LINKED_VERSION else (0, "")
                stated["head"] = head
                if by_period:
                    stated["by_period"] = statement_by_period(ledgerrows.account(db, name), STATED_DELTA)
                stated["notes"] = [*stated["notes"], *chain.conditions(db, name)]
                datasets[name] = stated
            return {"schema_version": version, "moved_to": ledgerrows.moved_to(db), "datasets": datasets}

        return {"ledger": str(self.path)} | self._read_sound(act)

    def periods(self, dataset: str) -> dict[str, Spending]:
        """Return the composition of the releases by the period of their cost; empty if no cost has a period.

        Costs without a period, which may concern every period, are under "". The total is spent by all of them.

        Parameters
        ----------
        dataset : str

        Returns
        -------
        dict of str to Spending
        """
        return self._read_sound(lambda db: ledgerrows.account(db, checked_name("dataset", dataset)).periods)

    def verify(self) -> dict[str, int]:
        """Check the database, its schema, every row and every hash chain.

        Raises BudgetError for the first fault.

        Returns
        -------
        dict of str to int
            Number of `datasets`, `releases` and `links`.
        """

        def act(db: Database) -> dict[str, int]:
            names = {canonical(name) for name in ledgerrows.names(db)}
            tables = ledgerrows.history(db).tables
            return {"datasets": len(names), "releases": len(tables["releases"]), "links": len(tables["links"])}

        return self._read_sound(act)

    def _check_sound(self, db: Database) -> None:
        """Raise DamageError unless the database, every row and every hash chain are as they were written."""
        faults = self._store.findings(db)
        if not faults:  # the rows of a sound database
            tables, last_numbers = ledgerrows.history(db).tables, self._store.numbered(db)
            try:
                faults = findings(tables, last_numbers)
            except UNREADABLE:
                faults = ["a row has a value that no ledger writes"]
        if faults:
            raise self._store.damaged(faults[0])

    def _check_chained(self, db: Database) -> None:
        """Raise BudgetError for a ledger of a version without hash chains.

        Its copy in memory, which is upgraded for reading, has chains with new random salts each time.
        """
        if (version := ledgerrows.schema_version(db)) < LINKED_VERSION:
            got = f"{self.path} has schema version {version}, which has no hash chain"
            raise BudgetError(FIELD, got, f"version {LINKED_VERSION} or later", "the next charge upgrades it")

    def _read_sound(self, act: Callable[[Database], Result]) -> Result:
        """Return the result of `act` on a ledger that was verified in the same transaction."""

        def on_sound(db: Database) -> Result:
            self._check_sound(db)
            return act(db)

        return self._read(on_sound)

    def _read(self, act: Callable[[Database], Result]) -> Result:
        return repeated(lambda: self._within(False, act), self._store.timeout)

    def _within(self, writes: bool, act: Callable[[Database], Result]) -> Result:
        with self._transaction(writes) as db:
            return act(db)

    @contextmanager
    def _transaction(self, writes: bool) -> Iterator[Database]:
        """Run a transaction; a writing one takes the write lock before it reads, so writers are serialised."""
        if os.getpid() != self._pid:
            raise BudgetError(FIELD, "was opened in another process", "a ledger opened in this process",
                              "call Ledger.open after the fork")  # fmt: skip
        with self._lock, self._store.transaction(writes) as db:
            yield db


MOST_LISTED, FEW = 10, 3  # lines of a table, and datasets whose releases are listed
NEWER = ("span", "period", "periods", "run_dir", "analyst")
UNSHOWN = ("seq", "dataset", "job", "files")
MOST_DELTA = math.nextafter(1, 0)  # at a delta of 1 nothing is claimed


def statement(account: Account, stated_delta: float) -> dict[str, Any]:
    """Return cap, currency, spending, remaining budget and releases of a dataset, ready for JSON; infinity is null.

    Totals are stated at the delta of the cap. Without a cap they are stated at the largest delta of a release, or at
    `stated_delta` if no release has one, or at 0 if the history is pure; if the additive deltas use that up, they are
    added to it. `periods`, with the sums of each period, is there only if a release has a period.
    """
    cap = account.limit()
    delta_without_cap = 0.0 if account.currency == PURE else _largest_delta(account, stated_delta)
    delta = cap.delta if cap else delta_without_cap
    # without this the additive deltas would leave no δ for the Gaussian events
    if not cap and account.spent.delta >= delta:
        delta = min(delta + float_above(account.spent.delta), MOST_DELTA)

    stated = {
        "cap": _shown(account.caps[-1]) | {"currency": cap.currency} if cap else None,
        "former_caps": [_shown(row) for row in account.caps[:-1]],
        "protects": str(account.protects) if account.protects else None,
        "currency": f"{account.currency}: {CURRENCIES[account.currency]}",
        "spent": _figures(account, account.spent, delta),
        "reserved": _figures(account, account.reserved, delta),
        "remaining": _remaining(account),
        "remaining_epsilon": _remaining_epsilon(account),
        "notes": notes(account),
        "releases": [_entry(account, row, delta) for row in account.releases],
    }
    if account.periods:
        stated["periods"] = {name: _figures(account, spent, delta) for name, spent in account.periods.items()}
    if account.analysts:
        stated["analysts"] = {name: _of_analyst(of_analyst, delta) for name, of_analyst in account.analysts.items()}
    if account.renewing:
        stated["period_caps"] = [_shown(row) for row in account.renewing]
    return stated


def statement_html(summary: Mapping[str, Any]) -> str:
    """Return the summary of a ledger as HTML: spent and remaining budget of each dataset, and its last releases."""
    datasets = summary["datasets"]
    lines = [(name, f"{len(stated['releases']):,}", _pair(stated["spent"]), _pair(stated["cap"]), _left(stated))
             for name, stated in datasets.items()]  # fmt: skip
    columns = ("dataset", "releases", "spent", "cap", "remains")
    html_tables = [html_table(f"Ledger {summary['ledger']}", columns, lines[:MOST_LISTED])]

    charged = {name: stated["releases"] for name, stated in datasets.items() if stated["releases"]}
    # releases of few datasets only, so that the summary stays short
    for name, releases in charged.items() if len(charged) <= FEW else ():
        last = [(row["release"][:8], row["reserved_at"][:10], row["state"], _pair(row["own"]))
                for row in releases[-MOST_LISTED:]]  # fmt: skip
        html_tables.append(html_table(f"Last releases of {name}", ("release", "day", "state", "cost"), last, labels=3))
    return "".join(html_tables)


def _left(dataset: Mapping[str, Any]) -> str:
    """Return the remaining budget of a dataset, given its `statement`, in words."""
    if dataset["remaining_epsilon"] is None:
        return "no cap on the total"
    return _pair({"epsilon": dataset["remaining_epsilon"], "delta": dataset["cap"]["delta"]})


def _pair(figures: Mapping[str, Any] | None) -> str:
    """Return the epsilon and delta of `figures` in words; a dash for None, which stands for no cap."""
    if figures is None:
        return "—"
    epsilon = "infinite" if figures["epsilon"] is None else figure(figures["epsilon"])
    return f"ε {epsilon} at δ {power(figures['delta'])}" if figures["delta"] else f"ε {epsilon}"


def statement_by_period(account: Account, stated_delta: float) -> dict[str, Any]:
    """Return the budget of each month or year of the data, ready for JSON; infinity is null.

    It has the months, the years, or both, by which caps renew. Without such a cap it has the months, or the years if
    releases name years only; it is empty if no release names a period. `other` has the figures of every period that no
    release names, and of what every release without periods costs.
    """
    labels = {label for row in account.releases for label in periods_of_row(row)}
    renewals = list(account.renewing_now) or ([shown_renewal(labels)] if labels else [])
    by_renewal = {}
    for by in renewals:
        # by label; "" is the account of every period that no release names
        accounts, cap = period_accounts(account, by), account.renewing_now.get(by)
        figures = {name: _of_period(of_period, stated_delta) for name, of_period in accounts.items()}
        promise = next(iter(accounts.values())).protects  # the same in every account
        by_renewal[by] = {"cap": _shown(cap) if cap else None, "protects": str(promise) if promise else None,
                     "other": figures.pop(""), "periods": figures}  # fmt: skip
    return by_renewal


def _of_analyst(account: Account, delta: float) -> dict[str, Any]:
    """Return the cap, spending and remaining budget of an analyst's account, and the number of releases.

    The spending is stated at the delta of the analyst's cap, or without one at `delta`.
    """
    cap = account.limit()
    return {"cap": _shown(account.caps[-1]) | {"currency": cap.currency} if cap else None,
            "spent": _figures(account, account.spent, cap.delta if cap else delta),
            "remaining": _remaining(account), "remaining_epsilon": _remaining_epsilon(account),
            "releases": len(account.releases)}  # fmt: skip


def _of_period(account: Account, stated_delta: float) -> dict[str, Any]:
    """Return spending, remaining budget and number of releases of the account of one month or year, ready for JSON."""
    cap = account.limit()
    delta_without_cap = 0.0 if account.currency == PURE else stated_delta
    delta = cap.delta if cap else delta_without_cap
    left = {"remaining": _remaining(account), "remaining_epsilon": _remaining_epsilon(account)} if cap else {}
    before = {"charged_before": account.charged_before} if cap else {}
    return {**_figures(account, account.spent, delta), **left, "releases": len(account.releases), **before}


def _remaining_epsilon(account: Account) -> float | None:
    cap = account.limit()
    return remaining_epsilon(cap, account.spent) if cap and not cap.boundless else None


def _largest_delta(account: Account, stated_delta: float) -> float:
    return max((row["delta"] for row in account.releases if row["delta"]), default=stated_delta)


def notes(account: Account) -> list[str]:
    """Return the caveats that a reader of the figures needs.

    An odometer reports what has been spent without a limit; its ε holds if every budget was fixed before the first
    release. A renewing cap is one for each period of the data.
    """
    sentences = []
    if account.cap and account.cap.boundless:
        sentences.append(f"a cap above epsilon {MOST:g} has no effect: set a smaller one")
    if account.spent.public:
        sentences.append("a release with a seed showed exact counts: nothing that follows makes this dataset private")
    if not account.caps and account.renewing:
        sentences.append("no cap on the total: each period of the data has its own, and the total is an odometer's")
    elif not account.caps:
        sentences.append(
            "no cap: the epsilon is an odometer's, true if every budget was fixed before the first release"
        )
    elif account.charged_before:
        sentences.append(f"charged before this cap: {account.charged_before}; for those releases it is an odometer")
    cap = account.limit()
    if cap and cap.reserved:
        sentences.append(f"reserved for additive deltas: {cap.reserved:.6g} of the cap's delta")
    if account.spent.approximate and account.spent.pure:
        sentences.append("pure and Gaussian releases are counted together in gdp")
    if any(not row["relation"] for row in account.releases):
        sentences.append("older releases do not state their privacy unit: they are counted as if it were the same")
    return sentences


def _figures(account: Account, spending: Spending, delta: float) -> dict[str, Any]:
    """Return epsilon at a delta, squared μ, pure epsilon and additive delta of a spending; infinity is None.

    The epsilon is at `delta`, which is the cap's delta if the account has a cap.
    """
    cap = account.limit()
    figures = {
        "epsilon": cap.spent_epsilon(spending) if cap else spending.epsilon(account.currency, delta),
        "delta": delta,
        "squared_mu": spending.amount("gdp"),
        "pure_epsilon": spending.amount(PURE),
    }
    if spending.delta:
        figures["additive_delta"] = float_above(spending.delta)
    return {name: value if math.isfinite(value) else None for name, value in figures.items()}


def _remaining(account: Account) -> float | None:
    """Return the unspent part of the cap in its currency; None without a cap or with one too large to compute with."""
    cap = account.limit()
    if cap is None or cap.boundless:
        return None
    # additive deltas have the larger of what they spent and what is reserved for them
    delta = delta_left(cap.delta, max(account.spent.delta, Fraction(cap.reserved)))
    if delta < 0:
        return 0.0
    permitted = cap.epsilon if cap.currency == PURE else gdp_mu(cap.epsilon, delta) ** 2
    return max(0.0, permitted - account.spent.amount(cap.currency))


def _entry(account: Account, row: Row, delta: float) -> dict[str, Any]:
    """Return one release, given its row.

    `own` is its cost alone, at its own delta, or at the delta of the totals, `delta`, if it has none; a pure one at its
    additive delta. `squared_mu` is counted in the privacy unit of the account.
    """
    counted, cost = float_above(account.counted(row).squared_mu), cost_from_text(row["cost"])
    own_delta = float_above(cost.delta) if cost.is_pure else row["delta"] or delta
    epsilon = math.inf if is_public(row) else cost.epsilon_or_inf(min(own_delta, MOST_DELTA))
    costs = {"cost": json.loads(row["cost"]), "squared_mu": counted, "public": is_public(row),
            "own": {"epsilon": epsilon if math.isfinite(epsilon) else None, "delta": own_delta}}  # fmt: skip
    return _shown(row) | costs


def _shown(row: Row) -> Row:
    """Return a row without its number, dataset, job and files, and without columns of this version that are not set."""
    shown = {name: value for name, value in row.items() if name not in (*UNSHOWN, *NEWER)}
    newer = {name: row[name] for name in NEWER if row.get(name)}
    labels = periods_of_text(newer.pop("periods", None))
    if labels:
        newer["periods"] = list(labels)
    return shown | newer


class PublicLedger(LedgerReader):
    """Open ledger that users read and cap, `dp.Ledger`; a context manager. It charges and publishes nothing.

    All methods raise BudgetError if the ledger refuses or cannot be trusted, TransientError if the same call may
    succeed later (lock, full disk), and JobError for an invalid ledger, cap or name. After an error the ledger is
    unchanged.

    Parameters
    ----------
    store : Store
        Database.

    Examples
    --------
    >>> with Ledger.open("budget.sqlite") as ledger:
    ...     ledger.summary()["datasets"]
    {}
    """

    def set_cap(
        self,
        dataset: str,
        epsilon: float,
        delta: float,
        currency: str | None = None,
        protects: Protection | None = None,
        period: str | None = None,
        analyst: str | None = None,
    ) -> CapChange:
        """Set the cap on the composition of the releases of a dataset; earlier caps remain as history.

        A cap below the current spending is accepted.

        Parameters
        ----------
        dataset : str
        epsilon, delta : float
            The total allowed, or the total of each period.
        currency : {"gdp", "pure"}, optional
            Default: that of the dataset's caps, otherwise implied by `delta`. It cannot change once a release was
            charged under a cap.
        protects : Protection, optional
            Privacy unit of the releases. Default: that of the existing account.
        period : {"month", "year"}, optional
            Period of the data by which the cap renews: the cap bounds the releases that read each period. It requires
            releases that protect a row, or the rows of a unit in one period. Default: a cap on all releases.
        analyst : str, optional
            Whose releases the cap bounds, beside the caps of the dataset. From then on every release of the dataset
            names an analyst with a cap.

        Returns
        -------
        CapChange
            The new cap, with the former one and the releases that it does not bound.

        Examples
        --------
        >>> with Ledger.open("ledger.sqlite") as ledger:
        ...     _ = ledger.set_cap("trips", epsilon=3.0, delta=1e-9)
        ...     list(ledger.summary()["datasets"])
        ['trips']
        """
        request = CapRequest(
            dataset=dataset,
            epsilon=epsilon,
            delta=delta,
            currency=currency,
            protects=protects,
            period=period,
            analyst=analyst,
        )
        return self._change(request.apply, sound=True)

    def _change(self, act: Callable[[Database], Result], writes: bool = True, sound: bool = False) -> Result:
        """Return the result of `act` on an open ledger; `act` may run several times but writes only once.

        With `sound`, the ledger is verified first, in the same transaction.
        """

        def on_open(db: Database) -> Result:
            """Act on the ledger unless it was moved or, with `sound`, a check fails."""
            transfer.check_open(db, self.path)
            if sound:
                self._check_sound(db)
            return act(db)

        return repeated(lambda: self._within(writes, on_open), self._store.timeout)


class Ledger(PublicLedger):
    """Open ledger to which runs charge their releases. Open it with `Ledger.open`, once in each process."""

    def charge(  # noqa: PLR0913
        self,
        dataset: str,
        release: str,
        cost: Cost,
        plan_digest: str,
        epsilon: float | None = None,
        delta: float | None = None,
        reserve: bool = True,
        protects: Protection = ONE_ROW,
        public: bool = False,
        facts: Mapping[str, str] = MappingProxyType({}),
        periods: Sequence[str] = (),
        job: JobEntry = NO_JOB,
        analyst: str = "",
    ) -> str:
        """Reserve the cost of a release before its first draw and return its state.

        The charge is admitted if the history composed with this cost is within the cap on the total, that of every
        period that it reads and that of its analyst, or if there is no cap. A release charged before with the same
        arguments is free. The whole ledger is verified in the same transaction: one with a broken hash chain admits
        nothing.

        Parameters
        ----------
        dataset, release : str
        cost : Cost
        plan_digest : str
            SHA-256 of the canonical plan.
        epsilon, delta : float, optional
            Figures of the job, stored for display and used in the refusal.
        reserve : bool
            If False, write nothing: return "admitted" or raise, so that a job is refused before it reads data.
        protects : Protection
            Privacy unit; refused if the dataset's other releases protect a different one.
        public : bool
            Whether anyone can compute the noise (a seed). No cap admits such a release.
        facts : mapping of str to str
            Hashes of the release's public files, stored in its link of the hash chain for an evidence bundle.
        periods : sequence of str
            Periods whose records the release reads, as a date attribute names them: "2026-02", "2026", "2026-Q1",
            "2026-W09", "2026-02-28". Each of them is charged the whole cost once. Default: every period.
        job : JobEntry
            Job of the release. A second release of the same job and dataset is refused unless it is stated to be fresh.
        analyst : str
            Who asks for the release; refused without a cap if the dataset has caps of analysts.

        Returns
        -------
        str
            "reserved", "committed", "released" or "admitted".

        Guarantee
        ---------
        Protected: all releases of a dataset together.
        Cost: at most the caps on the total and on the periods; a refused or broken history admits nothing.
        Neighbours: `protects`: releases for other units are refused, or converted as docs/privacy.md says.
        Proof: docs/privacy.md, Neighbouring tables; tests/ledger/test_book.py.
        """
        asked = Request(
            dataset=dataset,
            release=release,
            cost=cost,
            plan_digest=plan_digest,
            epsilon=epsilon,
            delta=delta,
            protects=protects,
            public=public,
            facts=facts,
            periods=checked_periods(periods),
            job=job,
            analyst=analyst,
        )

        def act(db: Database) -> str | Account:
            """Return the state of the release, which is inserted; the account if a cap refuses it."""
            # the same files may have been charged before under another name of the data set
            request = asked.at_recorded_name(db)
            state = request.state(db)
            if state:  # charged before
                return state
            request.check_first(db)
            account = request.account(db)
            if not request.fits(account):
                return account
            if reserve:
                request.insert(db)
            return "reserved" if reserve else "admitted"

        self._store.check_writable()
        # the ledger is verified first; to explain a refusal takes time, so it is done after the transaction
        answer = self._change(act, reserve, sound=True)
        if isinstance(answer, Account):
            raise asked.refusal(answer)
        return answer

    def decide(self, release: str, part: str, number: int, digest: str) -> None:
        """Record a decision of a part of a release before its noise is drawn; repeating it is free.

        A different decision with the same number, made in a copy of the run directory, is refused, because it would
        spend the same budget twice.

        Parameters
        ----------
        release : str
        part : str
            Name of the part.
        number : int
            Number of the decision among those of the part.
        digest : str
            SHA-256 of the decision.

        Guarantee
        ---------
        Protected: the draws of a release: two copies of a run directory cannot draw different things under one
            charge.
        Cost: nothing beyond the charge.
        Neighbours: those of the release.
        Proof: docs/privacy.md, One draw for one charge; tests/ledger/test_book.py.
        """

        def act(db: Database) -> None:
            """Insert the decision, or compare it with the one of the same number."""
            decided = ledgerrows.decision(db, release, part, number)
            if decided is None:
                ledgerrows.insert_round(db, release, part, number, digest)
            elif decided != digest:
                raise BudgetError(
                    "release",
                    f"{release!r} has another decision {number}{part and f' of {part}'} in another copy",
                    "one run directory per release",
                    "continue in the copy with more rounds, or start a new run",
                )

        self._change(act)

    def commit(self, release: str) -> str:
        """Record that all noise of a reserved release is drawn; repeating it changes nothing.

        Parameters
        ----------
        release : str
            Public id of the release.

        Returns
        -------
        str
            "committed".
        """
        return self._advance(release, "reserved", "committed")

    def publish(self, release: str) -> str:
        """Record that a committed release is published; repeating it changes nothing.

        Parameters
        ----------
        release : str
            Public id of the release.

        Returns
        -------
        str
            "released".
        """
        return self._advance(release, "committed", "released")

    def link_entries(self) -> None:
        """Upgrade an open ledger of a version without hash chains, so that its entries have links to show."""
        if self._read(ledgerrows.schema_version) < LINKED_VERSION:
            self._change(lambda db: None)

    def move(self, target: str | os.PathLike[str]) -> int:
        """Move the history to a new ledger at `target` and close this one permanently.

        Calling it again finishes an interrupted move; after a complete move it changes nothing.

        Parameters
        ----------
        target : str or path-like
            File, or address `postgresql://HOST/DATABASE`.

        Returns
        -------
        int
            Number of releases.
        """
        self.verify()
        return transfer.move(self._store, lambda: self._transaction(True), resolved(os.getcwd(), target))

    def _advance(self, release: str, before: str, after: str) -> str:
        """Move a release from one state to the next and return the new state; one that has it already stays."""

        def act(db: Database) -> str:
            """Check the present state, change it if it is `before`, and return `after`."""
            row = db.execute("SELECT state FROM releases WHERE release = ?", (release,)).fetchone()
            if row is None or row[0] not in (before, after):
                state = row[0] if row else "not on the ledger"
                raise BudgetError("release", f"{release!r} is {state}", f"a release that is {before}",
                                  "charge, commit and publish it in this order")  # fmt: skip
            if row[0] == before:
                change = f"UPDATE releases SET state = ?, {after}_at = ? WHERE release = ?"
                db.execute(change, (after, ledgerrows.now(), release))
            return after

        return self._change(act)
