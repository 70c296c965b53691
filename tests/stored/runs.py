"""Run directories of earlier versions: how they were made, and their expected content.

archives/NAME.tar.gz has a directory with data, domain, job, ledger and run directory, as `_make` left it;
archives/NAME.npz has the estimates of the release by table and attribute set.

A job file has absolute paths, which the digest of a job covers, so each case has its own directory below `ROOT`.
`python -m tests.stored.runs [CASE ...]` makes cases. The archives are never made again for a later version: a
version that cannot read them breaks the promise that directories of released versions stay readable. A new
mechanism or a new form of run directory adds a case. A case NAME@4 has manifest version 4;
the archive identity@3 has a directory of manifest version 3, which was never released and is refused.
"""

from __future__ import annotations

import fcntl
import gzip
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import tomli_w

import dpscale as dp
from dpscale.job.forms import with_budget
from tests.golden.runs import GAUSSIAN, MIXED, PAIRS, PURE, SIZES, write_table
from tests.links import small as shop
from tests.periods import growing

ROOT = Path("/tmp/dpscale-stored-runs")  # the same on every machine
ARCHIVES = Path(__file__).parent / "archives"
MECHANISMS = ("weighted-residuals", "query-smasher", "residual-planner", "residual-planner-plus", "weighted-fourier",
              "hdmm", "eigen-design", "identity", "baseline", "auto", "aim-grem", "aim-pgm", "mst")  # fmt: skip
ROWS = {"rows": 500}
VERSION_4 = "@4"
PRODUCTS = [
    {"family": "product", "label": "groups", "predicates": {"age": ["age < 2", "age in 2..7"], "sex": "identity"}},
    {"family": "predicates", "conditions": ["age = 0 and code > 0", "age = 1 or sex = 0"]},
]


def _mechanism(name: str, **more: Any) -> dict[str, Any]:
    return {"workload": PAIRS, "mechanism": {"name": name}, **more}


TABLES: dict[str, dict[str, Any]] = {
    **{name: _mechanism(name) for name in MECHANISMS},
    "mixed": {"workload": MIXED},
    "pure": {"workload": MIXED, "privacy": PURE, "mechanism": {"name": "hdmm"}},
    "units": {"workload": PAIRS, "data": {"privacy_unit": "person", "max_rows_per_unit": 2}},
    "maxent": {"workload": PAIRS, "reconstruct": {"method": "maxent"}},
    "rows": {"workload": PAIRS, "synthesize": ROWS},
    "adaptive-rows": _mechanism("aim-grem", synthesize=ROWS),
    "published": _mechanism("aim-grem"),
    "interrupted": _mechanism("query-smasher"),
    "interrupted-rounds": _mechanism("aim-grem"),
}
TABLES["published"]["mechanism"]["published"] = True
TABLES |= {f"{name}{VERSION_4}": job for name, job in TABLES.items()}
TABLES[f"product{VERSION_4}"] = {"workload": [*PRODUCTS, *PAIRS]}
DATABASES = (f"database{VERSION_4}", f"interrupted-database{VERSION_4}")
# conditions that new jobs refuse: a day within a month, a number for one of two codes, and what no cell satisfies
CONDITIONS = f"conditions{VERSION_4}"
FORMER = ["day >= 2024-02-15", "day = 2024-02-05 and sex = 1", "code = 01", "code = 1.0 or sex = 0", "day < '2024-01'"]
TABLES[CONDITIONS] = {"workload": [{"family": "predicates", "conditions": FORMER}, *PAIRS]}
GROWING = f"growing{VERSION_4}"  # two of six months
CASES = (*(case for case in TABLES if case.endswith(VERSION_4)), *DATABASES, GROWING)
INTERRUPTED = {
    "interrupted@4": 1,
    "interrupted-rounds@4": 6,
    "interrupted-database@4": 2,
}  # files of values before the kill
KILL = """
import os, signal, sys
from dpscale.measurement import measurement
write, left = measurement.write_values, [int(sys.argv[1])]
def kill(*given):
    write(*given)
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
measurement.write_values = kill
from dpscale.__main__ import main
main(["run", "job.toml", "--run-dir", "run", "--quiet"])
"""


@contextmanager
def case_folder(case: str) -> Iterator[Path]:
    """Yield the empty directory of a case, for one process at a time, and remove it afterwards."""
    ROOT.mkdir(exist_ok=True)
    with open(ROOT / f"{case}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        folder = ROOT / case
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder)


@contextmanager
def restore_case(case: str) -> Iterator[Path]:
    """Yield the directory of a case as the earlier version left it."""
    with case_folder(case) as folder:
        with tarfile.open(ARCHIVES / f"{case}.tar.gz") as archive:
            archive.extractall(folder, filter="data")
        job = folder / "job.toml"  # the user's, who has moved its shares to [budget]
        job.write_text(tomli_w.dumps(with_budget(tomllib.loads(job.read_text()))))
        yield folder


def write_case(case: str, folder: Path) -> Path:
    """Write data, domains and job of a case; return the job file."""
    if case in DATABASES:
        return shop.write_job(folder)
    if case == GROWING:
        growing.write(folder, growing.frames(months=growing.MONTHS[:2]))
        (folder / "job.toml").write_text(tomli_w.dumps(growing.make_job(folder)))
        return folder / "job.toml"
    write_table(folder / "data", 1)
    domain = {"attributes": {name: {"kind": "coded", "size": size} for name, size in SIZES.items()}}
    if case == CONDITIONS:
        domain = write_days_and_codes(folder / "data")
    (folder / "domain.toml").write_text(tomli_w.dumps(domain))
    job: dict[str, Any] = {"privacy": GAUSSIAN, **TABLES[case]}
    job["data"] = {"path": "data", "domain": "domain.toml", **job.get("data", {})}
    job["privacy"] = {"ledger": "ledger.sqlite", "dataset": "stored", **job["privacy"]}
    job["engine"] = {"scheduler": "synchronous", "memory": "1GiB", "seed": 0}
    (folder / "job.toml").write_text(tomli_w.dumps(job))
    return folder / "job.toml"


def write_days_and_codes(data: Path) -> dict[str, Any]:
    """Write a day and a code as text instead of age and code of the table; return its domain."""
    months, codes = ["2024-01", "2024-02", "2024-03"], ["0", "1", "01"]
    table = pd.read_csv(data / "part-0.csv")
    days = [f"{months[age % 3]}-{1 + 4 * age:02}" for age in table.pop("age")]
    table = table.assign(day=days, code=[codes[code] for code in table["code"]])
    table.to_csv(data / "part-0.csv", index=False, lineterminator="\n")
    sizes = {name: {"kind": "coded", "size": SIZES[name]} for name in ("sex", "income")}
    day = {"kind": "date", "by": "month", "low": months[0], "high": months[-1]}
    return {"attributes": {"day": day, "code": {"kind": "categories", "values": codes}, **sizes}}


def releases(run: Path) -> dict[str, dp.Release]:
    """Return the releases in a run directory by table name ("" for a single table)."""
    return {"" if name == "data" else name: one for name, one in dp.Release.open(run).tables.items()}


def estimates(run: Path) -> dict[str, np.ndarray]:
    """Return every marginal of a workload set and all answers with errors, computed from the stored measurements."""
    found = {}
    for name, whole in releases(run).items():
        moments = {f"{name}{period}": whole.at(period, "cumulative") for period in whole.periods} or {name: whole}
        for (name, release), (number, part) in product(moments.items(), enumerate(whole.plan.workload.parts)):
            for names in part.sets:
                found[f"{name}:{'+'.join(names)}"] = release.marginal(names)
                table = release.table(names, family=part.name)
                own = table[["estimate", "std_error", "low", "high"]].to_numpy()
                found[f"{name}:{number}:{'+'.join(names)}"] = own
    return found


def run_case(job: Path) -> None:
    """Run a job to its end in another process, in the directory of its file."""
    command = [sys.executable, "-m", "dpscale", "run", job.name, "--run-dir", "run", "--quiet"]
    subprocess.run(command, cwd=job.parent, check=True, env=_environment(), stdout=subprocess.DEVNULL)


def _environment() -> dict[str, str]:
    return {**os.environ, "DPSCALE_STORE": str(ROOT / "store")}


def _make(case: str) -> None:
    with case_folder(case) as folder:
        job = write_case(case, folder)
        if case in INTERRUPTED:
            done = subprocess.run([sys.executable, "-c", KILL, str(INTERRUPTED[case])], cwd=folder, env=_environment())
            assert done.returncode == -9, case
            (folder / "run" / ".lock").unlink(missing_ok=True)
            _archive(case, folder)
        run_case(job)
        np.savez_compressed(ARCHIVES / f"{case}.npz", **estimates(folder / "run"))
        if case in INTERRUPTED:
            shutil.copytree(folder / "run", folder / "finished")
            _archive(f"{case}-finished", folder / "finished")
        else:
            _archive(case, folder)


def _archive(name: str, folder: Path) -> None:
    """Pack a directory, with equal bytes for equal files."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for path in sorted(folder.rglob("*")):
            included = path.name != "report.html" and not path.name.endswith(".lock")
            if path.is_file() and included:
                archive.add(path, path.relative_to(folder), filter=_strip_owner)
    (ARCHIVES / f"{name}.tar.gz").write_bytes(gzip.compress(packed.getvalue(), mtime=0))


def _strip_owner(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


if __name__ == "__main__":
    ARCHIVES.mkdir(exist_ok=True)
    for one in sys.argv[1:] or CASES:
        _make(one)
