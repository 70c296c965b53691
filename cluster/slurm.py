"""Run a job with workers started by SLURM, over TLS (needs dask-jobqueue).

    export DASK_CONFIG=/shared/certs/dask.yaml           (by cluster/certificates.py, on the shared file system)
    python cluster/slurm.py job.toml --run-dir /shared/run --queue normal --jobs 8 --cores 4 --memory 32GB

The scheduler and the driver are this process, on the node on which it is started (preferably as its own SLURM job).
Each SLURM job is a part of a node: one worker process per core, because counting occupies its thread. `--script` prints
the script for sbatch and starts nothing.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

WAIT_SECONDS = 3600  # for a first worker: a queue may be long


def make_cluster(queue: str, cores: int, memory: str, walltime: str, interface: str | None = None) -> Any:
    """Return a SLURMCluster whose workers use TLS, never spill, and have their scratch space in memory."""
    import dask
    from dask_jobqueue import SLURMCluster
    from distributed import Security

    from dpscale import JobError

    configuration = dask.config.get("distributed.comm.tls.worker.cert", None)
    if not configuration:
        raise JobError("distributed.comm.tls", "no certificates in Dask's configuration",
                       "the dask.yaml of cluster/certificates.py", "export DASK_CONFIG=…/dask.yaml")  # fmt: skip
    return SLURMCluster(
        queue=queue,
        cores=cores,
        processes=cores,
        memory=memory,
        walltime=walltime,
        interface=interface,
        protocol="tls://",
        security=Security(),
        local_directory="/dev/shm",
        worker_extra_args=["--no-dashboard"],
        scheduler_options={"dashboard_address": None},
        job_script_prologue=[*(_export_line("DASK_CONFIG")), "export DASK_DISTRIBUTED__WORKER__MEMORY__SPILL=False",
                             "export DASK_DISTRIBUTED__WORKER__MEMORY__TARGET=False"],
    )  # fmt: skip


def _export_line(name: str) -> list[str]:
    """Return a line that passes on a setting of this shell, because SLURM may start jobs with a clean environment."""
    import os
    import shlex

    return [f"export {name}={shlex.quote(os.environ[name])}"] if name in os.environ else []


def main() -> int:
    """Execute the command line; return the exit code, and print the message of a user error."""
    from dpscale.base.errors import DpscaleError

    try:
        run_job(parse_arguments())
    except DpscaleError as error:
        print(f"slurm.py: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job")
    parser.add_argument("--run-dir", required=True, help="on the file system that all nodes share")
    parser.add_argument("--queue", required=True)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--cores", type=int, default=4)
    parser.add_argument("--memory", default="16GB", help="of a job; each core has its share")
    parser.add_argument("--walltime", default="04:00:00")
    parser.add_argument("--interface", help="the network between nodes, such as ib0")
    parser.add_argument("--script", action="store_true", help="print the job script and end")
    return parser.parse_args()


def run_job(given: argparse.Namespace) -> None:
    """Check the job before any SLURM job is queued, and run it."""
    if not given.script:
        check_job(given.job, given.run_dir)
    with make_cluster(given.queue, given.cores, given.memory, given.walltime, given.interface) as cluster:
        if given.script:
            print(cluster.job_script())
            return
        run(given.job, given.run_dir, cluster, given.jobs)


def check_job(job: str, run_dir: str) -> None:
    """Create or reopen the run directory of a job; refuse a ledger in an unsuitable place."""
    from dpscale.job import Job
    from dpscale.ledger.location import check_ledger_place, standing
    from dpscale.runs.opening import begin_run

    read = Job.read(job)
    begin_run(read, run_dir, files_accessible=False)
    check_ledger_place(standing(read.privacy.ledger))


def run(job: str, run_dir: str, cluster: Any, jobs: int) -> None:
    """Run all stages of the job on the cluster; the end of a walltime costs only the unfinished tasks.

    `adapt`, not `scale`: a lost SLURM job is queued again.
    """
    import dask
    from distributed import Client

    import dpscale as dp

    cluster.adapt(minimum_jobs=jobs, maximum_jobs=jobs)
    with dask.config.set({"dpscale.worker-wait": WAIT_SECONDS}), Client(cluster) as client:
        print(dp.run(job, run_dir, client=client).path)


if __name__ == "__main__":
    sys.exit(main())
