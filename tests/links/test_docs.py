"""The example of docs/databases.md runs unchanged."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from dpscale.job import Job
from tests.links.sql import load, read_tables

PAGE = Path(__file__).parents[2] / "docs/databases.md"
FILE = re.compile(r"```(?:python|toml)\n# (\S+)\n(.*?)```", re.DOTALL)


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder in which the scripts of the example have run."""
    place, files = tmp_path_factory.mktemp("example"), dict(FILE.findall(PAGE.read_text()))
    assert {"make.py", "use.py", "job.toml", "more.toml", "ask.py"} <= set(files)
    for name, content in files.items():
        (place / name).write_text(content)
    for script in ("make.py", "use.py", "ask.py"):
        if script == "ask.py":
            (place / "job.toml").write_text(files["job.toml"] + files["more.toml"])
        subprocess.run([sys.executable, script], cwd=place, check=True, capture_output=True, timeout=300,
                       env={"PYTHONPATH": str(PAGE.parents[1]), "PATH": "/usr/bin:/bin"})  # fmt: skip
    return place


def test_example_runs_unchanged(example: Path) -> None:
    found = {name: pd.read_parquet(example / f"run/synthetic/{name}") for name in ("customers", "orders", "likes")}
    assert found["orders"].customer.isin(found["customers"].id).all()
    assert found["likes"].id.isin(found["customers"].id).all()
    assert abs(len(found["customers"]) - 2000) < 100


def test_rows_of_example_load_with_constraints(example: Path) -> None:
    load(Job.read(example / "job.toml"), read_tables(example / "run/synthetic"))
