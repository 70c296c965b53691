"""Waiting for a cluster until tasks are finished or no worker or scheduler remains.

Dask waits without limit for a scheduler that hangs or for workers that never join. Every few seconds the driver checks
that they exist. The loss of a cluster becomes an error after which the job can be run again: measurements are on disk,
and the next run resumes after them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from time import monotonic
from typing import TYPE_CHECKING, Any

from dpscale.base.error_redaction import AGAIN, FIELD, RedactedCall, no_memory
from dpscale.base.errors import DpscaleError, JobError, TransientError

if TYPE_CHECKING:
    from distributed import Client, Future

POLL_SECONDS = 2.0
WORKER_SECONDS = 120.0


def worker_seconds() -> float:
    """Return the time to wait for a first worker: `dpscale.worker-wait` in Dask's configuration, for slow queues."""
    import dask
    from dask.utils import parse_timedelta

    configured = dask.config.get("dpscale.worker-wait", WORKER_SECONDS)
    try:
        return float(parse_timedelta(configured))
    except (ValueError, TypeError, AttributeError, LookupError, OverflowError):  # depending on the value
        raise JobError("dpscale.worker-wait", f"{configured!r} in Dask's configuration",
                       "seconds, or a number and a unit such as 90s, 30m or 1h", "fix it") from None  # fmt: skip


class Watch:
    """Queue of the futures of one client in the order in which they finish."""

    def __init__(self, client: Client) -> None:
        self._client, self._patience = client, worker_seconds()
        self._finished: SimpleQueue[Future] = SimpleQueue()
        self._since: float | None = None

    def add(self, futures: Sequence[Future]) -> None:
        """Add futures."""
        for future in futures:
            future.add_done_callback(self._finished.put)

    def next(self) -> list[Future]:
        """Return the futures that have finished, at least one; a lost future counts as finished."""
        finished = [self._wait()]
        while not self._finished.empty():
            finished.append(self._finished.get())
        return finished

    def all(self, count: int) -> Iterator[int]:
        """Yield the number of finished futures, up to `count`; raise the error of a failed one."""
        done = 0
        while done < count:
            for future in self.next():
                if future.status != "finished":
                    future.result()  # raises with a traceback
                done += 1
            yield done

    def _wait(self) -> Future:
        while True:
            try:
                return self._finished.get(timeout=POLL_SECONDS)
            except Empty:
                self._check_connection()

    def gather(self, futures: Sequence[Future]) -> list[Any]:
        """Return the results of finished futures; wait again for those that were lost since."""

        async def gathered() -> list[Any]:
            return await self._client.gather(list(futures), asynchronous=True)

        waiting = asyncio.run_coroutine_threadsafe(gathered(), self._client.loop.asyncio_loop)  # type: ignore[union-attr]
        while True:
            try:
                return list(waiting.result(POLL_SECONDS))
            except TimeoutError:
                if waiting.done():
                    raise
                self._check_connection()

    def _check_connection(self) -> None:
        """Raise TransientError if the scheduler is lost, or if there has been no worker for too long."""
        if self._client.status not in ("running", "connecting"):
            raise lost_scheduler()
        if self._client.status == "connecting" or self._client.nthreads():
            self._since = None
            return
        self._since = monotonic() if self._since is None else self._since
        if monotonic() - self._since > self._patience:
            raise no_workers(self._patience)


def flush_messages(client: Client) -> None:
    """Wait until the last message has been sent; Dask merges messages that follow each other at once."""

    async def left() -> None:
        until = monotonic() + POLL_SECONDS
        while getattr(client.scheduler_comm, "buffer", None) and monotonic() < until:
            await asyncio.sleep(0.001)

    asyncio.run_coroutine_threadsafe(left(), client.loop.asyncio_loop).result()  # type: ignore[union-attr]


@contextmanager
def cluster_errors(client: Client, label: str) -> Iterator[None]:
    """Convert the errors of a lost scheduler or worker into TransientError.

    Errors of tasks are not converted: they are raised as they are or as `base.error_redaction` reports them, never as
    an OSError. A closing client raises arbitrary errors from its components, so all errors of such a client are
    converted.
    """
    from distributed import KilledWorker
    from distributed.scheduler import NoValidWorkerError

    try:
        yield
    except DpscaleError:
        raise
    except KilledWorker as error:
        raise killed_task_error(label, error.allowed_failures + 1) from None
    except NoValidWorkerError:
        raise no_workers(None) from None
    except MemoryError:  # its text may reveal a number of rows
        raise no_memory() from None
    except (OSError, TimeoutError, CancelledError, asyncio.CancelledError):
        raise lost_scheduler() from None
    except Exception as error:
        if (
            client.status != "running" or type(error).__name__ == "NoWorkerError"
        ):  # the class does not exist in all versions
            raise lost_scheduler() from None
        raise


def killed_task_error(label: str, times: int) -> TransientError:
    """Return the error for a task at which workers died repeatedly, nearly always because of memory."""
    return TransientError(
        f"{FIELD}.memory",
        f"{times} {'worker' if times == 1 else 'workers'} died at task {label}, probably because of memory",
        "",
        "lower engine.memory, or give each worker more memory (--memory-limit), and run again; see the workers' logs",
    )


def lost_scheduler() -> TransientError:
    """Return the error for a lost scheduler; files on disk remain valid."""
    return TransientError(FIELD, "the connection to the Dask scheduler was lost", "", f"start it, then {AGAIN}")


def no_workers(seconds: float | None) -> TransientError:
    """Return the error for a scheduler without workers."""
    waited = "" if seconds is None else f" in {seconds:.0f} s"
    return TransientError(FIELD, f"the scheduler has had no worker{waited}", "", f"start workers, then {AGAIN}")


__all__ = ["FIELD", "RedactedCall", "worker_errors"]


@contextmanager
def worker_errors(kind: type[BaseException]) -> Iterator[None]:
    """Convert the error that a scheduler raises for lost worker processes into TransientError."""
    try:
        yield
    except kind:
        raise TransientError(FIELD, "a worker process died", "", AGAIN) from None
