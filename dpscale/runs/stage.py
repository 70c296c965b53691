"""Table of the stages of a run, in order, and of the kinds of runs and of parts.

Commands, hashes of outputs, `status` and DAGs are derived from the stages. A finished stage returns at once, so each
stage can be called separately and repeatedly, from a shell, a DAG or Python.

*Kinds.* A line is `module:name`, imported at the first use: links load compiled loops, and a run of one table needs
none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpscale.engine.schedulers import Engine

# content of a run, by the kind of its job
CONTENTS: dict[str, str] = {
    "": "dpscale.runs.table:OneTable",
    "database": "dpscale.runs.linked_tables:LinkedTables",
    "periods": "dpscale.runs.periods.growing:GrowingTable",
}
# neighbouring relation of a job and the division of its budget, before data are read; not of an undivided budget
OVERVIEWS: dict[str, str] = {"database": "dpscale.runs.links.planning:overview"}
# parts of linked tables: functions of the linked tables that return a list of parts
PARTS: dict[str, str] = {
    "tables": "dpscale.runs.linked_part:table_parts",
    "links": "dpscale.runs.links.parts:link_parts",
    "joins": "dpscale.runs.join_part:join_parts",
    "together": "dpscale.runs.links.parts:whole_parts",
}
# parts of a growing table
PERIOD_PARTS: dict[str, str] = {
    "table": "dpscale.runs.periods.stages:ReleasedTable",
    "period": "dpscale.runs.periods.stages:PeriodPart",
    "answers": "dpscale.runs.periods.answers:AnswersPart",
    "rows": "dpscale.runs.periods.answers:RowsPart",
}


@dataclass(frozen=True)
class Stage:
    """A stage of a run.

    Attributes
    ----------
    name : str
    help : str
    folder : str
        Output: a folder or a file of the run directory or of a part, which is hashed when the stage finishes; "" if the
        parts of the run hash their own outputs.
    leaves : str
        File or folder of the output that exists if and only if the stage is complete.
    module : str
        Module with the function `perform(owner, engine)`, or "module:function"; imported on the first call.
    needs : sequence of str
        Stages whose output it reads, if they are requested. They must be finished and their output unchanged.
    spends : bool
        Whether the stage may spend budget.
    enabled_by : str
        Attribute of a run that is not None if the stage is requested; "" if it always is.
    """

    name: str
    help: str
    folder: str
    leaves: str
    module: str
    needs: Sequence[str] = ()
    spends: bool = False
    enabled_by: str = ""

    def is_enabled(self, owner: Any) -> bool:
        """Return whether the stage is requested for a run or a part."""
        return not self.enabled_by or bool(owner.requests(self.enabled_by))

    def needed(self, run: Any) -> list[str]:
        """Return the stages whose output it reads in a run."""
        return [name for name in self.needs if name in run.stages and run.stages[name].is_enabled(run)]

    def perform(self, owner: object, engine: Engine) -> None:
        """Run the stage of a run or of a part."""
        self.function("perform")(owner, engine)

    def function(self, name: str) -> Callable[..., Any]:
        """Return a function of the stage's module; "perform" is the one that `module` names behind a colon, if any."""
        module, _, performs = self.module.partition(":")
        if name == "perform" and performs:
            name = performs
        found: Callable[..., Any] = getattr(import_module(module), name)
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return the description that an external scheduler needs."""
        return {"name": self.name, "help": self.help, "needs": list(self.needs), "spends": self.spends}


TABLE = (
    Stage(
        name="discover",
        help="Find the cells that are not public, at a part of the budget.",
        folder="domain",
        leaves="domain/domain.toml",
        module="dpscale.runs.stages.discover",
        spends=True,
        enabled_by="discovery",
    ),
    Stage(
        name="plan",
        help="Choose what is measured; reads no data, spends nothing.",
        folder="plan",
        leaves="plan/plan.json",
        module="dpscale.runs.stages.plan",
        needs=("discover",),
    ),
    Stage(
        name="units",
        help="Count distinct units by cell, at a part of the budget.",
        folder="units",
        leaves="units/units.json",
        module="dpscale.runs.stages.units",
        needs=("plan",),
        spends=True,
        enabled_by="unit_counts",
    ),
    Stage(
        name="measure",
        help="Count, charge the ledger and draw the noise of a planned run.",
        folder="measurements",
        leaves="measurements",
        module="dpscale.runs.stages.measure",
        needs=("plan", "units"),
        spends=True,
    ),
    Stage(
        name="reconstruct",
        help="Write the answers of a measured run.",
        folder="answers",
        leaves="answers/index.parquet",
        module="dpscale.runs.stages.reconstruct",
        needs=("plan", "measure"),
    ),
    Stage(
        name="synthesize",
        help="Draw synthetic rows from a measured run.",
        folder="synthetic",
        leaves="synthetic/_rows.json",
        module="dpscale.runs.stages.synthesize",
        needs=("plan", "measure"),
        enabled_by="synthesis",
    ),
    Stage(
        name="report",
        help="Write the report of an answered run.",
        folder="report.html",
        leaves="report.html",
        module="dpscale.runs.stages.report",
        needs=("plan", "reconstruct"),
    ),
)

ALLOCATE = Stage(
    name="allocate",
    help="Divide the budget over tables and links, from a first measurement at a part of it.",
    folder="allocation",
    leaves="allocation/allocation.json",
    module="dpscale.runs.links.first_measurement",
    spends=True,
    enabled_by="allocation",
)
STAGES: dict[str, Stage] = {stage.name: stage for stage in TABLE}


TABLE_STAGES = tuple(STAGES)  # those that visit the parts of a run; plug-ins of other stages have the run


def stages_of_run(outputs: Mapping[str, tuple[str, str]]) -> dict[str, Stage]:
    """Return the stages of a run, which visit its parts in order (`runs.runner`).

    Parameters
    ----------
    outputs : mapping of str to (str, str)
        Folder and completing file of each stage.
    """
    return {name: replace(STAGES[name], folder=folder, leaves=leaves, module=f"dpscale.runs.runner:{name}")
            for name, (folder, leaves) in outputs.items()}  # fmt: skip


def load_kind(place: str) -> Any:
    """Return the object that a line "module:name" of CONTENTS, OVERVIEWS, PARTS or PERIOD_PARTS names."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


def overview(job: Any) -> dict[str, Any]:
    """Return the neighbouring relation of a job and the division of its budget; empty if it is not divided."""
    return dict(load_kind(OVERVIEWS[job.kind])(job)) if job.kind in OVERVIEWS else {}
