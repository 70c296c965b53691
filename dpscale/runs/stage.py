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
    asked: what of a `Run` says that it is asked for; "": always.
    module: where its `perform(run, engine)` is, imported when it is first called.
    """

    name: str
    help: str
    folder: str
    leaves: str
    module: str
    needs: Sequence[str] = ()
    spends: bool = False
    asked: str = ""

    def wanted(self, run: Any) -> bool:
        """Whether a run is to have it."""
        return not self.asked or getattr(run, self.asked) is not None

    def perform(self, run: Any, engine: Any) -> None:
        """Do it, for a `Run` on an `Engine`."""
        import_module(self.module).perform(run, engine)

    def to_dict(self) -> dict[str, Any]:
        """What a scheduler has to know."""
        return {"name": self.name, "help": self.help, "needs": list(self.needs), "spends": self.spends}
