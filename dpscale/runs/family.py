"""The runs of one job beside each other: DIR, DIR-2, DIR-3, … each a release of its own; none is ever written over.

Where nobody names a directory, the latest of them is the job's. `--fresh` makes the next; but one that was begun and is
not done has to be done or ended first, so that a command repeated after a stop never spends twice.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from dpscale.base.errors import JobError
from dpscale.runs.manifest import MANIFEST, read_manifest
from dpscale.storage.files import listed, present


def latest(base: Path, digest: str) -> tuple[Path, int]:
    """The latest run of this job and its number; `base` and 1 where there is none."""
    mine = [number for number in _numbers(base) if _holds(numbered(base, number), digest)]
    number = max(mine, default=1)
    return numbered(base, number), number


def unmeasured(run: Path) -> str:
    """What is left of a run that is only to be measured."""
    return "" if read_manifest(run)["stages"].get("measure", {}).get("state") == "done" else "measure"


def following(base: Path, digest: str, left: Callable[[Path], str] = unmeasured) -> tuple[Path, int]:
    """Where a new release goes, and its number; JobError while the latest one is not done.

    `left`: of a run directory the first stage that is left to do, "" for none.
    """
    last, number = latest(base, digest)
    if not _holds(last, digest):
        return base, 1
    if not read_manifest(last).get("ended") and (stage := left(last)):
        what = "is not measured" if stage in ("plan", "measure") else f"its stage {stage} is not done"
        raise JobError("--fresh", f"{last} was begun and {what}", "a job whose latest run is done",
                       f"go on by --run-dir {last} without --fresh, or end it: `dpscale end {last}`")  # fmt: skip
    number = max(_numbers(base)) + 1
    return numbered(base, number), number


def numbered(base: Path, number: int) -> Path:
    """The directory of the number-th run."""
    return base if number == 1 else base.with_name(f"{base.name}-{number}")


def _numbers(base: Path) -> set[int]:
    """The numbers of what is there by such a name, runs or not."""
    name = re.compile(re.escape(base.name) + r"(?:-([2-9]|[1-9][0-9]{1,8}))?")
    found: Mapping[str, re.Match[str] | None] = {one: name.fullmatch(one) for one in listed(base.parent)}
    return {int(match[1] or 1) for match in found.values() if match}


def _holds(where: Path, digest: str) -> bool:
    return present(where / MANIFEST) and read_manifest(where)["job_sha256"] == digest
