"""The command line: `dpscale run JOB.toml` and its kin (docs/contract.md). Each module of this room adds its commands."""

from __future__ import annotations

from dpscale.cli import others, running, submitted
from dpscale.cli.group import main

__all__ = ["main", "others", "running", "submitted"]
