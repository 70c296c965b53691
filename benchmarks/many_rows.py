"""Very many synthetic rows: a run on Adult, then rows drawn from it by two worker processes of a Dask cluster.

Prints rows per second and core, seconds, bytes written, and the peak memory of a worker and of the driver: files have
100,000 rows, so that memory does not grow with their number. `--rows 100000000` takes at least a quarter of an hour.

    python benchmarks/many_rows.py [--rows 10000000] [--data FOLDER]
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import tomli_w
from marginal_tables import DATA, Table, load_table

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
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--data", type=Path, default=DATA)
    arguments = parser.parse_args()
    table = load_table("adult", arguments.data)
    if table is None:
        raise SystemExit(f"no table in {arguments.data}: it does not travel with dpscale")
    from distributed import Client, LocalCluster

    with tempfile.TemporaryDirectory() as folder:
        run = run_job(table, Path(folder))
        run.request_rows(SynthesizeTable(rows=arguments.rows))
        with LocalCluster(WORKERS, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster) as client:
            began = time.perf_counter()
            run_stages(run, client, only="synthesize")
            seconds = time.perf_counter() - began
            peaks = client.run(lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20).values()
        size = sum(file.stat().st_size for file in (run.path / "synthetic").iterdir())
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    rate = arguments.rows / seconds
    print(f"{arguments.rows:,} rows of {len(table.names)} attributes in {seconds:.1f} s: {rate:,.0f} rows/s, "
          f"{rate / WORKERS:,.0f} a core; {size / 2**30:.2f} GiB written; peak {max(peaks):.2f} GiB a worker, "
          f"{own:.2f} GiB the driver; 10^8 rows at this rate: {1e8 / rate / 60:.1f} min")  # fmt: skip


if __name__ == "__main__":
    main()
