"""Description of a stage. The table of stages is in `dpscale.runs.stages`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpscale.engine import Engine
    from dpscale.runs.run import Run


@dataclass(frozen=True)
class Stage:
    """A stage of a run.

    Attributes
    ----------
    name : str
    help : str
    folder : str
        Output: a folder or a file of the run directory, which is hashed when the stage finishes.
    leaves : str
        File or folder of the output that exists if and only if the stage is complete.
    module : str
        Module with the function `perform(run, engine)`; imported on the first call.
    needs : sequence of str
        Stages whose output it reads. They must be finished and their output unchanged.
    spends : bool
        Whether the stage may spend budget.
    enabled_by : str
        Attribute of a `Run` that is not None if the stage is requested; "" if it always is.
    """

    name: str
    help: str
    folder: str
    leaves: str
    module: str
    needs: Sequence[str] = ()
    spends: bool = False
    enabled_by: str = ""

    def is_enabled(self, run: Run) -> bool:
        """Return whether the stage is requested for a run."""
        return not self.enabled_by or getattr(run, self.enabled_by) is not None

    def perform(self, run: Run, engine: Engine) -> None:
        """Run the stage."""
        import_module(self.module).perform(run, engine)

    def to_dict(self) -> dict[str, Any]:
        """Return the description that an external scheduler needs."""
        return {"name": self.name, "help": self.help, "needs": list(self.needs), "spends": self.spends}
