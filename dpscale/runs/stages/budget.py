"""Noise key and ledger entries of a measure stage, in an order that makes a crash harmless.

The order is: create the noise key; count and check, so that no budget is spent on invalid data; charge; draw noise and
store the values; commit on the ledger; destroy the noise key. A release is charged once, and the same key gives the
same noise.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

from dpscale.base.errors import BudgetError
from dpscale.domain import Domain
from dpscale.domain.public_totals import condition_of
from dpscale.job.allocation import FILE as DIVISION_FILE
from dpscale.ledger import Ledger
from dpscale.ledger.chain import CONDITION
from dpscale.ledger.job_entry import JobEntry
from dpscale.ledger.location import standing
from dpscale.ledger.transfer import there
from dpscale.measurement import MeasurementStore
from dpscale.privacy.accounting import Cost
from dpscale.privacy.protection import Protection
from dpscale.privacy.secret import destroy_secret, make_secret, read_secret, secret_tag
from dpscale.runs.directory import Run
from dpscale.runs.table import TableRun
from dpscale.storage.files import flush_names, read_bytes, remove_partial

ROUNDS_PER_TABLE = 1 << 20  # the rounds of each table of a multi-table run start at a multiple of it
DIVISION = 1 << 22  # number of the division of the budget on the ledger
SEARCHES, UNITS, ALLOCATION = "discovery", "units", "allocation"
# parts with an entry of their own, and the ends of their release ids
PARTS = {SEARCHES: "domain", UNITS: "units", ALLOCATION: "allocation"}


def ensure_noise_key(run: Run) -> None:
    """Create the noise key before the first draw; raise JobError if it is missing later."""
    if run.manifest["secret"] is None:
        make_secret(run.secret_path, run.job.engine.seed)
        run.update(secret="made", secret_tag=secret_tag(read_secret(run.secret_path)))


def check_noise_key(run: TableRun) -> None:
    """Raise JobError unless the noise key of the release exists."""
    run.secret.read()


@dataclass(frozen=True)
class Charge:
    """Charge of a release on the ledger.

    Attributes
    ----------
    release : str
        Release id on the ledger.
    cost : Cost
        Whole cost of the release.
    digest : str
        Digest of everything that determines the draws: the ledger refuses other draws under the same release id.
    epsilon, delta : float or None
        Figures of the job, for display.
    protects : Protection
    facts : mapping of str to str
        Hashes of public files that an auditor can compute from an evidence bundle.
    decision : tuple of int and str, or None
        Number and digest of the draws of one part, if the charge covers several.
    periods : sequence of str
        Labels of the periods of the data that the release reads; every period if empty.
    job : JobEntry, optional
        Job of the release; by default that of the run.
    """

    release: str
    cost: Cost
    digest: str
    epsilon: float | None
    delta: float | None
    protects: Protection
    facts: Mapping[str, str] = field(default_factory=dict)
    decision: tuple[int, str] | None = None
    periods: Sequence[str] = ()
    job: JobEntry | None = None


def check_recorded_division(run: Run) -> None:
    """Raise BudgetError if the division of the budget differs from the one that the ledger has."""
    with open_ledger(run) as ledger:
        if ledger.is_decided(release := part_release(run, ALLOCATION), DIVISION):
            ledger.decide(release, DIVISION, hashlib.sha256(read_bytes(run.path / DIVISION_FILE)).hexdigest())


def is_charged(run: Run) -> bool:
    """Return whether the run or a part of it was charged."""
    return any(run.manifest.get(name) for name in ("privacy", *PARTS))


def part_release(run: Run, part: str) -> str:
    """Return the release id of a part of a run on the ledger, or of the part of several tables that it belongs to."""
    within = common_charge(run, part)
    return str(within["release"]) if within else f"{run.manifest['release']}-{PARTS[part]}"


def common_charge(run: Run, part: str) -> dict[str, Any] | None:
    """Return the charge of several tables to which a part of a table's run belongs; None if there is none."""
    found: dict[str, Any] | None = run.manifest.get("within_parts", {}).get(part)
    return found


def charge_release(run: Run, charge: Charge, entry: dict[str, Any], reserve: bool = True, name: str = "privacy") -> str:
    """Reserve the whole cost before the first draw and return the release's state; a repeated charge costs nothing.

    Parameters
    ----------
    run : Run
    charge : Charge
    entry : dict
        Content of the entry of the manifest for the charge.
    reserve : bool
        If False, the ledger is only queried, so that a job that it refuses reads no data.
    name : str
        Name of the entry of the manifest.
    """
    with open_ledger(run) as ledger:
        state = ledger.charge(
            run.job.dataset,
            charge.release,
            charge.cost,
            charge.digest,
            charge.epsilon,
            charge.delta,
            reserve,
            charge.protects,
            public=run.job.engine.seed is not None,
            facts=charge.facts,
            periods=charge.periods,
            job=run.job_entry if charge.job is None else charge.job,
        )
        if reserve:
            if charge.decision is not None:
                ledger.decide(charge.release, *charge.decision)
            record_ledger_link(run, ledger, charge.release)
    if reserve:
        run.update(**{name: entry})
    return state


@dataclass(frozen=True)
class PartRelease:
    """Release of a part of a run that has its own entry on the ledger: the searches, or the numbers of units.

    The noise key stays after its end, because the table is measured with it later.

    Attributes
    ----------
    run : TableRun
    name : str
        Name of the part in PARTS, and of its entry in the manifest.
    cost : Cost
        Whole cost of the part.
    records : list of mapping
        Everything that determines the draws besides data, domain and job.
    domain : str
        Digest of the domain in which the part is counted.
    snapshot : str
        Tag of the data.
    details : mapping
        Further content of the entry of the manifest.
    """

    run: TableRun
    name: str
    cost: Cost
    records: list[dict[str, Any]]
    domain: str
    snapshot: str
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def release(self) -> str:
        """Release id on the ledger."""
        return part_release(self.run, self.name)

    def query(self) -> None:
        """Raise JobError without the noise key, and BudgetError if the ledger would refuse the charge."""
        check_noise_key(self.run)
        self._charge(reserve=False)

    def charge(self) -> str:
        """Reserve the whole cost and return the state of the release; a repeated charge costs nothing."""
        state = self._charge(reserve=True)
        if state == "admitted":
            raise BudgetError("privacy.ledger", "the charge was not recorded", "a writable ledger",
                              "run again to resume")  # fmt: skip
        return state

    def _charge(self, reserve: bool) -> str:
        manifest, job = self.run.manifest, self.run.job
        content = [self.records, self.domain, self.snapshot, manifest["secret_tag"], self.release,
                   manifest["job_sha256"]]  # fmt: skip
        digest, privacy = hashlib.sha256(json.dumps(content).encode()).hexdigest(), job.privacy
        if within := common_charge(self.run, self.name):
            terms = _charge_within(within, digest)
        else:
            terms = Charge(self.release, self.cost, digest, privacy.epsilon, privacy.delta, job.data.protects,
                           public_hashes(self.run))  # fmt: skip
        entry = {"dataset": job.dataset, "cost": self.cost.to_dict(), **self.details}
        return charge_release(self.run, terms, entry, reserve, self.name)

    def record_result(self, digest: str) -> None:
        """Record the digest of the result; raise BudgetError if another copy of the run found something else."""
        within = common_charge(self.run, self.name)
        number = (within["piece"] + 1) * ROUNDS_PER_TABLE if within else 0  # lower ones are of the draws of a table
        with open_ledger(self.run) as ledger:
            ledger.decide(self.release, number, digest)

    def publish(self) -> None:
        """Commit and publish the release, whose values are on disk; several tables are published together."""
        if common_charge(self.run, self.name) is None:
            publish_part(self.run, self.release, self.charge())


def publish_part(run: Run, release: str, state: str) -> None:
    """Commit and publish the release of a part, whose values are on disk; the noise key stays."""
    with open_ledger(run) as ledger:
        if state == "reserved":
            ledger.commit(release)
        if state != "released":
            ledger.publish(release)


def _charge_within(within: Mapping[str, Any], drawn: str) -> Charge:
    """Return the charge of several tables, with the digest of the draws of one of them."""
    terms = within["release"], Cost.from_dict(within["cost"]), within["digest"], within["epsilon"], within["delta"]
    return Charge(*terms, Protection(**within["protects"]), within.get("facts", {}), (within["piece"], drawn),
                  within.get("periods", ()), JobEntry(**within.get("job", {})))  # fmt: skip


def charge(run: TableRun, measurements: MeasurementStore, reserve: bool = True) -> str:
    """Charge the release of a table, or the release of several tables that it belongs to; see `charge_release`."""
    drawn, earlier = _draw_digests(run, measurements)
    entry = _cost_entry(run, measurements.spent)
    try:
        return charge_release(run, _charge_of(run, measurements, drawn), entry, reserve)
    except BudgetError:
        with suppress(BudgetError):  # a version before 0.2 charged the run
            return charge_release(run, _charge_of(run, measurements, earlier), entry, reserve)
        raise


def _charge_of(run: TableRun, measurements: MeasurementStore, drawn: str) -> Charge:
    within, privacy = run.manifest.get("within"), run.job.privacy
    if within:
        return _charge_within(within, drawn)
    return Charge(measurements.release, measurements.spent, drawn, privacy.epsilon, privacy.delta,
                  run.job.data.protects, public_hashes(run))  # fmt: skip


def record_decision(run: TableRun, release: str, number: int, digest: str) -> None:
    """Record the decision of a round on the ledger before it is measured.

    Raises BudgetError if another copy of the directory recorded a different decision.
    """
    if parent := run.manifest.get("within"):
        release, number = parent["release"], (parent["piece"] + 1) * ROUNDS_PER_TABLE + number
    with open_ledger(run) as ledger:
        ledger.decide(release, number, digest)


def record_empty_decisions(run: TableRun, measurements: MeasurementStore) -> None:
    """Record again the rounds that measure nothing, because no released value shows that the ledger contains them."""
    for decision in measurements.decisions():
        if decision.round and not decision.requests:
            record_decision(run, measurements.release, decision.round, measurements.digest(decision))


def publish(run: TableRun, measurements: MeasurementStore) -> None:
    """Commit the release on the ledger, destroy the noise key and publish the release, once all noise is drawn."""
    state = charge(run, measurements)
    if state == "reserved":
        record_empty_decisions(run, measurements)
    remove_partial(run.measurements_path)
    single = not run.manifest.get("within")
    publish_release(run, measurements.release if single else None, state, (run.measurements_path, run.path))


def publish_release(run: Run, release: str | None, state: str, folders: Sequence[Path]) -> None:
    """Commit a release whose noise is drawn, destroy the noise key and publish the release.

    Parameters
    ----------
    run : Run
    release : str or None
        None for a part of a release, which is committed and published with the others.
    state : str
        State of the release on the ledger.
    folders : sequence of Path
        Folders with drawn values; a power cut must not lose values that cannot be drawn again.
    """
    with open_ledger(run) as ledger:
        if release is not None and state == "reserved":
            ledger.commit(release)
        for folder in folders:
            flush_names(folder)
        destroy_secret(run.secret_path)
        run.update(secret="destroyed")
        if release is not None and state != "released":
            ledger.publish(release)


def check_ledger_exists(run: Run) -> None:
    """Raise BudgetError if the ledger with which the run began does not exist."""
    place = standing(run.job.privacy.ledger)
    if not there(place):
        raise BudgetError("privacy.ledger", f"{place} no longer exists", "the ledger with which this run started",
                          f"restore it from a copy, or end the run: `dpscale job end {run.path}`")  # fmt: skip


@contextmanager
def open_ledger(run: Run) -> Iterator[Ledger]:
    """Yield the ledger of the run.

    The first ledger that the run opens is recorded; any other one is refused later, for example that of another
    machine.
    """
    place, recorded = standing(run.job.privacy.ledger), run.manifest.get("ledger")
    if recorded is not None:
        check_ledger_exists(run)
    with Ledger.open(place, create=recorded is None) as ledger:
        if recorded is None:
            run.update(ledger=ledger.name)
        elif recorded != ledger.name:
            raise BudgetError("privacy.ledger", f"{place} is not the ledger with which this run started",
                              "the ledger of the run, on its machine", "run it there, or start a new run")  # fmt: skip
        check_ledger_link(run, ledger)
        yield ledger


def record_ledger_link(run: Run, ledger: Ledger, release: str) -> None:
    """Record the release's entry in the hash chain of the ledger; it reveals a ledger that has lost the entry."""
    link = {"release": release, "digest": ledger.digest_of(release)}
    if run.manifest.get("ledger_link") != link:
        run.update(ledger_link=link)


def check_ledger_link(run: Run, ledger: Ledger) -> None:
    """Raise BudgetError if the ledger lost the entry of a charged run. Older runs have not recorded it."""
    if link := run.manifest.get("ledger_link"):
        ledger.check_contains(link["release"], link["digest"])


def _draw_digests(run: TableRun, measurements: MeasurementStore) -> tuple[str, str]:
    """Return a digest of everything that determines the draws, and the one of versions before 0.2.

    With it the ledger refuses a second draw under the same release id, for example from a copy of the run directory.
    Plan, domain, data, noise, noise key and release id determine the noise; the job also determines the counts that it
    is added to, for example by a filter or the privacy unit: the same noise on other counts would reveal their
    difference. The earlier digest lacks release id and job.
    """
    content = [
        run.measurement_plan.digest,
        run.domain.digest,
        measurements.snapshot,
        measurements.measurement_plan.noise_spec,
        run.manifest["secret_tag"],
    ]
    own = [*content, measurements.release, run.manifest["job_sha256"]]
    own += [run.record_weights.weights] if run.record_weights else []
    drawn, earlier = (hashlib.sha256(json.dumps(one).encode()).hexdigest() for one in (own, content))
    return drawn, earlier


def facts_of_totals(domains: Iterable[Domain]) -> dict[str, str]:
    """Return the condition of the guarantee of tables as a fact of their charge; empty without one."""
    condition = condition_of(one for domain in domains for one in domain.public_totals)
    return {CONDITION: condition} if condition else {}


def public_hashes(run: Any) -> dict[str, str]:
    """Return hashes of public files that the charge depends on, and the condition of the guarantee if it has one.

    An auditor can compute them from an evidence bundle.

    Parameters
    ----------
    run : TableRun or StreamRun
    """
    plan = run.manifest["stages"].get("plan", {}).get("sha256")
    recorded, file = vars(run).setdefault("sha256", {}), run.domain_file  # a file does not change: it is hashed once
    if file not in recorded:
        recorded[file] = hashlib.sha256(read_bytes(run.path / file)).hexdigest()
    domain = recorded[file]
    return {"domain": domain} | ({"plan": plan} if plan else {}) | facts_of_totals([run.domain])


def _cost_entry(run: TableRun, cost: Cost) -> dict[str, Any]:
    """Return the manifest entry of the cost."""
    return {
        "dataset": run.job.dataset,
        "cost": cost.to_dict(),
        "budget": str(Fraction(run.planning_problem.budget.amount)),
        "epsilon": run.job.privacy.epsilon,
        "delta": run.job.privacy.delta,
        "unit": run.job.data.unit_column or "row",
        "relation": run.job.data.protects.relation,
        "rows_per_unit": run.job.data.protects.bound,
    }
