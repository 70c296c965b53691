"""What a stage is: a name, what it takes and leaves, and what it runs. The table of them is in `stages`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class Stage:
    """A stage of a run.

    needs: the stages whose files it reads; they must be done, and their files as they left them.
    folder: what it leaves, a folder or a file of the run directory, which is hashed as it ends.
    leaves: a file or folder in it that is there if, and only if, the stage is whole.
    spends: whether it may spend budget.
    table: the job's table that asks for it; where that is missing it is not made unless somebody asks.
    module: where its `perform(run, engine)` is, imported when it is first called.
    """

    name: str
    help: str
    folder: str
    leaves: str
    module: str
    needs: Sequence[str] = ()
    spends: bool = False
    table: str = ""

    def asked(self, job: Any) -> bool:
        """Whether a job asks for it."""
        return not self.table or getattr(job, self.table) is not None

    def perform(self, run: Any, engine: Any) -> None:
        """Do it, for a `Run` on an `Engine`."""
        import_module(self.module).perform(run, engine)

    def to_dict(self) -> dict[str, Any]:
        """What a scheduler has to know."""
        return {"name": self.name, "help": self.help, "needs": list(self.needs), "spends": self.spends}
