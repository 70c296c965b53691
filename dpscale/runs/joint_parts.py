"""Parts of several tables with an entry of their own on the ledger: all searches for cells, and all numbers of units.

The cost of a part in all tables is one entry, `RELEASE-domain` or `RELEASE-units`, which is reserved in one transaction
before the first draw. A neighbour changes rows of every table, so the costs of the tables add, each to as many steps
of the table's own run as connect two neighbours of the job. As for the measurements, each table records on the ledger
which data it draws from before it draws.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import cached_property
from importlib import import_module
from typing import Any

from dpscale.base.errors import BudgetError
from dpscale.engine import Engine
from dpscale.privacy.accounting import Cost, float_above
from dpscale.privacy.protection import Protection
from dpscale.runs.directory import Run
from dpscale.runs.stages import STAGES
from dpscale.runs.stages.budget import (
    SEARCHES,
    UNITS,
    Charge,
    charge_release,
    check_recorded_division,
    facts_of_totals,
    part_release,
    publish_part,
)
from dpscale.runs.table import TableRun

TITLES = {SEARCHES: "searches for cells", UNITS: "numbers of distinct units"}
STAGE_OF = {SEARCHES: STAGES["discover"], UNITS: STAGES["units"]}
ROUNDING = 1 + Fraction(1, 10**9)  # shares are floats, whose sum may exceed 1 by rounding


@dataclass(frozen=True, eq=False)
class JointPart:
    """A part of the runs of several tables that is charged together.

    Attributes
    ----------
    run : Run
        Run of several tables.
    name : str
        Name in STAGE_OF.
    """

    run: Run
    name: str

    @property
    def stage(self) -> str:
        """Name of the stage that draws it."""
        return STAGE_OF[self.name].name

    @property
    def title(self) -> str:
        """What the part measures, in words."""
        return TITLES[self.name]

    @cached_property
    def tables(self) -> dict[str, TableRun]:
        """Runs of the tables that have the part."""
        return {name: table for name, table in self.run.tables.items() if STAGE_OF[self.name].is_enabled(table)}

    @property
    def _module(self) -> Any:
        return import_module(STAGE_OF[self.name].module)

    def prepare(self, table: TableRun, engine: Engine) -> object:
        """Read and check the rows of a table; nothing is charged or drawn."""
        prepared: object = self._module.prepare(table, engine)
        return prepared

    @cached_property
    def _terms(self) -> dict[str, tuple[Cost, list[dict[str, Any]]]]:
        """Cost to a unit of the job, and records of the draws, of every table."""
        found = {name: self._module.part_terms(table) for name, table in self.tables.items()}
        return {name: (cost.for_group(self.run.steps[name]), records) for name, (cost, records) in found.items()}

    @property
    def cost(self) -> Cost:
        """Total cost to a unit of the job; before its stage the tables must be planned for numbers of units."""
        if charged := self.run.manifest.get(self.name):
            return Cost.from_dict(charged["cost"])
        return Cost.total(cost for cost, _ in self._terms.values()).coarsened()

    def assign(self) -> None:
        """Record in every table's run the charge under which it draws."""
        for number, table in enumerate(self.tables.values()):
            known = table.manifest.get("within_parts", {})
            within = {**self._entry(), "piece": number, "job": asdict(self.run.job_entry)}
            if known.get(self.name) != within:
                table.update(within_parts={**known, self.name: within})

    def charge(self, reserve: bool = True) -> str:
        """Reserve the total cost and return the release's state; a repeated call costs nothing."""
        check_recorded_division(self.run)
        own = self._entry()
        terms = own["release"], Cost.from_dict(own["cost"]), own["digest"], own["epsilon"], own["delta"]
        recorded = {"dataset": self.run.job.dataset, "cost": own["cost"], "tables": list(self.tables)}
        facts = facts_of_totals(one.domain for one in self.run.tables.values())
        return charge_release(self.run, Charge(*terms, self.run.protects, facts), recorded, reserve, self.name)

    def publish(self) -> None:
        """Commit and publish the release, once the part of every table is drawn."""
        publish_part(self.run, part_release(self.run, self.name), self.charge())

    def _entry(self) -> dict[str, Any]:
        """Return the entry of the ledger, as the runs of the tables record it."""
        content = [self.run.manifest["job_sha256"], self.name, [records for _, records in self._terms.values()]]
        privacy, protects = self.run.job.privacy, self.run.protects
        return {
            "release": part_release(self.run, self.name),
            "cost": self.cost.to_dict(),
            "digest": hashlib.sha256(json.dumps(content).encode()).hexdigest(),
            "epsilon": privacy.epsilon,
            "delta": privacy.delta,
            "protects": protection_fields(protects),
        }


def protection_fields(protects: Protection) -> dict[str, Any]:
    """Return a privacy unit as the content of a manifest."""
    fields = {"unit": protects.unit, "relation": protects.relation, "bound": protects.bound, "table": protects.table}
    return fields | ({"span": protects.span} if protects.span else {})


def joint_parts(run: Run) -> list[JointPart]:
    """Return the parts that some tables of a run have."""
    return [JointPart(run, name) for name, stage in STAGE_OF.items() if stage.is_enabled(run)]


def check_total(run: Run, cost: Cost, amount: float) -> None:
    """Raise BudgetError for a cost above the squared mu `amount`, or above the epsilon of the job at its delta."""
    if cost.squared_mu > Fraction(amount) * ROUNDING:
        raise BudgetError("privacy", f"components that cost {float(cost.squared_mu):.6g} in total",
                          f"at most the budget of the job, {amount:.6g}", "lower their shares")  # fmt: skip
    epsilon, delta = run.job.privacy.epsilon, run.job.privacy.delta or 0.0
    if cost.delta and epsilon is not None and cost.epsilon_or_inf(delta) > epsilon * ROUNDING:
        raise BudgetError("privacy.delta", f"components with additive delta {float_above(cost.delta):.6g} in total",
                          "a total cost within the epsilon of the job at its delta",
                          "lower their additive delta or their shares")  # fmt: skip
