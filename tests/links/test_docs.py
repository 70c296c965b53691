"""The example of docs/databases.md runs unchanged."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pandas as pd

PAGE = Path(__file__).parents[2] / "docs/databases.md"
FILE = re.compile(r"```(?:python|toml)\n# (\S+)\n(.*?)```", re.DOTALL)


def test_example_runs_unchanged(tmp_path: Path) -> None:
    files = dict(FILE.findall(PAGE.read_text()))
    assert {"make.py", "use.py", "job.toml", "more.toml", "ask.py"} <= set(files)
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    for script in ("make.py", "use.py", "ask.py"):
        if script == "ask.py":
            (tmp_path / "job.toml").write_text(files["job.toml"] + files["more.toml"])
        subprocess.run([sys.executable, script], cwd=tmp_path, check=True, capture_output=True, timeout=300,
                       env={"PYTHONPATH": str(PAGE.parents[1]), "PATH": "/usr/bin:/bin"})  # fmt: skip
    found = {name: pd.read_parquet(tmp_path / f"run/synthetic/{name}") for name in ("customers", "orders", "likes")}
    assert found["orders"].customer.dropna().isin(found["customers"].id).all()
    assert found["likes"].id.isin(found["customers"].id).all()
    assert abs(len(found["customers"]) - 2000) < 100
