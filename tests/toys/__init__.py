"""A toy of each kind, one module and one line in a table each: what CONTRIBUTING.md tells to do."""

from dpscale.mechanisms import MECHANISMS
from dpscale.reconstruction import RECONSTRUCTIONS
from dpscale.runs.stages import STAGES, Stage


def register() -> None:
    """The lines, in this process."""
    MECHANISMS["one-ways"] = "tests.toys.one_ways"
    MECHANISMS["tree"] = "tests.toys.tree"
    RECONSTRUCTIONS["cut-at-zero"] = "tests.toys.cut_at_zero"
    STAGES["totals"] = Stage("totals", "Write the estimated totals.", "totals", "totals/totals.json",
                             "tests.toys.totals", needs=("measure",))  # fmt: skip


def forget() -> None:
    """As it was before."""
    for table, names in (
        (MECHANISMS, ("one-ways", "tree")),
        (RECONSTRUCTIONS, ("cut-at-zero",)),
        (STAGES, ("totals",)),
    ):
        for name in names:
            table.pop(name, None)
