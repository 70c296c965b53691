"""Saved benchmark results: `results/NAME.json`, one file per benchmark, from which docs/benchmarks.md is generated.

A file has `run`, the time and place of the measurement, and `figures` by name. A run replaces the whole file, so that
all figures of a file are from one run; a run that lacks a figure of the file is not saved.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).with_name("results")
DIGITS = 6


def load(name: str) -> dict[str, Any]:
    """Return the figures of a benchmark."""
    return dict(json.loads(result_path(name).read_text())["figures"])


def save(name: str, figures: Mapping[str, float | str]) -> None:
    """Save the figures of a run; exit if one is missing."""
    path = result_path(name)
    lacking = load(name).keys() - figures.keys() if path.exists() else set()
    if lacking:
        raise SystemExit(f"not saved: this run has no figure for {', '.join(sorted(lacking))}")
    rounded = {
        key: float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value for key, value in figures.items()
    }
    path.write_text(json.dumps({"run": describe_run(), "figures": rounded}, indent=2, ensure_ascii=False) + "\n")
    print(f"saved in {path.parent.name}/{path.name}; python benchmarks/tables.py puts it into docs/benchmarks.md")


def run_separately(script: str, what: object) -> dict[str, float]:
    """Return the JSON that a script prints for `--one`, in a new process without stored solutions."""
    command = [sys.executable, script, "--one", json.dumps(what)]
    nothing = os.environ | {"DPSCALE_STORE": "off"}
    found: dict[str, float] = json.loads(
        subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=nothing).stdout
    )
    return found


def describe_run() -> str:
    """Return date, version and machine."""
    return f"{date.today()}, dpscale {version('dpscale')}, Python {platform.python_version()}, {os.cpu_count()} cores"


def result_path(name: str) -> Path:
    return FOLDER / f"{name}.json"
