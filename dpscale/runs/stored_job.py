"""Job file of a run directory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpscale.job import Job, job_content
from dpscale.job.data import folder_of_run, moved, relocated
from dpscale.storage.files import present

JOB_FILE, DOMAINS = "job.toml", "domains"


def read_stored(path: Path, manifest: Mapping[str, Any]) -> Job:
    """Return the job of a run directory, with its files where they are after a move.

    The domains of several tables are those that the run has stored; older runs have stored none.

    `places` of the manifest maps paths to those that the job stated; `former` maps the files of stored domains to the
    paths that the job stated for them.
    """
    content, folder = job_content(path / JOB_FILE, stored=True)
    if "places" not in manifest:
        return Job.parse(content, folder)
    now, places = folder_of_run(manifest, path), manifest["places"]
    content, former = relocated(content, places, now), dict[str, str]()
    for name, table in content.get("tables", {}).items():
        stored = path / DOMAINS / name / "domain.toml"
        if present(stored):
            former[str(stored)] = table["domain"]
            table["domain"] = str(stored)
    job = Job.parse(content, folder)
    return job.at(Path(now), {moved(place, places, now): stated for place, stated in places.items()}, former)
