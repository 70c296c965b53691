"""The stages of a run: plan, measure, reconstruct, report. Each takes a run directory, and is done at most once.

The measure stage is the only one that spends. Its order is what keeps a crash harmless: count and check (nothing is
spent on bad data), charge the ledger, draw, store, destroy the secret. Everything after the charge can be repeated: the
same release charges once, and the same secret draws the same noise.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any

from dpscale.domain import Domain
from dpscale.engine import Engine
from dpscale.engine.bounding import rows_beyond
from dpscale.engine.counting import FACTOR, Pass, partition_groups, plan_passes, run_pass
from dpscale.errors import DataError, JobError, PlanError
from dpscale.jobs.planfile import write_plan
from dpscale.jobs.rundir import RunDirectory
from dpscale.jobs.spec import Job
from dpscale.measure import Measurements, Order, carry_out, make_orders, make_schedule
from dpscale.measure.tags import secret_tag, snapshot_tag
from dpscale.privacy.accounting import Cost
from dpscale.privacy.ledger import Ledger
from dpscale.privacy.secret import destroy_secret, make_secret, read_secret
from dpscale.select import Plan, Setting, choose, user_store
from dpscale.tables import Table
from dpscale.tables.count import Attributes, Dropped, empty_table
from dpscale.tables.snapshot import Stamps, snapshot, stamps
from dpscale.tables.table import row_bound

STAGES = ("plan", "measure", "reconstruct", "report")


def run_plan(run: RunDirectory, engine: Engine) -> None:
    """Choose the strategy; reads no data, spends nothing."""
    if run.done("plan"):
        return
    with run.stage("plan", "plan"):
        made = make_plan(run.job, run.domain, engine)
        write_plan(run.path / "plan", made)


def make_plan(job: Job, domain: Domain, engine: Engine) -> Plan:
    """The plan of a job, refused where it cannot fit the memory setting."""
    most = job.engine.bytes // (8 * (engine.workers + FACTOR))
    setting = Setting(engine.each("solve"), job.mechanism.options, user_store(), job.privacy.noise, most)
    made = choose(job.build_workload(domain), job.mechanism.name, setting)
    check_memory(made, job.engine.bytes, engine.workers)
    return made


def check_memory(made: Plan, memory: int, workers: int) -> None:
    """PlanError when the largest attribute set does not fit the memory setting."""
    needed = 8 * (workers + FACTOR) * made.domain.cells(made.largest)
    if needed > memory:
        raise PlanError(
            "engine.memory",
            f"{', '.join(made.largest)} needs {needed / 2**30:.2f} GiB with {workers} workers",
            f"more than the {memory / 2**30:.2f} GiB set",
            "raise it, use fewer workers, or leave the set out",
        )


def run_measure(run: RunDirectory, engine: Engine) -> None:
    """Count, charge, draw, store: the only stage that sees records and spends budget."""
    run.require("plan")
    if run.done("measure"):
        return
    check_memory(made := run.plan(), run.job.engine.bytes, engine.workers)
    with run.stage("measure", "measurements"):
        run.measurements_path.mkdir(exist_ok=True)
        table = _open_table(run, made)
        _hold_secret(run)
        seen = stamps(table)
        measurements = _measurements(run, made, _snapshot(run, table, engine))
        _measure_missing(run, engine, table, measurements, seen)
        _publish(run, measurements)


def _publish(run: RunDirectory, measurements: Measurements) -> None:
    """All noise is drawn: say so on the ledger, destroy the secret, and call the release out."""
    release, state = measurements.release, _charge(run, measurements)
    with Ledger.open(run.job.privacy.ledger) as ledger:
        if state == "reserved":
            ledger.commit(release)
        destroy_secret(run.secret_path)
        run.update(secret="destroyed")
        if state != "released":
            ledger.publish(release)


def measured(run: RunDirectory) -> Measurements:
    """The measurements of a run whose measure stage is done."""
    run.require("measure")
    return _measurements(run, run.plan(), run.manifest["snapshot"])


def _measurements(run: RunDirectory, made: Plan, snapshot_id: str) -> Measurements:
    bound = run.job.data.max_rows_per_unit or 1
    if made.noise != run.job.privacy.noise:
        raise JobError("run directory", "its plan has another noise than its job asks for", "the plan as it was made",
                       "start a new run")  # fmt: skip
    schedule = make_schedule(made, run.job.privacy.budget, bound)
    return Measurements(run.measurements_path, run.manifest["release"], snapshot_id, made, schedule)


def _open_table(run: RunDirectory, made: Plan) -> Table:
    table = Table.open(run.job.data.path, run.domain).split()
    unit = run.job.data.privacy_unit
    table.require([*_columns(made), *([unit] if unit else [])])
    return table


def _columns(made: Plan) -> list[str]:
    """The attributes that are measured: the only columns that are read."""
    used = {name for attributes in made.counted for name in attributes} or {made.domain.names[0]}
    return [name for name in made.domain.names if name in used]


def _snapshot(run: RunDirectory, table: Table, engine: Engine) -> str:
    """The snapshot's name under the secret; DataError when the data changed since the release was begun.

    Where the secret is destroyed nothing can be drawn any more, and the data need not be read again.
    """
    begun = run.manifest["snapshot"]
    if begun is not None and not _holds_secret(run):
        return str(begun)
    found = snapshot(table, run.job.data.snapshot == "footers", engine.each("snapshot"))
    found = snapshot_tag(read_secret(run.secret_path), found)
    if begun is None:
        run.update(snapshot=found)
    elif begun != found:
        raise _changed("the files changed since this release was begun")
    return found


def _changed(got: str) -> DataError:
    return DataError("data.path", got, "the same files", "restore them, or start a new run")


def _hold_secret(run: RunDirectory) -> None:
    """Make the secret at the first draw; later it must be there."""
    if run.manifest["secret"] is None:
        make_secret(run.secret_path, run.job.engine.seed)
        run.update(secret="made", secret_tag=secret_tag(read_secret(run.secret_path)))


def _holds_secret(run: RunDirectory) -> bool:
    """Whether the secret is there and is the one that the release began with; another would draw its noise afresh."""
    return run.secret_path.exists() and secret_tag(read_secret(run.secret_path)) == run.manifest["secret_tag"]


def _check_secret(run: RunDirectory) -> None:
    """JobError unless the secret of the release is there."""
    read_secret(run.secret_path)
    if not _holds_secret(run):
        raise JobError("run directory", "its secret is not the one that the release began with",
                       "the directory as the run left it", "start a new run, which is a new release")  # fmt: skip


def _measure_missing(run: RunDirectory, engine: Engine, table: Table, measurements: Measurements, seen: Stamps) -> None:
    missing = measurements.missing()
    if not missing:
        return
    _check_secret(run)
    _charge(run, measurements, reserve=False)
    orders = make_orders(measurements, missing)
    groups = partition_groups(table.partitions, engine.workers)
    dropped = _dropped(run, engine, table, groups, _columns(measurements.plan))
    sets = list(dict.fromkeys(order.source for order in orders))
    for number, one in enumerate(plan_passes(run.domain, sets, run.job.engine.bytes, engine.workers)):
        handles = run_pass(engine, one, groups, [] if number else _columns(measurements.plan), dropped)
        if stamps(table) != seen:
            raise _changed("the files changed while they were read")
        if number == 0:
            if not any(engine.map(_any_row, [(handles[0],)], "check")):
                raise empty_table(run.job.data.path)
            _charge(run, measurements)
        _measure_pass(run, engine, one, orders, handles)


def _any_row(counts: Any) -> bool:
    return bool(counts.any())


def _dropped(
    run: RunDirectory, engine: Engine, table: Table, groups: Sequence[Any], names: Sequence[str]
) -> Dropped | None:
    data = run.job.data
    if data.privacy_unit is None or data.max_rows_per_unit is None:
        return None
    rows = sum(engine.map(row_bound, [(path,) for path in table.files], "rows"))
    memory = run.job.engine.bytes
    return rows_beyond(engine, run.domain, groups, data.privacy_unit, data.max_rows_per_unit, rows, memory, names)


def _charge(run: RunDirectory, measurements: Measurements, reserve: bool = True) -> str:
    """Reserve the whole cost before the first draw; a repeat costs nothing. Returns the release's state.

    With `reserve` off the ledger is only asked, so that a job that it refuses reads no data.
    """
    cost, privacy = measurements.schedule.spent, run.job.privacy
    drawn = _drawn(run, measurements)
    with Ledger.open(privacy.ledger) as ledger:
        state = ledger.charge(
            run.job.dataset, measurements.release, cost, drawn, privacy.epsilon, privacy.delta, reserve
        )
    if reserve:
        run.update(privacy=_spent(run, cost))
    return state


def _drawn(run: RunDirectory, measurements: Measurements) -> str:
    """Digest of all that fixes the draws: plan, domain, noise and secret.

    With it the ledger refuses a second draw under a release id, as from a copy of a planned run directory.
    """
    plan_digest = hashlib.sha256((run.path / "plan" / "plan.json").read_bytes()).hexdigest()
    draws = [[draw.multiplier, draw.law] for draw in measurements.schedule.draws]
    content = [plan_digest, measurements.plan.domain.digest, draws, run.manifest["secret_tag"]]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _spent(run: RunDirectory, cost: Cost) -> dict[str, Any]:
    """What the manifest tells of the cost."""
    return {
        "dataset": run.job.dataset,
        "cost": cost.to_dict(),
        "epsilon": run.job.privacy.epsilon,
        "delta": run.job.privacy.delta,
        "unit": run.job.data.privacy_unit or "row",
        "rows_per_unit": run.job.data.max_rows_per_unit or 1,
    }


def _measure_pass(run: RunDirectory, engine: Engine, one: Pass, orders: Iterable[Order], handles: list[Any]) -> None:
    """Turn the exact counts of a pass into measurements on disk; the counts are let go with the handles."""
    by_source: dict[Attributes, list[Order]] = {}
    for order in orders:
        by_source.setdefault(order.source, []).append(order)
    items = []
    for layout, handle in zip(one.shards, handles, strict=True):
        mine = [order for attributes in layout.sets for order in by_source[attributes]]
        items.append((layout, mine, run.secret_path, handle))
    engine.map(carry_out, items, "measure")
