"""Choice of the engine from `client`, `scheduler` and the ambient client.

A connection to a running scheduler checks its address and its certificates first.
"""

from __future__ import annotations

import re
import ssl
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager, nullcontext
from functools import partial
from ipaddress import IPv6Address
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar

from dpscale.base.display import distinct_sizes, type_of_value
from dpscale.base.error_redaction import accepted
from dpscale.base.errors import JobError, PlanError, TransientError
from dpscale.engine.base import Engine, Progress, argument_tuples, silent
from dpscale.engine.cluster import ClusterEngine
from dpscale.engine.graphs import FAN_IN, Graph, call_graph, reduction_graph
from dpscale.engine.watch import NOTICE_SECONDS, awaited, worker_errors
from dpscale.storage.scratch import Use, shared_folder, used

if TYPE_CHECKING:
    from distributed import Client, Security


SCHEDULER_FIELD = "engine.scheduler"
CONNECT_SECONDS = 20  # in which a scheduler must accept a connection
TLS = "distributed.comm.tls"
CLUSTER_DOCS = "see cluster/README.md#several-machines-with-tls"
ADDRESSES = "tcp://HOST:PORT or tls://HOST:PORT"
ADDRESS = re.compile(r"(?:tcp|tls)://(?:\[(?P<v6>[^\[\]]+)\]|(?P<host>[^][:/@\s]+)):(?P<port>[0-9]{1,5})")


def connect(
    address: str, seconds: float, expected: str = ADDRESSES, notice: Callable[[], None] = lambda: None
) -> Client:
    """Return a client of the scheduler at an address; `expected` describes the accepted values in an error message.

    `notice` is called every NOTICE_SECONDS of waiting.
    """
    if not _is_address(address):
        raise JobError(SCHEDULER_FIELD, f"{address!r}", expected, "fix it")

    from distributed import Client  # imported first: it adds its defaults to Dask's configuration

    _check_encryption(address)
    security = _security() if address.startswith("tls://") else None
    try:
        return _limited(partial(Client, address, timeout=seconds, security=security, set_as_default=False),
                        seconds + NOTICE_SECONDS, notice)  # fmt: skip
    except ValueError:
        raise JobError(SCHEDULER_FIELD, f"{address!r}", expected, "fix it") from None
    except (OSError, TimeoutError) as error:
        raise _connection_error(address, error) from None


def _limited(connecting: Callable[[], Client], seconds: float, notice: Callable[[], None]) -> Client:
    """Return the result of a call in a thread, because Dask waits without limit for the greeting of a scheduler.

    `notice` is called while the result is awaited. The thread is a daemon, so that a call without end does not delay
    the end of the process.
    """
    connected: Future[Client] = Future()

    def run() -> None:
        """Store the client or the error of the connection in the future."""
        try:
            connected.set_result(connecting())
        except BaseException as error:
            connected.set_exception(error)

    Thread(target=run, daemon=True).start()
    return awaited(connected, seconds, notice)


def _is_address(address: str) -> bool:
    """Return whether Dask accepts the address; for an invalid one it would retry for long and end with a traceback."""
    matched = ADDRESS.fullmatch(address)
    if matched is None or not 0 < int(matched["port"]) < 2**16:
        return False

    try:
        IPv6Address(matched["v6"]) if matched["v6"] else matched["host"].encode("idna")
    except ValueError:
        return False
    return True


def _check_encryption(address: str) -> None:
    """Raise JobError for an address without TLS if Dask's configuration requires encryption."""
    import dask

    if address.startswith("tcp://") and dask.config.get("distributed.comm.require-encryption", None):
        raise JobError(SCHEDULER_FIELD, f"{address}, but Dask's configuration requires encryption",
                       "tls://HOST:PORT", f"use the TLS address of the scheduler: {CLUSTER_DOCS}")  # fmt: skip


def _security() -> Security:
    """Return the TLS settings of Dask's configuration; raise JobError if they are incomplete or unusable.

    `get_connection_args` reads the certificates, so that an error occurs here and not in a later connection.
    """
    import dask
    from distributed import Security

    where = {"ca-file": f"{TLS}.ca-file", "cert": f"{TLS}.client.cert", "key": f"{TLS}.client.key"}
    missing = [name for name in where.values() if not dask.config.get(name, None)]
    if missing:
        raise _certificate_error(f"tls:// without {' and '.join(missing)} in Dask's configuration")

    try:
        security = Security()
        security.get_connection_args("client")
    except (OSError, ValueError) as error:
        broken = "unreadable or not a matching pair"
        kind = broken if isinstance(error, ssl.SSLError) else getattr(error, "strerror", None) or broken
        raise _certificate_error(f"the certificates in Dask's configuration cannot be used ({kind})") from None

    return security


def _certificate_error(got: str) -> JobError:
    return JobError(SCHEDULER_FIELD, got, "files of a certificate authority, a client certificate and its key",
                    "create them and set them in Dask's configuration: "
                    f"{CLUSTER_DOCS}")  # fmt: skip


def _connection_error(address: str, error: BaseException) -> JobError | TransientError:
    """Return the error for a failed connection to a scheduler: certificates that differ, or no answer."""
    if any(isinstance(cause, ssl.SSLError) or "SSL" in str(cause) for cause in _causes(error)):
        return JobError(SCHEDULER_FIELD, f"{address} and this client do not accept each other's certificates",
                        "certificates of one authority for both",
                        f"use the certificates of this cluster: {CLUSTER_DOCS}")  # fmt: skip

    other = "tls://" if address.startswith("tcp://") else "tcp://"
    return TransientError(
        SCHEDULER_FIELD,
        f"no answer from {address} ({type(error).__name__})",
        "the address of a running Dask scheduler",
        f"start it, or check host and port, or try {other}",
    )


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


Joined = TypeVar("Joined")
LOCAL = ("threads", "processes", "synchronous")
MOST_PROCESSES = 61  # that Windows can wait for
LEAST_CHECKED = 1 << 30  # bytes of a task on one machine that are compared with its memory


class LocalEngine(Engine):
    """Engine on the Dask schedulers of this machine.

    Parameters
    ----------
    scheduler : {"threads", "processes", "synchronous"}
    workers : int, optional
        Default: the processors available to this process, at most the quota of its container.
    progress : callable
    """

    def __init__(self, scheduler: str = "threads", workers: int | None = None, progress: Progress = silent) -> None:
        self.scheduler, self.progress = scheduler, progress
        self.shares_memory = scheduler != "processes"
        self.workers = 1 if scheduler == "synchronous" else workers or processors(scheduler)

    def map(
        self, function: Callable[..., Any], items: Iterable[Any], label: str = "map", memory: int | None = None
    ) -> list[Any]:
        """Return function(item) for every item, in order; a tuple item is unpacked into the arguments.

        `label` names the tasks in the progress. `memory` has no effect on this engine.
        """
        graph = call_graph(function, argument_tuples(items), label)
        return self._results(graph, list(graph), label)

    def reduce(
        self,
        function: Callable[..., Sequence[Any]],
        items: Sequence[tuple[Any, ...]],
        parts: int,
        label: str = "reduce",
        memory: int | None = None,
        pieces: Sequence[range] | None = None,
        disjoint: bool = False,
    ) -> list[Any]:
        """Sum lists of `parts` arrays over items; return the sum of each part.

        A piece is a range of parts that the same tasks sum; without `pieces` there is a single one of all parts. With
        `disjoint` each call has a piece and nothing is summed. Progress counts the calls, not the sums.
        """
        ranges = pieces or [range(parts)]
        graph, called, roots = reduction_graph(function, items, ranges, lambda kind: f"{label}-{kind}", disjoint)
        return self._results(graph, roots, label, called)

    def persist(
        self, function: Callable[..., Any], items: Iterable[tuple[Any, ...]], label: str = "keep",
        memory: int | None = None,
    ) -> list[Any]:  # fmt: skip
        """Return function(*item) for every item."""
        return self.map(function, items, label, memory)

    def exchange(
        self, take: Callable[..., Any], handles: Sequence[Any], join: Callable[..., Any], count: int,
        label: str = "exchange", keep: bool = False,
    ) -> list[Any]:  # fmt: skip
        """Return join([take(handle, number) for all handles]) for every number below `count`."""
        return self.map(_join_parts, [(take, handles, join, number) for number in range(count)], label)

    def scatter(self, values: Sequence[Any], label: str = "send") -> list[Any]:
        """Return the values unchanged; only a cluster sends them in advance."""
        return list(values)

    @contextmanager
    def scratch(self) -> Iterator[Use]:
        """Yield a use of temporary files. Threads share open files; processes use a folder."""
        with nullcontext() if self.shares_memory else shared_folder() as folder, used(folder) as use:
            yield use

    def _results(self, graph: Graph, keys: list[Any], label: str, shown: list[Any] | None = None) -> list[Any]:
        """Return the results of `keys`; progress counts the tasks `shown` (default: `keys`)."""
        if not keys:
            return []
        counted = set(keys if shown is None else shown)
        with worker_errors(BrokenProcessPool), _report_progress(self.progress, label, len(counted), counted):
            results = list(self._get()(graph, keys, num_workers=self.workers))
        accepted(results)
        return results

    def check_worker_memory(self, needed: int, what: str) -> None:
        """Raise PlanError if a large task does not fit the memory of this machine or container.

        `needed` is the number of bytes of the task, and `what` describes it. Up to LEAST_CHECKED bytes nothing is
        checked.
        """
        if needed <= LEAST_CHECKED:  # the import takes longer than most runs of such tasks
            return
        from distributed.system import memory_limit

        if needed > (limit := memory_limit()):
            shown, most = distinct_sizes(needed, limit)
            raise PlanError("engine.memory", f"a task on {what} needs {shown}",
                            f"at most the {most} of this machine or container",
                            "raise its limit, lower engine.memory, or leave the set out")  # fmt: skip

    def check_file_access(self, folder: str | Path, files: Iterable[str | Path] = ()) -> None:
        """Do nothing: tasks on one machine read the files that the driver reads."""

    def close(self) -> None:
        """Do nothing: Dask's local schedulers have no resources between calls."""

    def _get(self) -> Callable[..., Any]:
        """Return the function of Dask that computes a graph on this machine with the chosen scheduler."""
        import dask.local
        import dask.multiprocessing
        import dask.threaded

        schedulers = {
            "threads": dask.threaded.get,
            "processes": dask.multiprocessing.get,
            "synchronous": dask.local.get_sync,
        }
        return schedulers[self.scheduler]  # type: ignore[return-value]


def processors(scheduler: str) -> int:
    """Return the number of processors of this process: of the machine, its affinity, and the quota of its container.

    On Windows a pool has at most MOST_PROCESSES processes.
    """
    from dask.system import cpu_count

    count = cpu_count()
    return min(count, MOST_PROCESSES) if scheduler == "processes" and sys.platform == "win32" else count


def _join_parts(take: Callable[..., Any], handles: Sequence[Any], join: Callable[..., Joined], number: int) -> Joined:
    return join([take(handle, number) for handle in handles])


@contextmanager
def _report_progress(progress: Progress, label: str, total: int, keys: set[Any]) -> Iterator[None]:
    """Report the finished tasks of a local scheduler.

    Only tasks in `keys` are counted, of which there are `total`.
    """
    from dask.callbacks import Callback

    done = 0

    def finished(key: object, result: object, graph: object, state: object, worker: object) -> None:
        nonlocal done
        done += key in keys
        progress(label, done, total)

    with Callback(posttask=finished):
        yield


__all__ = ["FAN_IN", "LOCAL", "ClusterEngine", "Engine", "LocalEngine", "Progress", "resolve", "silent"]


def resolve(
    client: Client | None = None,
    scheduler: str | Client | None = None,
    progress: Progress = silent,
    priority: int = 0,
) -> Engine:
    """Return the engine of `client`, else of `scheduler`, else of the ambient `distributed` client, else threads.

    Inside a task of a cluster the ambient client is the worker's client. The versions of all workers of a cluster are
    compared with those of this process before anything is read or spent. The engine owns, and later closes, only a
    client that is connected here.

    Parameters
    ----------
    client : distributed.Client, optional
    scheduler : str or distributed.Client, optional
        "threads", "processes", "synchronous", the address of a Dask scheduler, or a client.
    progress : callable
    priority : int
        Priority of the tasks on a cluster.

    Raises
    ------
    JobError
        If the client or the address cannot be used, or versions differ.
    TransientError
        If the scheduler does not answer or has no worker.
    """
    if client is None and not isinstance(scheduler, str | None):
        client, scheduler = scheduler, None
    if client is not None:
        return _with_checked_workers(ClusterEngine(_usable_client(client), progress, priority=priority))
    if scheduler in LOCAL:
        # `scheduler` is one of LOCAL here; the alternative is for the type checker
        return LocalEngine(scheduler or "threads", progress=progress)

    if isinstance(scheduler, str):
        new_client = connect(
            scheduler, CONNECT_SECONDS, f"{', '.join(LOCAL)}, {ADDRESSES}", lambda: progress("connect", 0, 1)
        )
        return _with_checked_workers(ClusterEngine(new_client, progress, owned=True, priority=priority))

    ambient = _ambient_client()
    if ambient is None:
        return LocalEngine(progress=progress)
    return _with_checked_workers(ClusterEngine(_usable_client(ambient), progress, priority=priority))


@contextmanager
def open_cluster(address: str, progress: Progress = silent) -> Iterator[ClusterEngine]:
    """Yield the engine of an existing cluster whose workers have passed the checks; close it afterwards.

    The engine owns the client, so it closes the connection.
    """
    client = connect(address, CONNECT_SECONDS, notice=lambda: progress("connect", 0, 1))
    with closing(ClusterEngine(client, progress, owned=True)) as engine:
        engine.check_workers()
        yield engine


def _with_checked_workers(engine: ClusterEngine) -> ClusterEngine:
    """Return the engine after checking its workers; close it if the check fails."""
    try:
        engine.check_workers()
    except BaseException:
        engine.close()
        raise
    return engine


def _usable_client(client: object) -> Client:
    """Return a client that can be used; raise JobError for any other."""
    from distributed import Client

    expected, remedy = "an open distributed.Client", "open one, or pass the address as scheduler="
    if not isinstance(client, Client):
        raise JobError("client", type_of_value(client), expected, remedy)
    if client.status == "closed":
        raise JobError("client", "a closed client", expected, remedy)
    if client.asynchronous:
        raise JobError("client", "an asynchronous client", f"{expected} that is not asynchronous",
                       "open one, pass scheduler=, or call this in a thread (asyncio.to_thread)")  # fmt: skip
    return client


def _ambient_client() -> Client | None:
    """Return the open ambient client; None if there is none or `distributed` is not imported."""
    if "distributed" not in sys.modules:
        return None

    from distributed import get_client

    try:
        client = get_client()
    except ValueError:
        return None
    return None if client.status == "closed" else client
