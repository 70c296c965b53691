"""The end of a finished run on the command line: total, findings, report and next commands."""

from __future__ import annotations

import os
import shlex
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from dpscale.base.display import between, rounded
from dpscale.base.errors import PlanError
from dpscale.storage.objects import relative_path

if TYPE_CHECKING:
    from dpscale.answers.tables import Answered


def outcome(answered: Answered, path: Path) -> list[str]:
    """Return total and findings of a release, the path of its report and the next command, as lines."""
    from dpscale.answers.findings import findings
    from dpscale.answers.statistics import total
    from dpscale.answers.tables import LEVEL

    lines, run = list[str](), near(str(path))
    with suppress(PlanError):  # the workload does not determine the total
        estimate, low, high = total(answered, LEVEL)
        error = (high - low) / 4  # an interval of 95 % is about four standard deviations long
        lines.append(f"about {rounded(estimate, error, 0)} ({between(low, high, error, 0)}) records, 95 % interval")
    domain = answered.estimates.workload.domain
    lines += [f"  {finding.sentence(domain)}" for finding in findings(answered)]
    return [*lines, f"report: {os.path.join(run, 'report.html')}",
            f"tables for publication: {command()} publish {shlex.quote(run)}"]  # fmt: skip


def command() -> str:
    """Return the command with which dpscale was called."""
    called = Path(sys.argv[0])
    if called.name == "__main__.py":
        return f"{shlex.quote(near(sys.executable))} -m dpscale"
    return shlex.quote(near(str(called))) if os.sep in sys.argv[0] else "dpscale"


def near(path: str) -> str:
    """Return a path relative to the current folder if it is below it."""
    below = relative_path(path, os.curdir)
    return path if below.startswith("..") else below
