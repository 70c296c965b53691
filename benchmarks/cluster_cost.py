"""What a cluster and an object store cost: CPU and wall seconds of one job on threads, on a cluster, and with S3.

The job counts, measures, answers and reports all pairs of 300 attributes of four values. On the cluster, a scheduler
and two workers run in their own processes, started before; their CPU time during the job is added to that of the
command. Object stores are a server of the S3 protocol (moto) on this machine, whose own time is not counted: first the
data are there, then the run directory. Every row is printed as a ratio to threads with files, in the same run, beside
that of an earlier commit.

    python benchmarks/cluster_cost.py [--rows 12000000] [--baseline 2741c547] [--save]
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import base
import psutil
from base import generate_table
from commands import BASELINE, ROOT, unpack
from overhead import start_process

KEYS = {"AWS_ACCESS_KEY_ID": "benchmark", "AWS_SECRET_ACCESS_KEY": "benchmark", "AWS_DEFAULT_REGION": "us-east-1"}
BUCKET = "s3://benchmark"
LIMITS = {"cluster": 1.4, "data in S3": 1.3, "run directory in S3": 1.5}
JOB = """[data]
path = "{data}"
domain = "{domain}"
[privacy]
rho = 1.0
dataset = "cost"
ledger = "{ledger}"
[[workload]]
family = "marginal"
degree = 2
[engine]
scheduler = "{scheduler}"
memory = "4GiB"
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for_port(port: int) -> None:
    for _ in range(300):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise SystemExit(f"nothing listens on port {port}")


@contextmanager
def running(*processes: subprocess.Popen[bytes]) -> Iterator[None]:
    """End processes at the end of the block."""
    try:
        yield
    finally:
        for one in reversed(processes):
            one.terminate()
            one.wait()


def busy(processes: Sequence[psutil.Process]) -> float:
    """Return user and system seconds of running processes."""
    return sum(own.user + own.system for own in (one.cpu_times() for one in processes))


def run_job(
    place: Path, data: str, run_dir: str, scheduler: str, others: Sequence[psutil.Process] = ()
) -> dict[str, float]:
    """Return CPU and wall seconds of a job with a new ledger; `others` are the processes of a cluster."""
    ledger = place / f"ledger-{time.time_ns()}.sqlite"
    job = place / "job.toml"
    job.write_text(JOB.format(data=data, domain=place.parent / "domain.toml", ledger=ledger, scheduler=scheduler))
    began, before, own = time.perf_counter(), busy(others), os.times()
    subprocess.run([sys.executable, "-m", "dpscale", "run", str(job), "--run-dir", run_dir, "--quiet"], check=True)
    after = os.times()
    spent = after.children_user + after.children_system - own.children_user - own.children_system
    return {"CPU": spent + busy(others) - before, "wall": time.perf_counter() - began}


def run_on_cluster(place: Path, table: str) -> dict[str, float]:
    port = free_port()
    address = f"tcp://127.0.0.1:{port}"
    scheduler = start_process("dask_scheduler", "--host", address, "--no-dashboard", "--no-show")
    wait_for_port(port)
    workers = [start_process("dask_worker", "--nthreads", "1", "--no-dashboard", address) for _ in range(2)]
    with running(scheduler, *workers):
        from distributed import Client

        with Client(address, set_as_default=False) as client:
            client.wait_for_workers(2)
        started = [psutil.Process(one.pid) for one in (scheduler, *workers)]
        everything = [own for one in started for own in (one, *one.children(recursive=True))]
        return run_job(place, table, str(place / "on-cluster"), address, everything)


def run_with_store(place: Path, table: Path) -> dict[str, dict[str, float]]:
    """Return the seconds with the data in a store, and with the run directory there."""
    import s3fs

    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with running(server):
        wait_for_port(port)
        os.environ |= {**KEYS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}
        files = s3fs.S3FileSystem(use_listings_cache=False, endpoint_url=os.environ["AWS_ENDPOINT_URL"])
        files.mkdir("benchmark")
        files.put(str(table), f"{BUCKET}/table", recursive=True)
        return {"data in S3": run_job(place, f"{BUCKET}/table", str(place / "data-in-s3"), "threads"),
                "run directory in S3": run_job(place, str(table), f"{BUCKET}/run", "threads")}  # fmt: skip


def run_everywhere(place: Path, table: Path, package: Path) -> dict[str, dict[str, float]]:
    """Return the seconds of the job in every place, with the package in a folder."""
    os.environ["PYTHONPATH"] = str(package)
    place.mkdir()
    run_job(place, str(table / "table"), str(place / "warm"), "threads")
    found = {"threads": run_job(place, str(table / "table"), str(place / "threads"), "threads")}
    found["cluster"] = run_on_cluster(place, str(table / "table"))
    return found | run_with_store(place, table / "table")


def print_ratios(found: dict[str, dict[str, float]], limits: dict[str, float]) -> None:
    for name, seconds in found.items():
        ratios = {kind: own / found["threads"][kind] for kind, own in seconds.items()}
        limit = f", at most {limits[name]} required" if name in limits else ""
        print(f"{name}: {seconds['CPU']:.1f} CPU s, {ratios['CPU']:.2f} times threads{limit}; {seconds['wall']:.1f} s, "
              f"{ratios['wall']:.2f} times", flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=12_000_000)
    parser.add_argument("--baseline", default=BASELINE)
    parser.add_argument("--save", action="store_true")
    given = parser.parse_args()
    os.environ["DPSCALE_STORE"] = "off"
    with tempfile.TemporaryDirectory(dir=".") as folder:
        place = Path(folder).resolve()
        table = generate_table(place, "made", given.rows, 300, "4", 32)
        domain = place / "domain.toml"
        (table / "domain.toml").rename(domain)
        before = run_everywhere(place / "earlier", table, unpack(given.baseline, place / "package"))
        print(f"with the package of {given.baseline}:")
        print_ratios(before, {})
        found = run_everywhere(place / "now", table, ROOT)
        print("now:")
        print_ratios(found, LIMITS)
    figures: dict[str, float] = {"rows": given.rows}
    for start, every in (("before, ", before), ("", found)):
        figures |= {f"{start}{name}, {kind}": own for name, one in every.items() for kind, own in one.items()}
    if given.save:
        base.save("cluster_cost", figures)


if __name__ == "__main__":
    main()
