"""The jobs in pipelines/papers with small generated tables of their schemas."""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
JOBS = {"query-smasher": "cps", "hdmm": "sf1", "aim-grem": "adult", "eigen-design": "cps"}


def write_paper_jobs(folder: Path) -> Path:
    """Write the jobs, the schemas and tables of 2,000 records into a folder, as in a clone, and return it."""
    shutil.copytree(ROOT / "pipelines", folder / "pipelines")
    shutil.copytree(ROOT / "data", folder / "data")
    for schema in dict.fromkeys(JOBS.values()):
        made = ["data/generate.py", f"dpscale-papers/{schema}", "--domain", f"data/schemas/{schema}.toml"]
        subprocess.run([sys.executable, *made, "--rows", "2000", "--files", "2"], cwd=folder, check=True)
    return folder
