"""Charge of the parts of a run on the ledger, in an order that makes a crash harmless.

The order is: create the noise key; count and check, so that no budget is spent on invalid data; charge; draw noise and
store the values; commit on the ledger; destroy the noise key. A release is charged once, and the same key gives the
same noise. An entry of the ledger has the cost of all parts that draw under it,

    cost = sum over parts of the cost to one unit of the job,

and is reserved in one transaction before the first of them draws. Its digest is that of the job and of the terms of the
parts. Which data a part draws from is a decision of the part, which its journal records before it draws.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from dpscale.base.errors import BudgetError, DataError, JobError
from dpscale.domain import Domain
from dpscale.domain.public_totals import condition_of
from dpscale.ledger import Ledger
from dpscale.ledger.account import canonical
from dpscale.ledger.chain import CONDITION
from dpscale.ledger.location import standing
from dpscale.ledger.transfer import there
from dpscale.measurement.journal import Journal
from dpscale.privacy.accounting import Cost, float_above
from dpscale.privacy.protection import Protection
from dpscale.privacy.secret import make_secret, read_secret, secret_tag
from dpscale.records.origin import Stamps
from dpscale.runs.run import ENTRIES, Part, Run
from dpscale.runs.statement import sealed_hashes
from dpscale.storage.files import flush_names, present, read_bytes

SEARCHES, UNITS, ALLOCATION = "discovery", "units", "allocation"
ROUNDING = 1 + Fraction(1, 10**9)  # shares are floats, whose sum may exceed 1 by rounding


@dataclass(frozen=True)
class Charge:
    """Charge of an entry of the ledger.

    Attributes
    ----------
    release : str
        Release id on the ledger.
    cost : Cost
        Whole cost of the release.
    digest : str
        Digest of everything that determines the draws: the ledger refuses other draws under the same release id.
    facts : mapping of str to str
        Hashes of public files that an auditor can compute from an evidence bundle.
    periods : sequence of str
        Labels of the periods of the data that the release reads; every period if empty.
    """

    release: str
    cost: Cost
    digest: str
    facts: Mapping[str, str]
    periods: Sequence[str]


def parts_of_entry(run: Run, entry: str) -> dict[str, tuple[Cost, object]]:
    """Return cost and terms of the parts that draw under an entry of the ledger, by name."""
    charged = {name: part.charges(entry) for name, part in run.parts.items()}
    return {name: cost_and_terms for name, cost_and_terms in charged.items() if cost_and_terms is not None}


def cost_of_entry(run: Run, entry: str) -> Cost:
    """Return the cost of an entry of the ledger: the one that was charged, or that of the parts as they are planned."""
    if charged := run.manifest.get(entry):
        return Cost.from_dict(charged["cost"])
    return _total(parts_of_entry(run, entry))


def _total(parts: Mapping[str, tuple[Cost, object]]) -> Cost:
    """Return the cost of parts: that of a single part as it is, a sum rounded up because of its long fractions."""
    costs = [cost for cost, _ in parts.values()]
    return costs[0] if len(costs) == 1 else Cost.total(costs).coarsened()


def release_of_entry(run: Run, entry: str) -> str:
    """Return the release id of an entry on the ledger."""
    return f"{run.manifest['release']}{ENTRIES[entry]}"


def charge(run: Run, entry: str = "privacy", reserve: bool = True) -> str:
    """Reserve the cost of the parts of an entry and return the state of the release; a repeated call costs nothing.

    Parameters
    ----------
    run : Run
    entry : str
        Name of the entry in `ENTRIES`.
    reserve : bool
        If False, the ledger is only queried, so that a job that it refuses reads no data.

    Returns
    -------
    str
        "admitted" for a query, "reserved", "committed" or "released".

    Raises
    ------
    BudgetError
        If the ledger refuses the cost, or has another charge for the release.
    JobError
        If the manifest has a charge that is not on the ledger, or another release id than when the run was opened.

    Guarantee
    ---------
    Protected: everything that the parts of the entry draw, because `Journal` calls this function before every draw.
    Cost: the composition of the parts, in one transaction; nothing for a repeated call.
    Neighbours: those of the job, which the ledger compares with the other releases of the dataset.
    Proof: docs/privacy.md, One draw for one charge; tests/audit/test_kills.py.
    """
    if run.manifest["release"] != run.release:  # labels of noise may have the former release id already
        raise JobError("run directory", f"manifest.json in {run.path} was replaced meanwhile",
                       "one process that creates the directory", "run the command again")  # fmt: skip
    content, terms, privacy = run.content, _charge_of(run, entry), run.job.privacy
    # the statement of the release is sealed once, with its first reservation
    stated = entry == "privacy" and reserve and run.manifest.get(entry) is None
    facts = {**terms.facts, **(sealed_hashes(run, ENTRIES) if stated else {})}
    for part in run.parts.values():
        part.check_charge(entry)
    with open_ledger(run) as ledger:
        state = ledger.charge(
            run.job.dataset,
            terms.release,
            terms.cost,
            terms.digest,
            privacy.epsilon,
            privacy.delta,
            reserve,
            content.protects,
            public=run.job.engine.seed is not None,
            facts=facts,
            periods=terms.periods,
            job=run.job_entry,
            analyst=privacy.analyst or "",
        )
        if reserve:
            record_ledger_link(run, ledger, terms.release)

    # a query found room for a release that the run has already charged
    if state == "admitted" and run.manifest.get(entry) is not None:
        raise JobError("run directory", f"manifest.json in {run.path} has a charge that is not on the ledger",
                       "the file as the run wrote it", "restore it, or start a new run")  # fmt: skip
    if reserve and run.manifest.get(entry) is None:
        run.update(**{entry: _recorded(run, terms)})
    return str(state)


def _charge_of(run: Run, entry: str) -> Charge:
    """Return the charge of an entry of the ledger, for all parts of the run that it pays for.

    Its digest identifies job, entry and the terms of every part (mechanism and noise), so that a changed charge is
    noticed. The division of a budget is charged before there are plans, so its facts are only those of the domains.
    """
    parts = parts_of_entry(run, entry)
    terms = [run.manifest["job_sha256"], entry, {name: terms for name, (_, terms) in parts.items()}]
    digest = hashlib.sha256(json.dumps(terms, sort_keys=True).encode()).hexdigest()
    facts = _public_hashes(run) if entry != ALLOCATION else facts_of_totals(run.content.declared_domains)
    return Charge(
        release=release_of_entry(run, entry),
        cost=_total(parts),
        digest=digest,
        facts=facts,
        periods=run.content.periods,
    )


def _recorded(run: Run, terms: Charge) -> dict[str, Any]:
    """Return the entry of the manifest for a charge.

    `terms` has the release id of the entry and its cost. `budget` is the squared μ of the whole job, as a fraction.
    """
    protects, privacy = run.content.protects, run.job.privacy
    return {
        "dataset": run.job.dataset,
        "release": terms.release,
        "cost": terms.cost.to_dict(),
        "budget": str(Fraction(run.content.amount)),
        "epsilon": privacy.epsilon,
        "delta": privacy.delta,
        **protection_fields(protects),
    }


def protection_fields(protects: Protection) -> dict[str, Any]:
    """Return a privacy unit as the content of a manifest."""
    fields = {"unit": protects.unit, "relation": protects.relation, "bound": protects.bound, "table": protects.table}
    return fields | ({"span": protects.span} if protects.span else {})


def facts_of_totals(domains: Iterable[Domain]) -> dict[str, str]:
    """Return the condition of the guarantee of tables as a fact of their charge; empty without one."""
    condition = condition_of(total for domain in domains for total in domain.public_totals)
    return {CONDITION: condition} if condition else {}


def _public_hashes(run: Run) -> dict[str, str]:
    """Return hashes of the domain file and the plan, and the condition of the guarantee if totals are public.

    Runs of several tables have no single domain file, so no hashes. An auditor can compute them from an evidence
    bundle.
    """
    totals = facts_of_totals(table.domain for table in run.tables.values())
    if (file := run.content.domain_file) is None:
        return totals
    cache = vars(run).setdefault("sha256", {})  # files do not change: each is hashed once
    if file not in cache:
        cache[file] = hashlib.sha256(read_bytes(run.path / file)).hexdigest()
    plan = run.manifest["stages"].get("plan", {}).get("sha256")
    return {"domain": cache[file]} | ({"plan": plan} if plan else {}) | totals


def check_total(run: Run, cost: Cost, amount: float) -> None:
    """Raise BudgetError for a cost above the squared mu `amount`, or above the epsilon of the job at its delta.

    ROUNDING is a factor slightly above 1, for rounded shares. The second check applies only to parts with an additive
    delta.
    """
    if cost.squared_mu > Fraction(amount) * ROUNDING:
        raise BudgetError("privacy", f"parts that cost {float(cost.squared_mu):.6g} in total",
                          f"at most the budget of the job, {amount:.6g}", "lower their shares")  # fmt: skip
    epsilon, delta = run.job.privacy.epsilon, run.job.privacy.delta or 0.0
    if cost.delta and epsilon is not None and cost.epsilon_or_inf(delta) > epsilon * ROUNDING:
        raise BudgetError("privacy.delta", f"parts with additive delta {float_above(cost.delta):.6g} in total",
                          "a total cost within the epsilon of the job at its delta",
                          "lower their additive delta or their shares")  # fmt: skip


def journal_of(part: Part, entry: str = "privacy") -> Journal:
    """Return the journal of the draws of a part under an entry of the ledger."""
    run = part.run
    return Journal(
        part=part.name,
        release=release_of_entry(run, entry),
        charge=lambda: charge(run, entry),
        open_ledger=lambda: open_ledger(run),
    )


def ensure_noise_key(owner: Run | Part) -> None:
    """Create the noise key before the first draw.

    The manifest records that the key exists and its public tag, but never the key.
    """
    if owner.manifest["secret"] is None:
        run = owner.run if isinstance(owner, Part) else owner
        make_secret(owner.secret_path, run.job.engine.seed)
        owner.update(secret="made", secret_tag=secret_tag(read_secret(owner.secret_path)))


def check_unchanged(run: Run, before: list[Stamps]) -> None:
    """Raise DataError if a file changed since its stamps were taken."""
    if run.content.file_stamps() != before:
        raise DataError("data.path", "the files changed while they were read", "the same files",
                        "restore them, or start a new run in another directory")  # fmt: skip


def publish_entry(run: Run, entry: str) -> None:
    """Commit and publish an entry whose values are on disk; the noise key stays for later parts.

    `entry` names a part of the run with its own charge. The states of a release on the ledger are reserved, committed,
    released; each step happens once.
    """
    state, release = charge(run, entry), release_of_entry(run, entry)
    with open_ledger(run) as ledger:
        if state == "reserved":
            ledger.commit(release)
        if state != "released":
            ledger.publish(release)


def publish(run: Run) -> None:
    """Commit the release on the ledger, destroy the noise key and publish the release, once all noise is drawn.

    Folders with drawn values are flushed first: a power cut must not lose values that cannot be drawn again.
    """
    state, release = charge(run), release_of_entry(run, "privacy")
    with open_ledger(run) as ledger:
        if state == "reserved":
            ledger.commit(release)
        flush_drawn(run)
        run.destroy_key()
        for part in run.parts.values():
            part.destroy_keys()
        if state != "released":
            ledger.publish(release)


def flush_drawn(run: Run) -> None:
    """Flush the folders with drawn values.

    `drawn_folders` of a part are those that have drawn values; values must be on disk before the ledger publishes them.
    """
    folders: list[Path] = [folder for part in run.parts.values() for folder in part.drawn_folders]
    for folder in (*dict.fromkeys(folders), run.path):
        if present(folder):
            flush_names(folder)


def check_ledger_exists(run: Run) -> None:
    """Raise BudgetError if the ledger with which the run began does not exist."""
    place = standing(run.job.privacy.ledger)
    if not there(place):
        raise BudgetError("privacy.ledger", f"{place} no longer exists", "the ledger with which this run started",
                          f"restore it from a copy, or end the run: `dpscale job end {run.path}`")  # fmt: skip


@contextmanager
def open_ledger(run: Run) -> Iterator[Ledger]:
    """Yield the ledger of the run.

    The first ledger that the run opens is created if it is missing, and recorded; any other one is refused later, for
    example that of another machine.
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
    """Raise BudgetError if the ledger lost the entry of a charged run."""
    if link := run.manifest.get("ledger_link"):
        ledger.check_contains(link["release"], link["digest"])


def account_of(job: Any) -> Mapping[str, Any] | None:
    """Return what the ledger of a job states about its dataset; None if it has no entry of the dataset.

    The release of a job that is finished may be charged on another ledger: its file was moved or removed.
    """
    if not there(standing(job.privacy.ledger)):
        return None
    with Ledger.open(job.privacy.ledger, create=False) as ledger:
        found: Mapping[str, Any] | None = ledger.summary()["datasets"].get(canonical(job.dataset))
    return found
