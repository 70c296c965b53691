"""Component of a join: its run, which draws under the charge of all components."""

from __future__ import annotations

from dataclasses import dataclass

from dpscale.base.numerics import Integers
from dpscale.contributions.lookups import CACHE
from dpscale.engine import Engine
from dpscale.privacy.accounting import Cost
from dpscale.runs.composite import CompositeRun
from dpscale.runs.joins.run import JoinRun
from dpscale.runs.stages.runner import run_requested


@dataclass(frozen=True, eq=False)
class JoinComponent:
    """Component of a join.

    Attributes
    ----------
    name : str
    run : JoinRun
    depends_on : tuple of str
    """

    name: str
    run: JoinRun
    depends_on: tuple[str, ...] = ()

    @property
    def cost(self) -> Cost:
        return self.run.measurement_plan.cost

    @property
    def plan_digest(self) -> str:
        return self.run.measurement_plan.digest

    def plan(self, engine: Engine) -> None:
        run_requested(self.run, engine, "plan")

    def check(self, engine: Engine) -> None:
        """Do nothing: the run counts and checks its rows before the charge."""

    def measure(self, engine: Engine) -> None:
        run_requested(self.run, engine, "measure")
        CACHE.clear()

    def is_measured(self) -> bool:
        return self.run.done("measure")

    def reconstruct(self, engine: Engine) -> None:
        run_requested(self.run, engine, "reconstruct")

    def synthesize(self, engine: Engine) -> dict[str, Integers]:
        """Do nothing: a join has answers only."""
        return {}

    def report(self, engine: Engine) -> None:
        run_requested(self.run, engine, "report")


def join_components(run: CompositeRun) -> list[JoinComponent]:
    """Return the components of the joins, which follow the tables: these refuse keys of two units."""
    tables = tuple(f"tables.{name}" for name in run.tables)
    return [JoinComponent(f"joins.{name}", one, tables) for name, one in run.joins.items()]
