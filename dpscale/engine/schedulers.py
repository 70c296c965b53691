"""Which engine runs: the one place that resolves `client`, `scheduler` and the ambient client."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from dpscale.base.error_redaction import accepted
from dpscale.base.errors import JobError
from dpscale.engine.base import Engine, Progress, silent, spread
from dpscale.engine.cluster import ClusterEngine
from dpscale.engine.graphs import FAN_IN, Graph, calls, sums
from dpscale.engine.waiting import lost_workers
from dpscale.storage.scratch import Use, shared_folder, used

LOCAL = ("threads", "processes", "synchronous")


class LocalEngine(Engine):
    """Dask's own schedulers on this machine."""

    def __init__(self, scheduler: str = "threads", workers: int | None = None, progress: Progress = silent) -> None:
        self.scheduler, self.progress = scheduler, progress
        self.shares_memory = scheduler != "processes"
        self.workers = 1 if scheduler == "synchronous" else workers or len(os.sched_getaffinity(0))

    def map(
        self, function: Callable[..., Any], items: Iterable[Any], label: str = "map", memory: int | None = None
    ) -> list[Any]:
        """function(item) for every item, in order; a tuple item is spread over the arguments."""
        graph = calls(function, spread(items), label)
        return self._results(graph, list(graph), label)

    def reduce(
        self,
        function: Callable[..., Sequence[Any]],
        items: Sequence[tuple[Any, ...]],
        parts: int,
        label: str = "reduce",
        memory: int | None = None,
        pieces: Sequence[range] | None = None,
        apart: bool = False,
    ) -> list[Any]:
        """Sum over items of function(*item), a list of `parts` arrays: the sums."""
        asked = pieces or [range(parts)]
        graph, called, roots = sums(function, items, asked, lambda kind: f"{label}-{kind}", apart)
        return self._results(graph, roots, label, called)

    def keep(
        self, function: Callable[..., Any], items: Iterable[tuple[Any, ...]], label: str = "keep",
        memory: int | None = None,
    ) -> list[Any]:  # fmt: skip
        """function(*item) for every item: what it made."""
        return self.map(function, items, label, memory)

    def exchange(
        self, take: Callable[..., Any], kept: Sequence[Any], join: Callable[..., Any], count: int,
        label: str = "exchange",
    ) -> list[Any]:  # fmt: skip
        """join([take(one, number) for one in kept]) for every number below `count`."""
        return self.map(_joined, [(take, kept, join, number) for number in range(count)], label)

    def sent(self, values: Sequence[Any], label: str = "send") -> list[Any]:
        """The values: tasks are near."""
        return list(values)

    @contextmanager
    def scratch(self) -> Iterator[Use]:
        """Threads share what is open; processes need a folder."""
        with nullcontext() if self.shares_memory else shared_folder() as folder, used(folder) as use:
            yield use

    def _results(self, graph: Graph, keys: list[Any], label: str, shown: list[Any] | None = None) -> list[Any]:
        """The results of `keys`; `shown` are the tasks that progress counts, `keys` unless told."""
        if not keys:
            return []
        counted = set(keys if shown is None else shown)
        with lost_workers(BrokenProcessPool), _shown(self.progress, label, len(counted), counted):
            results = list(self._get()(graph, keys, num_workers=self.workers))
        accepted(results)
        return results

    def check_room(self, needed: int, what: str) -> None:
        """The memory setting is all that bounds a machine's own tasks."""

    def check_sight(self, folder: str | Path, files: Iterable[str | Path] = ()) -> None:
        """A machine's own tasks see what the driver sees."""

    def close(self) -> None:
        """Nothing to let go of: Dask's local schedulers hold nothing between calls."""

    def _get(self) -> Callable[..., Any]:
        import dask.local
        import dask.multiprocessing
        import dask.threaded

        schedulers = {
            "threads": dask.threaded.get,
            "processes": dask.multiprocessing.get,
            "synchronous": dask.local.get_sync,
        }
        return schedulers[self.scheduler]  # type: ignore[return-value]


def _joined(take: Callable[..., Any], kept: Sequence[Any], join: Callable[..., Any], number: int) -> Any:
    return join([take(one, number) for one in kept])


@contextmanager
def _shown(progress: Progress, label: str, total: int, keys: set[Any]) -> Iterator[None]:
    """Report finished tasks of a local scheduler."""
    from dask.callbacks import Callback

    done = 0

    def finished(key: Any, result: Any, graph: Any, state: Any, worker: Any) -> None:
        nonlocal done
        done += key in keys
        progress(label, done, total)

    with Callback(posttask=finished):
        yield


__all__ = ["FAN_IN", "LOCAL", "ClusterEngine", "Engine", "LocalEngine", "Progress", "resolve", "silent"]


def resolve(client: Any = None, scheduler: str | None = None, progress: Progress = silent, priority: int = 0) -> Engine:
    """The engine: `client`, else `scheduler`, else the ambient `distributed` client, else threads.

    Inside a task of a cluster the ambient client is the worker's. Every cluster's workers are held against this
    process's versions, so that a wrong one is refused before anything is read or spent.
    """
    if client is not None:
        return _checked(ClusterEngine(_opened(client), progress, priority=priority))
    if scheduler in LOCAL:
        return LocalEngine(scheduler or "threads", progress=progress)
    if scheduler is not None:
        from dpscale.engine.connect import ADDRESSES, CONNECT_SECONDS, connect

        connected = connect(scheduler, CONNECT_SECONDS, takes=f"{', '.join(LOCAL)}, {ADDRESSES}")
        return _checked(ClusterEngine(connected, progress, owned=True, priority=priority))
    ambient = _ambient_client()
    if ambient is None:
        return LocalEngine(progress=progress)
    return _checked(ClusterEngine(_opened(ambient), progress, priority=priority))


def _checked(engine: ClusterEngine) -> ClusterEngine:
    try:
        engine.check_workers()
    except BaseException:
        engine.close()
        raise
    return engine


def _opened(client: Any) -> Any:
    """The client that a caller gave, or that is ambient; JobError where it is none that can be used."""
    from distributed import Client

    takes, remedy = "an open distributed.Client", "open one, or give scheduler= the address"
    if not isinstance(client, Client):
        raise JobError("client", f"a {type(client).__name__}", takes, remedy)
    if client.status == "closed":
        raise JobError("client", "a closed client", takes, remedy)
    if client.asynchronous:
        raise JobError("client", "an asynchronous client", f"{takes} that is not asynchronous",
                       "open one, give scheduler=, or call this in a thread (asyncio.to_thread)")  # fmt: skip
    return client


def _ambient_client() -> Any:
    """The client at hand, where Dask is in use at all; one that is closed does not count."""
    if "distributed" not in sys.modules:
        return None
    from distributed import get_client

    try:
        client = get_client()
    except ValueError:
        return None
    return None if client.status == "closed" else client
