"""The command line: `dpscale run JOB.toml` and its kin. Each module named here adds its commands."""

from __future__ import annotations

from dpscale.cli import closing, comparing, domains, others, previewing, publishing, running, submitted, tables
from dpscale.cli.group import main

__all__ = [
    "closing", "comparing", "domains", "main", "others", "previewing", "publishing", "running", "submitted", "tables",
]  # fmt: skip
