"""Waiting for a cluster until tasks are finished or no worker or scheduler remains.

Dask waits without limit for a scheduler that hangs or for workers that never join. Every few seconds the driver checks
that they exist. The loss of a cluster becomes an error after which the job can be run again: measurements are on disk,
and the next run resumes after them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from concurrent import futures
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

from dpscale.base.error_redaction import AGAIN, FIELD, RedactedCall, no_memory
from dpscale.base.errors import DpscaleError, TransientError
from dpscale.base.numerics import LazyModule
from dpscale.engine.configuration import configured_seconds

if TYPE_CHECKING:
    import asyncio

    from distributed import Client, Future
else:
    asyncio = LazyModule("asyncio")  # only clusters need it

POLL_SECONDS = 2.0  # between checks that the scheduler answers and workers exist
NOTICE_SECONDS = 1.0  # between notices of a request that waits
MISSES = 3  # answers in a row that a lost scheduler does not give
Answer = TypeVar("Answer")


def worker_seconds() -> float:
    """Return the time to wait for a first worker: `dpscale.worker-wait` in Dask's configuration, for slow queues."""
    return configured_seconds("worker-wait")


def answer_seconds() -> float:
    """Return the time to wait for one answer of a worker or of the scheduler: `dpscale.worker-answer`."""
    return configured_seconds("worker-answer")


def run_limited(
    client: Client, request: Callable[[], Awaitable[Answer]], seconds: float, notice: Callable[[], None] = lambda: None
) -> Answer:
    """Return the result of a request on the client's event loop; raise TimeoutError if it lasts too long.

    `notice` is called every NOTICE_SECONDS of waiting.
    """

    async def result() -> Answer:
        return await request()

    waiting = asyncio.run_coroutine_threadsafe(result(), client.loop.asyncio_loop)  # type: ignore[union-attr]
    try:
        return awaited(waiting, seconds, notice)
    finally:
        waiting.cancel()


def awaited(waiting: futures.Future[Answer], seconds: float, notice: Callable[[], None]) -> Answer:
    """Return the result of a future; raise TimeoutError after some seconds. `notice` is called while it is awaited."""
    end = monotonic() + seconds
    while True:
        try:
            return waiting.result(max(min(NOTICE_SECONDS, end - monotonic()), 0.0))
        except TimeoutError:
            if waiting.done() or monotonic() >= end:
                raise
            notice()


def scheduler_answer(
    client: Client, request: Callable[[], Awaitable[Answer]], notice: Callable[[], None] = lambda: None
) -> Answer:
    """Return the answer to a short request to the scheduler; raise TransientError if it does not answer MISSES times.

    Examples
    --------
    >>> scheduler_answer(client, lambda: client.nthreads(asynchronous=True))  # doctest: +SKIP
    """
    for _ in range(MISSES):
        with suppress(TimeoutError):
            return run_limited(client, request, answer_seconds(), notice)
    raise lost_scheduler()


class Watch:
    """Queue of the futures of one client in the order in which they finish.

    Parameters
    ----------
    client : distributed.Client
    review : callable
        Called every POLL_SECONDS with the present workers, or None while the scheduler does not answer, and the seconds
        since a future has finished.
    """

    def __init__(
        self, client: Client, review: Callable[[Collection[str] | None, float], None] = lambda *_: None
    ) -> None:
        """Start to wait: no future has finished, and the cluster counts as connected now."""
        self._client, self._review, self._patience = client, review, worker_seconds()
        self._finished: SimpleQueue[Future] = SimpleQueue()
        self._without_workers: float | None = None  # time since which there is no worker
        self._connected = monotonic()  # last time with a connection to the scheduler
        self._checked = self._last = monotonic()  # times of the last check, and of the last finished future

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
        """Return the next finished task; checks meanwhile that the scheduler is still connected."""
        while True:
            self._check_connection()
            with suppress(Empty):
                future = self._finished.get(timeout=POLL_SECONDS)
                self._last = monotonic()
                return future

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
        """Raise TransientError if the scheduler is lost, or if there has been no worker for too long.

        `_patience` are the seconds without any worker after which the cluster counts as lost.
        """
        if self._client.status not in ("running", "connecting"):
            raise lost_scheduler()
        if monotonic() - self._checked < POLL_SECONDS:
            return

        present = None
        if self._client.status == "running":
            present = self._present()
            self._connected = monotonic()
        elif monotonic() - self._connected > MISSES * answer_seconds():  # Dask waits for a greeting without limit
            raise lost_scheduler()

        self._checked = monotonic()
        self._review(present, monotonic() - self._last)
        if present is None or present:
            self._without_workers = None
            return

        self._without_workers = self._without_workers or monotonic()
        if monotonic() - self._without_workers > self._patience:
            raise no_workers(self._patience)

    def _present(self) -> Collection[str]:
        """Return the workers that the scheduler has."""
        return list(scheduler_answer(self._client, lambda: self._client.nthreads(asynchronous=True),
                                     lambda: self._review(None, monotonic() - self._last)))  # fmt: skip


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
