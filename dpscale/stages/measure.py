"""The measure stage: the only one that sees records and spends budget (see `spending` for its order)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dpscale.adaptive.plan import AdaptivePlan
from dpscale.engine import Engine
from dpscale.engine.counting import Pass, plan_passes
from dpscale.errors import JobError
from dpscale.measure import Measurements, Order, carry_out, make_orders, make_schedule
from dpscale.measure.rounds import Rounds
from dpscale.names import AttributeSet as Attributes
from dpscale.plans.planfile import AnyPlan
from dpscale.privacy.secret import read_secret
from dpscale.runs.run import RunDirectory
from dpscale.stages.adapting import measure_adaptively
from dpscale.stages.memory import check_room
from dpscale.stages.plan import run_plan
from dpscale.stages.reading import Reader, columns_of, open_table, snapshot_of
from dpscale.stages.spending import charge, check_secret, hold_secret, holds_secret, publish
from dpscale.tables import Table
from dpscale.tables.snapshot import Stamps, stamps

STAGES = ("plan", "measure", "reconstruct", "report")

__all__ = ["STAGES", "measured", "run_measure", "run_plan"]


def run_measure(run: RunDirectory, engine: Engine) -> None:
    """Count, charge, draw, store."""
    run.require("plan")
    if run.done("measure"):
        return
    check_room(made := run.plan(), run.job, engine)
    with run.stage("measure", "measurements"):
        table = open_table(run, columns_of(run.domain, made.counted))
        engine.check_sight(run.path, table.files)
        hold_secret(run)
        seen = stamps(table)
        measurements = _of(run, made, snapshot_of(run, table, engine))
        if isinstance(measurements, Rounds):
            measure_adaptively(run, engine, table, measurements, seen)
        else:
            _measure_missing(run, engine, table, measurements, seen)
        publish(run, measurements)


def measured(run: RunDirectory) -> Measurements | Rounds:
    """The measurements of a run whose measure stage is done."""
    run.require("measure")
    return _of(run, run.plan(), run.manifest["snapshot"])


def _of(run: RunDirectory, made: AnyPlan, snapshot_id: str) -> Measurements | Rounds:
    if made.noise != run.job.privacy.noise:
        raise JobError("run directory", "its plan has another noise than its job asks for", "the plan as it was made",
                       "start a new run")  # fmt: skip
    release = run.manifest["release"]
    if isinstance(made, AdaptivePlan):
        secret = read_secret(run.secret_path) if holds_secret(run) else None
        return Rounds(run.measurements_path, release, snapshot_id, made, secret)
    schedule = make_schedule(made, run.job.privacy.budget, run.job.data.max_rows_per_unit or 1)
    return Measurements(run.measurements_path, release, snapshot_id, made, schedule)


def _measure_missing(run: RunDirectory, engine: Engine, table: Table, measurements: Measurements, seen: Stamps) -> None:
    missing = measurements.missing()
    if not missing:
        return
    check_secret(run)
    charge(run, measurements, reserve=False)
    orders = make_orders(measurements, missing)
    reader = Reader.of(run, engine, table, seen, columns_of(run.domain, measurements.plan.counted))
    sets = list(dict.fromkeys(order.source for order in orders))
    for number, one in enumerate(plan_passes(run.domain, sets, run.job.engine.bytes, engine.workers)):
        handles = reader.count(one) if number else reader.first(one)
        if number == 0:
            charge(run, measurements)
        _measure_pass(run, engine, one, orders, handles)


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
