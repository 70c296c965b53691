"""The main job on Adult against plain counting of the same marginals, all in one run on the same files.

Every contender runs in its own process, twice (the first run warms caches), and reports its wall time without the start
of Python and its peak memory. The private job plans, counts, charges, draws, writes every measurement, and then answers
all queries with errors as Parquet; the others only count and store the counts in memory.

    python benchmarks/main_job.py [--adult FOLDER] [--save]
    python benchmarks/main_job.py --against TREE [--turns N]      this tree and another checkout of it, in turns
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from itertools import combinations
from pathlib import Path
from statistics import median

import base
import pandas as pd

HERE = Path(__file__).resolve().parents[1]
PARTITIONS = 8
DEGREE = 3


def write_inputs(adult: Path, place: Path) -> None:
    """Write Adult as partitioned Parquet, its domain file and job."""
    sizes = json.loads((adult / "adult-domain.json").read_text())
    frame = pd.read_csv(adult / "adult.csv")
    (place / "data").mkdir()
    step = -(-len(frame) // PARTITIONS)
    for number in range(PARTITIONS):
        frame.iloc[number * step : (number + 1) * step].to_parquet(place / "data" / f"{number}.parquet", index=False)
    tables = "".join(f'[attributes."{name}"]\nkind = "coded"\nsize = {size}\n' for name, size in sizes.items())
    (place / "domain.toml").write_text(tables)
    (place / "job.toml").write_text(
        '[data]\npath = "data"\ndomain = "domain.toml"\n[privacy]\nepsilon = 1.0\ndelta = 1e-9\ndataset = "adult"\n'
        f'[[workload]]\nfamily = "marginal"\ndegree = {DEGREE}\n[mechanism]\nname = "residual-planner"\n'
    )
    (place / "sizes.json").write_text(json.dumps(sizes))


def private_job(place: Path) -> dict[str, float]:
    """Run the whole job and return the time of each stage."""
    import dpscale as dp

    release = dp.run(place / "job.toml", tempfile.mkdtemp(dir=place))
    stages = release.manifest["stages"]
    return {name: seconds(stage["start"], stage["end"]) for name, stage in stages.items()}


def seconds(start: str, end: str) -> float:
    return (pd.Timestamp(end) - pd.Timestamp(start)).total_seconds()


def bincount(place: Path) -> dict[str, float]:
    """Count with numpy.bincount in a loop over the sets."""
    import numpy as np

    sizes = json.loads((place / "sizes.json").read_text())
    frame = pd.read_parquet(place / "data")
    columns = {name: frame[name].to_numpy() for name in sizes}
    held = {}
    for names in combinations(sizes, DEGREE):
        joint = np.ravel_multi_index([columns[name] for name in names], [sizes[name] for name in names])
        held[names] = np.bincount(joint, minlength=int(np.prod([sizes[name] for name in names])))
    return {"sets": len(held)}


def bincount_answers(place: Path) -> dict[str, float]:
    """Write the same counts with their cells as Parquet, like the answers of the job (without noise and errors)."""
    import numpy as np

    sizes = json.loads((place / "sizes.json").read_text())
    frame = pd.read_parquet(place / "data")
    out = Path(tempfile.mkdtemp(dir=place))
    for number, names in enumerate(combinations(sizes, DEGREE)):
        shape = [sizes[name] for name in names]
        joint = np.ravel_multi_index([frame[name].to_numpy() for name in names], shape)
        counts = np.bincount(joint, minlength=int(np.prod(shape)))
        cells = dict(zip(names, np.unravel_index(np.arange(len(counts)), shape), strict=True))
        pd.DataFrame({**cells, "count": counts}).to_parquet(out / f"{number}.parquet", index=False)
    return {"sets": number + 1}


def groupby(place: Path) -> dict[str, float]:
    """Count every set with groupby of dask.dataframe, computed together."""
    import dask
    import dask.dataframe as dd

    sizes = json.loads((place / "sizes.json").read_text())
    frame = dd.read_parquet(place / "data")
    counts = [frame.groupby(list(names)).size() for names in combinations(sizes, DEGREE)]
    return {"sets": len(dask.compute(*counts))}


CONTENDERS = {f.__name__: f for f in (private_job, bincount, bincount_answers, groupby)}


def run_contender(name: str, place: Path, repeats: int, tree: Path = HERE) -> dict[str, float]:
    """Run a contender of the checkout `tree` in a new process; the last of `repeats` runs is reported."""
    script = tree / "benchmarks" / "main_job.py"
    command = [sys.executable, script, "--only", name, "--place", str(place), "--repeats", str(repeats)]
    output = subprocess.run(
        command, check=True, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(tree)}
    )
    return dict(json.loads(output.stdout))


def run_fresh(place: Path, tree: Path) -> dict[str, float]:
    """Run the private job of a checkout, with a new ledger."""
    for ledger in place.glob("ledger.sqlite*"):
        ledger.unlink()
    os.sync()
    return run_contender("private_job", place, 3, tree)


def compare_trees(place: Path, other: Path, turns: int) -> None:
    """Run the private job of this and another checkout in turns; print medians of the ratios."""
    both = []
    for turn in range(turns):
        order = (HERE, other) if turn % 2 else (other, HERE)  # who comes second meets the first one's writes
        output = {tree: run_fresh(place, tree) for tree in order}
        both.append([output[HERE], output[other]])
    for label, stages in (("plan to measurements", ("plan", "measure")), ("whole job", ("wall",))):
        ratios = sorted(sum(ours[s] for s in stages) / sum(theirs[s] for s in stages) for ours, theirs in both)
        print(f"{label:22} {median(ratios):.3f} of the other tree's time ({ratios[0]:.3f} to {ratios[-1]:.3f})")


def run_only(name: str, place: Path, repeats: int) -> None:
    for _ in range(repeats):
        start = time.perf_counter()
        output = CONTENDERS[name](place)
        wall = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(json.dumps({"wall": wall, "peak": peak, **output}))


def main() -> None:
    parser = base.command_parser(__doc__)
    parser.add_argument("--adult", type=Path, default=base.DATA / "adult")
    parser.add_argument("--save", action="store_true", help="keep the figures in results/")
    parser.add_argument("--only", choices=CONTENDERS)
    parser.add_argument("--place", type=Path)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--against", type=Path, help="another checkout of this repository")
    parser.add_argument("--turns", type=int, default=5)
    arguments = parser.parse_args()
    if arguments.only:
        run_only(arguments.only, arguments.place, arguments.repeats)
        return
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        write_inputs(arguments.adult, place)
        if arguments.against:
            compare_trees(place, arguments.against.resolve(), arguments.turns)
            return
        found = {name: run_contender(name, place, 1 if name == "groupby" else 2) for name in CONTENDERS}
    report(found)
    if arguments.save:
        base.save("main_job", figures(found))


def figures(found: dict[str, dict[str, float]]) -> dict[str, float]:
    """Return the wall seconds relative to bincount."""
    walls = {name: own["wall"] for name, own in found.items()}
    walls["measured"] = found["private_job"]["plan"] + found["private_job"]["measure"]
    names = {"bincount": "bincount", "plan to measurements": "measured", "bincount written": "bincount_answers",
             "whole job": "private_job", "dask groupby": "groupby"}  # fmt: skip
    return {label: walls[name] / walls["bincount"] for label, name in names.items()}


def report(found: dict[str, dict[str, float]]) -> None:
    base, job = found["bincount"]["wall"], found["private_job"]
    private = job["plan"] + job["measure"]
    print(f"Adult, all {found['bincount']['sets']} {DEGREE}-way marginals; wall seconds, peak GiB, ratio to bincount")
    print(f"  numpy.bincount in a loop            {base:8.2f} {found['bincount']['peak']:6.2f} {1:8.2f}")
    print(f"  dpscale, plan to measurements       {private:8.2f} {'':6} {private / base:8.2f}")
    for label, name in (
        ("dpscale, whole job with answers", "private_job"),
        ("bincount, counts written as Parquet", "bincount_answers"),
        ("dask.dataframe groupby-count", "groupby"),
    ):
        own = found[name]
        print(f"  {label:<35} {own['wall']:8.2f} {own['peak']:6.2f} {own['wall'] / base:8.2f}")
    stages = ", ".join(f"{name} {job[name]:.2f}" for name in ("plan", "measure", "reconstruct", "report"))
    print(f"  stages of the job: {stages}")


TURNS = 3
JOB = """[data]
path = "data"
domain = "domain.toml"
[privacy]
epsilon = {epsilon}
delta = 1e-9
dataset = "adult"
[[workload]]
family = "marginal"
degree = 3
[mechanism]
name = "aim-grem"
[reconstruct]
errors = "{errors}"
"""


def cpu_seconds(place: Path, epsilon: float, errors: str) -> float:
    """Return user and system seconds of one job with its workers."""
    job = place / f"{errors}.toml"
    job.write_text(JOB.format(epsilon=epsilon, errors=errors))
    command = [sys.executable, "-m", "dpscale", "run", str(job), "--fresh", "--quiet", "--run-dir"]
    before = base.children_seconds()
    with tempfile.TemporaryDirectory(dir=place) as folder:
        subprocess.run([*command, str(Path(folder) / "run")], check=True, capture_output=True)
    return base.children_seconds() - before


def compare_jobs(adult: Path) -> dict[str, float]:
    """Print and return the CPU seconds of jobs of all 3-way marginals, medians of turns, after one that compiles."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        write_inputs(adult, place)
        cpu_seconds(place, 1.0, "simulated")
        for epsilon in (0.1, 1.0, 10.0):
            turns = [[cpu_seconds(place, epsilon, errors) for errors in ("none", "simulated")] for _ in range(TURNS)]
            without, simulated = (median(one) for one in zip(*turns, strict=True))
            found |= {f"{epsilon:g}, none": without, f"{epsilon:g}, simulated": simulated}
            print(f"epsilon {epsilon:g}: {without:.2f} s without errors, {simulated:.2f} s with: "
                  f"{simulated / without:.2f} times", flush=True)  # fmt: skip
    return found


if __name__ == "__main__":
    main()
