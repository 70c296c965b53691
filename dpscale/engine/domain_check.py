"""Search of all partitions for values that the domain refuses, after a refusal or for `dpscale domain check`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dpscale.base.errors import RefusedValue
from dpscale.engine.base import Engine
from dpscale.engine.counting import partition_groups
from dpscale.records.judging import Faults, Key, Tally, faults_of, refused_of, worst_of
from dpscale.records.table import Table

WARNING = "PRIVATE, do not publish: this output shows values of records and counts them."


def collect_refusals(engine: Engine, table: Table, names: Sequence[str], met: RefusedValue) -> RefusedValue:
    """Return one error for all columns with refused values, or `met` if the search finds none.

    The error does not depend on which task first met a refused value.
    """
    domain, groups = engine.broadcast(table.domain, "refused"), partition_groups(table.partitions, engine.workers)
    found = engine.map(worst_of, [(group, domain, list(names)) for group in groups], "refused")
    return refused_of(table.domain, names, found) or met


def find_faults(engine: Engine, table: Table) -> dict[str, Any]:
    """Return every fault of a table, in the order of the domain, with its number of rows or files and some values.

    The result is private.
    """
    columns = table.domain.columns(table.domain.names)
    if not set(columns) & set(table.partitions[0].columns()):
        table.require(columns)  # raises an error that explains why none exists
    domain, whole = engine.broadcast(table.domain, "check"), Faults()
    for one in engine.map(faults_of, [(partition, domain) for partition in table.partitions], "check"):
        whole.join(one)
    places = {name: place for place, name in enumerate(table.domain.names)}
    ordered = sorted(whole.tallies.items(), key=lambda item: (places[item[0][0]], item[0][1]))
    faults = [_fault_record(table, key, tally) for key, tally in ordered]
    affected = len({one["column"] for one in faults})
    return {"private": True, "rows": whole.rows, "columns": len(columns), "columns_affected": affected,
            "faults": faults}  # fmt: skip


def _fault_record(table: Table, key: Key, tally: Tally) -> dict[str, Any]:
    name, fault = key
    record = {"attribute": name, "column": table.domain[name].column, "fault": fault}
    if tally.files:
        return {**record, "files": len(tally.files)}
    return {**record, "rows": tally.rows, "examples": sorted(tally.examples)}
