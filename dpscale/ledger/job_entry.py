"""Job of a release as the ledger records it: digest, run directory and files, by which a job is recognised."""

from __future__ import annotations

import os
from dataclasses import dataclass

from dpscale.base.errors import BudgetError

DEFAULT = ("./", "../")  # beginnings of the names of datasets for which the job states none


@dataclass(frozen=True)
class JobEntry:
    """Job of a release.

    Attributes
    ----------
    digest : str
        Version of the digest, a colon, and the digest of the normalised job; empty if it is not known.
    run : str
        Release id of the run, with which the ids of its parts begin.
    run_dir : str
        Path of the run directory.
    files : str
        Absolute path of the data, by which a default name of the dataset is recognised; empty for a stated name.
    fresh : bool
        Whether the run is a new release of a job that was released before.
    """

    digest: str = ""
    run: str = ""
    run_dir: str = ""
    files: str = ""
    fresh: bool = False

    def is_of(self, release: str) -> bool:
        """Return whether a release is the run, or a part of it."""
        return release == self.run or release.startswith(f"{self.run}-")


NO_JOB = JobEntry()


def is_there(files: str) -> bool:
    """Return whether files exist, or their folder for a pattern; addresses are taken as existing."""
    if "://" in files:
        return True
    fixed = files
    while any(letter in fixed for letter in "*?["):
        fixed = os.path.dirname(fixed)
    return os.path.lexists(fixed)


def repeated_release(release: str, reserved_at: str, run_dir: str) -> BudgetError:
    """Return the refusal of a second release of the same job and dataset."""
    where = f" in {run_dir}" if run_dir else ""
    got = f"this job was charged on {reserved_at[:10]} by release {release!r}{where}; nothing read or spent"
    return BudgetError("run", got, "one release of a job and a dataset", "open that run directory, or start a new"
                       " release with its own charge by --fresh (Python: fresh=True)")  # fmt: skip
