"""The mixed job on [n]^d from Parquet to measurements on disk, then random queries of the release: time and memory.

All 1-way ranges, 2-way affine and 3-way prefix queries (QuerySmasher, table 7) on a generated table. Planning,
measuring and answering run in their own processes, monitored from outside; the figures are printed with their targets.

    python benchmarks/large_job.py [--size 40] [--attributes 40] [--rows 1000000] [--memory 4GiB] [--save]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import base
import numpy as np
import psutil

HERE = Path(__file__).resolve()
QUERIES = 1000
AIMS = {"plan": (10, 1), "measure": (360, 6)}


def write_inputs(place: Path, given: argparse.Namespace) -> None:
    """Write the table, its domain file and the job."""
    generator = HERE.parent.parent / "data" / "generate.py"
    options = ["--rows", given.rows, "--attributes", given.attributes, "--sizes", given.size, "--files", 8]
    subprocess.run(
        [sys.executable, generator, place / "made", *map(str, options)], check=True, stdout=subprocess.DEVNULL
    )
    parts = [("range", 1), ("affine", 2), ("prefix", 3)]
    workload = "".join(f'[[workload]]\nfamily = "{family}"\ndegree = {degree}\n' for family, degree in parts)
    (place / "job.toml").write_text(
        f'[data]\npath = "{data_path(place)}"\ndomain = "{place / "made" / "domain.toml"}"\n[privacy]\nepsilon = 1.0\n'
        f'delta = 1e-9\ndataset = "made"\n{workload}[engine]\nmemory = "{given.memory}"\n[output]\nmax_rows = 0\n'
    )


def data_path(place: Path) -> Path:
    """Return the folder of the generated Parquet files."""
    return place / "made" / "table"


def run_monitored(*command: object) -> tuple[float, float, str]:
    """Return the seconds, the peak GiB of a process and its children, and its output."""
    start, peak = time.perf_counter(), 0
    process = subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, text=True)
    family = psutil.Process(process.pid)
    while process.poll() is None:
        try:
            peak = max(peak, sum(one.memory_info().rss for one in [family, *family.children(recursive=True)]))
        except psutil.NoSuchProcess:
            break
        time.sleep(0.05)
    out = process.communicate()[0]
    if process.returncode:
        raise SystemExit(f"{command} failed")
    return time.perf_counter() - start, peak / 2**30, out


def time_answers(place: Path) -> dict[str, float]:
    """Answer random queries over random triples of all cells; the first reads of the residuals are included."""
    import dpscale as dp

    release = dp.Release.open(place / "run")
    random, seconds = np.random.default_rng(0), []
    for _ in range(QUERIES):
        names = [str(name) for name in random.choice(release.domain.names, 3, replace=False)]
        query = (random.random(release.domain.shape(names)) < 0.3).astype(float)
        start = time.perf_counter()
        release.answer(names, query=query)
        seconds.append(time.perf_counter() - start)
    took = np.array(seconds) * 1e3
    return {"mean": took.mean(), "median": np.median(took), "95 %": np.quantile(took, 0.95), "largest": took.max()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=40)
    parser.add_argument("--attributes", type=int, default=40)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--memory", default="4GiB")
    parser.add_argument("--save", action="store_true", help="keep the figures in results/")
    parser.add_argument("--answer", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.answer:
        print(json.dumps(time_answers(given.answer)))
        return
    with tempfile.TemporaryDirectory(dir=".") as folder:
        place = Path(folder).resolve()
        write_inputs(place, given)
        cli, figures = [sys.executable, "-m", "dpscale"], dict[str, float | str](memory=given.memory)
        for stage, command in {
            "plan": ("plan", place / "job.toml"),
            "measure": ("run", place / "run", "--only", "measure"),
        }.items():
            options = ["--run-dir", place / "run"] if stage == "plan" else []
            took, peak, _ = run_monitored(*cli, *command, *options)
            figures |= {f"{stage}, seconds": took, f"{stage}, GiB": peak}
            most, gib = AIMS[stage]
            print(
                f"{stage:8} {took:8.1f} s ({took / most:.2f} of the aim)  {peak:6.2f} GiB ({peak / gib:.2f} of the aim)"
            )
        took, peak, out = run_monitored(sys.executable, HERE, "--answer", place)
        figures["answer, ms"] = json.loads(out)["median"]
        times = "  ".join(f"{name} {value:.2f} ms" for name, value in json.loads(out).items())
        print(f"answers  {QUERIES} random queries: {times} (aim: 5 ms)  {peak:.2f} GiB")
    if given.save:
        base.save("large_job", figures)


if __name__ == "__main__":
    main()
