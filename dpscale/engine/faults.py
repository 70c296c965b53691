"""One more pass over all partitions, after a refusal or by `dpscale domain check`: what the domain refuses anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dpscale.base.errors import RefusedValue
from dpscale.engine.base import Engine
from dpscale.engine.counting import partition_groups
from dpscale.records.judging import Faults, Key, Tally, faults_of, refused_of, worst_of
from dpscale.records.table import Table

WARNING = "This is PRIVATE, not to be published: it shows values of records and counts them."


def refused_everywhere(engine: Engine, table: Table, names: Sequence[str], met: RefusedValue) -> RefusedValue:
    """The refusal of all columns with refused values, whichever task met one first; `met` where there are none."""
    domain, groups = engine.shared(table.domain, "refused"), partition_groups(table.partitions, engine.workers)
    found = engine.map(worst_of, [(group, domain, list(names)) for group in groups], "refused")
    return refused_of(table.domain, names, found) or met


def check(engine: Engine, table: Table) -> dict[str, Any]:
    """Every fault of a table, in the order of the domain, with rows or files and a few values. Private."""
    columns = table.domain.columns(table.domain.names)
    if not set(columns) & set(table.partitions[0].columns()):
        table.require(columns)  # which tells how it comes that none is there
    domain, whole = engine.shared(table.domain, "check"), Faults()
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
    said = {"attribute": name, "column": table.domain[name].column, "fault": fault}
    if tally.files:
        return {**said, "files": len(tally.files)}
    return {**said, "rows": tally.rows, "examples": sorted(tally.examples)}
