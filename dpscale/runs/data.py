"""The data of a run: how they are kept, and at which version of a table it began."""

from __future__ import annotations

from dataclasses import replace

from dpscale.records.origin import Origin
from dpscale.runs.run import Run


def origin_of(run: Run) -> Origin:
    """As its job says; a table that moves on since is read at the version that the run began with."""
    origin, begun = run.job.data.origin, run.manifest.get("table")
    return replace(origin, version=begun["version"]) if begun and origin.format else origin
