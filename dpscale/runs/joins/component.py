"""Component of a join: its run, which draws under the charge of all components."""

from __future__ import annotations

from dataclasses import dataclass

from dpscale.base.numerics import Integers
from dpscale.contributions.lookups import CACHE
from dpscale.engine import Engine
from dpscale.privacy.accounting import Cost
from dpscale.runs.components import RunComponent
from dpscale.runs.composite import CompositeRun
from dpscale.runs.joins.run import JoinRun
from dpscale.runs.stages.runner import run_requested


@dataclass(frozen=True, eq=False)
class JoinComponent(RunComponent):
    """Component of a join.

    Attributes
    ----------
    name : str
    whole : CompositeRun
    join : str
    depends_on : tuple of str
    """

    name: str
    whole: CompositeRun
    join: str
    depends_on: tuple[str, ...] = ()

    @property
    def run(self) -> JoinRun:
        return self.whole.joins[self.join]

    @property
    def cost(self) -> Cost:
        return self.run.measurement_plan.cost

    def measure(self, engine: Engine) -> None:
        run_requested(self.run, engine, "measure")
        CACHE.clear()

    def is_measured(self) -> bool:
        return self.run.done("measure")

    def synthesize(self, engine: Engine) -> dict[str, Integers]:
        """Do nothing: a join has answers only."""
        return {}


def join_components(run: CompositeRun) -> list[JoinComponent]:
    """Return the components of the joins, which follow the tables: these refuse keys of two units.

    Parameters
    ----------
    run : CompositeRun

    Returns
    -------
    list of JoinComponent
        In the order of the job.
    """
    tables = tuple(f"tables.{name}" for name in run.tables)
    return [JoinComponent(f"joins.{name}", run, name, tables) for name in run.joins]
