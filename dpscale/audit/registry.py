"""Entry of a release for registries of deployments of differential privacy, and its JSON Schema.

The entry states the protected unit, the mechanism, and the cost of the release alone and of all releases of the dataset
on the ledger. It contains no record, no count and no path. A public domain is described by names, kinds and numbers of
cells.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from dpscale.answers.report.page import public_name
from dpscale.base.errors import BudgetError
from dpscale.domain.public_totals import condition_of, is_condition
from dpscale.privacy.accounting import Cost, float_above, root_above
from dpscale.privacy.attack_risk import total_bounds
from dpscale.privacy.protection import REPLACE
from dpscale.runs.periods.growing import FOLDER, GrowingPart
from dpscale.runs.run import Run, now
from dpscale.runs.runner import ledger_dataset

FORMAT = "dpscale-registry/1"
NEIGHBOURS = "one has one unit more (add or remove); the number of rows is private"
REPLACED = "one row of a table is replaced, with its links; the numbers of rows are private"
REFERENCES = {
    "accounting": "Dong, Roth and Su (2022), Gaussian Differential Privacy",
    "attack_risk": "Wasserman and Zhou (2010), A Statistical Framework for Differential Privacy; Dong, Roth and Su",
}


def registry_entry(run: Run) -> dict[str, Any]:
    """Return the entry of a measured run, ready for JSON. Infinite figures are null.

    Parameters
    ----------
    run : Run
        Of one or several tables, or of a growing table.

    Returns
    -------
    dict
        As `REGISTRY_SCHEMA` describes.

    Raises
    ------
    BudgetError
        If the ledger of the release is not available.
    """
    dataset = ledger_dataset(run)
    if not dataset:
        raise BudgetError("privacy.ledger", "it does not contain this release", "the ledger with its charge",
                          "make the entry where that ledger is available")  # fmt: skip
    versions = run.manifest["versions"]
    return {
        "format": FORMAT,
        "made": now(),
        "release": run.manifest["release"],
        "private": run.manifest["private"],
        "software": {"name": "dpscale", "version": versions["dpscale"], "versions": versions},
        "data": {"name": public_name(run.manifest["privacy"]["dataset"]),
                 "tables": {name: _data(table) for name, table in measured_tables(run).items()}},
        "mechanisms": {name: _mechanism(table) for name, table in measured_tables(run).items()}
        | {f"links.{budget.link.called}": {"name": budget.link.mechanism} for budget in run.links},
        "unit": _unit(run),
        "guarantee": _guarantee(run, run.job.privacy.delta or dataset["spent"]["delta"]),
        "attack_risk": run.attack_risk.describe(),
        "ledger": _ledger(dataset, run.attack_risk.swaps or any(map(is_condition, dataset["notes"]))),
        "references": REFERENCES,
    }  # fmt: skip


def measured_tables(run: Run) -> Mapping[str, Any]:
    """Return tables and joins by name, or the released periods of a growing table.

    A growing table is the only one, "data", of its job, and has a folder for each released period.
    """
    table = run.tables.get("data")
    if not isinstance(table, GrowingPart):
        return {**run.tables, **{f"joins.{name}": join for name, join in run.joins.items()}}
    return {label: table.part_at(f"{FOLDER}/{label}") for label in table.released}


def _data(table: Any) -> dict[str, Any]:
    """Return the public description of the data of a table."""
    domain = table.domain
    attributes = [{"name": attribute.name, "kind": attribute.kind, "cells": attribute.size}
                  for attribute in domain.attributes if attribute.name not in domain.number_names]  # fmt: skip
    return {"attributes": attributes, "numbers": sorted(domain.number_names), "filter": bool(table.job.data.where)}


def _mechanism(table: Any) -> dict[str, Any]:
    plan, whole = table.measurement_plan, table.run.manifest.get("mechanism")  # that of all periods
    return {**table.manifest.get("mechanism", whole), "noise": f"discrete {table.job.privacy.noise}",
            "queries": plan.workload.query_count, "reconstruction": table.job.reconstruction.name}  # fmt: skip


def _unit(run: Run) -> dict[str, Any]:
    """Return the description of what one unit is, and of which tables are neighbours.

    `protects` describes the unit. Neighbours differ by a replacement or by the addition of a unit; public totals
    restrict them further.
    """
    protects = run.protects
    totals = [total for table in run.tables.values() for total in table.domain.public_totals]
    relation = REPLACED if protects.relation == REPLACE else NEIGHBOURS
    return {"words": protects.words, "column": protects.unit, "table": protects.table, "period": protects.span,
            "rows_per_unit": protects.bound, "relation": protects.relation,
            "neighbours": relation + condition_of(totals)}  # fmt: skip


def _guarantee(run: Run, delta: float) -> dict[str, Any]:
    """Return the guarantee of the release with those that it refines, at `delta`, or at the additive δ of a pure cost.

    With an additive δ no ρ exists. Figures are null if the noise is public or they are infinite.
    """
    cost: Cost = run.pooled_cost
    delta = float_above(cost.delta) if cost.is_pure else delta
    squared = float_above(cost.squared_mu)
    figures = {
        "epsilon": cost.epsilon_or_inf(delta),
        "delta": delta,
        "mu": root_above(cost.squared_mu),
        "rho": math.inf if cost.delta else squared / 2,
        "pure_epsilon": float_above(cost.pure) if cost.is_pure else math.inf,
        "additive_delta": float_above(cost.delta),
    }
    known = run.manifest["private"]
    finite = {name: value if known and math.isfinite(value) else None for name, value in figures.items()}
    return {"definition": "pure differential privacy" if cost.is_pure else "Gaussian differential privacy",
            **finite, "cost": cost.to_dict()}  # fmt: skip


def _ledger(dataset: Mapping[str, Any], swaps: bool) -> dict[str, Any]:
    """Return the totals of all releases of the dataset.

    `swaps` doubles the distance, also if only another release has a condition on public totals.
    """
    bounds = [{"false_positive_rate": level, "true_positive_rate": bound}
              for level, bound in total_bounds(dataset["spent"], swaps=swaps).items()]  # fmt: skip
    return {"releases": len(dataset["releases"]), "protects": dataset["protects"], **dataset["spent"],
            "cap": dataset["cap"] and {name: dataset["cap"][name] for name in ("epsilon", "delta", "currency")},
            "head": dataset["head"], "notes": dataset["notes"], "attack_risk": bounds}  # fmt: skip


NUMBER, TEXT = {"type": ["number", "null"]}, {"type": ["string", "null"]}
RATE = {"type": "number", "minimum": 0, "maximum": 1}
BOUNDS = {"type": "array", "minItems": 1, "items": {
    "type": "object", "properties": {"false_positive_rate": RATE, "true_positive_rate": RATE},
    "required": ["false_positive_rate", "true_positive_rate"]}}  # fmt: skip


def _object(properties: Mapping[str, Any], closed: bool = True) -> dict[str, Any]:
    """Return the schema of an object that has all these keys, and no other ones if it is `closed`."""
    return {"type": "object", "properties": dict(properties), "required": list(properties),
            "additionalProperties": not closed}  # fmt: skip


ATTRIBUTE = _object({"name": {"type": "string"}, "kind": {"type": "string"}, "cells": {"type": "integer"}})
TABLE = _object({"attributes": {"type": "array", "items": ATTRIBUTE},
                 "numbers": {"type": "array", "items": {"type": "string"}}, "filter": {"type": "boolean"}})  # fmt: skip
REGISTRY_SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "dpscale registry entry",
    **_object({
        "format": {"const": FORMAT},
        "made": {"type": "string"},
        "release": {"type": "string"},
        "private": {"type": "boolean"},
        "software": _object({"name": {"const": "dpscale"}, "version": {"type": "string"},
                             "versions": {"type": "object"}}),
        "data": _object({"name": {"type": "string"}, "tables": {"type": "object", "additionalProperties": TABLE}}),
        "mechanisms": {"type": "object", "additionalProperties": _object({"name": {"type": "string"}}, False)},
        "unit": _object({"words": {"type": "string"}, "column": TEXT, "table": TEXT, "period": TEXT,
                         "rows_per_unit": {"type": "integer"}, "relation": {"enum": ["add/remove", "replace"]},
                         "neighbours": {"type": "string"}}),
        "guarantee": _object({"definition": {"type": "string"}, **dict.fromkeys(
            ("epsilon", "delta", "mu", "rho", "pure_epsilon", "additive_delta"), NUMBER), "cost": {"type": "object"}}),
        "attack_risk": _object({"question": {"type": "string"}, "bounds": BOUNDS, "sentence": {"type": "string"}}),
        "ledger": _object({"releases": {"type": "integer"}, "protects": TEXT, "epsilon": NUMBER, "delta": NUMBER,
                           "squared_mu": NUMBER, "pure_epsilon": NUMBER, "cap": {"type": ["object", "null"]},
                           "head": {"type": "string"}, "notes": {"type": "array"}, "attack_risk": BOUNDS}, False),
        "references": {"type": "object"},
    }),
}  # fmt: skip
