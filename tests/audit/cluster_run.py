"""A job on a cluster of two workers in a separate process: python -m tests.audit.cluster_run JOB RUN_DIR HOW.

All texts of the cluster (worker logs, task names, tasks, errors, dashboard content) are written to stdout, and the
debug log to stderr. HOW is done, disk (workers cannot write files), killed or memory.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback

from tests.running import begin_table


def limit_files() -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300))


def kill_at_measuring() -> None:
    from dpscale.measurement import measurement

    measurement.write_values = lambda *_: os.kill(os.getpid(), signal.SIGKILL)


def run_out_of_memory() -> None:
    """Make counting fail as NumPy does when there is no memory for all rows."""
    from dpscale.engine import counting

    def fail(*arguments: object, **settings: object) -> None:
        rows = 31_000 + 337  # not a literal: a traceback shows the line of code, not what it comes to
        raise MemoryError(f"Unable to allocate 60.5 KiB for an array with shape (2, {rows}) and data type uint8")

    counting.count_by = fail


TROUBLES = {"disk": limit_files, "killed": kill_at_measuring, "memory": run_out_of_memory}


def scheduler_texts(dask_scheduler: object) -> list[str]:
    """Return the texts of the scheduler and the dashboard."""
    tasks = dask_scheduler.tasks.values()  # type: ignore[attr-defined]
    texts = [f"{task.key} {task!r} {task.run_spec!r} {task.exception_text} {task.traceback_text}" for task in tasks]
    return [*texts, repr(dask_scheduler.transition_log)]  # type: ignore[attr-defined]


def main(job: str, run_dir: str, how: str) -> None:
    import dask
    from distributed import Client, LocalCluster

    from dpscale.job import Job
    from tests.running import run_stages

    dask.config.set({"logging.distributed": "debug"})
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as workers,
        Client(workers) as client,
    ):
        run = begin_table(Job.read(job), run_dir)
        run_stages(run, client=client, only="plan")
        if how in TROUBLES:
            client.run(TROUBLES[how])
        try:
            run_stages(run, client=client)
        except Exception:
            traceback.print_exc()
        print("worker logs", client.get_worker_logs())
        print("scheduler logs", client.get_scheduler_logs(), client.get_events())
        print(*client.run_on_scheduler(scheduler_texts), sep="\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
