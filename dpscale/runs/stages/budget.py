"""Noise key and ledger entries of a measure stage, in an order that makes a crash harmless.

The order is: create the noise key; count and check, so that no budget is spent on invalid data; charge; draw noise and
store the values; commit on the ledger; destroy the noise key. A release is charged once, and the same key gives the
same noise.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import Any

from dpscale.base.errors import BudgetError
from dpscale.ledger import Ledger
from dpscale.ledger.location import standing
from dpscale.ledger.transfer import there
from dpscale.measurement import MeasurementStore
from dpscale.privacy.accounting import Cost
from dpscale.privacy.protection import Protection
from dpscale.privacy.secret import destroy_secret, make_secret, read_secret, secret_tag
from dpscale.runs.directory import RunDirectory
from dpscale.runs.run import Run
from dpscale.storage.files import flush_names, read_bytes, remove_partial

ROUNDS_PER_TABLE = 1 << 20  # the rounds of each table of a multi-table run start at a multiple of it


def ensure_noise_key(run: RunDirectory) -> None:
    """Create the noise key before the first draw; raise JobError if it is missing later."""
    if run.manifest["secret"] is None:
        make_secret(run.secret_path, run.job.engine.seed)
        run.update(secret="made", secret_tag=secret_tag(read_secret(run.secret_path)))


def check_noise_key(run: Run) -> None:
    """Raise JobError unless the noise key of the release exists."""
    run.secret.read()


def charge(run: Run, measurements: MeasurementStore, reserve: bool = True) -> str:
    """Reserve the whole cost before the first draw and return the release's state; a repeated charge costs nothing.

    With `reserve` False the ledger is only queried, so that a job that it refuses reads no data.
    """
    privacy, draw_digest = run.job.privacy, _draw_digest(run, measurements)
    if run.manifest.get("within"):
        return _charge_multitable(run, measurements, draw_digest, reserve)
    with open_ledger(run) as ledger:
        state = ledger.charge(
            run.job.dataset,
            measurements.release,
            measurements.spent,
            draw_digest,
            privacy.epsilon,
            privacy.delta,
            reserve,
            run.job.data.protects,
            public=run.job.engine.seed is not None,
            facts=_public_hashes(run),
        )
        if reserve:
            record_ledger_link(run, ledger, measurements.release)
    if reserve:
        run.update(privacy=_cost_entry(run, measurements.spent))
    return state


def _charge_multitable(run: Run, measurements: MeasurementStore, draw_digest: str, reserve: bool) -> str:
    """Charge the cost of all tables under the release of a multi-table run, and record the draws of this table."""
    parent = run.manifest["within"]
    terms = (Cost.from_dict(parent["cost"]), parent["digest"], parent["epsilon"], parent["delta"], reserve)
    with open_ledger(run) as ledger:
        state = ledger.charge(run.job.dataset, parent["release"], *terms, Protection(**parent["protects"]),
                              public=run.job.engine.seed is not None)  # fmt: skip
        if reserve:
            ledger.decide(parent["release"], parent["piece"], draw_digest)
            record_ledger_link(run, ledger, parent["release"])
    if reserve:
        run.update(privacy=_cost_entry(run, measurements.spent))
    return state


def record_decision(run: Run, release: str, number: int, digest: str) -> None:
    """Record the decision of a round on the ledger before it is measured.

    Raises BudgetError if another copy of the directory recorded a different decision.
    """
    if parent := run.manifest.get("within"):
        release, number = parent["release"], (parent["piece"] + 1) * ROUNDS_PER_TABLE + number
    with open_ledger(run) as ledger:
        ledger.decide(release, number, digest)


def record_empty_decisions(run: Run, measurements: MeasurementStore) -> None:
    """Record again the rounds that measure nothing, because no released value shows that the ledger contains them."""
    for decision in measurements.decisions():
        if decision.round and not decision.requests:
            record_decision(run, measurements.release, decision.round, measurements.digest(decision))


def publish(run: Run, measurements: MeasurementStore) -> None:
    """Commit the release on the ledger, destroy the noise key and publish the release, once all noise is drawn."""
    state, is_single = charge(run, measurements), not run.manifest.get("within")
    if state == "reserved":
        record_empty_decisions(run, measurements)
    with open_ledger(run) as ledger:
        if is_single and state == "reserved":
            ledger.commit(measurements.release)
        remove_partial(run.measurements_path)
        for folder in (run.measurements_path, run.path):
            flush_names(folder)  # a power cut must not lose values that cannot be drawn again
        destroy_secret(run.secret_path)
        run.update(secret="destroyed")
        if is_single and state != "released":
            ledger.publish(measurements.release)


def check_ledger_exists(run: RunDirectory) -> None:
    """Raise BudgetError if the ledger with which the run began does not exist."""
    place = standing(run.job.privacy.ledger)
    if not there(place):
        raise BudgetError("privacy.ledger", f"{place} no longer exists", "the ledger with which this run started",
                          f"restore it from a copy, or end the run: `dpscale end {run.path}`")  # fmt: skip


@contextmanager
def open_ledger(run: RunDirectory) -> Iterator[Ledger]:
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


def record_ledger_link(run: RunDirectory, ledger: Ledger, release: str) -> None:
    """Record the release's entry in the hash chain of the ledger; it reveals a ledger that has lost the entry."""
    link = {"release": release, "digest": ledger.digest_of(release)}
    if run.manifest.get("ledger_link") != link:
        run.update(ledger_link=link)


def check_ledger_link(run: RunDirectory, ledger: Ledger) -> None:
    """Raise BudgetError if the ledger lost the entry of a charged run. Older runs have not recorded it."""
    if link := run.manifest.get("ledger_link"):
        ledger.check_contains(link["release"], link["digest"])


def _draw_digest(run: Run, measurements: MeasurementStore) -> str:
    """Return a digest of everything that determines the draws: plan, domain, data, noise and noise key.

    With it the ledger refuses a second draw under the same release id, for example from a copy of the run directory.
    """
    content = [
        run.measurement_plan.digest,
        run.domain.digest,
        measurements.snapshot,
        measurements.measurement_plan.noise_spec,
        run.manifest["secret_tag"],
    ]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _public_hashes(run: Run) -> dict[str, str]:
    """Return hashes of public files that the charge depends on; an auditor can compute them from an evidence bundle."""
    plan = run.manifest["stages"].get("plan", {}).get("sha256")
    recorded = vars(run)  # the file does not change, so it is hashed once
    if "domain_sha256" not in recorded:
        recorded["domain_sha256"] = hashlib.sha256(read_bytes(run.path / "domain.toml")).hexdigest()
    domain = recorded["domain_sha256"]
    return {"domain": domain, **({"plan": plan} if plan else {})}


def _cost_entry(run: Run, cost: Cost) -> dict[str, Any]:
    """Return the manifest entry of the cost."""
    return {
        "dataset": run.job.dataset,
        "cost": cost.to_dict(),
        "budget": str(Fraction(run.planning_problem.budget.amount)),
        "epsilon": run.job.privacy.epsilon,
        "delta": run.job.privacy.delta,
        "unit": run.job.data.privacy_unit or "row",
        "relation": run.job.data.protects.relation,
        "rows_per_unit": run.job.data.protects.bound,
    }
