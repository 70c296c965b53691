"""What a benchmark found, kept: `results/NAME.json`, one file a benchmark, from which docs/benchmarks.md is made.

A file has `run`, when and where it was measured, and `figures`, by name. A run replaces the whole file, so all figures
of a file are of one run; one that lacks a figure that the file has is not saved.
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
    """The figures of a benchmark."""
    return dict(json.loads(path_of(name).read_text())["figures"])


def save(name: str, figures: Mapping[str, float | str]) -> None:
    """Keep a run's figures; ends the program where one is missing."""
    path = path_of(name)
    lacking = load(name).keys() - figures.keys() if path.exists() else set()
    if lacking:
        raise SystemExit(f"not saved: this run has no figure for {', '.join(sorted(lacking))}")
    kept = {key: float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value for key, value in figures.items()}
    path.write_text(json.dumps({"run": told(), "figures": kept}, indent=2, ensure_ascii=False) + "\n")
    print(f"saved in {path.parent.name}/{path.name}; python benchmarks/tables.py puts it into docs/benchmarks.md")


def apart(script: str, what: object) -> dict[str, float]:
    """What a script prints as JSON for `--one`, in a process of its own, with nothing solved before."""
    command = [sys.executable, script, "--one", json.dumps(what)]
    nothing = os.environ | {"DPSCALE_STORE": "off"}
    found: dict[str, float] = json.loads(
        subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=nothing).stdout
    )
    return found


def told() -> str:
    """When and where."""
    return f"{date.today()}, dpscale {version('dpscale')}, Python {platform.python_version()}, {os.cpu_count()} cores"


def path_of(name: str) -> Path:
    return FOLDER / f"{name}.json"
