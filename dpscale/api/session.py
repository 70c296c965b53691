"""Session: SELECT statements on a dataset, one run after another; known answers cost nothing.

Every run plans its statements with the strategy that measures each residual by its centred cells (`residual-planner`).
It is the same for all workloads, so the values of all runs of a session are pooled. A run states the epsilon that its
statements would cost alone: squared μ B, divided into shares sₜ. Where earlier runs spent hₜ on residual t, it measures
bₜ = max(0, sₜB − hₜ) and is charged Σ bₜ: nothing for statements that are answered as exactly, and only the missing
part of others (`dpscale.mechanisms.matrix_mechanism`).

The budget of a run may depend on earlier answers. The sum of squared μ stays below a cap that was fixed before, because
the ledger compares it before each draw: a privacy filter for Gaussian noise (docs/privacy.md).
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

from dpscale.answers.ratios import Figures
from dpscale.answers.selections import selection_table
from dpscale.answers.tables import framed
from dpscale.api.planning import ReleasePlan, data_folder, plan_sql
from dpscale.api.release import Release
from dpscale.base.display import figure, power, safe_repr
from dpscale.base.errors import JobError, TransientError
from dpscale.base.numerics import AttributeSet
from dpscale.base.progress import Progress, lines, shown
from dpscale.domain import Domain
from dpscale.engine.schedulers import resolve
from dpscale.job import Job
from dpscale.ledger.account import canonical
from dpscale.ledger.book import PublicLedger
from dpscale.ledger.location import resolved, standing
from dpscale.mechanisms.residual_planner import NAME
from dpscale.privacy.accounting import GDP, STATED_DELTA, Cost
from dpscale.records.frames import FRAME, frame_columns, read_stream
from dpscale.runs.manifest import MANIFEST
from dpscale.runs.opening import begin_run, open_run
from dpscale.runs.refine import Refinement, missing_cost, plan_refinement, preview_refinement, start_refinement
from dpscale.runs.run import Run
from dpscale.runs.runner import check_frame, check_repeat, remove_on_error, remove_run, run_stages
from dpscale.runs.stages.preview import expected_errors
from dpscale.storage.databases import is_database, located_database
from dpscale.storage.files import is_path, present
from dpscale.storage.lock import file_lock
from dpscale.workload.sql.selection import select
from dpscale.workload.sql.statements import DIALECT, Statement, read_statements

LOCK, WAIT_SECONDS = "session.lock", 600.0


@dataclass(frozen=True)
class SessionPlan:
    """Present cost of statements.

    Attributes
    ----------
    squared_mu : float
        Squared Gaussian-DP μ of the missing measurements; 0 if the statements are answered.
    epsilon, delta : float
        The same as (ε, δ)-DP.
    errors : sequence of mapping
        Expected root mean square errors by statement; empty if nothing is missing.
    """

    squared_mu: float
    epsilon: float
    delta: float
    errors: Sequence[Any] = field(default=(), repr=False)

    def __str__(self) -> str:
        """Return the cost and the expected errors as one line of text."""
        if not self.squared_mu:
            return "answered by earlier runs: costs nothing"
        errors = [f"{one['family']}: {figure(one['error'])} {one['unit']}" for one in self.errors]
        cost = f"costs epsilon {figure(self.epsilon)} at delta {power(self.delta)}"
        return "; ".join([cost, *(f"expected error of {text}" for text in errors)])


class Session:
    """SELECT statements on one dataset, one run after another, under a cap.

    Parameters
    ----------
    data : DataFrame, Arrow data, str or Path
        A frame, or the path of files.
    domain : Domain, str or Path
        Public values of the attributes, or the path of a domain file.
    ledger : str or Path, optional
        Path or address of the ledger. Default: ledger.sqlite in the user's data folder.
    cap : tuple of float, optional
        Epsilon and delta of all runs together. Default: the cap that the ledger has, without which there is no session.
    analyst : str, optional
        Name that the runs are charged to. The ledger must have a cap for it and one for the dataset.
    dataset : str, optional
        Name of the data in the ledger. Default: "default".
    unit : str or sequence of str, optional
        Column that identifies the protected unit. Default: one row is protected.
    rows_per_unit : int, optional
        Largest number of rows of a unit that are counted; required with `unit`.
    dialect : str
        SQL dialect of sqlglot.
    folder : str or Path, optional
        Folder of the run directories, by which a session continues later. Default: one for each ledger and dataset in
        the user's data folder.
    fresh : bool
        Begin a new session in another folder, with new charges, although the ledger has a release of its first
        statements.
    client, scheduler, progress : optional
        As of `dpscale.run`.

    Raises
    ------
    JobError
        If there is no cap, or another one.

    Examples
    --------
    >>> session = dp.Session(trips, domain, "budget.sqlite", cap=(3, 1e-9), dataset="trips")
    >>> by_day = "SELECT day, COUNT(*) AS trips FROM t GROUP BY day"
    >>> session.run(by_day, epsilon=1)["query-1"].columns.tolist()
    ['day', 'trips', 'trips_low', 'trips_high', 'trips_std_error']
    >>> session.plan("SELECT COUNT(*) AS n FROM t", epsilon=0.5).squared_mu
    0.0
    """

    def __init__(  # noqa: PLR0913
        self,
        data: Any,
        domain: Domain | str | Path,
        ledger: str | Path | None = None,
        cap: tuple[float, float] | None = None,
        *,
        analyst: str | None = None,
        dataset: str | None = None,
        unit: str | Sequence[str] | None = None,
        rows_per_unit: int | None = None,
        dialect: str = DIALECT,
        folder: str | Path | None = None,
        fresh: bool = False,
        client: Any = None,
        scheduler: Any = None,
        progress: Progress | None = lines,
    ) -> None:
        """Find data, ledger and folder of the session, and check the cap; the parameters are those of the class."""
        shown(progress)  # refuse what cannot be called
        here = Path.cwd()
        self._frame = None if is_path(data) else read_stream(data)
        self._path = FRAME if self._frame is not None else _located(here, str(data))
        own = resolved(here, ledger) if ledger is not None else str(data_folder() / "ledger.sqlite")
        declared = domain if isinstance(domain, Domain) else os.path.abspath(domain)
        protected = {"unit": unit, "rows_per_unit": rows_per_unit, "dataset": dataset}
        self._arguments: dict[str, Any] = {"domain": declared, "ledger": own, "dialect": dialect, "analyst": analyst,
                                           **protected}  # fmt: skip
        self._engine = {"client": client, "scheduler": scheduler}
        self._progress, self._analyst, self._fresh = progress, analyst, fresh
        self._delta, self._checked = STATED_DELTA, ""  # until the cap is known
        # a plan of any statement has the ledger and the name of the dataset
        privacy = self._alone("SELECT COUNT(*) AS n FROM t", 1.0).job.privacy
        self._ledger, self._dataset = privacy.ledger, canonical(str(privacy.dataset))
        self._check_cap(cap)
        called = hashlib.sha256(repr((self._ledger, self._dataset)).encode()).hexdigest()[:12]
        # the same ledger and dataset have the same folder, so that a session continues
        self._folder = Path(os.path.abspath(folder)) if folder is not None else data_folder() / "sessions" / called

    def plan(self, text: str, epsilon: float) -> SessionPlan:
        """Return the present cost of statements; nothing is charged, and no record is read.

        Parameters
        ----------
        text : str
            Statements separated by semicolons.
        epsilon : float
            What they would cost alone.

        Returns
        -------
        SessionPlan

        Raises
        ------
        JobError, PlanError
            For a statement that cannot be answered, with its place.

        Examples
        --------
        >>> session = dp.Session(trips, domain, "budget.sqlite", cap=(3, 1e-9), dataset="trips")
        >>> round(session.plan("SELECT day, COUNT(*) AS n FROM t GROUP BY day", epsilon=1).epsilon, 6)
        1.0
        """
        self._refresh()
        last = self._last()
        alone = self._alone(text, epsilon, last)
        if last is None:
            budget = alone.job.answer_budget(alone.job.read_domain())
            return self._planned(float(budget.amount), expected_errors(alone.measurements, budget)["families"])
        content = self._content(alone)
        with self._resolved() as engine:
            _, squared = self._missing(content, last, engine)
            if not squared:
                return SessionPlan(0.0, 0.0, self._delta)
            planned = plan_refinement(last.path, None, job=content, privacy_cost=squared)
            found = expected_errors(preview_refinement(planned, engine), planned.job.table.privacy.budget)
        return self._planned(squared, found["families"])

    def run(self, text: str, epsilon: float, *, level: float = 0.95, frame: str = "pandas") -> dict[str, Any]:
        """Answer statements, and charge the measurements that earlier runs lack.

        Parameters
        ----------
        text : str
            Statements separated by semicolons; a comment `-- name: cases` names the statement after it.
        epsilon : float
            What they would cost alone: their errors are those of a release of this budget, or smaller.
        level : float
            Probability that an interval covers its value.
        frame : {"pandas", "arrow", "polars"}

        Returns
        -------
        dict
            Rows of each statement by name, as of `Release.query`.

        Raises
        ------
        JobError, PlanError
            For a statement that cannot be answered, with its place.
        BudgetError
            If the cap refuses; nothing was read or drawn.
        DataError
            If the records differ from those of the earlier runs.

        Examples
        --------
        >>> session = dp.Session(trips, domain, "budget.sqlite", cap=(3, 1e-9), dataset="trips")
        >>> list(session.run("SELECT COUNT(*) AS n FROM t WHERE day <> '2019-03'", epsilon=1))
        ['query-1']
        """
        with self._locked():
            self._refresh()
            self._resume()
            last = self._last()
            content = self._content(self._alone(text, epsilon, last))
            if last is None:
                last = begin_run(Job.parse(content, self._folder), self._directory(1), self._fresh)
                self._finish(last)
            else:
                with self._resolved() as engine:
                    _, squared = self._missing(content, last, engine)
                if squared:
                    planned = plan_refinement(last.path, None, job=content, privacy_cost=squared)
                    last = start_refinement(planned, self._directory(self._count + 1), self._frame)
                    self._finish(last)
            found = Release.open(last.path)
        return {one.name: framed(self._rows(found, one, level), frame) for one in self._statements(text)}

    @property
    def release(self) -> Release:
        """Release of the last run, with the values of all runs.

        Raises JobError before the first run.

        Examples
        --------
        >>> session = dp.Session(trips, domain, "budget.sqlite", cap=(3, 1e-9), dataset="trips")
        >>> _ = session.run("SELECT day, COUNT(*) AS n FROM t GROUP BY day", epsilon=1)
        >>> session.release.table("day").shape
        (3, 5)
        """
        if (last := self._last()) is None:
            raise JobError("session", "no run yet", "a run of statements", "call session.run")
        return Release.open(last.path)

    @property
    def spent(self) -> dict[str, float]:
        """Epsilon and delta of all charges that count towards the cap.

        Examples
        --------
        >>> dp.Session(trips, domain, "budget.sqlite", cap=(3, 1e-9), dataset="trips").spent["epsilon"]
        0.0
        """
        figures = self._refresh()["spent"]
        return {"epsilon": figures["epsilon"], "delta": figures["delta"]}

    @property
    def remaining(self) -> float:
        """Largest epsilon, at the delta of the cap, of another run under all caps.

        Examples
        --------
        >>> dp.Session(trips, domain, "budget.sqlite", cap=(3, 1e-9), dataset="trips").remaining
        2.99999
        """
        account = self._refresh()
        with self._opened() as ledger:
            caps = [account, self._stated(ledger, "")]
        return float(min(one["remaining_epsilon"] for one in caps))

    def __repr__(self) -> str:
        who = f" for {self._analyst}" if self._analyst else ""
        left, spent = figure(self.remaining), figure(self.spent["epsilon"])
        return f"Session({self._dataset}{who}: spent epsilon {spent}, left {left} at delta {power(self._delta)})"

    def _check_cap(self, cap: Any) -> None:
        """Set the cap if the dataset has none. Raises JobError without a cap, or for another one.

        Caps of analysts are set by the owner of the ledger, and bound nothing together without one of the dataset.

        `own` states whether this session may set a cap: not one of an analyst.
        """
        pair = isinstance(cap, tuple | list) and len(cap) == len(("epsilon", "delta"))
        if cap is not None and not pair:
            raise JobError("session.cap", safe_repr(cap), "epsilon and delta", "write cap=(3, 1e-9)")
        # the default ledger may not exist yet, nor its folder
        if self._ledger == str(data_folder() / "ledger.sqlite"):
            data_folder().mkdir(parents=True, exist_ok=True)
        own = cap is not None and not self._analyst
        with self._opened(create=own) as ledger:
            if own and self._stated(ledger, "")["cap"] is None:
                epsilon, delta = cap
                ledger.set_cap(self._dataset, epsilon, delta, GDP)
        # the cap that holds now, also if another process has set it
        stated = self._refresh()["cap"]
        if cap is not None and tuple(cap) != (stated["epsilon"], stated["delta"]):
            raise JobError("session.cap", f"({cap[0]}, {cap[1]}), but {self._whose} has a cap of epsilon"
                           f" {stated['epsilon']:g} at delta {stated['delta']:g}", "that cap",
                           "leave it out, or change it by `dpscale ledger cap`")  # fmt: skip

    @property
    def _whose(self) -> str:
        return f"analyst {self._analyst!r}" if self._analyst else f"dataset {self._dataset!r}"

    def _opened(self, create: bool = False) -> PublicLedger:
        return PublicLedger.open(standing(self._ledger), create=create)

    def _refresh(self) -> dict[str, Any]:
        """Return the account that is charged, with its cap. Raises JobError without a cap that bounds all runs.

        `whole` is the account of the dataset, and `account` that of the analyst if there is one: both need a cap.
        """
        with self._opened() as ledger:
            whole = self._stated(ledger, "")
            account = self._stated(ledger, self._analyst) if self._analyst else whole
        for who, found, option in (
            (f"dataset {self._dataset!r}", whole, ""),
            (self._whose, account, " --analyst NAME"),
        ):
            if found["cap"] is None:
                remedy = f"set it by `dpscale ledger cap{option}`" if self._analyst else "write cap=(3, 1e-9)"
                raise JobError("session.cap", f"none, and the ledger has none for {who}",
                               "the epsilon and delta of all runs together", remedy)  # fmt: skip
        if not account["cap"]["delta"]:
            raise JobError("session.cap", "a cap in pure differential privacy", "a cap with a delta,"
                           " for Gaussian noise", "name another dataset, or use dp.sql")  # fmt: skip
        self._delta = float(account["cap"]["delta"])
        return account

    def _stated(self, ledger: PublicLedger, analyst: str | None) -> dict[str, Any]:
        """Return cap, spending and remaining budget of the dataset, or of an analyst.

        An analyst has an account inside that of the dataset. Without an entry on the ledger there is no cap.
        """
        found: dict[str, Any] = ledger.summary()["datasets"].get(self._dataset, {})
        if analyst:
            found = found.get("analysts", {}).get(canonical(analyst), {})
        return found or {"cap": None}

    def _alone(self, text: str, epsilon: float, last: Run | None = None) -> ReleasePlan:
        """Return the plan of statements with the budget that they would cost alone.

        Cells that the searches of an earlier run found are not searched again: `last` has them.
        Statements on distinct units are refused: they are measured apart from the rows.
        """
        found = {"domain": last.table.domain} if last is not None and last.table.domain.discovered else {}
        planned = plan_sql(text, epsilon=epsilon, delta=self._delta, mechanism=NAME, **self._arguments | found)
        if any(not part.counts_rows for part in planned.job.workload):
            raise JobError("session.run", "COUNT(DISTINCT …), whose units are measured apart",
                           "counts, sums and statistics of rows", "use dp.sql for it")  # fmt: skip
        return planned

    def _content(self, planned: ReleasePlan) -> dict[str, Any]:
        """Return the job of a plan with the data of the session."""
        return {**planned.content, "data": {**planned.content["data"], "path": self._path}}

    @contextmanager
    def _resolved(self) -> Iterator[Any]:
        """Yield an engine for the client or scheduler of the session, and close it at the end."""
        engine = resolve(self._engine["client"], self._engine["scheduler"], shown(self._progress))
        try:
            yield engine
        finally:
            engine.close()

    def _directory(self, number: int) -> Path:
        return self._folder / f"release-{number}"

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Wait until no other process runs statements in the folder.

        The lock is a file in the folder. TransientError is raised after WAIT_SECONDS.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        with file_lock(self._folder / LOCK, WAIT_SECONDS) as taken:
            if not taken:
                raise TransientError("session.folder", f"another process works in {self._folder}", "one run at a time",
                                     "call it again")  # fmt: skip
            yield

    @property
    def _count(self) -> int:
        """Number of run directories. Raises JobError if one of them is missing.

        Run directories are numbered from 1. A folder without a manifest does not count as a run.
        """
        found = sorted(int(one[1]) for path in self._folder.glob("release-*")
                       if (one := re.fullmatch(r"release-(\d+)", path.name)) and present(path / MANIFEST))  # fmt: skip
        if missing := sorted({*range(1, max(found, default=0))}.difference(found)):
            raise JobError("session.folder", f"{self._directory(missing[0])}, which is missing", "all runs of a"
                           " session", "restore it, or begin another session with folder= and fresh=True")  # fmt: skip
        return len(found)

    def _last(self) -> Run | None:
        """Return the last run that is measured."""
        for number in range(self._count, 0, -1):
            if (found := open_run(self._directory(number))).done("measure"):
                return found
        return None

    def _resume(self) -> None:
        """Bring the last run of the session, which may have been killed at any time, to an end before the next one.

        A run that was killed before its charge cost nothing and is removed; after its charge it is finished. For a run
        that is finished already, this raises DataError if it has read other data than those of the session.
        """
        if not self._count:
            return  # the session has no run yet
        last = open_run(self._directory(self._count))

        if not (last.is_charged or last.done("measure")):
            # The manifest, the file of the run's state, has no charge. The ledger may have one, if the process was
            # killed between writing the two; then `remove_run` removes nothing, and the manifest is still there.
            last.created = "folder"  # as if this process had created it, so that `remove_run` may remove the folder too
            remove_run(last)
            was_removed = not present(last.path / MANIFEST)
            if not was_removed:
                self._finish(last)  # runs the stages that are not done
            return

        enabled_stages = [stage.name for stage in last.stages.values() if stage.is_enabled(last)]
        if not all(map(last.done, enabled_stages)):
            self._finish(last)
        elif self._frame is None:
            check_repeat(last)  # compares the files
        elif self._checked != str(last.path):  # a frame is read for its hash, so it is compared once for each run
            last.table.frame = self._frame
            check_frame(last.table, **self._engine)
            self._checked = str(last.path)

    def _finish(self, opened: Run) -> None:
        """Run all stages of a run.

        A frame is checked against the domain before the stages. `hashed` lists the axes of the domain whose columns the
        frame has; it is recorded before the measurement. After an error `remove_on_error` removes a new run directory
        unless its release was charged.
        """
        check_repeat(opened)
        if self._frame is not None:
            opened.table.frame, domain = self._frame, opened.table.declared
            present_columns = set(frame_columns(self._frame))
            hashed = [name for name in domain.axis_names if present_columns.issuperset(domain.columns([name]))]
            if not opened.done("measure") and "hashed" not in opened.table.manifest:
                opened.table.update(hashed=hashed)
            check_frame(opened.table, **self._engine)
            self._checked = str(opened.path)
        with remove_on_error(opened):
            run_stages(opened, **self._engine, progress=shown(self._progress))

    def _missing(self, content: dict[str, Any], last: Run, engine: Any) -> tuple[Refinement, float]:
        """Return the run of statements at the budget that they would cost alone, and the squared μ that is missing."""
        privacy = content["privacy"]
        planned = plan_refinement(last.path, privacy["epsilon"], privacy["delta"], content)
        return planned, missing_cost(planned, engine)

    def _planned(self, squared: float, errors: Sequence[Any]) -> SessionPlan:
        epsilon = Cost(gaussian=Fraction(squared)).epsilon_or_inf(self._delta)
        return SessionPlan(squared_mu=squared, epsilon=epsilon, delta=self._delta, errors=errors)

    def _statements(self, text: str) -> Sequence[Statement]:
        return read_statements(text, dialect=str(self._arguments["dialect"]))

    def _rows(self, release: Release, statement: Statement, level: float) -> Any:
        """Return the rows of a statement from the values of all runs."""
        answered = release.answered
        selection = select(statement, answered.estimates.workload.domain, ())
        return selection_table(answered, selection, level, _no_units)


def _located(folder: Path, path: str) -> str:
    """Return the absolute path of files, or the address of a database or a store."""
    if is_database(path):
        return located_database(folder, path)
    return path if "://" in path else os.path.realpath(path)


def _no_units(names: AttributeSet) -> Figures:
    raise JobError("session.run", "COUNT(DISTINCT …)", "counts of rows", "use dp.sql for it")
