"""Very many synthetic rows: a run on Adult, then rows drawn from it by two worker processes of a Dask cluster.

Prints CPU microseconds of workers and driver per row, seconds, bytes written, and the peak memory of a worker and of
the driver: files have at most a million rows, so that memory does not grow with their number.

    python benchmarks/many_rows.py [--rows 100000000] [--data FOLDER] [--save]
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path

import base
import pyarrow as pa
import pyarrow.parquet as pq
import tomli_w
from base import DATA, Table, load_table

import dpscale as dp
from dpscale.job.sections import SynthesizeTable
from dpscale.runs.stages.runner import run_stages
from dpscale.runs.table import TableRun

WORKERS = 2


def run_job(table: Table, place: Path) -> TableRun:
    """Return a run without synthetic rows."""
    pq.write_table(pa.table(dict(table.columns)), place / "data.parquet")
    domain = {"attributes": {name: {"kind": "coded", "size": size} for name, size in table.sizes.items()}}
    (place / "domain.toml").write_text(tomli_w.dumps(domain))
    job = {
        "data": {"path": str(place / "data.parquet"), "domain": str(place / "domain.toml")},
        "privacy": {"epsilon": 1.0, "delta": 1e-9, "ledger": str(place / "ledger.sqlite"), "dataset": "rows"},
        "workload": [{"family": "marginal", "degree": 3}],
        "mechanism": {"name": "aim-grem"},
        "output": {"max_rows": 0},
    }
    return TableRun(dp.run(job, place / "run").path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000_000)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--save", action="store_true")
    arguments = parser.parse_args()
    table = load_table("adult", arguments.data)
    if table is None:
        raise SystemExit(f"no table in {arguments.data}: it does not travel with dpscale")
    from distributed import Client, LocalCluster

    with tempfile.TemporaryDirectory() as folder:
        run = run_job(table, Path(folder))
        run.request_rows(SynthesizeTable(rows=arguments.rows))
        with LocalCluster(WORKERS, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster) as client:
            began, before, own = time.perf_counter(), sum(client.run(time.process_time).values()), time.process_time()
            run_stages(run, client, only="synthesize")
            seconds = time.perf_counter() - began
            busy = sum(client.run(time.process_time).values()) - before + time.process_time() - own
            peaks = client.run(lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20).values()
        sizes = [file.stat().st_size for file in (run.path / "synthetic").glob("part-*")]
        size, files = sum(sizes), len(sizes)
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    figures = {"rows": arguments.rows, "attributes": len(table.names), "seconds": seconds, "CPU seconds": busy,
               "files": files, "GiB": size / 2**30, "worker, GiB": max(peaks), "driver, GiB": own}  # fmt: skip
    print(f"{arguments.rows:,} rows of {len(table.names)} attributes in {seconds:.1f} s and {busy:.1f} CPU s: "
          f"{1e6 * busy / arguments.rows:.2f} CPU µs a row; {size / 2**30:.2f} GiB in {files} files; peak "
          f"{max(peaks):.2f} GiB a worker, {own:.2f} GiB the driver")  # fmt: skip
    if arguments.save:
        base.save("many_rows", figures)


if __name__ == "__main__":
    main()
