"""A toy plug-in of each kind, with one module and one registry line each, as in CONTRIBUTING.md."""

from dpscale.answers.report.page import Section
from dpscale.mechanisms import MECHANISMS
from dpscale.reconstruction import RECONSTRUCTIONS
from dpscale.runs.stage import PARTS, STAGES, Stage
from dpscale.runs.stages.report import SECTIONS
from dpscale.workload import FAMILIES
from tests.toys.window import FAMILY


def register() -> None:
    """Register the toys in this process."""
    MECHANISMS["one-ways"] = "tests.toys.one_ways"
    MECHANISMS["tree"] = "tests.toys.tree"
    RECONSTRUCTIONS["cut-at-zero"] = "tests.toys.cut_at_zero"
    FAMILIES["window"] = FAMILY
    SECTIONS["largest"] = Section("largest", "Largest count", module="tests.toys.section")
    PARTS["heads"] = "tests.toys.heads:heads_parts"
    STAGES["totals"] = Stage("totals", "Write the estimated totals.", "totals", "totals/totals.json",
                             "tests.toys.totals", needs=("measure",))  # fmt: skip


def unregister() -> None:
    """Remove the toys from the registries."""
    for table, names in (
        (MECHANISMS, ("one-ways", "tree")),
        (RECONSTRUCTIONS, ("cut-at-zero",)),
        (FAMILIES, ("window",)),
        (PARTS, ("heads",)),
        (SECTIONS, ("largest",)),
        (STAGES, ("totals",)),
    ):
        for name in names:
            table.pop(name, None)
